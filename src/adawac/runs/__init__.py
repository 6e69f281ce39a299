"""The run folder: everything a training run leaves behind, and the only thing that figures and reports read.

`Run` reads it, `RunWriter` writes it, `example_run` makes a small one; `docs/reference/run-folder.md` lists its files.
"""

from adawac.runs.checkpoints import Checkpoint, load_checkpoint, read_state, save_checkpoint
from adawac.runs.example import example_run
from adawac.runs.history import FIELDS, History
from adawac.runs.layout import FORMAT_VERSION
from adawac.runs.reader import Run, list_runs
from adawac.runs.results import (
    Bin,
    Calibration,
    Gallery,
    Reliability,
    Score,
    Slice,
    write_calibration,
    write_gallery,
    write_scores,
)
from adawac.runs.writer import RunWriter

__all__ = [
    "FIELDS",
    "FORMAT_VERSION",
    "Bin",
    "Calibration",
    "Checkpoint",
    "Gallery",
    "History",
    "Reliability",
    "Run",
    "RunWriter",
    "Score",
    "Slice",
    "example_run",
    "list_runs",
    "load_checkpoint",
    "read_state",
    "save_checkpoint",
    "write_calibration",
    "write_gallery",
    "write_scores",
]
