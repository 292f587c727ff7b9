"""Playing a result while it is made, in a real browser: what is scheduled to sound is the finished file, sample by
sample, and nothing sounds that shouldn't."""

from __future__ import annotations

import base64
import io
import wave
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
from browser.chromium import Watched, started
from browser.test_page import heard, shown
from engines_streaming import RATE_HZ, SEED_FAILS, open_gate
from playwright.sync_api import Browser, TimeoutError
from web_server import Server, running

pytestmark = pytest.mark.browser

LATE_S = 0.031
"""A piece that comes so shortly before it is due is put off, lest it overlap the next."""
TEXT = "今天风很大。明天会下雨。后天天晴。"

# Notes every piece that is started and when; and plays them again through a context that gives out what it sounds.
LISTEN_IN = """(() => {
  window.pieces = [];
  const start = AudioBufferSourceNode.prototype.start;
  AudioBufferSourceNode.prototype.start = function (when) {
    if (this.context instanceof AudioContext)
      window.pieces.push({ when, now: this.context.currentTime, rate: this.context.sampleRate, context: this.context,
                           samples: this.buffer.getChannelData(0).slice() });
    return start.apply(this, arguments);
  };
})()"""
SOUNDED = """async () => {
  const rate = window.pieces[0].rate;
  const last = window.pieces[window.pieces.length - 1];
  const length = Math.ceil(last.when * rate) + last.samples.length + 8;
  const offline = new OfflineAudioContext(1, length, rate);
  for (const piece of window.pieces) {
    const buffer = offline.createBuffer(1, piece.samples.length, rate);
    buffer.copyToChannel(piece.samples, 0);
    const node = offline.createBufferSource();
    node.buffer = buffer;
    node.connect(offline.destination);
    node.start(piece.when);
  }
  const pcm = new Uint8Array((await offline.startRendering()).getChannelData(0).buffer);
  let text = "";
  for (let i = 0; i < pcm.length; i += 32768) text += String.fromCharCode(...pcm.subarray(i, i + 32768));
  return { pcm: btoa(text), rate, pieces: window.pieces.map((p) => [p.when, p.samples.length, p.now]) };
}"""


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with started() as one:
        yield one


@pytest.fixture(scope="module")
def gated(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with running(tmp_path_factory.mktemp("gated"), engine="engines_streaming:GatedSine") as live:
        yield live


def cache(server: Server) -> Path:
    return server.outputs.parent / "cache"


@pytest.fixture
def visitor(browser: Browser, gated: Server) -> Iterator[Watched]:
    one = Watched(browser, gated.url, init_script=LISTEN_IN)
    yield one
    one.page.context.close()


def state(visitor: Watched, wanted: str) -> None:
    try:
        visitor.page.wait_for_function(f"document.documentElement.dataset.live === '{wanted}'", timeout=30_000)
    except TimeoutError as error:
        found = visitor.page.evaluate("document.documentElement.dataset.live || 'silent'")
        raise AssertionError(f"{found}, not {wanted}: {visitor.page.inner_text('#summary')}") from error


def pcm_of(wav: bytes) -> np.ndarray[Any, np.dtype[np.int16]]:
    with wave.open(io.BytesIO(wav)) as file:
        return np.frombuffer(file.readframes(file.getnframes()), "<i2")


def finished(visitor: Watched, server: Server) -> np.ndarray[Any, np.dtype[np.int16]]:
    """The samples of the file in the player, which is the file that was saved."""
    visitor.page.wait_for_selector("#summary .vc-picture")
    data = heard(visitor)
    assert data == (server.outputs / str(shown(visitor)["file"])).read_bytes()
    return pcm_of(data)


def assert_sounds_as(visitor: Watched, file: np.ndarray[Any, np.dtype[np.int16]]) -> None:
    """Every sample once, in order, and no sample of time between pieces unless the next came too late for that."""
    sounded = visitor.page.evaluate(SOUNDED)
    assert sounded["rate"] == RATE_HZ
    sound = np.frombuffer(base64.b64decode(sounded["pcm"]), "<f4") * 32768
    pieces = [(round(when * RATE_HZ), count, now) for when, count, now in sounded["pieces"]]
    assert np.array_equal(np.concatenate([sound[at : at + count] for at, count, _ in pieces]), file)
    assert np.count_nonzero(sound) == np.count_nonzero(file), "nothing else sounds"
    for (at, count, _), (later, _, now) in pairwise(pieces):
        assert later == at + count or (later > at + count and now > (at + count) / RATE_HZ - LATE_S)
    assert all(at / RATE_HZ > now for at, _, now in pieces), "each is started before it is due"


def test_it_sounds_before_the_request_ends_and_as_the_file_does(
    visitor: Watched, gated: Server, p0_wav: Path
) -> None:
    visitor.give(str(p0_wav), TEXT, "5")
    visitor.page.click("#generate")
    state(visitor, "playing")
    assert visitor.page.is_visible("#stop"), "the request still runs: its gate is closed"
    visitor.page.wait_for_function("pieces[0].context.currentTime > pieces[0].when + 0.2")
    open_gate(cache(gated), 5)
    file = finished(visitor, gated)
    state(visitor, "done")
    assert_sounds_as(visitor, file)
    assert visitor.errors == [] and visitor.strangers == []


def test_by_keyboard_and_all_at_once(visitor: Watched, gated: Server, p0_wav: Path) -> None:
    open_gate(cache(gated), 6)
    visitor.give(str(p0_wav), TEXT, "6")
    visitor.page.focus("#generate")
    visitor.page.keyboard.press("Enter")
    file = finished(visitor, gated)
    state(visitor, "done")
    assert_sounds_as(visitor, file)


def test_stop_silences_at_once(visitor: Watched, gated: Server, p0_wav: Path) -> None:
    before = gated.saved()
    visitor.give(str(p0_wav), TEXT, "7")
    visitor.page.click("#generate")
    state(visitor, "playing")
    visitor.page.click("#stop")
    state(visitor, "stopped")
    visitor.page.wait_for_selector("#summary .vc-box")
    assert "Stopped" in visitor.page.inner_text("#summary")
    assert gated.saved() == before


def test_a_failure_half_way_silences_and_says_why(visitor: Watched, gated: Server, p0_wav: Path) -> None:
    before = gated.saved()
    visitor.give(str(p0_wav), TEXT, str(SEED_FAILS))
    visitor.page.click("#generate")
    state(visitor, "playing")
    open_gate(cache(gated), SEED_FAILS)
    visitor.page.wait_for_selector("#summary .vc-box.bad")
    state(visitor, "stopped")
    assert "seed 77" in visitor.page.inner_text("#summary")
    assert gated.saved() == before


def test_two_visitors_hear_only_their_own(browser: Browser, gated: Server, p0_wav: Path) -> None:
    pair = [Watched(browser, gated.url, init_script=LISTEN_IN, locale=lang) for lang in ("en-US", "zh-CN")]
    for number, visitor in enumerate(pair):
        open_gate(cache(gated), 11 + number)
        visitor.give(str(p0_wav), TEXT, str(11 + number))
    for visitor in pair:
        visitor.page.click("#generate")
    files = []
    for visitor in pair:
        files.append(finished(visitor, gated))
        state(visitor, "done")
        played = visitor.page.evaluate("pieces.flatMap((piece) => Array.from(piece.samples))")
        assert np.array_equal(np.array(played) * 32768, files[-1])
        visitor.page.context.close()
    assert not np.array_equal(*files)


def test_whoever_wants_silence_has_it_after_a_reload_too(visitor: Watched, gated: Server, p0_wav: Path) -> None:
    open_gate(cache(gated), 8)
    visitor.page.wait_for_function("document.documentElement.dataset.recalled")
    visitor.page.wait_for_timeout(500)  # what was recalled is put into the box a moment later
    assert visitor.page.get_by_label("Play while it is made").is_checked()
    visitor.page.click("#listen input")
    visitor.page.wait_for_function("localStorage.getItem('listen') === 'off'")
    visitor.page.reload()
    visitor.page.wait_for_function("document.querySelector('#listen input')?.checked === false")
    visitor.give(str(p0_wav), TEXT, "8")
    visitor.page.click("#generate")
    finished(visitor, gated)
    assert visitor.page.evaluate("pieces.length") == 0


def test_a_page_that_may_not_sound_shows_its_result_all_the_same(
    visitor: Watched, gated: Server, p0_wav: Path
) -> None:
    open_gate(cache(gated), 14)
    visitor.page.evaluate("""() => {  // what a browser's policy does when nobody has clicked
      AudioContext.prototype.resume = () => Promise.reject(new DOMException("no", "NotAllowedError"));
      Object.defineProperty(AudioContext.prototype, "state", { get: () => "suspended" }); }""")
    visitor.give(str(p0_wav), TEXT, "14")
    visitor.page.click("#generate")
    finished(visitor, gated)
    state(visitor, "stopped")
    assert visitor.errors == []


def test_switched_off_half_way_it_falls_silent_and_the_request_goes_on(
    visitor: Watched, gated: Server, p0_wav: Path
) -> None:
    visitor.give(str(p0_wav), TEXT, "9")
    visitor.page.click("#generate")
    state(visitor, "playing")
    visitor.page.click("#listen input")
    state(visitor, "stopped")
    open_gate(cache(gated), 9)
    finished(visitor, gated)


def test_a_restart_half_way_silences_and_says_so(visitor: Watched, gated: Server, p0_wav: Path) -> None:
    visitor.give(str(p0_wav), TEXT, "13")
    visitor.page.click("#generate")
    state(visitor, "playing")
    assert httpx.post(f"{gated.url}/v1/engine/restart", timeout=60).status_code == 200
    state(visitor, "stopped")
    visitor.page.wait_for_selector("#summary .vc-box.bad")
    assert "restarted" in visitor.page.inner_text("#summary")
