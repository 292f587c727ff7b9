"""Addresses: web, mail, files, folders, handles, IP. They are read as they stand, every mark by name."""

from __future__ import annotations

import re

from cosyvoice_app.text import numbers as n
from cosyvoice_app.text.chars import HAN
from cosyvoice_app.text.rule import DIGITS, Match, Rule, rule

_WORDS = {
    ".": ("点", "dot"),
    "/": ("斜杠", "slash"),
    "\\": ("反斜杠", "backslash"),
    "@": ("艾特", "at"),
    "_": ("下划线", "underscore"),
    "-": ("杠", "dash"),
    ":": ("冒号", "colon"),
    "?": ("问号", "question mark"),
    "=": ("等于", "equals"),
    "&": ("和", "and"),
    "#": ("井号", "hash"),
    "%": ("百分号", "percent"),
    "+": ("加", "plus"),
    "~": ("波浪号", "tilde"),
}
_FILE_KINDS = (
    "pdf|docx?|xlsx?|pptx?|txt|md|csv|tsv|json|ya?ml|toml|xml|html?|css|jsx?|tsx?|py|ipynb|java|cpp|hpp|php|sql|sh|"
    "bat|zip|rar|7z|gz|tar|exe|dmg|apk|iso|png|jpe?g|gif|svg|webp|bmp|psd|mp3|mp4|m4a|wav|flac|ogg|avi|mov|mkv|srt|log"
)
_TOP = "com|org|net|edu|gov|io|cn|ai|app|dev|tv|co|uk|de|fr|jp|hk|tw|info|shop|xyz"


def address(written: str, which: int) -> str:
    """An address as it stands, in Mandarin (0) or English (1): no scheme and no closing slash, letters as words, digits
    one by one, marks by name.

    >>> address("https://example.com/a_1", 1)
    'example dot com slash a underscore one'
    """
    written = re.sub(r"^[a-z]+://", "", written, flags=re.IGNORECASE).rstrip("/")
    said = []
    for part in re.findall(rf"[A-Za-z]+|[{HAN}]+|\d|.", written):
        if part.isdecimal():
            said.append(n.zh_digits(part) if which == 0 else n.en_digits(part))
        elif part in _WORDS:
            said.append(_WORDS[part][which])
        else:
            said.append(part)
    return " ".join(said)


def _zh(m: Match) -> str:
    return address(m[0], 0)


def _en(m: Match) -> str:
    return address(m[0], 1)


def _ip(m: Match, which: int) -> str | None:
    if any(int(part) > 255 for part in m[1].split(".")):
        return None
    spell = n.zh_digits if which == 0 else n.en_digits
    whole = n.zh_integer if which == 0 else n.en_integer
    said = []
    for part in re.findall(r"\d+|\D", m[0]):
        said.append(_WORDS[part][which] if part in _WORDS else spell(part) if len(part) > 2 else whole(part))
    return ("" if which == 0 else " ").join(said)


ADDRESSES: tuple[Rule, ...] = (
    rule(
        r"(?:https?|ftp)://[^\s\u3000-\u9fff\uff00-\uffef<>\"“”]*[^\s\u3000-\u9fff\uff00-\uffef<>\"“”.,;:!?)'\]]",
        _zh,
        _en,
        ":",
        alone="en",
        flags=re.IGNORECASE,
    ),
    rule(
        r"www\.[A-Za-z0-9-]+(?:\.[A-Za-z0-9-]+)+(?:/[\w./?=&%#~+-]*[\w/])?"
        r"|[A-Za-z0-9][\w.+-]*@[A-Za-z0-9-]+(?:\.[A-Za-z0-9-]+)+"
        rf"|(?<![\w@.])[A-Za-z0-9][A-Za-z0-9-]*(?:\.[A-Za-z0-9-]+)*\.(?:{_TOP})(?:/[\w./?=&%#~+-]*[\w/])?(?![\w.]*\w)",
        _zh,
        _en,
        ".",
        alone="en",
    ),
    rule(
        r"(?<![\d.])(\d{1,3}(?:\.\d{1,3}){3})(?:[:/]\d{1,5})?(?![\d.]*\d)",
        lambda m: _ip(m, 0),
        lambda m: _ip(m, 1),
        ".",
        DIGITS,
        alone="en",
    ),
    rule(
        rf"(?<![\w.{HAN}])[\w{HAN}-]+(?:\.[\w-]+)*\.(?:{_FILE_KINDS})(?![A-Za-z0-9_])",
        _zh,
        _en,
        ".",
        alone="en",
        flags=re.IGNORECASE,
    ),
    rule(
        rf"(?<![A-Za-z])[A-Za-z]:\\(?:[\w{HAN}.\\-]| (?=\w[\w.-]*\\))*[\w{HAN}]"
        r"|(?<![\w/.])(?:~|\.{1,2})?/(?:[\w.-]+/)+[\w.-]*\w|(?<![\w/.])(?:~|\.{1,2})/[\w.-]*\w",
        _zh,
        _en,
        "\\/",
        alone="en",
    ),
    # A name with an underscore and digits: abc_123.
    rule(
        r"(?<![\w@.])(?=\w{0,40}\d)(?=\d{0,9}[A-Za-z])[A-Za-z0-9]+(?:_[A-Za-z0-9]+)+(?!\w)",
        _zh,
        _en,
        "_",
        DIGITS,
        alone="en",
    ),
    rule(r"(?<![\w@])@[A-Za-z0-9_](?:[\w.]*\w)?", _zh, _en, "@", alone="en"),
)
