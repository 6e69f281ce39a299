"""Preparing: the same bytes from the same input, restartable, the paper's numbers."""

import errno
import json
import logging
import os
import signal
import subprocess
import sys
import time
from functools import partial
from itertools import chain, repeat
from pathlib import Path

import numpy as np
import pytest
from scipy import ndimage

from adawac.data import store_writer
from adawac.data.cases import Case
from adawac.data.parallel import run_jobs
from adawac.data.preparation import prepare, prepare_share
from adawac.data.preprocessing import Preprocessing
from adawac.data.store import Store, is_store
from adawac.errors import AdawacError, BusyError, DataError, MissingFileError
from adawac.files import LOCK, FolderLock, is_locked
from tests.data.scans import make_acdc, make_btcv, make_nnunet, make_synapse, scan, write_nifti


def contents(folder):
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.mark.parametrize("layout", ["transunet", "btcv"])
def test_synapse_gives_the_papers_subsets(tmp_path, layout):
    root = make_synapse(tmp_path / "in") if layout == "transunet" else make_btcv(tmp_path / "in")
    store = prepare("synapse", root, tmp_path / "out", workers=1)
    sizes = {name: len(store.samples("train", name)) for name in ("full", "half-slice", "half-vol", "half-sparse")}
    assert sizes == {"full": 2211, "half-slice": 1111, "half-vol": 1088, "half-sparse": 1118}
    train = store.samples("train").table
    assert int((~train.label_sparse).sum()) == 1280
    assert len(store.table.take(store.table.split == "test").cases) == 12
    chosen = store.samples("train", "half-vol").table.cases
    assert [int(case[4:]) for case in chosen] == [5, 7, 9, 10, 26, 27, 33, 34, 39]
    liver = store.class_names.index("liver")
    case40 = train.take(train.case == "case0040")
    assert np.flatnonzero(case40.fraction[:, liver] > 0).tolist() == list(range(68, 170))
    axis = {"transunet": "0", "btcv": "2"}[layout]
    assert case40.id[7] == f"synapse/case0040/case0040/{axis}/7"


def test_hounsfield_units_are_clipped_and_scaled_by_volume(tmp_path):
    store = prepare("synapse", make_btcv(tmp_path / "in"), tmp_path / "out", workers=1)
    raw = np.random.default_rng(5).integers(-1000, 1000, (4, 5, 117)).astype(np.float64)
    clipped = np.clip(raw, -125, 275)
    expected = (clipped - clipped.min()) / (clipped.max() - clipped.min())
    np.testing.assert_allclose(store.volume("case0005").image[0], expected, atol=1e-6)


def test_acdc_is_clipped_where_the_histogram_reaches_99_percent(tmp_path):
    store = prepare("acdc", make_acdc(tmp_path / "in"), tmp_path / "out", workers=1)
    raw = scan((10, 12, 5), 4, seed=2)[0].astype(np.int64) + 200
    values, counts = np.unique(raw, return_counts=True)
    top = values[np.cumsum(counts) / raw.size >= 0.99][0]
    clipped = np.minimum(raw, top)
    expected = (clipped - clipped.min()) / (clipped.max() - clipped.min())
    np.testing.assert_allclose(store.volume("patient001_frame01").image[0], expected, atol=1e-6)
    assert store.table.split[0] == "test"
    assert set(store.table.group) == {"NOR"}


@pytest.mark.parametrize("normalisation", ["min-max", "z-score"])
def test_a_scan_of_one_intensity_becomes_zero(normalisation):
    scaled = Preprocessing(normalisation=normalisation).scale(np.full((1, 2, 3, 4), 7.0))
    assert (scaled == 0).all()


def test_the_z_score_divides_by_the_volumes_own_deviation():
    image = np.random.default_rng(0).normal(3.0, 2.0, (2, 3, 4, 5)).astype(np.float32)
    scaled = Preprocessing(normalisation="z-score").scale(image)
    expected = (image - image.mean((1, 2, 3), keepdims=True)) / image.std((1, 2, 3), keepdims=True)
    np.testing.assert_allclose(scaled, expected, atol=1e-5)


@pytest.mark.parametrize("spacing", [None, (2.5, 0.0, 1.3)])
@pytest.mark.parametrize("orientation", [None, "RAS", "IAR"])
def test_prepared_voxels_know_where_they_are(orientation, spacing):
    """The channels hold each voxel's own place in the world, which the prepared affine must find again."""
    affine = np.array([[0.1, -2.0, 0.0, 10.0], [1.5, 0.1, 0.0, -7.0], [0.0, 0.0, -3.0, 4.0], [0, 0, 0, 1.0]])

    def places(shape, affine):
        return np.einsum("wv,vxyz->wxyz", affine[:3, :3], np.indices(shape)) + affine[:3, 3, None, None, None]

    shape = (24, 20, 16)
    case = Case(
        dataset="set",
        patient="p",
        id="c",
        image=places(shape, affine).astype(np.float32),
        label=np.where(np.indices(shape).sum(0) > 25, 5, 0).astype(np.uint8),
        spacing=tuple(np.linalg.norm(affine[:3, :3], axis=0)),
        affine=affine,
        class_names=("background", *"abcde"),
    )
    preprocessing = Preprocessing(normalisation="none", orientation=orientation, spacing=spacing)
    prepared = preprocessing.apply(case)
    inner = (slice(None), *3 * (slice(5, -5),))  # beyond that a spline sees the edge
    np.testing.assert_allclose(prepared.image[inner], places(prepared.shape, prepared.affine)[inner], atol=0.02)
    assert prepared.spacing == pytest.approx(np.linalg.norm(prepared.affine[:3, :3], axis=0))
    back = preprocessing.undo(prepared.label, case.shape, case.spacing, case.affine)
    assert np.mean(back == case.label) >= (0.97 if spacing else 1)
    assert set(np.unique(prepared.label)) == set(np.unique(back)) == {0, 5}  # no class that lies between two others
    if spacing:
        assert prepared.spacing[0] == 2.5
        assert prepared.spacing[2] == 1.3
        wide = np.array(case.shape) * case.spacing
        assert sorted(np.array(prepared.shape) * prepared.spacing) == pytest.approx(
            sorted(wide), abs=max(prepared.spacing) / 2
        )


def test_a_scan_thinner_than_the_wanted_voxels_keeps_a_slice():
    image = np.zeros((1, 4, 4, 2), np.float32)
    case = Case(dataset="set", patient="p", id="c", image=image, spacing=(1.0,) * 3, affine=np.eye(4), class_names=())
    assert Preprocessing(spacing=(1.0, 1.0, 8.0)).apply(case).shape == (4, 4, 1)


def test_options_are_recorded_and_applied(tmp_path):
    root = make_nnunet(tmp_path / "in", cases=1)
    store = prepare(
        "nifti", root, tmp_path / "out", axis=0, window=(-100, 100), normalisation="z-score", size=(16, 8), workers=1
    )
    raw = np.clip(scan()[0].astype(np.float64), -100, 100)
    expected = (raw - raw.mean()) / raw.std()
    np.testing.assert_allclose(store.volume("case_00").image[0], expected, atol=1e-4)
    recorded = json.loads((tmp_path / "out" / "store.json").read_text())["preprocessing"]
    assert recorded["window"] == [-100, 100]
    assert recorded["clip_quantile"] is None
    samples = store.samples("train", size=(16, 8))
    image, label = samples[3]
    native_image, native_label = store.samples("train")[3]
    assert len(samples) == 12
    assert native_image.shape == (1, 10, 6)
    np.testing.assert_array_equal(image[0], ndimage.zoom(native_image[0], (1.6, 8 / 6), order=3))
    np.testing.assert_array_equal(label, ndimage.zoom(native_label, (1.6, 8 / 6), order=0))
    assert samples.shapes.tolist() == [[16, 8]] * 12
    with pytest.raises(MissingFileError, match="size"):
        store.read("case_00", 0, size=(5, 5))


def test_whole_volumes_are_samples_too(tmp_path):
    store = prepare("nifti", make_nnunet(tmp_path / "in", channels=2), tmp_path / "out", unit="volume", workers=1)
    image, label = store.samples("train")[1]
    assert image.shape == (2, 12, 10, 6)
    np.testing.assert_array_equal(label, store.volume("case_01").label)
    assert store.table.id.tolist()[1] == "Small/case_01/case_01/volume/0"
    assert set(store.table.unit) == {"volume"}
    np.testing.assert_allclose(store.table.fraction.sum(axis=1), 1)


def test_two_processes_write_the_same_bytes_as_one(tmp_path):
    root = make_nnunet(tmp_path / "in", cases=4)
    prepare("nifti", root, tmp_path / "one", workers=1, size=(8, 8))
    prepare("nifti", root, tmp_path / "two", workers=2, size=(8, 8), progress=True)
    assert contents(tmp_path / "one") == contents(tmp_path / "two")


def test_moving_the_scans_changes_nothing(tmp_path):
    root = make_nnunet(tmp_path / "in", cases=2)
    prepare("nifti", root, tmp_path / "one", workers=1)
    root.rename(tmp_path / "elsewhere")
    prepare("nifti", tmp_path / "elsewhere", tmp_path / "two", workers=1)
    assert contents(tmp_path / "one") == contents(tmp_path / "two")


def test_the_source_files_are_hashed(tmp_path):
    import hashlib

    root = make_nnunet(tmp_path / "in", cases=1)
    store = prepare("nifti", root, tmp_path / "out", workers=1)
    assert store.case_info("case_00").sources == {
        name: hashlib.sha256((root / name).read_bytes()).hexdigest()
        for name in ("imagesTr/case_00_0000.nii.gz", "labelsTr/case_00.nii.gz")
    }


def test_growing_redoes_no_finished_case_and_keeps_ids(tmp_path, monkeypatch):
    root = make_nnunet(tmp_path / "in", cases=2)
    before = prepare("nifti", root, tmp_path / "out", workers=1).table.id.tolist()
    make_nnunet(root, cases=4)
    written = []
    original = store_writer._write_case
    monkeypatch.setattr(
        store_writer, "_write_case", lambda target, *rest: written.append(target.name) or original(target, *rest)
    )
    after = prepare("nifti", root, tmp_path / "out", workers=1).table.id.tolist()
    assert written == ["case_02", "case_03"]
    assert set(before) < set(after)


def test_a_changed_scan_and_a_damaged_case_are_done_again(tmp_path):
    root = make_nnunet(tmp_path / "in", cases=3)
    store = prepare("nifti", root, tmp_path / "out", workers=1)
    write_nifti(root / "imagesTr" / "case_00_0000.nii.gz", scan(seed=99)[0])
    damaged = store.path / "cases" / "case_01" / "image.npy"
    whole = damaged.read_bytes()
    damaged.write_bytes(whole[:-100])
    before = store.table.fraction.copy()
    write_nifti(root / "labelsTr" / "case_00.nii.gz", scan(seed=99)[1])
    times = {path.name: path.stat().st_mtime_ns for path in (store.path / "cases").iterdir()}
    prepare("nifti", root, tmp_path / "out", workers=1)
    fresh = {path.name for path in (store.path / "cases").iterdir() if path.stat().st_mtime_ns != times[path.name]}
    assert fresh == {"case_00", "case_01"}
    assert damaged.read_bytes() == whole
    assert (Store(store.path).table.fraction[:6] != before[:6]).any()


def test_a_store_with_a_replaced_case_is_incomplete_until_its_table_is_new(tmp_path, monkeypatch):
    root = make_nnunet(tmp_path / "in", cases=2)
    prepare("nifti", root, tmp_path / "out", workers=1)
    write_nifti(root / "labelsTr" / "case_00.nii.gz", scan(seed=99)[1])

    def killed(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr("adawac.data.cases.SampleTable.write_csv", killed)
    with pytest.raises(KeyboardInterrupt):
        prepare("nifti", root, tmp_path / "out", workers=1)
    assert not is_store(tmp_path / "out")


def test_a_case_keeps_its_patient_unless_overwriting_is_allowed(tmp_path):
    root = make_nnunet(tmp_path / "in", cases=2)
    prepare("nifti", root, tmp_path / "out", patient="^(case)", workers=1)
    before = (tmp_path / "out" / "table.csv").read_bytes()
    with pytest.raises(DataError, match=r"the patient of case_00 \(case before, case_00 now\)"):
        prepare("nifti", root, tmp_path / "out", workers=1)
    assert (tmp_path / "out" / "table.csv").read_bytes() == before
    store = prepare("nifti", root, tmp_path / "out", workers=1, overwrite=True)
    assert set(store.table.patient.tolist()) == {"case_00", "case_01"}


def test_scans_without_labels_are_left_out_when_told_to(tmp_path, caplog):
    root = make_nnunet(tmp_path / "in", cases=3)
    (root / "labelsTr" / "case_01.nii.gz").unlink()
    with pytest.raises(DataError, match=r"1 has none .*case_01_0000\.nii\.gz\. Add"):
        prepare("nifti", root, tmp_path / "out", workers=1)
    assert not (tmp_path / "out").exists()
    store = prepare("nifti", root, tmp_path / "out", workers=1, skip_unlabelled=True)
    assert tuple(store.cases) == ("case_00", "case_02")
    assert "1 of 3 scans have no label map" in caplog.text
    assert "imagesTr/case_01_0000.nii.gz" in caplog.text


def test_other_options_need_another_folder_or_overwriting(tmp_path):
    root = make_nnunet(tmp_path / "in", cases=1)
    prepare("nifti", root, tmp_path / "out", workers=1)
    with pytest.raises(DataError, match=r"axis \(2 before, 1 now\).*--overwrite"):
        prepare("nifti", root, tmp_path / "out", axis=1, workers=1)
    store = prepare("nifti", root, tmp_path / "out", axis=1, workers=1, overwrite=True)
    assert len(store.samples("train")) == 10
    assert store.table.id[0].endswith("/1/0")


def test_a_kill_at_any_moment_leaves_a_folder_that_can_be_finished(tmp_path):
    root = make_nnunet(tmp_path / "in", cases=9, shape=(64, 64, 40))
    script = tmp_path / "script.py"
    script.write_text(
        "import sys\nfrom adawac.data.preparation import prepare\n"
        "prepare('nifti', sys.argv[1], sys.argv[2], workers=1, size=(64, 64))\n"
    )
    path = os.pathsep.join([str(Path(store_writer.__file__).parents[2]), os.environ.get("PYTHONPATH", "")])
    process = subprocess.Popen(
        [sys.executable, str(script), str(root), str(tmp_path / "out")], env={**os.environ, "PYTHONPATH": path}
    )
    cases = tmp_path / "out" / "cases"
    while process.poll() is None and not (cases.is_dir() and any(path.name == "case_01" for path in cases.iterdir())):
        time.sleep(0.002)
    process.send_signal(signal.SIGKILL)
    process.wait()
    assert not is_store(tmp_path / "out")
    with pytest.raises(MissingFileError, match="has no store"):
        Store(tmp_path / "out")
    finished = {path.name: path.stat().st_mtime_ns for path in cases.iterdir() if not path.name.startswith(".")}
    assert 0 < len(finished) < 9
    prepare("nifti", root, tmp_path / "out", workers=1, size=(64, 64))
    assert {name: (cases / name).stat().st_mtime_ns for name in finished} == finished
    prepare("nifti", root, tmp_path / "fresh", workers=1, size=(64, 64))
    assert contents(tmp_path / "out") == contents(tmp_path / "fresh")


@pytest.mark.parametrize(
    ("lowest", "options", "doubted"),
    [
        (-1024, {}, True),
        (-1024, {"modality": "CT"}, False),
        (-1024, {"modality": "MR"}, False),
        (-1024, {"window": (-160.0, 240.0)}, False),
        (-1024, {"clip_quantile": 0.99}, False),
        (-200, {}, False),
    ],
)
def test_scans_that_look_like_ct_are_pointed_out(tmp_path, caplog, lowest, options, doubted):
    root = make_nnunet(tmp_path / "in", cases=1)
    image = scan()[0]
    image[0, 0, 0] = lowest
    write_nifti(root / "imagesTr" / "case_00_0000.nii.gz", image)
    with caplog.at_level(logging.WARNING):
        prepare("nifti", root, tmp_path / "out", workers=1, **options)
    assert ("Intensities begin at -1024" in caplog.text) is doubted


def test_different_orientations_are_pointed_out(tmp_path, caplog):
    root = make_nnunet(tmp_path / "in", cases=1)
    make_nnunet(root, cases=2, names=["case_00", "turned"], affine=None)
    for part, name in (("imagesTr", "turned_0000"), ("labelsTr", "turned")):
        write_nifti(root / part / f"{name}.nii.gz", scan(seed=10)[part == "labelsTr"], np.diag([-1.0, 1.0, 1.0, 1.0]))
    with caplog.at_level(logging.WARNING):
        prepare("nifti", root, tmp_path / "out", workers=1)
    assert "different orientations" in caplog.text
    store = prepare("nifti", root, tmp_path / "ras", workers=1, orientation="RAS")
    np.testing.assert_array_equal(store.volume("turned").label, scan(seed=10)[1][::-1])
    assert store.table.id[0].split("/")[3] == "RAS2"


def test_two_preparations_into_one_folder_are_refused(tmp_path, monkeypatch):
    make_nnunet(tmp_path / "scans")
    store = prepare("nifti", tmp_path / "scans", tmp_path / "store", workers=1)
    monkeypatch.setattr("adawac.files._PATIENCE", 0.1)
    lock = FolderLock(tmp_path / "store")
    with pytest.raises(BusyError, match="in use by process"):
        prepare("nifti", tmp_path / "scans", tmp_path / "store", workers=1)
    lock.release()
    assert len(prepare("nifti", tmp_path / "scans", tmp_path / "store", workers=1).table) == len(store.table)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"workers": 0}, "at least one worker"),
        ({"axis": 3}, "`axis` to be 0, 1 or 2"),
        ({"size": (0, 8)}, "`size` to be height and width"),
        ({"classes": {"a": 1, "b": 1}}, "each label value under one class"),
        ({"patient": "("}, "regular expression"),
        ({"groups": "absent.csv"}, "absent.csv is not there"),
        ({"colour": "red"}, "options of source nifti"),
    ],
)
def test_a_call_that_is_refused_harms_nothing(tmp_path, wrong, message):
    root = make_nnunet(tmp_path / "scans", cases=1)
    prepare("nifti", root, tmp_path / "store", workers=1)
    before = contents(tmp_path / "store")
    for dest in (tmp_path / "store", tmp_path / "new"):
        with pytest.raises(AdawacError, match=message):
            prepare("nifti", root, dest, **{"overwrite": True, "normalisation": "z-score", "workers": 1} | wrong)
    assert contents(tmp_path / "store") == before
    assert not (tmp_path / "new").exists()


def test_a_folder_of_other_things_is_left_as_it_is(tmp_path):
    root = make_nnunet(tmp_path / "scans", cases=1)
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "thesis.tex").touch()
    with pytest.raises(DataError, match="holds other files"):
        prepare("nifti", root, tmp_path / "other", workers=1)
    assert [path.name for path in (tmp_path / "other").iterdir()] == ["thesis.tex"]
    (tmp_path / "begun").mkdir()
    FolderLock(tmp_path / "begun").release()  # by a call that was killed before it made anything
    assert prepare("nifti", root, tmp_path / "begun", workers=1).cases == ("case_00",)


def test_a_store_that_another_call_made_meanwhile_is_not_taken_over(tmp_path, monkeypatch):
    root = make_nnunet(tmp_path / "scans", cases=1)

    class Late(FolderLock):
        def __init__(self, folder):
            monkeypatch.undo()
            prepare("nifti", root, folder, workers=1, normalisation="z-score")
            super().__init__(folder)

    monkeypatch.setattr("adawac.data.preparation.FolderLock", Late)
    with pytest.raises(DataError, match=r"these differ: normalisation \(z-score before, min-max now\)"):
        prepare("nifti", root, tmp_path / "store", workers=1)
    assert Store(tmp_path / "store").preprocessing.normalisation == "z-score"


def test_a_lock_whose_folder_was_made_anew_is_taken_there(tmp_path, monkeypatch):
    first = FolderLock(tmp_path)
    waits = chain([(tmp_path / LOCK).unlink, first.release], repeat(lambda: None))
    monkeypatch.setattr("time.sleep", lambda seconds: next(waits)())
    second = FolderLock(tmp_path)  # waits for the file that is removed, and gets it
    assert is_locked(tmp_path)
    second.release()
    assert not is_locked(tmp_path)


def test_a_file_system_without_locks_is_pointed_out(tmp_path, monkeypatch, caplog):
    def flock(descriptor, how):
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    monkeypatch.setattr("fcntl.flock", flock)
    root = make_nnunet(tmp_path / "scans", cases=1)
    assert prepare("nifti", root, tmp_path / "store", workers=1).cases == ("case_00",)
    assert "has no locks (No locks available): make sure that nothing else writes there" in caplog.text


@pytest.mark.parametrize("content", ["", "{", "[]", "{}", '{"format_version": 1}', '{"preprocessing": 3}'])
def test_a_damaged_store_is_mended_with_its_own_options_only(tmp_path, content):
    root = make_nnunet(tmp_path / "scans", cases=2)
    prepare("nifti", root, tmp_path / "store", workers=1)
    before = contents(tmp_path / "store")
    (tmp_path / "store" / "store.json").write_text(content)
    with pytest.raises(DataError, match=r"these differ: those of case case_00\. Choose .* --overwrite"):
        prepare("nifti", root, tmp_path / "store", workers=1, normalisation="z-score")
    prepare("nifti", root, tmp_path / "store", workers=1)
    assert contents(tmp_path / "store") == before


@pytest.mark.parametrize("name", ["image.npy", "label.npy", "image_8x8.npy", "label_8x8.npy", "native_label.npy"])
@pytest.mark.parametrize(
    "damage",
    [
        Path.unlink,
        lambda path: path.write_bytes(b""),
        lambda path: path.write_bytes(path.read_bytes().replace(b"}", b" ", 1)),
    ],
)
def test_every_file_of_a_case_is_mended(tmp_path, name, damage):
    root = make_nnunet(tmp_path / "scans", cases=1)
    options = {"workers": 1, "size": (8, 8), "spacing": (2.0, 2.0, 0.0)}
    prepare("nifti", root, tmp_path / "store", **options)
    before = contents(tmp_path / "store")
    damage(tmp_path / "store" / "cases" / "case_00" / name)
    prepare("nifti", root, tmp_path / "store", **options)
    assert contents(tmp_path / "store") == before


def test_a_script_without_a_guard_is_not_run_again_by_its_workers(tmp_path):
    """What is sent is larger than a pipe holds: a worker that dies before it has read it would block the parent."""
    script = tmp_path / "script.py"
    script.write_text(
        "from functools import partial\nfrom operator import add\nfrom adawac.data.parallel import run_jobs\n"
        "print('once')\n"
        "print(sorted(len(both) for _, both in run_jobs(partial(add, 'x' * 300_000), 'ab', title='', workers=2)))\n"
    )
    done = subprocess.run([sys.executable, script], capture_output=True, text=True, timeout=60)
    assert done.stdout.splitlines() == ["once", "[300001, 300001]"], done.stderr


@pytest.mark.parametrize("where", ["in the script", "nowhere"])
def test_what_other_processes_cannot_import_is_done_in_this_one(monkeypatch, caplog, where):
    def process(job):
        return job, os.getpid()

    if where == "in the script":
        process.__module__, process.__qualname__ = "__main__", "process"
        monkeypatch.setattr(sys.modules["__main__"], "process", process, raising=False)
    done = dict(run_jobs(process, [1, 2], title="Working", workers=2))
    assert done == {job: (job, os.getpid()) for job in (1, 2)}
    assert "one process" in caplog.text


def test_ctrl_c_reaches_the_process_but_not_its_workers():
    look = partial(signal.pthread_sigmask, signal.SIG_BLOCK)  # with nothing to block, it says what is
    blocked = [mask for _, mask in run_jobs(look, [(), ()], title="Looking", workers=2)]
    assert [signal.SIGINT in mask for mask in blocked] == [True, True]
    assert signal.SIGINT not in look(())


# -- several machines -------------------------------------------------------------------------------------------------


def test_shares_together_are_the_whole_store(tmp_path):
    root = make_nnunet(tmp_path / "scans", cases=5)
    options = {"workers": 1, "spacing": (2.0, 2.0, 0.0), "normalisation": "z-score"}
    prepare("nifti", root, tmp_path / "whole", **options)
    assert prepare_share("2/3", "nifti", root, tmp_path / "store", **options) == 3
    assert not is_store(tmp_path / "store")
    assert prepare_share("1/3", "nifti", root, tmp_path / "store", **options) == 1
    assert prepare_share("1/3", "nifti", root, tmp_path / "store", **options) == 1  # as after a requeue
    made = prepare_share("3/3", "nifti", root, tmp_path / "store", **options)
    assert made.cases == Store(tmp_path / "whole").cases
    assert contents(tmp_path / "store") | {LOCK: b""} == contents(tmp_path / "whole") | {LOCK: b""}


def test_a_share_redoes_nothing_and_leaves_what_others_write(tmp_path, monkeypatch):
    root, store = make_nnunet(tmp_path / "scans", cases=4), tmp_path / "store"
    prepare_share("1/2", "nifti", root, store, workers=1)
    before = {path: path.stat().st_mtime_ns for path in store.rglob("*.npy")}
    (store / "cases" / ".case_01.0123abcd.tmp").mkdir()  # another share is at it
    prepare_share("2/2", "nifti", root, store, workers=1)
    assert {path: path.stat().st_mtime_ns for path in before} == before
    assert (store / "cases" / ".case_01.0123abcd.tmp").is_dir()
    prepare("nifti", root, store, workers=1)  # nobody else may be at work now
    assert {path: path.stat().st_mtime_ns for path in before} == before
    assert not (store / "cases" / ".case_01.0123abcd.tmp").exists()


def test_shares_over_another_store(tmp_path):
    root, store = make_nnunet(tmp_path / "scans", cases=3), tmp_path / "store"
    prepare("nifti", root, store, workers=1)
    with pytest.raises(DataError, match="these differ: normalisation"):
        prepare_share("1/2", "nifti", root, store, workers=1, normalisation="z-score")
    assert prepare_share("1/2", "nifti", root, store, workers=1, normalisation="z-score", overwrite=True) == 1
    made = prepare_share("2/2", "nifti", root, store, workers=1, normalisation="z-score", overwrite=True)
    assert made.preprocessing.normalisation == "z-score"


def test_a_bad_case_of_a_share_does_not_stop_the_others(tmp_path):
    root, store = make_nnunet(tmp_path / "scans", cases=4), tmp_path / "store"
    bad = next((root / "imagesTr").glob("case_02*"))
    good = bad.read_bytes()
    bad.write_bytes(b"no scan")
    with pytest.raises(DataError, match="case_02"):
        prepare_share("1/2", "nifti", root, store, workers=1)
    assert prepare_share("2/2", "nifti", root, store, workers=1) == 1
    bad.write_bytes(good)
    assert len(prepare_share("1/2", "nifti", root, store, workers=1).cases) == 4
