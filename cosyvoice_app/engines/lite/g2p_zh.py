"""Mandarin text -> syllables with their tones as spoken -> Kokoro's symbols.

    run of Han characters ──► Simplified copy ──► dictionary readings ──► sandhi ──► symbols
                              (text/simplified)    (g2p_zh_read)          (g2p_zh_sandhi)

Syllables the user spelled keep their tone exactly; the ones beside them follow it.
"""

from __future__ import annotations

from dataclasses import dataclass

from pypinyin.constants import PINYIN_DICT

from cosyvoice_app.engines.lite import g2p_pinyin
from cosyvoice_app.engines.lite.g2p_zh_read import readings
from cosyvoice_app.engines.lite.g2p_zh_sandhi import Syllable, as_spoken
from cosyvoice_app.engines.lite.polyphones import Polyphones
from cosyvoice_app.text.pinyin import split_tone
from cosyvoice_app.text.simplified import simplified
from cosyvoice_app.types import Pinyin


@dataclass(frozen=True, slots=True)
class Spoken:
    """A word: what was written, and its symbols."""

    surface: str
    symbols: str


SETTLED = {
    "髮": "fa4", "發": "fa1", "乾": "gan1", "幹": "gan4", "隻": "zhi1", "儘": "jin3", "捲": "juan3",
    "捨": "she3", "鬥": "dou4", "佔": "zhan4", "係": "xi4", "瞭": "liao3", "徵": "zheng1", "鍾": "zhong1",
    "穀": "gu3", "纔": "cai2", "嚮": "xiang4", "誌": "zhi4", "傢": "jia1",
}  # fmt: skip
"""Traditional characters that say which reading of their Simplified form is meant."""
_SPELLED = "□"
"""Stands for a syllable the user spelled, where the network looks at a sentence."""


def phrase(
    parts: list[str | Pinyin], polyphones: Polyphones | None = None, before: str = "", after: str = ""
) -> tuple[list[Spoken], str]:
    """Words of a stretch without marks inside: runs of Han characters, and tags. Also the characters no reading is
    known for. Arguments as of `syllables`.
    """
    read, unknown = syllables(parts, polyphones, before, after)
    return _spoken(read), unknown


def syllables(
    parts: list[str | Pinyin], polyphones: Polyphones | None = None, before: str = "", after: str = ""
) -> tuple[list[Syllable], str]:
    """Every syllable of a stretch with its tone as spoken, and the characters no reading is known for.

    `before` and `after` are the rest of the sentence as written, marks and all; only `polyphones`, which reads the
    characters that words and rules leave open, looks at them.
    """
    out: list[Syllable] = []
    unknown = ""
    word = 0
    texts = [simplified(part) if isinstance(part, str) else _SPELLED for part in parts]
    before, after = simplified(before), simplified(after)
    for number, part in enumerate(parts):
        if isinstance(part, Pinyin):
            out.append(_spelled(part, word))
            word += 1
            continue
        left, right = before + "".join(texts[:number]), "".join(texts[number + 1 :]) + after
        read, lost = _read(part, word, polyphones, left, right)
        unknown += lost
        out += read
        word = out[-1].word + 1 if out else word
    as_spoken(out)
    return out, unknown


def _spelled(tag: Pinyin, word: int) -> Syllable:
    letters, tone = split_tone(tag.final)
    surface = f"[{tag.initial}][{tag.final}]" if tag.initial else f"[{tag.final}]"
    return Syllable(surface, "", tag.initial, letters, tone, word, fixed=True)


def _read(
    run: str, first_word: int, polyphones: Polyphones | None = None, before: str = "", after: str = ""
) -> tuple[list[Syllable], str]:
    """Syllables of a run with the tones a dictionary gives, and the characters without a reading."""
    pairs = list(zip(run, simplified(run), strict=True))
    unknown = "".join(c for c, s in pairs if ord(s) not in PINYIN_DICT)
    known = [(c, s) for c, s in pairs if ord(s) in PINYIN_DICT]
    if not known:
        return [], unknown
    read, words = readings("".join(s for _, s in known), polyphones, before, after)
    out: list[Syllable] = []
    for number, word in enumerate(words):
        for _ in word:
            surface, char = known[len(out)]
            reading = _settled(surface, char, read[len(out)])
            initial, final = g2p_pinyin.split_syllable(reading[:-1])
            out.append(Syllable(surface, char, initial, final, int(reading[-1]), first_word + number))
    return out, unknown


def _settled(surface: str, char: str, reading: str) -> str:
    """`reading`, or the one a Traditional character means; the unstressed fa5 of 頭髮 is fa4 too."""
    meant = SETTLED.get(surface) if surface != char else None
    return reading if meant is None or (reading[:-1] == meant[:-1] and reading[-1] == "5") else meant


def _spoken(syllables: list[Syllable]) -> list[Spoken]:
    out: list[Spoken] = []
    current = None
    for s in syllables:
        symbols = g2p_pinyin.to_symbols(s.initial, s.final, s.tone)
        if out and s.word == current:
            out[-1] = Spoken(out[-1].surface + s.surface, out[-1].symbols + symbols)
        else:
            out.append(Spoken(s.surface, symbols))
        current = s.word
    return out

