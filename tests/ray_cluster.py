"""A Ray cluster of two machines in one, the second of which is lost midway."""

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

# Ray's own code leaves sockets and files to the garbage collector, and uses what Python deprecates.
ray_only = pytest.mark.filterwarnings("ignore")


@contextmanager
def started(**head: Any) -> Iterator[Any]:
    """Yield a cluster whose first machine has a processor."""
    pytest.importorskip("ray")
    import ray
    from ray.cluster_utils import Cluster

    made = Cluster(initialize_head=True, head_node_args={"num_cpus": 1, "include_dashboard": False, **head})
    try:
        yield made
    finally:
        ray.shutdown()
        made.shutdown()


@contextmanager
def remove_when(cluster: Any, machine: Any, due: Callable[[], bool]) -> Iterator[threading.Event]:
    """Take a machine away, without a warning, as soon as `due` says so; the event tells whether it was."""
    removed, over = threading.Event(), threading.Event()

    def watch() -> None:
        while not over.is_set():
            if due():
                cluster.remove_node(machine, allow_graceful=False)
                removed.set()
                return
            time.sleep(0.01)

    thread = threading.Thread(target=watch)
    thread.start()
    try:
        yield removed
    finally:
        over.set()
        thread.join()
