"""The ARPAbet inventory of the pronunciation tags: 24 consonants, 15 vowels bare or with stress 0, 1, 2."""

from __future__ import annotations

from cosyvoice_app.text.chars import words

CONSONANTS: tuple[str, ...] = words("B CH D DH F G HH JH K L M N NG P R S SH T TH V W Y Z ZH")
VOWELS: tuple[str, ...] = words("AA AE AH AO AW AY EH ER EY IH IY OW OY UH UW")
SYMBOLS: tuple[str, ...] = (*CONSONANTS, *VOWELS, *(f"{vowel}{stress}" for vowel in VOWELS for stress in (0, 1, 2)))

_SYMBOL_SET = frozenset(SYMBOLS)


def is_symbol(part: str) -> bool:
    return part in _SYMBOL_SET
