"""Finished or arriving audio as HTTP answers: one whole file, a streamed body, or server-sent events."""

from __future__ import annotations

import base64
import json
from collections.abc import AsyncIterator, Sequence
from typing import Any

from fastapi import Request, Response
from fastapi.concurrency import run_in_threadpool
from fastapi.responses import StreamingResponse

from cosyvoice_app.audio.encode import CONTENT_TYPES, encode
from cosyvoice_app.errors import EngineFailure
from cosyvoice_app.serving.request import Chunk, Done, Event, Failed, Queued, SynthesisResult, Ticket, Working
from cosyvoice_app.web.follow import cancelled_when_gone, finish, follow
from cosyvoice_app.web.stream_encoder import StreamEncoder

HEADER_LIMIT = 4000  # some clients refuse a header line over 8190 bytes


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
    return Response(body, media_type=CONTENT_TYPES[fmt], headers=headers)


async def streamed(ticket: Ticket, request: Request, seed: int, fmt: str, *, sse: bool) -> Response:
    """Audio as its segments finish. Fails with a proper status as long as nothing has been sent.

    After that a failure breaks the body off (or, for sse, is an `error` event): a client can't take it for a whole.
    """
    events = follow(ticket)
    async with cancelled_when_gone(request, ticket):  # from then on the response itself notices
        first = await _first_audible(events)
    headers = {"X-Seed": str(seed), "Cache-Control": "no-store"}
    if sse:
        return StreamingResponse(_sse(first, events, fmt), media_type="text/event-stream", headers=headers)
    headers["X-Sample-Rate"] = str(_rate(first))
    return StreamingResponse(_body(first, events, fmt), media_type=CONTENT_TYPES[fmt], headers=headers)


async def _first_audible(events: AsyncIterator[Event]) -> Chunk | Done:
    async for event in events:
        if isinstance(event, Failed):
            raise event.error
        if isinstance(event, (Chunk, Done)):
            return event
    raise EngineFailure("The request ended without audio.")


def _rate(event: Chunk | Done) -> int:
    return event.audio.rate_hz if isinstance(event, Chunk) else event.result.audio.rate_hz


async def _pieces(first: Chunk | Done, events: AsyncIterator[Event], fmt: str) -> AsyncIterator[bytes | Event]:
    """Encoded bytes, in order, between the events that carry no audio; Done comes last, after the encoder's tail."""
    encoder = StreamEncoder(fmt, _rate(first))
    heard = False
    event: Event | None = first
    while event is not None:
        if isinstance(event, Chunk):
            heard = True
            yield await run_in_threadpool(encoder.feed, event.audio)
        elif isinstance(event, Done):
            if not heard:
                yield await run_in_threadpool(encoder.feed, event.result.audio)
            yield await run_in_threadpool(encoder.finish)
            yield event
        else:
            yield event
        event = await anext(events, None)


async def _body(first: Chunk | Done, events: AsyncIterator[Event], fmt: str) -> AsyncIterator[bytes]:
    async for piece in _pieces(first, events, fmt):
        if isinstance(piece, Failed):
            raise piece.error
        if isinstance(piece, bytes) and piece:
            yield piece


async def _sse(first: Chunk | Done, events: AsyncIterator[Event], fmt: str) -> AsyncIterator[bytes]:
    async for piece in _pieces(first, events, fmt):
        if isinstance(piece, bytes):
            if piece:
                yield _sse_event({"type": "speech.audio.delta", "audio": base64.b64encode(piece).decode()})
        elif isinstance(piece, Done):
            yield _sse_event({"type": "speech.audio.done", "output": report(piece.result)})
        elif isinstance(piece, Failed):
            data = piece.error.to_dict()
            yield _sse_event({"type": "error", "error": {key: data[key] for key in ("type", "message", "param")}})
        elif isinstance(piece, (Queued, Working)):
            yield b": working\n\n"  # a comment: keeps proxies from timing out, and clients skip it


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
