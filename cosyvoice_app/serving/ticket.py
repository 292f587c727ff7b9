"""What the owner of a request holds: its events, its end, and the way to stop it."""

from __future__ import annotations

import threading
import time
import uuid
from collections.abc import Callable, Iterator

from cosyvoice_app.errors import TimedOut
from cosyvoice_app.pipeline import Job
from cosyvoice_app.serving.request import Done, Event, Failed, SynthesisRequest, SynthesisResult
from cosyvoice_app.text.sizes import sounds


class RequestTicket:
    """A submitted request. Its events can be read from several threads, each from the beginning.

    Events are kept as long as the ticket: about twice the audio of one result, whoever reads them and how fast.
    """

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

    @property
    def size_sounds(self) -> int:
        """How much is to be said: what a turn costs. A Chinese character is as long as some five letters."""
        return sum(sounds(segment.pieces) for segment in self.job.segments)

    def late(self, now: float) -> TimedOut | None:
        """The error to give up with, when the caller's own deadline has passed."""
        deadline_s = self.request.deadline_s
        if deadline_s is None or now - self.submitted_at <= deadline_s:
            return None
        return TimedOut(f"There was no result within the {deadline_s:g} s that the request allowed, so it was stopped.")

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
