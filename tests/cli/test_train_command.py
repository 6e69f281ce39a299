"""`adawac train`, as a user types it."""

import json
import re

import pytest

from adawac.cli import run
from adawac.cli.display import Display
from adawac.models import weight_files
from adawac.runs import Run
from adawac.train import engine


@pytest.fixture
def words(store, tmp_path):
    sizes = ["--set", "data.image_size=[32, 32]", "--set", "data.batch_size=12"]
    return [
        "train",
        str(store),
        "--model",
        "tests.networks.small_network:small",
        "--epochs",
        "2",
        *sizes,
        "--out",
        str(tmp_path / "run"),
    ]


def test_train_prints_a_line_an_epoch_and_leaves_a_run(words, tmp_path, capsys):
    assert run(words) == 0
    lines = capsys.readouterr().out.splitlines()
    assert "adawac (paper) with tests.networks.small_network:small" in lines[0]
    assert [line.split("  ")[0] for line in lines[1:3]] == ["epoch 1/2", "epoch 2/2"]
    assert all(name in lines[1] for name in ("loss", "CE", "ACR", "β sparse", "β dense", "slices/s"))
    assert lines[-1] == f"Done: {tmp_path / 'run'}"
    assert Run(tmp_path / "run").status == "finished"


def test_without_a_terminal_a_long_epoch_says_how_far_it_is(words, capsys, monkeypatch):
    monkeypatch.setattr(engine, "LINE_EVERY", 0.0)
    assert run(words) == 0
    assert "epoch 1/2  step 2/4  about 1 min left" in capsys.readouterr().out.splitlines()
    monkeypatch.setenv("FORCE_COLOR", "1")  # rich takes this for a terminal
    assert run([*words[:-1], words[-1] + "-shown"]) == 0
    shown = capsys.readouterr().out
    assert "left" not in shown
    assert "steps" in shown


def test_without_a_store_it_trains_on_the_phantom(words, tmp_path, small_phantom, capsys):
    words = [word for word in words if not word.endswith("store")]
    assert run(words) == 0
    assert capsys.readouterr().out.startswith("No store was given: training on the built-in phantom.\n")
    (store,) = small_phantom.iterdir()
    trained = Run(tmp_path / "run")
    assert trained.config.data.store == store
    assert trained.data["dataset"] == "phantom-ct"
    before = (store / "store.json").stat()
    assert run(["train", "--out", str(tmp_path / "run"), "--resume", "--epochs", "3"]) == 0
    assert run([{str(tmp_path / "run"): str(tmp_path / "again")}.get(word, word) for word in words]) == 0
    assert (store / "store.json").stat() == before  # prepared once
    assert run(["evaluate", str(tmp_path / "again")]) == 0


def test_a_method_without_weights_shows_none(words, capsys):
    once = [{"2": "1"}.get(word, word) for word in words]
    assert run([*once, "--method", "baseline"]) == 0
    first, line, *_ = capsys.readouterr().out.splitlines()
    assert ", 1 epoch, into" in first
    assert all(name in line for name in ("loss", "CE", "Dice", "slices/s"))
    assert not any(name in line for name in ("ACR", "β"))


def test_json_is_how_the_run_stands_and_nothing_else(words, tmp_path, capsys):
    assert run([*words, "--json"]) == 0
    printed = json.loads(capsys.readouterr().out)
    assert printed == {
        "run": str(tmp_path / "run"),
        "status": "finished",
        "epoch": 2,
        "epochs": 2,
        "metrics": Run(tmp_path / "run").metrics,
    }
    assert {"loss", "ell_ce", "reg_ac"} <= printed["metrics"][-1].keys()


def test_ctrl_c_saves_and_says_how_to_go_on(words, tmp_path, capsys, monkeypatch):
    def stop(self, epoch, step):
        if (epoch, step) == (2, 2):
            raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(Display, "step", stop)
        assert run([*words[:-1], str(tmp_path / "my run")]) == 130
    out, err = capsys.readouterr()
    assert f"Saved. Go on with: adawac train --out '{tmp_path / 'my run'}' --resume" in out
    assert "Interrupted" in err
    assert Run(tmp_path / "my run").status == "interrupted"
    assert run(["train", "--out", str(tmp_path / "my run"), "--resume"]) == 0
    assert Run(tmp_path / "my run").status == "finished"


def test_a_resume_that_would_misname_the_run_is_refused(words, tmp_path, capsys):
    assert run(words) == 0
    folder = tmp_path / "run"
    before = {name: (folder / name).read_bytes() for name in ("config.yaml", "run.json", "environment.json")}
    go_on = ["train", "--out", str(folder), "--resume"]
    for changed, message in (
        (["--method", "pair"], "Expected to go on with the method .* but got pair"),
        (["--preset", "official"], "Expected to go on with the preset .*, paper, but got official"),
        (["--epochs", "1"], "Expected at least the 2 epochs"),
    ):
        capsys.readouterr()
        assert run([*go_on, *changed]) == 2
        assert re.search(message, capsys.readouterr().err)
    assert {name: (folder / name).read_bytes() for name in before} == before
    assert run([*go_on, "--epochs", "3"]) == 0
    assert Run(folder).epoch == 3


def test_training_messages(words, store, capsys):
    assert run(["train", str(store), "--epochs", "2"]) == 2
    assert "Give --out." in capsys.readouterr().err
    assert run([*words, "--method", "adawak"]) == 2
    assert "'adawac'" in capsys.readouterr().err
    assert run([*words, "--resume"]) == 2
    assert "no run.json" in capsys.readouterr().err


@pytest.mark.parametrize("preset", ["", "-official"])
@pytest.mark.parametrize("model", ["unet", "transunet"])
def test_the_papers_recipes_without_a_network(store, tmp_path, monkeypatch, capsys, model, preset):
    """Weights that cannot be had are one message; what it names trains, with smaller networks here."""

    def refused(*_):
        raise OSError("no network")

    monkeypatch.setenv("ADAWAC_WEIGHTS", str(tmp_path))
    monkeypatch.setattr(weight_files, "_download_from_hub", refused)
    monkeypatch.setattr(weight_files, "_download", refused)
    words = ["train", str(store), "--config", f"synapse-{model}{preset}", "--out", str(tmp_path / "run")]
    words += ["--epochs", "1", "--set", "data.image_size=[32, 32]", "--set", "hardware.accelerator=cpu"]
    assert run(words) == 2
    [told] = capsys.readouterr().err.splitlines()
    assert told.startswith("adawac: Expected to download https://")
    assert "--set model.pretrained=null trains from scratch" in told
    small = {"unet": "smp:Unet/resnet18", "transunet": "transunet-small"}[model]
    assert run([*words, "--set", "model.pretrained=null", "--model", small]) == 0
    assert Run(tmp_path / "run").status == "finished"
