"""A function of device tensors as a CUDA graph: captured once for each shape of its arguments, then replayed."""

import gc
import logging
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_flatten, tree_map_only, tree_unflatten

log = logging.getLogger(__name__)


class Captured:
    """Calls a function eagerly at first, which is its warm-up, and replays it as a CUDA graph from then on.

    Every call counts: none is made only to warm up or to capture, so that state moves as it would eagerly.

    Args:
        function: Works on tensors of the device alone, and leaves its result in tensors that outlive the call.
        forget: Called before and after capturing: drops what eager calls left behind and a graph must not hold.
        warmup: Eager calls for each shape, in which libraries choose their algorithms and buffers come into being.

    Attributes:
        reason: Why it cannot be captured, once that has shown; it is called eagerly then.
    """

    def __init__(self, function: Callable[..., None], forget: Callable[[], None], warmup: int = 2):
        self.function, self.forget, self.warmup = function, forget, warmup
        self.reason: str | None = None
        self._stream = torch.cuda.Stream()
        self._pool = torch.cuda.graph_pool_handle()
        self._calls: dict[Any, int] = {}
        self._graphs: dict[Any, tuple[torch.cuda.CUDAGraph, list[Tensor]]] = {}

    def __call__(self, *arguments: Any) -> None:
        """Call the function with tensors, or lists, tuples and mappings of them."""
        tensors, structure = tree_flatten(arguments)
        key = (str(structure), *((tensor.shape, tensor.dtype) for tensor in tensors))
        if key in self._graphs:
            graph, inputs = self._graphs[key]
            torch._foreach_copy_(inputs, tensors)
            graph.replay()
        elif self.reason is not None:
            self.function(*arguments)
        elif self._calls.setdefault(key, 0) < self.warmup:
            self._calls[key] += 1
            self._on_the_side(arguments)
        else:
            self._capture(key, tensors, structure)
            self(*arguments)

    def _on_the_side(self, arguments: Any) -> None:
        """Call eagerly on the stream that is captured later: some libraries keep a workspace for each stream."""
        self._stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self._stream):
            self.function(*arguments)
        torch.cuda.current_stream().wait_stream(self._stream)
        tree_map_only(Tensor, lambda tensor: tensor.record_stream(self._stream), arguments)

    def _capture(self, key: Any, tensors: list[Tensor], structure: Any) -> None:
        inputs = [tensor.clone() for tensor in tensors]
        self.forget()
        gc.collect()
        torch.cuda.empty_cache()  # what eager calls needed is not shared with the graph
        graph = torch.cuda.CUDAGraph()
        generator = torch.cuda.default_generators[torch.cuda.current_device()]
        random = generator.clone_state()
        try:
            # Other threads may go on to talk to the device, as one that pins memory does.
            with torch.cuda.graph(graph, pool=self._pool, stream=self._stream, capture_error_mode="thread_local"):
                self.function(*tree_unflatten(inputs, structure))
        except RuntimeError as error:  # also the base class of torch's own errors
            if isinstance(error, torch.OutOfMemoryError):
                raise
            self.reason = str(error).splitlines()[0]
            generator.graphsafe_set_state(random)  # the generator would wait for the end of the capture for ever
        else:
            self._graphs[key] = graph, inputs
        finally:
            self.forget()
