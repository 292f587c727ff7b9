"""The ARPAbet inventory of the pronunciation tags: 24 consonants, 15 vowels bare or with stress 0, 1, 2."""

from __future__ import annotations

from cosyvoice_app.text.chars import words
from cosyvoice_app.types import Arpabet

CONSONANTS: tuple[str, ...] = words("B CH D DH F G HH JH K L M N NG P R S SH T TH V W Y Z ZH")
VOWELS: tuple[str, ...] = words("AA AE AH AO AW AY EH ER EY IH IY OW OY UH UW")
SYMBOLS: tuple[str, ...] = (*CONSONANTS, *VOWELS, *(f"{vowel}{stress}" for vowel in VOWELS for stress in (0, 1, 2)))

_SYMBOL_SET = frozenset(SYMBOLS)


def is_symbol(part: str) -> bool:
    return part in _SYMBOL_SET


def is_vowel(symbol: str) -> bool:
    return symbol.rstrip("012") in VOWELS


def possessive(word: Arpabet) -> Arpabet:
    """The word with its -'s.

    >>> possessive(Arpabet(("F", "AA1", "K", "S"))).symbols, possessive(Arpabet(("M", "IH1", "K"))).symbols
    (('F', 'AA1', 'K', 'S', 'IH0', 'Z'), ('M', 'IH1', 'K', 'S'))
    """
    last = word.symbols[-1]
    if last in ("S", "Z", "SH", "ZH", "CH", "JH"):
        return Arpabet((*word.symbols, "IH0", "Z"))
    return Arpabet((*word.symbols, "S" if last in ("P", "T", "K", "F", "TH") else "Z"))
