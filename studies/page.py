"""The blocks of a study's page, from its collected results and its layout; `render.py` puts them into the page."""

import json
import os
import statistics
from collections.abc import Callable, Container, Iterable
from dataclasses import replace
from itertools import combinations
from pathlib import Path
from typing import Any

from adawac.config import TrainConfig
from adawac.evaluation import paired_difference
from adawac.reproduction.collected_results import Entry
from benchmarks.pages import table
from studies.layout import Block, Group, Layout, Matrix

MEASURES = {
    "beta_auc": "AUC of β: label-dense above label-sparse",
    "beta_sparse": "mean β, label-sparse slices",
    "beta_dense": "mean β, label-dense slices",
    "beta_median": "median β",
    "first_ce": "median CE in the first epoch",
    "first_acr": "median ACR (λ included) in the first epoch",
    "first_beta_low": "share of β below 0.05 after the first epoch",
    "beta_low": "share of β below 0.05 after the last",
    "spearman_first": "rank correlation of β after the first epoch with β after the last",
    "separated_sparse": "label-sparse slices with CE < ACR",
    "separated_dense": "label-dense slices with CE > ACR",
    "sparse_ce": "mean CE of label-sparse slices over that of label-dense ones, all epochs",
    "sparse_acr": "the same of ACR",
    "spread_ce": "spread of CE (SD / mean)",
    "spread_ac": "spread of ACR (SD / mean)",
    "between_cases_beta": "share of β's variance between cases",
    "between_cases_reg_ac": "share of ACR's variance between cases",
    "spearman_foreground": "rank correlation of β with the share of foreground",
    "spearman_mean_ce": "rank correlation of β with a slice's mean CE over all epochs",
    "spearman_mean_acr": "rank correlation of β with a slice's mean ACR over all epochs",
    "spearman_brightness": "of a case's mean β with its images' mean intensity",
    "spearman_acr_brightness": "of a case's mean ACR with its images' mean intensity",
}

_ON_FOLDS = ("official", "robust")
"""The candidates that the overview quotes until the test cases are scored."""
_MORE = ("between_seeds", "beta_by_group")

Rows = dict[str, list[Entry]]
"""The entries of each row, in the order of their seeds."""
Pairs = list[tuple[Entry, Entry]]
"""A run, and the run of the same seed that it is compared with."""


def blocks(layout: Layout, entries: list[Entry]) -> dict[str, str]:
    """Return the text of every block of the page; that of a group without runs is empty."""
    rows = by_row(entries)
    texts = {group.name: _group(group, layout.caveat, rows) for group in layout.groups}
    texts |= {name: matrix(of_name, rows, layout.rows) for name, of_name in layout.matrices.items()}
    texts["short"] = _short(layout.title, layout.short, rows)
    texts["total"] = _total(entries)
    texts["separation"] = _separation(layout, rows)
    texts["ends"] = _ends([entry for entry in entries if entry.get("ends")], rows)
    texts["overview"] = image(layout.page, overview_text(layout), layout.overview) if layout.overview.is_file() else ""
    texts["missing"] = _missing(layout, {entry["name"] for entry in entries})
    return {f"{layout.name}-{name}": text for name, text in texts.items()}


def by_row(entries: list[Entry]) -> Rows:
    """Return the entries of each row, in the order of their seeds."""
    rows: Rows = {}
    for entry in sorted(entries, key=lambda entry: entry["seed"]):
        rows.setdefault(entry["row"], []).append(entry)
    return rows


def image(page: Path, text: str, path: Path) -> str:
    """Return a picture as a page shows it."""
    return f"![{text}]({Path(os.path.relpath(path, page.parent)).as_posix()})"


def overview_text(layout: Layout) -> str:
    """Say what the picture of all results shows."""
    return (
        f"Test DSC of every run on {layout.title}, one line for each row of the tables below: a dot for each seed, "
        "filled for the first, and a bar at their mean; a thin line goes through the first row's mean over the seeds "
        "that all rows have"
    )


def _short(title: str, lines: list[tuple[str, str, str]], rows: Rows) -> str:
    """Return what AdaWAC does in a few lines, each over the seeds that both of its rows have."""
    body = []
    for label, baseline, adawac in lines:
        if pairs := pairs_of(rows, adawac, baseline):
            scores, without = ([mean_dice(pair[side]) for pair in pairs] for side in (0, 1))
            gains = spread(dice_gains(pairs), sign="+")
            body.append([label, len(pairs), spread(without), spread(scores), gains])
    return table([f"{title}, test DSC in %", "seeds", "without", "with AdaWAC", "difference"], body) if body else ""


def expectations(layouts: Iterable[Layout], page: Path, defaults: Layout) -> str:
    """Return a list for each study of what AdaWAC adds to the baseline, as far as that has been run.

    Args:
        layouts: The studies.
        page: Where the lines stand.
        defaults: The study that compares candidates on training folds, for studies without test scores.
    """
    lines = []
    for layout in layouts:
        rows = by_row(layout.entries())
        compared = [(label, pairs_of(rows, adawac, baseline)) for label, baseline, adawac in layout.expect]
        parts = [f"    - {label}: {_gain(dice_gains(pairs))}" for label, pairs in compared if pairs]
        share, what = _empty_share(rows.get(layout.expect[0][1]) if parts else None), ""
        if not parts:
            candidates = _on_folds(layout, defaults)
            parts = [f"    - {label}: {_gain(_validated_gains(pairs, defaults))}" for label, pairs in candidates]
            what = " test cases not scored yet; on validation cases" if parts else " not run yet"
        lines += [f"- {_name(layout, page)}{share}:{what}", *parts]
    return "\n".join(lines)


def headlines(layouts: Iterable[Layout], page: Path, defaults: Layout) -> str:
    """Return a short line for each study: its first comparison alone; the arguments are those of `expectations`."""
    lines = []
    for layout in layouts:
        rows, (_, baseline, adawac) = by_row(layout.entries()), layout.expect[0]
        gain = "not run yet"
        if pairs := pairs_of(rows, adawac, baseline):
            gain = _gain(dice_gains(pairs))
        elif candidates := _on_folds(layout, defaults):
            pairs = candidates[0][1]
            gain = f"{_gain(_validated_gains(pairs, defaults))}, on [validation cases]({_link(defaults, page)})"
        share = _empty_share([pair[1] for pair in pairs])
        lines.append(f"- {_name(layout, page)}{share}: {gain}")
    return "\n".join(lines)


def _name(layout: Layout, page: Path) -> str:
    return f"**[{layout.title}]({_link(layout, page)})**"


def _link(layout: Layout, page: Path) -> str:
    return Path(os.path.relpath(layout.page, page.parent)).as_posix()


def _gain(gains: list[float]) -> str:
    return f"{spread(gains, sign='+')} ({_count(len(gains), 'seed')})"


def _empty_share(entries: list[Entry] | None) -> str:
    if not entries:
        return ""
    share = entries[0]["label_sparse"] / entries[0]["samples"]
    return f", {100 * share:.0f} % of the training slices without a label"


def _on_folds(study: Layout, defaults: Layout) -> list[tuple[str, Pairs]]:
    """Return the runs on the validation cases of training folds with those of the baseline, by candidate."""
    candidates, rows = defaults.matrices["candidates"].candidates, by_row(defaults.entries())
    reference = f"{study.name}/{next(iter(candidates))}"
    compared = [(candidates[name], pairs_of(rows, f"{study.name}/{name}", reference)) for name in _ON_FOLDS]
    return [(label, pairs) for label, pairs in compared if pairs]


def _validated_gains(pairs: Pairs, defaults: Layout) -> list[float]:
    score = validated(defaults.matrices["candidates"].validations)
    return [score(run) - score(other) for run, other in pairs]


def _total(entries: list[Entry]) -> str:
    """Say what was run, on what, for how long."""
    if not entries:
        return "No runs yet: this page will be made from them."
    minutes = sum(entry["train_seconds"] for entry in entries) / 60
    slices = sum(entry["samples"] * entry["epochs"] for entry in entries)
    devices, torches, versions = (_listed(entries, key) for key in ("device", "torch", "adawac"))
    return (
        f"So far: {_count(len(entries), 'run')} and {minutes:.0f} minutes of training, in which {slices / 1e6:.1f} "
        f"million slices went by; {devices}, torch {torches}, adawac {versions}."
    )


def _listed(entries: list[Entry], key: str) -> str:
    return ", ".join(sorted({entry[key] for entry in entries}))


def _count(number: int, word: str) -> str:
    return f"{number} {word}{'' if number == 1 else 's'}"


def _missing(layout: Layout, names: set[str]) -> str:
    """Say in one sentence what has not been run yet."""
    planned = {group.title: [name for block in group.blocks for name in block.runs] for group in layout.groups}
    if not planned:
        every = [f"{name}-seed{seed}" for name, row in layout.rows.items() for seed in row.seeds]
        planned = {title: [name for name in every if name.startswith(title)] for title in layout.grids}
    if not any(planned.values()):
        return ""
    parts = []
    for title, runs in planned.items():
        if lacking := [name for name in runs if name not in names]:
            parts.append(f"{title.rstrip('/') or layout.title} ({len(lacking)} of {_count(len(runs), 'run')})")
    if not parts:
        return "Everything on the list has been run."
    return f"Not run yet: {'; '.join(parts)}."


def _group(group: Group, caveat: str, rows: Rows) -> str:
    shown = [text for block in group.blocks if (text := _block(block, rows))]
    if shown and group.together:
        shown = [_together(group.blocks, rows)]
    return "\n\n".join([f"## {group.title}", " ".join(filter(None, (group.text, caveat))), *shown]) if shown else ""


def _block(block: Block, rows: Rows) -> str:
    """Return a block's tables; nothing before the first run of its own."""
    if not any(row in rows for row in block.rows or block.labels):
        return ""
    shown = {row: rows[row] for row in block.labels if row in rows}
    lacking = [label for row, label in block.labels.items() if row not in rows]
    parts = [
        _settings(block),
        *(_TABLES[name](block, shown) for name in block.tables),
        f"Not run yet: {'; '.join(lacking)}." if lacking else "",
    ]
    return "\n\n".join([f"### {block.title}", *filter(None, parts)])


def _settings(block: Block) -> str:
    """Say what all runs of a block have for themselves."""
    listed = ", ".join(f"`{path}={json.dumps(value)}`".replace('"', "") for path, value in block.settings.items())
    return f"Settings: {listed}." if listed else ""


def _overlap(block: Block, rows: Rows) -> str:
    """Return the table of DSC; where rows have different seeds, with a column for those that all have."""
    classes, shared = _classes(rows), _shared_seeds(rows)
    body = [
        [
            f"{block.labels[row]} ({len(entries)})",
            *([spread([mean_dice(run) for run in entries if run["seed"] in shared])] if shared else []),
            *(spread([100 * primary(run)["dice"][name] for run in entries]) for name in classes),
            spread([run["samples"] * run["epochs"] * run["views"] / 1000 for run in entries], 0),
        ]
        for row, entries in rows.items()
    ]
    alone = [f"seed {', '.join(map(str, shared))} alone"] if shared else []
    return table(["DSC, % (seeds)", *alone, *named(classes), "thousand images trained on"], body)


def _published(block: Block, rows: Rows) -> str:
    """Return the table of how far rows are from what was published, or nothing where nothing was."""
    classes, body = _classes(rows), []
    for row, theirs in block.published.items():
        if row in rows:
            scores = [primary(run)["dice"] for run in rows[row]]
            apart = [[100 * run[name] - theirs[name] for run in scores] for name in classes]
            body.append([theirs["label"], *(f"{theirs[name]:.1f}" for name in classes)])
            body.append([f"{block.labels[row]} − these", *(spread(of_class, sign="+") for of_class in apart)])
    return table(["DSC, %, beside what was published", *named(classes)], body) if body else ""


def _shared_seeds(rows: Rows) -> list[int]:
    """Return the seeds that all rows have, if some have more than those."""
    seeds = [{run["seed"] for run in entries} for entries in rows.values()]
    shared = set.intersection(*seeds)
    return sorted(shared) if any(of_row != shared for of_row in seeds) else []


def _distance(block: Block, rows: Rows) -> str:
    """Return the table of HD95; conventions that agree in a row share a line."""
    classes, body = _classes(rows), []
    for row, entries in rows.items():
        scores = {name: [run["scores"][name] for run in entries] for name in ("adawac", "strict")}
        lines = {
            f"`{convention}`": [spread([run["hd95"][name] for run in of_seeds]) for name in classes]
            for convention, of_seeds in scores.items()
        }
        if lines["`adawac`"] == lines["`strict`"]:
            lines = {"both": lines["`strict`"]}
        missed = _missed(scores["strict"])
        body += [[f"{block.labels[row]}, {convention}", *cells, missed] for convention, cells in lines.items()]
    return table([f"HD95, {_units(rows, ('adawac', 'strict'))}", *named(classes), "missed, by seed"], body)


def _summary(block: Block, rows: Rows) -> str:
    """Return the table of means over seeds and classes, beside the paper's cells and what `strict` makes of them."""
    entries = [run for of_row in rows.values() for run in of_row]
    convention = block.convention or next(iter(entries[0]["scores"]))
    others = [] if block.convention else [name for name in ("strict",) if name != convention and _scored(entries, name)]
    paper = ["the paper"] if any(row in block.paper for row in rows) else []
    unit = _units(rows, [convention])
    header = [f"scored by `{convention}`", "seeds", "DSC, %", *paper, f"HD95, {unit}", *paper]
    for other in others:
        own = _units(rows, [other])
        header += [f"DSC, `{other}`", f"HD95, `{other}`{'' if own == unit else f', {own}'}"]
    body = []
    for row, runs in rows.items():
        printed = block.paper.get(row, {})
        line = [block.labels[row], len(runs)]
        for metric, column in (("dice", "DSC"), ("hd95", "HD95")):
            line += [_mean(runs, convention, metric), *([printed.get(column, "")] if paper else [])]
        line += [_mean(runs, other, metric) for other in others for metric in ("dice", "hd95")]
        body.append([*line, _missed([run["scores"][convention] for run in runs])])
    return table([*header, "missed, by seed"], body)


def _scored(entries: list[Entry], convention: str) -> bool:
    return all(convention in run["scores"] for run in entries)


def _mean(runs: list[Entry], convention: str, metric: str) -> str:
    """Return the mean over seeds of the mean over classes, DSC in percent."""
    values = [run["scores"][convention][metric]["mean"] for run in runs]
    return spread(100 * value if metric == "dice" and value is not None else value for value in values)


def _missed(scores: list[dict[str, Any]]) -> str:
    return ", ".join(str(run["missed"]) for run in scores)


def _units(rows: Rows, conventions: Iterable[str]) -> str:
    units = (run["scores"][name]["unit"] for runs in rows.values() for run in runs for name in conventions)
    return " or ".join(dict.fromkeys(units))


def _classes(rows: Rows) -> list[str]:
    """Return the classes, their mean first."""
    names = list(primary(next(iter(rows.values()))[0])["dice"])
    return ["mean", *(name for name in names if name != "mean")]


def named(classes: Iterable[str]) -> list[str]:
    """Return what columns of classes are called."""
    return ["all classes" if name == "mean" else name for name in classes]


def _differences(block: Block, rows: Rows) -> str:
    """Return the table of paired differences, or nothing where no pair shares a seed."""
    body = _gains(block, rows)
    return table([*_GAINS, *(["the paper"] if block.paper else [])], body) if body else ""


_GAINS = ["DSC, points", "seeds", "difference", "by seed", "95 % interval over patients", "p"]


def _gains(block: Block, rows: Rows, before: str = "") -> list[list[Any]]:
    """Return the lines of the table of paired differences."""
    body = []
    for first, second in block.compare:
        if pairs := pairs_of(rows, first, second):
            name, gains = f"{before}{block.labels[first]} − {block.labels[second]}", dice_gains(pairs)
            body.append([name, len(pairs), spread(gains, sign="+"), _by_seed(gains), *_by_patient(pairs)])
            body[-1] += [_printed_gain(block.paper.get(first), block.paper.get(second))] if block.paper else []
    return body


def _together(blocks: list[Block], rows: Rows) -> str:
    """Return the DSC of several blocks as one table, and their differences as another."""
    labels: dict[str, str] = {}
    for block in blocks:
        labels |= {row: f"{block.tag}: {label}" for row, label in block.labels.items() if row not in labels}
    gains = [line for block in blocks for line in _gains(block, rows, f"{block.tag}: ")]
    all_rows = replace(blocks[0], labels=labels)
    dice = _overlap(all_rows, {row: rows[row] for row in labels if row in rows})
    return "\n\n".join([dice, *([table(_GAINS, gains)] if gains else [])])


def _printed_gain(first: dict[str, str] | None, second: dict[str, str] | None) -> str:
    """Return the difference of the paper's means; nothing where it does not print both."""
    if not first or not second:
        return ""
    mean, other = (float(printed["DSC"].partition("±")[0]) for printed in (first, second))
    return f"{mean - other:+.2f}"


_TABLES = {
    "summary": _summary,
    "dice": _overlap,
    "published": _published,
    "hd95": _distance,
    "differences": _differences,
}


def matrix(of: Matrix, rows: Rows, listed: Container[str]) -> str:
    """Return a table of candidates and settings: the mean DSC and, seed by seed, how far above the first candidate.

    Args:
        of: Its layout.
        rows: What was run.
        listed: The rows of the grids; a candidate need not be in all settings.
    """
    reference = next(iter(of.candidates))
    settings = [setting for setting in of.settings if any(setting + name in rows for name in of.candidates)]
    score = validated(of.validations) if of.validations else mean_dice
    body = []
    for name, label in of.candidates.items():
        line, known = [], []
        for setting in settings:
            cell = spread(map(score, rows.get(setting + name, []))) if setting + name in rows else ""
            if name != reference and (pairs := pairs_of(rows, setting + name, setting + reference)):
                known.append(gains := [score(run) - score(other) for run, other in pairs])
                cell += f" ({_by_seed(gains)})"
            line.append(cell)
        if any(line):
            lowest = (min(map(statistics.mean, known)), min(map(min, known))) if known else ()
            body.append([label, *line, *([f"{gain:+.1f}" for gain in lowest] or ["", ""])])
    header = ["DSC, % (points above the first line, by seed)", *(of.settings[setting] for setting in settings)]
    planned = [cell for cell in of.cells if cell in listed]
    lacking = sum(cell not in rows for cell in planned)
    return "\n\n".join(
        [
            *([table([*header, "lowest mean of these", "lowest of a seed"], body)] if body else []),
            *([f"Not run yet: {lacking} of {len(planned)} cells."] if lacking else []),
        ]
    )


def validated(number: int) -> Callable[[Entry], float]:
    """Return what gives a run's DSC in percent as the mean of its last validations."""
    return lambda entry: 100 * statistics.mean(entry["validated"][-number:])


def dice_gains(pairs: Pairs) -> list[float]:
    """Return the difference of each pair's DSC in points."""
    return [mean_dice(run) - mean_dice(other) for run, other in pairs]


def _by_seed(gains: Iterable[float]) -> str:
    return ", ".join(f"{gain:+.1f}" for gain in gains)


def pairs_of(rows: Rows, first: str, second: str) -> Pairs:
    """Return the runs of two rows that have the same seed."""
    others = {run["seed"]: run for run in rows.get(second, [])}
    return [(run, others[run["seed"]]) for run in rows.get(first, []) if run["seed"] in others]


def other_seeds(entry: Entry, entries: Iterable[Entry]) -> list[float]:
    """Return the DSC in percent of the other runs of the same row."""
    return [mean_dice(run) for run in entries if run["row"] == entry["row"] and run["seed"] != entry["seed"]]


def mean_dice(entry: Entry) -> float:
    """Return the DSC of a run in percent: the mean over classes and cases."""
    return 100 * float(primary(entry)["dice"]["mean"])


def primary(entry: Entry) -> dict[str, Any]:
    """Return the scores by the convention that the grid names first."""
    return next(iter(entry["scores"].values()))


def _by_patient(pairs: Pairs) -> list[str]:
    """Return the interval and p of the difference over patients, each of whom counts once: the mean of the seeds."""
    gains: dict[str, list[float]] = {}
    for run, other in pairs:
        for patient in run["patients"].keys() & other["patients"].keys():
            gains.setdefault(patient, []).append(run["patients"][patient] - other["patients"][patient])
    means = {patient: 100 * statistics.mean(gains[patient]) for patient in sorted(gains)}
    difference = paired_difference(dict.fromkeys(means, 0.0), means)
    return [f"{difference.low:+.1f} to {difference.high:+.1f}", f"{difference.p_value:.2g}"]


def spread(values: Iterable[float | None], digits: int = 1, sign: str = "") -> str:
    """Return mean ± std; the mean alone of one value, and a dash where one is not a number."""
    numbers = list(values)
    if not numbers or None in numbers:
        return "–"
    text = f"{statistics.mean(numbers):{sign}.{digits}f}"
    return f"{text} ± {statistics.stdev(numbers):.{digits}f}" if len(numbers) > 1 else text


def _separation(layout: Layout, rows: Rows) -> str:
    """Return what the weights of some rows' runs follow, and the pictures that are there."""
    measures = layout.measures or [*MEASURES, *_MORE]
    tables = {title: _weights(labels, measures, rows) for title, labels in layout.weights.items()}
    shown = [f"### {title}\n\n{text}" for title, text in tables.items() if text]
    if not shown:
        return ""
    drawn = [
        f"{image(layout.page, picture.text, picture.path)}\n*`{picture.run}`*"
        for picture in layout.pictures
        if picture.path.is_file()
    ]
    return "\n\n".join(["## What do the weights follow?", *shown, *drawn])


def _weights(labels: dict[str, str], measures: Iterable[str], rows: Rows) -> str:
    """Return a table of what became of some rows' weights; nothing where none has any."""
    chosen = {label: [run for run in rows.get(row, []) if run.get("separation")] for row, label in labels.items()}
    chosen = {label: entries for label, entries in chosen.items() if entries}
    if not chosen:
        return ""
    numbers = [[run["separation"] for run in entries] for entries in chosen.values()]
    body = [
        ["seeds", *(len(entries) for entries in chosen.values())],
        ["label-sparse slices", *(_sparse(entries[0]) for entries in chosen.values())],
        *([MEASURES[name], *(_cell(of_row, name) for of_row in numbers)] for name in measures if name in MEASURES),
    ]
    if "between_seeds" in measures:
        body.append(["of cases' mean β between two seeds", *(_between_seeds(of_row) for of_row in numbers)])
    if "beta_by_group" in measures:
        body += [
            [f"mean β, {name}", *(_cell([run["beta_by_group"] for run in of_row], name) for of_row in numbers)]
            for name in sorted({name for of_row in numbers for run in of_row for name in run["beta_by_group"]})
        ]
    return table(["after the last epoch", *chosen], body)


def _between_seeds(numbers: list[dict[str, Any]]) -> str:
    """Return how much of what beta follows is the data's: the rank correlation of each pair of seeds."""
    from scipy.stats import spearmanr

    correlations = []
    for first, second in combinations([run["beta_by_case"] for run in numbers if run.get("beta_by_case")], 2):
        cases = sorted(set(first) & set(second))
        if len(cases) > 2:
            pairs = [first[case] for case in cases], [second[case] for case in cases]
            correlations.append(float(spearmanr(*pairs).statistic))
    return spread(correlations, 2)


def _sparse(entry: Entry) -> str:
    return f"{entry['label_sparse']} of {entry['samples']}"


def _cell(numbers: list[dict[str, Any]], name: str) -> str:
    return spread([run.get(name) for run in numbers], 2)


_ENDS = (
    "The last batch of an epoch has what is left over, and every run ends with a step on it. An epoch *ended far off* "
    "if the next one begins with a far larger cross-entropy on its first batch than these slices have in the epochs "
    "around it, or if it validated far below its neighbours: more than five standard deviations (by the median "
    "absolute deviation) from the running median. *Empty* are slices without a label; DSC is held against the mean of "
    "the same row's other seeds."
)


def _ends(entries: list[Entry], rows: Rows) -> str:
    """Return how often epochs ended far off, by network and last batch, and what runs score by what they ended on."""
    if not entries:
        return ""
    kinds: dict[tuple[str, int, int], list[Entry]] = {}
    final: dict[tuple[int, int], list[float]] = {}
    for entry in entries:
        end, network = entry["ends"], entry["settings"].get("model.name", TrainConfig().model.name)
        kinds.setdefault((network, end["last_batch"], end["batch"]), []).append(entry)
        if others := other_seeds(entry, rows[entry["row"]]):
            apart = final.setdefault((end["last_batch"], end["last_sparse"]), [])
            apart.append(mean_dice(entry) - statistics.mean(others))
    often = []
    for (network, last, size), runs in sorted(kinds.items()):
        epochs, off = sum(run["epochs"] for run in runs), sum(run["ends"]["epochs_off"] for run in runs)
        often.append([f"`{network}`", f"{last} of {size}", len(runs), epochs, f"{off} ({100 * off / epochs:.1f} %)"])
    scored = [
        [f"{empty} of {last}", len(apart), spread(apart, sign="+"), f"{min(apart):+.1f}"]
        for (last, empty), apart in sorted(final.items())
    ]
    parts = ["## Where a run ends", _ENDS, table(["network", "last batch", "runs", "epochs", "ended far off"], often)]
    header = ["empty slices in the last batch", "runs", "DSC, points against the other seeds", "lowest"]
    return "\n\n".join([*parts, *([table(header, scored)] if scored else [])])
