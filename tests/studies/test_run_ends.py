"""Where the epochs of a run end: what the study reads out of its folder, and what the page makes of it."""

import numpy as np
import pytest

from adawac.config import DataConfig, HardwareConfig, TrainConfig
from adawac.data.loader import Loader
from adawac.data.phantom.scanner import phantom_source
from adawac.data.preparation import prepare
from adawac.data.store import Store
from adawac.runs import Run, RunWriter
from studies import entries, page, run_ends

EPOCHS, SIZE, SEED = 30, 16, 5


@pytest.fixture(scope="module")
def samples(tmp_path_factory):
    folder = tmp_path_factory.mktemp("ends") / "store"
    prepare(phantom_source(6, 0, size=32), None, folder, workers=1, progress=False)
    return Store(folder).samples("train")


@pytest.fixture
def made(samples, tmp_path):
    """Return what makes a run folder, some of whose epochs end with weights that are far off for two steps."""

    def make(bad=(), scores=None, devices=1, batch_size=SIZE):
        config = TrainConfig(
            epochs=EPOCHS,
            seed=SEED,
            data=DataConfig(batch_size=batch_size),
            hardware=HardwareConfig(devices=devices),
        )
        loader = Loader(samples, (32, 32), batch_size=batch_size, seed=SEED, world=devices)
        rng = np.random.default_rng(0)
        easy = rng.uniform(0.1, 2, len(samples))  # slices differ by much more than epochs do
        with RunWriter(tmp_path / "run", config, epochs=EPOCHS) as run:
            rows = run.write_samples(samples.table)
            for epoch in range(1, EPOCHS + 1):
                ce = easy / epoch**0.5 * rng.lognormal(0, 0.3, len(samples))
                if epoch - 1 in bad:
                    ce[loader.rows(epoch, 0)] *= 4
                    ce[loader.rows(epoch, 1)] *= 2
                run.log_history(epoch, rows, ell_ce=ce)
                run.log_metrics(epoch, {"loss": ce.mean(), **({"val_dice": scores[epoch - 1]} if scores else {})})
        return Run(tmp_path / "run"), loader

    return make


def test_a_run_that_ends_well(made, samples):
    run, loader = made()
    last = loader.rows(EPOCHS, len(loader) - 1)
    assert run_ends.ends(run) == {
        "batch": SIZE,
        "last_batch": len(samples) % SIZE,
        "last_sparse": int(samples.table.label_sparse[last].sum()),
        "epochs_off": 0,
    }
    assert 0 < samples.table.label_sparse[last].sum() < len(last)  # else another seed would tell more


def test_epochs_whose_last_step_threw_the_network_off_are_found(made):
    assert run_ends.ends(made(bad=(4, 17, 29))[0])["epochs_off"] == 3


def test_the_end_of_the_last_epoch_shows_in_nothing_but_a_validation(made):
    scores = [0.8 + 0.01 * (epoch % 3) for epoch in range(EPOCHS)]
    scores[-1] = 0.5
    scores[11] = 0.99  # better is not off
    assert run_ends.ends(made(bad=(4, EPOCHS), scores=scores)[0])["epochs_off"] == 2


def test_validations_are_kept_in_their_order(made):
    scores = [0.5 + 0.01 * epoch for epoch in range(EPOCHS)]
    assert entries.validations(made(scores=scores)[0]) == pytest.approx(scores)


def test_an_epoch_that_both_tell_of_counts_once(made):
    scores = [0.8 + 0.01 * (epoch % 3) for epoch in range(EPOCHS)]
    scores[3] = 0.2
    assert run_ends.ends(made(bad=(4,), scores=scores)[0])["epochs_off"] == 1


def test_ranks_that_would_have_no_sample_join_the_batch_before(made, samples):
    size = next(size for size in range(8, 40) if 0 < len(samples) % size < 4)
    run, loader = made(devices=4, batch_size=size)
    found = run_ends.ends(run)
    assert found["last_batch"] == size + len(samples) % size == len(loader.rows(EPOCHS, len(loader) - 1))


@pytest.mark.parametrize(
    ("values", "off"),
    [
        ([], []),
        ([1.0], []),
        ([1.0] * 9, []),
        ([1, 1, 1, 9, 1, 1, 1], [3]),  # nothing moves but one
        ([1, 2, 3, 1, 2, 3, 1, 2, 30], [8]),  # the last
        ([1.3, 2.1, 3.2, 1.1, 2.4, 3.5, 1.6, -30, 2.7, 1.8, 2.9, 3.3], []),  # below
        ([90, 30, 10, 9, 8, 7, 6, 5, 4, 3, 2, 1], []),  # a run that begins steeply
    ],
)
def test_far_off_is_far_above_the_neighbours(values, off):
    assert np.flatnonzero(run_ends.far_off(np.array(values, float))).tolist() == off


def entry(row, seed, dice, ends, network=None):
    settings = {"model.name": network} if network else {}
    scores = {"adawac": {"dice": {"mean": dice}}}
    return {"row": row, "seed": seed, "epochs": 100, "settings": settings, "scores": scores} | ends


def test_the_section_counts_by_network_and_compares_seeds():
    four = {"batch": 24, "last_batch": 4}
    entries = [
        entry("a", 1, 0.675, {"ends": {**four, "last_sparse": 4, "epochs_off": 3}}),
        entry("a", 2, 0.877, {"ends": {**four, "last_sparse": 1, "epochs_off": 0}}),
        entry("a", 3, 0.855, {}),  # collected before this was asked
        entry("b", 1, 0.9, {"ends": {**four, "last_sparse": 1, "epochs_off": 5}}, "transunet"),
    ]
    rows = {"a": entries[:3], "b": entries[3:]}
    text = page._ends([run for run in entries if "ends" in run], rows)
    lines = text.splitlines()
    assert lines[0] == "## Where a run ends"
    assert "| `unet` | 4 of 24 | 2 | 200 | 3 (1.5 %) |" in lines
    assert "| `transunet` | 4 of 24 | 1 | 100 | 5 (5.0 %) |" in lines
    assert "| 4 of 4 | 1 | -19.1 | -19.1 |" in lines
    assert "| 1 of 4 | 1 | +11.2 | +11.2 |" in lines  # b has no other seed
    assert page._ends([], rows) == ""
