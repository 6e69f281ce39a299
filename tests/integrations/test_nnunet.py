"""AdaWAC inside nnU-Net, as far as it needs no nnU-Net: two views, rows of samples, loss, where the trainers are."""

import csv
import importlib
import pickle
import sys
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from adawac.algorithm import SampleWeights
from adawac.cli import run
from adawac.data.cases import SampleTable
from adawac.errors import MissingDependencyError
from adawac.integrations.nnunet import trainer_folder
from adawac.integrations.nnunet.additions import (
    IGNORED_REGION,
    PreprocessedLabel,
    TwoViews,
    as_list,
    beta_table,
    build_criterion,
    joined,
    patch_name,
    patch_rows,
    regions_as_classes,
    sample_table,
    validation_scores,
)

CPU = torch.device("cpu")


class Shift:
    """Adds a random number in place, and gives the labels at two resolutions, as nnU-Net's transforms do."""

    def __call__(self, image: torch.Tensor, segmentation: torch.Tensor) -> dict[str, Any]:
        image += torch.rand(())
        return {"image": image, "segmentation": [segmentation, segmentation[:, ::2, ::2]]}


def test_two_views_are_drawn_apart_and_leave_the_patch_alone() -> None:
    image, labels = torch.zeros(1, 4, 4), torch.arange(16).reshape(1, 4, 4)
    found = TwoViews(Shift())(image=image, segmentation=labels)
    assert found["image"].shape == (2, 1, 4, 4)
    assert not torch.equal(found["image"][0], found["image"][1])
    assert torch.equal(image, torch.zeros(1, 4, 4))
    assert [level.shape for level in found["segmentation"]] == [(2, 1, 4, 4), (2, 1, 2, 2)]
    assert torch.equal(found["segmentation"][1][1], labels[:, ::2, ::2])


def test_views_reach_worker_processes() -> None:
    again = pickle.loads(pickle.dumps(TwoViews(Shift())))
    assert isinstance(again.transform, Shift)
    assert "Shift" in repr(again)


def test_first_views_come_before_second_ones() -> None:
    batch = torch.tensor([[[10.0], [11.0]], [[20.0], [21.0]], [[30.0], [31.0]]])  # 3 samples, 2 views, 1 channel
    assert joined(batch, CPU).flatten().tolist() == [10, 20, 30, 11, 21, 31]
    first, second = joined([batch, batch + 5], CPU)
    assert first.flatten().tolist() == [10, 20, 30, 11, 21, 31]
    assert second.flatten().tolist() == [15, 25, 35, 16, 26, 36]
    assert as_list(batch)[0] is batch


LABELS = [
    PreprocessedLabel(case="b_2", label=np.array([[[1, 0]], [[-1, 9]]]), first=4, depth=2),
    PreprocessedLabel(case="a_9", label=np.array([[[0, 2]], [[0, 0]], [[9, 9]]]), first=1, depth=3),
]  # with two foreground classes; 9 is ignored


def table(bins: int | None) -> SampleTable:
    return sample_table(LABELS, bins, dataset="Dataset501_X", axis="2", class_names=["background", "liver", "spleen"])


def test_rows_follow_the_sorted_names_and_the_position() -> None:
    assert patch_rows({"b_2": 2, "a_9": 3}, None) == {"a_9@0": 0, "a_9@1": 1, "a_9@2": 2, "b_2@0": 3, "b_2@1": 4}
    assert set(patch_rows({"b_2": 2, "a_9": 3}, 1).values()) == {0, 1}
    assert patch_rows({"a_9": 5}, 2) == {"a_9@0": 0, "a_9@1": 0, "a_9@2": 0, "a_9@3": 1, "a_9@4": 1}
    assert patch_rows({"a_9": 2}, 4) == {"a_9@0": 0, "a_9@1": 1}  # no bin is empty


def test_slices_have_their_number_in_the_scan() -> None:
    samples = table(None)
    rows = patch_rows({entry.case: len(entry.label) for entry in LABELS}, None)
    assert [patch_name(case, row) for case, row in zip(samples.case, samples.position, strict=True)] == list(rows)
    assert samples.id.tolist() == [
        f"Dataset501_X/{c}/{c}/2/{n}" for c, n in zip(samples.case, samples.slice, strict=True)
    ]
    assert samples.slice.tolist() == [1, 2, 3, 4, 5]
    assert samples.state.tolist() == ["labelled", "labelled", "unlabelled", "labelled", "partly ignored"]
    assert samples.label_sparse.tolist() == [False, True, False, False, True]
    np.testing.assert_array_equal(samples.fraction[[0, 3, 4]], [[0.5, 0, 0.5], [0.5, 0.5, 0], [0.5, 0, 0]])


@pytest.mark.parametrize(
    ("bins", "unit", "foreground", "depths"),
    [(1, "volume", [1 / 6, 1 / 4], [3, 2]), (2, "patch", [1 / 4, np.nan, 1 / 2, 0], [2, 1, 1, 1])],
)
def test_a_case_is_one_sample_or_several(bins: int, unit: str, foreground: list[float], depths: list[int]) -> None:
    samples = table(bins)
    np.testing.assert_allclose(samples.foreground, foreground)
    assert (set(samples.unit), samples.shape[:, 0].tolist()) == ({unit}, depths)
    assert samples.slice.tolist() == list(range(bins)) * 2


def test_the_table_of_beta_tells_saturated_samples_apart() -> None:
    weights = SampleWeights(5)
    weights.ascend(torch.tensor([1, 2]), torch.tensor([30.0, 40.0]), torch.zeros(2), 1.0)
    rows = list(csv.DictReader(beta_table(table(None), weights).splitlines()))
    assert [(row["case"], row["slice"]) for row in rows[:4]] == [("a_9", "1"), ("a_9", "2"), ("a_9", "3"), ("b_2", "4")]
    assert [row["foreground"] for row in rows] == ["0.5", "0", "", "0.5", "0"]
    assert [float(row["beta"]) for row in rows] == [0.5, 1, 1, 0.5, 0.5]
    assert [float(row["log_odds"]) for row in rows] == [0, 30, 40, 0, 0]
    assert "a_9,,0.166667,0.5,0\n" in beta_table(table(1), SampleWeights(2))


@pytest.mark.parametrize(
    ("labels", "keys"), [({"liver": 1, "tumour": 2}, ["1", "2"]), ({"whole": [1, 2], "tumour": 2}, ["(1, 2)", "2"])]
)
def test_a_validation_becomes_scores(labels: dict[str, Any], keys: list[str]) -> None:
    metrics = {keys[0]: {"Dice": 0.5}, keys[1]: {"Dice": float("nan")}}
    summary = {"metric_per_case": [{"prediction_file": "x/a.b.nii.gz", "metrics": metrics}]}
    scores = validation_scores(summary, {"background": 0, **labels, "ignore": 3}, ".nii.gz", epoch=4)
    assert [(score.case, score.label, score.class_name, score.epoch) for score in scores] == [
        ("a.b", number, name, 4) for number, name in enumerate(labels, start=1)
    ]
    np.testing.assert_array_equal([score.value for score in scores], [0.5, np.nan])


def dice_plus_ce(p: torch.Tensor, q: torch.Tensor, ell_ce: torch.Tensor, batch: bool) -> float:
    """nnU-Net's loss + 1, of the foreground's probabilities p and labels q (rows, classes, voxels), and CE of rows."""
    axes = (0, 2) if batch else (2,)
    score = (2 * (p * q).sum(axes) + 1e-5) / (p.sum(axes) + q.sum(axes) + 1e-5)
    return float(1 - score.mean() + ell_ce.mean())


@pytest.mark.parametrize("method", ["adawac", "pair"])
@pytest.mark.parametrize("dice", ["batch", "sample"])
@pytest.mark.parametrize("regions", [False, True])
def test_without_moves_and_consistency_the_loss_is_nnunets(method: str, dice: str, regions: bool) -> None:
    torch.manual_seed(0)
    logits = torch.randn(6, 4, 5, 7)  # both views of three samples; four classes, or four regions
    if regions:
        target = torch.rand(6, 4, 5, 7) < 0.3
        ell_ce = F.binary_cross_entropy_with_logits(logits, target.float(), reduction="none").flatten(1).mean(1)
        expected = dice_plus_ce(logits.sigmoid().flatten(2), target.flatten(2).float(), ell_ce, dice == "batch")
        call = regions_as_classes(logits, target, ignore=False)
    else:
        labels = torch.randint(0, 4, (6, 5, 7))
        ell_ce = F.cross_entropy(logits, labels, reduction="none").flatten(1).mean(1)
        one_hot = F.one_hot(labels, 4).movedim(-1, 1).flatten(2).float()
        expected = dice_plus_ce(logits.softmax(1).flatten(2)[:, 1:], one_hot[:, 1:], ell_ce, dice == "batch")
        call = (logits, labels)
    options = {"eta_beta": 0.0, "lambda_ac": 0.0, "dice": dice, "denominator": "l1", "smooth": 1e-5, "scale": 1.0}
    criterion = build_criterion(method, 9, preset="robust", regions=regions, **options)
    step = criterion(*call, torch.randn(6, 8, 2, 2), torch.tensor([2, 3, 8]))
    assert float(step.loss) == pytest.approx(expected, rel=1e-5)
    torch.testing.assert_close(step.ell_ce, ell_ce.view(2, 3).mean(0))


def test_a_beta_of_one_half_leaves_the_pair_whole_and_is_recorded_as_such() -> None:
    logits, features = torch.randn(4, 3, 6), torch.randn(4, 8, 2)
    labels = torch.randint(0, 3, (4, 6))
    criterion = build_criterion("adawac", 2, preset="robust", regions=False, eta_beta=0.0, scale=1.0)
    step = criterion(logits, labels, features, torch.tensor([0, 1]))
    assert step.beta.tolist() == [0.5, 0.5]
    assert float(step.loss) == pytest.approx(float((step.ell_dice + step.ell_ce + step.reg_ac).mean()), rel=1e-5)


def test_ignored_regions_count_nowhere() -> None:
    logits, target = torch.randn(2, 3, 4), torch.rand(2, 4, 4) < 0.5  # one sample; three regions, and what is ignored
    target[:, -1, 1:] = True
    target[:, -1, 0] = False
    options = {"ignore_index": IGNORED_REGION, "smooth": 1e-5, "denominator": "l1"}
    criterion = build_criterion("pair", 1, preset="robust", regions=True, **options)
    known = regions_as_classes(logits[..., :1], target[..., :1], ignore=True)
    part, whole = (
        criterion(*call, None, torch.tensor([0])) for call in (known, regions_as_classes(logits, target, ignore=True))
    )
    torch.testing.assert_close(whole.loss, part.loss)
    assert float(whole.ell_ce) > 0
    target[:, -1] = True
    step = criterion(*regions_as_classes(logits, target, ignore=True), None, torch.tensor([0]))
    assert float(step.ell_ce) == float(step.ell_dice) == 0


def test_the_command_prints_the_folder_alone(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["nnunet-path"]) == 0
    assert capsys.readouterr().out == f"{trainer_folder()}\n"
    # nnU-Net imports what lies there by its bare name: it must be one module whose name nobody else has.
    modules = [path.stem for path in trainer_folder().glob("*.py") if path.stem != "__init__"]
    assert modules == ["adawac_nnunet_trainers"]


def test_without_nnunet_the_message_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "nnunetv2", None)
    monkeypatch.delitem(sys.modules, "adawac.integrations.nnunet.trainer", raising=False)
    for name in [name for name in sys.modules if name.startswith("nnunetv2.")]:
        monkeypatch.delitem(sys.modules, name)
    with pytest.raises(MissingDependencyError, match=r"pip install 'adawac\[nnunet\]'"):
        importlib.import_module("adawac.integrations.nnunet.trainer")
