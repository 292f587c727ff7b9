"""On a Chinese page nothing of the front end's is left in English, and what is quoted stays quoted."""

from __future__ import annotations

import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cosyvoice_app.engines.capabilities import LITE
from cosyvoice_app.errors import TextError
from cosyvoice_app.text.frontend import prepare
from cosyvoice_app.text.notices import unspoken
from cosyvoice_app.text.transcript import prepare_transcript
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


def test_an_unknown_message_is_shown_as_it_came() -> None:
    assert remark("Something new.", "zh") == "Something new."


@pytest.mark.parametrize("known", remarks._REMARKS, ids=lambda r: r.english[:30])
def test_every_blank_of_a_translation_is_filled(known: remarks._Remark) -> None:
    blanks = set(re.findall(r"\{(\d)\}", known.chinese))
    assert blanks == {str(n) for n in range(re.compile(known.english).groups)}
