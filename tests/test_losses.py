"""The per-sample losses against torch, MONAI and geometry."""

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from adawac import losses


def random_logits(shape, seed=0, dtype=torch.float64):
    return torch.from_numpy(np.random.default_rng(seed).normal(scale=3, size=shape)).to(dtype)


def random_labels(shape, classes, seed=1):
    return torch.from_numpy(np.random.default_rng(seed).integers(0, classes, size=shape))


SHAPES = [(4, 5), (3, 4, 5)]


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("classes", [2, 9])
def test_cross_entropy_is_torchs_mean_over_a_samples_pixels(shape, classes):
    logits, labels = random_logits((3, classes, *shape)), random_labels((3, *shape), classes)
    expected = F.cross_entropy(logits, labels, reduction="none").flatten(1).mean(1)
    torch.testing.assert_close(losses.cross_entropy(logits, labels), expected)


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("squared", [False, True])
def test_dice_is_monais(shape, squared):
    from monai.losses import DiceLoss

    logits, labels = random_logits((3, 4, *shape)), random_labels((3, *shape), 4)
    theirs = DiceLoss(
        softmax=True, to_onehot_y=True, squared_pred=squared, reduction="none", smooth_nr=1e-5, smooth_dr=1e-5
    )(logits, labels.unsqueeze(1))
    ours = losses.dice_loss(logits, labels, denominator="squared" if squared else "l1", smooth=1e-5)
    torch.testing.assert_close(ours, theirs.flatten(1).mean(1))


def test_ignored_pixels_count_nowhere():
    logits, labels = random_logits((2, 3, 6, 6)), random_labels((2, 6, 6), 3)
    ignored = labels.clone()
    ignored[:, :, 4:] = 255
    cropped = losses.pixel_sums(logits[..., :4], labels[..., :4])
    masked = losses.pixel_sums(logits, ignored, ignore_index=255)
    for ours, expected in zip(masked, cropped, strict=True):
        torch.testing.assert_close(ours, expected)


def test_a_sample_with_every_pixel_ignored_has_no_loss_and_no_gradient():
    logits = random_logits((2, 3, 4, 4)).requires_grad_()
    labels = random_labels((2, 4, 4), 3)
    labels[0] = -1
    ce = losses.cross_entropy(logits, labels, ignore_index=-1)
    dice = losses.dice_loss(logits, labels, ignore_index=-1)
    assert ce[0] == 0
    assert dice[0] == 0
    (ce + dice).sum().backward()
    assert logits.grad[0].abs().max() == 0
    assert logits.grad[1].abs().max() > 0


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_logits_give_float32_losses(dtype):
    logits, labels = random_logits((2, 3, 8, 8), dtype=dtype).requires_grad_(), random_labels((2, 8, 8), 3)
    ce, dice = losses.cross_entropy(logits, labels), losses.dice_loss(logits, labels)
    assert ce.dtype == dice.dtype == torch.float32
    torch.testing.assert_close(ce, losses.cross_entropy(logits.detach().float(), labels))
    (ce + dice).sum().backward()
    assert logits.grad.dtype == dtype


@pytest.mark.parametrize("labels_dtype", [torch.uint8, torch.int16, torch.int32, torch.int64])
def test_any_integer_type_serves_as_label(labels_dtype):
    logits, labels = random_logits((2, 3, 4, 4)), random_labels((2, 4, 4), 3)
    torch.testing.assert_close(
        losses.cross_entropy(logits, labels.to(labels_dtype)), losses.cross_entropy(logits, labels)
    )


def test_extreme_logits_stay_finite():
    logits = torch.tensor([1e4, -1e4, 0.0]).view(1, 3, 1, 1).expand(1, 3, 2, 2).clone().requires_grad_()
    labels = torch.ones(1, 2, 2, dtype=torch.int64)
    total = losses.cross_entropy(logits, labels) + losses.dice_loss(logits, labels)
    torch.testing.assert_close(total, torch.tensor([2e4 + 1.0]))
    total.sum().backward()
    assert logits.grad.isfinite().all()


def test_distances_against_numpy():
    a, b = random_logits((3, 4, 2, 2), 2), random_logits((3, 4, 2, 2), 3)
    x, y = a.flatten(1).numpy(), b.flatten(1).numpy()
    u, v = a.flatten(2).numpy(), b.flatten(2).numpy()
    norm = np.linalg.norm(x - y, axis=1)
    expected = {
        "euclidean": norm,
        "rms": norm / 4,
        "mse": norm**2 / 16,
        "cosine": 1 - (x * y).sum(1) / np.linalg.norm(x, axis=1) / np.linalg.norm(y, axis=1),
        "local-cosine": 1 - np.mean((u * v).sum(1) / np.linalg.norm(u, axis=1) / np.linalg.norm(v, axis=1), axis=1),
    }
    for rho, values in expected.items():
        np.testing.assert_allclose(losses.consistency(a, b, rho).numpy(), values, rtol=1e-12)


@pytest.mark.parametrize("rho", ["rms", "mse", "euclidean", "cosine", "local-cosine"])
def test_equal_latents_have_distance_and_gradient_zero(rho):
    a = random_logits((2, 4, 2, 2), dtype=torch.float32).requires_grad_()
    distance = losses.consistency(a, a.detach(), rho)
    torch.testing.assert_close(distance, torch.zeros(2), atol=1e-6, rtol=0)
    distance.sum().backward()
    torch.testing.assert_close(a.grad, torch.zeros_like(a), atol=1e-6, rtol=0)


@pytest.mark.parametrize("latent", [(2, 5), (2, 7, 5), (2, 3, 4, 4), (2, 3, 2, 4, 4)])
def test_latents_of_any_rank(latent):
    assert losses.consistency(random_logits(latent), random_logits(latent, 1)).shape == (2,)


def rotation(degrees, dtype=torch.float64):
    angle = torch.tensor(degrees, dtype=dtype).deg2rad()
    return torch.stack([angle.cos(), -angle.sin(), angle.sin(), angle.cos()]).view(1, 2, 2)


def affine(matrix, shift=(0.0, 0.0)):
    return torch.cat([matrix, torch.tensor(shift, dtype=matrix.dtype).view(1, 2, 1)], 2)


@pytest.mark.parametrize("flip", [False, True])
@pytest.mark.parametrize("quarters", [0, 1, 2, 3])
def test_undoing_a_quarter_turn_is_exact(quarters, flip):
    image = random_logits((1, 3, 7, 7))
    matrix = rotation(90.0 * quarters).round() @ torch.diag(torch.tensor([-1.0 if flip else 1.0, 1.0])).double()
    view = affine(matrix)
    shown = F.grid_sample(image, F.affine_grid(view, [1, 3, 7, 7], align_corners=False), align_corners=False)
    back, visible = losses.undo_view(shown, view)
    torch.testing.assert_close(back, image)
    assert visible.all()


def test_undoing_a_small_rotation_finds_the_structure_where_it_was():
    y, x = torch.meshgrid(torch.linspace(-1, 1, 65), torch.linspace(-1, 1, 65), indexing="ij")
    image = torch.exp(-((x - 0.4) ** 2 + (y + 0.2) ** 2) / 0.1).double()[None, None]
    view = affine(rotation(17.0) * 1.1, (0.1, -0.05))
    shown = F.grid_sample(image, F.affine_grid(view, [1, 1, 65, 65], align_corners=False), align_corners=False)
    back, visible = losses.undo_view(shown, view)
    assert (shown - image).abs().max() > 0.5
    assert ((back - image) * visible).abs().max() < 0.02
    assert 0.5 < visible.double().mean() < 1  # corners that the view did not show are not known


def test_undo_in_three_dimensions():
    image = random_logits((1, 2, 5, 5, 5))
    turn = torch.tensor([[0.0, -1, 0, 0], [1, 0, 0, 0], [0, 0, -1, 0]]).double()[None]
    shown = F.grid_sample(image, F.affine_grid(turn, list(image.shape), align_corners=False), align_corners=False)
    back, visible = losses.undo_view(shown, turn)
    torch.testing.assert_close(back, image)
    assert visible.all()


@pytest.mark.parametrize("shape", [(2, 3, 7, 9), (2, 2, 4, 5, 6)], ids=str)
def test_what_can_be_deterministic_reads_as_grid_sample_does(shape):
    dims = len(shape) - 2
    latent = random_logits(shape).requires_grad_()
    again = latent.detach().clone().requires_grad_()
    grid = 1.2 * torch.tanh(random_logits((shape[0], *shape[2:], dims), 1))  # some of it is outside
    expected = F.grid_sample(latent, grid, align_corners=False)
    ours = losses._read_in_order(again, grid)
    torch.testing.assert_close(ours, expected)
    weights = random_logits(shape, 2)
    (expected * weights).sum().backward()
    (ours * weights).sum().backward()
    torch.testing.assert_close(again.grad, latent.grad)


def test_only_visible_positions_are_compared():
    a, b = random_logits((1, 3, 4, 4)), random_logits((1, 3, 4, 4), 1)
    visible = torch.zeros(1, 1, 4, 4, dtype=torch.bool)
    visible[..., :2] = True
    for rho in ("rms", "mse", "euclidean", "cosine", "local-cosine"):
        torch.testing.assert_close(
            losses.consistency(a, b, rho, visible), losses.consistency(a[..., :2], b[..., :2], rho)
        )
    assert losses.consistency(a, b, "rms", torch.zeros_like(visible)) == 0


@pytest.mark.parametrize("ignore_index", [None, 2])
@pytest.mark.parametrize("denominator", ["l1", "squared"])
def test_sums_by_class_give_the_losses(monkeypatch, denominator, ignore_index):
    """What a kernel sums on a GPU, computed plainly: CE and Dice are made of it as they are of torch's functions."""

    def class_sums(logits, labels, *, squared, ignore_index):
        log_p = logits.log_softmax(1)
        counts = torch.ones_like(labels, dtype=torch.bool) if ignore_index is None else labels != ignore_index
        members = (F.one_hot(labels, logits.shape[1]).movedim(-1, 1) * counts[:, None]).to(logits.dtype)
        mass = (log_p * (2 if squared else 1)).exp() * counts[:, None]
        return torch.stack([(log_p * members).sum(2), (log_p.exp() * members).sum(2), mass.sum(2), members.sum(2)], 1)

    logits = random_logits((3, 4, 5, 5)).requires_grad_()
    labels = torch.randint(0, 4, (3, 5, 5), generator=torch.Generator().manual_seed(3))
    options = {"denominator": denominator, "ignore_index": ignore_index}
    expected = losses.pixel_sums(logits, labels, **options)
    monkeypatch.setattr(losses, "can_sum", lambda logits, labels: True)
    monkeypatch.setattr(losses, "class_sums", class_sums)
    sums = losses.pixel_sums(logits, labels, **options)
    torch.testing.assert_close(tuple(sums), tuple(expected))
    assert not sums.labelled.requires_grad


def test_shapes_are_known_without_values():
    """As tools ask that count operations, on the device that computes nothing."""
    logits, labels = torch.empty(3, 4, 5, 5, device="meta"), torch.empty(3, 5, 5, dtype=torch.int64, device="meta")
    sums = losses.pixel_sums(logits, labels, ignore_index=255)
    assert [tuple(value.shape) for value in sums] == [(3,), (3, 4), (3, 4), (3, 4)]


def test_label_dense_counts_foreground():
    labels = torch.zeros(4, 4, 4, dtype=torch.int64)
    labels[1, 0, 0] = 2
    labels[2] = 1
    labels[3] = 255
    assert losses.label_dense(labels, ignore_index=255).tolist() == [False, True, True, False]
    assert losses.label_dense(labels, threshold=0.1, ignore_index=255).tolist() == [False, False, True, False]
