"""The facts of a data set: the same in the store, in the run and in the model folder."""

import json

import numpy as np
import pytest

from adawac.data.preparation import prepare
from adawac.data.preprocessing import Preprocessing
from adawac.data.store import Store
from adawac.data.task import Task, class_colour
from adawac.errors import DataError
from adawac.inference import export_model, load_trained
from adawac.runs import Run
from tests.data.scans import AFFINES, affine_of, make_nnunet, rotation, scan, write_nifti
from tests.inference.made_runs import make_run

# As the first released stores, runs and model folders have them, among other keys.
WRITTEN = {
    "format_version": 1,
    "dataset": "heart",
    "class_names": ["background", "RV", "LV"],
    "channels": ["MR"],
    "label_values": [[0, 9], [1], [3]],
    "preprocessing": {
        "axis": 2,
        "orientation": "RAS",
        "spacing": [1.5, 1.5, 0],
        "window": None,
        "clip_quantile": 0.99,
        "normalisation": "min-max",
        "size": [224, 224],
        "unit": "slice",
    },
    "unit": "slice",
    "num_samples": 12,
}
KNOWN_SINCE = ("orientation", "modality")  # optional: older stores, runs and model folders do not have them
FACTS = ("dataset", "class_names", "channels", "label_values", "preprocessing")


def test_a_task_survives_store_run_and_model_folder(tmp_path, change):
    from adawac.train import fit

    root = make_nnunet(tmp_path / "scans", cases=3)
    store = prepare(
        "nifti", root, tmp_path / "store", classes={"b": 2, "a": 1}, orientation="RAS", window=(0, 90), workers=1
    )
    assert (store.task.orientation, store.task.modality) == ("RAS", "MR")
    config = change(epochs=1, data__store=store.path, data__image_size=(16, 16), data__batch_size=6)
    fit(config, tmp_path / "run")
    export_model(tmp_path / "run", tmp_path / "model")
    tasks = [Store(store.path).task, Run(tmp_path / "run").task]
    tasks += [load_trained(tmp_path / name, trust_code=True).task for name in ("run", "model")]
    assert tasks == [store.task] * 4
    assert store.task.label_values == ((0,), (2,), (1,))
    assert store.task.preprocessing == Preprocessing(orientation="RAS", window=(0, 90))
    files = [tmp_path / name for name in ("store/store.json", "run/data.json", "model/model.json")]
    written = [json.loads(path.read_text()) for path in files]
    assert [{name: data[name] for name in (*FACTS, *KNOWN_SINCE)} for data in written] == [store.task.to_dict()] * 3


def test_the_orientation_of_scans_that_lie_alike_is_noted_and_no_reason_to_prepare_them_again(tmp_path):
    scans = make_nnunet(tmp_path / "scans", affine=AFFINES["permuted"])
    written = tmp_path / "store" / "store.json"
    prepare("nifti", scans, tmp_path / "store", workers=1)
    before = json.loads(written.read_text())
    older = {name: value for name, value in before.items() if name not in KNOWN_SINCE}
    written.write_text(json.dumps(older))
    assert (Store(tmp_path / "store").task.orientation, Store(tmp_path / "store").task.modality) == (None, None)
    first = (tmp_path / "store" / "cases" / "case_00" / "case.json").stat().st_mtime_ns
    store = prepare("nifti", scans, tmp_path / "store", workers=1)
    assert (store.task.orientation, store.task.modality) == ("PSR", "MR")
    assert (tmp_path / "store" / "cases" / "case_00" / "case.json").stat().st_mtime_ns == first
    assert json.loads(written.read_text()) == before


@pytest.mark.parametrize("matrix", [np.diag([-1.0, -1.0, 1.0]), rotation(50, 0)], ids=["turned", "between the axes"])
def test_scans_that_lie_differently_have_no_common_orientation(tmp_path, matrix):
    scans = make_nnunet(tmp_path / "scans")
    image, label = scan((12, 10, 6))
    write_nifti(scans / "imagesTr" / "case_03_0000.nii.gz", image, affine_of(matrix))
    write_nifti(scans / "labelsTr" / "case_03.nii.gz", label, affine_of(matrix))
    assert prepare("nifti", scans, tmp_path / "store", workers=1).task.orientation is None


def test_json_as_it_was_written_before_is_read_and_written_alike():
    task = Task.from_dict(WRITTEN)
    assert task.label_values == ((0, 9), (1,), (3,))
    assert task.preprocessing.spacing == (1.5, 1.5, 0)
    assert json.loads(json.dumps(task.to_dict())) == {name: WRITTEN[name] for name in FACTS}


def test_a_run_folder_as_it_was_written_before_is_read(tmp_path):
    run = make_run(tmp_path / "run")
    (run / "data.json").write_text(json.dumps({**WRITTEN, "network": {"faithful": None}}))
    assert Run(run).task == load_trained(run).task == Task.from_dict(WRITTEN)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"dataset": 3}, "dataset: expected a name, but got 3"),
        ({"class_names": []}, r"class_names: expected a list of names, but got \[\]"),
        ({"class_names": "liver"}, "class_names: expected a list of names, but got 'liver'"),
        ({"channels": [1]}, r"channels: expected a list of names, but got \[1\]"),
        ({"label_values": [[0], [1]]}, "label_values: expected values for 3 classes"),
        ({"label_values": [[0], [1], []]}, "label_values: expected values for 3 classes"),
        ({"label_values": [[0], [1], ["3"]]}, "label_values: expected values for 3 classes"),
        ({"preprocessing": 3}, "preprocessing: expected options of `adawac prepare`, but got 3"),
        ({"preprocessing": {"axis": 7}}, "preprocessing: Expected `axis` to be 0, 1 or 2, but got 7"),
        ({"preprocessing": {"spacing": 3}}, "preprocessing: "),
        ({"orientation": "RAR"}, "orientation: expected three letters"),
        ({"modality": 3}, "modality: expected a name"),
    ],
)
def test_a_bad_value_gives_one_message_with_the_file(changes, message):
    with pytest.raises(DataError, match=rf"in heart\.json, but got a fault in {message}.* Export it again\.$"):
        Task.from_dict({**WRITTEN, **changes}, "heart.json", "Export it again.")


@pytest.mark.parametrize("name", FACTS)
def test_a_missing_fact_is_named(tmp_path, name):
    run = make_run(tmp_path / "run")
    (run / "data.json").write_text(json.dumps({key: value for key, value in WRITTEN.items() if key != name}))
    with pytest.raises(DataError, match=rf"run/data\.json, but got a fault in {name}: .* but it is missing"):
        _ = Run(run).task


@pytest.mark.parametrize(
    ("channels", "preprocessing", "orientation", "expected"),
    [
        (["red", "green", "blue"], {"axis": 0, "normalisation": "range"}, None, (True, True)),
        (["grey"], {"axis": 0, "normalisation": "range"}, None, (True, False)),
        (["t1", "t2", "flair"], {"axis": 0, "normalisation": "min-max"}, None, (False, False)),
        (["a", "b", "c"], {"axis": 0, "normalisation": "range", "window": [0, 1]}, "RAS", (False, False)),
    ],
)
def test_a_task_of_pictures_is_known_by_its_values_and_that_it_lies_nowhere(
    channels, preprocessing, orientation, expected
):
    facts = {
        "dataset": "d", "class_names": ["background", "a"], "channels": channels, "label_values": [[0], [1]],
        "preprocessing": preprocessing, "orientation": orientation,
    }  # fmt: skip
    task = Task.from_dict(facts)
    assert (task.of_pictures, task.in_colour) == expected


def test_colours_of_classes_repeat_lighter_then_darker():
    assert class_colour(1) == "#d55e00"
    lighter, darker = class_colour(9), class_colour(17)
    sums = [sum(bytes.fromhex(colour[1:])) for colour in (darker, class_colour(1), lighter)]
    assert sums == sorted(sums)
    assert len({class_colour(label) for label in range(1, 25)}) == 24
