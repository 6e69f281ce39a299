"""Readers: from the folders that people have to cases."""

from adawac.data.sources import acdc, dicom, nifti, pictures, synapse  # noqa: F401  importing a module registers its source
from adawac.data.sources.source import SOURCES, Source, as_classes, build_source, detect_source

from adawac.data.phantom import scanner  # noqa: F401  isort: skip  (after source, which it registers itself with)

__all__ = ["SOURCES", "Source", "as_classes", "build_source", "detect_source"]
