"""On a Chinese page nothing of the front end's is left in English, and what is quoted stays quoted."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cosyvoice_app.engines.capabilities import COSYVOICE3, LITE
from cosyvoice_app.engines.cosyvoice3.instructions import instruction
from cosyvoice_app.engines.speed import hold_speed
from cosyvoice_app.errors import BadAudio, BadInput, TextError
from cosyvoice_app.pipeline import plan
from cosyvoice_app.text.frontend import prepare
from cosyvoice_app.text.instruct import parse_instruct
from cosyvoice_app.text.notices import unspoken
from cosyvoice_app.text.transcript import prepare_transcript
from cosyvoice_app.types import Intent, NeverCancelled, Pause, PromptClip, Row, Segment, Text, Utterance, Voice
from cosyvoice_app.web import remarks
from cosyvoice_app.web.remarks import remark

ODD = st.sampled_from(
    ["好", "[xyz1]", "[l][ǖ]", "<|x|>", "[", "]", "[pause 99s]", "[pause 1s]", "<strong>", "</strong>", "😂", "★", "。",
     "今日は晴れです。", "오늘은.", "[breath]", "a", '"', "\n", "{", "}", "<break time='q'/>", "[j[ǐ]]",
     "\n1\n00:00:01,000 --> 00:00:04,000\n"]
)  # fmt: skip


def quoted(message: str) -> list[str]:
    return re.findall(r'"(.+)"', message)


@settings(max_examples=400, deadline=None)
@given(st.lists(ODD, max_size=30).map("".join))
def test_every_warning_of_a_text_is_translated(text: str) -> None:
    said: list[str] = []
    try:
        front = prepare(text, max_chars=40)
        said += [*front.warnings, *unspoken(front.segments, LITE)]
    except TextError as error:
        said.append(error.message)
    said += prepare_transcript(text, 3.0).warnings
    for message in said:
        chinese = remark(message, "zh")
        assert chinese != message and re.match("[\u4e00-\u9fff“]", chinese), message
        assert all(words in chinese for words in quoted(message))
        assert remark(message, "en") == message


@pytest.mark.parametrize("asked", ["speak gently", "像播音员那样说!", 'say "hi"\n like a pirate', "sad and loud"])
def test_what_is_said_of_an_instruction_is_translated(asked: str) -> None:
    (message,) = instruction(parse_instruct(asked)).warnings
    chinese = remark(message, "zh")
    assert chinese.startswith("“" + asked) and "tuned" not in chinese


def test_what_the_style_encoders_say_of_a_speed_is_translated() -> None:
    (message,) = hold_speed(0.3)[1]
    assert remark(message, "zh") == "语速 0.30 已限制为 0.50，以保证清晰。"


def test_letters_of_no_language_are_told_in_chinese() -> None:
    (message,) = unspoken(prepare("สวัสดีครับ", languages=COSYVOICE3.languages).segments, COSYVOICE3)
    assert remark(message, "zh").startswith("“สวัสดีครับ”中有")


@pytest.mark.parametrize(("field", "value"), [("transcript", "a" * 5000), ("instruct", "a" * 5000)])
def test_words_beside_the_text_that_are_too_long_are_told_in_chinese(field: str, value: str, p0: PromptClip) -> None:
    with pytest.raises(BadInput) as caught:
        plan(p0, "Hello.", seed=1, max_chars=100, **{field: value})  # type: ignore[arg-type]
    assert re.fullmatch(r"(片段原文|指令)有 5000 个字符，最多 \d+ 个。", remark(caught.value.message, "zh"))


def test_what_the_language_model_refuses_is_told_in_chinese(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    import cv3_tiny as tiny

    from cosyvoice_app.engines.cosyvoice3.voice import ClonedVoice

    engine = tiny.engine(tmp_path)

    def refusal(segment: Segment) -> str:
        row = Row(Utterance((segment,), Intent(), 1), 0, Voice("key", ClonedVoice(tiny.features(5, 5), "hi")),
                  engine.style_encoder.encode(Intent(), speed=1.0), 1)
        with pytest.raises((TextError, BadAudio)) as caught:
            engine.acoustic_model.predict([row], cancel=NeverCancelled())
        return remark(caught.value.message, "zh")

    assert refusal(Segment("long", (Text("word " * 200, "en"),))).startswith("文字超出语言模型的长度：")
    assert refusal(Segment("…", (Pause(100),))).startswith("模型没有读出“…”")


def test_an_unknown_message_is_shown_as_it_came() -> None:
    assert remark("Something new.", "zh") == "Something new."


@pytest.mark.parametrize("known", remarks._REMARKS, ids=lambda r: r.english[:30])
def test_every_blank_of_a_translation_is_filled(known: remarks._Remark) -> None:
    blanks = set(re.findall(r"\{(\d)\}", known.chinese))
    assert blanks == {str(n) for n in range(re.compile(known.english).groups)}
