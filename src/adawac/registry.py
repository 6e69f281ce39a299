"""Things that are looked up by name: methods, models, data sources."""

from collections.abc import Callable, Iterator, Mapping
from importlib.metadata import entry_points
from typing import Generic, TypeVar

from adawac.errors import AdawacError, check_known

T = TypeVar("T")


class Registry(Mapping[str, T], Generic[T]):
    """A read-only mapping from names to objects, which other packages extend through entry points.

    A package adds its own with an entry point in the group `adawac.<kind>s`, for example:

        [project.entry-points."adawac.methods"]
        my-method = "my_package:MyMethod"

    Entry points are listed when the registry is, and imported only when one of them is asked for.

    Examples:
        >>> shapes = Registry("shape", {"ball": "round"})
        >>> shapes.register("cube")("square")
        'square'
        >>> list(shapes), shapes["ball"]
        (['ball', 'cube'], 'round')
    """

    def __init__(self, kind: str, entries: Mapping[str, T] | None = None):
        self.kind = kind
        self._entries: dict[str, T] = dict(entries or {})

    def __repr__(self) -> str:
        return f"Registry({self.kind!r}: {', '.join(self)})"

    @property
    def group(self) -> str:
        """The entry points' group."""
        return f"adawac.{self.kind}s"

    def register(self, name: str) -> Callable[[T], T]:
        """Return a decorator that stores its argument under `name`."""

        def store(entry: T) -> T:
            if name in self._entries:
                raise AdawacError(
                    f"Expected a new {self.kind} name, but {name!r} is registered already. Choose another."
                )
            self._entries[name] = entry
            return entry

        return store

    def check(self, name: str) -> None:
        """Raise an `UnknownNameError` unless something has this name. Nothing is imported."""
        check_known(name, self, f"the name of a {self.kind}")

    def __getitem__(self, name: str) -> T:
        if name not in self._entries:
            self.check(name)
            points = list(entry_points(group=self.group, name=name))
            try:
                self._entries[name] = points[0].load()
            except (ImportError, AttributeError) as error:
                raise AdawacError(
                    f"Expected the {self.kind} {name!r} from {points[0].value!r}, but importing it failed: {error}. "
                    "Fix or uninstall the package that provides it."
                ) from error
        return self._entries[name]

    def __iter__(self) -> Iterator[str]:
        yield from self._entries
        yield from (point.name for point in entry_points(group=self.group) if point.name not in self._entries)

    def __len__(self) -> int:
        return sum(1 for _ in self)

    def __contains__(self, name: object) -> bool:
        return any(name == known for known in self)
