"""A run that goes on from an earlier epoch than it had come to: its best weights are of epochs that it still has."""

import shutil

import numpy as np
import pytest

from adawac.runs import Run, read_state, save_checkpoint
from adawac.train import engine, fit

FIRST = (0.5, 0.4, 0.3, 0.9, 0.2)


@pytest.fixture
def scored(change, monkeypatch):
    """Return what trains with given scores of the epochs, whatever it learns; without more it is interrupted."""

    def train(folder, scores, resume=False, **settings):
        ahead = iter(scores)

        def validate(*_):
            score = next(ahead, None)
            if score is None:
                raise KeyboardInterrupt
            return {"val_dice": score, "val_hd95": 1 - score}

        monkeypatch.setattr(engine, "validate", validate)
        given = {"validation__every": 1, "validation__select": "best", "epochs": 5, **settings}
        return fit(change(**given), folder, resume=resume)

    return train


@pytest.fixture
def gone_on(scored, tmp_path):
    """Return the folder of a run of five epochs, the fourth the best one, whose last checkpoint is that of `epoch`."""

    def make(epoch, **settings):
        folder = tmp_path / "run"
        with pytest.raises(KeyboardInterrupt):
            scored(folder, FIRST[:epoch], **settings)
        kept = shutil.copy(folder / "checkpoints" / "last.safetensors", tmp_path / "kept")
        run = scored(folder, FIRST[epoch:], resume=True, **settings)
        assert (best_of(run), run.summary["val_dice"]) == ((4, 0.9), 0.9)
        shutil.copy(kept, folder / "checkpoints" / "last.safetensors")
        return folder

    return make


def best_of(run):
    state = read_state(run.folder / "checkpoints" / "best.safetensors")
    return state["epoch"], state["best"]


def test_a_later_best_gives_way_to_one_that_is_kept(gone_on, scored, caplog):
    folder = gone_on(2)
    run = scored(folder, (0.45, 0.42, 0.1), resume=True, seed=7)
    assert run.curve("val_dice")[1].tolist() == [0.5, 0.4, 0.45, 0.42, 0.1]
    # The weights of epoch 1, which scored more, were overwritten by those of the epoch that is gone.
    assert best_of(run) == (3, 0.45)
    assert run.summary["val_dice"] == 0.45
    assert (
        "is not of its first 2 epochs, from where it goes on, or not by val_dice: it is that of epoch 2 now"
        in caplog.text
    )


def test_the_epoch_that_it_goes_on_from_may_stay_the_best(gone_on, scored):
    folder = gone_on(2)
    then = Run(folder).checkpoint("last").tensors
    run = scored(folder, (0.3, 0.2, 0.1), resume=True, seed=7)
    assert best_of(run) == (2, 0.4)
    assert run.summary["val_dice"] == 0.4
    now = run.checkpoint("best").tensors
    assert all(np.array_equal(now[name], value) for name, value in then.items() if name.startswith("network."))


def test_without_a_score_there_is_no_best_until_the_next(gone_on, scored):
    folder = gone_on(2)
    (folder / "metrics.jsonl").unlink()
    with pytest.raises(KeyboardInterrupt):  # by validation, after a whole epoch
        scored(folder, (), resume=True, seed=7)
    assert Run(folder).checkpoints == ["last"]
    assert "val_dice" not in Run(folder).summary
    run = scored(folder, (0.1, 0.3, 0.2), resume=True, seed=7)
    assert (best_of(run), run.summary["val_dice"]) == ((4, 0.3), 0.3)


def test_an_earlier_best_stays(scored, tmp_path):
    with pytest.raises(KeyboardInterrupt):
        scored(tmp_path / "run", (0.3, 0.8, 0.5))
    assert Run(tmp_path / "run").summary["val_dice"] == 0.8
    run = scored(tmp_path / "run", (0.6, 0.7), resume=True)
    assert (best_of(run), run.summary["val_dice"]) == ((2, 0.8), 0.8)


def test_a_damaged_best_is_no_reason_not_to_go_on(scored, tmp_path):
    with pytest.raises(KeyboardInterrupt):
        scored(tmp_path / "run", (0.3, 0.8, 0.5))
    (tmp_path / "run" / "checkpoints" / "best.safetensors").write_bytes(b"nothing")
    assert best_of(scored(tmp_path / "run", (0.6, 0.7), resume=True)) == (5, 0.7)


def test_a_score_that_is_no_number_is_not_the_best(scored, tmp_path):
    run = scored(tmp_path / "run", (np.nan, 0.2, np.nan, 0.3, 0.1))
    assert (best_of(run), run.summary["val_dice"]) == ((4, 0.3), 0.3)


def test_the_metric_of_another_start_says_nothing_of_this_one(gone_on, scored):
    """Distances are better when they fall: hardly one would beat the best Dice."""
    run = scored(gone_on(4), (0.95,), resume=True, validation__metric="hd95")
    assert best_of(run) == (5, 1 - 0.95)
    assert {name: value for name, value in run.summary.items() if name.startswith("val")} == {"val_hd95": 1 - 0.95}


def test_all_ranks_give_a_later_best_up(change, tmp_path):
    """Real scores this time; a rank that took another decision than the first would wait for it for ever."""
    settings = {"validation__every": 1, "validation__select": "best"}
    folder = tmp_path / "run" / "checkpoints"
    fit(change(epochs=2, **settings), tmp_path / "run")
    kept = shutil.copy(folder / "last.safetensors", tmp_path / "kept")
    run = fit(change(epochs=4, **settings), tmp_path / "run", resume=True)
    saved = run.checkpoint("last")
    save_checkpoint(folder / "best.safetensors", saved.tensors, {**saved.state, "best": 2.0})
    shutil.copy(kept, folder / "last.safetensors")
    run = fit(change(epochs=4, seed=7, hardware__devices=2, **settings), tmp_path / "run", resume=True)
    epoch, score = best_of(run)
    epochs, dice = run.curve("val_dice")
    assert epochs.tolist() == [1, 2, 3, 4]
    assert (epoch, score) == (2 + dice[1:].argmax(), dice[1:].max())
    assert run.summary["val_dice"] == score
