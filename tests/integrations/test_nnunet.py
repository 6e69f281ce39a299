"""AdaWAC inside nnU-Net, as far as it needs no nnU-Net: two views, rows of cases, where the trainers are."""

import csv
import importlib
import pickle
import sys
from typing import Any

import numpy as np
import pytest
import torch

from adawac.algorithm import SampleWeights
from adawac.cli import run
from adawac.errors import MissingDependencyError
from adawac.integrations.nnunet import trainer_folder
from adawac.integrations.nnunet.samples import TwoViews, as_list, beta_table, case_rows, joined

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


def test_rows_follow_the_sorted_names_whatever_the_order() -> None:
    assert case_rows(np.array(["b_2", "a_9", "b_10"])) == {"a_9": 0, "b_10": 1, "b_2": 2}
    assert all(type(name) is str for name in case_rows(np.array(["b"])))


def test_the_table_tells_saturated_cases_apart() -> None:
    weights = SampleWeights(3)
    weights.ascend(torch.tensor([0, 1, 2]), torch.tensor([0.0, 30.0, 40.0]), torch.zeros(3), 1.0)
    rows = list(csv.DictReader(beta_table({"a": 0, "b, c": 1, "d": 2}, weights).splitlines()))
    assert [row["case"] for row in rows] == ["a", "b, c", "d"]
    assert [float(row["beta"]) for row in rows] == [0.5, 1, 1]
    assert [float(row["log_odds"]) for row in rows] == [0, 30, 40]


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
