"""A running request's audio for the page that asked for it, which plays it while it is made.

The page learns a token that can't be guessed and fetches the audio under it: 16-bit PCM, segment after segment, the
very samples that the finished file holds. All of this happens in the web server's one event loop.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import AsyncGenerator, Iterator
from contextlib import contextmanager

from fastapi import Response

from cosyvoice_app.audio.encode import encode
from cosyvoice_app.errors import Cancelled, NotFound
from cosyvoice_app.types import Audio
from cosyvoice_app.web.answers import SteadyResponse, blocks

KEPT_S = 10.0
"""How long the audio of a request that has ended can still be fetched: a short one may be done before its page asks."""


class Broadcast:
    """Keeps all that was added, at most one result, so that whoever tunes in late hears the beginning too."""

    def __init__(self) -> None:
        self.token = secrets.token_urlsafe(24)
        self.rate_hz = 0
        self._parts: list[bytes] = []
        self._ended: bool | None = None
        self._news = asyncio.Event()

    def add(self, audio: Audio) -> None:
        self.rate_hz = audio.rate_hz
        self._parts.append(encode(audio, "pcm"))
        self._tell()

    def end(self, *, whole: bool) -> None:
        """`whole`: nothing is missing. The first call counts."""
        if self._ended is None:
            self._ended = whole
            self._tell()

    def _tell(self) -> None:
        self._news.set()
        self._news = asyncio.Event()

    async def parts(self) -> AsyncGenerator[bytes, None]:
        """PCM as it comes, from the beginning. Raises Cancelled at the end of what is not whole."""
        heard = 0
        while True:
            news = self._news
            while heard < len(self._parts):
                yield self._parts[heard]
                heard += 1
            if self._ended is not None:
                break
            if news is self._news:
                await news.wait()
        if not self._ended:
            raise Cancelled("The request ended before its audio was whole.")


class Live:
    """The broadcasts of running requests, by token."""

    def __init__(self) -> None:
        self._broadcasts: dict[str, Broadcast] = {}

    @contextmanager
    def broadcast(self) -> Iterator[Broadcast]:
        """One to add audio to. Left before `end` was called, it ends as not whole."""
        one = Broadcast()
        self._broadcasts[one.token] = one
        try:
            yield one
        finally:
            one.end(whole=False)
            asyncio.get_running_loop().call_later(KEPT_S, self._broadcasts.pop, one.token, None)

    async def answer(self, token: str) -> Response:
        """The audio under `token` as an HTTP answer that ends with the request: 204 if there never was any, broken off
        if the request failed. Raises NotFound."""
        one = self._broadcasts.get(token)
        if one is None:
            raise NotFound("Nothing is being made here.")
        parts = one.parts()
        try:
            first = await anext(parts, None)
        except Cancelled:
            first = None
        if first is None:
            return Response(status_code=204)
        headers = {"X-Sample-Rate": str(one.rate_hz), "Cache-Control": "no-store"}
        return SteadyResponse(_body(first, parts), "audio/pcm", headers)


async def _body(first: bytes, parts: AsyncGenerator[bytes, None]) -> AsyncGenerator[bytes, None]:
    for block in blocks(first):
        yield block
    async for part in parts:
        for block in blocks(part):
            yield block
