"""What somebody gets who installs the wheel: all files that the code reads, and names that a type checker knows.

`make package` installs it into an empty environment and runs it there.
"""

import ast
import os
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

import adawac
from tests.places import REPOSITORY

# A training of one's own, as somebody writes it who checks types strictly.
PROGRAM = """
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

import adawac
from adawac import AdaWAC, EncoderTap, PairDataset, Run, Store, build_method, metrics
from adawac.config import DataConfig, TrainConfig


class Mine(adawac.Criterion):
    def weigh(self, batch: adawac.objective.SampleTerms) -> adawac.Weighting:
        ones = torch.ones_like(batch.ell_ce)
        return adawac.Weighting(ones, ones, len(ones))


def train(model: nn.Module, pairs: PairDataset) -> Tensor:
    criterion: adawac.Criterion = AdaWAC(num_samples=len(pairs), eta_beta=1.0, lambda_ac=1.0)
    tap = EncoderTap(model, "encoder")
    loader: torch.utils.data.DataLoader[dict[str, Tensor]] = torch.utils.data.DataLoader(pairs)
    for batch in loader:
        logits = model(torch.cat(list(batch["images"])))
        step: adawac.Step = criterion(logits, torch.cat(list(batch["labels"])), tap.pop(), batch["index"])
        shown: list[Tensor] = [step.loss, step.ell_ce, step.ell_dice, step.reg_ac, step.beta]
        assert all(term.isfinite().all() for term in shown)
    return criterion.weights.beta


def methods() -> list[adawac.Criterion]:
    return [build_method(name, 8, preset="official", trim_ratio=0.5) for name in adawac.METHODS]


def tool(store: Path, out: Path) -> float:
    config = TrainConfig(data=DataConfig(store=store), epochs=1)
    run: Run = adawac.fit(config, out)
    made: Store = adawac.prepare("nifti", store, out)
    share = adawac.diagnose(made.path).summary["xi"]
    page: Path = adawac.write_report([run], out / "report.html")
    scored: list[adawac.evaluation.Evaluation] = adawac.evaluate([run], convention="strict")
    written = [prediction.labels for prediction in adawac.predict(out, [store / "scan.nii.gz"], out / "labels")]
    exported = adawac.export_model(out, out / "model.onnx")
    network, tap_name = adawac.models.build("unet", num_classes=len(Store(store).class_names))
    tap = EncoderTap(network, tap_name)
    trained: nn.Module = adawac.inference.load_trained(out).network
    rows: list[metrics.ClassScore] = metrics.score_volume(np.ones((2, 2, 2)), np.ones((2, 2, 2)), 2)
    try:
        adawac.fit(None, out, resume=True)
    except adawac.errors.AdawacError as error:
        print(error, scored, written, exported, tap, trained, share, page)
    return metrics.dice(np.ones(3, bool), np.ones(3, bool)) + rows[0].dice
"""


def tree(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


def test_type_checkers_can_read_the_public_names():
    """They read `__all__` as it is written, and the imports below TYPE_CHECKING: each must have every name."""
    module = tree(Path(adawac.__file__))
    written = [
        node.value for node in module.body if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__"
    ]
    assert ast.literal_eval(written[0]) == adawac.__all__
    block = next(node for node in module.body if isinstance(node, ast.If))
    typed = {
        alias.asname or alias.name for node in block.body if isinstance(node, ast.ImportFrom) for alias in node.names
    }
    assert typed == set(adawac.__all__) - {"__version__"}


def build(kind: str, folder: Path) -> Path:
    pytest.importorskip("hatchling")
    words = [sys.executable, "-m", "hatchling", "build", "-t", kind, "-d", str(folder)]
    subprocess.run(words, cwd=REPOSITORY, check=True, capture_output=True)
    return next(folder.iterdir())


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The contents of the wheel, as pip lays them out."""
    folder = tmp_path_factory.mktemp("wheel")
    with zipfile.ZipFile(build("wheel", folder)) as wheel:
        wheel.extractall(folder / "site")
    return folder / "site"


def in_wheel(site: Path, *words: str, cwd: Path) -> "subprocess.CompletedProcess[str]":
    env = os.environ | {"PYTHONPATH": str(site), "MYPYPATH": str(site)}
    return subprocess.run([sys.executable, *words], cwd=cwd, env=env, capture_output=True, text=True)


def test_the_wheel_has_every_file_of_the_package_and_no_other(site: Path):
    def files(folder: Path) -> set[str]:
        return {str(file.relative_to(folder)) for file in folder.rglob("*") if file.is_file() and file.suffix != ".pyc"}

    assert files(site / "adawac") == files(REPOSITORY / "src" / "adawac")
    assert {entry.name.split("-")[0] for entry in site.iterdir()} == {"adawac"}
    licences = {file.split("/")[-1] for file in files(next(site.glob("*.dist-info"))) if file.startswith("licenses/")}
    assert licences == {"LICENSE", "THIRD-PARTY.txt"}


@pytest.mark.slow
def test_the_source_archive_has_every_file_of_the_repository(tmp_path: Path):
    if not (REPOSITORY / ".git").exists():
        pytest.skip("this is no checkout")
    words = ["git", "ls-files", "--cached", "--others", "--exclude-standard"]
    listed = subprocess.run(words, cwd=REPOSITORY, capture_output=True, text=True, check=True).stdout.splitlines()
    known = {name for name in listed if (REPOSITORY / name).exists() and not name.startswith(".")}
    with tarfile.open(build("sdist", tmp_path)) as archive:
        files = {name.partition("/")[2] for name in archive.getnames()}
    assert files - {"PKG-INFO", ".gitignore"} == known  # the build reads .gitignore


@pytest.mark.slow
def test_the_wheel_reads_its_own_files(site: Path, tmp_path: Path):
    code = (
        "import adawac, sys; assert adawac.__file__.startswith(sys.argv[1])\n"
        "from adawac.cli import run; from adawac.runs import example_run\n"
        "example_run('run')\n"
        "for words in ('report run', 'train --config acdc-unet --print-config', 'reproduce --list', 'nnunet-path'):\n"
        "    assert run(words.split()) == 0, words\n"
    )
    done = in_wheel(site, "-W", "error", "-c", code, str(site), cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "report.html").stat().st_size > 50_000


@pytest.mark.slow
def test_a_strictly_typed_program_finds_nothing_wrong_with_the_wheel(site: Path, tmp_path: Path):
    pytest.importorskip("mypy")
    (tmp_path / "program.py").write_text(PROGRAM, encoding="utf-8")
    done = in_wheel(site, "-m", "mypy", "--strict", "--cache-dir", str(tmp_path / "cache"), "program.py", cwd=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
