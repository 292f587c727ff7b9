"""The language a stretch of text is read in: Han is Mandarin, Latin is English, and what is neither follows its
context.

A number is judged where it stands: by its sentence, and in a mixed sentence by the words beside it. So "我有 3 cats"
says
"three" and "I have 3 个苹果" says 三, whatever the language of the clip or of the rest of the text.
"""

from __future__ import annotations

import re

from cosyvoice_app.text.chars import HAN, LATIN, has_han, has_latin, is_han, is_latin
from cosyvoice_app.text.units import UNITS
from cosyvoice_app.types import Language, Text

NATIVE_LANGUAGES = ("zh", "en")
"""What the normaliser can say in words."""

_BOUND = re.compile(r'[\n。！？!?；;“”"「」『』《》()（）]|\.(?=\s|$)')
_WORD = re.compile(rf"[{LATIN}][{LATIN}'-]*|[{HAN}]")
_LATIN_RUN_LEFT = re.compile(rf"(?:[{LATIN}'-]+[\s,]+)*[{LATIN}'-]+[\s,]*$")
_MIXED_RUN_LEFT = re.compile(rf"(?:[{LATIN}0-9'.:-]+[\s,]+)*$")
_NAME_END = re.compile(r"(?=[a-z0-9]*[A-Z])[A-Za-z0-9]+")
_NAME_START = re.compile(r"(?<![A-Za-z0-9])(?=[a-z0-9]*[A-Z])[A-Za-z0-9]+$")
_UNIT_LETTERS = re.compile(r"\d[A-Za-zμ]{1,3}(?![A-Za-z])")
"""5kg beside a number tells no language."""
_GLUED = re.compile(rf"(?:[A-Za-zμµ]{{1,3}}|{'|'.join(u for u in UNITS if u.isalpha() and len(u) > 3)})(?![A-Za-z])")
_COMMAS = re.compile("[，、]")
_TELLING = re.compile(rf"(?<![{LATIN}])(?:(?=[{LATIN}'-]*[a-zß-öø-ÿ])[{LATIN}]{{2,}}|[Ia](?=[\s,]))")
"""A word that tells the language; capitals are names of things everywhere: AQI 150."""
_HAN_OR_TELLING = re.compile(rf"[{HAN}]|{_TELLING.pattern}")
_SMALL_WORD = re.compile(r"(?<![A-Za-z'-])[a-z]{2,}(?![A-Za-z'-])")


def at(text: str, start: int, end: int, default: Language) -> Language:
    """Language for `text[start:end]`, by what surrounds it. `default` when the whole text has no word of either."""
    name_start, name_end = _whole_name(text, start, end)
    if (name_start, name_end) != (start, end):
        start, end, default = name_start, name_end, "en"
    if "、" in (text[start - 1 : start], text[end : end + 1]) and has_han(text[:start] + text[end:]):
        return "zh"  # the comma of Chinese lists
    left_bound = 0
    for match in _BOUND.finditer(text, 0, start):
        left_bound = match.end()
    right = _BOUND.search(text, end)
    right_bound = right.start() if right else len(text)
    left, right_text = text[left_bound:start], text[end:right_bound]
    around = left + " " + right_text
    if not has_han(around) and not _tells(around):
        if has_latin(_UNIT_LETTERS.sub("", around)):
            return _nearest(text, start, end) if has_han(text[:start] + text[end:]) else "en"
        around = text[:start] + " " + text[end:]
        if not has_han(around) and not has_latin(_UNIT_LETTERS.sub("", around)):
            return default
        left, right_text = text[:start], text[end:]
    if not has_latin(around):
        return "zh"
    if not has_han(around):
        return "en"
    return _in_mixed(left, right_text)


def _tells(around: str) -> bool:
    return bool(_TELLING.search(_UNIT_LETTERS.sub("", around)))


def _nearest(text: str, start: int, end: int) -> Language:
    """By the last word before that tells, else the first behind: for a sentence of names and numbers."""
    left, right = (_UNIT_LETTERS.sub("", part) for part in (text[:start], text[end:]))
    found = [m[0] for m in _HAN_OR_TELLING.finditer(left)][-1:] or _HAN_OR_TELLING.findall(right)[:1]
    return "zh" if found and is_han(found[0][0]) else "en"


def _whole_name(text: str, start: int, end: int) -> tuple[int, int]:
    """The letters right beside digits belong to them when they make a name: H2SO4, DDR5, Win10. `3cats` is a word."""
    beside = _NAME_END.match(text, end)
    if beside:
        end = beside.end()
    before = _NAME_START.search(text, max(0, start - 20), start)
    return (before.start() if before else start), end


def _in_mixed(left: str, right: str) -> Language:
    if _is_english_clause(_COMMAS.split(left)[-1] + " " + _COMMAS.split(right)[0]):
        return "en"
    if glued := _GLUED.match(right):
        right = right[glued.end() :]
    after = _WORD.search(right)
    gap = right[: after.start()] if after else ""
    english_before = _LATIN_RUN_LEFT.search(left)
    words_before = len(english_before[0].split()) if english_before else 0
    if english_before and not _TELLING.search(english_before[0]):
        # A lone variable or initials, as in 面积S=5.
        left, english_before, words_before = left[: english_before.start()], None, 0
    if after and not gap.strip():
        if is_han(after[0]):
            return "zh"
        if len(after[0]) > 1 and not after[0].isupper():
            return "en"
    if words_before >= 2 or _is_english_clause(found[0] if (found := _MIXED_RUN_LEFT.search(left)) else ""):
        return "en"
    if english_before and not after:
        return "zh" if has_han(left) else "en"
    if left.rstrip() and is_han(left.rstrip()[-1]):
        return "zh"
    return "zh" if after is None or is_han(after[0]) or english_before is None else "en"


def _is_english_clause(text: str) -> bool:
    """Without Han, and with a small word among others: "from 2 to 4 pm" is English, "iPhone 15 Pro" is a name."""
    return not has_han(text) and bool(_SMALL_WORD.search(text)) and len(_WORD.findall(text)) > 1


def runs(text: str, default: Language) -> list[Text]:
    """Cut `text` into stretches of one language, nothing lost. Marks, spaces and other scripts stay with what
    precedes.
    """
    out: list[Text] = []
    start, current = 0, None
    for i, char in enumerate(text):
        language: Language | None = "zh" if is_han(char) else "en" if is_latin(char) else None
        if language is None or language == current:
            continue
        if current is not None:
            out.append(Text(text[start:i], current))
            start = i
        current = language
    if text[start:]:
        out.append(Text(text[start:], current or default))
    return out
