"""What pages suppose that their reader has: scans, a store, runs, label maps. All of it is small and drawn."""

import shutil
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from tests.data.scans import make_acdc, make_nnunet, write_nifti
from tests.evaluation.label_map_folders import organs

SIZE = 32
SMALL = {"data.image_size": (SIZE, SIZE), "data.batch_size": 12, "data.workers": 0, "hardware.accelerator": "cpu"}


def small(config: Any) -> Any:
    """Return a configuration that a core trains in a second: one epoch of small images, on the CPU."""
    from adawac.config import override

    changes = dict(SMALL)
    if min(config.data.image_size) < SIZE:
        del changes["data.image_size"]
    epochs = config.epochs if config.epochs <= 3 else max(config.method.hold_epochs, config.optim.warmup_epochs) + 1
    changes["data.batch_size"] = min(config.data.batch_size, 12)
    if config.model.name == "transunet":
        changes["model.name"] = "smp:Unet/resnet18"
    return override(config, {**changes, "epochs": epochs, "hardware.precision": "fp32"})


class Folders:
    """Makes what a page needs, once; pages get copies.

    Args:
        root: Where things are made.
    """

    def __init__(self, root: Path):
        self.root = root
        self.made: dict[str, Path] = {}

    def copy(self, name: str, folder: Path) -> None:
        """Copy a thing into a page's folder; `name=thing` gives it another name there."""
        name, _, thing = name.partition("=")
        source, dest = self.get(thing or name), folder / name
        dest.parent.mkdir(parents=True, exist_ok=True)
        if source.is_dir():
            shutil.copytree(source, dest, dirs_exist_ok=True)
        else:
            shutil.copy(source, dest)

    def get(self, thing: str) -> Path:
        """Return a thing, made on its first use."""
        if thing not in self.made:
            dest = self.root / thing
            dest.parent.mkdir(parents=True, exist_ok=True)
            MAKERS[thing](dest, self)
            self.made[thing] = dest
        return self.made[thing]


def _scans(dest: Path, folders: Folders) -> None:
    """Six patients of the phantom, as nnU-Net lays them out."""
    from adawac.data.phantom.phantom_files import write_nifti_layout

    write_nifti_layout(dest, 6, size=SIZE, slices=(4, 5))


def _tested(dest: Path, folders: Folders) -> None:
    """Scans of which some are for testing."""
    shutil.copytree(folders.get("scans"), dest)
    for part in ("images", "labels"):
        (dest / f"{part}Ts").mkdir()
        for path in sorted((dest / f"{part}Tr").iterdir())[:2]:
            path.rename(dest / f"{part}Ts" / path.name)


def _images(dest: Path, folders: Folders) -> None:
    """Scans alone, as they come from the scanner."""
    shutil.copytree(folders.get("scans") / "imagesTr", dest)


def _scan(dest: Path, folders: Folders) -> None:
    shutil.copy(folders.get("scans") / "imagesTr" / "0000-000_0000.nii.gz", dest)


def _truth(dest: Path, folders: Folders) -> None:
    shutil.copy(folders.get("scans") / "labelsTr" / "0000-000.nii.gz", dest)


def _labels(dest: Path, folders: Folders) -> None:
    shutil.copytree(folders.get("scans") / "labelsTr", dest)


def _partly(dest: Path, folders: Folders) -> None:
    """Six scans; the last has no label map."""
    from adawac.data.phantom.phantom_files import write_nifti_layout

    write_nifti_layout(dest, 6, size=SIZE, slices=(9, 10))
    for number, name in enumerate(("anna", "bert", "carl", "dora", "emil", "fred")):
        for folder, ending in (("imagesTr", "_0000.nii.gz"), ("labelsTr", ".nii.gz")):
            (dest / folder / f"0000-00{number}{ending}").rename(dest / folder / f"{name}{ending}")
    (dest / "labelsTr" / "fred.nii.gz").unlink()


def _by_patient(dest: Path, folders: Folders) -> None:
    """A folder for each patient; the files in it have the same names, and some have no label map."""
    for number in range(14):
        image, label = np.random.default_rng(number).normal(size=(12, 10, 10)), np.zeros((12, 10, 10), np.uint8)
        label[3:6, 3:6, 2:6] = 1 + number % 2
        case = dest / "abcdefghijklmn"[number]
        write_nifti(case / "ct.nii.gz", (100 * image).astype(np.int16))
        if number % 2 == 0 or number == 5:
            write_nifti(case / "organs.nii.gz", label)


def _labelled(dest: Path, folders: Folders) -> None:
    """The patients of `by-patient` who have label maps."""
    for path in folders.get("by-patient").glob("*/organs.nii.gz"):
        shutil.copytree(path.parent, dest / path.parent.name)


def _two_channels(dest: Path, folders: Folders) -> None:
    """Two images and a label map in a folder for each visit, and a group for each patient."""
    rng = np.random.default_rng(0)
    for number in range(4):
        case = dest / f"sub-{number // 2}_visit{number % 2}"
        for name in ("t1", "t2"):
            write_nifti(case / f"{name}.nii.gz", rng.normal(size=(8, 8, 4)).astype(np.float32))
        write_nifti(case / "segmentation.nii.gz", rng.choice([0, 1, 2, 3, 5], (8, 8, 4)).astype(np.uint8))


def _groups(dest: Path, folders: Folders) -> None:
    dest.write_text("patient,group\nsub-0,cirrhosis\nsub-1,healthy\n", encoding="utf-8")


def _store(dest: Path, folders: Folders) -> None:
    """A store that says who trains and who tests."""
    from adawac.data.phantom import phantom_source
    from adawac.data.preparation import prepare

    prepare(phantom_source(8, seed=0, size=SIZE, slices=(8, 10)), None, dest, workers=1)


def _unsplit(dest: Path, folders: Folders) -> None:
    """A store of a user's own scans: nothing says who trains."""
    from adawac.data.preparation import prepare

    prepare("nifti", folders.get("scans"), dest, workers=1)


def _run(method: str, seed: int = 1, thing: str = "store", **changes: Any) -> Callable[[Path, Folders], None]:
    def make(dest: Path, folders: Folders) -> None:
        from adawac.config import TrainConfig, override
        from adawac.evaluation import evaluate
        from adawac.train import fit

        settings = {"data.store": folders.get(thing), "method.name": method, "epochs": 2, "seed": seed, **changes}
        config = small(override(TrainConfig(), {**settings, "model.name": "smp:Unet/resnet18"}))
        run = fit(config, dest)
        for convention in ("strict", "adawac"):
            evaluate(run, convention=convention, workers=0)

    return make


def _model(dest: Path, folders: Folders) -> None:
    from adawac.inference import export_model

    export_model(folders.get("runs/adawac"), dest)


def _foreign(dest: Path, folders: Folders) -> None:
    """A model folder that names somebody's code."""
    from tests.inference.test_export_folder import rewrite

    shutil.copytree(folders.get("model"), dest)
    rewrite(dest, model={"name": "mypackage.nets:build", "pretrained": None, "tap": None, "options": {}})


def _surfaces(dest: Path, folders: Folders) -> None:
    from adawac.data.phantom import write_pictures

    write_pictures(dest, 20, empty=0.5, size=(SIZE, SIZE))


def _rolls(dest: Path, folders: Folders) -> None:
    """Pictures of two rolls, with coloured masks; most show nothing."""
    from PIL import Image

    rng = np.random.default_rng(0)
    for number in range(20):
        mask = np.zeros((SIZE, SIZE, 3), np.uint8)
        if number % 10 == 0:
            mask[4:9, 4:9], mask[12:15, 3:20] = (255, 0, 0), (0, 255, 0)
        for folder, pixels in (("images", rng.integers(0, 256, mask.shape, np.uint8)), ("masks", mask)):
            (dest / folder).mkdir(parents=True, exist_ok=True)
            Image.fromarray(pixels).save(dest / folder / f"roll{number % 2}_{number:02d}.png")


def _photos(dest: Path, folders: Folders) -> None:
    from PIL import Image

    dest.mkdir()
    for name, path in zip("ab", sorted((folders.get("surfaces") / "images").iterdir()), strict=False):
        Image.open(path).save(dest / f"{name}.jpg")


def _slides(dest: Path, folders: Folders) -> None:
    """Pictures larger than a tile."""
    from PIL import Image

    rng = np.random.default_rng(0)
    for folder, shape in (("images", (600, 700, 3)), ("masks", (600, 700))):
        (dest / folder).mkdir(parents=True)
        for number in (6, 7):
            pixels = rng.integers(0, 256, shape) if folder == "images" else np.indices(shape).sum(axis=0) < 300
            Image.fromarray(pixels.astype(np.uint8)).save(dest / folder / f"slide-{number}.tif")


@cache
def _maps() -> list[Any]:
    return [organs(number) for number in range(8)]


def _truths(dest: Path, folders: Folders) -> None:
    """Label maps of eight cases with an organ and a lesion; two cases of each patient."""
    for number, (truth, _) in enumerate(_maps()):
        write_nifti(dest / f"case_{number + 1:02d}.nii.gz", truth if number else 0 * truth)
    names = '{"labels": {"background": 0, "organ": 1, "lesion": 2}, "file_ending": ".nii.gz"}'
    (dest / "dataset.json").write_text(names, encoding="utf-8")


def _predicted(dest: Path, folders: Folders) -> None:
    for number, (_, prediction) in enumerate(_maps()):
        write_nifti(dest / f"case_{number + 1:02d}.nii.gz", prediction)


def _faulty(dest: Path, folders: Folders) -> None:
    """Of eight predictions one is missing and one upside down."""
    shutil.copytree(folders.get("predicted"), dest)
    (dest / "case_05.nii.gz").unlink()
    write_nifti(dest / "case_01.nii.gz", _maps()[0][1], np.diag([1, 1, -1, 1]))


def _broken_scans(dest: Path, folders: Folders) -> None:
    """Three scans, one with voxels that are no numbers."""
    import nibabel as nib

    for number, name in enumerate(("anna", "bert", "carl")):
        scan = nib.load(folders.get("scans") / "imagesTr" / f"0000-00{number}_0000.nii.gz")
        image = scan.get_fdata(dtype=np.float32)
        if name == "bert":
            image[0, 0, :2] = np.nan
        write_nifti(dest / f"{name}.nii.gz", image, scan.affine)


def _dicom(dest: Path, folders: Folders) -> None:
    from adawac.data.sources.dicom_series import read_series
    from tests.inference.series import write_series

    label = np.zeros((9, 8, 6), np.uint8)
    label[2:6, 2:6, 1:4] = 1
    for name in ("anna", "bert"):
        stored = np.arange(9 * 8 * 6, dtype=np.int16).reshape(9, 8, 6)
        _, affine = read_series(write_series(dest / name / "ct", stored, patient=name))
        write_nifti(dest / name / "labels.nii.gz", label, affine)


def _synapse(dest: Path, folders: Folders) -> None:
    from adawac.data.phantom.phantom_files import write_synapse_layout

    write_synapse_layout(dest, size=16)


def _example(dest: Path, folders: Folders) -> None:
    from adawac.runs import example_run

    example_run(dest)


MAKERS: dict[str, Callable[[Path, Folders], object]] = {
    "scans": _scans,
    "tested-scans": _tested,
    "images": _images,
    "train.txt": lambda dest, folders: dest.write_text("0000-000\n", encoding="utf-8"),
    "wrong.txt": lambda dest, folders: dest.write_text("phantom-ct/0000-000/0000-000/2/1\n", encoding="utf-8"),
    "copied-from-a": lambda dest, folders: dest.mkdir(),
    "copied-from-b": lambda dest, folders: dest.mkdir(),
    "scan.nii.gz": _scan,
    "truth.nii.gz": _truth,
    "labels": _labels,
    "partly": _partly,
    "by-patient": _by_patient,
    "labelled-by-patient": _labelled,
    "two-channels": _two_channels,
    "groups.csv": _groups,
    "store": _store,
    "unsplit": _unsplit,
    "picture-store": lambda dest, folders: _picture_store(dest, folders),
    "runs/adawac": _run("adawac"),
    "runs/baseline": _run("baseline"),
    "runs/adawac-2": _run("adawac", seed=2),
    "runs/pictures": _run("adawac", thing="picture-store"),
    "runs/pictures-baseline": _run("baseline", thing="picture-store"),
    "runs/example": _example,
    "model": _model,
    "foreign-model": _foreign,
    "surfaces": _surfaces,
    "rolls": _rolls,
    "photos": _photos,
    "slides": _slides,
    "truths": _truths,
    "predicted": _predicted,
    "faulty": _faulty,
    "broken-scans": _broken_scans,
    "dicom": _dicom,
    "acdc": lambda dest, folders: make_acdc(dest),
    "synapse": _synapse,
    "nnunet": lambda dest, folders: make_nnunet(dest),
}


def _picture_store(dest: Path, folders: Folders) -> None:
    from adawac.data.phantom import texture_source
    from adawac.data.preparation import prepare

    prepare(texture_source(32, size=(SIZE, SIZE), empty=0.5), None, dest, workers=1)
