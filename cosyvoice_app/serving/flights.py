"""The requests that the worker has: how many may be there, and which of them it should have let go of by now."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass

from cosyvoice_app.serving.ticket import RequestTicket
from cosyvoice_app.types import Capabilities


def capacity(max_batch: int, engine: Capabilities) -> int:
    """How many requests the worker should have. More would be lost with it if it dies, and could no longer be passed by
    a better right; fewer would leave the device waiting. An engine that joins calls itself has its own queue in front;
    for others the next batch is made ready while one is on the device."""
    if max_batch == 1:
        return 1
    return max_batch if engine.concurrent else 2 * max(1, min(max_batch, engine.max_rows))


@dataclass(slots=True)
class Flight:
    """`abandoned_at`: when its owner was told the end and the worker to stop; it counts until the worker says so."""

    ticket: RequestTicket
    abandoned_at: float | None = None


class Flights:
    """Its owner holds the lock around every call."""

    def __init__(self) -> None:
        self.capacity = 1
        self._flights: dict[str, Flight] = {}

    def __len__(self) -> int:
        return len(self._flights)

    def __iter__(self) -> Iterator[Flight]:
        return iter(list(self._flights.values()))

    @property
    def has_room(self) -> bool:
        return len(self._flights) < self.capacity

    @property
    def wanted(self) -> int:
        """How many still have an owner."""
        return sum(flight.abandoned_at is None for flight in list(self._flights.values()))

    def add(self, ticket: RequestTicket) -> None:
        ticket.started_at = time.monotonic()
        self._flights[ticket.id] = Flight(ticket)

    def get(self, job_id: str) -> Flight | None:
        return self._flights.get(job_id)

    def remove(self, job_id: str) -> None:
        self._flights.pop(job_id, None)

    def clear(self) -> list[RequestTicket]:
        """Everyone, taken out."""
        tickets = [flight.ticket for flight in self._flights.values()]
        self._flights.clear()
        return tickets

    def stuck(self, now: float, patience_s: float) -> bool:
        """Has the worker had one of them for `patience_s` after it was told to stop?"""
        return any(flight.abandoned_at is not None and now - flight.abandoned_at > patience_s
                   for flight in self._flights.values())
