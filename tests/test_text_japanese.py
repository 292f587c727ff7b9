"""Japanese for an engine that speaks it: katakana as pronounced, with and without the package that reads kanji."""

from __future__ import annotations

import importlib.util
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cosyvoice_app.engines.capabilities import COSYVOICE3, LITE
from cosyvoice_app.errors import TextError
from cosyvoice_app.text import japanese
from cosyvoice_app.text.frontend import FrontEnd, prepare
from cosyvoice_app.text.languages import verdict
from cosyvoice_app.text.transcript import prepare_transcript
from cosyvoice_app.types import Text
from cosyvoice_app.web.remarks import remark

ROOT = Path(__file__).parent.parent
needs_package = pytest.mark.skipif(not japanese.available(), reason="pip install -r requirements-japanese.txt")

OFFICIAL = (
    "歴史的世界においては、過去は単に過ぎ去ったものではない、プラトンのいう如く非有が有である。",
    "レキシ テキ セカイ ニ オイ テ ワ、カコ ワ タンニ スギサッ タ モノ デ ワ ナイ、"
    "プラトン ノ イウ ゴトク ヒ ユー ガ ユー デ アル。",
)
"""The pair that the official code gives as its example."""


def nine(text: str) -> FrontEnd:
    return prepare(text, limits=COSYVOICE3.split, languages=COSYVOICE3.languages)


def said(text: str) -> str:
    return "".join(segment.text for segment in nine(text).segments)


@pytest.fixture
def without_the_package() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(japanese, "_frontend", lambda: None)
        yield


@needs_package
def test_the_official_example_comes_out_as_its_authors_wrote_it() -> None:
    assert said(OFFICIAL[0]) == OFFICIAL[1]


@needs_package
@pytest.mark.parametrize(
    ("text", "spoken"),
    [
        ("私は学校へ行きます。", "ワタシ ワ ガッコー エ イキ マス。"),
        ("本を読む。", "ホン ヲ ヨム。"),
        ("今日は2024年4月1日です。", "キョー ワ ニ セン ニ ジュー ヨ ネン シガツ ツイタチ デス。"),
        ("2024/04/01に会おう。", "ニ セン ニ ジュー ヨ ネン シガツ ツイタチ ニ アオー。"),
        ("会議は10:30からです。", "カイギ ワ ジュー ジ サン ジュッ プン カラ デス。"),
        ("りんごを3個とペンを1本買った。", "リンゴ ヲ サン コ ト ペン ヲ イッ ポン カッ タ。"),
        ("気温は-3.5℃、湿度は80%です。", "キオン ワ マイナス サン テン ゴ ド、シツド ワ ハチ ジュッ パーセント デス。"),
        ("¥1,234です。", "セン ニ ヒャク サン ジュー ヨ エン デス。"),
        ("5kmを走った。", "ゴ キロメートル ヲ ハシッ タ。"),
        ("卵を3〜5個。", "タマゴ ヲ サン カラ ゴ コ。"),
        ("iPhone 15 ProとGPT-4を買った。", "iPhone ジュー ゴ Pro ト GPT-4 ヲ カッ タ。"),
        ("AIは速い。", "AI ワ ハヤイ。"),
        ("「ありがとう」と言った。", "「アリガトー」ト イッ タ。"),
        ("何ですか？何をしますか？", "ナン デス カ？ナニ ヲ シ マス カ？"),
        ("コンピューターで、トマト。", "コンピューター デ、トマト。"),
        ("ジョン・スミスです。", "ジョン スミス デス。"),
        ("ﾀﾜｰへ行く。", "タワー エ イク。"),
    ],
)
def test_japanese_is_written_as_pronounced(text: str, spoken: str) -> None:
    assert said(text) == spoken
    assert nine(text).warnings == ()


@needs_package
@pytest.mark.parametrize(
    ("text", "spoken"),
    [
        ("我有3个。りんごを3個買った。I have 3.", "我有三个。リンゴ ヲ サン コ カッ タ。I have three."),
        ("明日はとても[breath]大きい学校へ行く。", "アシタ ワ トテモ[breath]オーキイ ガッコー エ イク。"),
        ("これは[h][ào]です。", "コレ ワ[h][ào]デス。"),
        ("今日は晴れです。東京大学。", "キョー ワ ハレ デス。トーキョーダイガク。"),
        ("こんにちは。再见。", "コンニチワ。再见。"),
        ("他说「こんにちは」，走了3步。", "他说「こんにちは」，走了三步。"),
    ],
)
def test_other_languages_and_tags_beside_it(text: str, spoken: str) -> None:
    assert said(text) == spoken


@needs_package
@settings(max_examples=120, deadline=None)
@given(
    st.lists(
        st.sampled_from(
            ["私は", "学校へ", "行きます", "トマト", "を", "3個", "10:30", "2024年", "-5℃", "1,234円", "iPhone 15",
             "GPT-4", "、", "。", "！", "「", "」", "ー", "々",
             "〆切", "𠮷野家", "龘", "ゟ", "ッ", "ｶﾅ", " ", "😂",
             "03-1234-5678", "[breath]", "$5", "1/2", "\n", "Tシャツ", "は", "へ"]
        ),
        max_size=14,
    ).map("".join)
)  # fmt: skip
def test_doing_it_again_changes_nothing(text: str) -> None:
    text += "と言います。"
    try:
        once = nine(text)
    except TextError:
        return
    for segment in once.segments:
        assert not re.search(r"[\u3041-\u3096]", segment.text) or verdict(segment.text) != "ja"
        if verdict(segment.text) == "ja":
            assert said(segment.text).rstrip() == segment.text.rstrip()


@needs_package
def test_reading_has_no_other_effect_on_the_process(capfd: pytest.CaptureFixture[str]) -> None:
    """`normalize --json` is read by programs."""
    assert said("何ですか？") == "ナン デス カ？"
    assert capfd.readouterr().out == ""


@pytest.mark.usefixtures("without_the_package")
@pytest.mark.parametrize(
    ("text", "spoken"),
    [
        ("私は学校へ行きます。", "私ハ学校ヘ行キマス。"),
        ("りんごを3個ください。", "リンゴヲ3個クダサイ。"),
        ("ありがとう、またね。", "アリガトウ、マタネ。"),
        ("iPhone 15を買った。", "iPhone 15ヲ買ッタ。"),
        ("今日は10:30から、80%です。", "今日ハ10:30カラ、80%デス。"),
        ("これは[breath]大きい。", "コレハ[breath]大キイ。"),
    ],
)
def test_without_the_package_kana_are_written_and_a_warning_names_the_remedy(text: str, spoken: str) -> None:
    front = nine(text)
    assert "".join(s.text for s in front.segments) == spoken
    (warning,) = front.warnings
    assert f'"{text}"' in warning and "pip install -r requirements-japanese.txt" in warning
    chinese = remark(warning, "zh")
    assert text in chinese and "pip install -r requirements-japanese.txt" in chinese and "Japanese" not in chinese


@pytest.mark.usefixtures("without_the_package")
def test_without_the_package_katakana_needs_no_warning() -> None:
    front = nine(OFFICIAL[1])
    assert "".join(s.text for s in front.segments) == OFFICIAL[1] and front.warnings == ()


@pytest.mark.usefixtures("without_the_package")
def test_each_sentence_has_its_warning() -> None:
    assert len(nine("私です。我是学生。彼です。").warnings) == 2


def test_half_of_what_is_required_is_not_enough(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without onnxruntime the package prints to standard output and reads 何 worse."""
    find = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "onnxruntime" else find(name))
    assert not japanese.available()
    required = (ROOT / "requirements-japanese.txt").read_text(encoding="utf-8")
    assert "pyopenjtalk-plus[onnxruntime]" in required


def test_an_engine_without_japanese_gets_it_as_before() -> None:
    text = "私は3個の学校へ行きます。"
    assert prepare(text, languages=LITE.languages) == prepare(text)
    assert "私は" in prepare(text).segments[0].text and prepare(text).warnings == ()
    assert "学校" in "".join(s.text for s in prepare(text, languages=("zh", "en", "ko")).segments)


@pytest.mark.parametrize(
    ("text", "language"),
    [
        ("今日は晴れ。", "ja"),
        ("トマト。", "ja"),
        ("レキシ テキ セカイ。", "ja"),
        ("鲜の味道", "zh/en"),
        ("我喜欢「ドラえもん」。", "zh/en"),
        ("頰を剝ぐ。", "ja"),
        ("東京大学", None),
        ("iPhoneを買った the movie。", "ja"),
    ],
)
def test_kana_tell_japanese_from_chinese(text: str, language: str | None) -> None:
    assert verdict(text) == language


def test_pieces_know_their_language() -> None:
    pieces = [p for s in nine("今日は晴れです。It is fine.").segments for p in s.pieces if isinstance(p, Text)]
    assert [piece.language for piece in pieces] == ["ja", "en"]


@needs_package
def test_a_clips_japanese_words_are_counted_by_morae() -> None:
    made = prepare_transcript("私は学校へ行きます。", 2.0, languages=COSYVOICE3.languages)
    assert made.text == "ワタシ ワ ガッコー エ イキ マス。"
    assert made.syllables == 11 and made.warnings == ()
