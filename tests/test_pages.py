"""Every command and every Python block of every page runs, in the order of its page, on the phantom."""

import importlib.util
import os
import re
import sys
import tomllib
from functools import wraps
from pathlib import Path

import numpy as np
import pytest
import yaml

from adawac.runs import Run
from tests.documented_blocks import Command, blocks_of, commands_of, pieces, run_command, run_python, words_of
from tests.page_folders import Folders, small
from tests.places import REPOSITORY

PAGES = [
    "README.md",
    *(path.relative_to(REPOSITORY).as_posix() for path in sorted((REPOSITORY / "docs").rglob("*.md"))),
]
BLOCKS = {page: blocks_of(page) for page in PAGES}
TESTED = [page for page, blocks in BLOCKS.items() if any(block.language for block in blocks)]

# What a page supposes that its reader has: `name=thing` is a thing of tests/page_folders.py under another name.
RUNS = "store runs/baseline runs/adawac"
SCAN = "scan.nii.gz truth.nii.gz predictions/scan.nii.gz=truth.nii.gz"
HOW_TO = "docs/how-to"
FILES = {
    "README.md": "scans scan.nii.gz",
    f"{HOW_TO}/augmentation.md": "store=picture-store",
    f"{HOW_TO}/choose-a-network.md": "store",
    f"{HOW_TO}/configure.md": "store",
    f"{HOW_TO}/cross-validation.md": "store=unsplit",
    f"{HOW_TO}/demo.md": "scans",
    f"{HOW_TO}/diagnose.md": "store Dataset007_Pancreas=nnunet scans=labelled-by-patient",
    f"{HOW_TO}/evaluate.md": f"{RUNS} runs/baseline-1=runs/baseline runs/adawac-1=runs/adawac runs/adawac-2",
    f"{HOW_TO}/export.md": f"{RUNS} scan.nii.gz their-model=foreign-model",
    f"{HOW_TO}/figures.md": f"{RUNS} runs/adawac-1=runs/adawac runs/adawac-2",
    f"{HOW_TO}/label-errors.md": "store=unsplit wrong.txt",
    f"{HOW_TO}/nnunet.md": "results/Dataset501_Heart/nnUNetTrainerAdaWAC_20epochs__nnUNetPlans__2d/fold_0/adawac="
    "runs/adawac",
    f"{HOW_TO}/partly-annotated.md": "scans=partly",
    f"{HOW_TO}/pictures.md": "surfaces rolls slides new-photos=photos runs/baseline=runs/pictures-baseline",
    f"{HOW_TO}/predict.md": f"{RUNS} scan.nii.gz scans=broken-scans new-scans=images runs/pictures photos",
    f"{HOW_TO}/prepare-your-scans.md": "Dataset007_Pancreas=nnunet ACDC=acdc Synapse=synapse Hospital=dicom "
    "Surfaces=surfaces scans=two-channels groups.csv clinic=by-patient",
    f"{HOW_TO}/pretrained-weights.md": "store",
    f"{HOW_TO}/report.md": RUNS,
    f"{HOW_TO}/reproduce.md": "Synapse=synapse my-lists/train.txt=train.txt copied-from-a copied-from-b",
    f"{HOW_TO}/scale-out.md": "store",
    f"{HOW_TO}/score.md": "labelsTs=truths predictions=predicted nnunet=predicted adawac=faulty",
    f"{HOW_TO}/speed.md": "store",
    f"{HOW_TO}/train.md": "store",
    f"{HOW_TO}/view.md": SCAN,
    "docs/get-started.md": "my-scans=labelled-by-patient",
    "docs/reference/run-folder.md": "runs/adawac",
}
# The Python that a page supposes.
LOOP = """
import torch, adawac
from collections import OrderedDict
from tests.integrations.small_training import network, optimizer_of, scans
train_set, (encoder, decoder) = scans(), network()
model = torch.nn.Sequential(OrderedDict(encoder=encoder, decoder=decoder))
optimizer = optimizer_of(model)
loader = torch.utils.data.DataLoader(adawac.PairDataset(train_set, seed=1), batch_size=8)
"""
CRITERION = (
    LOOP
    + """
criterion, tap = adawac.AdaWAC(num_samples=len(train_set)), adawac.EncoderTap(model, "encoder")
"""
)
NAMES = {
    "README.md": LOOP,
    "docs/concepts/metrics.md": """
import numpy
truth = numpy.random.default_rng(0).integers(0, 9, (4, 16, 16))
pred = numpy.where(truth == 3, 0, truth)
""",
    "docs/concepts/presets.md": LOOP
    + """
batch = next(iter(loader))
(x1, x2), (labels_1, _), index = batch["images"], batch["labels"], batch["index"]
teacher = torch.optim.swa_utils.AveragedModel(model)
""",
    f"{HOW_TO}/augmentation.md": CRITERION,
    f"{HOW_TO}/partly-annotated.md": LOOP,
    f"{HOW_TO}/pytorch.md": LOOP + "augment = lambda image, label: (image + 0.1 * torch.randn(image.shape), label)",
    "docs/reference/run-folder.md": """
import numpy
from adawac.config import TrainConfig
from adawac.runs import Run
config, table = TrainConfig(epochs=2), Run("runs/adawac").samples
tensors, train_one_epoch = {"weight": numpy.zeros(3)}, lambda epoch: numpy.full((4, len(table)), 0.5)
""",
    f"{HOW_TO}/pictures.md": "network = lambda image: image[:2]",
}


def check_loop(names) -> None:
    assert (names["criterion"].weights.beta != 0.5).all()


def check_lightning(names) -> None:
    run = Run("runs/lightning")
    assert (run.status, run.epoch, run.samples.label_sparse.sum()) == ("finished", 4, 16)
    assert "val_ce" in run.metrics[-1]
    assert run.settings["settings"] == {"num_samples": 24, "num_classes": 2}


def check_monai(names) -> None:
    for run in map(Run, ["runs/loop"] if missing("ignite.") else ["runs/loop", "runs/engine"]):
        assert (run.status, run.epoch, run.samples.label_sparse.sum()) == ("finished", 3, 16)
        assert np.isfinite(run.history["beta"]).all()


def check_networks(names) -> None:
    for encoder in ("mit_b0", "resnet18"):
        latents = Run(f"runs/{encoder}").history.read("reg_ac")
        assert latents.shape == (2, 15)
        assert (latents.mean(axis=1) > 0.01).all()  # they were compared


# What is looked at after a page.
CHECKS = {
    "README.md": check_loop,
    f"{HOW_TO}/pytorch.md": check_loop,
    f"{HOW_TO}/lightning.md": check_lightning,
    f"{HOW_TO}/monai.md": check_monai,
    f"{HOW_TO}/choose-a-network.md": check_networks,
}

SHELLS = ("sh", "console")
# More than some five seconds of a processor.
SLOW = {
    "docs/concepts/theory.md",
    f"{HOW_TO}/choose-a-network.md",
    f"{HOW_TO}/cross-validation.md",
    f"{HOW_TO}/demo.md",
    f"{HOW_TO}/export.md",
    f"{HOW_TO}/label-errors.md",
    f"{HOW_TO}/reproduce.md",
    f"{HOW_TO}/speed.md",
    f"{HOW_TO}/train.md",
}

# Commands of other programs, and why they are not run.
OTHER_PROGRAMS = {
    "docker": "a container engine",
    "hf": "the network",
    "make": "the targets are what checks a change",
    "npm": "the network",
    "pip": "the network; extras are compared with pyproject.toml",
    "nnUNetv2_": "nnU-Net itself; tests/integrations/test_nnunet_trainer.py runs the trainer in it",
    "ray": "a cluster; tests/reproduction/test_ray.py runs the engine",
    "torchrun": "several machines; tests/train/test_ranks.py runs it on one",
    "srun": "SLURM",
    "#SBATCH": "SLURM",
}
# Our own commands and blocks that are not run: page, beginning, why.
REAL_DATA = "hours, on the paper's data; tests/reproduction/test_quick_grids.py runs grids on phantom scans"
RANKS = "several GPUs; tests/train/test_ranks.py trains on two ranks"
WEIGHTS = "files of hundreds of MB; tests/models/test_weights.py loads small ones of the same formats"
CLUSTER = "a cluster; tests/inference/test_prediction_machines.py runs these on one"
_ON_A_CLUSTER = ("prepare nifti /shared", "predict runs/adawac /shared", "score /shared", "crossval /shared")
NOT_RUN = [
    (f"{HOW_TO}/reproduce.md", "adawac reproduce table-1", REAL_DATA),
    (f"{HOW_TO}/reproduce.md", "adawac reproduce table-2 --quick", REAL_DATA),
    (f"{HOW_TO}/export.md", "python -m monai.bundle", "tests/inference/test_monai_bundle.py runs it, without adawac"),
    (f"{HOW_TO}/export.md", "adawac predict hf://", "the network; tests/inference/test_hub.py has a hub of its own"),
    (f"{HOW_TO}/label-errors.md", "python -m studies", "needs cleanlab, and hours"),
    (f"{HOW_TO}/pretrained-weights.md", "import adawac", WEIGHTS),
    (f"{HOW_TO}/pretrained-weights.md", "net, tap_name", WEIGHTS),
    (f"{HOW_TO}/pretrained-weights.md", "mkdir -p ~/.cache", WEIGHTS),
    (f"{HOW_TO}/pretrained-weights.md", "adawac train store --model unet --pretrained /data", WEIGHTS),
    (f"{HOW_TO}/pretrained-weights.md", "adawac train store --model smp:Unet/resnet50", WEIGHTS),
    (f"{HOW_TO}/scale-out.md", "adawac train store --method adawac --devices 4", RANKS),
    (f"{HOW_TO}/scale-out.md", "adawac train --out runs/adawac --resume --devices 3", RANKS),
    *((f"{HOW_TO}/scale-out.md", f"adawac {name}", CLUSTER) for name in _ON_A_CLUSTER),
    ("docs/reliability.md", "python -m reliability", "a day; tests/reliability"),
]
# Commands whose output is another with every data set.
NOT_COMPARED = [(f"{HOW_TO}/evaluate.md", "adawac evaluate runs/adawac-1 --full")]
# What is made smaller in Python.
SHORTER = {
    r"phantom_source\(16": "phantom_source(2",
    r"\(160": "(8",
    r"size=512": "size=48",
    r"num_workers=\d+": "num_workers=0",
    r"range\(1[05]0\)": "range(1)",
    r"persistent_workers=True": "persistent_workers=False",
    r'device="cuda"': 'device="cpu"',
}


def shorter(text: str) -> str:
    """Return a block of Python with fewer epochs and processes, and without a GPU."""
    for pattern, replacement in SHORTER.items():
        text = re.sub(pattern, replacement, text)
    return text


def program(line: str) -> str | None:
    """Return the key of OTHER_PROGRAMS that a command begins with."""
    return next((name for name in OTHER_PROGRAMS if re.match(rf"{name}(?!\w)|{name}(?<=_)", line)), None)


def reason(page: str, text: str) -> str | None:
    """Return why a command or block is not run."""
    return next((why for name, start, why in NOT_RUN if name == page and text.lstrip().startswith(start)), None)


def missing(text: str) -> set[str]:
    """Return the libraries that a block needs, that no test has to have, and that are not here."""
    needed = {"nnunetv2.": "nnunetv2", "monai.engines": "ignite", "ignite.": "ignite"}
    return {name for start, name in needed.items() if start in text and importlib.util.find_spec(name) is None}


@pytest.fixture(scope="session")
def folders(tmp_path_factory):
    return Folders(tmp_path_factory.mktemp("pages"))


@pytest.fixture
def quick(monkeypatch, small_phantom, forked_jobs):
    """Train less than the pages say, in this process; nothing waits for a reader."""
    from adawac.data import parallel
    from adawac.data.phantom import phantom_files
    from adawac.evaluation import scorers
    from adawac.reproduction import crossvalidation
    from adawac.train import benchmark, engine
    from adawac.viewer.viewer import Viewer

    def with_less(function, **fewer):
        def run(config, *args, **options):
            return function(config and small(config), *args, **(options | fewer))

        return wraps(function)(run)

    monkeypatch.setattr(engine, "fit", with_less(engine.fit))
    monkeypatch.setattr(benchmark, "measure", with_less(benchmark.measure, steps=2))
    monkeypatch.setattr(crossvalidation, "crossval", with_less(crossvalidation.crossval))
    for module in (parallel, scorers):
        monkeypatch.setattr(module, "processors", lambda: 1)

    write = phantom_files.write_nifti_layout
    smaller = {"size": 32, "slices": (4, 5)}
    monkeypatch.setattr(
        phantom_files, "write_nifti_layout", lambda *args, **options: write(*args, **(smaller | options))
    )

    def close(self):
        raise KeyboardInterrupt

    monkeypatch.setattr(Viewer, "wait", close)
    monkeypatch.setattr(Viewer, "open_browser", lambda self: None)


def check_other_program(command: Command, name: str) -> None:
    """Check what can be checked without running it."""
    project = tomllib.loads((REPOSITORY / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    if name == "pip":
        for names in re.findall(r"(?:adawac|\.)\[([\w,]+)\]", command.line):
            assert set(names.split(",")) <= set(project["optional-dependencies"]), command.line
    if name == "make":
        targets = re.findall(r"^([\w-]+):", (REPOSITORY / "Makefile").read_text(encoding="utf-8"), re.MULTILINE)
        assert words_of(command.line)[0][1] in targets, command.line


def check_output(command: Command, printed: str) -> None:
    """Check that what the page shows was printed, in this order; numbers may be others."""
    plain, begin = next(pieces(printed.replace("…", "...")), ""), 0
    for piece in pieces(command.output):
        at = plain.find(piece, begin)
        assert at >= 0, f"$ {command.line}\nThe page has: {piece}\nPrinted was: {plain}"
        begin = at + len(piece)


@pytest.mark.filterwarnings("default")
@pytest.mark.parametrize("page", [pytest.param(p, marks=[pytest.mark.slow] * (p in SLOW)) for p in TESTED])
def test_a_page_runs(page, folders, quick, tmp_path, tmp_path_factory, monkeypatch):
    monkeypatch.chdir(tmp_path)
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    home = tmp_path_factory.mktemp("home")  # a page may write into its reader's
    reader = {"HOME": str(home), "SHELL": "/bin/bash", "COLUMNS": "200", "PATH": path, "nnUNet_results": "results"}
    for name, value in reader.items():
        monkeypatch.setenv(name, value)
    monkeypatch.syspath_prepend(str(tmp_path))
    for name in FILES.get(page, "").split():
        folders.copy(name, tmp_path)
    names = {"__name__": "__main__", "input": lambda prompt: ""}
    exec(NAMES.get(page, ""), names)
    for block in BLOCKS[page]:
        if block.title is not None:
            Path(block.title).parent.mkdir(parents=True, exist_ok=True)
            Path(block.title).write_text(block.text, encoding="utf-8")
        elif block.language == "python":
            if reason(page, block.text) is None and not missing(block.text):
                run_python(block, names, shorter)
        elif block.language in SHELLS:
            for command in commands_of(block):
                if name := program(command.line):
                    check_other_program(command, name)
                elif reason(page, command.line) is None:
                    printed = run_command(command, monkeypatch.setenv)
                    if (page, command.line) not in NOT_COMPARED:
                        check_output(command, printed)

        elif block.language == "yaml":
            yaml.safe_load(block.text)
        elif block.language == "toml":
            tomllib.loads(block.text)
    CHECKS.get(page, lambda names: None)(names)


def in_navigation(entry) -> set[str]:
    """Return the pages of a part of the navigation."""
    parts = entry.values() if isinstance(entry, dict) else entry
    return {entry} if isinstance(entry, str) else set().union(*map(in_navigation, parts))


def test_the_navigation_has_every_page_and_every_picture_is_there():
    """Zensical's strict mode looks at links alone."""
    navigation = yaml.safe_load((REPOSITORY / "mkdocs.yml").read_text(encoding="utf-8"))["nav"]
    assert in_navigation(navigation) == {page.removeprefix("docs/") for page in PAGES if page.startswith("docs/")}
    for page in PAGES:
        for picture in re.findall(r"!\[[^]]*\]\(([^)]+)\)", (REPOSITORY / page).read_text(encoding="utf-8")):
            assert (REPOSITORY / page).parent.joinpath(picture).is_file(), f"{page}: {picture}"


def texts_of(page: str) -> list[str]:
    """Return the commands and the Python blocks of a page."""
    blocks = [block for block in BLOCKS[page] if block.title is None]
    commands = [command.line for block in blocks if block.language in SHELLS for command in commands_of(block)]
    return commands + [block.text.lstrip() for block in blocks if block.language == "python"]


def test_every_exception_is_needed():
    texts = {page: texts_of(page) for page in PAGES}
    every = [text for page in PAGES for text in texts[page]]
    assert set(OTHER_PROGRAMS) <= {program(text) for text in every}
    for page, start, *_ in [*NOT_RUN, *NOT_COMPARED]:
        assert any(text.startswith(start) for text in texts[page]), (page, start)
    assert all(re.search(pattern, "".join(every)) for pattern in SHORTER)
    assert {*FILES, *NAMES, *CHECKS, *SLOW} <= set(TESTED)
    known = {"", "sh", "console", "python", "yaml", "toml", "csv", "text"}
    assert {block.language for page in PAGES for block in BLOCKS[page]} <= known
