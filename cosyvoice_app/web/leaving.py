"""What stands around the mounted Gradio app: visitors who leave free the engine, and its faults leave as ours do.

Gradio notices that a visitor's stream of events has ended, and then no longer sends what is made; but it lets the
function run on to its next step, which for one long sentence is its end.
"""

from __future__ import annotations

import logging
import re
import sys
import traceback
from collections import Counter
from types import ModuleType
from typing import Any
from urllib.parse import parse_qs

import gradio as gr
from gradio import queueing, route_utils, routes
from gradio.utils import cancel_tasks
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from cosyvoice_app.errors import BadInput
from cosyvoice_app.web import logs
from cosyvoice_app.web.errors import bug_response, error_response

log = logging.getLogger(__name__)

_EVENTS = "/gradio_api/queue/data"
_RESULT = re.compile(r"/gradio_api/call/(?:v2/)?[^/]+/([^/]+)/?")
_CALL = re.compile(r"/gradio_api/(?:run|api|call|call/v2)/[^/]+/?|/gradio_api/queue/join/?")
_MISFITS = (KeyError, IndexError, TypeError, ValueError, route_utils.FnIndexInferError)
"""What Gradio raises on the paths above before any function runs: no such name or number, other arguments."""


class Leaving:
    def __init__(self, app: ASGIApp, page: gr.Blocks) -> None:
        self._app = app
        self._page = page
        self._open: Counter[str] = Counter()
        """session -> streams of its events that are open"""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        session = self._session(scope) if scope["type"] == "http" and scope["method"] == "GET" else None
        if session is None:
            await self._answer(scope, receive, send)
            return
        ended = False

        async def heard(message: Message) -> None:
            nonlocal ended
            await send(message)
            ended = ended or (message["type"] == "http.response.body" and not message.get("more_body", False))

        self._open[session] += 1
        try:
            await self._answer(scope, receive, heard)
        finally:
            self._open[session] -= 1
            # A visitor who has another stream open has only changed it, and still hears of what is made.
            if self._open[session] <= 0:
                del self._open[session]
                if not ended:
                    await self._leave(session)

    def _session(self, scope: Scope) -> str | None:
        """Whose events are asked for. A call that named no session has its event's id for one."""
        if scope["path"].rstrip("/") == _EVENTS:
            return next(iter(parse_qs(scope["query_string"].decode("latin-1")).get("session_hash", ())), None)
        found = _RESULT.fullmatch(scope["path"])
        if found is None:
            return None
        event = self._page._queue.event_ids_to_events.get(found[1])
        return str(event.session_hash if event is not None else found[1])

    async def _leave(self, session: str) -> None:
        queue = self._page._queue
        running = {
            f"{session}_{event.fn._id}" for event in queue.event_ids_to_events.values() if event.session_hash == session
        }
        await queue.clean_events(session_hash=session)
        await cancel_tasks(running)  # as the Cancel of Gradio's own clients does

    async def _answer(self, scope: Scope, receive: Receive, send: Send) -> None:
        begun = complete = False

        async def watched(message: Message) -> None:
            nonlocal begun, complete
            await send(message)
            begun = True
            complete = message["type"] == "http.response.body" and not message.get("more_body", False)

        try:
            await self._app(scope, receive, watched)
        except Exception as error:
            if scope["type"] != "http" or (begun and not complete):
                raise
            if not begun:
                await _answer_to(error, scope)(scope, receive, send)


def surround(app: Any, page: gr.Blocks) -> None:
    """To be called once `page` is mounted in `app`, last, and before the first request."""
    mount = app.routes[-1]
    mount.app.add_exception_handler(Exception, _on_fault)
    mount.app = Leaving(mount.app, page)
    for module in (queueing, routes, route_utils):
        module.traceback = _OneLine()  # type: ignore[attr-defined]


async def _on_fault(request: Request, error: Exception) -> Response:
    """Gradio's app sends this, and raises the error again."""
    return _answer_to(error, request.scope)


def _answer_to(error: Exception, scope: Scope) -> Response:
    _report(error)
    if isinstance(error, _MISFITS) and _CALL.fullmatch(scope["path"]):
        misfit = BadInput("There is no such function, or it takes other values; GET /gradio_api/info lists them.")
        logs.note(error=misfit.type)
        return error_response(misfit)
    return bug_response()


class _OneLine(ModuleType):
    """Stands in for the module `traceback` where Gradio prints an error together with what was to be said."""

    def __init__(self) -> None:
        super().__init__("traceback")
        self.__dict__.update({name: value for name, value in vars(traceback).items() if name != "print_exc"})

    @staticmethod
    def print_exc(*_: Any, **__: Any) -> None:
        error = sys.exc_info()[1]
        if error is not None:
            _report(error)


def _report(error: BaseException) -> None:
    """By its type alone: its message and its lines may hold a text or a file's name, which only debugging shows."""
    log.warning("the page: %s", type(error).__name__)
    log.debug("the page", exc_info=error)
