"""Who asks, and what their headers say of how: request id, priority, deadline."""

from __future__ import annotations

import ipaddress
import re
import secrets
from dataclasses import dataclass
from typing import Annotated

from fastapi import Header, Request
from pydantic import WithJsonSchema
from starlette.types import Scope

from cosyvoice_app.errors import BadInput
from cosyvoice_app.serving.request import Priority

KEY_PREFIX = "key:"
"""Before the names of keys, so that none can be taken for an address."""
PAGE_PREFIX = "page:"
"""Before a tab of the page, `page:ADDRESS:SESSION`, where SESSION is of the caller's choosing. See desk.py."""
DEADLINE_MIN_S, DEADLINE_MAX_S = 0.1, 86_400.0
PRIORITIES: tuple[Priority, ...] = ("interactive", "batch")

_REQUEST_ID = re.compile(r"[A-Za-z0-9._~:@/+=,-]{1,128}")


@dataclass(frozen=True, slots=True)
class Caller:
    client: str
    request_id: str
    priority: Priority
    deadline_s: float | None


def address_of(host: str | None) -> str:
    """One name for whoever can send from `host`. Of an IPv6 address the network: its owner has all of a /64."""
    try:
        address = ipaddress.ip_address((host or "").partition("%")[0])
    except ValueError:
        return host or "unknown"
    if isinstance(address, ipaddress.IPv6Address):
        if address.ipv4_mapped is not None:
            return str(address.ipv4_mapped)
        return str(ipaddress.ip_network((address, 64), strict=False))
    return str(address)


def peer_of(scope: Scope) -> str:
    return address_of((scope.get("client") or (None,))[0])


def payer(client: str) -> str:
    """Whom limits count: a key, or an address with all its tabs, since anyone can make up as many as they like."""
    if client.startswith(PAGE_PREFIX):
        return address_of(client.removeprefix(PAGE_PREFIX).rpartition(":")[0])
    return client


def shown(client: str) -> str:
    """A client as logs show it: a key by its name, an address without its last part, a tab also by its beginning."""
    if client.startswith(KEY_PREFIX):
        return client
    if client.startswith(PAGE_PREFIX):
        return f"{PAGE_PREFIX}{shown(payer(client))}:{client.rpartition(':')[2][:4]}"
    try:
        network = ipaddress.ip_network(client)
    except ValueError:
        return client[:8] + "…" if len(client) > 8 else client
    length = 24 if network.version == 4 else 48
    return client if network.is_loopback else str(network.supernet(new_prefix=length))


def settle_request_id(raw: str | None) -> str:
    """The caller's own where it can go into a header and a log line as it is, else a new one."""
    return raw if raw and _REQUEST_ID.fullmatch(raw) else secrets.token_hex(12)


def caller_of(
    request: Request,
    x_priority: Annotated[
        str | None,
        WithJsonSchema({"type": "string", "enum": list(PRIORITIES)}),
        Header(description="interactive (when not given), or batch: runs when no interactive request waits."),
    ] = None,
    x_timeout_s: Annotated[
        str | None,
        WithJsonSchema({"type": "number", "minimum": DEADLINE_MIN_S, "maximum": DEADLINE_MAX_S}),
        Header(description="Give up with 504 unless the result is there in so many seconds."),
    ] = None,
) -> Caller:
    """For a route's parameters. Raises BadInput naming the header. What the guard found out is in the request's state.
    """
    return Caller(
        client=request.state.client,
        request_id=request.state.request_id,
        priority=_priority(x_priority),
        deadline_s=_deadline_s(x_timeout_s),
    )


def _priority(raw: str | None) -> Priority:
    if raw is None:
        return "interactive"
    for choice in PRIORITIES:
        if raw.strip().lower() == choice:
            return choice
    raise BadInput(f"X-Priority is {raw[:40]!r}; allowed: {', '.join(PRIORITIES)}.", param="X-Priority")


def _deadline_s(raw: str | None) -> float | None:
    if raw is None:
        return None
    try:
        seconds = float(raw)
    except ValueError:
        seconds = 0.0
    if not DEADLINE_MIN_S <= seconds <= DEADLINE_MAX_S:
        raise BadInput(
            f"X-Timeout-S is {raw[:40]!r}; it must be a number of seconds from {DEADLINE_MIN_S:g} to "
            f"{DEADLINE_MAX_S:g}.",
            param="X-Timeout-S",
        )
    return seconds
