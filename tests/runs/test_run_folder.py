import json
import logging
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from adawac.config import TrainConfig, override
from adawac.data.cases import SampleTable
from adawac.errors import MissingFileError, RunError
from adawac.runs import FIELDS, FORMAT_VERSION, History, Run, RunWriter, example_run, list_runs


@pytest.fixture(scope="module")
def example(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run, to be read only."""
    return example_run(tmp_path_factory.mktemp("runs") / "example").folder


@pytest.fixture
def copy(example: Path, tmp_path: Path) -> Path:
    """The same run, to be spoilt."""
    return Path(shutil.copytree(example, tmp_path / "copy"))


def table(n: int, prefix: str = "d/p/c/2") -> SampleTable:
    names = np.array([f"{prefix}/{number}" for number in range(n)])
    return SampleTable(
        id=names,
        patient=np.full(n, "p"),
        case=np.full(n, "c"),
        slice=np.arange(n),
        axis=np.full(n, "2"),
        unit=np.full(n, "slice"),
        split=np.full(n, "train"),
        group=np.full(n, ""),
        position=np.arange(n),
        shape=np.full((n, 2), 8),
        fraction=np.full((n, 2), 0.5),
        class_names=("background", "organ"),
    )


def write_epochs(run: RunWriter, epochs: range, n: int = 5) -> None:
    for epoch in epochs:
        values = np.random.default_rng(epoch).random((4, n), dtype=np.float32)
        run.log_history(epoch, np.arange(n), **dict(zip(FIELDS, values, strict=True)))
        run.log_metrics(epoch, {"loss": float(values.mean())})


# -- what is written is read -------------------------------------------------------------------------------------------


def test_an_example_run_is_complete(example: Path) -> None:
    run = Run(example)
    assert run.missing == {}
    run.require("samples.csv", "history.bin", "scores")
    assert (run.status, run.epoch, run.info["format_version"]) == ("finished", 20, FORMAT_VERSION)
    assert isinstance(run.config, TrainConfig)
    assert run.settings["method"]["name"] == run.summary["method"] == "adawac"
    assert run.data["class_names"] == ["background", "liver", "kidney"]
    assert len(run.environments) == 1
    assert run.samples is not None
    assert len(run.samples) == 60
    assert set(run.samples.case.tolist()) == {"case01", "case02", "case03"}
    assert run.history["beta"].shape == (20, 60)
    assert [metrics["epoch"] for metrics in run.metrics] == list(range(1, 21))
    assert run.checkpoints == ["last"]
    assert run.checkpoint().state["ids"] == run.samples.id.tolist()
    assert {score.metric for score in run.scores("test-strict")} == {"dice", "hd95"}
    assert repr(run) == f"Run({str(run.folder)!r}: adawac with unet, finished, epoch 20 of 20)"


def test_the_examples_weights_follow_algorithm_1(example: Path) -> None:
    run = Run(example)
    beta, ell_ce, reg_ac = (run.history[name].astype(np.float64) for name in ("beta", "ell_ce", "reg_ac"))
    log_odds = np.log(beta) - np.log1p(-beta)
    moved = np.diff(np.vstack([np.zeros(60), log_odds]), axis=0)
    unsaturated = np.abs(log_odds) < 6  # float32 beta has no digits left beyond
    np.testing.assert_allclose(moved[unsaturated], (ell_ce - reg_ac)[unsaturated], atol=2e-3)
    assert run.samples is not None
    sparse = run.samples.label_sparse
    assert 20 < sparse.sum() < 40
    assert beta[-1, sparse].max() < 0.5 < beta[-1, ~sparse].min()


def test_the_example_follows_its_seed(tmp_path: Path, example: Path) -> None:
    same, other = example_run(tmp_path / "same"), example_run(tmp_path / "other", seed=1)
    for name in ("history.bin", "metrics.jsonl", "samples.csv", "config.yaml", "checkpoints/last.safetensors"):
        assert (same.folder / name).read_bytes() == (example / name).read_bytes()
    assert not np.array_equal(other.history["beta"], same.history["beta"])


def test_the_examples_slices_are_those_of_its_table(example: Path) -> None:
    run = Run(example)
    gallery = run.gallery("test")
    assert len(gallery) == 6
    assert run.samples is not None
    for name, one in gallery.items():
        row = run.samples.id.tolist().index(name)
        assert one.label is not None
        assert one.prediction is not None
        assert (one.label == 0).mean() == pytest.approx(run.samples.fraction[row, 0])
        assert one.image.shape == one.prediction.shape == (64, 64)


def test_an_example_of_another_method_or_end(tmp_path: Path) -> None:
    run = example_run(tmp_path / "run", method="baseline", status="interrupted", epochs=8)
    assert (run.status, run.epoch, run.info["epochs"]) == ("interrupted", 4, 8)
    assert set(run.missing) == {"scores", "gallery"}
    assert np.isnan(run.history["beta"]).all()
    assert not np.isnan(run.history["ell_ce"]).any()
    epochs, beta = run.curve("beta")
    assert epochs.tolist() == [1, 2, 3, 4]
    assert np.isnan(beta).all()


def test_metrics_of_one_epoch_add_up_and_are_strict_json(tmp_path: Path) -> None:
    with RunWriter(tmp_path / "run", TrainConfig()) as run:
        run.log_metrics(1, {"loss": np.float32(0.5), "grad": float("inf")})
        run.log_metrics(1, {"dice": torch.tensor(0.25), "group": {"a": float("nan")}})
        run.log_metrics(2, {"loss": 0.1})
        for wrong in (torch.ones(3), np.ones(2), object()):
            with pytest.raises(RunError, match=r"number as metric 'dice', but got.*Give one number"):
                run.log_metrics(2, {"loss": 0.1, "dice": wrong})
        with pytest.raises(RunError, match="Expected an epoch after 2, but got 1"):
            run.log_metrics(1, {})
    found = Run(tmp_path / "run")
    assert found.metrics[0] == {"epoch": 1, "loss": 0.5, "grad": None, "dice": 0.25, "group": {"a": None}}
    for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines():
        json.loads(line, parse_constant=pytest.fail)
    np.testing.assert_array_equal(found.curve("dice")[1], [0.25, np.nan])
    with pytest.raises(RunError, match="Near names: 'dice'"):
        found.curve("dise")


# -- history -----------------------------------------------------------------------------------------------------------


def test_unseen_samples_are_nan_and_the_data_set_may_grow(tmp_path: Path) -> None:
    with RunWriter(tmp_path / "run", TrainConfig()) as run:
        assert run.write_samples(table(3)).tolist() == [0, 1, 2]
        run.log_history(1, [2, 0], ell_ce=[2.0, 0.5], beta=torch.tensor([0.75, 0.25], dtype=torch.bfloat16))
        both = replace(table(5), id=table(5).id[::-1].copy())  # two new ones, in another order
        assert run.write_samples(both).tolist() == [3, 4, 2, 1, 0]
        run.log_history(4, [4, 1], ell_ce=[4.0, 1.0])
    found = Run(tmp_path / "run")
    assert found.samples is not None
    assert found.samples.id.tolist() == ["d/p/c/2/0", "d/p/c/2/1", "d/p/c/2/2", "d/p/c/2/4", "d/p/c/2/3"]
    assert found.history.epochs.tolist() == [1, 4]
    nan = np.nan
    np.testing.assert_array_equal(found.history["ell_ce"], [[0.5, nan, 2, nan, nan], [nan, 1, nan, nan, 4]])
    np.testing.assert_array_equal(found.history["beta"], [[0.25, nan, 0.75, nan, nan], [nan] * 5])
    assert np.isnan(found.history["reg_ac"]).all()
    one = found.trajectory("d/p/c/2/3")
    np.testing.assert_array_equal(one["ell_ce"], [nan, 4])
    with pytest.raises(RunError, match="Near names"):
        found.trajectory("d/p/c/2/9")


def test_parts_of_the_history_are_what_the_whole_is(example: Path) -> None:
    history = Run(example).history
    whole = history["ell_ce"]
    for epochs in (slice(None), slice(3, 7), slice(-1, None), slice(None, None, 6), slice(5, 5)):
        for rows in (slice(None), slice(10, 20), [3], [50, 2, 2], np.array([], dtype=int), np.arange(60) % 7 == 0):
            np.testing.assert_array_equal(history.read("ell_ce", epochs, rows), whole[epochs][:, rows])
    with pytest.raises(RunError, match="Near names: 'ell_ce'"):
        history.read("ell_c")
    assert whole.dtype == np.float32


def test_a_method_may_log_more_about_its_samples(tmp_path: Path) -> None:
    with RunWriter(tmp_path / "run", TrainConfig()) as run:
        run.write_samples(table(2))
        run.log_history(1, [0, 1], ell_ce=[1, 2])
        run.log_history(2, [0, 1], ell_ce=[1, 2], entropy=[3, 4])
    np.testing.assert_array_equal(Run(tmp_path / "run").history["entropy"], [[np.nan, np.nan], [3, 4]])


def test_each_block_is_an_ordinary_npy_array(example: Path) -> None:
    with (example / "history.bin").open("rb") as file:
        blocks = [np.load(file, allow_pickle=False) for _ in range(20)]
    assert [int(block["epoch"]) for block in blocks] == list(range(1, 21))
    np.testing.assert_array_equal(np.stack([block["beta"] for block in blocks]), Run(example).history["beta"])


@pytest.mark.parametrize(
    ("epoch", "rows", "message"),
    [
        (1, [0], "Expected an epoch after 1, but got 1"),
        (2, [5], "Expected rows of the table, a list of 0 to 4, but got 5 to 5"),
        (2, [-1, 2], "but got -1 to 2"),
        (2, [[0]], "Expected rows of the table"),
    ],
)
def test_a_wrong_row_or_epoch_is_refused(tmp_path: Path, epoch: int, rows: list[int], message: str) -> None:
    with RunWriter(tmp_path / "run", TrainConfig()) as run:
        run.write_samples(table(5))
        write_epochs(run, range(1, 2))
        with pytest.raises(RunError, match=message):
            run.log_history(epoch, rows, ell_ce=[1.0])
    assert len(Run(tmp_path / "run").history) == 1


def test_other_classes_are_another_data_set(tmp_path: Path) -> None:
    with RunWriter(tmp_path / "run", TrainConfig()) as run:
        run.write_samples(table(2))
        with pytest.raises(RunError, match="Expected the classes of the run, background, organ, but got background, x"):
            run.write_samples(replace(table(3), class_names=("background", "x")))


# -- resuming ----------------------------------------------------------------------------------------------------------


def test_a_resumed_run_equals_an_uninterrupted_one(tmp_path: Path) -> None:
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    for folder in (whole, parts):
        with RunWriter(folder, TrainConfig(epochs=9), epochs=9) as run:
            run.write_samples(table(5))
            write_epochs(run, range(1, 10) if folder == whole else range(1, 8))
    info = json.loads((parts / "run.json").read_text())
    (parts / "run.json").write_text(json.dumps({**info, "created": "2020-02-02T02:02:02+00:00"}))
    with RunWriter(parts, resume=True) as run:
        assert run.samples is not None
        run.write_samples(run.samples)
        with pytest.raises(RunError, match="Expected an epoch after 7, but got 7"):
            write_epochs(run, range(7, 8))
        run.rewind(4)
        assert Run(parts).epoch == 4
        write_epochs(run, range(5, 10))
    for name in ("metrics.jsonl", "history.bin", "samples.csv", "config.yaml"):
        assert (parts / name).read_bytes() == (whole / name).read_bytes()
    run = Run(parts)
    assert (run.status, run.epoch, run.info["epochs"], len(run.environments)) == ("finished", 9, 9, 2)
    assert run.info["created"] == "2020-02-02T02:02:02+00:00" < run.info["updated"]


def test_what_a_list_of_runs_shows_can_be_added_to_and_taken_away(tmp_path: Path) -> None:
    with RunWriter(tmp_path / "run", TrainConfig(), summary={"model": "unet", "val_dice": 0.5}) as run:
        run.note({"val_dice": None, "seed": 3})
    assert Run(tmp_path / "run").summary == {"model": "unet", "seed": 3}


def test_rewinding_to_the_start_leaves_nothing(tmp_path: Path) -> None:
    with RunWriter(tmp_path / "run", TrainConfig()) as run:
        run.write_samples(table(5))
        write_epochs(run, range(3))
        run.rewind(-1)
        assert len(Run(tmp_path / "run").history) == 0
        assert Run(tmp_path / "run").metrics == []
        write_epochs(run, range(3))
        run.rewind(7)  # where it never was
        assert Run(tmp_path / "run").epoch == 2
    assert Run(tmp_path / "run").history.epochs.tolist() == [0, 1, 2]


def test_a_cut_anywhere_costs_no_more_than_the_last_epoch(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    with RunWriter(folder, TrainConfig()) as run:
        run.write_samples(table(5))
        write_epochs(run, range(1, 4))
    complete = {name: (folder / name).read_bytes() for name in ("history.bin", "metrics.jsonl")}
    ends = {
        "history.bin": [block.end for block in History(folder / "history.bin")._blocks],
        "metrics.jsonl": [place + 1 for place, one in enumerate(complete["metrics.jsonl"]) if one == ord("\n")],
    }
    for name, content in complete.items():
        for length in range(0, len(content) + 1, 7):
            (folder / name).write_bytes(content[:length])
            found, whole = Run(folder), sum(end <= length for end in ends[name])
            assert len(found.history if name == "history.bin" else found.metrics) == whole
        # Going on from a cut in the middle of the second epoch gives the same file again.
        (folder / name).write_bytes(content[: ends[name][0] + 9])
    with RunWriter(folder, resume=True) as run:
        run.rewind(1)
        write_epochs(run, range(2, 4))
    assert {name: (folder / name).read_bytes() for name in complete} == complete


def test_garbage_after_the_last_line_does_not_count(copy: Path) -> None:
    for garbage in (b"\0" * 50, b'{"epoch": 21, "loss"', b"[1]\n", b'{"loss": 1}\n', b"\xff\n"):
        content = (copy / "metrics.jsonl").read_bytes()
        (copy / "metrics.jsonl").write_bytes(content + garbage)
        assert len(Run(copy).metrics) == 20
        (copy / "metrics.jsonl").write_bytes(content)
    (copy / "history.bin").write_bytes((copy / "history.bin").read_bytes() + b"\0" * 500)
    assert len(Run(copy).history) == 20


def test_a_new_run_needs_a_folder_of_its_own(tmp_path: Path, example: Path) -> None:
    with pytest.raises(RunError, match="holds a run"):
        RunWriter(example, TrainConfig())
    (tmp_path / "thesis.tex").touch()
    with pytest.raises(RunError, match=r"Expected an empty folder, but .* holds 'thesis\.tex'"):
        RunWriter(tmp_path, TrainConfig())
    with pytest.raises(RunError, match=r"Expected a run to resume, but .* has no run\.json"):
        RunWriter(tmp_path / "new", resume=True)
    with pytest.raises(RunError, match="Expected to write to"):
        RunWriter(tmp_path / "thesis.tex" / "run", TrainConfig())


def test_resuming_needs_the_table(copy: Path) -> None:
    (copy / "samples.csv").unlink()
    with pytest.raises(RunError, match=r"samples\.csv cannot be read"):
        RunWriter(copy, resume=True)
    assert Run(copy).status == "finished"


def test_a_resume_that_is_refused_leaves_the_run_as_it_was(copy: Path) -> None:
    parts = ["run.json", "config.yaml", "data.json", "samples.csv", "metrics.jsonl", "history.bin"]
    before = {name: (copy / name).read_bytes() for name in parts}
    config = TrainConfig(seed=99)

    run = RunWriter(copy, config, epochs=7, resume=True)
    run.write_data({"dataset": "another"})
    with pytest.raises(RunError, match="Expected the classes of the run"):
        run.write_samples(table(9))
    with pytest.raises(KeyError), RunWriter(copy, config, epochs=7, resume=True):
        raise KeyError
    assert {name: (copy / name).read_bytes() for name in parts} == before
    with RunWriter(copy, config, epochs=7, resume=True) as run:
        run.write_data({"dataset": "another"})
        run.rewind(20)
        assert (Run(copy).status, Run(copy).data, Run(copy).info["epochs"]) == ("running", {"dataset": "another"}, 7)
        assert Run(copy).settings["seed"] == 99
    assert Run(copy).status == "finished"


# -- incomplete, foreign, old, new -------------------------------------------------------------------------------------

PARTS = ["config.yaml", "environment.json", "data.json", "samples.csv", "metrics.jsonl", "history.bin"]
FOLDERS = ["checkpoints", "scores", "gallery"]


@pytest.mark.parametrize("part", PARTS + FOLDERS)
def test_a_missing_part_is_named_and_the_others_are_given(copy: Path, part: str) -> None:
    target = copy / part
    shutil.rmtree(target) if target.is_dir() else target.unlink()
    run = Run(copy)
    assert list(run.missing) == [part]
    with pytest.raises(RunError, match=rf"Expected history\.bin, {part} in .*{part}: "):
        run.require("history.bin", part)
    assert run.status == "finished"
    assert run.history["beta"].shape == ((0, 60) if part == "history.bin" else (20, 60))
    assert len(run.metrics) == (0 if part == "metrics.jsonl" else 20)


@pytest.mark.parametrize("part", PARTS[:4])
def test_a_damaged_part_is_named_and_the_others_are_given(copy: Path, part: str) -> None:
    (copy / part).write_bytes(b'{"a": \xff')
    run = Run(copy)
    assert list(run.missing) == [part]
    assert "it cannot be read: " in run.missing[part]
    with pytest.raises(RunError) as error:
        run.require(part)
    assert ".." not in str(error.value)
    assert "Restore it from a copy" in str(error.value)
    assert len(run.history) == 20


def test_a_table_with_a_broken_row_is_named(copy: Path) -> None:
    with (copy / "samples.csv").open("a") as file:
        file.write("one,two\n")
    assert list(Run(copy).missing) == ["samples.csv"]


def test_a_configuration_of_another_version_is_still_shown(copy: Path) -> None:
    (copy / "config.yaml").write_text("epochs: 20\nbygone: 1\n")
    run = Run(copy)
    assert run.config is None
    assert run.settings == {"epochs": 20, "bygone": 1}
    assert "bygone: unknown key" in run.missing["config.yaml"]


def test_a_newer_format_asks_for_an_upgrade(copy: Path, caplog: pytest.LogCaptureFixture) -> None:
    info = json.loads((copy / "run.json").read_text())
    (copy / "run.json").write_text(json.dumps(info | {"format_version": FORMAT_VERSION + 1}))
    with pytest.raises(RunError, match=rf"version {FORMAT_VERSION} or older, but .* has {FORMAT_VERSION + 1}.*Upgrade"):
        Run(copy)
    with pytest.raises(RunError, match="Upgrade adawac"):
        RunWriter(copy, resume=True)
    with caplog.at_level(logging.WARNING):
        assert list_runs(copy.parent) == []
    assert "Upgrade adawac" in caplog.text
    del info["format_version"]
    (copy / "run.json").write_text(json.dumps(info))
    assert Run(copy).missing == {}


@pytest.mark.parametrize("content", [b"", b"[]", b"{", b"\xff", b'{"format_version": "x"}'])
def test_a_damaged_run_json_is_an_error(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "run.json").write_bytes(content)
    with pytest.raises(RunError):
        Run(tmp_path)


def test_no_run_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for path in (tmp_path, tmp_path / "absent", tmp_path / "file"):
        with pytest.raises(MissingFileError, match=r"Expected a run folder, but .* has no run\.json"):
            Run(path)


def test_the_end_of_a_block_is_the_status_of_the_run(tmp_path: Path) -> None:
    run = RunWriter(tmp_path / "run", TrainConfig(), summary={"method": "adawac"})
    assert Run(tmp_path / "run").status == "running"
    run.close("finished", {"dice": 0.5})
    run.close("interrupted")  # the first one counts
    assert Run(tmp_path / "run").status == "finished"
    assert Run(tmp_path / "run").summary == {"method": "adawac", "dice": 0.5}

    def interrupt() -> None:
        with RunWriter(tmp_path / "run", resume=True) as resumed:
            assert Run(tmp_path / "run").status == "running"
            resumed.rewind(0)
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupt()
    assert Run(tmp_path / "run").status == "interrupted"
    assert Run(tmp_path / "run").summary == {"method": "adawac", "dice": 0.5}


def test_runs_are_listed_by_their_paths(tmp_path: Path, example: Path) -> None:
    info = json.loads((example / "run.json").read_text())
    for number in range(40):
        folder = tmp_path / "grid" / f"table-{number % 3}" / f"run-{number:02d}"
        folder.mkdir(parents=True)
        (folder / "run.json").write_text(json.dumps(info | {"epoch": number}))
    (tmp_path / "grid" / "notes").mkdir()
    (tmp_path / "grid" / "table-0" / "run-00" / "deeper").mkdir()
    (tmp_path / "grid" / "table-0" / "run-00" / "deeper" / "run.json").write_text("{}")  # a run holds no runs
    (tmp_path / "grid" / "loop").symlink_to(tmp_path / "grid")
    runs = list_runs(tmp_path)
    assert len(runs) == 40
    assert [run.folder for run in runs] == sorted(run.folder for run in runs)
    assert {run.epoch for run in runs} == set(range(40))
    assert {run.status for run in runs} == {"finished"}
    assert list_runs(example)[0].folder == example
    with pytest.raises(MissingFileError, match="Expected a folder of runs"):
        list_runs(tmp_path / "absent")


# -- the run's result --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("select", "saved", "result"),
    [
        ("last", ["last", "best"], "last"),
        ("best", ["last", "best"], "best"),
        ("best", ["last"], "last"),  # no validation has scored yet
        (None, ["last", "best"], "last"),  # another loop's run, or a configuration that is gone
    ],
)
def test_the_selected_checkpoint_is_what_the_configuration_says(
    tmp_path: Path, select: str | None, saved: list[str], result: str
) -> None:
    config = None if select is None else override(TrainConfig(), {"validation.every": 1, "validation.select": select})
    with RunWriter(tmp_path / "run", config) as run:
        for name in saved:
            run.save_checkpoint(name, {"weight": np.zeros(1)}, {"epoch": 1})
    run = Run(tmp_path / "run")
    assert run.selected_checkpoint == run.checkpoint_name() == result
    assert run.checkpoint_name("last") == "last"
    with pytest.raises(RunError, match=r"Expected a checkpoint of .*run, but got 'lats'\. Near names: 'last'"):
        run.checkpoint_name("lats")


def test_a_run_without_checkpoints_has_no_result(tmp_path: Path) -> None:
    with RunWriter(tmp_path / "run", TrainConfig()):
        pass
    with pytest.raises(RunError, match=r"Expected a checkpoint of .*run, but got 'last'"):
        Run(tmp_path / "run").checkpoint_name()
