"""A segment -> the symbols Kokoro's text encoder reads. Mandarin and American English, mixed in one sentence, tags
exact.

    Segment ──► sentences ──► tokens (words, syllable runs, marks) ──► symbols, with the place of every word

Nothing is lost silently: what can't be read is quoted in a warning, and a segment with nothing readable raises
TextError.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from pathlib import Path

from cosyvoice_app.engines.capabilities import LITE
from cosyvoice_app.engines.lite import g2p_zh
from cosyvoice_app.engines.lite.g2p_en import Context, EnglishLexicon, first_sound_is_vowel
from cosyvoice_app.engines.lite.g2p_symbols import MARKS, MAX_SYMBOLS, OPENING_MARKS, SYMBOLS, from_arpabet
from cosyvoice_app.engines.lite.heteronyms import EDGE
from cosyvoice_app.engines.lite.polyphones import Polyphones
from cosyvoice_app.errors import TextError
from cosyvoice_app.text.chars import HAN, LATIN
from cosyvoice_app.text.notices import missing_event, missing_language
from cosyvoice_app.text.pinyin import mark_tone
from cosyvoice_app.text.split import sentences
from cosyvoice_app.text.tags import write
from cosyvoice_app.types import Arpabet, Event, Pause, Piece, Pinyin, Said, Segment, Text


@dataclass(frozen=True, slots=True)
class G2PPaths:
    """Files of the English lexicons (JSON), of the letter-to-sound network and of the network for Mandarin characters
    with several readings (npz; without it their usual reading is taken where no word settles it).
    """

    gold: Path
    silver: Path
    oov: Path
    polyphones: Path | None = None


@dataclass(frozen=True, slots=True)
class Phonemes:
    """`symbols` for the text encoder; `words` = (as written, start, end) in `symbols`; `warnings` quote what isn't
    spoken.
    """

    symbols: str
    words: tuple[tuple[str, int, int], ...]
    warnings: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class _Word:
    surface: str
    symbols: str


@dataclass(frozen=True, slots=True)
class _Mark:
    symbol: str


@dataclass(frozen=True, slots=True)
class _English:
    surface: str


_Token = _Word | _Mark | _English | Pinyin | str
"""A `str` is a run of Han characters."""

_TOKEN = re.compile(
    rf"(?P<han>[{HAN}]+)|(?P<en>[{LATIN}]+(?:['][{LATIN}]+)*'?)|(?P<mark>\.{{2,}}|…+|—+|[–,.!?;:()\"“”‘’，。！？；：、（）「」『』《》〈〉【】〔〕«»])"
    rf"|(?P<space>[\s'·～~·-]+)|(?P<other>[^\s])"
)
_USUAL = {"的": "de", "了": "le", "着": "zhe", "地": "de", "得": "de", "过": "guò", "一": "", "不": "", "个": ""}
"""Readings that nobody needs to be told; none is told of a character without one here."""
_CHINESE_MARKS = {",": "，", ".": "。", "!": "！", "?": "？", ":": "：", ";": "；"}


class LiteG2P:
    """Callable and thread-safe. Lexicons and networks are read once, when the first word comes that needs them."""

    def __init__(self, paths: G2PPaths) -> None:
        self._paths = paths

    @cached_property
    def _english(self) -> EnglishLexicon:
        return EnglishLexicon(self._paths.gold, self._paths.silver, self._paths.oov)

    @cached_property
    def _polyphones(self) -> Polyphones | None:
        return Polyphones(self._paths.polyphones) if self._paths.polyphones is not None else None

    def __call__(self, segment: Segment) -> Phonemes:
        """Symbols of one segment. Raises TextError when nothing in it can be read."""
        warnings: list[str] = []
        words: list[_Word | _Mark] = []
        for sentence in sentences(list(segment.pieces)):
            notice = missing_language(sentence, LITE.languages)
            if notice:
                warnings.append(notice)
            else:
                words += self._speak(_tokens(sentence, warnings), warnings)
        symbols, spans = _join(words)
        if not spans:
            raise TextError(warnings[0] if warnings else f'Nothing in "{segment.text}" can be spoken.', param="text")
        if len(symbols) > MAX_SYMBOLS:
            raise TextError(
                f'"{segment.text[:40]}..." is {len(symbols)} sounds without a place to pause; {MAX_SYMBOLS} fit. '
                "Put spaces or marks into it.",
                param="text",
            )
        return Phonemes(symbols, spans, tuple(dict.fromkeys(warnings)))

    def readings(self, segment: Segment) -> tuple[Said, ...]:
        """The segment as written, in stretches: Mandarin characters that can be read in several ways with the way they
        will be. Needs no lexicon; without the network nothing is told.
        """
        out: list[Said] = []
        for sentence in sentences(list(segment.pieces)):
            tokens = [] if missing_language(sentence, LITE.languages) else _tokens(sentence, [])
            told = self._told(tokens)
            for piece in sentence:
                if not isinstance(piece, Text):
                    out.append(Said(write(piece)))
                    continue
                plain = ""
                for char in piece.text:
                    if told and told[0][0] == char:
                        reading = told.pop(0)[1]
                        if reading:
                            out += [Said(plain)] if plain else []
                            out.append(Said(char, reading))
                            plain = ""
                            continue
                    plain += char
                out += [Said(plain)] if plain else []
        return tuple(out)

    def _told(self, tokens: list[_Token]) -> list[tuple[str, str]]:
        """Every Mandarin character that has a reading, and the reading where it had a choice."""
        net = self._polyphones
        if net is None:
            return []
        out = []
        for start, end in _runs(tokens):
            stretch = [token for token in tokens[start:end] if isinstance(token, (str, Pinyin))]
            if stretch:
                read, _ = g2p_zh.syllables(stretch, net, *_around(tokens, start, end))
                for s in read:
                    if not s.fixed:
                        spelled = s.initial + mark_tone(s.final, s.tone)
                        told = s.char in net and _USUAL.get(s.char) not in (spelled, "")
                        out.append((s.surface, spelled if told else ""))
        return out

    def _speak(self, tokens: list[_Token], warnings: list[str]) -> list[_Word | _Mark]:
        read: list[_Word | _Mark | _English] = []
        for start, end in _runs(tokens):
            stretch = [token for token in tokens[start:end] if isinstance(token, (str, Pinyin))]
            if not stretch:
                read += [token for token in tokens[start:end] if not isinstance(token, (str, Pinyin))]
                continue
            spoken, unknown = g2p_zh.phrase(stretch, self._polyphones, *_around(tokens, start, end))
            read.extend(_Word(word.surface, word.symbols) for word in spoken)
            if unknown:
                warnings.append(f'No reading is known for "{unknown}"; it was not spoken.')
        return self._speak_english(read, warnings)

    def _speak_english(self, read: list[_Word | _Mark | _English], warnings: list[str]) -> list[_Word | _Mark]:
        """Right to left, because weak forms depend on the sound that follows. `read` is one sentence."""
        sentence = tuple(_seen(token) for token in read)
        out: list[_Word | _Mark] = []
        vowel: bool | None = None
        following = ""
        for i in range(len(read) - 1, -1, -1):
            token = read[i]
            if isinstance(token, _English):
                before = read[i - 1] if i else None
                previous = before.surface.lower() if isinstance(before, _English) else ""
                symbols = self._english.word(token.surface, Context(vowel, previous, following, sentence, i))
                if not symbols:
                    warnings.append(f'No reading is known for "{token.surface}"; it was not spoken.')
                following = token.surface.lower()
                token = _Word(token.surface, symbols)
            else:
                following = ""
            out.append(token)
            if isinstance(token, _Mark):
                vowel = None if token.symbol in ";:,.!?—…" else vowel
            else:
                vowel = first_sound_is_vowel(token.symbols)
        out.reverse()
        return out


def _seen(token: _Word | _Mark | _English) -> str:
    """A token as its neighbours are read by: Chinese and tags are an edge, since they say nothing about English."""
    return token.symbol if isinstance(token, _Mark) else token.surface if isinstance(token, _English) else EDGE


def _runs(tokens: list[_Token]) -> list[tuple[int, int]]:
    """Where the stretches of Mandarin and of everything else lie, in turn."""
    edges = [0]
    for at in range(1, len(tokens)):
        if isinstance(tokens[at], (str, Pinyin)) != isinstance(tokens[at - 1], (str, Pinyin)):
            edges.append(at)
    return list(pairwise([*edges, len(tokens)]))


def _around(tokens: list[_Token], start: int, end: int) -> tuple[str, str]:
    """What stands before and after a stretch of a sentence, as a Mandarin network reads it: characters and marks, one
    letter for an English word.
    """

    def seen(token: _Token) -> str:
        if isinstance(token, _Mark):
            return _CHINESE_MARKS.get(token.symbol, token.symbol)
        return token if isinstance(token, str) else "A"

    return "".join(map(seen, tokens[:start])), "".join(map(seen, tokens[end:]))


def _tokens(sentence: list[Piece], warnings: list[str]) -> list[_Token]:
    out: list[_Token] = []
    for piece in sentence:
        if isinstance(piece, Text):
            out += _text_tokens(piece.text, warnings)
        elif isinstance(piece, Pinyin):
            out.append(piece)
        elif isinstance(piece, Arpabet):
            out.append(_Word(write(piece), from_arpabet(piece.symbols)))
        elif isinstance(piece, Event):
            warnings.append(missing_event(piece))
        elif isinstance(piece, Pause):
            continue
    return out


def _text_tokens(text: str, warnings: list[str]) -> list[_Token]:
    out: list[_Token] = []
    lost: list[str] = []
    for match in _TOKEN.finditer(text):
        kind, found = match.lastgroup, match[0]
        if kind == "han":
            out.append(found)
        elif kind == "en":
            out.append(_English(found))
        elif kind == "mark":
            out.append(_Mark(_mark(text, match)))
        elif kind == "other":
            lost.append(found)
    if lost:
        warnings.append(f'This engine reads Chinese and English only; "{"".join(lost)}" was not spoken.')
    return out


def _mark(text: str, match: re.Match[str]) -> str:
    found = match[0]
    if len(found) > 1:
        return "…" if found[0] in ".…" else "—"
    if found == '"':
        return "”" if match.start() and not text[match.start() - 1].isspace() else "“"
    return MARKS[found]


def _join(words: list[_Word | _Mark]) -> tuple[str, tuple[tuple[str, int, int], ...]]:
    """Words with one space between; a mark clings to the word before it, an opening one to the word after."""
    symbols, spans = "", []
    glue = True
    for word in words:
        if isinstance(word, _Mark):
            mark = word.symbol
            if mark in OPENING_MARKS:
                symbols += ("" if glue else " ") + mark
                glue = True
            elif symbols and not symbols.endswith(mark) and not (glue and mark not in "”)"):
                symbols += mark
                glue = False
            continue
        said = "".join(c for c in word.symbols if c in SYMBOLS)
        if not said:
            continue
        symbols += "" if glue else " "
        spans.append((word.surface, len(symbols), len(symbols) + len(said)))
        symbols += said
        glue = False
    return symbols.strip(), tuple(spans)
