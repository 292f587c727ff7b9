"""Every error leaves as `{"error": {"type", "message", "param"}}`, whoever raised it: us, FastAPI or the router."""

from __future__ import annotations

from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from starlette.exceptions import HTTPException

from cosyvoice_app.errors import AppError
from cosyvoice_app.web.logs import note

HTTP_TYPES = {404: "not_found", 405: "method_not_allowed", 408: "too_slow", 413: "too_large"}


def error_response(error: AppError, *, challenge: str = "Bearer") -> JSONResponse:
    """`challenge`: what a 401 asks for."""
    headers = {}
    if error.http_status == 429 or error.retry_after_s is not None:
        headers["Retry-After"] = str(max(1, error.retry_after_s or 1))
    if error.http_status == 401:
        headers["WWW-Authenticate"] = challenge
    return _body(error.http_status, error.type, error.message, error.param, headers)


def _body(
    status: int, kind: str, message: str, param: str | None, headers: dict[str, str] | None = None
) -> JSONResponse:
    content = {"error": {"type": kind, "message": _sendable(message), "param": param and _sendable(param)}}
    return JSONResponse(content, status_code=status, headers=headers)


def _sendable(text: str) -> str:
    """With halves of characters, which a caller's own words may have, written out."""
    return text.encode("utf-8", "backslashreplace").decode("utf-8")


def describe_validation(errors: list[dict[str, Any]]) -> tuple[str, str | None]:
    """One sentence a field, and the first field's name. `loc` is ("body", "input") or ("body", 0) for broken JSON."""
    said = []
    for error in errors:
        name = ".".join(str(part) for part in error["loc"] if part not in ("body", "query", "path")) or "body"
        if error["type"] == "extra_forbidden":
            said.append(f"{name}: there is no such field")
        elif error["type"] == "missing":
            said.append(f"{name}: this field is required")
        elif error["type"] == "json_invalid":
            said.append("the body is not valid JSON")
        else:
            said.append(f"{name}: {error['msg'][:1].lower()}{error['msg'][1:]}")
    first = [str(part) for part in errors[0]["loc"] if isinstance(part, str) and part not in ("body", "query", "path")]
    return "; ".join(said) + ".", (first[0] if first else None)


def error_kind(error: HTTPException) -> str:
    return HTTP_TYPES.get(error.status_code, "invalid_request_error")


def http_response(error: HTTPException) -> JSONResponse:
    return _body(error.status_code, error_kind(error), str(error.detail), None, dict(error.headers or {}))


def bug_response() -> JSONResponse:
    return _body(500, AppError.type, "Something went wrong in the server; its log has the details.", None)


def install(app: FastAPI) -> None:
    @app.exception_handler(AppError)
    async def on_app_error(_: Request, error: AppError) -> JSONResponse:
        note(error=error.type)
        return error_response(error)

    @app.exception_handler(RequestValidationError)
    async def on_validation(_: Request, error: RequestValidationError) -> JSONResponse:
        message, param = describe_validation(list(error.errors()))
        note(error="invalid_request_error")
        return _body(422, "invalid_request_error", message, param)

    @app.exception_handler(HTTPException)
    async def on_http(_: Request, error: HTTPException) -> JSONResponse:
        note(error=error_kind(error))
        return http_response(error)
