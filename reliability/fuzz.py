"""Hostile input: every reader is given files that are nearly valid, and must read them or say what is wrong.

    python -m reliability.fuzz FOLDER [--inputs 100000] [--only nifti dicom] [--seed 0]

An input is one valid file that was changed (`reliability.mutations`); atheris (libFuzzer) keeps those that reach new
code and goes on from there. It is an extra, `pip install atheris`: without it, every input begins from a valid file.
An input fails its reader if it raises anything but adawac's own errors, starts a process, unpickles an object, opens a
connection or writes outside of its folder, needs more than a GiB or more than 20 seconds of a processor, or ends the
process. Failing inputs are kept in FOLDER/failures. Writes reliability/results/fuzz.json, which
`python -m reliability.render` puts into docs/reliability.md; readers that are not tried again keep their numbers.
"""

import argparse
import contextlib
import json
import logging
import os
import resource
import shutil
import signal
import subprocess
import sys
import traceback
import warnings
from collections import Counter
from importlib.util import find_spec
from pathlib import Path
from random import Random
from typing import Any

from adawac.errors import AdawacError
from benchmarks.result_files import commit
from reliability.mutations import MOST, mutate
from reliability.readers import READERS, Reader
from reliability.trials import RESULTS

MEMORY = 1 << 30
"""Bytes of address space that reading an input may take."""
PATIENCE = 20
"""Seconds of a processor after which an input counts as hanging; without work, it does after ten times as long."""
PER_PROCESS = 20_000
"""Inputs after which a new process begins."""
INSTRUMENTED = ["adawac", "nibabel", "pydicom", "yaml"]
"""The packages in which new code counts."""
_STARTS = ("os.system", "os.exec", "os.posix_spawn", "os.fork", "subprocess.Popen", "pickle.find_class")
_STARTS += ("socket.connect", "socket.getaddrinfo", "socket.gethostbyname", "socket.send")
_CHANGES = ("os.remove", "os.rename", "os.mkdir", "os.rmdir", "os.link", "os.symlink", "os.truncate", "os.chmod")


class Guard:
    """Notes what a reader must not do, as Python reports it: processes, pickles, connections, files elsewhere."""

    def __init__(self, folder: Path):
        self.folder = str(folder)
        self.watching = False
        self.offences: list[str] = []
        sys.addaudithook(self._look)

    def _look(self, event: str, arguments: tuple[Any, ...]) -> None:
        if not self.watching:
            return
        if event == "open":
            path, _, flags = arguments
            writes = isinstance(flags, int) and flags & (os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC)
            if writes and not isinstance(path, int) and not self._inside(path):
                self.offences.append(f"writes {os.fsdecode(path)}")
        elif event.startswith(_STARTS) or (event.startswith(_CHANGES) and not self._inside(arguments[0])):
            self.offences.append(f"{event} {arguments!r:.80}")

    def _inside(self, path: Any) -> bool:
        return os.path.realpath(os.fsdecode(path)).startswith((self.folder, os.devnull))


class Trial:
    """One reader with its valid files in a folder, one of which is changed at a time."""

    def __init__(self, reader: Reader, folder: Path):
        self.reader, self.folder = reader, folder
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        reader.write(folder)
        paths = (path for path in folder.rglob("*") if path.is_file() and not path.name.startswith("."))
        self.paths = sorted(path for path in paths if path.stat().st_size)  # of the others the names count
        self.valid = {path: path.read_bytes() for path in self.paths}
        self._changed = self.paths[0]
        for path in self.paths:  # what is imported late is imported now
            with contextlib.suppress(AdawacError):
                reader.read(folder, path)

    def change(self, random: Random) -> tuple[Path, bytes]:
        """Return a file of those that are valid, and a changed content."""
        path = random.choice(self.paths)
        return path, mutate(random, path.name, self.valid[path])

    def read(self, path: Path, content: bytes) -> str:
        """Read with one file changed; return how that ended: "read", or the name of one of our errors."""
        if self._changed != path:
            self._changed.write_bytes(self.valid[self._changed])
        self._changed = path
        path.write_bytes(content)
        try:
            self.reader.read(self.folder, path)
        except AdawacError as error:
            return next(kind.__name__ for kind in type(error).__mro__ if not kind.__name__.startswith("_"))
        return "read"


# -- one process -------------------------------------------------------------------------------------------------------


class Worker:
    """Tries inputs of one reader, and notes how each ended."""

    def __init__(self, name: str, folder: Path, inputs: int):
        self.folder, self.inputs = folder, inputs
        self.trial = Trial(READERS[name], folder / "files")
        self.guard = Guard(folder / "files")
        self.ends: Counter[str] = Counter()
        self.failures: Counter[str] = Counter()
        used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (used + MEMORY, used + MEMORY))

    def run(self, seed: int) -> None:
        """Try inputs that each begin from a valid file."""
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        for number in range(self.inputs):
            signal.alarm(10 * PATIENCE)
            self.try_input(*self.trial.change(Random(f"{seed} {number}")))

    def run_guided(self, seed: int, atheris: Any) -> None:
        """Let libFuzzer choose what the inputs begin from; the first byte of an input says which file it is."""
        corpus = self.folder / "corpus"
        corpus.mkdir(exist_ok=True)
        for number, path in enumerate(self.trial.paths):
            (corpus / f"valid-{number}").write_bytes(bytes([number]) + self.trial.valid[path])

        def change(data: bytes, most: int, seed: int) -> bytes:
            random, paths = Random(seed), self.trial.paths
            number, content = data[0] % len(paths) if data else 0, data[1:]
            if (kind := random.random()) < 0.3:
                return bytes([number]) + atheris.Mutate(content or b"\0", most - 1)
            if kind < 0.7:  # files that have changed often are soon refused at their first byte
                number = random.randrange(len(paths))
                content = self.trial.valid[paths[number]]
            return (bytes([number]) + mutate(random, paths[number].name, content))[:most]

        def try_input(data: bytes) -> None:
            path = self.trial.paths[data[0] % len(self.trial.paths) if data else 0]
            self.try_input(path, data[1:])

        options = [f"-runs={self.inputs}", f"-seed={seed + 1}", f"-timeout={10 * PATIENCE}", f"-max_len={MOST}"]
        options += ["-rss_limit_mb=0", "-len_control=0", "-verbosity=0", f"-artifact_prefix={self.folder}/"]
        atheris.Setup([sys.argv[0], *options, str(corpus)], try_input, custom_mutator=change)
        atheris.Fuzz()

    def try_input(self, path: Path, content: bytes) -> None:
        """Read one input; keep the first of each kind that fails."""
        signal.setitimer(signal.ITIMER_PROF, PATIENCE)
        self.guard.watching = True
        why = ""
        try:
            end = self.trial.read(path, content)
        except Exception as error:
            end, why = _describe(error), traceback.format_exc()
            self.failures[end] += 1
        finally:
            self.guard.watching = False
        if self.guard.offences:
            end = self.guard.offences[0]
            self.failures[end] += 1
            self.guard.offences.clear()
        if self.failures[end] == 1:
            keep(self.folder, path, content, end, why)
        self.ends[end] += 1
        total = self.ends.total()
        if total % 100 == 0 or total == self.inputs:
            counts = {"ends": self.ends, "failures": self.failures}
            (self.folder / "counts.json").write_text(json.dumps(counts))
        if total == self.inputs:
            sys.stdout.flush()
            os._exit(0)  # libFuzzer would try its corpus once more


def _describe(error: Exception) -> str:
    """Return the kind of an error, and where it came from: the last line of ours."""
    frames = traceback.extract_tb(error.__traceback__)
    ours = [frame for frame in frames if "/adawac/" in frame.filename] or frames
    where = f"{Path(ours[-1].filename).name}:{ours[-1].lineno}"
    return f"{type(error).__name__} from {where}"


def keep(folder: Path, path: Path, content: bytes, end: str, why: str) -> None:
    """Keep an input that failed, in a folder named after how, and the traceback."""
    name = "".join(letter if letter.isalnum() else "-" for letter in end)[:80]
    kept = folder.parent / "failures" / folder.name / name / path.relative_to(folder / "files")
    kept.parent.mkdir(parents=True, exist_ok=True)
    kept.write_bytes(content)
    kept.with_name("traceback.txt").write_text(why, errors="backslashreplace")


def work(name: str, folder: Path, inputs: int, seed: int) -> None:
    """Try inputs in this process, which ends with them."""
    guided: Any = None
    if find_spec("atheris"):
        import atheris as guided

        with guided.instrument_imports(include=INSTRUMENTED, enable_loader_override=False):
            Trial(READERS[name], folder / "files")
    warnings.simplefilter("ignore")
    logging.disable(logging.CRITICAL)
    os.chdir(folder)
    worker = Worker(name, folder, inputs)
    if guided:
        worker.run_guided(seed, guided)
    worker.run(seed)


# -- all processes -----------------------------------------------------------------------------------------------------


def fuzz(name: str, folder: Path, inputs: int, seed: int) -> dict[str, Any]:
    """Try a reader, in a new process every few thousand inputs; one that ends early counts as a failure."""
    shutil.rmtree(folder / name, ignore_errors=True)
    (folder / name).mkdir(parents=True)
    ends: Counter[str] = Counter()
    failures: Counter[str] = Counter()
    while (tried := ends.total()) < inputs:
        count = min(PER_PROCESS, inputs - tried)
        counts = folder / name / "counts.json"
        counts.write_text(json.dumps({"ends": {}, "failures": {}}))
        line = [sys.executable, "-m", "reliability.fuzz", str(folder), "--inputs", str(count), "--worker", name]
        env = {**os.environ, "OMP_NUM_THREADS": "1", "TMPDIR": str(folder / name)}
        with (folder / name / "log.txt").open("w") as log:
            code = subprocess.run([*line, "--seed", str(seed + tried)], env=env, stdout=log, stderr=log).returncode
        written = json.loads(counts.read_text())
        ends.update(written["ends"])
        failures.update(written["failures"])
        if code:
            kind = "hangs" if code in (-signal.SIGPROF, -signal.SIGALRM, 70) else f"the process ends with {code}"
            ends[kind] += 1
            failures[kind] += 1
            shutil.copytree(folder / name / "files", folder / "failures" / name / f"{kind} {tried}", dirs_exist_ok=True)
            shutil.copy(folder / name / "log.txt", folder / "failures" / name / f"{kind} {tried}")
        print(f"{name}: {ends.total()} of {inputs}, {failures.total()} failed", flush=True)
    return {
        "title": READERS[name].title,
        "inputs": ends.total(),
        "ends": dict(sorted((end, count) for end, count in ends.items() if end not in failures)),
        "failures": dict(failures),
        "guided": find_spec("atheris") is not None,
        "commit": commit(),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--inputs", type=int, default=100_000)
    parser.add_argument("--only", nargs="*", choices=READERS, default=list(READERS))
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--worker", choices=READERS, help=argparse.SUPPRESS)
    options = parser.parse_args()
    folder = options.folder.resolve()
    if options.worker:
        work(options.worker, folder / options.worker, options.inputs, options.seed)
        return
    path = RESULTS / "fuzz.json"
    for name in options.only:
        row = fuzz(name, folder, max(1, int(options.inputs * READERS[name].share)), options.seed)
        results = json.loads(path.read_text()) if path.is_file() else {}
        path.write_text(json.dumps({**results, name: row}, indent=2) + "\n")


if __name__ == "__main__":
    main()
