"""Japanese as its authors advise for CosyVoice3: katakana as pronounced, with a space between words.

Their example (`example.py` of the official code) is what Open JTalk's dictionary gives as pronunciation, word by
word: the particles は and へ as ワ and エ, を as ヲ, long vowels with ー (ユー for 有), and イウ kept. So that is what
is used, by the package pyopenjtalk-plus (MIT; the dictionary is inside). It also reads numbers with their counters:
4月1日 is シガツ ツイタチ. It is optional, `requirements-japanese.txt`; without it hiragana becomes katakana and the
rest stays, with a warning. onnxruntime belongs to it: it tells ナン from ナニ for 何, and without it the package prints
to standard output.
"""

from __future__ import annotations

import importlib
import importlib.util
import re
import threading
from functools import lru_cache
from typing import Any

from cosyvoice_app.text.chars import HAN, KANA, LATIN

PACKAGE, COMPANION = "pyopenjtalk", "onnxruntime"
_MOST_CHARS = 200
"""Longest run handed over at once: a bound on what one call costs."""

_NUMBER = rf"(?<![{LATIN}\d.,])(?<![{LATIN}]-)\d+(?:[.,]\d+)*(?:\s?(?:[kcm]?m|[km]?g|[%％℃]))?(?![{LATIN}\d])"
_RUN = re.compile(rf"(?:[{KANA}{HAN}\u3005\u3006\u30fc]|{_NUMBER})+")
_KATAKANA = re.compile(r"[\u30a1-\u30fa\u30fc-\u30ff]+")
_HIRAGANA = re.compile(r"[\u3041-\u3096\u309d\u309e]")
_KANA_SHIFT = 0x60
_BEFORE_WORD = re.compile(rf"(?<=[{LATIN}\d])(?=[\u30a1-\u30ff])|(?<=[\u30a1-\u30ff])(?=[{LATIN}\d])")

_DIGITS = ("ゼロ", "イチ", "ニー", "サン", "ヨン", "ゴー", "ロク", "ナナ", "ハチ", "キュー")
_PHONE = re.compile(r"(?<![\w.-])\d{2,5}(?:-\d{2,5}){2}(?![\w-])", re.ASCII)
_MONEY = re.compile(r"([¥$€£])\s?(\d[\d,]*(?:\.\d+)?[万億千]?)")
_CURRENCIES = {"¥": "円", "$": "ドル", "€": "ユーロ", "£": "ポンド"}
_WRITTEN: tuple[tuple[re.Pattern[str], str], ...] = tuple(
    (re.compile(pattern, re.ASCII), spoken)
    for pattern, spoken in (
        (r"(?<!\d)(\d{4})([-/.])(1[0-2]|0?[1-9])\2(3[01]|[12]\d|0?[1-9])(?!\d)", r"\1年\3月\4日"),
        (r"(?<![\d:])(2[0-4]|1\d|0?\d):00(?![\d:])", r"\1時"),
        (r"(?<![\d:])(2[0-4]|1\d|0?\d):0?(\d{1,2})(?![\d:])", r"\1時\2分"),
        (r"(?<![A-Za-z\d/])(\d{1,3})/(\d{1,3})(?![\d/])", r"\2分の\1"),
        (r"(?<=\d) ?[~～〜–] ?(?=\d)", "から"),
        (r"(?<![A-Za-z\d])(\d+)-(?=\d+(?![\d-]))", r"\1から"),
        (r"(?<![\w)])[-−](?=\d)", "マイナス"),
        (r"(?<=\d) ?° ?C\b", "℃"),
        (r"(?<=\d)°", "度"),
    )
)
_turn = threading.Lock()


def available() -> bool:
    """Whether kanji can be read here."""
    return all(importlib.util.find_spec(name) is not None for name in (PACKAGE, COMPANION))


def katakana(text: str) -> tuple[str, bool]:
    """A plain Japanese `text` as katakana, and whether all of it could be read. Latin words, names with digits (GPT-4)
    and what is katakana already stay as typed, so doing it again changes nothing.

    >>> katakana("私はGPT-4へ行きます。")[0] if available() else "ワタシ ワ GPT-4 エ イキ マス。"
    'ワタシ ワ GPT-4 エ イキ マス。'
    """
    frontend = _frontend()
    if frontend is None:
        whole = all(_KATAKANA.fullmatch(run[0]) for run in _RUN.finditer(text))
        return _HIRAGANA.sub(lambda m: chr(ord(m[0]) + _KANA_SHIFT), text), whole
    text = _PHONE.sub(_phone, text)
    text = _MONEY.sub(lambda m: m[2] + _CURRENCIES[m[1]], text)
    for pattern, spoken in _WRITTEN:
        text = pattern.sub(spoken, text)
    read = _RUN.sub(lambda m: m[0] if _KATAKANA.fullmatch(m[0]) else _read(frontend, m[0]), text)
    return re.sub(" {2,}", " ", _BEFORE_WORD.sub(" ", read)), True


def _phone(match: re.Match[str]) -> str:
    return " ノ ".join(" ".join(_DIGITS[int(digit)] for digit in group) for group in match[0].split("-"))


def _read(frontend: Any, run: str) -> str:
    words: list[str] = []
    for start in range(0, len(run), _MOST_CHARS):
        with _turn:
            nodes = frontend(run[start : start + _MOST_CHARS])
        for node in nodes:
            said = node["pron"].replace("’", "").replace("'", "")
            if not _KATAKANA.fullmatch(said):
                said = node["string"]  # no reading is known
            if words and said.startswith("ー"):
                words[-1] += said
            else:
                words.append(said)
    return " ".join(words)


@lru_cache(maxsize=1)
def _frontend() -> Any:
    """Open JTalk's word-by-word reading, or None when the package isn't there. Loads its dictionary once: one or
    two seconds.
    """
    return importlib.import_module(PACKAGE).run_frontend if available() else None
