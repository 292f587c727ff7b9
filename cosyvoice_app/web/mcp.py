"""How the page's MCP tools reach the page: Gradio lets them call it over HTTP, as any script would."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

from cosyvoice_app.settings import Settings

if TYPE_CHECKING:
    from gradio.mcp import GradioMCPServer


def call_own_page(tools: GradioMCPServer | None, settings: Settings) -> None:
    """Let the tools call this server at its own address, and with the page's login where there is one.

    Left to itself Gradio calls the address that the first caller said it had reached, which anyone can make up, and has
    no login. Whoever gets to the tools has shown the login already (see guard.py).
    """
    if tools is None:
        return
    lock = threading.Lock()
    kept: list[Any] = []

    def client() -> Any:
        from gradio.mcp import Client  # type: ignore[attr-defined]

        with lock:
            if not kept:
                user, _, password = settings.login.partition(":")
                kept.append(
                    Client(
                        own_url(settings),
                        auth=(user, password) if settings.login else None,
                        headers={"x-gradio-user": "mcp"},
                        download_files=False,
                        verbose=False,
                        analytics_enabled=False,
                        _skip_components=False,
                    )
                )
            return kept[0]

    tools._get_or_create_client = client  # type: ignore[method-assign]


def own_url(settings: Settings) -> str:
    """Where this process reaches itself; a server that listens everywhere also listens here."""
    host = {"0.0.0.0": "127.0.0.1", "::": "::1", "": "127.0.0.1"}.get(settings.host, settings.host)
    return f"http://[{host}]:{settings.port}" if ":" in host else f"http://{host}:{settings.port}"
