"""Put what the campaigns found into docs/reliability.md: `python -m reliability.render`.

Each block `<!-- NAME -->` … `<!-- end -->` of the page is made from reliability/results, as BLOCKS says.
"""

import json
from collections.abc import Callable
from typing import Any

from benchmarks.pages import fill, table
from benchmarks.result_files import ROOT
from reliability.mutants import EQUIVALENT
from reliability.trials import RESULTS

PAGE = ROOT / "docs" / "reliability.md"
SINCE = "a test"
"""How the reason begins of a mutant that is killed by now."""
COMMANDS = ("prepare", "diagnose", "train", "evaluate", "report")


def faults(rows: dict[str, Any]) -> str:
    """Return one line for each fault that was tried."""
    ordered = sorted(rows.values(), key=lambda row: row["title"])
    cells = [[row["title"], row["tried"], _survived(row), f"`{row['commit']}`"] for row in ordered]
    trials, survived = (sum(row[key] for row in rows.values()) for key in ("tried", "survived"))
    count = f"{trials} trials of {len(rows)} faults; {survived} survived."
    return f"{count}\n\n{table(['what was tried', 'times', 'survived', 'commit'], cells)}"


def _survived(row: dict[str, Any]) -> str:
    if row["survived"] == row["tried"]:
        return "all"
    return f"{row['survived']} ({'; '.join(row['problems'])})"


def load(kind: str) -> Callable[[dict[str, Any]], str]:
    """Return what makes a block of one kind of load: a line for each size, two tables."""

    def block(results: dict[str, Any]) -> str:
        rows = results[kind]["rows"]
        seconds = [[*_size(row), *(_cell(row, name, "processor", "{:.0f}") for name in COMMANDS)] for row in rows]
        memory = [[*_size(row), *(_cell(row, name, "gib", "{:.2f}") for name in COMMANDS)] for row in rows]
        header = ["cases", "samples", "classes", "channels"]
        commits = ", ".join(dict.fromkeys(f"`{row['commit']}`" for row in rows))
        return "\n\n".join(
            [
                table([*header, *(f"{name}, s" for name in COMMANDS)], seconds),
                table([*header, *(f"{name}, GiB" for name in COMMANDS)], memory),
                f"{results[kind]['cores']} processors, shared with other work: seconds are what processors computed. "
                f"Measured at commit {commits}.",
            ]
        )

    return block


def _size(row: dict[str, Any]) -> list[str]:
    return [f"{row[name]:,}" for name in ("cases", "samples", "classes", "channels")]


def _cell(row: dict[str, Any], command: str, key: str, form: str) -> str:
    measured = row["commands"].get(command)
    return form.format(measured[key]) if measured else "–"


def long_scan(results: dict[str, Any]) -> str:
    """Return one line for each size of scan that was segmented."""
    rows = [
        [row["slices"], f"{row['side']}×{row['side']}", f"{row['processor']:.0f}", f"{row['gib']:.2f}"]
        for row in results["scan"]["rows"]
    ]
    commits = ", ".join(dict.fromkeys(f"`{row['commit']}`" for row in results["scan"]["rows"]))
    head = table(["slices", "size", "predict, s of a processor", "GiB"], rows)
    return f"{head}\n\n{results['scan']['cores']} processors. Measured at commit {commits}."


def many_scans(results: dict[str, Any]) -> str:
    """Return one line for each number of small scans that one call segmented."""
    rows = [
        [f"{row['scans']:,}", *(_cell(row, name, key, form) for name in ("predict", "again") for key, form in _CELLS)]
        for row in results["scans"]["rows"]
    ]
    commits = ", ".join(dict.fromkeys(f"`{row['commit']}`" for row in results["scans"]["rows"]))
    head = table(["scans", "predict, s", "predict, GiB", "again with `--resume`, s", "GiB"], rows)
    return f"{head}\n\n{results['scans']['cores']} processors, shared with other work. Measured at commit {commits}."


_CELLS = (("processor", "{:.0f}"), ("gib", "{:.2f}"))


def fuzzing(results: dict[str, Any]) -> str:
    """Return one line for each reader that was given hostile files."""
    rows = [
        [
            row["title"],
            f"{row['inputs']:,}",
            f"{row['ends'].get('read', 0):,}",
            f"{sum(count for end, count in row['ends'].items() if end != 'read'):,}",
            "; ".join(f"{count} × {end}" for end, count in row["failures"].items()) or "0",
            "libFuzzer" if row["guided"] else "no",
            f"`{row['commit']}`",
        ]
        for row in results.values()
    ]
    header = ["reader", "inputs", "read", "refused with a message", "failed", "guided", "commit"]
    total = sum(row["inputs"] for row in results.values())
    failed = sum(sum(row["failures"].values()) for row in results.values())
    return f"{total:,} inputs, of which {failed} failed.\n\n{table(header, rows)}"


def mutation(results: dict[str, Any]) -> str:
    """Return one line for each file whose mutants were tried, and those that survived."""
    reasons = json.loads(EQUIVALENT.read_text())
    rows, survivors = [], []
    for file, row in results.items():
        survived = [mutant["change"] for mutant in row["survivors"]]
        since = sum(reasons.get(change, "").startswith(SINCE) for change in survived)
        equal = sum(change in reasons for change in survived) - since
        for change in survived:
            escaped = change.replace("|", "\\|")
            survivors.append([f"`{file}`", f"`{escaped}`", reasons.get(change, "not explained")])
        counts = [row["tried"], row["tried"] - len(survived), equal, since, len(survived) - equal - since]
        rows.append([f"`{file}`", row["places"], *counts, f"`{row['commit']}`"])
    header = ["file", "places that can change", "mutants tried", "killed", "equivalent", "killed since", "survived"]
    return f"{table([*header, 'commit'], rows)}\n\n{table(['file', 'what was not noticed', 'why'], survivors)}"


BLOCKS: dict[str, tuple[str, Callable[[dict[str, Any]], str]]] = {
    "faults": ("faults.json", faults),
    "load-cases": ("load.json", load("cases")),
    "load-classes": ("load.json", load("classes")),
    "load-channels": ("load.json", load("channels")),
    "load-scan": ("load.json", long_scan),
    "load-scans": ("load.json", many_scans),
    "fuzzing": ("fuzz.json", fuzzing),
    "mutants": ("mutants.json", mutation),
}


def block(name: str) -> str:
    """Return the text of a block."""
    file, render = BLOCKS[name]
    path = RESULTS / file
    results = json.loads(path.read_text()) if path.is_file() else {}
    measured = name.removeprefix("load-") in results if name.startswith("load-") else results
    return render(results) if measured else "*Not measured yet.*"


def rendered(page: str) -> str:
    """Return the page with every block made anew."""
    return fill(page, {name: lambda name=name: block(name) for name in BLOCKS})


if __name__ == "__main__":
    PAGE.write_text(rendered(PAGE.read_text()))
