"""AdaWAC in a LightningModule: the plain loop's weights, whatever Lightning does around it, and a run folder of it."""

import copy
import importlib
import pickle
import sys
import time
from enum import StrEnum
from pathlib import Path

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, DistributedSampler

import adawac
from adawac.data.cases import SampleTable
from adawac.data.views import PairDataset
from adawac.errors import ConfigError, DataError, MissingDependencyError, RunError
from adawac.runs import Run
from tests.integrations.small_training import NUM_SAMPLES, network, optimizer_of, plain_loop, scans

L = pytest.importorskip("lightning.pytorch")

from adawac.integrations.lightning import RunFolder  # noqa: E402

pytestmark = [
    pytest.mark.filterwarnings("ignore:`isinstance.treespec, LeafSpec.` is deprecated"),
    pytest.mark.filterwarnings("ignore:.*does not have many workers"),
    pytest.mark.filterwarnings("ignore:Be aware that when using `ckpt_path`"),
]


class Segmenter(L.LightningModule):
    def __init__(self, num_samples: int = NUM_SAMPLES, method: str = "adawac"):
        super().__init__()
        self.save_hyperparameters()
        self.network = network()
        self.criterion = adawac.build_method(method, num_samples)
        self.tap = adawac.EncoderTap(self.network, "0")

    def training_step(self, batch, batch_idx):
        logits = self.network(torch.cat(batch["images"]))
        return self.criterion(logits, torch.cat(batch["labels"]), self.tap.pop(), batch["index"]).loss

    def configure_optimizers(self):
        return optimizer_of(self.network)


class Validated(Segmenter):
    """Calls the criterion in validation, too."""

    def validation_step(self, batch, batch_idx):
        with torch.inference_mode(False), torch.enable_grad():
            logits = self.network(torch.cat(batch["images"]).clone())
            step = self.criterion(logits, torch.cat(batch["labels"]), self.tap.pop(), batch["index"].clone())
        self.log("val_ce", step.ell_ce.mean())


class Held(Segmenter):
    """Holds its weights by itself."""

    def on_train_batch_start(self, batch, batch_idx):
        self.criterion.eval()


def trainer(folder: Path, epochs: int = 2, *, callbacks=(), package=L, **options):
    return package.Trainer(
        accelerator="cpu",
        max_epochs=epochs,
        default_root_dir=folder,
        callbacks=list(callbacks),
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        **{"enable_checkpointing": False, "devices": 1, **options},
    )


def loader(**options) -> DataLoader:
    return DataLoader(PairDataset(scans(), seed=1), **{"batch_size": 4, **options})


def trained(folder: Path, epochs: int = 2, *, module=None, callbacks=None, validation=None, ckpt_path=None, **options):
    """Train, and return beta and the trainer."""
    module = module or Segmenter()
    callbacks = [RunFolder(folder / "run")] if callbacks is None else callbacks
    fitter = trainer(folder, epochs, callbacks=callbacks, **options)
    fitter.fit(module, loader(), validation, ckpt_path=ckpt_path)
    return module.criterion.weights.beta, fitter


@pytest.mark.parametrize(
    ("options", "same"),
    [
        ({}, {}),
        ({"accumulate_grad_batches": 2}, {"accumulate": 2}),
        ({"precision": "bf16-mixed"}, {"autocast": torch.bfloat16}),
    ],
)
def test_training_is_that_of_a_plain_loop(tmp_path, options, same):
    expected, history = plain_loop(2, **same)
    beta, _ = trained(tmp_path, **options)
    torch.testing.assert_close(beta, expected, rtol=1e-6, atol=0)
    run = Run(tmp_path / "run")
    assert (run.status, run.epoch, run.info["epochs"]) == ("finished", 2, 2)
    for name in ("ell_ce", "ell_dice", "reg_ac", "beta"):
        np.testing.assert_allclose(run.history[name], np.stack([epoch[name] for epoch in history]), rtol=1e-6)


@pytest.mark.parametrize("validated", [False, True])
def test_weights_can_be_held(tmp_path, validated):
    expected, history = plain_loop(3, hold=2)
    module = Validated() if validated else Segmenter()
    callbacks = [RunFolder(tmp_path / "run", hold_epochs=2)]
    beta, _ = trained(tmp_path, 3, module=module, callbacks=callbacks, validation=loader() if validated else None)
    torch.testing.assert_close(beta, expected, rtol=1e-6, atol=0)
    run = Run(tmp_path / "run")
    np.testing.assert_array_equal(run.history["beta"][:2], 0.5)
    np.testing.assert_allclose(run.history["ell_ce"], np.stack([epoch["ell_ce"] for epoch in history]), rtol=1e-6)


def test_a_checkpoint_in_a_new_folder_goes_on_to_hold_them(tmp_path):
    expected, _ = plain_loop(3, hold=2)
    _, fitter = trained(tmp_path, 1, callbacks=[RunFolder(tmp_path / "run", hold_epochs=0)], module=Held())
    fitter.save_checkpoint(tmp_path / "last.ckpt")
    callbacks = [RunFolder(tmp_path / "other", hold_epochs=2)]
    beta, _ = trained(tmp_path, 3, callbacks=callbacks, ckpt_path=tmp_path / "last.ckpt")
    torch.testing.assert_close(beta, expected, rtol=1e-6, atol=0)


def test_manual_optimisation_is_recorded_as_well(tmp_path):
    class Manual(Segmenter):
        automatic_optimization = False

        def training_step(self, batch, batch_idx):
            optimizer = self.optimizers()
            self.manual_backward(super().training_step(batch, batch_idx))
            optimizer.step()
            optimizer.zero_grad()

    expected, _ = plain_loop(2)
    trained(tmp_path, module=Manual())
    np.testing.assert_allclose(Run(tmp_path / "run").history["beta"][-1], expected, rtol=1e-6)


def test_a_module_in_low_precision_keeps_its_weights_in_full(tmp_path):
    beta, _ = trained(tmp_path, precision="bf16-true")
    assert beta.dtype == torch.float32
    assert (beta - 0.5).abs().min() > 1e-3


def test_validation_neither_moves_beta_nor_is_recorded(tmp_path):
    expected, history = plain_loop(2)
    beta, _ = trained(tmp_path, module=Validated(), validation=loader())
    torch.testing.assert_close(beta, expected, rtol=1e-6, atol=0)
    found = Run(tmp_path / "run").history["ell_ce"]
    np.testing.assert_allclose(found, np.stack([epoch["ell_ce"] for epoch in history]), rtol=1e-6)


def test_workers_see_the_epoch(tmp_path):
    """Lightning makes the first iterator before the epoch begins: its workers must not show another epoch's views."""
    expected, _ = plain_loop(3)
    module = Segmenter()
    trainer(tmp_path, 3, callbacks=[RunFolder(tmp_path / "run")]).fit(module, loader(num_workers=1))
    torch.testing.assert_close(module.criterion.weights.beta, expected, rtol=1e-6, atol=0)


@pytest.mark.parametrize("validated", [False, True])  # with a validation, Lightning saves before the epoch is over
def test_a_checkpoint_holds_beta_and_the_folder_goes_on(tmp_path, validated):
    expected, history = plain_loop(4)
    kind, validation = (Validated, loader()) if validated else (Segmenter, None)
    saver = L.callbacks.ModelCheckpoint(tmp_path, "first", enable_version_counter=False)
    callbacks = [RunFolder(tmp_path / "run"), saver]
    half, _ = trained(tmp_path, 2, module=kind(), callbacks=callbacks, validation=validation, enable_checkpointing=True)
    path = tmp_path / "first.ckpt"
    saved = torch.load(path, weights_only=True)["state_dict"]["criterion.weights.log_odds"]
    torch.testing.assert_close(saved.sigmoid(), half)

    beta, _ = trained(tmp_path, 4, module=kind(), validation=validation, ckpt_path=path)
    torch.testing.assert_close(beta, expected, rtol=1e-6, atol=0)
    run = Run(tmp_path / "run")
    assert (run.status, run.epoch, run.info["epochs"], len(run.environments)) == ("finished", 4, 4, 2)
    assert run.history.epochs.tolist() == [1, 2, 3, 4]
    np.testing.assert_allclose(run.history["beta"], np.stack([epoch["beta"] for epoch in history]), rtol=1e-6)
    assert ("val_ce" in run.metrics[0]) == validated


@pytest.mark.filterwarnings("ignore:You're resuming from a checkpoint that ended before the epoch ended")
def test_an_epoch_that_is_resumed_keeps_the_record_of_its_first_part(tmp_path):
    saver = L.callbacks.ModelCheckpoint(tmp_path, "part", every_n_train_steps=3, enable_version_counter=False)
    callbacks = [RunFolder(tmp_path / "run"), saver]
    trained(tmp_path, 2, callbacks=callbacks, max_steps=3, enable_checkpointing=True)
    assert Run(tmp_path / "run").history.epochs.tolist() == [1, 2]

    module = Segmenter()
    resumed = trainer(tmp_path, 2, callbacks=[RunFolder(tmp_path / "run")])
    backwards = loader(sampler=list(range(NUM_SAMPLES))[::-1])  # rows 4..7 first: Lightning begins the loader anew
    resumed.fit(module, backwards, ckpt_path=tmp_path / "part.ckpt")
    run = Run(tmp_path / "run")
    assert run.history.epochs.tolist() == [1, 2]
    assert np.isfinite(run.history["beta"]).all()


class OfRank(Segmenter):
    """Deals the samples out in their order: Lightning's own sampler would shuffle them."""

    def train_dataloader(self):
        pairs = PairDataset(scans(), seed=1)
        sampler = DistributedSampler(pairs, self.trainer.world_size, self.trainer.global_rank, shuffle=False)
        return DataLoader(pairs, batch_size=4 // self.trainer.world_size, sampler=sampler)


class _Keep(L.Callback):
    """Leaves every rank's beta behind."""

    def __init__(self, folder: Path):
        self.folder = folder

    def on_train_end(self, trainer, pl_module):
        (self.folder / str(trainer.global_rank)).write_bytes(pickle.dumps(pl_module.criterion.weights.beta.numpy()))


@pytest.mark.filterwarnings("ignore")  # forking warns about threads, gloo about its own interface
def test_two_ranks_have_the_weights_of_one(tmp_path):
    expected, history = plain_loop(2)
    callbacks = [RunFolder(tmp_path / "run"), _Keep(tmp_path)]
    options = {"devices": 2, "strategy": "ddp_fork", "use_distributed_sampler": False}
    trainer(tmp_path, 2, callbacks=callbacks, **options).fit(OfRank())
    for rank in range(2):
        beta = pickle.loads((tmp_path / str(rank)).read_bytes())
        np.testing.assert_allclose(beta, expected, rtol=1e-5)
    run = Run(tmp_path / "run")
    for name in ("ell_ce", "reg_ac", "beta"):
        np.testing.assert_allclose(run.history[name], np.stack([epoch[name] for epoch in history]), rtol=1e-5)
    assert run.samples.label_sparse.tolist() == [row % 2 == 0 for row in range(NUM_SAMPLES)]
    assert run.status == "finished"


class _Heard(RunFolder):
    """Leaves a file where a rank hears of the problem; the first one waits for the second, which dies with it."""

    def on_train_start(self, trainer, pl_module):
        try:
            super().on_train_start(trainer, pl_module)
        except RunError:
            (self.out.parent / str(trainer.global_rank)).touch()
            for _ in range(100):
                if (self.out.parent / "1").exists():
                    break
                time.sleep(0.05)
            raise


@pytest.mark.filterwarnings("ignore")
def test_no_rank_waits_for_one_that_cannot_write(tmp_path):
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "notes.txt").write_text("mine")
    options = {"devices": 2, "strategy": "ddp_fork", "use_distributed_sampler": False}
    with pytest.raises(Exception, match="Expected an empty folder"):
        trainer(tmp_path, 1, callbacks=[_Heard(tmp_path / "run")], **options).fit(OfRank())
    assert (tmp_path / "0").exists()
    assert (tmp_path / "1").exists()


def test_the_folder_knows_the_samples(tmp_path):
    names = ["background", "liver", "spleen"]
    cases = ["a", "a", "a", "b", "b", "b", "b", "b"]
    _, fitter = trained(tmp_path, callbacks=[RunFolder(tmp_path / "run", samples=cases, class_names=names)])
    run = Run(tmp_path / "run")
    table = run.samples
    assert isinstance(table, SampleTable)
    assert table.class_names == tuple(names) == tuple(run.data["class_names"])
    assert table.case.tolist() == cases
    assert table.slice.tolist() == [0, 1, 2, 0, 1, 2, 3, 4]
    assert table.label_sparse.tolist() == [row % 2 == 0 for row in range(NUM_SAMPLES)]
    assert run.settings["method"]["name"] == run.summary["method"] == "adawac"
    assert run.settings["settings"] == {"num_samples": NUM_SAMPLES, "method": "adawac"}
    beta, sparse = run.history["beta"][-1], table.label_sparse
    logged = {name: float(value) for name, value in fitter.callback_metrics.items()}
    assert logged["beta"] == pytest.approx(beta.mean(), rel=1e-6)
    assert logged["beta_auc"] == pytest.approx(np.mean(beta[~sparse][:, None] > beta[sparse]), rel=1e-6)
    assert run.metrics[-1]["beta_auc"] == pytest.approx(logged["beta_auc"], rel=1e-6)

    trained(tmp_path / "again", callbacks=[RunFolder(tmp_path / "again" / "run", samples=table)])
    again = Run(tmp_path / "again" / "run")
    assert again.samples.id.tolist() == table.id.tolist()
    np.testing.assert_array_equal(again.samples.fraction, table.fraction)


def test_samples_that_come_later_join_the_table(tmp_path):
    """Half of the samples are seen in the first epoch, all in the second."""
    module = Segmenter()
    fitter = trainer(tmp_path, 2, callbacks=[RunFolder(tmp_path / "run")], limit_train_batches=1)
    fitter.fit(module, loader(sampler=_Turns()))
    run = Run(tmp_path / "run")
    assert run.samples.slice.tolist() == [4, 5, 6, 7, 0, 1, 2, 3]
    assert np.isnan(run.history["beta"]).tolist() == [[False] * 4 + [True] * 4, [True] * 4 + [False] * 4]
    assert run.samples.label_sparse.tolist() == [row % 2 == 0 for row in range(NUM_SAMPLES)]


class _Turns(torch.utils.data.Sampler):
    """The second half first, then the first one."""

    def __init__(self):
        self.times = 0

    def __len__(self):
        return NUM_SAMPLES

    def __iter__(self):
        self.times += 1
        return iter([*range(4, 8), *range(4)] if self.times == 1 else range(8))


def test_figures_and_reports_read_it(tmp_path):
    from adawac.figures import draw
    from adawac.report import write_report

    trained(tmp_path)
    draw("separation", tmp_path / "run", tmp_path / "separation.svg")
    assert "label-sparse" in (tmp_path / "separation.svg").read_text()
    write_report([tmp_path / "run"], tmp_path / "report.html")
    text = (tmp_path / "report.html").read_text()
    assert "training set" in text
    assert "adawac report run" in text
    assert "adawac train --config" not in text  # that could not repeat it


def test_a_checkpoint_may_be_chosen_by_the_separation(tmp_path):
    saver = L.callbacks.ModelCheckpoint(tmp_path, monitor="beta_auc", mode="max", save_on_train_epoch_end=True)
    trained(tmp_path, callbacks=[saver, RunFolder(tmp_path / "run")], enable_checkpointing=True)
    assert 0 <= float(saver.best_model_score) <= 1


@pytest.mark.parametrize("method", ["baseline", "trim-train", "trim-train+acr"])
def test_other_methods_are_recorded_under_their_name(tmp_path, method):
    trained(tmp_path, 1, module=Segmenter(method=method))
    assert Run(tmp_path / "run").summary["method"] == method


def test_an_error_leaves_an_interrupted_run(tmp_path):
    class Failing(Segmenter):
        def training_step(self, batch, batch_idx):
            if self.current_epoch == 1:
                raise ZeroDivisionError("on purpose")
            return super().training_step(batch, batch_idx)

    with pytest.raises(ZeroDivisionError, match="on purpose"):
        trained(tmp_path, module=Failing())
    run = Run(tmp_path / "run")
    assert (run.status, run.epoch) == ("interrupted", 1)


class Speed(StrEnum):
    FAST = "fast"


class Swept(Segmenter):
    def __init__(self, rate, sizes, threshold, speed):
        super().__init__()
        self.save_hyperparameters()


def test_hyper_parameters_of_any_type_do_not_stop_the_training(tmp_path):
    """A sweep draws rates by NumPy; what YAML cannot hold is left out."""
    trained(tmp_path, 1, module=Swept(np.float64(0.5), {"patch": (1, np.int64(2))}, float("nan"), Speed.FAST))
    kept = Run(tmp_path / "run").settings["settings"]
    assert kept == {"num_samples": NUM_SAMPLES, "method": "adawac", "rate": 0.5, "sizes": {"patch": [1, 2]}}


def test_the_module_can_be_copied_while_it_is_recorded(tmp_path):
    """Whoever averages weights does so; the copy's steps are not the run's."""

    class Copies(L.Callback):
        def on_train_epoch_end(self, trainer, module):
            other = copy.deepcopy(module)
            other.training_step(next(iter(loader())), 0)
            pickle.loads(pickle.dumps(module.criterion))

    expected, history = plain_loop(2)
    trained(tmp_path, callbacks=[Copies(), RunFolder(tmp_path / "run")])
    np.testing.assert_allclose(Run(tmp_path / "run").history["beta"][-1], history[-1]["beta"], rtol=1e-6)
    np.testing.assert_allclose(Run(tmp_path / "run").history["beta"][-1], expected, rtol=1e-6)


@pytest.mark.parametrize("use_buffers", [False, True])
@pytest.mark.filterwarnings("ignore")
def test_averaging_weights_leaves_beta_alone_without_buffers(tmp_path, use_buffers):
    """As the page says; with them, Lightning puts an average of the log-odds in place of beta at the end."""
    averaging = getattr(L.callbacks, "EMAWeightAveraging", None)
    if averaging is None:
        pytest.skip("this Lightning has none")
    expected, _ = plain_loop(2)
    beta, _ = trained(tmp_path, callbacks=[averaging(use_buffers=use_buffers), RunFolder(tmp_path / "run")])
    assert torch.allclose(beta, expected, rtol=1e-6) != use_buffers
    np.testing.assert_allclose(Run(tmp_path / "run").history["beta"][-1], expected, rtol=1e-6)


def test_a_rehearsal_leaves_no_folder(tmp_path):
    trained(tmp_path, fast_dev_run=True)
    assert not (tmp_path / "run").exists()


def test_wrong_use_says_what_to_do(tmp_path):
    class Without(Segmenter):
        def __init__(self):
            super().__init__()
            self.aside = [self.criterion]
            del self.criterion

    with pytest.raises(ConfigError, match=r"got none\. Set one in its __init__"):
        trained(tmp_path, module=Without())

    class Two(Segmenter):
        def __init__(self):
            super().__init__()
            self.other = adawac.AdaWAC(2)

    with pytest.raises(ConfigError, match="got criterion, other"):
        trained(tmp_path, module=Two())
    trained(tmp_path, module=Two(), callbacks=[RunFolder(tmp_path / "run", criterion="criterion")])
    with pytest.raises(RunError, match="holds a run"):
        trained(tmp_path)
    with pytest.raises(DataError, match="each of the criterion's 8 samples, but got 2"):
        trained(tmp_path, callbacks=[RunFolder(tmp_path / "other", samples=["a", "b"])])


def test_the_other_package_of_lightning_takes_the_same_callback(tmp_path):
    other = pytest.importorskip("pytorch_lightning")

    class Plain(other.LightningModule):
        def __init__(self):
            super().__init__()
            self.network, self.criterion = network(), adawac.AdaWAC(NUM_SAMPLES)
            self.tap = adawac.EncoderTap(self.network, "0")

        training_step = Segmenter.training_step
        configure_optimizers = Segmenter.configure_optimizers

    expected, _ = plain_loop(2)
    module = Plain()
    trainer(tmp_path, callbacks=[RunFolder(tmp_path / "run")], package=other).fit(module, loader())
    torch.testing.assert_close(module.criterion.weights.beta, expected, rtol=1e-6, atol=0)
    assert Run(tmp_path / "run").status == "finished"


def test_without_the_library_it_says_so(monkeypatch):
    for name in ("lightning.pytorch", "pytorch_lightning"):
        monkeypatch.setitem(sys.modules, name, None)
    monkeypatch.delitem(sys.modules, "adawac.integrations.lightning")
    with pytest.raises(MissingDependencyError, match=r"pip install lightning"):
        importlib.import_module("adawac.integrations.lightning")
