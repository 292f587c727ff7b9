"""Markup that people paste along: HTML, entities, and what Markdown puts at the start of lines. It is taken out
quietly; no word and no tag of ours goes with it.
"""

from __future__ import annotations

import html
import re

from cosyvoice_app.text.chars import has_han, words

_ENTITY = re.compile(r"&(?:#\d{1,7}|#[xX][0-9A-Fa-f]{1,6}|[A-Za-z][A-Za-z0-9]{1,30});")
_ATTRIBUTES = r"""(?:\s+[A-Za-z:_-]{1,30}=(?:"[^"<>]*"|'[^'<>]*'|[^\s"'<>]+))*\s*"""
_BLOCK = "br|p|div|li|ul|ol|tr|table|tbody|thead|hr|h[1-6]|blockquote|pre|section|article|header|footer|html|body"
_SPAN = (
    "b|i|u|s|a|q|em|span|font|code|small|big|mark|del|ins|sub|sup|td|th|img|center|strike|kbd|abbr|cite|tt|"
    "ruby|label|svg|button|nav|head|speak|prosody|voice|emphasis|say-as"
)
_WORDS = frozenset(
    words(
        "table section article header footer body small big mark code font center strike ruby label button nav head "
        "span cite speak voice emphasis pre"
    )
)
"""Also words that people put between angle brackets to be filled in: tags only as a pair or with attributes."""
_EVENTS = re.compile(r"</?(?:strong|laughter)>", re.IGNORECASE)
_HTML = re.compile(rf"<(/?)({_BLOCK}|{_SPAN})(?:{_ATTRIBUTES})/?>", re.IGNORECASE)
_COMMENT = re.compile(r"<!--[^<>]{0,400}?-->|<!DOCTYPE html>", re.IGNORECASE)
_RAISED = re.compile(r"<sup>([+−-]?\d{1,9})</sup>", re.IGNORECASE)
_SUPERSCRIPTS = str.maketrans("0123456789+-−", "⁰¹²³⁴⁵⁶⁷⁸⁹⁺⁻⁻")
_LINE_MARKUP = re.compile(
    r"^[ \t]*(?:#{1,6}[ \t]+|>(?:[ \t]?>){0,9}(?![=\d>])[ \t]?|\||(?:[-=_*~][ \t]?){3,}$"
    r"|[-*+•·◦▪▫●○■□▶►➤✦✓✔☑☐][ \t]+(?:\[[ xX]\][ \t]+)?)",
    re.MULTILINE,
)
_IMAGE = re.compile(r"!(?=\[[^\[\]\n]{0,200}\]\()")
_MARKED = re.compile(r"(?<![=A-Za-z0-9])==(?=[^\s=])([^=\n]{1,200})(?<!\s)==(?![=A-Za-z0-9])")
_TABLE_BORDER = re.compile(r"\|?[ \t]*:?-+:?[ \t]*(?:\|[ \t]*:?-+:?[ \t]*)*\|?")
_CELL_BORDER = re.compile(r"(?<![<\\])\|(?!>)")
_DECORATION = re.compile(r"([=*_#~+])\1{2,}|-{4,}")


def unescape(text: str) -> str:
    """HTML entities as what they stand for; twice, because pasted text is often escaped twice. Unknown ones stay.

    >>> unescape("Tom &amp; Jerry &#8212; AT&T &amp;nbsp;")
    'Tom & Jerry — AT&T \\xa0'
    """
    for _ in range(2):
        if "&" not in text or ";" not in text:
            break
        text = _ENTITY.sub(lambda m: html.unescape(m[0]), text)
    return text


def without_html(text: str) -> str:
    """`text` without HTML tags; block tags end the line. A single letter in angle brackets is a tag only when it is
    closed too: `a<b>c` is a comparison. `<strong>` and `<laughter>` are events and stay.

    >>> without_html('<p class="x">10<sup>3</sup> <b>big</b> rats</p>')
    '\\n10³ big rats\\n'
    """
    if "<" not in text:
        return text
    text = _EVENTS.sub(lambda m: m[0].lower(), text)
    text = _RAISED.sub(lambda m: m[1].translate(_SUPERSCRIPTS), _COMMENT.sub("", text))
    found = {(m[1], m[2].lower()) for m in _HTML.finditer(text)}
    return _HTML.sub(lambda m: _in_place_of(m, found), text)


def _in_place_of(match: re.Match[str], found: set[tuple[str, str]]) -> str:
    name = match[2].lower()
    alone = not {("", name), ("/", name)} <= found
    if alone and len(name) == 1 and name != "p":
        return match[0]
    if alone and name in _WORDS and not match[1] and "=" not in match[0]:
        return match[0]
    if name in ("td", "th", "img"):
        return " "
    return "\n" if re.fullmatch(_BLOCK, name) else ""


def without_line_markup(text: str) -> str:
    """`text` without headings' marks, bullets, quote marks, table bars, rules and rows of decoration."""
    text = _without_tables(text) if "|" in text and "-" in text else text
    if "==" in text:
        text = _MARKED.sub(r"\1", text)
    return _DECORATION.sub(" ", _LINE_MARKUP.sub("", _IMAGE.sub("", text)))


def _without_tables(text: str) -> str:
    """Markdown tables as lines: the row of dashes goes, and a comma stands for each border between cells."""
    lines = text.split("\n")
    borders = [
        i for i, line in enumerate(lines) if "|" in line and "-" in line and _TABLE_BORDER.fullmatch(line.strip())
    ]
    done = 0
    for border in borders:
        row = max(done, border - 1)
        while row < len(lines) and "|" in lines[row]:
            lines[row] = "" if _TABLE_BORDER.fullmatch(lines[row].strip()) else _row(lines[row])
            row += 1
        done = max(done, row)
    gone = set(borders)
    return "\n".join(line for i, line in enumerate(lines) if i not in gone)


def _row(line: str) -> str:
    comma = "，" if has_han(line) else ", "
    return comma.join(cell for cell in (part.strip() for part in _CELL_BORDER.split(line)) if cell)
