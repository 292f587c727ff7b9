"""Instruct texts become intents: in the right direction, within safe limits, with nothing ignored silently."""

from __future__ import annotations

import re
from pathlib import Path
from typing import get_args

import pytest

from cosyvoice_app.engines.capabilities import KNOWN
from cosyvoice_app.text import instruct
from cosyvoice_app.text.instruct import DIALECTS, INSTRUCT_CHIPS, OFFICIAL, chips_for, parse_instruct
from cosyvoice_app.types import InstructKind, Intent


@pytest.mark.parametrize("text", ["", "   ", "\n\t", "\u3000"])
def test_blank_is_neutral(text: str) -> None:
    assert parse_instruct(text) == Intent()


@pytest.mark.parametrize(
    ("faster", "slower"),
    [
        ("请用尽可能快的语速说", "请用尽可能慢的语速说"),
        ("请用尽可能快地语速说一句话。", "请用尽可能慢地语速说一句话。"),
        ("as fast as possible", "as slowly as possible"),
        ("much faster", "much slower"),
    ],
)
def test_fast_and_slow_are_well_apart(faster: str, slower: str) -> None:
    """Duration goes as 1 / speed."""
    assert parse_instruct(slower).speed / parse_instruct(faster).speed <= 0.8


@pytest.mark.parametrize(
    "text", ["加快语速", "快一点", "语速快一些", "说得快点", "faster", "speak quickly", "speed up", "稍微快一点"]
)
def test_faster(text: str) -> None:
    assert parse_instruct(text).speed > 1.05


@pytest.mark.parametrize(
    "text", ["放慢语速", "慢一点", "慢慢地说", "slower", "speak slowly", "slow down", "a bit slower", "不要太快"]
)
def test_slower(text: str) -> None:
    assert parse_instruct(text).speed < 0.95


@pytest.mark.parametrize(
    "text",
    [
        "大声",
        "声音大一点",
        "提高音量",
        "louder",
        "speak loudly",
        "shout",
        "Please say a sentence as loudly as possible.",
    ],
)
def test_louder(text: str) -> None:
    assert parse_instruct(text).loudness_db > 2


@pytest.mark.parametrize(
    "text",
    [
        "小声",
        "声音小一点",
        "轻声",
        "quieter",
        "softer",
        "whisper",
        "耳语",
        "Please say a sentence in a very soft voice.",
    ],
)
def test_softer(text: str) -> None:
    assert parse_instruct(text).loudness_db < -2


@pytest.mark.parametrize("text", ["音调高一点", "声音高一点", "higher pitch", "raise the pitch"])
def test_higher(text: str) -> None:
    assert parse_instruct(text).pitch_semitones > 0.5


@pytest.mark.parametrize(
    "text", ["低沉", "声音低沉一点", "音调低一点", "deeper voice", "lower pitch", "in a deep voice"]
)
def test_lower(text: str) -> None:
    assert parse_instruct(text).pitch_semitones < -0.5


@pytest.mark.parametrize("text", ["平淡", "monotone", "没有感情", "in a flat voice"])
def test_narrower_range(text: str) -> None:
    assert parse_instruct(text).pitch_range < 0.8


@pytest.mark.parametrize(
    ("text", "emotion"),
    [
        ("开心", "happy"),
        ("用开心的语气说", "happy"),
        ("cheerful", "happy"),
        ("伤心", "sad"),
        ("Speak slowly and sadly.", "sad"),
        ("生气", "angry"),
        ("angry", "angry"),
        ("平静", "calm"),
        ("calm", "calm"),
        ("兴奋", "excited"),
        ("excited", "excited"),
        ("温柔一点", "gentle"),
        ("speak gently", "gentle"),
        ("whisper", "whisper"),
        ("请非常生气地说一句话。", "angry"),
    ],
)
def test_emotions(text: str, emotion: str) -> None:
    intent = parse_instruct(text)
    assert intent.emotion == emotion
    assert intent.unmet == ()


def test_intensity_orders() -> None:
    little, plain, much, most = (parse_instruct(t).speed for t in ("稍微快一点", "快一点", "非常快", "尽可能快"))
    assert 1 < little < plain < much < most


def test_negation_turns_round() -> None:
    assert parse_instruct("don't be so loud").loudness_db < 0
    assert parse_instruct("别太慢").speed > 1


def test_several_wishes_add_up() -> None:
    intent = parse_instruct("语速快一点，声音大一点，音调低一点")
    assert (intent.speed > 1.1, intent.loudness_db > 2, intent.pitch_semitones < -1, intent.unmet) == (
        True,
        True,
        True,
        (),
    )


def test_the_official_sentences_are_all_understood() -> None:
    assert len(OFFICIAL) == len(set(OFFICIAL)) == 26
    for sentence in OFFICIAL:
        intent = parse_instruct(sentence)
        neutral = (intent.speed, intent.pitch_semitones, intent.pitch_range, intent.loudness_db) == (1.0, 0.0, 1.0, 0.0)
        named = intent.dialect or intent.role
        assert bool(named) == neutral, sentence
        assert intent.unmet == ((named,) if named else ()), sentence


@pytest.mark.parametrize("dialect", DIALECTS)
def test_dialects(dialect: str) -> None:
    assert parse_instruct(f"请用{dialect}表达。").dialect == dialect


def test_roles_and_aliases() -> None:
    assert parse_instruct("我想体验一下小猪佩奇风格，可以吗？").role == "小猪佩奇"
    assert parse_instruct("你可以尝试用机器人的方式解答吗？").role == "机器人"
    assert parse_instruct("in Cantonese").dialect == "广东话"


@pytest.mark.parametrize(
    ("text", "quoted"),
    [
        ("用火星语说", "火星语"),
        ("say it like a pirate", "pirate"),
        ("With a British accent", "British accent"),
        ("用守夜人的口吻，慢一点", "守夜人"),
        ("四川口音", "四川"),
    ],
)
def test_what_is_not_understood_is_quoted(text: str, quoted: str) -> None:
    assert any(quoted in part for part in parse_instruct(text).unmet)


@pytest.mark.parametrize("chip", [wording for pair in INSTRUCT_CHIPS for wording in pair])
def test_every_chip_changes_the_speech_and_is_wholly_understood(chip: str) -> None:
    intent = parse_instruct(chip)
    assert (intent.speed, intent.pitch_semitones, intent.pitch_range, intent.loudness_db) != (1.0, 0.0, 1.0, 0.0)
    assert intent.unmet == ()


def test_chips_mean_the_same_in_both_languages() -> None:
    for zh, en in INSTRUCT_CHIPS:
        a, b = parse_instruct(zh), parse_instruct(en)
        assert (a.speed, a.pitch_semitones, a.pitch_range, a.loudness_db, a.emotion) == (
            b.speed,
            b.pitch_semitones,
            b.pitch_range,
            b.loudness_db,
            b.emotion,
        ), (zh, en)


@pytest.mark.parametrize(
    "text",
    [
        "非常非常快" * 20,
        "extremely fast, very loud, very excited, very happy, extremely angry, higher pitch " * 5,
        "尽可能慢，非常伤心，非常疲惫，耳语，低沉",
    ],
)
def test_factors_stay_safe(text: str) -> None:
    intent = parse_instruct(text)
    for value, (low, high) in (
        (intent.speed, instruct.SPEED_RANGE),
        (intent.pitch_semitones, instruct.PITCH_RANGE_SEMITONES),
        (intent.pitch_range, instruct.RANGE_RANGE),
        (intent.loudness_db, instruct.LOUDNESS_RANGE_DB),
    ):
        assert low <= value <= high


def test_the_words_are_kept_for_engines_that_take_them() -> None:
    assert parse_instruct("  用开心的语气说\n").text == "用开心的语气说"


def test_the_table_of_the_manual_is_what_the_engines_say() -> None:
    manual = (Path(__file__).parents[1] / "docs" / "text.md").read_text(encoding="utf-8")
    names = re.search(r"\| asked for \| such as \|(.*)\|\n", manual)[1].replace(" ", "").split("|")  # type: ignore[index]
    assert set(names) == set(KNOWN)
    for kind in get_args(InstructKind):
        row = re.search(rf"^\| {kind} \|[^|]*\|(.*)\|$", manual, re.MULTILINE)
        assert row, kind
        cells = row[1].replace(" ", "").split("|")
        assert cells == ["yes" if kind in KNOWN[name].instruct else "no" for name in names], kind


@pytest.mark.parametrize("name", sorted(KNOWN))
def test_every_engine_is_offered_wordings_it_does(name: str) -> None:
    chips = chips_for(KNOWN[name])
    assert len({chip.label for chip in chips}) == len(chips) > 5
    if "dialect" in KNOWN[name].instruct:
        assert tuple(chip.words[0] for chip in chips) == OFFICIAL and len(OFFICIAL) == 26
        assert all(chip.whole and chip.words[0] == chip.words[1] for chip in chips)
    else:
        assert all(not parse_instruct(words).unmet for chip in chips for words in chip.words)
