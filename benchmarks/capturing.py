"""CUDA graphs for benchmarks: what is timed is the GPU's work, not the host's launching of it."""

from collections.abc import Callable
from typing import Any

import torch


def captured(function: Callable[[], Any], warmup: int = 3) -> Callable[[], None]:
    """Return what replays a function, after some calls in which libraries choose their algorithms.

    These are made on the stream that is captured: some libraries keep a workspace for each stream.
    """
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(warmup):
            function()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=stream):
        function()
    return graph.replay
