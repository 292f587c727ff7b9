"""Bounds in time and size for what clients send and take: headers, bodies, uploads to the page, answers.

uvicorn bounds the size of headers (64 KiB) and how long an idle connection stays open after an answer. The rest is
here: a connection that sends no whole header, a body that is too large or comes too slowly, an answer nobody reads.
"""

from __future__ import annotations

import asyncio
import tempfile
import time
from typing import IO

from fastapi.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.types import Message, Receive
from uvicorn.protocols.http.h11_impl import H11Protocol

HEADER_S = 20.0
"""How long a connection may take to send a whole request header."""
BODY_GRACE_S = 30.0
BODY_BYTES_PER_S = 4_096
"""A body may keep us waiting so long in all, and another second for each so many bytes it has brought."""
TAKE_S = 60.0
"""How long a connection may take nothing while more than uvicorn's 64 KiB wait to be sent to it."""
_MEMORY_BYTES = 1 << 20
_CHUNK_BYTES = 1 << 18


class Body:
    """A request's body on its way in: `receive` for the app behind, counted and timed.

    Raises HTTPException, since that comes through wherever a body is read. Only the waiting is timed, not the app.
    """

    def __init__(self, receive: Receive, limit_bytes: int, limit_said: str) -> None:
        self._receive = receive
        self._limit_bytes = limit_bytes
        self._limit_said = limit_said
        self._seen_bytes = 0
        self._waited_s = 0.0
        self._complete = False

    async def receive(self) -> Message:
        if self._complete:  # all that can still come is the client's leaving
            return await self._receive()
        allowed_s = BODY_GRACE_S + self._seen_bytes / BODY_BYTES_PER_S
        started = time.monotonic()
        try:
            message = await asyncio.wait_for(self._receive(), max(0.0, allowed_s - self._waited_s))
        except asyncio.TimeoutError:
            raise HTTPException(408, f"The request's body came too slowly: {self._seen_bytes} bytes in "
                                     f"{allowed_s:.0f} s.", headers={"Connection": "close"}) from None
        self._waited_s += time.monotonic() - started
        self._seen_bytes += len(message.get("body", b""))
        if self._seen_bytes > self._limit_bytes:
            raise HTTPException(413, f"The request is too large; {self._limit_said}.")
        self._complete = message["type"] != "http.request" or not message.get("more_body", False)
        return message


class Upload:
    """A body taken in whole before the app behind sees any of it, on disk beyond 1 MiB.

    Gradio's reader of uploads leaves its files behind when a body breaks off; so it never gets one that does.
    """

    def __init__(self, body: Body) -> None:
        self._body = body
        self._file: IO[bytes] = tempfile.SpooledTemporaryFile(_MEMORY_BYTES)  # noqa: SIM115 - closed in `close`
        self._left_bytes = 0
        self._given = False

    async def take_in(self) -> bool:
        """False when the client went away. Raises HTTPException as Body does."""
        while True:
            message = await self._body.receive()
            if message["type"] != "http.request":
                return False
            chunk = message.get("body", b"")
            self._left_bytes += len(chunk)
            await run_in_threadpool(self._file.write, chunk)
            if not message.get("more_body", False):
                await run_in_threadpool(self._file.seek, 0)
                return True

    async def receive(self) -> Message:
        if self._given:
            return await self._body.receive()
        chunk = await run_in_threadpool(self._file.read, _CHUNK_BYTES)
        self._left_bytes -= len(chunk)
        self._given = self._left_bytes <= 0
        return {"type": "http.request", "body": chunk, "more_body": not self._given}

    def close(self) -> None:
        self._file.close()


class TimedProtocol(H11Protocol):
    """uvicorn's HTTP/1.1, closing connections that don't send a whole request header in time, and dropping those that
    don't take their answer."""

    _late: asyncio.TimerHandle | None = None
    _stuck: asyncio.TimerHandle | None = None

    def pause_writing(self) -> None:
        super().pause_writing()
        self._stuck = self._stuck or self.loop.call_later(TAKE_S, self.transport.abort)

    def resume_writing(self) -> None:
        super().resume_writing()
        if not self.transport.is_closing():  # `close` waits until all is sent, for ever if nobody reads
            self._let_go()

    def _let_go(self) -> None:
        if self._stuck is not None:
            self._stuck.cancel()
            self._stuck = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._expect_header()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        if self.cycle is None or self.cycle.response_complete:
            self._expect_header()
        else:
            self._stop_waiting()

    def on_response_complete(self) -> None:
        self._stop_waiting()  # between requests uvicorn's own keep-alive time holds
        super().on_response_complete()

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_waiting()
        self._let_go()
        super().connection_lost(exc)

    def _expect_header(self) -> None:
        if self._late is None and not self.transport.is_closing():
            self._late = self.loop.call_later(HEADER_S, self.transport.close)

    def _stop_waiting(self) -> None:
        if self._late is not None:
            self._late.cancel()
            self._late = None
