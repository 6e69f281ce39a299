"""Put the measured numbers into the documentation: `python -m benchmarks.render`.

Each block `<!-- NAME -->` … `<!-- end -->` of a page is made from `benchmarks/results/NAME.json`, as BLOCKS says. The
blocks of docs/results are made by `studies/render.py`.
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
] + [ROOT / "README.md"]
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


def cpu(result: dict[str, Any]) -> str:
    before, after, kept = (result[name]["rates"] for name in ("before", "after", "kept"))
    rows = [
        [name, f"{rate:.0f}", f"{after[name]:.0f} ({after[name] / rate:.2f}×)", f"{kept[name]:.0f}"]
        for name, rate in before.items()
        if name.startswith("predict")
    ]
    turns = [
        [method, *(f"{milliseconds:.1f}" for milliseconds in sizes.values())]
        for method, sizes in result["after"]["turns"].items()
    ]
    steps = [[name, f"{value:.0f}"] for name, value in result["after"]["steps"].items()]
    parts = [
        [name, *(f"{milliseconds:.1f}" for milliseconds in values.values())]
        for name, values in result["after"]["parts_ms"].items()
    ]
    where = (
        f"{result['machine']}, torch {result['torch']}, median of {result['rounds']} rounds; before: commit "
        f"{result['against']}."
    )
    return "\n\n".join(
        [
            table(["slices/s", "before", "after", "after, freed memory kept"], rows),
            table(["prediction with", "slices/s"], steps),
            table(["ms of a training step, views made at a time", "8,192 pixels", "32,768 pixels"], turns),
            table(["ms of a step, after", *next(iter(result["after"]["parts_ms"].values()))], parts),
            where,
        ]
    )


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


def score(result: dict[str, Any]) -> str:
    counted = f"{result['volumes']} volumes of {'×'.join(map(str, result['shape']))}, {result['classes']} classes"
    runs = [
        (f"`adawac score`, {counted}", result["adawac"]),
        (f"`nnUNetv2_evaluate_folder`, {counted}", result["nnunet"]),
        *([(f"`adawac score`, {result['many']['volumes']} such volumes", result["many"])] if "many" in result else []),
    ]
    rows = [[name, f"{run['wall_s']:.0f}", f"{run['cpu_s']:.1f}", run["largest_process_mib"]] for name, run in runs]
    where = (
        f"{result['machine']}, {result['processes']} processes, nnU-Net {result['nnunetv2']}, NumPy {result['numpy']}."
    )
    return f"{table(['', 'seconds', 'CPU seconds', 'largest process, MiB'], rows)}\n\n{where}"


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
    seeds, methods = result["seeds"], result["methods"]
    rows = [
        [f"seed {run['seed']}", *(f"{100 * run['dice'][name]:.1f}" for name in methods), _minutes(run)] for run in seeds
    ]
    rows.append(["mean ± std", *(_spread(_demo_scores(result, name)) for name in methods), ""])
    organs = [
        [organ, *(f"{100 * statistics.mean(run['classes'][name][organ] for run in seeds):.1f}" for name in methods)]
        for organ in seeds[0]["classes"][methods[0]]
    ]
    zeros = sum(score == 0 for run in seeds for name in methods for score in run["classes"][name].values())
    where = (
        f"Mean DSC over classes and test {result['cases']}, in percent; {seeds[0]['epochs']} epochs of "
        f"{_range(seeds, 'samples')} {result['samples']}, {_range(seeds, 'label_sparse')} of them empty. "
        f"{result['machine']}."
    )
    found = "No class of any run is at 0." if not zeros else f"At 0 in {zeros} cases: a class that a run did not find."
    return "\n\n".join(
        [
            demo_standing(result),
            table(["", *methods, "all of it took"], rows),
            where,
            table(["mean DSC of all seeds", *methods], organs + _demo_detections(result)),
            found,
            *([_demo_fresh(result)] if "fresh" in seeds[0] else []),
        ]
    )


def _demo_fresh(result: dict[str, Any]) -> str:
    """Say how the same networks stand on other test patients, at whom nobody looked while choosing settings."""
    fresh = {**result, "seeds": [{**run, "dice": run["fresh"]} for run in result["seeds"]]}
    means = ", ".join(f"`{name}` {_spread(_demo_scores(fresh, name))}" for name in result["methods"])
    return f"The same networks on six test patients at whom nobody had looked: {means}; {_demo_against(fresh)}."


def _demo_detections(result: dict[str, Any]) -> list[list[str]]:
    """Return how often nothing was found, and how often something where nothing is, if any test case is empty."""
    rows = []
    for title, wrong, right in (
        ("with a defect, nothing found", "misses", "hits"),
        ("clean, with a false alarm", "false_alarms", "clear"),
    ):
        counted = [[run.get("detections", {}).get(name) for run in result["seeds"]] for name in result["methods"]]
        if all(all(of_method) for of_method in counted):
            sums = [[sum(row[key] for row in of_method) for key in (wrong, right)] for of_method in counted]
            rows.append([title, *(f"{bad} of {bad + good}" for bad, good in sums)])
    return rows


def demo_standing(result: dict[str, Any]) -> str:
    """Say how AdaWAC stands against the others, whichever way it is, and where beta ended."""
    seeds, ours = result["seeds"], _demo_scores(result, "adawac")
    sparse, dense, auc = (
        statistics.mean(run["adawac"][name] for run in seeds) for name in ("beta_sparse", "beta_dense", "beta_auc")
    )
    return (
        f"Over {len(seeds)} seeds AdaWAC has a mean DSC of {statistics.mean(ours):.1f}. It is {_demo_against(result)}. "
        f"β ended at {sparse:.2f} on empty and at {dense:.2f} on label-dense {result['samples']} (AUC {auc:.2f})."
    )


def _demo_against(result: dict[str, Any]) -> str:
    """Say with how many seeds AdaWAC is ahead of each of the others."""
    ours, against = _demo_scores(result, "adawac"), []
    for name in result["methods"]:
        if name != "adawac":
            gains = [mine - theirs for mine, theirs in zip(ours, _demo_scores(result, name), strict=True)]
            ahead = sum(gain > 0 for gain in gains)
            against.append(f"ahead of `{name}` with {ahead} of {len(gains)} ({statistics.mean(gains):+.1f} on average)")
    return " and ".join(against)


def _demo_scores(result: dict[str, Any], name: str) -> list[float]:
    return [100 * run["dice"][name] for run in result["seeds"]]


def _spread(values: list[float]) -> str:
    mean = f"{statistics.mean(values):.1f}"
    return mean if len(values) < 2 else f"{mean} ± {statistics.stdev(values):.1f}"


def _range(seeds: list[dict[str, Any]], key: str) -> str:
    low, high = (choose(run[key] for run in seeds) for choose in (min, max))
    return f"{low}" if low == high else f"{low} to {high}"


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


def first_report(result: dict[str, Any]) -> str:
    commands = result["commands"]
    until = next(number for number, line in enumerate(commands, start=1) if line.startswith("adawac report"))
    waited = sum(list(commands.values())[:until])
    rows = [[f"`{name}`", f"{seconds:.2f}"] for name, seconds in result["starts"].items()]
    rows += [[f"`{line}`", f"{seconds:.0f}"] for line, seconds in commands.items()]
    where = f"{result['machine']}, load {result['load']:.1f} before. The first report is there after {waited:.0f} s."
    return f"{table(['', 's'], rows)}\n\n{where}"


SOURCES = {
    "demo-separation": RESULTS / "demo.json",
    "demo-standing": RESULTS / "demo.json",
    "training-runs": RUNS_ON_ACDC,
}
"""Blocks that are made from another file than the one of their name."""

BLOCKS: dict[str, Callable[[dict[str, Any]], str]] = {
    "criterion-cpu": criterion,
    "criterion-cuda": criterion,
    "cpu": cpu,
    "demo": demo,
    "demo-pictures": demo,
    "demo-separation": demo_separation,
    "demo-standing": demo_standing,
    "evaluation": evaluation,
    "first-report": first_report,
    "jobs": jobs,
    "loading": loading,
    "loading-cuda": loading,
    "metrics": metrics,
    "norms-cuda": norms,
    "prepare": prepare,
    "score": score,
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
