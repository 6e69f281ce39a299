"""Typed dataclasses ↔ plain data ↔ YAML: one validator for all settings."""

import dataclasses
import difflib
import operator
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import MISSING, Field, dataclass, fields, is_dataclass
from pathlib import Path
from typing import Any, NamedTuple, TypeVar, cast, get_origin, get_type_hints

from adawac.config.values import Problems, convert, describe, plain, shortened
from adawac.errors import ConfigError, MissingFileError
from adawac.files import write_text

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
    aliases: str = "",
) -> T:
    """Declare a field: its default, its help, and the limits of a number (or of each number of a tuple).

    `aliases` are the names that it has elsewhere, separated by spaces; they are not accepted, but lead to it.
    """
    limits = {"≥": least, "≤": most, ">": above, "<": below}
    metadata = {
        "help": help,
        "limits": {sign: limit for sign, limit in limits.items() if limit is not None},
        "aliases": aliases.split(),
    }
    if isinstance(default, dict):  # every object needs its own
        return cast("T", dataclasses.field(default_factory=lambda: dict(default), metadata=metadata))
    return dataclasses.field(default=default, metadata=metadata)


def section(kind: type[C], help: str) -> C:
    """Declare a field that is itself a `Config`, with its defaults."""
    return dataclasses.field(default_factory=kind, metadata={"help": help})


_UNKNOWN = "unknown key."


class _InvalidError(ConfigError):
    """A `ConfigError` that still knows its problems one by one, so that an outer object can name their full path."""

    def __init__(self, kind: type, problems: Problems, source: str | None = None):
        self.problems = problems
        where = f" in {source}" if source else ""
        what = "this problem" if len(problems) == 1 else f"these {len(problems)} problems"
        problems = [(path, _about_unknown(kind, path) if text == _UNKNOWN else text) for path, text in problems]
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
    return cast("C", built)


def to_dict(config: Config) -> dict[str, Any]:
    """Return the settings as plain data: mappings, lists, text and numbers."""
    values = ((field.name, getattr(config, field.name)) for field in fields(config))
    return {name: to_dict(value) if isinstance(value, Config) else plain(value) for name, value in values}


def load(cls: type[C], path: Path | str, *, libraries: bool = True) -> C:
    """Read a YAML file; what it leaves out keeps its default. `libraries` is that of `from_dict`."""
    from adawac.config.yaml_text import parse

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


def override(config: C, changes: Mapping[str, Any], source: str = "") -> C:
    """Return a copy with some fields changed, named by their dotted path: `{"optim.lr": 0.05}`.

    A mapping given for a section or for a field of options changes the keys that it names and leaves the others.
    `source` says in error messages where the changes come from.
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
    return from_dict(type(config), data, source=source or "the changes " + ", ".join(changes))


def assignments(texts: Iterable[str]) -> dict[str, Any]:
    """Parse `path=value` texts, as given on a command line, into changes for `override`."""
    from adawac.config.yaml_text import parse

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
    aliases: Sequence[str] = ()


def leaves(cls: type[Config], prefix: str = "") -> Iterator[Leaf]:
    """Yield every setting of a class, those of its sections included."""
    hints = get_type_hints(cls)
    for field in fields(cls):
        kind, path = hints[field.name], prefix + field.name
        if _is_config(kind):
            yield from leaves(kind, f"{path}.")
        else:
            default = field.default if field.default_factory is MISSING else field.default_factory()
            about = field.metadata.get("help", ""), field.metadata.get("aliases", ())
            yield Leaf(path, describe(kind, _limits(field)), plain(default), *about)


def _build(cls: type[C], data: Any, path: str, problems: Problems) -> C | None:
    """Build one object of a tree; what is wrong is added to `problems`, and then there is no object."""
    if isinstance(data, cls):
        return data
    known = {field.name: field for field in fields(cls)}
    if data is None:  # nothing but comments below its name
        data = {}
    if not isinstance(data, Mapping):
        advice = (
            f"Give it as {_join(path, 'name')}." if "name" in known else "Write each as key: value, on its own line."
        )
        problems.append((path, f"expected settings, but got {shortened(data)}. {advice}"))
        return None
    before = len(problems)
    problems.extend((_join(path, str(key)), _unknown(str(key), path, cls)) for key in data if key not in known)
    needed = [name for name, field in known.items() if field.default is MISSING and field.default_factory is MISSING]
    try:
        built = cls(**{**dict.fromkeys(needed, MISSING), **{name: data[name] for name in known if name in data}})
    except _InvalidError as error:
        problems.extend((_join(path, name), text) for name, text in error.problems)
        return None
    return built if len(problems) == before else None


def _option_values(cls: type[Config], options: dict[str, Any], path: str, problems: Problems) -> dict[str, Any]:
    """Return options as the fields of a class have them; what is left out, or null, has its default."""
    known = {field.name for field in fields(cls)}
    options = {name: value for name, value in options.items() if value is not None or name not in known}
    built = _build(cls, options, path, problems)
    return {} if built is None else {name: getattr(built, name) for name in options}


def _field_value(field: "Field[Any]", kind: Any, value: Any, path: str, problems: Problems) -> Any:
    if _is_config(kind):
        return _build(kind, value, path, problems)
    if value is MISSING:
        problems.append((path, f"is missing. Give {describe(kind)}."))
        return value
    before = len(problems)
    value = convert(kind, value, path, problems)
    if len(problems) == before:
        numbers = [v for v in (value if isinstance(value, tuple) else [value]) if isinstance(v, int | float)]
        limits = field.metadata.get("limits", {}).items()
        if not all(_SIGNS[sign](number, limit) for sign, limit in limits for number in numbers):
            problems.append((path, f"expected {describe(kind, _limits(field))}, but got {shortened(value)}."))
    return value


def _unknown(key: str, path: str, cls: type[Config]) -> str:
    """Say that a key is unknown, and which one beside it may have been meant."""
    hints = get_type_hints(cls)
    names = [(field.name, [field.name, *field.metadata.get("aliases", ())]) for field in fields(cls)]
    if close := _closest(key, names):
        return f"{_UNKNOWN} Near names: {', '.join(map(repr, close))}."
    mappings = [_join(path, name) for name, kind in hints.items() if get_origin(kind) is dict]
    return f"{_UNKNOWN} An option to be passed on goes into {mappings[0]}." if mappings else _UNKNOWN


def _about_unknown(kind: type[Config], path: str) -> str:
    """Say that a key is unknown, and which one elsewhere may have been meant, or which ones stand beside it."""
    *parents, key = path.split(".")
    settings = list(leaves(kind))
    if close := _closest(key, [(leaf.path, [leaf.path.rpartition(".")[2], *leaf.aliases]) for leaf in settings]):
        return f"{_UNKNOWN} Near names: {', '.join(map(repr, close))}."
    beside = "".join(f"{parent}." for parent in parents)
    names = dict.fromkeys(
        leaf.path.removeprefix(beside).partition(".")[0] for leaf in settings if leaf.path.startswith(beside)
    )
    return f"{_UNKNOWN} Expected one of {', '.join(names)}." if names else _UNKNOWN


def _closest(key: str, names: Sequence[tuple[str, Sequence[str]]]) -> list[str]:
    """Return what is called like `key`, or at most three whose names are much like it."""
    key = key.lower().replace("-", "_")
    if same := [name for name, words in names if key in words]:
        return same
    words = [word for _, words in names for word in words]
    close = difflib.get_close_matches(key, words, n=3, cutoff=0.7)
    return list(dict.fromkeys(name for word in close for name, words in names if word in words))


def _limits(field: "Field[Any]") -> str:
    return " and ".join(f"{sign} {limit:g}" for sign, limit in field.metadata.get("limits", {}).items())


def _is_config(kind: Any) -> bool:
    return isinstance(kind, type) and is_dataclass(kind) and issubclass(kind, Config)


def _join(path: str, name: str) -> str:
    return f"{path}.{name}" if path else name


def _lines(config: Config) -> Iterator[str]:
    from adawac.config.yaml_text import lines

    for field in fields(config):
        value = getattr(config, field.name)
        if field.metadata.get("help"):
            yield f"# {field.metadata['help']}"
        if isinstance(value, Config):
            yield f"{field.name}:"
            yield from (f"  {line}" for line in _lines(value))
        else:
            yield from lines(field.name, plain(value))
