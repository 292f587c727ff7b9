"""Who may call: the server's own names, origins of web pages, API keys, and those who guess at secrets."""

from __future__ import annotations

import base64
import binascii
import hmac
import ipaddress
import math
import re
from collections.abc import Mapping
from urllib.parse import urlsplit

from cosyvoice_app.errors import ConfigError, RateLimited, Unauthorized, WrongHost
from cosyvoice_app.settings import Settings
from cosyvoice_app.web.caller import KEY_PREFIX
from cosyvoice_app.web.keys import KeyRing
from cosyvoice_app.web.limits import TokenBuckets

WRONG_PER_MINUTE = 20
"""Wrong keys or passwords from one address before it is told to wait."""
_SAFE_METHODS = ("GET", "HEAD", "OPTIONS")
_ORIGIN = re.compile(r"https?://(\[[0-9a-f:.]+\]|[a-z0-9._-]+)(:\d{1,5})?")


def allowed_origins(raw: str) -> frozenset[str]:
    """The origins of `--cors-origins`, or {"*"}. Raises ConfigError for what can't be the origin of a web page."""
    origins = [origin.strip().rstrip("/").lower() for origin in raw.split(",") if origin.strip()]
    wrong = [origin for origin in origins if origin != "*" and not _ORIGIN.fullmatch(origin)]
    if wrong or (len(origins) > 1 and "*" in origins):
        said = f"{wrong[0]!r} is no origin" if wrong else "* stands alone"
        raise ConfigError(
            f"--cors-origins: {said}. Give origins as browsers send them, separated by commas, such as "
            "https://example.org or http://localhost:3000, or * for every page.",
            param="cors_origins",
        )
    return frozenset(origins)


class Hosts:
    """Against DNS rebinding, where a web page has its own name point at this machine and so counts as ours.

    Browsers send the name the page was reached by. A server for this machine alone answers to this machine's names; one
    that others reach may have any, and what keeps them out is a key and a login.
    """

    def __init__(self, settings: Settings, *, keyed: bool) -> None:
        self._checks = is_loopback(settings.host) and not (keyed and settings.login)
        self._known = {"localhost", "127.0.0.1", "::1", settings.host.lower()}

    def check(self, headers: Mapping[str, str]) -> None:
        """Raises WrongHost."""
        host = headers.get("host")
        if not self._checks or host is None:  # browsers always send it
            return
        name = urlsplit(f"//{host}").hostname if _well_formed(host) else None
        if name is None or name.rstrip(".") not in self._known:
            raise WrongHost(
                f"This server is for its own machine and answers to localhost, but was called as {host[:100]!r}. "
                "Behind a proxy, let the proxy send `Host: localhost`, or set both --api-key or --api-keys and "
                "--login.",
                param="Host",
            )


class Origins:
    """Calls that a web page makes, wherever it came from."""

    def __init__(self, allowed: frozenset[str]) -> None:
        self.allowed = allowed

    def check(self, method: str, headers: Mapping[str, str], *, host: str, of_api: bool) -> None:
        """Raises Unauthorized when a page of another origin would change or use something.

        With a key or a login too: a browser sends cookies along, and a page that reaches a person's own machine needs
        none. `*` opens the API, never the page, which has no key of its own. `host`: what the caller reached us as.
        """
        origin = headers.get("origin", "").lower()
        if method in _SAFE_METHODS or origin in self.allowed or (of_api and "*" in self.allowed):
            return
        site = headers.get("sec-fetch-site")
        foreign = site not in ("same-origin", "none") if site else _is_foreign(origin, host)
        if foreign:
            raise Unauthorized("Calls from another site's page are refused. Let it in with --cors-origins.")


class Keys:
    """The API's keys, and patience with those who send wrong ones.

    After too many wrong ones from an address, the key of `--api-key` isn't looked at from there for a while, since a
    person may have chosen one that can be guessed. Keys of the file can't be guessed and always open: one script with
    an old key must not shut out everybody else behind the same address.
    """

    def __init__(self, settings: Settings) -> None:
        """Raises ConfigError."""
        self._ring = KeyRing(settings.api_key, settings.api_keys)
        self._wrong = TokenBuckets(WRONG_PER_MINUTE)

    @property
    def asked_for(self) -> bool:
        return bool(self._ring)

    def admit(self, authorization: str, address: str) -> str | None:
        """The client's name, if the key has one. Raises Unauthorized or RateLimited."""
        scheme, _, sent = authorization.partition(" ")
        key = sent.strip().encode("latin-1")  # the bytes as they came: ASGI decodes headers as Latin-1
        if scheme.lower() != "bearer" or not key:
            raise Unauthorized("This API asks for a key: send `Authorization: Bearer <key>`.")
        name, plain = self._ring.named(key), self._ring.is_plain(key)
        if name is not None:
            return KEY_PREFIX + name
        wait_s = self._wrong.wait_s(address)
        if wait_s:
            raise _guessing(wait_s)
        if plain:
            return None
        self._wrong.take(address)
        raise Unauthorized("This API asks for a key, and the one sent is not right.")


class Login:
    """The page's login, for what Gradio leaves open and for those who guess. Gradio itself asks for it on the page."""

    def __init__(self, settings: Settings) -> None:
        self._login = settings.login.encode()
        self._wrong = TokenBuckets(WRONG_PER_MINUTE)

    @property
    def asked_for(self) -> bool:
        return bool(self._login)

    def begin(self, address: str) -> None:
        """Before a login is tried. Raises RateLimited after too many wrong ones from the address."""
        wait_s = self._wrong.take(address)
        if wait_s:
            raise _guessing(wait_s)

    def succeeded(self, address: str) -> None:
        self._wrong.give_back(address)

    def admit_basic(self, authorization: str, address: str) -> None:
        """`Authorization: Basic`, for programs. Raises Unauthorized or RateLimited."""
        scheme, _, sent = authorization.partition(" ")
        if scheme.lower() != "basic":
            raise Unauthorized("MCP asks for the page's login here: send `Authorization: Basic` with user:password.")
        self.begin(address)
        try:
            given = base64.b64decode(sent.strip(), validate=True)
        except (binascii.Error, ValueError):
            given = b""
        if not hmac.compare_digest(given, self._login):
            raise Unauthorized("The login sent is not right.")
        self.succeeded(address)


def is_loopback(host: str) -> bool:
    if host.lower() == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _well_formed(host: str) -> bool:
    return bool(_ORIGIN.fullmatch(f"http://{host.lower()}"))


def _is_foreign(origin: str, host: str) -> bool:
    """For browsers that send no Sec-Fetch-Site. No Origin: not a page, or one of ours."""
    return bool(origin) and urlsplit(origin).netloc != host.lower()


def _guessing(wait_s: float) -> RateLimited:
    retry_s = math.ceil(wait_s)
    return RateLimited(f"Too many wrong ones from this address. Try again in {retry_s} s.", retry_after_s=retry_s)
