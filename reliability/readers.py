"""Everything that reads a file, each with small valid files to begin from; `reliability.fuzz` makes them hostile."""

import gzip
import json
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from adawac.errors import AdawacError

CLASSES = {"background": (0,), "liver": (1,), "kidney": (2, 3)}
SHAPE = (5, 4, 3)


@dataclass(frozen=True)
class Reader:
    """What reads a kind of files.

    Attributes:
        title: What it is.
        write: Writes valid files into an empty folder.
        read: Reads them, given the folder and the file that was changed, in every way that a user would.
        share: Of the inputs that a campaign tries: less than 1 where each takes long.
    """

    title: str
    write: Callable[[Path], object]
    read: Callable[[Path, Path], object]
    share: float = 1.0


def _all(*steps: Callable[[], Any]) -> None:
    """Take every step, and then raise the first of our errors."""
    first: AdawacError | None = None
    for step in steps:
        try:
            step()
        except AdawacError as error:
            first = first or error
    if first is not None:
        raise first


def _drain(values: Iterable[Any]) -> None:
    for _ in values:
        pass


def _scan() -> tuple[Any, Any]:
    label = np.arange(np.prod(SHAPE), dtype=np.uint8).reshape(SHAPE) % 4
    return label.astype(np.int16) * 100 - 50, label


# -- scans -------------------------------------------------------------------------------------------------------------


def _write_nifti(folder: Path, ending: str = ".nii") -> None:
    import nibabel as nib

    for name, array in zip(("image", "label"), _scan(), strict=True):
        nib.save(nib.Nifti1Image(array, np.diag([-1.0, -1.0, 2.5, 1.0])), folder / f"{name}{ending}")


def _read_nifti(folder: Path, changed: Path) -> None:
    from adawac.data.sources import scan_files
    from adawac.inference.scan_search import Scan
    from adawac.inference.volumes import open_scan
    from adawac.viewer.layers import read_image_layer, read_label_layer

    ending = "".join(changed.suffixes)
    image, label = folder / f"image{ending}", folder / f"label{ending}"

    def as_case() -> None:
        voxels, affine = scan_files.read_nifti_image([image], 1)
        scan_files.read_nifti_label(label, CLASSES, image, voxels.shape[1:], affine)

    _all(
        as_case,
        lambda: scan_files.read_nifti_values(label),
        lambda: scan_files.read_nifti_turned(label, np.diag([1.0, -1.0, 1.0, 1.0])),
        lambda: _drain(open_scan(Scan(name="image", kind="nifti", files=(image,)), ("CT",)).blocks()),
        lambda: read_label_layer(label, read_image_layer(image)),
    )


def _write_arrays(folder: Path, name: str) -> None:
    import h5py

    image, label = _scan()
    if name.endswith(".npz"):
        np.savez(folder / name, image=image.astype(np.float32), label=label)
        return
    with h5py.File(folder / name, "w") as file:
        file.create_dataset("image", data=image.astype(np.float32), compression="gzip")
        file.create_dataset("label", data=label)


def _read_arrays(folder: Path, changed: Path) -> None:
    from adawac.data.cases import CaseRef
    from adawac.data.sources.transunet_layout import SliceSource

    refs = (CaseRef(dataset="small", patient="p", id="p", images=(changed,)),)
    SliceSource(dataset="small", classes=CLASSES, refs=refs).load(refs[0])


def _write_dicom(folder: Path) -> None:
    from tests.inference.series import write_series

    write_series(folder / "plain" / "ct", _scan()[0])
    write_series(folder / "compressed" / "ct", _scan()[0][..., :1], rle=True)


def _read_dicom(folder: Path, changed: Path) -> None:
    from adawac.inference.scan_search import find_scans
    from adawac.inference.volumes import open_scan

    _all(
        lambda: _load_all("dicom", folder, unlabelled="keep"),
        *(lambda scan=scan: _drain(open_scan(scan, ("CT",)).blocks()) for scan in find_scans([folder])),
    )


def _write_seg(folder: Path) -> None:
    from adawac.inference.label_files import read_seg_sources, write_seg
    from adawac.inference.scan_search import find_scans
    from adawac.inference.volumes import open_scan
    from tests.inference.series import write_series

    write_series(folder / "p" / "ct", _scan()[0])
    volume = open_scan(find_scans([folder])[0], ("CT",))
    sources = read_seg_sources(volume)
    write_seg(folder / "p" / "seg.dcm", _scan()[1], volume, sources, ("background", "a", "b", "c"))


def _read_seg(folder: Path, changed: Path) -> None:
    _load_all("dicom", folder)


def _load_all(source: str, folder: Path, **options: Any) -> None:
    from adawac.data.sources import build_source

    opened = build_source(source, folder, **options)
    _all(*(lambda ref=ref: opened.load(ref) for ref in opened.cases()))


# -- pictures ----------------------------------------------------------------------------------------------------------


def _write_pictures(folder: Path, ending: str) -> None:
    from PIL import Image

    image, label = _scan()
    small = np.repeat((image[..., 0] + 50).astype(np.uint8), 4, axis=0)
    colour = np.stack([small, 255 - small, small // 2], axis=2)
    mask = np.repeat(label[..., 0], 4, axis=0).astype(np.uint8)
    kinds = {"L": small, "RGB": colour, "LA": colour[..., :2], "RGBA": np.dstack([colour, small]), "1": small > 99}
    for mode, pixels in kinds.items():
        if (mode in ("LA", "RGBA") and ending in (".jpg", ".bmp")) or (mode == "1" and ending == ".jpg"):
            continue
        picture = Image.merge("LA", [Image.fromarray(pixels[..., k].copy()) for k in (0, 1)]) if mode == "LA" else None
        (picture or Image.fromarray(pixels)).save(folder / f"{mode}{ending}")
        _write_mask(folder / f"{mode}_mask", mask, ending)
    if ending == ".png":
        Image.fromarray(small.astype(np.uint16) * 257).save(folder / "deep.png")
        exif = Image.Exif()
        exif[274] = 6
        Image.fromarray(colour).save(folder / "turned.png", exif=exif)


def _write_mask(path: Path, mask: Any, ending: str) -> None:
    from PIL import Image

    image = Image.frombytes("P", mask.shape[::-1], mask.tobytes())
    image.putpalette([0, 0, 0, 255, 0, 0, 0, 255, 0, 0, 0, 255] + [0] * 756)
    image.save(path.with_suffix(".png" if ending == ".jpg" else ending))


def _write_tiffs(folder: Path) -> None:
    import tifffile

    _write_pictures(folder, ".tif")
    image, _ = _scan()
    pixels = np.repeat((image[..., :1] + 50).astype(np.uint8), 3, axis=2)
    pages = np.repeat(np.repeat(pixels.transpose(2, 0, 1), 7, axis=1), 5, axis=2)
    for name, options in {
        "tiles": {"tile": (16, 16), "compression": "zlib"},
        "strips": {"rowsperstrip": 3, "compression": "zlib"},
        "planes": {"planarconfig": "separate", "photometric": "rgb"},
        "big": {"bigtiff": True, "byteorder": ">"},
    }.items():
        tifffile.imwrite(folder / f"{name}.tif", pages, **{"photometric": "minisblack", **options})
        tifffile.imwrite(folder / f"{name}_mask.tif", (pages > 99).astype(np.uint8), photometric="minisblack")
    tifffile.imwrite(folder / "float.tif", pages[0].astype(np.float32))
    tifffile.imwrite(folder / "float_mask.tif", (pages[0] > 99).astype(np.uint8))


def _read_pictures(folder: Path, changed: Path) -> None:
    from adawac.data.sources.picture_files import open_picture
    from adawac.data.sources.pictures import count_values, open_mask

    def pixels(path: Path) -> None:
        picture = open_picture(path)
        for page in range(picture.shape[0]):
            picture.image_rows(page, 0, min(picture.shape[1], 1000), 3 if picture.is_colour else 1)

    of_case = [next(folder.glob(f"{changed.stem.removesuffix('_mask')}{end}.*"), None) for end in ("", "_mask")]
    values, colours = {"a": 1, "b": 2, "c": 3}, {"a": "#ff0000", "b": "#00ff00", "c": "#0000ff"}
    _all(
        lambda: pixels(changed),
        lambda: count_values(open_mask(changed)),
        *(lambda classes=classes: _load_picture(*of_case, classes) for classes in (values, colours)),
    )


def _load_picture(image: Path, mask: Path | None, classes: dict[str, Any]) -> None:
    from adawac.data.cases import CaseRef
    from adawac.data.sources.pictures import PictureSource
    from adawac.data.sources.source import as_classes

    ref = CaseRef(dataset="small", patient="p", id="p", images=(image,), labels=(mask,) if mask else ())
    options: dict[str, Any] = {"channels": ("red", "green", "blue"), "unlabelled": "empty"}
    PictureSource(dataset="small", classes=as_classes(classes), refs=(ref,), **options).load(ref)


# -- lists of scans ----------------------------------------------------------------------------------------------------


def _write_lists(folder: Path) -> None:
    for root, images, labels in (("raw", "imagesTr", "labelsTr"), ("listed", "images", "labels")):
        for number in range(3):
            for path in (f"{images}/c{number}{'_0000' if root == 'raw' else ''}.nii", f"{labels}/c{number}.nii"):
                (folder / root / path).parent.mkdir(parents=True, exist_ok=True)
                (folder / root / path).touch()
    described: dict[str, Any] = {"name": "small", "channel_names": {"0": "CT"}, "numTraining": 3, "file_ending": ".nii"}
    described["labels"] = {"background": 0, "liver": 1, "ignore": 2}
    (folder / "raw" / "dataset.json").write_text(json.dumps(described))
    pairs = [{"image": f"./images/c{number}.nii", "label": f"./labels/c{number}.nii"} for number in range(2)]
    listed = {"modality": {"0": "MRI"}, "labels": {"0": "background", "1": "heart"}, "training": pairs}
    (folder / "listed" / "dataset.json").write_text(json.dumps({**listed, "test": ["./images/c2.nii"]}))
    (folder / "slices.csv").write_text("case,slice\nc0,all\nc1,0\nc1,2\nc2,1\n")
    (folder / "groups.csv").write_text("patient,group\nc0,DCM\nc1,NOR\nc2,DCM\n")
    for name, case in (("train", "c0"), ("val", "c1"), ("test", "c2")):
        (folder / f"{name}.txt").write_text(f"# cases\n{case}\n")
    (folder / "acdc" / "patient001").mkdir(parents=True)
    (folder / "acdc" / "patient001" / "Info.cfg").write_text("ED: 1\nGroup: DCM\nHeight: 184.0\n")
    for name in ("patient001_frame01.nii", "patient001_frame01_gt.nii"):
        (folder / "acdc" / "patient001" / name).touch()


def _read_lists(folder: Path, changed: Path) -> None:
    from adawac.data.sources import build_source
    from adawac.data.splits import resolve_split
    from adawac.runs.example import _draw, _table

    options = {"labelled_slices": folder / "slices.csv", "groups": folder / "groups.csv"}
    table = _table([_draw(f"c{number}", 2, 4, np.random.default_rng(0), 0.0) for number in range(3)], 4)
    _all(
        lambda: build_source("nifti", folder / "raw", **options).cases(),
        lambda: build_source("nifti", folder / "listed").cases(),
        lambda: build_source("acdc", folder / "acdc").cases(),
        lambda: resolve_split(table, str(folder)),
    )


# -- settings ----------------------------------------------------------------------------------------------------------


def _write_config(folder: Path) -> None:
    from adawac.config import DataConfig, MethodConfig, TrainConfig, save

    config = TrainConfig(data=DataConfig(image_size=(32, 32)), method=MethodConfig(options={"eta_beta": 1.0}))
    save(config, folder / "config.yaml")
    (folder / "short.yaml").write_text("method: {name: adawac}\noptim: {lr: 1e-4}\ndata:\n  views: {mode: affine}\n")


def _read_config(folder: Path, changed: Path) -> None:
    from adawac.config import TrainConfig, load, to_dict

    to_dict(load(TrainConfig, changed, libraries=False))


def _write_grid(folder: Path) -> None:
    from tests.reproduction.grid_files import write_grid

    runs = {
        "first": {"set": {"optim.lr": 0.1}, "seeds": [1, 2]},
        "second": {"score": "val", "tta": True, "priority": 1},
    }
    write_grid(folder / "axes.yaml")
    write_grid(folder / "runs.yaml", axes={}, paper={}, runs=runs, results="results.json")
    write_grid(folder / "figure.yaml", exceptions=[{"when": {"method": "adawac"}, "set": {"epochs": 2}}], paper={})
    settings = {"epochs": 1, "method.name": "adawac"}
    scores = {"adawac": {"dice": {"mean": 0.8, "liver": 0.9}}}
    runs_done = [{"name": "first-seed1", "settings": settings, "scores": scores, "commit": "abc", "seconds": 3.0}]
    (folder / "results.json").write_text(json.dumps({"runs": runs_done}))


def _read_grid(folder: Path, changed: Path) -> None:
    from adawac.reproduction.collected_results import entry_value, find_entry, read_entries
    from adawac.reproduction.grids import load_grid

    _, grid = load_grid(changed if changed.suffix == ".yaml" else folder / "runs.yaml")
    entries = read_entries(grid.results)
    for row in grid.rows()[:3]:
        grid.printed(row)
        for entry in filter(None, (find_entry(entries, row, seed) for seed in row.seeds[:2])):
            _drain(entry_value(entry, column, grid.convention) for column in grid.named_columns)


# -- what adawac writes ------------------------------------------------------------------------------------------------


def _write_store(folder: Path) -> None:
    from adawac.data.phantom import phantom_source, texture_source
    from adawac.data.preparation import prepare

    source = phantom_source(2, size=8, slices=(3, 3))
    prepare(source, None, folder / "store", workers=1, progress=False, spacing=(0, 0, 2.0))
    prepare(texture_source(2, size=(20, 24)), None, folder / "tiles", workers=1, progress=False, tile=16)


def _read_store(folder: Path, changed: Path) -> None:
    from adawac.data.splits import resolve_split
    from adawac.data.store import Store

    store = Store(folder / changed.relative_to(folder).parts[0])
    samples = store.samples(None)

    def values(case: str) -> None:
        volume = store.volume(case)
        assert np.isscalar(np.sum(volume.image))
        assert np.isscalar(np.sum(volume.label))

    _all(
        *(lambda case=case: values(case) for case in store.cases),
        *(lambda case=case: store.native_label(case) for case in store.cases),
        *(lambda row=row: samples[row] for row in range(len(samples))),
        lambda: samples.shapes.sum(),
        lambda: store.case_info(store.cases[0]).ignored,
        lambda: resolve_split(store.table, "fold:0/2"),
    )


def _write_run(folder: Path) -> None:
    from adawac.runs.example import example_run

    run = example_run(folder / "run", cases=["a", "b"], slices=4, epochs=4, size=8)
    facts = {"channels": ["CT"], "label_values": [[0], [1], [2]], "preprocessing": {"clip_quantile": 0.99}}
    (run.folder / "data.json").write_text(json.dumps({**run.data, **facts}))


def _read_run(folder: Path, changed: Path) -> None:
    from adawac.runs import Run, list_runs

    run = Run(folder / "run")
    facts = ("status", "epoch", "summary", "config", "settings", "environments", "data", "samples", "metrics")
    more = ("history", "checkpoints", "selected_checkpoint", "evaluations", "galleries", "outdated", "missing", "task")
    ids = [] if run.samples is None else run.samples.id.tolist()[:2]
    names = sorted({name for metrics in run.metrics for name in metrics})

    def pictures(name: str) -> None:
        gallery = run.gallery(name)
        _all(*(lambda key=key: gallery[key] for key in gallery))

    _all(
        lambda: repr(run),
        lambda: list_runs(folder),
        *(lambda name=name: getattr(run, name) for name in facts + more),
        *(lambda name=name: run.history[name].sum() for name in ("ell_ce", "beta")),
        *(lambda name=name: run.trajectory(name) for name in ids),
        *(lambda name=name: run.curve(name) for name in names),
        *(lambda name=name: run.scores(name) for name in run.evaluations),
        *(lambda name=name: pictures(name) for name in run.galleries),
        lambda: run.checkpoint(run.checkpoint_name(None)),
    )


def _read_report(folder: Path, changed: Path) -> None:
    from adawac.report.contents import collect
    from adawac.report.page import render

    render(collect([folder / "run"]))


def _write_checkpoint(folder: Path) -> None:
    from adawac.runs import save_checkpoint

    tensors = {"network.weight": np.ones((2, 3), np.float32), "count": np.array(3)}
    save_checkpoint(folder / "last.safetensors", tensors, {"epoch": 2, "ids": ["a", "b"], "rng": {"torch": [1, 2]}})


def _read_checkpoint(folder: Path, changed: Path) -> None:
    from adawac.runs import load_checkpoint, read_state

    _all(
        lambda: load_checkpoint(changed),
        lambda: load_checkpoint(changed, "torch"),
        lambda: read_state(changed),
    )


def _write_model(folder: Path) -> None:
    from torch import nn

    from adawac.config import ModelConfig
    from adawac.data.preprocessing import Preprocessing
    from adawac.data.task import Task
    from adawac.inference.model_export import save_model
    from adawac.inference.trained_network import Trained

    model = ModelConfig(name="smp:Unet/resnet18", options={"encoder_depth": 3, "decoder_channels": [8, 4, 4]})
    task = Task(
        dataset="small", class_names=("background", "liver"), channels=("CT",), label_values=((0,), (1,)),
        preprocessing=Preprocessing(),
    )  # fmt: skip
    trained = Trained(
        network=nn.Identity(), model=model, faithful=None, image_size=(32, 32), resize="bilinear", task=task,
        source=folder, checkpoint="last",
    )  # fmt: skip
    save_model(trained, folder)
    (folder / "weights.safetensors").unlink()  # that is a checkpoint


def _read_model(folder: Path, changed: Path) -> None:
    from adawac.inference.trained_network import check_harmless, read_card

    card, _ = read_card(folder)
    check_harmless(card.model, "the folder")
    assert card.task.num_classes


# -- weights of others -------------------------------------------------------------------------------------------------


def _write_weights(folder: Path) -> None:
    import torch
    from safetensors.torch import save_file

    tensors = {"conv.weight": torch.ones(2, 3, 1, 1), "conv.bias": torch.zeros(2), "count": torch.tensor(3)}
    torch.save({"state_dict": tensors, "epoch": 3}, folder / "weights.pth")
    torch.save(tensors, folder / "legacy.pt", _use_new_zipfile_serialization=False)
    save_file(tensors, folder / "weights.safetensors")
    np.savez(folder / "weights.npz", **{name: tensor.numpy() for name, tensor in tensors.items()})
    layer = {"class_name": "Conv2D", "config": {"name": "conv", "strides": [1, 1]}}
    listed = [{"name": "conv/kernel", "shape": [2, 3], "dtype": "float32"}]
    manifest = [{"paths": ["group1.bin"], "weights": listed}]
    topology = {
        "model_config": {"config": {"layers": [layer, {"class_name": "BN", "config": {"name": "n", "epsilon": 1e-3}}]}}
    }
    (folder / "keras.json").write_text(json.dumps({"modelTopology": topology, "weightsManifest": manifest}))
    (folder / "group1.bin").write_bytes(np.ones(6, "<f4").tobytes())


def _read_weights(folder: Path, changed: Path) -> None:
    from adawac.models.weight_files import read_weights

    read_weights(folder / "keras.json" if changed.suffix == ".bin" else changed)


def _write_gz(folder: Path) -> None:
    _write_nifti(folder)
    for path in sorted(folder.glob("*.nii")):
        path.with_name(f"{path.name}.gz").write_bytes(gzip.compress(path.read_bytes(), mtime=0))
        path.unlink()


READERS = {
    "nifti": Reader("NIfTI (.nii): header and voxels", _write_nifti, _read_nifti, 0.5),
    "nifti-gz": Reader("NIfTI, compressed (.nii.gz)", _write_gz, _read_nifti, 0.5),
    "dicom": Reader("DICOM series, plain and RLE", _write_dicom, _read_dicom, 0.1),
    "seg": Reader("DICOM SEG with its series", _write_seg, _read_seg, 0.03),
    "h5": Reader("HDF5 volumes", lambda f: _write_arrays(f, "case.h5"), _read_arrays),
    "npz": Reader("npz volumes", lambda f: _write_arrays(f, "case.npz"), _read_arrays),
    "png": Reader("PNG pictures and masks", lambda f: _write_pictures(f, ".png"), _read_pictures, 0.3),
    "jpeg": Reader("JPEG pictures", lambda f: _write_pictures(f, ".jpg"), _read_pictures, 0.3),
    "bmp": Reader("BMP pictures and masks", lambda f: _write_pictures(f, ".bmp"), _read_pictures, 0.3),
    "tiff": Reader("TIFF pictures and masks", _write_tiffs, _read_pictures, 0.3),
    "lists": Reader("dataset.json, Info.cfg, CSV files, lists of cases", _write_lists, _read_lists),
    "config": Reader("configurations (YAML)", _write_config, _read_config),
    "grid": Reader("grids of runs (YAML) and their results (JSON)", _write_grid, _read_grid, 0.3),
    "store": Reader("prepared stores", _write_store, _read_store),
    "run": Reader("run folders", _write_run, _read_run, 0.2),
    "report": Reader("reports of run folders", _write_run, _read_report, 0.1),
    "checkpoint": Reader("checkpoints", _write_checkpoint, _read_checkpoint),
    "model": Reader("descriptions of model folders", _write_model, _read_model),
    "weights": Reader("weights of others (.pth, .pt, .npz, .safetensors, Keras)", _write_weights, _read_weights),
}
"""By name, in the order in which they are tried."""
