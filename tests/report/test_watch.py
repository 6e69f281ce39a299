import json
from pathlib import Path

import numpy as np
import pytest
from rich.console import Console

from adawac.cli import run as run_cli
from adawac.config import TrainConfig
from adawac.errors import MissingFileError, RunError
from adawac.report import follow, watch_page
from adawac.report.terminal import draw_run, list_epochs
from adawac.runs import Run, RunWriter, example_run


class Trainer:
    """A run that goes on by one epoch whenever somebody sleeps."""

    def __init__(self, folder: Path, epochs: int, starts_after: int = 0, dies: bool = False):
        self.folder, self.epochs, self.dies = folder, epochs, dies
        self.starts_after, self.epoch = starts_after, 0
        self.table = example_run(folder.parent / "other", slices=4, epochs=1).samples
        self.writer: RunWriter | None = None
        if not starts_after:
            self.start()

    def start(self) -> None:
        self.writer = RunWriter(self.folder, TrainConfig(epochs=self.epochs), epochs=self.epochs)
        self.rows = self.writer.write_samples(self.table)

    def sleep(self, seconds: float) -> None:
        if self.starts_after:
            self.starts_after -= 1
            if not self.starts_after:
                self.start()
            return
        assert self.writer is not None
        self.epoch += 1
        beta = np.where(self.table.label_sparse, 0.4, 0.6)
        self.writer.log_history(self.epoch, self.rows, ell_ce=beta, beta=beta)
        self.writer.log_metrics(self.epoch, {"loss": 1 / self.epoch, "beta_sparse": 0.4, "val_dice": None})
        if self.epoch == self.epochs:
            self.writer.close("finished")
        elif self.dies and self.epoch == 2:
            with (self.folder / "metrics.jsonl").open("ab") as file:
                file.write(b'{"epoch": 3, "lo')
            for held in (self.writer._metrics, self.writer._history):  # what a kill does: no word, no lock
                held.close()
            self.writer._lock.release()


def test_following_ends_with_the_run(tmp_path: Path):
    trainer = Trainer(tmp_path / "run", 3)
    seen = [(run.status, run.epoch) for run in follow(tmp_path / "run", sleep=trainer.sleep)]
    assert seen == [("running", 0), ("running", 1), ("running", 2), ("finished", 3)]


def test_follow_yields_a_finished_run_once(tmp_path: Path):
    example_run(tmp_path / "run", slices=4, epochs=2)
    assert [run.status for run in follow(tmp_path / "run")] == ["finished"]


def test_a_run_that_begins_later(tmp_path: Path):
    trainer = Trainer(tmp_path / "run", 2, starts_after=3)
    with pytest.raises(MissingFileError):
        next(follow(tmp_path / "run", sleep=trainer.sleep))
    seen = [run.epoch for run in follow(tmp_path / "run", wait=True, sleep=trainer.sleep)]
    assert seen == [0, 1, 2]
    with pytest.raises(RunError, match="positive number of seconds"):
        next(follow(tmp_path / "run", every=0))


def test_a_writer_that_dies_is_an_interrupted_run(tmp_path: Path):
    trainer = Trainer(tmp_path / "run", 5, dies=True)
    seen = [(run.status, run.epoch) for run in follow(tmp_path / "run", sleep=trainer.sleep)]
    assert seen[-1] == ("interrupted", 2)
    assert [line.split("  ")[0] for line in list_epochs(Run(tmp_path / "run"), 0)] == ["epoch 1/5", "epoch 2/5"]


def test_the_page_follows_and_then_stands_still(tmp_path: Path):
    trainer, out = Trainer(tmp_path / "run", 2), tmp_path / "page.html"
    refreshing = []
    for run in follow(tmp_path / "run", sleep=trainer.sleep):
        watch_page(run, out, every=7)
        refreshing.append('http-equiv="refresh" content="7"' in out.read_text(encoding="utf-8"))
    assert refreshing == [True, True, False]


def test_a_moment_that_cannot_be_read_keeps_the_last_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    trainer, out = Trainer(tmp_path / "run", 2), tmp_path / "page.html"
    run = Run(tmp_path / "run")

    def fail(*_: object, **__: object) -> None:
        raise ValueError("half an array")

    with monkeypatch.context() as patch:
        patch.setattr("adawac.report.page.write_report", fail)
        with pytest.raises(ValueError, match="half an array"):
            watch_page(run, out, every=5)
    watch_page(run, out, every=5)
    last = out.read_bytes()
    monkeypatch.setattr("adawac.report.page.write_report", fail)
    watch_page(run, out, every=5)
    assert out.read_bytes() == last
    assert trainer.writer is not None
    trainer.writer.close("interrupted")


def shown(folder: Path, **options: object) -> str:
    console = Console(width=70, height=34, record=True, file=open("/dev/null", "w"), **options)  # noqa: SIM115, PTH123
    with console.file:
        console.print(draw_run(Run(folder), console, "a run"))
        return console.export_text(styles=bool(options.get("force_terminal")))


def test_the_picture_in_a_terminal(tmp_path: Path):
    example_run(tmp_path / "run", slices=20)
    text = shown(tmp_path / "run", force_terminal=True, color_system="truecolor")
    assert "epoch 20/20" in text
    rows = [line for line in text.splitlines() if "▀" in line]
    assert len(rows) == 18
    assert "label-sparse" in rows[0]
    assert "label-dense" in rows[-1]
    red, blue = (
        np.array([int(channel) for channel in rows[index].split("38;2;")[-1].split(";48")[0].split(";")])
        for index in (-1, 0)
    )
    assert red[0] > red[2]  # the last epoch of the densest: kept under cross-entropy
    assert blue[2] > blue[0]  # of an empty one: sent to consistency


def test_the_picture_without_colour_and_of_less(tmp_path: Path):
    example_run(tmp_path / "run", slices=20)
    text = shown(tmp_path / "run", color_system=None)
    assert "▀" not in text
    assert "dark: sent to consistency" in text
    rows = [line for line in text.splitlines() if line.startswith("label-")]
    assert rows[0].rstrip()[-1] in "█▓"  # an empty sample, last epoch: sent to consistency
    assert len(rows[-1].rstrip()) < len(rows[0].rstrip())  # the densest one ends in blanks: under cross-entropy
    example_run(tmp_path / "baseline", method="baseline", slices=4)
    assert "does not move β" in shown(tmp_path / "baseline")
    with RunWriter(tmp_path / "new", TrainConfig()):
        assert "No epoch is complete yet" in shown(tmp_path / "new")


def test_watch_without_a_terminal(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    run = example_run(tmp_path / "run", slices=4, epochs=2)
    assert run_cli(["watch", str(run.folder), "--page", str(tmp_path / "page.html")]) == 0
    first, second, last = capsys.readouterr().out.splitlines()
    assert first.startswith("epoch 1/2  CE ")
    assert second.startswith("epoch 2/2  ")
    assert last.endswith("run: finished, epoch 2")
    assert (tmp_path / "page.html").is_file()


def test_watch_in_a_terminal(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("FORCE_COLOR", "1")  # rich then takes the stream for a terminal
    run = example_run(tmp_path / "run", slices=4, epochs=3)
    assert run_cli(["watch", str(run.folder)]) == 0
    out = capsys.readouterr().out
    assert "▀" in out
    assert "epoch 3/3" in out
    assert out.splitlines()[-1].endswith("run: finished, epoch 3")


def test_a_folder_that_is_taken_away_ends_the_watching(tmp_path: Path):
    writer, info = RunWriter(tmp_path / "run", TrainConfig()), tmp_path / "run" / "run.json"
    looks = follow(tmp_path / "run", wait=True, sleep=lambda _: info.unlink(missing_ok=True))
    assert next(looks).status == "running"
    with pytest.raises(MissingFileError):
        next(looks)
    with pytest.raises(RunError, match="moved or removed"):
        writer.close("finished")
    assert not info.exists()


def test_exit_code_of_watch(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    run = example_run(tmp_path / "run", slices=4, epochs=4, status="interrupted")
    assert run_cli(["watch", str(run.folder)]) == 3
    assert "interrupted, epoch 2" in capsys.readouterr().out
    assert run_cli(["watch", str(tmp_path / "absent")]) == 2
    assert "has no run.json" in capsys.readouterr().err


def test_watch_json_is_the_last_state(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    run = example_run(tmp_path / "run", slices=4, epochs=4, status="interrupted")
    for words in ([], ["--once"]):
        assert run_cli(["watch", str(run.folder), "--json", *words]) == 3
        printed = json.loads(capsys.readouterr().out)
        assert (printed["status"], printed["epoch"], printed["epochs"]) == ("interrupted", 2, 4)
        assert [row["epoch"] for row in printed["metrics"]] == [1, 2]


def test_watch_once_does_not_wait_for_the_end(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    with RunWriter(tmp_path / "run", TrainConfig(), epochs=9) as writer:
        writer.log_metrics(1, {"loss": 0.5})
        assert run_cli(["watch", str(tmp_path / "run"), "--once"]) == 0
    assert capsys.readouterr().out.splitlines()[0] == "epoch 1/9  loss 0.5"
    info = json.loads((tmp_path / "run" / "run.json").read_text())
    assert info["status"] == "finished"
