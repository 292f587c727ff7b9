"""What a proxy in front says of its callers, believed from the proxies of `--trusted-proxy` only.

From anyone else it would let a caller choose the address that limits count and logs show.
"""

from __future__ import annotations

import ipaddress
from typing import Any

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Receive, Scope, Send
from uvicorn.middleware.proxy_headers import ProxyHeadersMiddleware

from cosyvoice_app.errors import ConfigError

FORWARDED_HOST = "forwarded_host"
"""In a request's state: the host that its caller reached, by a trusted proxy's X-Forwarded-Host."""


def trusted_proxies(raw: str) -> list[str]:
    """The addresses and networks of `--trusted-proxy`. Raises ConfigError for anything else."""
    proxies = [proxy.strip() for proxy in raw.split(",") if proxy.strip()]
    for proxy in proxies:
        try:
            ipaddress.ip_network(proxy)
        except ValueError as error:
            raise ConfigError(
                f"--trusted-proxy: {proxy!r} is no address. Give the addresses or networks that your proxies call "
                "from, separated by commas, such as 127.0.0.1 or 10.0.0.0/8.",
                param="trusted_proxy",
            ) from error
    return proxies


class TrustedProxy:
    """X-Forwarded-For, -Proto and -Host of the proxies named, for the app behind."""

    def __init__(self, app: ASGIApp, proxies: list[str]) -> None:
        self.app = app
        forwarding: Any = ProxyHeadersMiddleware(app, trusted_hosts=proxies)  # type: ignore[arg-type]
        self._forwarding: ASGIApp = forwarding
        self._trusted = forwarding.trusted_hosts

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and (scope.get("client") or (None,))[0] in self._trusted:
            host = Headers(scope=scope).get("x-forwarded-host", "").rpartition(",")[2].strip()
            scope.setdefault("state", {})[FORWARDED_HOST] = host
        await self._forwarding(scope, receive, send)
