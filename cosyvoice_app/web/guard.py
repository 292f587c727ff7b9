"""What stands before every route: body size, API key, other sites' pages, and files that aren't ours to serve.

Plain ASGI, so that streaming answers and disconnects pass through untouched.
"""

from __future__ import annotations

import hmac
from collections.abc import Mapping

from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from cosyvoice_app.errors import AppError, NotFound, TooLarge, Unauthorized
from cosyvoice_app.settings import Settings
from cosyvoice_app.web.errors import error_response

API_PREFIXES = ("/v1/", "/metrics")
UPLOAD_PATHS = ("/v1/voices", "/v1/clone")
FORM_SLACK_BYTES = 1 << 20
JSON_LIMIT_BYTES = 2 << 20
MB = 1_000_000


class Guard:
    def __init__(self, app: ASGIApp, settings: Settings) -> None:
        self.app = app
        self.api_key = settings.api_key
        self.upload_limit_bytes = settings.max_upload_mb * MB + FORM_SLACK_BYTES
        self.max_upload_mb = settings.max_upload_mb

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        headers = Headers(scope=scope)
        try:
            self._admit(scope, headers)
        except AppError as error:
            await error_response(error)(scope, receive, send)
            return
        if scope["path"].startswith(API_PREFIXES):
            receive = self._counted(scope["path"], receive)
        await self.app(scope, receive, send)

    def _admit(self, scope: Scope, headers: Mapping[str, str]) -> None:
        path: str = scope["path"]
        if path.startswith("/gradio_api/") and (_remote_file(path) or "/proxy=" in path):
            raise NotFound("This server doesn't fetch other servers' files.")
        if not path.startswith(API_PREFIXES):
            return
        authorized = self._key_fits(headers.get("authorization", ""))
        if not authorized:
            raise Unauthorized("This API asks for a key: send `Authorization: Bearer <key>`.")
        if (
            not self.api_key
            and scope["method"] not in ("GET", "HEAD")
            and headers.get("sec-fetch-site") == "cross-site"
        ):
            raise Unauthorized("Calls from another site's page are refused unless the API is set up with a key.")
        limit, what = self._limit(path)
        length = headers.get("content-length", "")
        if length.isdigit() and int(length) > limit:
            raise TooLarge(f"The request is {int(length) / MB:.1f} MB; {what}.", param="body")

    def _key_fits(self, authorization: str) -> bool:
        if not self.api_key:
            return True
        scheme, _, key = authorization.partition(" ")
        sent = key.strip().encode("latin-1")  # the bytes as they came: ASGI decodes headers as Latin-1
        return scheme.lower() == "bearer" and hmac.compare_digest(sent, self.api_key.encode())

    def _limit(self, path: str) -> tuple[int, str]:
        if path.startswith(UPLOAD_PATHS):
            return self.upload_limit_bytes, f"the largest upload is {self.max_upload_mb} MB (--max-upload-mb)"
        return JSON_LIMIT_BYTES, f"at most {JSON_LIMIT_BYTES / MB:.1f} MB is accepted here"

    def _counted(self, path: str, receive: Receive) -> Receive:
        """For bodies sent without (or with a false) Content-Length: stop reading at the limit.

        Raises HTTPException because FastAPI lets that one through while it reads a form.
        """
        limit, what = self._limit(path)
        seen = 0

        async def counted() -> Message:
            nonlocal seen
            message = await receive()
            if message["type"] == "http.request":
                seen += len(message.get("body", b""))
                if seen > limit:
                    raise HTTPException(413, f"The request is too large; {what}.")
            return message

        return counted


def _remote_file(path: str) -> bool:
    _, found, rest = path.partition("/file=")
    return bool(found) and rest.lower().startswith(("http:", "https:", "//"))
