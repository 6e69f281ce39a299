"""A share of unlabelled samples in every batch: how many, which ones, on every rank, and in a resumed epoch."""

from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
import torch

from adawac.config import ViewConfig
from adawac.data.cases import IGNORED
from adawac.data.loader import Loader, unlabelled_in_batch
from adawac.data.preparation import prepare
from adawac.data.splits import resolve_split
from adawac.data.store import Samples
from adawac.errors import DataError
from tests.data.partly_labelled import STATES, partly_labelled
from tests.data.test_loader import assert_same


@pytest.fixture(scope="module")
def samples(tmp_path_factory):
    store = prepare(partly_labelled(), dest=tmp_path_factory.mktemp("share") / "store", workers=1)
    return store.samples("train")


def loader(samples, **options):
    views = ViewConfig(shift=0.3)
    return Loader(samples, (16, 16), **{"batch_size": 6, "seed": 3, "workers": 0, "views": views, **options})


def rows_of(epochs):
    return [[batch["index"].tolist() for batch in epoch] for epoch in epochs]


@pytest.mark.parametrize(("batch", "share", "count"), [(6, 0, 0), (6, 0.5, 3), (6, 0.01, 1), (6, 0.99, 5), (1, 0.5, 0)])
def test_how_many_of_a_batch_are_unlabelled(batch, share, count):
    assert unlabelled_in_batch(batch, share) == count


@pytest.mark.parametrize("share", [0.2, 0.5, 0.8])
def test_every_batch_has_its_share_and_an_epoch_every_labelled_sample_once(samples, share):
    unlabelled = samples.table.unlabelled
    made, extra = loader(samples, unlabelled_share=share), unlabelled_in_batch(6, share)
    drawn = []
    for epoch in (1, 2, 3):
        batches = rows_of([made.epoch(epoch)])[0]
        labelled = [row for batch in batches for row in batch if not unlabelled[row]]
        assert sorted(labelled) == np.flatnonzero(~unlabelled).tolist()
        assert len(batches) == len(made)
        for batch in batches[:-1]:
            assert len(batch) == 6
            assert sum(unlabelled[batch]) == extra
        assert sum(map(len, batches)) == made.drawn
        drawn += [row for batch in batches for row in batch if unlabelled[row]]
    counts = np.bincount(drawn, minlength=len(samples))[unlabelled]
    assert counts.max() - counts.min() <= 2  # they come round, from epoch to epoch; the first round began before


def test_unlabelled_samples_come_round_evenly_from_the_first_epoch_on(samples):
    unlabelled, made = samples.table.unlabelled, loader(samples, unlabelled_share=0.4)
    stream = [
        row for epoch in range(8) for batch in rows_of([made.epoch(epoch)])[0] for row in batch if unlabelled[row]
    ]
    for first, last in pairwise(range(0, len(stream), int(unlabelled.sum()))):
        assert sorted(stream[first:last]) == np.flatnonzero(unlabelled).tolist()
    assert stream[: unlabelled.sum()] != stream[unlabelled.sum() : 2 * unlabelled.sum()]


def test_views_of_unlabelled_samples_are_ignored_as_a_whole(samples):
    unlabelled = torch.from_numpy(samples.table.unlabelled)
    partly = torch.from_numpy(samples.table.partly_ignored)
    for batch in loader(samples, unlabelled_share=0.5).epoch(1):
        for labels in batch["labels"]:
            hidden = (labels == IGNORED).flatten(1)
            assert torch.equal(hidden.all(1), unlabelled[batch["index"]])
            assert (hidden.any(1) <= (unlabelled | partly)[batch["index"]]).all()


@pytest.mark.parametrize("workers", [0, 2])
def test_memory_and_disk_give_the_same_batches(samples, workers):
    resident = loader(samples, unlabelled_share=0.5)
    streamed = loader(samples, unlabelled_share=0.5, budget=0, workers=workers)
    assert resident.resident is not None
    assert streamed.resident is None
    for epoch in (0, 3):
        assert_same(list(resident.epoch(epoch)), list(streamed.epoch(epoch)))


@pytest.mark.parametrize("share", [0.3, 0.8])
@pytest.mark.parametrize("world", [2, 3])
def test_ranks_share_the_batches_of_one(samples, world, share):
    alone = rows_of([loader(samples, unlabelled_share=share).epoch(2)])[0]
    ranks = [loader(samples, unlabelled_share=share, rank=rank, world=world) for rank in range(world)]
    parts = rows_of([made.epoch(2) for made in ranks])
    assert [[row for part in step for row in part] for step in zip(*parts, strict=True)] == alone
    assert all(part for of_rank in parts for part in of_rank)
    unlabelled = samples.table.unlabelled
    for step in list(zip(*parts, strict=True))[:-1]:
        counts = [sum(unlabelled[part]) for part in step]
        assert max(counts) - min(counts) <= 1


def test_an_epoch_goes_on_where_it_was_left(samples):
    for budget in (0.5, 0):
        whole = list(loader(samples, unlabelled_share=0.5, budget=budget).epoch(4))
        assert_same(whole[2:], list(loader(samples, unlabelled_share=0.5, budget=budget).epoch(4, start=2)))


def test_without_unlabelled_samples_nothing_is_different(samples):
    labelled = Samples(samples.store, samples.table.take(~samples.table.unlabelled))
    with pytest.raises(DataError, match=r"share=0\.5, but .* has no unlabelled ones"):
        loader(labelled, unlabelled_share=0.5)
    with pytest.raises(DataError, match=r"share=0\.5, but .* has no labelled ones"):
        loader(Samples(samples.store, samples.table.take(samples.table.unlabelled)), unlabelled_share=0.5)
    with pytest.raises(DataError, match=r"but partly/quarter/quarter/2/1 of .* has none.*data\.unlabelled_share"):
        loader(samples)
    made = loader(labelled)
    assert made.drawn == len(labelled)


@pytest.mark.parametrize("spec", ["stratified", "fold:1/2"])
def test_unlabelled_scans_of_a_labelled_patient_are_on_its_side(samples, spec):
    table = samples.store.table
    table = table.take(table.split == "train")
    patient = np.where(table.case == "none", "whole", table.patient)
    resolved = resolve_split(replace(table, patient=patient), spec, with_unlabelled=True)
    sides = [set(resolved.split[resolved.case == case]) for case in ("none", "whole")]
    assert sides[0] == sides[1] <= {"train", "val", "test"}


@pytest.mark.parametrize("spec", ["stratified", "fold:1/2"])
def test_unlabelled_slices_go_with_their_patient_and_unlabelled_patients_train(samples, spec):
    table = samples.store.table
    table = table.take(table.split == "train")
    plain, resolved = (resolve_split(table, spec, with_unlabelled=with_unlabelled) for with_unlabelled in (False, True))
    for case, states in STATES.items():
        if case != "tested":
            sides = set(plain.split[plain.case == case])
            assert len(sides) == 1
            assert (sides == {""}) == (set(states) == {"unlabelled"})
            assert set(resolved.split[resolved.case == case]) == ({"train"} if sides == {""} else sides)
