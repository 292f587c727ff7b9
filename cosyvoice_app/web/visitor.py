"""Who looks at the page: their language, and the name that limits and turns know them by."""

from __future__ import annotations

import hashlib

import gradio as gr

from cosyvoice_app.web.i18n import Lang, language_of

SESSION_CHARS = 16


def language(request: gr.Request | None) -> Lang:
    headers = getattr(request, "headers", None)
    return language_of(headers.get("accept-language") if headers is not None else None)


def client_of(request: gr.Request) -> str:
    """`page:ADDRESS:SESSION`: limits count a visitor by their tab and all tabs of an address together.

    The session is hashed, since whoever knows it can stop its requests.
    """
    session = hashlib.sha256((request.session_hash or "").encode(errors="surrogatepass")).hexdigest()[:SESSION_CHARS]
    visitor = getattr(request, "client", None)
    return f"page:{getattr(visitor, 'host', None) or ''}:{session}"
