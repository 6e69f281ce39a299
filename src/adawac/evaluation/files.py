"""Tables as files: CSV and JSON for programs, Markdown and LaTeX for people."""

import csv
import io
import json
import os
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from adawac.errors import ConfigError
from adawac.evaluation.comparison import to_dict
from adawac.evaluation.records import Evaluation
from adawac.evaluation.tables import to_latex, to_markdown, to_tables
from adawac.files import explained, write_text

__all__ = ["FORMATS", "check_out", "write_tables"]

FORMATS = (".csv", ".json", ".md", ".tex")


def check_out(path: Path) -> None:
    """Raise a `ConfigError` if tables could not be written to `path`: better now than after the work."""
    if path.suffix not in FORMATS:
        raise ConfigError(
            f"Expected a file that ends in {', '.join(FORMATS)}, but got {path}. Name the format by the ending."
        )
    if path.is_dir():
        raise ConfigError(f"Expected a file for the tables, but {path} is a folder. Name a file in it.")
    folder = next(one for one in path.absolute().parents if one.exists())
    if not folder.is_dir() or not os.access(folder, os.W_OK):
        raise ConfigError(f"Expected to write {path}, but {folder} is no folder that can be written to. Name another.")


def write_tables(path: Path, evaluations: Sequence[Evaluation]) -> None:
    """Write the tables of evaluations in the format that the file's ending names.

    CSV has a row for each run, metric and class, with all digits; JSON has everything.
    """
    check_out(path)
    texts = {
        ".csv": lambda: _csv(evaluations),
        ".json": lambda: json.dumps(to_dict(evaluations), indent=2, allow_nan=False) + "\n",
        ".md": lambda: to_markdown(to_tables(evaluations)),
        ".tex": lambda: to_latex(to_tables(evaluations)),
    }
    with explained(ConfigError, str(path), "Name another file."):
        write_text(path, texts[path.suffix]())


def _csv(evaluations: Sequence[Evaluation]) -> str:
    rows = [
        {"run": str(one.run.folder), "evaluation": one.name, "unit": one.unit, **asdict(summary)}
        for one in evaluations
        for summaries in one.summaries.values()
        for summary in summaries
    ]
    file = io.StringIO()
    writer = csv.DictWriter(file, list(rows[0]))
    writer.writeheader()
    writer.writerows(rows)
    return file.getvalue()
