"""Hostile files: a short, seeded run of what `python -m reliability.fuzz` does for hours, and pickles everywhere."""

import io
import os
import pickle
import zipfile
from pathlib import Path
from random import Random

import h5py
import numpy as np
import pytest
from nibabel.nifti1 import header_dtype

from reliability.fuzz import Guard, Trial
from reliability.mutations import TRAP, Trap
from reliability.readers import READERS

pytestmark = pytest.mark.filterwarnings("ignore")  # what libraries think of damaged files


@pytest.fixture(scope="module")
def guard(tmp_path_factory):
    return Guard(tmp_path_factory.getbasetemp())


@pytest.fixture(scope="module")
def trials(tmp_path_factory):
    """Return the trial of a reader, made once."""
    made = {}

    def trial(name):
        if name not in made:
            if name in ("dicom", "seg"):
                pytest.importorskip("highdicom")
            made[name] = Trial(READERS[name], tmp_path_factory.mktemp(name) / "files")
        return made[name]

    return trial


def watched(guard, trial, path, content):
    """Read a file, and return what the reader did beyond reading."""
    guard.watching = True
    try:
        trial.read(path, content)
    finally:
        guard.watching = False
    offences, guard.offences = guard.offences, []
    return offences


@pytest.mark.parametrize("name", READERS)
def test_a_hostile_file_is_read_or_refused(guard, trials, name):
    trial = trials(name)
    for number in range(max(4, int(50 * READERS[name].share))):
        assert watched(guard, trial, *trial.change(Random(f"{name} {number}"))) == [], number


def array(value):
    file = io.BytesIO()
    np.save(file, value, allow_pickle=True)
    return file.getvalue()


def archive(**members):
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as written:
        for name, content in members.items():
            written.writestr(f"{name}.npy", content)
    return file.getvalue()


OBJECTS = array(np.array([Trap()], dtype=object))
RECORD = array(np.array((1, [Trap()]), dtype=[("epoch", "<i4"), ("beta", "O")]))
NUMBERS = array(np.zeros((2, 2), np.float32))
YAML = b"seeds: !!python/object/apply:os.mkdir [executed]\n"
PICKLES = {
    "volume in an npz": ("npz", "case.npz", archive(image=OBJECTS, label=NUMBERS)),
    "pickle for an npz": ("npz", "case.npz", pickle.dumps(Trap())),
    "pickle for an HDF5 volume": ("h5", "case.h5", pickle.dumps(Trap())),
    "array of a store": ("store", "image.npy", OBJECTS),
    "label of a store": ("store", "label.npy", pickle.dumps(Trap())),
    "gallery of a run": ("run", "test.npz", archive(about=OBJECTS, weights=OBJECTS)),
    "picture of a gallery": (
        "run",
        "test.npz",
        archive(about=array(np.frombuffer(b'[{"id": "a", "spacing": [1, 1]}]', np.uint8)), image_0=OBJECTS),
    ),
    "history of a run": ("run", "history.bin", RECORD),
    "checkpoint": ("checkpoint", "last.safetensors", pickle.dumps(Trap())),
    "checkpoint of a run": ("run", "last.safetensors", pickle.dumps(Trap())),
    "description of a model": ("model", "model.json", pickle.dumps(Trap())),
    "weights by joblib": ("weights", "legacy.pt", pickle.dumps({"state_dict": Trap()}, protocol=5)),
    "weights in an npz": ("weights", "weights.npz", archive(weight=OBJECTS)),
    "weights in safetensors": ("weights", "weights.safetensors", pickle.dumps(Trap())),
    "numbers of a Keras model": ("weights", "group1.bin", pickle.dumps(Trap())),
    "configuration": ("config", "short.yaml", YAML),
    "configuration of a run": ("run", "config.yaml", YAML),
    "grid": ("grid", "axes.yaml", YAML),
}


def header(field, value):
    """Write a number into a field of a NIfTI header."""

    def edit(content):
        kind, offset = header_dtype.fields[field][:2]
        data = np.array(value, kind.base).tobytes()
        return content[:offset] + data + content[offset + len(data) :]

    return edit


def replaced(old, new):
    def edit(content):
        assert old in content
        return content.replace(old, new)

    return edit


def hdf5(**members):
    """Write an HDF5 file anew; what is a function makes its member."""

    def edit(_):
        file = io.BytesIO()
        with h5py.File(file, "w") as written:
            for name, member in members.items():
                if callable(member):
                    member(written, name)
                else:
                    written[name] = member
        return file.getvalue()

    return edit


def seg(change):
    """Change a DICOM object."""

    def edit(content):
        import pydicom

        dataset = pydicom.dcmread(io.BytesIO(content))
        change(dataset)
        file = io.BytesIO()
        dataset.save_as(file)
        return file.getvalue()

    return edit


ZEROS = np.zeros((2, 2, 2), np.float32)
DEEP = b"[" * 100_000
SINGULAR = [1e17, 1e17, 0, 0, 1, 0, 0, 0, 0, 0, 1, 0]
FINDINGS = {
    "voxels at infinity": ("nifti", "image.nii", header("vox_offset", np.inf), "DataError"),
    "terabytes of voxels": ("nifti", "image.nii", header("dim", [4, 32767, 32767, 32767, 32767]), "DataError"),
    "more voxels than numbers": ("nifti", "image.nii", header("dim", [7] + 7 * [32767]), "DataError"),
    "parallel axes": ("nifti", "label.nii", header("srow_x", SINGULAR), "DataError"),
    "npz with a torn header": (
        "npz",
        "case.npz",
        lambda _: archive(image=NUMBERS.replace(b"}", b" "), label=NUMBERS),
        "DataError",
    ),
    "npz of terabytes": (
        "npz",
        "case.npz",
        lambda _: archive(image=NUMBERS.replace(b"(2, 2), }" + 10 * b" ", b"(2000000, 2000000),}"), label=NUMBERS),
        "DataError",
    ),
    "bytes in an npz": ("npz", "case.npz", lambda _: archive(image=b"hello", label=NUMBERS), "DataError"),
    "HDF5 link to nowhere": ("h5", "case.h5", hdf5(image=h5py.SoftLink("/nowhere"), label=ZEROS), "DataError"),
    "HDF5 link to itself": ("h5", "case.h5", hdf5(image=h5py.SoftLink("/image"), label=ZEROS), "DataError"),
    "HDF5 without a shape": ("h5", "case.h5", hdf5(image=h5py.Empty("f4"), label=ZEROS), "DataError"),
    "HDF5 of text": ("h5", "case.h5", hdf5(image=ZEROS.astype("S5"), label=ZEROS), "DataError"),
    "HDF5 of terabytes": (
        "h5",
        "case.h5",
        hdf5(image=lambda file, name: file.create_dataset(name, (1 << 14,) * 3, chunks=(1, 1, 1)), label=ZEROS),
        "DataError",
    ),
    "DICOM with half a number": (
        "dicom",
        "0000.dcm",
        replaced(b"\x28\0\x10\0US\2\0\4\0", b"\x28\0\x10\0US\1\0\4"),
        "DataError",
    ),
    # A label map that nothing can be made of is named in a warning, and its series has none.
    "SEG of no series": (
        "seg",
        "seg.dcm",
        seg(lambda dataset: dataset.ReferencedSeriesSequence[0].clear()),
        "read",
    ),
    "SEG with a segment without a number": (
        "seg",
        "seg.dcm",
        seg(lambda dataset: dataset.SegmentSequence[0].clear()),
        "read",
    ),
    "Latin-1 in Info.cfg": ("lists", "Info.cfg", lambda content: content + b"Name: M\xfcller\n", "read"),
    "Latin-1 in groups.csv": ("lists", "groups.csv", lambda content: content + b"M\xfcller,DCM\n", "DataError"),
    "Latin-1 in slices.csv": ("lists", "slices.csv", lambda content: content + b"M\xfcller,1\n", "DataError"),
    "Latin-1 in train.txt": ("lists", "train.txt", lambda content: content + b"# M\xfcller\n", "DataError"),
    "slice of another alphabet": ("lists", "slices.csv", replaced(b"c2,1", "c2,٣".encode()), "DataError"),
    "label that is a digit and no number": (
        "lists",
        "dataset.json",
        replaced(b'"1": "heart"', '"²": "heart"'.encode()),
        "DataError",
    ),
    "deep dataset.json": ("lists", "dataset.json", lambda _: DEEP, "DataError"),
    "test scan without a file": (
        "lists",
        "dataset.json",
        replaced(b'["./images/c2.nii"]', b'[{"label": "a"}]'),
        "DataError",
    ),
    "store with a torn array": ("store", "image.npy", replaced(b"}", b" "), "DataError"),
    "store of another shape": ("store", "image.npy", replaced(b"(3, 1,", b"(1, 3,"), "DataError"),
    "store of unknown classes": ("store", "native_label.npy", lambda content: content[:-1] + b"\x63", "DataError"),
    "store of a flat volume": ("store", "case.json", replaced(b'"shape": [', b'"shape": [0, '), "DataError"),
    "store of a text affine": (
        "store",
        "case.json",
        replaced(b'"native_affine": [', b'"native_affine": ["a", '),
        "DataError",
    ),
    "store of a type for dates": (
        "store",
        "case.json",
        replaced(b'"label_dtype": "uint8"', b'"label_dtype": "M8[s]"'),
        "DataError",
    ),
    "store with a position too far": (
        "store",
        "table.csv",
        replaced(b",2,8x", b",3,8x"),
        "DataError",
    ),
    "store with a torn native label": ("store", "native_label.npy", replaced(b"}", b" "), "DataError"),
    "deep store.json": ("store", "store.json", lambda _: DEEP, "DataError"),
    "deep run.json": ("run", "run.json", lambda _: DEEP, "RunError"),
    "deep metrics": ("run", "metrics.jsonl", lambda content: content + DEEP + b"\n", "read"),
    "metrics of text": ("run", "metrics.jsonl", replaced(b'"lr": 0.01', b'"lr": "0.01"'), "RunError"),
    "history with a torn header": ("run", "history.bin", replaced(b"}", b" "), "read"),
    "gallery cut into": (
        "run",
        "test.npz",
        lambda content: content[: len(content) // 2] + content[len(content) // 2 + 9 :],
        "RunError",
    ),
    "infinite run": ("report", "run.json", replaced(b'"epochs": 4', b'"epochs": 1e999'), "read"),
    "environment of nothing": ("report", "environment.json", lambda _: b'{"sessions": [null]}', "read"),
    "results of nothing": ("grid", "results.json", lambda _: b'{"runs": [3]}', "DataError"),
    "results without settings": ("grid", "results.json", replaced(b"settings", b"setting"), "DataError"),
    "deep results": ("grid", "results.json", lambda _: DEEP, "DataError"),
}


@pytest.mark.parametrize("what", FINDINGS)
def test_what_fuzzing_found_is_read_or_refused(trials, what):
    name, file, edit, end = FINDINGS[what]
    trial = trials(name)
    path = next(path for path in trial.paths if path.name == file)
    assert trial.read(path, edit(trial.valid[path])) == end


@pytest.mark.parametrize("place", PICKLES)
def test_nothing_is_unpickled(guard, trials, place, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    name, file, content = PICKLES[place]
    trial = trials(name)
    path = next(path for path in trial.paths if path.name == file)
    assert watched(guard, trial, path, content) == []
    assert not Path(TRAP).exists()


def test_the_trap_and_the_guard_work(guard, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    np.load(io.BytesIO(OBJECTS), allow_pickle=True)
    assert Path(TRAP).is_dir()
    guard.watching = True
    pickle.loads(pickle.dumps(Trap))
    with Path(os.devnull).open("w"), pytest.raises(IsADirectoryError):
        os.open("/", os.O_WRONLY)
    guard.watching = False
    offences, guard.offences = guard.offences, []
    assert [offence.split()[0] for offence in offences] == ["pickle.find_class", "writes"]
