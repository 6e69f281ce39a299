"""The command line: thin functions that parse, call and print, one module for each group of commands."""

from adawac.cli.main import app, run

# Importing a module registers its commands.
from adawac.cli import data, demo, evaluation, paper, training, viewing  # isort: skip

__all__ = ["app", "data", "demo", "evaluation", "paper", "run", "training", "viewing"]
