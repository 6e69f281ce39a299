"""Views: exact copies, rotations that stay rotations, randomness that belongs to the sample, SciPy's own numbers."""

import re
from functools import partial

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image
from scipy import ndimage
from torch.nn import functional
from torch.utils.data import DataLoader

from adawac.data.resample import Ragged, released_views, warp
from adawac.data.views import (
    IDENTITY,
    PairDataset,
    ViewConfig,
    ViewDraws,
    make_views,
    random_order,
    sample_keys,
    sample_views,
)
from adawac.errors import ConfigError, DataError, ShapeError
from adawac.losses import undo_view

SIZES = [(154, 224), (256, 216), (37, 53), (101, 99), (7, 5)]


def smooth(shape, seed=0, sigma=4.0):
    noise = np.random.default_rng(seed).standard_normal(shape)
    field = ndimage.gaussian_filter(noise, sigma, mode="nearest")
    return torch.from_numpy((field / field.std()).astype(np.float32))


def draws(turns=0, flip=-1, angle=0, zoom=1.0, shift=(0.0, 0.0), count=1):
    def whole(value):
        return torch.full((count,), value, dtype=torch.int64)

    return ViewDraws(
        turns=whole(turns),
        flip=whole(flip),
        angle=whole(angle),
        zoom=torch.full((count,), zoom),
        shift=torch.tensor([shift] * count),
        power=torch.ones(count),
        sigma=torch.zeros(count),
        key=whole(1),
        brightness=torch.zeros(count),
        contrast=torch.ones(count),
        saturation=torch.ones(count),
        hue=whole(0),
        blur=torch.zeros(count),
    )


def extent(shape):
    return torch.tensor([shape], dtype=torch.float32)


def identity(dims):
    return torch.eye(dims, dims + 1)[None]


def ragged(shapes, seed=0, channels=1):
    rng = np.random.default_rng(seed)
    images = [rng.random((channels, *shape), dtype=np.float32) for shape in shapes]
    labels = [rng.integers(0, 4, (1, *shape), dtype=np.uint8) for shape in shapes]
    return Ragged.from_arrays(images), Ragged.from_arrays(labels)


# -- the warp ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("shape", SIZES)
def test_identity_view_is_the_plain_resize(shape):
    image, size = torch.rand(1, 2, *shape), (48, 64)
    label = torch.randint(0, 4, (1, *shape))
    x, y = warp(image, label, identity(2), size)
    expected = functional.interpolate(image, size, mode="bilinear", align_corners=False)
    torch.testing.assert_close(x, expected, atol=1e-4, rtol=0)
    # Where a new pixel's centre falls between two old ones, both are nearest.
    either = [
        functional.interpolate(torch.roll(label, (a, b), (1, 2))[:, None].double(), size, mode="nearest-exact")[:, 0]
        for a in (0, 1)
        for b in (0, 1)
    ]
    assert torch.stack([y == value for value in either]).any(0).all()
    assert (y == either[0]).float().mean() > 0.75


def test_identity_view_is_the_plain_resize_in_3d():
    image = torch.rand(2, 1, 9, 14, 11)
    x, _ = warp(image, None, identity(3).repeat(2, 1, 1), (6, 16, 8))
    torch.testing.assert_close(
        x, functional.interpolate(image, (6, 16, 8), mode="trilinear", align_corners=False), atol=1e-5, rtol=0
    )


@pytest.mark.parametrize("interpolation", ["nearest", "bilinear", "cubic"])
@pytest.mark.parametrize("turns", range(4))
@pytest.mark.parametrize("flip", [0, 1])
def test_turns_and_flips_copy_pixels_exactly(turns, flip, interpolation):
    image, label = torch.randn(1, 1, 31, 31), torch.randint(0, 9, (1, 31, 31))
    theta = draws(turns, flip).theta(extent((31, 31)))
    x, y = warp(image, label, theta, (31, 31), interpolation)
    np.testing.assert_array_equal(x[0, 0], np.flip(np.rot90(image[0, 0], turns), flip))
    np.testing.assert_array_equal(y[0], np.flip(np.rot90(label[0], turns), flip))


@pytest.mark.parametrize("flip", [0, 1, 2])
def test_turns_and_flips_in_3d_are_in_plane_and_exact(flip):
    image = torch.randn(1, 1, 5, 12, 12)
    x, _ = warp(image, None, draws(1, flip).theta(extent((5, 12, 12))), (5, 12, 12))
    np.testing.assert_array_equal(x[0, 0], np.flip(np.rot90(image[0, 0], 1, axes=(1, 2)), flip))


def test_warp_agrees_with_grid_sample():
    image = smooth((60, 40))[None, None]
    theta = draws(angle=17, zoom=1.2, shift=(0.05, -0.1)).theta(extent((60, 40)))
    grid = functional.affine_grid(theta, [1, 1, 48, 56], align_corners=False)
    inside = (grid.abs() <= 1).all(-1)
    for ours, theirs in (("bilinear", "bilinear"), ("nearest", "nearest")):
        x, _ = warp(image, None, theta, (48, 56), ours)
        expected = functional.grid_sample(image, grid, mode=theirs, padding_mode="border", align_corners=False)[0, 0]
        assert (x[0, 0][~inside[0]] == 0).all()
        assert ((x[0, 0] - expected)[inside[0]].abs() < 1e-4).float().mean() > 0.999


def test_cubic_is_exact_for_a_parabola():
    row = torch.arange(40, dtype=torch.float32)
    image = (row[:, None] ** 2 / 100 - row / 7)[None, None]
    x, _ = warp(image, None, identity(2), (90, 70), "cubic")
    positions = [(torch.arange(n) + 0.5) * 40 / n - 0.5 for n in (90, 70)]
    expected = positions[0][:, None] ** 2 / 100 - positions[1] / 7
    torch.testing.assert_close(x[0, 0, 6:-6, 6:-6], expected[6:-6, 6:-6], atol=1e-4, rtol=0)


@pytest.mark.parametrize("side", [32, 64, 96], ids=["read as one group", "in groups of two", "one at a time"])
def test_mixed_sizes_and_batch_composition_change_nothing(side):
    images, labels = ragged(SIZES, channels=2)
    theta = torch.cat([draws(angle=3 * row).theta(extent(shape)) for row, shape in enumerate(SIZES)])
    together = warp(images, labels, theta, (side, side))
    for row in range(len(SIZES)):
        only = torch.tensor([row])
        alone = warp(images.select(only), labels.select(only), theta[only], (side, side))
        assert torch.equal(together[0][row], alone[0][0])
        assert torch.equal(together[1][row], alone[1][0])


def test_the_device_path_gives_the_same_bits():
    from adawac.data.resample import _warp

    images, labels = ragged(SIZES)
    theta = torch.cat([draws(angle=7).theta(extent(shape)) for shape in SIZES])
    x, y = _warp(images, labels, theta, (32, 32), "bilinear")
    expected = warp(images, labels, theta, (32, 32))
    assert torch.equal(x, expected[0])
    assert torch.equal(y.long(), expected[1])


def test_warp_says_what_is_wrong():
    images, labels = ragged([(8, 8), (9, 9)])
    with pytest.raises(ShapeError, match=r"one map per image"):
        warp(images, labels, identity(2), (8, 8))
    with pytest.raises(ShapeError, match="one label map per image"):
        warp(images, labels.select(torch.tensor([0])), identity(2).repeat(2, 1, 1), (8, 8))
    with pytest.raises(ShapeError, match="channel count"):
        Ragged.from_arrays([np.zeros((1, 3, 3)), np.zeros((2, 3, 3))])


# -- geometry ----------------------------------------------------------------------------------------------------------


def disc(shape, centre, radius, spacing=(1.0, 1.0)):
    rows, columns = np.mgrid[: shape[0], : shape[1]]
    distance = ((rows - centre[0]) * spacing[0]) ** 2 + ((columns - centre[1]) * spacing[1]) ** 2
    return torch.from_numpy((distance <= radius**2).astype(np.int64))[None]


def moments(mask, scale):
    """Return the centre and the ratio of the axes of a region, in units of `scale` per pixel."""
    points = np.argwhere(mask.numpy()) * np.array(scale)
    axes = np.linalg.eigvalsh(np.cov(points.T))
    return points.mean(0), np.sqrt(axes[1] / axes[0])


@pytest.mark.parametrize("angle", [-20, -7, 13, 19])
@pytest.mark.parametrize(("shape", "spacing"), [((154, 224), (1, 1)), ((256, 128), (1, 1)), ((120, 120), (2.0, 1.0))])
def test_a_disc_stays_round_when_a_slice_that_is_not_square_is_rotated(shape, spacing, angle):
    centre = (shape[0] * 0.4, shape[1] * 0.55)
    radius = 0.22 * min(shape[0] * spacing[0], shape[1] * spacing[1])
    label = disc(shape, centre, radius, spacing)
    physical = np.array(shape) * np.array(spacing)
    theta = draws(angle=angle).theta(extent(tuple(physical)))
    _, y = warp(label[:, None].float(), label, theta, (224, 224))
    found, ratio = moments(y[0], physical / 224)
    assert ratio < 1.01
    # It has moved on a circle about the slice's centre, against the sense of rotation of the map.
    offset = np.array(centre) * spacing + np.array(spacing) / 2 - physical / 2
    radians = np.deg2rad(angle)
    turn = np.array([[np.cos(radians), -np.sin(radians)], [np.sin(radians), np.cos(radians)]])
    np.testing.assert_allclose(found + physical / 448 - physical / 2, turn @ offset, atol=0.5)
    # The same map without the slice's aspect shears it: this test can tell.
    if shape != (120, 120):
        sheared = draws(angle=angle).theta(extent((1, 1)))
        _, y = warp(label[:, None].float(), label, sheared, (224, 224))
        assert moments(y[0], physical / 224)[1] > 1.01


def test_quarter_turns_move_the_whole_canvas():
    label = torch.ones(1, 30, 50, dtype=torch.int64)
    for turns in range(4):
        _, y = warp(label[:, None].float(), label, draws(turns, 0).theta(extent((30, 50))), (40, 40))
        assert y.all()


@pytest.mark.parametrize("shape", [(96, 96), (80, 120)])
@pytest.mark.parametrize("how", [{"angle": 14}, {"angle": -20}, {"turns": 1, "flip": 0}, {"angle": 5, "zoom": 1.3}])
def test_image_and_label_of_a_bar_pattern_stay_registered(shape, how):
    bars = torch.zeros(shape, dtype=torch.int64)
    for number, start in enumerate(range(12, shape[1] - 12, 16)):
        bars[15 : shape[0] - 20, start : start + 6] = number + 1
    theta = draws(**how).theta(extent(shape))
    x, y = warp(bars[None, None].ne(0).float(), bars[None], theta, (131, 131))
    grid = torch.stack(torch.meshgrid(torch.arange(131.0), torch.arange(131.0), indexing="ij"))
    overlap = ((x[0, 0] > 0.5) & (y[0] > 0)).sum() / ((x[0, 0] > 0.5) | (y[0] > 0)).sum()
    assert overlap > 0.9
    for number in y.unique()[1:]:
        near = functional.max_pool2d(y.eq(number)[:, None].float(), 5, 1, 2)[0, 0] * x[0, 0]
        by_image = (grid * near).sum((1, 2)) / near.sum()
        by_label = (grid * y[0].eq(number)).sum((1, 2)) / y[0].eq(number).sum()
        assert (by_image - by_label).abs().max() < 0.4  # of 1.4 pixels that a native one is wide


@pytest.mark.parametrize("shape", [(64, 64), (60, 90)])
@settings(max_examples=15, deadline=None)
@given(turns=st.integers(0, 3), flip=st.integers(-1, 1), angle=st.integers(-20, 19), zoom=st.floats(0.9, 1.1))
def test_theta_and_its_inverse_undo_a_view(shape, turns, flip, angle, zoom):
    image = smooth(shape, sigma=6)[None, None]
    plain, _ = warp(image, None, identity(2), (64, 64))
    how = {"turns": turns, "flip": flip} if flip >= 0 else {"angle": angle, "zoom": zoom, "shift": (0.03, -0.02)}
    theta = draws(**how).theta(extent(shape))
    view, _ = warp(image, None, theta, (64, 64))
    restored, visible = undo_view(view, theta)
    inner = functional.max_pool2d((~visible).float(), 5, 1, 2)[0, 0] == 0
    inner[:2], inner[-2:], inner[:, :2], inner[:, -2:] = False, False, False, False
    assert inner.float().mean() > 0.4
    assert (restored - plain)[0, 0][inner].abs().max() < 0.08


# -- randomness --------------------------------------------------------------------------------------------------------


def fields_equal(a, b):
    return all(torch.equal(left, right) for left, right in zip(a, b, strict=True))


def take(draws_, rows):
    return ViewDraws(*(values[rows] for values in draws_))


def test_views_depend_on_seed_epoch_sample_and_view_alone():
    config = ViewConfig(scale=0.2, shift=0.1, gamma=0.5, noise=0.1)
    sample = torch.arange(1000)
    whole = sample_views(config, 7, 3, sample, 1)
    rows = torch.tensor([999, 4, 4, 250])
    assert fields_equal(take(whole, rows), sample_views(config, 7, 3, rows, 1))
    assert fields_equal(whole, sample_views(config, 7, torch.tensor(3), sample, torch.ones(1000, dtype=torch.int64)))
    for seed, epoch, view in ((8, 3, 1), (7, 4, 1), (7, 3, 0), (3, 7, 1)):
        other = sample_views(config, seed, epoch, sample, view)
        assert (other.zoom == whole.zoom).float().mean() < 0.01
        assert abs(np.corrcoef(other.zoom, whole.zoom)[0, 1]) < 0.1


def test_the_draws_are_pinned():
    # A change of the hash would change the data of every run: it must be deliberate.
    drawn = sample_views(ViewConfig(), 1234, 0, torch.arange(6), 0)
    assert drawn.turns.tolist() == [0, 0, 0, 0, 1, 0]
    assert drawn.flip.tolist() == [-1, -1, -1, -1, 0, -1]
    assert drawn.angle.tolist() == [16, 19, -3, 6, 0, 12]


def test_the_distribution_is_the_papers():
    n = 40_000
    drawn = sample_views(ViewConfig(), 0, 0, torch.arange(n), 0)
    turned = drawn.flip >= 0
    assert abs(turned.float().mean() - 0.5) < 0.01
    for values, count in ((drawn.turns[turned], 4), (drawn.flip[turned], 2), (drawn.angle[~turned] + 20, 40)):
        share = torch.bincount(values, minlength=count) / len(values)
        assert len(share) == count
        assert (share * count - 1).abs().max() < 0.15
    assert (drawn.angle[turned] == 0).all()
    assert (drawn.turns[~turned] == 0).all()
    assert (drawn.zoom == 1).all()
    assert (drawn.shift == 0).all()


def test_the_optional_changes_fill_their_ranges():
    config = ViewConfig(
        scale=0.25, shift=0.1, gamma=1.0, noise=0.2, brightness=0.3, contrast=0.5, saturation=0.4, hue=30, blur=2.0
    )
    drawn = sample_views(config, 0, 0, torch.arange(5000), 0)
    for values, low, high in (
        (drawn.zoom, 0.75, 1.25),
        (drawn.shift, -0.1, 0.1),
        (drawn.power, 0.5, 2.0),
        (drawn.sigma, 0.0, 0.2),
        (drawn.brightness, -0.3, 0.3),
        (drawn.contrast, 1 / 1.5, 1.5),
        (drawn.saturation, 0.6, 1.4),
        (drawn.hue, -30, 30),
        (drawn.blur, 0.0, 2.0),
    ):
        assert low <= values.min() < low + 0.02 * (high - low)
        assert high - 0.02 * (high - low) < values.max() <= high


def test_order_is_a_function_of_seed_and_epoch():
    keys = sample_keys(f"data/patient{i}/case/0/{i}" for i in range(500))
    order = random_order(1, 2, keys)
    assert sorted(order.tolist()) == list(range(500))
    assert torch.equal(order, random_order(1, 2, keys))
    assert not torch.equal(order, random_order(1, 3, keys))
    assert not torch.equal(order, random_order(2, 2, keys))
    assert abs(np.corrcoef(order, np.arange(500))[0, 1]) < 0.15
    # Samples keep their order when others leave.
    kept = torch.arange(0, 500, 3)
    assert torch.equal(kept[random_order(1, 2, keys[kept])], order[torch.isin(order, kept)])


def test_sample_keys_are_those_of_the_ids():
    assert sample_keys(["a", "b"]).tolist() == [sample_keys(["a"]).item(), sample_keys(["b"]).item()]
    assert len(set(sample_keys(map(str, range(10_000))).tolist())) == 10_000


def test_identity_config_draws_nothing():
    drawn = sample_views(IDENTITY, 0, 0, torch.arange(100), 0)
    assert torch.equal(drawn.theta(torch.ones(100, 2)), identity(2).repeat(100, 1, 1))


@pytest.mark.parametrize(
    "wrong",
    [
        {"turn": 1.5},
        {"max_angle": -1},
        {"interpolation": "spline"},
        {"mode": "old"},
        {"mode": "released", "gamma": 0.1},
        {"mode": "released", "hue": 5},
        {"saturation": 1.5},
    ],
)
def test_config_refuses_nonsense(wrong):
    with pytest.raises(ConfigError, match="Expected"):
        ViewConfig(**wrong)


def test_gamma_and_noise_do_what_they_say():
    images, labels = (
        Ragged.from_batch(torch.rand(4, 1, 64, 64) * 3 - 1),
        Ragged.from_batch(torch.zeros(4, 1, 64, 64).byte()),
    )
    settings_ = {"seed": 0, "epoch": 0, "sample": torch.arange(4), "size": (64, 64)}
    plain = make_views(images, labels, config=IDENTITY, **settings_)["images"]
    bent = make_views(images, labels, config=ViewConfig(turn=0, rotate=0, gamma=1.0), **settings_)["images"]
    for before, after in zip(plain, bent, strict=True):
        torch.testing.assert_close(before.amax((1, 2, 3)), after.amax((1, 2, 3)))
        torch.testing.assert_close(before.amin((1, 2, 3)), after.amin((1, 2, 3)))
        assert (torch.diff(after[0].flatten()[before[0].flatten().argsort()]) >= 0).all()
        assert not torch.allclose(before, after)
    noisy = make_views(images, labels, config=ViewConfig(turn=0, rotate=0, noise=0.3), **settings_)["images"]
    sigma = sample_views(ViewConfig(noise=0.3), 0, 0, torch.arange(4), 0).sigma
    noise = noisy[0] - plain[0]
    torch.testing.assert_close(noise.std((1, 2, 3)), sigma, rtol=0.05, atol=0)
    assert noise.mean((1, 2, 3)).abs().max() < 0.02
    z = (noise[0] / sigma[0]).flatten()
    assert abs((z.abs() < 1).float().mean() - 0.683) < 0.03
    assert abs(np.corrcoef(z[:-1], z[1:])[0, 1]) < 0.06
    assert not torch.allclose(noise, noisy[1] - plain[1])


# -- colours and blur --------------------------------------------------------------------------------------------------

LUMA = torch.tensor([0.299, 0.587, 0.114])


def colour_batch(count=4, side=24):
    image = torch.rand(count, 3, side, side, generator=torch.Generator().manual_seed(0))
    return Ragged.from_batch(image), Ragged.from_batch(torch.zeros(count, 1, side, side).byte()), image


def changed(images, labels, seed=0, **options):
    config = ViewConfig(turn=0, rotate=0, **options)
    size = tuple(images.shapes[0].tolist())
    sample = torch.arange(len(images))
    made = make_views(images, labels, config=config, seed=seed, epoch=0, sample=sample, size=size)
    return made["images"][0], sample_views(config, seed, 0, sample, 0)


def luma(image):
    return torch.einsum("c,bchw->bhw", LUMA, image)


def test_photometric_options_that_are_off_draw_the_same_views_as_before():
    sample = torch.arange(50)
    before = sample_views(ViewConfig(scale=0.2, gamma=0.4, noise=0.1), 3, 1, sample, 1)
    after = sample_views(ViewConfig(scale=0.2, gamma=0.4, noise=0.1, hue=40, blur=1.0, contrast=0.5), 3, 1, sample, 1)
    for name in ("turns", "flip", "angle", "zoom", "shift", "power", "sigma", "key"):
        assert torch.equal(getattr(before, name), getattr(after, name))
    assert (before.hue == 0).all()
    assert (before.saturation == 1).all()


def test_hue_turns_colours_and_neither_grey_nor_brightness():
    images, labels, image = colour_batch()
    turned, drawn = changed(images, labels, hue=180)
    assert drawn.hue.unique().numel() == 4
    torch.testing.assert_close(luma(turned), luma(image), atol=1e-5, rtol=0)
    assert (turned - image).abs().amax((1, 2, 3)).median() > 0.3
    grey = image.mean(1, keepdim=True).expand_as(image)
    unchanged, _ = changed(Ragged.from_batch(grey), labels, hue=180, saturation=1.0)
    torch.testing.assert_close(unchanged, grey, atol=1e-5, rtol=0)


def test_three_turns_of_the_hue_by_a_third_are_none_and_half_a_turn_gives_the_complement():
    from adawac.data.views import _colour_maps

    drawn = draws(count=2)._replace(hue=torch.tensor([120, 180]))
    third, half = _colour_maps(drawn)
    torch.testing.assert_close(third @ third @ third, torch.eye(3), atol=1e-5, rtol=0)
    red = torch.tensor([1.0, 0, 0])
    torch.testing.assert_close(half @ red, 2 * LUMA[0] - red, atol=1e-5, rtol=0)


def test_no_saturation_leaves_the_grey_picture():
    from adawac.data.views import _colour_maps

    (grey,) = _colour_maps(draws()._replace(saturation=torch.zeros(1)))
    torch.testing.assert_close(grey, LUMA.repeat(3, 1), atol=1e-5, rtol=0)
    images, labels, image = colour_batch()
    faded, drawn = changed(images, labels, saturation=1.0)
    expected = luma(image)[:, None] + drawn.saturation.view(-1, 1, 1, 1) * (image - luma(image)[:, None])
    torch.testing.assert_close(faded, expected, atol=1e-5, rtol=0)


def test_brightness_and_contrast_are_affine_in_each_image():
    images, labels, image = colour_batch()
    lighter, drawn = changed(images, labels, brightness=0.4)
    torch.testing.assert_close(lighter - image, drawn.brightness.view(-1, 1, 1, 1).expand_as(image))
    stretched, drawn = changed(images, labels, contrast=1.0)
    low, high = image.amin((1, 2, 3)), image.amax((1, 2, 3))
    torch.testing.assert_close(stretched.amax((1, 2, 3)) - stretched.amin((1, 2, 3)), (high - low) * drawn.contrast)
    torch.testing.assert_close(stretched.amax((1, 2, 3)) + stretched.amin((1, 2, 3)), high + low)


@pytest.mark.parametrize("channels", [1, 3])
def test_blur_is_scipys_gaussian(channels):
    image = torch.rand(3, channels, 40, 33, generator=torch.Generator().manual_seed(1))
    labels = Ragged.from_batch(torch.zeros(3, 1, 40, 33).byte())
    blurred, drawn = changed(Ragged.from_batch(image), labels, blur=2.5)
    for number, sigma in enumerate(drawn.blur.tolist()):
        expected = ndimage.gaussian_filter(image[number].numpy(), (0, sigma, sigma), mode="nearest", radius=(0, 8, 8))
        np.testing.assert_allclose(blurred[number], expected, atol=1e-5)


def test_a_view_in_colour_does_not_depend_on_the_others_of_its_batch():
    images, labels, _ = colour_batch()
    options = {"hue": 30, "saturation": 0.5, "brightness": 0.2, "contrast": 0.5, "blur": 1.5, "gamma": 0.3}
    whole, _ = changed(images, labels, **options)
    config, row = ViewConfig(turn=0, rotate=0, **options), torch.tensor([2])
    alone = make_views(
        images.select(row), labels.select(row), config=config, seed=0, epoch=0, sample=row, size=(24, 24)
    )
    assert torch.equal(whole[2], alone["images"][0][0])


def test_colours_of_grey_images_are_refused():
    images, labels = ragged([(8, 8)], channels=2)
    with pytest.raises(ConfigError, match="3 channels, red, green and blue"):
        changed(images, labels, hue=10)


# -- the released code's transform -------------------------------------------------------------------------------------


def scipy_view(image, label, turns, flip, angle, size):
    if flip >= 0:
        image, label = (np.flip(np.rot90(array, turns), flip).copy() for array in (image, label))
    else:
        image, label = (ndimage.rotate(array, angle, order=0, reshape=False) for array in (image, label))
    zoom = [new / old for new, old in zip(size, image.shape, strict=True)]
    return ndimage.zoom(image, zoom, order=3), ndimage.zoom(label, zoom, order=0)


@pytest.mark.parametrize(
    ("shape", "size"),
    [
        *((shape, (224, 224)) for shape in ((512, 512), (428, 512), (256, 216), (154, 224))),
        *(((37, 53), (32, 48)), ((101, 99), (64, 64)), ((7, 5), (16, 16)), ((33, 33), (33, 33))),
    ],
)
def test_released_mode_gives_scipys_numbers(shape, size):
    rng = np.random.default_rng(0)
    image, label = rng.random(shape, dtype=np.float32), rng.integers(0, 9, shape, dtype=np.uint8)
    boxes = Ragged.from_arrays([image[None]]), Ragged.from_arrays([label[None]])
    for how in (
        {"turns": 1, "flip": 0},
        {"turns": 3, "flip": 1},
        {"turns": 2, "flip": 1},
        {"angle": -20},
        {"angle": 0},
        {"angle": 11},
    ):
        x, y, _ = released_views(*boxes, draws(**how), size)
        expected = scipy_view(
            image, label, *(how.get(name, -(name == "flip")) for name in ("turns", "flip", "angle")), size
        )
        np.testing.assert_allclose(x[0, 0], expected[0], atol=1e-5)
        np.testing.assert_array_equal(y[0], expected[1])
    if shape == (512, 512):  # SciPy's quirk is there to be kept
        assert not x[0, 0, -1].any()
        assert not y[0, :, -1].any()


@pytest.mark.parametrize("how", [{"turns": 1, "flip": 0}, {"turns": 2, "flip": 1}, {"angle": 17}, {"angle": -9}])
@pytest.mark.parametrize("shape", [(154, 224), (256, 216)])
def test_released_and_affine_views_with_the_same_draws_show_the_same(shape, how):
    image = smooth(shape, sigma=8)
    label = (image > 0.5).byte()
    x, y, theta = released_views(
        Ragged.from_batch(image[None, None]), Ragged.from_batch(label[None, None]), draws(**how), (224, 224)
    )
    x2, y2 = warp(image[None, None], label[None], draws(**how).theta(extent(shape)), (224, 224))
    inner = (slice(None), slice(4, -4), slice(4, -4))
    assert (y[inner] == y2[inner]).float().mean() > 0.99
    # And the published map leads from the view back to the untransformed image, resized in the released way.
    plain, _, _ = released_views(
        Ragged.from_batch(image[None, None]), Ragged.from_batch(label[None, None]), draws(), (224, 224)
    )
    again, _ = warp(plain, None, theta, (224, 224))
    known = again[0, 0] != 0
    assert (again - x)[0, 0][known].abs().median() < 0.03
    assert (x2 - x)[0, 0][known].abs().median() < 0.05


def test_released_mode_is_for_slices_on_the_cpu():
    volume = Ragged.from_batch(torch.rand(1, 1, 4, 4, 4))
    with pytest.raises(ConfigError, match="2D slices on the CPU"):
        released_views(volume, volume, draws(), (4, 4, 4))


# -- PairDataset -------------------------------------------------------------------------------------------------------


class Scans(torch.utils.data.Dataset):
    def __init__(self, n=10, shape=(24, 30), kind=tuple):
        self.n, self.shape, self.kind = n, shape, kind

    def __len__(self):
        return self.n

    def __getitem__(self, i):
        rng = np.random.default_rng(i)
        image, label = rng.random((1, *self.shape), dtype=np.float32), rng.integers(0, 3, self.shape)
        return {"image": image, "label": label} if self.kind is dict else (image, label)


def test_pair_dataset_gives_the_criterions_batches():
    data = PairDataset(Scans(), size=(16, 16), seed=3)
    batch = next(iter(DataLoader(data, batch_size=4)))
    assert torch.cat(batch["images"]).shape == (8, 1, 16, 16)
    assert torch.cat(batch["labels"]).shape == (8, 16, 16)
    assert torch.cat(batch["labels"]).dtype == torch.int64
    assert batch["index"].tolist() == [0, 1, 2, 3]
    assert [view.shape for view in batch["views"]] == [(4, 2, 3)] * 2
    assert not torch.equal(*batch["images"])
    # The views are those of `sample_views`, and the maps are kept.
    image, label = Scans()[2]
    for view in (0, 1):
        theta = sample_views(ViewConfig(), 3, 0, torch.tensor([2]), view).theta(extent((24, 30)))
        x, y = warp(torch.tensor(image)[None], torch.tensor(label)[None], theta, (16, 16))
        assert torch.equal(batch["views"][view][2], theta[0])
        assert torch.equal(batch["images"][view][2], x[0])
        assert torch.equal(batch["labels"][view][2], y[0])


def batches(data, epochs, **options):
    loader = DataLoader(data, batch_size=3, **options)
    collected = []
    for epoch in range(epochs):
        data.set_epoch(epoch)
        collected += [(batch["index"], *batch["images"], *batch["labels"], *batch["views"]) for batch in loader]
    return collected


def test_workers_change_nothing_and_follow_the_epoch():
    alone = batches(PairDataset(Scans(), size=(16, 16)), 2)
    helped = batches(PairDataset(Scans(), size=(16, 16)), 2, num_workers=2, persistent_workers=True)
    assert len(alone) == len(helped) == 8
    for left, right in zip(alone, helped, strict=True):
        assert all(torch.equal(a, b) for a, b in zip(left, right, strict=True))
    assert not torch.equal(alone[0][1], alone[4][1])


def test_without_set_epoch_views_still_change():
    data = PairDataset(Scans(n=6), size=(16, 16))
    loader = DataLoader(data, batch_size=6, num_workers=1, persistent_workers=True)
    epochs = [torch.stack(next(iter(loader))["views"]) for _ in range(3)]
    assert not torch.equal(epochs[0], epochs[1])
    assert not torch.equal(epochs[1], epochs[2])
    data.set_epoch(1)
    assert torch.equal(torch.stack(next(iter(loader))["views"]), epochs[1])


def test_pair_dataset_in_3d_with_spacing_and_dicts():
    data = PairDataset(Scans(n=3, shape=(6, 20, 24), kind=dict), spacing=(5.0, 1.0, 1.0))
    batch = next(iter(DataLoader(data, batch_size=3)))
    assert torch.cat(batch["images"]).shape == (6, 1, 6, 20, 24)
    assert batch["views"][0].shape == (3, 3, 4)
    view, _ = warp(torch.tensor(Scans(shape=(6, 20, 24))[1][0])[None], None, batch["views"][1][1:2], (6, 20, 24))
    assert torch.equal(batch["images"][1][1], view[0])


def test_pair_dataset_takes_plain_images_and_says_what_is_wrong():
    plain = [
        (np.zeros((8, 9), np.float32), np.zeros((8, 9), np.uint8)),
        (np.zeros((1, 8, 9), np.float32), np.zeros((1, 8, 9), np.int16)),
    ]
    for row in (0, 1, -1):
        assert PairDataset(plain)[row]["images"][0].shape == (1, 8, 9)
    with pytest.raises(ShapeError, match=r"item 0.*on the image's grid"):
        PairDataset([(np.zeros((1, 8, 9), np.float32), np.zeros((8, 8), np.uint8))])[0]
    with pytest.raises(IndexError):
        PairDataset(plain)[2]


def test_views_of_an_unlabelled_sample_are_unlabelled_also_beyond_the_border():
    image, label = np.ones((24, 24), np.float32), np.full((24, 24), 255, np.uint8)
    partly = label.copy()
    partly[:12] = 1
    shift = ViewConfig(shift=0.4)
    views = PairDataset([(image, label), (image, partly)], config=shift, ignore_index=255)
    plain = PairDataset([(image, label)], config=shift)
    seen = [plain[0]["labels"][k].unique().tolist() for k in range(2)]
    assert [0, 255] in seen  # the shift shows what lies beyond
    assert all((labels == 255).all() for labels in views[0]["labels"])
    assert any((labels != 255).any() for labels in views[1]["labels"])


@pytest.mark.parametrize("shape", [(1, 8, 9), (2, 8, 9), (8, 9), (8, 9, 3), (1, 6, 8, 9)])
def test_a_sample_whose_label_map_is_none_is_unlabelled(shape):
    labelled, unlabelled = (
        PairDataset([(np.ones(shape, np.float32), label)], ignore_index=255)[0]
        for label in (np.zeros((6, 8, 9) if len(shape) == 4 else (8, 9), np.uint8), None)
    )
    assert [part.shape for part in unlabelled["labels"]] == [part.shape for part in labelled["labels"]]
    assert all((part == 255).all() for part in unlabelled["labels"])
    assert torch.equal(unlabelled["images"][1], labelled["images"][1])


@pytest.mark.parametrize("dtype", [np.uint16, np.uint32, np.uint64, np.int8, bool])
def test_pair_dataset_takes_labels_of_any_integer_type(dtype):
    image, label = Scans()[0]
    label = label > 0 if dtype is bool else label
    expected, pair = (PairDataset([(image, label.astype(kind))], seed=2)[0] for kind in (np.int64, dtype))
    for left, right in zip(expected["labels"], pair["labels"], strict=True):
        assert torch.equal(left, right)
        assert right.dtype == torch.int64


@pytest.mark.parametrize("shape", [(24, 30), (6, 20, 24)])
def test_one_number_is_the_size_of_all_sides(shape):
    assert PairDataset(Scans(shape=shape), size=16)[0]["labels"][1].shape == (16,) * len(shape)


@pytest.mark.parametrize("size", [(16,), (16, 16, 16), (0, 16), 0, "16", (16.0, 16.0)])
def test_a_size_that_does_not_fit_is_named(size):
    with pytest.raises(ShapeError, match=rf"size of 2 positive whole numbers.* but got {re.escape(repr(size))}"):
        PairDataset(Scans(), size=size)[0]


@pytest.mark.parametrize(
    ("item", "message"),
    [
        (
            {"img": np.zeros((1, 8, 9)), "seg": np.zeros((8, 9), np.uint8)},
            r"item 0 is not that \(the keys img, seg: 'image'",
        ),
        ((np.zeros((1, 8, 9)),), "item 0 is not that .tuple"),
        ((np.zeros((1, 8, 9)), None), "item 0 is not that .tuple.*may be None with PairDataset"),
        (("a.png", "b.png"), "item 0 is not that .tuple"),
        (3, "item 0 is not that .int"),
    ],
)
def test_items_without_image_and_label_are_explained(item, message):
    with pytest.raises(DataError, match=message):
        PairDataset([item])[0]


IMAGE = np.arange(72, dtype=np.uint8).reshape(8, 9)
MASK = (IMAGE % 3).astype(np.uint8)
COLOURS = np.stack([IMAGE, 255 - IMAGE, 2 * IMAGE], -1)


@pytest.mark.parametrize(
    ("item", "image"),
    [
        ({"image": IMAGE, "mask": MASK}, IMAGE[None]),
        ({"image": COLOURS, "mask": MASK}, COLOURS.transpose(2, 0, 1)),
        ({"image": COLOURS, "mask": MASK[..., None]}, COLOURS.transpose(2, 0, 1)),
        ((COLOURS.transpose(2, 0, 1), MASK[..., None]), COLOURS.transpose(2, 0, 1)),
        ((COLOURS, MASK[None]), COLOURS.transpose(2, 0, 1)),
        ((IMAGE[..., None], MASK[..., None]), IMAGE[None]),
        ((IMAGE[..., None], MASK), IMAGE[None]),
        ((IMAGE, MASK.astype(np.float32)), IMAGE[None]),
        ((IMAGE.astype(np.uint16), MASK.astype(np.float64)[None]), IMAGE[None]),
        ((Image.fromarray(IMAGE), Image.fromarray(MASK)), IMAGE[None]),
        ((Image.fromarray(COLOURS), Image.fromarray(MASK)), COLOURS.transpose(2, 0, 1)),
        ((Image.fromarray(IMAGE.astype(np.uint16)), Image.fromarray(MASK)), IMAGE[None]),
        ({"image": Image.fromarray(COLOURS), "mask": torch.from_numpy(MASK)}, COLOURS.transpose(2, 0, 1)),
    ],
)
def test_pair_dataset_takes_items_as_other_libraries_have_them(item, image):
    expected = PairDataset([(image.astype(np.float32), MASK.astype(np.int64))], seed=2)[0]
    pair = PairDataset([item], seed=2)[0]
    for name in ("images", "labels", "views"):
        for left, right in zip(expected[name], pair[name], strict=True):
            assert torch.equal(left, right)
            assert left.dtype == right.dtype


def test_a_palettes_colours_are_the_image_and_its_numbers_the_label():
    colours, classes = (Image.fromarray(array) for array in (COLOURS, MASK))
    palette, numbered = colours.quantize(256), classes.convert("P")
    numbered.putpalette([200, 0, 0, 0, 200, 0, 0, 0, 200])
    expected = PairDataset([(palette.convert("RGB"), classes)], seed=2)[0]
    pair = PairDataset([(palette, numbered)], seed=2)[0]
    assert torch.equal(pair["images"][1], expected["images"][1])
    assert torch.equal(pair["labels"][1], expected["labels"][1])


@pytest.mark.parametrize(
    ("item", "message"),
    [
        ((IMAGE, MASK / 255), r"values between classes.*item 0.*\(mask > 0\.5\).*ToTensor"),
        ((IMAGE, np.full((8, 9), np.nan)), r"values between classes"),
        ((COLOURS, COLOURS), r"class indices.*item 0.*colours"),
        ((Image.fromarray(IMAGE), Image.fromarray(COLOURS)), r"\(8, 9, 3\)"),
        ({"image": IMAGE, "mask": MASK, "label": MASK}, r"'label' and 'mask'.*leave one out"),
    ],
)
def test_what_has_two_meanings_is_refused(item, message):
    with pytest.raises((ShapeError, DataError), match=message):
        PairDataset([item])[0]


@pytest.mark.parametrize("workers", [0, 1])
def test_views_of_different_sizes_in_a_batch_are_explained(workers):
    items = [(np.zeros((8, side), np.float32), np.zeros((8, side), np.uint8)) for side in (8, 8, 12)]
    loader = partial(DataLoader, batch_size=3, num_workers=workers)
    with pytest.raises(ShapeError, match=r"samples of one size.*\(8, 12\).*PairDataset\(…, size=224\)"):
        next(iter(loader(PairDataset(items))))
    with pytest.raises(ShapeError, match=r"samples of one size"):
        next(iter(loader(torch.utils.data.Subset(PairDataset(items), [2, 1]))))
    assert next(iter(loader(PairDataset(items, size=8))))["images"][0].shape == (3, 1, 8, 8)
    assert len(list(loader(PairDataset(items), batch_size=1))) == 3


class Stream(torch.utils.data.IterableDataset):
    def __iter__(self):
        yield from Scans()


@pytest.mark.parametrize("dataset", [Stream(), iter([(IMAGE, MASK)]), DataLoader(Scans()), None])
def test_pair_dataset_needs_numbered_samples(dataset):
    with pytest.raises(DataError, match=rf"map-style data set.*but got an? .*{type(dataset).__name__}.*list\("):
        PairDataset(dataset)


SHIFT = ViewConfig(turn=0, rotate=0, shift=0.4)


@pytest.mark.parametrize("outside", [-1000, (-1.5, 2.0)])
def test_what_lies_outside_a_view_has_the_value_that_was_chosen(outside):
    item = np.ones((2, 24, 24), np.float32), np.ones((24, 24), np.uint8)
    plain = PairDataset([item], config=SHIFT)[0]
    pair = PairDataset([item], config=SHIFT, outside=outside)[0]
    ignored = PairDataset([item], config=SHIFT, ignore_index=-1, ignore_outside=True)[0]
    for view in (0, 1):
        beyond = plain["images"][view] == 0
        assert 0 < beyond.sum() < beyond.numel()
        values = torch.as_tensor(outside, dtype=torch.float32).view(-1, 1, 1).expand_as(beyond)
        assert torch.equal(pair["images"][view], values.where(beyond, 1))
        assert torch.equal(pair["labels"][view], plain["labels"][view])
        assert torch.equal(ignored["images"][view], plain["images"][view])
        assert torch.equal(ignored["labels"][view], torch.where(beyond[0], -1, 1))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"outside": "black"}, "number, or one for each channel.*'black'"),
        ({"outside": float("nan")}, "number, or one for each channel"),
        ({"outside": True}, "number, or one for each channel"),
        ({"ignore_outside": True}, "ignore_index"),
        ({"outside": 1.0, "config": ViewConfig(mode="released")}, "mode 'affine'"),
        ({"ignore_outside": True, "ignore_index": 255, "config": ViewConfig(mode="released")}, "mode 'affine'"),
    ],
)
def test_options_of_what_lies_outside_that_cannot_be_are_named(options, message):
    with pytest.raises(ConfigError, match=message):
        PairDataset(Scans(), **options)


def test_one_value_outside_for_each_channel():
    with pytest.raises(ShapeError, match=r"3 values.*1 channel.*item 2"):
        PairDataset(Scans(), outside=(0.0, 0.0, 0.0))[2]


# -- on a GPU ----------------------------------------------------------------------------------------------------------


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize(
    ("config", "channels"),
    [
        (ViewConfig(), 1),
        (ViewConfig(brightness=0.2, contrast=0.5, saturation=0.5, hue=40, blur=1.5, gamma=0.3, noise=0.1), 3),
    ],
)
def test_views_on_a_gpu_are_those_of_the_cpu_and_can_be_captured(config, channels):
    images, labels = ragged(SIZES, channels=channels)
    sample = torch.arange(len(SIZES))

    def views(device, epoch):
        return make_views(
            images.to(device),
            labels.to(device),
            config=config,
            seed=5,
            epoch=epoch,
            sample=sample.to(device),
            size=(64, 64),
        )

    for epoch in range(4):
        cpu, gpu = views("cpu", epoch), views("cuda", torch.tensor(epoch, device="cuda"))
        for left, right in zip(cpu["views"], gpu["views"], strict=True):
            assert torch.equal(left, right.cpu())
        for left, right in zip(cpu["images"], gpu["images"], strict=True):
            torch.testing.assert_close(left, right.cpu(), atol=1e-4, rtol=0)
        assert all(
            (left == right.cpu()).float().mean() > 0.999
            for left, right in zip(cpu["labels"], gpu["labels"], strict=True)
        )

    device_images, device_labels, rows = images.to("cuda"), labels.to("cuda"), sample.cuda()
    epoch = torch.zeros((), dtype=torch.int64, device="cuda")
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = make_views(
            device_images, device_labels, config=config, seed=5, epoch=epoch, sample=rows, size=(64, 64)
        )
    for number in (1, 3):
        epoch.fill_(number)
        graph.replay()
        assert all(torch.equal(a, b) for a, b in zip(captured["images"], views("cuda", number)["images"], strict=True))


def test_an_edge_belongs_to_the_image():
    """Moved by half a pixel, the last output pixel lies on the image's edge, where the border pixel goes on."""
    images = torch.arange(1.0, 5.0).reshape(1, 1, 1, 4)
    theta = torch.tensor([[[1.0, 0.0, 0.25], [0.0, 1.0, 0.0]]])
    assert warp(images, None, theta, (1, 4))[0].flatten().tolist() == [1.5, 2.5, 3.5, 4.0]


def test_an_image_of_one_pixel_is_spread_over_all():
    images, labels = torch.full((1, 1, 1, 1), 7.0), torch.full((1, 1, 1), 3)
    for interpolation in ("nearest", "bilinear", "cubic"):
        x, y = warp(images, labels, torch.eye(2, 3)[None], (2, 3), interpolation)
        assert (x == 7).all()
        assert (y == 3).all()


def test_labels_have_one_channel():
    labels = Ragged.from_batch(torch.zeros(1, 2, 4, 4, dtype=torch.int64))
    with pytest.raises(ShapeError, match="1 with 2 channels"):
        warp(torch.zeros(1, 1, 4, 4), labels, torch.eye(2, 3)[None], (4, 4))
