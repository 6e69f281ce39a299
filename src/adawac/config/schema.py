"""Typed dataclasses ↔ plain data ↔ YAML as people expect it: `1e-4` is a number, a duplicate key is an error."""

import dataclasses
import operator
import re
from collections.abc import Hashable, Iterable, Iterator, Mapping
from dataclasses import MISSING, Field, dataclass, fields, is_dataclass
from pathlib import Path
from typing import Any, NamedTuple, TypeVar, cast, get_origin, get_type_hints

import yaml

from adawac.config.values import Problems, convert, describe, plain
from adawac.errors import ConfigError, MissingFileError, near
from adawac.files import write_text

_EXPONENT = re.compile(r"^[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)[eE][-+]?[0-9]+$")


class _Loader(yaml.SafeLoader):
    """A safe loader that reads 1e-4 as YAML 1.2 does and refuses a duplicate key."""

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
        return yaml.load(text, Loader=_Loader)  # a SafeLoader: it builds plain data and nothing else
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        where = f" (line {mark.line + 1}, column {mark.column + 1})" if mark else ""
        raise ValueError(f"{error.problem or error.context}{where}") from error
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


T = TypeVar("T")
C = TypeVar("C", bound="Config")

_SIGNS = {"≥": operator.ge, "≤": operator.le, ">": operator.gt, "<": operator.lt}


def setting(
    default: T,
    help: str,
    *,
    least: float | None = None,
    most: float | None = None,
    above: float | None = None,
    below: float | None = None,
) -> T:
    """Declare a field: its default, its help, and the limits of a number (or of each number of a tuple)."""
    limits = {"≥": least, "≤": most, ">": above, "<": below}
    metadata = {"help": help, "limits": {sign: limit for sign, limit in limits.items() if limit is not None}}
    if isinstance(default, dict):  # every object needs its own
        return cast(T, dataclasses.field(default_factory=lambda: dict(default), metadata=metadata))
    return dataclasses.field(default=default, metadata=metadata)


def section(kind: type[C], help: str) -> C:
    """Declare a field that is itself a `Config`, with its defaults."""
    return dataclasses.field(default_factory=kind, metadata={"help": help})


class _InvalidError(ConfigError):
    """A `ConfigError` that still knows its problems one by one, so that an outer object can name their full path."""

    def __init__(self, kind: type, problems: Problems, source: str | None = None):
        self.problems = problems
        where = f" in {source}" if source else ""
        what = "this problem" if len(problems) == 1 else f"these {len(problems)} problems"
        listed = "\n".join(f"  {path}: {text}" if path else f"  {text}" for path, text in problems)
        super().__init__(f"Expected a valid {kind.__name__}{where}, but got {what}:\n{listed}")


@dataclass(frozen=True, kw_only=True)
class Config:
    """The base of all settings: converts and checks every field when an object is made."""

    def __post_init__(self) -> None:
        problems: Problems = []
        hints = get_type_hints(type(self))
        for field in fields(self):
            value = _field_value(field, hints[field.name], getattr(self, field.name), field.name, problems)
            object.__setattr__(self, field.name, value)
        for name, kind in {} if problems else self.option_types().items():
            object.__setattr__(self, name, _option_values(kind, getattr(self, name), name, problems))
        if not problems:
            problems.extend(self.conflicts())
        if problems:
            raise _InvalidError(type(self), problems)

    def conflicts(self) -> Iterator[tuple[str, str]]:
        """Yield (field, what is wrong and what to do) for settings that do not go together."""
        yield from ()

    def option_types(self) -> "Mapping[str, type[Config]]":
        """Return, for each field of options that are known, the class that has them as its fields."""
        return {}

    def library_conflicts(self) -> Iterator[tuple[str, str]]:
        """Yield (field, what is wrong) for options that only another library knows, which has to be imported."""
        yield from ()


def from_dict(cls: type[C], data: Mapping[str, Any], *, source: str | None = None, libraries: bool = True) -> C:
    """Build a `Config` from plain data.

    Args:
        cls: The class to build.
        data: Values by field name, sections as mappings; what is left out keeps its default.
        source: Where the data comes from, for the error message.
        libraries: Check the options of other libraries, too, which imports these.

    Raises:
        ConfigError: With every unknown key, wrong type, value outside its limits and impossible combination.
    """
    problems: Problems = []
    built = _build(cls, data, "", problems)
    if built is not None and libraries:
        problems.extend(built.library_conflicts())
    if problems:
        raise _InvalidError(cls, problems, source)
    return cast(C, built)


def to_dict(config: Config) -> dict[str, Any]:
    """Return the settings as plain data: mappings, lists, text and numbers."""
    values = ((field.name, getattr(config, field.name)) for field in fields(config))
    return {name: to_dict(value) if isinstance(value, Config) else plain(value) for name, value in values}


def load(cls: type[C], path: Path | str, *, libraries: bool = True) -> C:
    """Read a YAML file; what it leaves out keeps its default. `libraries` is that of `from_dict`."""
    path = Path(path)
    if not path.is_file():
        raise MissingFileError(f"Expected a configuration file, but {path} does not exist. Check the path.")
    try:
        data = parse(path.read_bytes())
        return from_dict(cls, {} if data is None else data, source=str(path), libraries=libraries)
    except ConfigError:
        raise
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"Expected YAML in {path}, but got: {error}. Fix the file.") from error


def dumps(config: Config) -> str:
    """Return the settings as YAML, with each field's help as a comment."""
    return "\n".join(_lines(config)) + "\n"


def save(config: Config, path: Path | str) -> None:
    """Write the settings to a YAML file; `load` gives an equal object back."""
    write_text(Path(path), dumps(config))


def override(config: C, changes: Mapping[str, Any]) -> C:
    """Return a copy with some fields changed, named by their dotted path: `{"optim.lr": 0.05}`.

    A mapping given for a section or for a field of options changes the keys that it names and leaves the others.
    """
    data = to_dict(config)
    for path, value in changes.items():
        *parents, last = path.split(".")
        parts = data
        for parent in parents:
            parts = parts.setdefault(parent, {})
            if not isinstance(parts, dict):
                raise ConfigError(
                    f"Expected the path of a setting, but got {path!r}: {parent!r} has no parts. Shorten it."
                )
        old = parts.get(last)
        parts[last] = {**old, **value} if isinstance(old, dict) and isinstance(value, Mapping) else value
    return from_dict(type(config), data, source="the changes " + ", ".join(changes))


def assignments(texts: Iterable[str]) -> dict[str, Any]:
    """Parse `path=value` texts, as given on a command line, into changes for `override`."""
    changes = {}
    for text in texts:
        path, equals, value = text.partition("=")
        if not equals or not path.strip():
            raise ConfigError(f"Expected path=value, but got {text!r}. Write it like optim.lr=0.05.")
        try:
            changes[path.strip()] = parse(value)
        except ValueError as error:
            raise ConfigError(f"Expected path=value, but got {text!r}: {error}. Quote the value.") from error
    return changes


class Leaf(NamedTuple):
    """One setting: where it stands, what it may be, what it is by default, and what it does."""

    path: str
    kind: str
    default: Any
    help: str


def leaves(cls: type[Config], prefix: str = "") -> Iterator[Leaf]:
    """Yield every setting of a class, those of its sections included."""
    hints = get_type_hints(cls)
    for field in fields(cls):
        kind, path = hints[field.name], prefix + field.name
        if _is_config(kind):
            yield from leaves(kind, f"{path}.")
        else:
            default = field.default if field.default_factory is MISSING else field.default_factory()
            yield Leaf(path, describe(kind, _limits(field)), plain(default), field.metadata.get("help", ""))


def _build(cls: type[C], data: Any, path: str, problems: Problems) -> C | None:
    """Build one object of a tree; what is wrong is added to `problems`, and then there is no object."""
    if isinstance(data, cls):
        return data
    if not isinstance(data, Mapping):
        problems.append((path, f"expected settings (key: value), but got {data!r}. Indent its settings below it."))
        return None
    before, hints = len(problems), get_type_hints(cls)
    known = {field.name: field for field in fields(cls)}
    problems.extend((_join(path, str(key)), _unknown(str(key), path, hints)) for key in data if key not in known)
    values: dict[str, Any] = {}
    for name, field in known.items():
        if name in data:
            values[name] = _field_value(field, hints[name], data[name], _join(path, name), problems)
        elif field.default is MISSING and field.default_factory is MISSING:
            problems.append((_join(path, name), f"is missing. Give {describe(hints[name])}."))
    if len(problems) > before:
        return None
    try:
        return cls(**values)
    except _InvalidError as error:
        problems.extend((_join(path, name), text) for name, text in error.problems)
        return None


def _option_values(cls: type[Config], options: dict[str, Any], path: str, problems: Problems) -> dict[str, Any]:
    """Return options as the fields of a class have them; those that are left out stay so."""
    built = _build(cls, options, path, problems)
    return {} if built is None else {name: getattr(built, name) for name in options}


def _field_value(field: "Field[Any]", kind: Any, value: Any, path: str, problems: Problems) -> Any:
    if _is_config(kind):
        return _build(kind, value, path, problems)
    before = len(problems)
    value = convert(kind, value, path, problems)
    if len(problems) == before:
        numbers = [v for v in (value if isinstance(value, tuple) else [value]) if isinstance(v, int | float)]
        limits = field.metadata.get("limits", {}).items()
        if not all(_SIGNS[sign](number, limit) for sign, limit in limits for number in numbers):
            problems.append((path, f"expected {describe(kind, _limits(field))}, but got {value!r}."))
    return value


def _unknown(key: str, path: str, hints: Mapping[str, Any]) -> str:
    """Say that a key is unknown, and where it may have been meant to stand."""
    text = f"unknown key. Near names: {near(key, hints)}."
    mappings = [_join(path, name) for name, kind in hints.items() if get_origin(kind) is dict]
    return text + (f" An option to be passed on goes into {mappings[0]}." if mappings else "")


def _limits(field: "Field[Any]") -> str:
    return " and ".join(f"{sign} {limit:g}" for sign, limit in field.metadata.get("limits", {}).items())


def _is_config(kind: Any) -> bool:
    return isinstance(kind, type) and is_dataclass(kind) and issubclass(kind, Config)


def _join(path: str, name: str) -> str:
    return f"{path}.{name}" if path else name


def _lines(config: Config) -> Iterator[str]:
    for field in fields(config):
        value = getattr(config, field.name)
        if field.metadata.get("help"):
            yield f"# {field.metadata['help']}"
        if isinstance(value, Config):
            yield f"{field.name}:"
            yield from (f"  {line}" for line in _lines(value))
        else:
            yield from lines(field.name, plain(value))
