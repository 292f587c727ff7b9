"""The pinyin inventory of the pronunciation tags: 23 initials, and finals with their tone mark (NFC).

The parts are those that the CosyVoice3 tokenizer holds one token each for; a syllable outside them can't be tagged.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Sequence

from cosyvoice_app.text.chars import words
from cosyvoice_app.types import Pinyin

INITIALS: tuple[str, ...] = words("b c ch d f g h j k l m n p q r s sh t w x y z zh")

_ALL_TONES = words(
    "a ai an ang ao e ei en eng i ia ian iang iao ie in ing iong iu o ong ou u ua uai uan uang ue ui un uo"
)
_TONELESS = words("a ai an ang ao e ei en eng i ian in ing iu o ong ou u uang ue un uo")
_RESTRICTED = {"er": (2, 3, 4), "ü": (2, 3, 4), "ve": (4,)}
_MARKS = {1: "\u0304", 2: "\u0301", 3: "\u030c", 4: "\u0300"}
_TONE_OF = {mark: tone for tone, mark in _MARKS.items()}


def mark_tone(final: str, tone: int) -> str:
    """Put the tone mark on the vowel that carries it. `final` is toneless; tone 1-4, or 5 for none. NFC.

    >>> mark_tone("ao", 4), mark_tone("iu", 2), mark_tone("uo", 5)
    ('ào', 'iú', 'uo')
    """
    if tone == 5:
        return final
    for vowel in "aeo":
        at = final.find(vowel)
        if at >= 0 and not (vowel == "o" and "a" in final):
            break
    else:
        at = max(i for i, c in enumerate(final) if c in "iuüv")
    return unicodedata.normalize("NFC", final[: at + 1] + _MARKS[tone] + final[at + 1 :])


def split_tone(syllable: str) -> tuple[str, int]:
    """Take the tone mark off: ("hao", 4) for "hào", tone 5 when there is none. Raises ValueError for two marks."""
    letters, tone = [], 5
    for char in unicodedata.normalize("NFD", syllable):
        if char in _TONE_OF:
            if tone != 5:
                raise ValueError(f"two tone marks in {syllable!r}")
            tone = _TONE_OF[char]
        else:
            letters.append(char)
    return unicodedata.normalize("NFC", "".join(letters)), tone


FINALS: tuple[str, ...] = (
    *_TONELESS,
    *(mark_tone(final, tone) for final in _ALL_TONES for tone in (1, 2, 3, 4)),
    *(mark_tone(final, tone) for final, tones in _RESTRICTED.items() for tone in tones),
)
_TONED_LETTERS = re.compile(r"[a-zü]*[āáǎàēéěèīíǐìōóǒòūúǔùǖǘǚǜ][a-zü]*")
_INITIAL_SET, _FINAL_SET = frozenset(INITIALS), frozenset(FINALS)


def is_initial(part: str) -> bool:
    return part in _INITIAL_SET


def is_final(part: str) -> bool:
    return part in _FINAL_SET


def from_syllable(written: str) -> Pinyin | None:
    """`hao4`, `hào`, `HAO4`, `lv4`, `er2` as a tag; None if it isn't a toned syllable of the inventory.

    The neutral tone must be said (`ma5`, `ma0`): a bare `man` or `die` is more likely an English word.
    """
    word = unicodedata.normalize("NFC", written).lower().replace("u:", "ü")
    tone = 0
    if word[-1:].isascii() and word[-1:].isdigit():
        tone = {"0": 5, "1": 1, "2": 2, "3": 3, "4": 4, "5": 5}.get(word[-1], 0)
        word = word[:-1]
        if tone == 0 or not word:
            return None
    try:
        letters, marked = split_tone(word)
    except ValueError:
        return None
    if (tone != 0) == (marked != 5):
        return None
    tone = tone or marked
    initial = letters[:2] if letters[:2] in _INITIAL_SET else letters[:1]
    if initial not in _INITIAL_SET:
        initial = ""
    final = letters[len(initial) :]
    if not final or not final.isalpha():
        return None
    if final == "v":
        final = "ü"
    elif final in ("üe", "ve"):
        final = "ve"
    if initial in ("j", "q", "x", "y") and final in ("ü", "ve"):
        final = {"ü": "u", "ve": "ue"}[final]
    if not any(c in "aeiouü" for c in final):
        return None
    toned = mark_tone(final, tone)
    return Pinyin(initial, toned) if toned in _FINAL_SET else None


def from_brackets(names: Sequence[str], at: int) -> tuple[Pinyin | None, int]:
    """The syllable that bracket `at` of a run of brackets begins, and how many brackets spell it: `[h][ào]`,
    `[h][ao4]`, `[ào]`, `[hào]`, `[hao4]`.

    (None, 1): it begins none. (None, 2): a pair that looks like a syllable but has no tokens, such as `[l][ǖ]`.
    """
    head = names[at]
    if is_initial(head) and at + 1 < len(names):
        final = names[at + 1]
        if is_final(final):
            return Pinyin(head, final), 2
        numbered = from_syllable(final) if final[-1:].isdigit() else None
        if numbered is not None and not numbered.initial:
            return from_syllable(head + final), 2
        if _TONED_LETTERS.fullmatch(final):
            return None, 2
    if is_final(head):
        return Pinyin("", head), 1
    return (from_syllable(head) if head else None), 1
