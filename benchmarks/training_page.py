"""The tables of docs/performance.md on training with a GPU, from what benchmarks/training.py measured."""

from collections.abc import Callable
from typing import Any

from benchmarks.pages import table

# How many times a single view's operations each forward needs.
ALLOWED = {
    "unet": {"joint": 2.0, "robust": 2.0, "separate": 2.0, "encoder": 1.6, "encoder-detached": 1.2},
    "transunet": {"joint": 2.0, "robust": 2.0, "separate": 2.0, "encoder": 1.73, "encoder-detached": 1.24},
}


def ladder(result: dict[str, Any]) -> str:
    rate, copy = result["limits"]["matrix_tflops"], result["limits"]["copy_gb_per_second"]
    moved = result.get("bytes")
    rows = [
        [
            name,
            f"{numbers['slices_per_second']:.0f}",
            f"{numbers['slices_per_second'] / result['released']:.1f}×",
            f"{numbers['step_ms']:.1f}",
            f"{numbers['peak_gib']:.1f}",
            f"{numbers['seconds_to_first_step']:.0f}",
            f"{numbers['tflops'] / rate:.0%}",
            *([] if moved is None else [f"{moved / copy / numbers['step_ms'] / 1e6:.0%}"]),
        ]
        for name, numbers in _measured(result)
    ]
    header = ["", "slices/s", "against released", "ms a step", "peak, GiB", "s to the first step", "of the matrix rate"]
    where = (
        f"{result['device']}, torch {result['torch']}. A large bf16 matrix product reaches {rate:.0f} TFLOP/s here, a "
        f"copy {copy / 1000:.1f} TB/s; forward and backward take {result['gflop']} GFLOP an image"
    )
    if moved is not None:
        header.append("of the bandwidth")
        where += f", and a step has to move at least {moved / 1e9:.1f} GB"
    return f"{table(header, rows)}\n\n{where}.{_failures(result)}"


def kernels(result: dict[str, Any]) -> str:
    step = result["measured"]["captured"]
    rows = [[f"`{k['name'][:80]}`", f"{k['ms']:.2f}", f"{k['share']:.0%}"] for k in step["largest"][:3]]
    where = (
        f"{step['kernels_a_step']:.0f} kernels in {step['step_ms']:.1f} ms; the GPU does nothing for "
        f"{step['idle']:.0%} of it (profiled)."
    )
    return f"{table(['largest kernels of a step', 'ms', 'share'], rows)}\n\n{where}"


def shares(result: dict[str, Any]) -> str:
    families = [pair for pair in _measured(result) if not pair[0].startswith(("all on", "small ones"))]
    rows = [
        [f"`{name}`", f"{numbers['step_ms']:.1f}", f"{numbers['saves_percent']:.1f} %"]
        for name, numbers in sorted(families, key=lambda pair: -pair[1]["saves_percent"])
    ]
    where = (
        f"{_where(result)} With all of them a step takes {result['step_ms']:.1f} ms; measured three times, the slowest "
        f"was {result['noise_percent']:.1f} % above the fastest."
    )
    return f"{table(['without', 'ms a step', 'saved by them'], rows)}\n\n{where}"


def start(result: dict[str, Any]) -> str:
    cells = [
        [name, f"{times['seconds_to_first_step']:.0f}", *(f"{part:.1f}" for part in times.get("parts", {}).values())]
        for name, times in _measured(result)
    ]
    parts = ["libraries imported", "set up", "first step"] if len(cells[0]) > 2 else []
    return f"{table(['Triton has', 's from the start of the process', *parts], cells)}\n\n{_where(result)}"


def cost(result: dict[str, Any]) -> str:
    base = result["measured"]["baseline"]["step_ms"]
    allowed = ALLOWED[result["model"]]
    rows = [
        [
            name,
            f"{numbers['step_ms']:.1f}",
            f"{numbers['step_ms'] / base:.2f}×",
            f"{allowed[name]:.2f}×" if name in allowed else "",
        ]
        for name, numbers in _measured(result)
    ]
    header = ["forward", "ms a step", "against baseline", "operations"]
    return f"{table(header, rows)}\n\n{_where(result)}{_failures(result)}"


def growth(what: str) -> Callable[[dict[str, Any]], str]:
    """Return the table of slices/s and memory against something."""

    def block(result: dict[str, Any]) -> str:
        rows = [
            [name, f"{numbers['slices_per_second']:.0f}", f"{numbers['step_ms']:.1f}", f"{numbers['peak_gib']:.1f}"]
            for name, numbers in _measured(result)
        ]
        return f"{table([what, 'slices/s', 'ms a step', 'peak, GiB'], rows)}\n\n{_where(result)}{_failures(result)}"

    return block


def rows(result: dict[str, Any]) -> str:
    cells = [[f"{int(name):,}", f"{numbers['criterion_ms']:.3f}"] for name, numbers in _measured(result)]
    header = ["samples", "criterion, forward and backward, with the history of each sample, ms"]
    return f"{table(header, cells)}\n\n{_where(result)}"


def pixels(result: dict[str, Any]) -> str:
    cells = [
        [name, f"{theirs:.2f}", f"{ours:.2f}", f"{theirs / ours:.1f}×"] for name, (theirs, ours) in result["ms"].items()
    ]
    header = ["forward and backward", "torch, ms", "ours, ms", ""]
    return f"{table(header, cells)}\n\n{_where(result)[:-1]}, batch {result['images']}, bf16, captured."


def runs(result: dict[str, Any]) -> str:
    """Whole runs of AdaWAC that had the GPU to themselves: how fast they were, and what they score."""
    released = {"unet-adawac": ("UNet", 239), "transunet-adawac": ("TransUNet", 91)}
    alone = [run for run in result["runs"] if run["row"] in released and run.get("shared") is False]
    cells = []
    for run in alone:
        (network, theirs), rate = released[run["row"]], run["slices_per_second"]
        dice = 100 * run["scores"]["adawac"]["dice"]["mean"]
        cells.append([network, str(run["seed"]), f"{rate:.0f}", f"{rate / theirs:.1f}×", f"{dice:.1f}"])
    header = ["network", "seed", "slices/s", "against released", "test DSC, %"]
    return f"{table(header, cells)}\n\n{alone[0]['device']}, torch {alone[0]['torch']}."


def _measured(result: dict[str, Any]) -> list[tuple[str, dict[str, Any]]]:
    return [(name, numbers) for name, numbers in result["measured"].items() if "error" not in numbers]


def _failures(result: dict[str, Any]) -> str:
    """Return a sentence for each measurement that ended in an error."""
    failed = {name: numbers["error"] for name, numbers in result["measured"].items() if "error" in numbers}
    return "".join(f" {name}: {error.split(' (')[0].rstrip('.')}." for name, error in failed.items())


def _where(result: dict[str, Any]) -> str:
    return f"{result['device']}, torch {result['torch']}."


BLOCKS: dict[str, Callable[[dict[str, Any]], str]] = (
    {
        f"training-{part}-{model}": function
        for part, function in {
            "ladder": ladder,
            "present": ladder,
            "compiled": ladder,
            "kernels": kernels,
            "start": start,
            "cost": cost,
            "batch": growth("batch"),
            "size": growth("pixels on a side"),
            "rows": rows,
        }.items()
        for model in ("unet", "transunet")
    }
    | {f"kernel-shares-{model}": shares for model in ("unet", "transunet")}
    | {"pixels-cuda": pixels, "training-runs": runs}
)
