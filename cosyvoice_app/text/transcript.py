"""The words of a clip: cleaned like any text, kept in one piece, and held against the clip's length."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass

from cosyvoice_app.text.arpabet import is_vowel
from cosyvoice_app.text.chars import HAN, HANGUL, KANA, is_han
from cosyvoice_app.text.frontend import read
from cosyvoice_app.text.language import NATIVE_LANGUAGES
from cosyvoice_app.text.pronunciations import NONE, Pronunciations
from cosyvoice_app.text.tags import write
from cosyvoice_app.types import Arpabet, Pause, Piece, Pinyin, Text

SLOWEST, FASTEST = 1.2, 8.5
"""Syllables a second of speech that the words may come to. Read speech has 3 to 6 in English and Mandarin; pauses
inside the clip and slips of the count (a letter of an acronym counts as one) need room on both sides."""

_HAN_OUT = re.compile(f"[{HAN}]")
_VOWELS = re.compile(r"[aeiouyà-öø-ÿ]+", re.IGNORECASE)
_WORD = re.compile(r"[^\W\d_]+(?:'[^\W\d_]+)*")
_SILENT_E = re.compile(r"[^aeiouyl]e$|[aeiouy][^aeiouydt]+ed$|[aeiouy][^aeiouycgsxz]+es$", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Transcript:
    """`text` is one line as it would go to a tokenizer, or nothing when the words say nothing."""

    text: str
    syllables: int
    warnings: tuple[str, ...]


def prepare_transcript(
    text: str,
    speech_s: float,
    *,
    pronunciations: Pronunciations = NONE,
    languages: Sequence[str] = NATIVE_LANGUAGES,
) -> Transcript:
    """Clean a transcript and compare it with `speech_s` seconds of speech in the clip. Raises nothing."""
    pieces, found = read(" ".join(text.split()), pronunciations, languages)
    words = [piece for piece in pieces if not isinstance(piece, Pause)]
    count = sum(map(syllables, words))
    warnings = [f"In the clip's words: {warning}" for warning in found]
    if not count:
        if text.strip():
            warnings.append("The clip's words hold nothing that can be spoken; they were not used.")
        return Transcript("", 0, tuple(warnings))
    if speech_s > 0 and not SLOWEST <= count / speech_s <= FASTEST:
        many = count / speech_s > FASTEST
        said = f"about {count} syllable{'' if count == 1 else 's'}"
        warnings.append(
            f"The clip's words have {said}, and {speech_s:.1f} s of the clip are speech: {count / speech_s:.1f} a "
            f"second, too {'many' if many else 'few'} to be what is said in it. "
            f"Type exactly what the clip says, {'no more' if many else 'all of it'}, or leave the words out."
        )
    return Transcript("".join(map(write, words)).strip(), count, tuple(warnings))


def syllables(piece: Piece) -> int:
    """About how many syllables a piece has: characters, tags, and groups of vowels in words."""
    if isinstance(piece, Pinyin):
        return 1
    if isinstance(piece, Arpabet):
        return sum(map(is_vowel, piece.symbols))
    if not isinstance(piece, Text):
        return 0
    if piece.language not in NATIVE_LANGUAGES:
        return _foreign(piece.text)
    return sum(map(is_han, piece.text)) + sum(map(_in_word, _WORD.findall(_HAN_OUT.sub(" ", piece.text))))


_SYLLABIC = re.compile(rf"[{HAN}{HANGUL}]|(?![ぁぃぅぇぉゃゅょゎァィゥェォャュョヮっッ])[{KANA}]")
_DIGIT_SYLLABLES = 2


def _foreign(text: str) -> int:
    """Syllables of text with digits in it: a digit is two, as in "zwanzig"; kana are morae; other words go by their
    vowels, whatever accents they have.
    """
    digits = sum(map(str.isdecimal, text))
    bare = "".join(c for c in unicodedata.normalize("NFD", text) if not unicodedata.combining(c))
    words = _WORD.findall(re.sub(rf"[{HAN}{HANGUL}{KANA}\u1100-\u11ff\u30fc]", " ", bare))
    return (
        _DIGIT_SYLLABLES * digits
        + len(_SYLLABIC.findall(text))
        + sum(max(1, len(_FOREIGN_VOWELS.findall(word))) for word in words)
    )


_FOREIGN_VOWELS = re.compile(r"[aeiouy]+|[аеиоуыэюяіїє]", re.IGNORECASE)


def _in_word(word: str) -> int:
    if word.isupper() and len(word) > 1:
        return len(word)
    groups = len(_VOWELS.findall(word)) - bool(_SILENT_E.search(word))
    return max(1, groups)
