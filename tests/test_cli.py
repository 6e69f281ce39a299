import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import adawac
from adawac import algorithm
from adawac.cli import app, main, run, synthetic
from adawac.cli import demo as demo_module
from adawac.config import TrainConfig, from_dict, yamlfile

# Every command of the design, with words that it accepts.
COMMANDS = {
    "demo": ["--epochs", "2"],
    "diagnose": ["store", "--json"],
    "prepare": ["nifti", "scans", "store"],
    "train": ["store", "--method", "adawac", "--epochs", "3", "--out", "run", "--resume"],
    "evaluate": ["run1", "run2", "--convention", "adawac", "--json"],
    "predict": ["run", "scan1.nii.gz", "scan2.nii.gz", "--out", "labels"],
    "export": ["run", "--out", "model.onnx"],
    "figure": ["run", "weights", "--out", "weights.svg"],
    "report": ["run1", "run2", "--out", "report.html"],
    "view": ["scan.nii.gz", "--labels", "truth.nii.gz", "prediction.nii.gz"],
    "watch": ["run"],
    "reproduce": ["table-1", "--data", "store", "--out", "tables", "--engine", "ray"],
    "theory": ["--out", "figures"],
    "models": ["--json"],
    "bench": [],
    "nnunet-path": [],
}
BUILT = ["demo", "diagnose", "prepare", "theory", "train", "models"]


def python(*words: str, **options: Any) -> "subprocess.CompletedProcess[str]":
    env = os.environ | {"PYTHONPATH": str(Path(adawac.__file__).parents[1])}
    return subprocess.run([sys.executable, *words], capture_output=True, text=True, env=env, **options)


def test_every_command_of_the_design_is_listed(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["--help"]) == 0
    out = capsys.readouterr().out
    assert {name for name in app if not name.startswith("-")} == COMMANDS.keys()
    for name in COMMANDS:
        assert f"│ {name} " in out
    assert "--version" in out
    assert "--debug" in out


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_has_help_with_an_example(capsys: pytest.CaptureFixture[str], command: str) -> None:
    assert run([command, "--help"]) == 0
    out = capsys.readouterr().out
    assert f"Usage: adawac {command}" in out
    assert f"Example: adawac {command}" in out
    assert ("(not built yet" in " ".join(out.split())) == (command not in BUILT)


@pytest.mark.parametrize("command", [name for name in COMMANDS if name not in BUILT])
def test_a_command_that_is_not_built_says_what_works(capsys: pytest.CaptureFixture[str], command: str) -> None:
    assert run([command, *COMMANDS[command]]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert f"`adawac {command}` is not built yet" in err
    works = ", ".join(f"`adawac {name}`" for name in ("diagnose", "prepare", "demo", "theory", "train", "models"))
    assert f"What works today: {works}, and the library" in err
    assert "Traceback" not in err
    assert err.count("\n") == 1


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["trian"], 'Unknown command "trian". Did you mean "train"?'),
        (["demo", "--epochs", "many"], 'unable to convert "many" into int. See `adawac demo --help`.'),
        (["demo", "--epoch", "3"], "Unknown option: --epoch. Did you mean --epochs?"),
        (["demo", "--epochs", "0"], "Expected at least 1 epoch, but got 0"),
        (["evaluate"], "requires an argument. See `adawac evaluate --help`."),
        (["evaluate", "run", "--convention", "lax"], 'Choose from: "strict", "adawac", "transunet", "nan"'),
        (["train", "store", "--set", "optim.lr"], "Expected path=value, but got 'optim.lr'"),
        (["train", "store", "--set", "optim.lrr=1"], "optim.lrr: unknown key. Near names: 'lr'"),
        (["train", "store", "--subset", "half"], "data.subset: expected one of full, half-slice"),
        (["train", "--config", "absent.yaml"], "absent.yaml does not exist"),
    ],
)
def test_bad_input_is_one_message_and_exit_code_2(
    capsys: pytest.CaptureFixture[str], words: list[str], message: str
) -> None:
    assert run(words) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("adawac: ")
    assert message in err
    assert "Traceback" not in err


def test_the_version_is_the_packages(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["--version"]) == 0
    assert capsys.readouterr().out == f"{adawac.__version__}\n"


def test_no_words_are_a_question_for_help(capsys: pytest.CaptureFixture[str]) -> None:
    assert run([]) == 0
    assert "Usage: adawac COMMAND" in capsys.readouterr().out


@pytest.mark.parametrize("words", [["--debug", "train", "x"], ["train", "x", "--debug"], ["train", "--debug", "x"]])
def test_debug_shows_the_traceback_of_an_error(capsys: pytest.CaptureFixture[str], words: list[str]) -> None:
    assert run(words) == 2
    err = capsys.readouterr().err
    assert "Traceback (most recent call last)" in err
    assert "ConfigError" in err


def test_debug_after_a_double_dash_is_a_word_like_others(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["watch", "--", "--debug"]) == 2
    assert "Traceback" not in capsys.readouterr().err


@pytest.mark.parametrize(
    ("error", "code", "message"),
    [
        (
            RuntimeError("out of luck"),
            1,
            "Unexpected RuntimeError: out of luck\nRun it again with --debug",
        ),
        (KeyboardInterrupt(), 130, "Interrupted."),
    ],
)
def test_other_ends_have_their_own_exit_codes(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, error: BaseException, code: int, message: str
) -> None:
    def fail(**_: object) -> None:
        raise error

    monkeypatch.setattr(synthetic, "separate", fail)
    assert run(["demo"]) == code
    err = capsys.readouterr().err
    assert message in err
    assert "Traceback" not in err


def test_a_command_may_return_its_exit_code(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(main, "app", lambda *_, **__: 3)
    assert run(["predict"]) == 3


def test_a_message_cannot_steer_the_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["train", "x", "--set", "\x1b[31mred\x07β=1"]) == 2
    err = capsys.readouterr().err
    assert "\x1b" not in err
    assert "\x07" not in err
    assert r"\x1b[31mred\x07β" in err


def test_the_demo_says_plainly_what_it_is(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["demo", "--epochs", "60"]) == 0
    out = " ".join(capsys.readouterr().out.split())
    assert "this is all the demo does: the losses were drawn, no network was trained" in out
    assert "mean over epochs 1 to 60" in out
    assert "On the right side of ½: 100%" in out


def test_the_demo_gives_its_numbers_as_json(capsys: pytest.CaptureFixture[str]) -> None:
    outputs = []
    for seed in ("3", "3", "4"):
        assert run(["demo", "--json", "--epochs", "40", "--seed", seed]) == 0
        outputs.append(capsys.readouterr().out)
    assert outputs[0] == outputs[1] != outputs[2]
    result = json.loads(outputs[0])
    sparse, dense = result["label_sparse"], result["label_dense"]
    assert len(sparse["beta"]) == len(dense["ell_ce"]) == 40
    assert sparse["beta"][-1] < 0.1 < 0.9 < dense["beta"][-1]
    assert sparse["ell_ce"][-1] < sparse["reg_ac"][-1] < dense["ell_ce"][-1]
    assert result["network_trained"] is False
    assert result["separated"] == 1.0


def test_the_demo_uses_the_librarys_own_weights(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(algorithm.SampleWeights, "ascend", lambda *_: None)
    result = synthetic.separate(epochs=3)
    assert result["label_sparse"]["beta"] == result["label_dense"]["beta"] == [0.5] * 3


@pytest.mark.parametrize(
    ("values", "top", "expected"),
    [([0.0, 0.5, 1.0], 1.0, "▁▅█"), ([0.0] * 90, 1.0, "▁" * 40), ([2.0], 2.0, "█")],
)
def test_sparklines(values: list[float], top: float, expected: str) -> None:
    assert demo_module._sparkline(values, top) == expected


def test_train_resolves_its_configuration_in_layers(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("recipe.yaml").write_text("epochs: 7\nseed: 7\noptim: {lr: 7e-1}\ndata: {batch_size: 7}\n")
    words = ["train", "store", "--config", "recipe.yaml", "--seed", "8", "--epochs", "8", "--method", "pair"]
    words += ["--set", "epochs=9", "--set", "method.options.eta_beta=8", "--devices", "2", "--print-config"]
    assert run(words) == 0
    text = capsys.readouterr().out
    expected = {
        "epochs": 9,
        "seed": 8,
        "optim": {"lr": 0.7},
        "data": {"batch_size": 7, "store": tmp_path / "store"},
        "method": {"name": "pair", "options": {"eta_beta": 8}},
        "hardware": {"devices": 2},
    }
    assert from_dict(TrainConfig, yamlfile.parse(text)) == from_dict(TrainConfig, expected)
    assert "# Learning rate, after the warm-up." in text


def test_help_loads_nothing_heavy() -> None:
    code = """
import sys
from adawac.cli import run
run(["--help"]), run(["train", "--help"])
heavy = ("torch", "numpy", "yaml", "scipy", "matplotlib", "markdown_it", "docutils", "pygments")
sys.stderr.write(str([name for name in heavy if name in sys.modules]))
"""
    done = python("-c", code)
    assert done.stderr == "[]"
    assert "adawac COMMAND" in done.stdout


def test_python_m_adawac_works_with_any_terminal(tmp_path: Path) -> None:
    code = "import runpy, sys; sys.stdout.reconfigure(encoding='ascii'); sys.argv = ['adawac', 'demo', '--help']; "
    done = python("-c", code + "runpy.run_module('adawac', run_name='__main__')", cwd=tmp_path)
    assert done.returncode == 0
    assert "Watch ? separate" in done.stdout


def test_a_closed_pipe_is_no_error() -> None:
    reader, writer = os.pipe()
    os.close(reader)
    env = os.environ | {"PYTHONPATH": str(Path(adawac.__file__).parents[1])}
    command = [sys.executable, "-m", "adawac", "train", "--print-config"]
    done = subprocess.run(command, stdout=writer, stderr=subprocess.PIPE, text=True, env=env)
    os.close(writer)
    assert (done.returncode, done.stderr) == (141, "")


def test_the_manual_shows_what_is_printed(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    docs = Path(__file__).parents[1] / "docs"
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "80")
    configure = (docs / "how-to" / "configure.md").read_text(encoding="utf-8")
    Path("broken.yaml").write_text(configure.split("$ cat broken.yaml\n")[1].split("$ adawac train")[0])
    assert run(["train", "store", "--config", "broken.yaml"]) == 2
    assert capsys.readouterr().err in configure
    reference = (docs / "reference" / "cli.md").read_text(encoding="utf-8")
    assert run(["evaluate", "runs/adawac"]) == 2
    assert capsys.readouterr().err in reference
    assert run(["demo"]) == 0
    *table, right, side, all_it_does = (line.rstrip() for line in capsys.readouterr().out.splitlines())
    assert "\n".join([right, side, all_it_does]) in reference
    for line in table:
        assert line[:24] in reference  # the numbers' last digits may be another machine's
    for name in COMMANDS:
        assert f"| `adawac {name}" in reference
