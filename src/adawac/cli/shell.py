"""The app itself: its groups of commands, what happens to errors and broken streams, and how results are printed."""

import io
import json
import logging
import os
import re
import sys
import traceback
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, TextIO

from cyclopts import App, CycloptsError, Group, MissingArgumentError, Parameter, UnusedCliTokensError

from adawac import __version__
from adawac.errors import AdawacError, ConfigError, MissingFileError

if TYPE_CHECKING:
    from rich.console import Console

_ARGUMENT = re.compile(r"`(\w+)(?:=([^`]+))?`")  # of a function, as messages name it
_QUOTES = "'\""
_MODES = {"stdin": "r", "stdout": "w", "stderr": "w"}


def open_streams() -> None:
    """Make all three streams usable: a closed one is nowhere, and a terminal that has no β shows ? in its place."""
    for number, (name, mode) in enumerate(_MODES.items()):
        if getattr(sys, name) is None:
            # The lowest free number is the closed stream's own; the next file that is opened would take it, and get
            # whatever a library prints.
            descriptor = os.open(os.devnull, os.O_RDWR)
            os.set_inheritable(descriptor, descriptor == number)
            setattr(sys, name, os.fdopen(descriptor, mode, encoding="utf-8"))
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")


def discard_unwritable(stream: TextIO) -> None:
    """Let what waits in a stream that cannot be written go nowhere: Python would complain about it at exit."""
    try:
        stream.flush()
    except OSError:
        descriptor = os.open(os.devnull, os.O_WRONLY)
        os.dup2(descriptor, stream.fileno())
        os.close(descriptor)


START, DATA, TRAIN, EVALUATE, SEE, PAPER, OPTIONS = (
    Group.create_ordered(name)
    for name in ("Start here", "Data", "Training", "Evaluation", "Seeing", "The paper", "Options")
)

AsJson = Annotated[bool, Parameter(name="--json", help="Print the numbers as JSON and nothing else.")]
AddressOption = Annotated[
    str | None, Parameter(help="The Ray cluster: auto, HOST:PORT, …; by default one on this machine.")
]
ShardOption = Annotated[
    str | None,
    Parameter(help="K/N: do only the Kth of N shares, as a job of a SLURM array does; the last one ends the work."),
]


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class Machines:
    """Where cases are worked on, for commands that take many of them."""

    engine: Annotated[Literal["local", "ray"], Parameter(help="Where the cases are worked on.")] = "local"
    address: AddressOption = None
    shard: ShardOption = None


HERE = Machines()


def _shown_default(value: object) -> str | None:
    """Return a default as help shows it: neither a switch that is off nor an empty list."""
    return None if value is None or value is False or value == () else str(value)


app = App(
    name="adawac",
    help="Segmentation networks that stay accurate when most slices carry few labels or none.",
    help_epilogue="Every command explains itself: adawac COMMAND --help. With --debug, errors come with a traceback.",
    help_format="plaintext",
    version=__version__,
    default_parameter=Parameter(negative=(), show_default=_shown_default),
    suppress_keyboard_interrupt=False,
)


def run(argv: Sequence[str]) -> int:
    """Run one command and return the exit code.

    That is what the command returns, by default 0; 2 after bad input or where files cannot be written, with one message
    on stderr; 1 after an error of our own; 130 after Ctrl-C; 141 where nobody reads what is printed.
    """
    open_streams()
    try:
        debug, words = _take_debug(argv)
        with _debug_log() if debug else nullcontext():
            return _run(words, debug)
    finally:
        discard_unwritable(sys.stdout)
        discard_unwritable(sys.stderr)


@contextmanager
def _debug_log() -> Iterator[None]:
    """Show all that is logged: what went wrong with a scan that others are done after, too, with its traceback."""
    log, handler = logging.getLogger("adawac"), logging.StreamHandler()
    level = log.level
    log.setLevel(logging.DEBUG)
    log.addHandler(handler)
    try:
        yield
    finally:
        log.removeHandler(handler)
        log.setLevel(level)


def _run(words: list[str], debug: bool) -> int:
    if os.environ.get("COLUMNS") == "0":  # as some editors and containers say it; rich would print nothing at all
        del os.environ["COLUMNS"]
    try:
        _check_working_folder()
        result = app(words, exit_on_error=False, print_error=False, result_action="return_value")
        sys.stdout.flush()
        return result if isinstance(result, int) else 0
    except KeyboardInterrupt:
        return _fail(130, "Interrupted.", debug)
    except BrokenPipeError:  # the reader of our output has gone, as `head` does
        return 141
    except SystemExit as leaving:
        if not isinstance(leaving.__context__, BrokenPipeError):  # on which rich exits
            raise
        return 141
    except CycloptsError as error:
        return _fail(2, f"{_about_words(error)} See {_help_for(words)}.", debug)
    except AdawacError as error:
        return _fail(2, as_typed(str(error), words[0] if words else ""), debug)
    except OSError as error:
        return _fail(2, _about_system(error), debug)
    except Exception as error:
        return _fail(1, f"Unexpected {type(error).__name__}: {error}\nRun it again with --debug to see where.", debug)


def _fail(code: int, message: str, debug: bool) -> int:
    """Say on stderr what went wrong, and return the exit code."""
    with suppress(OSError):  # where nobody can read it, the exit code says enough
        if debug:
            traceback.print_exc()
        sys.stderr.write(f"adawac: {printable(message)}\n")
        sys.stderr.flush()
    return code


def as_typed(message: str, command: str) -> str:
    """Return a message of a library function with the options of a command in place of the function's arguments.

    Messages name arguments as Python does, `overwrite=True`; whoever typed a command knows them as --overwrite.
    """
    if "`" not in message or command not in set(app):
        return message
    arguments = app[command].assemble_argument_collection()
    options = {argument.field_info.name: argument.names[0] for argument in arguments if argument.name.startswith("--")}

    def option(match: re.Match[str]) -> str:
        name, value = match.groups()
        if name not in options:
            return match[0]
        return options[name] if value in (None, "True") else f"{options[name]} {value.strip(_QUOTES)}"

    return _ARGUMENT.sub(option, message)


def _check_working_folder() -> None:
    """Check that there is one: whatever needs it later would fail in words of its own."""
    try:
        Path.cwd()
    except FileNotFoundError:
        raise MissingFileError(
            "Expected a working folder, but the one that you are in was removed. Change to another (cd) and try again."
        ) from None


def _about_system(error: OSError) -> str:
    """Return what to say about an error of the operating system that nobody closer to it has explained."""
    reason = error.strerror or str(error) or type(error).__name__
    if error.filename is None:
        return f"Expected to write files and standard output, but got: {reason}. Make room, or write elsewhere."
    return f"Expected to use {error.filename}, but got: {reason}. Make room, fix that, or give another path."


def print_json(value: Any) -> None:
    """Print plain data as JSON."""
    print_text(json.dumps(value, indent=2, allow_nan=False) + "\n")


def print_text(text: str) -> None:
    """Print a text as it is, without the colours and line breaks of a console."""
    sys.stdout.write(text)


def _take_debug(argv: Sequence[str]) -> tuple[bool, list[str]]:
    """Return whether --debug was given, anywhere before a bare --, and the other words."""
    end = list(argv).index("--") if "--" in argv else len(argv)
    return "--debug" in argv[:end], [word for word in argv[:end] if word != "--debug"] + list(argv[end:])


def _about_words(error: CycloptsError) -> str:
    """Return what to say about words that make no command."""
    if isinstance(error, UnusedCliTokensError) and error.unused_tokens:
        got = ", ".join(map(repr, error.unused_tokens))
        return f"Expected no further argument, but got {got}. An option may lack its name, or a pattern its quotes."
    if isinstance(error, MissingArgumentError) and error.argument is not None and error.command_chain:
        if error.argument.index is None:
            return f"Expected {error.argument.name} with a value, but got none."
        command = error.command_chain[0]  # which one was left out cannot be told, so all are named
        arguments = app[command].assemble_argument_collection()
        names = [argument.name for argument in arguments if argument.index is not None]
        usage = " ".join(("adawac", command, *names))
        return f"Expected {usage}, but got too few arguments."
    return str(error)


def _help_for(words: Sequence[str]) -> str:
    known = words and not words[0].startswith("-") and words[0] in set(app)
    return f"`adawac {words[0]} --help`" if known else "`adawac --help`"


def printable(text: str) -> str:
    """Escape what could steer a terminal: messages quote names from other people's files."""
    return "".join(letter if letter.isprintable() or letter == "\n" else ascii(letter)[1:-1] for letter in text)


def plain_console(**options: Any) -> "Console":
    """Return a console that prints text as it stands: rich would read `:one:` as an emoji and `[b]` as bold."""
    from rich.console import Console

    return Console(highlight=False, markup=False, emoji=False, **options)


def print_table(
    header: Sequence[str],
    rows: Iterable[Sequence[str]],
    *,
    title: str | None = None,
    notes: Iterable[str] = (),
    text_columns: Sequence[int] = (0,),
) -> None:
    """Print a table, which a narrow terminal breaks but never cuts; columns hold numbers except the `text_columns`."""
    from rich.table import Table
    from rich.text import Text

    console = plain_console()
    shown = title and Text(printable(title))
    table = Table(title=shown, title_justify="left", box=None, header_style="bold")
    for column, heading in enumerate(header):
        justify: Literal["left", "right"] = "left" if column in text_columns else "right"
        table.add_column(Text(printable(heading)), justify=justify, overflow="fold")
    for row in rows:
        table.add_row(*(Text(printable(cell)) for cell in row))
    console.print(table)
    for note in notes:
        console.print(printable(note), soft_wrap=True)


@app.command(name="--install-completion")
def install_completion(
    *,
    shell: Annotated[
        Literal["bash", "zsh", "fish", "powershell"] | None, Parameter(help="By default the one that you type in.")
    ] = None,
) -> None:
    """Have Tab complete commands and options: writes a script for your shell, and a line into its start-up file.

    Example: adawac --install-completion
    """
    from cyclopts.completion.detect import ShellDetectionError

    try:
        script = app.install_completion(shell=shell)
    except ShellDetectionError:
        raise ConfigError("Expected to know your shell, but cannot tell which it is. Give --shell.") from None
    print_text(f"Completion is in {printable(str(script))}. It works in every shell that you open from now on.\n")


@app.command(group=START)
def version(*, as_json: AsJson = False) -> None:
    """Print versions, hardware and libraries for a bug report: no path, no host and no user.

    Example: adawac version

    Example: adawac version --json
    """
    from adawac.runs.environment import describe_installation

    installation = describe_installation()
    if as_json:
        print_json(installation)
        return
    lines = {name: value for name, value in installation.items() if name != "packages"} | installation["packages"]
    width = max(map(len, lines))
    for name, value in lines.items():
        shown = ", ".join(value) if isinstance(value, list) else value
        print_text(printable(f"{name:<{width}}  {'none' if shown in (None, '') else shown}\n"))
