"""Laws that hold for any mix of scripts, tags, digits and marks."""

from __future__ import annotations

import re
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cosyvoice_app.errors import TextError
from cosyvoice_app.text import arpabet, pinyin
from cosyvoice_app.text.frontend import prepare
from cosyvoice_app.text.instruct import parse_instruct

HAN = st.sampled_from(
    [
        "今天",
        "我们",
        "图书馆",
        "长",
        "重庆",
        "银行",
        "后面",
        "頭髮",
        "说",
        "走",
        "吧",
        "呃",
        "花儿",
        "电影",
        "裡面還有",
        "𠮷野家",
        "万一",
        "三点",
    ]
)
WORDS = st.sampled_from(
    ["apple", "river", "Open", "house", "quickly", "garden", "NASA", "zebra", "FBI", "Paris", "iPhone", "don't"]
).map(lambda w: f" {w} ")
DIGITS = st.sampled_from(
    [
        "12",
        "3.5",
        "2024-02-29",
        "$5",
        "50%",
        "08:30",
        "5kg",
        "0087",
        "1,200",
        "3/4",
        "5-10",
        "21st",
        "-5℃",
        "v1.2.3",
        "No. 7",
        "3:2",
        "5~10km",
        "2×3",
        "①",
        "Ⅳ",
        "１２",
        "10m²",
        "½",
        "+86 138-0000-1234",
        "1e-3",
    ]
)
MARKS = st.sampled_from(
    [*'。？！；：，、…—～·「」《》（）【】“”‘’.?!;:,()"/-_~ \n*#`😂★→&+=@%', "……", "\r\n", "**", "\u200b"]
)
PINYIN_TAG = st.tuples(st.sampled_from(pinyin.INITIALS), st.sampled_from(pinyin.FINALS)).map(
    lambda p: f"[{p[0]}][{p[1]}]"
)
ARPABET_TAG = st.lists(st.sampled_from(arpabet.SYMBOLS), min_size=1, max_size=5).map(
    lambda s: "".join(f"[{x}]" for x in s)
)
EVENT = st.sampled_from(["[breath]", "[laughter]", "[quick_breath]"])
ORDINARY = st.sampled_from(["他[笑]了", "[注]", "【注】", "日本の", "<br>", "&nbsp;", "한국"])
MIX = st.lists(st.one_of(HAN, WORDS, DIGITS, MARKS, PINYIN_TAG, ARPABET_TAG, EVENT, ORDINARY), max_size=25).map("".join)


def _is_subsequence(part: list[str], whole: list[str]) -> bool:
    rest = iter(whole)
    return all(item in rest for item in part)


def _plain(text: str) -> str:
    return re.sub(r"\[[A-Za-zü_\u00c0-\u01ff0-9]+\]|<br>|&nbsp;", " ", text)


@settings(max_examples=400, deadline=None)
@given(MIX)
def test_tags_han_and_words_come_out_in_order(text: str) -> None:
    try:
        front = prepare(text)
    except TextError:
        assert not re.search(r"[A-Za-z\u4e00-\u9fff0-9]", _plain(text))
        return
    out = "".join(s.text for s in front.segments)
    tag = r"\[[A-Za-zü_\u00c0-\u01ff]+[0-2]?\]"
    assert re.findall(tag, out) == re.findall(tag, text)
    assert _is_subsequence(re.findall(r"[\u4e00-\u9fff]", text), re.findall(r"[\u4e00-\u9fff]", out))
    typed = re.findall("[a-z]{4,}", _plain(text).lower())
    assert _is_subsequence(typed, re.findall("[a-z]+", _plain(out).lower()))
    assert not re.search("[0-9]", _plain(out))


@settings(max_examples=300, deadline=None)
@given(MIX)
def test_preparing_again_changes_nothing(text: str) -> None:
    try:
        once = prepare(text)
    except TextError:
        return
    joined = "\n".join(s.text for s in once.segments)
    again = prepare(joined)
    assert "".join(s.text for s in again.segments) == "".join(s.text for s in once.segments)
    assert again.warnings == ()


@settings(max_examples=400, deadline=None)
@given(st.text(max_size=120))
def test_no_text_raises_anything_but_text_error(text: str) -> None:
    try:
        front = prepare(text)
    except TextError as error:
        assert error.param == "text"
        return
    assert front.segments
    for segment in front.segments:
        assert segment.text.lstrip() == segment.text != ""
        assert not re.search(r"[0-9<>|]|\[[^A-Za-zü\u00c0-\u01ff]", re.sub("</?(?:strong|laughter)>", "", segment.text))


@settings(max_examples=300, deadline=None)
@given(st.text(alphabet="[]<>|/haoM AY0ǐ字.s(pause)laughterstrong1-5%$:", max_size=60))
def test_no_pile_of_brackets_raises_anything_but_text_error(text: str) -> None:
    try:
        front = prepare(text)
    except TextError:
        return
    assert all("<|" not in s.text for s in front.segments)


@settings(max_examples=200, deadline=None)
@given(st.text(max_size=80))
def test_any_instruct_is_read(text: str) -> None:
    intent = parse_instruct(text)
    assert 0.6 <= intent.speed <= 1.6


def test_two_hundred_characters_take_milliseconds() -> None:
    text = ("今天是2024年2月29日，She said 15 minutes。[h][ào]的，价格$5.30！" * 8)[:200]
    prepare(text)
    best_s = min(_timed(text) for _ in range(5))
    assert best_s < 0.005, f"{best_s * 1e3:.1f} ms"


def _timed(text: str) -> float:
    start = time.perf_counter()
    prepare(text)
    return time.perf_counter() - start


@pytest.mark.parametrize("unit", ["9", "A1", "1:", "[h]", "[h][ào]", "<|a|>", "[a", "a.", "。 ", "https://a/"])
def test_time_grows_no_faster_than_the_text(unit: str) -> None:
    """Eight times the text in at most 24 times the time; a quadratic front end would take 64."""
    short, long = (min(_timed(unit * count + "好") for _ in range(3)) for count in (500, 4_000))
    assert long < 24 * short + 0.02
