"""Any folder of pictures: PNG, JPEG, BMP and TIFF, grey or colour, with masks of class indices or of colours."""

import logging
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations, starmap
from pathlib import Path
from typing import Any

import numpy as np

from adawac.data.cases import IGNORED, Array, Case, CaseRef, check_slices, name_file
from adawac.data.parallel import run_jobs
from adawac.data.preprocessing import PICTURES, Preprocessing, as_shares
from adawac.data.sources.file_search import (
    IMAGE_FOLDERS,
    LABEL_FOLDERS,
    Naming,
    by_name,
    files_below,
    is_closed,
    match_patterns,
    only_folder,
    without_role,
)
from adawac.data.sources.nifti import NAME_PATTERN, patient_of, read_groups
from adawac.data.sources.picture_files import PictureFile, is_picture, open_picture, picture_stem
from adawac.data.sources.scan_files import to_class_indices
from adawac.data.sources.source import (
    COLOUR,
    SOURCES,
    WAYS,
    Classes,
    ListedSource,
    Source,
    Unlabelled,
    as_classes,
    check_refs,
    checked_way,
    drop_unlabelled,
    read_labelled_slices,
    show_value,
)
from adawac.errors import AdawacError, ConfigError, DataError, LayoutError

log = logging.getLogger(__name__)

#: How pictures and masks are called.
NAMING = Naming(stem_of=picture_stem, wanted=is_picture)
_COLOURS, _GREY = ("red", "green", "blue"), ("grey",)
# More different values than this in masks are no classes.
_MOST_CLASSES = 32
# So many pixels are looked at a time.
_PIXELS = 1 << 22
# More values than these would take gigabytes as a whole.
_MOST_WHOLE = 1 << 28
# Colours that differ by at most so much in each channel are near.
_NEAR = 48
# Classes whose colours differ by no more are one.
_SAME = 16
_MOST_LEVELS = 65535
# What 1 and 8 bits reach to: few of these pictures leave most of it unused.
_FULL = (1, 255)
# Pictures whose largest value is below this share of their type's may have fewer bits than it.
_DARK = 0.1
# So many names must share their beginning, in so many groups, for a series.
_SERIES = 3
_NUMBER = re.compile(r"[\W_]*\d+$")
_LAYOUTS = (
    "folders called images and masks (or labels) whose files have the same names, files such as a.png with a_mask.png, "
    "or the patterns `images` and `labels`, such as '*/images/*' and '*/masks/*'"
)


@dataclass(frozen=True, kw_only=True)
class PictureSource(ListedSource):
    """Pictures with their masks; a page is a slice.

    Attributes:
        with_alpha: How many pictures have transparency, which is not read.
    """

    with_alpha: int = 0

    @property
    def coloured(self) -> bool:
        """Whether classes are named by colours."""
        return any(value >= COLOUR for values in self.classes.values() for value in values)

    def lacking_labels(self) -> list[CaseRef]:
        """Return the cases without a mask, unless these are empty."""
        lacking = [ref for ref in self.refs if not ref.labels]
        return [] if self.unlabelled == "empty" or self.keeps(lacking) else lacking

    def options(self) -> dict[str, Any]:
        """Return what decides the voxels of a case besides its files."""
        empty = {"unlabelled": "empty"} if self.unlabelled == "empty" else {}
        return {name: value for name, value in super().options().items() if name != "with_alpha"} | empty

    def hints(self, preprocessing: Preprocessing) -> list[str]:
        """Return what to look at: also names that look like those of a series, transparency, and unusual values."""
        alpha = f"{self.with_alpha} pictures have transparency (alpha), which is not read." if self.with_alpha else ""
        values = self._unusual_values() if preprocessing.keeps_levels else ""
        return [*super().hints(preprocessing), *filter(None, (_series(self.refs), alpha, values))]

    def _unusual_values(self) -> str:
        """Return what to say where the values of the first picture are not those between black and white."""
        try:
            case = self.open(self.refs[0])
            if case.full_range in _FULL:
                return ""
            ends = [_ends(case, band) for band in bands_of(case.shape)]
        except AdawacError:  # it is named where it is loaded
            return ""
        low, high = min(low for low, _ in ends), max(high for _, high in ends)
        if low >= 0 and _DARK <= high <= 1:
            return ""
        return (
            f"Values of {self.refs[0].images[0].name} reach from {low:.4g} to {high:.4g}, where 0 is black and 1 is "
            "white. If that is not what they mean, give the range that becomes 0 to 1, for all: --window LOW HIGH."
        )

    def open(self, ref: CaseRef) -> "PictureCase":
        """Open a picture and its mask."""
        return PictureCase(self, ref)

    def load(self, ref: CaseRef) -> Case:
        """Read one case as a whole."""
        case = self.open(ref)
        case.check_whole("Cut it into tiles: --tile 512 (tile=512).")
        pages, height, _ = case.shape
        image = np.stack([as_shares(case.raw(page, 0, height), case.full_range) for page in range(pages)], axis=1)
        label = np.stack([case.label(page, 0, height) for page in range(pages)]) if case.has_label else None
        return ref.with_voxels(image, label, None, self.class_names)


class PictureCase:
    """A picture with its mask, opened, of which rows are read.

    Attributes:
        shape: Pages, height and width.
        has_label: Whether its label is known: it has a mask, or it is empty because pictures without one are.
    """

    def __init__(self, source: PictureSource, ref: CaseRef):
        self._source, self.ref = source, ref
        self._picture = open_picture(ref.images[0])
        self._mask = open_mask(ref.labels[0]) if ref.labels else None
        self.shape = self._picture.shape
        self.has_label = self._mask is not None or source.unlabelled == "empty"
        if self._picture.is_colour and len(source.channels) == 1:
            raise DataError(
                f"Expected grey pictures, but {ref.images[0]} is in colour. Name three channels: --channels red green "
                "blue."
            )
        if self._picture.full_range is not None and self._picture.full_range > _MOST_LEVELS:
            raise DataError(f"Expected 8 or 16 bits, but got 32 in {ref.images[0]}. Save it with 16, or as float.")
        if self._mask is not None and self._mask.shape != self.shape:
            raise DataError(_other_size(self._picture, self._mask))
        self._annotated = (source.labelled_slices or {}).get(ref.id)
        if self._annotated is not None:
            check_slices(self._annotated, self.shape[0], 0, name_file(ref))

    def check_whole(self, advice: str) -> None:
        """Refuse a picture that is too large to be held as a whole."""
        pages, height, width = self.shape
        if pages * height * width * len(self._source.channels) > _MOST_WHOLE:
            raise DataError(
                f"Expected a picture that fits into memory as a whole, but got {pages} × {height} × {width} pixels in "
                f"{self.ref.images[0]}. {advice}"
            )

    @property
    def full_range(self) -> int | None:
        """What stands for 1 in the file; None for floating-point numbers."""
        return self._picture.full_range

    def raw(self, page: int, start: int, stop: int) -> Array:
        """Return rows of the picture, (channels, rows, width), in its file's own numbers."""
        return self._picture.image_rows(page, start, stop, len(self._source.channels))

    def label(self, page: int, start: int, stop: int) -> Array:
        """Return class indices of rows, (rows, width), in the mask's own integer type."""
        if self._annotated is not None and page not in self._annotated:
            return np.full((stop - start, self.shape[2]), IGNORED, dtype=np.uint8)
        if self._mask is None:
            return np.zeros((stop - start, self.shape[2]), dtype=np.uint8)
        values = mask_values(self._mask, page, start, stop, self._source.coloured)
        _check_values(values, self._source, self._mask.path)
        return to_class_indices(values, self._source.classes, self._mask.path, self._source.ignore)


def _other_size(picture: PictureFile, mask: PictureFile) -> str:
    """Return what to say of a mask that does not lie on its picture."""
    sizes = [" × ".join(map(str, opened.shape)) for opened in (picture, mask)]
    turned = " It lies on its side, as a phone's picture may: draw the mask on the picture as it is shown."
    return (
        f"Expected the pages, height and width of {picture.path} ({sizes[0]}), but got {sizes[1]} in {mask.path}. "
        f"Save the mask at the picture's size, without smoothing."
        + (turned if picture.shape[1:] == mask.shape[:0:-1] and picture.shape != mask.shape else "")
    )


# -- the source --------------------------------------------------------------------------------------------------------


@SOURCES.register("pictures")
def pictures(
    root: Path,
    *,
    images: str | list[str] | None = None,
    labels: str | None = None,
    classes: Mapping[str, int | str | Iterable[int | str]] | None = None,
    channels: Iterable[str] | None = None,
    patient: str | None = None,
    groups: Path | str | None = None,
    skip_unlabelled: bool = False,
    unlabelled: Unlabelled | None = None,
    labelled_slices: Path | str | None = None,
    ignore: int | None = None,
    dataset: str | None = None,
) -> Source:
    r"""Open a folder of pictures.

    Args:
        root: The folder.
        images: Glob pattern of the pictures below `root`; without it, the files of the folders `images` and `masks` are
            paired by their names, or a.png with a_mask.png. What the wildcards stand for is the case's id.
        labels: Glob pattern of the masks, with as many wildcards.
        classes: Class name → value in the masks, or values, or colours such as "#ff0000"; 0 (black) is the background
            unless named. By default every value that occurs.
        channels: One name for grey, three for colour; by default three if any picture is in colour.
        patient: Regular expression; what its first group finds in a case's id is the patient, or whatever else must
            not be trained and tested on (`(TCGA_\w+_\w+)_`). By default every picture is a separate one.
        groups: CSV file with the columns `patient,group`.
        skip_unlabelled: Leave pictures without a mask out, with a warning, instead of refusing the folder.
        unlabelled: What pictures without a mask are: `keep` them as unlabelled, `skip` or `refuse` them, or take them
            as `empty`.
        labelled_slices: CSV file with the columns `case,slice`: other pages were never annotated.
        ignore: Value of pixels that count nowhere.
        dataset: Name of the data set; by default that of the folder.
    """
    if (images is None) != (labels is None):
        raise ConfigError(
            "Expected both `images` and `labels`, or neither, but got one of them. Give the other pattern."
        )
    way = checked_way(unlabelled, skip_unlabelled, (*WAYS, "empty"))
    name = dataset or NAME_PATTERN.sub("-", root.resolve().name).strip("-.") or "pictures"
    pairs, every_label, place = _pairs(root, images, labels)
    group_of = read_groups(Path(groups)) if groups else {}
    found = []
    for case, image_files, label_files in sorted(pairs):
        person = patient_of(case, patient)
        ref = CaseRef(dataset=name, patient=person, id=case, group=group_of.get(person))
        found.append(replace(ref, images=image_files, labels=label_files))
    refs = check_refs(found, root)
    used = {path for ref in refs for path in ref.labels}
    heads = _heads(refs)
    names = tuple(channels or (_COLOURS if any(colour for colour, _ in heads) else _GREY))
    if len(names) not in (1, 3):
        raise ConfigError(f"Expected one channel or three, but got {', '.join(names)}. Name them: red green blue.")
    known = as_classes(classes) if classes else None
    source = PictureSource(
        root=root,
        dataset=name,
        classes=known if known else found_classes(refs, ignore),
        channels=names,
        preprocessing=PICTURES,
        refs=refs,
        label_place=place,
        unused_labels=tuple(path for path in every_label if path not in used),
        unlabelled=way,
        ignore=ignore,
        labelled_slices=read_labelled_slices(Path(labelled_slices), refs) if labelled_slices else None,
        with_alpha=sum(alpha for _, alpha in heads),
    )
    return drop_unlabelled(source) if way == "skip" else source


# A case: its id, its picture and its mask.
_Pair = tuple[str, tuple[Path, ...], tuple[Path, ...]]


def _pairs(root: Path, images: str | list[str] | None, labels: str | None) -> tuple[list[_Pair], list[Path], str]:
    """Return the pairs, all masks, and where these were looked for."""
    if images is not None and labels is not None:
        patterns = [images] if isinstance(images, str) else list(images)
        if len(patterns) > 1:
            raise ConfigError(f"Expected one pattern of pictures, but got {', '.join(patterns)}. Give one.")
        return *match_patterns(root, patterns, labels, NAMING), repr(labels)
    folders = only_folder(root, IMAGE_FOLDERS), only_folder(root, LABEL_FOLDERS)
    if folders[0] is not None and folders[1] is not None:
        files, masks = (_files(folder) for folder in folders if folder)
        place = f"{folders[1].name}/NAME.png"
    else:
        every = _files(root)
        names = {path.stem for path in every}
        masks = [path for path in every if is_mask(path, names)]
        files, place = [path for path in every if path not in masks], "NAME_mask.png"
    exact, by_role = by_name(masks, lambda path: path.stem), by_name(masks, lambda path: without_role(path.stem))
    pairs: list[_Pair] = []
    for case, path in by_name(files, lambda path: path.stem).items():
        mask = exact.get(case) or by_role.get(without_role(case))
        pairs.append((case, (path,), () if mask is None else (mask,)))
    if not any(labels for _, _, labels in pairs):
        raise LayoutError(f"Expected {_LAYOUTS}, but {root} has none of them. Give the patterns.")
    folder = files[0].parent
    if deeper := [path for path in files_below(folder) if is_picture(path) and path.parent not in (folder, folders[1])]:
        log.warning(
            "%d pictures in folders below %s are left out, such as %s. To take them, give the patterns `images` and "
            "`labels`, such as 'images/**/*' and 'masks/**/*'.",
            len(deeper),
            folder,
            deeper[0].relative_to(folder),
        )
    return pairs, masks, place


def _files(folder: Path) -> list[Path]:
    if is_closed(folder):
        raise DataError(f"Expected a folder of pictures, but {folder} may not be read. Change its permissions.")
    return sorted(path for path in folder.iterdir() if is_picture(path) and not path.name.startswith("."))


def is_mask(path: Path, names: set[str]) -> bool:
    """Say whether a file is the mask of another one in its folder: a_mask of a, or of a_image."""
    case = without_role(path.stem)
    return (
        case != path.stem
        and not re.search(r"[_-](image|img|scan)$", path.stem, re.IGNORECASE)
        and any(name in names for name in (case, f"{case}_image", f"{case}_img", f"{case}_scan"))
    )


def _heads(refs: Iterable[CaseRef]) -> list[tuple[bool, bool]]:
    """Return of each picture whether it is in colour and whether it has alpha; a bad one is named when it is loaded."""

    def look(path: Path) -> tuple[bool, bool]:
        try:
            picture = open_picture(path)
        except AdawacError:
            return False, False
        return picture.is_colour, picture.alpha

    return [head for _, head in run_jobs(look, [ref.images[0] for ref in refs], title="Looking at files", workers=1)]


def _ends(case: "PictureCase", band: tuple[int, int, int]) -> tuple[float, float]:
    values = as_shares(case.raw(*band), case.full_range)
    return float(values.min()), float(values.max())


def _series(refs: Iterable[CaseRef]) -> str:
    """Return what to say where names look like series of pictures that count as unrelated."""
    alone = [ref for ref in refs if ref.patient == ref.id]
    begins = Counter(begin for ref in alone if (begin := _NUMBER.sub("", ref.id)) and begin != ref.id)
    series = [begin for begin, count in begins.items() if count > 1]
    if len(series) < _SERIES:
        return ""
    return (
        f"Names look like series ({', '.join(series[:3])}, …), and each picture counts as unrelated to the others. If "
        "those of a series show the same thing, say so, or it may be trained and tested on: --patient '^(.+?)_' takes "
        "what stands before the first _ of a name."
    )


# -- masks -------------------------------------------------------------------------------------------------------------


def open_mask(path: Path) -> PictureFile:
    """Open a mask: no JPEG, whose values change when they are saved, and no fractions."""
    mask = open_picture(path)
    if mask.kind == "JPEG":
        raise DataError(
            f"Expected a mask without loss, but {path} is a JPEG, which changes values when it is saved. Save the mask "
            "as PNG, from the tool that drew it."
        )
    if mask.levels is None:
        raise DataError(f"Expected whole numbers in a mask, but {path} has floating-point ones. Save it as PNG.")
    return mask


def mask_values(mask: PictureFile, page: int, start: int, stop: int, coloured: bool) -> Array:
    """Return the values of rows of a mask, (rows, width): indices, or colours as 32 bits with 255 before red."""
    pixels = mask.read(page, start, stop)
    rows, alpha = pixels[..., : mask.samples], pixels[..., mask.samples :]
    _check_alpha(rows, alpha, mask.path)
    if coloured:
        if mask.palette is not None:
            rows = mask.palette[rows[..., 0]]
        elif (levels := mask.levels or 255) > 255:
            raise DataError(f"Expected colours of 8 bits, but got {levels + 1} levels in {mask.path}. Convert it.")
        else:
            rows = rows * np.uint8(255 // levels)
        return _packed(rows)
    if rows.shape[2] == 3 and (rows != rows[..., :1]).any():
        raise DataError(
            f"Expected class indices, but {mask.path} is in colour. Name the classes by their colours: "
            "--classes crack=#ff0000."
        )
    return rows[..., 0]


def _check_alpha(rows: Array, alpha: Array, path: Path) -> None:
    """Refuse transparency that says what a class is: it is not read."""
    transparent = (alpha < alpha.max(initial=0)).any(axis=2)
    if not transparent.any():
        return
    count = int((transparent & rows.any(axis=2)).sum())
    if count or not rows.any():
        what = (
            f"{count} transparent pixels that are not 0, or black" if count else "its shape in the transparency alone"
        )
        raise DataError(
            f"Expected a mask whose colours or values say the class, but {path} has {what}. Alpha is not read: make "
            "the background black, and save the mask without transparency."
        )


def _packed(rows: Array) -> Array:
    red, green, blue = (rows[..., channel % rows.shape[2]].astype(np.uint32) for channel in range(3))
    packed: Array = np.uint32(COLOUR) | red << np.uint32(16) | green << np.uint32(8) | blue
    return packed


def _check_values(values: Array, source: PictureSource, path: Path) -> None:
    """Raise a `DataError` that counts the pixels whose value is of no class, and says what they look like."""
    known = np.array(sorted({*(value for group in source.classes.values() for value in group)}), dtype=np.int64)
    known = known if source.ignore is None else np.append(known, source.ignore)
    unknown, counts = np.unique(values[~np.isin(values, known)], return_counts=True)
    if not len(unknown):
        return
    order = np.argsort(-counts)
    some = ", ".join(show_value(value) for value in unknown[order][:4].tolist())
    more = f" and {len(unknown) - 4} more" if len(unknown) > 4 else ""
    near = int(counts[_near(unknown, known, source.coloured)].sum())
    wanted = ", ".join(f"{show_value(group[0])} ({name})" for name, group in source.classes.items())
    raise DataError(
        f"Expected {'the colours' if source.coloured else 'the values'} {wanted}, but {counts.sum()} of {values.size} "
        f"pixels have others in {path}, such as {some}{more}. " + _advice(near, int(counts.sum()), len(unknown))
    )


def _advice(near: int, total: int, different: int) -> str:
    if near > total / 2 or different > _MOST_CLASSES:
        return (
            f"{near} of them are near one of these, as a lossy tool or soft edges (antialiasing) make them: save the "
            "mask as PNG from the tool that drew it, without smoothing; resize it by nearest neighbour."
        )
    return "Name every value in `classes`; list those to be dropped under background, or give the one that counts " + (
        "nowhere as `ignore`."
    )


def _near(values: Array, known: Array, coloured: bool) -> Array:
    """Say which values lie between the known ones, or near one of these where they are colours."""
    if not coloured:
        return np.asarray((values > known.min()) & (values < known.max()) & (known.max() == 255))
    colours = values.astype(np.int64)
    return np.asarray(np.any([_difference(colours, int(colour)) <= _NEAR for colour in known], axis=0))


def _difference(colours: Array, other: int) -> Array:
    """Return by how much colours differ from another one, in the channel in which they differ most."""
    channels = [np.abs((colours >> shift & 255) - (other >> shift & 255)) for shift in (16, 8, 0)]
    return np.asarray(np.max(channels, axis=0))


def count_values(mask: PictureFile) -> Counter[int]:
    """Return how often each value, or colour, stands in a mask; more than a mask can have is a `DataError`."""
    total: Counter[int] = Counter()
    coloured = mask.samples == 3 and any(
        (rows != rows[..., :1]).any() for rows in starmap(mask.rows, bands_of(mask.shape))
    )
    for band in bands_of(mask.shape):
        rows = mask_values(mask, *band, coloured)
        values, counts = np.unique(rows, return_counts=True)
        total.update(dict(zip(values.tolist(), counts.tolist(), strict=True)))
        if len(total) > 256:
            raise DataError(
                f"Expected a mask of class indices or colours, but got {len(total)} different values and more in "
                f"{mask.path}, as a photograph has, or a mask from a lossy tool or with soft edges. Check `labels`, or "
                "save the mask without smoothing."
            )
    return total


def bands_of(shape: tuple[int, int, int]) -> list[tuple[int, int, int]]:
    """Return page, first row and the row behind the last of parts that fit into memory."""
    pages, height, width = shape
    step = max(1, _PIXELS // width)
    return [(page, start, min(start + step, height)) for page in range(pages) for start in range(0, height, step)]


def found_classes(refs: Iterable[CaseRef], ignore: int | None = None) -> Classes:
    """Return a class for every value, or colour, that occurs in the masks; this reads all of them.

    A file that cannot be read is passed over: it is named when its case is loaded.
    """
    faults: list[AdawacError] = []

    def look(path: Path) -> Counter[int] | None:
        try:
            return count_values(open_mask(path))
        except AdawacError as error:
            faults.append(error)
            return None

    paths = [path for ref in refs for path in ref.labels]
    seen = {path: counts for path, counts in run_jobs(look, paths, title="Looking for classes", workers=1) if counts}
    if not seen:
        if not paths:
            raise DataError("Expected masks, but no picture has one. Check the pattern of `labels`.")
        raise DataError(f"None of the {len(paths)} masks can be used. {faults[0]}") if faults[1:] else faults[0]
    total = sum(seen.values(), Counter[int]())
    with_255 = [path for path, counts in seen.items() if 255 in counts]
    values = set(total) - {ignore}
    _check_meaning({value: total[value] for value in values}, with_255, len(seen))
    if any(value >= COLOUR for value in values):
        colours: Counter[int] = Counter()
        for value in values:  # the grey ones among them are colours, too
            colours[value if value >= COLOUR else COLOUR | value * 0x10101] += total[value]
        _check_colours(colours)
        return as_classes({show_value(value): value for value in sorted(colours.keys() - {COLOUR})})
    if not values - {0}:
        raise DataError(f"Expected values other than 0, but all {len(paths)} masks are empty. Give `classes`.")
    if values <= {0, 255}:
        return as_classes({"foreground": 255})
    return as_classes({f"class {value}": value for value in sorted(values - {0})})


def _check_colours(counts: Counter[int]) -> None:
    """Refuse a colour that is another one but for a few steps; `counts` are the pixels of each."""
    for (often, _), (rare, count) in combinations(counts.most_common(), 2):
        if _difference(np.array(often), rare) <= _SAME:
            raise DataError(
                f"Expected a colour for each class, but {count} pixels of the masks have {show_value(rare)}, which is "
                f"near {show_value(often)}: a lossy tool makes such colours. Save the masks as PNG from the tool that "
                "drew them, or name the colours in `classes`."
            )


def _check_meaning(counts: Mapping[int, int], with_255: Sequence[Path], masks: int) -> None:
    """Refuse masks that can be read in two ways; `counts` are the pixels of each value."""
    between = sorted(value for value in counts if 0 < value < 255)
    few = sum(counts[value] for value in between) < counts.get(255, 0)
    soft = 255 in counts and len(between) > 3 and (few or between[-1] > _MOST_CLASSES)
    if len(counts) > _MOST_CLASSES or soft:
        some = ", ".join(show_value(value) for value in sorted(counts)[:6])
        raise DataError(
            f"Expected masks of class indices, at most {_MOST_CLASSES}, or of 0 and 255, but they have {len(counts)} "
            f"different values ({some}, …), as soft edges (antialiasing) or a lossy tool make them. Save them without "
            "smoothing, or name the values in `classes`."
        )
    if 255 in counts and between:
        raise DataError(
            f"Expected masks of class indices, or of 0 and 255, but {len(with_255)} of {masks} have 255, such as "
            f"{with_255[0]}, and these values occur, too: {', '.join(map(str, between[:6]))}. If 255 marks pixels that "
            "count nowhere, say --ignore 255; if it is a class, name it: --classes defect=1,255."
        )
