"""Batches to a device and results back, through pooled buffers and on streams of their own.

On CUDA there are three streams, ordered against each other by events alone, never by synchronising the device. On the
CPU the same calls work in place: no streams, every event None, and the batch lies in the buffer that was filled.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from cosyvoice_app.audio.grouping import length_bucket
from cosyvoice_app.audio.pools import Buffer, BufferPool, Mark, PoolStats, rounded_size
from cosyvoice_app.errors import ConfigError, DeviceError
from cosyvoice_app.types import FloatArray

_Stage = Literal["upload", "compute", "download"]
_STAGES: tuple[_Stage, ...] = ("upload", "compute", "download")
_INPUT_BUFFERS, _STAGING_BUFFERS, _OUTPUT_BUFFERS = 4, 3, 2


class NotFinite(ValueError):
    """A clip of the batch holds NaN or an infinity."""


@dataclass(frozen=True, slots=True, eq=False)
class OnDevice:
    """`samples` [B, n] float32, zero-padded, and `lengths` [B] int64, both in `buffer`. May be used by the compute
    stream once `ready` is passed."""

    samples: Tensor
    lengths: Tensor
    buffer: Buffer
    ready: Mark | None


class Transfer:
    """Owns the streams and pools of one device. Each method belongs to one stage, and stages may be threads."""

    def __init__(self, device: torch.device, rows: int, samples: int, output_values: int) -> None:
        """Room for batches of `rows` clips, of `samples` in all with their padding, that give `output_values` floats.
        Larger ones are possible; their buffers have to be made, and are not kept if they are more than twice as large.
        """
        self._is_cuda = device.type == "cuda"
        make: Any = torch.cuda.Stream
        self._streams: dict[_Stage, Any] = {stage: make(device=device) for stage in _STAGES} if self._is_cuda else {}
        size, output_size = _offset(rows) + 4 * samples, 4 * output_values
        keep, keep_output = 2 * rounded_size(size), 2 * rounded_size(output_size)
        # Memory of the upload stream, so that no earlier work on another one can still be using it.
        with self._on("upload"):
            self._input = BufferPool(_INPUT_BUFFERS, prepared=size, device=str(device), keep_bytes=keep)
        self._staging = self._output = None
        if self._is_cuda:
            self._staging = BufferPool(_STAGING_BUFFERS, prepared=size, pinned=True, keep_bytes=keep)
            self._output = BufferPool(_OUTPUT_BUFFERS, prepared=output_size, pinned=True, keep_bytes=keep_output)

    def upload(self, clips: Sequence[FloatArray]) -> OnDevice:
        """Begin to bring clips [n] to the device; waits for a free buffer. Give the result back with `release`.

        Raises NotFinite: looked for here, where the samples are read anyway, and not on the device, which would have
        to be waited for.
        """
        rows, width = len(clips), max(1, *(len(clip) for clip in clips))
        if self._is_cuda:
            # Few different shapes, so that torch's allocator and FFT plans meet each of them again.
            width = length_bucket(width)
        offset = _offset(rows)
        size = offset + 4 * rows * width
        with self._on("upload"):
            buffer = self._input.acquire(size)
            try:
                if self._staging is not None:
                    self._copy_in(clips, self._staging, buffer, offset, size)
                else:
                    _fill(clips, buffer, offset, size)
                samples = buffer.data[offset:size].view(torch.float32).view(rows, width)
                lengths = buffer.data[: 8 * rows].view(torch.int64)
                return OnDevice(samples, lengths, buffer, self._mark("upload"))
            except BaseException:
                self._input.release(buffer)
                raise

    def _copy_in(
        self, clips: Sequence[FloatArray], staging: BufferPool, target: Buffer, offset: int, size: int
    ) -> None:
        staged = staging.acquire(size)
        copied = None
        try:
            _fill(clips, staged, offset, size)
            target.data[:size].copy_(staged.data[:size], non_blocking=True)
            copied = self._mark("upload")
        finally:
            staging.release(staged, copied)

    @contextlib.contextmanager
    def computing(self, batch: OnDevice) -> Iterator[None]:
        """What is launched inside goes to the compute stream, after the batch's upload."""
        with self._on("compute"), torch.inference_mode():
            self._wait("compute", batch.ready)
            yield

    def computed(self) -> Mark | None:
        """A point after all that was given to the compute stream so far."""
        return self._mark("compute")

    @contextlib.contextmanager
    def download(self, values: Tensor, after: Mark | None) -> Iterator[FloatArray]:
        """`values`, ready `after` that point, on the host: a view that is valid inside the block only.

        Waits for the copy alone; the thread sleeps meanwhile, and the other streams go on.
        """
        if self._output is None:
            yield values.numpy()
            return
        size = 4 * values.numel()
        buffer = self._output.acquire(size)
        copied = None
        try:
            with self._on("download"), torch.inference_mode():
                self._wait("download", after)
                host = buffer.data[:size].view(torch.float32).view(values.shape)
                host.copy_(values, non_blocking=True)
                copied = self._mark("download")
            if copied is not None:
                copied.synchronize()
            yield host.numpy()
        finally:
            self._output.release(buffer, copied)

    def release(self, batch: OnDevice, after: Mark | None) -> None:
        """Give the batch's buffer back; `after` is the end of the last work that reads it."""
        self._input.release(batch.buffer, after)

    def close(self) -> None:
        for pool in self._pools().values():
            pool.close()

    def stats(self) -> dict[str, PoolStats]:
        return {name: pool.stats() for name, pool in self._pools().items()}

    def _pools(self) -> dict[str, BufferPool]:
        pools = {"input": self._input, "staging": self._staging, "output": self._output}
        return {name: pool for name, pool in pools.items() if pool is not None}

    def _on(self, stage: _Stage) -> contextlib.AbstractContextManager[Any]:
        return torch.cuda.stream(self._streams[stage]) if self._is_cuda else contextlib.nullcontext()

    def _mark(self, stage: _Stage) -> Mark | None:
        if not self._is_cuda:
            return None
        make: Any = torch.cuda.Event
        event: Mark = make(blocking=True)
        self._streams[stage].record_event(event)
        return event

    def _wait(self, stage: _Stage, mark: Mark | None) -> None:
        """Let the stage's stream go on only after the mark; the calling thread does not wait."""
        if mark is not None:
            self._streams[stage].wait_event(mark)


def torch_device(name: str) -> torch.device:
    """The device with its number. Raises ConfigError for a name that means nothing here, DeviceError without CUDA."""
    try:
        device = torch.device(name)
    except RuntimeError:
        device = None
    if device is None or device.type not in ("cpu", "cuda"):
        raise ConfigError(f"The device is {name!r}; allowed: cpu, cuda, or cuda:N.", param="device")
    if device.type == "cpu":
        return torch.device("cpu")
    if not torch.cuda.is_available():
        raise DeviceError(
            f"The device {name} can't be used: torch finds no CUDA device. `python -m cosyvoice_app "
            "doctor` says why; or use the cpu.",
            param="device",
        )
    return torch.device("cuda", torch.cuda.current_device() if device.index is None else device.index)


def _offset(rows: int) -> int:
    """Where the samples begin: after the lengths, at a place that is aligned for vector instructions."""
    return -(-8 * rows // 64) * 64


def _fill(clips: Sequence[FloatArray], buffer: Buffer, offset: int, size: int) -> None:
    """Lengths, then samples padded with zeros, into the first `size` bytes of a host buffer."""
    raw = buffer.data.numpy()
    raw[: 8 * len(clips)].view(np.int64)[:] = [len(clip) for clip in clips]
    rows = raw[offset:size].view(np.float32).reshape(len(clips), -1)
    for row, clip in zip(rows, clips, strict=True):
        row[: len(clip)] = clip
        if not np.isfinite(row[: len(clip)]).all():
            raise NotFinite
        row[len(clip) :] = 0.0
