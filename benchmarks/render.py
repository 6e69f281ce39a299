"""Put the measured numbers into the documentation: `python -m benchmarks.render`.

Each block `<!-- NAME -->` … `<!-- end -->` of a page is made from `benchmarks/results/NAME.json`, as BLOCKS says. The
blocks of docs/results.md are made by `studies/acdc/render.py`.
"""

import json
import statistics
from collections.abc import Callable
from typing import Any

from benchmarks import training_page
from benchmarks.pages import fill, table
from benchmarks.result_files import RESULTS, ROOT

PAGES = [
    ROOT / "docs" / name
    for name in ("performance.md", "how-to/demo.md", "how-to/reproduce.md", "concepts/separation.md")
]
RUNS_ON_ACDC = ROOT / "studies" / "acdc" / "results" / "runs.json"


def criterion(result: dict[str, Any]) -> str:
    rows = [
        [name, f"{result['milliseconds'][name]:.3g}", f"{result['against_plain'][name]:.2f}×"]
        for name in result["milliseconds"]
    ]
    where = f"{result['device']}, torch {result['torch']}, median of {result['rounds']} rounds."
    return f"{table(['loss', 'ms', 'against plain torch'], rows)}\n\n{where}"


def prepare(result: dict[str, Any]) -> str:
    rows = [[f"{run['workers']}", run["volumes"], f"{run['volumes_per_second']:.0f}"] for run in result["prepare"]]
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
        rows.append([kind, result[kind]["slices_per_s"], "–" if memory is None else ", ".join(map(str, memory))])
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
        [text, f"`{kernel['kernel'][:70]}`", kernel["ms"], f"{kernel['share']:.0%}"]
        for name, text in (("plain", "straightforward"), ("adawac", "adawac"))
        for kernel in result[name]["profile"]["largest"][:3]
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
            f"{text}, {'×'.join(str(side) for side in times['shape'])}, {times['classes']} classes",
            f"{times['adawac_s']:.3g}",
            f"{times['medpy_s']:.3g} ({times['times_faster_than_medpy']:.0f}×)",
            f"{times['monai_hd95_s']:.3g} ({times['times_faster_than_monai']:.0f}×)",
        ]
        for text, times in (("CT", result["ct"]), ("ACDC", result["acdc"]))
    ]
    worst = [[name, f"{times['adawac_s']:.3g}"] for name, times in result["worst"].items()]
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
        [f"seed {run['seed']}", *(f"{100 * run['dice'][name]:.1f}" for name in result["methods"]), _minutes(run)]
        for run in seeds
    ]
    means = [[100 * run["dice"][name] for run in seeds] for name in result["methods"]]
    rows.append(
        ["mean ± std", *(f"{statistics.mean(all_of):.1f} ± {statistics.stdev(all_of):.1f}" for all_of in means), ""]
    )
    where = (
        f"Mean DSC over classes and test cases, in percent; {seeds[0]['samples']} slices, {seeds[0]['epochs']} epochs. "
        f"{result['machine']}."
    )
    return f"{table(['', *result['methods'], 'all of it took'], rows)}\n\n{where}"


def _minutes(run: dict[str, Any]) -> str:
    return "" if run["seconds"] is None else f"{run['seconds'] // 60} min {run['seconds'] % 60} s"


def demo_separation(result: dict[str, Any]) -> str:
    names = list(result["seeds"][0]["adawac"])
    rows = [[f"seed {run['seed']}", *(f"{run['adawac'][name]:.2f}" for name in names)] for run in result["seeds"]]
    return table(["", *(f"`{name}`" for name in names)], rows)


def jobs(result: dict[str, Any]) -> str:
    listing, machine = result["listing"], result["machine"]
    rows = [
        [f"list {listing['runs']} finished runs", listing["list_runs_s"]],
        [f"plan {listing['runs']} jobs", listing["plan_jobs_s"]],
        [f"find {listing['runs']} jobs done", listing["job_states_s"]],
    ]
    where = (
        f"{machine['processor']} with {machine['cores']} cores, Python {machine['python']}, torch {machine['torch']}, "
        f"load {result['load']:.1f} before."
    )
    return f"{table(['', 's'], rows)}\n\n{where}"


SOURCES = {"demo-separation": RESULTS / "demo.json", "training-runs": RUNS_ON_ACDC}
"""Blocks that are made from another file than the one of their name."""

BLOCKS: dict[str, Callable[[dict[str, Any]], str]] = {
    "criterion-cpu": criterion,
    "criterion-cuda": criterion,
    "demo": demo,
    "demo-separation": demo_separation,
    "evaluation": evaluation,
    "jobs": jobs,
    "loading": loading,
    "loading-cuda": loading,
    "metrics": metrics,
    "norms-cuda": norms,
    "prepare": prepare,
    "report": report,
    "transunet-cuda": transunet,
    "views": views,
    **training_page.BLOCKS,
}


def block(name: str) -> str:
    """Return the text of a block, with the commit at which its numbers were measured."""
    source = SOURCES.get(name, RESULTS / f"{name}.json")
    if not source.exists():
        return "*Not measured yet.*"
    result = json.loads(source.read_text())
    return BLOCKS[name](result) + measured_at(result)


def measured_at(result: dict[str, Any]) -> str:
    """Return the sentence that names the commit of a result; nothing where that is not known."""
    return f"\n\nMeasured at commit {result['commit']}." if result.get("commit") else ""


def rendered(page: str) -> str:
    """Return the page with every block made anew."""
    return fill(page, {name: lambda name=name: block(name) for name in BLOCKS})


if __name__ == "__main__":
    for page in PAGES:
        page.write_text(rendered(page.read_text()))
