"""The phantom: deterministic, anatomically arranged, label-sparse as asked for, and the same through every layout."""

import json

import numpy as np
import pytest

from adawac.data.cases import check_case
from adawac.data.phantom.patient import CLASS_NAMES
from adawac.data.phantom.phantom_files import SYNAPSE_TRAINING, write_nifti_layout, write_synapse_layout
from adawac.data.phantom.scanner import phantom, phantom_cases, phantom_source
from adawac.data.preparation import prepare
from adawac.data.sources import SOURCES, build_source
from adawac.errors import ConfigError, DataError

CLASS = {name: value for value, name in enumerate(CLASS_NAMES)}
SMALL = {"size": 32, "slices": (12, 16)}


@pytest.fixture(scope="module")
def cases():
    return list(phantom_cases(5, seed=3, **SMALL))


def labelled(case):
    return case.label.reshape(len(case.label), -1).any(1)


def test_cases_are_sound_and_differ(cases):
    for case in cases:
        check_case(case)
        assert case.class_names == CLASS_NAMES
        assert case.image.shape == (1, *case.label.shape)
        assert case.shape[1:] == (32, 32)
        np.testing.assert_allclose(np.linalg.norm(case.affine[:3, :3], axis=0), case.spacing)
        assert set(np.unique(case.label)) == set(range(9))
    assert len({case.patient for case in cases}) == 5
    assert len({case.image[0, -5].tobytes() for case in cases}) == 5
    assert len({case.group for case in cases}) > 1


def test_a_case_is_a_function_of_seed_and_number_alone():
    again = list(phantom_cases(3, seed=3, **SMALL))[2]
    source = phantom_source(11, seed=3, **SMALL)
    alone = source.load(source.cases()[2])
    np.testing.assert_array_equal(again.image, alone.image)
    np.testing.assert_array_equal(again.label, alone.label)
    other = phantom_source(11, seed=4, **SMALL)
    assert other.cases()[2].id != source.cases()[2].id
    assert not np.array_equal(other.load(other.cases()[2]).label, again.label)


def ranges(sparse, count=40):
    """Return (slices, first and last with a label) of many patients, without computing them."""
    source = phantom_source(count, sparse=sparse)
    return [source._range(number, np.random.default_rng(number)) for number in range(count)]


@pytest.mark.parametrize("sparse", [0.0, 0.42, 0.7])
def test_the_share_of_label_sparse_slices_is_as_asked(sparse):
    drawn = ranges(sparse)
    slices = sum(count for count, _, _ in drawn)
    dense = sum(last - first + 1 for _, first, last in drawn)
    assert abs(1 - dense / slices - sparse) < 0.02
    shares = [1 - (last - first + 1) / count for count, first, last in drawn]
    assert (max(shares) - min(shares) > 0.2) == (sparse > 0)


def test_label_sparse_slices_lie_below_and_above(cases):
    for case in cases:
        rows = np.flatnonzero(labelled(case))
        assert (np.diff(rows) == 1).all()  # one run
        assert rows[0] > 0
    above = [last < count - 1 for count, _, last in ranges(0.42)]
    assert 0 < np.mean(above) < 0.5


def centre(case, name):
    """Return an organ's centre as (height, back, left) in mm from the volume's middle."""
    points = np.argwhere(case.label == CLASS[name]) - (np.array(case.shape) - 1) / 2
    return points.mean(0) * case.spacing


def test_organs_lie_where_they_belong(cases):
    for case in cases:
        where = {name: centre(case, name) for name in CLASS_NAMES[1:]}
        assert where["liver"][2] < -30 < 30 < where["spleen"][2]  # the patient's right is the image's left
        assert where["right kidney"][2] < where["aorta"][2] < where["left kidney"][2]
        assert where["gallbladder"][1] < where["right kidney"][1]
        assert where["stomach"][1] < where["spleen"][1]
        assert where["pancreas"][0] < where["spleen"][0]
        assert where["left kidney"][0] < where["spleen"][0]
        volume = {name: np.prod(case.spacing) * (case.label == CLASS[name]).sum() / 1000 for name in CLASS_NAMES[1:]}
        assert max(volume, key=volume.get) == "liver"
        assert 700 < volume["liver"] < 2600  # ml
        assert 60 < volume["left kidney"] < 320
        assert volume["gallbladder"] < 110


def test_ct_intensities_are_those_of_the_tissues(cases):
    for case in cases:
        mean = {name: case.image[0][case.label == CLASS[name]].mean() for name in CLASS_NAMES[1:]}
        assert 60 < mean["liver"] < 150
        assert mean["gallbladder"] < mean["liver"] < mean["left kidney"] + 60
        assert case.image.min() < -900


def test_noise_is_as_strong_as_asked():
    quiet, normal, loud = (next(phantom_cases(1, noise=noise, **SMALL)) for noise in (0.0, 1.0, 3.0))
    np.testing.assert_array_equal(quiet.label, loud.label)
    spread = [(case.image - quiet.image)[quiet.image > -300].std() for case in (normal, loud)]
    assert 10 < spread[0] < 30
    assert abs(spread[1] / spread[0] - 3) < 0.1


@pytest.mark.parametrize("modality", ["ct", "mr"])
def test_shift_moves_the_test_patients_alone(modality):
    splits = [ref.split for ref in phantom_source(5, modality=modality).cases()]
    plain, shifted = (list(phantom_cases(5, modality=modality, shift=shift, **SMALL)) for shift in (0.0, 1.0))
    for split, before, after in zip(splits, plain, shifted, strict=True):
        check_case(after)
        moved = split == "test"
        assert np.array_equal(before.image, after.image) is not moved
        assert np.array_equal(before.label, after.label) is not moved
        assert np.array_equal(labelled(before), labelled(after))  # as many label-sparse slices as before
        assert (before.group, before.shape) == (after.group, after.shape)
        assert set(np.unique(after.label)) == set(range(9))
        if moved:
            assert after.spacing[1] > 1.1 * before.spacing[1]  # a wider field of view of a larger patient


def test_shift_is_another_contrast_phase_and_a_noisier_scan():
    number, options = 3, {"size": 64, "slices": (12, 16)}  # the first patient of the test split
    means, spreads = [], []
    for shift in (0.0, 1.0):
        sources = [phantom_source(4, shift=shift, noise=noise, **options) for noise in (1.0, 0.0)]
        noisy, quiet = (source.load(source.cases()[number]) for source in sources)
        means.append({name: quiet.image[0][quiet.label == CLASS[name]].mean() for name in CLASS_NAMES[1:]})
        spreads.append((noisy.image - quiet.image).std())
    assert means[1]["aorta"] > means[0]["aorta"] + 15  # arterial, not portal venous
    assert means[1]["liver"] < means[0]["liver"] - 10
    assert spreads[1] == pytest.approx(1.6 * spreads[0], rel=0.01)


def test_shift_is_in_the_stores_record_only_where_it_is_on():
    assert "shift" not in phantom_source(2).options()  # so stores of earlier versions can grow
    assert phantom_source(2, shift=0.5).options()["shift"] == 0.5


def test_mr_has_a_bias_field_and_no_negative_values():
    case = next(phantom_cases(1, modality="mr", **SMALL))
    check_case(case)
    assert case.dataset == "phantom-mr"
    assert case.image.min() >= 0
    clean = next(phantom_cases(1, modality="mr", noise=0.0, **SMALL))
    liver = clean.image[0][clean.label == CLASS["liver"]]
    assert liver.std() / liver.mean() > 0.06


def test_one_patient_looks_the_same_at_any_resolution():
    coarse, fine = (next(phantom_cases(1, size=size, slices=(8, 8), noise=0.0)) for size in (48, 96))
    assert coarse.shape[0] == fine.shape[0]
    blocks = fine.image[0].reshape(8, 48, 2, 48, 2).mean((2, 4))
    body = (blocks > -200) & (coarse.image[0] > -200)
    assert np.corrcoef(blocks[body], coarse.image[0][body])[0, 1] > 0.9
    agree = (fine.label[:, ::2, ::2] == coarse.label)[coarse.label > 0].mean()
    assert agree > 0.8


def test_prepare_takes_the_phantom_and_lets_it_grow(tmp_path):
    options = {"size": 16, "slices": (6, 8), "sparse": 0.4}
    store = prepare(phantom_source(8, **options), None, tmp_path / "store", workers=1)
    assert {"train", "val", "test"} == set(store.table.split.tolist())
    assert store.num_classes == 9
    train = store.samples("train")
    image, label = train[0]
    assert image.shape == (1, 16, 16)
    assert 0 <= image.min() < image.max() <= 1
    assert label.shape == (16, 16)
    assert 0.25 < store.table.label_sparse.mean() < 0.55
    grown = prepare(phantom_source(10, **options), None, tmp_path / "store", workers=1)
    assert set(store.table.id.tolist()) < set(grown.table.id.tolist())


def test_the_registered_source_reads_its_options(tmp_path):
    assert SOURCES["phantom"] is phantom
    with pytest.raises(DataError, match=r"phantom\.json"):
        build_source("phantom", tmp_path)
    (tmp_path / "phantom.json").write_text(json.dumps({"num_patients": 3, "size": 20, "slices": [5, 6]}))
    source = build_source("phantom", tmp_path)
    assert [source.load(ref).shape[1:] for ref in source.cases()[:1]] == [(20, 20)]
    (tmp_path / "phantom.json").write_text('{"patients": 3}')
    with pytest.raises(DataError, match="patients"):
        build_source("phantom", tmp_path)


@pytest.mark.parametrize(
    "wrong", [{"num_patients": 0}, {"sparse": 1.0}, {"modality": "pet"}, {"size": 4}, {"slices": (9, 3)}, {"shift": -1}]
)
def test_nonsense_is_refused(wrong):
    with pytest.raises(ConfigError, match="Expected"):
        phantom_source(**wrong)


def test_the_table_of_synapse_is_the_papers():
    assert sum(count for count, _, _ in SYNAPSE_TRAINING.values()) == 2211
    assert sum(last - first + 1 for _, first, last in SYNAPSE_TRAINING.values()) == 1280


def test_synapse_layout_is_read_as_synapse(tmp_path):
    some = {5: (12, 3, 11), 26: (10, 4, 8)}
    write_synapse_layout(tmp_path, size=12, training=some, test=(1,))
    source = build_source("synapse", tmp_path)
    read = {ref.id: source.load(ref) for ref in source.cases()}
    assert sorted(read) == ["case0001", "case0005", "case0026"]
    for number, (count, first, last) in some.items():
        case = read[f"case{number:04d}"]
        check_case(case)
        assert case.shape == (count, 12, 12)
        assert np.flatnonzero(labelled(case)).tolist() == list(range(first, last + 1))
        assert (case.image.min(), case.image.max()) == (0, 1)


@pytest.mark.slow
def test_the_whole_synapse_layout_has_the_papers_slices(tmp_path):
    write_synapse_layout(tmp_path, size=8, test=())
    files = sorted((tmp_path / "train_npz").glob("*.npz"))
    assert len(files) == 2211
    assert sum(np.load(path)["label"].any() for path in files) == 1280


def test_nifti_layout_is_read_with_its_geometry(tmp_path):
    options = {"size": 20, "slices": (6, 8)}
    write_nifti_layout(tmp_path, 2, **options)
    source = build_source("nifti", tmp_path)
    for ref, made in zip(source.cases(), phantom_cases(2, **options), strict=True):
        case = source.load(ref)
        check_case(case)
        np.testing.assert_array_equal(case.image[0].T, made.image[0])
        np.testing.assert_array_equal(case.label.T, made.label)
        # The same voxel is at the same place in the patient.
        np.testing.assert_allclose(case.affine @ (3, 2, 1, 1), made.affine @ (1, 2, 3, 1), atol=1e-3)
        assert case.class_names == CLASS_NAMES
