"""The command line: thin functions that parse, call and print, one module for each group of commands."""

from adawac.cli.shell import app, run

# Importing a module registers its commands, in the order in which `--help` lists them.
from adawac.cli import data_commands, train_commands, result_commands, predict_commands, paper_commands  # isort: skip

__all__ = ["app", "data_commands", "paper_commands", "predict_commands", "result_commands", "run", "train_commands"]
