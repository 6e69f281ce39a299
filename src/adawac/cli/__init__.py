"""The command line: thin functions that parse, call and print, one module for each group of commands."""

from adawac.cli.main import app, run

# Importing a module registers its commands.
from adawac.cli import data, demo, evaluation, figures, paper, prediction, reports, reproduction, training, viewing  # isort: skip

__all__ = [
    "app",
    "data",
    "demo",
    "evaluation",
    "figures",
    "paper",
    "prediction",
    "reports",
    "reproduction",
    "run",
    "training",
    "viewing",
]
