"""Clips in, features out, with decoding, copying and computing overlapped.

    submit(source) ─► decode    `decoders` threads: file to samples at the extractor's rate
                      group     clips of like length, until `max_batch` or `max_wait_ms`
                      upload    into a pooled buffer, pinned on CUDA, and to the device on a stream of its own
                      compute   the extractor, on the compute stream
                      download  to the host on a third stream ─► the clip's future

On the CPU the stages are the same threads without streams, and the device's buffer is the one that was filled. Every
queue is bounded: when results come slower than clips, `submit` waits. A clip's result is what the extractor gives for
that clip alone, because padding and neighbours don't change it (on the CPU to the bit).
"""

from __future__ import annotations

import atexit
import contextlib
import logging
import os
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from functools import partial
from queue import Queue
from types import TracebackType
from typing import TypeVar

import numpy as np
import torch
from torch import Tensor

from cosyvoice_app.audio.clip_features import BatchExtractor, ClipFeatures, PipelineStats
from cosyvoice_app.audio.clip_jobs import Batch, Clip, finish
from cosyvoice_app.audio.clip_loading import Source, load_clip, not_finite
from cosyvoice_app.audio.grouping import Grouper
from cosyvoice_app.audio.halving import by_halves
from cosyvoice_app.audio.pools import Mark
from cosyvoice_app.audio.transfer import NotFinite, OnDevice, Transfer, torch_device
from cosyvoice_app.errors import ConfigError, OutOfMemory, QueueFull, is_out_of_memory
from cosyvoice_app.types import FloatArray

T = TypeVar("T")

log = logging.getLogger(__name__)

_CLIP_S_IN_BATCH = 10.0


class FeaturePipeline:
    """Computes features of many clips; safe to use from several threads. Use it in a `with` block, or close it.

    `device` is "cpu", "cuda" or "cuda:N". `queue` bounds the clips that wait for a batch (at least two batches' worth).
    A batch holds at most `max_batch` clips and `max_batch` x 10 s of padded audio; a longer clip goes alone.
    `max_seconds` and `max_bytes` bound one clip. Leaving the `with` block waits for all clips, or after an exception
    only for those already in a batch.
    """

    def __init__(
        self, extractor: BatchExtractor, device: str = "cpu", *, decoders: int = 2, max_batch: int = 32,
        max_wait_ms: float = 50.0, queue: int = 64, max_seconds: float = 3600.0, max_bytes: int = 1 << 30,
    ) -> None:  # fmt: skip
        for name, value in (("decoders", decoders), ("max_batch", max_batch), ("queue", queue)):
            if value < 1:
                raise ConfigError(f"{name} is {value}; it must be at least 1.", param=name)
        if max_wait_ms < 0:
            raise ConfigError(f"max_wait_ms is {max_wait_ms:g}; it must not be negative.", param="max_wait_ms")
        self.extractor, self.device = extractor, torch_device(device)
        self._pid = os.getpid()
        self._load = partial(load_clip, rate_hz=extractor.rate_hz, max_seconds=max_seconds, max_bytes=max_bytes)
        self._queue = max(queue, 2 * max_batch)
        self._batch_samples = int(max_batch * _CLIP_S_IN_BATCH * extractor.rate_hz)
        self._grouper: Grouper[Clip] = Grouper(
            max_batch, self._batch_samples, max_wait_ms / 1000.0, self._queue, 2 * self._batch_samples
        )
        self._transfer = self._made_transfer(max_batch)
        self._lock = threading.Lock()
        self._has_job, self._has_room = threading.Condition(self._lock), threading.Condition(self._lock)
        self._jobs: deque[Clip] = deque()
        self._waiting, self._producers = 0, decoders
        self._closed = self._dropping = False
        self._clips = self._batches = self._memory_splits = self._samples = self._padded = self._largest = 0
        # One batch between two stages is enough for both to be busy.
        self._uploaded: Queue[Batch | None] = Queue(1)
        self._computed: Queue[Batch | None] = Queue(1)
        loops = [*[self._decode_loop] * decoders, self._upload_loop, self._compute_loop, self._download_loop]
        self._threads = [
            threading.Thread(target=loop, name=f"features{loop.__name__.replace('_loop', '')}", daemon=True)
            for loop in loops
        ]
        # A pipeline that nobody closed: its threads must not be inside torch when the interpreter takes it down.
        atexit.register(self.close, False)
        for thread in self._threads:
            thread.start()

    def submit(self, source: Source, *, timeout: float | None = None) -> Future[ClipFeatures]:
        """Queue a clip: a path, a file's bytes, an `Audio`, or mono float samples [n] at the extractor's rate, which
        must not be changed before the future is done.

        Waits while the queue is full; raises QueueFull after `timeout` seconds, RuntimeError once closed or in a child
        process. The future can be cancelled until the clip is in a batch. Its exceptions: BadInput, TooLarge or
        PromptError about the clip, OutOfMemory, or whatever the extractor raises for this clip alone. Its callbacks
        run on the pipeline's threads: a submit from there never waits. An interrupt (Ctrl-C) ends a submit that waits,
        and its clip is forgotten.
        """
        if os.getpid() != self._pid:
            raise RuntimeError("The pipeline's threads are in the process that forked this one. Make one here.")
        is_own = threading.current_thread() in self._threads
        timeout = 0.0 if is_own else timeout
        deadline = None if timeout is None else time.monotonic() + timeout
        # Nothing to decode: a thread less to wake, which on the CPU the extractor would feel. But room in a group may
        # have to be waited for, and a thread of the pipeline would wait for itself.
        is_ready = isinstance(source, np.ndarray | Tensor) and not is_own
        clip = Clip(source)
        with self._lock:
            free = self._has_room.wait_for(lambda: self._closed or self._waiting < self._queue, timeout)
            if self._closed:
                raise RuntimeError("The pipeline is closed and takes no more clips.")
            if not free:
                raise QueueFull(f"{self._queue} clips are waiting already. Submit again when some are done.")
            self._waiting += 1
            if not is_ready:
                self._jobs.append(clip)
                self._has_job.notify()
            self._producers += is_ready
        if is_ready:
            self._submit_ready(clip, deadline)
        return clip.future

    def _submit_ready(self, clip: Clip, deadline: float | None) -> None:
        try:
            if not self._prepare(clip, deadline):
                raise QueueFull("As many samples as are held are waiting already. Submit again when some are done.")
        except BaseException:
            clip.future.cancel()
            # What came between may have come after the clip was grouped, where it leaves the queue by itself.
            if clip.is_queued and not self._grouper.holds(clip):
                self._give_up(clip)
            raise
        finally:
            self._end_producer()

    def close(self, drain: bool = True) -> None:
        """Take no more clips, and return when every thread has ended; waiting producers get RuntimeError.

        With `drain` all accepted clips are finished; without it those not yet in a batch are cancelled. May be called
        again and from any thread; from a future's callback it returns at once.
        """
        if os.getpid() != self._pid:
            return  # the threads are the parent's, and so is whoever holds the lock
        with self._lock:
            self._closed = True
            self._dropping = self._dropping or not drain
            self._has_job.notify_all()
            self._has_room.notify_all()
        if threading.current_thread() in self._threads:
            return
        for thread in self._threads:
            thread.join()
        self._transfer.close()
        atexit.unregister(self.close)

    def __enter__(self) -> FeaturePipeline:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close(drain=kind is None)

    def stats(self) -> PipelineStats:
        segments = None
        if self.device.type == "cuda":
            segments = int(torch.cuda.memory_stats(self.device).get("segment.all.allocated", 0))
        rate_hz, pools = self.extractor.rate_hz, self._transfer.stats()
        with self._lock:
            seconds, padded_s = self._samples / rate_hz, self._padded / rate_hz
            return PipelineStats(self._clips, self._batches, seconds, padded_s, self._memory_splits, pools, segments)

    def _made_transfer(self, max_batch: int) -> Transfer:
        # A clip has at most a frame more than its share of one long clip.
        values = (self.extractor.frames(self._batch_samples) + max_batch) * self.extractor.bins
        try:
            return Transfer(self.device, max_batch, self._batch_samples, values)
        except (RuntimeError, MemoryError) as error:
            if not is_out_of_memory(error):
                raise
            raise OutOfMemory(
                f"The device {self.device} has no room for the buffers of batches of {max_batch} clips. Ask for "
                "smaller batches, or close other programs that use the device."
            ) from error

    # decode

    def _decode_loop(self) -> None:
        try:
            while (clip := self._next_job()) is not None:
                self._prepare(clip)
                del clip  # or it would stay until the next one comes
        finally:
            self._end_producer()

    def _prepare(self, clip: Clip, deadline: float | None = None) -> bool:
        """Load and group a clip, or give it up; False when there was no room for it by the deadline."""
        if self._dropping:
            finish(clip.future.cancel)
        if clip.future.cancelled():
            self._give_up(clip)
            return True
        try:
            assert clip.source is not None
            clip.loaded = self._load(clip.source)
        except BaseException as error:
            # Given to whoever waits for the result.
            if not isinstance(error, Exception) and threading.current_thread() not in self._threads:
                raise  # an interrupt is the caller's
            self._give_up(clip, self._out_of_memory("this clip") if is_out_of_memory(error) else error)
            return True
        clip.source = None
        return self._grouper.add(clip, len(clip.samples), deadline)

    def _end_producer(self) -> None:
        with self._lock:
            self._producers -= 1
            last = self._producers == 0
        if last:
            self._grouper.end()

    def _next_job(self) -> Clip | None:
        with self._has_job:
            self._has_job.wait_for(lambda: self._jobs or self._closed)
            return self._jobs.popleft() if self._jobs else None

    def _give_up(self, clip: Clip, error: BaseException | None = None) -> None:
        """For a clip that won't be in a batch: cancelled, or failed with `error`."""
        clip.is_queued = False
        self._leave_queue(1)
        if clip.future.set_running_or_notify_cancel() and error is not None:
            finish(partial(clip.future.set_exception, error))

    def _leave_queue(self, clips: int) -> None:
        with self._lock:
            self._waiting -= clips
            self._has_room.notify(clips)

    # upload

    def _upload_loop(self) -> None:
        try:
            while (group := self._grouper.take()) is not None:
                for batch in self._attempt(self._upload, self._started(group)):
                    self._uploaded.put(batch)
                    del batch
                del group
        finally:
            self._uploaded.put(None)

    def _started(self, group: Sequence[Clip]) -> list[Clip]:
        """Those not cancelled; from now on they can't be."""
        self._leave_queue(len(group))
        for clip in group:
            if self._dropping:
                finish(clip.future.cancel)
        return [clip for clip in group if clip.future.set_running_or_notify_cancel()]

    def _upload(self, clips: Sequence[Clip], start: int, stop: int) -> Batch:
        return Batch(clips[start:stop], self._transfer.upload([clip.samples for clip in clips[start:stop]]))

    # compute

    def _compute_loop(self) -> None:
        try:
            while (batch := self._uploaded.get()) is not None:
                try:
                    with self._transfer.computing(batch.on_device):
                        batch.parts = self._attempt(partial(self._compute, batch.on_device), batch.clips)
                        batch.computed = self._transfer.computed()
                except RuntimeError as error:
                    # The device itself failed; the clips are told so, and the thread lives on to tell the next ones.
                    batch.parts = []
                    self._fail(batch.clips, error)
                self._computed.put(batch)
                del batch
        finally:
            self._computed.put(None)

    def _compute(self, batch: OnDevice, _: Sequence[Clip], start: int, stop: int) -> tuple[int, int, Tensor]:
        rows = slice(start, stop)
        return start, stop, self.extractor(batch.samples[rows], batch.lengths[rows], check=False).values

    # download

    def _download_loop(self) -> None:
        while (batch := self._computed.get()) is not None:
            self._count(batch)
            for first, end, values in batch.parts:
                self._attempt(partial(self._download, values, batch.computed), batch.clips[first:end])
                del values
            try:
                # All that reads the buffer comes before a download that was waited for, or before `computed`.
                self._transfer.release(batch.on_device, batch.computed)
            except RuntimeError:
                log.exception("the device failed after a batch")
            del batch

    def _download(self, values: Tensor, computed: Mark | None, clips: Sequence[Clip], start: int, stop: int) -> None:
        with self._transfer.download(values[start:stop], computed) as host:
            for clip, rows in zip(clips[start:stop], host, strict=True):
                if not clip.future.done():
                    finish(partial(clip.future.set_result, self._result(clip, rows)))

    def _result(self, clip: Clip, rows: FloatArray) -> ClipFeatures:
        values = rows[: self.extractor.frames(len(clip.samples))]
        if self.device.type == "cuda":
            values = values.copy()  # out of a pooled buffer
        return ClipFeatures(values, self.extractor.rate_hz, clip.ready.rate_hz, clip.ready.seconds)

    def _count(self, batch: Batch) -> None:
        padded = batch.on_device.samples.shape
        largest = max([(end - first) * padded[1] for first, end, _ in batch.parts], default=0)
        with self._lock:
            self._batches += 1
            self._clips += len(batch.clips)
            self._samples += sum(len(clip.samples) for clip in batch.clips)
            self._padded += padded[0] * padded[1]
            self._largest = max(self._largest, largest)
            # After a shortage batches grow again slowly: it may have been another program's.
            self._grouper.most_samples = min(self._batch_samples, self._grouper.most_samples * 9 // 8 + 1)

    # failure

    def _attempt(self, work: Callable[[Sequence[Clip], int, int], T], clips: Sequence[Clip]) -> list[T]:
        """Results of `work(clips, start, stop)`; clips that fail are told so, and cost the others nothing."""

        def failed(start: int, stop: int, error: BaseException) -> None:
            if is_out_of_memory(error):
                longest_s = max(len(clip.samples) for clip in clips[start:stop]) / self.extractor.rate_hz
                what = f"{stop - start} clips of up to" if stop - start > 1 else "a clip of"
                error = self._out_of_memory(
                    f"{what} {longest_s:.1f} s, tried once before in a batch of the same or twice the size"
                )
            elif isinstance(error, NotFinite):
                error = not_finite(clips[start].ready)
            self._fail(clips[start:stop], error)

        def shrunk(start: int, stop: int) -> None:
            samples = (stop - start) * max(len(clip.samples) for clip in clips[start:stop])
            with self._lock:
                self._memory_splits += 1
                self._grouper.most_samples = min(self._grouper.most_samples, samples // 2)

        return by_halves(partial(work, clips), 0, len(clips), failed, shrunk)

    def _fail(self, clips: Sequence[Clip], error: BaseException) -> None:
        for clip in clips:
            if not clip.future.done():
                finish(partial(clip.future.set_exception, error))

    def _out_of_memory(self, what: str) -> OutOfMemory:
        """Says what was asked and, as far as it has been seen, what would fit."""
        fits_s = self._largest / self.extractor.rate_hz
        fits = f"{fits_s:.0f} s of audio at once have fit" if fits_s else "nothing has fit so far"
        if self.device.type == "cuda":
            with contextlib.suppress(RuntimeError):  # a device that failed otherwise too has nothing to say
                free, total = torch.cuda.mem_get_info(self.device)
                fits += f", and {free / 1e9:.1f} of {total / 1e9:.1f} GB are free"
        return OutOfMemory(
            f"The device ran out of memory on {what}: {fits}. Ask for smaller batches, cut long clips, or close other "
            "programs that use the device."
        )
