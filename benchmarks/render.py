"""Put the measured numbers into the documentation.

    python benchmarks/render.py

Each block `<!-- NAME -->` … `<!-- end -->` of a page is made from results in `benchmarks/results`, as BLOCKS says, and
those that begin with `acdc-` as `results_page.blocks` does.
"""

import json
import re
import statistics
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gpu_check
import results_page
import training_page
from acdc_list import read_list
from bright_scans import PICTURE, PICTURE_TEXT
from markdown_table import table

ROOT = Path(__file__).parents[1]
PAGES = [
    ROOT / "README.md",
    *(
        ROOT / "docs" / one
        for one in (
            "index.md",
            "performance.md",
            "results.md",
            "how-to/demo.md",
            "how-to/reproduce.md",
            "concepts/separation.md",
        )
    ),
]
RESULTS = ROOT / "benchmarks" / "results"


def criterion(result: dict[str, Any]) -> str:
    rows = [
        [name, f"{result['milliseconds'][name]:.3g}", f"{result['against_plain'][name]:.2f}×"]
        for name in result["milliseconds"]
    ]
    where = f"{result['device']}, torch {result['torch']}, median of {result['rounds']} rounds."
    return f"{table(['loss', 'ms', 'against plain torch'], rows)}\n\n{where}"


def prepare(result: dict[str, Any]) -> str:
    rows = [[f"{one['workers']}", one["volumes"], f"{one['volumes_per_second']:.0f}"] for one in result["prepare"]]
    reads = [
        [name, f"{value:.0f}", f"{result['store_is_faster_by'].get(name, 1):.0f}×"]
        for name, value in result["microseconds_per_slice"].items()
    ]
    where = f"{result['data']}, {result['machine']['processors']} processors, Python {result['machine']['python']}."
    return "\n\n".join(
        [
            table(["processes", "volumes", "volumes/s"], rows),
            table(["a random slice from", "µs", "against the store"], reads),
            where,
        ]
    )


def views(result: dict[str, Any]) -> str:
    rows = [
        [f"{size}, {kind}", f"{found['scipy_ms']:.0f}"]
        + [
            f"{found[f'{way}_ms']:.0f} ({found[f'{way}_times_faster']:.1f}×)"
            for way in ("bilinear", "cubic", "released")
        ]
        for size in ("512x512", "256x216")
        for kind, found in result[size].items()
    ]
    header = ["native size", "SciPy, ms", "bilinear, ms", "cubic, ms", "mode `released`, ms"]
    where = f"{result['machine']}, one thread, torch {result['torch']}, batch of {result['batch']}."
    return f"{table(header, rows)}\n\n{where}"


def loading(result: dict[str, Any]) -> str:
    kinds = [kind for kind in ("streamed", "resident", "captured") if kind in result]
    rows = []
    for kind in kinds:
        memory = result[kind].get("memory_mb")
        rows.append(
            [kind, result[kind]["slices_per_s"], "–" if memory is None else ", ".join(str(one) for one in memory)]
        )
    where = f"{result['device']}, a store of {result['store_mb']} MB, {result['workers']} workers."
    return f"{table(['samples', 'slices/s, two views each', 'resident memory after each epoch, MB'], rows)}\n\n{where}"


def transunet(result: dict[str, Any]) -> str:
    names = {
        "plain": "straightforward",
        "adawac": "adawac",
        "adawac, weights channels-last": "adawac, weights channels-last",
    }
    rows = [
        [
            text,
            result[name]["eager_ms"],
            result[name]["captured_ms"],
            result[name]["TFLOP/s"],
            f"{result[name]['share_of_matrix_rate']:.0%}",
            result[name]["peak_GiB"],
        ]
        for name, text in names.items()
    ]
    header = ["implementation", "eager, ms", "captured, ms", "TFLOP/s", "of the matrix rate", "peak, GiB"]
    kernels = [
        [text, f"`{one['kernel'][:70]}`", one["ms"], f"{one['share']:.0%}"]
        for name, text in (("plain", "straightforward"), ("adawac", "adawac"))
        for one in result[name]["profile"]["largest"][:3]
    ]
    where = (
        f"{result['device']}, torch {result['torch']}, batch {result['batch']}, {result['image_size']}², bf16. "
        f"{result['GFLOP_per_image']} GFLOP an image over the measured {result['matrix_TFLOP/s']} TFLOP/s would take "
        f"{result['roofline_ms']} ms; memory moves {result['memory_TB/s']} TB/s."
    )
    return "\n\n".join([table(header, rows), table(["", "largest kernels", "ms", "share"], kernels), where])


def metrics(result: dict[str, Any]) -> str:
    rows = [
        [
            f"{text}, {'×'.join(str(side) for side in one['shape'])}, {one['classes']} classes",
            f"{one['adawac_s']:.3g}",
            f"{one['medpy_s']:.3g} ({one['times_faster_than_medpy']:.0f}×)",
            f"{one['monai_hd95_s']:.3g} ({one['times_faster_than_monai']:.0f}×)",
        ]
        for text, one in (("CT", result["ct"]), ("ACDC", result["acdc"]))
    ]
    worst = [[name, f"{one['adawac_s']:.3g}"] for name, one in result["worst"].items()]
    where = f"{result['machine']}; medpy {result['medpy']}, MONAI {result['monai']}, SciPy {result['scipy']}."
    header = ["volume", "adawac, s (all five metrics)", "medpy, s (DSC and HD95)", "MONAI, s (its HD95)"]
    return "\n\n".join([table(header, rows), table(["hard cases on 150×512×512", "adawac, s"], worst), where])


def norms(result: dict[str, Any]) -> str:
    rows = [
        [name, result[name]["norms"]]
        + [f"{result[name][key]:.1f}" for key in ("norms_torch_ms", "norms_ours_ms", "torch_ms", "ours_ms")]
        for name in ("unet", "transunet")
    ]
    header = ["network", "norms", "torch's norms, ms", "ours, ms", "whole pass, torch's norms, ms", "ours, ms"]
    where = f"{result['device']}, torch {result['torch']}, batch {result['batch']}, {result['image_size']}², bf16"
    return f"{table(header, rows)}\n\n{where}, captured."


def evaluation(result: dict[str, Any]) -> str:
    texts = {
        "again_s": "files to scores, in a process that has evaluated before",
        "again_without_processes_s": "the same without worker processes",
        "again_with_galleries_s": "the same with the galleries of 100 training slices",
        "first_call_s": "the first call in a process: with CUDA's start and the workers'",
        "command_s": "`adawac evaluate` from the shell: with all imports",
    }
    rows = [[text, f"{result[key]:.1f}"] for key, text in texts.items()]
    where = (
        f"{result['machine']}, {result['processors']} processors, {result['volumes']} ACDC volumes, "
        f"{result['parts']['slices']} slices."
    )
    return f"{table(['', 's'], rows)}\n\n{where}"


def report(result: dict[str, Any]) -> str:
    rows = [
        ["size", f"{result['bytes'] / 1e6:.1f} MB"],
        ["written in", f"{result['write_s']:.1f} s"],
        ["opens in (median of five)", f"{result['load_ms']['median']} ms"],
        ["mouse move to drawn frame, median", f"{result['move_to_frame_ms']['median']} ms"],
        ["the same, 95th percentile", f"{result['move_to_frame_ms']['p95']} ms"],
        ["sorting the atlas", f"{result['sort_ms']} ms"],
    ]
    where = f"{result['browser']}, {result['machine']}."
    return f"{table(['', ''], rows)}\n\n{where}"


def demo(result: dict[str, Any]) -> str:
    seeds = result["seeds"]
    rows = [
        [f"seed {one['seed']}", *(f"{100 * one['dice'][name]:.1f}" for name in result["methods"]), _minutes(one)]
        for one in seeds
    ]
    means = [[100 * one["dice"][name] for one in seeds] for name in result["methods"]]
    rows.append(
        ["mean ± std", *(f"{statistics.mean(all_of):.1f} ± {statistics.stdev(all_of):.1f}" for all_of in means), ""]
    )
    where = (
        f"Mean DSC over classes and test cases, in percent; {seeds[0]['samples']} slices, {seeds[0]['epochs']} epochs. "
        f"{result['machine']}."
    )
    return f"{table(['', *result['methods'], 'all of it took'], rows)}\n\n{where}"


def _minutes(one: dict[str, Any]) -> str:
    return "" if one["seconds"] is None else f"{one['seconds'] // 60} min {one['seconds'] % 60} s"


def demo_separation(result: dict[str, Any]) -> str:
    names = list(result["seeds"][0]["adawac"])
    rows = [[f"seed {one['seed']}", *(f"{one['adawac'][name]:.2f}" for name in names)] for one in result["seeds"]]
    return table(["", *(f"`{name}`" for name in names)], rows)


def jobs(result: dict[str, Any]) -> str:
    rows = [
        [
            one["at_once"],
            f"{one['run_s']:.1f}",
            *(", ".join(f"{seconds:.0f}" for seconds in one[side]) for side in ("plain_s", "grid_s")),
            f"{one['overhead_percent']:+.1f} %",
            f"{one['cpu_overhead_percent']:+.1f} %",
        ]
        for one in result["overhead"]
    ]
    header = [
        *("runs at a time", "s a run", "script without jobs, s", "`adawac reproduce`, s"),
        *("overhead, median of rounds", "the same in processor time"),
    ]
    listing, first = result["listing"], result["overhead"][0]
    listed = [
        [f"list {listing['runs']} finished runs", listing["list_runs_s"]],
        [f"plan {listing['runs']} jobs", listing["plan_jobs_s"]],
        [f"find {listing['runs']} jobs done", listing["job_states_s"]],
        [f"the same command again, {first['runs']} runs done", first["again_s"]],
    ]
    machine = result["machine"]
    where = (
        f"{first['runs']} runs of {first['epochs']} epochs, rounds in turns, one "
        f"thread a run; both sides import for {first['start_s']:.0f} s of it. {machine['processor']} with "
        f"{machine['cores']} cores, Python {machine['python']}, torch {machine['torch']}, "
        f"load {result['load']:.1f} before."
    )
    return "\n\n".join([table(header, rows), table(["", "s"], listed), where])


def gap(result: dict[str, Any]) -> str:
    """What separates the best results on ACDC from a perfect one."""
    grid, size = result["grid"], "×".join(map(str, result["size"]))
    bound = table(
        ["DSC, %", *results_page.named(grid)],
        [[f"true labels on {size} pixels and back", *(f"{value:.1f}" for value in grid.values())]],
    )
    labels = _row_labels()
    rows = [
        [
            f"{labels[row]} ({one['seeds']})",
            f"{one['all']:.1f}",
            ", ".join(f"{name} {value:.1f}" for name, value in one["lowest"].items()),
            f"{one['others']:.1f}",
        ]
        for row, one in result["patients"].items()
    ]
    header = ["DSC, % (seeds)", "all patients", "the two that score lowest", "without these"]
    return f"{bound}\n\n{table(header, rows)}\n\n{result['cases']} test cases."


def ensemble(result: dict[str, Any]) -> str:
    """What several seeds of a row give together."""
    labels, rows, classes = _row_labels(), [], []
    for row, one in result["rows"].items():
        for name, scores in one["scores"].items():
            classes = results_page.named(scores["dice"])
            dice = [f"{value:.1f}" for value in scores["dice"].values()]
            rows.append([f"{labels[row]}, {len(one['seeds'])} seeds, {name}", *dice, f"{scores['hd95']['mean']:.1f}"])
    return table(["DSC, %", *classes, "HD95, voxel"], rows)


def bright_scans(result: dict[str, Any]) -> str:
    """How scores go with the brightness of scans, and which runs are far below the other seeds of their row."""
    patient = f"DSC of {result['brightest']}"
    kinds = [
        [f"`{one['network']}`", "yes" if one["consistency"] else "no", one["runs"]]
        + [f"{one[key]:+.2f}" for key in ("median", "lowest", "highest")]
        + [f"{one['brightest']:.0f}"]
        for one in result["kinds"]
    ]
    header = ["network", "compares views", "runs", "rank correlation, median", "lowest", "highest", f"median {patient}"]
    forms = (".1f", ".1f", "+.2f", ".0f")
    far = [
        [f"`{one['name']}`"]
        + [f"{one[key]:{form}}" for key, form in zip(("dice", "others", "spearman", "brightest"), forms, strict=True)]
        for one in result["far"]
    ]
    below = ["runs far below their row's other seeds", "DSC, %", "the others' mean", "rank correlation", patient]
    picture = f"![{PICTURE_TEXT}](assets/{PICTURE.name})"
    return "\n\n".join([picture, table(header, kinds), table(below, far)])


def norm_statistics(result: dict[str, Any]) -> str:
    """What runs score with their batch norms' own statistics, and with those of all training samples."""
    rows = [
        [f"`{one['name']}`, trained anew"]
        + [f"{one[kind]['dice']['mean']:.1f}" for kind in ("own", "of all samples")]
        + [f"{one['moved']:.2f}"]
        for one in result["runs"]
    ]
    moved = "means that moved farthest, in standard deviations"
    return table(["DSC, %", "statistics of the last batches", "statistics of all training samples", moved], rows)


def _row_labels() -> dict[str, str]:
    """Return what the rows of the list of runs are called."""
    blocks = [block for group in read_list().groups for block in group.blocks]
    return {row: label for block in blocks for row, label in block.labels.items()}


SOURCES = {"demo-separation": "demo", "training-runs": "acdc"}
"""Blocks that are made from another's results."""

BLOCKS: dict[str, Callable[[dict[str, Any]], str]] = {
    "bright-scans": bright_scans,
    "criterion-cpu": criterion,
    "criterion-cuda": criterion,
    "demo": demo,
    "demo-separation": demo_separation,
    "ensemble": ensemble,
    "evaluation": evaluation,
    "gap": gap,
    "jobs": jobs,
    "loading": loading,
    "loading-cuda": loading,
    "metrics": metrics,
    "norm-statistics": norm_statistics,
    "norms-cuda": norms,
    "prepare": prepare,
    "report": report,
    "transunet-cuda": transunet,
    "views": views,
    **training_page.BLOCKS,
}


def dated(name: str, result: dict[str, Any]) -> str:
    """Return a sentence where the source has changed since something was measured on a GPU."""
    if "source" not in result or result["source"] == gpu_check.source_hash(name.removeprefix("training-")):
        return ""
    return " Measured before the last change of the source."


def rendered(page: str) -> str:
    """Return the page with every block made anew."""
    acdc = results_page.blocks(read_list(), results_page.read_results())

    def block(match: re.Match[str]) -> str:
        name = match[1]
        if name in acdc:
            return f"<!-- {name} -->\n{acdc[name]}\n<!-- end -->"
        source = RESULTS / f"{SOURCES.get(name, name)}.json"
        result = json.loads(source.read_text()) if source.exists() else None
        text = "*Not measured yet.*" if result is None else BLOCKS[name](result) + dated(name, result)
        return f"<!-- {name} -->\n{text}\n<!-- end -->"

    return re.sub(r"<!-- ([\w-]+) -->\n(?:(?!<!-- end -->).*\n)*<!-- end -->", block, page)


if __name__ == "__main__":
    for page in PAGES:
        page.write_text(rendered(page.read_text()))
