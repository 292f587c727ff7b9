"""A user's own pronunciations: word -> tags. As a file (`pronunciations.toml`) or as lines typed on the page.

    [zh]                              行家 = háng jiā
    "行家" = "[h][áng][j][iā]"         Siobhan = SH IH0 V AO1 N
    [en]
    Siobhan = "SH IH0 V AO1 N"

A reading is tags (`[h][áng]`), syllables with tones (`háng jiā`, `hang2 jia1`) or ARPAbet symbols. Mandarin words match
wherever they stand, in Simplified and Traditional characters alike, the longest first; a last 儿 may go without a
syllable of its own (花儿 = huār). English words match whole words; one written with capitals matches that spelling
only, others any. Tags and addresses that stand in the text are never touched.
"""

from __future__ import annotations

import re
import sys
import unicodedata
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from cosyvoice_app.errors import BadInput
from cosyvoice_app.text import arpabet, pinyin
from cosyvoice_app.text.addresses import ADDRESSES
from cosyvoice_app.text.chars import has_han, has_latin, is_han, is_latin
from cosyvoice_app.text.simplified import simplified
from cosyvoice_app.text.tags import Raw
from cosyvoice_app.types import Arpabet, Language, Pinyin

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

MAX_ENTRIES, MAX_WORD_CHARS = 2_000, 40
_MAX_SHOWN = 8
_LANGUAGES: tuple[Language, ...] = ("zh", "en")
_POSSESSIVE = re.compile(r"['’]s\b")
_PATH = re.compile(r"(?:/[\w.%-]+)+")
_ADDRESS_BEFORE, _ADDRESS_AFTER = re.compile(r"[\w@./-]$", re.ASCII), re.compile(r"[\w@/]|\.\w", re.ASCII)

Reading = tuple[Pinyin | Arpabet | str, ...]
"""Tags, and a 儿 that stays text."""


@dataclass(frozen=True, slots=True)
class Pronunciations:
    """Checked entries, by the word as it is looked up. Build with `from_toml` or `from_lines`."""

    entries: Mapping[str, Reading] = field(default_factory=dict)

    def __bool__(self) -> bool:
        return bool(self.entries)

    def over(self, others: Pronunciations) -> Pronunciations:
        """These entries and, for words that they don't match, the others'."""
        left = {w: r for w, r in others.entries.items() if w not in self.entries and w.lower() not in self.entries}
        return Pronunciations({**left, **self.entries})

    def english(self) -> Pronunciations:
        """Those spelled in ARPAbet: the Mandarin ones would match kanji."""
        return Pronunciations({w: r for w, r in self.entries.items() if isinstance(r[0], Arpabet)})

    def apply(self, parts: tuple[Raw, ...]) -> tuple[Raw, ...]:
        """Put readings in place of words, in the parts that are plain text."""
        if not self.entries:
            return parts
        finder = _Finder(self.entries)
        out: list[Raw] = []
        for part in parts:
            out.extend(finder.replace(part) if isinstance(part, str) else (part,))
        return tuple(out)


NONE = Pronunciations()


def from_toml(text: str, name: str = "pronunciations.toml") -> Pronunciations:
    """Raises BadInput that lists every wrong entry."""
    try:
        tables = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise BadInput(f"{name} is not valid TOML: {error}.", param="pronunciations") from None
    except RecursionError:
        raise BadInput(f"{name} is nested too deeply; it needs two sections.", param="pronunciations") from None
    wrong: list[str] = []
    pairs: list[tuple[str, str, Language | None]] = []
    for section, words in tables.items():
        language = next((known for known in _LANGUAGES if known == section), None)
        if language is None or not isinstance(words, dict):
            wrong.append(f"[{section}] is not a section; the sections are [zh] and [en]")
            continue
        for word, reading in words.items():
            if isinstance(reading, str):
                pairs.append((word, reading, language))
            else:
                wrong.append(f'{word}: the reading must be text in quotes, such as "SH IH0 V AO1 N"')
    return _checked(pairs, wrong, name)


def from_lines(text: str) -> Pronunciations:
    """One `word = reading` a line; blank lines and `#` comments are skipped. Raises BadInput as `from_toml`."""
    wrong: list[str] = []
    pairs: list[tuple[str, str, Language | None]] = []
    for number, line in enumerate(text.splitlines(), 1):
        if not line.strip() or line.lstrip().startswith("#"):
            continue
        word, equals, reading = line.partition("=")
        if equals:
            pairs.append((word, reading, None))
        else:
            wrong.append(f"line {number} ({line.strip()[:30]}) has no =; write word = reading")
    return _checked(pairs, wrong, "The list of pronunciations")


def from_request(given: Any) -> Pronunciations:
    """From an API field: nothing, lines, or an object of word: reading."""
    if given is None or isinstance(given, str):
        return from_lines(given or "")
    if isinstance(given, Mapping) and all(isinstance(w, str) and isinstance(r, str) for w, r in given.items()):
        return _checked([(word, reading, None) for word, reading in given.items()], [], "The list of pronunciations")
    raise BadInput(
        'pronunciations must be lines of "word = reading", or an object of word: reading.', param="pronunciations"
    )


def _checked(pairs: list[tuple[str, str, Language | None]], wrong: list[str], name: str) -> Pronunciations:
    entries: dict[str, Reading] = {}
    for typed, reading, language in pairs:
        word = _tidy(typed)
        try:
            key = _key(word)
            read = _reading(word, _tidy(reading), language)
            if entries.setdefault(key, read) != read:
                raise ValueError("is there twice, in one spelling or another, with two readings")
        except ValueError as error:
            wrong.append(f"{word or typed!r} {error}")
    if len(entries) > MAX_ENTRIES:
        wrong.append(f"there are {len(entries)} words; at most {MAX_ENTRIES} are allowed")
    if wrong:
        more = f"; and {len(wrong) - _MAX_SHOWN} more" if len(wrong) > _MAX_SHOWN else ""
        raise BadInput(f"{name}: {'; '.join(wrong[:_MAX_SHOWN])}{more}.", param="pronunciations")
    return Pronunciations(entries)


def _tidy(text: str) -> str:
    return unicodedata.normalize("NFC", " ".join(text.replace("’", "'").strip().strip("\"'“”").split()))


def _key(word: str) -> str:
    if not has_han(word) and not has_latin(word):
        raise ValueError("is no word: it needs a Chinese character or a letter")
    if len(word) > MAX_WORD_CHARS:
        raise ValueError(f"is longer than {MAX_WORD_CHARS} characters")
    if any(c in "[]<>|\n" for c in word):
        raise ValueError("holds a bracket or a bar, which can't be part of a word")
    return _seen(word)


_PLAIN = {code: code - 0xFEE0 for code in range(0xFF01, 0xFF5F)} | {ord("’"): "'"}


def _seen(text: str) -> str:
    """Text as words are looked for in it: Simplified, plain letters and digits; as long as `text`."""
    return simplified(text).translate(_PLAIN)


def _reading(word: str, reading: str, language: Language | None) -> Reading:
    """Raises ValueError that says what is wrong with it and what would be right."""
    coloured = word.endswith(("儿", "兒"))
    bare = re.sub(r"(?<=[^\Wer_])r(?=\d?$)", "", reading) if coloured else reading
    parts: Reading | None = _syllables(bare) or _symbols(reading)
    if parts is None:
        raise ValueError(
            f'has the reading "{reading[:40]}"; write syllables with tones (háng jiā, hang2 jia1), '
            "ARPAbet symbols (SH IH0 V AO1 N), or the same as tags"
        )
    mandarin = isinstance(parts[0], Pinyin)
    if language == ("en" if mandarin else "zh"):
        raise ValueError(f"stands under [{language}], but its reading is {'pinyin' if mandarin else 'ARPAbet'}")
    if mandarin and all(map(is_han, word)) and len(parts) != len(word):
        if not coloured or len(parts) != len(word) - 1:
            raise ValueError(f"has {len(word)} characters and {len(parts)} syllables")
        return (*parts, word[-1])
    return parts


_BRACKET = re.compile(r"\[([^\[\]]*)\]")


def _syllables(reading: str) -> tuple[Pinyin, ...] | None:
    if "[" not in reading:
        found = [pinyin.from_syllable(part) for part in re.split(r"[ ·'-]+", reading)]
        return tuple(s for s in found if s is not None) if all(found) else None
    names = _BRACKET.findall(reading)
    out: list[Pinyin] = []
    at = 0
    while at < len(names):
        tag, count = pinyin.from_brackets(names, at)
        if tag is None:
            return None
        out.append(tag)
        at += count
    return tuple(out) if out and not _BRACKET.sub("", reading).strip() else None


def _symbols(reading: str) -> tuple[Arpabet, ...] | None:
    groups = reading.split() if "[" in reading else [reading]
    out: list[Arpabet] = []
    for group in groups:
        if "[" in reading and _BRACKET.sub("", group):
            return None
        symbols = tuple(s.upper() for s in (_BRACKET.findall(group) if "[" in reading else group.split()))
        if not symbols or not all(map(arpabet.is_symbol, symbols)) or not any(map(arpabet.is_vowel, symbols)):
            return None
        out.append(Arpabet(symbols))
    return tuple(out)


class _Finder:
    """Looks words up by their first character, longest first."""

    def __init__(self, entries: Mapping[str, Reading]) -> None:
        self._by_first: dict[str, list[tuple[str, Reading]]] = {}
        for word in sorted(entries, key=lambda w: (-len(w), w.islower())):
            self._by_first.setdefault(word[0].lower(), []).append((word, entries[word]))

    def replace(self, text: str) -> Iterable[Raw]:
        seen = _seen(text)
        addresses = dict(_address(text, match) for rule in ADDRESSES for match in rule.pattern.finditer(text))
        done = at = 0
        while at < len(text):
            if at in addresses:
                at = addresses[at]
                continue
            found = self._at(seen, at)
            if found is None:
                at += 1
                continue
            reading, end = found
            if text[done:at]:
                yield text[done:at]
            yield from _spaced(reading)
            done = at = end
        if text[done:]:
            yield text[done:]

    def _at(self, text: str, at: int) -> tuple[Reading, int] | None:
        for word, reading in self._by_first.get(text[at].lower(), ()):
            end = at + len(word)
            there = text[at:end]
            if there != word and (there.lower() != word or not word.islower()):
                continue
            if not is_han(word[0]) and _ADDRESS_BEFORE.search(text[max(0, at - 1) : at]):
                continue
            if is_latin(word[-1]) or word[-1].isdigit():
                owner = _POSSESSIVE.match(text, end)
                if owner and isinstance(reading[-1], Arpabet):
                    return (*reading[:-1], arpabet.possessive(reading[-1])), owner.end()
                if _ADDRESS_AFTER.match(text, end):
                    continue
            return reading, end
        return None


def _address(text: str, match: re.Match[str]) -> tuple[int, int]:
    """From where to where an address goes, a path behind it in any script included."""
    path = _PATH.match(text, match.end())
    return match.start(), path.end() if path else match.end()


def _spaced(reading: Reading) -> Iterable[Raw]:
    """English words apart, or two would run together as one tag."""
    for i, tag in enumerate(reading):
        if i and isinstance(tag, Arpabet):
            yield " "
        yield tag
