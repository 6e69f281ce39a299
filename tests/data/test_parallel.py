"""Cases as tasks: shares of them, a bounded number under way, and a Ray cluster that loses a machine."""

import os
import pickle
import time
from functools import partial
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from adawac.data import parallel
from adawac.data.parallel import run_jobs, share_of
from adawac.errors import ConfigError, DataError
from tests.ray_cluster import ray_only, remove_when


@given(items=st.lists(st.integers()), count=st.integers(1, 20))
def test_shares_are_all_items_each_once(items, count):
    shares = [items[share_of(f"{number}/{count}")] for number in range(1, count + 1)]
    assert sorted(item for share in shares for item in share) == sorted(items)
    assert max(map(len, shares)) - min(map(len, shares)) <= 1


@pytest.mark.parametrize("shard", ["0/3", "4/3", "3", "1/0", "-1/3", "a/b", "1/2/3", ""])
def test_a_bad_shard_is_one_message(shard):
    with pytest.raises(ConfigError, match=f"Expected a shard as K/N with K from 1 to N, .* got {shard!r}"):
        share_of(shard)


def test_few_jobs_wait_at_a_time_however_many_there_are(tmp_path, monkeypatch):
    """Else a hundred thousand cases would all wait in memory, each with its arguments and its result."""
    sizes = []
    pause = parallel.wait
    monkeypatch.setattr(parallel, "wait", lambda futures, **how: (sizes.append(len(futures)), pause(futures, **how))[1])
    assert sorted(result for _, result in run_jobs(abs, range(-200, 0), title="", workers=2)) == list(range(1, 201))
    assert max(sizes) == 8


def test_an_unknown_engine_and_an_address_for_nobody():
    with pytest.raises(ConfigError, match="engine local or ray, but got 'spark'"):
        list(run_jobs(abs, [1], title="", engine="spark"))
    with pytest.raises(ConfigError, match="no address for the local engine"):
        list(run_jobs(abs, [1], title="", address="auto"))


def test_a_machine_that_does_not_see_the_folder_says_so(tmp_path):
    with pytest.raises(DataError, match=r"every machine of the cluster to see .*gone, but .* does not"):
        parallel._call_on_ray("key", [], tmp_path / "gone", 1)


def note(folder: Path, item: int) -> int:
    """Leave a mark that the item was done; work that ended twice has two marks."""
    time.sleep(0.15)
    (folder / f"{item}-{os.getpid()}-{time.monotonic_ns()}").touch()
    return item


def refuse(item: int) -> int:
    """Fail as a case does that cannot be written."""
    raise DataError(f"Expected something else than {item}.")


@pytest.mark.slow
@ray_only
def test_a_lost_machine_loses_no_job_and_repeats_none_that_ended(tmp_path, two_machines):
    cluster, second = two_machines
    done = 0
    items = list(range(60))
    with remove_when(cluster, second, lambda: len(list(tmp_path.iterdir())) >= 10) as removed:
        for item, result in run_jobs(
            partial(note, tmp_path), items, title="", engine="ray", address=cluster.address, progress=False
        ):
            assert result == item
            done += 1
    assert removed.is_set()
    assert done == 60
    marks = [int(path.name.partition("-")[0]) for path in tmp_path.iterdir()]
    assert sorted(marks) == items


@pytest.mark.slow
@ray_only
def test_an_error_on_the_cluster_is_the_one_that_was_raised(two_machines):
    cluster, _ = two_machines
    with pytest.raises(DataError, match="Expected something else than"):
        list(run_jobs(refuse, [1, 2, 3], title="", engine="ray", address=cluster.address, progress=False))


def test_what_is_sent_to_a_cluster_is_sent_once():
    """A function may carry thousands of paths: a task names it, and a process that has it does not ask again."""
    parallel._sent.clear()
    parallel._sent["key"] = abs
    assert parallel._call_on_ray("key", [], Path("nowhere"), -3) == 3
    parallel._sent.clear()
    assert len(pickle.dumps(("key", [], Path("nowhere"), -3))) < 200
