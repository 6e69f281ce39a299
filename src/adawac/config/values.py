"""Values and types: what a field's annotation accepts, what it makes of it, and how to say so."""

import math
from collections.abc import Callable, Iterator, Mapping
from numbers import Integral, Real
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, Literal, Union, get_args, get_origin

Problems = list[tuple[str, str]]
"""Dotted path of a setting, and what is wrong with it."""

_NAMES = {
    bool: "true or false",
    int: "a whole number",
    float: "a number",
    str: "text",
    Path: "a path",
    NoneType: "null",
}


_MOST_SHOWN = 200  # characters
_SIZE = (int, int)  # height and width


class _RefusedError(ValueError):
    """A value that its type does not accept."""


def convert(kind: Any, value: Any, path: str, problems: Problems) -> Any:
    """Return `value` as the annotation `kind` has it; where that cannot be, add to `problems`."""
    try:
        return _convert(kind, value)
    except _RefusedError:
        hint = " Put it in quotes." if kind is str and not isinstance(value, Mapping | list) else ""
        problems.append(
            (path, f"expected {describe(kind)}, but got {shortened(value)} ({type(value).__name__}).{hint}")
        )
        return value


def shortened(value: Any) -> str:
    """Return a value as a message shows it."""
    text = repr(value)
    return text if len(text) <= _MOST_SHOWN else f"{text[:_MOST_SHOWN]}…"


def describe(kind: Any, limits: str = "") -> str:
    """Say in words what an annotation accepts; `limits` are those of its numbers."""
    origin, arguments = get_origin(kind), get_args(kind)
    if origin is Literal:
        return "one of " + ", ".join(str(choice) for choice in arguments) if len(arguments) > 1 else str(arguments[0])
    if origin in (Union, UnionType):
        return " or ".join(describe(argument, limits) for argument in arguments)
    if origin is tuple:
        count = "" if arguments[-1] is Ellipsis else f" of {len(arguments)}"
        kinds = dict.fromkeys(describe(argument, limits) for argument in arguments if argument is not Ellipsis)
        alone = f"{describe(int, limits)} for both, or " if arguments == _SIZE else ""
        return f"{alone}a list{count}, each {' or '.join(kinds)}"
    if origin is dict or kind is dict:
        return "options (key: value)"
    name = _NAMES.get(kind, getattr(kind, "__name__", str(kind)))
    return f"{name} {limits}" if limits and kind in (int, float) else name


def plain(value: Any) -> Any:
    """Return a field's value as YAML knows it; a path in the user's home begins with ~, so that it names nobody."""
    if isinstance(value, Path):
        return _from_home(value)
    if isinstance(value, tuple | list):
        return [plain(item) for item in value]
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if getattr(value, "ndim", None) == 0:  # a scalar of NumPy or torch
        return value.item()
    return value


def flatten(settings: Mapping[str, Any], above: str = "") -> Iterator[tuple[str, Any]]:
    """Yield every value by its dotted path; an empty mapping is one."""
    for name, value in settings.items():
        if isinstance(value, Mapping) and value:
            yield from flatten(value, f"{above}{name}.")
        else:
            yield f"{above}{name}", value


def _convert(kind: Any, value: Any) -> Any:
    origin, arguments = get_origin(kind), get_args(kind)
    if origin is Literal:
        return _literal(arguments, value)
    if origin in (Union, UnionType):
        return _union(arguments, value)
    if origin is tuple:
        return _tuple(arguments, value)
    if origin is dict or kind is dict:
        return _options(value)
    try:
        return _SCALARS[kind](value)
    except KeyError:
        raise TypeError(f"a setting cannot be of type {kind}") from None


def _literal(allowed: tuple[Any, ...], value: Any) -> Any:
    for choice in allowed:
        if type(choice) is type(value) and choice == value:  # True is not 1
            return choice
    raise _RefusedError


def _union(kinds: tuple[Any, ...], value: Any) -> Any:
    own_type_first = sorted(kinds, key=lambda kind: kind is not type(value))  # "7" stays text in str | int
    for kind in own_type_first:
        try:
            return _convert(kind, value)
        except _RefusedError:
            continue
    raise _RefusedError


def _tuple(kinds: tuple[Any, ...], value: Any) -> tuple[Any, ...]:
    if kinds == _SIZE and not isinstance(value, tuple | list):
        value = (value, value)  # a square
    if not isinstance(value, tuple | list):
        raise _RefusedError
    if kinds[-1] is Ellipsis:
        return tuple(_convert(kinds[0], item) for item in value)
    if len(kinds) != len(value):
        raise _RefusedError
    return tuple(_convert(kind, item) for kind, item in zip(kinds, value, strict=True))


def _options(value: Any) -> dict[str, Any]:
    if not isinstance(value, Mapping) or not all(isinstance(key, str) for key in value):
        raise _RefusedError
    return {key: _anything(item) for key, item in value.items()}


def _anything(value: Any) -> Any:
    """Accept what YAML can hold, so that options of any method or model can be saved and come back equal."""
    if isinstance(value, Mapping):
        return _options(value)
    if isinstance(value, tuple | list):
        return [_anything(item) for item in value]
    if isinstance(value, float) and math.isnan(value):
        raise _RefusedError
    if value is None or type(value) in (bool, int, float, str):
        return value
    raise _RefusedError


def _instance(kind: type) -> Callable[[Any], Any]:
    def check(value: Any) -> Any:
        if not isinstance(value, kind):
            raise _RefusedError
        return value

    return check


def _int(value: Any) -> int:
    if type(value) is not bool and isinstance(value, Integral):
        return int(value)
    number = _float(value)  # 1e3, and what a shell gives as text
    if not number.is_integer():
        raise _RefusedError
    return int(number)


def _float(value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, Real | str):
        raise _RefusedError
    try:
        number = float(value)
    except (ValueError, OverflowError):
        raise _RefusedError from None
    if not math.isfinite(number):
        raise _RefusedError
    return number


def _path(value: Any) -> Path:
    if not isinstance(value, str | Path) or not str(value) or "\0" in str(value):
        raise _RefusedError
    return Path(value).expanduser() if Path(value).parts[:1] == ("~",) else Path(value)


def _from_home(path: Path) -> str:
    try:
        return str("~" / path.relative_to(Path.home()))
    except (ValueError, RuntimeError):  # elsewhere, or a user without a home
        return str(path)


_SCALARS: dict[Any, Any] = {
    bool: _instance(bool),
    int: _int,
    float: _float,
    str: _instance(str),
    Path: _path,
    NoneType: _instance(NoneType),
    Any: _anything,
}
