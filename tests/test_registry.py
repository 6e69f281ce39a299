import sys
from pathlib import Path

import pytest

from adawac.errors import AdawacError, UnknownNameError
from adawac.registry import Registry


@pytest.fixture
def tools() -> Registry[object]:
    registry: Registry[object] = Registry("tool")
    registry.register("hammer")("a hammer")
    return registry


@pytest.fixture
def plugin(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """Another package, as installed, with two entry points in the registry's group."""
    (tmp_path / "toolbox_plugin.py").write_text("SAW = 'a saw'\n")
    info = tmp_path / "toolbox_plugin-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: toolbox-plugin\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[adawac.tools]\nsaw = toolbox_plugin:SAW\nhammer = toolbox_plugin:SAW\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    return "toolbox_plugin"


def test_a_registered_object_is_found_by_its_name(tools: Registry[object]) -> None:
    assert tools["hammer"] == "a hammer"
    assert dict(tools) == {"hammer": "a hammer"}
    assert "hammer" in tools
    assert len(tools) == 1


def test_register_gives_the_object_back(tools: Registry[object]) -> None:
    @tools.register("function")
    def function() -> int:
        return 3

    assert function() == 3
    assert tools["function"] is function


def test_an_unknown_name_is_an_error_with_near_names(tools: Registry[object]) -> None:
    with pytest.raises(UnknownNameError, match=r"name of a tool, but got 'hamer'.*'hammer'"):
        tools["hamer"]
    assert "hamer" not in tools
    assert tools.get("hamer") is None


def test_a_name_is_taken_once(tools: Registry[object]) -> None:
    with pytest.raises(AdawacError, match="'hammer' is registered already"):
        tools.register("hammer")("another")
    assert tools["hammer"] == "a hammer"


@pytest.mark.usefixtures("plugin")
def test_entry_points_are_listed_without_being_imported(tools: Registry[object]) -> None:
    sys.modules.pop("toolbox_plugin", None)
    assert sorted(tools) == ["hammer", "saw"]
    assert "saw" in tools
    assert len(tools) == 2
    assert "toolbox_plugin" not in sys.modules
    assert tools["saw"] == "a saw"
    assert "toolbox_plugin" in sys.modules


@pytest.mark.usefixtures("plugin")
def test_our_own_names_come_before_those_of_others(tools: Registry[object]) -> None:
    assert tools["hammer"] == "a hammer"


@pytest.mark.usefixtures("plugin")
def test_a_broken_entry_point_is_named(tools: Registry[object], tmp_path: Path) -> None:
    info = tmp_path / "toolbox_plugin-1.0.dist-info" / "entry_points.txt"
    info.write_text("[adawac.tools]\nsaw = toolbox_plugin:CHAINSAW\naxe = no_such_module:AXE\n")
    for name, module in (("saw", "toolbox_plugin:CHAINSAW"), ("axe", "no_such_module:AXE")):
        with pytest.raises(AdawacError, match=f"tool '{name}' from '{module}', but importing it failed"):
            tools[name]
