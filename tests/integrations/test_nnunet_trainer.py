"""AdaWAC's trainer inside nnU-Net, on a phantom that nnU-Net planned and preprocessed."""

import csv
import importlib
import json
import os
import pickle
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F

import adawac
from adawac.data.phantom.phantom_files import write_nifti_layout
from adawac.errors import ConfigError, RunError
from adawac.integrations.nnunet import trainer_folder

CPU = torch.device("cpu")

TRAINERS = """
import json
import os

from adawac.integrations.nnunet.trainer import nnUNetTrainerAdaWAC


class nnUNetTrainerAdaWACBrief(nnUNetTrainerAdaWAC):
    eta_beta = 0.25

    def __init__(self, plans, configuration, fold, dataset_json, device):
        super().__init__(plans, configuration, fold, dataset_json, device)
        self.num_epochs = 3
        self.num_iterations_per_epoch = 4
        self.num_val_iterations_per_epoch = 1
        self.save_every = 1

    def on_epoch_start(self):
        super().on_epoch_start()
        with open(os.path.join(self.output_folder, f"epoch_{self.current_epoch}.json"), "w") as file:
            json.dump(self.criterion.weights.log_odds.tolist(), file)
        if self.current_epoch == int(os.environ.get("STOP_AT", -1)):
            raise SystemExit(3)
"""


def nnunet(command: str, *words: str, **env: str) -> "subprocess.CompletedProcess[str]":
    source = str(Path(adawac.__file__).parents[1])
    module, entry = {
        "plan_and_preprocess": ("experiment_planning.plan_and_preprocess_entrypoints", "plan_and_preprocess_entry"),
        "train": ("run.run_training", "run_training_entry"),
        "predict": ("inference.predict_from_raw_data", "predict_entry_point"),
    }[command]
    code = f"from nnunetv2.{module} import {entry}\nif __name__ == '__main__':\n    {entry}()\n"
    script = Path(os.environ["nnUNet_raw"]).parent / f"{command}.py"  # noqa: SIM112  (a file, for worker processes import it)
    script.write_text(code)
    return subprocess.run(
        [sys.executable, str(script), *words],
        env=os.environ | {"PYTHONPATH": source} | env,
        capture_output=True,
        text=True,
        timeout=900,
    )


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A phantom that nnU-Net planned and preprocessed, with narrow networks; the folder above its three."""
    pytest.importorskip("nnunetv2")
    base = tmp_path_factory.mktemp("nnunet")
    trainers = base / "trainers"
    trainers.mkdir()
    (trainers / "brief_trainers.py").write_text(TRAINERS)
    with pytest.MonkeyPatch.context() as patch:
        for name in ("raw", "preprocessed", "results"):
            (base / name).mkdir()
            patch.setenv(f"nnUNet_{name}", str(base / name))
        patch.setenv("nnUNet_extTrainer", os.pathsep.join([str(trainer_folder()), str(trainers)]))
        patch.setenv("nnUNet_n_proc_DA", "0")
        patch.setenv("nnUNet_def_n_proc", "1")
        patch.setenv("nnUNet_compile", "f")
        patch.setenv("OMP_NUM_THREADS", "1")
        write_nifti_layout(base / "raw" / "Dataset501_Phantom", 5, size=32, slices=(8, 10))
        words = ["-d", "501", "-c", "2d", "3d_fullres", "-np", "1", "1", "-npfp", "1"]
        made = nnunet("plan_and_preprocess", *words, nnUNet_n_proc_DA="1")  # as many threads, at least one
        assert made.returncode == 0, made.stderr
        plans = base / "preprocessed" / "Dataset501_Phantom" / "nnUNetPlans.json"
        description = json.loads(plans.read_text())
        for configuration in description["configurations"].values():
            configuration["batch_size"] = 3
            widths = configuration["architecture"]["arch_kwargs"]["features_per_stage"]
            configuration["architecture"]["arch_kwargs"]["features_per_stage"] = [4] * len(widths)
        plans.write_text(json.dumps(description))
        yield base


def training_cases(dataset: Path) -> list[str]:
    splits = json.loads((dataset / "preprocessed/Dataset501_Phantom/splits_final.json").read_text())
    return sorted(splits[0]["train"])


def saved_log_odds(checkpoint: Path) -> list[float]:
    saved = torch.load(checkpoint, weights_only=False)["init_args"]["adawac"]["criterion"]
    return saved["weights.log_odds"].tolist()


@pytest.mark.slow
def test_a_fold_is_trained_stopped_and_continued_by_nnunets_commands(dataset: Path) -> None:
    words = ["501", "2d", "0", "-tr", "nnUNetTrainerAdaWACBrief", "-device", "cpu"]
    stopped = nnunet("train", *words, STOP_AT="2")
    assert stopped.returncode == 3, stopped.stderr
    out = dataset / "results/Dataset501_Phantom/nnUNetTrainerAdaWACBrief__nnUNetPlans__2d/fold_0"
    before = saved_log_odds(out / "checkpoint_latest.pth")
    assert len(before) == 4
    assert json.loads((out / "epoch_0.json").read_text()) == [0] * 4
    assert before == json.loads((out / "epoch_2.json").read_text())
    assert any(before)
    (out / "epoch_2.json").unlink()

    finished = nnunet("train", *words, "--c")
    assert finished.returncode == 0, finished.stderr
    assert "beta of 4 cases" in finished.stdout
    assert "Epoch 1" not in finished.stdout
    assert json.loads((out / "epoch_2.json").read_text()) == before
    after = saved_log_odds(out / "checkpoint_final.pth")
    assert after != before
    rows = list(csv.DictReader((out / "beta.csv").read_text().splitlines()))
    assert [row["case"] for row in rows] == training_cases(dataset)
    assert [float(row["log_odds"]) for row in rows] == pytest.approx(after, rel=1e-5)
    assert (out / "validation" / "summary.json").is_file()

    [scan, *_] = sorted((dataset / "raw/Dataset501_Phantom/imagesTr").iterdir())
    (dataset / "scans").mkdir()
    shutil.copy(scan, dataset / "scans")
    words = ["-d", "501", "-c", "2d", "-f", "0", "-tr", "nnUNetTrainerAdaWACBrief", "-device", "cpu"]
    words += ["-i", str(dataset / "scans"), "-o", str(dataset / "labels"), "-npp", "1", "-nps", "1", "--disable_tta"]
    predicted = nnunet("predict", *words)
    assert predicted.returncode == 0, predicted.stderr
    assert [path.name for path in (dataset / "labels").glob("*.nii.gz")] == [scan.name.replace("_0000", "")]


# nnU-Net's own path to several GPUs, on CPUs: ranks of unequal batches, the network inside DDP.
RANK = """
import json
import sys
import warnings

warnings.simplefilter("ignore")
import torch
import torch.distributed as dist
from nnunetv2.run.run_training import get_trainer_from_args
from nnunetv2.training.nnUNetTrainer import nnUNetTrainer as nnunet
from torch.nn.parallel import DistributedDataParallel

rank, meeting, out = int(sys.argv[1]), sys.argv[2], sys.argv[3]
torch.set_num_threads(1)
trainer = get_trainer_from_args("501", "2d", 0, "nnUNetTrainerAdaWAC", device=torch.device("cpu"))
dist.init_process_group("gloo", init_method=f"file://{meeting}", rank=rank, world_size=2)
trainer.is_ddp, trainer.local_rank = True, rank  # nnU-Net would take a GPU for each rank
nnunet.DDP = lambda network, device_ids: DistributedDataParallel(network)
trainer.on_train_start()
trainer.on_train_epoch_start()
losses = [trainer.train_step(next(trainer.dataloader_train)) for _ in range(3)]
trainer.on_train_epoch_end(losses)
weights = [float(parameter.detach().double().sum()) for parameter in trainer.network.parameters()]
with open(f"{out}{rank}.json", "w") as file:
    json.dump([trainer.batch_size, trainer.criterion.weights.log_odds.tolist(), weights], file)
dist.barrier()
dist.destroy_process_group()
"""


@pytest.mark.slow
def test_ranks_share_the_weights(dataset: Path, tmp_path: Path) -> None:
    script = tmp_path / "rank.py"
    script.write_text(RANK)
    env = os.environ | {"PYTHONPATH": str(Path(adawac.__file__).parents[1])}
    ranks = [
        subprocess.Popen(
            [sys.executable, str(script), str(rank), str(tmp_path / "meeting"), str(tmp_path / "rank")],
            env=env, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True,
        )
        for rank in range(2)
    ]  # fmt: skip
    errors = [rank.communicate(timeout=300)[1] for rank in ranks]
    assert [rank.returncode for rank in ranks] == [0, 0], errors
    (size, *first), (other_size, *second) = (json.loads((tmp_path / f"rank{rank}.json").read_text()) for rank in (0, 1))
    assert (size, other_size) == (2, 1)
    assert first == second
    assert any(first[0])


def make_trainer(
    dataset: Path,
    *bases: type,
    configuration: str = "2d",
    labels: dict[str, Any] | None = None,
    order: list[int] | None = None,
    **settings: Any,
) -> Any:
    """A trainer of its own class: AdaWAC's first, then others of nnU-Net, with settings."""
    from nnunetv2.utilities.find_objects import recursive_find_trainer_class_by_name

    found = recursive_find_trainer_class_by_name("nnUNetTrainerAdaWAC")
    folder = dataset / "preprocessed" / "Dataset501_Phantom"
    plans = json.loads((folder / "nnUNetPlans.json").read_text()) | {"continue_training": False}
    description = json.loads((folder / "dataset.json").read_text())
    description |= {"labels": labels or description["labels"], **({"regions_class_order": order} if order else {})}
    kind = type("nnUNetTrainerAdaWACTested", (found, *bases), settings)
    return kind(plans, configuration, 0, description, CPU)


with_nnunet = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]


class TestTrainer:
    pytestmark = with_nnunet

    def test_the_class_that_nnunet_finds_is_the_packages(self, dataset: Path) -> None:
        from nnunetv2.utilities.find_objects import recursive_find_trainer_class_by_name

        for name in ("nnUNetTrainerAdaWAC", "nnUNetTrainerAdaWACPair"):
            found = recursive_find_trainer_class_by_name(name)
            assert found is getattr(importlib.import_module("adawac.integrations.nnunet.trainer"), name)
            assert pickle.loads(pickle.dumps(found)) is found

    @pytest.mark.parametrize("configuration", ["2d", "3d_fullres"])
    def test_a_step_is_nnunets_with_the_loss_of_algorithm_1(self, dataset: Path, configuration: str) -> None:
        trainer = make_trainer(dataset, configuration=configuration, eta_beta=0.5, lambda_ac=0.7)
        trainer.on_train_start()
        trainer.on_train_epoch_start()
        batch = next(trainer.dataloader_train)
        images = torch.cat([batch["data"][:, 0], batch["data"][:, 1]])
        labels = [torch.cat([level[:, 0, 0], level[:, 1, 0]]).long() for level in batch["target"]]
        rows = [training_cases(dataset).index(key) for key in batch["keys"]]
        assert not torch.equal(batch["data"][:, 0], batch["data"][:, 1])

        with torch.no_grad():
            features = trainer.network.encoder(images)[-1]
            outputs = trainer.network(images)[:-1]  # nnU-Net's deep supervision leaves out the coarsest
        weights = np.array([2.0**-level for level in range(len(outputs))])
        axes = (0, 2) if configuration == "2d" else (2,)  # Dice of the batch or of each sample, as planned
        ell_ce, ell_dice = torch.zeros(3), torch.zeros(())
        for weight, one, label in zip(weights / weights.sum(), outputs, labels, strict=False):
            logits, label = one[:3].flatten(2), label[:3].flatten(1)
            ell_ce += weight * F.cross_entropy(logits, label, reduction="none").mean(1)
            p, q = logits.softmax(1), F.one_hot(label, logits.shape[1]).transpose(1, 2)
            score = (2 * (p * q).sum(axes) + 1e-5) / (p.sum(axes) + q.sum(axes) + 1e-5)
            ell_dice += weight * (1 - score.mean())
        first, second = features.chunk(2)
        reg_ac = 0.7 * (first - second).square().flatten(1).mean(1).sqrt()
        wanted = torch.zeros(4)
        for row, increment in zip(rows, 0.5 * (ell_ce - reg_ac), strict=True):
            wanted[row] += increment
        beta = wanted.sigmoid()[rows]

        parameters = [parameter.detach().clone() for parameter in trainer.network.parameters()]
        loss = trainer.train_step(batch)["loss"]
        torch.testing.assert_close(trainer.criterion.weights.log_odds, wanted)
        [terms] = trainer.terms
        torch.testing.assert_close(terms, torch.stack([ell_ce.mean(), reg_ac.mean()]))
        assert float(loss) == pytest.approx(float(ell_dice + (beta * ell_ce + (1 - beta) * reg_ac).mean()), rel=1e-5)
        moved = [not torch.equal(one, old) for one, old in zip(trainer.network.parameters(), parameters, strict=True)]
        assert sum(moved) >= len(moved) - 2  # all but the head that nnU-Net's deep supervision leaves out
        assert type(trainer.loss).__name__ == "DeepSupervisionWrapper"  # nnU-Net's, for validation

    def test_weights_can_be_held(self, dataset: Path) -> None:
        trainer = make_trainer(dataset, hold_epochs=1)
        trainer.on_train_start()
        for epoch in (0, 1):
            trainer.current_epoch = epoch
            trainer.on_train_epoch_start()
            trainer.train_step(next(trainer.dataloader_train))
            assert trainer.criterion.weights.log_odds.any() == (epoch == 1)

    def test_validation_is_nnunets_and_leaves_the_weights(self, dataset: Path) -> None:
        from nnunetv2.training.nnUNetTrainer.nnUNetTrainer import nnUNetTrainer

        trainer = make_trainer(dataset)
        trainer.on_train_start()
        batch = next(trainer.dataloader_val)
        trainer.on_validation_epoch_start()
        with torch.no_grad():
            found = trainer.validation_step(batch)
            wanted = nnUNetTrainer.validation_step(trainer, batch)
        assert found["loss"] == wanted["loss"]
        assert not trainer.criterion.weights.log_odds.any()

    def test_dice_follows_the_plans_and_the_users_options_win(self, dataset: Path) -> None:
        trainer = make_trainer(dataset, options={"rho": "mse", "smooth": 0.0}, preset="official")
        trainer.initialize()
        objective = trainer.criterion.objective
        assert objective.dice == "batch"
        assert (objective.rho, objective.smooth, objective.eta_beta) == ("mse", 0.0, 2.0)
        trainer = make_trainer(dataset, configuration="3d_fullres")
        trainer.initialize()
        objective = trainer.criterion.objective
        assert (objective.dice, objective.smooth, objective.eta_beta, objective.lambda_ac) == ("sample", 1e-5, 1, 1)

    def test_other_trainers_of_nnunet_mix_in(self, dataset: Path) -> None:
        from nnunetv2.training.nnUNetTrainer.variants.data_augmentation.nnUNetTrainerDA5 import nnUNetTrainerDA5
        from nnunetv2.training.nnUNetTrainer.variants.network_architecture.nnUNetTrainerNoDeepSupervision import (
            nnUNetTrainerNoDeepSupervision,
        )
        from nnunetv2.training.nnUNetTrainer.variants.training_length.nnUNetTrainer_Xepochs import (
            nnUNetTrainer_10epochs,
        )

        trainer = make_trainer(dataset, nnUNetTrainerNoDeepSupervision, nnUNetTrainer_10epochs, nnUNetTrainerDA5)
        trainer.on_train_start()
        trainer.on_train_epoch_start()
        assert trainer.num_epochs == 10
        batch = next(trainer.dataloader_train)
        assert batch["target"].shape == (3, 2, 1, *trainer.configuration_manager.patch_size)
        assert np.isfinite(trainer.train_step(batch)["loss"])
        assert trainer.criterion.weights.log_odds.any()

    def test_pair_supervises_both_views_and_leaves_the_weights(self, dataset: Path) -> None:
        trainer = make_trainer(dataset, method="pair")
        trainer.on_train_start()
        trainer.on_train_epoch_start()
        assert np.isfinite(trainer.train_step(next(trainer.dataloader_train))["loss"])
        assert not trainer.criterion.weights.log_odds.any()

    def test_ignored_voxels_count_nowhere(self, dataset: Path) -> None:
        names = json.loads((dataset / "preprocessed/Dataset501_Phantom/dataset.json").read_text())["labels"]
        drawn = make_trainer(dataset)
        drawn.on_train_start()
        batch = next(drawn.dataloader_train)
        trainer = make_trainer(dataset, labels={**names, "ignore": len(names)})
        trainer.initialize()
        trainer.on_train_epoch_start()
        for level in batch["target"]:
            level.fill_(len(names))
        trainer.train_step(batch)
        [(ell_ce, _)] = trainer.terms
        assert ell_ce == 0

    def test_a_compiled_network_is_tapped(self, dataset: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        compiled = torch.compile
        monkeypatch.setattr(torch, "compile", lambda model: compiled(model, backend="eager"))
        trainer = make_trainer(dataset, _do_i_compile=lambda self: True)
        trainer.on_train_start()
        trainer.on_train_epoch_start()
        for _ in range(2):
            assert np.isfinite(trainer.train_step(next(trainer.dataloader_train))["loss"])
        assert type(trainer.network).__name__ == "OptimizedModule"
        assert trainer.criterion.weights.log_odds.any()

    def test_the_cascades_input_is_augmented_with_the_image(self, dataset: Path) -> None:
        trainer = make_trainer(dataset)
        transform = trainer.get_training_transforms(
            (16, 16), (-0.1, 0.1), None, (0, 1), False, use_mask_for_norm=[False], is_cascaded=True,
            foreground_labels=[1, 2],
        )  # fmt: skip
        found = transform(image=torch.rand(1, 24, 24), segmentation=torch.randint(0, 3, (2, 24, 24)).short())
        assert found["image"].shape == (2, 3, 16, 16)
        assert found["segmentation"].shape == (2, 1, 16, 16)

    def test_regions_are_refused(self, dataset: Path) -> None:
        trainer = make_trainer(dataset, labels={"background": 0, "whole": [1, 2], "core": 2}, order=[1, 2])
        with pytest.raises(ConfigError, match="Dataset501_Phantom is trained by regions"):
            trainer.initialize()

    def test_a_checkpoint_of_other_cases_is_refused(self, dataset: Path, tmp_path: Path) -> None:
        trainer = make_trainer(dataset)
        trainer.initialize()
        file = str(tmp_path / "checkpoint.pth")
        trainer.save_checkpoint(file)
        other = make_trainer(dataset)
        other.fold = 1
        with pytest.raises(RunError, match=r"Put back the splits_final\.json"):
            other.load_checkpoint(file)
        again = make_trainer(dataset)
        again.load_checkpoint(file)
        assert again.current_epoch == 1
