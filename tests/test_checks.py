"""Wrong calls: one message each, that says what to do."""

import pytest
import torch

import adawac
from adawac.errors import ShapeError


def call(criterion=None, **changes):
    arguments = {
        "logits": torch.randn(4, 3, 8, 8),
        "labels": torch.randint(0, 3, (4, 8, 8)),
        "features": torch.randn(4, 5, 2, 2),
        "index": torch.tensor([0, 5]),
        **changes,
    }
    return (criterion or adawac.AdaWAC(num_samples=6))(**arguments)


def test_a_right_call():
    assert call().loss.isfinite()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"index": torch.tensor([0, 6])}, r"every index in 0\.\.5.*from 0 to 6.*row in the training set"),
        ({"index": torch.tensor([-1, 2])}, r"every index in 0\.\.5.*from -1 to 2"),
        ({"index": torch.tensor([0.0, 1.0])}, r"vector of integers.*float32"),
        ({"index": torch.tensor([[0, 1]])}, r"vector of integers.*\(1, 2\)"),
        ({"index": torch.tensor([], dtype=torch.int64)}, r"vector of integers.*\(0,\)"),
        ({"index": torch.tensor([0, 1, 2])}, r"B or 2B rows of logits for the B = 3.*but got 4.*torch\.cat"),
        ({"labels": torch.full((4, 8, 8), 3)}, r"labels in 0\.\.2 \(K = 3 classes\), but got \[3\].*ignore_index"),
        ({"labels": torch.full((4, 8, 8), -1)}, r"labels in 0\.\.2.*\[-1\]"),
        ({"labels": torch.zeros(4, 8, 8)}, r"integer type.*float32.*\.long\(\)"),
        ({"labels": torch.zeros(4, 1, 8, 8, dtype=torch.int64)}, r"labels \(4, 8, 8\).*\(4, 1, 8, 8\).*not one-hot"),
        ({"labels": torch.zeros(2, 8, 8, dtype=torch.int64)}, r"labels \(4, 8, 8\).*\(2, 8, 8\)"),
        ({"logits": torch.randn(4, 1, 8, 8)}, r"K ≥ 2.*background and foreground"),
        ({"logits": torch.zeros(4, 3, 8, 8, dtype=torch.int64)}, r"floating type.*int64"),
        ({"features": None}, r"AdaWAC compares them, but got none.*tap\.pop\(\)"),
        ({"features": []}, "but got none"),
        ({"features": torch.randn(2, 5, 2, 2)}, r"latents of 4 rows.*\(2, 5, 2, 2\).*Both views"),
        ({"logits": [torch.randn(4, 3, 8, 8)] * 2, "labels": [torch.zeros(4, 8, 8).long()]}, "2 logits, 1 label maps"),
    ],
)
def test_wrong_calls(changes, message):
    with pytest.raises(ShapeError, match=message):
        call(**changes)


def test_supervision_weights_must_match():
    criterion = adawac.AdaWAC(num_samples=6, supervision=(1.0, 0.5, 0.25))
    with pytest.raises(ShapeError, match=r"2 logits.*weights \(1.0, 0.5, 0.25\)"):
        call(criterion, logits=[torch.randn(4, 3, 8, 8), torch.randn(4, 3, 4, 4)])


def test_aligned_needs_maps_and_views():
    criterion = adawac.AdaWAC(num_samples=6, aligned=True)
    with pytest.raises(ShapeError, match=r"\(4, 2, 3\).*but got none.*aligned=False"):
        call(criterion)
    with pytest.raises(ShapeError, match=r"tokens' grid"):
        call(criterion, features=torch.randn(4, 9, 5), views=torch.eye(2, 3).expand(4, 2, 3))


def test_pair_needs_both_views():
    criterion = adawac.build_method("pair", 6)
    with pytest.raises(ShapeError, match=r"both views of 2 samples, but got 2.*baseline"):
        call(criterion, logits=torch.randn(2, 3, 8, 8), labels=torch.zeros(2, 8, 8).long(), features=None)


def test_ignored_labels_are_allowed():
    labels = torch.randint(0, 3, (4, 8, 8))
    labels[0, 0] = 255
    assert call(adawac.AdaWAC(num_samples=6, ignore_index=255), labels=labels).loss.isfinite()


def test_values_are_checked_in_the_first_step_only_unless_asked(monkeypatch):
    seen = []
    original = adawac.checks._index

    def spy(index, num_samples, values):
        seen.append(values)
        original(index, num_samples, values)

    monkeypatch.setattr("adawac.checks._index", spy)
    lazy, eager = adawac.AdaWAC(num_samples=6), adawac.AdaWAC(num_samples=6, validate=True)
    for criterion in (lazy, lazy, eager, eager):
        call(criterion)
    assert seen == [True, False, True, True]
