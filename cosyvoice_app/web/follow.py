"""A ticket's blocking events, followed from asyncio. Whoever stops following, for any reason, cancels the ticket."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from fastapi import Request

from cosyvoice_app.errors import AppError, Cancelled, EngineFailure
from cosyvoice_app.serving.request import Done, Event, Failed, SynthesisResult, Ticket
from cosyvoice_app.web import logs
from cosyvoice_app.web.caller import shown

log = logging.getLogger(__name__)


async def follow(ticket: Ticket) -> AsyncGenerator[Event, None]:
    """Yields until Done or Failed. A thread per running request does the waiting and ends with the ticket."""
    loop = asyncio.get_running_loop()
    inbox: asyncio.Queue[Event | None] = asyncio.Queue()

    def hand_over(event: Event | None) -> bool:
        try:
            loop.call_soon_threadsafe(inbox.put_nowait, event)
        except RuntimeError:  # the loop is closed: the server is going down
            return False
        return True

    def wait() -> None:
        try:
            for event in ticket.events():
                if not hand_over(event):
                    ticket.cancel()
                    return
        except AppError as error:
            hand_over(Failed(error))
        except Exception:
            log.exception("request %s: its events broke off", ticket.id)
            hand_over(Failed(EngineFailure("The request was lost in the server; its log has the details.")))
        hand_over(None)

    threading.Thread(target=wait, name=f"follow-{ticket.id}", daemon=True).start()
    try:
        while True:
            event = await inbox.get()
            if event is None:
                return
            if isinstance(event, Done | Failed):
                _log_end(ticket, event)
            yield event
    finally:
        ticket.cancel()


def _log_end(ticket: Ticket, event: Done | Failed) -> None:
    """Into the line of the HTTP request or, for the page, whose requests are many for one result, a line of its own."""
    facts: dict[str, Any] = {}
    if isinstance(event, Done):
        facts["queue_s"] = round(event.result.timings.get("queue_s", 0.0), 3)
        facts["audio_s"] = round(event.result.audio.duration_s, 3)
    else:
        facts["error"] = event.error.type
    asked = ticket.request
    if asked.source != "page":
        logs.note(**facts)
        return
    outcome = "ok" if isinstance(event, Done) else "gone" if isinstance(event.error, Cancelled) else "failed"
    logs.access(logging.INFO, "page request", {
        "request_id": asked.request_id or ticket.id, "client": shown(asked.client), "outcome": outcome,
        "seed": asked.seed, **logs.described(asked.text), **facts,
    })  # fmt: skip


async def finish(ticket: Ticket, request: Request) -> SynthesisResult:
    """The result, or the request's own error. A client that goes away cancels the ticket at once."""
    async with cancelled_when_gone(request, ticket):
        async for event in follow(ticket):
            if isinstance(event, Done):
                return event.result
            if isinstance(event, Failed):
                raise event.error
    raise EngineFailure("The request ended without a result.")


@asynccontextmanager
async def cancelled_when_gone(request: Request, ticket: Ticket) -> AsyncIterator[None]:
    """While inside, a client that hangs up cancels the ticket. For use once the body has been read."""

    async def watch() -> None:
        while (await request.receive())["type"] != "http.disconnect":
            continue
        ticket.cancel()

    watching = asyncio.create_task(watch())
    try:
        yield
    finally:
        watching.cancel()
