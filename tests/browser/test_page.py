"""The page in a real browser: upload, generate, stop, restart, both languages, and nothing sent elsewhere."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Iterator
from pathlib import Path
from urllib.request import urlopen

import httpx
import pytest
from browser.chromium import Watched, started
from playwright.sync_api import Browser
from web_server import Server, running

pytestmark = pytest.mark.browser


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with started() as one:
        yield one


@pytest.fixture
def visitor(browser: Browser, server: Server) -> Iterator[Watched]:
    one = Watched(browser, server.url)
    yield one
    one.page.context.close()


def generated(visitor: Watched) -> dict[str, object]:
    """Press Generate and wait; what the page says was done."""
    visitor.page.click("#generate")
    visitor.page.wait_for_selector("#summary .vc-running", state="attached")
    visitor.page.wait_for_selector("#summary .vc-picture")
    return shown(visitor)


def shown(visitor: Watched) -> dict[str, object]:
    facts = visitor.page.inner_text("#summary")
    return {
        "file": re.search(r"output_\w+\.wav", facts).group(),  # type: ignore[union-attr]
        "seed": int(re.search(r"(?:Seed|种子)\s*(\d+)", facts).group(1)),  # type: ignore[union-attr]
        "text": facts,
    }


def heard(visitor: Watched) -> bytes:
    """The bytes the page's player plays."""
    source = visitor.page.get_attribute("#result a[download]", "href")
    assert source
    with urlopen(source) as answer:
        return bytes(answer.read())


def test_a_clip_becomes_the_very_file_that_is_heard(visitor: Watched, server: Server, p0_wav: Path) -> None:
    visitor.give(str(p0_wav), "海边的风很凉快。", "42")
    verdict = visitor.page.inner_text("#doctor")
    assert "6.0 s" in verdict and "24 kHz" in verdict and "dBFS" in verdict
    assert visitor.page.inner_text("#count").split() == ["8", "/", "200"]
    done = generated(visitor)
    assert done["seed"] == 42
    assert heard(visitor) == (server.outputs / str(done["file"])).read_bytes()
    sidecar = json.loads((server.outputs / str(done["file"])).with_suffix(".json").read_text("utf-8"))
    assert sidecar["text"] == "海边的风很凉快。" and sidecar["seed"] == 42
    assert visitor.errors == [] and visitor.strangers == []


def test_a_blank_seed_can_be_kept_and_drawn(visitor: Watched, p0_wav: Path) -> None:
    visitor.give(str(p0_wav), "你好。")
    first = generated(visitor)
    visitor.page.click("#keep")
    visitor.page.wait_for_function(f"document.querySelector('#seed textarea, #seed input').value == '{first['seed']}'")
    assert generated(visitor)["seed"] == first["seed"]
    visitor.page.click("#dice")
    visitor.page.wait_for_function(
        f"!['', '{first['seed']}'].includes(document.querySelector('#seed textarea, #seed input').value)"
    )


def test_stop_stops_and_the_next_one_is_quick(visitor: Watched, server: Server, p0_wav: Path) -> None:
    before = server.saved()
    visitor.give(str(p0_wav), "你好。", "9010")
    assert not visitor.page.is_visible("#stop")
    visitor.page.click("#generate")
    visitor.page.wait_for_selector("#stop")
    time.sleep(1)
    visitor.page.click("#stop")
    visitor.page.wait_for_selector("#summary .vc-box")
    assert "Stopped" in visitor.page.inner_text("#summary")
    assert server.saved() == before
    visitor.page.fill("#seed textarea, #seed input", "5")
    started = time.monotonic()
    generated(visitor)
    assert time.monotonic() - started < 10


def test_closing_the_tab_frees_the_engine(browser: Browser, server: Server, api: httpx.Client, p0_wav: Path) -> None:
    leaver = Watched(browser, server.url)
    leaver.give(str(p0_wav), "你好。", "9010")
    leaver.page.click("#generate")
    leaver.page.wait_for_selector("#stop")
    time.sleep(1)
    leaver.page.context.close()
    started = time.monotonic()
    answer = api.post("/v1/clone", files={"file": p0_wav.read_bytes()}, data={"text": "你好。"})
    assert answer.status_code == 200
    assert time.monotonic() - started < 10


def test_mistakes_are_shown_in_place_and_lose_nothing(visitor: Watched, p0_wav: Path) -> None:
    visitor.page.click("#generate")
    visitor.page.wait_for_selector("text=Add a clip first")
    visitor.give(str(p0_wav), "你好。", "abc")
    visitor.page.click("#generate")
    visitor.page.wait_for_selector("text=A whole number from 1 to 100000000")
    assert visitor.page.input_value("#text textarea") == "你好。"
    visitor.page.fill("#seed textarea, #seed input", "9006")
    visitor.page.click("#generate")
    visitor.page.wait_for_selector("#summary .vc-box.bad")
    assert "memory" in visitor.page.inner_text("#summary").lower()


def test_an_unusable_clip_is_refused_at_upload(visitor: Watched, clips: Path) -> None:
    visitor.page.set_input_files("#clip input[type=file]", str(clips / "len_2.9.wav"))
    visitor.page.wait_for_selector("#doctor .vc-bad")
    assert "2.9 s" in visitor.page.inner_text("#doctor")


def test_a_long_clips_best_stretch_is_offered(visitor: Watched, clips: Path) -> None:
    visitor.page.set_input_files("#clip input[type=file]", str(clips / "len_31.0.wav"))
    visitor.page.click("#stretch")
    visitor.page.wait_for_selector("#doctor .vc-good, #doctor .vc-warn")


def test_two_visitors_see_only_their_own(browser: Browser, server: Server, p0_wav: Path, p1_wav: Path) -> None:
    one, two = Watched(browser, server.url), Watched(browser, server.url, locale="zh-CN")
    one.give(str(p0_wav), "第一个人。", "11")
    two.give(str(p1_wav), "第二个人。", "22")
    one.page.click("#generate")
    two.page.click("#generate")
    for visitor, seed in ((one, 11), (two, 22)):
        visitor.page.wait_for_selector("#summary .vc-picture")
        done = shown(visitor)
        assert done["seed"] == seed
        assert heard(visitor) == (server.outputs / str(done["file"])).read_bytes()
        visitor.page.context.close()


def test_chinese_for_a_chinese_browser(browser: Browser, server: Server, p0_wav: Path) -> None:
    visitor = Watched(browser, server.url, locale="zh-CN")
    assert visitor.page.inner_text("#generate") == "生成"
    page_text = visitor.page.inner_text("body")
    assert "声音克隆" in page_text and "__i18n__" not in page_text
    visitor.page.click("#chips button >> nth=0")
    assert re.search("[一-鿿]", visitor.page.input_value("#instruct textarea, #instruct input"))
    visitor.give(str(p0_wav), "你好。")
    assert "片段可用" in visitor.page.inner_text("#doctor")
    assert "已保存为" in str(generated(visitor)["text"])
    assert "就绪" in visitor.page.inner_text("#status-line")
    assert visitor.errors == [] and visitor.strangers == []
    visitor.page.context.close()


def test_chips_add_and_remove_their_words(visitor: Watched) -> None:
    box = "#instruct textarea, #instruct input"
    visitor.page.click("#chips button >> nth=0")
    visitor.page.wait_for_function(f"document.querySelector('{box}').value != ''")
    first = visitor.page.input_value(box)
    visitor.page.click("#chips button >> nth=7")
    visitor.page.wait_for_function(f"document.querySelector('{box}').value != {json.dumps(first)}")
    assert visitor.page.input_value(box).startswith(first + ", ")
    visitor.page.click("#chips button >> nth=0")
    visitor.page.wait_for_function(f"!document.querySelector('{box}').value.includes({json.dumps(first)})")


def test_examples_fill_in_the_text(visitor: Watched) -> None:
    visitor.page.click("#examples tbody tr >> nth=1")
    visitor.page.wait_for_function("document.querySelector('#text textarea').value.length > 5")


def test_a_visitor_without_a_clip_can_use_a_sample(visitor: Watched, server: Server) -> None:
    visitor.page.click("#samples button >> nth=1")
    visitor.page.wait_for_selector("#doctor .vc-good")
    assert "经济体" in visitor.page.input_value("#transcript textarea")
    visitor.page.fill("#text textarea", "你好。")
    assert (server.outputs / str(generated(visitor)["file"])).is_file()


def test_it_fits_a_phone(browser: Browser, server: Server) -> None:
    visitor = Watched(browser, server.url, width=390, height=844)
    assert visitor.page.evaluate("document.documentElement.scrollWidth") <= 390
    visitor.page.context.close()


def test_restart_reports_memory_and_the_status_line_is_true(browser: Browser, tmp_path: Path) -> None:
    with running(tmp_path) as server, httpx.Client(base_url=server.url, timeout=60) as api:
        visitor = Watched(browser, server.url)
        before = api.get("/health").json()["worker_pid"]
        visitor.page.click("text=Engine and memory")
        visitor.page.click("#restart")
        visitor.page.wait_for_selector("#engine-note >> text=before")
        assert re.search(r"\d+ MB before, \d+ MB after", visitor.page.inner_text("#engine-note"))
        assert api.get("/health").json()["worker_pid"] != before
        visitor.page.click("#unload")
        visitor.page.wait_for_selector("#status-line .vc-dot.unloaded")
        visitor.page.click("#load")
        visitor.page.wait_for_selector("#status-line .vc-dot.ready")
        visitor.page.context.close()


def test_what_will_be_read_follows_the_typing_and_a_word_list_outlives_a_reload(visitor: Watched, p0_wav: Path) -> None:
    visitor.page.fill("#text textarea", "行家有3个。")
    visitor.page.wait_for_selector("#reading .vc-reading >> text=行家有三个")
    visitor.page.click("#own-box button")
    visitor.page.fill("#own textarea", "行家 = háng jiā")
    visitor.page.wait_for_selector("#reading .vc-tag >> text=[h][áng]")
    visitor.page.fill("#text textarea", "他[xyz1]来了😂")
    visitor.page.wait_for_selector("#reading .vc-list >> text=[xyz1]")
    visitor.page.fill("#text textarea", "")
    visitor.page.wait_for_selector("#reading .vc-note", state="detached")
    visitor.page.reload()
    visitor.page.wait_for_selector("#generate")
    visitor.page.fill("#text textarea", "行家来了。")
    visitor.page.wait_for_selector("#reading .vc-tag >> text=[h][áng]")
    visitor.page.set_input_files("#clip input[type=file]", str(p0_wav))
    visitor.page.wait_for_selector("#doctor .vc-verdict")
    visitor.page.fill("#transcript textarea", "好。")
    visitor.page.wait_for_selector("#words-fit >> text=too few")
    visitor.page.fill("#transcript textarea", "")
    visitor.page.wait_for_selector("#words-fit .vc-note", state="detached")
    assert not visitor.errors and not visitor.strangers
