"""What an instruct text asks for, as one engine-independent `Intent`. Chinese and English, free wording and the official sentences.

Reading is by cues: every cue found adds its change, an intensifier beside it scales the change, and what is left over and
was not understood is quoted in `Intent.unmet`. Factors are clamped to what still sounds like speech.
"""

from __future__ import annotations

import re
import unicodedata
from dataclasses import dataclass

from cosyvoice_app.text.chars import words
from cosyvoice_app.types import Intent

SPEED_RANGE = (0.6, 1.6)
PITCH_RANGE_SEMITONES = (-4.0, 4.0)
RANGE_RANGE = (0.5, 1.6)
LOUDNESS_RANGE_DB = (-9.0, 9.0)

DIALECTS: tuple[str, ...] = words(
    "广东话 东北话 甘肃话 贵州话 河南话 湖北话 湖南话 江西话 闽南话 宁夏话 山西话 陕西话 山东话 上海话 四川话 "
    "天津话 云南话"
)
OFFICIAL: tuple[str, ...] = (
    *(f"请用{d}表达。" for d in DIALECTS),
    "Please say a sentence as loudly as possible.", "Please say a sentence in a very soft voice.",
    "请用尽可能慢地语速说一句话。", "请用尽可能快地语速说一句话。",
    "请非常开心地说一句话。", "请非常伤心地说一句话。", "请非常生气地说一句话。",
    "我想体验一下小猪佩奇风格，可以吗？", "你可以尝试用机器人的方式解答吗？",
)
"""The instructions that CosyVoice3 was tuned on."""

INSTRUCT_CHIPS: tuple[tuple[str, str], ...] = (
    ("温柔一点", "gently"), ("开心地说", "cheerfully"), ("伤心地说", "sadly"), ("生气地说", "angrily"), ("平静地说", "calmly"),
    ("兴奋地说", "excitedly"), ("快一点", "faster"), ("慢一点", "slower"), ("大声一点", "louder"), ("小声一点", "softer"),
    ("音调高一点", "higher pitch"), ("音调低一点", "lower pitch"), ("更有起伏", "more expressive"), ("平淡一点", "monotone"),
)
"""(Chinese, English) wordings to offer on the page; a prosody engine does every one of them."""


@dataclass(frozen=True, slots=True)
class _Change:
    """How far a cue moves each factor at ordinary strength: speed and range as logarithm-like steps (1.15 = 15 % more)."""

    speed: float = 1.0
    pitch: float = 0.0
    range: float = 1.0
    loudness: float = 0.0
    emotion: str | None = None


_CUES: tuple[tuple[str, _Change], ...] = (
    # Emotions and manners move several factors; they come first so that their words aren't read as plain ones.
    (r"开心|高兴|快乐|愉快|欢快|欢乐|喜悦|活泼|happ(?:y|ily)|cheer(?:ful|fully|y)|joy(?:ful|fully)?|merr(?:y|ily)|upbeat|bright(?:ly)?",
     _Change(1.06, 1.0, 1.25, 1.0, "happy")),
    (r"兴奋|激动|热情|激昂|excit(?:ed|edly|ement)|enthusias(?:tic|tically|m)|energetic(?:ally)?|passionate(?:ly)?|thrilled",
     _Change(1.12, 1.5, 1.35, 3.0, "excited")),
    (r"伤心|悲伤|难过|悲痛|忧伤|沮丧|哀伤|失落|sad(?:ly|ness)?|sorrow(?:ful|fully)?|mournful(?:ly)?|depressed|unhapp(?:y|ily)|melanchol(?:y|ic)|gloom(?:y|ily)",
     _Change(0.86, -1.0, 0.75, -2.0, "sad")),
    (r"生气|愤怒|恼火|发火|气愤|暴躁|ang(?:ry|rily|er)|furious(?:ly)?|mad(?:ly)?|outraged|irritated|annoyed",
     _Change(1.08, 0.5, 1.3, 4.0, "angry")),
    (r"害怕|恐惧|紧张|惊慌|afraid|fear(?:ful|fully)?|scared|nervous(?:ly)?|anxious(?:ly)?|terrified",
     _Change(1.1, 1.2, 1.15, -1.5, "fearful")),
    (r"惊讶|惊奇|吃惊|surpris(?:ed|edly|e)|amazed|astonished", _Change(1.04, 1.5, 1.4, 1.5, "surprised")),
    (r"疲惫|疲倦|困倦|无精打采|有气无力|tired(?:ly)?|weary|wearily|sleep(?:y|ily)|exhausted", _Change(0.85, -0.8, 0.75, -3.0, "tired")),
    (r"温柔|轻柔|柔和|温和|温暖|亲切|体贴|gent(?:le|ly)|tender(?:ly)?|warm(?:ly)?|kind(?:ly)?|soothing(?:ly)?",
     _Change(0.92, -0.3, 0.9, -3.0, "gentle")),
    (r"平静|冷静|沉稳|镇定|从容|淡定|放松|calm(?:ly)?|relaxed|peaceful(?:ly)?|compos(?:ed|edly)|serene(?:ly)?",
     _Change(0.94, -0.3, 0.82, -1.0, "calm")),
    (r"严肃|庄重|正式|认真|serious(?:ly)?|solemn(?:ly)?|formal(?:ly)?|stern(?:ly)?", _Change(0.95, -0.7, 0.82, 0.5, "serious")),
    (r"耳语|悄悄|低声细语|轻声细语|whisper(?:ing|ed|s)?", _Change(0.92, -0.5, 0.7, -8.0, "whisper")),
    (r"平淡|单调|没有感情|毫无感情|平铺直叙|没有起伏|monoton(?:e|ous|ously|ic)|flat(?:ly)?|deadpan|emotionless(?:ly)?",
     _Change(range=0.55)),
    (r"抑扬顿挫|有起伏|起伏(?:大|明显)?|有感情|生动|富有感情|expressive(?:ly)?|livel(?:y|ily)|animated(?:ly)?|dramatic(?:ally)?|with feeling",
     _Change(range=1.35)),
    # Plain prosody: 音量 is loudness, before 高音 can be seen in 提高音量; 声音高 is pitch, 声音大 is loudness.
    (r"(?:声音|音量)(?:再|更|要|很|稍微|稍|略|放|提|调|开)*大|大声|响亮|洪亮|喊|提高(?:音量|声音|嗓门)|"
     r"loud(?:ly|er|est)?|shout(?:ing)?|yell(?:ing)?|turn up the volume|(?:more|higher) volume", _Change(loudness=4.0)),
    (r"(?:声音|音量)(?:再|更|要|很|稍微|稍|略|放|压|调)*[小轻]|小声|轻声|低声|(?:降低|压低)(?:音量|声音|嗓门)|"
     r"quiet(?:ly|er)?|soft(?:ly|er)?|hushed|(?:less|lower) volume|turn down the volume", _Change(loudness=-4.0)),
    (r"(?:音调|声调|音高|调子|语调|嗓音|声音)(?:再|更|要|很|稍微|稍|略|非常|提|升|调|变)*高|(?:提高|升高)(?:音调|声调|音高|语调)|高音|尖(?:细)?(?:的|一点|些)?|"
     r"(?:high(?:er)?|raise[ds]?)[ -]?(?:the |your )?(?:pitch(?:ed)?|voice|tone)|pitch (?:\w+ )?(?:higher|up)|shrill", _Change(pitch=2.0)),
    (r"低沉|浑厚|(?:音调|声调|音高|调子|语调|嗓音|声音)(?:再|更|要|很|稍微|稍|略|非常|压|降|调|变)*低沉?|(?:降低|压低)(?:音调|声调|音高|语调)|低音|"
     r"(?:low(?:er)?|deep(?:er)?)[ -]?(?:the |your )?(?:pitch(?:ed)?|voice|tone)|pitch (?:\w+ )?(?:lower|down)|deep(?:er|ly)?", _Change(pitch=-2.0)),
    (r"(?:语速|速度|说话)?(?:\w{0,2})(?:加快|放快|变快)(?:语速|速度)?|(?:语速|速度)?(?:再|更|要|很|稍微|稍|略|尽量|说得|说|讲)*快|急促|迅速|"
     r"(?:speed|hurry) (?:it |things )?up|rapid(?:ly)?|quick(?:ly|er)?|fast(?:er|est)?|hast(?:y|ily)|brisk(?:ly)?", _Change(speed=1.2)),
    (r"(?:语速|速度)?(?:放慢|减慢|变慢|放缓|减缓|降低语速)(?:语速|速度)?|(?:语速|速度)?(?:再|更|要|很|稍微|稍|略|尽量|说得|说|讲)*慢|缓慢|缓缓|"
     r"slow (?:it |things )?down|slow(?:ly|er|est)?|leisurely|unhurried(?:ly)?", _Change(speed=0.83)),
)

_MOST = r"尽可能|尽量|最|极其|极度|as \w+ as possible|as possible|extremely|maximally"
_MUCH = r"非常|特别|十分|很|超级|超|更加|得多|很多|much|very|really|a lot|far|super|so"
_LITTLE = r"稍微|稍稍|稍|略微|略|有点|a little|a bit|slightly|somewhat|a touch|kind of"
_NOT = r"不要(?:太|那么|这么)?|别(?:太|那么|这么)?|不(?:太|那么)|(?:do not|don't|not|never|less)(?: be| speak| sound| so| too)?"
_STRENGTH = tuple((re.compile(rf"(?<![A-Za-z])(?:{words})(?![A-Za-z])", re.IGNORECASE), strength)
                  for words, strength in ((_MOST, 2.2), (_MUCH, 1.5), (_LITTLE, 0.6)))
_NEGATION = re.compile(rf"(?:{_NOT})\s*(?:{_MUCH})?\s*$", re.IGNORECASE)
_COMPILED = tuple((re.compile(rf"(?<![A-Za-z])(?:{pattern})(?![A-Za-z])", re.IGNORECASE), change) for pattern, change in _CUES)

_DIALECT_NAMES = {
    **{d: d for d in DIALECTS}, **{d[:-1] + "方言": d for d in DIALECTS}, **{d[:-1] + "口音": d for d in DIALECTS},
    "粤语": "广东话", "白话": "广东话", "闽南语": "闽南话", "台语": "闽南话", "沪语": "上海话", "川话": "四川话", "川普": "四川话",
    "cantonese": "广东话", "hokkien": "闽南话", "shanghainese": "上海话", "sichuanese": "四川话", "minnan": "闽南话",
}
_OTHER_ACCENT = re.compile(r"(?:[\u4e00-\u9fff]{1,3}(?:口音|方言|腔))|(?:\b[a-z]+ (?:accent|dialect)\b)", re.IGNORECASE)
_ROLES = {
    "小猪佩奇": "小猪佩奇", "peppa pig": "小猪佩奇", "机器人": "机器人", "robot": "机器人", "robotic": "机器人", "robotically": "机器人",
}
_FILLER = re.compile(
    r"请你?|麻烦|帮我|我想|想要|希望|体验一下|可以吗|你可以|尝试|方式|解答|一句话|这句话|这段话|说话|说出来|表达|朗读|讲述|叙述|讲话|读|讲|念|说|用|以|带着?|"
    r"语气|语调|语速|音量|音调|速度|声音|口吻|情绪|情感|感情|心情|风格|感觉|的|地|得|一点儿?|一些|些|点|要|再|更|吧|吗|来|把|和|与|而且|并且?|又|"
    r"听起来|状态|样子|那样|一样|那种|一种|方言|口音|可以|能|你|我|让|它|他|她|"
    r"\b(?:please|say|speak|talk|read|a|an|the|this|that|sentence|text|it|in|with|and|voice|tone|of|manner|way|style|more|be|sound|like|as|"
    r"possible|can|could|would|you|your|i|want|to|make|use|using|mood|feeling|pace|volume|pitch|rate|speech|speed|emotion|but|tad|very)\b",
    re.IGNORECASE)


def parse_instruct(text: str) -> Intent:
    """Read an instruct text. Blank is the neutral Intent. Never raises; `Intent.text` keeps the words for engines that take them."""
    asked = unicodedata.normalize("NFC", text).strip()
    if not asked:
        return Intent()
    left = re.sub(r"[’‘]", "'", asked)
    dialect, left = _take_name(left, _DIALECT_NAMES)
    role, left = _take_name(left, _ROLES)
    unmet = [name for name in (dialect, role) if name]
    for other in _OTHER_ACCENT.findall(left):
        unmet.append(other)
    left = _OTHER_ACCENT.sub(" ", left)
    speed, pitch, span, loudness, emotion = 1.0, 0.0, 1.0, 0.0, None
    for clause in re.split(r"[，,。.；;！!？?\n]|但是?|\bbut\b", left):
        taken = clause
        for pattern, change in _COMPILED:
            match = pattern.search(taken)
            if match is None:
                continue
            strength = _strength(clause, taken, match)
            speed *= change.speed**strength
            span *= change.range**strength
            pitch += change.pitch * strength
            loudness += change.loudness * strength
            emotion = emotion or (change.emotion if strength > 0 else None)
            taken = taken[: match.start()] + "\x00" + taken[match.end() :]
        unmet.extend(_not_understood(taken))
    return Intent(
        speed=round(_clamp(speed, SPEED_RANGE), 4), pitch_semitones=round(_clamp(pitch, PITCH_RANGE_SEMITONES), 4),
        pitch_range=round(_clamp(span, RANGE_RANGE), 4), loudness_db=round(_clamp(loudness, LOUDNESS_RANGE_DB), 4),
        emotion=emotion, dialect=dialect, role=role, unmet=tuple(unmet), text=asked,
    )


def _take_name(text: str, names: dict[str, str]) -> tuple[str | None, str]:
    lowered = text.lower()
    for written in sorted(names, key=len, reverse=True):
        at = lowered.find(written)
        if at >= 0:
            return names[written], text[:at] + " " + text[at + len(written) :]
    return None, text


def _strength(clause: str, taken: str, match: re.Match[str]) -> float:
    """How strongly a cue is meant: by the intensifier in its clause; negative and weak when it is negated."""
    before = taken[: match.start()]
    if _NEGATION.search(before):
        return -0.5
    for pattern, strength in _STRENGTH:
        if pattern.search(clause):
            return strength
    return 1.0


def _not_understood(clause: str) -> list[str]:
    """Stretches of a clause that no cue, intensifier or filler word accounts for."""
    rest = re.sub(rf"{_MOST}|(?<![A-Za-z])(?:{_MUCH}|{_LITTLE}|{_NOT})(?![A-Za-z])", "\x00", clause, flags=re.IGNORECASE)
    rest = _FILLER.sub("\x00", rest)
    if not re.search(r"\w", rest.replace("\x00", "")):
        return []
    whole = re.sub(r"\s+", " ", clause.replace("\x00", " … ")).strip(" …")
    return [whole] if whole else []


def _clamp(value: float, limits: tuple[float, float]) -> float:
    return min(max(value, limits[0]), limits[1])
