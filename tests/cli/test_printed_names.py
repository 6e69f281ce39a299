"""Names from anywhere are printed as they are: rich would read `:one:` as an emoji and `[b]` as bold."""

import re
from pathlib import Path
from types import SimpleNamespace

import pytest

from adawac.cli.display import Display
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
