"""Segments made ahead, and segments given out in parts: the same audio, the same errors, nothing left running."""

from __future__ import annotations

import dataclasses
import threading
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pytest
from engines_for_tests import QuickTone

from cosyvoice_app.engines.ahead import run_ahead
from cosyvoice_app.engines.base import StreamingEngine
from cosyvoice_app.engines.tone import RATE_HZ, ToneAcoustic, ToneEngine, ToneVocoder
from cosyvoice_app.errors import BadAudio, Cancelled, EngineFailure
from cosyvoice_app.pipeline import Job, Pipeline, Spoken, plan
from cosyvoice_app.types import Audio, CancelToken, NeverCancelled, PromptClip, Row, Segment, Text
from cosyvoice_app.voices.cache import VoiceCache


def job(clip: PromptClip, count: int = 4, pause_ms: int = 100, **changes: Any) -> Job:
    segments = tuple(Segment(f"sentence {n}.", (Text(f"sentence {n}.", "en"),), pause_ms) for n in range(count))
    return dataclasses.replace(plan(clip, "unused", seed=7, max_chars=100), segments=segments, **changes)


def run(engine: ToneEngine, prepared: Job, **hooks: Any) -> Spoken:
    return Pipeline(engine, VoiceCache()).run(prepared, **hooks)


class Meeting(ToneAcoustic):
    """Predicts row n + 1 only while the vocoder is at work on row n: each waits for the other."""

    def __init__(self) -> None:
        super().__init__(0.0, 0.0, 0)
        self.decoding = [threading.Event() for _ in range(10)]
        self.predicted = [threading.Event() for _ in range(10)]

    def predict(self, rows: Sequence[Row], *, cancel: CancelToken) -> list[Any]:
        (row,) = rows
        if row.index:
            assert self.decoding[row.index - 1].wait(10), "the vocoder never started on the row before"
        features = super().predict(rows, cancel=cancel)
        self.predicted[row.index].set()
        return features


class MeetingVocoder(ToneVocoder):
    def __init__(self, other: Meeting) -> None:
        self._other = other

    def decode(self, features: Sequence[Any], rows: Sequence[Row], *, cancel: CancelToken) -> list[Audio]:
        (row,) = rows
        self._other.decoding[row.index].set()
        if row.index < len(row.utterance.segments) - 1:
            assert self._other.predicted[row.index + 1].wait(10), "the next row was not predicted meanwhile"
        return super().decode(features, rows, cancel=cancel)


class Overlapping(QuickTone):
    def __init__(self) -> None:
        super().__init__()
        self.capabilities = dataclasses.replace(ToneEngine.capabilities, overlaps=True)


def meeting() -> Overlapping:
    engine = Overlapping()
    acoustic = Meeting()
    engine.acoustic_model, engine.vocoder = acoustic, MeetingVocoder(acoustic)
    return engine


def test_the_next_segment_is_predicted_while_this_one_is_decoded(p0: PromptClip) -> None:
    assert np.array_equal(run(meeting(), job(p0)).audio.samples, run(QuickTone(), job(p0)).audio.samples)


class Failing(ToneAcoustic):
    def __init__(self, at: int) -> None:
        super().__init__(0.0, 0.0, 0)
        self._at = at

    def predict(self, rows: Sequence[Row], *, cancel: CancelToken) -> list[Any]:
        if rows[0].index == self._at:
            raise RuntimeError("the model broke")
        return super().predict(rows, cancel=cancel)


@pytest.mark.parametrize("at", [0, 1, 3])
def test_an_error_ahead_is_the_request_s_error_and_comes_after_the_good_segments(p0: PromptClip, at: int) -> None:
    engine, heard = Overlapping(), []
    engine.acoustic_model = Failing(at)
    with pytest.raises(EngineFailure, match="the model broke"):
        run(engine, job(p0), on_chunk=lambda _, index: heard.append(index))
    assert heard == list(range(at))
    assert not [thread for thread in threading.enumerate() if thread.name == "ahead"]


class Flag:
    def __init__(self) -> None:
        self.set = False

    def check(self) -> None:
        if self.set:
            raise Cancelled("stopped")


def test_cancelling_ends_both_threads(p0: PromptClip) -> None:
    flag = Flag()

    def stop(_: Audio, index: int) -> None:
        flag.set = index == 1

    with pytest.raises(Cancelled):
        run(Overlapping(), job(p0, count=50), on_chunk=stop, cancel=flag)
    assert not [thread for thread in threading.enumerate() if thread.name == "ahead"]


def test_work_ahead_stops_at_its_depth_and_when_nobody_wants_the_rest() -> None:
    made: list[int] = []
    enough = threading.Event()

    def count(token: CancelToken) -> Iterator[int]:
        for n in range(1000):
            token.check()
            made.append(n)
            if n == 3:
                enough.set()
            yield n

    with run_ahead(count, NeverCancelled(), depth=2) as items:
        assert next(items) == 0
        assert enough.wait(5)  # 0 is taken, 1 and 2 wait, 3 is in hand
    assert made == [0, 1, 2, 3]
    with run_ahead(count, NeverCancelled(), depth=3) as items:
        assert list(items) == list(range(1000))


class Halves:
    """Streams a tone in parts of 1000 samples; `spoil` changes a part before it goes out."""

    def __init__(self, engine: ToneEngine, spoil: Any = None) -> None:
        self._engine, self._spoil = engine, spoil

    def stream(self, row: Row, *, cancel: CancelToken) -> Iterator[Audio]:
        features = self._engine.acoustic_model.predict([row], cancel=cancel)
        (whole,) = self._engine.vocoder.decode(features, [row], cancel=cancel)
        for at in range(0, len(whole.samples), 1000):
            part = whole.samples[at : at + 1000].copy()
            yield Audio(self._spoil(part, at) if self._spoil else part, whole.rate_hz)


class Streaming(QuickTone):
    def __init__(self, spoil: Any = None) -> None:
        super().__init__()
        self.streamer = Halves(self, spoil)


def test_a_streamed_job_comes_in_parts_that_make_up_its_result(p0: PromptClip) -> None:
    assert isinstance(Streaming(), StreamingEngine) and not isinstance(QuickTone(), StreamingEngine)
    parts: list[tuple[int, Audio]] = []
    spoken = run(Streaming(), job(p0, count=2, stream=True), on_chunk=lambda audio, index: parts.append((index, audio)))
    assert [index for index, _ in parts] == sorted(index for index, _ in parts) and len(parts) > 20
    assert np.array_equal(np.concatenate([audio.samples for _, audio in parts]), spoken.audio.samples)
    assert np.array_equal(spoken.audio.samples, run(QuickTone(), job(p0, count=2)).audio.samples)


def test_a_job_that_is_not_streamed_comes_in_whole_segments_from_any_engine(p0: PromptClip) -> None:
    for engine, stream in ((Streaming(), False), (QuickTone(), True)):
        indices: list[int] = []
        run(engine, job(p0, count=3, stream=stream), on_chunk=lambda _, index, seen=indices: seen.append(index))
        assert indices == [0, 1, 2]


def nan_late(part: Any, at: int) -> Any:
    return np.full_like(part, np.nan) if at >= 5000 else part


def loud_late(part: Any, at: int) -> Any:
    return part * 9 if at >= 5000 else part


@pytest.mark.parametrize(("spoil", "cause"), [
    (nan_late, "not finite"), (loud_late, "a peak of"),
    (lambda part, at: part * 0, "zeros"), (lambda part, at: part[:0], "no samples"),
    (lambda part, at: np.tile(part, 80), "plausible"),
])
def test_no_broken_part_is_given_out(p0: PromptClip, spoil: Any, cause: str) -> None:
    heard: list[Audio] = []
    with pytest.raises(BadAudio, match=cause):
        run(Streaming(spoil), job(p0, count=1, stream=True), on_chunk=lambda audio, _: heard.append(audio))
    samples = np.concatenate([audio.samples for audio in heard]) if heard else np.zeros(1)
    assert np.isfinite(samples).all() and np.abs(samples).max() <= 1.0
    assert all(audio.rate_hz == RATE_HZ for audio in heard)


def test_a_caller_that_fails_ends_the_work_ahead_though_its_error_lives_on(p0: PromptClip) -> None:
    def refuse(_: Audio, index: int) -> None:
        raise RuntimeError("the line is closed")

    with pytest.raises(EngineFailure) as held:
        run(Overlapping(), job(p0, count=50), on_chunk=refuse)
    assert held.traceback
    assert not [thread for thread in threading.enumerate() if thread.name == "ahead"]
