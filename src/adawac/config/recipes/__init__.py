"""Configuration files by name: `adawac train STORE --config acdc-unet`. Those of the paper's experiments, and ours."""

from pathlib import Path

from adawac.errors import MissingFileError, near

_FOLDER = Path(__file__).parent


def recipe_names() -> list[str]:
    """Return the names of the recipes that come with the package."""
    return sorted(path.stem for path in _FOLDER.glob("*.yaml"))


def recipe_path(name: Path | str) -> Path:
    """Return the configuration file that `name` means: a file, or a recipe of the package."""
    path = Path(name)
    if path.is_file() or path.suffix in (".yaml", ".yml") or len(path.parts) > 1:
        return path
    known = recipe_names()
    if str(name) not in known:
        raise MissingFileError(
            f"Expected a configuration file or a recipe, but got {str(name)!r}. Near names: {near(str(name), known)}."
        )
    return _FOLDER / f"{name}.yaml"
