"""What a run folder survives: kills at any moment, full disks, and somebody else who wants to write."""

import errno
import fcntl
import json
import os
import shutil
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import adawac
from adawac import files
from adawac.config import TrainConfig
from adawac.errors import BusyError, RunError
from adawac.files import is_temporary
from adawac.runs import Run, RunWriter, example_run

# What the processes below share: a run with one sample, and an epoch of it.
PRELUDE = """
import os, signal, sys, json
from pathlib import Path
import numpy as np
from adawac.config import TrainConfig
from adawac.errors import BusyError, RunError
from adawac.runs import Run, RunWriter, example_run
folder = Path(sys.argv[1])
def epoch(run, number, size=4):
    rows = np.arange(len(run.samples))
    run.log_history(number, rows, ell_ce=rows * number)
    run.log_metrics(number, {"loss": number})
    run.save_checkpoint("last", {"weight": np.full(size, number, np.float32)}, {"epoch": number})
"""


def start(code: str, folder: Path) -> "subprocess.Popen[str]":
    env = os.environ | {"PYTHONPATH": str(Path(adawac.__file__).parents[1])}
    command = [sys.executable, "-c", PRELUDE + code, str(folder)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stdin=subprocess.PIPE, text=True, env=env)


def leftovers(folder: Path) -> list[Path]:
    return [path for path in folder.rglob("*") if is_temporary(path)]


def go_on(folder: Path) -> Run:
    """Resume at the last checkpoint and write the epochs up to 5, as an uninterrupted run does."""
    with RunWriter(folder, resume=True) as run:
        state = Run(folder).checkpoint().state
        run.rewind(state["epoch"])
        assert run.samples is not None
        rows = np.arange(len(run.samples))
        for number in range(state["epoch"] + 1, 6):
            run.log_history(number, rows, ell_ce=rows * number)
            run.log_metrics(number, {"loss": number})
            run.save_checkpoint("last", {"weight": np.full(4, number, np.float32)}, {"epoch": number})
    return Run(folder)


@pytest.fixture(scope="module")
def begun(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An interrupted run with two epochs, to be copied."""
    return example_run(
        tmp_path_factory.mktemp("run") / "run", cases=["c"], slices=3, epochs=4, status="interrupted"
    ).folder


@pytest.fixture
def folder(begun: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(begun, tmp_path / "run"))


RENAME = """
real = os.replace
def rename(old, new):
    if before and str(new).endswith(name): os.kill(os.getpid(), signal.SIGKILL)
    real(old, new)
    if str(new).endswith(name): os.kill(os.getpid(), signal.SIGKILL)
os.replace = rename
"""
KILLS = {
    "before a rename of run.json": f"before, name = True, 'run.json'{RENAME}",
    "after a rename of run.json": f"before, name = False, 'run.json'{RENAME}",
    "before a rename of the checkpoint": f"before, name = True, 'last.safetensors'{RENAME}",
    "in the middle of an append": """
import adawac.files
class Half:
    def __init__(self, file): self.file = file
    def __getattr__(self, name): return getattr(self.file, name)
    def write(self, data):
        self.file.write(bytes(data[: len(data) // 2]))
        os.kill(os.getpid(), signal.SIGKILL)
run._history._file = Half(run._history._file)
""",
    "between history and metrics": "run.log_metrics = lambda *_: os.kill(os.getpid(), signal.SIGKILL)",
}


@pytest.mark.parametrize("moment", KILLS)
def test_a_killed_run_goes_on_as_if_nothing_had_happened(folder: Path, tmp_path: Path, moment: str) -> None:
    unharmed = go_on(Path(shutil.copytree(folder, tmp_path / "unharmed")))
    code = f"run = RunWriter(folder, resume=True)\nrun.rewind(2)\nepoch(run, 3)\n{KILLS[moment]}\nepoch(run, 4)\n"
    process = start(code, folder)
    process.communicate()
    assert process.returncode == -signal.SIGKILL
    killed = Run(folder)
    assert killed.status == "interrupted"
    assert killed.checkpoint().state["epoch"] == 3
    assert killed.checkpoint().tensors["weight"].tolist() == [3] * 4
    assert set(killed.missing) <= {"scores", "gallery"}
    assert killed.history.epochs.tolist() in ([1, 2, 3], [1, 2, 3, 4])
    if moment.startswith("before a rename"):
        assert leftovers(folder)
    finished = go_on(folder)
    assert leftovers(folder) == []
    assert finished.status == "finished"
    for name in ("history.bin", "metrics.jsonl", "samples.csv", "checkpoints/last.safetensors"):
        assert (folder / name).read_bytes() == (unharmed.folder / name).read_bytes()


def test_a_full_disk_spares_the_last_checkpoint(folder: Path) -> None:
    code = """
import resource
run = RunWriter(folder, resume=True)
run.rewind(2)
epoch(run, 3)
limit = 1 + max(path.stat().st_size for path in folder.rglob("*") if path.is_file())
resource.setrlimit(resource.RLIMIT_FSIZE, (limit, resource.RLIM_INFINITY))
messages = []
def attempt(action):
    try:
        action()
    except RunError as error:
        messages.append(str(error))
attempt(lambda: epoch(run, 4, size=10 * limit))
attempt(lambda: run.save_checkpoint("best", {"w": np.zeros(10 * limit, np.float32)}, {}))
attempt(lambda: run.write_data({"much": "x" * 2 * limit}))
attempt(lambda: run.log_metrics(4, {"name": "x" * 2 * limit}))
attempt(lambda: run.log_history(5, [0], ell_ce=[1], **{f"more{i}": [1] for i in range(limit)}))
print(json.dumps(messages))
"""
    process = start(code, folder)
    output, _ = process.communicate()
    messages = json.loads(output)
    assert len(messages) == 5
    for message in messages:
        assert "File too large" in message
        assert "Make room" in message
        assert "Checkpoints that are safe: last; resume from there." in message
    run = Run(folder)
    assert run.checkpoints == ["last"]
    assert run.checkpoint().state["epoch"] == 3
    assert run.data["class_names"] == ["background", "liver", "kidney"]
    assert run.history.epochs.tolist() == [1, 2, 3, 4]
    assert [metrics["epoch"] for metrics in run.metrics] == [1, 2, 3, 4]
    assert leftovers(folder) == []
    assert go_on(folder).status == "finished"


def test_a_full_disk_at_the_end_does_not_hide_the_first_error(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    def train() -> None:
        with RunWriter(folder, resume=True):
            monkeypatch.setattr(os, "replace", full)
            raise ZeroDivisionError("the first error")

    with pytest.raises(ZeroDivisionError, match="the first error"):
        train()
    monkeypatch.undo()
    assert Run(folder).status == "interrupted"
    RunWriter(folder, resume=True).close("finished")  # the lock is free again


def test_a_run_that_is_moved_while_it_is_written_stays_in_one_piece(folder: Path) -> None:
    run = RunWriter(folder, resume=True)
    run.rewind(2)
    folder.rename(folder.with_name("moved"))
    with pytest.raises(RunError, match="was moved or removed"):
        run.log_metrics(3, {"loss": 1})
    with pytest.raises(RunError, match="was moved or removed"):
        run.save_checkpoint("last", {"weight": np.zeros(4, np.float32)}, {"epoch": 3})
    with pytest.raises(RunError, match="was moved or removed"):
        run.close("interrupted")
    assert not folder.exists()
    assert go_on(folder.with_name("moved")).status == "finished"


def test_a_second_writer_is_refused(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "_PATIENCE", 0.1)
    with RunWriter(folder, resume=True) as run:
        with pytest.raises(BusyError, match=rf"no other process writes to, but .* is in use by process {os.getpid()}"):
            RunWriter(folder, resume=True)
        run.log_metrics(3, {"loss": 1})  # the first one is not disturbed
    with RunWriter(folder, resume=True):
        assert Run(folder).metrics[-1] == {"epoch": 3, "loss": 1}


def test_the_lock_of_a_killed_process_is_gone_even_if_its_workers_live(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    code = """
run = RunWriter(folder, resume=True)
worker = os.fork()
if worker == 0:
    sys.stdin.read()  # until the test closes it
    os._exit(0)
print(worker, flush=True)
signal.pause()
"""
    monkeypatch.setattr(files, "_PATIENCE", 0.1)
    process = start(code, folder)
    assert process.stdout is not None
    worker = int(process.stdout.readline())
    try:
        assert Run(folder).status == "running"
        with pytest.raises(BusyError, match=f"in use by process {process.pid}"):
            RunWriter(folder, resume=True)
        process.kill()
        process.wait()
        os.kill(worker, 0)  # it lives
        assert Run(folder).status == "interrupted"
        RunWriter(folder, resume=True).close("finished")
    finally:
        process.communicate()  # closes stdin, and the worker ends


def test_reading_a_status_does_not_keep_a_writer_out(folder: Path) -> None:
    """A reader that asks for the status holds the lock for an instant, and a writer waits for that."""
    reader = (folder / ".lock").open("rb")
    fcntl.flock(reader, fcntl.LOCK_SH)
    timer = threading.Timer(0.2, reader.close)
    timer.start()
    RunWriter(folder, resume=True).close("finished")
    timer.join()


def test_two_readers_of_a_dead_run_do_not_take_each_other_for_its_writer(folder: Path) -> None:
    reader = (folder / ".lock").open("rb")
    fcntl.flock(reader, fcntl.LOCK_EX)  # as a reader holds it for an instant
    timer = threading.Timer(0.005, reader.close)
    timer.start()
    assert not files.is_locked(folder)
    timer.join()


def test_somebody_who_may_only_read_a_run_sees_that_it_goes_on(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    opened = Path.open

    def forbid(path: Path, mode: str = "r", *arguments: Any, **options: Any) -> Any:  # tests may run as root
        if "+" in mode:
            raise PermissionError(errno.EACCES, "Permission denied", str(path))
        return opened(path, mode, *arguments, **options)

    with RunWriter(folder, resume=True) as run:
        run.rewind(2)
        monkeypatch.setattr(Path, "open", forbid)
        assert Run(folder).status == "running"
        monkeypatch.undo()
    assert Run(folder).status == "finished"


def test_a_reader_sees_whole_epochs_while_they_are_written(tmp_path: Path) -> None:
    code = """
import time
from adawac.runs.example import _table, _draw
with RunWriter(folder, TrainConfig()) as run:
    run.write_samples(_table([_draw("c", 2000, 4, np.random.default_rng(0), 0.0)], 4))
    print("ready", flush=True)
    for number in range(1, 40):
        epoch(run, number)
"""
    process = start(code, tmp_path / "run")
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    rows, seen = np.arange(2000, dtype=np.float32), 0
    while seen < 39:
        run = Run(tmp_path / "run")
        epochs = run.history.epochs
        assert epochs.tolist() == list(range(1, len(epochs) + 1))
        assert len(epochs) >= seen
        np.testing.assert_array_equal(run.history["ell_ce"], rows * epochs[:, None])
        seen = len(epochs)
    process.communicate()
    assert process.returncode == 0
    assert Run(tmp_path / "run").status == "finished"


def test_reading_loads_no_torch(folder: Path) -> None:
    code = """
run = Run(folder)
run.missing, run.history["beta"], run.checkpoint(), run.samples
print([name for name in ("torch", "scipy", "rich") if name in sys.modules])
"""
    output, _ = start(code, folder).communicate()
    assert output == "[]\n"


def test_leftovers_of_a_kill_do_not_block_a_new_run(tmp_path: Path) -> None:
    (tmp_path / ".run.json.0123.tmp").touch()
    (tmp_path / ".lock").touch()
    with RunWriter(tmp_path, TrainConfig()):
        assert leftovers(tmp_path) == []


@pytest.mark.parametrize("part", ["history.bin", "metrics.jsonl"])
def test_a_record_that_is_cut_off_by_damage_says_how_far_it_goes(tmp_path: Path, part: str) -> None:
    folder = example_run(tmp_path / "run", cases=["c"], slices=3, epochs=6).folder
    assert Run(folder).damaged == {}
    whole = (folder / part).read_bytes()
    for change in (whole[: len(whole) // 2], whole[: len(whole) // 2] + b"\0" * 200 + whole[len(whole) // 2 + 200 :]):
        (folder / part).write_bytes(change)
        run = Run(folder)
        last = max([row["epoch"] for row in run.metrics] if part == "metrics.jsonl" else run.history.epochs.tolist())
        assert 1 < last < 6
        assert list(run.damaged) == [part]
        assert f"{last} of 6" in run.damaged[part]
        assert part not in run.missing
    (folder / part).write_bytes(b"\0" * len(whole))
    assert Run(folder).damaged == {}
    assert "damaged" in Run(folder).missing[part]


def test_a_record_that_a_kill_cut_off_is_not_called_damaged(folder: Path) -> None:
    with (folder / "metrics.jsonl").open("ab") as file:
        file.write(b'{"epoch": 3, "lo')
    with (folder / "history.bin").open("ab") as file:
        file.write((folder / "history.bin").read_bytes()[:100])
    assert Run(folder).damaged == {}
