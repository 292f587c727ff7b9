"""The rest of the API: voices, health, metrics, engine control, keys, limits, and the shape of every error."""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import psutil
import pytest
from web_server import Server, launch, pcm_hash, running


def clone(api: httpx.Client, clip: Path, text: str = "海边的风很凉快。", **fields: str) -> httpx.Response:
    return api.post("/v1/clone", files={"file": ("clip.wav", clip.read_bytes())}, data={"text": text, **fields})


def error(response: httpx.Response) -> dict[str, str | None]:
    body = response.json()
    assert set(body) == {"error"} and set(body["error"]) == {"type", "message", "param"}
    return body["error"]  # type: ignore[no-any-return]


# voices


def test_a_voice_comes_and_goes(api: httpx.Client, p1_wav: Path) -> None:
    made = api.post(
        "/v1/voices", files={"file": ("a.wav", p1_wav.read_bytes())}, data={"name": "王小明", "prompt_text": "你好。"}
    )
    assert made.status_code == 201, made.text
    voice = made.json()
    assert voice["name"] == "王小明" and voice["prompt_text"] == "你好。" and voice["object"] == "voice"
    assert voice["id"] in {known["id"] for known in api.get("/v1/voices").json()["data"]}
    said = api.post("/v1/audio/speech", json={"input": "好。", "voice": {"id": voice["id"]}})
    assert said.status_code == 200 and said.headers["content-type"] == "audio/mpeg"
    assert api.delete(f"/v1/voices/{voice['id']}").json() == {"id": voice["id"], "object": "voice", "deleted": True}
    for answer in (
        api.delete(f"/v1/voices/{voice['id']}"),
        api.post("/v1/audio/speech", json={"input": "好。", "voice": voice["id"]}),
    ):
        assert answer.status_code == 404 and error(answer)["type"] == "not_found"


@pytest.mark.parametrize("voice", ["../../etc/passwd", "/etc/passwd", "nobody", "..%2f..", ""])
def test_a_voice_is_never_a_path(api: httpx.Client, voice: str) -> None:
    answer = api.post("/v1/audio/speech", json={"input": "好。", "voice": voice})
    assert answer.status_code == 404 and error(answer)["param"] == "voice"


def test_a_voice_needs_a_name_and_a_usable_clip(api: httpx.Client, p0_wav: Path, clips: Path) -> None:
    data = p0_wav.read_bytes()
    answer = api.post("/v1/voices", files={"file": ("a.wav", data)}, data={"name": "   "})
    assert answer.status_code == 400 and error(answer)["param"] == "name"
    answer = api.post("/v1/voices", files={"file": ("a.wav", (clips / "zero.wav").read_bytes())}, data={"name": "x"})
    assert answer.status_code == 400 and error(answer)["param"] == "file"


def test_a_field_that_comes_twice_is_refused(api: httpx.Client, p0_wav: Path) -> None:
    """One of the two would be taken without a word."""
    data = p0_wav.read_bytes()
    twice = [("file", ("a.wav", data)), ("file", ("b.wav", data))]
    for path, fields in (("/v1/clone", {"text": "好。"}), ("/v1/voices", {"name": "x"})):
        answer = api.post(path, files=twice, data=fields)
        assert answer.status_code == 422 and error(answer)["param"] == "file"
    answer = api.post("/v1/clone", files=twice[:1], data={"text": ["好。", "坏。"]})
    assert answer.status_code == 422 and error(answer)["param"] == "text"
    assert clone(api, p0_wav).status_code == 200


# errors


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("GET", "/v1/nothing", 404),
        ("POST", "/v1/", 404),
        ("GET", "/v1/clone", 405),
        ("PUT", "/v1/voices", 405),
        ("GET", "/v1/voices/x", 405),
        ("POST", "/health", 405),
        ("DELETE", "/metrics", 405),
        ("GET", "/v1/engine/restart", 405),
    ],
)
def test_unknown_paths_and_methods(api: httpx.Client, method: str, path: str, status: int) -> None:
    answer = api.request(method, path)
    assert answer.status_code == status
    error(answer)
    assert ("allow" in answer.headers) == (status == 405)


@pytest.mark.parametrize("body", [b"", b"{", b"[]", b'"x"', b"\xff\xfe"])
def test_broken_json(api: httpx.Client, body: bytes) -> None:
    answer = api.post("/v1/audio/speech", content=body, headers={"Content-Type": "application/json"})
    assert answer.status_code in (400, 422)
    assert "Traceback" not in str(error(answer)["message"])


def test_a_body_that_is_too_large(api: httpx.Client, server: Server) -> None:
    big = b"0" * 50_000_000
    answer = api.post("/v1/clone", files={"file": ("a.wav", big)}, data={"text": "好。"})
    assert answer.status_code == 413 and "25 MB" in str(error(answer)["message"])
    answer = api.post("/v1/audio/speech", json={"input": "长" * 1_000_000, "voice": "x"})
    assert answer.status_code == 413
    error(answer)


@pytest.mark.parametrize(
    ("path", "kind"),
    [
        ("/v1/clone", "multipart/form-data; boundary=x"),
        ("/v1/audio/speech", "application/json"),
        ("/gradio_api/upload", "multipart/form-data; boundary=x"),
    ],
)
def test_a_too_large_body_without_a_length_is_cut_off(server: Server, path: str, kind: str) -> None:
    """Sent in chunks, without end: the server must answer 413 long before it has read it all."""
    sent = 0
    with socket.create_connection(("127.0.0.1", server.port), timeout=30) as line:
        line.sendall(
            f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: {kind}\r\n"
            "Transfer-Encoding: chunked\r\n\r\n".encode()
        )
        start = b'--x\r\nContent-Disposition: form-data; name="file"; filename="a"\r\n\r\n'
        line.sendall(f"{len(start):x}\r\n".encode() + start + b"\r\n")
        piece = b"0" * 500_000
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            while sent < 200_000_000:
                line.sendall(f"{len(piece):x}\r\n".encode() + piece + b"\r\n")
                sent += len(piece)
                line.settimeout(0.001)
                with contextlib.suppress(TimeoutError):
                    answer = line.recv(4096)
                    assert b" 413 " in answer.split(b"\r\n")[0]
                    break
                line.settimeout(30)
    assert sent < 100_000_000


# state


def test_health_is_the_live_state(api: httpx.Client) -> None:
    health = api.get("/health").json()
    assert health["status"] == "ok" and health["state"] == "ready"
    assert health["engine"] == "tone" and health["device"] == "cpu" and health["precision"] == "fp32"
    assert health["model_hash"] and health["version"]
    assert psutil.pid_exists(health["worker_pid"])
    assert health["memory"]["rss"] > 1_000_000
    assert set(health["components"].values()) == {"cpu"}
    assert health["capabilities"]["rate_hz"] == 24000


def test_metrics_count(api: httpx.Client, p0_wav: Path) -> None:
    def finished() -> float:
        answer = api.get("/metrics")
        assert answer.headers["content-type"].startswith("text/plain; version=0.0.4")
        lines = [line for line in answer.text.splitlines() if line.startswith('cosyvoice_requests_total{outcome="ok"}')]
        return float(lines[0].split()[1]) if lines else 0.0

    before = finished()
    assert clone(api, p0_wav).status_code == 200
    assert finished() == before + 1


def test_models_lists_the_engine(api: httpx.Client) -> None:
    assert [model["id"] for model in api.get("/v1/models").json()["data"]] == ["tone"]


def test_openapi_describes_every_endpoint(api: httpx.Client) -> None:
    paths = set(api.get("/openapi.json").json()["paths"])
    assert {
        "/v1/audio/speech",
        "/v1/clone",
        "/v1/voices",
        "/v1/voices/{voice_id}",
        "/health",
        "/metrics",
        "/v1/engine/restart",
        "/v1/engine/unload",
        "/v1/engine/load",
    } <= paths


def test_restart_unload_load(tmp_path: Path, p0_wav: Path) -> None:
    with running(tmp_path) as server, httpx.Client(base_url=server.url, timeout=60) as api:
        right = pcm_hash(clone(api, p0_wav, seed="42").content)
        changed = api.post("/v1/engine/restart").json()
        assert changed["before"]["worker_pid"] != changed["after"]["worker_pid"]
        assert not psutil.pid_exists(changed["before"]["worker_pid"])
        assert pcm_hash(clone(api, p0_wav, seed="42").content) == right

        changed = api.post("/v1/engine/unload").json()
        assert changed["after"]["state"] == "unloaded" and changed["after"]["worker_pid"] is None
        health = api.get("/health")
        assert health.status_code == 503 and health.json()["status"] == "unloaded"
        answer = clone(api, p0_wav)
        assert answer.status_code == 503 and error(answer)["type"] == "no_engine"
        assert api.post("/v1/engine/load").json()["after"]["state"] == "ready"
        assert pcm_hash(clone(api, p0_wav, seed="42").content) == right
        worker = api.get("/health").json()["worker_pid"]
    assert not psutil.pid_exists(worker), "the worker must end with the server"


# many callers


def test_each_caller_gets_their_own_audio(api: httpx.Client, server: Server, p0_wav: Path, p1_wav: Path) -> None:
    jobs = [(text, clip) for text in "甲乙丙丁戊己庚辛" for clip in (p0_wav, p1_wav)]

    def run(job: tuple[str, Path]) -> tuple[str, str]:
        answer = clone(api, job[1], f"第{job[0]}句话。", seed="7")
        assert answer.status_code == 200, answer.text
        assert (server.outputs / answer.headers["x-output-path"]).read_bytes() == answer.content
        return pcm_hash(answer.content), answer.headers["x-output-path"]

    serial = [run(job)[0] for job in jobs]
    assert len(set(serial)) == 16
    with ThreadPoolExecutor(16) as pool:
        parallel = list(pool.map(run, jobs))
    assert [digest for digest, _ in parallel] == serial
    assert len({name for _, name in parallel}) == 16


def test_a_full_queue_says_when_to_come_back(tmp_path: Path, p0_wav: Path) -> None:
    options = ("--max-queue", "1", "--max-batch", "1")
    with running(tmp_path, *options) as server, httpx.Client(base_url=server.url, timeout=60) as api:
        with ThreadPoolExecutor(12) as pool:
            answers = list(pool.map(lambda _: clone(api, p0_wav), range(12)))
        refused = [answer for answer in answers if answer.status_code == 429]
        assert refused and {answer.status_code for answer in answers} == {200, 429}
        for answer in refused:
            assert error(answer)["type"] == "queue_full"
            assert int(answer.headers["retry-after"]) >= 1


@pytest.mark.parametrize("stream_format", [None, "audio", "sse"])
def test_a_client_that_goes_away_frees_the_engine(
    api: httpx.Client, server: Server, p0_wav: Path, stream_format: str | None
) -> None:
    voice = api.post("/v1/voices", files={"file": ("a.wav", p0_wav.read_bytes())}, data={"name": "x"}).json()["id"]
    started = time.monotonic()
    clone(api, p0_wav, "你好。")
    solo_s = time.monotonic() - started
    before = server.saved()
    body = {"input": "你好。", "voice": voice, "seed": 9010, "stream_format": stream_format}
    with pytest.raises(httpx.ReadTimeout):
        httpx.post(f"{server.url}/v1/audio/speech", json=body, timeout=1)
    started = time.monotonic()
    assert clone(api, p0_wav, "你好。").status_code == 200
    assert time.monotonic() - started < solo_s + 1.5
    assert len(server.saved() - before) == 1


def test_abandoned_requests_leave_no_threads(api: httpx.Client, server: Server, p0_wav: Path) -> None:
    process = psutil.Process(server.process.pid)
    clone(api, p0_wav, "你好。")
    base = process.num_threads()
    data = p0_wav.read_bytes()

    def abandon(_: int) -> None:
        with contextlib.suppress(httpx.ReadTimeout):
            httpx.post(
                f"{server.url}/v1/clone",
                files={"file": ("a.wav", data)},
                data={"text": "好。", "seed": "9010"},
                timeout=1,
            )

    threads = [threading.Thread(target=abandon, args=(i,)) for i in range(5)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    time.sleep(3)
    assert process.num_threads() <= base + 5  # the pool that answers plain routes may have grown


# keys, ports, other sites


def test_an_api_key_is_asked_for(tmp_path: Path, p0_wav: Path) -> None:
    with running(tmp_path, "--api-key", "s3cret-钥") as server, httpx.Client(base_url=server.url, timeout=60) as api:
        assert api.get("/health").status_code == 200
        for headers in ({}, {"Authorization": "Bearer wrong"}, {"Authorization": "Basic s3cret"}):
            for path in ("/v1/voices", "/metrics", "/v1/nothing"):
                answer = api.get(path, headers=headers)
                assert answer.status_code == 401 and error(answer)["type"] == "unauthorized"
                assert answer.headers["www-authenticate"] == "Bearer"
        good = {"Authorization": "Bearer s3cret-钥".encode()}
        assert api.get("/v1/voices", headers=good).status_code == 200


def test_other_sites_pages_cant_press_the_buttons(api: httpx.Client) -> None:
    answer = api.post("/v1/engine/unload", headers={"Sec-Fetch-Site": "cross-site", "Origin": "https://example.org"})
    assert answer.status_code == 401
    assert api.get("/health").json()["state"] == "ready"


def test_a_second_copy_on_the_port_exits_and_names_it(server: Server, tmp_path: Path) -> None:
    process, log = launch(tmp_path, server.port, "--engine", "tone")
    assert process.wait(60) != 0
    assert str(server.port) in log.read_text() and "Traceback" not in log.read_text()
    assert httpx.get(f"{server.url}/health").status_code == 200


def test_no_file_of_this_machine_is_served(api: httpx.Client, server: Server, p0_wav: Path) -> None:
    clone(api, p0_wav)
    name = sorted(server.saved())[0]
    root = Path(__file__).parents[1]
    for path in (
        "/etc/passwd",
        root / "app.py",
        root / "requirements.txt",
        server.outputs / name,
        "../app.py",
        "app.py",
        server.outputs.parent / "server.log",
    ):
        for prefix in ("/gradio_api/file=", "/file="):
            answer = api.get(f"{prefix}{path}")
            assert answer.status_code in (403, 404), (path, answer.status_code)
    for url in ("http://127.0.0.1:1/x", "https://example.org/x", "HTTP://example.org/x"):
        assert api.get(f"/gradio_api/file={url}").status_code == 404


def test_page_login(tmp_path: Path) -> None:
    with running(tmp_path, "--login", "ann:pass:word") as server, httpx.Client(base_url=server.url) as client:
        assert client.get("/gradio_api/info").status_code == 401
        assert client.post("/login", data={"username": "ann", "password": "no"}).status_code == 400
        assert client.post("/login", data={"username": "ann", "password": "pass:word"}).status_code == 200
        assert client.get("/gradio_api/info").status_code == 200
