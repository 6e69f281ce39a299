"""Names from anywhere are printed as they are: rich would read `:one:` as an emoji and `[b]` as bold."""

import re
from pathlib import Path
from types import SimpleNamespace

import pytest

from adawac.cli.display import Display
from adawac.cli.shell import as_typed
from tests.places import REPOSITORY


def test_a_network_of_ones_own_keeps_its_name(capsys):
    method, model = SimpleNamespace(name="adawac", preset="paper"), SimpleNamespace(name="nets:one")
    display = Display()
    display.start(
        SimpleNamespace(epochs=1, method=method, model=model),
        SimpleNamespace(samples=None, folder=Path("[b]:x:")),
        steps=2,
    )
    display.close()
    assert re.search(r"with nets:one: 0 samples.*into \[b\]:x:", capsys.readouterr().out)


@pytest.mark.parametrize("path", sorted((REPOSITORY / "src/adawac/cli").glob("*.py")), ids=lambda path: path.stem)
def test_commands_have_no_console_of_their_own(path):
    assert len(re.findall(r"\bConsole\(", path.read_text())) == (path.stem == "shell")


@pytest.mark.parametrize(
    ("command", "message", "typed"),
    [
        ("export", "Give `overwrite=True`, or another `out`.", "Give --overwrite, or another --out."),
        (
            "evaluate",
            "Lower `batch_size`; `part`: test; `spacing='voxel'`",
            "Lower --batch-size; --split-part: test; --spacing voxel",
        ),
        ("figure", "`others` `adawac evaluate RUN` `unknown`", "--with `adawac evaluate RUN` `unknown`"),
        ("crossval", "Change `folds`, or `test='keep'`.", "Change --folds, or --test keep."),
        ("nothing", "Give `out`.", "Give `out`."),
    ],
)
def test_arguments_of_functions_are_options_to_whoever_typed_a_command(command, message, typed):
    assert as_typed(message, command) == typed
