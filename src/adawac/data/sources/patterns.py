"""Files by glob pattern, and cases named after what the wildcards stand for."""

import re
from collections.abc import Sequence
from pathlib import Path

from adawac.data.sources.searching import find
from adawac.errors import ConfigError, DataError

__all__ = ["glob_cases", "match_patterns"]

# What a wildcard may stand for, as a group of a regular expression; `**/` may be any number of folders. The ending is
# no part of a name: scan.nii* is scan.nii and scan.nii.gz.
_WILDCARDS = {"**/": "(?:(.*)/)?", "*": "([^/]*)", "?": "([^/])", ".nii*": r"\.nii(?:\.gz)?"}
_PARTS = re.compile(r"(\.nii\*$|\*\*/|\*|\?)")


def glob_cases(root: Path, pattern: str) -> dict[str, Path]:
    """Return the files that match, by what the wildcards stand for (joined by _, without spaces around it)."""
    if "*" not in pattern.removesuffix(".nii*"):
        raise ConfigError(
            f"Expected a pattern with at least one *, but got {pattern!r}. Mark where the case's name stands."
        )
    if Path(pattern).is_absolute() or ".." in Path(pattern).parts:
        raise ConfigError(f"Expected a pattern of files below {root}, but got {pattern!r}. Leave the folder out of it.")
    if Path(pattern).name == "**":
        pattern += "/*"
    expression = re.compile("".join(_WILDCARDS.get(part) or re.escape(part) for part in _PARTS.split(pattern)))
    # Brackets stand for themselves: they are common in names, and a set of characters is hardly ever meant.
    found: dict[str, Path] = {}
    for path in find(root, pattern.replace("[", "[[]")):
        match = expression.fullmatch(path.relative_to(root).as_posix())
        if match is None or path.is_dir():
            continue
        case = "_".join(part.replace("/", "_") for part in match.groups() if part is not None)
        case = case.removesuffix(".gz").removesuffix(".nii").strip()
        other = found.setdefault(case, path)
        if other is not path:
            raise DataError(
                f"Expected case ids that differ, but {other} and {path} are both {case!r}. Use a finer pattern."
            )
    return found


def match_patterns(
    root: Path, images: Sequence[str], labels: str
) -> list[tuple[str, tuple[Path, ...], tuple[Path, ...]]]:
    """Pair files by what the wildcards stand for: case, image files, label files (none where nothing matches)."""
    by_channel = [glob_cases(root, pattern) for pattern in images]
    label_files = glob_cases(root, labels)
    # A label map may match the images' pattern too, as scan_gt.nii.gz matches *.nii.gz.
    taken = set(label_files.values())
    cases = [case for case, path in by_channel[0].items() if path not in taken]
    if not cases:
        raise DataError(f"Expected images that match {images[0]!r} in {root}, but got none. Correct the pattern.")
    pairs: list[tuple[str, tuple[Path, ...], tuple[Path, ...]]] = []
    for case in cases:
        missing = [pattern for pattern, found in zip(images, by_channel, strict=True) if case not in found]
        if missing:
            raise DataError(f"Expected every channel of case {case}, but nothing matches {missing[0]!r}. Add the file.")
        label = (label_files[case],) if case in label_files else ()
        pairs.append((case, tuple(found[case] for found in by_channel), label))
    return pairs
