"""Requests that wait, and whose turn it is. No threads here, only rules.

Interactive requests go before batch ones, but every `_BATCH_SHARE`th turn is a batch request's, so that none waits for
ever. Within each kind turns are fair per client, by self-clocked fair queueing (Golestani 1994) with the text's length
as the cost: who asked for little lately is next, so a client with a hundred requests delays another's first one by one
or two of its own, and a short request passes a long one of equal standing.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from cosyvoice_app.errors import QueueFull
from cosyvoice_app.serving.request import Priority, Queued
from cosyvoice_app.serving.ticket import RequestTicket

_BATCH_SHARE = 8
_FIXED_COST_SOUNDS = 20
"""What a request costs besides its text."""


@dataclass(frozen=True, slots=True)
class _Waiting:
    ticket: RequestTicket
    finish: float
    number: int

    @property
    def order(self) -> tuple[float, int]:
        return self.finish, self.number


class _Turns:
    """The fair order of one kind of requests. Clients are remembered only while it matters."""

    def __init__(self) -> None:
        self.waiting: list[_Waiting] = []
        self._now = 0.0
        self._finish: dict[str, float] = {}
        self._number = 0

    def add(self, ticket: RequestTicket) -> None:
        client = ticket.request.client
        finish = max(self._now, self._finish.get(client, 0.0)) + _FIXED_COST_SOUNDS + ticket.size_sounds
        self._finish[client] = finish
        self._number += 1
        self.waiting.append(_Waiting(ticket, finish, self._number))
        self.waiting.sort(key=lambda waiting: waiting.order)

    def take(self) -> RequestTicket:
        first = self.waiting.pop(0)
        self._now = max(self._now, first.finish)
        self._finish = {client: finish for client, finish in self._finish.items() if finish > self._now}
        return first.ticket

    def remove(self, ticket: RequestTicket) -> bool:
        """Take one out, wherever it stands. Its client's later requests keep their places; what was not served costs
        nothing."""
        kept = [waiting for waiting in self.waiting if waiting.ticket is not ticket]
        found = len(kept) < len(self.waiting)
        if found:
            client = ticket.request.client
            self.waiting = kept
            self._finish.pop(client, None)
            left = [waiting.finish for waiting in kept if waiting.ticket.request.client == client]
            if left:
                self._finish[client] = max(left)
        return found

    def clear(self) -> None:
        self.waiting.clear()
        self._finish.clear()


class RequestQueue:
    """At most `capacity` long. Its owner holds the lock around every call.

    Everyone who waits is told their place whenever it changes; a place may also get worse, when somebody with a better
    right comes.
    """

    def __init__(self, capacity: int) -> None:
        self._capacity = capacity
        self._turns: dict[Priority, _Turns] = {"interactive": _Turns(), "batch": _Turns()}
        self._taken = 0
        self._told: dict[str, int] = {}

    def __len__(self) -> int:
        return sum(len(turns.waiting) for turns in self._turns.values())

    def __iter__(self) -> Iterator[RequestTicket]:
        """Everyone, in the order in which they would be served if nobody else came."""
        interactive, batch = (iter([waiting.ticket for waiting in turns.waiting]) for turns in self._turns.values())
        turn = self._taken
        first, second = next(interactive, None), next(batch, None)
        while first is not None or second is not None:
            turn += 1
            if second is not None and (first is None or turn % _BATCH_SHARE == 0):
                yield second
                second = next(batch, None)
            elif first is not None:
                yield first
                first = next(interactive, None)

    def push(self, ticket: RequestTicket, *, retry_after_s: int) -> None:
        """Raises QueueFull, naming the limit and when to try again."""
        if len(self) >= self._capacity:
            raise QueueFull(f"{self._capacity} requests are waiting already, the most allowed. "
                            f"Try again in about {retry_after_s} s.", retry_after_s=retry_after_s)
        self._turns[ticket.request.priority].add(ticket)
        self._tell()

    def pop(self) -> RequestTicket:
        """Whose turn it is. Raises IndexError when nobody waits."""
        self._taken += 1
        interactive, batch = self._turns["interactive"], self._turns["batch"]
        batch_turn = batch.waiting and (not interactive.waiting or self._taken % _BATCH_SHARE == 0)
        ticket = (batch if batch_turn else interactive).take()
        self._tell()
        return ticket

    def remove(self, ticket: RequestTicket) -> bool:
        found = any([turns.remove(ticket) for turns in self._turns.values()])  # noqa: C419 - of all, not until found
        if found:
            self._tell()
        return found

    def drain(self) -> list[RequestTicket]:
        """Take everyone out, in order."""
        tickets = list(self)
        for turns in self._turns.values():
            turns.clear()
        self._told.clear()
        return tickets

    def _tell(self) -> None:
        places: dict[str, int] = {}
        for place, ticket in enumerate(self):
            places[ticket.id] = place
            if self._told.get(ticket.id) != place:
                ticket.post(Queued(place))
        self._told = places
