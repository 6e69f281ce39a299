"""A MONAI bundle: what MONAI makes of it without adawac is what `predict` gives, voxel for voxel."""

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path

import nibabel as nib
import numpy as np
import pytest

from adawac.cli import run as command
from adawac.data.preprocessing import PICTURES, Preprocessing
from adawac.errors import AdawacError, ConfigError, RunError
from adawac.inference.model_export import export_model
from adawac.inference.prediction import predict
from adawac.inference.trained import ENSEMBLE
from tests.inference.made_runs import AFFINES, make_run, noise, save

TEXTURE = "tests.networks.threshold_network:texture"
NETWORK, SMALL = "smp:Unet/tu-mobilenetv3_small_050", {"encoder_depth": 3, "decoder_channels": [8, 8, 8]}
LICENSE = {"format": "monai-bundle", "license": "apache-2.0"}
with_monai = pytest.mark.skipif(
    any(importlib.util.find_spec(name) is None for name in ("monai", "ignite", "jsonschema")), reason="needs MONAI"
)

#: The parts of MONAI's schema of 2024-07-25 that a bundle has to keep to.
TENSOR = {
    "type": "object",
    "properties": {
        "type": {"type": "string"},
        "format": {"type": "string"},
        "dtype": {"type": "string"},
        "num_channels": {"type": "integer"},
        "is_patch_data": {"type": "boolean"},
        "channel_def": {"type": "object"},
        "spatial_shape": {"type": "array", "items": {"type": ["string", "integer"]}},
        "value_range": {"type": "array", "items": {"type": "number"}},
    },
    "required": ["type", "format", "num_channels", "spatial_shape", "dtype", "value_range"],
}
TEXTS = ["schema", "version", "monai_version", "pytorch_version", "numpy_version", "task", "description", "authors"]
TEXTS += ["copyright", "intended_use", "data_type", "image_classes", "label_classes", "pred_classes"]
SCHEMA = {
    "type": "object",
    "properties": {
        **{name: {"type": "string"} for name in TEXTS},
        **{name: {"type": "object"} for name in ("changelog", "required_packages_version", "eval_metrics")},
        "references": {"type": "array", "items": {"type": "string"}},
        "network_data_format": {
            "type": "object",
            "properties": {part: {"additionalProperties": TENSOR} for part in ("inputs", "outputs")},
            "required": ["inputs", "outputs"],
        },
    },
    "required": [*TEXTS[:9], "required_packages_version", "network_data_format"],
}

#: Runs in a process that cannot import adawac: MONAI's own checks of a bundle, and its inference on all scans.
WITHOUT_ADAWAC = """
import sys, warnings
warnings.simplefilter("ignore")
sys.modules["adawac"] = sys.modules["tests"] = None
from monai.bundle import ConfigWorkflow, run, verify_metadata, verify_net_in_out
schema, *bundles = sys.argv[1:]
for bundle in bundles:
    files = {"config_file": f"{bundle}/configs/inference.json", "meta_file": f"{bundle}/configs/metadata.json"}
    verify_metadata(meta_file=files["meta_file"], filepath=schema)
    workflow = ConfigWorkflow(workflow_type="infer", bundle_root=bundle, **files)
    workflow.initialize()
    assert not workflow.check_properties(), workflow.check_properties()
    import torch
    affine = {"affine": torch.eye(4)}
    verify_net_in_out("network_def", device="cpu", any=8, extra_forward_args=affine, bundle_root=bundle, **files)
    run(bundle_root=bundle, dataset_dir=f"{bundle}/scans", output_dir=f"{bundle}/labels", **files)
"""

RUNS = {
    "window": ({"preprocessing": Preprocessing(window=(0.0, 1000.0))}, ("image",)),
    "turned": (
        {
            "preprocessing": Preprocessing(orientation="RAS", axis=1, clip_quantile=0.97),
            "views": {"interpolation": "cubic"},
        },
        ("image",),
    ),
    "resampled": ({"preprocessing": Preprocessing(orientation="LPS", spacing=(1.3, 0.9, 3.0), axis=0)}, ("image",)),
    "two channels": ({"preprocessing": Preprocessing(normalisation="z-score")}, ("t1", "t2")),
    "unet": ({"model": NETWORK, "options": SMALL, "image_size": (32, 32)}, ("image",)),
}


def scans_of(folder, channels):
    """A scan of each geometry, of which each channel is a file."""
    for number, affine in enumerate(AFFINES.values()):
        for channel in range(len(channels)):
            name = f"case{number}" + (f"_{channel:04d}" if len(channels) > 1 else "")
            save(folder / f"{name}.nii.gz", noise((21, 17, 9), 10 * number + channel), affine)
    return folder


@pytest.fixture(scope="module")
def bundles(tmp_path_factory):
    """A bundle of each run, beside the run and its scans."""
    root = tmp_path_factory.mktemp("bundles")
    for name, (options, channels) in RUNS.items():
        run = make_run(root / "runs" / name, **{"model": TEXTURE, "channels": channels, **options})
        export_model(run, root / name, **LICENSE)
        scans_of(root / name / "scans", channels)
    return root


@with_monai
def test_label_maps_are_those_of_predict(bundles):
    (bundles / "schema.json").write_text(json.dumps(SCHEMA))
    words = [sys.executable, "-c", WITHOUT_ADAWAC, "schema.json", *RUNS]
    done = subprocess.run(words, cwd=bundles, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    for name in RUNS:
        predictions = predict(
            bundles / "runs" / name, bundles / name / "scans", bundles / "wanted" / name, device="cpu"
        )
        assert len(predictions) == len(AFFINES)
        classes = set()
        for prediction in predictions:
            wanted = nib.load(prediction.labels)
            first = prediction.scan.files[0].name.removesuffix(".nii.gz")
            got = nib.load(bundles / name / "labels" / f"{first}_seg.nii.gz")
            np.testing.assert_array_equal(np.asarray(got.dataobj), np.asarray(wanted.dataobj), err_msg=str(first))
            np.testing.assert_allclose(got.affine, wanted.affine, atol=1e-4)
            assert got.get_data_dtype() == np.uint8
            classes |= set(np.unique(np.asarray(wanted.dataobj)).tolist())
        assert classes == {0, 3, 7}, name


def test_the_files_and_what_they_say(bundles):
    bundle = bundles / "resampled"
    files = {path.relative_to(bundle).as_posix() for path in bundle.rglob("*") if path.is_file()}
    described = {"configs/metadata.json", "configs/inference.json", "docs/README.md", "LICENSE", "models/model.ts"}
    assert described <= files
    assert all(name in described or name.split("/")[0] in ("scans", "labels") for name in files)
    assert (bundle / "LICENSE").read_text() == "SPDX-License-Identifier: apache-2.0\n"
    metadata = json.loads((bundle / "configs" / "metadata.json").read_text())
    assert metadata["license"] == "apache-2.0"
    prediction = metadata["network_data_format"]["outputs"]["pred"]
    assert prediction["channel_def"] == {"0": "background", "7": "liver", "3": "left kidney"}
    for path in (path for path in bundle.rglob("*") if path.suffix in (".json", ".md", "")):
        assert path.is_dir() or str(bundles) not in path.read_text()
    text = (bundle / "docs" / "README.md").read_text()
    assert "1.3 × 0.9 × 3 mm" in text
    assert "monai.bundle run" in text


def picture_run(folder):
    colours = ("red", "green", "blue")
    return make_run(folder, TEXTURE, preprocessing=PICTURES, channels=colours)


def unfinished(folder):
    run = make_run(folder, TEXTURE)
    info = json.loads((run / "run.json").read_text())
    (run / "run.json").write_text(json.dumps(info | {"status": "running"}))
    return run


def ensemble(folder):
    folder.mkdir()
    (folder / ENSEMBLE).write_text('{"format_version": 1, "members": ["fold-1"]}')
    return folder


@pytest.mark.parametrize("format", ["monai-bundle", "hub"])
@pytest.mark.parametrize(
    ("make", "options", "message"),
    [
        (make_run, {"license": None}, "no licence was chosen. Give one: `license='apache-2.0'`"),
        (make_run, {"license": "my licence, v1"}, "Expected a licence by its identifier"),
        (unfinished, {}, "Expected a finished run to share, but .* is interrupted"),
        (ensemble, {}, "is an ensemble, which only `adawac predict` takes"),
        (
            lambda folder: make_run(folder, preprocessing=Preprocessing(unit="volume")),
            {},
            "Expected a network for slices, but .* is one for a volume",
        ),
    ],
)
def test_what_is_not_shared(tmp_path, format, make, options, message):
    run = make(tmp_path / "run")
    with pytest.raises(AdawacError, match=message):
        export_model(run, tmp_path / "out", **{**LICENSE, "format": format, **options})
    assert not (tmp_path / "out").exists()


def test_pictures_are_no_scans(tmp_path):
    run = picture_run(tmp_path / "run")
    with pytest.raises(ConfigError, match=r"Expected a network for scans, .* pictures \(red, green, blue\)"):
        export_model(run, tmp_path / "out", **LICENSE)
    assert not (tmp_path / "out").exists()


def test_weights_of_an_unfinished_run_are_shared_by_name(tmp_path):
    export_model(unfinished(tmp_path / "run"), tmp_path / "out", checkpoint="last", **LICENSE)
    assert (tmp_path / "out" / "models" / "model.ts").is_file()


def test_what_exists_stays(tmp_path):
    run = make_run(tmp_path / "run", TEXTURE)
    other = tmp_path / "other"
    other.mkdir()
    (other / "thesis.txt").touch()
    with pytest.raises(ConfigError, match="something else"):
        export_model(run, other, overwrite=True, **LICENSE)
    out = export_model(run, tmp_path / "out", **LICENSE).path
    with pytest.raises(ConfigError, match=r"exists\. Give `overwrite=True`"):
        export_model(run, out, **LICENSE)
    with pytest.raises(ConfigError, match="something else"):
        export_model(run, out, format="hub", license="mit", overwrite=True)
    (out / "LICENSE").unlink()
    export_model(run, out, overwrite=True, **LICENSE)
    assert (out / "LICENSE").is_file()


def test_a_network_that_cannot_be_traced(tmp_path, monkeypatch):
    run = make_run(tmp_path / "run", TEXTURE)

    def trace(*_, **__):
        raise RuntimeError("first\nCannot insert a Tensor that requires grad as a constant")

    monkeypatch.setattr("torch.jit.trace", trace)
    with pytest.raises(RunError, match=r"torch\.jit can trace, but .*texture' cannot be \(Cannot insert"):
        export_model(run, tmp_path / "out", **LICENSE)
    assert not (tmp_path / "out").exists()


def test_the_command(tmp_path, capsys):
    run = make_run(tmp_path / "run", TEXTURE)
    words = ["export", str(run), "--format", "monai-bundle", "--out", str(tmp_path / "out")]
    assert command(words) == 2
    assert "no licence was chosen. Give one: --license apache-2.0" in capsys.readouterr().err
    assert command([*words, "--license", "cc-by-4.0"]) == 0
    assert "python -m monai.bundle run --config_file" in capsys.readouterr().out
    for wrong, message in {
        ("--out", "x", "--hub", "y"): "--out, with or without a --format, or else --hub",
        (): "--out, with or without a --format, or else --hub",
        ("--hub", "x", "--format", "onnx"): "--out, with or without a --format, or else --hub",
        ("--out", "x", "--format", "onnx"): "Expected a file ….onnx for the format onnx, but got x",
        ("--out", "x.onnx", "--format", "hub", "--license", "mit"): "Expected a folder for the format hub",
        ("--out", "x", "--license", "mit"): "Expected a licence for hub and monai-bundle alone",
    }.items():
        assert command(["export", str(run), *wrong]) == 2
        assert message in capsys.readouterr().err
    assert not Path("x").exists()


@with_monai
@pytest.mark.slow
def test_the_command_line_of_monai(bundles, tmp_path):
    pytest.importorskip("fire")
    bundle = bundles / "turned"
    words = ["--config_file", bundle / "configs" / "inference.json", "--bundle_root", bundle]
    words += ["--dataset_dir", bundle / "scans", "--output_dir", tmp_path]
    environment = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    subprocess.run([sys.executable, "-m", "monai.bundle", "run", *map(str, words)], check=True, env=environment)
    assert len(list(tmp_path.glob("*_seg.nii.gz"))) == len(AFFINES)
