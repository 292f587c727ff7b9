"""Which script a character belongs to: the only place that knows code-point ranges."""

from __future__ import annotations

import re
import unicodedata

HAN = r"\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\U00020000-\U000323af\u3007"
KANA = r"\u3041-\u3096\u30a1-\u30fa\u30fd-\u30ff\u31f0-\u31ff\uff66-\uff9d"
HANGUL = r"\u1100-\u11ff\u3130-\u318f\uac00-\ud7af"
GREEK = r"\u0370-\u03ff\u1f00-\u1fff"
CYRILLIC = r"\u0400-\u052f"
LATIN = r"A-Za-z\u00c0-\u00d6\u00d8-\u00f6\u00f8-\u024f\u1e00-\u1eff"

_HAN, _LATIN = (re.compile(f"[{r}]") for r in (HAN, LATIN))


def words(listed: str) -> tuple[str, ...]:
    """The words of a list written with spaces."""
    return tuple(listed.split())


def is_han(char: str) -> bool:
    return bool(_HAN.match(char))


def is_latin(char: str) -> bool:
    return bool(_LATIN.match(char))


def is_letter(char: str) -> bool:
    """Any letter of any script, or a mark that belongs to one."""
    return unicodedata.category(char)[0] in "LM"


def has_han(text: str) -> bool:
    return bool(_HAN.search(text))


def has_latin(text: str) -> bool:
    return bool(_LATIN.search(text))


def has_speech(text: str) -> bool:
    """True if anything in `text` could be spoken: a letter of any script (a lone accent isn't one), or a digit."""
    return any(unicodedata.category(c) in ("Lu", "Ll", "Lt", "Lo") or c.isdecimal() for c in text)
