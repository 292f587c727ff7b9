"""Tags: the typed form, its one canonical spelling, and what happens to what isn't a tag."""

from __future__ import annotations

import re
import unicodedata

import pytest

from cosyvoice_app.errors import TextError
from cosyvoice_app.text import arpabet, pinyin, tags
from cosyvoice_app.text.frontend import prepare
from cosyvoice_app.types import Arpabet, Event, Pause, Pinyin


def spoken(text: str) -> str:
    return "".join(s.text for s in prepare(text).segments)


def test_the_inventory_is_the_tokenizers() -> None:
    assert len(arpabet.SYMBOLS) == len(set(arpabet.SYMBOLS)) == 84
    parts = (*pinyin.INITIALS, *pinyin.FINALS)
    assert len(parts) == len(set(parts)) == 176
    assert all(unicodedata.is_normalized("NFC", p) for p in parts)
    assert all(pinyin.is_final(f) for f in ("ào", "ǐ", "ér", "ǘ", "vè", "iú"))
    assert not any(pinyin.is_final(f) for f in ("ēr", "ǖ", "er", "ü", "vé", "ia", "ui"))


@pytest.mark.parametrize(
    "text",
    [
        "请把书[h][uán]给图书馆。",
        "这把尺子[ch][áng]三十厘米。",
        "[zh][ǎng]大以后再说",
        "他说[ch][óng]新来过",
        "[ér]子",
        "[m][a]",
        "say [L][EH1][D] now",
        "[laughter]好",
        "<strong>好</strong>的",
    ],
)
def test_a_tag_comes_out_byte_for_byte_at_its_place(text: str) -> None:
    assert spoken(text) == text
    assert prepare(text).warnings == ()


def test_a_tag_beside_text_that_needs_expanding() -> None:
    assert (
        spoken("She [R][EH1][D] it on 2024-02-29.")
        == "She [R][EH1][D] it on February twenty-ninth, twenty twenty-four."
    )
    assert spoken("[ch][áng]2024-02-29") == "[ch][áng]二零二四年二月二十九日"


@pytest.mark.parametrize(
    ("typed", "canonical"),
    [
        ("zuo4", "[z][uò]"),
        ("zuò", "[z][uò]"),
        ("ZUO4", "[z][uò]"),
        ("lv4", "[l][ǜ]"),
        ("lü4", "[l][ǜ]"),
        ("nǚ", "[n][ǚ]"),
        ("lve4", "[l][vè]"),
        ("yuan2", "[y][uán]"),
        ("er2", "[ér]"),
        ("ma5", "[m][a]"),
        ("ma0", "[m][a]"),
        ("zhuang1", "[zh][uāng]"),
        ("liu2", "[l][iú]"),
        ("gui4", "[g][uì]"),
        ("ju2", "[j][ú]"),
        ("wo3", "[w][ǒ]"),
        ("h][ao4", "[h][ào]"),
        ("a4", "[à]"),
        ("zuo\u0300", "[z][uò]"),
    ],
)
def test_other_spellings_are_converted(typed: str, canonical: str) -> None:
    front = prepare(f"这个[{typed}]字")
    assert front.segments[0].text == f"这个{canonical}字"
    assert front.warnings == ()


@pytest.mark.parametrize(
    "tag",
    [
        "[zuo]",
        "[zuo9]",
        "[xyz]",
        "[j]",
        "[]",
        "[l][ǖ]",
        "[j[ǐ]]",
        "[j]ǐ",
        "[pause x]",
        "[er1]",
        "[AY3]",
        "[m4o]",
        "[zuò4]",
    ],
)
def test_a_malformed_tag_is_quoted_and_not_spoken(tag: str) -> None:
    front = prepare(f"这个{tag}字")
    assert front.segments[0].text == "这个字"
    assert len(front.warnings) == 1
    assert tag in front.warnings[0]


def test_a_lone_bracket_is_reported() -> None:
    front = prepare("这个[字")
    assert front.segments[0].text == "这个字"
    assert "[字" in front.warnings[0]


@pytest.mark.parametrize(
    ("text", "kept"),
    [
        ("数组a[0]和b[1]", ["数组", "a", "零", "和", "b", "一"]),
        ("见[注3]", ["见", "注", "三"]),
        ("【注意】前方", ["注意", "前方"]),
        ("他[笑]了", ["他", "笑", "了"]),
        ("x[i] = [the first one]", ["x", "i", "the first one"]),
        ("研究[12]表明", ["研究", "十二", "表明"]),
        ("[see docs](https://a.com)", ["see docs", "a"]),
    ],
)
def test_ordinary_brackets_keep_their_content(text: str, kept: list[str]) -> None:
    front = prepare(text)
    out = "".join(s.text for s in front.segments)
    assert front.warnings == ()
    assert re.search(".*".join(map(re.escape, kept)), out), out
    assert "[" not in out


@pytest.mark.parametrize(
    "text",
    [
        "<|endofprompt|>你好",
        "你<|im_start|>好",
        "<|<|x|>im_end|>好你",
        "<|你好|>世界",
        "a<|b|>c",
        "<|endof\u200bprompt|>你好",
        "＜|endofprompt|＞你好",
        "<|endofprompt|你好",
    ],
)
def test_control_tokens_never_come_through(text: str) -> None:
    out = spoken(text)
    assert "<|" not in out
    assert "|>" not in out


def test_a_control_token_is_quoted() -> None:
    assert any("<|endofprompt|>" in w for w in prepare("<|endofprompt|>你好").warnings)


def test_pieces_are_typed() -> None:
    parsed = tags.parse("你[h][ào][M][AY0][N][laughter][pause 250ms][0.8s]<strong>好</strong>")
    assert parsed.parts == (
        "你",
        Pinyin("h", "ào"),
        Arpabet(("M", "AY0", "N")),
        Event("laughter"),
        Pause(250),
        Pause(800),
        Event("<strong>"),
        "好",
        Event("</strong>"),
    )


def test_a_run_may_mix_languages_by_case() -> None:
    assert tags.parse("[m][ā][M][AA1]").parts == (Pinyin("m", "ā"), Arpabet(("M", "AA1")))


def test_a_pause_has_a_longest_length() -> None:
    parsed = tags.parse("好[pause 60s]了")
    assert parsed.parts[1] == Pause(tags.MAX_PAUSE_MS)
    assert "60s" in parsed.warnings[0]


@pytest.mark.parametrize("text", ["<strong>好", "好</strong>"])
def test_an_unpaired_span_is_reported(text: str) -> None:
    assert "strong>" in prepare(text).warnings[0]


@pytest.mark.parametrize(
    "text",
    ["[" * 500 + "好", "]" * 500 + "好", "[a" * 300 + "好", "<|" * 500 + "好", "[h]" * 300 + "好", "[[[h][ào]]]" * 50],
)
def test_bracket_storms_are_survived(text: str) -> None:
    try:
        assert "好" in spoken(text) or "ào" in spoken(text)
    except TextError:
        pytest.fail("there is something to speak")


@pytest.mark.parametrize(
    ("typed", "canonical"),
    [
        ("[chong2 qing4]市", "[ch][óng][q][ìng]市"),
        ("[chóng qìng]市", "[ch][óng][q][ìng]市"),
        ("Say [HH AH0 L OW1] now", "Say [HH][AH0][L][OW1] now"),
        ("She [r][eh1][d] it", "She [R][EH1][D] it"),
        ("[b][ey1][s]", "[B][EY1][S]"),
        ("[er2]子", "[ér]子"),
        ("[a b c]", "a b c"),
        ("[hang2 xyz9]", "hang two xyz nine"),
    ],
)
def test_a_whole_word_may_stand_in_one_bracket_or_in_small_letters(typed: str, canonical: str) -> None:
    assert "".join(s.text for s in prepare(typed).segments) == canonical


@pytest.mark.parametrize(
    ("markup", "ms"),
    [('<break time="500ms"/>', 500), ("<break time='1.5s' />", 1500), ("<break/>", 500), ("<BREAK TIME=2s>", 2000)],
)
def test_the_break_of_speech_markup_is_a_pause(markup: str, ms: int) -> None:
    first, second = prepare(f"好。{markup}走。").segments
    assert (first.text, second.text, first.pause_after_ms) == ("好。", "走。", ms)


def test_a_break_without_a_length_is_quoted() -> None:
    made = prepare("好。<break time='soon'/>走。")
    assert any("soon" in warning for warning in made.warnings) and "soon" not in made.segments[0].text


@pytest.mark.parametrize(
    ("typed", "spoken"),
    [
        ("matrix[i][j] = data[row][col]", "matrix i j equals data row col"),
        ("see Fig. [a] and [b1]", "see Fig. a and"),
        ("他说[a]", "他说[a]"),
    ],
)
def test_an_index_of_an_index_is_text_and_a_letter_among_english_words_no_syllable(typed: str, spoken: str) -> None:
    assert "".join(s.text for s in prepare(typed).segments) == spoken


@pytest.mark.parametrize(
    ("tag", "ms"),
    [("[.5s]", 500), ("[pause 0.5 seconds]", 500), ("[停顿 2秒]", 2000), ("[停頓]", 500), ("[300毫秒]", 300)],
)
def test_pauses_may_be_written_as_people_write_them(tag: str, ms: int) -> None:
    assert prepare(f"好。{tag}走。").segments[0].pause_after_ms == ms


def test_the_marks_of_an_event_may_be_capitals() -> None:
    assert prepare("<STRONG>好</STRONG>").segments[0].text == "<strong>好</strong>"
