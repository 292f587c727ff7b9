"""Requests that wait, in the order they came, and the tickets their owners hold. No threads here, only locks."""

from __future__ import annotations

import threading
import time
import uuid
from collections.abc import Callable, Iterator

from cosyvoice_app.errors import QueueFull, TimedOut
from cosyvoice_app.pipeline import Job
from cosyvoice_app.serving.request import Done, Event, Failed, Queued, SynthesisRequest, SynthesisResult


class RequestTicket:
    """A submitted request. Its events can be read from several threads, each from the beginning."""

    def __init__(self, request: SynthesisRequest, job: Job, on_cancel: Callable[[RequestTicket], None]) -> None:
        self.id = uuid.uuid4().hex
        self.request = request
        self.job = job
        self.submitted_at = time.monotonic()
        self.started_at: float | None = None
        self.first_audio_at: float | None = None
        self._on_cancel = on_cancel
        self._events: list[Event] = []
        self._end: Done | Failed | None = None
        self._news = threading.Condition()

    def post(self, event: Event) -> bool:
        """Append an event; False (and nothing happens) when the request has already ended."""
        with self._news:
            if self._end is not None:
                return False
            self._events.append(event)
            if isinstance(event, Done | Failed):
                self._end = event
            self._news.notify_all()
            return True

    @property
    def ended(self) -> bool:
        return self._end is not None

    def events(self) -> Iterator[Event]:
        index = 0
        while True:
            with self._news:
                self._news.wait_for(lambda: len(self._events) > index)  # noqa: B023 - used before index changes
                event = self._events[index]
            yield event
            if isinstance(event, Done | Failed):
                return
            index += 1

    def result(self, timeout_s: float | None = None) -> SynthesisResult:
        with self._news:
            self._news.wait_for(lambda: self._end is not None, timeout_s)
            end = self._end
        if end is None:
            self.cancel()
            raise TimedOut(f"There was no result within {timeout_s:g} s, so the request was stopped.")
        if isinstance(end, Failed):
            raise end.error
        return end.result

    def cancel(self) -> None:
        if not self.ended:
            self._on_cancel(self)


class RequestQueue:
    """First in, first out, at most `capacity` long. Its owner holds the lock around every call.

    Everyone who waits is told their place whenever it changes.
    """

    def __init__(self, capacity: int) -> None:
        self._capacity = capacity
        self._tickets: list[RequestTicket] = []
        self._told: dict[str, int] = {}

    def __len__(self) -> int:
        return len(self._tickets)

    def __iter__(self) -> Iterator[RequestTicket]:
        return iter(list(self._tickets))

    def push(self, ticket: RequestTicket, *, retry_after_s: int) -> None:
        """Raises QueueFull, naming the limit and when to try again."""
        if len(self._tickets) >= self._capacity:
            raise QueueFull(f"{self._capacity} requests are waiting already, the most allowed. "
                            f"Try again in about {retry_after_s} s.", retry_after_s=retry_after_s)
        self._tickets.append(ticket)
        self._tell()

    def pop(self) -> RequestTicket:
        ticket = self._tickets.pop(0)
        self._tell()
        return ticket

    def remove(self, ticket: RequestTicket) -> bool:
        if ticket not in self._tickets:
            return False
        self._tickets.remove(ticket)
        self._tell()
        return True

    def drain(self) -> list[RequestTicket]:
        """Take everyone out, in order."""
        tickets, self._tickets = self._tickets, []
        self._tell()
        return tickets

    def _tell(self) -> None:
        places = {ticket.id: place for place, ticket in enumerate(self._tickets)}
        for place, ticket in enumerate(self._tickets):
            if self._told.get(ticket.id) != place:
                ticket.post(Queued(place))
        self._told = places
