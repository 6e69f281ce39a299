"""Metrics equal medpy's and MONAI's, whatever the masks and however the distances are found."""

import dataclasses
import math
import subprocess
import sys
import warnings
from collections import Counter
from itertools import permutations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import ndimage

from adawac import metrics
from adawac.metrics import assd, dice, hd95, hd95_max_directed, score_volume, surface_dice, surfaces

DISTANCES = ("hd95", "hd95_max_directed", "assd")


# Masks of every kind that a prediction can be. Each returns a pair of masks that may be empty.


def random_shape(rng, high=14):
    return tuple(rng.integers(2, high, rng.choice([2, 3])))


def blob(rng, shape, noise=0.5):
    """A smooth shape around a random centre, often cut by the edge of the volume."""
    centre, radius = rng.uniform(0, shape), rng.uniform(1, max(shape) / 2)
    places = np.indices(shape).T - centre
    wobble = ndimage.gaussian_filter(rng.standard_normal(shape), 1)
    return np.linalg.norm(places, axis=-1).T + noise * radius * wobble < radius


def blobs(rng):
    shape = random_shape(rng, 24)
    return blob(rng, shape), blob(rng, shape)


def similar(rng):
    shape = random_shape(rng, 24)
    truth = blob(rng, shape)
    steps = rng.integers(-2, 3, len(shape))
    return np.roll(truth, steps, axis=tuple(range(len(shape)))) ^ (rng.random(shape) < 0.01), truth


def speckle(rng):
    shape, share = random_shape(rng, 20), rng.choice([0.002, 0.02, 0.2, 0.5, 0.9])
    return rng.random(shape) < share, rng.random(shape) < share


def single_voxels(rng):
    shape = random_shape(rng)
    pair = np.zeros((2, *shape), dtype=bool)
    for mask in pair:
        mask[tuple(rng.integers(0, shape))] = True
    return tuple(pair)


def touching_edges(rng):
    """Slabs and boxes that lie against the faces of the volume, up to all of it."""
    shape = random_shape(rng)
    pair = np.zeros((2, *shape), dtype=bool)
    for mask in pair:
        sizes = rng.integers(1, np.array(shape) + 1)
        ends = rng.random(len(shape)) < 0.5
        mask[tuple(slice(-n, None) if end else slice(n) for n, end in zip(sizes, ends, strict=True))] = True
    return tuple(pair)


def speckle_in_blob(rng):
    shape = random_shape(rng, 24)
    truth = blob(rng, shape, noise=0)
    return truth & (rng.random(shape) < 0.1), truth


def flat(rng):
    """Volumes one voxel thick, where every voxel touches the edge."""
    shape = (1, *rng.integers(2, 20, 2))
    order = rng.permutation(3)
    return tuple((rng.random((2, *shape)) < 0.3).transpose(0, *(1 + order)))


def often_empty(rng):
    shape = random_shape(rng)
    return tuple((rng.random(shape) < 0.2) & (rng.random() < 0.5) for _ in range(2))


KINDS = [blobs, similar, speckle, single_voxels, touching_edges, speckle_in_blob, flat, often_empty]
PAIRS_PER_KIND = 260  # 2,080 in all


def random_spacing(rng, dimensions):
    choice = rng.integers(4)
    if choice == 0:
        return None
    if choice == 1:
        return tuple(rng.choice([0.1, 0.5, 1.0, 2.5, 10.0], dimensions).tolist())
    if choice == 2:
        return (float(rng.uniform(0.3, 12)),) * dimensions
    return tuple(rng.uniform(0.3, 12, dimensions).tolist())


def pairs(kind, count):
    rng = np.random.default_rng(sum(map(ord, kind.__name__)))
    for _ in range(count):
        pred, truth = kind(rng)
        yield pred, truth, random_spacing(rng, truth.ndim)


def medpy_score(name, pred, truth, spacing):
    """Return medpy's number, or NaN where it raises because a mask is empty."""
    binary = pytest.importorskip("medpy.metric.binary")
    try:
        return getattr(binary, name)(pred, truth, voxelspacing=spacing)
    except RuntimeError:
        return math.nan


@pytest.mark.parametrize("kind", KINDS)
def test_dice_hd95_and_assd_equal_medpy(kind):
    binary = pytest.importorskip("medpy.metric.binary")
    for pred, truth, spacing in pairs(kind, PAIRS_PER_KIND):
        if pred.any() or truth.any():
            assert dice(pred, truth) == pytest.approx(binary.dc(pred, truth), rel=0, abs=1e-12)
        expected = medpy_score("hd95", pred, truth, spacing)
        assert hd95(pred, truth, spacing) == pytest.approx(expected, rel=0, abs=1e-9, nan_ok=True)
        expected = medpy_score("assd", pred, truth, spacing)
        assert assd(pred, truth, spacing) == pytest.approx(expected, rel=0, abs=1e-9, nan_ok=True)
        assert math.isnan(hd95(pred, truth, spacing)) == (not pred.any() or not truth.any())


@pytest.mark.filterwarnings("ignore::FutureWarning")  # MONAI warns of its own arguments
@pytest.mark.parametrize("kind", KINDS)
def test_directed_hd95_and_surface_dice_equal_monai(kind):
    with warnings.catch_warnings():  # importing MONAI warns of what its own dependencies deprecate
        warnings.simplefilter("ignore")
        monai = pytest.importorskip("monai.metrics")
    torch = pytest.importorskip("torch")
    rng = np.random.default_rng(0)
    for pred, truth, spacing in pairs(kind, 60):
        if not pred.any() or not truth.any():
            assert math.isnan(hd95_max_directed(pred, truth, spacing))
            assert surface_dice(pred, truth, 1.0, spacing) == pytest.approx(
                0.0 if pred.any() or truth.any() else math.nan, nan_ok=True
            )
            continue
        first, second = (torch.from_numpy(mask.copy()) for mask in (pred, truth))
        batch = first[None, None], second[None, None]
        settings = {"include_background": True, "spacing": spacing}
        expected = monai.compute_hausdorff_distance(*batch, percentile=95, **settings).item()
        distance = hd95_max_directed(pred, truth, spacing)
        assert distance == pytest.approx(expected, rel=1e-4)  # torch.quantile interpolates in float32
        _, directions, _ = monai.utils.get_edge_surface_distance(first, second, spacing=spacing, symmetric=True)
        exact = max(np.percentile(distances.double(), 95) for distances in directions)
        assert distance == pytest.approx(exact, rel=1e-7)  # MONAI's distances are float32
        tolerance = float(rng.choice([0.0, 1.0, 2.5, 4.0]))
        expected = monai.compute_surface_dice(*batch, [tolerance], **settings).item()
        assert surface_dice(pred, truth, tolerance, spacing) == pytest.approx(expected, rel=1e-6)


# The three ways of finding a distance are exact each on its own.


def take_only(monkeypatch, way):
    """Let one way do all the work that it can: what it must not need fails."""

    def unused(*_):
        raise AssertionError(f"{way} was not enough")

    if way == "looking around":
        monkeypatch.setattr(surfaces, "_REACH", 20)
        monkeypatch.setattr(surfaces, "_BLOCK", 7)
        monkeypatch.setattr(surfaces, "_LOOKS_PER_QUERY", math.inf)
        monkeypatch.setattr(surfaces, "_far_distances", unused)
        return
    monkeypatch.setattr(surfaces, "_REACH", 0)
    monkeypatch.setattr(surfaces, "_VISITS_PER_VOXEL", 0 if way == "transform" else math.inf)
    if way == "tree":
        monkeypatch.setattr(surfaces, "_transformed", unused)


@pytest.mark.parametrize("way", ["looking around", "tree", "transform"])
@pytest.mark.parametrize("kind", [similar, speckle, speckle_in_blob])
def test_every_way_of_searching_equals_medpy(monkeypatch, way, kind):
    take_only(monkeypatch, way)
    transforms = []
    transformed = surfaces._transformed
    if way == "transform":
        monkeypatch.setattr(surfaces, "_transformed", lambda *a: transforms.append(a) or transformed(*a))
    for pred, truth, spacing in pairs(kind, 25):
        if way == "looking around":  # only even spacings let a look reach everything, at a bearable cost
            corner = (slice(10),) * pred.ndim
            pred, truth, spacing = pred[corner], truth[corner], (0.7,) * pred.ndim
        expected = medpy_score("assd", pred, truth, spacing)
        assert assd(pred, truth, spacing) == pytest.approx(expected, rel=0, abs=1e-9, nan_ok=True)
    assert bool(transforms) == (way == "transform")


def test_crowded_surfaces_are_transformed_and_sparse_ones_are_not(monkeypatch):
    calls = []
    transformed = surfaces._transformed
    monkeypatch.setattr(surfaces, "_transformed", lambda *a: calls.append(a) or transformed(*a))
    away = np.linalg.norm(np.indices((61, 61, 61)).T - 30, axis=-1)
    ball, core = away < 29, (away < 14) & (np.indices(away.shape).sum(axis=0) % 2 == 0)
    assert hd95(core, ball) == pytest.approx(medpy_score("hd95", core, ball, None), abs=1e-9)
    assert len(calls) == 1  # from the core to the ball's surface; the way back has one near voxel for each
    calls.clear()
    rng = np.random.default_rng(0)
    pred, truth = rng.random((2, 61, 61, 61)) < 0.001
    assert hd95(pred, truth) == pytest.approx(medpy_score("hd95", pred, truth, None), abs=1e-9)
    assert not calls


def test_looking_around_ends_where_it_finds_nothing(monkeypatch):
    looks = []
    near_distances = surfaces._near_distances

    def recorded(voxels, labels, around, shells):
        seen = ((looks.append(length), (length, steps))[1] for length, steps in shells)
        return near_distances(voxels, labels, around, seen)

    monkeypatch.setattr(surfaces, "_near_distances", recorded)
    pred, truth = np.zeros((2, 40, 40), dtype=bool)
    pred[2:8, 2:8], truth[30:38, 30:38] = True, True
    assert hd95(pred, truth) == pytest.approx(medpy_score("hd95", pred, truth, None), abs=1e-9)
    assert looks == [0.0, 0.0]  # one look each way
    looks.clear()
    assert hd95(truth, np.roll(truth, 1, axis=0)) == 1
    assert looks[:2] == [0.0, 1.0]


# Label maps.


def random_labels(rng, shape, num_classes):
    """Regions that touch each other and the edges of the volume, some classes in small pieces."""
    fields = ndimage.gaussian_filter(rng.standard_normal((num_classes, *shape)), [0] + [1.5] * len(shape))
    return np.argmax(fields, axis=0)


@pytest.mark.parametrize("dimensions", [2, 3])
@pytest.mark.parametrize("dtype", [np.uint8, np.int16, np.int64])
def test_all_classes_of_a_label_map_equal_medpy_one_by_one(dimensions, dtype):
    binary = pytest.importorskip("medpy.metric.binary")
    rng = np.random.default_rng(dimensions)
    for _ in range(12):
        shape, num_classes = tuple(rng.integers(4, 20, dimensions)), int(rng.integers(2, 7))
        pred, truth = (random_labels(rng, shape, num_classes).astype(dtype) for _ in range(2))
        spacing = random_spacing(rng, dimensions)
        rows = score_volume(pred, truth, num_classes, spacing, convention="nan", tolerance=1.5)
        assert [row.label for row in rows] == list(range(1, num_classes))
        for row in rows:
            predicted, right = pred == row.label, truth == row.label
            assert (row.pred_voxels, row.truth_voxels) == (predicted.sum(), right.sum())
            if row.outcome != "found":
                continue
            assert row.dice == pytest.approx(binary.dc(predicted, right), abs=1e-12)
            assert row.hd95 == pytest.approx(medpy_score("hd95", predicted, right, spacing), abs=1e-9)
            assert row.assd == pytest.approx(medpy_score("assd", predicted, right, spacing), abs=1e-9)
            assert row.hd95_max_directed == pytest.approx(hd95_max_directed(predicted, right, spacing), abs=1e-12)
            assert row.surface_dice == pytest.approx(surface_dice(predicted, right, 1.5, spacing), abs=1e-12)


def test_many_classes_need_no_table_of_pairs():
    labels = np.arange(300 * 4).reshape(30, 40) // 4
    rows = score_volume(labels, labels, 70_000)
    assert len(rows) == 69_999
    assert all(row.dice == 1 and row.hd95 == 0 for row in rows)
    assert Counter(row.outcome for row in rows) == {"found": 299, "absent": 69_700}


def test_one_line_by_hand():
    # The prediction is 20 voxels long, the truth its first: distances 0..19 one way, 0 the other.
    pred, truth = np.zeros((2, 3, 30), dtype=bool)
    pred[1, 5:25], truth[1, 5] = True, True
    assert dice(pred, truth) == 2 / 21
    assert hd95(pred, truth) == pytest.approx(18.0)  # place 0.95 · 20 of 0, 0, 1, …, 19
    assert hd95_max_directed(pred, truth) == pytest.approx(18.05)  # place 0.95 · 19 of 0, 1, …, 19
    assert assd(pred, truth) == pytest.approx(190 / 21)
    assert surface_dice(pred, truth, 2) == pytest.approx(4 / 21)
    assert hd95(pred, truth, (5.0, 0.5)) == pytest.approx(9.0)
    assert surface_dice(pred, truth, 1.0, (5.0, 0.5)) == pytest.approx(4 / 21)


def test_rounding_does_not_decide_what_is_within_the_tolerance():
    pred, truth = np.zeros((2, 1, 9), dtype=bool)
    pred[0, 6], truth[0, 3] = True, True
    assert 3 * 0.1 > 0.3
    assert surface_dice(pred, truth, 0.3, (1.0, 0.1)) == 1.0
    assert surface_dice(pred, truth, 0.29, (1.0, 0.1)) == 0.0


def test_the_edge_of_the_volume_is_surface():
    full = np.ones((5, 5), dtype=bool)
    inner = np.zeros((5, 5), dtype=bool)
    inner[2, 2] = True
    assert hd95_max_directed(full, inner) == pytest.approx(math.sqrt(8))
    assert assd(full, full) == 0
    assert assd(full, np.pad(full[1:-1, 1:-1], 1)) == pytest.approx((20 + 4 * math.sqrt(2)) / 24)


@given(st.data())
@settings(max_examples=60, deadline=None)
def test_scores_do_not_depend_on_how_the_volume_lies(data):
    rng = np.random.default_rng(data.draw(st.integers(0, 2**32 - 1)))
    shape = tuple(data.draw(st.lists(st.integers(1, 9), min_size=2, max_size=3)))
    pred, truth = rng.integers(0, 4, (2, *shape)) * (rng.random((2, *shape)) < data.draw(st.floats(0.05, 1)))
    spacing = rng.uniform(0.5, 3, len(shape))
    expected = values(score_volume(pred, truth, 4, spacing.tolist(), "nan"))

    np.testing.assert_allclose(values(score_volume(truth, pred, 4, spacing.tolist(), "nan")), expected, atol=1e-12)
    order = data.draw(st.sampled_from(list(permutations(range(len(shape))))))
    turned = score_volume(pred.transpose(order), truth.transpose(order), 4, spacing[list(order)].tolist(), "nan")
    np.testing.assert_allclose(values(turned), expected, atol=1e-12)
    mixed = score_volume(np.asfortranarray(pred)[::-1], truth[::-1], 4, spacing.tolist(), "nan")
    np.testing.assert_allclose(values(mixed), expected, atol=1e-12)
    padded = score_volume(np.pad(pred, 2), np.pad(truth, 2), 4, spacing.tolist(), "nan")
    np.testing.assert_allclose(values(padded), expected, atol=1e-12)
    larger = score_volume(pred, truth, 4, (7 * spacing).tolist(), "nan", tolerance=7.0)
    np.testing.assert_allclose(values(larger), expected * [1, 1, 7, 7, 7], atol=1e-12)


def test_scores_are_plain_numbers():
    pred, truth = np.random.default_rng(0).integers(0, 2, (2, 6, 7, 8)).astype(bool)
    (row,) = score_volume(pred, truth, 2)
    kinds = {type(value) for value in dataclasses.asdict(row).values()}
    assert kinds == {int, float, str}
    alone = [dice(pred, truth), hd95(pred, truth), assd(pred, truth), surface_dice(pred, truth, 1.0)]
    assert {type(value) for value in alone} == {float}


def values(rows):
    return np.array([[getattr(row, name) for name in ("dice", "surface_dice", *DISTANCES)] for row in rows])


def test_scoring_leaves_its_arguments_alone():
    rng = np.random.default_rng(0)
    pred, truth = rng.integers(0, 3, (2, 6, 7, 8))
    copies = pred.copy(), truth.copy()
    pred.setflags(write=False)
    score_volume(pred, truth, 3)
    np.testing.assert_array_equal(pred, copies[0])
    np.testing.assert_array_equal(truth, copies[1])


def test_importing_the_metrics_loads_neither_torch_nor_scipy():
    code = "import adawac.metrics, sys; print([name for name in ('torch', 'scipy') if name in sys.modules])"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "[]\n"


def test_public_names():
    assert all(hasattr(metrics, name) for name in metrics.__all__)
