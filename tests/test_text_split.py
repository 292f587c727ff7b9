"""Where text is cut: within an engine's lengths, never inside a tag, a number, a short quoted phrase or a word."""

from __future__ import annotations

import re
import time

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from cosyvoice_app.engines.capabilities import COSYVOICE3, KNOWN, LITE
from cosyvoice_app.text import cuts
from cosyvoice_app.text.frontend import prepare
from cosyvoice_app.text.sizes import size_in
from cosyvoice_app.types import SplitLimits

TIGHT = SplitLimits(most=40, least=0)
TOKENS = SplitLimits(most=20, least=0, unit="tokens")


def parts(text: str, limits: SplitLimits) -> list[str]:
    return [segment.text for segment in prepare(text, limits=limits).segments]


@pytest.mark.parametrize("limits", [TIGHT, TOKENS])
@pytest.mark.parametrize(
    ("text", "whole"),
    [
        ("他昨天在会上说：“可以。就这样。”然后大家都没有再说话就散了。", "“可以。就这样。”"),
        ("他把那本旧旧的《百年，孤独》放回书架上然后转身走进了里面的房间。", "《百年，孤独》"),
        ("我们一共收到了三千二百五十六封来自全国各地的热情洋溢的读者来信。", "三千二百五十六"),
        ("They shipped two hundred thousand twelve boxes to our warehouse in the year.", "two hundred thousand twelve"),
        ("这件事情必须由[ch][óng]庆市的有关部门来负责处理才能够真正得到解决。", "[ch][óng]"),
        ("She [R][EH1][D] the whole incomprehensibly long introduction without stopping once.", "incomprehensibly"),
        ("我特别特别特别特别喜欢图书馆里面那个安安静静的阅览室和自习室。", "图书馆"),
    ],
)  # fmt: skip
def test_what_belongs_together_is_not_cut(text: str, whole: str, limits: SplitLimits) -> None:
    found = parts(text, limits)
    assert len(found) > 1
    assert any(whole in part for part in found), found


def test_a_long_quotation_may_be_cut() -> None:
    quoted = "“" + "今天天气很好。" * 12 + "”"
    assert len(parts(quoted, TIGHT)) > 1


@pytest.mark.parametrize("name", sorted(KNOWN))
def test_each_engine_gets_its_own_lengths(name: str) -> None:
    limits = KNOWN[name].split
    size = size_in(limits)
    text = "".join(f"这是第{n}句话，它说的是同一件事情，只是长一点儿而已。" for n in "一二三四五六七八九十")
    segments = prepare(text, limits=limits).segments
    assert "".join(s.text for s in segments) == text
    assert all(size(s.pieces) <= limits.most for s in segments)


def test_the_official_lengths_are_those_of_the_checkpoint() -> None:
    """Joined while they fit in 80 tokens, a rest below 20 joined too."""
    sentence = "今天我们去公园里走一走吧。"
    found = parts(sentence * 12, COSYVOICE3.split)
    assert "".join(found) == sentence * 12
    assert {len(part) // len(sentence) for part in found[:-1]} == {6}
    assert all(len(part) <= 80 for part in found)
    assert parts(sentence * 6 + "好的。", SplitLimits(100, 20, 60, "tokens")) == [sentence * 6 + "好的。"]
    assert len(parts(sentence * 12, LITE.split)) == 12, "the lite engine's own: a sentence each"


def test_tokens_are_about_those_of_a_byte_pair_tokenizer() -> None:
    """A Han character one, a tag one a bracket, a word one for each four letters begun."""
    size = size_in(TOKENS)
    front = prepare("你好[h][ào] internationalization，yes [R][EH1][D].")
    assert size(front.segments[0].pieces) == 2 + 2 + 5 + 1 + 1 + 3 + 1


@pytest.mark.parametrize("wrong", [{"most": 10}, {"least": 200}, {"fill": 151}, {"least": -1}])
def test_limits_that_contradict_themselves_are_refused(wrong: dict[str, int]) -> None:
    with pytest.raises(ValueError, match="most"):
        SplitLimits(**wrong)


ATOMS = st.sampled_from(
    ["今天", "重庆", "apple ", "三百二十五", "two hundred six ", "“好，走。”", '"Yes. No." ', "，", "。", ". ", "! ",
     "：", "[h][ào]", "[R][EH1][D] ", "、", "—", "（注，意）", "unbelievable ", "\n", "…", "Dr. ", "J. ", "；"]
)  # fmt: skip
LIMITS = st.builds(
    SplitLimits, most=st.integers(20, 160), least=st.integers(0, 20), fill=st.integers(0, 20),
    unit=st.sampled_from(["sounds", "tokens"]),
)  # fmt: skip


@settings(max_examples=400, deadline=None)
@example("三百二十五. ", SplitLimits(most=24, least=0))  # a number too long for a segment, and then only a mark
@given(st.lists(ATOMS, min_size=1, max_size=40).map("".join), LIMITS)
def test_nothing_is_lost_and_nothing_is_longer_than_allowed(text: str, limits: SplitLimits) -> None:
    whole = "今" + text
    size = size_in(limits)
    segments = prepare(whole, limits=limits).segments
    one = "".join(s.text for s in prepare(whole, limits=SplitLimits(most=100_000, least=100_000)).segments)
    assert re.sub(r"\s", "", "".join(s.text for s in segments)) == re.sub(r"\s", "", one)
    for segment in segments:
        assert segment.text.strip()
        assert size(segment.pieces) <= limits.most or len(cuts.words(list(segment.pieces), keep_quotes=False)) == 1


@settings(max_examples=300, deadline=None)
@given(st.lists(ATOMS, min_size=1, max_size=30).map("".join))
def test_every_way_of_cutting_keeps_the_pieces(text: str) -> None:
    pieces = list(prepare("今" + text.replace("\n", " ")).segments[0].pieces)
    for cut in (cuts.sentences, cuts.clauses, cuts.words, lambda p: cuts.letters(p, 3)):
        assert cuts.merge([piece for part in cut(pieces) for piece in part]) == cuts.merge(pieces)


@pytest.mark.parametrize(
    ("text", "count"),
    [
        ("Mr. Smith met Dr. Lee. They left.", 2),
        ("He lives in the U.S. now.", 1),
        ("J. R. Tolkien wrote it.", 1),
        ("好。走！是吗？对；嗯……好", 6),
        ('She said "Stop! Don\'t." and left.', 1),
        ("第一行\n第二行", 2),
    ],
)
def test_sentences(text: str, count: int) -> None:
    limits = SplitLimits(most=20, least=0) if "\n" in text else SplitLimits(most=150, least=0)
    assert len(parts(text, limits)) >= count
    assert len(cuts.sentences(list(prepare(text).segments[0].pieces))) == count or "\n" in text


@pytest.mark.parametrize(
    ("text", "whole"),
    [
        ("倒计时到十二月三十一日二十三点五十九分五十九秒的时候大家在广场上一起大声地喊。", "二十三点五十九分五十九秒"),
        ("请大家在七、八月份的时候准时到三千八百零一室来开会，不要再迟到了好吗。", "三千八百零一室"),
        ("I already paid nineteen ninety-nine dollars for that old thing, my dear friend.", "ninety-nine dollars"),
        ("Please call us back on five five five, one two three, four five six seven today.", "five five five, one two"),
    ],
)
def test_a_number_stays_with_its_unit(text: str, whole: str) -> None:
    most = 140 if re.search("[\u4e00-\u9fff]", text) else 60
    for limits in (SplitLimits(most=most, least=0), SplitLimits(most=24, least=0, unit="tokens")):
        found = parts(text, limits)
        assert any(whole in part for part in found), found
    assert len(parts(text, SplitLimits(most=most, least=0))) > 1


def test_time_is_linear_in_lines_without_a_word() -> None:
    def timed(lines: int) -> float:
        started = time.perf_counter()
        prepare("\n-" * lines + "好")
        return time.perf_counter() - started

    timed(100)
    short, long = (min(timed(lines) for _ in range(3)) for lines in (1_000, 8_000))
    assert long < 24 * short + 0.02
