"""Where a text may be cut: after sentences, after clauses, between words. Never inside a tag, a number, a short quoted
phrase or a word, and nothing is lost: the parts joined are the whole.

The cuts are looked for in the pieces' joined text, in which every tag is one `_TAG` character.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from itertools import accumulate

import rjieba

from cosyvoice_app.text.chars import HAN, has_speech
from cosyvoice_app.text.language import NATIVE_LANGUAGES
from cosyvoice_app.types import Arpabet, Piece, Pinyin, Text

CLOSERS = "”’」』》】）)\"'"
QUOTED_CHARS = 24
"""A quoted phrase up to this long is kept whole, marks inside or not."""

_TAG = "\ufffc"
_SENTENCE_END = re.compile(rf"(?:[。！？!?；;]|…+|\.{{2,}}|\.(?=[\s{CLOSERS}{_TAG}]|$|[{HAN}]))+[{CLOSERS}]*\s*|\n+")
_CLAUSE_END = re.compile(rf"(?:[，,、：:—–～]|(?<=\s)-(?=\s))+[{CLOSERS}]*\s*")
_INITIAL = re.compile(r"(?:\b[A-Za-z]|\b(?:Mr|Mrs|Ms|Dr|St|Prof|Jr|Sr|vs|No|U\.S|a\.m|p\.m))$")
_INITIAL_CHARS = 8
_FOREIGN_INITIAL = re.compile(
    rf"{_INITIAL.pattern}|(?:^|\D)\d{{1,2}}$"
    r"|\b(?:Nr|Hr|bzw|ca|Mme|Mlle|Sra|Dra|Sig|ej|aprox|г|гг|т|д|п|н|э|ул|им|руб|коп|тыс|млн|млрд)$"
)
"""In other languages, whose numbers and abbreviations stay as typed: 3. Mai, z. B., p. ej., 2024 г."""
_QUOTES = (("“", "”"), ("「", "」"), ("『", "』"), ("《", "》"), ("（", "）"), (r"\(", r"\)"), ('"', '"'))
_QUOTED = re.compile("|".join(rf"{left}[^{left}{right}\n]{{1,{QUOTED_CHARS}}}{right}" for left, right in _QUOTES))
_ONES = (
    "zero|one|two|three|four|five|six|seven|eight|nine|ten|eleven|twelve|thirteen|fourteen|fifteen|sixteen|seventeen|"
    "eighteen|nineteen|twenty|thirty|forty|fifty|sixty|seventy|eighty|ninety|hundred|thousand|million|billion|trillion|"
    "point|minus|oh"
)
_NUMERALS = "负零〇一二三四五六七八九十百千万亿点两幺"
_UNITS = "年月日号时分秒点度元角块个次人米克升页层楼室岁折倍号会"
_NUMBER = re.compile(
    rf"\d+(?:[.,:]\d+)+|[{_NUMERALS}]+(?:[{_UNITS}][{_NUMERALS}]+)*[{_UNITS}]?|[{_NUMERALS}](?:、[{_NUMERALS}])+[{_UNITS}]?"
    rf"|\b(?:{_ONES})(?:,? ?-?(?:{_ONES}))+\b(?: (?:dollars?|cents?|percent|degrees?|pounds?|euros?|o'clock)\b)?",
    re.IGNORECASE,
)
_WORD_END = re.compile(rf"[^\s{HAN}{_TAG}]+\s*|[{HAN}]+[^\w\s{_TAG}]*\s*|{_TAG}\s*|\s+")


def sentences(pieces: list[Piece]) -> list[list[Piece]]:
    """`pieces` cut after every sentence. A part without a word (a stray mark) stays with its neighbour."""
    text = _joined(pieces)
    foreign = any(isinstance(piece, Text) and piece.language not in NATIVE_LANGUAGES for piece in pieces)
    initial = _FOREIGN_INITIAL if foreign else _INITIAL
    ends = [m.end() for m in _SENTENCE_END.finditer(text) if not _is_initial(text, m, initial)]
    return _join_unspoken(_cut(pieces, _outside(ends, _QUOTED, text)))


def clauses(pieces: list[Piece]) -> list[list[Piece]]:
    """`pieces` cut after every comma, colon or dash."""
    text = _joined(pieces)
    ends = _outside((m.end() for m in _CLAUSE_END.finditer(text)), _QUOTED, text)
    return _join_unspoken(_cut(pieces, _outside(ends, _NUMBER, text)))


def words(pieces: list[Piece], *, keep_quotes: bool = True) -> list[list[Piece]]:
    """`pieces` cut after every word, a number being one; quoted phrases stay whole if `keep_quotes`."""
    text = _joined(pieces)
    ends: list[int] = []
    for match in _WORD_END.finditer(text):
        ends.extend(_han_ends(match) if match[0][0] not in " \n" else ())
        ends.append(match.end())
    allowed = _outside(ends, _NUMBER, text)
    return _join_unspoken(_cut(pieces, _outside(allowed, _QUOTED, text) if keep_quotes else allowed))


def _han_ends(match: re.Match[str]) -> list[int]:
    """Ends of the words inside a run of Han, the last one left out: marks cling to it."""
    run = re.match(rf"[{HAN}]+", match[0])
    if run is None:
        return []
    return [match.start() + end for end in accumulate(len(word) for word in rjieba.cut(run[0]))][:-1]


def letters(pieces: list[Piece], count: int) -> list[list[Piece]]:
    """`pieces` cut every `count` characters: for a word or a number that is too long to be spoken in one go."""
    return _join_unspoken(_cut(pieces, range(count, len(_joined(pieces)), count)))


def has_content(pieces: Iterable[Piece]) -> bool:
    """Anything to say? An event alone has no words to lean on, so it stays with its neighbours."""
    return any(has_speech(p.text) if isinstance(p, Text) else isinstance(p, Pinyin | Arpabet) for p in pieces)


def merge(pieces: list[Piece]) -> list[Piece]:
    """Neighbouring texts of one language as one."""
    out: list[Piece] = []
    for piece in pieces:
        last = out[-1] if out else None
        if isinstance(piece, Text) and isinstance(last, Text) and last.language == piece.language:
            out[-1] = Text(last.text + piece.text, piece.language)
        else:
            out.append(piece)
    return out


def _joined(pieces: list[Piece]) -> str:
    return "".join(piece.text if isinstance(piece, Text) else _TAG for piece in pieces)


def _is_initial(text: str, match: re.Match[str], initial: re.Pattern[str]) -> bool:
    """True for the dot of `J. R.` or `Dr.`, unless the text ends there."""
    before = text[max(0, match.start() - _INITIAL_CHARS) : match.start()]
    return match[0].startswith(".") and match.end() < len(text) and bool(initial.search(before))


def _outside(ends: Iterable[int], kept: re.Pattern[str], text: str) -> list[int]:
    """Those of `ends`, ascending, that lie in no match of `kept`."""
    spans = [m.span() for m in kept.finditer(text)]
    out: list[int] = []
    at = 0
    for end in ends:
        while at < len(spans) and spans[at][1] <= end:
            at += 1
        if at == len(spans) or end <= spans[at][0]:
            out.append(end)
    return out


def _cut(pieces: list[Piece], ends: Iterable[int]) -> list[list[Piece]]:
    """Cut at places of the joined text, ascending; empty parts are left out."""
    cuts = iter([*ends, -1])
    cut = next(cuts)
    out: list[list[Piece]] = [[]]
    start = 0
    for piece in pieces:
        length = len(piece.text) if isinstance(piece, Text) else 1
        done = 0
        while start + done < cut <= start + length:
            if isinstance(piece, Text):
                out[-1].append(Text(piece.text[done : cut - start], piece.language))
            else:
                out[-1].append(piece)
            out.append([])
            done = cut - start
            cut = next(cuts)
        if done < length:
            out[-1].append(Text(piece.text[done:], piece.language) if isinstance(piece, Text) else piece)
        start += length
    return [part for part in out if part]


def _join_unspoken(parts: list[list[Piece]]) -> list[list[Piece]]:
    """Parts without a word (a stray mark) go to the part before, or to the first that has one."""
    out: list[list[Piece]] = []
    lead: list[Piece] = []
    for part in parts:
        if has_content(part):
            out.append(lead + part)
            lead = []
        elif out:
            out[-1].extend(part)
        else:
            lead = lead + part
    return out or [lead]
