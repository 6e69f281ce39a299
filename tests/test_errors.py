import pytest

from adawac import errors
from adawac.errors import AdawacError, near

KINDS = [kind for kind in vars(errors).values() if isinstance(kind, type) and issubclass(kind, AdawacError)]


@pytest.mark.parametrize("kind", KINDS)
def test_every_error_shows_its_message_alone(kind: type[AdawacError]) -> None:
    assert str(kind("Expected a, but got b. Do c.")) == "Expected a, but got b. Do c."


@pytest.mark.parametrize(
    ("kind", "builtin"),
    [
        (errors.ShapeError, ValueError),
        (errors.TapError, RuntimeError),
        (errors.ConfigError, ValueError),
        (errors.UnknownNameError, KeyError),
        (errors.DataError, ValueError),
        (errors.MissingFileError, FileNotFoundError),
        (errors.RunError, ValueError),
        (errors.MissingDependencyError, ImportError),
    ],
)
def test_every_error_is_also_the_builtin_a_caller_expects(kind: type[AdawacError], builtin: type[Exception]) -> None:
    with pytest.raises(builtin):
        raise kind("message")


def test_near_names_come_closest_first() -> None:
    assert near("momentun", ["lr", "momentum", "moment"]).startswith("'momentum'")


def test_near_falls_back_to_what_there_is() -> None:
    assert near("zzz", ["lr", "momentum"]) == "'lr', 'momentum'"
    assert near("zzz", []) == "none"
    assert near("zzz", [f"name{number}" for number in range(9)], count=2).count(",") == 1
