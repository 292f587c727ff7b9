"""The clip's words: cleaned, in one piece, and compared with the clip's length. And what an engine can't speak."""

from __future__ import annotations

from dataclasses import replace

import pytest

from cosyvoice_app.engines.capabilities import COSYVOICE3, LITE
from cosyvoice_app.text.frontend import prepare
from cosyvoice_app.text.notices import unspoken
from cosyvoice_app.text.pronunciations import from_lines
from cosyvoice_app.text.transcript import prepare_transcript, syllables
from cosyvoice_app.types import Text


@pytest.mark.parametrize(
    ("typed", "text"),
    [
        ("今天是2024-02-29。\n\n我们走吧", "今天是二零二四年二月二十九日。我们走吧"),
        ("I have 3 cats.\r\nAnd **you**?", "I have three cats. And you?"),
        ("他[h][ào]学[pause 2s]吗", "他[h][ào]学吗"),
        ("  ", ""),
        ("。。。", ""),
        ("好<|endofprompt|>坏", "好坏"),
        ("第一句话在这里。" * 30, "第一句话在这里。" * 30),
    ],
)
def test_it_is_cleaned_like_any_text_and_not_split(typed: str, text: str) -> None:
    assert prepare_transcript(typed, 0.0).text == text


def test_its_own_pronunciations_are_used() -> None:
    assert prepare_transcript("行家", 1.0, pronunciations=from_lines("行家 = háng jiā")).text == "[h][áng][j][iā]"


@pytest.mark.parametrize(
    ("text", "speech_s"),
    [
        ("And always that same pretext is offered, it looks like the thing.", 3.4),
        ("所有因外部冲击导致房价泡沫破灭的经济体", 4.6),
        ("Six spoons of fresh snow peas, five thick slabs of blue cheese, and maybe a snack for her brother Bob.", 5.0),
        ("", 5.0),
    ],
)
def test_words_that_fit_are_not_remarked_on(text: str, speech_s: float) -> None:
    assert prepare_transcript(text, speech_s).warnings == ()


@pytest.mark.parametrize(
    ("text", "speech_s", "said"),
    [
        ("今天天气很好，我们去公园走走吧，然后再回家吃晚饭。" * 3, 3.0, "too many"),
        ("Good morning.", 9.0, "too few"),
        ("。。。", 5.0, "hold nothing"),
        ("好的😂" * 5, 3.0, "Not spoken"),
    ],
)
def test_words_that_cannot_be_the_clips_are_remarked_on(text: str, speech_s: float, said: str) -> None:
    warnings = prepare_transcript(text, speech_s).warnings
    assert any(said in warning for warning in warnings)


@pytest.mark.parametrize(
    ("words", "count"),
    [("strawberry", 3), ("played the games", 3), ("a table", 3), ("FBI", 3), ("I", 1), ("今天3", 2), ("rhythm", 1),
     ("wanted boxes", 4), ("quiet", 1), ("café", 2)],
)  # fmt: skip
def test_syllables_are_counted_about_right(words: str, count: int) -> None:
    assert abs(syllables(Text(words, "en")) - count) <= 1


# what an engine can't speak


def test_japanese_and_korean_are_told_not_read_as_chinese() -> None:
    segments = prepare("今天很好。東京は今日も晴れです。오늘은 날씨가 좋아요.").segments
    said = unspoken(segments, LITE)
    assert len(said) == 2
    assert "東京は今日も晴れです。" in said[0] and "Japanese" in said[0]
    assert "오늘은 날씨가 좋아요." in said[1] and "Korean" in said[1]
    assert unspoken(segments, COSYVOICE3) == ()


def test_one_kana_in_a_chinese_sentence_is_decoration() -> None:
    assert unspoken(prepare("优の良品很好吃。").segments, LITE) == ()
    assert len(unspoken(prepare("今日はいい天気。").segments, LITE)) == 1


def test_events_are_told_where_the_engine_has_none() -> None:
    segments = prepare("[breath]好，<strong>走</strong>吧[laughter]。[breath]").segments
    said = unspoken(segments, LITE)
    assert len(said) == 4 and '"[breath]"' in said[0] and '"</strong>"' in said[2]
    assert unspoken(segments, COSYVOICE3) == ()
    assert len(unspoken(segments, replace(LITE, events=("breath", "laughter")))) == 2


@pytest.mark.parametrize("words", ["สวัสดีครับ", "مرحبا بالعالم", "नमस्ते दुनिया", "שלום", "Καλημέρα κόσμε", "გამარჯობა"])
def test_letters_of_no_language_of_the_engine_are_told_with_their_sentence(words: str) -> None:
    segments = prepare(f"Hello there. {words}. 再见。", languages=COSYVOICE3.languages).segments
    (notice,) = unspoken(segments, COSYVOICE3)
    assert notice.startswith(f'"{words}." has letters') and "misread" in notice
    assert unspoken(segments, LITE) == ()  # tells itself what it left out
    without_russian = replace(COSYVOICE3, languages=("zh", "en", "ja"))
    assert len(unspoken(prepare("Привет, мир.").segments, without_russian)) == 1


@pytest.mark.parametrize(
    "text",
    ["Größe, café, œuvre, ñ.", "Tiếng Việt đẹp.", "Привет, мир.", "안녕하세요.", "人々、時々、ラーメーン、ヵ月、ｱｲｳｰ。",
     "优の良品很好吃。", "π ≈ 3.14, αβγ 射线, 5 μm, ℵ.", "x²³ ①② ＡＢＣ", "[h][ào] [breath] 😀"],
)  # fmt: skip
def test_letters_of_the_engine_s_languages_and_signs_are_not_told(text: str) -> None:
    assert unspoken(prepare(text, languages=COSYVOICE3.languages).segments, COSYVOICE3) == ()


def test_a_greek_word_is_no_row_of_signs() -> None:
    (segment,) = prepare("Καλημέρα κόσμε, αβ, π").segments
    assert segment.text == "Καλημέρα κόσμε, 阿尔法贝塔, 派"
