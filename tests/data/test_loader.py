"""Loading: the same batches from memory and from disk, for any number of workers and ranks, from any step on."""

import multiprocessing
import os
import signal
import subprocess
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import torch

from adawac.data.cases import Case, CaseRef
from adawac.data.loader import Loader, batch_limits, free_memory, rank_limits
from adawac.data.preparation import prepare
from adawac.data.preprocessing import Preprocessing
from adawac.data.resample import Ragged
from adawac.data.sources import Source
from adawac.data.views import IDENTITY, ViewConfig, make_views, sample_keys
from adawac.errors import ConfigError, DataError

SHAPES = ((20, 31, 5), (28, 24, 7), (33, 33, 4), (17, 40, 6))


@dataclass(frozen=True, kw_only=True)
class Mixed(Source):
    """Random scans of different sizes and spacings, two channels."""

    shapes: tuple[tuple[int, int, int], ...] = SHAPES
    unlabelled: str = ""

    def cases(self):
        return [
            CaseRef(dataset="mixed", patient=f"p{number}", id=f"p{number}", split="train")
            for number in range(len(self.shapes))
        ]

    def load(self, ref):
        number = int(ref.id[1:])
        rng = np.random.default_rng(number)
        shape = self.shapes[number]
        label = rng.integers(0, 3, shape).astype(np.uint8)
        return Case(
            dataset="mixed",
            patient=ref.patient,
            id=ref.id,
            image=rng.random((2, *shape), dtype=np.float32),
            label=None if ref.id == self.unlabelled else label,
            spacing=(1.0 + number, 1.0, 4.0),
            class_names=("background", "a", "b"),
        )


def mixed_source(**options):
    return Mixed(
        dataset="mixed",
        classes={"background": (0,), "a": (1,), "b": (2,)},
        channels=("one", "two"),
        preprocessing=Preprocessing(axis=2, normalisation="none"),
        **options,
    )


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    return prepare(mixed_source(), None, tmp_path_factory.mktemp("data") / "store", workers=1)


def loader(store, **options):
    settings = {"size": (16, 16), "batch_size": 5, "seed": 7, "workers": 0} | options
    return Loader(store.samples("train"), settings.pop("size"), **settings)


def tensors(batch):
    return [batch["index"], *batch["images"], *batch["labels"], *batch["views"], torch.tensor(batch["global_size"])]


def assert_same(expected, other):
    assert len(expected) == len(other) > 0
    for a, b in zip(expected, other, strict=True):
        assert all(torch.equal(x, y) for x, y in zip(tensors(a), tensors(b), strict=True))


@pytest.mark.parametrize(
    "views", [ViewConfig(), ViewConfig(mode="released"), ViewConfig(gamma=0.5, noise=0.1, blur=1.0)]
)
@pytest.mark.parametrize("workers", [0, 2])
def test_memory_and_disk_give_the_same_batches_bit_for_bit(store, views, workers):
    resident, streamed = loader(store, views=views), loader(store, views=views, budget=0, workers=workers)
    assert resident.resident is not None
    assert streamed.resident is None
    for epoch in (0, 3):
        assert_same(list(resident.epoch(epoch)), list(streamed.epoch(epoch)))


def test_colours_of_a_store_without_any_are_refused_before_training(store):
    with pytest.raises(ConfigError, match="red, green and blue, for views with hue or saturation, but got 2"):
        loader(store, views=ViewConfig(hue=10))


def test_an_epoch_has_every_sample_once_in_an_order_of_its_own(store):
    data = loader(store)
    epochs = [torch.cat([batch["index"] for batch in data.epoch(epoch)]) for epoch in range(3)]
    for order in epochs:
        assert sorted(order.tolist()) == list(range(22))
    assert not torch.equal(epochs[0], epochs[1])
    assert torch.equal(epochs[1], torch.cat([batch["index"] for batch in loader(store).epoch(1)]))
    other_seed = torch.cat([batch["index"] for batch in loader(store, seed=8).epoch(1)])
    assert not torch.equal(epochs[1], other_seed)
    assert [len(batch["index"]) for batch in data.epoch(0)] == [5, 5, 5, 5, 2]
    assert len(data) == 5


def test_a_batch_holds_the_views_of_its_rows(store):
    samples = store.samples("train")
    batch = next(loader(store).epoch(2))
    assert torch.cat(batch["images"]).shape == (10, 2, 16, 16)
    assert torch.cat(batch["labels"]).shape == (10, 16, 16)
    for position, row in enumerate(batch["index"].tolist()):
        image, label = samples[row]
        spacing = store.case_info(samples.table.case[row]).spacing[:2]
        expected = make_views(
            Ragged.from_arrays([image]),
            Ragged.from_arrays([label[None]]),
            config=ViewConfig(),
            seed=7,
            epoch=2,
            sample=sample_keys([samples.ids[row]]),
            size=(16, 16),
            extent=torch.tensor([label.shape]) * torch.tensor([spacing]),
        )
        for view in (0, 1):
            assert torch.equal(batch["images"][view][position], expected["images"][view][0])
            assert torch.equal(batch["labels"][view][position], expected["labels"][view][0])
            assert torch.equal(batch["views"][view][position], expected["views"][view][0])


def test_spacing_decides_what_a_rotation_is(store):
    config = ViewConfig(turn=0.0)
    for batch in loader(store, views=config).epoch(0):
        for row, theta in zip(batch["index"].tolist(), batch["views"][0], strict=True):
            case = store.table.case[row]
            height, width = store.samples("train").shapes[row] * store.case_info(case).spacing[:2]
            turn = theta[:, :2] * torch.tensor([[1, width / height], [height / width, 1]], dtype=torch.float32)
            torch.testing.assert_close(turn @ turn.T, torch.eye(2), atol=1e-5, rtol=0)


def test_views_follow_the_sample_through_subsets(store):
    full = Loader(store.samples("train"), (16, 16), batch_size=22, seed=7)
    half = Loader(store.samples("train", subset="half-slice"), (16, 16), batch_size=22, seed=7)
    whole, part = next(full.epoch(4)), next(half.epoch(4))
    ids_whole = [full.samples.ids[row] for row in whole["index"]]
    ids_part = [half.samples.ids[row] for row in part["index"]]
    assert [name for name in ids_whole if name in ids_part] == ids_part
    for row, name in enumerate(ids_part):
        assert torch.equal(part["images"][1][row], whole["images"][1][ids_whole.index(name)])


@pytest.mark.parametrize("world", [2, 3])
def test_ranks_share_each_global_batch(store, world):
    alone = list(loader(store, batch_size=8).epoch(1))
    ranks = [list(loader(store, batch_size=8, rank=rank, world=world).epoch(1)) for rank in range(world)]
    assert {len(rank) for rank in ranks} == {len(alone)}
    for step, batch in enumerate(alone):
        parts = [rank[step] for rank in ranks]
        assert all(len(part["index"]) for part in parts)
        assert max(len(part["index"]) for part in parts) - min(len(part["index"]) for part in parts) <= 1
        assert torch.equal(torch.cat([part["index"] for part in parts]), batch["index"])
        assert torch.equal(torch.cat([part["images"][1] for part in parts]), batch["images"][1])
        assert {part["global_size"] for part in parts} == {batch["global_size"]} == {len(batch["index"])}


def test_a_last_batch_too_small_for_the_ranks_joins_the_one_before_it():
    assert batch_limits(22, 5, 1) == [0, 5, 10, 15, 20, 22]
    assert batch_limits(22, 5, 2) == [0, 5, 10, 15, 20, 22]
    assert batch_limits(22, 5, 3) == [0, 5, 10, 15, 22]
    assert batch_limits(1324, 24, 4)[-2:] == [1320, 1324]
    assert batch_limits(4, 24, 4) == [0, 4]
    for world in (1, 2, 3, 5):
        limits = batch_limits(22, 5, world)
        for low, high in pairwise(limits):
            parts = [rank_limits(low, high, rank, world) for rank in range(world)]
            assert parts[0][0] == low
            assert parts[-1][1] == high
            assert all(stop > start for start, stop in parts)
            assert all(a[1] == b[0] for a, b in pairwise(parts))


def test_too_many_ranks_are_refused():
    with pytest.raises(ConfigError, match="batch_size"):
        batch_limits(100, 4, 8)
    with pytest.raises(DataError, match="fewer devices"):
        batch_limits(3, 24, 4)


@pytest.mark.parametrize(("budget", "workers"), [(0.5, 0), (0, 0), (0, 2)])
def test_an_epoch_resumes_at_any_step(store, budget, workers):
    whole = list(loader(store).epoch(6))
    again = loader(store, budget=budget, workers=workers)
    next(again.epoch(5))  # an epoch that was left in the middle
    assert_same(list(again.epoch(6, start=3)), whole[3:])
    assert_same(list(again.epoch(6)), whole)


@pytest.mark.skipif(not hasattr(signal, "sigwaitinfo"), reason="needs to know who sends a signal")
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_workers_leave_signals_to_whoever_trains(store, number):
    """Clusters send them to all processes, and a step that has begun needs its batch."""
    whole, streamed = loader(store), loader(store, budget=0, workers=1)
    batches = streamed.epoch(1)
    first = next(batches)
    [worker] = multiprocessing.active_children()
    subprocess.run(["kill", f"-{number}", str(worker.pid)], check=True)
    assert_same([first, *batches, *streamed.epoch(2)], [*whole.epoch(1), *whole.epoch(2)])
    assert [worker] == multiprocessing.active_children()
    worker.terminate()  # as torch and Python do when they end
    worker.join(30)
    assert worker.exitcode == 0


def test_one_view_is_the_first_of_two(store):
    single, double = next(loader(store, num_views=1).epoch(0)), next(loader(store).epoch(0))
    assert len(single["images"]) == len(single["labels"]) == len(single["views"]) == 1
    assert torch.equal(single["images"][0], double["images"][0])


def test_the_budget_decides_where_samples_lie(store):
    samples = store.samples("train")
    size = sum(image.nbytes + label.nbytes for image, label in samples)
    assert loader(store, budget=size).resident is not None
    assert loader(store, budget=size - 1).resident is None
    assert free_memory(torch.device("cpu")) > 1 << 20


def test_where_the_system_does_not_say_what_is_free_a_budget_still_holds(monkeypatch, tmp_path):
    monkeypatch.setattr("adawac.data.loader.Path", lambda _: tmp_path / "meminfo")
    halved = free_memory(torch.device("cpu"))
    assert halved == os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 2
    monkeypatch.delattr(os, "sysconf")
    assert 1 << 30 <= free_memory(torch.device("cpu")) <= 8 << 30


@pytest.mark.parametrize("workers", [0, 1])
def test_a_file_that_workers_cannot_read_is_named_without_a_traceback(tmp_path, workers):
    store = prepare(mixed_source(), None, tmp_path / "store", workers=1)
    for path in store.path.glob("cases/*/image.npy"):
        path.write_bytes(path.read_bytes()[:200])
    with pytest.raises(DataError, match=r"image\.npy cannot be read") as raised:
        list(loader(store, budget=0, workers=workers).epoch(0))
    assert "Traceback" not in str(raised.value)


def test_an_unlabelled_sample_is_named(tmp_path):
    store = prepare(mixed_source(unlabelled="p2"), None, tmp_path / "store", workers=1)
    with pytest.raises(DataError, match=r"mixed/p2/p2.*has none"):
        loader(store)


def test_whole_volumes_load_too(tmp_path):
    store = prepare(mixed_source(), None, tmp_path / "store", workers=1, unit="volume")
    memory, disk = (loader(store, size=(12, 14, 4), batch_size=3, budget=budget) for budget in (0.5, 0))
    batch = next(memory.epoch(0))
    assert batch["images"][0].shape == (3, 2, 12, 14, 4)
    assert batch["views"][0].shape == (3, 3, 4)
    assert_same(list(memory.epoch(1)), list(disk.epoch(1)))


def file_pages():
    """Return the bytes of files that this process holds in memory through maps."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) << 10 for line in lines if line.startswith("RssFile"))


@pytest.mark.skipif(not Path("/proc/self/status").is_file(), reason="needs /proc")
def test_streaming_keeps_no_pages_of_the_store(store, tmp_path):
    list(loader(store, budget=0, views=IDENTITY).epoch(0))  # the libraries' own pages
    store = prepare(mixed_source(shapes=((256, 256, 24),) * 4), None, tmp_path / "store", workers=1)
    data = loader(store, budget=0, batch_size=2, views=IDENTITY)
    total = sum(image.nbytes for image, _ in store.samples("train"))
    assert total == 48 << 20
    before = file_pages()
    assert max(file_pages() - before for epoch in range(2) for _ in data.epoch(epoch)) < total / 3
