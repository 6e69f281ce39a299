"""How long a new user waits: imports, `adawac --help`, and every command of docs/get-started.md in an empty home.

    python -m benchmarks.first_report

The page's own commands run in their order, in a folder and a home without anything in them. Left out are those for a
folder of one's own, and `adawac view`, which serves until Ctrl-C. Writes benchmarks/results/first-report.json; the page
is made by benchmarks/render.py.
"""

import os
import platform
import re
import shlex
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from benchmarks.result_files import RESULTS, write_result

PAGE = Path(__file__).parents[1] / "docs" / "get-started.md"
BLOCK = re.compile(r"^```(\w+)(?: title=\"([^\"]+)\")?\n(.*?)^```", re.MULTILINE | re.DOTALL)
LEFT_OUT = ("adawac diagnose my-scans", "adawac view")
ROUNDS = 5


def main():
    with tempfile.TemporaryDirectory() as folder:
        load = os.getloadavg()[0]
        home = Path(folder) / "home"
        home.mkdir()
        path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
        environment = {"HOME": str(home), "PATH": path}

        def seconds(*words: str) -> float:
            begun = time.perf_counter()
            subprocess.run(words, cwd=folder, env=environment, check=True, capture_output=True)
            return time.perf_counter() - begun

        starts = {
            "python -c 'import adawac'": [seconds(sys.executable, "-c", "import adawac") for _ in range(ROUNDS)],
            "python -c pass": [seconds(sys.executable, "-c", "pass") for _ in range(ROUNDS)],
            "adawac --help": [seconds("adawac", "--help") for _ in range(ROUNDS)],
        }
        commands = {}
        for language, title, text in BLOCK.findall(PAGE.read_text(encoding="utf-8")):
            if title:
                (Path(folder) / title).write_text(text, encoding="utf-8")
            for line in text.replace("\\\n", " ").splitlines() if language == "sh" else ():
                if not line.startswith(LEFT_OUT):
                    commands[line] = seconds(*shlex.split(line, comments=True))
                    print(f"{commands[line]:6.1f} s  {line}", flush=True)
    medians = {name: statistics.median(values) for name, values in starts.items()}
    result = {
        "starts": medians,
        "commands": commands,
        "load": load,
        "machine": f"{platform.machine()}, {os.cpu_count()} cores",
    }
    write_result(RESULTS / "first-report.json", result)


if __name__ == "__main__":
    main()
