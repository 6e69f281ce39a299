"""YAML as people expect it: `1e-4` is a number, a duplicate key is an error. Imported where it is needed."""

import math
import re
from collections.abc import Hashable
from typing import Any

import yaml

_MOST_VALUES = 100_000
_EXPONENT = re.compile(r"^[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)[eE][-+]?[0-9]+$")


class _Loader(yaml.SafeLoader):
    """A safe loader that reads 1e-4 as YAML 1.2 does and refuses a duplicate key."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, Any]:
        seen = set()
        for key, _ in node.value:
            if not isinstance(key, yaml.ScalarNode):
                raise yaml.constructor.ConstructorError(None, None, "a key is a list or a mapping", key.start_mark)
            if key.value in seen and key.tag != "tag:yaml.org,2002:merge":
                raise yaml.constructor.ConstructorError(
                    None, None, f"the key {key.value!r} stands twice", key.start_mark
                )
            seen.add(key.value)
        return super().construct_mapping(node, deep)


class _Dumper(yaml.SafeDumper):
    """A safe dumper that quotes what `_Loader` would take for a number, writes text on one line and no aliases."""

    def ignore_aliases(self, data: Any) -> bool:
        return True


for _kind in (_Loader, _Dumper):
    _kind.add_implicit_resolver("tag:yaml.org,2002:float", _EXPONENT, list("-+.0123456789"))
_Dumper.add_representer(
    str,
    lambda dumper, text: dumper.represent_scalar("tag:yaml.org,2002:str", text, None if text.isprintable() else '"'),
)


def parse(text: str | bytes) -> Any:
    """Return the plain data of a YAML text.

    Raises:
        ValueError: With line and column, where the text is not YAML.
    """
    try:
        return _construct(_Loader(text))  # a SafeLoader: it builds plain data and nothing else
    except RecursionError as error:
        raise ValueError("it is nested too deeply") from error
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        where = f" (line {mark.line + 1}, column {mark.column + 1})" if mark else ""
        raise ValueError(f"{error.problem or error.context}{where}") from error
    except yaml.reader.ReaderError as error:
        raise ValueError(f"it is not text (at character {error.position + 1})") from error
    except Exception as error:  # PyYAML's constructors fail in many ways
        raise ValueError(" ".join(str(error).split()) or type(error).__name__) from error


def _construct(loader: _Loader) -> Any:
    """Return the data of a text, unless aliases repeat so much in it that a few lines would fill the memory."""
    try:
        node = loader.get_single_node()
        if _size(node, {}) > _MOST_VALUES:
            raise yaml.YAMLError(f"aliases make more than {_MOST_VALUES} values of it")
        return None if node is None else loader.construct_document(node)
    finally:
        loader.dispose()


def _size(node: yaml.Node | None, known: dict[int, float]) -> float:
    """Return of how many values a node consists, with what aliases repeat; infinity if it contains itself."""
    if not isinstance(node, yaml.CollectionNode):
        return 1
    if id(node) not in known:
        known[id(node)] = math.inf
        parts = [part for pair in node.value for part in (pair if isinstance(pair, tuple) else (pair,))]
        known[id(node)] = 1 + sum(_size(part, known) for part in parts)
    return known[id(node)]


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
