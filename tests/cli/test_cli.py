import json
import os
import platform
import signal
import subprocess
import sys
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest
from cyclopts.completion import detect

import adawac
from adawac.__main__ import main as start
from adawac.cli import app, run
from adawac.cli import shell as command_shell
from adawac.config import TrainConfig, from_dict
from adawac.config.yaml_text import parse
from adawac.reproduction import demo
from tests.data.scans import make_nnunet
from tests.places import REPOSITORY

# Every command of the design, with words that it accepts.
COMMANDS = {
    "demo": ["--epochs", "2"],
    "phantom": ["scans", "--number", "4"],
    "version": ["--json"],
    "diagnose": ["store", "--json"],
    "prepare": ["nifti", "scans", "store"],
    "train": ["store", "--method", "adawac", "--epochs", "3", "--out", "run", "--resume"],
    "crossval": ["store", "--folds", "5", "--test", "keep", "--out", "cv"],
    "evaluate": ["run1", "run2", "--convention", "adawac", "--json"],
    "score": ["labels", "predictions1", "predictions2", "--convention", "nnunet"],
    "calibrate": ["run", "--split-part", "test"],
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


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["trian"], 'Unknown command "trian". Did you mean "train"?'),
        (["demo", "--epochs", "many"], 'unable to convert "many" into int. See `adawac demo --help`.'),
        (["demo", "--epoch", "3"], "Unknown option: --epoch. Did you mean --epochs?"),
        (["demo", "--epochs", "0"], "Expected at least 1 epoch, but got 0"),
        (["evaluate"], "Expected adawac evaluate RUNS, but got too few arguments."),
        (["prepare", "scans", "store"], "Expected adawac prepare SOURCE SCANS STORE, but got too few arguments."),
        (["export", "run"], "Expected --out, with or without a --format, or else --hub with a folder, but got both or"),
        (["theory"], "Expected --out with a value, but got none. See `adawac theory --help`."),
        (["train", "store", "run"], "Expected no further argument, but got 'run'. An option may lack its name"),
        (["evaluate", "run", "--convention", "lax"], 'Choose from: "strict", "adawac", "transunet", "nnunet", "nan"'),
        (["train", "store", "--set", "optim.lr"], "Expected path=value, but got 'optim.lr'"),
        (["train", "store", "--set", "optim.lrr=1"], "optim.lrr: unknown key. Near names: 'lr'"),
        (["train", "store", "--subset", "half"], "TrainConfig in STORE, --subset, but got"),
        (["train", "store", "--subset", "half"], "data.subset: expected one of full, half-slice"),
        (["train", "--config", "absent.yaml"], "absent.yaml does not exist"),
        (["crossval", "store"], "Expected --out with a value, but got none. See `adawac crossval --help`."),
        (["crossval", "absent", "--out", "cv"], "absent"),
        (["crossval", "store", "--out", "cv", "--test", "some"], 'Choose from: "keep", "fold"'),
        (["crossval", "store", "--out", "cv", "--set", "data.split=fold:0/5"], "the folds are the split"),
        (["crossval", "store", "--out", "cv", "--method", "adawak"], "Near names: 'adawac'"),
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


def test_what_a_bug_report_needs_names_no_path_and_nobody(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(platform, "node", lambda: "hostess")
    assert run(["version", "--json"]) == 0
    text = capsys.readouterr().out
    installation = json.loads(text)
    assert installation["adawac"] == adawac.__version__
    assert installation["python"] == platform.python_version()
    assert installation["packages"]["torch"] == metadata.version("torch")
    assert {"cuda", "gpus", "mps", "platform", "cpu", "memory_gib", "commit"} < installation.keys()
    assert "command" not in installation
    private = {str(Path.home()), str(tmp_path), sys.prefix, str(Path(adawac.__file__).parent), "hostess"}
    assert not [name for name in private if name in text]
    assert run(["version"]) == 0
    lines = dict(line.split(maxsplit=1) for line in capsys.readouterr().out.splitlines())
    assert lines["adawac"] == adawac.__version__
    assert lines["numpy"] == metadata.version("numpy")


def test_a_bug_report_says_that_torch_cannot_be_imported(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)
    assert run(["version", "--json"]) == 0
    installation = json.loads(capsys.readouterr().out)
    assert installation["problem"] == "torch cannot be imported (ModuleNotFoundError)"
    assert installation["gpus"] == []


COMPLETIONS = {
    "adawac cross": "crossval",
    "adawac train --pretr": "--pretrained",
    "adawac train store --preset rob": "robust",
}


@pytest.mark.parametrize("words", COMPLETIONS)
def test_bash_completes_commands_options_and_choices(tmp_path: Path, words: str) -> None:
    shell("$adawac --install-completion --shell bash", tmp_path, HOME=str(tmp_path)).check_returncode()
    press_tab = "COMP_WORDS=($words) COMP_CWORD=$((${#COMP_WORDS[@]} - 1)); "
    press_tab += "$(complete -p adawac | sed 's/.*-F \\([^ ]*\\).*/\\1/'); echo ${COMPREPLY[*]}"
    done = shell(f"source .bashrc; {press_tab}", tmp_path, HOME=str(tmp_path), words=words)
    assert (done.stdout, done.stderr) == (f"{COMPLETIONS[words]}\n", "")


@pytest.mark.parametrize("name", ["zsh", "fish"])
def test_other_shells_find_their_completion_in_the_home(tmp_path: Path, name: str) -> None:
    done = shell(f"$adawac --install-completion --shell {name}", tmp_path, HOME=str(tmp_path), ZSH="", ZSH_CUSTOM="")
    script = Path(done.stdout.removeprefix("Completion is in ").partition(". It")[0])
    assert script.is_relative_to(tmp_path)
    assert "crossval" in script.read_text(encoding="utf-8")


def test_an_unknown_shell_is_asked_for(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("SHELL", "/bin/tcsh")
    for name in ("BASH_VERSION", "ZSH_VERSION", "FISH_VERSION"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(detect.subprocess, "run", lambda *_, **__: subprocess.CompletedProcess([], 0, "python\n"))
    assert run(["--install-completion"]) == 2
    assert "cannot tell which it is. Give --shell." in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


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
        (BrokenPipeError(), 141, ""),
        (OSError(28, "No space left on device"), 2, "Expected to write files and standard output, but got: No space"),
        (OSError(13, "Permission denied", "demo"), 2, "Expected to use demo, but got: Permission denied. Make room"),
    ],
)
def test_other_ends_have_their_own_exit_codes(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, error: BaseException, code: int, message: str
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise error

    monkeypatch.setattr(demo, "demonstrate", fail)
    assert run(["demo"]) == code
    err = capsys.readouterr().err
    assert message in err
    assert (err == "") == (message == "")
    assert "Traceback" not in err


def test_ctrl_c_while_the_command_is_loaded_has_no_traceback(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    class Interrupted:
        def __getattr__(self, name: str) -> None:
            raise KeyboardInterrupt

    monkeypatch.setitem(sys.modules, "adawac.cli", Interrupted())
    assert start() == 130
    assert capsys.readouterr().err == "adawac: Interrupted.\n"


def test_an_interrupt_after_the_command_is_done_shows_no_traceback() -> None:
    code = "import atexit, os, signal, sys; atexit.register(os.kill, os.getpid(), signal.SIGINT); "
    code += "sys.argv[1:] = ['--version']; from adawac.__main__ import main; sys.exit(main())"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert (done.returncode, done.stdout, done.stderr) == (-signal.SIGINT, f"{adawac.__version__}\n", "")


def test_what_exits_by_itself_keeps_its_exit_code(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(command_shell, "app", lambda *_, **__: sys.exit(3))
    with pytest.raises(SystemExit) as left:
        run(["models"])
    assert left.value.code == 3


def test_a_command_may_return_its_exit_code(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(command_shell, "app", lambda *_, **__: 3)
    assert run(["predict"]) == 3


def test_a_message_cannot_steer_the_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["train", "x", "--set", "\x1b[31mred\x07β=1"]) == 2
    err = capsys.readouterr().err
    assert "\x1b" not in err
    assert "\x07" not in err
    assert r"\x1b[31mred\x07β" in err


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
    assert from_dict(TrainConfig, parse(text)) == from_dict(TrainConfig, expected)
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


MISTAKES = {
    "train --metod adawac --out run": "Unknown option: --metod",
    "train store": "Give --out.",
    "train absent --out run": "Expected a prepared store, but",
    "train undivided --out run": "Give another split: stratified, or a folder",
    "bench undivided --split fold:0/9": "Expected",
    "train --method adawak --out run": "Near names: 'adawac'",
    "train --model unnet --out run": "Near names: 'unet'",
    "train --split papers --out run": "but got 'papers'",
    "train --out full": "holds a run",
    "train --devices 9999 --set data.batch_size=9999 --out run": "but got 9999. Lower --devices",
    "bench absent": "Expected a prepared store, but",
    "bench --method adawak": "Near names: 'adawac'",
    "demo --epochs 0": "Expected at least 1 epoch",
    "predict absent scan.nii.gz --out labels": "absent is not there",
    "export absent --out model": "absent is not there",
}


def test_a_mistake_in_the_command_is_found_before_torch_is_imported(tmp_path: Path) -> None:
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "run.json").write_text("{}")
    scans = make_nnunet(tmp_path / "scans", cases=4)
    adawac.prepare("nifti", scans, tmp_path / "undivided", images="imagesTr/*_0000.nii.gz", labels="labelsTr/*.nii.gz")
    code = f"""
import json, sys
from adawac.cli import run
loaded = []
for words in {list(MISTAKES)}:
    loaded.append((run(words.split()), "torch" in sys.modules))
print(json.dumps(loaded))
"""
    done = python("-c", code, cwd=tmp_path)
    messages = done.stderr.removeprefix("adawac: ").split("\nadawac: ")
    for words, message, part, (code, heavy) in zip(
        MISTAKES, messages, MISTAKES.values(), json.loads(done.stdout), strict=True
    ):
        assert part in message, words
        assert (code, heavy) == (2, False), words
    assert sorted(path.name for path in tmp_path.iterdir()) == ["full", "scans", "undivided"]


def test_python_m_adawac_works_with_any_terminal(tmp_path: Path) -> None:
    code = "import runpy, sys; sys.stdout.reconfigure(encoding='ascii'); sys.argv = ['adawac', 'demo', '--help']; "
    done = python("-c", code + "runpy.run_module('adawac', run_name='__main__')", cwd=tmp_path)
    assert done.returncode == 0
    assert "See the whole tool work" in done.stdout


PRINTING = {"plain": "train --print-config", "rich": "--help"}
FULL = "Expected to write files and standard output, but got: No space left on device."


def shell(command: str, cwd: Path, **env: str) -> "subprocess.CompletedProcess[str]":
    """Run a line of the shell, in which $adawac is the command."""
    given = {"adawac": f"{sys.executable} -m adawac", "PYTHONPATH": str(Path(adawac.__file__).parents[1]), **env}
    return subprocess.run(
        ["bash", "-c", command], cwd=cwd, env=os.environ | given, capture_output=True, text=True, check=False
    )


@pytest.mark.parametrize("unbuffered", ["", "1"])
@pytest.mark.parametrize("words", PRINTING.values(), ids=PRINTING)
@pytest.mark.parametrize("streams", ["", "2>&1"])
def test_a_closed_pipe_is_no_error(tmp_path: Path, words: str, streams: str, unbuffered: str) -> None:
    done = shell(f"$adawac {words} {streams} | true; exit $PIPESTATUS", tmp_path, PYTHONUNBUFFERED=unbuffered)
    assert (done.returncode, done.stderr) == (141, "")


@pytest.mark.parametrize("unbuffered", ["", "1"])
@pytest.mark.parametrize("words", PRINTING.values(), ids=PRINTING)
@pytest.mark.parametrize(
    ("streams", "code", "message"),
    [(">&-", 0, ""), (">&- 2>&- <&-", 0, ""), (">/dev/full", 2, FULL), (">/dev/full 2>&1", 2, "")],
)
def test_streams_that_are_closed_or_full(
    tmp_path: Path, words: str, streams: str, unbuffered: str, code: int, message: str
) -> None:
    done = shell(f"$adawac {words} {streams}", tmp_path, PYTHONUNBUFFERED=unbuffered)
    assert (done.returncode, done.stdout) == (code, "")
    assert done.stderr.startswith(f"adawac: {message}" if message else "")
    assert done.stderr.count("\n") == bool(message)


def test_a_working_folder_that_was_removed_is_named(tmp_path: Path) -> None:
    done = shell("mkdir gone; cd gone; rmdir ../gone; $adawac models", tmp_path)
    assert done.returncode == 2
    assert "adawac: Expected a working folder, but the one that you are in was removed. Change to" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_width_of_zero_is_none(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "0")
    assert run(["--help"]) == 0
    assert "Usage: adawac COMMAND" in capsys.readouterr().out


def test_bad_input_has_its_exit_code_though_nobody_can_read_why(tmp_path: Path) -> None:
    for streams in ("2>&-", "2>/dev/full", ">&- 2>&-"):
        assert shell(f"$adawac watch absent {streams}", tmp_path).returncode == 2


def test_a_file_does_not_take_the_place_of_a_closed_stream(tmp_path: Path) -> None:
    code = "from adawac.cli.shell import open_streams; open_streams(); import os; file = open('file', 'w'); "
    code += "file.write(str(file.fileno())); file.flush(); os.system('echo from a child; echo from a child >&2')"
    done = shell(f'${{adawac% -m adawac}} -c "{code}" >&- 2>&- <&-', tmp_path)
    assert done.returncode == 0
    assert int((tmp_path / "file").read_text()) > 2


def test_the_reference_lists_every_command() -> None:
    reference = (REPOSITORY / "docs" / "reference" / "cli.md").read_text(encoding="utf-8")
    for name in COMMANDS:
        assert f"| `adawac {name}" in reference
