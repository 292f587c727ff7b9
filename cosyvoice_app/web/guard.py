"""What stands before every route: a name and a log line for each request, and everything that refuses one.

Plain ASGI, so that streaming answers and disconnects pass through untouched.
"""

from __future__ import annotations

import logging
import re
import time
from dataclasses import dataclass, field
from typing import Any

from starlette.datastructures import Headers, MutableHeaders
from starlette.exceptions import HTTPException
from starlette.middleware.cors import CORSMiddleware
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from cosyvoice_app.errors import AppError, NotFound, TooLarge
from cosyvoice_app.serving.request import Service
from cosyvoice_app.settings import Settings
from cosyvoice_app.web import logs
from cosyvoice_app.web.access import Hosts, Keys, Login, Origins, allowed_origins
from cosyvoice_app.web.caller import peer_of, settle_request_id, shown
from cosyvoice_app.web.errors import bug_response, error_kind, error_response, http_response
from cosyvoice_app.web.limits import Rate
from cosyvoice_app.web.proxy import FORWARDED_HOST
from cosyvoice_app.web.slow_clients import Body, Upload

log = logging.getLogger(__name__)

MB = 1_000_000
API_PREFIXES = ("/v1/", "/metrics")
PAGE_UPLOAD, PAGE_MCP = "/gradio_api/upload", "/gradio_api/mcp"
UPLOAD_PATHS = ("/v1/voices", "/v1/clone", PAGE_UPLOAD)
RATED_PATHS = ("/v1/audio/speech", "/v1/clone", "/v1/voices", PAGE_UPLOAD)
LOGIN_PATH = "/login"
BASIC = 'Basic realm="page", charset="UTF-8"'
FORM_SLACK_BYTES = 1 << 20
JSON_LIMIT_BYTES = 2 << 20
CORS_PATHS = ("/v1/", "/health", "/metrics", "/openapi.json")
REQUEST_HEADERS = ("Authorization", "Content-Type", "X-Request-ID", "X-Priority", "X-Timeout-S")
ANSWER_HEADERS = (
    "X-Request-ID", "X-Seed", "X-Output-Path", "X-Duration-S", "X-Sample-Rate", "X-RTF", "X-Engine", "X-Device",
    "X-Voice-Cached", "X-Warnings", "X-Notes", "Retry-After", "Content-Disposition",
)  # fmt: skip
_QUIET_PATHS = ("/health", "/metrics")
_BODY_ERRORS = ("too_large", "too_slow")
_BODY_STATUSES = (408, 413)
_OUTCOMES = {2: "ok", 3: "ok", 4: "refused", 5: "failed"}


@dataclass(slots=True)
class _Visit:
    """One request while it is here."""

    method: str
    path: str
    peer: str
    request_id: str
    client: str
    started: float = field(default_factory=time.monotonic)
    status: int | None = None
    facts: dict[str, Any] = field(default_factory=dict)


class Guard:
    def __init__(self, app: ASGIApp, settings: Settings, service: Service, rate: Rate) -> None:
        """Raises ConfigError for keys, origins or a login that can't be used."""
        self.app = app
        self._service = service
        self._rate = rate
        self._max_upload_mb = settings.max_upload_mb
        self._keys = Keys(settings)
        self._login = Login(settings)
        self._hosts = Hosts(settings, keyed=self._keys.asked_for)
        self._origins = Origins(allowed_origins(settings.cors_origins))
        self._with_cors: ASGIApp = self._guarded
        if self._origins.allowed:
            # Never with credentials: a key is sent by the page's own code, cookies and logins by nobody's.
            self._with_cors = CORSMiddleware(
                self._guarded,
                allow_origins=sorted(self._origins.allowed),
                allow_methods=("GET", "POST", "DELETE"),
                allow_headers=REQUEST_HEADERS,
                expose_headers=ANSWER_HEADERS,
                allow_private_network=True,
            )

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        peer = peer_of(scope)
        request_id = settle_request_id(Headers(scope=scope).get("x-request-id"))
        visit = _Visit(scope["method"], scope["path"], peer, request_id, client=peer)
        scope.setdefault("state", {}).update(request_id=request_id, client=peer, visit=visit)
        logs.begin(visit.facts)

        async def send_named(message: Message) -> None:
            if message["type"] == "http.response.start":
                visit.status = message["status"]
                MutableHeaders(scope=message)["X-Request-ID"] = request_id
            await send(message)

        try:
            app = self._with_cors if scope["path"].startswith(CORS_PATHS) else self._guarded
            await app(scope, receive, send_named)
        finally:
            _say(visit)

    async def _guarded(self, scope: Scope, receive: Receive, send: Send) -> None:
        visit: _Visit = scope["state"]["visit"]
        upload = None
        try:
            self._admit(scope, visit)
            body = Body(receive, *self._limit(visit.path))
            receive = body.receive
            if visit.path.startswith(PAGE_UPLOAD) and visit.method == "POST":
                upload = Upload(body)
                receive = upload.receive
                if not await upload.take_in():
                    return
            await self.app(_without_origin(scope), receive, self._watched(visit, send))
        except AppError as error:
            visit.facts["error"] = error.type
            if error.type not in _BODY_ERRORS:  # those are counted below, wherever they come up
                self._service.refused(error.type)
            challenge = BASIC if visit.path.startswith(PAGE_MCP) else "Bearer"
            await error_response(error, challenge=challenge)(scope, receive, send)
        except HTTPException as error:  # of the body, where no route has taken it
            if visit.status is not None:
                raise
            visit.facts["error"] = error_kind(error)
            await http_response(error)(scope, receive, send)
        except Exception as error:
            if visit.status is not None:
                raise
            log.error("%s %s failed", visit.method, _shown_path(visit.path), exc_info=error)
            await bug_response()(scope, receive, send)
        finally:
            if upload is not None:
                upload.close()
            if visit.status in _BODY_STATUSES and visit.facts.get("error") in _BODY_ERRORS:
                self._service.refused(visit.facts["error"])

    def _admit(self, scope: Scope, visit: _Visit) -> None:
        """All that can be judged before the body. Raises the AppError to answer with."""
        headers, path, method = Headers(scope=scope), visit.path, visit.method
        self._hosts.check(headers)
        if path.startswith("/gradio_api/") and (_remote_file(path) or "/proxy=" in path):
            raise NotFound("This server doesn't fetch other servers' files.")
        authorization = headers.get("authorization", "")
        host = scope["state"].get(FORWARDED_HOST) or headers.get("host", "")
        self._origins.check(method, headers, host=host, of_api=path.startswith(CORS_PATHS))
        if path.startswith(API_PREFIXES):
            if self._keys.asked_for:
                visit.client = self._keys.admit(authorization, visit.peer) or visit.peer
                scope["state"]["client"] = visit.client
        elif self._login.asked_for and path.startswith(PAGE_MCP):  # Gradio's login leaves this door open
            self._login.admit_basic(authorization, visit.peer)
        elif self._login.asked_for and method == "POST" and path.rstrip("/") == LOGIN_PATH:
            self._login.begin(visit.peer)
        limit_bytes, said = self._limit(path)
        length = headers.get("content-length", "")
        if length.isdigit() and int(length) > limit_bytes:
            raise TooLarge(f"The request is {int(length) / MB:.1f} MB; {said}.", param="body")
        if method == "POST" and path.rstrip("/") in RATED_PATHS:
            self._rate.admit(visit.client)

    def _limit(self, path: str) -> tuple[int, str]:
        said = f"the largest upload is {self._max_upload_mb} MB (--max-upload-mb)"
        if path.startswith(UPLOAD_PATHS):
            return self._max_upload_mb * MB + FORM_SLACK_BYTES, said
        if path.startswith(PAGE_MCP):  # clips come inside the JSON, as base64
            return self._max_upload_mb * MB * 4 // 3 + FORM_SLACK_BYTES, said
        return JSON_LIMIT_BYTES, f"at most {JSON_LIMIT_BYTES / MB:.1f} MB is accepted here"

    def _watched(self, visit: _Visit, send: Send) -> Send:
        """Hear how the page's login went, and keep its cookie from other sites."""
        if not (self._login.asked_for and visit.method == "POST" and visit.path.rstrip("/") == LOGIN_PATH):
            return send

        async def hear(message: Message) -> None:
            if message["type"] == "http.response.start" and message["status"] < 400:
                self._login.succeeded(visit.peer)
                message["headers"] = [
                    (name, _own_site_only(value) if name.lower() == b"set-cookie" else value)
                    for name, value in message.get("headers", ())
                ]
            await send(message)

        return hear


def _say(visit: _Visit) -> None:
    """The request's line in the log. What a page loads to be shown, and what monitors ask, is for debugging."""
    status = visit.status
    outcome = _OUTCOMES.get((status or 0) // 100, "gone")
    fine = status is not None and status < 400
    quiet = visit.path in _QUIET_PATHS or (fine and not visit.path.startswith(API_PREFIXES))
    facts = {
        "request_id": visit.request_id,
        "client": shown(visit.client),
        "method": visit.method,
        "path": _shown_path(visit.path),
        "status": status,
        "seconds": round(time.monotonic() - visit.started, 3),
        "outcome": outcome,
        **visit.facts,
    }
    logs.access(logging.DEBUG if quiet else logging.INFO, "request", facts)


def _without_origin(scope: Scope) -> Scope:
    """For the app behind: Gradio lets any page whose origin it sees read its answers, cookies and all."""
    return {**scope, "headers": [(name, value) for name, value in scope["headers"] if name != b"origin"]}


def _own_site_only(cookie: bytes) -> bytes:
    """Gradio sends its login's cookie along with calls from every site, for pages shown in a frame of another."""
    return re.sub(rb"(?i)samesite=none", b"SameSite=lax", cookie)


def _shown_path(path: str) -> str:
    """Without the names of files, which the page's own paths carry behind a `=`."""
    return path.partition("=")[0][:120]


def _remote_file(path: str) -> bool:
    _, found, rest = path.partition("/file=")
    return bool(found) and rest.lower().startswith(("http:", "https:", "//"))
