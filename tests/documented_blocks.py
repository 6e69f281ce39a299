"""The fenced blocks of a page, and how they run: commands in this process, Python in one namespace for each page."""

import io
import logging
import os
import re
import shlex
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TextIO

from tests.places import REPOSITORY

_FENCE = re.compile(r"^( *)```(\w*)([^\n]*)\n(.*?)^\1```", re.MULTILINE | re.DOTALL)
_ASSIGNMENT = re.compile(r"(?:export )?(\w+)=")
_TITLE = re.compile(r'title="([^"]+)"')


@dataclass(frozen=True, kw_only=True)
class Block:
    """A fenced block: its language, the file that its title names, its text, and where it stands."""

    page: str
    line: int
    language: str
    title: str | None
    text: str

    @property
    def name(self) -> str:
        return f"{self.page}:{self.line}"


@dataclass(frozen=True, kw_only=True)
class Command:
    """A line of a shell block, with what the page says it prints and the exit code that it says; 0 if it says none."""

    line: str
    output: str = ""
    code: int = 0


def blocks_of(page: str) -> list[Block]:
    """Return the fenced blocks of a page of the repository in their order, without the page's indentation."""
    text = (REPOSITORY / page).read_text(encoding="utf-8")
    return [
        Block(
            page=page,
            line=text.count("\n", 0, match.start()) + 1,
            language=match[2],
            title=title[1] if (title := _TITLE.search(match[3])) else None,
            text=re.sub(f"^{match[1]}", "", match[4], flags=re.MULTILINE),
        )
        for match in _FENCE.finditer(text)
    ]


def commands_of(block: Block) -> list[Command]:
    """Return the commands of a block: each line of `sh`, each line after a $ of `console`."""
    text = block.text.replace("\\\n", "")
    if block.language == "sh":
        lines = (line.strip() for line in text.splitlines())
        return [Command(line=line) for line in lines if line and not (line[0] == "#" and line[:7] != "#SBATCH")]
    _, *parts = re.split(r"^\$ ", text, flags=re.MULTILINE)
    commands: list[Command] = []
    for line, _, output in (part.partition("\n") for part in parts):
        if line == "echo $?":
            commands[-1] = Command(line=commands[-1].line, output=commands[-1].output, code=int(output))
        else:
            commands.append(Command(line=line, output=output))
    return commands


def words_of(line: str) -> tuple[list[str], str | None]:
    """Return the words of a command, and the file that its output goes to."""
    words = [os.path.expandvars(word) for word in shlex.split(re.sub(r"\s# .*", "", line))]
    return (words[:-2], words[-1]) if words[-2:-1] == [">"] else (words, None)


def run_command(command: Command, setenv: Callable[[str, str], None]) -> str:
    """Run a command in the working folder and check its exit code; return what it printed.

    Args:
        command: The command; `adawac` and `python -c` run in this process, which has imported torch already.
        setenv: Sets a variable that the command assigns.
    """
    from adawac.cli import run

    words, file = words_of(command.line)
    out = io.StringIO()
    err = out if file is None else io.StringIO()
    with redirect_stdout(out), redirect_stderr(err), warnings_on(err):
        if words[0] == "adawac":
            code = run(words[1:])
        elif words[:2] == ["python", "-c"]:
            code = exec(compile(words[2], command.line, "exec"), {"__name__": "__main__"}) or 0
        elif assigned := _ASSIGNMENT.match(command.line):
            shell = f'{command.line}\nprintf %s "${assigned[1]}"'
            done = subprocess.run(["bash", "-c", shell], capture_output=True, text=True, timeout=60, check=False)
            setenv(assigned[1], done.stdout)
            code = done.returncode
        else:
            done = subprocess.run(["bash", "-c", command.line], capture_output=True, text=True, timeout=60, check=False)
            code = done.returncode
            print(done.stdout, done.stderr)
    assert code == command.code, f"{command.line}\n{out.getvalue()}{err.getvalue()}"
    if file is not None:
        Path(file).write_text(out.getvalue(), encoding="utf-8")
    return out.getvalue()


@contextmanager
def warnings_on(stream: TextIO) -> Iterator[None]:
    """Write our warnings to a stream, as Python does where no logging is set up; in a test it is."""
    handler = logging.StreamHandler(stream)
    handler.setLevel(logging.WARNING)
    logging.getLogger("adawac").addHandler(handler)
    try:
        yield
    finally:
        logging.getLogger("adawac").removeHandler(handler)


def run_python(block: Block, names: dict[str, Any], change: Callable[[str], str]) -> None:
    """Run a block of Python with the names of its page; their values are those of the block afterwards."""
    text = "\n" * block.line + change(block.text)  # so that a traceback has the page's line numbers
    exec(compile(text, block.page, "exec"), names)


def pieces(text: str) -> Iterator[str]:
    """Yield the parts of an output between its ellipses; any number is 0, any white space one space."""
    for part in text.split("…"):
        plain = " ".join(re.sub(r"[+−-]?\d+(\.\d+)?(e-\d+)?", "0", part).split())
        if plain:
            yield plain
