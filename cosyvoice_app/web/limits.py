"""How much one client may ask for: so many requests a minute, and so many waiting and running at once."""

from __future__ import annotations

import math
import threading
import time
from collections import OrderedDict
from collections.abc import Callable
from weakref import WeakSet

from cosyvoice_app.errors import RateLimited
from cosyvoice_app.serving.request import Service, Status, SynthesisRequest, Ticket
from cosyvoice_app.settings import Settings
from cosyvoice_app.text.frontend import FrontEnd
from cosyvoice_app.text.pronunciations import NONE, Pronunciations
from cosyvoice_app.types import Capabilities
from cosyvoice_app.voices.cache import CacheCounts
from cosyvoice_app.web.caller import payer

BUCKETS_KEPT = 10_000
"""Clients remembered. Of more, the one that was quiet longest is forgotten, as if it had never asked."""
UNDER_WAY_RETRY_S = 2
"""When one of a client's own requests will end can't be known; a request takes seconds."""


class TokenBuckets:
    """A bucket a client: full it holds a minute's worth, and it fills evenly. Thread-safe; bounded in memory."""

    def __init__(
        self, per_minute: int, *, kept: int = BUCKETS_KEPT, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.per_minute = per_minute
        self._kept = kept
        self._clock = clock
        self._lock = threading.Lock()
        self._buckets: OrderedDict[str, tuple[float, float]] = OrderedDict()
        """client -> (tokens, when they were counted), the quietest first."""

    def wait_s(self, client: str) -> float:
        """0 when the client has a token, else the seconds until it has one."""
        with self._lock:
            return self._wait_s(self._tokens(client))

    def take(self, client: str) -> float:
        """Take a token and return 0; or, where there is none, take nothing and return the seconds until there is."""
        with self._lock:
            tokens = self._tokens(client)
            wait_s = self._wait_s(tokens)
            if not wait_s:
                self._keep(client, tokens - 1)
            return wait_s

    def give_back(self, client: str) -> None:
        """Undo one `take`."""
        with self._lock:
            self._keep(client, min(self._tokens(client) + 1, self.per_minute))

    def __len__(self) -> int:
        return len(self._buckets)

    def _tokens(self, client: str) -> float:
        tokens, at = self._buckets.get(client, (float(self.per_minute), 0.0))
        return min(float(self.per_minute), tokens + (self._clock() - at) * self.per_minute / 60)

    def _wait_s(self, tokens: float) -> float:
        # A whole token less a rounding error is a whole token: who waits as long as told must not be refused.
        return 0.0 if tokens > 1 - 1e-6 else (1 - tokens) * 60 / self.per_minute

    def _keep(self, client: str, tokens: float) -> None:
        self._buckets[client] = (max(tokens, 0.0), self._clock())
        self._buckets.move_to_end(client)
        while len(self._buckets) > self._kept:
            self._buckets.popitem(last=False)


class Rate:
    """`--rate-per-minute`, for every way in. 0 is no limit."""

    def __init__(self, settings: Settings) -> None:
        self._buckets = TokenBuckets(settings.rate_per_minute) if settings.rate_per_minute else None

    def admit(self, client: str) -> None:
        """Raises RateLimited with the time after which the client may ask again."""
        if self._buckets is None:
            return
        wait_s = self._buckets.take(client)
        if wait_s:
            retry_s = math.ceil(wait_s)
            raise RateLimited(
                f"At most {self._buckets.per_minute} requests a minute are taken from one client "
                f"(--rate-per-minute). Try again in {retry_s} s.",
                retry_after_s=retry_s,
            )


class LimitedService:
    """The service with one client's limits before it. The page and the API both hand their requests in here.

    Turns in the queue are a tab's own; limits count all tabs at an address together.

    What a client has under way is counted from its tickets, which know themselves whether they have ended: a request
    that was finished, failed, stopped or left behind frees its place by itself.
    """

    def __init__(self, inner: Service, settings: Settings, rate: Rate) -> None:
        self._inner = inner
        self._most = settings.max_per_client
        self._rate = rate
        self._lock = threading.Lock()
        self._under_way: dict[str, WeakSet[Ticket]] = {}
        self._entering: dict[str, int] = {}

    def submit(self, request: SynthesisRequest) -> Ticket:
        """Raises RateLimited, and what the service itself raises."""
        counted = payer(request.client)
        try:
            if request.source == "page":  # the API's were counted by the guard, before their bodies were read
                self._rate.admit(counted)
            if not self._most:
                return self._inner.submit(request)
            self._enter(counted)
        except RateLimited as error:
            self._inner.refused(error.type)
            raise
        ticket = None
        try:
            ticket = self._inner.submit(request)
            return ticket
        finally:
            self._entered(counted, ticket)

    def _enter(self, client: str) -> None:
        with self._lock:
            alive = {
                name: WeakSet(ticket for ticket in tickets if not ticket.ended)
                for name, tickets in self._under_way.items()
            }
            self._under_way = {name: tickets for name, tickets in alive.items() if tickets}
            if len(self._under_way.get(client, ())) + self._entering.get(client, 0) >= self._most:
                raise RateLimited(
                    f"At most {self._most} requests of one client may wait and run at once (--max-per-client). "
                    "Send the next when one of them has ended.",
                    retry_after_s=UNDER_WAY_RETRY_S,
                )
            self._entering[client] = self._entering.get(client, 0) + 1

    def _entered(self, client: str, ticket: Ticket | None) -> None:
        with self._lock:
            self._entering[client] -= 1
            if not self._entering[client]:
                del self._entering[client]
            if ticket is not None:
                self._under_way.setdefault(client, WeakSet()).add(ticket)

    # The rest goes straight through.

    def start(self) -> None:
        self._inner.start()

    def read(self, text: str, own: Pronunciations = NONE) -> tuple[FrontEnd, tuple[str, ...]]:
        return self._inner.read(text, own)

    def capabilities(self) -> Capabilities | None:
        return self._inner.capabilities()

    def status(self) -> Status:
        return self._inner.status()

    def restart(self, *, drain: bool = False) -> tuple[Status, Status]:
        return self._inner.restart(drain=drain)

    def unload(self) -> tuple[Status, Status]:
        return self._inner.unload()

    def load(self) -> Status:
        return self._inner.load()

    def metrics(self) -> bytes:
        return self._inner.metrics()

    def refused(self, reason: str) -> None:
        self._inner.refused(reason)

    def watch_cache(self, name: str, counts: Callable[[], CacheCounts]) -> None:
        self._inner.watch_cache(name, counts)

    def close(self) -> None:
        self._inner.close()
