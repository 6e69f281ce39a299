"""The report as one self-contained HTML file, written once, or again and again while a run goes on."""

import base64
import hashlib
import json
import logging
import re
import time
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any

from adawac.errors import ConfigError, MissingFileError, RunError
from adawac.files import explained, write_text
from adawac.report.contents import Report, collect
from adawac.report.label_errors import LIST
from adawac.runs import Run

log = logging.getLogger(__name__)

_SCRIPTS = ("elements", "data", "charts", "slice", "heatmap", "atlas", "suspects", "scores", "sections", "main")
_DATA = re.compile(r'<script type="application/json" id="data">(.*?)</script>', re.DOTALL)
_COUNT = re.compile(r" \(\d+\)$")  # behind the name of a run that is shown twice
_UNSAFE = {ord("<"): "\\u003c", ord(">"): "\\u003e", ord("&"): "\\u0026"}


def write_report(
    runs: Sequence[Run | Path | str] | Run | Path | str,
    out: Path | str = "report.html",
    *,
    pictures: int = 100,
    refresh: float | None = None,
    overwrite: bool = False,
) -> Path:
    """Write a report of one or several runs, one HTML file that works offline.

    Args:
        runs: Run folders, complete or not; the others are compared with the first.
        out: The file; an earlier report of these runs, or of some of them, is replaced in one step.
        pictures: How many slices of the galleries to include at most.
        refresh: Make the page reload after so many seconds, for a run in progress.
        overwrite: Replace any other file, too.

    Returns:
        The file.

    Examples:
        >>> import adawac
        >>> adawac.write_report("runs/adawac", "report.html").name
        'report.html'
    """
    several = [runs] if isinstance(runs, Run | Path | str) else list(runs)
    listed = [run if isinstance(run, Run) else Run(run) for run in several]
    path = Path(out)
    if pictures < 0:
        raise ConfigError(f"Expected at least 0 pictures in the report, but got {pictures}. Raise the number.")
    _check_file(path, listed, overwrite)
    report = collect(listed, pictures=pictures)
    beside = LIST if (path.parent / LIST).is_file() and any((run.folder / LIST).is_file() for run in listed) else None
    text = render(Report({**report.data, "list": beside}, report.blobs), refresh=refresh)
    with explained(RunError, str(path), "Make room, or choose another path."):
        write_text(path, text)
    return path


def _check_file(path: Path, runs: Sequence[Run], overwrite: bool) -> None:
    """Refuse to replace a folder, and, unless asked to `overwrite`, what is not a report of these runs."""
    if path.is_dir():
        raise RunError(f"Expected a file for the report, but {path} is a folder. Give a name such as report.html.")
    if overwrite or not path.is_file():
        return
    shown = {(run.folder.resolve().name, run.info.get("created")) for run in runs}
    earlier = _runs_in(path)
    if not earlier or not earlier <= shown:
        what = f"is a report of {', '.join(sorted(name for name, _ in earlier))}" if earlier else "is no report"
        raise ConfigError(
            f"Expected a new file, or an earlier report of these runs, but {path} {what}. Replace it with "
            "`overwrite=True`, or name another file."
        )


def _runs_in(path: Path) -> set[tuple[str, Any]]:
    """Return the folder's name and the birth of each run that a report shows; nothing for another file."""
    match = _DATA.search(path.read_text(encoding="utf-8", errors="replace"))
    try:
        runs = json.loads(match[1])["runs"] if match else []
        return {(_COUNT.sub("", run["name"].rpartition("/")[2]), run["created"]) for run in runs}
    except (ValueError, LookupError, TypeError, AttributeError):
        return set()


def render(report: Report, *, refresh: float | None = None) -> str:
    """Return the HTML text of a report; the same report gives the same text."""
    data = {**report.data, "refresh": refresh, "blobs": len(report.blobs)}
    scripts = "\n".join(_asset(f"{name}.js") for name in _SCRIPTS)
    script = f'(() => {{\n"use strict";\n{scripts}}})();\n'
    theme, style = _asset("theme.js"), _asset("theme.css") + _asset("report.css")
    policy = (
        f"default-src 'none'; script-src {_source(theme)} {_source(script)}; style-src {_source(style)}; "
        "img-src data: blob:; base-uri 'none'; form-action 'none'"
    )
    again = f'<noscript><meta http-equiv="refresh" content="{refresh:g}"></noscript>' if refresh else ""
    parts = {
        "policy": policy,
        "again": again,
        "theme": theme,
        "style": style,
        "data": json.dumps(data, allow_nan=False, separators=(",", ":")).translate(_UNSAFE),
        "blobs": "\n".join(
            f'<script type="text/plain" id="blob-{number}">{text}</script>' for number, text in enumerate(report.blobs)
        ),
        "script": script,
    }
    # One pass: a name that reads like a marker stays what it is.
    return re.sub(r"<!--:(\w+):-->|\[\[(\w+)\]\]", lambda marker: parts[marker[1] or marker[2]], _asset("page.html"))


@cache
def _asset(name: str) -> str:
    return (files("adawac.report") / "assets" / name).read_text(encoding="utf-8")


def _source(text: str) -> str:
    """Return the hash that identifies a script or style in the page's policy."""
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode('ascii')}'"


def follow(
    folder: Path | str, *, every: float = 5.0, wait: bool = False, sleep: Callable[[float], None] = time.sleep
) -> Iterator[Run]:
    """Yield a run again every few seconds, until it has ended, well or not.

    A run whose process died counts as interrupted, and ends this too.

    Args:
        folder: The run folder.
        every: Seconds between two looks.
        wait: Wait for a folder that does not exist yet; otherwise that is an error.
        sleep: Waits so many seconds.
    """
    if every <= 0:
        raise RunError(
            f"Expected a positive number of seconds between two looks, but got {every:g}. Give for example 5."
        )
    while True:
        try:
            run = Run(folder)
        except MissingFileError:
            if not wait:
                raise
            sleep(every)
            continue
        wait = False  # from now on, a missing folder is an error
        status = run.status
        yield run
        if status != "running":
            return
        sleep(every)


def watch_page(run: Run, out: Path, *, every: float, overwrite: bool = False) -> None:
    """Write the report of a run; while the run goes on, the page reloads itself.

    If a file cannot be read because it is being written, the last page stays. One that is not of this run is replaced
    only if asked to `overwrite` it.
    """
    going = run.status == "running"
    _check_file(out, [run], overwrite)
    try:
        write_report(run, out, refresh=every if going else None, overwrite=True)
    except (RunError, OSError, ValueError) as error:
        if not going or not out.is_file():
            raise
        log.warning("The page is not up to date: %s", error)
