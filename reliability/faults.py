"""Faults while commands run: kills, signals, full, read-only and vanished disks, jumping clocks, damaged checkpoints.

    python -m reliability.faults FOLDER [--kills 25] [--seed 0] [--minutes 60] [--only train-killed train-full]

Every command is the real one, in a process of its own, on a small phantom; what it leaves behind is gone on with by
the same command and compared with what an undisturbed run made. Disks are tmpfs mounts, which only root may make on
Linux: without them the rows about disks are left out. Writes reliability/results/faults.json, which
`python -m reliability.render` puts into docs/reliability.md. Rows that are not run again keep their numbers.
"""

import argparse
import atexit
import contextlib
import functools
import importlib
import json
import math
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import traceback
import types
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NoReturn

from benchmarks.result_files import ROOT, commit
from reliability.trials import RESULTS, Row, save_rows

PATIENCE = 600
"""Seconds after which a command counts as hanging."""
SETTINGS = {
    "model.name": "tests.networks.small_network:small",
    "data.image_size": 32,
    "data.batch_size": 12,
    "validation.every": 2,
    "checkpoint_every": 2,
    "hardware.accelerator": "cpu",
    "epochs": 8,
    "seed": 1,
}
GRID = {
    "title": "Two methods",
    "settings": {name: value for name, value in SETTINGS.items() if name != "seed"}
    | {"epochs": 2, "data.split": "fold:0/2"},
    "seeds": [SETTINGS["seed"]],
    "axes": {"method": ["baseline", "adawac"]},
    "score": "val",
    "columns": {"DSC": {"metric": "dice"}},
}
IMPORTED = (
    "adawac.cli",
    "adawac.train.engine",
    "adawac.models.networks",
    "adawac.evaluation.evaluator",
    "adawac.inference",
    "adawac.report",
    "adawac.reproduction",
    "segmentation_models_pytorch",
    "nibabel",
    "scipy.ndimage",
)
"""What commands import, before they are forked from here."""
VOLATILE = ("seconds", "slices_per_second")
"""What may differ between two runs of the same settings."""
CLOCK = """
import random, time
real, chance = time.time, random.Random()
time.time = lambda: real() + chance.choice([-86400 * 400, -3600, 0, 3600, 86400 * 400])
time.time_ns = lambda: int(time.time() * 1e9)
"""


@dataclass
class Command:
    """A command line, what it writes, and how that is compared.

    Attributes:
        name: What the row calls it.
        line: Its arguments, given the folder that it writes to.
        again: Its arguments where something is there already.
        content: What must be equal: a function of the folder.
        intact: Checks what a kill left behind; returns what is wrong with it.
    """

    name: str
    line: Callable[[Path], list[str]]
    content: Callable[[Path], object]
    again: Callable[[Path], list[str]] | None = None
    intact: Callable[[Path], str | None] = lambda out: None
    seconds: float = field(default=0, init=False)
    reference: object = field(default=None, init=False)

    def next_line(self, out: Path) -> list[str]:
        """Return what a user would type now."""
        return self.again(out) if self.again is not None and out.exists() else self.line(out)


class Running:
    """A command line in a process and a process group of its own.

    The process is forked from this one, which has imported what commands import: a kill then meets the command's work.

    Attributes:
        pid: The process.
        code: Its exit code, or minus the signal that ended it; None while it runs.
    """

    def __init__(self, line: Sequence[str], patch: str = ""):
        self._output = tempfile.TemporaryFile()  # noqa: SIM115 (it is read when the process has ended)
        self.code: int | None = None
        self.pid = os.fork()
        if not self.pid:
            _become(line, patch, self._output.fileno())

    def ended(self) -> bool:
        """Tell whether it has ended."""
        if self.code is None:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            self.code = os.waitstatus_to_exitcode(status) if pid else None
        return self.code is not None

    def signal(self, number: int) -> None:
        """Send a signal to the process, and SIGKILL to its whole group."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.pid, number) if number == signal.SIGKILL else os.kill(self.pid, number)

    def finish(self) -> tuple[int | str, str]:
        """Return exit code and output; "hangs" where it does not end."""
        end = time.monotonic() + PATIENCE
        while not self.ended() and time.monotonic() < end:
            time.sleep(0.05)
        hangs = not self.ended()
        self.signal(signal.SIGKILL)  # also what the command has left behind
        while not self.ended():
            time.sleep(0.05)
        self._output.seek(0)
        return ("hangs" if hangs else self.code or 0), self._output.read().decode(errors="replace")


def _become(line: Sequence[str], patch: str, output: int) -> NoReturn:
    """Turn a forked process into a command."""
    code: Any = 1
    try:
        os.setsid()
        signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell may have told us to ignore it
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        os.dup2(output, 1)
        os.dup2(output, 2)
        sys.modules["__main__"] = types.ModuleType("__main__")  # which worker processes do not import
        exec(patch, {})
        sys.argv = ["adawac", *line]
        from adawac.__main__ import main

        code = main()
    except SystemExit as error:
        code = error.code
    except BaseException:
        traceback.print_exc()
    finally:
        atexit._run_exitfuncs()
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code if isinstance(code, int) else 0 if code is None else 1)


def run(line: Sequence[str], patch: str = "") -> tuple[int | str, str]:
    """Run a command line to its end."""
    return Running(line, patch).finish()


def files_of(folder: Path, pattern: str = "*") -> dict[str, bytes]:
    """Return the files that somebody reads, without locks and what a kill left behind."""
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in sorted(folder.rglob(pattern))
        if path.is_file() and not path.name.startswith(".")
    }


def trained(out: Path) -> object:
    """Return what a training leaves: weights, β, the record of every sample, metrics without times."""
    from adawac.runs import Run

    run = Run(out)
    checkpoint = run.checkpoint("last")
    metrics = [{key: value for key, value in line.items() if key not in VOLATILE} for line in run.metrics]
    history = {name: run.history[name].tobytes() for name in ("ell_ce", "ell_dice", "reg_ac", "beta")}
    return run.status, {name: value.tobytes() for name, value in checkpoint.tensors.items()}, history, metrics


def nothing_but_the_last_epochs(out: Path) -> str | None:
    """Say what a kill cost beyond the epochs since the last checkpoint."""
    from adawac.runs import Run

    if not (out / "run.json").is_file():
        return None
    run = Run(out)
    every = SETTINGS["checkpoint_every"]
    if "last" not in run.checkpoints:
        return None if run.epoch <= every else f"{run.epoch} epochs and no checkpoint"
    saved = run.checkpoint("last").state["epoch"]
    return None if run.epoch - saved <= every else f"epoch {run.epoch} was done, {saved} was saved"


def evaluated(out: Path) -> object:
    """Return the scores beside a run."""
    return {name: content for name, content in files_of(out).items() if "evaluation" in name}


class Campaign:
    """All faults in one folder, which holds the inputs, the references and the logs of what failed."""

    def __init__(self, folder: Path, kills: int, seed: int, minutes: float, only: Sequence[str]):
        self.folder, self.kills, self.only = folder, kills, only
        self.seconds, self.end = 60 * minutes, math.inf
        self.random = random.Random(seed)
        folder.mkdir(parents=True, exist_ok=True)
        self.inputs()
        self.commands = {command.name: command for command in self.listed()}

    def inputs(self) -> None:
        """Draw scans, prepare them and train on them, once; write the grid that `reproduce` runs."""
        from adawac.data.phantom.phantom_files import write_nifti_layout

        self.scans, self.store, self.run, self.grid = (
            self.folder / name for name in ("scans", "store", "run", "grid.yaml")
        )
        self.grid.write_text(json.dumps(GRID))
        if not self.scans.is_dir():
            write_nifti_layout(self.scans, 8, size=96, slices=(40, 48))
        for out, line in ((self.store, self.prepare(self.store)), (self.run, self.train(self.run))):
            if not out.is_dir():
                code, output = run(line)
                assert code == 0, output

    def prepare(self, out: Path) -> list[str]:
        """Return the command that prepares the scans."""
        return ["prepare", "nifti", str(self.scans), str(out), "--workers", "2"]

    def train(self, out: Path, *more: str) -> list[str]:
        """Return the command that trains on them."""
        changes = [f"--set={path}={json.dumps(value)}" for path, value in SETTINGS.items()]
        return ["train", str(self.store), "--split", "fold:0/2", "--out", str(out), *changes, *more]

    def crossval(self, out: Path) -> list[str]:
        """Return the command that trains on two folds of the patients and scores both."""
        changes = [f"--set={path}={json.dumps(value)}" for path, value in {**SETTINGS, "epochs": 2}.items()]
        return ["crossval", str(self.store), "--folds", "2", "--out", str(out), *changes]

    def predict(self, out: Path, *more: str) -> list[str]:
        """Return the command that segments the scans."""
        return ["predict", str(self.run), str(self.scans / "imagesTr"), "--out", str(out), "--device", "cpu", *more]

    def evaluate(self, out: Path) -> list[str]:
        """Return the command that scores a copy of the run, which it writes the scores into."""
        if not (out / "run.json").is_file():
            shutil.rmtree(out, ignore_errors=True)
            shutil.copytree(self.run, out)
        return ["evaluate", str(out), "--device", "cpu", "--split-part", "val"]

    def listed(self) -> Iterator[Command]:
        """Yield the commands."""
        yield Command("prepare", self.prepare, files_of)
        yield Command(
            "train", self.train, trained, lambda out: self.train(out, "--resume"), nothing_but_the_last_epochs
        )
        yield Command(
            "predict",
            self.predict,
            lambda out: files_of(out, "*.nii.gz"),
            lambda out: self.predict(out, "--overwrite"),
            lambda out: self.whole_files("predict", out, "*.nii.gz"),
        )
        yield Command("evaluate", self.evaluate, evaluated)
        yield Command(
            "report",
            lambda out: ["report", str(self.run), "--out", str(out / "report.html")],
            files_of,
            intact=lambda out: self.whole_files("report", out, "*.html"),
        )
        yield Command(
            "reproduce",
            lambda out: ["reproduce", str(self.grid), "--data", str(self.store), "--out", str(out)],
            lambda out: [(out / f"grid{ending}").read_text() for ending in (".md", ".tex")],
        )
        yield Command(
            "crossval",
            self.crossval,
            lambda out: [
                (out / name).read_text().replace(str(out), "")  # the tables name their folder
                for name in ("scores.md", "scores.csv", "label-errors.csv")
            ],
        )

    def whole_files(self, command: str, out: Path, pattern: str) -> str | None:
        """Say which files a kill left in halves."""
        reference = self.folder / f"reference-{command}"
        halves = [name for name, content in files_of(out, pattern).items() if files_of(reference).get(name) != content]
        return f"{', '.join(halves)} differ" if halves else None

    def undisturbed(self, command: Command) -> None:
        """Run a command in peace: what it makes, and how long that takes."""
        if command.seconds:
            return
        out = self.fresh(f"reference-{command.name}")
        started = time.monotonic()
        code, output = run(command.line(out))
        assert code == 0, output
        command.seconds = time.monotonic() - started
        self.end += command.seconds
        command.reference = command.content(out)

    @property
    def has_time(self) -> bool:
        """Whether the row that is under way may begin another trial."""
        return time.monotonic() < self.end

    def fresh(self, name: str) -> Path:
        """Return a folder that is not there."""
        out = self.folder / name
        shutil.rmtree(out, ignore_errors=True)
        return out

    @contextlib.contextmanager
    def disk(self) -> Iterator[Path]:
        """Mount an empty disk that is large enough for everything."""
        folder = self.fresh("disk")
        folder.mkdir()
        with tmpfs(folder, 1 << 20):
            yield folder

    def moment(self, command: Command, earliest: float = 0.1) -> None:
        """Wait for a random moment of a command's work."""
        time.sleep(self.random.uniform(earliest, 1) * command.seconds)

    def completed(self, command: Command, out: Path, log: list[str]) -> str | None:
        """Go on as a user would; say what is wrong with the end."""
        code, output = run(command.next_line(out))
        log.append(output)
        if code != 0:
            return f"going on ended with {code}"
        return None if command.content(out) == command.reference else "going on made something else"

    def under_way(self, command: Command, row: Row, times: int, name: str) -> Iterator[tuple[Path, Running]]:
        """Yield a command's folder and its process at random moments, until as many have been tried."""
        self.undisturbed(command)
        while row.tried < times and self.has_time:
            out = self.fresh(name)
            process = Running(command.line(out))
            self.moment(command)
            if process.ended():  # it was done before
                process.finish()
            else:
                yield out, process

    def killed(self, command: Command, times: int) -> Row:
        """Kill a command at random moments, and go on."""
        row = Row(f"{command.name}: killed (SIGKILL) at random moments, then run again")
        for out, process in self.under_way(command, row, times, "killed"):
            process.signal(signal.SIGKILL)
            log = [process.finish()[1]]
            problem = command.intact(out) if out.exists() else None
            row.note(problem or self.completed(command, out, log), log)
        return row

    def stopped(self, command: Command, times: int) -> Row:
        """Ask a command to stop at random moments, and go on."""
        row = Row(f"{command.name}: stopped (SIGTERM, SIGINT) at random moments, then run again")
        for out, process in self.under_way(command, row, times, "stopped"):
            process.signal(self.random.choice([signal.SIGTERM, signal.SIGINT]))
            code, output = process.finish()
            problem = command.intact(out) if out.exists() else None
            if code not in (0, 130, 143, -signal.SIGTERM, -signal.SIGINT) or "Traceback" in output:
                problem = f"stopping ended with {code}"
            log = [output]
            row.note(problem or self.completed(command, out, log), log)
        return row

    def on_full_disks(self, command: Command) -> Row:
        """Run a command on disks that are too small by various amounts, then make room, and go on."""
        self.undisturbed(command)
        row = Row(f"{command.name}: the disk is full, then has room again")
        needed = size_of(self.folder / f"reference-{command.name}")
        for share in (0.02, 0.4, 0.8, 0.2, 0.6, 0.9, 0.1, 0.5, 0.3, 0.7):
            if not self.has_time:
                break
            with self.disk() as disk:
                out = disk / "out"
                line = command.line(out)
                used = size_of(disk)  # by what is there before
                remount(disk, f"size={used + max(16, int((needed - used) * share))}k")
                code, output = run(line)
                if code == 0:  # less was needed than the first time
                    continue
                log = [output]
                problem = message_problem(code, output)
                remount(disk, "size=1g")
                row.note(problem or self.completed(command, out, log), log)
        return row

    def on_a_read_only_disk(self, command: Command) -> Row:
        """Run a command that may not write."""
        row = Row(f"{command.name}: the folder is read-only")
        with self.disk() as disk:
            line = command.line(disk / "out")
            remount(disk, "ro")
            code, output = run(line)
            row.note(message_problem(code, output), [output])
        return row

    def without_the_disk_for_output(self, command: Command) -> Row:
        """Take the disk away that a command writes to."""
        self.undisturbed(command)
        row = Row(f"{command.name}: the disk that it writes to vanishes")
        for _ in range(12):
            with self.disk() as disk:
                process = Running(command.line(disk / "out"))
                self.moment(command)
                subprocess.run(["umount", "-l", disk], check=True)
                code, output = process.finish()
                if code != 0:
                    row.note(message_problem(code, output), [output])
            if row.tried == 4:
                break
        return row

    def without_the_disk_for_input(self, command: Command) -> Row:
        """Take the disk away that a command reads from: files are gone, or every read fails."""
        self.undisturbed(command)
        row = Row(f"{command.name}: the disk that it reads from vanishes, or fails to read")
        kept = self.scans, self.store, self.run
        image, disk = self.folder / "input.img", self.fresh("input")
        for number in range(12):
            disk.mkdir(exist_ok=True)
            image.unlink(missing_ok=True)
            subprocess.run(["mkfs.ext4", "-q", image, "512M"], check=True, capture_output=True)
            subprocess.run(["mount", "-o", "loop", image, disk], check=True)
            try:
                self.scans, self.store, self.run = (shutil.copytree(path, disk / path.name) for path in kept)
                for path in self.run.glob("*"):  # it names its store
                    if path.suffix in (".yaml", ".json"):
                        path.write_text(path.read_text().replace(str(kept[1]), str(self.store)))
                remount(disk, "ro")
                process = Running(command.line(self.fresh("reader")))
                self.moment(command)
                if number % 2:
                    subprocess.run(["umount", "-l", disk], check=True)
                else:
                    os.truncate(image, 0)
                    Path("/proc/sys/vm/drop_caches").write_text("1")
                code, output = process.finish()
                if code != 0:
                    row.note(message_problem(code, output), [output])
            finally:
                subprocess.run(["umount", "-l", disk], capture_output=True)
                self.scans, self.store, self.run = kept
            if row.tried == 4:
                break
        return row

    def by_a_jumping_clock(self, command: Command) -> Row:
        """Run a command whose clock jumps by up to 400 days, to and fro."""
        self.undisturbed(command)
        row = Row(f"{command.name}: the clock jumps by up to 400 days")
        for _ in range(2):
            out = self.fresh("clock")
            code, output = run(command.line(out), CLOCK)
            equal = code == 0 and command.content(out) == command.reference
            row.note(None if equal else f"ended with {code}, or made something else", [output])
        return row

    def with_a_damaged_checkpoint(self) -> Row:
        """Flip a bit in each of 64 ranges of a checkpoint: it is named each time; the run goes on from the other."""
        from adawac.errors import RunError
        from adawac.runs import Run

        row = Row("train: one bit flipped in each of 64 ranges of the last checkpoint")
        self.undisturbed(self.commands["train"])
        source = self.folder / "reference-train"
        for part in range(64):
            out = self.fresh("damaged")
            shutil.copytree(source, out)
            path = self.damage(out, "last", part)
            try:
                Run(out).checkpoint("last")
                row.note("it was not noticed", [])
            except RunError as error:
                row.note(None if str(path) in str(error) else "the file is not named", [str(error)])
            if part % 16 == 0:
                code, output = run(self.train(out, "--resume", "--epochs", "10"))
                named = str(path) in output and code == 0 and Run(out).status == "finished"
                row.note(None if named else f"resuming ended with {code}", [output])
        return row

    def damage(self, out: Path, name: str, part: int) -> Path:
        """Flip a bit in one of 64 ranges of a checkpoint."""
        path = out / "checkpoints" / f"{name}.safetensors"
        content = bytearray(path.read_bytes())
        position = self.random.randrange(part * len(content) // 64, (part + 1) * len(content) // 64)
        content[position] ^= 1 << self.random.randrange(8)
        path.write_bytes(content)
        return path

    def with_a_damaged_result(self) -> Row:
        """Flip a bit of the checkpoint that a run's result is: evaluate and predict name it."""
        from adawac.runs import Run

        row = Row("evaluate, predict: one bit flipped in the checkpoint that is the run's result")
        kept = self.run
        for number in range(4):
            self.run = self.fresh("damaged")
            shutil.copytree(kept, self.run)
            selected = Run(self.run).selected_checkpoint
            path = self.damage(self.run, selected, 16 * number)
            line = self.evaluate(self.run) if number % 2 else self.predict(self.fresh("predicted"))
            code, output = run(line)
            row.note(message_problem(code, output) or (None if path.name in output else "it is not named"), [output])
        self.run = kept
        return row

    def without_a_worker(self) -> Row:
        """Kill one worker process of the commands that have some."""
        row, met = Row(""), []
        lines = {
            "prepare": self.prepare,
            "train": lambda out: self.train(out, "--set=data.residence=stream", "--set=data.workers=2"),
            "evaluate": lambda out: [*self.evaluate(out), "--workers", "2"],
        }
        for name, line in lines.items():
            for _ in range(3):
                process = Running(line(self.fresh("workers")))
                worker = wait_for_child(process)
                if worker is None:
                    process.finish()
                    continue
                time.sleep(self.random.uniform(0, 0.5))
                with contextlib.suppress(ProcessLookupError):
                    os.kill(worker, signal.SIGKILL)
                code, output = process.finish()
                row.note(None if code == 0 else message_problem(code, output), [output])
                met.append(name)
        row.title = f"{', '.join(dict.fromkeys(met))}: one of the worker processes is killed"
        return row

    def without_a_job(self, command: Command, times: int) -> Row:
        """Kill the process of one run at random moments: the command says so, and the next one goes on."""
        row = Row(f"{command.name}: the process of one of its runs is killed, then run again")
        for out, process in self.under_way(command, row, times, "job"):
            jobs = children(process, "multiprocessing.spawn")
            for job in jobs:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(job, signal.SIGKILL)
            code, output = process.finish()
            if not jobs or code == 0:  # no run was under way, or it had ended
                continue
            log = [output]
            row.note(message_problem(code, output, "SIGKILL") or self.completed(command, out, log), log)
        return row

    def without_a_rank(self) -> Row:
        """Kill one of two ranks: the other one ends with a message, and the run goes on."""
        row = Row("train on two ranks: one is killed, then resumed")
        for _ in range(3):
            out = self.fresh("ranks")
            process = Running(self.train(out, "--devices", "2"))
            rank = wait_for_child(process, out / "metrics.jsonl")
            if rank is None:
                process.finish()
                continue
            with contextlib.suppress(ProcessLookupError):
                os.kill(rank, signal.SIGKILL)
            code, output = process.finish()
            problem = None if code == 0 else message_problem(code, output)
            code, again = run(self.train(out, "--resume", "--devices", "2"))
            row.note(problem or (None if code == 0 else f"resuming ended with {code}"), [output, again])
        return row

    def rows(self) -> Iterator[tuple[str, Callable[[], Row]]]:
        """Yield every row with what tries it."""
        times = {"prepare": self.kills, "train": self.kills, "predict": self.kills}
        few = max(4, self.kills // 3)
        of_grids = {name: self.commands[name] for name in ("reproduce", "crossval")}
        for name, command in self.commands.items():
            yield f"{name}-killed", functools.partial(self.killed, command, times.get(name, few))
            yield f"{name}-stopped", functools.partial(self.stopped, command, few)
            yield f"{name}-clock", functools.partial(self.by_a_jumping_clock, command)
        yield "train-damaged", self.with_a_damaged_checkpoint
        yield "result-damaged", self.with_a_damaged_result
        yield "workers-killed", self.without_a_worker
        for name, command in of_grids.items():
            yield f"{name}-worker-killed", functools.partial(self.without_a_job, command, few)
        yield "rank-killed", self.without_a_rank
        if can_mount(self.folder):
            for name, command in self.commands.items():
                yield f"{name}-full", functools.partial(self.on_full_disks, command)
                yield f"{name}-read-only", functools.partial(self.on_a_read_only_disk, command)
                yield f"{name}-vanished", functools.partial(self.without_the_disk_for_output, command)
                yield f"{name}-unreadable", functools.partial(self.without_the_disk_for_input, command)

    def run_all(self) -> None:
        """Try everything; each row is saved when it is done."""
        rows = [(name, attempt) for name, attempt in self.rows() if not self.only or name in self.only]
        for name, attempt in sorted(rows, key=lambda row: self.only.index(row[0]) if self.only else 0):
            started = time.monotonic()
            self.end = started + self.seconds
            print(name, "…", flush=True)
            row = attempt()
            for number, (problem, log) in enumerate(row.failures):
                path = self.folder / "failures" / f"{name}-{number}.log"
                path.parent.mkdir(exist_ok=True)
                path.write_text("\n---\n".join([problem, *log]))
            survived = f"{row.tried - len(row.failures)} of {row.tried}"
            print(f"{name}: {survived}, {time.monotonic() - started:.0f} s", flush=True)
            if row.tried:
                save_rows(RESULTS / "faults.json", {name: row}, commit())


def size_of(folder: Path) -> int:
    """Return the kilobytes that a folder's files take on a disk."""
    return sum(-(-path.stat().st_size // 4096) * 4 for path in folder.rglob("*"))


def remount(folder: Path, option: str) -> None:
    """Change the size of a disk, or make it read-only."""
    subprocess.run(["mount", "-o", f"remount,{option}", folder], check=True)


@contextlib.contextmanager
def tmpfs(folder: Path, kilobytes: int) -> Iterator[None]:
    """Mount a disk of a size at a folder."""
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={kilobytes}k", "tmpfs", folder], check=True)
    try:
        yield
    finally:
        subprocess.run(["umount", "-l", folder], capture_output=True)


def can_mount(folder: Path) -> bool:
    """Tell whether this process may mount disks."""
    place = folder / "mount"
    place.mkdir(exist_ok=True)
    try:
        with tmpfs(place, 64):
            return True
    except (OSError, subprocess.CalledProcessError):
        print("No disks can be mounted here: the rows about disks are left out.", file=sys.stderr)
        return False


def message_problem(code: int | str, output: str, word: str = "Expected") -> str | None:
    """Say what is wrong with how a command failed: it has to end with a message with this word, and no traceback."""
    if code == "hangs":
        return "it hangs"
    if code not in (1, 2):
        return f"it ended with {code}"
    if "Traceback" in output:
        return "a traceback instead of a message"
    return None if word in output else "no message"


def wait_for_child(process: Running, until: Path | None = None) -> int | None:
    """Return a child of a process, once it has one and `until` exists; None where it ends before."""
    while not process.ended():
        listed = children(process)
        if len(listed) >= (1 if until else 2) and (until is None or until.is_file()):
            return listed[-1]
        time.sleep(0.05)
    return None


def children(process: Running, line: str = "") -> list[int]:
    """Return the children of a process whose command line matches."""
    listed = subprocess.run(["pgrep", "-P", str(process.pid), "-f", line], capture_output=True, text=True)
    return [int(pid) for pid in listed.stdout.split()]


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--kills", type=int, default=25)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--minutes", type=float, default=math.inf, help="after which a row begins no other trial")
    parser.add_argument("--only", nargs="*", default=[], metavar="ROW", help="such as train-killed, in this order")
    options = parser.parse_args()
    os.environ |= {"OMP_NUM_THREADS": "1", "PYTHONPATH": f"{ROOT / 'src'}:{ROOT}", "COLUMNS": "200"}
    for module in IMPORTED:
        importlib.import_module(module)
    Campaign(options.folder.absolute(), options.kills, options.seed, options.minutes, options.only).run_all()
