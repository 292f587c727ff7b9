"""The cache that many threads share: each thing is made once, whoever asks, whatever fails, and it stays bounded."""

from __future__ import annotations

import random
import threading
import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import pytest

from cosyvoice_app.errors import Cancelled, PromptError
from cosyvoice_app.types import CacheCounts, NeverCancelled, Voice
from cosyvoice_app.voices import shared_lru
from cosyvoice_app.voices.cache import VoiceCache
from cosyvoice_app.voices.shared_lru import SharedLru

DEADLINE_S = 30.0
NEVER = NeverCancelled()


class Token:
    """Cancelled from outside; tells how often it was looked at."""

    def __init__(self) -> None:
        self.cancelled = threading.Event()
        self.looks = 0

    def check(self) -> None:
        self.looks += 1
        if self.cancelled.is_set():
            raise Cancelled("Stopped.")


class Maker:
    """A making that begins, waits for leave to end, and counts."""

    def __init__(self, size_bytes: int = 10) -> None:
        self.began, self.may_end = threading.Event(), threading.Event()
        self.calls = 0
        self.size_bytes = size_bytes
        self.error: BaseException | None = None

    def __call__(self) -> Voice:
        self.calls += 1
        self.began.set()
        assert self.may_end.wait(DEADLINE_S)
        if self.error is not None:
            raise self.error
        return voice(self.size_bytes)


def voice(size_bytes: int = 10, payload: Any = None) -> Voice:
    return Voice("key", payload, size_bytes=size_bytes)


def until(holds: Callable[[], bool]) -> None:
    deadline = time.monotonic() + DEADLINE_S
    while not holds():
        assert time.monotonic() < deadline, "it never came"
        time.sleep(0.002)


def in_thread(work: Callable[[], Any]) -> Future[Any]:
    """Like an executor's, in a thread of its own, with interrupts in the future too."""
    future: Future[Any] = Future()

    def run() -> None:
        try:
            future.set_result(work())
        except BaseException as error:  # noqa: BLE001 - told by the future
            future.set_exception(error)

    threading.Thread(target=run, daemon=True).start()
    return future


def test_many_who_ask_at_once_get_the_one_that_is_made(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shared_lru, "_LOOK_S", 10 * DEADLINE_S)  # they are woken, and don't find out by looking
    cache, maker = VoiceCache(), Maker()
    first = in_thread(lambda: cache.obtain("a", maker, cancel=NEVER))
    assert maker.began.wait(DEADLINE_S)
    tokens = [Token() for _ in range(15)]
    others = [in_thread(lambda token=token: cache.obtain("a", maker, cancel=token)) for token in tokens]
    until(lambda: all(token.looks for token in tokens))
    assert len(cache) == 0 and not any(other.done() for other in others)
    maker.may_end.set()
    made, was_there = first.result(DEADLINE_S)
    assert not was_there
    assert all(other.result(DEADLINE_S) == (made, True) for other in others)
    assert (maker.calls, cache.counts()) == (1, CacheCounts(15, 1, 1, 10))


def test_one_voice_under_way_holds_up_no_other() -> None:
    cache, slow = VoiceCache(), Maker()
    waiting = in_thread(lambda: cache.obtain("slow", slow, cancel=NEVER))
    assert slow.began.wait(DEADLINE_S)
    assert cache.obtain("quick", voice, cancel=NEVER)[1] is False
    assert cache.obtain("quick", voice, cancel=NEVER)[1] is True
    slow.may_end.set()
    assert waiting.result(DEADLINE_S)[1] is False


@pytest.mark.parametrize("error", [PromptError("bad clip"), Cancelled("Stopped."), MemoryError(), KeyboardInterrupt()])
def test_a_failure_is_its_maker_s_alone_and_the_next_one_makes_it(error: BaseException) -> None:
    cache, failing, good = VoiceCache(), Maker(), Maker()
    failing.error = error
    good.may_end.set()
    first = in_thread(lambda: cache.obtain("a", failing, cancel=NEVER))
    assert failing.began.wait(DEADLINE_S)
    tokens = [Token(), Token(), Token()]
    others = [in_thread(lambda token=token: cache.obtain("a", good, cancel=token)) for token in tokens]
    until(lambda: all(token.looks for token in tokens))
    failing.may_end.set()
    with pytest.raises(type(error)):
        first.result(DEADLINE_S)
    answers = [other.result(DEADLINE_S) for other in others]
    assert good.calls == 1 and len({id(made) for made, _ in answers}) == 1
    assert sorted(was_there for _, was_there in answers) == [False, True, True]
    assert cache.counts() == CacheCounts(2, 2, 1, 10)


def test_who_is_cancelled_while_waiting_leaves_and_disturbs_nobody() -> None:
    cache, maker, token = VoiceCache(), Maker(), Token()
    first = in_thread(lambda: cache.obtain("a", maker, cancel=NEVER))
    assert maker.began.wait(DEADLINE_S)
    waiting = in_thread(lambda: cache.obtain("a", maker, cancel=token))
    until(lambda: token.looks > 1)
    token.cancelled.set()
    with pytest.raises(Cancelled):
        waiting.result(DEADLINE_S)
    assert not first.done()
    maker.may_end.set()
    first.result(DEADLINE_S)
    assert cache.counts() == CacheCounts(0, 1, 1, 10), "who left counts as nothing"


def test_clearing_while_a_voice_is_made_loses_nobody_his_voice() -> None:
    cache, maker, token = VoiceCache(), Maker(), Token()
    cache.obtain("old", voice, cancel=NEVER)
    first = in_thread(lambda: cache.obtain("a", maker, cancel=NEVER))
    assert maker.began.wait(DEADLINE_S)
    waiting = in_thread(lambda: cache.obtain("a", maker, cancel=token))
    until(lambda: token.looks > 0)
    cache.clear()
    assert (len(cache), cache.counts().size_bytes) == (0, 0)
    maker.may_end.set()
    assert waiting.result(DEADLINE_S) == (first.result(DEADLINE_S)[0], True)
    assert (len(cache), maker.calls) == (1, 1)


def test_who_waits_is_handed_the_voice_even_if_it_is_gone_again() -> None:
    """Three large voices made at once, and room for one."""
    cache = VoiceCache(most_bytes=1)
    makers = {key: Maker() for key in "abc"}
    firsts = {key: in_thread(lambda key=key: cache.obtain(key, makers[key], cancel=NEVER)) for key in makers}
    tokens = {key: [Token() for _ in range(4)] for key in makers}
    until(lambda: all(maker.began.is_set() for maker in makers.values()))
    others = {key: [in_thread(lambda key=key, token=token: cache.obtain(key, makers[key], cancel=token))
                    for token in tokens[key]] for key in makers}
    until(lambda: all(token.looks for those in tokens.values() for token in those))
    for maker in makers.values():
        maker.may_end.set()
    for key in makers:
        made, _ = firsts[key].result(DEADLINE_S)
        assert all(other.result(DEADLINE_S) == (made, True) for other in others[key])
    assert [maker.calls for maker in makers.values()] == [1, 1, 1]
    assert len(cache) == 1


def test_the_least_recently_used_goes_first_by_bytes_and_by_count() -> None:
    cache = VoiceCache(most_bytes=30)
    for key in "abc":
        cache.obtain(key, voice, cancel=NEVER)
    cache.obtain("a", voice, cancel=NEVER)
    cache.obtain("d", lambda: voice(15), cancel=NEVER)  # b and c must go
    assert [cache.obtain(key, voice, cancel=NEVER)[1] for key in "ad"] == [True, True]
    assert cache.counts().size_bytes == 25
    cache.obtain("huge", lambda: voice(1000), cancel=NEVER)
    assert cache.counts() == CacheCounts(3, 5, 1, 1000), "the one in use stays, alone"
    cache.obtain("b", voice, cancel=NEVER)
    assert cache.counts().size_bytes == 10
    few: SharedLru[int] = SharedLru(most_bytes=100, most_items=2, size_of=lambda _: 0)
    for number in (1, 2, 1, 3):
        few.obtain(str(number), lambda number=number: number)  # type: ignore[misc]
    assert [few.obtain(str(number), int)[1] for number in (1, 3)] == [True, True]
    assert len(few) == 2


def test_no_bound_is_nonsense() -> None:
    for most_bytes, most_items in ((-1, 1), (1, 0), (1, -1)):
        with pytest.raises(ValueError, match="must"):
            SharedLru(most_bytes=most_bytes, most_items=most_items, size_of=len)


def test_what_can_t_be_measured_is_a_failure_and_blocks_nobody() -> None:
    broken: SharedLru[int] = SharedLru(most_bytes=1, most_items=1, size_of=len)  # type: ignore[arg-type]
    for _ in range(2):
        with pytest.raises(TypeError):
            broken.obtain("a", lambda: 1)
    assert broken.counts() == CacheCounts(0, 2, 0, 0)


def test_the_sum_of_sizes_is_right_and_no_key_gets_another_s_thing_under_a_storm() -> None:
    """16 threads, 30 keys, failures, cancels and clears at random."""
    cache: SharedLru[tuple[int, int]] = SharedLru(most_bytes=200, most_items=12, size_of=lambda thing: thing[1])
    making: Counter[int] = Counter()
    lock = threading.Lock()

    def make(key: int, chance: random.Random) -> tuple[int, int]:
        with lock:
            making[key] += 1
            assert making[key] == 1, "made twice at once"
        time.sleep(chance.random() / 2000)
        with lock:
            making[key] -= 1
        if chance.random() < 0.2:
            raise PromptError("bad clip")
        return key, 1 + key

    def work(seed: int) -> int:
        chance, answers = random.Random(seed), 0
        for _ in range(300):
            key, token = chance.randrange(30), Token()
            if chance.random() < 0.1:
                token.cancelled.set()
            if chance.random() < 0.01:
                cache.clear()
            try:
                thing, _ = cache.obtain(str(key), lambda key=key: make(key, chance), cancel=token)  # type: ignore[misc]
            except (PromptError, Cancelled):
                continue
            assert thing == (key, 1 + key)
            answers += 1
        return answers

    with ThreadPoolExecutor(16) as pool:
        answers = sum(pool.map(work, range(16), timeout=120))
    counts = cache.counts()
    assert answers > 1000 and counts.hits + counts.misses >= answers
    assert len(cache) <= 12 and counts.size_bytes <= 200
    cache.clear()
    before = cache.counts()
    assert (before.kept, before.size_bytes) == (0, 0)
    cache.obtain("29", lambda: (29, 30))
    assert cache.counts() == CacheCounts(before.hits, before.misses + 1, 1, 30)
