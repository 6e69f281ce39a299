"""Bad input: one message that names the file and the fix, and nothing half-written."""

import errno
import os
from dataclasses import dataclass

import nibabel as nib
import numpy as np
import pytest

from adawac.data import store_writer
from adawac.data.cases import Case, CaseRef
from adawac.data.diagnosis import diagnose
from adawac.data.preparation import prepare
from adawac.data.sources import Source
from adawac.data.store import is_store
from adawac.errors import DataError, MissingFileError
from tests.data.scans import flip_bit, make_acdc, make_nnunet, scan, write_h5, write_nifti

SINGULAR = np.array([[1.0, 1, 0, 0], [0, 0, 0, 0], [0, 0, 1, 0], [0, 0, 0, 1]])
IMAGE, LABEL = "imagesTr/case_00_0000.nii.gz", "labelsTr/case_00.nii.gz"


def overwrite(root, name, array, affine=None):
    write_nifti(root / name, array, affine)


def cut(root, name):
    path = root / name
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def shifted(by):
    affine = np.eye(4)
    affine[0, 3] = by
    return affine


def with_nan(value):
    image = scan()[0].astype(np.float32)
    image[3, 4, 2] = value
    return image


# What is done to a good nnU-Net folder → (what the message must say, the file that it must name).
FAULTS = {
    "missing label": (lambda root: (root / LABEL).unlink(), "none of them has one.*label", "case_00_0000.nii.gz"),
    "shape mismatch": (lambda root: overwrite(root, LABEL, scan((12, 10, 7))[1]), "Expected the shape", LABEL),
    "affine mismatch": (lambda root: overwrite(root, LABEL, scan()[1], shifted(2.0)), "corners by up to 2 mm", LABEL),
    "NaN image": (lambda root: overwrite(root, IMAGE, with_nan(np.nan)), "1 NaN or infinite voxels", IMAGE),
    "infinite image": (lambda root: overwrite(root, IMAGE, with_nan(np.inf)), "1 NaN or infinite voxels", IMAGE),
    "value outside the map": (lambda root: overwrite(root, LABEL, scan()[1] * 5), r"got \[5, 10\].*`classes`", LABEL),
    "negative value": (lambda root: overwrite(root, LABEL, scan()[1].astype(np.int16) - 1), r"got \[-1\]", LABEL),
    "float label": (lambda root: overwrite(root, LABEL, scan()[1] * np.float32(0.5)), "fractions or NaN", LABEL),
    "4D image": (lambda root: overwrite(root, IMAGE, np.zeros((12, 10, 6, 3), np.int16)), "Expected a 3D image", IMAGE),
    "2D image": (lambda root: overwrite(root, IMAGE, scan()[0][..., 0]), r"single slice as .*\(12, 10, 1\)", IMAGE),
    "4D label": (lambda root: overwrite(root, LABEL, np.zeros((12, 10, 6, 2), np.uint8)), "3D label map", LABEL),
    "truncated image": (lambda root: cut(root, IMAGE), "truncated: copy or download", IMAGE),
    "truncated label": (lambda root: cut(root, LABEL), "truncated: copy or download", LABEL),
    "flipped bit in an image": (lambda root: flip_bit(root / IMAGE), "CRC check failed.*copy or download", IMAGE),
    "flipped bit in a label": (lambda root: flip_bit(root / LABEL), "CRC check failed.*copy or download", LABEL),
    "no NIfTI at all": (lambda root: (root / IMAGE).write_bytes(b"hello"), "cannot be read", IMAGE),
    "channel left out": (
        lambda root: overwrite(root, "imagesTr/case_00_0002.nii.gz", scan()[0]),
        "Expected the channels 0000, 0001 of case case_00, but .* has 0000, 0002",
        "imagesTr",
    ),
    "no image channel": (
        lambda root: (root / IMAGE).rename(root / "imagesTr/case_00.nii.gz"),
        "Rename",
        "case_00.nii.gz",
    ),
    "colour image": (
        lambda root: overwrite(root, IMAGE, np.zeros((12, 10, 6), [("R", "u1"), ("G", "u1"), ("B", "u1")])),
        "grey-value",
        IMAGE,
    ),
    "broken description": (lambda root: (root / "dataset.json").write_text("{"), "Expected JSON", "dataset.json"),
    "unusable affine": (lambda root: overwrite(root, IMAGE, scan()[0], SINGULAR), "invertible", IMAGE),
    "copy under another ending": (
        lambda root: overwrite(root, "labelsTr/case_00.nii", scan()[1]),
        "Remove the copy",
        "case_00.nii",
    ),
    "name that differs in case only": (
        lambda root: make_nnunet(root, cases=1, names=["CASE_00"]),
        "ids that differ",
        "CASE_00_0000.nii.gz",
    ),
}  # fmt: skip


@pytest.mark.parametrize("fault", FAULTS)
def test_a_bad_folder_is_refused_with_the_file_and_the_fix(tmp_path, fault):
    root = make_nnunet(tmp_path / "in", cases=1)
    spoil, message, file = FAULTS[fault]
    spoil(root)
    with pytest.raises(DataError, match=message) as caught:
        prepare("nifti", root, tmp_path / "out", workers=1)
    assert file in str(caught.value)
    assert not (tmp_path / "out").exists()


def test_all_bad_cases_are_named_at_once_and_the_good_ones_kept(tmp_path):
    root = make_nnunet(tmp_path / "in", cases=4)
    cut(root, IMAGE)
    overwrite(root, "labelsTr/case_02.nii.gz", scan()[1] * 9)
    with pytest.raises(DataError) as caught:
        prepare("nifti", root, tmp_path / "out", workers=2)
    assert "2 of 4 cases cannot be used" in str(caught.value)
    assert "\n2 of 4 cases are done and kept: prepare again when" in str(caught.value)
    assert "case_00_0000.nii.gz" in str(caught.value)
    assert "case_02.nii.gz" in str(caught.value)
    assert sorted(path.name for path in (tmp_path / "out" / "cases").iterdir()) == ["case_01", "case_03"]
    assert not is_store(tmp_path / "out")
    make_nnunet(root, cases=4)
    cut(root, IMAGE)
    with pytest.raises(DataError, match=r"case_00_0000.*\n3 of 4 cases are done"):
        prepare("nifti", root, tmp_path / "out", workers=1)
    make_nnunet(root, cases=4)
    assert len(prepare("nifti", root, tmp_path / "out", workers=1).cases) == 4


def test_the_same_fault_in_many_cases_is_said_once_with_a_count(tmp_path):
    root = make_nnunet(tmp_path / "in", cases=13)
    for k in range(12):
        overwrite(root, f"labelsTr/case_{k:02d}.nii.gz", scan()[1] * 9)
    with pytest.raises(DataError, match="12 of 13 cases cannot be used") as caught:
        prepare("nifti", root, tmp_path / "out", workers=1)
    assert str(caught.value).count("Expected the label values") == 1
    assert "11 more cases" in str(caught.value)
    assert "labelsTr/case_09.nii.gz" in str(caught.value)
    (fault,) = diagnose(root, workers=1).faults
    assert "11 more cases" in fault


def test_pictures_are_not_called_truncated(tmp_path):
    for name in ("a/1.png", "a/2.png", "b/1.png", "b/2.png"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(b"\x89PNG\r\n\x1a\n" + bytes(100))
    with pytest.raises(DataError, match=r"NIfTI files, but .*a/1\.png is a picture") as caught:
        prepare("nifti", tmp_path, tmp_path / "out", images="a/*.png", labels="b/*.png", workers=1)
    assert "truncated" not in str(caught.value)


@pytest.mark.parametrize("folder", ["images", "."])
def test_a_folder_of_pictures_is_called_so(tmp_path, folder):
    for name in (f"{folder}/1.png", "masks/1.png"):
        (tmp_path / "in" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "in" / name).write_bytes(b"\x89PNG\r\n\x1a\n")
    with pytest.raises(DataError, match=r"1\.png is a picture\. Use the source pictures"):
        prepare("nifti", tmp_path / "in", tmp_path / "out", workers=1)


def test_a_link_to_nothing_is_called_so(tmp_path):
    root = make_nnunet(tmp_path / "in", cases=2)
    (root / LABEL).unlink()
    (root / LABEL).symlink_to(tmp_path / "gone")
    with pytest.raises(DataError, match=r"case_00\.nii\.gz leads nowhere"):
        prepare("nifti", root, tmp_path / "out", workers=1)


def test_small_differences_of_the_affine_are_rounding(tmp_path):
    root = make_nnunet(tmp_path / "in", cases=1)
    overwrite(root, LABEL, scan()[1], shifted(0.01))
    assert prepare("nifti", root, tmp_path / "out", workers=1).cases == ("case_00",)


def test_a_volume_that_is_written_as_a_series_of_one_is_a_volume(tmp_path):
    plain = prepare("nifti", make_nnunet(tmp_path / "plain", cases=1, channels=2), tmp_path / "a", workers=1)
    root = make_nnunet(tmp_path / "four", cases=1, channels=2)
    for name in (IMAGE, "imagesTr/case_00_0001.nii.gz", LABEL):
        overwrite(root, name, np.asarray(nib.load(root / name).dataobj)[..., None])
    four = prepare("nifti", root, tmp_path / "b", workers=1)
    for expected, read in zip(plain.stack("case_00"), four.stack("case_00"), strict=True):
        np.testing.assert_array_equal(expected, read)


@pytest.mark.parametrize("size", [1e4, 1e9])
def test_voxels_too_large_to_be_resampled(tmp_path, size):
    root = make_nnunet(tmp_path / "in", cases=1, affine=np.diag([size, size, size, 1.0]))
    with pytest.raises(DataError, match=r"case_00_0000\.nii\.gz .*has voxels of .* micrometres"):
        prepare("nifti", root, tmp_path / "out", workers=1, spacing=(1.0, 1.0, 1.0))


@pytest.mark.parametrize("source", ["acdc", "synapse", "nifti", "dicom"])
def test_an_empty_folder_says_what_is_expected(tmp_path, source):
    (tmp_path / "in").mkdir()
    with pytest.raises(DataError, match=r"Expected .*in"):
        prepare(source, tmp_path / "in", tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_a_truncated_h5_is_named(tmp_path):
    path = write_h5(tmp_path / "in" / "ACDC_training_volumes" / "patient031_frame01.h5", *scan((6, 60, 60), 4))
    path.write_bytes(path.read_bytes()[:2000])
    with pytest.raises(DataError, match=r"patient031_frame01\.h5 cannot be read.*truncated"):
        prepare("acdc", tmp_path / "in", tmp_path / "out", workers=1)
    assert not (tmp_path / "out").exists()


def test_h5_without_a_label_and_of_another_shape(tmp_path):
    import h5py

    path = tmp_path / "in" / "ACDC_training_volumes" / "patient031_frame01.h5"
    image, label = scan((6, 7, 8), 4)
    write_h5(path, image, label[:-1])
    with pytest.raises(DataError, match=r"\(6, 7, 8\) and \(5, 7, 8\) in .*frame01\.h5"):
        prepare("acdc", tmp_path / "in", tmp_path / "out", workers=1)
    with h5py.File(path, "w") as file:
        file["image"] = image
    with pytest.raises(DataError, match=r"frame01\.h5 has no 'label'"):
        prepare("acdc", tmp_path / "in", tmp_path / "out", workers=1)
    write_h5(path, image[0], label[0])
    with pytest.raises(DataError, match=r"3D image, but got shape \(7, 8\)"):
        prepare("acdc", tmp_path / "in", tmp_path / "out", workers=1)


def test_pickled_npz_are_never_opened(tmp_path):
    (tmp_path / "in" / "train_npz").mkdir(parents=True)
    path = tmp_path / "in" / "train_npz" / "case0005_slice000.npz"
    np.savez(path, image=np.array([{"not": "numbers"}], dtype=object), label=np.zeros((2, 2)))
    with pytest.raises(DataError, match=r"case0005_slice000\.npz cannot be read"):
        prepare("synapse", tmp_path / "in", tmp_path / "out", workers=1)


def test_acdc_frame_without_its_label_is_named(tmp_path):
    root = make_acdc(tmp_path / "in", patients=(31,))
    (root / "patient031" / "patient031_frame12_gt.nii.gz").unlink()
    with pytest.raises(DataError, match=r"patient031_frame12_gt\.nii\.gz, but it is missing"):
        prepare("acdc", root, tmp_path / "out")


# -- the destination --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("room", [0, 1, 2])
def test_a_full_disk_says_so_and_leaves_nothing_half_written(tmp_path, monkeypatch, room):
    """Arrays are written in part, then the disk is full; the rest works as soon as there is space again."""
    root = make_nnunet(tmp_path / "in", cases=3)
    save, saved = np.save, []

    def full(path, array, **options):
        if len(saved) == 2 * room + 1:
            path.write_bytes(b"\x93NUMPY half of it")
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))
        saved.append(path)
        save(path, array, **options)

    monkeypatch.setattr(store_writer.np, "save", full)
    with pytest.raises(DataError, match=r"No space left on device.*finished cases are kept"):
        prepare("nifti", root, tmp_path / "out", workers=1)
    monkeypatch.undo()
    finished = [f"case_{k:02d}" for k in range(room)]
    if room:
        assert sorted(path.name for path in (tmp_path / "out" / "cases").iterdir()) == finished
        assert not is_store(tmp_path / "out")
    else:
        assert not (tmp_path / "out").exists()
    assert len(prepare("nifti", root, tmp_path / "out", workers=1).cases) == 3


def test_a_disk_that_is_full_for_the_table_keeps_the_cases(tmp_path, monkeypatch):
    def full(*_):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    root = make_nnunet(tmp_path / "in", cases=2)
    monkeypatch.setattr("adawac.data.cases.SampleTable.write_csv", full)
    with pytest.raises(DataError, match="write the table"):
        prepare("nifti", root, tmp_path / "out", workers=1)
    assert not is_store(tmp_path / "out")
    assert len(list((tmp_path / "out" / "cases").iterdir())) == 2


@dataclass(frozen=True, kw_only=True)
class Invented(Source):
    """Computed cases with any name."""

    names: tuple[str, ...]

    def cases(self):
        return [CaseRef(dataset=self.dataset, patient="p", id=name) for name in self.names]

    def load(self, ref):
        zeros = np.zeros((2, 2, 2), np.uint8)
        return Case(
            dataset=self.dataset,
            patient="p",
            id=ref.id,
            image=zeros[None].astype(np.float32),
            label=zeros,
            spacing=(1.0, 1.0, 1.0),
            class_names=self.class_names,
        )


def invented(*names, dataset="set"):
    return Invented(dataset=dataset, classes={"background": (0,), "a": (1,)}, names=names)


@pytest.mark.parametrize("name", ["../../escaped", "..", "/etc/escaped", "a/b", "a\\..\\b", ".", ""])
def test_no_case_leaves_the_destination(tmp_path, name):
    with pytest.raises(DataError, match="plain name"):
        prepare(invented("good", name), None, tmp_path / "deep" / "out")
    assert list(tmp_path.iterdir()) == []


def test_no_link_leads_out_of_the_destination(tmp_path):
    (tmp_path / "outside").mkdir()
    (tmp_path / "out" / "cases").mkdir(parents=True)
    (tmp_path / "out" / "cases" / "linked").symlink_to(tmp_path / "outside")
    with pytest.raises(DataError, match="leads to"):
        prepare(invented("linked"), None, tmp_path / "out", workers=1)
    assert list((tmp_path / "outside").iterdir()) == []


def test_computed_cases_need_no_folder(tmp_path):
    assert prepare(invented("one", "two"), None, tmp_path / "out", workers=1).cases == ("one", "two")
    with pytest.raises(DataError, match="source_options"):
        prepare(invented("one"), None, tmp_path / "out", workers=1)


def test_duplicate_ids_are_refused(tmp_path):
    with pytest.raises(DataError, match="ids that differ"):
        prepare(invented("one", "one"), None, tmp_path / "out")


def test_a_patient_in_training_and_test_is_refused(tmp_path):
    root = make_nnunet(tmp_path / "in", cases=1, names=["anna_1"])
    overwrite(root, "imagesTs/anna_2_0000.nii.gz", scan()[0])
    with pytest.raises(DataError, match="'anna' is in test and train"):
        prepare("nifti", root, tmp_path / "out", patient="^([a-z]+)_")
    assert not (tmp_path / "out").exists()


def test_destinations_that_would_be_spoilt_are_refused(tmp_path):
    root = make_nnunet(tmp_path / "in", cases=1)
    with pytest.raises(DataError, match="separate folder for the store"):
        prepare("nifti", root, root)
    (tmp_path / "file").write_text("x")
    with pytest.raises(DataError, match="is a file"):
        prepare("nifti", root, tmp_path / "file")
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "thesis.tex").write_text("x")
    with pytest.raises(DataError, match="holds other files"):
        prepare("nifti", root, tmp_path / "other")
    with pytest.raises(DataError, match="Give it"):
        prepare("nifti", None, tmp_path / "out")
    with pytest.raises(MissingFileError, match="nowhere"):
        prepare("nifti", tmp_path / "nowhere", tmp_path / "out")
