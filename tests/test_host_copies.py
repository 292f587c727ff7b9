"""Copies between host and device: the right bytes, in order, with no more waiting than their own.

Without a GPU a stand-in keeps what its streams are given and does it as late as events allow: who reads too early, or
gives a buffer away too soon, gets wrong bytes here.
"""

from __future__ import annotations

import contextlib
import threading
import warnings
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from cosyvoice_app.engines import host_copies as module
from cosyvoice_app.engines.host_copies import HostCopies, host_copies
from cosyvoice_app.errors import DeviceError

CPU = torch.device("cpu")
GPU = torch.device("cuda", 0)


class LazyCuda:
    """Streams whose work is done only when an event asks for it, over memory of the host."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.lock = threading.RLock()
        self.pinned: list[int] = []
        self.synchronized: list[Any] = []
        self.kept_for: list[tuple[int, Any]] = []
        self._local = threading.local()
        copy, make, fake = Tensor.copy_, torch.empty, self

        class Event:
            def __init__(self, blocking: bool) -> None:
                assert blocking, "who waits must sleep"

            def query(self) -> bool:
                return bool(self.stream.done >= self.at)

            def finish(self) -> None:
                self.stream.run(self.at)

            def synchronize(self) -> None:
                fake.synchronized.append(self.stream)
                self.finish()

        class Stream:
            count = 0

            def __init__(self, device: torch.device | None = None) -> None:
                self.work: list[Callable[[], Any]] = []
                self.done = 0
                Stream.count += 1
                self.cuda_stream = Stream.count

            def do(self, work: Callable[[], Any]) -> None:
                with fake.lock:
                    self.work.append(work)

            def run(self, until: int) -> None:
                with fake.lock:
                    while self.done < until:
                        self.work[self.done]()
                        self.done += 1

            def record_event(self, event: Any) -> None:
                with fake.lock:
                    event.stream, event.at = self, len(self.work)

            def wait_event(self, event: Any) -> None:
                self.do(event.finish)

        self.Stream = Stream

        def lazy_copy(to: Tensor, source: Tensor, non_blocking: bool = False) -> Tensor:
            if not non_blocking:
                return copy(to, source)
            self.current().do(lambda: copy(to, source))
            return to

        def empty(*size: Any, device: Any = None, pin_memory: bool = False, **options: Any) -> Tensor:
            made = make(*size, **options)
            if pin_memory:
                self.pinned.append(made.nbytes)
            return made.view(torch.uint8).fill_(255).view(made.dtype) if made.ndim else made  # never zeros by chance

        @contextlib.contextmanager
        def on(stream: Any) -> Iterator[None]:
            before, self._local.stream = self.current(), stream
            try:
                yield
            finally:
                self._local.stream = before

        monkeypatch.setattr(torch.cuda, "Stream", Stream)
        monkeypatch.setattr(torch.cuda, "Event", Event)
        monkeypatch.setattr(torch.cuda, "stream", on)
        monkeypatch.setattr(torch.cuda, "current_stream", lambda _: self.current())
        monkeypatch.setattr(torch.cuda, "synchronize", lambda *_: pytest.fail("the whole device was waited for"))
        monkeypatch.setattr(torch, "empty", empty)
        monkeypatch.setattr(Tensor, "copy_", lazy_copy)
        monkeypatch.setattr(Tensor, "record_stream", lambda t, stream: self.kept_for.append((t.data_ptr(), stream)))

    def current(self) -> Any:
        if not hasattr(self._local, "stream"):
            self._local.stream = self.Stream()
        return self._local.stream


@pytest.fixture
def cuda(monkeypatch: pytest.MonkeyPatch) -> LazyCuda:
    return LazyCuda(monkeypatch)


def numbers(size: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(size).astype(np.float32)


def test_to_the_device_nobody_waits_and_the_source_may_change_at_once(cuda: LazyCuda) -> None:
    copies, stream, seen = HostCopies(GPU), cuda.current(), []
    wanted = [numbers(5000, seed) for seed in range(30)]  # more than there are buffers
    for array in wanted[:8]:
        source = array.copy()
        there = copies.to_device(source)
        source[:] = 0.0
        stream.do(lambda there=there: seen.append(there.clone()))
        assert (there.data_ptr(), stream) in cuda.kept_for
    assert seen == [] and cuda.synchronized == []
    for array in wanted[8:]:
        there = copies.to_device(torch.from_numpy(array.copy()))
        stream.do(lambda there=there: seen.append(there.clone()))
    stream.run(len(stream.work))
    assert [np.array_equal(got.numpy(), want) for got, want in zip(seen, wanted, strict=True)] == [True] * 30
    assert copies.stats()["upload"].allocations == len(cuda.pinned) // 2 == 8


def test_the_copy_back_comes_after_the_work_before_it_and_is_one_for_all_rows(
    cuda: LazyCuda, monkeypatch: pytest.MonkeyPatch
) -> None:
    copies, stream = HostCopies(GPU), cuda.current()
    batch = torch.zeros(15)
    parts = [batch[:3], batch[3:11].view(2, 4), batch[11:11], batch[11]]
    join = torch.cat

    def cat_later(tensors: list[Tensor]) -> Tensor:
        joined = torch.zeros(sum(t.numel() for t in tensors))
        stream.do(lambda: joined.copy_(join(tensors)))
        return joined

    stream.do(lambda: batch.copy_(torch.arange(15.0)))
    monkeypatch.setattr(torch, "cat", cat_later)
    arrays = copies.rows_to_host(parts)
    late = []
    stream.do(lambda: late.append(True))
    assert [a.tolist() for a in arrays] == [[0, 1, 2], [[3, 4, 5, 6], [7, 8, 9, 10]], [], 11]
    assert [a.shape for a in arrays] == [(3,), (2, 4), (0,), ()]
    assert len(cuda.synchronized) == 1 and cuda.synchronized[0] is not stream
    assert late == [], "nobody waits for later work"
    kept = [a.copy() for a in arrays]
    copies.to_host(torch.full((15,), 9.0))  # the buffer is used again
    assert all(np.array_equal(a, b) for a, b in zip(arrays, kept, strict=True))
    assert all(a.flags.owndata and a.flags.writeable for a in arrays)


def test_a_copy_back_waits_behind_nobody_else_s_work(cuda: LazyCuda) -> None:
    copies, done = HostCopies(GPU), []
    busy = cuda.Stream()
    busy.do(lambda: done.append("slow"))
    with torch.cuda.stream(busy):
        slow = torch.ones(4)
        busy.do(lambda: slow.fill_(5.0))
        assert copies.to_host(slow).tolist() == [5.0] * 4
        busy.do(lambda: done.append("slower"))
    assert copies.to_host(torch.ones(4)).tolist() == [1.0] * 4
    assert done == ["slow"]
    for _ in range(50):
        copies.to_host(torch.ones(4))
    assert len(copies._downloads) == 2, "one for each stream of work"


def test_threads_get_their_own_bytes_and_buffers_come_back(cuda: LazyCuda) -> None:
    copies = HostCopies(GPU)

    def work(seed: int) -> bool:
        right = True
        for n in range(60):
            array = numbers(100 + 997 * (n % 7), seed * 1000 + n)
            there = copies.to_device(array)
            right &= np.array_equal(copies.to_host(there), array)
            first, second = copies.rows_to_host([there[:50], there[50:]])
            right &= np.array_equal(np.concatenate([first, second]), array)
        return right

    with ThreadPoolExecutor(12) as pool:
        assert all(pool.map(work, range(12), timeout=120))
    for stats in copies.stats().values():
        assert (stats.in_use, stats.idle, stats.allocations) == (0, 8, 8)


def test_a_copy_that_fails_gives_its_buffer_back(cuda: LazyCuda, monkeypatch: pytest.MonkeyPatch) -> None:
    copies = HostCopies(GPU)
    whole = Tensor.copy_

    def fail(to: Tensor, source: Tensor, non_blocking: bool = False) -> Tensor:
        if non_blocking:
            raise RuntimeError("the device failed")
        return whole(to, source)

    monkeypatch.setattr(Tensor, "copy_", fail)
    for _ in range(20):
        with pytest.raises(RuntimeError, match="the device failed"):
            copies.to_device(numbers(10))
        with pytest.raises(RuntimeError, match="the device failed"):
            copies.to_host(torch.zeros(10))
    assert [stats.in_use for stats in copies.stats().values()] == [0, 0]


@pytest.mark.parametrize("array", [
    np.arange(12, dtype=np.int64).reshape(3, 4), np.array([True, False, True]), np.array(1.5),
    np.arange(12, dtype=np.float32).reshape(3, 4).T, np.zeros((0, 4), np.float16), np.arange(4, dtype=np.uint8),
])
@pytest.mark.parametrize("device", [CPU, GPU])
def test_every_shape_and_type_goes_there_and_back(cuda: LazyCuda, device: torch.device, array: np.ndarray) -> None:
    copies = HostCopies(device)
    back = copies.to_host(copies.to_device(array))
    assert np.array_equal(back, array) and back.dtype == array.dtype and back.flags.c_contiguous


def test_an_array_that_must_not_be_written_is_none_to_be_warned_about() -> None:
    array = numbers(10)
    array.flags.writeable = False
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        there = HostCopies(CPU).to_device(array)
    there[:] = 0.0
    assert array.any()


def test_on_the_cpu_nothing_is_copied_but_what_would_keep_more_alive() -> None:
    copies = HostCopies(CPU)
    array = numbers(100)
    there = copies.to_device(array)
    assert there.data_ptr() == array.ctypes.data
    assert copies.to_host(there).ctypes.data == array.ctypes.data
    first, second = copies.rows_to_host([there[:40], there[40:]])
    assert first.flags.owndata and second.flags.owndata
    assert np.array_equal(np.concatenate([first, second]), array)
    assert copies.rows_to_host([]) == [] and copies.stats() == {}
    assert copies.to_host(torch.ones(3, requires_grad=True)).tolist() == [1.0] * 3


def test_there_is_one_for_each_device(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_made", {})
    assert host_copies(CPU) is host_copies(torch.device("cpu"))
    if not torch.cuda.is_available():
        with pytest.raises(DeviceError):
            host_copies(torch.device("cuda"))


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_on_a_gpu_the_bytes_are_right_and_nobody_waits_for_others() -> None:
    copies = host_copies(torch.device("cuda"))
    busy: Any = torch.cuda.Stream()  # type: ignore[no-untyped-call]
    with torch.cuda.stream(busy):
        torch.cuda._sleep(2_000_000_000)
    asleep: Any = torch.cuda.Event()  # type: ignore[no-untyped-call]
    busy.record_event(asleep)

    def work(seed: int) -> bool:
        with torch.inference_mode(), torch.cuda.stream(torch.cuda.Stream()):  # type: ignore[no-untyped-call]
            arrays = [numbers(1000 * (n % 9 + 1), seed * 100 + n) for n in range(40)]
            doubled = [copies.to_device(array) * 2.0 for array in arrays]
            backs = copies.rows_to_host(doubled) + [copies.to_host(row) for row in doubled]
            return all(np.array_equal(back, 2.0 * array) for back, array in zip(backs, 2 * arrays, strict=True))

    with ThreadPoolExecutor(6) as pool:
        assert all(pool.map(work, range(6), timeout=120))
    assert not asleep.query(), "a sleep on another stream was waited for"
    torch.cuda.synchronize()
    assert [stats.in_use for stats in copies.stats().values()] == [0, 0]
