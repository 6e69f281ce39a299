"""YAML as people expect it: `1e-4` is a number, a key that stands twice is an error."""

from collections.abc import Hashable
from re import compile
from typing import Any

import yaml

__all__ = ["lines", "parse"]

_EXPONENT = compile(r"^[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)[eE][-+]?[0-9]+$")


class _Loader(yaml.SafeLoader):
    """A safe loader that reads 1e-4 as YAML 1.2 does and refuses a key that stands twice."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, Any]:
        seen = set()
        for key, _ in node.value:
            if key.value in seen and key.tag != "tag:yaml.org,2002:merge":
                raise yaml.constructor.ConstructorError(
                    None, None, f"the key {key.value!r} stands twice", key.start_mark
                )
            if isinstance(key, yaml.ScalarNode):
                seen.add(key.value)
        return super().construct_mapping(node, deep)


class _Dumper(yaml.SafeDumper):
    """A safe dumper that quotes what `_Loader` would take for a number, writes text on one line and no aliases."""

    def ignore_aliases(self, data: Any) -> bool:
        return True


def _represent_text(dumper: _Dumper, text: str) -> yaml.ScalarNode:
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style=None if text.isprintable() else '"')


for _kind in (_Loader, _Dumper):
    _kind.add_implicit_resolver("tag:yaml.org,2002:float", _EXPONENT, list("-+.0123456789"))
_Dumper.add_representer(str, _represent_text)


def parse(text: str | bytes) -> Any:
    """Return the plain data of a YAML text.

    Raises:
        ValueError: With the place, where the text is no YAML.
    """
    try:
        return yaml.load(text, Loader=_Loader)  # a SafeLoader: it builds plain data and nothing else
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        place = f" (line {mark.line + 1}, column {mark.column + 1})" if mark else ""
        raise ValueError(f"{error.problem or error.context}{place}") from error
    except yaml.YAMLError as error:
        raise ValueError(" ".join(str(error).split())) from error


def lines(name: str, value: Any) -> list[str]:
    """Return `name: value` as lines of YAML; a list stands on one line, options keep their order."""
    if isinstance(value, list):
        return [f"{name}: {_dump(value, flow=True)}"]
    return _dump({name: value}, flow=False).split("\n")


def _dump(data: Any, flow: bool) -> str:
    text: str = yaml.dump(
        data, Dumper=_Dumper, sort_keys=False, allow_unicode=True, default_flow_style=flow, width=float("inf")
    )
    return text.rstrip("\n")
