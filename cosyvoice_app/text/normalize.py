"""From typed plain text to words: clean, then speak what isn't a word. Tags are parsed out before and never come here.

What is kept: every letter of every script, and the marks that carry pauses or tone. What is taken out is either markup
(quietly: `**`, `#`, backticks, table bars) or a symbol without a name, such as an emoji (with a warning that quotes
it).
"""

from __future__ import annotations

import re
import unicodedata

from cosyvoice_app.text import written
from cosyvoice_app.text.chars import HAN, LATIN, is_letter

KEPT_MARKS = "，。！？；：、…—–“”‘’「」『』《》〈〉【】（）〔〕·～,.?!;:()\"'- \n¿¡«»"
"""Marks that reach the tokenizer as typed. No other mark does."""

_INVISIBLE = re.compile(
    "[\u00ad\u034f\u061c\u115f\u1160\u180e\u200b-\u200f\u202a-\u202e\u2060-\u206f\ufe00-\ufe0f\ufeff"
    "\U000e0000-\U000e007f\U000e0100-\U000e01ef\u20e3\U0001f3fb-\U0001f3ff\x00-\x08\x0e-\x1f\x7f-\x84\x86-\x9f]"
)
_LINE_ENDS = re.compile("\r\n|[\r\x0b\x0c\x85\u2028\u2029]")
_APOSTROPHE = re.compile(
    rf"(?<=[{LATIN}])[’‘ʼ＇`´](?=[{LATIN}])|(?<=[sS])[’](?=\s)|(?<![{LATIN}\w])[’](?=(?:s|t|re|ve|ll|d|m|em|til|cause)\b|\d0s)"
)
_LINE_MARKUP = re.compile(
    r"^[ \t]*(?:#{1,6}[ \t]+|>[ \t]?|[-*+•·][ \t]+(?:\[[ xX]\][ \t]+)?|(?:[-=_*~][ \t]?){3,}$|\|)", re.MULTILINE
)
_DECORATION = re.compile(r"([=*_#~+])\1{2,}|-{4,}")
_DASHES = re.compile(r" ?(?<!-)-{2,3}(?!-) ?")
_RUN_OF_MARKS = re.compile(r"([。！？，、；：!?,;])\1{3,}")
_SHOUTED = re.compile(r"\b[A-Z][A-Z']+(?:[ ,]+[A-Z][A-Z']*){2,}\b")
_NUMBER_LETTERS = re.compile(r"[\u2150-\u218b\u2460-\u249b\u24ea-\u24ff\u2776-\u2793]")


def clean_typed(text: str) -> str:
    """What is done to the whole typed text before tags are looked for: one kind of line end, no invisible characters,
    NFC.

    Markup at the start of lines goes here, because only here the lines are whole.
    """
    text = _LINE_ENDS.sub("\n", text)
    text = _INVISIBLE.sub("", text.replace("\t", " "))
    text = unicodedata.normalize("NFC", text)
    return _DECORATION.sub(" ", _LINE_MARKUP.sub("", text))


def to_words(text: str, before: str = "", after: str = "") -> tuple[str, tuple[str, ...]]:
    """Plain `text` as it will be spoken, and warnings. `before` and `after` are the neighbouring text; they only tell
    the language.

    The result has no ASCII digit and no mark outside KEPT_MARKS, so it can't hold a tag or a control token.
    """
    out: list[str] = []
    dropped = ""
    chunks = _chunks(text)
    for i, chunk in enumerate(chunks):
        left = (before + chunks[i - 1])[-_CONTEXT_CHARS:] if i else before
        right = chunks[i + 1][:_CONTEXT_CHARS] if i + 1 < len(chunks) else after
        spoken, lost = _keep_speech(written.speak(_typography(chunk), left, right))
        out.append(spoken)
        dropped += lost
    dropped = "".join(dict.fromkeys(dropped))
    return _tidy_spaces("".join(out)), (f'Not spoken: "{dropped}".',) if dropped else ()


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


def _typography(text: str) -> str:
    """One kind of letter, digit, apostrophe and dash; a sentence in capitals as a sentence."""
    text = _DASHES.sub("—", _APOSTROPHE.sub("'", _plain_forms(text)))
    return _SHOUTED.sub(_unshout, text)


def _plain_forms(text: str) -> str:
    """Full-width letters and digits, circled and Roman numerals, digits of other scripts: as plain ASCII."""
    out = []
    for char in text:
        if (
            "\uff10" <= char <= "\uff5a" and unicodedata.category(char) in ("Nd", "Lu", "Ll")
        ) or char in "％＋＝＠＆＜＞＃＊＿／＄－":
            out.append(unicodedata.normalize("NFKC", char))
        elif char == "．":
            out.append(".")
        elif char.isdecimal() and not char.isascii():
            out.append(str(unicodedata.decimal(char)))
        elif _NUMBER_LETTERS.match(char) and unicodedata.numeric(char, 0.5) % 1 == 0:
            out.append(f"{int(unicodedata.numeric(char))}")
        elif char in "\u00a0\u3000" or unicodedata.category(char) == "Zs":
            out.append(" ")
        else:
            out.append(char)
    return "".join(out)


def _unshout(match: re.Match[str]) -> str:
    """A sentence in capitals is words, not initials. Three or more in a row with a long one among them."""
    words = re.findall(r"[A-Z']+", match[0])
    if max(len(w) for w in words) < 5:
        return match[0]
    lowered = match[0].lower()
    return re.sub(r"\bi\b", "I", lowered[0].upper() + lowered[1:])


def _keep_speech(text: str) -> tuple[str, str]:
    """Letters and KEPT_MARKS stay. Other marks become a space; symbols too, and they are returned for the warning."""
    out: list[str] = []
    dropped: list[str] = []
    for char in text:
        if char in KEPT_MARKS or is_letter(char):
            out.append(char)
            continue
        out.append(" ")
        kind = unicodedata.category(char)
        if kind[0] in "SNC" and not char.isascii():
            dropped.append(char)
    return "".join(out), "".join(dict.fromkeys(dropped))


def _tidy_spaces(text: str) -> str:
    text = _RUN_OF_MARKS.sub(r"\1\1\1", text)
    text = re.sub(r"[ ]+", " ", text)
    text = re.sub(r" ?\n ?", "\n", text)
    text = re.sub(r" +(?=[，。！？；：、…,.?!;:）)])", "", text)
    return re.sub(rf"(?<=[{HAN}，。！？；：、]) (?=[{HAN}，。！？；：、“《「（])", "", text)
