"""AdaWAC with MONAI: two views of dictionary items, its engines, its networks."""

import importlib
import importlib.util
import json
import sys
from contextlib import nullcontext
from types import SimpleNamespace

import nibabel
import numpy as np
import pytest
import torch

import adawac
from adawac.errors import ConfigError, DataError, MissingDependencyError, RunError, ShapeError
from adawac.runs import Run
from adawac.runs.recorder import RunRecorder
from tests.integrations.small_training import NUM_SAMPLES, network, optimizer_of, scans

monai = pytest.importorskip("monai")

from monai.data import CacheDataset, DataLoader, Dataset, PersistentDataset  # noqa: E402
from monai.networks import nets  # noqa: E402
from monai.transforms import (  # noqa: E402
    Compose,
    EnsureTyped,
    LoadImaged,
    MapTransform,
    RandCropByPosNegLabeld,
    RandFlipd,
    RandGaussianNoised,
    RandRotated,
    RandSpatialCropd,
    Spacingd,
)

from adawac.integrations.monai import EngineLoss, RunFolder, TwoViewsd  # noqa: E402

KEYS = ["image", "label"]


def items(n: int = NUM_SAMPLES):
    """The scans of the other tests, as MONAI has them: label maps are floats with a channel."""
    return [
        {"image": image.numpy(), "label": label[None].float().numpy(), "index": row}
        for row, (image, label) in enumerate(scans()[:n])
    ]


def alike(n: int = NUM_SAMPLES):
    """One scan n times: whatever differs in its views is drawn."""
    return [{**items(1)[0], "index": row} for row in range(n)]


def noisy():
    return TwoViewsd(Compose([RandFlipd(KEYS, prob=0.5), RandGaussianNoised("image", prob=1)]))


class Counted(MapTransform):
    """A deterministic transform that knows how often it was called."""

    def __init__(self):
        super().__init__(KEYS)
        self.calls = 0

    def __call__(self, data):
        self.calls += 1
        return data


# -- views ------------------------------------------------------------------------------------------------------------


def test_an_item_has_two_views_and_its_row():
    item = Compose([EnsureTyped(KEYS), noisy()])(items()[3])
    assert set(item) == {"images", "labels", "index"}
    assert item["index"] == 3
    assert [type(view) for view in item["images"] + item["labels"]] == [torch.Tensor] * 4
    assert [(view.shape, view.dtype) for view in item["images"]] == [((1, 8, 8), torch.float32)] * 2
    assert [(view.shape, view.dtype) for view in item["labels"]] == [((8, 8), torch.int64)] * 2
    assert not torch.equal(*item["images"])


def test_image_and_label_are_transformed_together():
    """Where the image is its label, every view's must be, too."""
    same = [{"image": label[None].float(), "label": label[None].float(), "index": 1} for _, label in scans()[1:2]]
    turned = TwoViewsd(RandRotated(KEYS, range_x=1.0, prob=1, mode=("nearest", "nearest"))).set_random_state(0)
    item = turned(same[0])
    for image, label in zip(item["images"], item["labels"], strict=True):
        assert torch.equal(image[0].long(), label)
    assert not torch.equal(*item["labels"])


@pytest.mark.parametrize("kind", ["plain", "cached", "persistent"])
@pytest.mark.parametrize("loader", [DataLoader, torch.utils.data.DataLoader])
@pytest.mark.parametrize("workers", [0, 2])
def test_no_view_comes_twice(tmp_path, kind, loader, workers):
    """Neither within a batch, nor from two workers, nor in the next epoch, whoever seeds the workers."""
    counted = Counted()
    transform = Compose([EnsureTyped(KEYS), counted, noisy()])
    data = {
        "plain": lambda: Dataset(alike(), transform),
        "cached": lambda: CacheDataset(alike(), transform, progress=False, num_workers=1),
        "persistent": lambda: PersistentDataset(alike(), transform, cache_dir=tmp_path),
    }[kind]()
    batches = loader(data, batch_size=4, num_workers=workers)
    views, rows = [], []
    for _ in range(2):
        for batch in batches:
            assert [view.shape for view in batch["images"]] == [(4, 1, 8, 8)] * 2
            assert [view.shape for view in batch["labels"]] == [(4, 8, 8)] * 2
            views += [json.dumps(view.tolist()) for view in torch.cat(list(batch["images"]))]
            rows += batch["index"].tolist()
    assert rows == [*range(NUM_SAMPLES)] * 2
    assert len(set(views)) == len(views) == 4 * NUM_SAMPLES
    if workers == 0:
        assert counted.calls == {"plain": 2 * NUM_SAMPLES, "cached": NUM_SAMPLES, "persistent": NUM_SAMPLES}[kind]


@pytest.mark.parametrize("workers", [0, 2])
def test_determinism_is_that_of_monai(workers):
    def views() -> torch.Tensor:
        monai.utils.set_determinism(3)
        data = Dataset(alike(), Compose([EnsureTyped(KEYS), noisy()]))
        return torch.cat([torch.cat(list(batch["images"])) for batch in DataLoader(data, workers, batch_size=4)])

    try:
        first, second = views(), views()
    finally:
        monai.utils.set_determinism(None)
    assert torch.equal(first, second)


def test_the_second_view_does_not_see_the_first():
    class Brighter(MapTransform):
        def __call__(self, data):
            data["image"] += 1  # in place, as nobody should
            return data

    item = {"image": torch.zeros(1, 4, 4), "label": torch.zeros(1, 4, 4), "index": 0}
    views = TwoViewsd(Compose([Brighter(KEYS), RandFlipd(KEYS)]))(item)["images"]
    assert [view.unique().tolist() for view in views] == [[1], [1]]


def test_crops_come_before_the_views():
    crop = RandCropByPosNegLabeld(KEYS, label_key="label", spatial_size=(4, 4), num_samples=2)
    batches = DataLoader(Dataset(items()[1:4:2], Compose([EnsureTyped(KEYS), crop, noisy()])), batch_size=2)
    [batch] = batches
    assert batch["index"].tolist() == [1, 1, 3, 3]
    assert batch["images"][0].shape == (4, 1, 4, 4)
    with pytest.raises(ShapeError, match="before TwoViewsd"):
        TwoViewsd(crop)(EnsureTyped(KEYS)(items()[1]))


def test_wrong_items_say_what_to_do():
    item = items()[1]
    with pytest.raises(DataError, match=r"'image', 'label'\. Number the training data"):
        noisy()({key: item[key] for key in KEYS})
    with pytest.raises(ShapeError, match=r"but got \(3, 8, 8\)\. Use EnsureChannelFirstd"):
        noisy()({**item, "label": np.zeros((3, 8, 8))})
    with pytest.raises(DataError, match=r"a whole number, but got 'case 1'\. Number the training data"):
        noisy()({**item, "index": "case 1"})
    with pytest.raises(DataError, match=r"Expected 'label' in every item.*'image', 'index'.*Give your keys"):
        noisy()({key: item[key] for key in ("image", "index")})
    smooth = TwoViewsd(RandRotated(KEYS, range_x=1.0, prob=1, mode="bilinear"))
    with pytest.raises(ShapeError, match="values between them"):
        smooth(item)


# -- training ---------------------------------------------------------------------------------------------------------


def batches(epochs: int):
    """The same batches for everybody."""
    monai.utils.set_determinism(5)
    try:
        data = Dataset(items(), Compose([EnsureTyped(KEYS), noisy()]))
        return [list(DataLoader(data, batch_size=4)) for _ in range(epochs)]
    finally:
        monai.utils.set_determinism(None)


def plain_loop(epochs: int, out=None, hold=0, parts=None):
    model, criterion = network(), adawac.AdaWAC(NUM_SAMPLES)
    tap, optimizer = adawac.EncoderTap(model, "0"), optimizer_of(model)
    recorder = out and RunRecorder(out, criterion, epochs=epochs)
    for epoch, part in enumerate(parts or batches(epochs), 1):
        criterion.train(epoch > hold)
        for batch in part:
            logits = model(torch.cat(batch["images"]))
            step = criterion(logits, torch.cat(batch["labels"]), tap.pop(), batch["index"])
            step.loss.backward()
            optimizer.step()
            optimizer.zero_grad()
        if recorder:
            recorder.end_epoch(epoch, {"lr": 0.1})
    if recorder:
        recorder.close()
    return criterion.weights.beta


def test_a_loop_of_ones_own_leaves_a_run_folder(tmp_path):
    beta = plain_loop(2, tmp_path / "run")
    run = Run(tmp_path / "run")
    assert (run.status, run.epoch, run.settings["loop"]) == ("finished", 2, "pytorch")
    np.testing.assert_array_equal(run.history["beta"][-1], beta)
    assert run.samples.label_sparse.tolist() == [row % 2 == 0 for row in range(NUM_SAMPLES)]
    assert run.metrics[0]["lr"] == 0.1


@pytest.mark.filterwarnings("ignore:NvImgCodecPydicomReader")  # it is not wanted here
@pytest.mark.parametrize("lazy", [False, True])
def test_volumes_from_files(tmp_path, lazy):
    """NIfTI files, resampled, cropped and turned; with MONAI's lazy resampling as well."""
    data = []
    for row in range(2):
        volume = np.random.default_rng(row).normal(size=(2, 20, 20, 12)).astype(np.float32)
        volume[1] = np.pad(np.ones((8, 8, 4)), ((6, 6), (6, 6), (4, 4)))
        for key, array in zip(KEYS, volume, strict=True):
            nibabel.save(nibabel.Nifti1Image(array, np.diag([1.0, 1, 2, 1])), tmp_path / f"{key}{row}.nii.gz")
        data.append({key: str(tmp_path / f"{key}{row}.nii.gz") for key in KEYS} | {"index": row})
    mode = ("bilinear", "nearest")
    options = {"lazy": lazy, "overrides": {"label": {"mode": "nearest"}} if lazy else None}
    turned = Compose([RandRotated(KEYS, 0.4, prob=1, mode=mode), RandFlipd(KEYS, prob=0.5)], **options)
    load = LoadImaged(KEYS, ensure_channel_first=True)
    space = Spacingd(KEYS, (1, 1, 1.5), mode=mode)
    crop = RandSpatialCropd(KEYS, (16, 16, 16), random_size=False)
    transform = Compose([load, space, crop, TwoViewsd(turned)], **options)
    [batch] = DataLoader(CacheDataset(data, transform, progress=False), num_workers=1, batch_size=2)
    assert [view.shape for view in batch["images"]] == [(2, 1, 16, 16, 16)] * 2
    assert torch.cat(list(batch["labels"])).flatten(1).amax(1).tolist() == [1] * 4
    model, criterion = nets.UNet(3, 1, 2, channels=(4, 8), strides=(2,)), adawac.AdaWAC(2)
    tap = adawac.EncoderTap(model, "model.1.submodule")
    logits = model(torch.cat(batch["images"]))
    criterion(logits, torch.cat(batch["labels"]), tap.pop(), batch["index"]).loss.backward()
    assert (criterion.weights.beta != 0.5).all()


def test_deep_supervision():
    model = nets.SegResNetDS(2, init_filters=4, in_channels=1, out_channels=3, blocks_down=(1, 1, 1), dsdepth=2)
    criterion, tap = adawac.AdaWAC(NUM_SAMPLES), adawac.EncoderTap(model, "encoder")
    batch = batches(1)[0][0]
    logits = model(torch.cat(batch["images"]))
    assert [level.shape[2:] for level in logits] == [(8, 8), (4, 4)]
    criterion(logits, torch.cat(batch["labels"]), tap.pop(), batch["index"]).loss.backward()
    assert (criterion.weights.beta[:4] != 0.5).all()


def test_the_loss_takes_stacked_resolutions():
    """DynUNet stacks those of deep supervision."""
    batch, logits = batches(1)[0][0], torch.randn(8, 2, 3, 8, 8)
    latents = torch.randn(8, 4)
    losses = []
    for given in (logits, list(logits.unbind(1))):
        loss = EngineLoss(adawac.AdaWAC(NUM_SAMPLES), SimpleNamespace(pop=lambda: latents))
        losses.append(loss(given, loss.prepare_batch(batch, "cpu")[1]))
    assert torch.equal(*losses)


def test_a_batch_may_say_which_samples_have_a_label():
    batch, logits, latents = batches(1)[0][0], torch.randn(8, 3, 8, 8), torch.randn(8, 4)
    labelled = torch.tensor([True, False, True, True])
    results = []
    for key, labels in (({"labelled": labelled}, batch["labels"]), ({}, batch["labels"])):
        loss = EngineLoss(adawac.AdaWAC(NUM_SAMPLES, ignore_index=255), SimpleNamespace(pop=lambda: latents))
        targets = loss.prepare_batch({**batch, "labels": labels, **key}, "cpu")[1]
        if not key:
            targets = targets.where(labelled.repeat(2)[:, None, None, None], 255)
        results.append(loss(logits, targets))
    assert torch.equal(*results)


class Engine:
    """A SupervisedTrainer with all that belongs to it."""

    def __init__(self, folder, epochs: int, loss=None, hold_epochs=0, attached=True, **options):
        from monai.engines import SupervisedTrainer

        self.model, self.criterion = network(), adawac.AdaWAC(NUM_SAMPLES)
        self.optimizer = optimizer_of(self.model)
        self.loss = EngineLoss(self.criterion, adawac.EncoderTap(self.model, "0"))
        self.folder = RunFolder(folder, self.criterion, hold_epochs=hold_epochs)
        self.trainer = SupervisedTrainer(
            device=torch.device("cpu"),
            max_epochs=epochs,
            train_data_loader=batches(1)[0],
            network=self.model,
            optimizer=self.optimizer,
            loss_function=loss or self.loss,
            prepare_batch=self.loss.prepare_batch,
            train_handlers=[self.folder] if attached else None,
            **options,
        )

    @property
    def parts(self):
        return {name: getattr(self, name) for name in ("model", "optimizer", "criterion", "trainer")}


def test_the_engine_trains_as_the_plain_loop(tmp_path):
    pytest.importorskip("ignite")
    engine = Engine(tmp_path / "run", 1)
    engine.trainer.run()
    beta = plain_loop(1)
    torch.testing.assert_close(engine.criterion.weights.beta, beta)
    assert engine.trainer.state.output[0]["label"].shape == (1, 8, 8)  # as MONAI's metrics want it
    run = Run(tmp_path / "run")
    assert (run.status, run.epoch, run.settings["loop"]) == ("finished", 1, "monai")
    np.testing.assert_array_equal(run.history["beta"][-1], beta)


def test_an_engine_can_hold_the_weights(tmp_path):
    pytest.importorskip("ignite")
    engine = Engine(tmp_path / "run", 2, hold_epochs=1)
    engine.trainer.run()
    expected = plain_loop(2, hold=1, parts=2 * batches(1))  # the engine's batches are the same in every epoch
    torch.testing.assert_close(engine.criterion.weights.beta, expected)
    beta = Run(tmp_path / "run").history["beta"]
    np.testing.assert_array_equal(beta[0], 0.5)
    assert (beta[1] != 0.5).all()


def test_an_engine_that_is_resumed_goes_on_with_the_folder(tmp_path):
    pytest.importorskip("ignite")
    whole = Engine(tmp_path / "whole", 3)
    whole.trainer.run()
    first = Engine(tmp_path / "run", 2)
    first.trainer.run()
    saved = {name: one.state_dict() for name, one in first.parts.items()}

    again = Engine(tmp_path / "run", 3)
    for name, one in again.parts.items():
        one.load_state_dict({**saved[name], "max_epochs": 3} if name == "trainer" else saved[name])
    again.trainer.run()
    torch.testing.assert_close(again.criterion.weights.beta, whole.criterion.weights.beta)
    run = Run(tmp_path / "run")
    assert run.history.epochs.tolist() == [1, 2, 3]
    np.testing.assert_array_equal(run.history["beta"], Run(tmp_path / "whole").history["beta"])


@pytest.mark.parametrize("loader_first", [True, False])
@pytest.mark.parametrize("done", [2, 3])
def test_monais_checkpoint_loader_may_come_before_or_after_the_folder(tmp_path, loader_first, done):
    """It sets the epoch when the run starts, as the folder's handler asks for it."""
    pytest.importorskip("ignite")
    from ignite.engine import Events
    from monai.handlers import CheckpointLoader, CheckpointSaver

    saved, engine = tmp_path / "saved", Engine(tmp_path / "run", 3, hold_epochs=1)
    CheckpointSaver(str(saved), engine.parts, save_interval=1).attach(engine.trainer)
    engine.trainer.run()
    whole = {name: np.array(Run(tmp_path / "run").history[name]) for name in ("beta", "ell_ce")}

    again = Engine(tmp_path / "run", 3, hold_epochs=1, attached=False)
    file = str(saved / f"checkpoint_epoch={done}.pt")
    handlers = [CheckpointLoader(file, again.parts), again.folder]
    for handler in handlers if loader_first else reversed(handlers):
        handler.attach(again.trainer)
    held = []
    again.trainer.add_event_handler(Events.ITERATION_STARTED, lambda _: held.append(again.criterion.held))
    again.trainer.run()
    assert not any(held)
    run = Run(tmp_path / "run")
    assert (run.status, run.history.epochs.tolist()) == ("finished", [1, 2, 3])
    for name, values in whole.items():
        np.testing.assert_array_equal(run.history[name], values)


def test_an_engine_that_runs_twice_goes_on_with_the_folder(tmp_path):
    pytest.importorskip("ignite")
    engine = Engine(tmp_path / "run", 1)
    engine.trainer.run()
    engine.trainer.state.max_epochs = 2
    engine.trainer.run()
    assert Run(tmp_path / "run").history.epochs.tolist() == [1, 2]


def test_an_engine_that_loads_nothing_leaves_a_folder_alone(tmp_path):
    pytest.importorskip("ignite")
    for expected in (nullcontext(), pytest.raises(RunError, match="new run folder")):
        with expected:
            Engine(tmp_path / "run", 1).trainer.run()
    assert Run(tmp_path / "run").status == "finished"


def test_an_engine_that_fails_says_so(tmp_path):
    pytest.importorskip("ignite")

    def wrong(logits, labels):
        raise ZeroDivisionError("on purpose")

    engine = Engine(tmp_path / "run", 1, loss=wrong)
    with pytest.raises(ZeroDivisionError, match="on purpose"):
        engine.trainer.run()
    assert Run(tmp_path / "run").status == "interrupted"


def test_the_loss_wants_its_own_batches():
    model, criterion = network(), adawac.AdaWAC(NUM_SAMPLES)
    loss = EngineLoss(criterion, adawac.EncoderTap(model, "0"))
    with pytest.raises(ConfigError, match=r"prepare_batch=loss\.prepare_batch"):
        loss(torch.zeros(8, 3, 8, 8), torch.zeros(8, 1, 8, 8))
    with pytest.raises(DataError, match=r"'images', 'labels' is not among 'image', 'label', 'index'\. Put TwoViewsd"):
        loss.prepare_batch(items()[0], "cpu")
    with pytest.raises(ConfigError, match="Give EncoderTap"):
        EngineLoss(criterion, None)
    with pytest.raises(ConfigError, match=r"averaged network.*MeanTeacher"):
        EngineLoss(adawac.build_method("mean-teacher", NUM_SAMPLES), None)
    baseline = EngineLoss(adawac.build_method("baseline", NUM_SAMPLES), None)
    images, labels = baseline.prepare_batch(batches(1)[0][0], "cpu")
    assert baseline(model(images), labels).requires_grad


def test_without_the_library_it_says_so(monkeypatch):
    for name in ("monai.transforms.transform",):
        monkeypatch.setitem(sys.modules, name, None)
    monkeypatch.delitem(sys.modules, "adawac.integrations.monai")
    with pytest.raises(MissingDependencyError, match=r"adawac\[monai\]"):
        importlib.import_module("adawac.integrations.monai")


@pytest.mark.parametrize("transform", [[RandFlipd(KEYS)], RandFlipd, None])
def test_what_is_no_transform_is_refused_at_once(transform):
    """In a loader the reason would stand above MONAI's "applying transform", and a worker's traceback below that."""
    with pytest.raises(ConfigError, match=r"Expected a random transform.*TwoViewsd\(Compose\("):
        TwoViewsd(transform)
