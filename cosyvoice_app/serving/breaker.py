"""When a worker that crashed is started again: at once, later, or not for a while (a circuit breaker). Pure counting.

Closed: the first crash costs no wait, each further one in a row twice the last. Open: too many in a row, so nothing is
started for a while. Half-open: after that one trial, whose next crash opens it again for twice as long. A job that
succeeds ends the row and closes it; so does a worker that lived well for long, and a person who asks.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class Breaker:
    """`most`, `most_loading`: crashes in a row that open it, the latter when the last one was while loading.
    `healthy_s`: a worker that was ready for so long before it crashed is no crash in a row."""

    most: int = 5
    most_loading: int = 3
    healthy_s: float = 60.0
    backoff_s: float = 0.5
    backoff_most_s: float = 30.0
    cool_s: float = 30.0
    cool_most_s: float = 600.0
    crashes: int = 0
    """In a row."""
    trial: bool = False
    """Half-open, or open until the delay that `crashed` returned is over."""
    opened: bool = False
    """Whether the last crash opened it."""
    _trips: int = 0

    def crashed(self, *, loading: bool, ready_s: float) -> float:
        """Seconds until the next start; see `opened` for what that means. `ready_s`: how long the worker was ready."""
        if ready_s >= self.healthy_s:
            self.succeeded()
        self.crashes += 1
        if self.trial or self.crashes >= (self.most_loading if loading else self.most):
            return self.trip()
        self.opened = False
        return 0.0 if self.crashes == 1 else min(self.backoff_most_s, self.backoff_s * 2.0 ** (self.crashes - 2))

    def trip(self) -> float:
        """Open it. Seconds until the trial."""
        self.trial = self.opened = True
        self._trips += 1
        return min(self.cool_most_s, self.cool_s * 2.0 ** (self._trips - 1))

    def succeeded(self) -> None:
        self.crashes = self._trips = 0
        self.trial = self.opened = False
