"""The blocks of docs/results.md, from the collected results and the page's layout; `render.py` puts them into it."""

import json
import statistics
from collections.abc import Iterable
from itertools import combinations
from pathlib import Path
from typing import Any, NamedTuple

from adawac.config import TrainConfig
from adawac.evaluation import paired_difference
from benchmarks.pages import table
from studies.acdc.layout import ASSETS, Block, Group, Layout


class Picture(NamedTuple):
    """A figure of a run's weights."""

    run: str
    figure: str
    path: Path
    text: str


_SEPARATION = (
    "β of label-sparse and label-dense slices, its area under the curve, the shares of Assumption 1 and the spreads of "
    "CE and ACR, over the epochs of one AdaWAC run on ACDC"
)
_WEIGHTS = "β of every training slice of ACDC over the epochs of one AdaWAC run"
OVERVIEW = ASSETS / "acdc-overview.png"
"""All results at a glance."""
PICTURES = [
    Picture("unet-adawac-seed1", "separation", ASSETS / "acdc-separation.png", f"{_SEPARATION}: UNet"),
    Picture(
        "transunet-adawac-seed1", "separation", ASSETS / "acdc-separation-transunet.png", f"{_SEPARATION}: TransUNet"
    ),
    Picture("unet-adawac-seed1", "weights", ASSETS / "acdc-weights.png", f"{_WEIGHTS}: UNet"),
    Picture("unet-rho-cosine-seed1", "weights", ASSETS / "acdc-weights-cosine.png", f"{_WEIGHTS}: UNet, cosine"),
    Picture("transunet-adawac-seed1", "weights", ASSETS / "acdc-weights-transunet.png", f"{_WEIGHTS}: TransUNet"),
]
"""What the page shows, as far as it has been drawn."""

OVERVIEW_TEXT = (
    "Test DSC of every run on ACDC, one line for each row of the tables below: a dot for each seed, filled for the "
    "first, and a bar at their mean; a thin line goes through the first row's mean over the seeds that all rows have"
)

_MEASURES = {
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

Entry = dict[str, Any]
Rows = dict[str, list[Entry]]
"""The entries of each row, in the order of their seeds."""


def blocks(layout: Layout, entries: list[Entry], pictures: Iterable[Picture] = PICTURES) -> dict[str, str]:
    """Return the text of every block of the page; that of a group without runs is empty."""
    rows: Rows = {}
    for entry in sorted(entries, key=lambda entry: entry["seed"]):
        rows.setdefault(entry["row"], []).append(entry)
    texts = {f"acdc-{group.name}": _group(group, rows) for group in layout.groups}
    texts["acdc-short"] = _short(layout.short, rows)
    texts["acdc-total"] = _total(entries)
    texts["acdc-separation"] = _separation(layout.weights, rows, pictures)
    texts["acdc-ends"] = _ends([entry for entry in entries if entry.get("ends")], rows)
    texts["acdc-overview"] = f"![{OVERVIEW_TEXT}](assets/{OVERVIEW.name})" if OVERVIEW.is_file() else ""
    texts["acdc-missing"] = _missing(layout, {entry["name"] for entry in entries})
    return texts


def _short(lines: list[tuple[str, str, str]], rows: Rows) -> str:
    """Return what AdaWAC does in a few lines, each over the seeds that both of its rows have."""
    body = []
    for label, baseline, adawac in lines:
        pairs = _pairs(rows.get(adawac, []), rows.get(baseline, []))
        if pairs:
            scores, without = ([mean_dice(pair[side]) for pair in pairs] for side in (0, 1))
            gains = [score - other for score, other in zip(scores, without, strict=True)]
            body.append([label, len(pairs), _spread(without), _spread(scores), _spread(gains, sign="+")])
    return table(["ACDC, test DSC in %", "seeds", "without", "with AdaWAC", "difference"], body) if body else ""


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
    parts = []
    for group in layout.groups:
        planned = [name for block in group.blocks for name in block.runs]
        lacking = [name for name in planned if name not in names]
        if lacking:
            parts.append(f"{group.title} ({len(lacking)} of {_count(len(planned), 'run')})")
    if not parts:
        return "Everything on the list has been run."
    return f"Not run yet: {'; '.join(parts)}."


def _group(group: Group, rows: Rows) -> str:
    shown = [text for block in group.blocks if (text := _block(block, rows))]
    return "\n\n".join([f"## {group.title}", group.text, *shown]) if shown else ""


def _block(block: Block, rows: Rows) -> str:
    """Return a block's tables; nothing before the first run of its own."""
    if not any(row in rows for row in block.rows):
        return ""
    shown = {row: rows[row] for row in block.labels if row in rows}
    tables = (_settings(block), *(make(block, shown) for make in (_overlap, _published, _distance, _differences)))
    return "\n\n".join([f"### {block.title}", *filter(None, tables)])


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
            *([_spread([mean_dice(run) for run in entries if run["seed"] in shared])] if shared else []),
            *(_spread([100 * run["scores"]["adawac"]["dice"][name] for run in entries]) for name in classes),
            _spread([run["samples"] * run["epochs"] * run["views"] / 1000 for run in entries], 0),
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
            scores = [run["scores"]["adawac"]["dice"] for run in rows[row]]
            apart = [[100 * run[name] - theirs[name] for run in scores] for name in classes]
            body.append([theirs["label"], *(f"{theirs[name]:.1f}" for name in classes)])
            body.append([f"{block.labels[row]} − these", *(_spread(of_class, sign="+") for of_class in apart)])
    return table(["DSC, %, beside what was published", *named(classes)], body) if body else ""


def _shared_seeds(rows: Rows) -> list[int]:
    """Return the seeds that all rows have, if some have more than those."""
    seeds = [{run["seed"] for run in entries} for entries in rows.values()]
    shared = set.intersection(*seeds)
    return sorted(shared) if any(of_row != shared for of_row in seeds) else []


def _distance(block: Block, rows: Rows) -> str:
    """Return the table of HD95; conventions that agree in a row share a line."""
    classes, body = _classes(rows), []
    units = dict.fromkeys(
        scores["unit"] for entries in rows.values() for run in entries for scores in run["scores"].values()
    )
    for row, entries in rows.items():
        scores = {convention: [run["scores"][convention] for run in entries] for convention in ("adawac", "strict")}
        lines = {
            f"`{convention}`": [_spread([run["hd95"][name] for run in of_seeds]) for name in classes]
            for convention, of_seeds in scores.items()
        }
        if lines["`adawac`"] == lines["`strict`"]:
            lines = {"both": lines["`strict`"]}
        missed = ", ".join(str(run["missed"]) for run in scores["strict"])
        body += [[f"{block.labels[row]}, {convention}", *cells, missed] for convention, cells in lines.items()]
    return table([f"HD95, {' or '.join(units)}", *named(classes), "missed, by seed"], body)


def _classes(rows: Rows) -> list[str]:
    """Return the classes, their mean first."""
    names = list(next(iter(rows.values()))[0]["scores"]["adawac"]["dice"])
    return ["mean", *(name for name in names if name != "mean")]


def named(classes: Iterable[str]) -> list[str]:
    """Return what columns of classes are called."""
    return ["all classes" if name == "mean" else name for name in classes]


def _differences(block: Block, rows: Rows) -> str:
    """Return the table of paired differences, or nothing where no pair shares a seed."""
    body = []
    for first, second in block.compare:
        pairs = _pairs(rows.get(first, []), rows.get(second, []))
        if pairs:
            seeds = [mean_dice(run) - mean_dice(other) for run, other in pairs]
            name = f"{block.labels[first]} − {block.labels[second]}"
            body.append([name, len(pairs), _spread(seeds, sign="+"), ", ".join(f"{gain:+.1f}" for gain in seeds)])
            body[-1] += _by_patient(pairs)
    header = ["DSC, points", "seeds", "difference", "by seed", "95 % interval over patients", "p"]
    return table(header, body) if body else ""


def _pairs(first: list[Entry], second: list[Entry]) -> list[tuple[Entry, Entry]]:
    others = {run["seed"]: run for run in second}
    return [(run, others[run["seed"]]) for run in first if run["seed"] in others]


def other_seeds(entry: Entry, entries: Iterable[Entry]) -> list[float]:
    """Return the DSC in percent of the other runs of the same row."""
    return [mean_dice(run) for run in entries if run["row"] == entry["row"] and run["seed"] != entry["seed"]]


def mean_dice(entry: Entry) -> float:
    """Return the DSC of a run in percent: the mean over classes and cases."""
    return 100 * float(entry["scores"]["adawac"]["dice"]["mean"])


def _by_patient(pairs: list[tuple[Entry, Entry]]) -> list[str]:
    """Return the interval and p of the difference over patients, each of whom counts once: the mean of the seeds."""
    gains: dict[str, list[float]] = {}
    for run, other in pairs:
        for patient in run["patients"].keys() & other["patients"].keys():
            gains.setdefault(patient, []).append(run["patients"][patient] - other["patients"][patient])
    means = {patient: 100 * statistics.mean(gains[patient]) for patient in sorted(gains)}
    difference = paired_difference(dict.fromkeys(means, 0.0), means)
    return [f"{difference.low:+.1f} to {difference.high:+.1f}", f"{difference.p_value:.2g}"]


def _spread(values: Iterable[float | None], digits: int = 1, sign: str = "") -> str:
    """Return mean ± std; the mean alone of one value, and a dash where one is not a number."""
    numbers = list(values)
    if not numbers or None in numbers:
        return "–"
    text = f"{statistics.mean(numbers):{sign}.{digits}f}"
    return f"{text} ± {statistics.stdev(numbers):.{digits}f}" if len(numbers) > 1 else text


def _separation(tables: dict[str, dict[str, str]], rows: Rows, pictures: Iterable[Picture]) -> str:
    """Return what the weights of some rows' runs follow, and the pictures that are there."""
    shown = [f"### {title}\n\n{text}" for title, labels in tables.items() if (text := _weights(labels, rows))]
    if not shown:
        return ""
    drawn = [
        f"![{picture.text}](assets/{picture.path.name})\n*`{picture.run}`*"
        for picture in pictures
        if picture.path.is_file()
    ]
    return "\n\n".join(["## What do the weights follow?", *shown, *drawn])


def _weights(labels: dict[str, str], rows: Rows) -> str:
    """Return a table of what became of some rows' weights; nothing where none has any."""
    chosen = {label: [run for run in rows.get(row, []) if run.get("separation")] for row, label in labels.items()}
    chosen = {label: entries for label, entries in chosen.items() if entries}
    if not chosen:
        return ""
    numbers = [[run["separation"] for run in entries] for entries in chosen.values()]
    pathologies = sorted({name for of_row in numbers for run in of_row for name in run["beta_by_group"]})
    body = [
        ["seeds", *(len(entries) for entries in chosen.values())],
        ["label-sparse slices", *(_sparse(entries[0]) for entries in chosen.values())],
        *([text, *(_cell(of_row, name) for of_row in numbers)] for name, text in _MEASURES.items()),
        ["of cases' mean β between two seeds", *(_between_seeds(of_row) for of_row in numbers)],
        *(
            [f"mean β, {name}", *(_cell([run["beta_by_group"] for run in of_row], name) for of_row in numbers)]
            for name in pathologies
        ),
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
    return _spread(correlations, 2)


def _sparse(entry: Entry) -> str:
    return f"{entry['label_sparse']} of {entry['samples']}"


def _cell(numbers: list[dict[str, Any]], name: str) -> str:
    return _spread([run.get(name) for run in numbers], 2)


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
        [f"{empty} of {last}", len(apart), _spread(apart, sign="+"), f"{min(apart):+.1f}"]
        for (last, empty), apart in sorted(final.items())
    ]
    parts = ["## Where a run ends", _ENDS, table(["network", "last batch", "runs", "epochs", "ended far off"], often)]
    header = ["empty slices in the last batch", "runs", "DSC, points against the other seeds", "lowest"]
    return "\n\n".join([*parts, *([table(header, scored)] if scored else [])])
