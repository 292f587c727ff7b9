"""Finished or arriving audio as HTTP answers: one whole file, a streamed body, or server-sent events.

Every body leaves in blocks as the client takes them, so that one that reads slowly holds no more than its own result;
one that stops reading is dropped (`slow_clients.py`), which cancels its request.
"""

from __future__ import annotations

import base64
import json
import logging
from collections.abc import AsyncGenerator, AsyncIterator, Iterator, Sequence
from contextlib import aclosing
from typing import Any

from fastapi import Request, Response
from fastapi.concurrency import run_in_threadpool
from fastapi.responses import StreamingResponse
from starlette.types import Send

from cosyvoice_app.audio.encode import CONTENT_TYPES, encode
from cosyvoice_app.errors import AppError, EngineFailure
from cosyvoice_app.serving.request import Chunk, Done, Event, Failed, Queued, SynthesisResult, Ticket, Working
from cosyvoice_app.web.follow import cancelled_when_gone, finish, follow
from cosyvoice_app.web.stream_encoder import StreamEncoder, slices

log = logging.getLogger(__name__)

HEADER_LIMIT = 4000  # some clients refuse a header line over 8190 bytes
BLOCK_BYTES = 32 * 1024
"""Most that is sent at once. As base64 it still fits the 64 KiB that some clients allow a line of an event."""

Pieces = AsyncGenerator[bytes | Event, None]


class SteadyResponse(StreamingResponse):
    """Sends what `body` yields. Breaks the answer off, so that no client can take it for a whole, when `body` raises an
    AppError; closes `body` however it ends."""

    def __init__(self, body: AsyncGenerator[bytes, None], media_type: str, headers: dict[str, str]) -> None:
        super().__init__(body, media_type=media_type, headers=headers)
        self._body = body

    async def stream_response(self, send: Send) -> None:
        async with aclosing(self._body):
            try:
                await super().stream_response(send)
            except AppError as error:  # returning before the end makes the server close the connection
                log.warning("an answer was broken off: %s", error.message)


async def whole(ticket: Ticket, request: Request, fmt: str) -> Response:
    """The finished file. For wav, the very bytes saved in `outputs/`."""
    result = await finish(ticket, request)
    if fmt == "wav" and result.path is not None:
        body = await run_in_threadpool(result.path.read_bytes)
    else:
        body = await run_in_threadpool(encode, result.audio, fmt)
    headers = result_headers(result)
    stem = result.path.stem if result.path is not None else "speech"
    headers["Content-Disposition"] = f'inline; filename="{stem}.{fmt}"'
    headers["Content-Length"] = str(len(body))
    return SteadyResponse(_in_blocks(body), CONTENT_TYPES[fmt], headers)


async def streamed(ticket: Ticket, request: Request, seed: int, fmt: str, *, sse: bool) -> Response:
    """Audio as it is made. Fails with a proper status as long as nothing has been sent.

    After that a failure breaks the body off (or, for sse, is an `error` event): a client can't take it for a whole.
    HTTP/1.0 has no way to say so, a body without a length just ends; there the answer is a whole file with its length.
    """
    if request.scope["http_version"] == "1.0" and not sse:
        return await whole(ticket, request, fmt)
    events = follow(ticket)
    async with cancelled_when_gone(request, ticket):  # from then on the response itself notices
        first = await _first_audible(events)
    headers = {"X-Seed": str(seed), "Cache-Control": "no-store"}
    if sse:
        return SteadyResponse(_sse(first, events, fmt), "text/event-stream", headers)
    headers["X-Sample-Rate"] = str(_rate(first))
    return SteadyResponse(_body(first, events, fmt), CONTENT_TYPES[fmt], headers)


async def _first_audible(events: AsyncIterator[Event]) -> Chunk | Done:
    async for event in events:
        if isinstance(event, Failed):
            raise event.error
        if isinstance(event, (Chunk, Done)):
            return event
    raise EngineFailure("The request ended without audio.")


def _rate(event: Chunk | Done) -> int:
    return event.audio.rate_hz if isinstance(event, Chunk) else event.result.audio.rate_hz


async def _pieces(first: Chunk | Done, events: AsyncGenerator[Event, None], fmt: str) -> Pieces:
    """Encoded bytes, in order, between the events that carry no audio; Done comes last, after the encoder's tail."""
    encoder = StreamEncoder(fmt, _rate(first))
    heard = False
    event: Event | None = first
    async with aclosing(events):
        while event is not None:
            if isinstance(event, Chunk) or (isinstance(event, Done) and not heard):
                heard = True
                for audio in slices(event.audio if isinstance(event, Chunk) else event.result.audio):
                    for block in blocks(await run_in_threadpool(encoder.feed, audio)):
                        yield block
            if isinstance(event, Done):
                for block in blocks(await run_in_threadpool(encoder.finish)):
                    yield block
            if not isinstance(event, Chunk):
                yield event
            event = await anext(events, None)


def blocks(data: bytes) -> Iterator[bytes]:
    for start in range(0, len(data), BLOCK_BYTES):
        yield data[start : start + BLOCK_BYTES]


async def _in_blocks(data: bytes) -> AsyncGenerator[bytes, None]:
    for block in blocks(data):
        yield block


async def _body(first: Chunk | Done, events: AsyncGenerator[Event, None], fmt: str) -> AsyncGenerator[bytes, None]:
    async with aclosing(_pieces(first, events, fmt)) as pieces:
        async for piece in pieces:
            if isinstance(piece, Failed):
                raise piece.error
            if isinstance(piece, bytes):
                yield piece


async def _sse(first: Chunk | Done, events: AsyncGenerator[Event, None], fmt: str) -> AsyncGenerator[bytes, None]:
    async with aclosing(_pieces(first, events, fmt)) as pieces:
        async for piece in pieces:
            if isinstance(piece, bytes):
                yield _sse_event({"type": "speech.audio.delta", "audio": base64.b64encode(piece).decode()})
            elif isinstance(piece, Done):
                yield _sse_event({"type": "speech.audio.done", "usage": _NO_TOKENS, "output": report(piece.result)})
            elif isinstance(piece, Failed):
                data = piece.error.to_dict()
                yield _sse_event({"type": "error", "error": {key: data[key] for key in ("type", "message", "param")}})
            elif isinstance(piece, (Queued, Working)):
                yield b": working\n\n"  # a comment: keeps proxies from timing out, and clients skip it


_NO_TOKENS = {"input_tokens": 0, "output_tokens": 0, "total_tokens": 0}
"""OpenAI's event has a `usage`, and its clients may insist on it; nothing is counted here."""


def _sse_event(data: dict[str, Any]) -> bytes:
    return f"data: {json.dumps(data, ensure_ascii=False)}\n\n".encode()


def report(result: SynthesisResult) -> dict[str, Any]:
    """What was done, JSON-ready, without any directory of this machine."""
    return {
        "file": result.path.name if result.path is not None else None,
        "seed": result.seed,
        "duration_s": round(result.audio.duration_s, 3),
        "rate_hz": result.audio.rate_hz,
        "segments": list(result.segments),
        "warnings": list(result.warnings),
        "notes": list(result.notes),
        "engine": result.engine,
        "device": result.device,
        "precision": result.precision,
        "model_hash": result.model_hash,
        "voice_cached": result.voice_cached,
        "timings": {name: round(value, 4) for name, value in result.timings.items()},
        "prompt": result.prompt,
    }


def result_headers(result: SynthesisResult) -> dict[str, str]:
    """`X-*` headers; lists are JSON with everything beyond ASCII escaped, since headers are Latin-1."""
    headers = {
        "X-Seed": str(result.seed),
        "X-Duration-S": f"{result.audio.duration_s:.3f}",
        "X-Sample-Rate": str(result.audio.rate_hz),
        "X-Engine": result.engine,
        "X-Device": result.device,
        "X-Voice-Cached": str(result.voice_cached).lower(),
        "X-Warnings": _json_header(result.warnings),
        "X-Notes": _json_header(result.notes),
        "Cache-Control": "no-store",
    }
    if result.path is not None:
        headers["X-Output-Path"] = result.path.name
    if "rtf" in result.timings:
        headers["X-RTF"] = f"{result.timings['rtf']:.3f}"
    return headers


def _json_header(items: Sequence[str]) -> str:
    kept = list(items)
    while True:
        left_out = len(items) - len(kept)
        text = json.dumps(kept + ([f"and {left_out} more"] if left_out else []))
        if len(text) <= HEADER_LIMIT or not kept:
            return text
        kept.pop()
