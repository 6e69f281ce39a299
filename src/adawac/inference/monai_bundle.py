"""A network as a MONAI bundle: what `python -m monai.bundle run`, MONAI Label, 3D Slicer and OHIF take.

It holds configurations and one TorchScript file, which has the preprocessing and the way back in it: no Python code, no
pickled weights, and nothing that needs adawac. Its label maps are those of `adawac predict`, voxel for voxel.
"""

import json
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import adawac
from adawac.errors import ConfigError
from adawac.files import write_text
from adawac.inference.label_files import label_dtype
from adawac.inference.model_readme import INTENDED_USE, PAPER, SharedNetwork, write_readme
from adawac.inference.trained_network import Trained
from adawac.inference.volume_program import compile_program, save_program

METADATA = Path("configs", "metadata.json")
INFERENCE = Path("configs", "inference.json")
PROGRAM = Path("models", "model.ts")

_SCHEMA = "https://github.com/Project-MONAI/MONAI-extra-test-data/releases/download/0.8.1/meta_schema_20240725.json"
#: What a bundle says that it was made for where a library is not installed: the oldest that adawac is tested with.
_OLDEST = {"monai": "1.5.1", "nibabel": "5.2", "pytorch-ignite": "0.4.11"}
#: Without it MONAI 1.6 writes the map of a scan that has several channels as if it were flat.
_ONE_CHANNEL = {
    "_target_": "Lambdad",
    "keys": "pred",
    "func": "$lambda pred: pred.meta.update(original_channel_dim=float('nan')) or pred",
}
_FORMATS = {"CT": "hounsfield", "MR": "magnitude"}


def save_bundle(shared: SharedNetwork, folder: Path) -> None:
    """Write a bundle; its metadata come last, so that an interrupted export is not taken for one."""
    _check_scans(shared.trained)
    program = compile_program(shared.trained)
    (folder / METADATA).unlink(missing_ok=True)
    save_program(program, folder / PROGRAM)
    write_text(folder / INFERENCE, _json(_inference(shared.trained)))
    write_text(folder / "docs" / "README.md", write_readme(shared, _usage(shared.trained), _limits(shared.trained)))
    write_text(folder / "LICENSE", f"SPDX-License-Identifier: {shared.license}\n")
    write_text(folder / METADATA, _json(_metadata(shared)))


def _check_scans(trained: Trained) -> None:
    if trained.task.of_pictures:
        raise ConfigError(
            f"Expected a network for scans, but {trained.source} is one for pictures ({', '.join(trained.channels)}), "
            "which MONAI's readers of scans do not give. Export ONNX or a model folder instead."
        )


def _json(data: Any) -> str:
    return json.dumps(data, indent=2, ensure_ascii=False) + "\n"


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return _OLDEST[package]


def _metadata(shared: SharedNetwork) -> dict[str, Any]:
    trained = shared.trained
    values = [class_values[0] for class_values in trained.label_values]
    classes = {str(value): name for value, name in zip(values, trained.class_names, strict=True)}
    shape = {"num_channels": len(trained.channels), "spatial_shape": ["*", "*", "*"], "is_patch_data": False}
    return {
        "schema": _SCHEMA,
        "version": "1.0.0",
        "changelog": {"1.0.0": f"exported by adawac {adawac.__version__}"},
        "monai_version": _version("monai"),
        "pytorch_version": version("torch").split("+")[0],
        "numpy_version": version("numpy"),
        "required_packages_version": {name: _version(name) for name in ("nibabel", "pytorch-ignite")},
        "name": shared.title,
        "task": f"Segmentation of {shared.title}",
        "description": (
            f"Segments {shared.title}, slice by slice, with {trained.model.name}, trained by adawac ({shared.method}) "
            f"on {trained.dataset}."
        ),
        "authors": "not noted",
        "copyright": f"Licence: {shared.license}",
        "license": shared.license,
        "data_type": "nibabel",
        "image_classes": f"{', '.join(trained.channels)}, with the intensities of the file",
        "label_classes": ", ".join(f"{value}: {name}" for value, name in classes.items()),
        "pred_classes": ", ".join(f"{value}: {name}" for value, name in classes.items()),
        "eval_metrics": {
            f"{evaluated.part}_mean_{metric}": summaries[-1].mean
            for evaluated in shared.evaluated
            for metric, summaries in evaluated.summaries.items()
            if summaries[-1].mean == summaries[-1].mean
        },
        "intended_use": INTENDED_USE,
        "references": [PAPER],
        "network_data_format": {
            "inputs": {
                "image": {
                    "type": "image",
                    "format": _FORMATS.get(trained.modality or "", "raw"),
                    "modality": trained.modality or "n/a",
                    **shape,
                    "dtype": "float32",
                    "value_range": [],
                    "channel_def": {str(k): name for k, name in enumerate(trained.channels)},
                }
            },
            "outputs": {
                "pred": {
                    "type": "image",
                    "format": "labels",
                    **shape,
                    "num_channels": 1,
                    "dtype": label_dtype(values).name,
                    "value_range": [min(values), max(values)],
                    "channel_def": classes,
                }
            },
        },
    }


def _inference(trained: Trained) -> dict[str, Any]:
    """Return the configuration; only what no component of MONAI does is an expression."""
    values = [class_values[0] for class_values in trained.label_values]
    orientation = trained.task.scan_preprocessing.orientation
    turn = {
        "_target_": "Orientationd",
        "keys": "image",
        "axcodes": orientation,
        "labels": [["L", "R"], ["P", "A"], ["I", "S"]],
    }
    inferer: Any = {"_target_": "SimpleInferer"}
    if trained.preprocessing.spacing:  # the network resamples, and has to know the voxels' size
        inferer = "$lambda inputs, network, *_, **__: network(inputs, inputs.affine)"
    return {
        "imports": ["$import glob", "$import os"],
        "bundle_root": ".",
        "dataset_dir": "$@bundle_root + '/scans'",
        "output_dir": "$@bundle_root + '/labels'",
        "datalist": _datalist(len(trained.channels)),
        "device": "$torch.device('cuda' if torch.cuda.is_available() else 'cpu')",
        "network_def": {
            "_target_": "torch.jit.load",
            "f": f"$@bundle_root + '/{PROGRAM.as_posix()}'",
            "map_location": "@device",
        },
        "preprocessing": {
            "_target_": "Compose",
            "transforms": [
                {"_target_": "LoadImaged", "keys": "image", "dtype": "float32"},
                {"_target_": "EnsureChannelFirstd", "keys": "image"},
                *([turn] if orientation else []),
            ],
        },
        "dataset": {"_target_": "Dataset", "data": "@datalist", "transform": "@preprocessing"},
        "dataloader": {"_target_": "DataLoader", "dataset": "@dataset", "batch_size": 1, "shuffle": False},
        "inferer": inferer,
        "postprocessing": {
            "_target_": "Compose",
            "transforms": [
                {
                    "_target_": "Invertd",
                    "keys": "pred",
                    "transform": "@preprocessing",
                    "orig_keys": "image",
                    "nearest_interp": True,
                    "to_tensor": True,
                },
                *([_ONE_CHANNEL] if len(trained.channels) > 1 else []),
                {
                    "_target_": "SaveImaged",
                    "keys": "pred",
                    "output_dir": "@output_dir",
                    "output_postfix": "seg",
                    "output_dtype": label_dtype(values).name,
                    "resample": False,
                    "separate_folder": False,
                },
            ],
        },
        "handlers": [],
        "evaluator": {
            "_target_": "SupervisedEvaluator",
            "device": "@device",
            "val_data_loader": "@dataloader",
            "network": "@network_def",
            "inferer": "@inferer",
            "postprocessing": "@postprocessing",
            "val_handlers": "@handlers",
        },
        "initialize": ["$setattr(torch.backends.cudnn, 'allow_tf32', False)"],
        "run": ["$@evaluator.run()"],
    }


def _datalist(channels: int) -> str:
    """Return an expression for the scans of `dataset_dir`: a file each, or one for each channel."""
    if channels == 1:
        return "$[{'image': scan} for scan in sorted(glob.glob(os.path.join(@dataset_dir, '*.nii.gz')))]"
    return (
        f"$[{{'image': [scan[:-12] + '_%04d.nii.gz' % channel for channel in range({channels})]}} "
        "for scan in sorted(glob.glob(os.path.join(@dataset_dir, '*_0000.nii.gz')))]"
    )


def _usage(trained: Trained) -> str:
    channels = (
        ""
        if len(trained.channels) == 1
        else f"A scan has a file for each channel, in this order: {', '.join(trained.channels)} (`CASE_0000.nii.gz`, "
        "`CASE_0001.nii.gz`, …).\n"
    )
    return f"""```sh
pip install 'monai[fire,nibabel,ignite]'
python -m monai.bundle run --config_file BUNDLE/configs/inference.json --bundle_root BUNDLE \\
    --dataset_dir SCANS --output_dir LABELS
```

`SCANS` holds files `….nii.gz` as they come from the scanner; `LABELS` gets `…_seg.nii.gz` on their grids.
{channels}
In MONAI Label, and with it in 3D Slicer and OHIF: put the folder below the `model` folder of the app `monaibundle`.

`models/model.ts` is a TorchScript program. It takes a scan whose axes are turned, clips, scales, resamples and resizes
it, runs the network on each slice, and gives the label map in the data set's own values."""


def _limits(trained: Trained) -> list[str]:
    task = trained.task
    limits = ["A scan is held in memory as a whole, on a GPU in its memory."]
    if task.scan_preprocessing.orientation:
        limits.append(
            "A scan whose header does not say how it lies (qform and sform codes 0) is turned by what stands there."
        )
    if task.orientation is None and task.preprocessing.orientation is None:
        limits.append("Scans are not turned: they have to lie as the training data do.")
    return limits
