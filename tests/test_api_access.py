"""Many clients at a live server: keys, limits, deadlines, slow and vanishing ones, and the log it writes."""

from __future__ import annotations

import contextlib
import json
import socket
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import openai
import psutil
import pytest
from web_server import Server, running

from cosyvoice_app.web.keys import add_key

TEXT = "今天的晚霞真好看。"
HANGS = "9010"


def clone(server: Server, clip: Path, text: str = TEXT, key: str = "", headers: dict[str, str] | None = None,
          timeout: float = 60, **fields: str) -> httpx.Response:
    bearer = {"Authorization": f"Bearer {key}"} if key else {}
    return httpx.post(f"{server.url}/v1/clone", files={"file": ("private name.wav", clip.read_bytes())},
                      data={"text": text, **fields}, headers={**bearer, **(headers or {})}, timeout=timeout)


def until(true: Callable[[], object], within_s: float = 60) -> None:
    end = time.monotonic() + within_s
    while not true():
        assert time.monotonic() < end, "it did not come true in time"
        time.sleep(0.1)


@pytest.fixture(scope="module")
def keys(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, str]]:
    path = tmp_path_factory.mktemp("keys") / "keys.json"
    return path, {name: add_key(path, name) for name in ("ann", "bob", "rate")}


@pytest.fixture(scope="module")
def limited(tmp_path_factory: pytest.TempPathFactory, keys: tuple[Path, dict[str, str]]) -> Iterator[Server]:
    options = ("--api-keys", str(keys[0]), "--max-per-client", "2", "--rate-per-minute", "12", "--log-format", "json",
               "--cors-origins", "https://a.example")  # fmt: skip
    with running(tmp_path_factory.mktemp("limited"), *options) as live:
        yield live


def log_lines(server: Server) -> list[dict[str, object]]:
    lines = [line for line in server.log.read_text("utf-8").splitlines() if line.startswith("{")]
    return [json.loads(line) for line in lines]


def test_the_log_has_one_line_a_request_and_no_secrets(
    limited: Server, keys: tuple[Path, dict[str, str]], p0_wav: Path
) -> None:
    answer = clone(limited, p0_wav, key=keys[1]["ann"], headers={"X-Request-ID": "evening-1"}, seed="7")
    assert answer.status_code == 200 and answer.headers["x-request-id"] == "evening-1"
    assert clone(limited, p0_wav, key="cvk_wrong", headers={"X-Request-ID": "evening-2"}).status_code == 401
    bad = clone(limited, p0_wav, "。。。", key=keys[1]["ann"], headers={"X-Request-ID": "evening-3"})
    assert bad.status_code == 400 and bad.headers["x-request-id"] == "evening-3"

    def found() -> dict[object, dict[str, object]]:
        return {line.get("request_id"): line for line in log_lines(limited) if line["message"] == "request"}

    until(lambda: "evening-3" in found())
    one, two, three = (found()[f"evening-{i}"] for i in (1, 2, 3))
    assert one["client"] == "key:ann" and one["outcome"] == "ok" and one["seed"] == 7 and one["chars"] == len(TEXT)
    assert one["audio_s"] == pytest.approx(float(answer.headers["x-duration-s"]), abs=1e-3)
    assert isinstance(one["queue_s"], float) and isinstance(one["text_sha256"], str)
    assert (two["status"], two["client"], two["error"]) == (401, "127.0.0.1", "unauthorized")
    assert (three["status"], three["outcome"], three["error"]) == (400, "refused", "invalid_text")
    assert sum(line.get("request_id") == "evening-1" for line in log_lines(limited)) == 1
    text = limited.log.read_text("utf-8")
    for secret in (keys[1]["ann"], "cvk_wrong", TEXT, json.dumps(TEXT)[1:-1], "private name"):
        assert secret not in text


def test_one_client_has_so_many_under_way_and_others_go_on(
    limited: Server, keys: tuple[Path, dict[str, str]], p0_wav: Path
) -> None:
    ann, bob = keys[1]["ann"], keys[1]["bob"]

    def hang(_: int) -> None:
        with contextlib.suppress(httpx.ReadTimeout):
            clone(limited, p0_wav, key=ann, seed=HANGS, timeout=20)

    with ThreadPoolExecutor(2) as pool:
        for i in range(2):
            pool.submit(hang, i)
        until(lambda: httpx.get(f"{limited.url}/health", timeout=60).json()["running"] >= 2)
        refused = clone(limited, p0_wav, key=ann)
        assert refused.status_code == 429 and int(refused.headers["retry-after"]) >= 1
        assert refused.json()["error"]["type"] == "rate_limited"
        assert clone(limited, p0_wav, key=bob).status_code == 200
    until(lambda: clone(limited, p0_wav, key=ann).status_code == 200)


def test_the_official_client_waits_as_long_as_told(
    limited: Server, keys: tuple[Path, dict[str, str]], p0_wav: Path
) -> None:
    def client(retries: int, key: str = keys[1]["rate"]) -> openai.OpenAI:
        return openai.OpenAI(base_url=f"{limited.url}/v1", api_key=key, max_retries=retries)

    with pytest.raises(openai.AuthenticationError):
        client(0, "cvk_wrong").models.list()
    with pytest.raises(openai.RateLimitError) as error:
        for _ in range(40):
            with contextlib.suppress(openai.NotFoundError):
                client(0).audio.speech.create(model="x", voice="nobody", input="好。")
    told_s = int(error.value.response.headers["retry-after"])
    assert 1 <= told_s <= 5  # twelve a minute: one each five seconds
    with pytest.raises(openai.NotFoundError):  # it came through at the first retry
        client(1).audio.speech.create(model="x", voice="nobody", input="好。")
    assert httpx.get(f"{limited.url}/v1/voices", headers={"Authorization": f"Bearer {keys[1]['rate']}"}).is_success


def test_metrics_count_refusals(limited: Server, keys: tuple[Path, dict[str, str]]) -> None:
    text = httpx.get(f"{limited.url}/metrics", headers={"Authorization": f"Bearer {keys[1]['bob']}"}).text
    refused = [line for line in text.splitlines() if "rate_limited" in line and not line.startswith("#")]
    assert refused and float(refused[0].split()[-1]) >= 1


def test_a_key_taken_back_opens_nothing(limited: Server, keys: tuple[Path, dict[str, str]]) -> None:
    new = add_key(keys[0], "late")
    header = {"Authorization": f"Bearer {new}"}
    until(lambda: httpx.get(f"{limited.url}/v1/voices", headers=header, timeout=60).status_code == 200)


# deadlines


def test_a_request_is_given_up_at_its_deadline(server: Server, p0_wav: Path) -> None:
    started = time.monotonic()
    answer = clone(server, p0_wav, headers={"X-Timeout-S": "1.5"}, seed=HANGS)
    assert answer.status_code == 504 and answer.json()["error"]["type"] == "timed_out"
    assert time.monotonic() - started >= 1.4
    assert clone(server, p0_wav, headers={"X-Timeout-S": "60"}).status_code == 200
    wrong = clone(server, p0_wav, headers={"X-Timeout-S": "0"})
    assert wrong.status_code == 400 and wrong.json()["error"]["param"] == "X-Timeout-S"


def test_modes_of_restart_are_judged(server: Server) -> None:
    def restart(**more: object) -> httpx.Response:
        return httpx.post(f"{server.url}/v1/engine/restart", timeout=60, **more)  # type: ignore[arg-type]

    pid = httpx.get(f"{server.url}/health", timeout=60).json()["worker_pid"]
    for answer in (restart(json={"mode": "kill"}), restart(params={"mode": "kill"}), restart(json={"mod": "drain"})):
        assert answer.status_code == 422 and "mod" in answer.json()["error"]["param"]
    assert restart(json={"mode": "drain"}, params={"mode": "cancel"}).status_code == 400
    assert httpx.get(f"{server.url}/health", timeout=60).json()["worker_pid"] == pid
    for more in ({"json": {"mode": "drain"}}, {"params": {"mode": "cancel"}}, {"json": {}}):
        assert restart(**more).json()["after"]["state"] == "ready"


# clients that are slow or go away


def test_a_connection_that_never_asks_is_closed(server: Server) -> None:
    with socket.create_connection(("127.0.0.1", server.port), timeout=60) as silent, socket.create_connection(
        ("127.0.0.1", server.port), timeout=60
    ) as trickling:
        trickling.sendall(b"GET / HTTP/1.1\r\nHost: localhost\r\n")
        started = time.monotonic()
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            while time.monotonic() - started < 50:
                trickling.sendall(b"X-Slow: 1\r\n")
                trickling.settimeout(0.5)
                try:
                    assert trickling.recv(10) == b""
                    break
                except TimeoutError:
                    continue
        assert 10 < time.monotonic() - started < 45
        with contextlib.suppress(ConnectionResetError):
            assert silent.recv(10) == b""


@pytest.mark.parametrize("path", ["/v1/clone", "/v1/voices", "/gradio_api/upload"])
def test_two_hundred_aborted_uploads_leave_nothing(server: Server, path: str) -> None:
    process = psutil.Process(server.process.pid)
    (kept,) = httpx.post(f"{server.url}/gradio_api/upload", files={"files": b"whole"}, timeout=60).json()
    folder = Path(kept).parents[1]
    assert Path(kept).read_bytes() == b"whole"

    def uploads() -> set[Path]:
        return {found for found in folder.rglob("*") if found.is_file()}

    def handles() -> int:
        return process.num_fds() if hasattr(process, "num_fds") else process.num_handles()

    def abort(i: int) -> None:
        size = (100, 70_000, 1_500_000)[i % 3]
        head = (
            f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: multipart/form-data; boundary=x\r\n"
            "Content-Length: 2000000\r\n\r\n--x\r\n"
            'Content-Disposition: form-data; name="files"; filename="a.wav"\r\n\r\n'
        )
        with socket.create_connection(("127.0.0.1", server.port), timeout=60) as line:
            line.sendall(head.encode() + b"0" * size)

    for i in range(10):
        abort(i)
    assert httpx.get(f"{server.url}/health", timeout=60).status_code == 200
    files, threads, open_now = uploads(), process.num_threads(), handles()
    with ThreadPoolExecutor(20) as pool:
        list(pool.map(abort, range(200)))
    assert httpx.get(f"{server.url}/health", timeout=60).status_code == 200  # it came after them, so they have come in
    until(lambda: handles() <= open_now + 2, 60)
    assert process.num_threads() <= threads + 40, "only the pool of threads for plain routes may have grown"
    assert uploads() <= files


# halves of characters


@pytest.fixture(scope="module")
def voice(server: Server, p0_wav: Path) -> str:
    made = httpx.post(f"{server.url}/v1/voices", files={"file": p0_wav.read_bytes()}, data={"name": "x"}, timeout=60)
    return str(made.json()["id"])


@pytest.mark.parametrize(("field", "value", "status"), [
    ("input", "a\ud800b", 400), ("input", "\ude00\ud83d", 400), ("instructions", "slower\udfff", 400),
    ("pronunciations", "行\ud800 = háng", 400), ("pronunciations", {"\ud800": "háng"}, 400),
    ("pronunciations", {"行": "\udc00"}, 400), ("refine", "\ud800", 400), ("seed", "\ud800", 400),
    ("voice", "\ud800", 404), ("\ud800", 1, 422), ("model", "\ud800", 200), ("input", "好\ud83d\ude00。", 200),
])  # fmt: skip
@pytest.mark.parametrize("streams", [None, "audio"])
def test_half_a_character_is_refused_by_its_fields_name(
    server: Server, voice: str, field: str, value: object, status: int, streams: str | None
) -> None:
    saved = server.saved()
    body = {"input": TEXT, "voice": voice, "response_format": "pcm", "stream_format": streams, field: value}
    answer = httpx.post(f"{server.url}/v1/audio/speech", content=json.dumps(body), timeout=60,
                        headers={"Content-Type": "application/json"})
    assert answer.status_code == status
    if status != 200:
        assert set(answer.json()["error"]) == {"type", "message", "param"} and server.saved() == saved
    if status == 400:
        assert answer.json()["error"]["param"] == field


@pytest.mark.parametrize(("path", "field", "status"), [
    ("/v1/voices", "name", 422), ("/v1/voices", "prompt_text", 422), ("/v1/clone", "text", 400),
    ("/v1/clone", "prompt_text", 400), ("/v1/clone", "instruct", 400),
])  # fmt: skip
def test_half_a_character_comes_in_by_no_form(
    server: Server, p0_wav: Path, path: str, field: str, status: int
) -> None:
    def part(name: str, data: bytes) -> bytes:
        named = f'; filename="{name}"' if name == "file" else ""
        return f'--x\r\nContent-Disposition: form-data; name="{name}"{named}\r\n\r\n'.encode() + data + b"\r\n"

    fields = {("text" if path == "/v1/clone" else "name"): b"fine", field: rb"a\ud800"}
    body = part("file", p0_wav.read_bytes()) + b"".join(part(*each) for each in fields.items()) + b"--x--\r\n"
    kind = "multipart/form-data; boundary=x; charset=raw_unicode_escape"
    answer = httpx.post(server.url + path, content=body, headers={"Content-Type": kind}, timeout=60)
    assert answer.status_code == status and answer.json()["error"]["param"] == field
    assert httpx.get(f"{server.url}/v1/voices", timeout=60).status_code == 200


# other sites' pages, before Gradio's own idea of them


@pytest.fixture(scope="module")
def public(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    options = ("--host", "0.0.0.0", "--login", "ann:pass", "--log-format", "json")
    with running(tmp_path_factory.mktemp("public"), *options) as live:
        yield live


EVIL: list[dict[str, str]] = [
    {"Origin": "https://evil.example", "Sec-Fetch-Site": "cross-site"}, {"Origin": "https://evil.example"},
    {"Origin": "null"}, {"Origin": "http://localhost:9999", "Sec-Fetch-Site": "same-site"},
    {"Origin": "http://localhost:9999"},
]  # fmt: skip


def allowing(answer: httpx.Response) -> list[str]:
    return [name for name in answer.headers if name.startswith("access-control")]


@pytest.mark.parametrize("headers", EVIL)
def test_another_sites_page_neither_uses_nor_reads(public: Server, server: Server, headers: dict[str, str]) -> None:
    with httpx.Client(base_url=public.url, timeout=60) as ann:
        login = ann.post("/login", data={"username": "ann", "password": "pass"})
        cookie = {"Cookie": "; ".join(line.partition(";")[0] for line in login.headers.get_list("set-cookie"))}
        assert login.status_code == 200 and "samesite=none" not in str(login.headers.get_list("set-cookie")).lower()
        assert ann.get("/config", headers=cookie).status_code == 200
    for url, more in ((public.url, cookie), (server.url, {})):
        for path, body in (
            ("run/random_seed", {"json": {"data": []}}), ("call/restart", {"json": {"data": [False]}}),
            ("queue/join", {"content": '{"data": [false], "fn_index": 0, "session_hash": "x"}'}),
            ("upload", {"files": {"files": b"x"}}), ("mcp/", {"json": {"jsonrpc": "2.0", "id": 1, "method": "ping"}}),
        ):  # fmt: skip
            asked = httpx.options(f"{url}/gradio_api/{path}", timeout=60, headers={
                **headers, **more, "Access-Control-Request-Method": "POST",
                "Access-Control-Request-Headers": "content-type"})
            assert not allowing(asked)
            answer = httpx.post(f"{url}/gradio_api/{path}", headers={**headers, **more}, timeout=60, **body)
            assert answer.status_code == 401 and not allowing(answer), path
        for path in ("/config", "/", "/gradio_api/info", "/v1/nothing", "/health"):
            assert not allowing(httpx.get(url + path, headers={**headers, **more}, timeout=60)), path


def test_our_own_page_works_by_any_name(public: Server) -> None:
    own = {"Host": "voice.example:7860", "Origin": "http://voice.example:7860"}
    with httpx.Client(base_url=public.url, timeout=60, headers=own) as page:
        assert page.post("/login", data={"username": "ann", "password": "pass"}).status_code == 200
        cookie = {"Cookie": "; ".join(f"{name}={value}" for name, value in page.cookies.items())}
        answer = page.post("/gradio_api/run/random_seed", json={"data": []}, headers=cookie)
        assert answer.status_code == 200 and 1 <= int(answer.json()["data"][0])
