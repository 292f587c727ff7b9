"""From what was asked for to the sentence that the language model was tuned on, or to a speed.

The model takes an instruction as a sentence before the text. It was tuned on a few dozen sentences (`instruct_list` in
the official code's cosyvoice/utils/common.py), so a request that means one of them is put in its words; any other
wording goes to the model as typed, with a warning. A plain change of speed needs no sentence: stretching the mel does
exactly what was asked, keeps the pitch, and leaves the clip's words in use, which an instruction would displace.
"""

from __future__ import annotations

from dataclasses import dataclass

from cosyvoice_app.text.instruct import OFFICIAL
from cosyvoice_app.types import Intent

_EMOTIONS = {"happy": "请非常开心地说一句话。", "sad": "请非常伤心地说一句话。", "angry": "请非常生气地说一句话。"}
_ROLES = {"小猪佩奇": "我想体验一下小猪佩奇风格，可以吗？", "机器人": "你可以尝试用机器人的方式解答吗？"}
_LOUD, _SOFT = "Please say a sentence as loudly as possible.", "Please say a sentence in a very soft voice."
_CLEARLY_DB = 4.0
"""What "louder" and "softer" come to without a word that weakens them."""
_ENDS = "。.！!？?"


@dataclass(frozen=True, slots=True)
class Instruction:
    """`sentence` goes before the text (blank: none). `speed` is a factor for the mel."""

    sentence: str = ""
    speed: float = 1.0
    warnings: tuple[str, ...] = ()


def instruction(intent: Intent) -> Instruction:
    """What to tell the model so that it does what `intent` asks."""
    asked = intent.text.strip()
    if not asked:
        return Instruction()
    if asked in OFFICIAL:
        return Instruction(asked)
    sentence = _official(intent)
    if sentence:
        return Instruction(sentence)
    if _only_speed(intent):
        return Instruction(speed=intent.speed)
    warning = f'"{asked}" is not one of the instructions this model was tuned on; it may not follow it.'
    return Instruction(asked if asked[-1] in _ENDS else asked + ("." if asked.isascii() else "。"), warnings=(warning,))


def _official(intent: Intent) -> str:
    """The official sentence that means all of `intent` and nothing more, or nothing."""
    named = tuple(name for name in (intent.dialect, intent.role) if name)
    if set(intent.unmet) - set(named) or len(named) > 1:
        return ""
    if named:
        if intent.emotion or not _plain(intent):
            return ""
        return f"请用{intent.dialect}表达。" if intent.dialect else _ROLES.get(intent.role or "", "")
    if intent.emotion:
        return _EMOTIONS.get(intent.emotion, "") if intent.emotion_only else ""
    if abs(intent.loudness_db) >= _CLEARLY_DB and _plain(intent, loudness=True):
        return _LOUD if intent.loudness_db > 0 else _SOFT
    return ""


def _only_speed(intent: Intent) -> bool:
    return intent.speed != 1.0 and not intent.unmet and not intent.emotion and _plain(intent, speed=True)


def _plain(intent: Intent, *, speed: bool = False, loudness: bool = False) -> bool:
    """Nothing but what is named was asked of the prosody."""
    return (
        (speed or intent.speed == 1.0)
        and (loudness or intent.loudness_db == 0.0)
        and intent.pitch_semitones == 0.0
        and intent.pitch_range == 1.0
    )
