"""What comes beside the training itself: scores, galleries, names, the environment."""

import getpass
import json
import re
import subprocess
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path

import numpy as np
import pytest

import adawac
from adawac.config import TrainConfig
from adawac.errors import RunError, UnknownNameError
from adawac.runs import Run, RunWriter, Score, Slice, example_run, write_gallery, write_scores
from adawac.runs.environment import describe_environment, scrub

HOSTILE = [
    "<script>alert(1)</script>",
    "../../../etc/passwd",
    "/absolute",
    "quotes \" and ' and , commas",
    "line\nbreak",
    "\u202eright to left",
    "=1+1",
    "x" * 5000,
    "",
    " ",
]


def test_hostile_names_are_data(tmp_path: Path) -> None:
    run = example_run(tmp_path / "run", cases=HOSTILE, slices=3, epochs=2, size=16)
    assert run.missing == {}
    assert run.samples is not None
    assert run.samples.cases == tuple(HOSTILE)
    assert run.samples.id[0] == f"example/{HOSTILE[0]}/{HOSTILE[0]}/2/0"
    assert {score.case for score in run.scores("test-strict")} == set(HOSTILE)
    assert {name.split("/2/")[0] for name in run.gallery("test")} == {f"example/{name}/{name}" for name in HOSTILE}
    assert run.checkpoint().state["ids"] == run.samples.id.tolist()
    found = sorted(str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*") if path.is_file())
    files = [".lock", "checkpoints/last.safetensors", "gallery/test.npz", "run.json", "scores/test-strict.csv"]
    files += ["config.yaml", "environment.json", "data.json", "samples.csv", "metrics.jsonl", "history.bin"]
    assert found == sorted(f"run/{name}" for name in files)


@pytest.mark.parametrize("name", ["../up", "a/b", "", ".hidden", "x" * 101, "a\0b", "a\n"])
def test_names_that_become_files_must_be_plain(tmp_path: Path, name: str) -> None:
    (tmp_path / "run.json").write_text("{}")
    run = Run(tmp_path)
    with pytest.raises(RunError, match="Expected a plain name"):
        write_scores(tmp_path, name, [])
    with pytest.raises(RunError, match="Expected a plain name"):
        write_gallery(tmp_path, name, [])
    with pytest.raises(RunError, match="Expected a plain name"):
        run.checkpoint(name)
    for read in (run.scores, run.gallery):
        with pytest.raises(RunError, match="Near names"):
            read(name)
    assert [path.name for path in tmp_path.iterdir()] == ["run.json"]


def test_scores_come_back_with_every_digit(tmp_path: Path) -> None:
    scores = [
        Score(patient="p\r1", case="c\r\n1", label=1, class_name="läver", metric="dice", value=0.1 + 0.2),
        Score(
            patient="\ud800", case="\0", label=2, class_name='"', metric="hd95", value=float("inf"), convention="nan"
        ),
        Score(patient="p", case="c", group="DCM", label=1, class_name="a", metric="m", value=-0.0, checkpoint="best"),
        Score(patient="p", case="c", label=1, class_name="a", metric="m", value=1.0, dataset="there", epoch=7),
    ]
    path = write_scores(tmp_path, "test", scores)
    (tmp_path / "run.json").write_text("{}")
    run = Run(tmp_path)
    assert run.evaluations == ["test"]
    assert run.scores("test") == scores
    (tmp_path / "data.json").write_text('{"dataset": "here"}')  # the run's own, where a row does not say it
    assert [score.dataset for score in Run(tmp_path).scores("test")] == ["here", "here", "here", "there"]
    write_scores(tmp_path, "test", [replace(scores[0], value=float("nan"))])
    assert np.isnan(run.scores("test")[0].value)
    path.write_text("patient,case\r\n1,2\r\n")
    with pytest.raises(RunError, match=r"Expected scores in .*test\.csv"):
        run.scores("test")


def test_a_gallery_gives_what_it_was_given(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    slices = [
        Slice(id="a", image=rng.random((5, 7)), label=np.full((5, 7), 300), prediction=np.zeros((5, 7), np.int64)),
        Slice(id="b", image=rng.integers(0, 9, (3, 4, 4), dtype=np.uint8), spacing=(1.5, 0.5)),
        Slice(id="c", image=np.zeros((2, 2), np.float16), label=np.full((2, 2), -1)),
        Slice(id="picture", image=rng.integers(0, 256, (3, 4, 4), dtype=np.uint8), in_colour=True),
    ]
    path = write_gallery(tmp_path, "test", slices)
    (tmp_path / "run.json").write_text("{}")
    gallery = Run(tmp_path).gallery("test")
    assert list(gallery) == ["a", "b", "c", "picture"]
    for item in slices:
        kept = gallery[item.id]
        np.testing.assert_array_equal(kept.image, item.image)
        assert kept.image.dtype == item.image.dtype
        for part in ("label", "prediction"):
            expected, actual = getattr(item, part), getattr(kept, part)
            assert (actual is None) == (expected is None)
            if expected is not None:
                np.testing.assert_array_equal(actual, expected)
        assert kept.spacing == item.spacing
        assert kept.in_colour is item.in_colour
    assert gallery["a"].label is not None
    assert gallery["a"].label.dtype == np.uint16
    assert gallery["a"].prediction is not None
    assert gallery["a"].prediction.dtype == np.uint8
    assert "d" not in gallery
    with pytest.raises(UnknownNameError, match="Near names"):
        gallery["d"]
    with np.load(path, allow_pickle=False) as arrays:  # nothing in it needs pickle
        assert all(arrays[name].dtype != object for name in arrays)
    path.write_bytes(path.read_bytes()[:100])
    with pytest.raises(RunError, match="Expected a gallery in"):
        Run(tmp_path).gallery("test")


@pytest.mark.parametrize(
    "given",
    [
        Slice(id="a", image=np.array([["x"]])),
        Slice(id="a", image=np.zeros(3)),
        Slice(id="a", image=np.zeros((2, 2)), label=np.zeros((2, 2))),
        Slice(id="a", image=np.zeros((2, 2)), prediction=np.zeros((2, 2, 2), int)),
        Slice(id="a", image=np.array([[object()]])),
    ],
)
def test_a_gallery_takes_numbers_only(tmp_path: Path, given: Slice) -> None:
    with pytest.raises(RunError, match="Expected numbers of"):
        write_gallery(tmp_path, "test", [given])
    assert list(tmp_path.iterdir()) == []


def test_a_run_can_be_evaluated_while_it_trains(tmp_path: Path) -> None:
    with RunWriter(tmp_path / "run", TrainConfig()) as run:
        write_scores(tmp_path / "run", "val", [])
        run.write_scores("test", [])
        run.write_gallery("test", [])
        assert Run(tmp_path / "run").evaluations == ["test", "val"]
        assert len(Run(tmp_path / "run").gallery("test")) == 0


# -- environment -------------------------------------------------------------------------------------------------------


def test_the_environment_says_what_is_needed_to_repeat_a_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SECRET_TOKEN", "hunter2")
    monkeypatch.setattr("platform.node", lambda: "hostess")
    found = describe_environment(["/home/alice/bin/adawac", "train", "store"])
    assert found["command"] == ["adawac", "train", "store"]
    assert found["packages"]["torch"] == version("torch")
    assert {"python", "platform", "cpu", "cpu_count", "memory_gib", "gpus", "commit", "adawac"} < found.keys()
    assert not {"hunter2", "hostess"} & set(json.dumps(found).split('"'))


@pytest.mark.parametrize(("folder", "known"), [("src", True), ("lib", False)])
def test_the_commit_is_that_of_a_checkout_and_not_of_a_project_that_adawac_was_installed_into(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, folder: str, known: bool
) -> None:
    commit = ["-c", "user.name=a", "-c", "user.email=a@b", "commit", "-q", "--allow-empty", "-m", "first"]
    for words in (["init", "-q"], commit):
        subprocess.run(["git", "-C", str(tmp_path), *words], check=True)
    monkeypatch.setattr(adawac, "__file__", str(tmp_path / folder / "adawac" / "__init__.py"))
    found = describe_environment()["commit"]
    assert bool(re.fullmatch("[0-9a-f]{40}", found or "")) is known
    assert known or found is None


def test_a_command_is_scrubbed_of_names_and_secrets(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/alice")
    monkeypatch.setattr(getpass, "getuser", lambda: "alice")
    given = [
        "/home/alice/.venv/bin/adawac",
        "train",
        "/home/alice/store",
        "--out=/scratch/alice/run",
        "/home/alicia/x",
        "--wandb-token",
        "abc",
        "--api_key=abc",
        "--password",
        "--seed",
        "1",
        "https://alice:abc@host/x",
    ]
    assert scrub(given) == [
        "adawac",
        "train",
        "~/store",
        "--out=/scratch/***/run",
        "/home/alicia/x",
        "--wandb-token",
        "***",
        "--api_key=***",
        "--password",
        "--seed",
        "1",
        "https://***@host/x",
    ]
    assert scrub(["/x/adawac/__main__.py"]) == ["adawac"]


def test_results_of_weights_that_training_left_behind_are_named(tmp_path: Path) -> None:
    run = example_run(tmp_path / "run")  # its checkpoint is of epoch 20
    first = run.scores("test-strict")[0]
    for epoch, name in ((20, "now"), (12, "then"), (None, "unknown")):
        write_scores(run.folder, name, [replace(first, epoch=epoch)])
        write_gallery(run.folder, name, [], checkpoint="last", epoch=epoch)
    write_scores(run.folder, "gone", [replace(first, epoch=12, checkpoint="best")])
    write_scores(run.folder, "empty", [])
    (run.folder / "scores" / "broken.csv").write_text("patient,case\r\n1,2\r\n")
    why = "of epoch 12, but checkpoint last is of epoch 20 by now"
    assert Run(run.folder).outdated == {"scores/then.csv": why, "gallery/then.npz": why}
    (run.folder / "checkpoints" / "last.safetensors").write_bytes(b"damaged")
    assert Run(run.folder).outdated == {}
