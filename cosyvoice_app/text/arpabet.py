"""The ARPAbet inventory of the pronunciation tags: 24 consonants, 15 vowels bare or with stress 0, 1, 2."""

from __future__ import annotations

CONSONANTS: tuple[str, ...] = tuple("B CH D DH F G HH JH K L M N NG P R S SH T TH V W Y Z ZH".split())
VOWELS: tuple[str, ...] = tuple("AA AE AH AO AW AY EH ER EY IH IY OW OY UH UW".split())
SYMBOLS: tuple[str, ...] = (*CONSONANTS, *VOWELS, *(f"{vowel}{stress}" for vowel in VOWELS for stress in (0, 1, 2)))

_SYMBOL_SET = frozenset(SYMBOLS)


def is_symbol(part: str) -> bool:
    return part in _SYMBOL_SET
