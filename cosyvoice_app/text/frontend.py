"""The text front end: what was typed -> what is spoken, as segments, with a warning for whatever is not spoken as
typed.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from cosyvoice_app.errors import TextError
from cosyvoice_app.text import foreign, japanese, language, normalize, tags
from cosyvoice_app.text.chars import HAN, has_han, has_speech
from cosyvoice_app.text.cuts import has_content
from cosyvoice_app.text.language import NATIVE_LANGUAGES
from cosyvoice_app.text.languages import NATIVE, stretches
from cosyvoice_app.text.pronunciations import NONE, Pronunciations
from cosyvoice_app.text.split import split
from cosyvoice_app.types import Arpabet, Language, Pause, Piece, Pinyin, Segment, SplitLimits, Text

DEFAULT_LIMITS = SplitLimits()
NOTHING_TO_SPEAK = "There is nothing to speak in the text. Type at least one word."


@dataclass(frozen=True, slots=True)
class FrontEnd:
    """`segments` in speaking order (at least one), their texts joined being the whole text; `warnings` quote what was
    left out or changed.
    """

    segments: tuple[Segment, ...]
    warnings: tuple[str, ...]


def prepare(
    text: str,
    *,
    max_chars: int | None = None,
    limits: SplitLimits = DEFAULT_LIMITS,
    pronunciations: Pronunciations = NONE,
    languages: Sequence[str] = NATIVE_LANGUAGES,
) -> FrontEnd:
    """Normalise and split `text`. `max_chars` limits what was typed, spaces at the ends not counted; None is no limit.
    `languages` are the engine's: sentences in another one of them than Chinese and English keep their digits.

    Raises TextError when the text is longer than that, or when nothing in it can be spoken.
    """
    length = len(text.strip())
    if max_chars is not None and length > max_chars:
        raise TextError(
            f"The text is {length} characters long; the limit is {max_chars}. Shorten it, or speak it in parts.",
            param="text",
        )
    pieces, warnings = read(text, pronunciations, languages)
    if not has_content(pieces):
        raise TextError(NOTHING_TO_SPEAK, param="text")
    parts = split(pieces, limits)
    segments = tuple(
        Segment(_written(part.pieces) + _space_between(part.pieces, after), part.pieces, part.pause_after_ms)
        for part, after in zip(parts, [*(part.pieces for part in parts[1:]), ()], strict=True)
    )
    return FrontEnd(segments, _shortlist([*warnings, *_idle_pauses(pieces)]))


def read(
    text: str, pronunciations: Pronunciations = NONE, languages: Sequence[str] = NATIVE_LANGUAGES
) -> tuple[tuple[Piece, ...], tuple[str, ...]]:
    """Typed text as pieces in order, not yet split, and what to say of it. The pieces may hold nothing to speak."""
    parsed = tags.parse(normalize.clean_typed(text))
    pieces: list[Piece] = []
    warnings = list(parsed.warnings)
    for stretch in stretches(parsed.parts, languages):
        if stretch.language == NATIVE:
            made, said = _pieces(pronunciations.apply(stretch.parts))
        else:
            made, said = _foreign(pronunciations.english().apply(stretch.parts), stretch.language)
        pieces.extend(_after(pieces, made))
        warnings.extend(said)
    return tuple(pieces), tuple(warnings)


def _after(pieces: list[Piece], more: tuple[Piece, ...]) -> tuple[Piece, ...]:
    """`more`, without a space at its start where one stands before it."""
    if pieces and more and isinstance(pieces[-1], Text) and isinstance(more[0], Text):
        first = more[0].text.lstrip(" ")
        if pieces[-1].text.endswith((" ", "\n")) and first != more[0].text:
            return (Text(first, more[0].language), *more[1:]) if first else more[1:]
    return more


def _foreign(parts: tuple[tags.Raw, ...], spoken: str) -> tuple[tuple[Piece, ...], list[str]]:
    """Pieces of a sentence in the language `spoken`, which is neither Chinese nor English."""
    pieces: list[Piece] = []
    warnings: list[str] = []
    whole = True
    for part in parts:
        if not isinstance(part, str):
            pieces.append(part)
            continue
        words, said = foreign.as_typed(part)
        warnings.extend(said)
        if spoken == "ja":
            words, read_all = japanese.katakana(words)
            whole = whole and read_all
        if words:
            pieces.append(Text(words, spoken))
    if not whole:
        sentence = "".join(part if isinstance(part, str) else tags.write(part) for part in parts).strip()
        warnings.append(
            f'"{sentence}" may be misread: Japanese has to be written in katakana, and the package that reads kanji is '
            "not installed. Run `pip install -r requirements-japanese.txt`."
        )
    return tuple(pieces), warnings


def _pieces(parts: tuple[tags.Raw, ...]) -> tuple[tuple[Piece, ...], list[str]]:
    default: Language = (
        "zh" if any(has_han(p) if isinstance(p, str) else isinstance(p, Pinyin) for p in parts) else "en"
    )
    pieces: list[Piece] = []
    warnings: list[str] = []
    for i, part in enumerate(parts):
        if not isinstance(part, str):
            pieces.append(part)
            continue
        words, said = normalize.to_words(part, _context(parts[:i], -1), _context(parts[i + 1 :], 0))
        warnings.extend(said)
        pieces.extend(language.runs(words, default))
    return tuple(pieces), warnings


_MAX_WARNINGS = 20


def _shortlist(warnings: list[str]) -> tuple[str, ...]:
    """Each warning once, and not more than a person would read."""
    once = list(dict.fromkeys(warnings))
    more = len(once) - _MAX_WARNINGS
    return tuple(once) if more <= 0 else (*once[:_MAX_WARNINGS], f"And {more} more of this kind.")


def _idle_pauses(pieces: tuple[Piece, ...]) -> list[str]:
    """Notices of pauses before the first and after the last word: they have nothing to part."""
    said = [has_speech(p.text) if isinstance(p, Text) else not isinstance(p, Pause) for p in pieces]
    first, last = said.index(True), len(said) - 1 - said[::-1].index(True)
    outside = [p for i, p in enumerate(pieces) if isinstance(p, Pause) and not first < i < last]
    return [f'"[pause {p.ms / 1000:g}s]" has nothing to part there; it was left out.' for p in outside]


_CONTEXT_CHARS = 40


def _context(parts: tuple[tags.Raw, ...], side: int) -> str:
    """What stands beside a part, for telling the language: the neighbouring texts, a tag as a word of its language."""
    out = ""
    for part in parts if side == 0 else reversed(parts):
        spoken = (
            part
            if isinstance(part, str)
            else "拼"
            if isinstance(part, Pinyin)
            else " word "
            if isinstance(part, Arpabet)
            else "\n"
            if isinstance(part, Pause)
            else ""
        )
        out = out + spoken if side == 0 else spoken + out
        if len(out) >= _CONTEXT_CHARS:
            break
    return out[:_CONTEXT_CHARS] if side == 0 else out[-_CONTEXT_CHARS:]


def _written(pieces: tuple[Piece, ...]) -> str:
    return "".join(tags.write(p) for p in pieces)


_WITHOUT_SPACES = re.compile(f"[{HAN}\u3000-\u303f\uff01-\uff65\u2026\u2014]")


def _space_between(pieces: tuple[Piece, ...], after: tuple[Piece, ...]) -> str:
    """A space where joining two segments would run words together, so that the texts joined are the whole text."""
    text, following = _written(pieces), _written(after)
    if not following:
        return ""
    last, first = text[-1], following[0]
    if any(isinstance(p, Text) and p.language not in NATIVE_LANGUAGES for p in (pieces[-1], after[0])):
        return "" if _WITHOUT_SPACES.match(last) or _WITHOUT_SPACES.match(first) else " "
    if not (last.isascii() and first.isascii()):
        return ""
    return " " if last.isalnum() or first.isalnum() else ""
