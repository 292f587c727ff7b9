"""The machine-readable description, made complete: answers of every route, their headers, errors, and the key."""

from __future__ import annotations

from typing import Any

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi

from cosyvoice_app.audio.encode import CONTENT_TYPES
from cosyvoice_app.web.guard import API_PREFIXES
from cosyvoice_app.web.schemas import ErrorBody

Responses = dict[int | str, dict[str, Any]]

_MEANING = {
    400: "A value can't be used; `param` names it.",
    401: "The API key is missing or wrong, or the call comes from another site's page.",
    404: "There is no such thing.",
    408: "The request's body came too slowly.",
    413: "The request is too large.",
    421: "The request was meant for a host that isn't this server.",
    422: "A field is missing, unknown or of the wrong kind.",
    429: "The queue is full, or this client asks too much; `Retry-After` says when to come back.",
    500: "The engine failed, or made no usable audio.",
    503: "There is no engine that could do it.",
    504: "It took longer than allowed.",
}
_EVERYWHERE = (401, 408, 413, 421, 429, 500)
_URL_ENCODED = "application/x-www-form-urlencoded"
_TEXT = {"type": "string"}
_SPEECH_HEADERS = {
    "X-Seed": ("The seed that gives this audio again.", {"type": "integer"}),
    "X-Sample-Rate": ("In Hz, of what the engine made.", {"type": "integer"}),
    "X-Duration-S": ("Of a whole file.", {"type": "number"}),
    "X-Output-Path": ("The saved file's name, of a whole file.", _TEXT),
    "X-RTF": ("Time taken by time spoken, of a whole file.", {"type": "number"}),
    "X-Engine": ("Of a whole file.", _TEXT),
    "X-Device": ("Of a whole file.", _TEXT),
    "X-Voice-Cached": ("Whether the voice was known already, of a whole file.", {"enum": ["true", "false"]}),
    "X-Warnings": ("JSON list in ASCII, of a whole file.", _TEXT),
    "X-Notes": ("JSON list in ASCII, of a whole file.", _TEXT),
}
_REQUEST_ID = {
    "name": "X-Request-ID",
    "in": "header",
    "required": False,
    "description": "A name for the request, which the answer and the server's log repeat. Others than letters, digits "
    "and ._~:@/+=,- or longer than 128 are replaced.",
    "schema": {"type": "string"},
}


def errors(*statuses: int) -> Responses:
    """For a route's `responses`: these, and those that any route can answer with."""
    return {status: {"model": ErrorBody, "description": _MEANING[status]} for status in (*_EVERYWHERE, *statuses)}


def audio(*, events: bool) -> Responses:
    """For a route that answers with audio, in any of the formats."""
    content: dict[str, Any] = {kind: {"schema": {"type": "string", "format": "binary"}}
                               for kind in CONTENT_TYPES.values()}
    if events:
        content["text/event-stream"] = {"schema": {"type": "string"}}
    headers = {name: {"description": said, "schema": schema} for name, (said, schema) in _SPEECH_HEADERS.items()}
    return {200: {"description": "The audio.", "content": content, "headers": headers}}


METRICS: Responses = {
    200: {"description": "Prometheus text.", "content": {"text/plain": {"schema": {"type": "string"}}}}
}


def complete(app: FastAPI) -> None:
    """Let /openapi.json say what the guard adds to every route."""

    def described() -> dict[str, Any]:
        if app.openapi_schema is None:
            app.openapi_schema = _describe(app)
        return app.openapi_schema

    app.openapi = described  # type: ignore[method-assign]


def _describe(app: FastAPI) -> dict[str, Any]:
    schema = get_openapi(title=app.title, version=app.version, description=app.description, routes=app.routes)
    schema.setdefault("components", {})["securitySchemes"] = {
        "key": {"type": "http", "scheme": "bearer", "description": "Where the server was set up with keys."}
    }
    for path, operations in schema["paths"].items():
        for operation in operations.values():
            if path.startswith(API_PREFIXES):
                operation["security"] = [{"key": []}, {}]
            operation.setdefault("parameters", []).append(_REQUEST_ID)
            content = operation.get("requestBody", {}).get("content", {})
            if _URL_ENCODED in content:  # FastAPI's guess for any form; ours hold files
                content["multipart/form-data"] = content.pop(_URL_ENCODED)
            for status, response in operation["responses"].items():
                headers = response.setdefault("headers", {})
                headers["X-Request-ID"] = {"description": "The request's name.", "schema": _TEXT}
                if status == "429":
                    headers["Retry-After"] = {"description": "In seconds.", "schema": {"type": "integer"}}
    return schema
