"""Limits of one client, and bodies that come in: true rates, freed places, bounds in size and time."""

from __future__ import annotations

import asyncio
import gc
import math
import threading
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from starlette.exceptions import HTTPException
from starlette.types import Message

from cosyvoice_app.errors import NoEngine, RateLimited
from cosyvoice_app.serving.request import SynthesisRequest
from cosyvoice_app.settings import Settings
from cosyvoice_app.web import slow_clients
from cosyvoice_app.web.caller import address_of, payer, shown
from cosyvoice_app.web.control import EngineControl
from cosyvoice_app.web.limits import LimitedService, Rate, TokenBuckets
from cosyvoice_app.web.slow_clients import Body, Upload

# rates


def buckets(per_minute: int, **more: Any) -> tuple[TokenBuckets, list[float]]:
    now = [1000.0]
    return TokenBuckets(per_minute, clock=lambda: now[0], **more), now


@given(per_minute=st.integers(1, 600), waits=st.lists(st.floats(0, 90), max_size=60))
@settings(deadline=None, max_examples=60)
def test_who_waits_as_long_as_told_gets_in_and_nobody_gets_more(per_minute: int, waits: list[float]) -> None:
    some, now = buckets(per_minute)
    start, taken = now[0], 0
    for wait in waits:
        now[0] += wait
        while not some.take("a"):
            taken += 1
            assert taken <= per_minute + (now[0] - start) * per_minute / 60 + 1e-3
        told = some.take("a")
        assert 0 < told <= 60 / per_minute + 1e-6
        now[0] += math.ceil(told)
        assert some.take("a") == 0
        taken += 1


def test_clients_do_not_share_and_the_quietest_is_forgotten_first() -> None:
    some, _ = buckets(2, kept=3)
    for client in ("a", "b", "c"):
        assert some.take(client) == some.take(client) == 0 and some.take(client) > 0
    some.give_back("a")
    assert some.take("a") == 0
    assert some.take("d") == 0 and len(some) == 3
    assert some.take("a") > 0 and some.take("c") > 0
    assert some.take("b") == 0, "forgotten, so as if it had never asked"
    for i in range(1000):
        some.take(str(i))
    assert len(some) == 3
    some.give_back("never seen")
    assert some.wait_s("never seen") == 0


def test_looking_takes_nothing() -> None:
    some, _ = buckets(1)
    assert [some.wait_s("a") for _ in range(5)] == [0.0] * 5
    assert some.take("a") == 0 and some.wait_s("a") == pytest.approx(60)


# places


class FakeTicket:
    def __init__(self, request: SynthesisRequest) -> None:
        self.id = "x"
        self.request = request
        self.ended = False


class FakeService:
    def __init__(self) -> None:
        self.reasons: list[str] = []
        self.fails = False
        self.hold = threading.Event()
        self.hold.set()

    def submit(self, request: SynthesisRequest) -> FakeTicket:
        self.hold.wait(10)
        if self.fails:
            raise NoEngine("no")
        return FakeTicket(request)

    def refused(self, reason: str) -> None:
        self.reasons.append(reason)


def limited(**options: Any) -> tuple[LimitedService, FakeService]:
    inner, chosen = FakeService(), Settings(**options)
    return LimitedService(inner, chosen, Rate(chosen)), inner  # type: ignore[arg-type]


def asked(client: str, source: str = "api") -> SynthesisRequest:
    return SynthesisRequest(clip=None, text="x", client=client, source=source)  # type: ignore[arg-type]


def test_a_client_has_so_many_under_way_and_gets_the_place_back_however_one_ends() -> None:
    service, inner = limited(max_per_client=2)
    first, second = service.submit(asked("a")), service.submit(asked("a"))
    with pytest.raises(RateLimited) as error:
        service.submit(asked("a"))
    assert error.value.retry_after_s and inner.reasons == ["rate_limited"]
    other = service.submit(asked("b"))
    first.ended = True  # type: ignore[misc]
    third = service.submit(asked("a"))
    with pytest.raises(RateLimited):
        service.submit(asked("a"))
    del second
    gc.collect()  # a ticket nobody holds is no request under way
    fourth = service.submit(asked("a"))
    assert {ticket.request.client for ticket in (third, fourth, other)} == {"a", "b"}


def test_a_refused_request_takes_no_place() -> None:
    service, inner = limited(max_per_client=1)
    inner.fails = True
    for _ in range(3):
        with pytest.raises(NoEngine):
            service.submit(asked("a"))
    inner.fails = False
    assert service.submit(asked("a"))


def test_places_are_kept_while_requests_are_on_their_way_in() -> None:
    service, inner = limited(max_per_client=3)
    inner.hold.clear()
    kept: list[object] = []
    refused: list[RateLimited] = []

    def submit() -> None:
        try:
            kept.append(service.submit(asked("a")))
        except RateLimited as error:
            refused.append(error)
            if len(refused) == 5:
                inner.hold.set()

    threads = [threading.Thread(target=submit) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
    assert (len(kept), len(refused)) == (3, 5)


def test_the_page_is_rated_here_and_the_api_at_its_door() -> None:
    service, inner = limited(rate_per_minute=2)
    for _ in range(5):
        service.submit(asked("a"))
    for tab in ("1", "2"):
        service.submit(asked(f"page:192.0.2.7:{tab}", "page"))
    with pytest.raises(RateLimited) as error:
        service.submit(asked("page:192.0.2.7:3", "page"))
    assert error.value.retry_after_s == 30 and inner.reasons == ["rate_limited"]
    service.submit(asked("page:192.0.2.8:1", "page"))


def test_an_address_has_one_share_however_many_tabs_it_makes_up() -> None:
    service, _ = limited(max_per_client=2)
    kept = [service.submit(asked(f"page:192.0.2.7:{tab}", "page")) for tab in ("1", "2")]
    for client in ("page:192.0.2.7:3", "192.0.2.7"):
        with pytest.raises(RateLimited):
            service.submit(asked(client, "page"))
    kept.append(service.submit(asked("page:192.0.2.8:1", "page")))
    assert len({ticket.request.client for ticket in kept}) == 3, "and each tab has its own turns in the queue"


def test_a_tab_is_counted_by_its_address() -> None:
    for session in ("1", "", "f00d" * 4):
        assert payer(f"page:::ffff:192.0.2.7:{session}") == payer(f"page:192.0.2.7:{session}") == "192.0.2.7"
        assert payer(f"page:2001:db8:1:2::5:{session}") == address_of("2001:db8:1:2::9")
    assert payer("page::x") == "unknown" and payer("key:ann") == "key:ann"
    assert shown("page:192.0.2.7:0123456789abcdef") == "page:192.0.2.0/24:0123"


# bodies


def body_of(pieces: list[bytes], limit_bytes: int = 1000, gap_s: float = 0.0, ends: bool = True) -> Body:
    left: list[Message] = [
        {"type": "http.request", "body": piece, "more_body": i + 1 < len(pieces)} for i, piece in enumerate(pieces)
    ]
    if not ends:
        left[-1] = {"type": "http.disconnect"}

    async def receive() -> Message:
        await asyncio.sleep(gap_s)
        if left:
            return left.pop(0)
        await asyncio.Event().wait()
        raise AssertionError

    return Body(receive, limit_bytes, "the limit")


async def drained(receive: Any) -> bytes:
    found = b""
    while True:
        message = await receive()
        found += message.get("body", b"")
        if message["type"] != "http.request" or not message["more_body"]:
            return found


def test_a_body_up_to_the_limit_comes_whole() -> None:
    assert asyncio.run(drained(body_of([b"a" * 400, b"b" * 600]).receive)) == b"a" * 400 + b"b" * 600
    with pytest.raises(HTTPException) as error:
        asyncio.run(drained(body_of([b"a" * 400, b"b" * 601]).receive))
    assert error.value.status_code == 413


def test_a_body_that_trickles_is_cut_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(slow_clients, "BODY_GRACE_S", 0.3)
    with pytest.raises(HTTPException) as error:
        asyncio.run(drained(body_of([b"x"] * 100, gap_s=0.05).receive))
    assert error.value.status_code == 408


def test_waiting_for_the_client_to_leave_is_not_timed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(slow_clients, "BODY_GRACE_S", 0.1)

    async def follow() -> None:
        body = body_of([b"all"])
        await body.receive()
        with pytest.raises(asyncio.TimeoutError):
            await asyncio.wait_for(body.receive(), 0.5)

    asyncio.run(follow())


@pytest.mark.parametrize(
    "pieces", [[b""], [b"a"], [b"ab" * 200, b"", b"c" * 300], [b"x" * 1_500_000, b"y" * 1_500_000]]
)
def test_an_upload_is_handed_on_as_it_came(pieces: list[bytes]) -> None:
    async def pass_on() -> bytes:
        upload = Upload(body_of(pieces, limit_bytes=10_000_000))
        try:
            assert await upload.take_in()
            return await drained(upload.receive)
        finally:
            upload.close()

    assert asyncio.run(pass_on()) == b"".join(pieces)


def test_an_upload_that_breaks_off_is_handed_to_nobody(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(slow_clients.tempfile, "tempdir", str(tmp_path))

    async def pass_on() -> bool:
        upload = Upload(body_of([b"x" * 1_500_000, b""], limit_bytes=10_000_000, ends=False))
        try:
            return await upload.take_in()
        finally:
            upload.close()

    assert asyncio.run(pass_on()) is False
    assert not list(tmp_path.iterdir())


# engine control


class Engine:
    """Whose restarts last until they are let go."""

    def __init__(self) -> None:
        self.go = threading.Event()
        self.calls: list[str] = []

    def restart(self, *, drain: bool = False) -> tuple[str, str]:
        self.calls.append(f"restart {drain}")
        self.go.wait(20)
        return "before", "after"

    def unload(self) -> tuple[str, str]:
        self.calls.append("unload")
        self.go.wait(20)
        raise NoEngine("gone")


@pytest.mark.usefixtures("no_thread_is_left")
def test_a_second_press_joins_the_first_and_no_thread_waits_for_it() -> None:
    engine = Engine()
    control = EngineControl(engine)  # type: ignore[arg-type]

    async def press() -> None:
        presses = [asyncio.ensure_future(control.restart()) for _ in range(50)]
        drains = [asyncio.ensure_future(control.restart("drain")) for _ in range(50)]
        leaver = asyncio.ensure_future(control.restart())
        await asyncio.sleep(0.05)
        leaver.cancel()
        failing = asyncio.ensure_future(control.unload())
        await asyncio.sleep(0.05)
        assert sum(t.name.startswith("engine-control") for t in threading.enumerate()) <= 4
        engine.go.set()
        assert set(await asyncio.gather(*presses, *drains)) == {("before", "after")}
        with pytest.raises(NoEngine):
            await failing
        assert sorted(engine.calls) == ["restart False", "restart True", "unload"]
        await control.restart()
        assert engine.calls.count("restart False") == 2, "a press after the end is a new one"

    asyncio.run(press())
    control.close()
