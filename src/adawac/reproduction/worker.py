"""What is done for one job, wherever it runs: train or go on, then score; what goes wrong becomes an outcome."""

import contextlib
import gc
import logging
import os
import signal
import sys
import threading
import time
import traceback
from collections.abc import Iterator
from importlib import import_module
from multiprocessing import parent_process
from multiprocessing.connection import Connection
from pathlib import Path

from adawac.errors import AdawacError, MissingFileError
from adawac.files import is_locked, make_folder
from adawac.reproduction.isolation import as_if_new
from adawac.reproduction.jobs import Job, Outcome
from adawac.runs import Run

__all__ = ["attempt", "can_serve_again", "interrupt", "serve"]

log = logging.getLogger(__name__)

# Seconds to wait for a run that somebody still writes to: one whose machine was lost may take a while to notice.
_PATIENCE = 60.0


def attempt(job: Job) -> Outcome:
    """Do what is left of a job, with everything that it says going into its log."""
    try:
        return _attempt(job)
    except OSError as error:  # of the log: a full disk, as a rule, and what there was to say is lost with it
        return Outcome(
            status="failed",
            reason=f"Expected to write to {job.log}, but got: {error.strerror or error}. Make room, or check the "
            "folder's permissions.",
        )


def _attempt(job: Job) -> Outcome:
    started = time.monotonic()

    def outcome(status: str, reason: str = "") -> Outcome:
        return Outcome(status=status, reason=reason, seconds=time.monotonic() - started)  # type: ignore[arg-type]

    with _into(job.log):
        try:
            with as_if_new(job.config.seed):
                _work(job)
        except KeyboardInterrupt:
            log.warning("interrupted: %s is saved as far as it came", job.folder)
            return outcome("interrupted", "It was interrupted. The same command goes on with it.")
        except AdawacError as error:
            log.error("%s", error)
            return outcome("failed", str(error))
        except Exception as error:
            log.error("%s", traceback.format_exc())
            return outcome("failed", f"Unexpected {type(error).__name__}: {error}")
        return outcome("done")


def _work(job: Job) -> None:
    from adawac.evaluation import evaluate
    from adawac.train import fit

    deadline = time.monotonic() + _PATIENCE
    while is_locked(job.folder) and time.monotonic() < deadline:
        time.sleep(0.5)
    run = _opened(job.folder)
    if run is None or run.status != "finished":
        log.info("training %s%s", job.name, "" if run is None else f", from epoch {run.epoch} on")
        fit(job.config, job.folder, resume=run is not None)
    if not job.scored:
        log.info("scoring %s by the convention %s", job.name, job.convention)
        # In fp32 on every device, as the paper's numbers are.
        evaluate(job.folder, data=job.config.data.store, convention=job.convention, precision="fp32", progress=False)


def _opened(folder: Path) -> Run | None:
    try:
        return Run(folder)
    except MissingFileError:
        return None


def serve(line: "Connection[Outcome, Job]", devices: str | None, threads: int | None) -> None:
    """Run jobs in a process of their own, one after the other, and send how each ended.

    It ends when nobody is left to send jobs, and after a job that may have left something behind.

    Args:
        line: Brings jobs and takes outcomes.
        devices: The GPUs that it may use, as CUDA_VISIBLE_DEVICES; None leaves that as it is.
        threads: Threads of torch; None leaves that to torch.
    """
    with contextlib.suppress(KeyboardInterrupt):  # what stops it while it does nothing
        _settle(devices, threads)
        with contextlib.suppress(EOFError, ConnectionError):  # nobody is left to send jobs, or to hear of them
            again = True
            while again:
                job = line.recv()
                outcome = attempt(job)
                line.send(outcome)
                again = can_serve_again(job, outcome)
    gc.unfreeze()  # libraries count at the end what nobody has freed


def _settle(devices: str | None, threads: int | None) -> None:
    """Make this process ready for jobs."""
    os.setsid()  # Ctrl-C reaches the one who started us, and we hear of it once
    if devices is not None:
        os.environ["CUDA_VISIBLE_DEVICES"] = devices
    threading.Thread(target=_stop_when_alone, daemon=True).start()
    import_module("adawac.reproduction.preloading")
    if threads is not None:
        import torch

        torch.set_num_threads(threads)
    gc.freeze()  # half a million objects that stay: to look through them after each job would take 0.2 s


def can_serve_again(job: Job, outcome: Outcome) -> bool:
    """Say whether a process that ran a job may run another one.

    A CUDA error stays with its process, and several ranks leave their process group and their environment behind.
    """
    return outcome.status == "done" and job.config.hardware.devices * job.config.hardware.nodes == 1


def _stop_when_alone() -> None:
    """Save and stop when the process that started this one is gone: nobody else would know of it."""
    parent = parent_process()
    if parent is not None:
        parent.join()
        interrupt(os.getpid())


def interrupt(pid: int) -> None:
    """Let the job of a process of `serve` save and end, as Ctrl-C on a terminal would.

    Where several ranks train, these take Ctrl-C, and the process that waits for them does not: all have to hear it.
    """
    with contextlib.suppress(ProcessLookupError):  # it has ended this very moment
        settled = os.getpgid(pid) == pid  # else its group is still that of whoever started it
        (os.killpg if settled else os.kill)(pid, signal.SIGINT)


@contextlib.contextmanager
def _into(path: Path) -> Iterator[None]:
    """Send all output of this process, and its log, into a file."""
    make_folder(path.parent)
    root = logging.getLogger()
    level = root.level
    with path.open("a", encoding="utf-8", errors="replace") as file:
        handler = logging.StreamHandler(file)
        handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s"))
        sys.stdout.flush()
        sys.stderr.flush()
        former = [os.dup(number) for number in (1, 2)]
        for number in (1, 2):
            os.dup2(file.fileno(), number)
        root.addHandler(handler)
        root.setLevel(logging.INFO)
        try:
            yield
        finally:
            root.removeHandler(handler)
            root.setLevel(level)
            for number, old in zip((1, 2), former, strict=True):
                os.dup2(old, number)
                os.close(old)
