"""What an instruct text asks for, as one engine-independent `Intent`: free wording, and the official sentences.

Reading is by cues: every cue found adds its change, an intensifier in its clause scales the change, and what is left
over and was not understood is quoted in `Intent.unmet`. Factors are clamped to what still sounds like speech.
"""

from __future__ import annotations

import re
import unicodedata
from dataclasses import dataclass

from cosyvoice_app.text import instruct_words as w
from cosyvoice_app.text.instruct_words import DIALECTS, INSTRUCT_CHIPS, OFFICIAL
from cosyvoice_app.types import Capabilities, Intent

__all__ = ["DIALECTS", "INSTRUCT_CHIPS", "OFFICIAL", "Chip", "chips_for", "parse_instruct"]

SPEED_RANGE = (0.6, 1.6)
PITCH_RANGE_SEMITONES = (-4.0, 4.0)
RANGE_RANGE = (0.5, 1.6)
LOUDNESS_RANGE_DB = (-9.0, 9.0)


def _word(pattern: str) -> re.Pattern[str]:
    """English words whole, Mandarin ones anywhere."""
    return re.compile(rf"(?<![A-Za-z])(?:{pattern})(?![A-Za-z])", re.IGNORECASE)


_CUES = tuple((_word(f"{cue.zh}|{cue.en}"), cue.change) for cue in w.CUES)
_STRENGTHS = tuple((_word(pattern), strength) for pattern, strength in w.STRENGTHS)
_INTENSIFIERS = _word(f"{w.MOST}|{w.MUCH}|{w.LITTLE}|{w.NOT}")
_NEGATION = re.compile(rf"(?:{w.NOT})\s*(?:{w.MUCH})?\s*$", re.IGNORECASE)
_OTHER_ACCENT = re.compile(w.OTHER_ACCENT, re.IGNORECASE)
_NAMES = "|".join(map(re.escape, (*w.DIALECT_NAMES, *w.ROLES)))
_REFUSED = re.compile(rf"(?<![A-Za-z特])(?:{w.NOT})(?![A-Za-z]).*(?:{_NAMES})", re.IGNORECASE)
_FILLER = re.compile(w.FILLER, re.IGNORECASE)
_CLAUSES = re.compile(r"[，,。.；;！!？?\n]|但是?|\bbut\b")
_TAKEN = "\x00"


@dataclass(frozen=True, slots=True)
class Chip:
    """A wording to offer: what the button says and what it puts into the box, each as (Chinese, English)."""

    label: tuple[str, str]
    words: tuple[str, str]
    whole: bool = False
    """True for a sentence that stands alone; the others can be put one after another."""


def chips_for(engine: Capabilities | None) -> tuple[Chip, ...]:
    """An engine that reads the instruct itself gets the sentences it was tuned on, another the wordings read here."""
    if engine is not None and "dialect" in engine.instruct:
        pairs = zip(w.OFFICIAL_LABELS, OFFICIAL, strict=True)
        return tuple(Chip(label, (sentence, sentence), whole=True) for label, sentence in pairs)
    return tuple(Chip(pair, pair) for pair in INSTRUCT_CHIPS)


def parse_instruct(text: str) -> Intent:
    """Read an instruct text. Blank is the neutral Intent. Never raises.

    `Intent.text` keeps the words for engines that take them.
    """
    asked = unicodedata.normalize("NFC", text).strip()
    if not asked:
        return Intent()
    left = re.sub(r"[’‘]", "'", asked).replace(_TAKEN, " ")
    refused = [clause.strip() for clause in _CLAUSES.split(left) if _REFUSED.search(clause)]
    dialect, left = _take_name(left, w.DIALECT_NAMES)
    role, left = _take_name(left, w.ROLES)
    unmet = [*(name for name in (dialect, role) if name), *refused]
    unmet += _OTHER_ACCENT.findall(left)
    left = _OTHER_ACCENT.sub(" ", left)
    speed, pitch, span, loudness = 1.0, 0.0, 1.0, 0.0
    emotion: str | None = None
    found: set[str | None] = set()
    for clause in _CLAUSES.split(left):
        rest = clause
        for pattern, change in _CUES:
            match = pattern.search(rest)
            if match is None:
                continue
            strength = _strength(clause, rest[: match.start()])
            speed *= change.speed**strength
            span *= change.range**strength
            pitch += change.pitch * strength
            loudness += change.loudness * strength
            emotion = emotion or (change.emotion if strength > 0 else None)
            found.add(change.emotion if strength > 0 else None)
            rest = rest[: match.start()] + _TAKEN + rest[match.end() :]
        unmet += _not_understood(rest)
    return Intent(
        speed=_clamp(speed, SPEED_RANGE),
        pitch_semitones=_clamp(pitch, PITCH_RANGE_SEMITONES),
        pitch_range=_clamp(span, RANGE_RANGE),
        loudness_db=_clamp(loudness, LOUDNESS_RANGE_DB),
        emotion=emotion,
        emotion_only=emotion is not None and found == {emotion},
        dialect=dialect,
        role=role,
        unmet=tuple(dict.fromkeys(unmet)),
        text=asked,
    )


def _take_name(text: str, names: dict[str, str]) -> tuple[str | None, str]:
    """The longest of `names` found in `text`, and the text without it."""
    for written in sorted(names, key=len, reverse=True):
        match = re.search(re.escape(written), text, re.IGNORECASE)
        if match:
            return names[written], text[: match.start()] + " " + text[match.end() :]
    return None, text


def _strength(clause: str, before: str) -> float:
    """How strongly a cue is meant: by the intensifier in its clause; turned round when it is negated."""
    if _NEGATION.search(before):
        return w.NEGATED
    return next((strength for pattern, strength in _STRENGTHS if pattern.search(clause)), 1.0)


def _not_understood(clause: str) -> list[str]:
    """The clause, cues left out, if anything but intensifiers and filler is left of it."""
    rest = _FILLER.sub(_TAKEN, _INTENSIFIERS.sub(_TAKEN, clause))
    if not re.search(r"\w", rest.replace(_TAKEN, "")):
        return []
    whole = re.sub(r"\s+", " ", clause.replace(_TAKEN, " … ")).strip(" …")
    return [whole] if whole else []


def _clamp(value: float, limits: tuple[float, float]) -> float:
    return round(min(max(value, limits[0]), limits[1]), 4)
