"""The pipeline gives each clip what the extractor gives it alone, whatever else happens; and it ends when asked."""

from __future__ import annotations

import concurrent.futures
import contextlib
import itertools
import random
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import CancelledError, Future
from dataclasses import dataclass
from pathlib import Path

import clips as clip_maker
import numpy as np
import pytest
import torch
from torch import Tensor

from cosyvoice_app.audio import feature_pipeline
from cosyvoice_app.audio.clip_features import ClipFeatures
from cosyvoice_app.audio.clip_loading import load_clip, resampled
from cosyvoice_app.audio.feature_pipeline import FeaturePipeline
from cosyvoice_app.audio.features import KINDS, Extractor, Kind, extractor_for
from cosyvoice_app.audio.grouping import LENGTH_EDGES, Grouper, length_bucket
from cosyvoice_app.audio.halving import by_halves
from cosyvoice_app.audio.io import decode
from cosyvoice_app.audio.pools import Buffer, BufferPool, PoolClosed, rounded_size
from cosyvoice_app.errors import BadInput, ConfigError, DeviceError, OutOfMemory, PromptError, QueueFull, TooLarge
from cosyvoice_app.types import Audio, FloatArray

ROOT = Path(__file__).parents[1]
RATE_HZ = 16_000
TIMEOUT_S = 30.0


pytestmark = pytest.mark.usefixtures("no_thread_is_left")


@dataclass
class Sums:
    """[B, frames, 1]: the sum of each 160 samples. Rows with a marked first sample do what `deeds` says for it."""

    deeds: dict[float, Callable[[], None]]
    rate_hz: int = RATE_HZ
    bins: int = 1
    batches: tuple[tuple[int, int], ...] = ()
    gate: threading.Event | None = None
    entered: threading.Event | None = None

    def frames(self, samples: int) -> int:
        return samples // 160

    def __call__(self, samples: Tensor, lengths: Tensor, /, *, check: bool) -> Sums.Result:
        self.batches += (tuple(samples.shape),)
        if self.entered:
            self.entered.set()
        if self.gate:
            assert self.gate.wait(TIMEOUT_S)
        assert not samples[torch.arange(samples.shape[1]) >= lengths[:, None]].any(), "padding must be zeros"
        for first in samples[:, 0].tolist():
            if first in self.deeds:
                self.deeds[first]()
        frames = samples.shape[1] // 160
        return self.Result(samples[:, : 160 * frames].reshape(len(samples), frames, 160).sum(dim=2, keepdim=True))

    @dataclass
    class Result:
        values: Tensor


def sums() -> Sums:
    return Sums({})


def clip(marker: float = 0.25, samples: int = 1600) -> FloatArray:
    return np.full(samples, marker, np.float32)


def fail(error: BaseException) -> Callable[[], None]:
    def deed() -> None:
        raise error

    return deed


def fails_times(times: int, error: BaseException) -> Callable[[], None]:
    left = itertools.count()

    def deed() -> None:
        if next(left) < times:
            raise error

    return deed


def is_sum(result: ClipFeatures, marker: float = 0.25) -> bool:
    return bool(np.allclose(result.values, marker * 160))


def done(future: Future[ClipFeatures]) -> ClipFeatures:
    return future.result(TIMEOUT_S)


# results


def voices(rate_hz: int, seconds: list[float]) -> list[FloatArray]:
    speech, source_hz = clip_maker.read("p0_en.flac")
    speech = clip_maker.change_rate(speech, source_hz, rate_hz)
    return [np.resize(speech[i * 997 :], round(s * rate_hz)).copy() for i, s in enumerate(seconds)]


def alone(extractor: Extractor, samples: FloatArray) -> FloatArray:
    return extractor(torch.from_numpy(samples)[None]).values[0].numpy()


@pytest.mark.parametrize("kind", KINDS)
def test_a_clip_gets_to_the_bit_what_it_would_get_alone(kind: Kind) -> None:
    extractor = extractor_for(kind)
    lengths = [0.5, 0.5, 0.51, 1.0, 1.1, 1.7, 3.0, 0.02, 1 / extractor.rate_hz, 0.5, 2.9, 0.026]
    clips = voices(extractor.rate_hz, lengths)
    with FeaturePipeline(extractor, max_batch=4) as pipeline:
        results = [done(future) for future in [pipeline.submit(samples) for samples in clips]]
    for samples, result in zip(clips, results, strict=True):
        assert result.values.dtype == np.float32 and result.values.flags.c_contiguous
        assert result.frames == extractor.frames(len(samples))
        assert np.array_equal(result.values, alone(extractor, samples))
        assert result.seconds == len(samples) / extractor.rate_hz


def test_the_order_of_submission_changes_nothing() -> None:
    extractor = extractor_for("fbank")
    clips = voices(RATE_HZ, [0.3 + 0.07 * i for i in range(40)])
    found = []
    for seed in range(3):
        order = list(range(len(clips)))
        random.Random(seed).shuffle(order)
        with FeaturePipeline(extractor, max_batch=7, decoders=3) as pipeline:
            futures = {i: pipeline.submit(clips[i]) for i in order}
            found.append([done(futures[i]).values for i in range(len(clips))])
    for values in zip(*found, strict=True):
        assert np.array_equal(values[0], values[1]) and np.array_equal(values[0], values[2])


def test_every_form_of_a_source_gives_the_same(clips: Path) -> None:
    path = clips / "p.wav"
    extractor = extractor_for("fbank", 24_000)
    samples, rate_hz = clip_maker.read("p0_en.flac")
    samples = np.rint(samples * 32768).clip(-32768, 32767).astype(np.float32) / 32768
    sources = (path, str(path), path.read_bytes(), samples, torch.from_numpy(samples), Audio(samples, rate_hz))
    with FeaturePipeline(extractor) as pipeline:
        results = [done(future) for future in [pipeline.submit(source) for source in sources]]
    for result in results:
        assert np.array_equal(result.values, results[0].values)
        assert (result.rate_hz, result.source_rate_hz, result.seconds) == (24_000, 24_000, 6.0)


@pytest.mark.parametrize("source_hz", [8000, 11025, 22050, 44100, 48000, 96000])
def test_a_clip_of_another_rate_is_resampled(clips: Path, source_hz: int) -> None:
    extractor = extractor_for("mfcc")
    loaded = load_clip(clips / f"sr_{source_hz}.wav", RATE_HZ, max_seconds=60, max_bytes=1 << 24)
    with FeaturePipeline(extractor) as pipeline:
        result = done(pipeline.submit(clips / f"sr_{source_hz}.wav"))
    assert np.array_equal(result.values, alone(extractor, loaded.samples))
    assert (result.rate_hz, result.source_rate_hz) == (RATE_HZ, source_hz)
    assert result.seconds == pytest.approx(6.0, abs=1e-3)


def test_every_clip_is_read_as_the_decoder_reads_it(clips: Path) -> None:
    """Mono files have a quicker way, which must not show."""
    read = 0
    for path in sorted(clips.iterdir()):
        try:
            wanted = decode(path, max_seconds=60)
        except BadInput:
            with pytest.raises(BadInput):
                load_clip(path, RATE_HZ, max_seconds=60, max_bytes=1 << 26)
            continue
        loaded = load_clip(path, wanted.rate_hz, max_seconds=60, max_bytes=1 << 26)
        assert loaded.rate_hz == wanted.rate_hz and np.array_equal(loaded.samples, wanted.samples), path.name
        read += 1
    assert read > 15


@pytest.mark.parametrize("source_hz", [8000, 44100, 47999])
def test_both_resamplers_keep_a_tone(source_hz: int) -> None:
    """47999 and 16000 share no divisor, so that one goes the other way; it must not take gigabytes."""
    seconds = np.arange(source_hz // 2) / source_hz
    moved = resampled(np.sin(2 * np.pi * 440 * seconds).astype(np.float32), source_hz, RATE_HZ)
    wanted = np.sin(2 * np.pi * 440 * np.arange(len(moved)) / RATE_HZ)
    assert abs(len(moved) - RATE_HZ // 2) <= 1
    assert np.abs(moved - wanted)[200:-200].max() < 3e-3


# batches


def test_full_batches_leave_at_once_and_others_when_their_first_clip_has_waited() -> None:
    extractor = sums()
    with FeaturePipeline(extractor, max_batch=4, max_wait_ms=2000) as pipeline:
        started = time.monotonic()
        futures = [pipeline.submit(clip()) for _ in range(4)]
        concurrent.futures.wait(futures, TIMEOUT_S)
        assert time.monotonic() - started < 1.9
        started = time.monotonic()
        assert is_sum(done(pipeline.submit(clip())))
        assert time.monotonic() - started >= 1.9
    assert [rows for rows, _ in extractor.batches] == [4, 1]


def test_only_close_lengths_share_a_batch() -> None:
    extractor = sums()
    lengths = [int(1600 * 1.17**i) for i in range(20)] * 3
    random.Random(1).shuffle(lengths)
    with FeaturePipeline(extractor, max_batch=8) as pipeline:
        futures = [pipeline.submit(clip(samples=n)) for n in lengths]
        assert [done(future).frames for future in futures] == [n // 160 for n in lengths]
        stats = pipeline.stats()
    assert (stats.clips, stats.batches) == (60, len(extractor.batches))
    assert stats.seconds == pytest.approx(sum(lengths) / RATE_HZ)
    assert stats.seconds <= stats.padded_s <= 1.26 * stats.seconds
    assert max(rows for rows, _ in extractor.batches) > 1


def test_a_long_clip_goes_alone_and_a_batch_is_bounded_in_seconds() -> None:
    extractor = sums()
    with FeaturePipeline(extractor, max_batch=2, max_wait_ms=1000) as pipeline:
        for future in [pipeline.submit(clip(samples=n * RATE_HZ)) for n in (30, 30, 4, 4)]:
            assert is_sum(done(future))
    assert sorted(rows for rows, _ in extractor.batches) == [1, 1, 2]


def test_clips_that_fill_the_queue_without_filling_a_batch_do_not_wait_for_company() -> None:
    lengths = [LENGTH_EDGES[i % 16] for i in range(32)]
    with FeaturePipeline(sums(), max_batch=4, queue=8, max_wait_ms=60_000) as pipeline:
        futures = [pipeline.submit(clip(samples=n), timeout=TIMEOUT_S) for n in lengths]
        pipeline.close()
        assert all(future.done() for future in futures)


def test_length_buckets_bound_the_padding() -> None:
    for n in [*range(1025, 5000, 7), 80_000, 16_000 * 3600]:
        assert n <= length_bucket(n) <= 1.26 * n
    assert length_bucket(0) == length_bucket(1) == LENGTH_EDGES[0]


def test_the_grouper_blocks_at_its_bound_and_gives_way_when_samples_leave() -> None:
    grouper: Grouper[int] = Grouper(8, 10**9, 60.0, hold_items=100, hold_samples=3000)
    for i in range(3):
        grouper.add(i, 1000)
    blocked = threading.Thread(target=grouper.add, args=(3, 1000))
    blocked.start()
    blocked.join(0.1)
    assert blocked.is_alive()
    assert grouper.take() == [0, 1, 2]
    blocked.join(TIMEOUT_S)
    grouper.end()
    assert (grouper.take(), grouper.take()) == ([3], None)


# failures


def test_a_clip_that_fails_costs_its_batch_mates_nothing() -> None:
    extractor = Sums({0.5: fail(ValueError("this one")), 0.75: fail(KeyError("that one"))})
    markers = [0.25, 0.5, 0.25, 0.25, 0.75, 0.25, 0.25, 0.25]
    with FeaturePipeline(extractor, max_batch=8) as pipeline:
        futures = [pipeline.submit(clip(marker)) for marker in markers]
        for marker, future in zip(markers, futures, strict=True):
            if marker == 0.25:
                assert is_sum(done(future))
            else:
                with pytest.raises(ValueError if marker == 0.5 else KeyError):
                    done(future)
        assert is_sum(done(pipeline.submit(clip()))), "and the pipeline goes on"


def test_bad_sources_fail_by_themselves_and_say_why(clips: Path, tmp_path: Path) -> None:
    bad = clip()
    bad[800] = np.nan
    sources = {
        "not a number": bad,
        "'text.wav' is not audio": clips / "text.wav",
        "the file is empty": clips / "zero.wav",
        "can't be opened": tmp_path / "none.wav",
        "'len_31.0.wav' is 31 s long; at most 20 s": clips / "len_31.0.wav",
        "mono floats": np.zeros((2, 100), np.float32),
        "are int16": np.zeros(100, np.int16),
        "greater than 0": Audio(clip(), 0),
    }
    with FeaturePipeline(sums(), max_seconds=20) as pipeline:
        futures = {words: pipeline.submit(source) for words, source in sources.items()}
        good = [pipeline.submit(clip()) for _ in range(5)]
        for words, future in futures.items():
            with pytest.raises(BadInput, match=words):
                done(future)
        assert all(is_sum(done(future)) for future in good)
        assert isinstance(futures["the file is empty"].exception(), PromptError)
    with FeaturePipeline(sums(), max_bytes=1000) as pipeline, pytest.raises(TooLarge, match="'p.wav' is larger"):
        done(pipeline.submit(clips / "p.wav"))


@pytest.mark.parametrize(
    "error", [MemoryError(), torch.OutOfMemoryError("CUDA out of memory."), RuntimeError("can't allocate memory")]
)
def test_out_of_memory_once_is_made_good_with_half_the_batch(error: BaseException) -> None:
    extractor = Sums({0.5: fails_times(1, error)})
    with FeaturePipeline(extractor, max_batch=4) as pipeline:
        futures = [pipeline.submit(clip(marker)) for marker in (0.25, 0.25, 0.5, 0.25)]
        assert [is_sum(done(f), m) for f, m in zip(futures, (0.25, 0.25, 0.5, 0.25), strict=True)] == [True] * 4
        assert pipeline.stats().memory_splits == 1
    assert [rows for rows, _ in extractor.batches] == [4, 2, 2]


def test_out_of_memory_twice_fails_that_half_and_says_what_has_fit() -> None:
    extractor = Sums({0.5: fails_times(2, MemoryError())})
    with FeaturePipeline(extractor, max_batch=4) as pipeline:
        for future in [pipeline.submit(clip(samples=RATE_HZ)) for _ in range(4)]:
            assert is_sum(done(future))
        futures = [pipeline.submit(clip(m, RATE_HZ)) for m in (0.25, 0.25, 0.5, 0.25)]
        assert is_sum(done(futures[0])) and is_sum(done(futures[1]))
        for future in futures[2:]:
            with pytest.raises(OutOfMemory, match=r"on 2 clips of up to 1\.0 s.*: 4 s of audio at once have fit"):
                done(future)
        assert futures[2].exception() is not None and is_sum(done(pipeline.submit(clip())))
    assert [rows for rows, _ in extractor.batches] == [4, 4, 2, 2, 1]


def test_a_single_clip_gets_a_second_try_too() -> None:
    with FeaturePipeline(Sums({0.5: fails_times(1, MemoryError())}), max_wait_ms=0) as pipeline:
        assert is_sum(done(pipeline.submit(clip(0.5))), 0.5)
    with (
        FeaturePipeline(Sums({0.5: fail(MemoryError())}), max_wait_ms=0) as pipeline,
        pytest.raises(OutOfMemory, match="nothing has fit so far"),
    ):
        done(pipeline.submit(clip(0.5)))


def test_after_a_shortage_batches_are_smaller_and_grow_again() -> None:
    short = threading.Event()
    short.set()

    class Tight(Sums):
        def __call__(self, samples: Tensor, lengths: Tensor, /, *, check: bool) -> Sums.Result:
            if short.is_set() and samples.numel() > 4 * RATE_HZ:
                self.batches += ((-1, -1),)
                raise MemoryError
            return super().__call__(samples, lengths, check=check)

    extractor = Tight({})
    with FeaturePipeline(extractor, max_batch=8, max_wait_ms=20) as pipeline:
        for future in [pipeline.submit(clip(samples=RATE_HZ)) for _ in range(64)]:
            assert is_sum(done(future))
        failed = [rows for rows, _ in extractor.batches].count(-1)
        assert 1 <= failed == pipeline.stats().memory_splits <= 5, "it learns"
        short.clear()
        for _ in range(40):
            concurrent.futures.wait([pipeline.submit(clip(samples=RATE_HZ)) for _ in range(8)], TIMEOUT_S)
    assert max(rows for rows, _ in extractor.batches[-3:]) == 8


def test_memory_that_lacks_for_a_buffer_is_the_same_story(monkeypatch: pytest.MonkeyPatch) -> None:
    make = torch.empty
    lacks = itertools.count()

    def empty(*args: object, **options: object) -> Tensor:
        if options.get("dtype") is torch.uint8 and next(lacks) == 0:
            raise RuntimeError("[enforce fail at alloc_cpu.cpp] DefaultCPUAllocator: can't allocate memory")
        return make(*args, **options)  # type: ignore[call-overload]

    with FeaturePipeline(sums(), max_batch=1, max_wait_ms=0) as pipeline:
        monkeypatch.setattr(torch, "empty", empty)
        assert is_sum(done(pipeline.submit(clip(samples=60 * RATE_HZ))))
        assert pipeline.stats().memory_splits == 1
    lacks = itertools.count()
    with pytest.raises(OutOfMemory, match="no room for the buffers of batches of 32"):
        FeaturePipeline(sums())


def test_halving_finds_every_row_at_fault() -> None:
    for bad in [{0}, {6}, {1, 2}, {0, 3, 6}, set(range(7)), set()]:
        failed: set[int] = set()

        def work(start: int, stop: int, bad: set[int] = bad) -> list[int]:
            if bad & set(range(start, stop)):
                raise ValueError
            return list(range(start, stop))

        def note(start: int, stop: int, _: BaseException, failed: set[int] = failed) -> None:
            failed.update(range(start, stop))

        results = by_halves(work, 0, 7, note, lambda *_: pytest.fail("not about memory"))
        assert failed == bad
        assert [row for rows in results for row in rows] == [row for row in range(7) if row not in bad]


# back-pressure, cancelling, closing


def blocked_pipeline(**options: int) -> tuple[FeaturePipeline, Sums, threading.Event]:
    """A pipeline whose extractor stands until the gate is set; one clip is inside it."""
    gate, entered = threading.Event(), threading.Event()
    extractor = Sums({}, gate=gate, entered=entered)
    pipeline = FeaturePipeline(extractor, max_batch=2, queue=4, max_wait_ms=0, **options)
    pipeline.submit(clip())
    assert entered.wait(TIMEOUT_S)
    return pipeline, extractor, gate


def fill_up(pipeline: FeaturePipeline) -> list[Future[ClipFeatures]]:
    futures = []
    with pytest.raises(QueueFull, match="waiting already"):
        for _ in range(100):
            futures.append(pipeline.submit(clip(), timeout=0.2))
    return futures


def test_submit_waits_while_the_queue_is_full() -> None:
    pipeline, _, gate = blocked_pipeline()
    futures = fill_up(pipeline)
    # Four that wait; a batch each being uploaded, waiting for the extractor, and no more.
    assert 4 <= len(futures) <= 10
    gate.set()
    assert is_sum(done(pipeline.submit(clip())))
    pipeline.close()
    assert all(is_sum(done(future)) for future in futures)


def test_a_cancelled_clip_costs_nobody_else() -> None:
    pipeline, extractor, gate = blocked_pipeline()
    futures = fill_up(pipeline)
    cancelled = [future for future in futures if future.cancel()]
    assert len(cancelled) == 4, "those not in a batch yet"
    gate.set()
    pipeline.close()
    assert all(is_sum(done(future)) for future in futures if future not in cancelled)
    assert sum(rows for rows, _ in extractor.batches) == 1 + len(futures) - 4
    assert not concurrent.futures.wait(cancelled, 0).not_done, "waiters are told"


def test_a_clip_in_a_batch_cannot_be_cancelled() -> None:
    gate, entered = threading.Event(), threading.Event()
    with FeaturePipeline(Sums({}, gate=gate, entered=entered), max_wait_ms=0) as pipeline:
        future = pipeline.submit(clip())
        assert entered.wait(TIMEOUT_S)
        assert not future.cancel()
        gate.set()
        assert is_sum(done(future))


@pytest.mark.parametrize("drain", [True, False])
def test_closing_wakes_a_blocked_producer_and_ends_every_thread(drain: bool) -> None:
    pipeline, _, gate = blocked_pipeline()
    futures = fill_up(pipeline)
    said: list[BaseException] = []

    def produce() -> None:
        try:
            pipeline.submit(clip())
        except RuntimeError as error:
            said.append(error)

    producer = threading.Thread(target=produce)
    producer.start()
    producer.join(0.1)
    assert producer.is_alive()
    closer = threading.Thread(target=pipeline.close, args=(drain,))
    closer.start()
    producer.join(TIMEOUT_S)
    assert "closed" in str(said[0])
    gate.set()
    closer.join(TIMEOUT_S)
    assert not closer.is_alive()
    outcomes = [future.cancelled() for future in futures]
    assert all(future.done() for future in futures)
    assert sum(outcomes) == (0 if drain else 4)
    for future in futures:
        if not future.cancelled():
            assert is_sum(done(future))
    with pytest.raises(RuntimeError, match="closed"):
        pipeline.submit(clip())
    pipeline.close()


def test_leaving_by_an_exception_does_not_wait_for_the_queue() -> None:
    pipeline, _, gate = blocked_pipeline()
    futures = fill_up(pipeline)
    threading.Timer(0.1, gate.set).start()
    with pytest.raises(ZeroDivisionError), pipeline:
        raise ZeroDivisionError
    assert any(future.cancelled() for future in futures)
    time.sleep(0.05)


def test_a_callback_may_submit_and_close_without_locking_up() -> None:
    pipeline, _, gate = blocked_pipeline()
    futures = fill_up(pipeline)
    seen: list[str] = []

    def back(_: Future[ClipFeatures]) -> None:
        try:
            pipeline.submit(clip())
            seen.append("taken")
        except (QueueFull, RuntimeError) as error:
            seen.append(type(error).__name__)
        pipeline.close()

    futures[0].add_done_callback(back)
    gate.set()
    concurrent.futures.wait(futures, TIMEOUT_S)
    pipeline.close()
    assert len(seen) == 1 and all(is_sum(done(future)) for future in futures)


def test_cancelling_at_random_from_several_threads_loses_nothing() -> None:
    extractor = Sums({0.5: fail(ValueError("bad"))})
    outcomes: list[str] = []

    def produce(seed: int) -> None:
        chance = random.Random(seed)
        futures = []
        for _ in range(60):
            futures.append((chance.choice([0.25, 0.25, 0.25, 0.5]), chance.randrange(200, 4000)))
            marker, samples = futures[-1]
            futures[-1] = (marker, pipeline.submit(clip(marker, samples)))  # type: ignore[assignment]
            if chance.random() < 0.3:
                chance.choice(futures)[1].cancel()  # type: ignore[attr-defined]
        for marker, future in futures:
            try:
                assert is_sum(future.result(TIMEOUT_S), marker)  # type: ignore[attr-defined]
                outcomes.append("good")
            except CancelledError:
                outcomes.append("cancelled")
            except ValueError:
                assert marker == 0.5
                outcomes.append("bad")

    with FeaturePipeline(extractor, decoders=3, max_batch=8, max_wait_ms=1) as pipeline:
        threads = [threading.Thread(target=produce, args=(seed,)) for seed in range(3)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(2 * TIMEOUT_S)
    assert len(outcomes) == 180 and {"good", "bad"} <= set(outcomes)


def test_a_pipeline_that_nobody_closed_does_not_keep_the_program_from_ending() -> None:
    code = (
        "import numpy as np\n"
        "from cosyvoice_app.audio.feature_pipeline import FeaturePipeline\n"
        "from cosyvoice_app.audio.features import extractor_for\n"
        "pipeline = FeaturePipeline(extractor_for('mfcc'))\n"
        "futures = [pipeline.submit(np.zeros(80000, np.float32)) for _ in range(100)]\n"
        "futures[0].result()\n"
    )
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, cwd=ROOT)
    assert (ended.returncode, ended.stderr) == (0, "")


@pytest.mark.parametrize(
    "options", [{"decoders": 0}, {"max_batch": 0}, {"queue": 0}, {"max_wait_ms": -1.0}, {"device": "quantum"}]
)
def test_options_out_of_range_are_refused(options: dict[str, object]) -> None:
    with pytest.raises(ConfigError):
        FeaturePipeline(sums(), **options)  # type: ignore[arg-type]


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_without_a_gpu_cuda_is_refused_with_a_remedy() -> None:
    with pytest.raises(DeviceError, match="doctor"):
        FeaturePipeline(sums(), "cuda")


# memory


def test_nothing_is_allocated_while_500_clips_go_through() -> None:
    chance = random.Random(5)
    lengths = [chance.randrange(400, 160_000) for _ in range(500)]
    with FeaturePipeline(sums(), max_batch=8, max_wait_ms=1) as pipeline:
        before = pipeline.stats().pools
        for n, future in [(n, pipeline.submit(clip(samples=n))) for n in lengths]:
            assert done(future).frames == n // 160
        after = pipeline.stats().pools
        for name, pool in after.items():
            assert (pool.allocations, pool.bytes) == (before[name].allocations, before[name].bytes)
        assert after["input"].allocations == 4
        for future in [pipeline.submit(clip(samples=140 * RATE_HZ)) for _ in range(12)]:
            assert is_sum(done(future))
        assert after["input"].allocations < pipeline.stats().pools["input"].allocations <= 8, "but for longer clips"


class Clock:
    """A stand-in for a CUDA event."""

    def __init__(self) -> None:
        self.passed, self.waited = False, 0

    def query(self) -> bool:
        return self.passed

    def synchronize(self) -> None:
        self.waited += 1
        self.passed = True


def test_a_buffer_in_use_by_a_stream_is_not_handed_out() -> None:
    pool = BufferPool(2)
    first, second = pool.acquire(10), pool.acquire(10)
    busy, free = Clock(), Clock()
    free.passed = True
    pool.release(first, busy)
    pool.release(second, free)
    assert pool.acquire(10) is second, "the one that is ready goes first"
    assert busy.waited == 0
    assert pool.acquire(10) is first and busy.waited == 1, "else it is waited for"
    pool.release(first, Clock())
    assert pool.acquire(1 << 20).capacity == 1 << 20, "a buffer too small makes way"
    assert pool.stats().allocations == 3


def test_a_pool_is_bounded_and_survives_what_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    pool = BufferPool(1, keep_bytes=1 << 20)
    buffer = pool.acquire(100)
    with pytest.raises(QueueFull):
        pool.acquire(100, timeout=0.05)
    assert pool.stats().waits == 1
    taken = []
    waiter = threading.Thread(target=lambda: taken.append(pool.acquire(50)))
    waiter.start()
    waiter.join(0.05)
    assert waiter.is_alive()
    pool.release(buffer)
    waiter.join(TIMEOUT_S)
    assert taken == [buffer]
    with pytest.raises(ValueError, match="handed out"):
        pool.release(pool_buffer_of_another())
    pool.release(buffer)
    make = torch.empty
    monkeypatch.setattr(torch, "empty", lambda *_, **__: fail(MemoryError())())
    with pytest.raises(MemoryError):
        pool.acquire(1 << 19)
    monkeypatch.setattr(torch, "empty", make)
    huge = pool.acquire(1 << 22)
    assert pool.stats().bytes == 1 << 22
    pool.release(huge)
    assert (pool.stats().idle, pool.stats().bytes) == (0, 0), "too large to keep"
    pool.close()
    with pytest.raises(PoolClosed):
        pool.acquire(1)


def pool_buffer_of_another() -> Buffer:
    return BufferPool(1).acquire(1)


def test_sizes_are_powers_of_two() -> None:
    assert [rounded_size(n) for n in (0, 1, 65_536, 65_537, 1 << 20)] == [65_536, 65_536, 65_536, 131_072, 1 << 20]


# the way of CUDA


class FakeCuda:
    """Streams and events that keep a log, over memory of the host; work is done at once."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.log: list[tuple[str, str]] = []
        self.streams = 0
        make = torch.empty

        def empty(*size: int, device: object = None, pin_memory: bool = False, **options: object) -> Tensor:
            self.log.append(("made", "pinned" if pin_memory else str(device)))
            return make(*size, **options)  # type: ignore[call-overload]

        fake = self

        class Event:
            name = ""

            def __init__(self, blocking: bool) -> None:
                assert blocking

            def query(self) -> bool:
                return True

            def synchronize(self) -> None:
                fake.log.append(("synchronize", self.name))

        class Stream:
            def __init__(self, device: torch.device) -> None:
                self.name = ("upload", "compute", "download")[fake.streams]
                fake.streams += 1

            def record_event(self, event: Event) -> None:
                event.name = self.name
                fake.log.append(("record", self.name))

            def wait_event(self, event: Event) -> None:
                fake.log.append((f"{self.name} waits for", event.name))

        monkeypatch.setattr(torch, "empty", empty)
        monkeypatch.setattr(torch.cuda, "Event", Event)
        monkeypatch.setattr(torch.cuda, "Stream", Stream)
        monkeypatch.setattr(torch.cuda, "stream", lambda _: contextlib.nullcontext())
        monkeypatch.setattr(torch.cuda, "memory_stats", lambda _: {"segment.all.allocated": 7})
        monkeypatch.setattr(torch.cuda, "mem_get_info", lambda _: (10**9, 10**10))
        monkeypatch.setattr(torch.cuda, "synchronize", lambda *_: pytest.fail("the whole device was waited for"))
        monkeypatch.setattr(feature_pipeline, "torch_device", lambda _: torch.device("cuda", 0))


def test_streams_wait_for_each_other_by_events_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    cuda = FakeCuda(monkeypatch)
    with FeaturePipeline(sums(), "cuda", max_batch=3, max_wait_ms=1000) as pipeline:
        assert [kind for kind, _ in cuda.log] == ["made"] * 9
        assert [what for _, what in cuda.log].count("cuda:0") == 4, "the others are pinned"
        cuda.log.clear()
        results = [done(future) for future in [pipeline.submit(clip(samples=n)) for n in (1500, 1590, 1600)]]
        stats = pipeline.stats()
    assert all(is_sum(result) and result.values.flags.owndata for result in results)
    assert [result.frames for result in results] == [9, 9, 10]
    assert stats.device_segments == 7 and set(stats.pools) == {"input", "staging", "output"}
    assert stats.padded_s == 3 * 1600 / RATE_HZ, "padded to the bucket's edge"
    assert not any(kind == "made" for kind, _ in cuda.log)
    order = [
        ("record", "upload"),  # of the pinned buffer
        ("record", "upload"),  # of the batch
        ("compute waits for", "upload"),
        ("record", "compute"),
        ("download waits for", "compute"),
        ("record", "download"),
        ("synchronize", "download"),
    ]
    assert cuda.log[:7] == order


def test_many_batches_by_way_of_cuda(monkeypatch: pytest.MonkeyPatch) -> None:
    FakeCuda(monkeypatch)
    extractor = Sums({0.5: fail(ValueError("bad")), 0.75: fails_times(2, MemoryError())})
    chance = random.Random(3)
    markers = [chance.choice([0.25] * 9 + [0.5]) for _ in range(300)]
    markers[150] = 0.75
    with FeaturePipeline(extractor, "cuda", max_batch=8, max_wait_ms=1) as pipeline:
        futures = [pipeline.submit(clip(m, chance.randrange(200, 30_000))) for m in markers]
        pipeline.close()
        pools = pipeline.stats().pools
    for marker, future in zip(markers, futures, strict=True):
        error = future.exception()
        if error is None:
            assert is_sum(future.result(), marker)
        else:
            assert isinstance(error, ValueError if marker == 0.5 else OutOfMemory)
            assert marker == 0.5 or "1.0 of 10.0 GB are free" in str(error)
    assert isinstance(futures[150].exception(), OutOfMemory)
    assert {name: pool.allocations for name, pool in pools.items()} == {"input": 4, "staging": 3, "output": 2}
    assert all(pool.in_use == 0 and pool.bytes == 0 for pool in pools.values())


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_on_a_gpu_results_are_the_cpus_and_nothing_is_allocated_after_warm_up() -> None:
    extractor = extractor_for("mfcc")
    clips = voices(RATE_HZ, [0.3 + 0.11 * (i % 40) for i in range(400)])
    with FeaturePipeline(extractor, "cuda", max_batch=16) as pipeline:
        for _ in range(2):
            results = [done(future) for future in [pipeline.submit(samples) for samples in clips]]
        warm = pipeline.stats()
        for future in [pipeline.submit(samples) for samples in clips]:
            done(future)
        after = pipeline.stats()
    assert after.device_segments == warm.device_segments
    for name, pool in after.pools.items():
        assert pool.allocations == warm.pools[name].allocations
    for samples, result in zip(clips[:40], results, strict=False):
        assert np.abs(result.values - alone(extractor, samples)).max() < 1e-3
