"""One kind of letter, digit, quote and dash, before any rule looks at the text: full-width and styled letters, circled
and fractional numbers, squared units, digits of other scripts, lowered digits.
"""

from __future__ import annotations

import re
import unicodedata

from cosyvoice_app.text.chars import LATIN, is_han

_APOSTROPHE = re.compile(
    rf"(?<=[{LATIN}0-9])[’‘ʼ＇`´](?=[{LATIN}0-9])|(?<![{LATIN}\w])[’](?=(?:s|t|re|ve|ll|d|m|em|til|cause)\b|\d0s)"
)
_DASHES = re.compile(r" ?(?<!-)-{2,3}(?![->]) ?")
_ARROW = re.compile(r"(?<![-=<>])[-=]{1,2}>|<-{1,2}(?![-\d])")
_COMPARISON = re.compile(r"[<>!=]=(?!=)")
_COMPARISONS = {"<=": "≤", ">=": "≥", "!=": "≠", "==": "="}
_SHOUTED = re.compile(r"\b[A-Z][A-Z']+(?:[ ,]+[A-Z][A-Z']*){2,}\b")
_NUMBER_LETTERS = re.compile(r"[\u2150-\u218b\u3021-\u3029\u2460-\u249b\u24ea-\u24ff\u2776-\u2793]")
_STYLED = re.compile(
    "[\u2080-\u2089\u20a8\u2215\u2236\u24b6-\u24e9\u3220-\u3243\u3280-\u32b0\u3358-\u337a\u3380-\u33ff\ufb00-\ufb06"
    "\U0001d400-\U0001d7ff]"
)
_ROUND_ZERO = re.compile("(?<=[一二三四五六七八九〇○零十])○(?=[一二三四五六七八九〇○零年])")
_PLAIN_MARKS = {"．": ".", "′": "'", "″": '"', "⁄": "/", "∶": ":", "∕": "/", "‑": "-", "‐": "-", "⁃": "-"}


def plain_typography(text: str) -> str:
    """`text` in one kind of everything; a sentence in capitals as a sentence."""
    return _SHOUTED.sub(_unshout, plain_marks(text))


def plain_marks(text: str) -> str:
    """`text` in one kind of every letter, digit, quote and dash: what no language sees differently."""
    if "○" in text:
        text = _ROUND_ZERO.sub("〇", text)
    text = re.sub(" {2,}", " ", text)
    text = _DASHES.sub("—", _APOSTROPHE.sub("'", _plain_forms(text)))
    if "=" in text or ">" in text or "<" in text:
        text = _COMPARISON.sub(lambda m: _COMPARISONS[m[0]], _ARROW.sub("→", text))
    return text


def _plain_forms(text: str) -> str:
    if text.isascii():
        return text
    out: list[str] = []
    for char in text:
        out.append(char if char.isascii() or is_han(char) else _plain_form(char, out[-1][-1:] if out else ""))
    return "".join(out)


def _plain_form(char: str, previous: str) -> str:
    if (
        "\uff10" <= char <= "\uff5a" and unicodedata.category(char) in ("Nd", "Lu", "Ll")
    ) or char in "％＋＝＠＆＜＞＃＊＿／＄－":
        return unicodedata.normalize("NFKC", char)
    if char in _PLAIN_MARKS:
        return _PLAIN_MARKS[char]
    if _STYLED.match(char):
        # A squared unit: ㎡ must not become the letters and digit m2.
        plain = unicodedata.normalize("NFKC", char).replace("∕", "/")
        return re.sub(r"(?<=[a-z])[23]$", lambda m: "²³"[int(m[0]) - 2], plain)
    if char.isdecimal():
        return str(unicodedata.decimal(char))
    if unicodedata.category(char) in ("No", "Nl"):
        return _plain_number(char, previous)
    return " " if unicodedata.category(char) == "Zs" else char


def _plain_number(char: str, previous: str) -> str:
    value = unicodedata.numeric(char, 0.5)
    if _NUMBER_LETTERS.match(char) and value % 1 == 0:
        return (" " if previous.isdigit() else "") + f"{int(value)}"
    fraction = unicodedata.normalize("NFKC", char)
    if "⁄" in fraction and fraction[-1].isdigit():
        return (" " if previous.isdigit() else "") + fraction.replace("⁄", "/")
    return char


def _unshout(match: re.Match[str]) -> str:
    """A sentence in capitals is words, not initials. Three or more in a row with a long one among them."""
    words = re.findall(r"[A-Z']+", match[0])
    if max(len(w) for w in words) < 5:
        return match[0]
    lowered = match[0].lower()
    return re.sub(r"\bi\b", "I", lowered[0].upper() + lowered[1:])
