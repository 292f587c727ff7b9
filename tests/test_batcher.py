"""What joins the calls of many jobs: who goes together, who goes first, and that nobody pays for another."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
from engines_for_tests import QuickTone

from cosyvoice_app.errors import Cancelled, EngineFailure
from cosyvoice_app.serving.batcher import BatchedStages, JobStages
from cosyvoice_app.types import (
    Audio,
    CancelToken,
    Capabilities,
    Intent,
    NeverCancelled,
    Row,
    Segment,
    Style,
    Text,
    Utterance,
    Voice,
)

PATIENCE_S = 20.0
ALONE = NeverCancelled()


def row(text: str = "hello", seed: int = 1) -> Row:
    segment = Segment(text, (Text(text, "en"),))
    return Row(Utterance((segment,), Intent(), seed), 0, Voice("v", None), Style(None), seed)


class Stop:
    def __init__(self) -> None:
        self.event = threading.Event()

    def check(self) -> None:
        if self.event.is_set():
            raise Cancelled("stopped")


class Scripted:
    """Both parts of an engine. Features and audio name the row they are of; batches are noted as they run."""

    def __init__(self) -> None:
        self.batches: list[tuple[str, list[str]]] = []
        self.gate = threading.Event()
        self.gate.set()
        self.entered = threading.Event()
        self.inside = 0
        self.fails: Callable[[str, Sequence[Row]], None] = lambda stage, rows: None

    def predict(self, rows: Sequence[Row], *, cancel: CancelToken) -> list[Any]:
        self._work("predict", rows, cancel)
        return [f"{one.segment.text}/{one.seed}" for one in rows]

    def decode(self, features: Sequence[Any], rows: Sequence[Row], *, cancel: CancelToken) -> list[Audio]:
        self._work("decode", rows, cancel)
        return [Audio(np.frombuffer(name.encode(), dtype=np.uint8).astype(np.float32), 8000) for name in features]

    def _work(self, stage: str, rows: Sequence[Row], cancel: CancelToken) -> None:
        self.inside += 1
        assert self.inside == 1, "two calls on the device at once"
        try:
            self.batches.append((stage, [one.segment.text for one in rows]))
            self.entered.set()
            while not self.gate.wait(0.01):
                cancel.check()
            self.fails(stage, rows)
        finally:
            self.inside -= 1


def said(audio: Audio) -> str:
    return bytes(audio.samples.astype(np.uint8)).decode()


class ScriptedEngine(QuickTone):
    def __init__(self, max_rows: int = 8) -> None:
        super().__init__()
        self.script = Scripted()
        self.acoustic_model = self.vocoder = self.script  # type: ignore[assignment]
        self.capabilities = Capabilities(languages=("en",), streaming=False, instruct=(), needs_transcript=False,
                                         rate_hz=8000, max_prompt_s=15.0, max_rows=max_rows)


Make = Callable[..., tuple[BatchedStages, Scripted]]


@pytest.fixture
def make() -> Iterator[Make]:
    made: list[tuple[BatchedStages, Scripted]] = []

    def make_one(max_rows: int = 8, max_batch: int = 8, wait_ms: int = 0) -> tuple[BatchedStages, Scripted]:
        engine = ScriptedEngine(max_rows)
        stages = BatchedStages(engine, max_batch=max_batch, wait_ms=wait_ms)
        made.append((stages, engine.script))
        return stages, engine.script

    before = threading.active_count()
    yield make_one
    for stages, script in made:
        script.gate.set()
        stages.close()
    until(lambda: threading.active_count() <= before)


@pytest.fixture
def pool(make: Make) -> Iterator[ThreadPoolExecutor]:
    threads = ThreadPoolExecutor(32)
    yield threads
    threads.shutdown(wait=False)  # `make` ends what it may wait for, and sees that no thread is left


def until(true: Callable[[], bool]) -> None:
    end = time.monotonic() + PATIENCE_S
    while not true():
        assert time.monotonic() < end, "it never came to be"
        time.sleep(0.005)


def held_up(stages: BatchedStages, script: Scripted, pool: ThreadPoolExecutor) -> Future[str]:
    """One job on the device that stays there until the gate opens."""
    script.gate.clear()
    script.entered.clear()
    first = pool.submit(speak, stages, row("first"))
    assert script.entered.wait(PATIENCE_S)
    return first


def speak(stages: BatchedStages, one: Row, cancel: CancelToken = ALONE, priority: Any = "interactive") -> str:
    with stages.job(priority) as job:
        return said(job.decode(job.predict(one, cancel=cancel), one, cancel=cancel))


def line_up(stages: BatchedStages, pool: ThreadPoolExecutor, texts: Sequence[str], **options: Any) -> list[Future[str]]:
    """Jobs that wait for the device, in this order."""
    futures = []
    for text in texts:
        waiting = len(stages._waiting)
        futures.append(pool.submit(speak, stages, row(text), **options))
        until(lambda: len(stages._waiting) == waiting + 1)  # noqa: B023 - used before it changes
    return futures


def test_what_waits_together_goes_together(make: Make, pool: ThreadPoolExecutor) -> None:
    stages, script = make()
    first = held_up(stages, script, pool)
    others = line_up(stages, pool, ["a1", "b2", "c3"])
    script.gate.set()
    assert [one.result(PATIENCE_S) for one in (first, *others)] == ["first/1", "a1/1", "b2/1", "c3/1"]
    assert ("predict", ["a1", "b2", "c3"]) in script.batches
    assert stages.counts["predict"].batches == {1: 1, 3: 1}


def test_a_batch_has_no_more_rows_than_the_engine_or_the_option_allows(make: Make, pool: ThreadPoolExecutor) -> None:
    for options, most in (({"max_rows": 2}, 2), ({"max_batch": 3}, 3), ({"max_rows": 1}, 1)):
        stages, script = make(**options)
        first = held_up(stages, script, pool)
        others = line_up(stages, pool, [f"t{n}" for n in range(6)])
        script.gate.set()
        for one in (first, *others):
            one.result(PATIENCE_S)
        assert max(len(rows) for _, rows in script.batches) == most


def test_a_job_alone_never_waits_for_company(make: Make) -> None:
    stages, _ = make(wait_ms=60_000)
    started = time.monotonic()
    assert speak(stages, row("alone")) == "alone/1"
    assert time.monotonic() - started < PATIENCE_S


def test_it_waits_for_a_job_that_is_on_its_way(make: Make, pool: ThreadPoolExecutor) -> None:
    stages, script = make(wait_ms=60_000)
    with stages.job("interactive") as slow:
        early = pool.submit(speak, stages, row("early"))
        until(lambda: len(stages._waiting) == 1)
        assert not script.batches
        assert slow.predict(row("later"), cancel=ALONE) == "later/1"
        assert script.batches[0] == ("predict", ["later", "early"])  # the older job first
    assert early.result(PATIENCE_S) == "early/1"


def test_it_does_not_wait_for_a_job_that_is_busy_elsewhere_or_heads_for_another_stage(
    make: Make, pool: ThreadPoolExecutor
) -> None:
    stages, _ = make(wait_ms=60_000)
    with stages.job("interactive") as busy, busy.aside():
        assert pool.submit(speak, stages, row("now")).result(PATIENCE_S) == "now/1"
    with stages.job("interactive") as decoding:
        features = decoding.predict(row("mine"), cancel=ALONE)
        with stages.job("interactive") as other:  # both will decode now; this one predicts
            assert pool.submit(lambda: other.predict(row("yours"), cancel=ALONE)).result(PATIENCE_S) == "yours/1"
        assert said(decoding.decode(features, row("mine"), cancel=ALONE)) == "mine/1"


def test_the_wait_is_bounded(make: Make, pool: ThreadPoolExecutor) -> None:
    stages, script = make(wait_ms=30)
    with stages.job("interactive"):  # and it never comes
        assert pool.submit(speak, stages, row("early")).result(PATIENCE_S) == "early/1"
    assert script.batches == [("predict", ["early"]), ("decode", ["early"])]


def test_rows_of_very_different_length_do_not_share_a_batch(make: Make, pool: ThreadPoolExecutor) -> None:
    stages, script = make()
    first = held_up(stages, script, pool)
    others = line_up(stages, pool, ["x" * 10, "y" * 100, "z" * 15])
    script.gate.set()
    for one in (first, *others):
        one.result(PATIENCE_S)
    together = [{text[0] for text in rows} for _, rows in script.batches]
    assert {"x", "z"} in together and {"y"} in together
    assert not any({"x", "y"} <= rows or {"z", "y"} <= rows for rows in together)


def test_length_is_what_takes_long_to_say_in_any_language(make: Make, pool: ThreadPoolExecutor) -> None:
    stages, script = make()
    first = held_up(stages, script, pool)
    others = line_up(stages, pool, ["没关系。", "wait here just now.", "你" * 19])
    script.gate.set()
    for one in (first, *others):
        one.result(PATIENCE_S)
    assert ("predict", ["没关系。", "wait here just now."]) in script.batches
    assert ("predict", ["你" * 19]) in script.batches


def test_older_jobs_go_first_and_interactive_ones_before_all_batch_ones(make: Make, pool: ThreadPoolExecutor) -> None:
    stages, script = make(max_rows=1)
    first = held_up(stages, script, pool)
    batch = line_up(stages, pool, ["batch"], priority="batch")
    people = line_up(stages, pool, ["one", "two"])
    script.gate.set()
    for job in (first, *batch, *people):
        job.result(PATIENCE_S)
    order = [rows[0] for stage, rows in script.batches if stage == "predict"]
    assert order == ["first", "one", "two", "batch"]


def test_a_row_that_fails_fails_alone(make: Make, pool: ThreadPoolExecutor) -> None:
    stages, script = make()

    def fail(stage: str, rows: Sequence[Row]) -> None:
        if any(one.segment.text == "bad" for one in rows):
            raise ValueError("a bad row")

    script.fails = fail
    first = held_up(stages, script, pool)
    good1, bad, good2 = line_up(stages, pool, ["ok1", "bad", "ok2"])
    script.gate.set()
    assert [one.result(PATIENCE_S) for one in (first, good1, good2)] == ["first/1", "ok1/1", "ok2/1"]
    with pytest.raises(ValueError, match="a bad row"):
        bad.result(PATIENCE_S)


def test_out_of_memory_halves_the_batch_until_it_fits_and_later_ones_start_smaller(
    make: Make, pool: ThreadPoolExecutor
) -> None:
    stages, script = make()

    def fail(stage: str, rows: Sequence[Row]) -> None:
        if len(rows) > 2:
            raise MemoryError

    script.fails = fail
    texts = [f"t{n}" for n in range(8)]
    first = held_up(stages, script, pool)
    others = line_up(stages, pool, texts)
    script.gate.set()
    assert [one.result(PATIENCE_S) for one in others] == [f"{text}/1" for text in texts]
    first.result(PATIENCE_S)
    sizes = [len(rows) for stage, rows in script.batches if stage == "predict"]
    assert sizes == [1, 8, 4, 2, 2, 4, 2, 2]
    assert stages.counts["predict"].halved == 3
    assert all(len(rows) <= 2 for stage, rows in script.batches if stage == "decode")


def test_out_of_memory_alone_is_the_row_s_own_error(make: Make) -> None:
    stages, script = make()

    def fail(stage: str, rows: Sequence[Row]) -> None:
        raise MemoryError

    script.fails = fail
    with pytest.raises(MemoryError):
        speak(stages, row())
    script.fails = lambda stage, rows: None
    assert speak(stages, row()) == "hello/1"


def test_a_poisoned_device_is_not_tried_again(make: Make, pool: ThreadPoolExecutor) -> None:
    stages, script = make()

    def fail(stage: str, rows: Sequence[Row]) -> None:
        if len(rows) > 1:
            raise RuntimeError("CUDA error: an illegal memory access was encountered")

    script.fails = fail
    first = held_up(stages, script, pool)
    others = line_up(stages, pool, ["t1", "t2"])
    script.gate.set()
    first.result(PATIENCE_S)
    for one in others:
        with pytest.raises(RuntimeError, match="illegal memory access"):
            one.result(PATIENCE_S)


def test_a_stopped_job_is_let_go_at_once_and_the_others_in_its_batch_go_on(
    make: Make, pool: ThreadPoolExecutor
) -> None:
    stages, script = make()
    stop = Stop()
    first = held_up(stages, script, pool)
    waiting = pool.submit(speak, stages, row("waits"), stop)
    until(lambda: len(stages._waiting) == 1)
    stop.event.set()
    with pytest.raises(Cancelled):
        waiting.result(PATIENCE_S)
    assert not stages._waiting
    script.gate.set()
    first.result(PATIENCE_S)

    stop = Stop()
    first = held_up(stages, script, pool)
    leaves, stays = pool.submit(speak, stages, row("leaves"), stop), pool.submit(speak, stages, row("stays"))
    until(lambda: len(stages._waiting) == 2)
    script.fails = lambda stage, rows: until(stop.event.is_set) if len(rows) == 2 else None
    script.gate.set()
    until(lambda: any(len(rows) == 2 for _, rows in script.batches))
    stop.event.set()
    with pytest.raises(Cancelled):
        leaves.result(PATIENCE_S)
    assert [stays.result(PATIENCE_S), first.result(PATIENCE_S)] == ["stays/1", "first/1"]


def test_a_batch_nobody_wants_any_more_ends_at_its_next_check(make: Make, pool: ThreadPoolExecutor) -> None:
    stages, script = make()
    stop = Stop()
    script.gate.clear()
    alone = pool.submit(speak, stages, row("unwanted"), stop)
    assert script.entered.wait(PATIENCE_S)
    stop.event.set()
    with pytest.raises(Cancelled):
        alone.result(PATIENCE_S)
    until(lambda: script.inside == 0)  # though its gate never opened
    script.gate.set()
    assert speak(stages, row("next")) == "next/1"


def test_making_a_voice_gives_way_at_its_checks(make: Make, pool: ThreadPoolExecutor) -> None:
    stages, script = make()
    log: list[str] = []
    go_on = threading.Event()

    def fit(token: CancelToken) -> Voice:
        log.append("fit began")
        assert go_on.wait(PATIENCE_S)
        assert script.inside == 0
        token.check()
        log.append(f"fit went on after {len(script.batches)}")
        token.check()  # nobody waits: it keeps the device
        return Voice("fitted", None)

    with stages.job("interactive") as maker:
        making = pool.submit(maker.encode, fit, cancel=ALONE)
        until(lambda: bool(log))
        other = line_up(stages, pool, ["short"])[0]
        go_on.set()
        assert making.result(PATIENCE_S).key == "fitted"
    assert other.result(PATIENCE_S) == "short/1"
    assert log[1] in ("fit went on after 1", "fit went on after 2")


def test_a_voice_that_fails_or_is_stopped_gives_the_device_back(make: Make, pool: ThreadPoolExecutor) -> None:
    stages, _ = make()
    stop = Stop()

    def fail(token: CancelToken) -> Voice:
        raise ValueError("no voice")

    def stopped(token: CancelToken) -> Voice:
        stop.event.set()
        token.check()
        raise AssertionError("it went on")

    with stages.job("interactive") as maker:
        with pytest.raises(ValueError, match="no voice"):
            maker.encode(fail, cancel=ALONE)
        with pytest.raises(Cancelled):
            maker.encode(stopped, cancel=stop)
        with pytest.raises(Cancelled):  # it never gets its turn
            maker.encode(fail, cancel=stop)
    assert speak(stages, row("after")) == "after/1"


def test_a_concurrent_engine_gets_its_calls_as_they_come(pool: ThreadPoolExecutor) -> None:
    class Meets(QuickTone):
        """Predicts only when three are inside."""

        def __init__(self) -> None:
            super().__init__()
            self.meeting = threading.Barrier(3, timeout=PATIENCE_S)
            plain = self.acoustic_model

            class Together:
                def predict(_, rows: Sequence[Row], *, cancel: CancelToken) -> list[Any]:
                    self.meeting.wait()
                    return plain.predict(rows, cancel=cancel)

            self.acoustic_model = Together()

    stages = BatchedStages(Meets(), max_batch=8, wait_ms=0)

    def predict(seed: int) -> Any:
        with stages.job("interactive") as job:
            return job.predict(row(seed=seed), cancel=ALONE)

    assert len(set(pool.map(predict, range(3)))) == 3
    stages.close()


def test_closing_fails_what_waits_and_refuses_what_comes(make: Make, pool: ThreadPoolExecutor) -> None:
    stages, script = make()
    first = held_up(stages, script, pool)
    late = line_up(stages, pool, ["late"])[0]
    closing = pool.submit(stages.close)
    until(lambda: stages._closed)
    script.gate.set()
    closing.result(PATIENCE_S)
    for one in (first, late):  # the first had predicted and comes too late to decode
        with pytest.raises(EngineFailure, match="ended"):
            one.result(PATIENCE_S)


def test_under_any_load_each_row_gets_its_own(make: Make, pool: ThreadPoolExecutor) -> None:
    """Failures, cancels, voices and rows of all lengths at once: every answer names its own row."""
    stages, script = make(max_rows=4, wait_ms=2)

    def fail(stage: str, rows: Sequence[Row]) -> None:
        if any(one.seed % 17 == 0 for one in rows):
            raise ValueError("seed")
        if len(rows) > 3:
            raise MemoryError

    script.fails = fail

    def one_job(seed: int) -> None:
        chosen = random.Random(seed)
        stop = Stop()
        said_row = row("w" * chosen.randint(1, 80), seed)
        if seed % 13 == 0:
            threading.Timer(chosen.random() * 0.02, stop.event.set).start()
        try:
            with stages.job(chosen.choice(["interactive", "batch"])) as job:
                if seed % 5 == 0:
                    _voice(job, stop)
                heard = said(job.decode(job.predict(said_row, cancel=stop), said_row, cancel=stop))
        except Cancelled:
            assert seed % 13 == 0
        except ValueError:
            assert seed % 17 == 0
        else:
            assert seed % 17 and heard == f"{said_row.segment.text}/{seed}"

    def _voice(job: JobStages, stop: Stop) -> None:
        def steps(token: CancelToken) -> Voice:
            for _ in range(3):
                token.check()
            return Voice("v", None)

        job.encode(steps, cancel=stop)

    for done in [pool.submit(one_job, seed) for seed in range(1, 400)]:
        done.result(PATIENCE_S)
    assert not stages._waiting and not stages._jobs


def test_a_long_text_yields_to_a_short_one_that_came_later_and_yet_goes_on(
    make: Make, pool: ThreadPoolExecutor
) -> None:
    stages, script = make(max_rows=1, wait_ms=0)
    script.gate.clear()
    script.entered.clear()

    def long_text(name: str, segments: int) -> list[str]:
        with stages.job("interactive") as job:
            return [said(job.decode(job.predict(one, cancel=ALONE), one, cancel=ALONE))
                    for one in (row(f"{name}{n}") for n in range(segments))]

    long = pool.submit(long_text, "long", 6)
    assert script.entered.wait(PATIENCE_S)
    short = line_up(stages, pool, ["short"])[0]
    script.gate.set()
    assert short.result(PATIENCE_S) == "short/1"
    long.result(PATIENCE_S)
    order = [rows[0] for stage, rows in script.batches if stage == "decode"]
    assert order.index("short") <= 2

    script.batches.clear()  # and many short ones don't starve a long one
    done = threading.Event()

    def chatter() -> None:
        while not done.is_set():
            speak(stages, row("chat"))

    talkers = [pool.submit(chatter) for _ in range(3)]
    assert len(pool.submit(long_text, "slow", 5).result(PATIENCE_S)) == 5
    done.set()
    for one in talkers:
        one.result(PATIENCE_S)


def test_a_voice_asked_for_by_a_batch_job_is_made_however_busy_the_others_are(
    make: Make, pool: ThreadPoolExecutor
) -> None:
    stages, _ = make(max_rows=1)
    done = threading.Event()

    def chatter() -> None:
        while not done.is_set():
            speak(stages, row("chat"))

    def fit(token: CancelToken) -> Voice:
        for _ in range(10):
            token.check()
        return Voice("fitted", None)

    talkers = [pool.submit(chatter) for _ in range(3)]
    with stages.job("batch") as maker:
        assert pool.submit(maker.encode, fit, cancel=ALONE).result(PATIENCE_S).key == "fitted"
    done.set()
    for one in talkers:
        one.result(PATIENCE_S)


def test_a_job_that_has_the_device_for_itself_leaves_only_with_it(make: Make, pool: ThreadPoolExecutor) -> None:
    """Otherwise an engine that never lets go would be taken for a free one."""
    stages, script = make()
    stop, hold = Stop(), threading.Event()
    script.fails = lambda stage, rows: until(hold.is_set)  # deaf to its token
    alone = pool.submit(speak, stages, row("deaf"), stop)
    assert script.entered.wait(PATIENCE_S)
    stop.event.set()
    time.sleep(0.3)
    assert not alone.done()
    hold.set()
    with pytest.raises(Cancelled):
        alone.result(PATIENCE_S)


def test_an_engine_that_gives_too_few_results_fails_its_rows_and_not_the_lane(make: Make) -> None:
    stages, script = make()
    whole = script.predict
    script.predict = lambda rows, cancel: []  # type: ignore[method-assign]
    with pytest.raises(EngineFailure, match="0 results for 1"):
        speak(stages, row())
    script.predict = whole  # type: ignore[method-assign]
    assert speak(stages, row()) == "hello/1"


def test_the_lane_survives_what_nobody_foresaw(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    stages, _ = make()

    def broken(call: object, **_: object) -> None:
        monkeypatch.undo()
        raise RuntimeError("unforeseen")

    monkeypatch.setattr("cosyvoice_app.serving.batcher._settle", broken)
    with pytest.raises(EngineFailure, match="unforeseen"):
        speak(stages, row())
    assert speak(stages, row()) == "hello/1"


def test_one_row_too_large_for_the_device_makes_nobody_else_s_batches_smaller(
    make: Make, pool: ThreadPoolExecutor
) -> None:
    stages, script = make()

    def fail(stage: str, rows: Sequence[Row]) -> None:
        if any(one.segment.text == "huge" for one in rows):
            raise MemoryError

    script.fails = fail
    first = held_up(stages, script, pool)
    others = line_up(stages, pool, ["t1", "huge", "t2", "t3"])
    script.gate.set()
    for one in (first, *others):
        if one is not others[1]:
            one.result(PATIENCE_S)
    with pytest.raises(MemoryError):
        others[1].result(PATIENCE_S)
    assert stages._rows_now == stages.max_rows
