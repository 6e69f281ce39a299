"""Train, evaluate and collect the runs on ACDC that docs/results.md shows.

    adawac prepare acdc ACDC STORE
    python benchmarks/acdc.py train STORE RUNS --seconds 550                   # the next runs of the list that fit
    python benchmarks/acdc.py train STORE RUNS --seconds 550 --only main       # those of a group, or 'unet-*-seed1'
    python benchmarks/acdc.py collect RUNS                                     # into benchmarks/results/acdc.json
    python benchmarks/acdc.py draw RUNS                                        # their weights, into docs/assets
    python benchmarks/render.py                                                # into docs/results.md

The list is benchmarks/acdc_runs.yaml, in order of priority. A run is left out if its result stands in acdc.json or its
folder is complete, and if it would not end in time; an interrupted one is resumed. With --in-parts a run that would not
end in time begins all the same and is saved when time is up. Ctrl-C (or SIGTERM) saves, too, and the same command goes
on; what is complete can be collected at any time. All runs share one process, so that imports and CUDA start once.
Checkpoints of finished runs are removed unless --keep-checkpoints. With --processes N so many work on one list at a
time, which gives a large GPU more to do (under CUDA's MPS, 1.3 times as much); their rates then say nothing about how
fast a run alone is.
"""

import time

STARTED = time.monotonic()  # imports count

import argparse  # noqa: E402
import gc  # noqa: E402
import json  # noqa: E402
import logging  # noqa: E402
import shutil  # noqa: E402
import signal  # noqa: E402
import subprocess  # noqa: E402
import sys  # noqa: E402
from collections.abc import Iterator  # noqa: E402
from contextlib import suppress  # noqa: E402
from pathlib import Path  # noqa: E402

from acdc_entries import CONVENTIONS, TIMING, describe, is_complete, read_timing  # noqa: E402
from acdc_list import LIST, Listing, Planned, num_views, read_list  # noqa: E402
from results_figure import draw_overview  # noqa: E402
from results_page import OVERVIEW, PICTURES, RESULTS, read_results  # noqa: E402

import adawac  # noqa: E402
from adawac.config import TrainConfig  # noqa: E402
from adawac.data.splits import resolve_split  # noqa: E402
from adawac.data.store import Store  # noqa: E402
from adawac.errors import BusyError, MissingFileError, RunError  # noqa: E402
from adawac.files import (  # noqa: E402
    AppendFile,
    FolderLock,
    write_text,
)
from adawac.runs import Run  # noqa: E402
from adawac.runs.layout import encode_line, read_lines  # noqa: E402

SPARE = 20  # seconds that are never planned with
CLAIMS = ".claims"

log = logging.getLogger("acdc")


class Clock:
    """Notes how long each epoch takes, with all that belongs to it, in the run's folder; stops the run in time.

    Args:
        shared: Others use the device, too.
        end: When the run has to be saved (`time.monotonic`).
    """

    def __init__(self, shared: bool, end: float):
        self.shared, self.end = shared, end

    def start(self, config, run, steps):
        path = run.folder / TIMING
        self.path, self.length = path, max((line.end for line in read_lines(path)), default=0)
        self.last = time.monotonic()

    def step(self, epoch, step):
        if time.monotonic() > self.end:
            raise KeyboardInterrupt

    def epoch(self, epoch, metrics):
        now = time.monotonic()
        line = {"seconds": now - self.last, "slices_per_second": metrics["slices_per_second"]}
        line |= {"shared": True} if self.shared else {}
        self.last = now
        with AppendFile(self.path, self.length) as file:  # cuts off what a kill left half-written
            file.append(encode_line(epoch, line))
            self.length = file.length


class Budget:
    """Says whether a run ends in time, from the rates measured so far.

    Args:
        listing: Has the rates to begin with.
        end: When the process has to be over (`time.monotonic`).
        processes: How many share the device, each of which gets its part of these rates.
    """

    def __init__(self, listing: Listing, end: float, processes: int = 1):
        self.listing, self.processes, self.overhead, self.measured = listing, processes, listing.overhead, {}
        self.end = end - SPARE

    @property
    def left(self) -> float:
        return self.end - time.monotonic()

    def needed(self, config: TrainConfig, slices: int) -> float:
        """Return how many seconds a run will take."""
        rate = self.measured.get(_kind(config)) or self._guessed(config)
        return self.overhead + slices / rate

    def _guessed(self, config: TrainConfig) -> float:
        return self.listing.rates[config.model.name][num_views(config)] / self.processes

    def learn(self, config: TrainConfig, slices: int, rate: float, seconds: float) -> None:
        """Take in what a run took, from nothing to its scores."""
        self.measured[_kind(config)] = rate
        self.overhead = min(self.overhead, max(0.0, seconds - slices / rate))  # a first run also compiles its kernels


def _kind(config: TrainConfig) -> tuple[str, int, str]:
    """Return what a rate depends on."""
    return config.model.name, num_views(config), config.forward


def train(
    store: Path, runs: Path, chosen: list[Planned], budget: Budget, *, keep: bool, shared: bool, in_parts: bool
) -> bool:
    """Go through the chosen runs; return whether none of them failed."""
    data, well = Store(store), True
    for planned in _unclaimed(runs, chosen) if shared else chosen:
        folder, config = runs / planned.name, planned.config(store.absolute())
        if is_complete(folder, planned.part):
            _tidy(folder, keep)
            continue
        slices = _slices_to_go(data, config, folder)
        if (needed := budget.needed(config, slices)) > budget.left and not (in_parts and budget.left > budget.overhead):
            print(f"{planned.name}: left out, needs {needed:.0f} s of {max(budget.left, 0):.0f} s", flush=True)
            continue
        started = time.monotonic()
        try:
            run = _fit(config, folder, Clock(shared, budget.end))
            scored = _evaluate(run, planned)
        except Exception as error:  # the next one may work
            log.exception("%s failed", planned.name)
            print(f"{planned.name}: failed, {str(error).splitlines()[0][:300]}", flush=True)
            well = False
            continue
        _tidy(folder, keep)
        seconds, rate = read_timing(folder)
        if slices:
            budget.learn(config, slices, rate, time.monotonic() - started)
        print(f"{planned.name}: {seconds:.0f} s, {rate:.0f} slices/s, {scored}, {budget.left:.0f} s left", flush=True)
    return well


def _unclaimed(runs: Path, chosen: list[Planned]) -> Iterator[Planned]:
    """Go through those of the chosen runs that no other process works on, and keep others from each meanwhile."""
    for planned in chosen:
        folder = runs / CLAIMS / planned.name
        folder.mkdir(parents=True, exist_ok=True)
        with suppress(BusyError):
            lock = FolderLock(folder)
            yield planned
            lock.release()


def _slices_to_go(store: Store, config: TrainConfig, folder: Path) -> int:
    """Return over how many slices a run still has to go, all epochs together."""
    table = resolve_split(store.table, config.data.split, config.seed)
    samples = store.samples("train", config.data.subset, config.seed, table)
    there = _there(folder)
    done = there.epoch if there and there.checkpoints else 0
    if done < config.epochs:
        done -= done % config.checkpoint_every  # what came after the checkpoint is done again
    return len(samples) * (config.epochs - done)


def _there(folder: Path) -> Run | None:
    try:
        return Run(folder)
    except MissingFileError:
        return None


def _fit(config: TrainConfig, folder: Path, clock: Clock) -> Run:
    """Train, go on with what was interrupted, or take what is finished."""
    there = _there(folder)
    if there is None or there.status != "finished":
        return adawac.fit(config, folder, resume=there is not None, watch=clock)
    if not there.checkpoints:
        raise RunError(f"Expected a checkpoint to evaluate in {folder}, but it is gone. Remove the folder.")
    return there


def _evaluate(run: Run, planned: Planned) -> str:
    """Score the run by both conventions, and say what it scores."""
    _free_memory()
    texts = []
    for convention in CONVENTIONS:
        [found] = adawac.evaluate(
            run, part=planned.part, convention=convention, tta=planned.tta, gallery=0, progress=False
        )
        dice, hd95 = (found.summaries[metric][-1].mean for metric in ("dice", "hd95"))
        texts.append(f"{convention} DSC {100 * dice:.2f} HD95 {hd95:.2f}")
    _free_memory()
    return ", ".join(texts)


def _free_memory() -> None:
    import torch

    gc.collect()
    torch.cuda.empty_cache()


def _tidy(folder: Path, keep: bool) -> None:
    if not keep:
        shutil.rmtree(folder / "checkpoints", ignore_errors=True)


def collect(runs: Path, listing: Listing, results: Path, store: Path | None = None) -> list[str]:
    """Add the complete runs of a folder to the results; return their names."""
    brightness = None if store is None else _brightness(Store(store))
    entries = {entry["name"]: entry for entry in read_results(results)}
    found = {}
    for planned in listing.runs:
        try:
            if is_complete(runs / planned.name, planned.part):
                found[planned.name] = describe(Run(runs / planned.name), planned, brightness)
        except Exception as error:  # the others are worth having
            log.exception("%s is left out", planned.name)
            print(f"{planned.name}: left out, {str(error).splitlines()[0][:300]}", flush=True)
    entries |= found
    order = {planned.name: place for place, planned in enumerate(listing.runs)}
    names = sorted(entries, key=lambda name: (order.get(name, len(order)), name))
    lines = [json.dumps(entries[name]) for name in names]
    write_text(results, '{"runs": [\n' + ",\n".join(lines) + "\n]}\n")  # a line each: what changed is easy to see
    return list(found)


def _brightness(store: Store) -> dict[str, float]:
    """Return the mean intensity of each case."""
    return {case: float(store.stack(case)[0].mean()) for case in store.table.cases}


def draw_weights(runs: Path) -> None:
    """Draw what became of the weights, into the documentation, of those of the page's runs that are there."""
    from PIL import Image

    from adawac.figures import draw

    for run, figure, path, _ in PICTURES:
        if not (runs / run).is_dir():
            continue
        draw(figure, [runs / run], path, width="text")
        with Image.open(path) as drawn:  # a million pixels of noise: a quarter of the bytes is enough for a page
            small = drawn.convert("RGB").resize((1400, 1400 * drawn.height // drawn.width), Image.Resampling.LANCZOS)
        small.quantize(128).save(path, optimize=True)


def in_processes(arguments: list[str], count: int) -> int:
    """Let several processes work on the list, and wait for all; return the first exit code that is not 0.

    Args:
        arguments: Of this program; those of the processes say that they share the device.
        count: How many.
    """
    command = [sys.executable, __file__, *arguments, "--shared", str(count), "--processes", "1"]
    processes = [subprocess.Popen(command, start_new_session=True) for _ in range(count)]
    try:
        for process in processes:
            process.wait()
    except KeyboardInterrupt:
        for process in processes:
            process.send_signal(signal.SIGINT)
    codes = [process.wait() for process in processes]
    return next((code for code in codes if code), 0)  # one that was killed has a negative code


def main(arguments: list[str] | None = None, started: float | None = None) -> int:
    started = time.monotonic() if started is None else started
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--list", type=Path, default=LIST, help="another list of runs")
    parser.add_argument("--results", type=Path, default=RESULTS, help="another file of results")
    parser.add_argument("--overview", type=Path, default=OVERVIEW, help="another picture of all results")
    commands = parser.add_subparsers(dest="command", required=True)
    training = commands.add_parser("train")
    training.add_argument("store", type=Path)
    training.add_argument("runs", type=Path)
    training.add_argument("--seconds", type=float, required=True, help="how long all of it may take")
    training.add_argument("--only", nargs="*", help="groups or names, with * for anything, in this order")
    training.add_argument("--keep-checkpoints", action="store_true")
    training.add_argument("--in-parts", action="store_true", help="begin also what does not end in time")
    training.add_argument("--processes", type=int, default=1, metavar="N", help="how many work on the list at a time")
    training.add_argument("--shared", type=int, default=1, metavar="N", help=argparse.SUPPRESS)
    collecting = commands.add_parser("collect")
    collecting.add_argument("runs", type=Path)
    collecting.add_argument("--store", type=Path, help="to see whether the weights follow the images' brightness")
    drawing = commands.add_parser("draw")
    drawing.add_argument("runs", type=Path)
    args = parser.parse_args(arguments)
    listing = read_list(args.list)
    if args.command == "draw":
        draw_weights(args.runs)
        return 0
    if args.command == "collect":
        names = collect(args.runs, listing, args.results, args.store)
        draw_overview(listing, read_results(args.results), args.overview)
        print(f"{len(names)} runs into {args.results}: {', '.join(names)}")
        return 0
    if args.processes > 1:
        return in_processes(sys.argv[1:] if arguments is None else arguments, args.processes)
    standing = {entry["name"] for entry in read_results(args.results)}
    chosen = [planned for planned in listing.chosen(args.only) if planned.name not in standing]
    budget = Budget(listing, started + args.seconds, args.shared)
    options = {"keep": args.keep_checkpoints, "shared": args.shared > 1, "in_parts": args.in_parts}
    try:
        well = train(args.store, args.runs, chosen, budget, **options)
    except KeyboardInterrupt:
        print("stopped: what was begun is saved, the same command goes on", flush=True)
        return 130
    return 0 if well else 1


if __name__ == "__main__":
    logging.basicConfig(level=logging.WARNING)
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background jobs would not hear it
    signal.signal(signal.SIGTERM, lambda *_: signal.raise_signal(signal.SIGINT))
    sys.exit(main(started=STARTED))
