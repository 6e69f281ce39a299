"""The phantom: procedural abdominal scans that ship with the package, for the demo, for tests and for first steps."""

from adawac.data.phantom.scanner import PhantomSource, make_case, phantom, phantom_cases, phantom_source

__all__ = ["PhantomSource", "make_case", "phantom", "phantom_cases", "phantom_source"]
