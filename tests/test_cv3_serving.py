"""Many callers of one cosyvoice3 engine, at toy size: a row is what it is alone, whoever comes, ends, leaves or fails
beside it, and nothing of it stays.
"""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import cv3_tiny as tiny
import numpy as np
import pytest
import torch

from cosyvoice_app.engines.cosyvoice3.engine import CosyVoice3Engine
from cosyvoice_app.engines.cosyvoice3.lm_check import rows_agree
from cosyvoice_app.engines.cosyvoice3.speak import CosyVoice3Style
from cosyvoice_app.engines.cosyvoice3.stream_memory import StreamMemory
from cosyvoice_app.engines.cosyvoice3.turns import Turns
from cosyvoice_app.engines.cosyvoice3.voice import ClonedVoice
from cosyvoice_app.errors import Cancelled, EngineFailure, OutOfMemory, TextError
from cosyvoice_app.types import CancelToken, Intent, NeverCancelled, Row, Segment, Style, Text, Utterance, Voice

NEVER = NeverCancelled()
STEPS = 2
SLOTS = 3
LIMIT_S = 120.0
"""Of any wait: far beyond what anything here takes, so that what hangs fails."""
PRECISIONS = ("fp32", "bf16", "int8")
CALLERS = 6


def row(seed: int, text: str = "Ab") -> Row:
    segment = Segment(text, (Text(text, "en"),))
    voice = Voice("key", ClonedVoice(tiny.features(5 + 3 * (seed % 4), seed), "hi" if seed % 3 else ""))
    return Row(Utterance((segment,), Intent(), seed), 0, voice, Style(CosyVoice3Style("", 1.0)), seed)


ROWS = [row(seed, "Ab" if seed % 2 else "A") for seed in range(1, CALLERS + 1)]
LONG = row(40, "Abcde")


class Stop:
    """A cancel token that counts how often it is asked, and is cancelled from the `after`-th time on or by `set`."""

    def __init__(self, after: int = 1 << 60) -> None:
        self.asked, self.after = 0, after

    def set(self) -> None:
        self.after = 0

    def check(self) -> None:
        self.asked += 1
        if self.asked > self.after:
            raise Cancelled("stopped")


@pytest.fixture(scope="module", params=PRECISIONS)
def engine(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> CosyVoice3Engine:
    return tiny.engine(tmp_path_factory.mktemp("tiny"), precision=request.param, steps=STEPS, slots=SLOTS)


@pytest.fixture(scope="module")
def fp32(tmp_path_factory: pytest.TempPathFactory) -> CosyVoice3Engine:
    return tiny.engine(tmp_path_factory.mktemp("tiny32"), steps=STEPS, slots=SLOTS)


@pytest.fixture(autouse=True)
def _nothing_stays(request: pytest.FixtureRequest) -> Iterator[None]:
    before = threading.active_count()
    yield
    until(lambda: threading.active_count() <= before, "threads to end")
    for name in ("engine", "fp32"):
        if name in request.fixturenames:
            acoustic = request.getfixturevalue(name).acoustic_model
            until(lambda acoustic=acoustic: not acoustic.busy, "rows to end")  # type: ignore[misc]
            assert acoustic._batch.free == acoustic.slots
            assert acoustic._batch.cache.host_lengths == [0] * acoustic.slots


def until(done: Callable[[], bool], what: str) -> None:
    end = time.monotonic() + LIMIT_S
    while not done():
        assert time.monotonic() < end, f"still waiting for {what}"
        time.sleep(0.005)


def alone(engine: CosyVoice3Engine, rows: list[Row]) -> list[tuple[int, ...]]:
    return [engine.acoustic_model.predict([one], cancel=NEVER)[0] for one in rows]


def streamed(engine: CosyVoice3Engine, one: Row, cancel: CancelToken = NEVER) -> np.ndarray:
    return np.concatenate([part.samples for part in engine.streamer.stream(one, cancel=cancel)])


def at_random_moments(calls: list[Callable[[], Any]], seed: int) -> list[Any]:
    """What each gives, in threads that start while others are under way."""
    moments = random.Random(seed)
    order = list(range(len(calls)))
    moments.shuffle(order)
    with ThreadPoolExecutor(len(calls)) as pool:
        made: dict[int, Future[Any]] = {}
        for n in order:
            made[n] = pool.submit(calls[n])
            time.sleep(moments.choice((0.0, 0.002, 0.01)))
        return [made[n].result(LIMIT_S) for n in range(len(calls))]


# The seed law.


def test_a_row_is_what_it_is_alone_whoever_comes_and_goes(engine: CosyVoice3Engine) -> None:
    expected = alone(engine, ROWS)
    assert len(set(expected)) == len(ROWS) and min(map(len, expected)) > 10
    for round_ in range(3):
        calls = [lambda one=one: engine.acoustic_model.predict([one], cancel=NEVER)[0] for one in ROWS]
        assert at_random_moments(calls, round_) == expected
    assert engine.acoustic_model.predict(ROWS, cancel=NEVER) == expected  # one call, more rows than slots


def test_slots_change_nothing(engine: CosyVoice3Engine, tmp_path: Path) -> None:
    single = tiny.engine(tmp_path, engine._model, precision=engine.precision, steps=STEPS, slots=1)
    assert alone(single, ROWS[:2]) == engine.acoustic_model.predict(ROWS[:2], cancel=NEVER)


def test_streams_beside_others_are_streams_alone(engine: CosyVoice3Engine) -> None:
    expected = [streamed(engine, one) for one in ROWS[:3]]
    tokens = alone(engine, ROWS[3:5])
    for round_ in range(2):
        calls: list[Callable[[], Any]] = [lambda one=one: streamed(engine, one) for one in ROWS[:3]]
        calls += [lambda one=one: engine.acoustic_model.predict([one], cancel=NEVER)[0] for one in ROWS[3:5]]
        made = at_random_moments(calls, round_)
        assert all(np.array_equal(a, b) for a, b in zip(made, expected, strict=False))
        assert made[3:] == tokens


def test_audio_beside_others_is_audio_alone(engine: CosyVoice3Engine) -> None:
    rows = ROWS[:3]
    tokens = alone(engine, rows)
    expected = [engine.vocoder.decode([said], [one], cancel=NEVER)[0].samples
                for said, one in zip(tokens, rows, strict=True)]
    together = [audio.samples for audio in engine.vocoder.decode(tokens, rows, cancel=NEVER)]
    calls = [lambda said=said, one=one: engine.vocoder.decode([said], [one], cancel=NEVER)[0].samples
             for said, one in zip(tokens, rows, strict=True)]
    for made in (together, at_random_moments(calls, 1)):
        assert all(np.array_equal(a, b) for a, b in zip(made, expected, strict=True))


# Leaving.


@pytest.mark.parametrize("asked", [0, 1, 5, 20])
def test_one_that_is_cancelled_leaves_the_others_as_they_are(fp32: CosyVoice3Engine, asked: int) -> None:
    expected = alone(fp32, ROWS[:4])

    def cancelled() -> str:
        with pytest.raises(Cancelled):
            fp32.acoustic_model.predict([LONG], cancel=Stop(after=asked))
        return "cancelled"

    calls: list[Callable[[], Any]] = [lambda one=one: fp32.acoustic_model.predict([one], cancel=NEVER)[0]
                                      for one in ROWS[:4]]
    assert at_random_moments([*calls, cancelled, cancelled], asked) == [*expected, "cancelled", "cancelled"]


def test_one_who_waits_in_line_can_leave(fp32: CosyVoice3Engine) -> None:
    acoustic = fp32.acoustic_model
    holders = [acoustic.tokens(acoustic.prompt(LONG), cancel=NEVER, ahead=1) for _ in range(SLOTS)]
    for one in holders:
        next(one)
    assert acoustic._batch.free == 0
    with pytest.raises(Cancelled):
        acoustic.predict([ROWS[0]], cancel=Stop(after=2))
    for one in holders:
        one.close()


def test_a_stream_left_half_way_gives_all_back(fp32: CosyVoice3Engine) -> None:
    for _ in range(SLOTS + 1):
        parts = fp32.streamer.stream(LONG, cancel=NEVER)
        next(parts)
        parts.close()  # type: ignore[attr-defined]
        assert not fp32.acoustic_model.busy and fp32.streamer._memory.lent_bytes == 0


def test_rows_whose_callers_rest_make_room_for_those_who_wait(fp32: CosyVoice3Engine) -> None:
    """A slow reader of a stream keeps no slot that somebody waits for, and still gets every token."""
    acoustic = fp32.acoustic_model
    whole = list(acoustic.tokens(acoustic.prompt(LONG), cancel=NEVER))
    slow = [acoustic.tokens(acoustic.prompt(LONG), cancel=NEVER, ahead=1) for _ in range(SLOTS)]
    first = [next(one) for one in slow]
    assert alone(fp32, ROWS[:1]) and first == [whole[0]] * SLOTS
    assert all([first[0], *one] == whole for one in slow)


def test_a_row_is_made_no_further_ahead_than_asked(fp32: CosyVoice3Engine) -> None:
    acoustic = fp32.acoustic_model
    tokens = acoustic.tokens(acoustic.prompt(LONG), cancel=NEVER, ahead=1)
    next(tokens)
    alone(fp32, ROWS[:1])  # drives the batch for some twenty steps
    (slot,) = acoustic._batch.running
    assert acoustic._batch.cache.host_lengths[slot] - acoustic.prompt(LONG).length <= 3
    tokens.close()


def test_decoding_stops_within_a_step_of_the_solver(fp32: CosyVoice3Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    (tokens,) = alone(fp32, ROWS[:1])
    stop, dit, steps = Stop(), fp32._model.flow.dit, 0
    forward = dit.forward

    def counted(*args: Any, **more: Any) -> Any:
        nonlocal steps
        steps += 1
        stop.set()
        return forward(*args, **more)

    monkeypatch.setattr(dit, "forward", counted)
    with pytest.raises(Cancelled):
        fp32.vocoder.decode([tokens], [ROWS[0]], cancel=stop)
    assert steps == 1 < STEPS


# Failing.


def test_a_text_that_does_not_fit_is_its_callers_error_alone(fp32: CosyVoice3Engine) -> None:
    expected = alone(fp32, ROWS[:3])

    def too_long() -> str:
        with pytest.raises(TextError, match="too long"):
            fp32.acoustic_model.predict([row(1, "word " * 200)], cancel=NEVER)
        return "too long"

    calls: list[Callable[[], Any]] = [lambda one=one: fp32.acoustic_model.predict([one], cancel=NEVER)[0]
                                      for one in ROWS[:3]]
    assert at_random_moments([too_long, *calls, too_long], 3) == ["too long", *expected, "too long"]


def test_a_step_that_fails_is_told_to_all_its_rows_and_is_over(
    fp32: CosyVoice3Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = alone(fp32, ROWS[:2])
    batch, acoustic = fp32.acoustic_model._batch, fp32.acoustic_model
    forward = batch._forward

    def broken(*args: Any) -> Any:
        if len(batch.running) == 2:
            raise RuntimeError("CUDA out of memory. Tried to allocate")
        return forward(*args)

    def call(one: Row) -> Callable[[], str]:
        def run() -> str:
            with pytest.raises(OutOfMemory, match="ran out of memory"):
                acoustic.predict([one], cancel=NEVER)
            return "told"
        return run

    with monkeypatch.context() as patch:
        patch.setattr(batch, "_forward", broken)
        assert at_random_moments([call(LONG), call(LONG)], 5) == ["told", "told"]
    assert acoustic.predict(ROWS[:2], cancel=NEVER) == expected


def test_a_prompt_without_memory_waits_until_another_ends(
    fp32: CosyVoice3Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = alone(fp32, [LONG, *ROWS[:2]])
    batch, acoustic = fp32.acoustic_model._batch, fp32.acoustic_model
    prefill, failed = batch._prefill, 0

    def full(*args: Any) -> None:
        nonlocal failed
        if batch.free < SLOTS:  # there is memory for one row
            failed += 1
            raise torch.OutOfMemoryError("CUDA out of memory")
        prefill(*args)

    monkeypatch.setattr(batch, "_prefill", full)
    assert acoustic.predict([LONG, *ROWS[:2]], cancel=NEVER) == expected
    assert failed == 2  # once a row: it isn't tried again before there is a chance
    monkeypatch.setattr(batch, "_prefill", lambda *_: full(*_, batch.missing))  # type: ignore[attr-defined]
    with pytest.raises(EngineFailure, match="missing"):
        acoustic.predict([ROWS[0]], cancel=NEVER)
    monkeypatch.undo()
    assert alone(fp32, ROWS[:1]) == expected[1:2]


def test_an_interrupt_of_the_one_who_drives_ends_all_rows(
    fp32: CosyVoice3Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    acoustic, batch = fp32.acoustic_model, fp32.acoustic_model._batch

    def interrupted(*_: Any) -> None:
        raise KeyboardInterrupt

    resting = acoustic.tokens(acoustic.prompt(LONG), cancel=NEVER, ahead=1)
    next(resting)
    with monkeypatch.context() as patch:
        patch.setattr(batch, "_prefill", interrupted)
        with pytest.raises(KeyboardInterrupt):
            acoustic.predict([ROWS[0]], cancel=NEVER)
    with pytest.raises(EngineFailure, match="interrupted"):
        list(resting)


def test_closing_ends_who_runs_and_who_waits(tmp_path: Path, fp32: CosyVoice3Engine) -> None:
    engine = tiny.engine(tmp_path, fp32._model, steps=STEPS, slots=1)
    acoustic = engine.acoustic_model
    running = acoustic.tokens(acoustic.prompt(LONG), cancel=NEVER, ahead=1)
    next(running)
    asked = Stop()
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(acoustic.predict, [LONG], cancel=asked)
        until(lambda: asked.asked > 0, "the second to wait")
        engine.close()
        with pytest.raises(EngineFailure, match="unloaded"):
            waiting.result(LIMIT_S)
    for ask in (lambda: list(running), lambda: acoustic.predict([LONG], cancel=NEVER)):
        with pytest.raises(EngineFailure, match="unloaded"):
            ask()
    assert not acoustic.busy and acoustic._batch.free == 1


# The check at the start.


@pytest.mark.parametrize("one_shape", [False, True])
def test_rows_agree_on_this_machine(engine: CosyVoice3Engine, one_shape: bool) -> None:
    lm = engine._model.lm
    if not one_shape:
        assert rows_agree(lm, 4, one_shape=False)
    assert isinstance(rows_agree(lm, 4, one_shape=True), bool)


def test_where_rows_differ_they_run_one_at_a_time(
    fp32: CosyVoice3Engine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    expected = alone(fp32, ROWS[:3])
    lm = fp32._model.lm
    logits = lm.logits
    engine = tiny.engine(tmp_path, fp32._model, steps=STEPS, slots=SLOTS)
    with monkeypatch.context() as patch:
        patch.setattr(lm, "logits", lambda hidden: logits(hidden) * (1.0 + 1e-7 * (len(hidden) > 1)))
        assert not rows_agree(lm, SLOTS, one_shape=False)
        engine.acoustic_model.warm_up()
    assert engine.acoustic_model.slots == 1 and "one at a time" in caplog.text
    assert engine.acoustic_model.predict(ROWS[:3], cancel=NEVER) == expected
    fp32.acoustic_model.warm_up()
    assert fp32.acoustic_model.slots == SLOTS


# Turns and memory.


def test_turns_go_round_in_the_order_of_asking() -> None:
    turns, told = Turns(), list[str]()
    with turns.turn() as between, ThreadPoolExecutor(2) as pool:
        def other(name: str) -> None:
            with turns.turn():
                told.append(name)

        for name in ("a", "b"):
            pool.submit(other, name)
            until(lambda: len(turns._line) == 2 + (name == "b"), "the other to stand in line")  # noqa: B023
        assert not told
        between()
        assert told == ["a", "b"]
    assert not turns._line


def test_a_check_between_steps_holds_no_turn() -> None:
    turns, told = Turns(), list[str]()

    class Lets:
        def check(self) -> None:
            assert not turns._line  # else another thread's turn would never come while this one waits for it
            told.append("in")
            if len(told) == 2:
                raise Cancelled("stopped")

    with pytest.raises(Cancelled), turns.turn(Lets()) as between:
        between()
        between()
    assert told == ["in", "in"] and not turns._line


def test_streams_share_the_memory_and_wait_for_it() -> None:
    memory = StreamMemory(100)
    with memory.lend(60, NEVER), memory.lend(40, NEVER):
        assert memory.lent_bytes == 100
        with pytest.raises(Cancelled), memory.lend(1, Stop(after=1)):
            raise AssertionError("there was none left")
    with ThreadPoolExecutor(2) as pool, memory.lend(60, NEVER):
        asked = [Stop(), Stop()]

        def take(size: int, cancel: Stop) -> int:
            with memory.lend(size, cancel):
                return memory.lent_bytes

        large = pool.submit(take, 500, asked[0])  # more than there is: all of it
        until(lambda: asked[0].asked > 0, "the large one to wait")
        small = pool.submit(take, 10, asked[1])
        until(lambda: asked[1].asked > 1, "the small one to wait behind it")
        assert not large.done() and not small.done()
    assert large.result(LIMIT_S) == 100 and small.result(LIMIT_S) == 10
    assert memory.lent_bytes == 0
