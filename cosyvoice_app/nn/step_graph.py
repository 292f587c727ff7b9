"""CUDA graphs of a decoding step: hundreds of small kernels started by one call."""

from __future__ import annotations

from collections.abc import Callable

import torch


class StepGraphs:
    """One captured graph a key. `step(key)` must read and write only tensors that stay where they are, and running it
    for warming up must do no harm.
    """

    def __init__(self, step: Callable[[int], None], device: torch.device) -> None:
        self._step, self._device = step, device
        self._graphs: dict[int, torch.cuda.CUDAGraph] = {}

    def prepare(self, key: int) -> None:
        """Capture the step for `key`, unless that was done."""
        if key in self._graphs:
            return
        with torch.cuda.device(self._device):
            stream: torch.cuda.Stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
            stream.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(stream):  # libraries choose kernels and take workspace here, not while capturing
                for _ in range(2):
                    self._step(key)
            torch.cuda.current_stream().wait_stream(stream)
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph):
                self._step(key)
            self._graphs[key] = graph

    def run(self, key: int) -> None:
        self._graphs[key].replay()
