"""A scan with its label maps in the browser, on this computer alone: `adawac.viewer.view("scan.nii.gz", ["a.nii.gz"])`.

`layers` reads what is shown, `viewer` describes it to the page in `page/` and serves both.
"""

from adawac.viewer.viewer import Scene, Viewer, build_scene, serve, view

__all__ = ["Scene", "Viewer", "build_scene", "serve", "view"]
