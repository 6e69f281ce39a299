"""Distances between the surfaces of two label maps: exact, all classes at once.

A voxel lies on its class's surface if a face neighbour has another class or lies outside the volume. That is the border
that an erosion with connectivity 1 leaves, medpy's definition. The distance from a surface voxel to the same class's
surface in the other map is computed in the cheapest way that is exact:

1. look at the voxels around it, nearest first: where prediction and truth are similar, this finds nearly all;
2. query a KD-tree of the class's surface;
3. where so many surface voxels are about equally far that a tree would visit them all (the middle of a round organ),
   take a distance transform of the class's box.
"""

from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]

# These constants affect speed only; benchmarks/metrics.py measures it.
_REACH = 5  # how far to look around, in voxels of the finest axis
_LOOKS_PER_QUERY = 500  # looks at a voxel that cost as much as one query of a tree
_BLOCK = 2**14  # surface voxels that are looked around at once, so that they stay in the cache
_VISITS_PER_VOXEL = 8  # points visited by a tree that cost as much as the transform of one voxel
_PROBES = 32  # queries that show how many points a tree visits


def crop(pred: Array, truth: Array, num_classes: int, spacing: Array) -> tuple[Array, Array, Array]:
    """Return both maps cut to their common foreground with background around it, and the spacing of their axes.

    The axes come in memory order: no metric depends on their order, and NIfTI files are read in Fortran's.
    """
    order = sorted(range(truth.ndim), key=lambda axis: -abs(truth.strides[axis]))
    pred, truth, spacing = pred.transpose(order), truth.transpose(order), spacing[order]
    box = []
    for axis in range(truth.ndim):
        others = tuple(other for other in range(truth.ndim) if other != axis)
        used = np.flatnonzero(pred.any(axis=others) | truth.any(axis=others))
        box.append(slice(int(used[0]), int(used[-1]) + 1) if len(used) else slice(0, 0))
    # The margin makes the volume's edge a change of class, and keeps every look around a voxel inside the array.
    margin = np.maximum(1, _reach(spacing)).tolist()
    inner = tuple(slice(wide, wide + cut.stop - cut.start) for wide, cut in zip(margin, box, strict=True))
    shape = [cut.stop + wide for wide, cut in zip(margin, inner, strict=True)]
    maps = np.zeros((2, *shape), dtype=np.min_scalar_type(num_classes - 1))
    for cropped, whole in zip(maps, (pred, truth), strict=True):
        cropped[inner] = whole[tuple(box)]
    return maps[0], maps[1], spacing


def count_voxels(pred: Array, truth: Array, num_classes: int) -> tuple[Array, Array, Array]:
    """Return each class's number of voxels in the prediction, in the truth and in both; background is not counted."""
    foreground = (pred | truth) != 0
    pred, truth = pred[foreground], truth[foreground]
    sizes = [np.bincount(labels, minlength=num_classes) for labels in (pred, truth, pred[pred == truth])]
    return sizes[0], sizes[1], sizes[2]


def surface_distances(pred: Array, truth: Array, num_classes: int, spacing: Array) -> Iterator[tuple[Array, Array]]:
    """Yield, for each class from 1, the distances from the prediction's surface to the truth's, and back.

    Both are vectors with a number for each surface voxel, infinite where the other map has no such class. Maps and
    spacing are as `crop` returns them.
    """
    of_pred, of_truth = _surface(pred), _surface(truth)
    shells = _shells(pred, spacing)
    forward, back = _distances(of_pred, of_truth, shells, spacing), _distances(of_truth, of_pred, shells, spacing)
    for label in range(1, num_classes):
        yield forward[of_pred.labels == label], back[of_truth.labels == label]


class _Surface(NamedTuple):
    map: Array  # classes on surfaces, 0 elsewhere
    voxels: Array  # flat indices of the surface voxels
    labels: Array  # their classes

    def positions(self, voxels: Array) -> Array:
        """Return voxels as (d, N) indices."""
        return np.array(np.unravel_index(voxels, self.map.shape))


def _reach(spacing: Array) -> Array:
    reach: Array = (_REACH * spacing.min() / spacing).astype(int)
    return reach


def _surface(labels: Array) -> _Surface:
    edge = np.zeros(labels.shape, dtype=bool)
    for axis in range(labels.ndim):
        along, mark = np.moveaxis(labels, axis, 0), np.moveaxis(edge, axis, 0)
        changes = along[1:] != along[:-1]
        mark[1:] |= changes
        mark[:-1] |= changes
    edge &= labels != 0
    voxels = np.flatnonzero(edge)
    return _Surface(labels * edge, voxels, labels.ravel()[voxels])


def _shells(labels: Array, spacing: Array) -> list[tuple[float, Array]]:
    """Return every length up to the reach, shortest first, with the steps of that length in the flat map."""
    reach = _reach(spacing)
    steps = np.indices(tuple(2 * reach + 1)).reshape(len(reach), -1) - reach[:, None]
    lengths = np.sqrt(((steps * spacing[:, None]) ** 2).sum(axis=0))
    order = np.argsort(lengths, kind="stable")
    order = order[lengths[order] <= _REACH * spacing.min()]
    strides = np.array(labels.strides) // labels.itemsize
    groups = np.split(strides @ steps[:, order], 1 + np.flatnonzero(np.diff(lengths[order])))
    return list(zip(np.unique(lengths[order]).tolist(), groups, strict=True))


def _distances(source: _Surface, target: _Surface, shells: list[tuple[float, Array]], spacing: Array) -> Array:
    distances = np.full(len(source.voxels), np.inf)
    shared = np.isin(source.labels, np.unique(target.labels))
    around = target.map.ravel()
    for start in range(0, len(distances), _BLOCK):
        block = start + np.flatnonzero(shared[start : start + _BLOCK])
        distances[block] = _near_distances(source.voxels[block], source.labels[block], around, shells)
    left = np.flatnonzero(shared & np.isinf(distances))
    labels = source.labels[left]
    for label in np.unique(labels):
        far, surface = left[labels == label], target.voxels[target.labels == label]
        distances[far] = _far_distances(source.positions(source.voxels[far]), target.positions(surface), spacing)
    return distances


def _near_distances(voxels: Array, labels: Array, around: Array, shells: list[tuple[float, Array]]) -> Array:
    """Return the distance to the nearest voxel of the same class in `around`, infinite where the search ended first.

    Shells come in order, so the first hit is the nearest. The search ends with a shell that found less than it cost.
    """
    distances = np.full(len(voxels), np.inf)
    left = np.arange(len(voxels))
    for length, steps in shells:
        missed = (around[voxels + steps[:, None]] != labels).all(axis=0)
        distances[left[~missed]] = length
        before = len(left)
        left, voxels, labels = left[missed], voxels[missed], labels[missed]
        if (before - len(left)) * _LOOKS_PER_QUERY <= before * len(steps):
            break
    return distances


def _far_distances(points: Array, surface: Array, spacing: Array) -> Array:
    """Return the distance from each point to the nearest of a surface, both as (d, N) indices."""
    from scipy.spatial import cKDTree

    # Nodes that are not shrunk to their points, and large leaves: ten times faster where points are equally far.
    tree = cKDTree(surface.T * spacing, leafsize=64, compact_nodes=False, balanced_tree=False)
    both = np.concatenate([points, surface], axis=1)
    low, shape = both.min(axis=1, keepdims=True), np.ptp(both, axis=1) + 1
    affordable = _VISITS_PER_VOXEL * float(np.prod(shape, dtype=np.float64)) / points.shape[1]
    if surface.shape[1] > affordable and _visits(tree, points, spacing) > affordable:
        return _transformed(points - low, surface - low, shape, spacing)
    distances: Array = tree.query(points.T * spacing)[0]
    return distances


def _visits(tree: Any, points: Array, spacing: Array) -> float:
    """Return about how many points a tree visits to answer: those at most a leaf's width farther than the nearest."""
    probes = points[:, :: -(-points.shape[1] // _PROBES)].T * spacing
    within = tree.query(probes)[0] + 2 * spacing.mean()
    return float(tree.query_ball_point(probes, within, return_length=True).mean())


def _transformed(points: Array, surface: Array, shape: Array, spacing: Array) -> Array:
    from scipy.ndimage import distance_transform_edt

    apart = np.ones(shape, dtype=bool)
    apart[tuple(surface)] = False
    nearest = distance_transform_edt(apart, sampling=spacing, return_distances=False, return_indices=True)
    offsets = (nearest[(slice(None), *points)] - points) * spacing[:, None]
    distances: Array = np.sqrt((offsets**2).sum(axis=0))
    return distances
