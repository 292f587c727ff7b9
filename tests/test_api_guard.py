"""What stands before every route: names, hosts, origins, keys, logins, sizes, rates, and the log line of each request.

The guard stands before a small app here; tests/test_api_access.py meets it on a live server.
"""

from __future__ import annotations

import asyncio
import base64
import json
import logging
import shlex
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import pytest
from fastapi import FastAPI, Request, Response

from cosyvoice_app.errors import ConfigError
from cosyvoice_app.settings import Settings
from cosyvoice_app.web import errors, logs
from cosyvoice_app.web.access import WRONG_PER_MINUTE, Hosts, allowed_origins, is_loopback
from cosyvoice_app.web.caller import Caller, address_of, caller_of, settle_request_id, shown
from cosyvoice_app.web.guard import Guard
from cosyvoice_app.web.keys import add_key
from cosyvoice_app.web.limits import Rate
from cosyvoice_app.web.proxy import TrustedProxy, trusted_proxies

PEER = ("192.0.2.7", 5000)
ERROR = {"type", "message", "param"}


class Refusals:
    """All of the service that the guard needs."""

    def __init__(self) -> None:
        self.reasons: list[str] = []

    def refused(self, reason: str) -> None:
        self.reasons.append(reason)


def small_app() -> FastAPI:
    app = FastAPI()
    errors.install(app)

    @app.get("/v1/me")
    def me(request: Request) -> dict[str, str]:
        return {"client": request.state.client}

    @app.get("/v1/by")
    def by(request: Request) -> dict[str, Any]:
        found: Caller = caller_of(request, request.headers.get("x-priority"), request.headers.get("x-timeout-s"))
        return {"priority": found.priority, "deadline_s": found.deadline_s, "request_id": found.request_id}

    @app.get("/v1/bug")
    def bug() -> None:
        raise ZeroDivisionError("a secret of the server")

    @app.post("/{path:path}")
    async def take(path: str, request: Request) -> Response:
        if path.strip("/") == "login":
            answer = Response(status_code=200 if await request.body() == b"right" else 400)
            answer.set_cookie("access-token", "x", httponly=True, samesite="none", secure=True)  # as Gradio does
            answer.set_cookie("access-token-unsecure", "x", httponly=True)
            return answer
        return Response(str(len(await request.body())))

    @app.get("/{path:path}heard")
    def heard(request: Request) -> dict[str, str]:
        return dict(request.headers)

    @app.get("/{path:path}")
    def give(path: str) -> Response:
        return Response("page")

    return app


class Calls:
    """Calls to a guarded app from any address."""

    def __init__(self, settings: Settings) -> None:
        self.service = Refusals()
        guard = Guard(small_app(), settings, self.service, Rate(settings))  # type: ignore[arg-type]
        proxies = trusted_proxies(settings.trusted_proxy)
        self.app = TrustedProxy(guard, proxies) if proxies else guard

    def __call__(self, method: str, path: str, *, peer: str = PEER[0], host: str = "localhost:7860",
                 **more: Any) -> httpx.Response:
        async def call() -> httpx.Response:
            transport = httpx.ASGITransport(self.app, raise_app_exceptions=False, client=(peer, 5000))
            async with httpx.AsyncClient(transport=transport, base_url=f"http://{host}") as client:
                return await client.request(method, path, **more)

        return asyncio.run(call())


def said(answer: httpx.Response) -> dict[str, Any]:
    body = answer.json()
    assert set(body) == {"error"} and set(body["error"]) == ERROR
    return body["error"]  # type: ignore[no-any-return]


# names


@pytest.mark.parametrize("sent", ["a", "x" * 128, "0af7651916cd43dd-8448eb211c80319c", "job/7:3@host.example"])
def test_a_request_keeps_its_name(sent: str) -> None:
    assert Calls(Settings())("GET", "/v1/me", headers={"X-Request-ID": sent}).headers["x-request-id"] == sent


@pytest.mark.parametrize("sent", ["", "x" * 129, "two words", "käse", 'a"b', "a\tb", "<b>"])
def test_a_name_that_could_do_harm_is_replaced(sent: str) -> None:
    first, second = settle_request_id(sent), settle_request_id(sent)
    assert first != second and first.isalnum() and len(first) == 24
    raw = [(b"x-request-id", sent.encode())]
    assert Calls(Settings())("GET", "/v1/me", headers=raw).headers["x-request-id"] != sent


def test_every_answer_has_a_name_even_that_to_a_bug() -> None:
    calls = Calls(Settings(api_key="k"))
    right = {"Authorization": "Bearer k"}
    for method, path, headers, status in (
        ("GET", "/", {}, 200),
        ("GET", "/v1/me", {}, 401),
        ("GET", "/v1/me", right, 200),
        ("GET", "/v1/bug", right, 500),
        ("PUT", "/v1/me", right, 405),
    ):
        answer = calls(method, path, headers=headers)
        assert answer.status_code == status and len(answer.headers["x-request-id"]) == 24
    assert "secret" not in calls("GET", "/v1/bug", headers=right).text


def test_addresses_are_named_as_their_owners_hold_them() -> None:
    assert address_of("192.0.2.7") == address_of("::ffff:192.0.2.7") == "192.0.2.7"
    assert address_of("2001:db8:1:2:3::4") == address_of("2001:db8:1:2:ffff::1") != address_of("2001:db8:1:3::4")
    assert address_of(None) == "unknown" and address_of("/run/socket") == "/run/socket"
    assert shown("192.0.2.7") == "192.0.2.0/24" and shown("127.0.0.1") == "127.0.0.1"
    assert shown(address_of("2001:db8:1:2::4")) == "2001:db8:1::/48"
    assert shown("key:ann") == "key:ann" and shown("0123456789abcdef") == "01234567…"


def test_priority_and_deadline() -> None:
    calls = Calls(Settings())
    plain = calls("GET", "/v1/by").json()
    assert plain["priority"] == "interactive" and plain["deadline_s"] is None
    full = calls("GET", "/v1/by", headers={"X-Priority": "batch", "X-Timeout-S": "2.5", "X-Request-ID": "me"}).json()
    assert full == {"priority": "batch", "deadline_s": 2.5, "request_id": "me"}
    for name, wrong in (("X-Priority", "high"), ("X-Priority", ""), ("X-Timeout-S", "0.05"), ("X-Timeout-S", "nan"),
                        ("X-Timeout-S", "inf"), ("X-Timeout-S", "86401"), ("X-Timeout-S", "soon")):  # fmt: skip
        answer = calls("GET", "/v1/by", headers={name: wrong})
        assert answer.status_code == 400 and said(answer)["param"] == name


# hosts and origins


@pytest.mark.parametrize("host", ["localhost", "localhost:9", "LOCALHOST:7860", "127.0.0.1:1", "[::1]:7860",
                                  "localhost."])
def test_this_machines_names_are_answered(host: str) -> None:
    assert Calls(Settings())("GET", "/v1/me", headers={"Host": host}).status_code == 200


@pytest.mark.parametrize("host", ["evil.example", "localhost.evil.example", "127.0.0.1.evil.example:7860", "", "a b",
                                  "evil.example@localhost", "192.0.2.1", "[::2]", "localhost/x", "[", "localhost:x"])
@pytest.mark.parametrize("path", ["/v1/me", "/", "/health"])
def test_other_names_are_not(host: str, path: str) -> None:
    calls = Calls(Settings())
    answer = calls("GET", path, headers={"Host": host})
    assert answer.status_code == 421 and said(answer)["type"] == "wrong_host"
    assert calls.service.reasons == ["wrong_host"]


def test_a_server_for_others_or_with_key_and_login_has_any_name() -> None:
    evil = {"Host": "voice.example"}
    assert Calls(Settings(host="0.0.0.0"))("GET", "/v1/me", headers=evil).status_code == 200
    assert Calls(Settings(api_key="k", login="a:b"))("GET", "/", headers=evil).status_code == 200
    assert Calls(Settings(api_key="k"))("GET", "/", headers=evil).status_code == 421
    assert Calls(Settings(host="127.5.5.5"))("GET", "/", headers={"Host": "127.5.5.5:1"}).status_code == 200
    assert [is_loopback(h) for h in ("127.0.0.2", "::1", "LocalHost", "0.0.0.0", "::", "192.0.2.1", "name")] == [
        True, True, True, False, False, False, False]
    Hosts(Settings(), keyed=False).check({})  # programs of old send no Host; browsers always do


FOREIGN = [
    {"Sec-Fetch-Site": "cross-site"}, {"Sec-Fetch-Site": "same-site"}, {"Origin": "https://evil.example"},
    {"Origin": "null"}, {"Origin": "http://localhost:3000"}, {"Origin": "https://evil.example", "Sec-Fetch-Site": ""},
    {"Origin": "http://localhost:7860", "Sec-Fetch-Site": "same-site"},
    {"Origin": "https://evil.example", "X-Forwarded-Host": "evil.example"},
]  # fmt: skip
PATHS = ["/v1/x", "/", "/login", "/gradio_api/run/random_seed", "/gradio_api/upload", "/gradio_api/queue/join",
         "/gradio_api/mcp/"]  # fmt: skip


@pytest.mark.parametrize("headers", FOREIGN)
@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("more", [{}, {"host": "0.0.0.0"}, {"api_key": "k", "login": "ann:pass"}],
                         ids=["alone", "for others", "with key and login"])
def test_another_sites_page_may_look_but_not_touch(headers: dict[str, str], path: str, more: dict[str, str]) -> None:
    calls = Calls(Settings(**more))
    scheme, secret = ("Basic", base64.b64encode(b"ann:pass").decode()) if "mcp" in path else ("Bearer", "k")
    headers = {**headers, "Authorization": f"{scheme} {secret}"}
    answer = calls("POST", path, headers=headers)
    assert answer.status_code == 401 and said(answer)["type"] == "unauthorized"
    assert calls("GET", path.replace("/v1/x", "/v1/me"), headers=headers).status_code == 200


@pytest.mark.parametrize("headers", [{}, {"Sec-Fetch-Site": "none"}, {"Sec-Fetch-Site": "same-origin"},
                                     {"Origin": "http://localhost:7860"},
                                     {"Origin": "https://voice.example", "Sec-Fetch-Site": "same-origin"}])
@pytest.mark.parametrize("path", PATHS)
def test_programs_and_our_own_page_may(headers: dict[str, str], path: str) -> None:
    assert Calls(Settings())("POST", path, headers=headers, content=b"right").status_code == 200


def test_the_app_behind_never_learns_a_pages_origin() -> None:
    """Gradio's own middleware would let it read the answer."""
    calls = Calls(Settings(host="0.0.0.0", cors_origins="https://a.example"))
    for origin in ("https://a.example", "https://evil.example"):
        for path in ("/v1/heard", "/heard", "/gradio_api/heard"):
            assert "origin" not in calls("GET", path, headers={"Origin": origin}).json()
    asked = calls("OPTIONS", "/gradio_api/heard", headers={"Origin": "https://evil.example",
                                                           "Access-Control-Request-Method": "POST"})
    assert not [name for name in asked.headers if name.startswith("access-control")]


def test_every_origin_may_mean_the_api_but_never_the_page() -> None:
    foreign = {"Origin": "https://any.example", "Sec-Fetch-Site": "cross-site"}
    for origins, at_page in (("*", 401), ("https://any.example", 200)):
        calls = Calls(Settings(cors_origins=origins))
        assert calls("POST", "/v1/x", headers=foreign).status_code == 200
        assert calls("POST", "/gradio_api/run/restart", headers=foreign).status_code == at_page


@pytest.mark.parametrize("proxies", ["", "192.0.2.7", "198.51.100.0/24, 192.0.2.0/24", "198.51.100.1"])
def test_only_proxies_that_are_named_are_believed(proxies: str) -> None:
    trusted = "192.0.2" in proxies
    calls = Calls(Settings(host="0.0.0.0", trusted_proxy=proxies))
    told = {"X-Forwarded-For": "10.9.9.9, 203.0.113.5", "X-Forwarded-Proto": "https"}
    assert calls("GET", "/v1/me", headers=told).json() == {"client": "203.0.113.5" if trusted else PEER[0]}
    page = {"Origin": "https://voice.example", "X-Forwarded-Host": "voice.example"}
    assert calls("POST", "/gradio_api/run/x", headers=page).status_code == (200 if trusted else 401)
    assert calls("POST", "/gradio_api/run/x", headers={**page, "Origin": "https://evil.example"}).status_code == 401


@pytest.mark.parametrize("raw", ["*", "localhost", "10.0.0.1/8", "127.0.0.1;10.0.0.1", "proxy.example"])
def test_a_proxy_has_an_address(raw: str) -> None:
    with pytest.raises(ConfigError) as error:
        trusted_proxies(raw)
    assert error.value.param == "trusted_proxy" and "127.0.0.1" in error.value.message


def test_the_logins_cookie_stays_with_our_own_pages() -> None:
    cookies = Calls(Settings(login="ann:pass"))("POST", "/login", content=b"right").headers.get_list("set-cookie")
    assert len(cookies) == 2 and all("samesite=none" not in cookie.lower() for cookie in cookies)
    assert cookies[0].startswith("access-token=x") and "SameSite=lax" in cookies[0] and "Secure" in cookies[0]


def test_an_allowed_origin_gets_through_and_reads_the_headers() -> None:
    calls = Calls(Settings(cors_origins="https://a.example, http://localhost:3000/"))
    for origin in ("https://a.example", "http://localhost:3000"):
        headers = {"Origin": origin, "Sec-Fetch-Site": "cross-site"}
        asked = calls("OPTIONS", "/v1/x", headers={**headers, "Access-Control-Request-Method": "POST",
                                                   "Access-Control-Request-Headers": "authorization,x-timeout-s"})
        assert asked.status_code == 200 and asked.headers["access-control-allow-origin"] == origin
        answer = calls("POST", "/v1/x", headers=headers)
        assert answer.status_code == 200 and answer.headers["access-control-allow-origin"] == origin
        exposed = answer.headers["access-control-expose-headers"].lower()
        assert all(name in exposed for name in ("x-seed", "x-request-id", "x-warnings", "retry-after"))
        assert "access-control-allow-credentials" not in answer.headers
    refused = calls("POST", "/v1/x", headers={"Origin": "https://b.example", "Sec-Fetch-Site": "cross-site"})
    assert refused.status_code == 401 and "access-control-allow-origin" not in refused.headers
    asked = calls("OPTIONS", "/v1/x", headers={"Origin": "https://b.example", "Access-Control-Request-Method": "POST"})
    assert asked.status_code == 400 and "access-control-allow-origin" not in asked.headers


def test_a_preflight_needs_no_key_and_errors_can_be_read() -> None:
    calls = Calls(Settings(api_key="k", cors_origins="*"))
    origin = {"Origin": "https://any.example"}
    asked = calls("OPTIONS", "/v1/me", headers={**origin, "Access-Control-Request-Method": "GET",
                                                "Access-Control-Request-Headers": "authorization"})
    assert asked.status_code == 200 and asked.headers["access-control-allow-origin"] == "*"
    refused = calls("GET", "/v1/me", headers=origin)
    assert refused.status_code == 401 and refused.headers["access-control-allow-origin"] == "*"
    assert "access-control-allow-credentials" not in refused.headers
    assert "access-control-allow-origin" not in calls("GET", "/", headers=origin).headers, "the page is not the API"


@pytest.mark.parametrize("raw", ["example.org", "https://", "https://a.example/path", "*, https://a.example",
                                 "ftp://a.example", "https://*.example", "https://a.example;https://b.example", "null"])
def test_what_is_no_origin_is_refused_at_the_start(raw: str) -> None:
    with pytest.raises(ConfigError) as error:
        allowed_origins(raw)
    assert error.value.param == "cors_origins" and "https://example.org" in error.value.message


# keys and logins


def test_a_key_names_its_client(tmp_path: Path) -> None:
    path = tmp_path / "keys.json"
    ann, bob = add_key(path, "ann"), add_key(path, "bob")
    calls = Calls(Settings(api_keys=path, api_key="plain"))
    for key, client in ((ann, "key:ann"), (bob, "key:bob"), ("plain", PEER[0])):
        assert calls("GET", "/v1/me", headers={"Authorization": f"Bearer {key}"}).json() == {"client": client}
    for wrong in ("Bearer x", "Bearer", f"Basic {ann}", "", f"Bearer {ann}x"):
        answer = calls("GET", "/v1/me", headers={"Authorization": wrong})
        assert answer.status_code == 401 and answer.headers["www-authenticate"] == "Bearer"
    assert calls("GET", "/health").status_code == 200
    foreign = {"Authorization": f"Bearer {ann}", "Origin": "https://a.example", "Sec-Fetch-Site": "cross-site"}
    assert calls("POST", "/v1/x", headers=foreign).status_code == 401
    calls = Calls(Settings(api_keys=path, cors_origins="https://a.example"))
    assert calls("POST", "/v1/x", headers=foreign).status_code == 200


def test_a_file_without_keys_lets_nobody_in(tmp_path: Path) -> None:
    path = tmp_path / "keys.json"
    path.write_text('{"keys": []}')
    path.chmod(0o600)
    assert Calls(Settings(api_keys=path))("GET", "/v1/me").status_code == 401


def test_guessing_is_slowed_and_shuts_out_no_right_key_of_the_file(tmp_path: Path) -> None:
    path = tmp_path / "keys.json"
    ann = add_key(path, "ann")
    calls = Calls(Settings(api_keys=path, api_key="plain"))

    def status(key: str, peer: str = PEER[0]) -> int:
        answer = calls("GET", "/v1/me", peer=peer, headers={"Authorization": f"Bearer {key}"})
        if answer.status_code == 429:
            assert 1 <= int(answer.headers["retry-after"]) <= 60 / WRONG_PER_MINUTE
            assert said(answer)["type"] == "rate_limited"
        return answer.status_code

    assert [status(f"no{i}") for i in range(WRONG_PER_MINUTE)] == [401] * WRONG_PER_MINUTE
    assert status("no") == 429 and status("plain") == 429
    assert status(ann) == 200, "a key that can't be guessed opens still"
    assert status("plain", peer="192.0.2.8") == 200, "and at another address nothing happened"
    assert calls("GET", "/v1/me").status_code == 401, "to send no key is no guess"


def test_logins_that_fail_are_slowed_and_right_ones_cost_nothing() -> None:
    calls = Calls(Settings(login="ann:pass"))
    for _ in range(WRONG_PER_MINUTE + 5):
        assert calls("POST", "/login", content=b"right").status_code == 200
    assert [calls("POST", "/login/", content=b"no").status_code for _ in range(WRONG_PER_MINUTE)] == [
        400] * WRONG_PER_MINUTE
    refused = calls("POST", "/login", content=b"right")
    assert refused.status_code == 429 and int(refused.headers["retry-after"]) >= 1
    assert calls("POST", "/login", content=b"right", peer="192.0.2.8").status_code == 200


def test_mcp_asks_for_the_login() -> None:
    calls = Calls(Settings(login="ann:pass:word"))

    def basic(text: str) -> dict[str, str]:
        return {"Authorization": "Basic " + base64.b64encode(text.encode()).decode()}

    for path in ("/gradio_api/mcp/", "/gradio_api/mcp", "/gradio_api/mcp/sse", "/gradio_api/mcp/schema"):
        refused = calls("POST", path)
        assert refused.status_code == 401 and refused.headers["www-authenticate"].startswith("Basic ")
        assert calls("POST", path, headers=basic("ann:pass")).status_code == 401
        assert calls("POST", path, headers={"Authorization": "Basic !!"}).status_code == 401
        assert calls("POST", path, headers=basic("ann:pass:word")).status_code == 200
    assert Calls(Settings())("POST", "/gradio_api/mcp/").status_code == 200


# sizes and rates


@pytest.mark.parametrize(("path", "most"), [
    ("/v1/audio/speech", 2 << 20), ("/v1/clone", 3_000_000 + (1 << 20)), ("/gradio_api/upload", 3_000_000 + (1 << 20)),
    ("/gradio_api/queue/join", 2 << 20), ("/gradio_api/run/synthesize", 2 << 20), ("/login", 2 << 20), ("/", 2 << 20),
    ("/gradio_api/mcp/", 4_000_000 + (1 << 20)),
])
@pytest.mark.parametrize("told", [True, False], ids=["length told", "length not told"])
def test_no_body_is_without_bound_and_none_is_read_before_login(path: str, most: int, told: bool) -> None:
    calls = Calls(Settings(max_upload_mb=3, host="0.0.0.0"))
    taken = 0

    async def endless() -> AsyncIterator[bytes]:
        nonlocal taken
        while taken < 20_000_000:
            taken += 100_000
            yield b"0" * 100_000

    more: dict[str, Any] = {"content": b"0" * 9_000_000 if told else endless()}
    answer = calls("POST", path, **more)
    assert answer.status_code == 413 and said(answer)["type"] == "too_large"
    assert taken <= most + 200_000
    assert calls.service.reasons == ["too_large"]
    assert calls("POST", path, content=b"0" * 1_000_000).status_code in (200, 400)


def test_so_many_a_minute_for_each_client_and_only_of_what_costs() -> None:
    calls = Calls(Settings(rate_per_minute=3))
    for path in ("/v1/audio/speech", "/v1/clone", "/gradio_api/upload"):
        assert calls("POST", path).status_code == 200
    refused = calls("POST", "/v1/voices")
    assert refused.status_code == 429 and said(refused)["type"] == "rate_limited"
    assert 1 <= int(refused.headers["retry-after"]) <= 20
    assert calls.service.reasons == ["rate_limited"]
    assert calls("POST", "/v1/voices", peer="192.0.2.8").status_code == 200
    for method, path in (("GET", "/v1/voices"), ("GET", "/v1/me"), ("GET", "/health"), ("POST", "/v1/engine/load")):
        assert calls(method, path).status_code == 200


# the log


@pytest.fixture
def lines(monkeypatch: pytest.MonkeyPatch) -> Callable[[], list[dict[str, Any]]]:
    """Everything logged below the access logger, as the JSON format writes it."""
    written: list[str] = []

    class Keep(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            written.append(logs.JsonFormatter().format(record))

    logger, handler = logging.getLogger(logs.ACCESS), Keep()
    level = logger.level
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    yield lambda: [json.loads(line) for line in written]  # type: ignore[misc]
    logger.removeHandler(handler)
    logger.setLevel(level)


def test_one_line_a_request(lines: Callable[[], list[dict[str, Any]]]) -> None:
    calls = Calls(Settings(rate_per_minute=1))
    calls("POST", "/v1/clone?text=private", headers={"X-Request-ID": "mine", "Authorization": "Bearer secret-key"})
    calls("POST", "/v1/clone")
    calls("GET", "/")
    calls("GET", "/gradio_api/file=/tmp/private.wav", headers={"Host": "evil"})
    one, two, three = lines()
    assert one == {
        "time": one["time"], "level": "info", "logger": logs.ACCESS, "message": "request", "request_id": "mine",
        "client": "192.0.2.0/24", "method": "POST", "path": "/v1/clone", "status": 200, "seconds": one["seconds"],
        "outcome": "ok",
    }  # fmt: skip
    assert (two["status"], two["outcome"], two["error"]) == (429, "refused", "rate_limited")
    assert three["path"] == "/gradio_api/file" and three["status"] == 421
    assert "private" not in json.dumps(lines()) and "secret-key" not in json.dumps(lines())


def test_a_text_is_logged_as_its_hash_unless_debugging() -> None:
    logger = logging.getLogger(logs.ACCESS)
    level = logger.level
    try:
        logger.setLevel(logging.INFO)
        facts = logs.described("今晚八点")
        assert facts["chars"] == 4 and len(facts["text_sha256"]) == logs.DIGEST_CHARS and "text" not in facts
        logger.setLevel(logging.DEBUG)
        assert logs.described("今晚八点") == {**facts, "text": "今晚八点"}
    finally:
        logger.setLevel(level)


@pytest.mark.parametrize("formatter", [logs.TextFormatter(), logs.JsonFormatter()])
@pytest.mark.parametrize("nasty", ["a\nINFO forged: b", "a\r\nb", "\x1b[2Ja", "a\u2028b", "\u202egpj.exe", "\x00",
                                   "\ud800"])
def test_nothing_logged_can_forge_or_hide_a_line(formatter: logging.Formatter, nasty: str) -> None:
    record = logging.LogRecord("name", logging.INFO, "", 0, "said %s", (nasty,), None)
    record.fields = {"path": nasty}
    line = formatter.format(record)
    assert line.isprintable() and line.encode("utf-8")
    if isinstance(formatter, logs.JsonFormatter):
        assert json.loads(line)["path"] == nasty and json.loads(line)["message"] == f"said {nasty}"


@pytest.mark.parametrize("path", ['/v1/a\\" status=200 outcome=ok z="b', '\\"', "\\", 'a"b', "a b", "a=b", '"\\\\"'])
def test_no_value_can_forge_a_field(path: str) -> None:
    record = logging.LogRecord("name", logging.INFO, "", 0, "request", (), None)
    record.fields = {"path": path, "status": 404}
    words = shlex.split(logs.TextFormatter().format(record))  # reads quotes and backslashes as our format means them
    assert words[-2:] == [f"path={path}", "status=404"]


def test_a_traceback_stays_below_its_line() -> None:
    try:
        raise ValueError("first\n2026-01-01 00:00:00,000 INFO forged: second")
    except ValueError as error:
        record = logging.LogRecord("name", logging.ERROR, "", 0, "failed", (), (ValueError, error, error.__traceback__))
    first, *rest = logs.TextFormatter().format(record).split("\n")
    assert first.endswith("ERROR name: failed") and len(rest) > 2
    assert all(line.startswith("    ") for line in rest)
    assert "forged" in json.loads(logs.JsonFormatter().format(record))["trace"]


def test_configure_sets_the_level_and_the_format(capsys: pytest.CaptureFixture[str]) -> None:
    root = logging.getLogger()
    before, level = list(root.handlers), root.level
    try:
        for level_name, expected in (("warning", ["b"]), ("debug", ["a", "b"])):
            logs.configure(replace(Settings(), log_format="json", log_level=level_name))
            logging.getLogger("cosyvoice_app.x").info("a")
            logging.getLogger("cosyvoice_app.x").warning("b")
            written = [json.loads(line)["message"] for line in capsys.readouterr().err.splitlines()]
            assert written == expected
    finally:
        for handler in list(root.handlers):
            root.removeHandler(handler)
        for handler in before:
            root.addHandler(handler)
        root.setLevel(level)
