"""Pronunciation tags, pauses and events: from typed text to pieces, and back to their one canonical spelling.

    [h][ào]  [hao4]  [hào]      one Mandarin syllable       -> Pinyin, written [h][ào]
    [M][AY0][N]                 one English word            -> Arpabet, one symbol a bracket
    [chong2 qing4]  [M AY0 N]   several in one bracket      -> the same, one by one
    [pause 0.8s]  [0.8s]        a pause of 0..10 s          -> Pause; also <break time="800ms"/>
    [breath]  <strong>          what the engine may act out -> Event

A bracket that looks like a tag but isn't one is reported, quoted, and not spoken. Ordinary brackets (`a[0]`, `[注3]`,
`他[笑]了`, `[the president]`) stay text. Model control tokens (`<|...|>`) are reported and removed.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable
from dataclasses import dataclass
from itertools import takewhile

from cosyvoice_app.text import arpabet, pinyin
from cosyvoice_app.text.chars import LATIN, is_han, words
from cosyvoice_app.types import Arpabet, Event, Pause, Piece, Pinyin, Text

POINT_EVENTS: tuple[str, ...] = words(
    "breath noise laughter cough clucking accent quick_breath hissing sigh vocalized-noise lipsmack mn"
)
SPAN_EVENTS: tuple[str, ...] = ("<strong>", "</strong>", "<laughter>", "</laughter>")
MAX_PAUSE_MS = 10_000
DEFAULT_PAUSE_MS = 500

Raw = str | Pinyin | Arpabet | Event | Pause

_CONTROL = re.compile(r"<\|[^<>\n]*?\|>")
_BRACKET = re.compile(r"\[([^\[\]\n]{0,40})\]")
_NESTED = re.compile(r"\[[^\[\]\n]{0,20}\[[^\[\]\n]{0,20}\][^\[\]\n]{0,20}\]")
_SPAN = re.compile("|".join(re.escape(s) for s in SPAN_EVENTS), re.IGNORECASE)
_VALUE = r"\s*=\s*[\"']?([^\"'<>/\s]{1,12})[\"']?"
_BREAK = re.compile(rf"<break(?:\s+(?:time{_VALUE}|(?!time)\w+{_VALUE}))*\s*/?>", re.IGNORECASE)
_PAUSE = re.compile(
    r"(?:(?:pause|停[顿頓])\s*:?\s*)?(\d{1,4}(?:\.\d{1,3})?|\.\d{1,3})\s*(ms|s|sec(?:ond)?s?|毫秒|秒)|pause|停[顿頓]",
    re.IGNORECASE,
)
_TAG_LIKE = re.compile(
    rf"[{LATIN}\u0300-\u036f][{LATIN}\u0300-\u036f0-9:_-]{{0,15}}|pause\b.*|\d*(?:\.\d+)?\s*[A-Za-z]*s|", re.IGNORECASE
)
_TONED_TAIL = re.compile(r"[a-zA-Zü]{0,3}[āáǎàēéěèīíǐìōóǒòūúǔùǖǘǚǜ][a-zA-Zü]{0,3}[0-9]?(?![A-Za-z])")
_WORD_END = re.compile(r"[A-Za-z0-9_)]")
_LINK = re.compile(r"\[([^\[\]\n]+)\]\((https?://[^\s()]+)\)")


@dataclass(frozen=True, slots=True)
class Parsed:
    """`parts` in order: plain text as typed, and tags. `warnings` quote whatever was taken out."""

    parts: tuple[Raw, ...]
    warnings: tuple[str, ...]


def write(piece: Piece) -> str:
    """The one spelling of a piece that goes to the tokenizer. A pause has none: it lies between segments."""
    if isinstance(piece, Text):
        return piece.text
    if isinstance(piece, Pinyin):
        return (f"[{piece.initial}]" if piece.initial else "") + f"[{piece.final}]"
    if isinstance(piece, Arpabet):
        return "".join(f"[{symbol}]" for symbol in piece.symbols)
    if isinstance(piece, Event):
        return piece.name if piece.name in SPAN_EVENTS else f"[{piece.name}]"
    return ""


def parse(text: str) -> Parsed:
    """Split typed text into plain text and tags. Never raises; expects (and returns) NFC."""
    return _Parser(unicodedata.normalize("NFC", text)).run()


class _Parser:
    def __init__(self, text: str) -> None:
        self.warnings: list[str] = []
        self.text = _LINK.sub(r"\1 \2", self._without_control_tokens(text))
        self.parts: list[Raw] = []
        self.open_spans: list[str] = []

    def run(self) -> Parsed:
        text, at, plain_from = self.text, 0, 0
        while at < len(text):
            if text[at] not in "[]<":
                at += 1
                continue
            end = self._tag_at(at, text[plain_from:at])
            if end is None:
                at += 1
                continue
            at = plain_from = end
        self._plain(text[plain_from:])
        for name in self.open_spans:
            self.warnings.append(f'"{name}" is never closed; it holds to the end of the text.')
        return Parsed(tuple(self.parts), tuple(self.warnings))

    def _without_control_tokens(self, text: str) -> str:
        while _CONTROL.search(text):
            for token in dict.fromkeys(_CONTROL.findall(text)):
                self.warnings.append(f'"{token}" is a control mark of the model, not text; it was left out.')
            text = _CONTROL.sub(" ", text)
        return text

    def _plain(self, text: str) -> None:
        if not text:
            return
        if self.parts and isinstance(self.parts[-1], str):
            self.parts[-1] += text
        else:
            self.parts.append(text)

    def _tag_at(self, at: int, before: str) -> int | None:
        """Handle what opens at `at`; `before` is the plain text not yet added. The new position, or None for plain
        text.
        """
        text = self.text
        if text[at] == "<":
            if wait := _BREAK.match(text, at):
                return self._break(wait, before)
            span = _SPAN.match(text, at)
            return self._span(span, before) if span else None
        if text[at] == "]":
            self._plain(before)
            return at + 1
        if nested := _NESTED.match(text, at):
            inner = re.sub(r"[\[\]]", "", nested[0])
            if _TAG_LIKE.fullmatch(inner):
                self._plain(before)
                return self._reject(nested[0], nested.end())
        if not _BRACKET.match(text, at):
            self._plain(before)
            self.warnings.append(
                f'"{text[at : at + 12]}": an opening bracket without its closing one; the bracket was left out.'
            )
            return at + 1
        self._plain(before)
        return self._run_of_brackets(at)

    def _span(self, match: re.Match[str], before: str) -> int:
        self._plain(before)
        name = match[0].lower()
        if not name.startswith("</"):
            self.open_spans.append(name)
        elif name.replace("/", "") in self.open_spans:
            self.open_spans.remove(name.replace("/", ""))
        else:
            return self._reject(name, match.end(), "closes nothing")
        self.parts.append(Event(name))
        return match.end()

    def _break(self, match: re.Match[str], before: str) -> int:
        """The pause of speech markup."""
        self._plain(before)
        pause = _PAUSE.fullmatch((match[1] or "pause").strip())
        if pause is None:
            return self._reject(match[0], match.end())
        self._pause(pause)
        return match.end()

    def _run_of_brackets(self, at: int) -> int:
        """Brackets that touch each other, from `at` on, read left to right as tags and ordinary brackets."""
        text = self.text
        run: list[re.Match[str]] = []
        end = at
        while match := _BRACKET.match(text, end):
            run.append(match)
            end = match.end()
        names = [match[1] for match in run]
        i, after_word = 0, at > 0 and bool(_WORD_END.match(text[at - 1]))
        if len(names) == 1 and names[0].isascii() and pinyin.is_final(names[0]) and not _beside_mandarin(text, at, end):
            after_word = True  # (see [a] and [e]): no syllable among English words
        while i < len(names):
            tags = len(self.parts), len(self.warnings)
            i += self._one_tag(names, i, after_word)
            # data[row][col]: what stands behind an index is one too.
            after_word = after_word and isinstance(self.parts[-1], str) and tags[1] == len(self.warnings)
        tail = run[-1].end()
        rejected = self.warnings and self.warnings[-1].startswith(f'"{run[-1][0]}"')
        if rejected and (toned := _TONED_TAIL.match(text, tail)):
            self.warnings[-1] = self.warnings[-1].replace(run[-1][0], run[-1][0] + toned[0], 1)
            return toned.end()
        return tail

    def _one_tag(self, names: list[str], i: int, after_word: bool) -> int:
        """Read the tag or the ordinary bracket that starts with bracket `i` of a run; how many brackets it took."""
        head = names[i]
        spelled, count = _spelled(names, i, after_word)
        if spelled is not None:
            self.parts.extend(spelled)
            return count
        if count == 2:
            self._reject(f"[{head}][{names[i + 1]}]", 0)
            return count
        if head in POINT_EVENTS:
            self.parts.append(Event(head))
            return 1
        pause = _PAUSE.fullmatch(head.strip())
        if pause:
            self._pause(pause)
            return 1
        if _TAG_LIKE.fullmatch(head.strip()) and not after_word:
            self._reject(f"[{head}]", 0)
            return 1
        self._plain(f" {head} " if re.search(r"[A-Za-z0-9]", head) else head)
        return 1

    def _pause(self, match: re.Match[str]) -> None:
        ms = DEFAULT_PAUSE_MS
        if match[1]:
            ms = round(float(match[1]) * (1 if match[2].lower() in ("ms", "毫秒") else 1000))
        if ms > MAX_PAUSE_MS:
            self.warnings.append(
                f'"[{match[0]}]" is longer than the longest pause, {MAX_PAUSE_MS // 1000} s; that was used.'
            )
        self.parts.append(Pause(min(ms, MAX_PAUSE_MS)))

    def _reject(self, quoted: str, end: int, why: str = "is not a tag this app knows") -> int:
        self.warnings.append(f'"{quoted}" {why}; it was not spoken.')
        return end


def _beside_mandarin(text: str, start: int, end: int) -> bool:
    """Whether Han or a tag is the nearest thing on either side, or nothing at all stands there."""
    left, right = text[:start].rstrip()[-1:], text[end : end + 8].lstrip()[:1]
    return not (left or right) or any(side and (is_han(side) or side in "[]") for side in (left, right))


def _spelled(names: list[str], i: int, after_word: bool) -> tuple[tuple[Pinyin | Arpabet, ...] | None, int]:
    """The pronunciations that bracket `i` of a run begins, and how many brackets spell them.

    (None, 1): it spells nothing. (None, 2): a pair that looks like a syllable but has no tokens, such as `[l][ǖ]`.
    """
    head = names[i]
    exact = _symbols(names, i, str)
    if exact:
        return (Arpabet(exact),), len(exact)
    tag, count = pinyin.from_brackets(names, i)
    if count == 1 and after_word and head.isascii() and (len(head) < 3 or pinyin.is_final(head)):
        return None, 1  # array[n], a[0]
    if tag is not None:
        return (tag,), count
    small = _symbols(names, i, str.upper)
    if count == 1 and len(small) > 1 and any(symbol[-1].isdigit() for symbol in small):
        return (Arpabet(small),), len(small)
    return (_several(head), 1) if count == 1 else (None, count)


def _symbols(names: list[str], i: int, form: Callable[[str], str]) -> tuple[str, ...]:
    """The ARPAbet symbols that stand from bracket `i` on."""
    return tuple(takewhile(arpabet.is_symbol, (form(names[j]) for j in range(i, len(names)))))


def _several(inside: str) -> tuple[Pinyin | Arpabet, ...] | None:
    """A whole word in one bracket: `[chong2 qing4]`, `[HH AH0 L OW1]`."""
    parts = inside.split()
    if len(parts) < 2:
        return None
    if all(map(arpabet.is_symbol, parts)) and any(part[-1].isdigit() for part in parts):
        return (Arpabet(tuple(parts)),)
    syllables = [pinyin.from_syllable(part) for part in parts]
    return tuple(s for s in syllables if s is not None) if all(syllables) else None
