"""The phantom: procedural abdominal scans that ship with the package, for the demo, for tests and for first steps."""

from adawac.data.phantom.scanner import PhantomSource, make_case, phantom, phantom_cases, phantom_source
from adawac.data.phantom.textures import TextureSource, texture_source, write_pictures

__all__ = [
    "PhantomSource",
    "TextureSource",
    "make_case",
    "phantom",
    "phantom_cases",
    "phantom_source",
    "texture_source",
    "write_pictures",
]
