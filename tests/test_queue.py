"""Whose turn it is: fair per client, interactive before batch, nobody for ever, places told honestly."""

from __future__ import annotations

import dataclasses
from itertools import count

import pytest

from cosyvoice_app.errors import QueueFull
from cosyvoice_app.pipeline import plan
from cosyvoice_app.serving.queue import RequestQueue
from cosyvoice_app.serving.request import Failed, Priority, Queued, SynthesisRequest
from cosyvoice_app.serving.ticket import RequestTicket
from cosyvoice_app.types import PromptClip, Segment, Text

_numbers = count()


def ticket(clip: PromptClip, client: str = "", priority: Priority = "interactive", chars: int = 20,
           char: str = "a") -> RequestTicket:
    words = char * chars
    request = SynthesisRequest(clip, words, seed=1 + next(_numbers), client=client, priority=priority)
    job = plan(clip, "Hi.", seed=request.seed, max_chars=100)
    return RequestTicket(request, dataclasses.replace(job, segments=(Segment(words, (Text(words, "en"),)),)),
                         on_cancel=lambda _: None)


def filled(*tickets: RequestTicket) -> RequestQueue:
    queue = RequestQueue(1000)
    for one in tickets:
        queue.push(one, retry_after_s=1)
    return queue


def served(queue: RequestQueue) -> list[RequestTicket]:
    return [queue.pop() for _ in range(len(queue))]


def places(one: RequestTicket) -> list[int]:
    one.post(Failed(QueueFull("over")))
    return [event.position for event in one.events() if isinstance(event, Queued)]


def test_equals_are_served_in_the_order_they_came(p0: PromptClip) -> None:
    for client in ("", "one"):
        tickets = [ticket(p0, client) for _ in range(6)]
        assert served(filled(*tickets)) == tickets
    strangers = [ticket(p0, f"client {n}") for n in range(6)]
    assert served(filled(*strangers)) == strangers


def test_a_client_with_many_requests_delays_another_s_first_by_one_or_two(p0: PromptClip) -> None:
    many = [ticket(p0, "greedy") for _ in range(50)]
    queue = filled(*many)
    for _ in range(10):
        queue.pop()
    late = ticket(p0, "modest")
    queue.push(late, retry_after_s=1)
    assert served(queue).index(late) <= 1


def test_turns_alternate_between_clients_who_ask_for_the_same(p0: PromptClip) -> None:
    first, second = [ticket(p0, "a") for _ in range(10)], [ticket(p0, "b") for _ in range(10)]
    names = [one.request.client for one in served(filled(*first, *second))]
    for upto in range(2, 21, 2):
        assert names[:upto].count("a") == upto // 2


def test_turns_are_paid_by_length_not_in_requests(p0: PromptClip) -> None:
    long, short = [ticket(p0, "long", chars=180) for _ in range(10)], [ticket(p0, "short", chars=30) for _ in range(40)]
    order = [one.request.client for one in served(filled(*long, *short))]
    for upto in range(5, 45):
        characters = {"long": 200 * order[:upto].count("long"), "short": 50 * order[:upto].count("short")}
        assert abs(characters["long"] - characters["short"]) <= 200


def test_a_chinese_character_is_paid_for_as_the_letters_of_its_length(p0: PromptClip) -> None:
    han, letters = ticket(p0, "han", chars=20, char="好"), ticket(p0, "letters", chars=60)
    assert served(filled(han, letters)) == [letters, han]


def test_a_short_request_passes_a_long_one_of_a_stranger(p0: PromptClip) -> None:
    long, short = ticket(p0, "a", chars=190), ticket(p0, "b", chars=5)
    assert served(filled(long, short)) == [short, long]


def test_interactive_goes_first_and_batch_is_never_starved(p0: PromptClip) -> None:
    patient = [ticket(p0, "studio", "batch") for _ in range(4)]
    queue = filled(*patient)
    people = [ticket(p0, f"person {n}") for n in range(40)]
    for one in people:
        queue.push(one, retry_after_s=1)
    order = served(queue)
    assert order[0] in people
    at = [order.index(one) for one in patient]
    assert at == sorted(at) and at[0] >= 5
    assert max(b - a for a, b in zip([-1, *at], at, strict=False)) <= 8


def test_looking_at_the_queue_tells_the_order_it_is_served_in(p0: PromptClip) -> None:
    for taken in range(9):
        queue = filled(*(ticket(p0, str(n % 3), "batch" if n % 4 == 0 else "interactive", 5 + 37 * n % 150)
                         for n in range(40)))
        for _ in range(taken):
            queue.pop()
        assert list(queue) == served(queue)


def test_places_are_told_whenever_they_change(p0: PromptClip) -> None:
    first, second, third = tickets = [ticket(p0) for _ in range(3)]
    queue = filled(*tickets)
    assert queue.remove(second) and not queue.remove(second)
    assert queue.pop() is first
    assert (places(first), places(second), places(third)) == ([0], [1], [2, 1, 0])


def test_a_place_may_get_worse_and_that_is_told_too(p0: PromptClip) -> None:
    waiting, better = ticket(p0, "a", "batch"), ticket(p0, "b")
    queue = filled(waiting, better)
    queue.pop()
    assert places(waiting) == [0, 1, 0]


def test_the_queue_is_bounded_and_says_when_to_come_back(p0: PromptClip) -> None:
    queue = RequestQueue(2)
    for priority in ("interactive", "batch"):
        queue.push(ticket(p0, priority=priority), retry_after_s=3)  # type: ignore[arg-type]
    with pytest.raises(QueueFull, match="2 requests are waiting") as refused:
        queue.push(ticket(p0), retry_after_s=7)
    assert refused.value.retry_after_s == 7
    assert len(queue) == 2
    queue.pop()
    queue.push(ticket(p0), retry_after_s=7)


def test_drained_means_empty_and_in_order(p0: PromptClip) -> None:
    tickets = [ticket(p0, str(n)) for n in range(5)]
    queue = filled(*tickets)
    assert queue.drain() == tickets
    assert len(queue) == 0 and not list(queue)


def test_clients_long_gone_are_forgotten(p0: PromptClip) -> None:
    queue = RequestQueue(10)
    for n in range(200):
        queue.push(ticket(p0, f"client {n}"), retry_after_s=1)
        queue.pop()
    assert len(queue._turns["interactive"]._finish) <= 2


def test_what_was_stopped_before_it_began_costs_its_client_nothing(p0: PromptClip) -> None:
    stopped = [ticket(p0, "a", chars=150) for _ in range(20)]
    queue = filled(*stopped)
    for one in stopped:
        queue.remove(one)
    others = [ticket(p0, "b", chars=30) for _ in range(10)]
    for one in others:
        queue.push(one, retry_after_s=1)
    mine = ticket(p0, "a", chars=30)
    queue.push(mine, retry_after_s=1)
    assert served(queue).index(mine) <= 1
