"""A ticket's blocking events, followed from asyncio. Whoever stops following, for any reason, cancels the ticket."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager

from fastapi import Request

from cosyvoice_app.errors import AppError, EngineFailure
from cosyvoice_app.serving.request import Done, Event, Failed, SynthesisResult, Ticket

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
            yield event
    finally:
        ticket.cancel()


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
