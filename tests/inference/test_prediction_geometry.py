"""Label maps lie on their scan, voxel for voxel, whatever the scan's grid and the run's preprocessing."""

import json
from dataclasses import replace

import nibabel as nib
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from adawac.data.cases import Case
from adawac.data.preprocessing import Preprocessing, quantile
from adawac.errors import ConfigError
from adawac.inference import volumes
from adawac.inference.prediction import predict
from adawac.inference.predictor import Predictor
from adawac.inference.scan_search import Scan
from adawac.inference.trained import load_trained
from adawac.inference.volumes import PreparedScan, Spool, open_scan
from tests.inference.made_runs import AFFINES, affine_of, make_run, noise, rotation, save, thresholded

VALUES = np.array([0, 7, 3])
GEOMETRY = ("qform_code", "sform_code", "srow_x", "srow_y", "srow_z", "quatern_b", "quatern_c", "quatern_d")
GEOMETRY += ("qoffset_x", "qoffset_y", "qoffset_z", "xyzt_units")


def sitk_grid(path):
    """Voxels by (x, y, z), and where SimpleITK puts them."""
    sitk = pytest.importorskip("SimpleITK")
    image = sitk.ReadImage(str(path))
    return sitk.GetArrayFromImage(image).transpose(2, 1, 0), [
        *image.GetOrigin(),
        *image.GetSpacing(),
        *image.GetDirection(),
    ]


def read(path):
    return np.asarray(nib.load(path).dataobj)


@pytest.mark.parametrize("geometry", AFFINES)
@pytest.mark.parametrize("codes", [(1, 2), (1, 0), (0, 4)], ids=str)
def test_nifti_overlays_its_scan(tmp_path, geometry, codes):
    image = noise()
    scan = save(tmp_path / "scan.nii.gz", image, AFFINES[geometry], codes)
    (done,) = predict(make_run(tmp_path / "run"), scan, tmp_path / "out", device="cpu")
    made, original = nib.load(done.labels), nib.load(scan)
    np.testing.assert_array_equal(read(done.labels), VALUES[thresholded(image)])
    np.testing.assert_array_equal(made.affine, original.affine)
    for name in GEOMETRY:
        np.testing.assert_array_equal(made.header[name], original.header[name], err_msg=name)
    np.testing.assert_array_equal(made.header["pixdim"][:4], original.header["pixdim"][:4])
    (labels, grid), (voxels, wanted) = sitk_grid(done.labels), sitk_grid(scan)
    assert grid == wanted
    np.testing.assert_array_equal(labels, VALUES[thresholded(voxels)])


def test_without_any_affine_the_header_says_as_little(tmp_path):
    scan = save(tmp_path / "scan.nii", noise(), codes=(0, 0))
    (done,) = predict(make_run(tmp_path / "run"), scan, tmp_path / "out", device="cpu")
    made = nib.load(done.labels)
    assert (int(made.header["qform_code"]), int(made.header["sform_code"])) == (0, 0)
    np.testing.assert_array_equal(made.affine, nib.load(scan).affine)


def test_nifti_2_big_endian_and_scaled_voxels(tmp_path):
    image = noise()
    run = make_run(tmp_path / "run")
    (tmp_path / "in").mkdir()
    nib.save(nib.Nifti2Image(image, AFFINES["oblique"], dtype=np.int16), tmp_path / "in" / "second.nii")
    header = nib.Nifti1Header(endianness=">")
    header.set_data_dtype(np.int16)
    header.set_data_shape(image.shape)
    header.set_sform(AFFINES["flipped"], 1)
    header.set_slope_inter(0.5, 100)
    with (tmp_path / "in" / "scaled.nii").open("wb") as file:
        header.write_to(file)
        file.write(((image - 100) * 2).astype(">i2").tobytes("F"))
    scaled, second = predict(run, tmp_path / "in", tmp_path / "out", device="cpu")
    assert isinstance(nib.load(second.labels), nib.Nifti2Image)
    for done in (scaled, second):
        np.testing.assert_array_equal(read(done.labels), VALUES[thresholded(image)])
        np.testing.assert_array_equal(nib.load(done.labels).affine, nib.load(done.scan.files[0]).affine)


def test_the_header_and_the_sidecar_name_the_classes_and_nobody_else(tmp_path):
    scan = save(tmp_path / "scan.nii.gz", noise())
    (done,) = predict(make_run(tmp_path / "run"), scan, tmp_path / "out", device="cpu")
    header = nib.load(done.labels).header
    classes = [
        {"index": 0, "value": 0, "name": "background"},
        {"index": 1, "value": 7, "name": "liver"},
        {"index": 2, "value": 3, "name": "left kidney"},
    ]
    assert json.loads(header.extensions[0].get_content())["classes"] == classes
    assert header.get_intent()[0] == "label"
    assert bytes(header["descrip"].item()).endswith(b"7 liver, 3 left kidney")
    sidecar = json.loads((tmp_path / "out" / "scan.json").read_text())
    assert sidecar["classes"] == classes
    assert sidecar["labels"] == "scan.nii.gz"
    assert sidecar["networks"][0]["checkpoint"] == "last"
    assert done.labels.read_bytes()[4:8] == bytes(4)  # no time: the same label map gives the same bytes
    for path in done.files:
        assert b"DOE" not in path.read_bytes()
        assert str(tmp_path).encode() not in path.read_bytes()


# -- the run's preprocessing ------------------------------------------------------------------------------------------

PREPARATIONS = {
    "axis 0": Preprocessing(axis=0, window=(0.0, 1000.0)),
    "axis 1": Preprocessing(axis=1, normalisation="z-score"),
    "RAS": Preprocessing(orientation="RAS", clip_quantile=0.9),
    "IPL, axis 1": Preprocessing(orientation="IPL", axis=1, window=(100.0, 900.0), normalisation="none"),
    "spacing": Preprocessing(spacing=(1.0, 1.3, 0.0), window=(0.0, 900.0), clip_quantile=0.8),
    "all": Preprocessing(orientation="SAR", spacing=(1.7, 0.9, 1.0), axis=0, normalisation="z-score"),
}


def whole_case(path):
    image = nib.load(path)
    return Case(
        dataset="small",
        patient="a",
        id="a",
        image=np.asarray(image.dataobj, dtype=np.float32)[None],
        spacing=tuple(float(size) for size in np.linalg.norm(image.affine[:3, :3], axis=0)),
        affine=image.affine,
        class_names=("background",),
    )


@pytest.mark.parametrize("blocks", [True, False])
@pytest.mark.parametrize("geometry", ["permuted", "oblique and flipped"])
@pytest.mark.parametrize("preparation", PREPARATIONS)
def test_blocks_are_prepared_as_whole_volumes_are(tmp_path, monkeypatch, preparation, geometry, blocks):
    if blocks:  # of one slice each
        monkeypatch.setattr(volumes, "BLOCK_VOXELS", 1)
    options = PREPARATIONS[preparation]
    # Long enough for the margins of a block not to reach both ends.
    shape = (12, 10, 90) if blocks and options.spacing else (12, 10, 9)
    scan = save(tmp_path / "scan.nii.gz", noise(shape), AFFINES[geometry])
    wanted = options.apply(whole_case(scan))
    expected = options.cut(wanted.image, channels=True)
    with Spool(open_scan(Scan(name="a", kind="nifti", files=(scan,)), ["image"]), tmp_path) as spool:
        prepared = PreparedScan(spool, options)
        got = np.concatenate([prepared.read(start, stop) for start, stop in prepared.blocks()])
    assert prepared.shape == wanted.shape
    if options.spacing or options.normalisation == "z-score":
        np.testing.assert_allclose(got, expected, rtol=1e-5, atol=1e-5 * np.abs(expected).max())
    else:
        np.testing.assert_array_equal(got, expected)


@pytest.mark.parametrize(
    ("images", "options"),
    [
        ([noise(), 7 * noise(seed=1) + 300], Preprocessing(clip_quantile=0.9)),  # each channel by its own range
        ([noise(), 7 * noise(seed=1) + 300], Preprocessing(normalisation="z-score")),
        ([np.full((12, 10, 6), 5, np.int16)], Preprocessing()),
        ([np.full((12, 10, 6), 5, np.int16)], Preprocessing(normalisation="z-score")),
        ([noise()], Preprocessing(window=(100.0, 300.0), clip_quantile=0.9)),  # the quantile lies beyond the window
        ([noise((12, 10, 2))], Preprocessing(spacing=(0.0, 0.0, 30.0))),  # thinner than a voxel
    ],
)
def test_odd_scans_are_prepared_as_whole_volumes_are(tmp_path, images, options):
    files = tuple(save(tmp_path / f"scan_{k:04d}.nii.gz", image) for k, image in enumerate(images))
    case = replace(whole_case(files[0]), image=np.stack(images).astype(np.float32))
    expected = options.cut(options.apply(case).image, channels=True)
    volume = open_scan(Scan(name="a", kind="nifti", files=files), [f"channel {k}" for k in range(len(files))])
    with Spool(volume, tmp_path) as spool:
        prepared = PreparedScan(spool, options)
        np.testing.assert_allclose(prepared.read(0, prepared.slices), expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("preparation", PREPARATIONS)
def test_label_maps_come_back_to_the_scans_grid(tmp_path, preparation):
    options = PREPARATIONS[preparation]
    scan = save(tmp_path / "scan.nii.gz", noise(), AFFINES["oblique and flipped"])
    run = make_run(tmp_path / "run", "tests.networks.threshold_network:ramp", (16, 16), preprocessing=options)
    (done,) = predict(run, scan, tmp_path / "out", values="index", device="cpu")
    case, trained = whole_case(scan), load_trained(run)
    slices = options.cut(options.apply(case).image, channels=True)
    (labels,) = Predictor([trained.network], (16, 16)).predict([slices])
    expected = options.undo(options.join(labels), case.shape, case.spacing, case.affine)
    assert len(np.unique(expected)) > 1
    assert (read(done.labels) != expected).mean() < (0.002 if options.spacing else 1e-9)
    np.testing.assert_array_equal(nib.load(done.labels).affine, nib.load(scan).affine)


@pytest.mark.parametrize("views", [{"interpolation": "cubic"}, {"mode": "released"}], ids=str)
def test_slices_are_resized_as_in_training(tmp_path, views):
    scan = save(tmp_path / "scan.nii.gz", noise((20, 14, 3)))
    run = make_run(tmp_path / "run", image_size=(9, 8), views=views)
    (done,) = predict(run, scan, tmp_path / "out", values="index", probabilities=True, device="cpu")
    trained = load_trained(run)
    assert trained.resize in ("cubic", "released")
    prepared = trained.preprocessing.apply(whole_case(scan)).image
    slices = trained.preprocessing.cut(prepared, channels=True)
    (expected,) = Predictor([trained.network], (9, 8), trained.resize).predict([slices])
    labels = read(done.labels)
    np.testing.assert_array_equal(labels, trained.preprocessing.join(expected))
    np.testing.assert_array_equal(read(done.files[2]).argmax(-1), labels)


# -- quantiles --------------------------------------------------------------------------------------------------------

floats = st.floats(-(2.0**100), 2.0**100, width=32) | st.sampled_from([0.0, -0.0, 1.0, 1e-40, -7.5])


@given(st.lists(floats, min_size=1, max_size=60), st.floats(0.01, 1.0), st.integers(1, 20))
def test_the_quantile_is_numpys(values, share, step):
    array = np.array(values, dtype=np.float32)
    passes = [array[start : start + step] for start in range(0, len(array), step)]
    assert quantile(passes, share) == np.quantile(array, share, method="inverted_cdf")


def test_the_quantile_of_many():
    array = np.random.default_rng(0).normal(size=200_000).astype(np.float32)
    for share in (0.5, 0.99, 0.995, 1.0):
        assert quantile([array], share) == np.quantile(array, share, method="inverted_cdf")


def test_the_quantile_of_more_voxels_than_float32_counts_well():
    count = 10_485_760  # some releases of NumPy multiply by the share in float32, and are one off here
    ramp = np.arange(count, dtype=np.float32)
    assert quantile([ramp], 0.99) == -(-count * 99 // 100) - 1


# -- the orientation of the training scans ----------------------------------------------------------------------------


def turned(image, affine, codes):
    """The same scan, with its voxel axes in another orientation."""
    nifti = nib.Nifti1Image(image, affine)
    turn = nib.orientations.ornt_transform(nib.io_orientation(affine), nib.orientations.axcodes2ornt(tuple(codes)))
    other = nifti.as_reoriented(turn)
    return np.asarray(other.dataobj), other.affine


def note_facts(run, **facts):
    """Add facts to what a run knows of its data."""
    data = json.loads((run / "data.json").read_text())
    (run / "data.json").write_text(json.dumps(data | facts))


@pytest.mark.parametrize("codes", ["LPS", "SAR", "PIL"])
def test_a_scan_is_cut_along_the_anatomical_axis_that_was_trained_on(tmp_path, codes):
    run = make_run(tmp_path / "run", "tests.networks.threshold_network:ramp", (16, 16))
    note_facts(run, orientation="RAS")
    affine = AFFINES["anisotropic"]
    save(tmp_path / "in" / "as_trained.nii.gz", noise(), affine)
    save(tmp_path / "in" / "turned.nii.gz", *turned(noise(), affine, codes))
    first, second = predict(run, tmp_path / "in", tmp_path / "out", device="cpu")
    back, _ = turned(read(second.labels), nib.load(second.labels).affine, "RAS")
    np.testing.assert_array_equal(back, read(first.labels))
    np.testing.assert_array_equal(nib.load(second.labels).affine, nib.load(tmp_path / "in" / "turned.nii.gz").affine)
    assert json.loads((tmp_path / "out" / "turned.json").read_text())["preprocessing"]["orientation"] == "RAS"
    assert (first.doubt, second.doubt) == ("", "")


def test_a_scan_between_the_anatomical_axes_is_taken_as_it_is_with_a_doubt(tmp_path):
    run = make_run(tmp_path / "run", "tests.networks.threshold_network:ramp", (16, 16))
    scan = save(tmp_path / "scan.nii.gz", noise(), affine_of(rotation(50, 0)))
    (unknown,) = predict(run, scan, tmp_path / "unknown", device="cpu")
    note_facts(run, orientation="RAS")
    (known,) = predict(run, scan, tmp_path / "known", device="cpu")
    np.testing.assert_array_equal(read(known.labels), read(unknown.labels))
    assert unknown.doubt == ""
    assert "RAS" in known.doubt


def test_networks_of_another_orientation_do_not_vote_together(tmp_path):
    runs = [make_run(tmp_path / name) for name in ("a", "b", "c")]
    scan = save(tmp_path / "scan.nii.gz", noise(), AFFINES["flipped"])
    note_facts(runs[0], orientation="RAS")
    assert predict([runs[2], runs[0]], scan, tmp_path / "out", device="cpu")[0].error == ""
    note_facts(runs[1], orientation="LPS")
    with pytest.raises(ConfigError, match="orientation"):
        predict([runs[2], *runs[:2]], scan, tmp_path / "out", device="cpu", overwrite=True)
