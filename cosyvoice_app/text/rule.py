"""What a rule for one written form is: where it may be found, and how it is said in Mandarin and in English."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass

from cosyvoice_app.text.simplified import both, simplified_chars
from cosyvoice_app.types import Language

Match = re.Match[str]
Reader = Callable[[Match], str | None]
"""A match -> what is said; None when it isn't what it looked like (2024-13-40 is no date), for the later rules."""

DIGITS = "0123456789"
CAPITALS = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"
NUM = r"\d{1,3}(?:,\d{3})+(?:\.\d+)?|\d+(?:\.\d+)?"
DASH = r"\s?[-–—~～−]\s?"


@dataclass(frozen=True, slots=True)
class Rule:
    pattern: re.Pattern[str]
    zh: Reader
    en: Reader
    alone: Language | None
    """Language when nothing in the whole text tells; None leaves it to the caller."""
    needs: tuple[frozenset[str], ...]
    """Only a text with a character out of each set can match: a cheap test before the search."""

    def may_match(self, present: set[str]) -> bool:
        return not any(some.isdisjoint(present) for some in self.needs)


def rule(
    pattern: str,
    zh: Reader,
    en: Reader,
    *needs: str,
    alone: Language | None = None,
    flags: int = 0,
) -> Rule:
    """`needs` default to a digit. Patterns are ASCII: a word ends where Han begins, or "Room 302等" would hide its
    number. Han is written Simplified here, and matches its Traditional forms too.
    """
    sets = tuple(frozenset(both(some)) for some in needs or (DIGITS,))
    return Rule(re.compile(both(pattern), flags | re.ASCII), zh, en, alone, sets)


def left_alone(_: Match) -> None:
    """The reader of a form that the language doesn't have."""


def before(match: Match, chars: int = 24) -> str:
    """What stands right before the match, in Simplified characters: for looking at, not for saying."""
    return simplified_chars(match.string[max(0, match.start() - chars) : match.start()])


def after(match: Match, chars: int = 24) -> str:
    """What stands right behind the match, in Simplified characters."""
    return simplified_chars(match.string[match.end() : match.end() + chars])


def says(zh: str, en: str) -> tuple[Reader, Reader]:
    """Readers of a form that is always said alike."""
    return (lambda _: zh), (lambda _: en)


def each(words: Reader) -> tuple[Reader, Reader]:
    """One reading for both languages."""
    return words, words
