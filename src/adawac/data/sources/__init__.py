"""Readers: from the folders that people have to cases."""

from adawac.data.sources import acdc, dicom, nifti, synapse  # noqa: F401  importing a module registers its source
from adawac.data.sources.source import (
    SOURCES,
    Classes,
    Source,
    as_classes,
    build_source,
    check_refs,
    detect_source,
    missing_labels,
    shared_folders,
)

from adawac.data.phantom import scanner  # noqa: F401  isort: skip  (after source, which it registers itself with)

__all__ = [
    "SOURCES",
    "Classes",
    "Source",
    "as_classes",
    "build_source",
    "check_refs",
    "detect_source",
    "missing_labels",
    "shared_folders",
]
