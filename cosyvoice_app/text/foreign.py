"""Sentences in a language without a normaliser here: as typed, but for what no language sees differently.

Digits, dates, units and abbreviations stay: another language's words in their place would be worse than none. What goes
is what goes everywhere: markup, emoji, odd kinds of quotes, dashes and spaces.
"""

from __future__ import annotations

import re
import unicodedata

from cosyvoice_app.text.chars import is_han, is_letter
from cosyvoice_app.text.normalize import BULLETS_LEFT_OVER, KEPT_MARKS, RUN_OF_MARKS, without_cues
from cosyvoice_app.text.typography import plain_marks

KEPT_SIGNS = "%‰€$£¥₩₽¢+−±×÷=≈≤≥≠/&@#_§№°℃℉²³µ"
"""Signs beside digits that reach the tokenizer as typed. None could be part of a tag or of a control token."""

_ONE_FORM = (
    (re.compile("„([^„“”\n]*)[“”]"), r"“\1”"),
    (re.compile("‚([^‚‘’\n]*)[‘’]"), r"‘\1’"),
    (re.compile("„"), "“"),
    (re.compile("‚"), "‘"),
    (re.compile("\u301c"), "～"),
)
"""German „so“ is “so” elsewhere, and there are two waves: the forms that the marks of this front end have."""
_TIMES = re.compile(r"(?<=\d)\*(?=\d)")
_SPACES = re.compile(r" {2,}")
_LINE_SPACES = re.compile(r" ?\n ?")
_BEFORE_MARK = re.compile(r" +(?=[，。！？；：、…,.?!;:）)](?!\d))")
_LOOSE_UNDERSCORE = re.compile(r"(?<![^\W_])_+|_+(?![^\W_])")
_LONG_DASH = re.compile(" ?-{2,} ?")
_SIGN_FIRST = re.compile(r"(?:^|(?<=[\n。！？；!?;…])|(?<=[^\d\W]\.)) ?(?:[-+#=_] ?)+(?= |$)", re.MULTILINE)
"""A sentence doesn't begin with a loose sign: on a line of its own it would be taken for a bullet or a heading."""


def as_typed(text: str) -> tuple[str, tuple[str, ...]]:
    """Plain `text` of one sentence as it will be spoken, and warnings that quote what was left out.

    >>> as_typed("Am 3. Mai kostet es 5 € 😂 und „mehr“.")
    ('Am 3. Mai kostet es 5 € und “mehr”.', ('Not spoken: "😂".',))
    """
    text, warnings = without_cues(text)
    for pattern, plain in _ONE_FORM:
        text = pattern.sub(plain, text)
    kept, dropped = _keep(_TIMES.sub("×", plain_marks(text)))
    return _tidy(kept), (*warnings, f'Not spoken: "{dropped}".') if dropped else warnings


def _keep(text: str) -> tuple[str, str]:
    """Letters, digits, marks and signs stay; the rest becomes a space. Symbols are returned too, for the warning."""
    out: list[str] = []
    dropped: dict[str, None] = {}
    for char in text:
        if char in KEPT_MARKS or char in KEPT_SIGNS or char.isdecimal() or is_letter(char) or is_han(char):
            out.append(char)
            continue
        out.append(" ")
        if unicodedata.category(char)[0] in "SNC" and (not char.isascii() or char in "<>"):
            dropped[char] = None
    return "".join(out), "".join(dropped)


def _tidy(text: str) -> str:
    text = _LOOSE_UNDERSCORE.sub(" ", text)
    text = _LINE_SPACES.sub("\n", _SPACES.sub(" ", _LONG_DASH.sub("—", text)))
    text = BULLETS_LEFT_OVER.sub("", _SIGN_FIRST.sub("", _BEFORE_MARK.sub("", text)))
    return RUN_OF_MARKS.sub(r"\1\1\1", _BEFORE_MARK.sub("", _SPACES.sub(" ", text)))
