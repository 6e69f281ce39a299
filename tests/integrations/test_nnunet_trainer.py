"""AdaWAC's trainer inside nnU-Net, on phantoms that nnU-Net planned and preprocessed."""

import csv
import importlib
import json
import os
import pickle
import shutil
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import nibabel as nib
import numpy as np
import pytest
import torch

import adawac
from adawac.cli import run as run_command
from adawac.data.phantom.phantom_files import write_nifti_layout
from adawac.errors import ConfigError, RunError
from adawac.integrations.nnunet import trainer_folder
from adawac.integrations.nnunet.additions import joined
from adawac.runs import Run

CPU = torch.device("cpu")

TRAINERS = """
import os

from adawac.integrations.nnunet.trainer import nnUNetTrainerAdaWAC


class nnUNetTrainerAdaWACBrief(nnUNetTrainerAdaWAC):
    def __init__(self, plans, configuration, fold, dataset_json, device):
        super().__init__(plans, configuration, fold, dataset_json, device)
        self.num_epochs = 3
        self.num_iterations_per_epoch = 4
        self.num_val_iterations_per_epoch = 1
        self.save_every = 1

    def on_epoch_start(self):
        super().on_epoch_start()
        if self.current_epoch == int(os.environ.get("STOP_AT", -1)):
            raise SystemExit(3)
"""


def nnunet(command: str, *words: str, **env: str) -> "subprocess.CompletedProcess[str]":
    source = str(Path(adawac.__file__).parents[1])
    module, entry = {
        "plan_and_preprocess": ("experiment_planning.plan_and_preprocess_entrypoints", "plan_and_preprocess_entry"),
        "train": ("run.run_training", "run_training_entry"),
        "predict": ("inference.predict_from_raw_data", "predict_entry_point"),
        "find_best": ("evaluation.find_best_configuration", "find_best_configuration_entry_point"),
    }[command]
    threads = "import multiprocessing\nmultiprocessing.cpu_count = lambda: 1\n"  # nnU-Net computes with as many
    code = f"{threads}from nnunetv2.{module} import {entry}\nif __name__ == '__main__':\n    {entry}()\n"
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
def folders(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """nnU-Net's three folders, and one with trainers of a user; the folder above them."""
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
        yield base


def plan(folders: Path, name: str, *configurations: str) -> Path:
    """Let nnU-Net plan and preprocess a raw data set, with narrow networks; return what it preprocessed."""
    number = name[len("Dataset") :].split("_")[0]
    words = ["-d", number, "-c", *configurations, "-np", *["1"] * len(configurations), "-npfp", "1"]
    made = nnunet("plan_and_preprocess", *words, nnUNet_n_proc_DA="1")  # as many threads, at least one
    assert made.returncode == 0, made.stderr
    plans = folders / "preprocessed" / name / "nnUNetPlans.json"
    description = json.loads(plans.read_text())
    for configuration in description["configurations"].values():
        if "architecture" in configuration:
            configuration["batch_size"] = 3
            widths = configuration["architecture"]["arch_kwargs"]["features_per_stage"]
            configuration["architecture"]["arch_kwargs"]["features_per_stage"] = [4] * len(widths)
    plans.write_text(json.dumps(description))
    return plans.parent


@pytest.fixture(scope="module")
def dataset(folders: Path) -> Path:
    write_nifti_layout(folders / "raw" / "Dataset501_Phantom", 5, size=32, slices=(8, 10))
    return plan(folders, "Dataset501_Phantom", "2d", "3d_fullres")


@pytest.fixture(scope="module")
def partly_labelled(folders: Path) -> Path:
    """A phantom with an `ignore` label: one training case is unlabelled, and the first slice of another one."""
    raw = folders / "raw" / "Dataset502_Partly"
    write_nifti_layout(raw, 5, size=32, slices=(8, 10))
    description = json.loads((raw / "dataset.json").read_text())
    ignored = len(description["labels"])
    description["labels"]["ignore"] = ignored
    (raw / "dataset.json").write_text(json.dumps(description))
    for path, part in zip(sorted((raw / "labelsTr").iterdir())[1:3], (slice(None), slice(0, 1)), strict=True):
        file = nib.load(path)
        label = np.array(file.dataobj)
        label[..., part] = ignored
        nib.save(nib.Nifti1Image(label, file.affine), path)
    return plan(folders, "Dataset502_Partly", "2d")


def training_cases(dataset: Path) -> list[str]:
    return sorted(json.loads((dataset / "splits_final.json").read_text())[0]["train"])


def make_trainer(
    dataset: Path,
    *bases: type,
    configuration: str = "2d",
    labels: dict[str, Any] | None = None,
    order: list[int] | None = None,
    name: str = "nnUNetTrainerAdaWACTested",
    **settings: Any,
) -> Any:
    """A trainer of its own class: AdaWAC's first, then others of nnU-Net, with settings."""
    from nnunetv2.utilities.find_objects import recursive_find_trainer_class_by_name

    found = recursive_find_trainer_class_by_name("nnUNetTrainerAdaWAC")
    plans = json.loads((dataset / "nnUNetPlans.json").read_text()) | {"continue_training": False}
    description = json.loads((dataset / "dataset.json").read_text())
    description |= {"labels": labels or description["labels"], **({"regions_class_order": order} if order else {})}
    trainer = type(name, (found, *bases), settings)(plans, configuration, 0, description, CPU)
    trainer.num_epochs, trainer.num_iterations_per_epoch, trainer.num_val_iterations_per_epoch = 3, 4, 1
    return trainer


STARTED: list[Any] = []


@pytest.fixture(autouse=True)
def _run_folders_are_closed() -> Iterator[None]:
    yield
    while STARTED:
        STARTED.pop().recorder.close("interrupted")


def started(dataset: Path, *bases: type, **settings: Any) -> Any:
    """A trainer before its first step."""
    trainer = make_trainer(dataset, *bases, **settings)
    trainer.on_train_start()
    STARTED.append(trainer)
    trainer.on_train_epoch_start()
    return trainer


def output_folder(folders: Path, trainer: str, configuration: str) -> Path:
    return folders / "results" / "Dataset501_Phantom" / f"{trainer}__nnUNetPlans__{configuration}" / "fold_0"


pytestmark = pytest.mark.filterwarnings("ignore")


@pytest.mark.parametrize("configuration", ["2d", "3d_fullres"])
def test_a_training_leaves_beta_and_a_run_folder(dataset: Path, configuration: str, tmp_path: Path) -> None:
    trainer = make_trainer(dataset, configuration=configuration, name="nnUNetTrainerAdaWACShort")
    trainer.run_training()
    folder = Path(trainer.output_folder)
    run = Run(folder / "adawac")
    assert (run.status, run.epoch, run.info["epochs"]) == ("finished", 3, 3)
    assert run.info["summary"]["method"] == "adawac"
    assert {"ell_ce", "reg_ac", "val_dice", "lr"} <= run.metrics[-1].keys()
    assert list(dict.fromkeys(run.samples.case)) == training_cases(dataset)
    raw = Path(os.environ["nnUNet_raw"]) / "Dataset501_Phantom" / "labelsTr"  # noqa: SIM112
    for case in training_cases(dataset):
        label = np.asarray(nib.load(raw / f"{case}.nii.gz").dataobj)
        rows = run.samples.take(run.samples.case == case)
        if configuration == "2d":
            sparse = [not label[..., number].any() for number in rows.slice]  # in the user's own file
            assert rows.label_sparse.tolist() == sparse
            assert len(set(rows.slice)) == len(rows) == label.shape[2]
        else:
            assert rows.unit.tolist() == ["volume"]
            assert rows.foreground[0] == pytest.approx((label > 0).mean(), rel=0.2)  # resampled
    beta = list(csv.DictReader((folder / "beta.csv").read_text().splitlines()))
    assert [(row["case"], row["slice"]) for row in beta] == [
        (case, str(number) if configuration == "2d" else "")
        for case, number in zip(run.samples.case, run.samples.slice, strict=True)
    ]
    log_odds = np.array([float(row["log_odds"]) for row in beta])
    assert np.count_nonzero(log_odds) >= 3
    last = np.array([values[np.isfinite(values)][-1] for values in run.history["beta"].T if np.isfinite(values).any()])
    seen = np.isfinite(run.history["beta"]).any(0)
    np.testing.assert_allclose(last, (1 / (1 + np.exp(-log_odds)))[seen], rtol=1e-4)
    assert run_command(["report", str(folder / "adawac"), "--out", str(tmp_path / "report.html")]) == 0
    assert run_command(["figure", str(folder / "adawac"), "separation", "--out", str(tmp_path / "figure.png")]) == 0
    assert run_command(["watch", str(folder / "adawac")]) == 0


@pytest.mark.slow
@pytest.mark.parametrize("configuration", ["2d", "3d_fullres"])
def test_a_fold_is_trained_stopped_continued_and_used_by_nnunets_commands(
    folders: Path, dataset: Path, configuration: str
) -> None:
    name = "nnUNetTrainerAdaWACBrief"
    words = ["501", configuration, "0", "-tr", name, "-device", "cpu", "--npz"]
    stopped = nnunet("train", *words, STOP_AT="2")
    assert stopped.returncode == 3, stopped.stderr
    out = output_folder(folders, name, configuration)
    before = torch.load(out / "checkpoint_latest.pth", weights_only=False)["init_args"]["adawac"]["criterion"]
    assert before["weights.log_odds"].any()
    assert (Run(out / "adawac").status, Run(out / "adawac").epoch) == ("interrupted", 2)

    finished = nnunet("train", *words, "--c")
    assert finished.returncode == 0, finished.stderr
    assert "Epoch 1" not in finished.stdout
    assert "adawac: ell_ce" in finished.stdout
    run = Run(out / "adawac")
    assert (run.status, run.epoch, run.history.epochs.tolist()) == ("finished", 3, [1, 2, 3])
    summary = json.loads((out / "validation" / "summary.json").read_text())
    scores = {(score.case, score.label): score.value for score in run.scores("val-nnunet")}
    for entry in summary["metric_per_case"]:
        case = Path(entry["prediction_file"]).name.removesuffix(".nii.gz")
        expected = [metrics["Dice"] for metrics in entry["metrics"].values()]
        np.testing.assert_array_equal([scores[case, label] for label in range(1, 9)], expected)
    assert run_command(["report", str(out / "adawac"), "--out", str(folders / f"report_{configuration}.html")]) == 0

    [scan, *_] = sorted((folders / "raw/Dataset501_Phantom/imagesTr").iterdir())
    scans, labels = folders / f"scans_{configuration}", folders / f"labels_{configuration}"
    scans.mkdir()
    shutil.copy(scan, scans)
    words = ["-d", "501", "-c", configuration, "-f", "0", "-tr", name, "-device", "cpu"]
    words += ["-i", str(scans), "-o", str(labels), "-npp", "1", "-nps", "1", "--disable_tta"]
    predicted = nnunet("predict", *words)
    assert predicted.returncode == 0, predicted.stderr
    assert [path.name for path in labels.glob("*.nii.gz")] == [scan.name.replace("_0000", "")]

    best = nnunet("find_best", "501", "-c", configuration, "-f", "0", "-tr", name, "-np", "1", "--disable_ensembling")
    assert best.returncode == 0, best.stderr
    assert f"nnUNetv2_predict -d Dataset501_Phantom -i INPUT_FOLDER -o OUTPUT_FOLDER -f  0 -tr {name}" in best.stdout


def seeded(trainer: Any) -> Any:
    """Make a trainer draw the same patches in the same epoch, and take the same steps."""
    start = trainer.on_epoch_start

    def on_epoch_start() -> None:
        start()
        torch.manual_seed(trainer.current_epoch)
        np.random.seed(trainer.current_epoch)

    trainer.on_epoch_start = on_epoch_start
    return trainer


@pytest.mark.slow
def test_a_continued_training_ends_where_an_uninterrupted_one_does(dataset: Path) -> None:
    torch.manual_seed(0)
    whole = make_trainer(dataset, name="nnUNetTrainerAdaWACWhole")
    whole.initialize()
    start = {name: value.clone() for name, value in whole.network.state_dict().items()}
    seeded(whole).run_training()

    first = make_trainer(dataset, name="nnUNetTrainerAdaWACHalves")
    first.initialize()
    first.network.load_state_dict(start)
    first.save_every = 2
    step, steps = first.train_step, 0

    def stop(batch: Any) -> Any:
        nonlocal steps
        steps += 1
        if steps == 11:  # in the third epoch, which is lost
            raise KeyboardInterrupt
        return step(batch)

    first.train_step = stop
    with pytest.raises(KeyboardInterrupt):
        seeded(first).run_training()
    second = make_trainer(dataset, name="nnUNetTrainerAdaWACHalves")
    second.load_checkpoint(str(Path(first.output_folder) / "checkpoint_latest.pth"))
    seeded(second).run_training()

    for name, value in whole.network.state_dict().items():
        torch.testing.assert_close(second.network.state_dict()[name], value, rtol=0, atol=0)
    for name, value in whole.criterion.state_dict().items():
        torch.testing.assert_close(second.criterion.state_dict()[name], value, rtol=0, atol=0)
    runs = [Run(Path(trainer.output_folder) / "adawac") for trainer in (whole, second)]
    for field in ("ell_ce", "ell_dice", "reg_ac", "beta"):
        np.testing.assert_array_equal(runs[0].history[field], runs[1].history[field])


@pytest.mark.slow
def test_a_new_training_sets_the_run_folder_of_the_last_one_aside(dataset: Path) -> None:
    for _ in range(2):
        trainer = started(dataset, name="nnUNetTrainerAdaWACTwice")
        trainer.recorder.close("interrupted")
    folder = Path(trainer.output_folder)
    assert [path.name for path in sorted(folder.glob("adawac*"))] == ["adawac", "adawac-1"]


# nnU-Net's own path to several GPUs, on CPUs: the network inside DDP.
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
trainer = get_trainer_from_args("501", "2d", 0, "nnUNetTrainerAdaWAC_5epochs", device=torch.device("cpu"))
dist.init_process_group("gloo", init_method=f"file://{meeting}", rank=rank, world_size=2)
trainer.is_ddp, trainer.local_rank = True, rank  # nnU-Net would take a GPU for each rank
nnunet.DDP = lambda network, device_ids: DistributedDataParallel(network)
trainer.num_epochs, trainer.num_iterations_per_epoch, trainer.num_val_iterations_per_epoch = 2, 3, 1
trainer.configuration_manager.configuration["batch_size"] = 4  # nnU-Net's own loss gathers equal batches only
trainer.run_training()
weights = [float(parameter.detach().double().sum()) for parameter in trainer.network.parameters()]
with open(f"{out}{rank}.json", "w") as file:
    json.dump([trainer.batch_size, trainer.criterion.weights.log_odds.tolist(), weights], file)
dist.barrier()
dist.destroy_process_group()
"""


@pytest.mark.slow
def test_ranks_share_the_weights(folders: Path, dataset: Path, tmp_path: Path) -> None:
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
    assert (size, other_size) == (2, 2)
    assert first == second
    run = Run(output_folder(folders, "nnUNetTrainerAdaWAC_5epochs", "2d") / "adawac")
    assert (run.status, run.epoch) == ("finished", 2)
    seen = np.isfinite(run.history["beta"]).any(0)
    np.testing.assert_array_equal(seen, np.array(first[0]) != 0)  # whichever rank saw a slice


@pytest.mark.slow
class TestTrainer:
    def test_the_class_that_nnunet_finds_is_the_packages(self, dataset: Path) -> None:
        from nnunetv2.utilities.find_objects import recursive_find_trainer_class_by_name

        for name in ("nnUNetTrainerAdaWAC", "nnUNetTrainerAdaWACPair", "nnUNetTrainerAdaWACPair_20epochs"):
            found = recursive_find_trainer_class_by_name(name)
            assert found is getattr(importlib.import_module("adawac.integrations.nnunet.trainer"), name)
            assert pickle.loads(pickle.dumps(found)) is found
        assert make_trainer(dataset, name="nnUNetTrainerAdaWACShort").num_epochs == 3
        plans = json.loads((dataset / "nnUNetPlans.json").read_text()) | {"continue_training": False}
        description = json.loads((dataset / "dataset.json").read_text())
        assert found(plans, "2d", 0, description, CPU).num_epochs == 20

    def test_patches_are_those_of_nnunets_loader(self, dataset: Path) -> None:
        """10,000 draws of either loader: cases, slices and foreground are as frequent, within binomial error."""
        from nnunetv2.training.dataloading.data_loader import nnUNetDataLoader

        from adawac.integrations.nnunet.trainer import PatchLoader

        drawn: list[int] = []

        class Stock(nnUNetDataLoader):
            def get_bbox(self, *args: Any, **kwargs: Any) -> Any:
                lower, upper = super().get_bbox(*args, **kwargs)
                drawn.append(int(lower[0]))
                return lower, upper

        trainer = make_trainer(dataset)
        trainer.initialize()
        data, _ = trainer.get_tr_and_val_datasets()
        data.load_case = cache(data.load_case)
        counts, size = [], 50
        for seed, kind in enumerate((Stock, PatchLoader)):
            np.random.seed(seed)
            loader = kind(data, size, [32, 32], [32, 32], trainer.label_manager, oversample_foreground_percent=0.33)
            keys = np.concatenate([next(loader)["keys"] for _ in range(10_000 // size)])
            names = keys if kind is PatchLoader else [f"{c}@{z}" for c, z in zip(keys, drawn, strict=True)]
            assert set(names) <= trainer.rows.keys()
            counts.append(Counter(map(str, names)))
        for name in trainer.rows:
            first, second = (count[name] for count in counts)
            assert abs(first - second) <= 4.5 * max(first + second, 1) ** 0.5
        cases = Counter()
        for name, number in counts[1].items():
            cases[name.split("@")[0]] += number
        expected = 10_000 / len(cases)
        assert all(
            abs(number - expected) <= 4.5 * (expected * (1 - 1 / len(cases))) ** 0.5 for number in cases.values()
        )
        shares = {name: 10_000 / len(cases) / trainer.lengths[name.split("@")[0]] for name in trainer.rows}
        dense = [name for name, row in trainer.rows.items() if trainer.samples.label_dense[row]]
        assert sum(counts[1][name] for name in dense) > 1.1 * sum(shares[name] for name in dense)  # oversampled

        batches = []
        for kind in (nnUNetDataLoader, PatchLoader):
            np.random.seed(3)
            batches.append(next(kind(data, size, [32, 32], [32, 32], trainer.label_manager)))
        torch.testing.assert_close(batches[0]["data"], batches[1]["data"], rtol=0, atol=0)
        labels = batches[1]["target"].flatten(1)
        for key, label in zip(batches[1]["keys"], labels, strict=True):
            assert trainer.samples.label_dense[trainer.rows[str(key)]] == bool((label > 0).any())

    @pytest.mark.parametrize("configuration", ["2d", "3d_fullres"])
    @pytest.mark.parametrize("regions", [False, True])
    def test_without_moves_and_consistency_the_loss_is_nnunets(
        self, dataset: Path, configuration: str, regions: bool
    ) -> None:
        settings: dict[str, Any] = {"configuration": configuration, "eta_beta": 0.0, "lambda_ac": 0.0}
        if regions:
            settings |= {"labels": {"background": 0, "whole": list(range(1, 9)), "core": [1, 2]}, "order": [1, 2]}
        for method in ("adawac", "pair"):
            trainer = started(dataset, method=method, **settings)
            batch = next(trainer.dataloader_train)
            index = torch.tensor([trainer.rows[str(key)] for key in batch["keys"]])
            target = joined(batch["target"], CPU)
            output = trainer.network(joined(batch["data"], CPU))
            expected = float(trainer.loss(output, target))
            assert float(trainer._objective(index, output, target)) == pytest.approx(expected, rel=1e-5)
            taken = trainer.train_step(batch)["loss"]
            assert float(taken) == pytest.approx(expected, rel=1e-5)
            assert not trainer.criterion.weights.log_odds.any()

    def test_a_step_moves_the_slices_of_its_patches(self, dataset: Path) -> None:
        trainer = started(dataset, eta_beta=0.5, lambda_ac=0.7, preset="paper", options={"views": "both"})
        batch = next(trainer.dataloader_train)
        assert not torch.equal(batch["data"][:, 0], batch["data"][:, 1])
        rows = [trainer.rows[str(key)] for key in batch["keys"]]
        parameters = [parameter.detach().clone() for parameter in trainer.network.parameters()]
        trainer.train_step(batch)
        ell_ce, _, reg_ac, beta = trainer.recorder.record.values
        moved = trainer.criterion.weights.log_odds
        assert set(moved.nonzero().flatten().tolist()) == set(rows)
        for row, visits in Counter(rows).items():
            if visits == 1:
                torch.testing.assert_close(moved[row], 0.5 * (ell_ce[row] - reg_ac[row]))
            torch.testing.assert_close(beta[row], moved[row].sigmoid())
        changed = [not torch.equal(new, old) for new, old in zip(trainer.network.parameters(), parameters, strict=True)]
        assert sum(changed) >= len(changed) - 2  # all but the head that nnU-Net's deep supervision leaves out
        assert type(trainer.loss).__name__ == "DeepSupervisionWrapper"  # nnU-Net's, for validation

    def test_a_case_may_be_several_samples_in_3d(self, dataset: Path) -> None:
        trainer = started(dataset, configuration="3d_fullres", case_bins=2)
        assert len(trainer.criterion.weights.log_odds) == 2 * len(training_cases(dataset))
        assert set(trainer.samples.unit) == {"patch"}
        trainer.train_step(next(trainer.dataloader_train))

    def test_weights_can_be_held(self, dataset: Path) -> None:
        trainer = started(dataset, hold_epochs=1)
        for epoch in (0, 1):
            trainer.current_epoch = epoch
            trainer.on_train_epoch_start()
            trainer.train_step(next(trainer.dataloader_train))
            assert trainer.criterion.weights.log_odds.any() == (epoch == 1)

    def test_validation_is_nnunets_and_leaves_the_weights(self, dataset: Path) -> None:
        from nnunetv2.training.nnUNetTrainer.nnUNetTrainer import nnUNetTrainer

        trainer = started(dataset)
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
        assert (objective.dice, objective.rho, objective.smooth, objective.eta_beta) == ("batch", "mse", 0.0, 2.0)
        trainer = make_trainer(dataset, configuration="3d_fullres")
        trainer.initialize()
        objective = trainer.criterion.objective
        assert (objective.dice, objective.smooth, objective.relative, objective.bound) == ("sample", 1e-5, True, 4.0)

    def test_other_trainers_of_nnunet_mix_in(self, dataset: Path) -> None:
        from nnunetv2.training.nnUNetTrainer.variants.data_augmentation.nnUNetTrainerDA5 import nnUNetTrainerDA5
        from nnunetv2.training.nnUNetTrainer.variants.network_architecture.nnUNetTrainerNoDeepSupervision import (
            nnUNetTrainerNoDeepSupervision,
        )

        trainer = started(dataset, nnUNetTrainerNoDeepSupervision, nnUNetTrainerDA5)
        batch = next(trainer.dataloader_train)
        assert batch["target"].shape == (3, 2, 1, *trainer.configuration_manager.patch_size)
        assert np.isfinite(trainer.train_step(batch)["loss"])
        assert trainer.criterion.weights.log_odds.any()

    def test_unlabelled_slices_and_cases_keep_their_weight(self, partly_labelled: Path) -> None:
        trainer = started(partly_labelled)
        samples = trainer.samples
        first, *_ = training_cases(partly_labelled)  # is unlabelled, and a slice of the next one
        assert samples.unlabelled.sum() == trainer.lengths[first] + 1
        for _ in range(12):
            assert np.isfinite(trainer.train_step(next(trainer.dataloader_train))["loss"])
        seen = ~trainer.recorder.record.values.isnan().all(0).numpy()
        assert (seen & samples.unlabelled).any()
        moved = trainer.criterion.weights.log_odds.numpy() != 0
        np.testing.assert_array_equal(moved, seen & ~samples.unlabelled)

    def test_a_compiled_network_is_tapped(self, dataset: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        compiled = torch.compile
        monkeypatch.setattr(torch, "compile", lambda model: compiled(model, backend="eager"))
        trainer = started(dataset, _do_i_compile=lambda self: True)
        for _ in range(2):
            assert np.isfinite(trainer.train_step(next(trainer.dataloader_train))["loss"])
        assert type(trainer.network).__name__ == "OptimizedModule"
        assert trainer.criterion.weights.log_odds.any()

    def test_the_second_stage_of_a_cascade_is_refused(self, dataset: Path) -> None:
        trainer = make_trainer(dataset)
        trainer.is_cascaded = True
        with pytest.raises(ConfigError, match="second stage of a cascade"):
            trainer.initialize()

    def test_a_method_with_a_teacher_is_refused(self, dataset: Path) -> None:
        trainer = make_trainer(dataset, method="mean-teacher")
        with pytest.raises(ConfigError, match=r"averaged network.*mean-teacher"):
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
