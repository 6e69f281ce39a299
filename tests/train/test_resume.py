"""What may have happened to a run before it goes on: files lost, damaged, edited or moved, and nothing is ever cut."""

import shutil
import signal

import pytest

from adawac.cli import run as adawac
from adawac.config import override
from adawac.data.store import Store
from adawac.errors import RunError
from adawac.runs import Run, RunWriter
from adawac.runs.recorder import LoopConfig
from adawac.train import engine, fit
from tests.train.test_engine import Stop, assert_same


@pytest.fixture(scope="module")
def begun(tmp_path_factory):
    """Return what copies a run that was interrupted within its third epoch; it is made once."""
    made = tmp_path_factory.mktemp("begun") / "run"

    def copy(config, folder):
        if not made.exists():
            with pytest.raises(KeyboardInterrupt):
                fit(config, made, watch=Stop(3, 2))
        return shutil.copytree(made, folder)

    return copy


@pytest.fixture
def folder(begun, change, tmp_path):
    return begun(change(epochs=4), tmp_path / "run")


def contents(folder):
    """Return every file of a folder but the lock, which says who held it last."""
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file() and path.name != ".lock"}


def refused(folder, capsys, *words):
    """Go on with a run by the command, which must refuse; return its message. The folder stays as it is."""
    before = contents(folder)
    assert adawac(["train", *words, "--out", str(folder), "--resume"]) == 2
    assert contents(folder) == before
    return " ".join(capsys.readouterr().err.split())


# -- checkpoints ------------------------------------------------------------------------------------------------------


def test_a_run_that_lost_its_last_checkpoint_does_not_begin_again(folder, capsys):
    (folder / "checkpoints" / "last.safetensors").unlink()
    message = refused(folder, capsys)
    assert "last.safetensors is gone" in message
    assert "lose the record of its 2 epochs. Restore it from a copy, or start a new run" in message
    shutil.rmtree(folder / "checkpoints")
    assert "last.safetensors is gone" in refused(folder, capsys)


def test_a_finished_run_whose_checkpoints_were_removed_does_not_either(config, change, tmp_path):
    folder = fit(config, tmp_path / "run").folder
    shutil.rmtree(folder / "checkpoints")
    before = contents(folder)
    for given in (None, change(epochs=5)):
        with pytest.raises(RunError, match="lose the record of its 3 epochs"):
            fit(given, folder, resume=True)
    assert contents(folder) == before


def test_a_run_of_which_only_best_is_left_goes_on_from_there_if_told_to(change, tmp_path, monkeypatch):
    scores = iter((0.1, 0.9, 0.2, 0.3, 0.1, 0.2))
    monkeypatch.setattr(engine, "validate", lambda *_: {"val_dice": next(scores)})
    config = change(epochs=4, validation__every=1)
    folder = fit(config, tmp_path / "run").folder
    last, best = (folder / "checkpoints" / f"{name}.safetensors" for name in ("last", "best"))
    last.unlink()
    with pytest.raises(RunError, match=r"copy best.safetensors there to go on from the epoch that validated best"):
        fit(None, folder, resume=True)
    shutil.copy(best, last)
    run = fit(None, folder, resume=True)
    assert run.curve("val_dice")[1].tolist() == [0.1, 0.9, 0.1, 0.2]
    assert run.history.epochs.tolist() == [1, 2, 3, 4]


@pytest.mark.parametrize("position", [-1, 300])
def test_a_damaged_last_checkpoint_is_named_and_the_best_one_goes_on(change, tmp_path, monkeypatch, caplog, position):
    scores = iter((0.1, 0.9, 0.2, 0.3, 0.2, 0.3))
    monkeypatch.setattr(engine, "validate", lambda *_: {"val_dice": next(scores)})
    whole = fit(change(epochs=4, validation__every=1), tmp_path / "whole")
    folder = shutil.copytree(whole.folder, tmp_path / "run")
    last = folder / "checkpoints" / "last.safetensors"
    content = bytearray(last.read_bytes())
    content[position] ^= 1
    last.write_bytes(content)
    assert_same(fit(None, folder, resume=True), whole)
    assert "last.safetensors is damaged" in caplog.text
    assert "Going on from best, which is of epoch 2." in caplog.text


def test_a_run_that_was_stopped_before_its_first_checkpoint_begins_again(change, tmp_path):
    config = change(checkpoint_every=3)
    whole = fit(config, tmp_path / "whole")

    class Dies(Stop):
        def epoch(self, epoch, metrics):
            if epoch == 2:
                raise RuntimeError("as if killed")

    with pytest.raises(RuntimeError, match="as if killed"):
        fit(config, tmp_path / "run", watch=Dies(0, 0))
    assert (Run(tmp_path / "run").epoch, Run(tmp_path / "run").checkpoints) == (2, [])
    assert_same(fit(None, tmp_path / "run", resume=True), whole)


# -- the record -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["metrics.jsonl", "history.bin"])
def test_a_record_that_is_damaged_in_its_middle_is_not_cut_off_there(folder, capsys, name):
    content = bytearray((folder / name).read_bytes())
    content[1] ^= 0xFF  # in the first epoch; the second one is whole
    (folder / name).write_bytes(content)
    message = refused(folder, capsys)
    assert f"{name}, but it is damaged after 0 bytes" in message
    assert "move it away to go on without it" in message
    (folder / name).unlink()
    assert fit(None, folder, resume=True).status == "finished"


def test_a_run_json_of_another_hand_is_named(folder, capsys):
    (folder / "run.json").write_text('{"epoch": "three"}')
    assert "run.json, but got epoch: 'three'. Restore the file" in refused(folder, capsys)


# -- the configuration ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "why"),
    [
        (b"epochs: [", "Expected YAML"),
        (b"\x8b\x08\x00 not text", "it is not text"),
        (b"- epochs", "expected settings"),
        (b"epochs: [1]", "epochs: expected a whole number"),
        (b"", "it is empty"),
        (b"sede: 1", "unknown key"),
        (None, "it is not there"),
    ],
)
def test_a_configuration_that_cannot_be_read_is_not_replaced_by_the_defaults(folder, store, capsys, text, why):
    own = (folder / "config.yaml").read_text()
    (folder / "config.yaml").unlink() if text is None else (folder / "config.yaml").write_bytes(text)
    message = refused(folder, capsys, str(store))
    assert "Expected a configuration to go on with in" in message
    assert why in message
    assert "Restore it from a copy, or give the run's settings with --config." in message
    assert ".." not in message.replace(str(folder), "")
    (folder.parent / "own.yaml").write_text(own)
    config = ["--config", str(folder.parent / "own.yaml")]
    assert adawac(["train", *config, "--out", str(folder), "--resume"]) == 0
    assert (folder / "config.yaml").read_text() == own


def test_a_method_that_was_edited_into_the_folder_is_found_out(folder, capsys):
    path = folder / "config.yaml"
    path.write_text(path.read_text().replace("name: adawac", "name: pair"))
    assert "Expected to go on with the method" in refused(folder, capsys)


@pytest.mark.parametrize(
    ("setting", "said"),
    [
        ("data.batch_size=24", "data.batch_size=12, steps=4, but got data.batch_size=24, steps=2 within epoch 3"),
        ("seed=7", "seed=1, but got seed=7 within epoch 3"),
        ("optim.accumulate=2", "optim.accumulate=1, but got optim.accumulate=2"),
        ("optim.optimizer=adamw", "which keeps exp_avg, but it has momentum_buffer"),
        ("optim.ema_decay=0.9", "Expected averaged weights in the checkpoint, since optim.ema_decay is set"),
        ("model.name=smp:Unet/resnet18", "small, but got smp:Unet/resnet18"),
        ("model.options.width=24", "such as encoder.3.weight: (16, 8, 3, 3) in the checkpoint, (24, 8, 3, 3) here"),
        ("epochs=2", "Expected at least the 3 epochs that"),
    ],
)
def test_settings_that_a_checkpoint_cannot_go_on_with_are_refused_in_words(folder, capsys, setting, said):
    message = refused(folder, capsys, "--set", setting)
    assert said in message
    assert len(message) < 800  # a network has hundreds of tensors to name


def test_batches_may_change_between_epochs(change, tmp_path):
    fit(change(epochs=1), tmp_path / "run")
    run = fit(change(epochs=2, data__batch_size=24, seed=7, optim__accumulate=2), tmp_path / "run", resume=True)
    assert run.epoch == 2


def test_the_other_way_round_from_adamw_to_sgd(change, tmp_path):
    fit(change(epochs=1, optim__optimizer="adamw"), tmp_path / "run")
    with pytest.raises(RunError, match="which keeps momentum_buffer, but it has exp_avg"):
        fit(change(epochs=2), tmp_path / "run", resume=True)


def test_the_run_of_another_loop_is_not_begun_anew(config, store, tmp_path):
    """It has no checkpoint of ours: to go on with it would cut its record to nothing."""
    with RunWriter(tmp_path / "run", LoopConfig(loop="lightning")) as writer:
        writer.write_samples(Store(store).table)
        writer.log_metrics(1, {"loss": 1.0})
    before = contents(tmp_path / "run")
    with pytest.raises(RunError, match=r"is of another training loop \(lightning\)"):
        fit(config, tmp_path / "run", resume=True)
    assert contents(tmp_path / "run") == before


# -- elsewhere, and the end -------------------------------------------------------------------------------------------


def test_a_run_goes_on_elsewhere_with_a_store_elsewhere(folder, change, store, tmp_path, capsys):
    """As after a copy to another machine: both paths are others, and what was written there does not exist."""
    whole = fit(change(epochs=4), tmp_path / "whole")
    moved, data = tmp_path / "there" / "run", tmp_path / "there" / "store"
    shutil.copytree(folder, moved)
    shutil.copytree(store, data)
    path = moved / "config.yaml"
    path.write_text(path.read_text().replace(str(store), str(tmp_path / "gone")))
    message = refused(moved, capsys)
    assert "gone is not there" in message
    assert "adawac train STORE --out RUN --resume" in message
    assert adawac(["train", str(data), "--out", str(moved), "--resume"]) == 0
    assert_same(Run(moved), whole)
    assert Run(moved).config == override(whole.config, {"data.store": data})


def test_a_refused_start_is_none(folder, tmp_path):
    """Starts are counted where they are told apart: in the environment, and in the trackers' folders."""
    with pytest.raises(RunError, match="of its tensors differ"):
        fit(override(Run(folder).config, {"model.options.width": 24}), folder, resume=True)
    run = fit(override(Run(folder).config, {"track": ["csv"]}), folder, resume=True)
    assert len(run.environments) == 2
    assert [path.name for path in (folder / "trackers" / "csv").iterdir()] == ["start-2"]


def test_ctrl_c_in_the_last_validation_is_heard_after_the_run_is_done(change, tmp_path, monkeypatch):
    """Whoever trains one run after another was to stop there."""

    def interrupted(*_):
        signal.raise_signal(signal.SIGINT)
        return {"val_dice": 0.5}

    monkeypatch.setattr(engine, "validate", interrupted)
    with pytest.raises(KeyboardInterrupt):
        fit(change(validation__every=3), tmp_path / "run")
    assert Run(tmp_path / "run").status == "finished"
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
