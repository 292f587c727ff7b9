"""What goes between the host and an engine's device, without making more wait than must.

On CUDA a copy goes through page-locked memory from a bounded pool, on a stream of its own, and is ordered by events: to
the device nobody waits, and from it the caller waits for its own copy and for nothing else. On the CPU nothing is
copied.

The plain ways wait for all that the caller's stream has been given: `torch.tensor(..., device=)`, `.to(device)` and
`.tolist()` from or to memory that may be paged out.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from cosyvoice_app.audio.pools import BufferPool, PoolStats
from cosyvoice_app.audio.transfer import torch_device

Array = npt.NDArray[Any]

_BUFFERS = 8
_PREPARED_BYTES, _KEEP_BYTES = 1 << 20, 16 << 20
"""Each way: 8 MiB of page-locked memory from the start and 128 MiB kept at most. 16 MiB are three minutes of audio."""

_made: dict[torch.device, HostCopies] = {}
_making = threading.Lock()


def host_copies(device: torch.device) -> HostCopies:
    """The one of a device, made on the first need."""
    device = torch_device(str(device))
    with _making:
        if device not in _made:
            _made[device] = HostCopies(device)
        return _made[device]


class HostCopies:
    """Safe to use from several threads, each on whatever stream is its current one. Not while a graph is captured."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._upload: Any = None
        self._downloads: dict[int, Any] = {}
        self._lock = threading.Lock()
        self._up = self._down = None
        if device.type == "cuda":
            self._upload = torch.cuda.Stream(device=device)  # type: ignore[no-untyped-call]
            self._up, self._down = _pinned_pool(), _pinned_pool()

    def to_device(self, source: Tensor | Array) -> Tensor:
        """`source`, of the host, on the device, for what the current stream is given from now on.

        The host's memory may be changed at once. On the CPU the result is `source` itself, unless it can't be written.
        """
        host = source if isinstance(source, Tensor) else _as_tensor(source)
        if self._up is None or host.device.type != "cpu":
            return host.to(self._device)
        current = torch.cuda.current_stream(self._device)
        staged = self._up.acquire(host.nbytes)
        copied = None
        try:
            staging = _viewed(staged.data, host)
            staging.copy_(host)
            with torch.cuda.stream(self._upload):
                # Memory of the upload stream: of another it could still be in use by that one's earlier work.
                there = torch.empty(host.shape, dtype=host.dtype, device=self._device)
                there.copy_(staging, non_blocking=True)
                copied = _mark(self._upload)
        finally:
            self._up.release(staged, copied)  # handed out again when the copy is over
        current.wait_event(copied)
        there.record_stream(current)  # freed, it isn't given out again before the work of this stream so far is done
        return there

    def to_host(self, tensor: Tensor) -> Array:
        """`tensor` as an array in C order that holds no other memory than its own. See `rows_to_host`."""
        (array,) = self.rows_to_host([tensor])
        return array

    def rows_to_host(self, rows: Sequence[Tensor]) -> list[Array]:
        """Tensors of one dtype, which numpy must have, as arrays; from a device in one copy for all.

        Waits for what the current stream has been given, and for that copy. On the CPU an array may share its memory
        with a tensor that fills its own: write to neither.
        """
        if self._down is None or not rows:
            return [_owned(row) for row in rows]
        flat = torch.cat([row.detach().reshape(-1) for row in rows]) if len(rows) > 1 else rows[0].detach().contiguous()
        current = torch.cuda.current_stream(self._device)
        ready = _mark(current)
        stream = self._beside(current)
        buffer = self._down.acquire(flat.nbytes)
        copied = None
        try:
            host = _viewed(buffer.data, flat)
            with torch.cuda.stream(stream):
                stream.wait_event(ready)
                host.copy_(flat, non_blocking=True)  # `flat` is held until the copy is over
                copied = _mark(stream)
            copied.synchronize()
            return _split(host.numpy().reshape(-1), rows)
        finally:
            self._down.release(buffer, copied)

    def stats(self) -> dict[str, PoolStats]:
        """Of the pools of page-locked memory, for the metrics; none on the CPU."""
        pools = {"upload": self._up, "download": self._down}
        return {name: pool.stats() for name, pool in pools.items() if pool is not None}

    def _beside(self, current: Any) -> Any:
        """The download stream of a stream of work: one for each, so that no copy waits behind another's work. There
        are few: torch deals out 32 streams again and again."""
        key = int(current.cuda_stream)
        with self._lock:
            if key not in self._downloads:
                self._downloads[key] = torch.cuda.Stream(device=self._device)  # type: ignore[no-untyped-call]
            return self._downloads[key]


def _pinned_pool() -> BufferPool:
    return BufferPool(_BUFFERS, prepared=_PREPARED_BYTES, pinned=True, keep_bytes=_KEEP_BYTES)


def _mark(stream: Any) -> Any:
    """A point after all that the stream has been given so far. Who waits for it sleeps."""
    event = torch.cuda.Event(blocking=True)  # type: ignore[no-untyped-call]
    stream.record_event(event)
    return event


def _viewed(raw: Tensor, like: Tensor) -> Tensor:
    """The first bytes of a buffer as a tensor of the shape and dtype of `like`."""
    return raw[: like.nbytes].view(like.dtype).view(like.shape)


def _as_tensor(array: Array) -> Tensor:
    return torch.from_numpy(array if array.flags.writeable else array.copy())


def _owned(row: Tensor) -> Array:
    array = row.detach().numpy()
    alone = row.untyped_storage().nbytes() == array.nbytes and array.flags.c_contiguous
    return array if alone else np.array(array, order="C")


def _split(flat: Array, rows: Sequence[Tensor]) -> list[Array]:
    arrays, at = [], 0
    for row in rows:
        arrays.append(flat[at : at + row.numel()].reshape(tuple(row.shape)).copy())
        at += row.numel()
    return arrays
