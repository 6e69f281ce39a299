"""The engine: every method and forward, the same run from the same seed, and exactly the same after an interruption."""

import logging
import signal

import numpy as np
import pytest
import torch

import adawac
from adawac.data.store import Store
from adawac.errors import BusyError, ConfigError, MissingFileError, RunError, UnknownNameError
from adawac.runs import Run
from adawac.runs.recorder import EpochRecord
from adawac.train import engine, fit
from adawac.train.setup import set_up
from adawac.train.step import Views
from tests.networks.small_network import small


def outcome(run: Run):
    """Weights of the network, beta, history and numbers of a run."""
    saved = run.checkpoint("last", framework="torch")
    history = {name: run.history[name] for name in ("ell_ce", "ell_dice", "reg_ac", "beta")}
    return saved.tensors, history, run.metrics


def assert_same(one: Run, other: Run):
    for (tensors, history, metrics), (tensors2, history2, metrics2) in [(outcome(one), outcome(other))]:
        assert tensors.keys() == tensors2.keys()
        for name in tensors:
            assert torch.equal(tensors[name], tensors2[name]), name
        for name in history:
            np.testing.assert_array_equal(history[name], history2[name])
        assert metrics == metrics2


class Stop:
    """Interrupts training after some step, as Ctrl-C does."""

    def __init__(self, epoch, step):
        self.at = (epoch, step)

    def start(self, *_):
        pass

    def step(self, epoch, step):
        if (epoch, step) == self.at:
            raise KeyboardInterrupt

    def epoch(self, *_):
        pass


@pytest.mark.parametrize("forward", ["joint", "separate", "encoder", "encoder-detached"])
@pytest.mark.parametrize("method", list(adawac.METHODS))
def test_every_method_trains_and_leaves_a_whole_run(change, tmp_path, method, forward):
    if method == "pair" and forward.startswith("encoder"):
        pytest.skip("pair supervises both views: there is nothing to take through the encoder alone")
    run = fit(change(method__name=method, forward=forward, epochs=4), tmp_path / "run")
    assert run.status == "finished"
    assert set(run.missing) <= {"scores", "gallery"}
    _, loss = run.curve("loss")
    assert loss[-1] < loss[0]
    assert run.history["ell_ce"].shape == (4, len(run.samples))
    assert np.isfinite(run.history["ell_ce"]).all()
    beta = run.history["beta"]
    assert ((beta >= 0) & (beta <= 1)).all()
    if method == "adawac":
        assert np.abs(beta[-1] - 0.5).max() > 0.01
        np.testing.assert_allclose(
            run.checkpoint("last").tensors["criterion.weights.log_odds"], np.log(beta[-1] / (1 - beta[-1])), atol=1e-3
        )


@pytest.mark.parametrize("preset", ["paper", "official"])
def test_joint_and_separate_agree_without_batch_norm(change, tmp_path, preset):
    options = {"method__preset": preset, "model__options": {"dropout": 0.0}}
    joint = fit(change(forward="joint", **options), tmp_path / "joint")
    separate = fit(change(forward="separate", **options), tmp_path / "separate")
    for name, value in outcome(joint)[0].items():
        torch.testing.assert_close(outcome(separate)[0][name], value, rtol=1e-4, atol=1e-6, msg=name)


def test_a_detached_encoding_gives_the_first_views_gradient_alone():
    network, tap = small(3, 1, (16, 16), dropout=0.0)
    one, other = torch.randn(2, 4, 1, 16, 16).unbind()
    gradients = {}
    for mode in ("encoder", "encoder-detached"):
        network.zero_grad()
        views = Views(network, tap, mode)
        _, latents = views(one, other)
        latents[4:].sum().backward() if mode == "encoder" else latents.sum().backward()
        gradients[mode] = [parameter.grad.clone() for parameter in network.encoder.parameters()]
        views.tap.remove()
    assert not latents[4:].equal(latents[:4])
    network.zero_grad()
    network.encoder(one).sum().backward()
    for found, wanted in zip(gradients["encoder-detached"], network.encoder.parameters(), strict=True):
        torch.testing.assert_close(found, wanted.grad)
    assert any(gradient.abs().sum() > 0 for gradient in gradients["encoder"])  # there the second view has one


def test_encoder_alone_gives_the_papers_loss_of_the_joint_pass():
    """Preset paper supervises the first view: what the second one's decoder does, does not matter."""
    torch.manual_seed(0)
    network, tap = small(4, 1, (32, 32), dropout=0.0)
    x1, x2 = torch.randn(3, 1, 32, 32), torch.randn(3, 1, 32, 32)
    labels, index = torch.randint(0, 4, (3, 32, 32)), torch.arange(3)
    gradients = []
    for mode in ("joint", "encoder"):
        logits, latents = Views(network, tap, mode)(x1, x2)
        out = adawac.AdaWAC(3)(logits, torch.cat([labels] * (len(logits) // 3)), latents, index)
        gradients.append(torch.autograd.grad(out.loss, list(network.parameters())))
    for joint, encoder in zip(*gradients, strict=True):
        torch.testing.assert_close(encoder, joint)


def test_the_teacher_is_the_averaged_network_and_learns_nothing_itself(change):
    trainer = set_up(change(method__name="mean-teacher", model__options={"dropout": 0.0}))
    assert trainer.config.optim.ema_decay == 0.99  # of Tarvainen and Valpola
    assert trainer.averaged is not None
    with torch.no_grad():
        for parameter in trainer.averaged.module.parameters():
            parameter.mul_(1.5)
    x1, x2 = torch.randn(2, 4, 1, 16, 16)
    logits, both = trainer.views(x1, x2)
    torch.testing.assert_close(logits, trainer.network(x1))
    torch.testing.assert_close(both, torch.cat([trainer.network(x1), trainer.averaged.module(x2)]))
    both[4:].sum().backward()
    assert all(parameter.grad is None for parameter in trainer.averaged.parameters())
    assert len(list(trainer.views.parameters())) == len(list(trainer.network.parameters()))


def test_the_same_seed_gives_the_same_run_and_another_does_not(config, change, tmp_path):
    first, second = (fit(config, tmp_path / name) for name in ("first", "second"))
    assert_same(first, second)
    other = fit(change(seed=2), tmp_path / "other")
    assert not np.array_equal(other.history["ell_ce"], first.history["ell_ce"])


def test_streamed_and_resident_give_the_same_run(config, change, tmp_path):
    resident = fit(config, tmp_path / "resident")
    streamed = fit(change(data__residence="stream", data__workers=0), tmp_path / "streamed")
    assert_same(resident, streamed)


SETTINGS = {
    "sgd": {},
    "adamw": {"optim__optimizer": "adamw", "optim__lr": 1e-3, "optim__schedule": "cosine", "optim__warmup_epochs": 1},
    "robust": {"method__preset": "robust"},
    "mean-teacher": {"method__name": "mean-teacher"},
    "ema": {"optim__ema_decay": 0.9, "optim__schedule": "poly", "optim__clip_norm": 1.0, "optim__accumulate": 2},
}


@pytest.mark.parametrize("at", [(1, 1), (2, 2), (3, 1), (2, 4)], ids=str)
@pytest.mark.parametrize("settings", SETTINGS)
def test_an_interrupted_run_goes_on_as_if_nothing_had_happened(change, tmp_path, settings, at):
    interrupt_and_compare(change(**SETTINGS[settings]), tmp_path, at)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("precision", ["fp32", "bf16", "fp16"])
@pytest.mark.parametrize("settings", SETTINGS)
def test_an_interrupted_run_on_a_gpu_goes_on_as_if_nothing_had_happened(change, tmp_path, settings, precision):
    gpu = {"hardware__accelerator": "cuda", "hardware__deterministic": True, "hardware__precision": precision}
    try:
        interrupt_and_compare(change(**SETTINGS[settings], **gpu), tmp_path, (2, 2))
    finally:
        torch.use_deterministic_algorithms(False)


def interrupt_and_compare(config, tmp_path, at):
    whole = fit(config, tmp_path / "whole")
    with pytest.raises(KeyboardInterrupt):
        fit(config, tmp_path / "run", watch=Stop(*at))
    assert Run(tmp_path / "run").status == "interrupted"
    resumed = fit(None, tmp_path / "run", resume=True)
    assert resumed.status == "finished"
    assert_same(resumed, whole)


def test_a_run_goes_on_with_a_grown_data_set(change, tmp_path, store):
    """Samples that were there keep beta, new ones start at one half, and none gets another's."""
    half = fit(change(data__subset="half-slice"), tmp_path / "run")
    before = dict(zip(half.samples.id.tolist(), half.history["beta"][-1], strict=True))
    run = fit(change(data__subset="full", epochs=3), tmp_path / "run", resume=True)
    log_odds = run.checkpoint("last").tensors["criterion.weights.log_odds"]
    assert len(log_odds) == len(before)  # nothing was left to train: the finished run is as it was
    run = fit(change(data__subset="full", epochs=4), tmp_path / "run", resume=True)
    saved = run.checkpoint("last")
    after = dict(zip(saved.state["ids"], saved.tensors["criterion.weights.log_odds"], strict=True))
    assert len(after) > len(before)
    steps = run.history["ell_ce"][-1] - run.history["reg_ac"][-1]
    for row, name in enumerate(run.samples.id.tolist()):
        start = before.get(name, 0.5)
        np.testing.assert_allclose(after[name], np.log(start / (1 - start)) + steps[row], rtol=1e-3, atol=1e-3)


def test_accumulated_batches_make_one_step(change, tmp_path):
    """Two half batches give the gradient of the whole one, where no statistic couples the batch."""
    options = {"model__options": {"dropout": 0.0}, "epochs": 1, "method__name": "baseline", "data__subset": "full"}
    n = len(fit(change(**options), tmp_path / "probe").samples)
    size = n - n % 2
    whole = fit(change(**options, data__batch_size=n), tmp_path / "whole")
    halves = fit(change(**options, data__batch_size=size // 2, optim__accumulate=2), tmp_path / "halves")
    if n % 2:
        pytest.skip("an odd number of samples has no halves")
    for name, value in whole.checkpoint("last", framework="torch").tensors.items():
        if name.startswith("network."):
            torch.testing.assert_close(halves.checkpoint("last", framework="torch").tensors[name], value, msg=name)


def test_a_loss_that_is_not_finite_stops_the_run_and_names_samples_and_checkpoint(change, tmp_path):
    good = fit(change(epochs=1), tmp_path / "run")
    samples = set(good.samples.id.tolist())
    with pytest.raises(RunError, match=r"epoch 2, step \d+, is not.*optim.lr.*last good checkpoint: last") as caught:
        fit(change(epochs=3, optim__lr=1e30), tmp_path / "run", resume=True)
    named = str(caught.value).split("Its samples: ")[1].split(". Look")[0].split(", ")
    assert set(named) <= samples
    assert Run(tmp_path / "run").checkpoint("last").state["epoch"] == 1


def test_wrong_configurations(change, tmp_path):
    cases = [
        ({"data__store": tmp_path / "absent"}, MissingFileError, "Expected a prepared store"),
        ({"method__name": "adawak"}, UnknownNameError, "'adawac'"),
        ({"method__options": {"eta": 1}}, ConfigError, r"method\.options\.eta: unknown"),
        ({"hardware__accelerator": "cuda"}, ConfigError, "torch sees none"),
        ({"hardware__accelerator": "mps"}, ConfigError, "accelerator=mps, but torch sees none"),
        ({"hardware__sync_batchnorm": True}, ConfigError, "Expected a GPU for hardware.sync_batchnorm"),
        ({"data__views": {"turns": 1}}, ConfigError, "turns"),
        ({"data__batch_size": 1000}, ConfigError, r"at most the \d+ training samples, but data.batch_size is 1000"),
        ({"data__split": "fold:9/5"}, ConfigError, "fold"),
    ]
    if torch.cuda.is_available():
        cases = [case for case in cases if "hardware" not in str(case[0])]
    for changes, kind, message in cases:
        with pytest.raises(kind, match=message):
            fit(change(**changes), tmp_path / "run")
        assert not (tmp_path / "run").exists()


def test_two_runs_in_one_folder_are_refused(config, tmp_path):
    fit(config, tmp_path / "run")
    with pytest.raises(RunError, match="holds a run"):
        fit(config, tmp_path / "run")

    class Second(Stop):
        def step(self, epoch, step):
            with pytest.raises(BusyError, match="in use"):
                fit(config, tmp_path / "other", resume=True)
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fit(config, tmp_path / "other", watch=Second(1, 1))


def test_progress_is_logged(config, tmp_path, caplog):
    with caplog.at_level(logging.INFO, "adawac.train.engine"):
        fit(config, tmp_path / "run")
    lines = [record.getMessage() for record in caplog.records]
    assert "adawac with tests.networks.small_network:small" in lines[0]
    assert lines[1].startswith("epoch 1/3  loss ")
    assert "beta_sparse" in lines[1]
    assert not any("step" in line for line in lines[1:])


def test_a_long_epoch_says_how_far_it_is(config, tmp_path, caplog, monkeypatch):
    monkeypatch.setattr(engine, "LINE_EVERY", 0.0)
    with caplog.at_level(logging.INFO, "adawac.train.engine"):
        fit(config, tmp_path / "run")
    lines = [record.getMessage() for record in caplog.records]
    assert "epoch 1/3  step 2/4  about 1 min left" in lines
    assert "epoch 3/3  step 4/4  about 1 min left" in lines


def test_validation_keeps_the_best_and_scores_what_inference_finds(change, tmp_path):
    settings = {"validation__every": 1, "validation__select": "best", "epochs": 4, "optim__lr": 0.1}
    run = fit(change(**settings), tmp_path / "run")
    epochs, dice = run.curve("val_dice")
    assert epochs.tolist() == [1, 2, 3, 4]
    best = run.checkpoint("best")
    assert best.state["best"] == dice.max() == run.summary["val_dice"]
    assert best.state["epoch"] == epochs[dice.argmax()]
    again = fit(change(**settings), tmp_path / "again")
    assert again.metrics == run.metrics


def test_validation_needs_cases(change, tmp_path, store):
    lists = tmp_path / "lists"
    lists.mkdir()
    (lists / "train.txt").write_text("\n".join(Store(store).cases) + "\n")
    with pytest.raises(ConfigError, match="Expected cases to validate on"):
        fit(change(validation__every=1, data__split=str(lists)), tmp_path / "run")


@pytest.mark.slow
@pytest.mark.parametrize("forward", ["joint", "separate", "encoder", "encoder-detached"])
@pytest.mark.parametrize("model", ["unet", "transunet-small", "monai:BasicUNet"])
@pytest.mark.parametrize("method", list(adawac.METHODS))
@pytest.mark.filterwarnings("ignore")  # MONAI uses what torch has deprecated
def test_every_method_trains_every_network_with_every_forward(change, tmp_path, method, model, forward):
    if method == "pair" and forward.startswith("encoder"):
        pytest.skip("pair supervises both views: there is nothing to take through the encoder alone")
    if model.startswith("monai:"):
        pytest.importorskip("monai")
    settings = {"model__name": model, "forward": forward, "method__name": method, "data__image_size": [64, 64]}
    run = fit(change(**settings, epochs=3), tmp_path / "run")
    assert run.status == "finished"
    assert set(run.missing) == {"scores", "gallery"}  # which evaluation adds
    _, loss = run.curve("loss")
    assert loss[-1] < loss[0]
    if method == "adawac":
        assert np.abs(run.history["beta"][-1] - 0.5).max() > 0.01


def interrupted_within_a_step(monkeypatch, *signals):
    """Send signals within step 6: beta has moved, the network has not."""
    add, calls = EpochRecord.add, []

    def noted(self, *args):
        add(self, *args)
        calls.append(args)
        if len(calls) == 6:
            for number in signals:
                signal.raise_signal(number)

    monkeypatch.setattr(EpochRecord, "add", noted)


@pytest.mark.parametrize(
    "signals",
    [
        [signal.SIGINT],
        [signal.SIGTERM],  # a cluster's time is up, a container is stopped
        [signal.SIGTERM, signal.SIGINT],  # and the process that waits for this one has died of it
    ],
    ids=str,
)
def test_an_interruption_within_a_step_waits_for_its_end(config, tmp_path, monkeypatch, signals):
    whole = fit(config, tmp_path / "whole")
    with monkeypatch.context() as patched:
        interrupted_within_a_step(patched, *signals)
        with pytest.raises(KeyboardInterrupt):
            fit(config, tmp_path / "run")
    assert Run(tmp_path / "run").checkpoint("last").state["step"] > 0
    assert_same(fit(None, tmp_path / "run", resume=True), whole)


def test_a_handler_of_somebody_else_is_left_alone(config, tmp_path, monkeypatch):
    heard = []
    former = signal.signal(signal.SIGTERM, lambda *_: heard.append("SIGTERM"))
    try:
        interrupted_within_a_step(monkeypatch, signal.SIGTERM)
        assert fit(config, tmp_path / "run").status == "finished"
    finally:
        signal.signal(signal.SIGTERM, former)
    assert heard == ["SIGTERM"]


def test_a_second_ctrl_c_does_not_wait_and_keeps_the_last_whole_checkpoint(config, tmp_path, monkeypatch):
    whole = fit(config, tmp_path / "whole")
    with monkeypatch.context() as patched:
        interrupted_within_a_step(patched, signal.SIGINT, signal.SIGINT)
        with pytest.raises(KeyboardInterrupt):
            fit(config, tmp_path / "run")
    assert Run(tmp_path / "run").checkpoint("last").state["step"] == 0
    assert_same(fit(None, tmp_path / "run", resume=True), whole)
