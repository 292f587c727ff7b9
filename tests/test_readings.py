"""What the page tells of readings before anything is spoken: the same that is spoken, and every character in place."""

from __future__ import annotations

import subprocess
import sys

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cosyvoice_app import assets
from cosyvoice_app.engines import registry
from cosyvoice_app.engines.lite.g2p import G2PPaths, LiteG2P
from cosyvoice_app.settings import Settings
from cosyvoice_app.text.frontend import prepare
from cosyvoice_app.types import Said
from cosyvoice_app.web import page_parts


@pytest.fixture(scope="module")
def g2p() -> LiteG2P:
    names = ("misaki-us-gold", "misaki-us-silver", "g2p-en", "g2pm")
    return LiteG2P(G2PPaths(*(assets.ensure(name) for name in names)))


def told(g2p: LiteG2P, text: str) -> str:
    stretches = [said for segment in prepare(text).segments for said in g2p.readings(segment)]
    return " ".join(said.text + said.reading for said in stretches if said.reading)


@pytest.mark.parametrize(
    ("text", "readings"),
    [
        ("会计去开会了。", "会kuài 会huì"),
        ("睡着了还看着窗外。", "着zháo 还hái 看kàn"),
        ("他[zh][ǎng]大了", "大dà"),
        ("會計去開會了。", "會kuài 會huì"),
        ("今天", ""),
        ("He read it.", ""),
        ("東京は今日も晴れです。", ""),
    ],
)
def test_characters_with_several_readings_are_told_with_the_one_they_get(
    g2p: LiteG2P, text: str, readings: str
) -> None:
    assert told(g2p, text) == readings


def test_what_is_told_is_what_is_spoken(g2p: LiteG2P) -> None:
    """Putting the told readings in as tags changes no sound, apart from the tone sandhi that a tag holds off."""
    for text in ("银行行长说行。", "会计去开会。", "音乐让人快乐。", "重庆的包裹重量超标。"):
        (segment,) = prepare(text).segments
        tagged = "".join(_tag(said) if said.reading else said.text for said in g2p.readings(segment))
        assert "[" in tagged
        assert g2p(prepare(tagged).segments[0]).symbols.replace(" ", "") == g2p(segment).symbols.replace(" ", "")


def _tag(said: Said) -> str:
    return f"[{said.reading}]"


MIX = st.lists(
    st.sampled_from(
        ["银行", "会计", "長", "了", "[zh][ǎng]", " read ", "，", "。", "は今日", "😂", "[R][EH1][D]", "\n", "𠮷", "A",
         "<strong>"]
    ),
    max_size=20,
).map("".join)  # fmt: skip


@settings(max_examples=200, deadline=None)
@given(MIX)
def test_the_stretches_joined_are_the_segment(g2p: LiteG2P, text: str) -> None:
    for segment in prepare("好" + text).segments:
        assert "".join(said.text for said in g2p.readings(segment)) == segment.text.rstrip()


def test_without_the_network_nothing_is_told() -> None:
    nowhere = assets.ensure("g2p-en")
    bare = LiteG2P(G2PPaths(nowhere, nowhere, nowhere))
    assert told(bare, "会计去开会了。") == ""


def test_the_reader_is_the_lite_engines_and_needs_no_torch() -> None:
    assert registry.reader(Settings(engine="tone")) is None
    code = (
        "import sys; from cosyvoice_app.engines import registry; from cosyvoice_app.settings import Settings;"
        "from cosyvoice_app.text.frontend import prepare;"
        "print([s.reading for s in registry.reader(Settings(engine='lite'))(prepare('会计').segments[0])]);"
        "assert 'torch' not in sys.modules"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=True)
    assert "kuài" in done.stdout


def test_readings_stand_above_their_characters_on_the_page() -> None:
    front = prepare("会<b")
    html = page_parts.reading(front, [[Said("会", "kuài"), Said("<b")]], ["<x>"], "会<b", "en")
    assert "<ruby>会<rp>(</rp><rt>kuài</rt><rp>)</rp></ruby>&lt;b" in html and "&lt;x&gt;" in html
