"""The store: what goes in comes out, on the source's own grid."""

import json
import pickle
from pathlib import Path

import nibabel as nib
import numpy as np
import pytest

from adawac.data.preparation import prepare
from adawac.data.store import Store
from adawac.errors import ConfigError, DataError, MissingFileError
from tests.data.scans import AFFINES, make_nnunet, scan, write_nifti


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    root = tmp_path_factory.mktemp("store")
    return prepare("nifti", make_nnunet(root / "in", cases=3), root / "out", workers=1)


@pytest.mark.parametrize("name", AFFINES)
@pytest.mark.parametrize("orientation", [None, "RAS", "PIL"])
def test_nifti_in_and_out_keeps_affine_and_label_bit_for_bit(tmp_path, name, orientation):
    root = make_nnunet(tmp_path / "in", cases=1, affine=AFFINES[name])
    store = prepare("nifti", root, tmp_path / "out", workers=1, orientation=orientation)
    store.export_nifti("case_00", tmp_path / "label.nii.gz")
    written, original = nib.load(tmp_path / "label.nii.gz"), nib.load(root / "labelsTr" / "case_00.nii.gz")
    np.testing.assert_array_equal(written.affine, original.affine)
    assert written.get_data_dtype() == original.get_data_dtype()
    assert np.asarray(written.dataobj).tobytes() == np.asarray(original.dataobj).tobytes()
    if orientation:
        volume = store.volume("case_00")
        assert "".join(nib.aff2axcodes(volume.affine)) == orientation
        # The same voxel at the same place in the world.
        position = np.linalg.inv(original.affine) @ volume.affine @ [1, 2, 3, 1]
        np.testing.assert_allclose(position, np.round(position), atol=1e-4)
        assert volume.label[1, 2, 3] == scan()[1][tuple(np.round(position).astype(int)[:3])]


@pytest.mark.parametrize("dtype", [np.int8, np.int16, np.uint16, np.int32, np.int64, ">i2"])
def test_label_values_and_type_come_back(tmp_path, dtype):
    root = make_nnunet(tmp_path / "in", cases=1)
    label = np.array([0, 7, 101])[scan()[1]].astype(dtype)
    write_nifti(root / "labelsTr" / "case_00.nii.gz", label)
    store = prepare("nifti", root, tmp_path / "out", classes={"a": 101, "b": 7}, workers=1)
    np.testing.assert_array_equal(store.volume("case_00").label, np.array([0, 2, 1])[scan()[1]])
    store.export_nifti("case_00", tmp_path / "label.nii")
    written = nib.load(tmp_path / "label.nii")
    np.testing.assert_array_equal(np.asarray(written.dataobj), label)
    assert written.get_data_dtype() == np.dtype(dtype).newbyteorder("=")


@pytest.mark.parametrize("orientation", [None, "LPS"])
def test_resampled_scans_keep_their_native_label(tmp_path, orientation):
    affine = AFFINES["oblique and flipped"]
    root = make_nnunet(tmp_path / "in", cases=1, affine=affine, shape=(12, 10, 6))
    options = {"orientation": orientation, "spacing": (1.6, 0, 2.0), "workers": 1}
    store = prepare("nifti", root, tmp_path / "out", **options)
    volume = store.volume("case_00")
    np.testing.assert_allclose(volume.spacing, (1.6, 1.1, 2.0), rtol=1e-6)
    np.testing.assert_allclose(nib.affines.voxel_sizes(volume.affine), volume.spacing, rtol=1e-6)
    assert volume.shape == (6, 10, 12)
    # Both grids have the same centre.
    centres = [a @ [*((np.array(s) - 1) / 2), 1] for a, s in ((volume.affine, volume.shape), (affine, (12, 10, 6)))]
    np.testing.assert_allclose(*centres, atol=1e-4)
    store.export_nifti("case_00", tmp_path / "label.nii.gz")
    np.testing.assert_array_equal(np.asarray(nib.load(tmp_path / "label.nii.gz").dataobj), scan()[1])
    assert store.table.id[0].split("/")[3] == f"{orientation or ''}2@2mm"


def test_a_prediction_goes_back_to_the_native_grid(tmp_path):
    affine = AFFINES["permuted"]
    root = make_nnunet(tmp_path / "in", cases=1, affine=affine, shape=(16, 12, 8))
    label = np.zeros((16, 12, 8), np.uint8)
    label[3:13, 4:9, 2:7] = 2
    write_nifti(root / "labelsTr" / "case_00.nii.gz", label, affine)
    store = prepare("nifti", root, tmp_path / "out", workers=1, orientation="RAS", spacing=(0.5, 0.4, 0.3))
    prediction = store.volume("case_00").label
    assert np.mean(store.native_label("case_00", prediction) == label) > 0.99
    with pytest.raises(DataError, match="fills"):
        Store(prepare("nifti", root, tmp_path / "plain", workers=1).path).native_label("case_00", prediction)


def test_samples_are_read_only_slices_of_the_volumes(store):
    samples = store.samples("train")
    image, label = samples[7]
    assert not image.flags.writeable
    volume = store.volume("case_01")
    np.testing.assert_array_equal(image, volume.image[..., 1])
    np.testing.assert_array_equal(label, volume.label[..., 1])
    assert samples.ids[7] == "Small/case_01/case_01/2/1"
    assert samples.table.slice[7] == samples.table.position[7] == 1
    assert len(samples[2:5]) == 3
    sparse = sum(not samples[row][1].any() for row in range(len(samples)))
    assert repr(samples) == f"Samples({len(samples)} of Small, {sparse} label-sparse)"
    with pytest.raises(IndexError):
        samples[len(samples)]


def test_the_table_says_what_the_labels_hold(store):
    for row, (_, label) in enumerate(store.samples(split=None)):
        share = np.bincount(label.ravel(), minlength=3) / label.size
        np.testing.assert_array_equal(store.table.fraction[row], share)
    assert store.table.label_sparse.tolist() == ([True] + [False] * 4 + [True]) * 3
    assert set(map(tuple, store.table.shape.tolist())) == {(12, 10)}


def test_a_store_travels_to_another_process(store):
    copy = pickle.loads(pickle.dumps(store.samples("train")))
    np.testing.assert_array_equal(copy[4][0], store.samples("train")[4][0])


def test_a_store_travels_without_its_table(store):
    copy = pickle.loads(pickle.dumps(store))
    np.testing.assert_array_equal(copy.volume("case_01").label, store.volume("case_01").label)
    assert copy.cases == store.cases
    assert "table" not in vars(copy)
    np.testing.assert_array_equal(copy.table.id, store.table.id)


@pytest.mark.skipif(not Path("/proc/self/fd").is_dir(), reason="needs /proc")
def test_no_file_of_a_store_stays_open(store):
    before = len(list(Path("/proc/self/fd").iterdir()))
    samples = Store(store.path).samples(split=None)
    read = list(samples)
    assert len(list(Path("/proc/self/fd").iterdir())) == before
    assert len(read) == len(samples)


@pytest.mark.parametrize("name", ["image.npy", "label.npy"])
def test_a_file_that_shrinks_while_a_store_is_open_is_named(tmp_path, name):
    store = prepare("nifti", make_nnunet(tmp_path / "in", cases=1), tmp_path / "out", workers=1)
    store.read("case_00", 0)
    path = store.path / "cases" / "case_00" / name
    path.write_bytes(path.read_bytes()[:200])
    for read in (lambda: store.read("case_00", 5), lambda: store.volume("case_00")):
        with pytest.raises(DataError, match=f"{name} cannot be read .*ends early"):
            read()


def test_wrong_names_are_answered(store):
    with pytest.raises(DataError, match="'case_01'"):
        store.volume("case_1")
    with pytest.raises(DataError, match=r"split 'val'.*it has train.*--split"):
        store.samples("val")
    with pytest.raises(ConfigError, match="subset"):
        store.samples("train", "third")
    assert [case.id for case in store.volumes("train")] == ["case_00", "case_01", "case_02"]
    assert "3 cases, 18 samples" in repr(store)


def test_a_store_of_another_version_is_refused(tmp_path):
    root = prepare("nifti", make_nnunet(tmp_path / "in", cases=1), tmp_path / "out", workers=1).path
    info = json.loads((root / "store.json").read_text())
    (root / "store.json").write_text(json.dumps({**info, "format_version": 99}))
    with pytest.raises(DataError, match="format version 3 or older, but got 99"):
        Store(root)


@pytest.mark.parametrize(
    ("file", "content"),
    [
        ("store.json", b'{"format_ver'),
        ("store.json", b"[1]"),
        ("store.json", b""),
        ("store.json", b"{}"),
        ("store.json", b'{"format_version": 1}'),
        (
            "store.json",
            b'{"format_version": 1, "dataset": "in", "class_names": [], "channels": [], "preprocessing": 3}',
        ),
        ("table.csv", None),
        ("table.csv", b""),
        ("table.csv", "half"),
        ("table.csv", b'"' + b"x" * 200_000),
        ("cases/case_01/case.json", None),
        ("cases/case_01/case.json", b"{}"),
        ("cases/case_01/image.npy", "half"),
        ("cases/case_01/label.npy", b""),
    ],
)
def test_a_damaged_store_names_the_file_and_what_to_do(tmp_path, file, content):
    made = prepare("nifti", make_nnunet(tmp_path / "in"), tmp_path / "out", workers=1)
    path = made.path / file
    if content is None:
        path.unlink()
    else:
        path.write_bytes(path.read_bytes()[: path.stat().st_size // 2] if content == "half" else content)
    with pytest.raises(DataError, match=r"(whole store|facts of a data set).*`adawac prepare` again") as caught:
        Store(made.path).volume("case_01")
    assert file in str(caught.value)
    again = prepare("nifti", tmp_path / "in", tmp_path / "out", workers=1)
    np.testing.assert_array_equal(again.volume("case_01").label, made.volume("case_01").label)
    assert again.table.id.tolist() == made.table.id.tolist()


def test_a_store_that_is_gone_is_not_called_unfinished(tmp_path):
    with pytest.raises(MissingFileError, match=r"gone is not there. Correct the path.*adawac train STORE --out RUN"):
        Store(tmp_path / "gone")
    with pytest.raises(MissingFileError, match=r"no store.json. Run `adawac prepare` \(again"):
        Store(tmp_path)
