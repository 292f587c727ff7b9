"""Readers that are slow, late or gone: each holds its own result at most, and nobody else up."""

from __future__ import annotations

import asyncio
import socket
import threading
import time
from collections.abc import AsyncGenerator, AsyncIterator, Iterator
from contextlib import closing, contextmanager
from types import SimpleNamespace
from typing import Any, ClassVar

import numpy as np
import pytest
import uvicorn
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from cosyvoice_app.errors import Cancelled, EngineFailure, NotFound
from cosyvoice_app.serving.request import Chunk, Event, Failed
from cosyvoice_app.types import Audio
from cosyvoice_app.web import answers, live, slow_clients
from cosyvoice_app.web.answers import BLOCK_BYTES, SteadyResponse
from cosyvoice_app.web.live import Broadcast, Live
from cosyvoice_app.web.server import claim_port
from cosyvoice_app.web.slow_clients import TimedProtocol

SECOND = Audio(np.full(24_000, 0.25, np.float32), 24_000)


class OneTicket:
    """A request that has said one second and never ends by itself."""

    id = "one"
    request = SimpleNamespace(source="api")

    def __init__(self) -> None:
        self.cancelled = threading.Event()

    def events(self) -> Iterator[Event]:
        yield Chunk(SECOND, 0)
        self.cancelled.wait()
        yield Failed(Cancelled("stopped"))

    def cancel(self) -> None:
        self.cancelled.set()


class FakeClient:
    """An ASGI client that stays connected and takes `takes` messages."""

    def __init__(self, takes: int) -> None:
        self.takes = takes
        self.got: list[Message] = []

    async def receive(self) -> Message:
        await asyncio.Event().wait()
        raise AssertionError

    async def send(self, message: Message) -> None:
        if len(self.got) == self.takes:
            await asyncio.Event().wait()
        self.got.append(message)

    def serve(self, response: Any) -> Any:
        return response({"type": "http", "method": "GET", "asgi": {"spec_version": "2.3"}}, self.receive, self.send)

    @property
    def ended(self) -> bool:
        return bool(self.got) and self.got[-1].get("more_body") is False

    @property
    def body(self) -> bytes:
        return b"".join(message.get("body", b"") for message in self.got)


class FakeRequest:
    scope: ClassVar[dict[str, str]] = {"http_version": "1.1"}

    async def receive(self) -> Message:
        await asyncio.Event().wait()
        raise AssertionError


@contextmanager
def served(app: ASGIApp) -> Iterator[tuple[int, uvicorn.Server]]:
    """A server with our protocol that serves `app`, and its port."""
    with closing(claim_port("127.0.0.1", 0)) as listener:
        server = uvicorn.Server(uvicorn.Config(app, log_level="critical", http=TimedProtocol, lifespan="off"))
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
        thread.start()
        try:
            yield listener.getsockname()[1], server
        finally:
            server.should_exit = True
            thread.join(30)


@pytest.mark.parametrize("fails", [False, True])
def test_a_client_that_stops_reading_is_dropped_and_holds_nothing(monkeypatch: pytest.MonkeyPatch, fails: bool) -> None:
    """Also when the answer itself has broken off, and only what was sent before waits to be taken."""
    monkeypatch.setattr(slow_clients, "TAKE_S", 0.3)
    ended = threading.Event()

    async def endless() -> AsyncGenerator[bytes, None]:
        try:
            for _ in range(400 if fails else 1_000_000):
                yield b"x" * BLOCK_BYTES
                await asyncio.sleep(0)
            raise EngineFailure("half way")
        finally:
            ended.set()

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await SteadyResponse(endless(), "audio/pcm", {})(scope, receive, send)

    with served(app) as (port, server), socket.socket() as client:
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        client.connect(("127.0.0.1", port))
        client.sendall(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n")
        assert ended.wait(30), "the body is closed though its client stays"
        end = time.monotonic() + 30
        while server.server_state.connections:
            assert time.monotonic() < end, "the connection is kept"
            time.sleep(0.01)


def test_a_client_that_reads_slowly_gets_all_of_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(slow_clients, "TAKE_S", 2.0)

    async def body() -> AsyncGenerator[bytes, None]:
        for _ in range(40):
            yield b"x" * BLOCK_BYTES

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await SteadyResponse(body(), "audio/pcm", {"Connection": "close"})(scope, receive, send)

    got = 0
    with served(app) as (port, _), socket.socket() as client:
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        client.connect(("127.0.0.1", port))
        client.sendall(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n")
        while data := client.recv(BLOCK_BYTES):
            got += len(data)
            time.sleep(0.002)
    assert got > 40 * BLOCK_BYTES


def test_a_client_that_goes_away_cancels_its_request() -> None:
    ticket, client = OneTicket(), FakeClient(1000)

    async def gone() -> Message:
        while not client.body:
            await asyncio.sleep(0)
        return {"type": "http.disconnect"}

    async def run() -> None:
        response = await answers.streamed(ticket, FakeRequest(), 1, "pcm", sse=True)  # type: ignore[arg-type]
        client.receive = gone  # type: ignore[method-assign]
        await client.serve(response)

    asyncio.run(asyncio.wait_for(run(), 30))
    assert ticket.cancelled.is_set()


def test_no_block_is_larger_than_what_may_take_so_long() -> None:
    client, ticket = FakeClient(1000), OneTicket()

    async def run() -> None:
        response = await answers.streamed(ticket, FakeRequest(), 1, "pcm", sse=False)  # type: ignore[arg-type]
        serving = asyncio.ensure_future(client.serve(response))
        while len(client.body) < 48_000:
            await asyncio.sleep(0.001)
        ticket.cancel()
        await serving

    asyncio.run(asyncio.wait_for(run(), 30))
    sizes = [len(message.get("body", b"")) for message in client.got]
    assert sum(sizes) == 48_000 and max(sizes) <= BLOCK_BYTES
    assert not client.ended, "it failed, so no client may take it for a whole"


def test_whatever_a_body_raises_it_is_closed() -> None:
    closed = []

    async def body() -> AsyncGenerator[bytes, None]:
        try:
            yield b"a"
            raise EngineFailure("half way")
        finally:
            closed.append(True)

    client = FakeClient(1000)
    asyncio.run(client.serve(SteadyResponse(body(), "audio/pcm", {})))
    assert closed == [True] and client.body == b"a" and not client.ended


# What the page listens to.


async def heard(parts: AsyncIterator[bytes]) -> bytes:
    return b"".join([part async for part in parts])


def test_late_and_early_listeners_hear_the_same_whole() -> None:
    async def run() -> list[bytes]:
        one = Broadcast()
        early = asyncio.ensure_future(heard(one.parts()))
        await asyncio.sleep(0)
        one.add(SECOND)
        await asyncio.sleep(0)
        one.add(SECOND)
        one.end(whole=True)
        return [await early, await heard(one.parts())]

    early, late = asyncio.run(asyncio.wait_for(run(), 30))
    assert early == late and len(early) == 2 * 48_000


def test_what_is_not_whole_ends_with_an_error_whoever_comes_when() -> None:
    async def run() -> None:
        registry = Live()
        with registry.broadcast() as one:
            early = asyncio.ensure_future(heard(one.parts()))
            one.add(SECOND)
            await asyncio.sleep(0)
        for listening in (early, asyncio.ensure_future(heard(one.parts()))):
            with pytest.raises(Cancelled):
                await listening
        client = FakeClient(1000)
        await client.serve(await registry.answer(one.token))
        assert len(client.body) == 48_000 and not client.ended

    asyncio.run(asyncio.wait_for(run(), 30))


def test_a_broadcast_is_known_by_its_token_alone_and_not_for_long(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(live, "KEPT_S", 0.0)

    async def run() -> None:
        registry = Live()
        with registry.broadcast() as one, registry.broadcast() as other:
            assert one.token != other.token and len(one.token) >= 32
            other.end(whole=True)
            assert (await registry.answer(other.token)).status_code == 204
            one.add(SECOND)
            one.end(whole=True)
            client = FakeClient(1000)
            await client.serve(await registry.answer(one.token))
            assert client.ended and dict(client.got[0]["headers"])[b"x-sample-rate"] == b"24000"
            with pytest.raises(NotFound):
                await registry.answer(one.token + "x")
        await asyncio.sleep(0.01)
        for gone in (one, other):
            with pytest.raises(NotFound):
                await registry.answer(gone.token)

    asyncio.run(asyncio.wait_for(run(), 30))
