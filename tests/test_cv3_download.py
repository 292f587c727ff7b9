"""Fetching the official model: resumed, checked, and never a half or wrong file under a final name. The hub is a small
server in this process."""

from __future__ import annotations

import errno
import hashlib
import json
import os
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from cosyvoice_app import assets
from cosyvoice_app.assets import official, official_cli, official_fetch
from cosyvoice_app.assets.hashes import HashCache
from cosyvoice_app.assets.official import OfficialFile
from cosyvoice_app.assets.official_fetch import base_url, fetch_official, wanted
from cosyvoice_app.assets.official_verify import known_verdicts, verify_official
from cosyvoice_app.errors import AssetError
from cosyvoice_app.types import Progress

BIG, SMALL = os.urandom(3 << 20), b"sizes: 1\n"
CONTENT = {"big.pt": BIG, "sub/small.json": SMALL}


def listed(name: str, data: bytes) -> OfficialFile:
    return OfficialFile(name, len(data), hashlib.sha256(data).hexdigest(), "toy")


FILES = tuple(listed(name, data) for name, data in CONTENT.items())


@dataclass
class Hub:
    """`files` are served; `cut` ends that many answers early; `status` answers so instead, that many times."""

    url: str = ""
    files: dict[str, bytes] = field(default_factory=lambda: dict(CONTENT))
    cut: int = 0
    cut_at: int = 1 << 20
    status: list[int] = field(default_factory=list)
    ranges: bool = True
    redirect: bool = False
    chunked: bool = False
    asked: list[tuple[str, str]] = field(default_factory=list)


@pytest.fixture
def hub() -> Iterator[Hub]:
    state = Hub()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            wanted_range = self.headers.get("Range", "")
            state.asked.append((self.path, wanted_range))
            if state.status:
                self.send_error(state.status.pop(0))
                return
            if state.redirect and "?cdn" not in self.path:
                self.send_response(302)
                self.send_header("Location", f"{state.url}{self.path}?cdn")
                self.send_header("Content-Length", "0")
                self.end_headers()
                return
            path = self.path.partition("?")[0]
            data = next((data for name, data in state.files.items() if path.endswith(f"/{name}")), None)
            if data is None:
                self.send_error(404)
                return
            start = int(wanted_range[6:-1]) if wanted_range and state.ranges else 0
            if start and start >= len(data):
                self.send_error(416)
                return
            self.send_response(206 if start else 200)
            if start:
                self.send_header("Content-Range", f"bytes {start}-{len(data) - 1}/{len(data)}")
            body = data[start:]
            if state.chunked:
                self.send_header("Connection", "close")
                self.close_connection = True
            else:
                self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            if state.cut and len(body) > state.cut_at:
                state.cut -= 1
                body = body[: state.cut_at]
                self.close_connection = True
            try:
                self.wfile.write(body)
            except OSError:
                self.close_connection = True

        def log_message(self, *_: Any) -> None:
            return

    class Server(ThreadingHTTPServer):
        def handle_error(self, *_: Any) -> None:
            """A client that goes away in the middle is what is tested."""

    server = Server(("127.0.0.1", 0), Handler)
    state.url = f"http://127.0.0.1:{server.server_address[1]}"
    threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
    yield state
    server.shutdown()
    server.server_close()


@pytest.fixture(autouse=True)
def _apart(monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory) -> None:
    """No proxy, mirror or cache of the user's."""
    for name in ("http_proxy", "https_proxy", "all_proxy", "HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "HF_ENDPOINT",
                 official.DIR_VARIABLE):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("COSYVOICE_CACHE", str(tmp_path_factory.mktemp("cache")))


def fetch(hub: Hub, folder: Path, **more: Any) -> Path:
    return fetch_official(folder, endpoint=hub.url, files=more.pop("files", FILES), pause_s=0.01, **more)


def names(folder: Path) -> set[str]:
    return {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()} - {".fetch.lock"}


@pytest.mark.parametrize("source", official_fetch.SOURCES)
def test_all_files_arrive_whole(hub: Hub, tmp_path: Path, source: official_fetch.Source) -> None:
    said: list[Progress] = []
    hub.redirect = True
    folder = fetch(hub, tmp_path / "m", source=source, progress=said.append)
    assert {name: (folder / name).read_bytes() for name in CONTENT} == CONTENT
    assert names(folder) == set(CONTENT)
    fractions = [p.fraction for p in said if p.fraction is not None]
    assert fractions == sorted(fractions) and fractions[-1] == 1.0 and len(fractions) > 3
    assert all(official.MODEL in path for path, _ in hub.asked)


def test_what_is_there_is_not_fetched_again(hub: Hub, tmp_path: Path) -> None:
    fetch(hub, tmp_path)
    count = len(hub.asked)
    fetch(hub, tmp_path)
    assert len(hub.asked) == count
    (tmp_path / "sub/small.json").unlink()
    fetch(hub, tmp_path)
    assert len(hub.asked) == count + 1


def test_a_connection_that_ends_early_is_gone_on_with(hub: Hub, tmp_path: Path) -> None:
    hub.cut = 2
    fetch(hub, tmp_path)
    assert (tmp_path / "big.pt").read_bytes() == BIG
    assert [r for path, r in hub.asked if path.endswith("big.pt")] == ["", f"bytes={1 << 20}-", f"bytes={2 << 20}-"]


def test_a_run_that_was_stopped_leaves_nothing_that_looks_whole_and_is_gone_on_with(hub: Hub, tmp_path: Path) -> None:
    def stop(progress: Progress) -> None:
        if progress.message.startswith("big.pt: 2"):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fetch(hub, tmp_path, progress=stop)
    assert names(tmp_path) == {"big.pt.part"}
    have = (tmp_path / "big.pt.part").stat().st_size
    assert 0 < have < len(BIG)
    hub.asked.clear()
    fetch(hub, tmp_path)
    assert hub.asked[0][1] == f"bytes={have}-"
    assert names(tmp_path) == set(CONTENT)


def test_a_whole_part_is_only_checked(hub: Hub, tmp_path: Path) -> None:
    (tmp_path / "big.pt.part").write_bytes(BIG)
    fetch(hub, tmp_path)
    assert not [path for path, _ in hub.asked if path.endswith("big.pt")]


@pytest.mark.parametrize("part", [b"x" * 1000, b"x" * (len(BIG) + 5), b"x" * len(BIG)])
def test_a_part_of_another_file_is_noticed(hub: Hub, tmp_path: Path, part: bytes) -> None:
    (tmp_path / "big.pt.part").write_bytes(part)
    if len(part) > len(BIG):
        fetch(hub, tmp_path)
        assert (tmp_path / "big.pt").read_bytes() == BIG
        return
    with pytest.raises(AssetError, match=r"SHA-256 is [0-9a-f]{64}, expected .*deleted"):
        fetch(hub, tmp_path)
    assert names(tmp_path) == set()
    fetch(hub, tmp_path)


def test_a_server_that_can_not_resume_sends_it_all(hub: Hub, tmp_path: Path) -> None:
    hub.ranges = False
    (tmp_path / "big.pt.part").write_bytes(BIG[:777])
    fetch(hub, tmp_path)
    assert (tmp_path / "big.pt").read_bytes() == BIG


def test_one_that_can_not_resume_and_always_breaks_off_is_given_up(hub: Hub, tmp_path: Path) -> None:
    hub.ranges, hub.cut = False, 1000
    with pytest.raises(AssetError, match="can't be fetched: .*--source modelscope"):
        fetch(hub, tmp_path)
    assert len(hub.asked) <= official_fetch._TRIES + 1
    assert names(tmp_path) == {"big.pt.part"}


def test_a_changed_byte_is_never_used(hub: Hub, tmp_path: Path) -> None:
    hub.files["big.pt"] = BIG[:-1] + bytes([BIG[-1] ^ 1])
    with pytest.raises(AssetError, match="is not the file of revision"):
        fetch(hub, tmp_path)
    assert names(tmp_path) == set()


@pytest.mark.parametrize("size", [100, len(BIG) - 1, len(BIG) + 1])
@pytest.mark.parametrize("chunked", [False, True])
def test_another_size_is_never_used(hub: Hub, tmp_path: Path, size: int, chunked: bool) -> None:
    hub.files["big.pt"], hub.chunked = (BIG + b"more")[:size], chunked
    with pytest.raises(AssetError, match="bytes|can't be fetched"):
        fetch(hub, tmp_path)
    assert not (tmp_path / "big.pt").exists()


@pytest.mark.parametrize(("status", "says"), [(404, "does not exist.*--endpoint"), (403, "refuses"), (401, "refuses"),
                                              (400, "answered 400")])
def test_an_answer_that_will_not_change_is_explained_at_once(hub: Hub, tmp_path: Path, status: int, says: str) -> None:
    hub.status = [status]
    with pytest.raises(AssetError, match=says):
        fetch(hub, tmp_path)
    assert len(hub.asked) == 1 and names(tmp_path) == set()


def test_a_busy_server_is_asked_again(hub: Hub, tmp_path: Path) -> None:
    hub.status = [503, 429, 500]
    fetch(hub, tmp_path)
    assert names(tmp_path) == set(CONTENT)


def test_no_network_is_explained(tmp_path: Path) -> None:
    with pytest.raises(AssetError, match="can't be fetched.*run the same command again.*HTTPS_PROXY"):
        fetch_official(tmp_path, endpoint="http://127.0.0.1:9", files=FILES, pause_s=0.001)


def test_a_disk_too_small_is_seen_first(hub: Hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(official_fetch.shutil, "disk_usage", lambda _: type("usage", (), {"free": 1000}))
    with pytest.raises(AssetError, match="more and its disk has 0.0 GB free.*--dir"):
        fetch(hub, tmp_path)
    assert not hub.asked


def test_a_disk_that_fills_up_keeps_what_came(hub: Hub, tmp_path: Path) -> None:
    def full(progress: Progress) -> None:
        if progress.message.startswith("big.pt: 2"):
            raise OSError(errno.ENOSPC, "No space left on device")

    with pytest.raises(AssetError, match="is full.*kept"):
        fetch(hub, tmp_path, progress=full)
    assert names(tmp_path) == {"big.pt.part"}


def test_a_place_that_can_not_be_written_is_explained(hub: Hub, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(AssetError, match="can't be written.*--dir"):
        fetch(hub, tmp_path / "file")


@pytest.mark.parametrize("own", [b"my own model", b"y" * len(BIG)])
def test_a_model_of_ones_own_is_never_written_over(hub: Hub, tmp_path: Path, own: bytes) -> None:
    (tmp_path / "big.pt").write_bytes(own)
    with pytest.raises(AssetError, match="left alone.*--dir"):
        fetch(hub, tmp_path)
    assert (tmp_path / "big.pt").read_bytes() == own


@pytest.mark.parametrize("broken", [
    b"", b"version https://git-lfs.github.com/spec/v1\noid x\n", b"<!DOCTYPE html><html>", b"PK\x03\x04" + b"a" * 500,
])
def test_what_is_plainly_broken_is_replaced(hub: Hub, tmp_path: Path, broken: bytes) -> None:
    (tmp_path / "big.pt").write_bytes(broken)
    fetch(hub, tmp_path)
    assert (tmp_path / "big.pt").read_bytes() == BIG


def test_two_at_once_fetch_once(hub: Hub, tmp_path: Path) -> None:
    said: list[Progress] = []
    threads = [threading.Thread(target=lambda: fetch(hub, tmp_path, progress=said.append)) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(hub.asked) == len(FILES)
    assert names(tmp_path) == set(CONTENT)


def test_verify_tells_official_own_damaged_and_missing(hub: Hub, tmp_path: Path) -> None:
    fetch(hub, tmp_path)
    assert [row.verdict for row in verify_official(tmp_path, files=FILES)] == ["official", "official"]
    assert known_verdicts(tmp_path, files=FILES) == dict.fromkeys(CONTENT, True)
    time.sleep(0.01)
    (tmp_path / "big.pt").write_bytes(b"z" * len(BIG))
    assert known_verdicts(tmp_path, files=FILES) == {"sub/small.json": True}, "it changed: nothing is known of it"
    (tmp_path / "sub/small.json").write_bytes(b"<html>")
    own, page, absent = verify_official(tmp_path, files=(*FILES, listed("none.pt", b"1")))
    assert (own.verdict, own.ok) == ("not official", True) and "revision" in own.said
    assert (page.verdict, page.ok) == ("damaged", False) and "web page" in page.said
    assert (absent.verdict, absent.ok) == ("missing", False)
    assert known_verdicts(tmp_path, files=FILES)["big.pt"] is False


def test_hashes_are_remembered_while_the_file_is_unchanged(tmp_path: Path) -> None:
    file, cache = tmp_path / "f", HashCache(tmp_path / "cache")
    file.write_bytes(b"one")
    assert cache.known(file) is None
    assert cache.sha256(file) == hashlib.sha256(b"one").hexdigest() == cache.known(file)
    os.utime(file, ns=(1, 1))
    assert cache.known(file) is None
    (tmp_path / "cache" / "hashes.json").write_text("{broken")
    assert cache.known(file) is None
    assert cache.sha256(file) == hashlib.sha256(b"one").hexdigest() == cache.known(file)


def test_the_sites(monkeypatch: pytest.MonkeyPatch) -> None:
    assert base_url("huggingface") == f"https://huggingface.co/{official.MODEL}/resolve/{official.REVISION}"
    assert base_url("modelscope") == f"https://modelscope.cn/models/{official.MODEL}/resolve/master"
    monkeypatch.setenv("HF_ENDPOINT", "https://mirror.example/")
    assert base_url("huggingface").startswith("https://mirror.example/FunAudioLLM/")
    assert base_url("modelscope", "https://other.example").startswith("https://other.example/models/FunAudioLLM/")


def test_what_is_wanted_is_what_the_engine_reads() -> None:
    plain = {file.name for file in wanted()}
    assert {"llm.pt", "flow.pt", "hift.pt", "cosyvoice3.yaml", "CosyVoice-BlankEN/merges.txt"} < plain
    assert {file.name for file in wanted(llm_rl=True)} - plain == {"llm.rl.pt"}
    assert len(official.REVISION) == 40
    for file in official.FILES:
        assert len(file.sha256) == 64 and file.bytes > 0
    assert not any("estimator" in name or "batch" in name or name.endswith(".safetensors") for name in plain)


def test_the_command_line(hub: Hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
                          capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(official_cli, "wanted", lambda *, llm_rl=False: FILES)
    monkeypatch.setattr(official, "FILES", FILES)
    place = ["--dir", str(tmp_path / "m")]
    assert assets.cli(["verify", "cosyvoice3", *place]) == 1
    assert "missing" in capsys.readouterr().out
    assert assets.cli(["fetch", "cosyvoice3", *place, "--source", "modelscope", "--endpoint", hub.url]) == 0
    out, err = capsys.readouterr()
    assert "official model is ready" in out
    assert "licence" in err and "Apache-2.0" in err and official.ORIGIN in err and hub.url in err
    assert assets.cli(["verify", "cosyvoice3", *place, "--json"]) == 0
    (row,) = json.loads(capsys.readouterr().out)["assets"]
    assert row["ok"] and row["state"] == "whole" and [f["verdict"] for f in row["files"]] == ["official"] * 2
    hub.files.clear()
    (tmp_path / "m/big.pt").unlink()
    assert assets.cli(["fetch", "cosyvoice3", *place, "--endpoint", hub.url, "--json"]) == 1
    assert "404" in json.loads(capsys.readouterr().out)["error"]["message"]


def test_the_list_names_it_with_licence_and_place(capsys: pytest.CaptureFixture[str]) -> None:
    assert assets.cli(["list", "--json"]) == 0
    row = json.loads(capsys.readouterr().out)["assets"][-1]
    assert (row["name"], row["default"]) == ("cosyvoice3", False)
    assert row["state"] == "missing" or "complete" in row["state"] or row["state"] == "whole"
    assert assets.cli(["list"]) == 0
    out = capsys.readouterr().out
    assert official.MODEL in out and str(official.DEFAULT_DIR) in out
