"""From typed plain text to words: clean, then speak what isn't a word. Tags are parsed out before and never come here.

What is kept: every letter of every script, and the marks that carry pauses or tone. What is taken out is either markup
(quietly: `**`, `#`, backticks, table bars) or a symbol without a name, such as an emoji (with a warning that quotes
it).
"""

from __future__ import annotations

import re
import unicodedata

from cosyvoice_app.text import markup, written
from cosyvoice_app.text.chars import HAN, is_han, is_letter
from cosyvoice_app.text.typography import plain_typography
from cosyvoice_app.types import Language

KEPT_MARKS = "，。！？；：、…—–“”‘’「」『』《》〈〉【】（）〔〕·～,.?!;:()\"'- \n¿¡«»"
"""Marks that reach the tokenizer as typed. No other mark does."""

_INVISIBLE = re.compile(
    "[\u00ad\u034f\u061c\u115f\u1160\u180e\u200b-\u200f\u202a-\u202e\u2060-\u206f\ufe00-\ufe0f\ufeff"
    "\U000e0000-\U000e007f\U000e0100-\U000e01ef\u20e3\U0001f3fb-\U0001f3ff\x00-\x08\x0e-\x1f\x7f-\x84\x86-\x9f]"
)
_LINE_ENDS = re.compile("\r\n|[\r\x0b\x0c\x85\u2028\u2029]")
BULLETS_LEFT_OVER = re.compile(r"(?m)^ *(?:[-·] +)+")
"""What dropping a symbol left at the start of a line would be taken for a bullet."""
RUN_OF_MARKS = re.compile(r"([。！？，、；：!?,;])\1{3,}")


def clean_typed(text: str) -> str:
    """What is done to the whole typed text before tags are looked for: one kind of line end, no invisible characters,
    NFC.

    Markup at the start of lines goes here, because only here the lines are whole.
    """
    text = markup.without_html(markup.unescape(text))
    text = _LINE_ENDS.sub("\n", text)
    text = _INVISIBLE.sub("", text.replace("\t", " "))
    return markup.without_line_markup(unicodedata.normalize("NFC", text))


def to_words(text: str, before: str = "", after: str = "", alone: Language = "zh") -> tuple[str, tuple[str, ...]]:
    """Plain `text` as it will be spoken, and warnings. `before` and `after` are the neighbouring text; they only tell
    the language. `alone` is the language of a number that no word stands near.

    The result has no ASCII digit and no mark outside KEPT_MARKS, so it can't hold a tag or a control token.
    """
    out: list[str] = []
    dropped = ""
    text, warnings = without_cues(text)
    chunks = _chunks(text)
    for i, chunk in enumerate(chunks):
        left = (before + chunks[i - 1])[-_CONTEXT_CHARS:] if i else before
        right = chunks[i + 1][:_CONTEXT_CHARS] if i + 1 < len(chunks) else after
        spoken, lost = _keep_speech(written.speak(plain_typography(chunk), left, right, alone))
        out.append(spoken)
        dropped += lost
    dropped = "".join(dict.fromkeys(dropped))
    said = _tidy_spaces("".join(out))
    if not before.strip() or before.rstrip(" ").endswith("\n"):
        said = BULLETS_LEFT_OVER.sub("", said)
    return said, (*warnings, f'Not spoken: "{dropped}".') if dropped else warnings


_CUE = re.compile(
    r"(?:(?<=\n)|^)(?:WEBVTT[^\n]{0,80}\n\s{0,9})?(?:\d{1,6} {0,9}\n)?"
    r" {0,9}(?:\d{1,3}:)?\d\d:\d\d[.,]\d{1,3} {0,9}--> {0,9}(?:\d{1,3}:)?\d\d:\d\d[.,]\d{1,3}"
    r"(?: {1,9}[a-z]{1,12}:[^\s:]{1,20}){0,8} {0,9}(?:\n|$)"
)


def without_cues(text: str) -> tuple[str, tuple[str, ...]]:
    """Subtitles (SRT, VTT) without the numbers and times of their cues, and one notice of that."""
    if "-->" not in text:
        return text, ()
    cues = [" ".join(m[0].split()) for m in _CUE.finditer(text)]
    if not cues:
        return text, ()
    more = f" and {len(cues) - 1} more of this kind" if len(cues) > 1 else ""
    return _CUE.sub("", text), (f'Subtitle times are not spoken: "{cues[0]}"{more}.',)


_CHUNK_CHARS, _CONTEXT_CHARS = 400, 60


def _chunks(text: str) -> list[str]:
    """`text` in parts of bounded length, cut at sentence ends where there are any, so that time stays linear."""
    out = []
    start = 0
    while len(text) - start > _CHUNK_CHARS:
        window = text[start : start + _CHUNK_CHARS]
        cuts = (max(window.rfind(c) for c in marks) for marks in ("\n。！？!?；;", "，、", " "))
        size = next((cut + 1 for cut in cuts if cut > 0), _CHUNK_CHARS)
        out.append(text[start : start + size])
        start += size
    return [*out, text[start:]]


def _keep_speech(text: str) -> tuple[str, str]:
    """Letters and KEPT_MARKS stay. Other marks become a space; symbols too, and they are returned for the warning."""
    out: list[str] = []
    dropped: list[str] = []
    for char in text:
        if char in KEPT_MARKS or is_letter(char) or is_han(char):  # 〇 is a number to Unicode
            out.append(char)
            continue
        out.append(" ")
        kind = unicodedata.category(char)
        if kind[0] in "SNC" and (not char.isascii() or char in "<>"):
            dropped.append(char)
    return "".join(out), "".join(dict.fromkeys(dropped))


def _tidy_spaces(text: str) -> str:
    text = RUN_OF_MARKS.sub(r"\1\1\1", text)
    text = re.sub(r"[ ]+", " ", text)
    if "--" in text:  # what stood beside a symbol that went
        text = re.sub(" ?-{2,} ?", "—", text)
    # A sentence doesn't begin with a dash: on a line of its own it would be taken for a bullet.
    text = re.sub(r"(?<=[。！？；!?.;]) ?- +", " ", text)
    text = re.sub(r" ?\n ?", "\n", text)
    text = re.sub(r" +(?=[，。！？；：、…,.?!;:）)])", "", text)
    return re.sub(rf"(?<=[{HAN}，。！？；：、]) (?=[{HAN}，。！？；：、“《「（])", "", text)
