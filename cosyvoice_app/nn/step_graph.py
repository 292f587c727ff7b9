"""CUDA graphs: hundreds of small kernels started by one call."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TypeVar

import torch

T = TypeVar("T")

_capturing = threading.Lock()
"""One capture at a time in the whole process: beginning one waits for the device and empties the allocator's cache,
and neither is allowed while another is under way."""


class Capturer:
    """Captures graphs that run one at a time, in one stream's order. Made on the first need: it starts CUDA.

    All of them share one pool of memory, so a graph's run overwrites what the others have left in it: copy a result out
    before running another. All are warmed up and captured on one stream, which is this object's own: cuBLAS has a
    workspace a stream, and a graph keeps the address of the one it was captured with, so two objects' graphs may run
    beside each other.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        with torch.cuda.device(device):
            self._stream: torch.cuda.Stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        self._pool = torch.cuda.graph_pool_handle()

    def capture(self, work: Callable[[], T], *, warm_ups: int) -> tuple[torch.cuda.CUDAGraph, T]:
        """The graph of `work`, and what it returned: tensors that every run of the graph writes anew.

        Other threads may go on using the device meanwhile.
        """
        with _capturing, torch.cuda.device(self._device):
            self._stream.wait_stream(torch.cuda.current_stream())
            # Around the capture too: one that fails would leave its stream the current one.
            with torch.cuda.stream(self._stream):
                for _ in range(warm_ups):  # libraries choose kernels and take workspace here, not while capturing
                    work()
                graph = torch.cuda.CUDAGraph()
                # Waits for the device first. "thread_local" forbids what can't be captured to this thread alone; the
                # default would forbid it to a thread that computes something else.
                with torch.cuda.graph(graph, pool=self._pool, stream=self._stream, capture_error_mode="thread_local"):
                    made = work()
        return graph, made


class StepGraphs:
    """One captured graph a key. `step(key)` must read and write only tensors that stay where they are, and running it
    for warming up must do no harm.
    """

    def __init__(self, step: Callable[[int], None], device: torch.device) -> None:
        self._step = step
        self._capturer = Capturer(device)
        self._graphs: dict[int, torch.cuda.CUDAGraph] = {}

    def __contains__(self, key: int) -> bool:
        return key in self._graphs

    def prepare(self, key: int) -> None:
        """Capture the step for `key`."""
        self._graphs[key], _ = self._capturer.capture(lambda: self._step(key), warm_ups=2)

    def run(self, key: int) -> None:
        self._graphs[key].replay()
