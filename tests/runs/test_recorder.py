"""A recorder on anybody's criterion: what it takes, and what it leaves alone."""

import copy
import pickle
from pathlib import Path

import numpy as np
import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

import adawac
from adawac.data.loader import Loader
from adawac.data.splits import resolve_split
from adawac.data.store import Store
from adawac.errors import ConfigError, RunError, ShapeError
from adawac.models import build
from adawac.runs import FIELDS, Run
from adawac.runs.recorder import EpochRecord, RunRecorder
from adawac.train import fit


def step(criterion):
    generator = torch.Generator().manual_seed(0)
    logits, latents = (torch.randn(4, *shape, generator=generator) for shape in ((3, 8, 8), (5,)))
    return criterion(logits, torch.ones(4, 8, 8, dtype=torch.int64), latents, torch.tensor([0, 1]))


def test_copies_of_the_criterion_are_not_recorded(tmp_path):
    criterion = adawac.AdaWAC(2)
    with RunRecorder(tmp_path / "run", criterion) as recorder:
        step(criterion)
        for other in (copy.deepcopy(criterion), pickle.loads(pickle.dumps(criterion))):
            step(other)
            assert torch.equal(other.weights.log_odds, 2 * criterion.weights.log_odds)
        recorder.end_epoch(1)
    np.testing.assert_array_equal(Run(tmp_path / "run").history["beta"][0], criterion.weights.beta)


def test_unlabelled_samples_are_not_taken_for_empty_ones(tmp_path):
    labels = torch.zeros(6, 8, 8, dtype=torch.int64)
    labels[[1, 4]], labels[[2, 5], :4] = 255, 1
    criterion = adawac.AdaWAC(3, ignore_index=255)
    generator = torch.Generator().manual_seed(0)
    logits, latents = (torch.randn(6, *shape, generator=generator) for shape in ((3, 8, 8), (5,)))
    with RunRecorder(tmp_path / "run", criterion) as recorder:
        criterion(logits, labels, latents, torch.arange(3))
        numbers = recorder.end_epoch(1)
    run = Run(tmp_path / "run")
    assert run.samples is not None
    assert run.samples.state.tolist() == ["labelled", "unlabelled", "labelled"]
    assert run.samples.label_sparse.tolist() == [True, False, False]
    history = {name: run.history[name][0] for name in FIELDS}
    assert np.isnan(history["ell_ce"]).tolist() == np.isnan(history["ell_dice"]).tolist() == [False, True, False]
    assert history["beta"][1] == 0
    assert numbers["reg_ac_unlabelled"] == history["reg_ac"][1] > 0
    for name in FIELDS:  # the means are those of the labelled samples
        assert numbers[name] == pytest.approx(history[name][[0, 2]].mean())
        assert numbers[f"{name}_dense"] == pytest.approx(history[name][2])


def test_settings_may_come_from_numpy_and_torch(tmp_path):
    settings = {"lr": np.float64(0.5), "sizes": (np.int64(1), torch.tensor(2)), "data": {"root": Path("scans")}}
    RunRecorder(tmp_path / "run", adawac.AdaWAC(2), settings=settings).close()
    assert Run(tmp_path / "run").settings["settings"] == {"lr": 0.5, "sizes": [1, 2], "data": {"root": "scans"}}


def test_it_wants_a_criterion(tmp_path):
    with pytest.raises(ConfigError, match=r"but got Linear\. Give what adawac\.AdaWAC"):
        RunRecorder(tmp_path / "run", torch.nn.Linear(1, 1))
    assert not (tmp_path / "run").exists()


def test_weights_are_held_for_some_epochs_and_recorded(tmp_path):
    criterion = adawac.AdaWAC(2)
    with RunRecorder(tmp_path / "run", criterion, epochs=3, hold_epochs=2) as recorder:
        for epoch in (1, 2, 3):
            step(criterion)
            assert criterion.training
            assert torch.equal(criterion.weights.log_odds, torch.zeros(2)) == (epoch <= 2)
            criterion.eval()
            step(criterion)  # of a validation
            assert not criterion.training
            criterion.train()
            recorder.end_epoch(epoch)
        assert repr(recorder) == "RunRecorder(AdaWAC(num_samples=2, preset='paper'): 3 epochs done)"
    run = Run(tmp_path / "run")
    np.testing.assert_array_equal(run.history["beta"][:2], 0.5)
    np.testing.assert_array_equal(run.history["beta"][2], criterion.weights.beta)
    assert run.settings["method"]["hold_epochs"] == 2
    step(criterion)  # the recorder is gone
    assert not np.array_equal(run.history["beta"][2], criterion.weights.beta)


def test_a_run_that_goes_on_holds_what_is_left(tmp_path):
    criterion = adawac.AdaWAC(2)
    with RunRecorder(tmp_path / "run", criterion, hold_epochs=2) as recorder:
        step(criterion)
        recorder.end_epoch(1)
    with RunRecorder(tmp_path / "run", criterion, hold_epochs=2, resume=1) as recorder:
        for epoch in (2, 3):
            step(criterion)
            recorder.end_epoch(epoch)
    beta = Run(tmp_path / "run").history["beta"]
    np.testing.assert_array_equal(beta[:2], 0.5)
    assert (beta[2] != 0.5).all()


def test_a_held_step_that_fails_leaves_the_criterion_as_it_was(tmp_path):
    criterion = adawac.AdaWAC(2)
    with RunRecorder(tmp_path / "run", criterion, hold_epochs=1):
        with pytest.raises(ShapeError):
            criterion(torch.zeros(4, 3, 8, 8), torch.ones(4, 8, 9, dtype=torch.int64), None, torch.tensor([0, 1]))
        assert criterion.training


@pytest.mark.parametrize(("epochs", "hold"), [(3, 3), (None, -1)])
def test_a_hold_that_cannot_be_is_refused(tmp_path, epochs, hold):
    with pytest.raises(ConfigError, match=f"hold_epochs between 0 and the number of epochs, but got {hold} of"):
        RunRecorder(tmp_path / "run", adawac.AdaWAC(2), epochs=epochs, hold_epochs=hold)
    assert not (tmp_path / "run").exists()


def test_weights_that_rush_are_pointed_out(tmp_path, caplog):
    criterion = adawac.AdaWAC(2, lambda_ac=100.0)
    with RunRecorder(tmp_path / "run", criterion) as recorder:
        step(criterion)
        recorder.end_epoch(1)
    assert "lower eta_beta or lambda_ac, or let the network settle first (hold_epochs=3)" in caplog.text


def test_a_loss_that_is_not_finite_is_said_once_and_counted(tmp_path, caplog):
    criterion, labels = adawac.AdaWAC(2), torch.ones(4, 8, 8, dtype=torch.int64)
    with RunRecorder(tmp_path / "run", criterion) as recorder:
        step(criterion)
        recorder.end_epoch(1)
        assert caplog.text == ""
        before = criterion.weights.beta.clone()
        for epoch in (2, 3):
            step(criterion.eval())
            criterion.train()(torch.full((4, 3, 8, 8), torch.nan), labels, torch.ones(4, 5), torch.tensor([0, 1]))
            recorder.end_epoch(epoch)
    assert torch.equal(criterion.weights.beta, before)
    assert caplog.text.count("not finite from epoch 2, step 1 on") == 1
    assert caplog.text.count("2 moves were left out") == 1
    assert [metrics["skipped"] for metrics in Run(tmp_path / "run").metrics] == [0, 2, 4]
    assert Run(tmp_path / "run").metrics[-1]["loss"] is None


def test_epochs_are_counted_from_one(tmp_path):
    """From zero, weights would be held for an epoch too long, and `adawac watch` would not show the first one."""
    criterion = adawac.AdaWAC(2)
    with RunRecorder(tmp_path / "run", criterion, epochs=2, hold_epochs=1) as recorder:
        step(criterion)
        with pytest.raises(ConfigError, match=r"first epoch to be 1, but got 0\. Call end_epoch\(epoch \+ 1\)"):
            recorder.end_epoch(0)
        recorder.end_epoch(1)
    assert len(Run(tmp_path / "run").history["beta"]) == 1


def test_samples_are_described_by_their_first_two_views(tmp_path):
    criterion = adawac.AdaWAC(2)
    labels = torch.zeros(2, 8, 8, dtype=torch.int64)
    labels[0], labels[1, :4] = 1, 1  # all of the first view, half of the second
    with RunRecorder(tmp_path / "run", criterion) as recorder:
        for shown in (labels, torch.full_like(labels, 2)):
            criterion(torch.zeros(2, 3, 8, 8), shown, torch.zeros(2, 5), torch.tensor([0]))
        recorder.end_epoch(1)
    assert Run(tmp_path / "run").samples.fraction.tolist() == [[0.25, 0.75, 0.0]]


def test_an_epochs_numbers_are_the_means_of_its_own_steps(tmp_path):
    criterion = adawac.AdaWAC(2)
    with RunRecorder(tmp_path / "run", criterion) as recorder:
        first = [step(criterion).loss.item() for _ in range(3)]
        assert recorder.end_epoch(1)["loss"] == pytest.approx(np.mean(first))
        logits, latents = torch.randn(2, 3, 8, 8), torch.randn(2, 5)
        alone = criterion(logits, torch.ones(2, 8, 8, dtype=torch.int64), latents, torch.tensor([1]))
        assert recorder.end_epoch(2, {"val_dice": 0.5})["loss"] == pytest.approx(alone.loss.item())
    run = Run(tmp_path / "run")
    assert np.isnan(run.history["ell_ce"]).tolist() == [[False, False], [True, False]]
    assert [metrics["loss"] for metrics in run.metrics] == pytest.approx([np.mean(first), alone.loss.item()])


def test_a_run_that_goes_on_after_the_hold_moves_at_once(tmp_path):
    criterion = adawac.AdaWAC(2)
    for resume, epoch in ((None, 1), (1, 2)):
        with RunRecorder(tmp_path / "run", criterion, hold_epochs=1, resume=resume) as recorder:
            step(criterion)
            recorder.end_epoch(epoch)
    assert (Run(tmp_path / "run").history["beta"] == 0.5).tolist() == [[True, True], [False, False]]


def test_a_checkpoint_within_an_epoch_holds_its_first_steps(tmp_path):
    criterion = adawac.AdaWAC(2)
    with RunRecorder(tmp_path / "first", criterion) as recorder:
        losses = [step(criterion).loss.item() for _ in range(2)]
        state = copy.deepcopy(recorder.state_dict())
    with RunRecorder(tmp_path / "second", criterion) as recorder:
        recorder.load_state_dict(state)
        losses.append(step(criterion).loss.item())
        assert recorder.end_epoch(1)["loss"] == pytest.approx(np.mean(losses))


class NoWaiting(TorchDispatchMode):
    """Fails where the host reads a value from the device."""

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        assert func.overloadpacket is not torch.ops.aten._local_scalar_dense, func
        return func(*args, **(kwargs or {}))


def test_a_step_is_recorded_in_place_and_nothing_waits_for_it(tmp_path):
    """So that a step can be captured as a CUDA graph: its replays write where the recorder reads."""
    criterion = adawac.AdaWAC(2)
    taken = step(criterion)
    record = EpochRecord(criterion)
    tensors = [record.values, record.loss, record.steps, record.bad_step]
    addresses = [tensor.data_ptr() for tensor in tensors]
    call = (torch.zeros(4, 3, 8, 8), torch.ones(4, 8, 8), torch.zeros(4, 5), torch.tensor([0, 1]))
    with NoWaiting():
        record.add(criterion, call, {}, taken)
        record.add(criterion, call, {}, taken._replace(loss=taken.loss * torch.nan))
        record.add(criterion, call, {}, taken._replace(loss=taken.loss * torch.inf))
    assert [record.steps.item(), record.bad_step.item()] == [3, 1]
    torch.testing.assert_close(record.values, torch.stack([getattr(taken, name) for name in FIELDS]))
    record.reset()
    assert [record.steps.item(), record.loss.item(), record.bad_step.item()] == [0, 0, -1]
    assert record.values.isnan().all()
    now = [record.values, record.loss, record.steps, record.bad_step]
    assert all(tensor is before for tensor, before in zip(now, tensors, strict=True))
    assert [tensor.data_ptr() for tensor in tensors] == addresses


def plain_pytorch(config, out):
    """Train by hand, on the engine's batches, and record it as anybody would."""
    store = Store(config.data.store)
    samples = store.samples("train", table=resolve_split(store.table, "paper", config.seed))
    loader = Loader(samples, (32, 32), batch_size=12, seed=config.seed, device="cpu")
    criterion = adawac.AdaWAC(len(samples))
    model, encoder = build(config.model.name, store.num_classes, 1, (32, 32), seed=config.seed)
    tap, model = adawac.EncoderTap(model, encoder), model.to(memory_format=torch.channels_last)
    optimizer = torch.optim.SGD(model.parameters(), 0.01, momentum=0.9, weight_decay=1e-4, fused=True)
    torch.manual_seed(config.seed)  # dropout
    with RunRecorder(out, criterion, samples=samples.table, epochs=config.epochs, hold_epochs=1) as recorder:
        for epoch in range(1, config.epochs + 1):
            for batch in loader.epoch(epoch):
                logits = model(torch.cat(batch["images"]))
                loss = criterion(logits, torch.cat(batch["labels"]), tap.pop(), batch["index"]).loss
                loss.backward()
                optimizer.step()
                optimizer.zero_grad()
            recorder.end_epoch(epoch, {"lr": 0.01})


def test_a_plain_loop_and_the_engine_leave_the_same_record(change, tmp_path):
    config = change(method__hold_epochs=1)
    plain_pytorch(config, tmp_path / "loop")
    loop, engine = Run(tmp_path / "loop"), fit(config, tmp_path / "engine")
    assert (tmp_path / "loop" / "samples.csv").read_bytes() == (tmp_path / "engine" / "samples.csv").read_bytes()
    assert (tmp_path / "loop" / "history.bin").read_bytes() == (tmp_path / "engine" / "history.bin").read_bytes()
    assert loop.metrics == engine.metrics
    assert {"loss", "ell_ce", "beta_auc", "skipped", "lr"} <= loop.metrics[-1].keys()
    for name in ("class_names", "unit"):
        assert loop.data[name] == engine.data[name]
    assert [loop.status, loop.epoch, loop.info["epochs"]] == [engine.status, engine.epoch, engine.info["epochs"]]
    assert (loop.history["beta"][0] == 0.5).all()
    assert (loop.history["beta"][1:] != 0.5).all()


def test_a_run_of_another_loop_is_readable_and_only_what_it_lacks_is_missing(tmp_path):
    criterion = adawac.AdaWAC(2)
    with RunRecorder(tmp_path / "run", criterion, settings={"lr": 0.1}) as recorder:
        step(criterion)
        recorder.end_epoch(1)
    run = Run(tmp_path / "run")
    assert set(run.missing) == {"checkpoints", "scores", "gallery"}
    assert run.settings["settings"] == {"lr": 0.1}
    assert run.config is None
    run.require("samples.csv", "history.bin")
    for use in (lambda: run.require("config.yaml"), run.own_config, lambda: adawac.predict(run, "a.nii", tmp_path)):
        with pytest.raises(RunError, match="another training loop"):
            use()
    (tmp_path / "run" / "config.yaml").write_text("loop: [")
    assert "cannot be read" in Run(tmp_path / "run").missing["config.yaml"]
