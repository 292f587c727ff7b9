"""Markup that people paste along: HTML, entities, and what Markdown puts at the start of lines. It is taken out
quietly; no word and no tag of ours goes with it.
"""

from __future__ import annotations

import html
import re

_ENTITY = re.compile(r"&(?:#\d{1,7}|#[xX][0-9A-Fa-f]{1,6}|[A-Za-z][A-Za-z0-9]{1,30});")
_ATTRIBUTES = r"""(?:\s+[A-Za-z:_-]{1,30}=(?:"[^"<>]*"|'[^'<>]*'|[^\s"'<>]+))*\s*"""
_BLOCK = "br|p|div|li|ul|ol|tr|table|tbody|thead|hr|h[1-6]|blockquote|pre|section|article|header|footer|html|body"
_SPAN = (
    "b|i|u|s|a|q|em|span|font|code|small|big|mark|del|ins|sub|sup|td|th|img|center|strike|kbd|abbr|cite|tt|"
    "ruby|label|svg|button|nav|head"
)
_HTML = re.compile(rf"<(/?)({_BLOCK}|{_SPAN})(?:{_ATTRIBUTES})/?>", re.IGNORECASE)
_COMMENT = re.compile(r"<!--[^<>]{0,400}?-->|<!DOCTYPE html>", re.IGNORECASE)
_RAISED = re.compile(r"<sup>([+−-]?\d{1,9})</sup>", re.IGNORECASE)
_SUPERSCRIPTS = str.maketrans("0123456789+-−", "⁰¹²³⁴⁵⁶⁷⁸⁹⁺⁻⁻")
_LINE_MARKUP = re.compile(
    r"^[ \t]*(?:#{1,6}[ \t]+|>(?![=\d])[ \t]?|\||(?:[-=_*~][ \t]?){3,}$"
    r"|[-*+•·◦▪▫●○■□▶►➤✦✓✔☑☐][ \t]+(?:\[[ xX]\][ \t]+)?)",
    re.MULTILINE,
)
_IMAGE = re.compile(r"!(?=\[[^\[\]\n]{0,200}\]\()")
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
    text = _RAISED.sub(lambda m: m[1].translate(_SUPERSCRIPTS), _COMMENT.sub("", text))
    found = {(m[1], m[2].lower()) for m in _HTML.finditer(text)}
    return _HTML.sub(lambda m: _in_place_of(m, found), text)


def _in_place_of(match: re.Match[str], found: set[tuple[str, str]]) -> str:
    name = match[2].lower()
    if len(name) == 1 and name != "p" and not {("", name), ("/", name)} <= found:
        return match[0]
    if name in ("td", "th", "img"):
        return " "
    return "\n" if re.fullmatch(_BLOCK, name) else ""


def without_line_markup(text: str) -> str:
    """`text` without headings' marks, bullets, quote marks, table bars, rules and rows of decoration."""
    return _DECORATION.sub(" ", _LINE_MARKUP.sub("", _IMAGE.sub("", text)))
