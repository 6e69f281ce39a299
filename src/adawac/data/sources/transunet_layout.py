"""TransUNet's layout, which ACDC and Synapse share: h5 volumes and one file per slice, normalised, geometry lost."""

import re
from pathlib import Path

import numpy as np

from adawac.data.cases import Array, Case, CaseRef, name_file
from adawac.data.sources.scan_files import read_arrays, to_class_indices
from adawac.data.sources.source import ListedSource
from adawac.errors import DataError

_SLICE = re.compile(r"(?P<case>.+)_slice_?(?P<number>\d+)\.(h5|npz)")


def find_folder(root: Path, name: str) -> Path | None:
    """Return the folder called `name`: `root` itself, in it, or one level below."""
    candidates = [root, root / name, *sorted(root.glob(f"*/{name}"))]
    return next((folder for folder in candidates if folder.name == name and folder.is_dir()), None)


def group_slices(folder: Path) -> dict[str, tuple[Path, ...]]:
    """Return the slice files of each case in `folder`, sorted by number; a gap is a `DataError`."""
    slices: dict[str, dict[int, Path]] = {}
    for path in sorted(folder.iterdir()):
        if match := _SLICE.fullmatch(path.name):
            slices.setdefault(match["case"], {})[int(match["number"])] = path
    for case, numbers in slices.items():
        if missing := sorted(set(range(max(numbers) + 1)) - set(numbers)):
            raise DataError(
                f"Expected the slices 0 to {max(numbers)} of {case} in {folder}, but {missing[:5]} are missing. "
                "Copy them again: slice numbers are part of a sample's id."
            )
    return {case: tuple(numbers[number] for number in sorted(numbers)) for case, numbers in slices.items()}


class SliceSource(ListedSource):
    """Cases whose files hold `image` and `label` with the slices first."""

    def load(self, ref: CaseRef) -> Case:
        """Read a volume file, or stack the slice files."""
        parts = [self._read(path) for path in ref.images]
        shapes = {image.shape for image, _ in parts}
        if len(shapes) != 1:
            raise DataError(
                f"Expected the slices of {name_file(ref)} to have one shape, but got {sorted(shapes)}. Export again."
            )
        whole = parts[0][0].ndim == 3
        images, labels = zip(*parts, strict=True)
        image, label = (images[0], labels[0]) if whole else (np.stack(images), np.stack(labels))
        return ref.with_voxels(image[None], label, None, self.class_names)

    def _read(self, path: Path) -> tuple[Array, Array]:
        arrays = read_arrays(path)
        image, label = arrays["image"], arrays["label"]
        dimensions = 2 if _SLICE.fullmatch(path.name) else 3
        if image.ndim != dimensions:
            raise DataError(f"Expected a {dimensions}D image, but got shape {image.shape} in {path}. Export it again.")
        if image.shape != label.shape:
            raise DataError(
                f"Expected image and label of one shape, but got {image.shape} and {label.shape} in {path}. "
                "Resample the label onto the image's grid."
            )
        return image, to_class_indices(label, self.classes, path)
