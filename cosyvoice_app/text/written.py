"""Written forms that are not words, and in which order to look for them: addresses, dates, codes, money, units, signs.

The rules run in order, most particular first: a date is taken before a minus sign or a range can claim its hyphens.
Each match is read in the language of its own surroundings; a reader that answers None leaves it to the later rules.
"""

from __future__ import annotations

from cosyvoice_app.text import language as lang
from cosyvoice_app.text import numbers as n
from cosyvoice_app.text.abbreviations import ABBREVIATIONS
from cosyvoice_app.text.addresses import ADDRESSES
from cosyvoice_app.text.amounts import AMOUNTS, PLAIN
from cosyvoice_app.text.clock import TIMES
from cosyvoice_app.text.codes import CODES, IN_NAMES, LETTERED
from cosyvoice_app.text.dates import DATES
from cosyvoice_app.text.money import MONEY
from cosyvoice_app.text.roman import ROMAN
from cosyvoice_app.text.rule import Match, Reader, Rule, rule
from cosyvoice_app.text.signs import MATHS, PER_UNIT, SIGNS
from cosyvoice_app.types import Language

RULES: tuple[Rule, ...] = (
    # Longer than any number that means something, and slow for the rules below.
    rule(r"(?<!\d)\d{31,}", lambda m: n.zh_digits(m[0]), lambda m: n.en_digits(m[0])),
    *ADDRESSES,
    *ABBREVIATIONS,
    *ROMAN,
    *DATES,
    *TIMES,
    *CODES,
    *IN_NAMES,
    *MATHS,
    *MONEY,
    *PER_UNIT,
    *AMOUNTS,
    *LETTERED,
    *PLAIN,
    *SIGNS,
)


def speak(text: str, before: str, after: str, alone: Language = "zh") -> str:
    """`text` with every written form spoken. `before` and `after`, what stands around it, only tell the language;
    `alone` is the language of a form when no word stands anywhere and its rule knows none.
    """
    present = set(text)
    for rule_ in RULES:
        if rule_.may_match(present) and rule_.pattern.search(text):
            text = _apply(rule_, text, before, after, alone)
            present = set(text)
    return text


_CONTEXT_CHARS = 120
"""How far around a written form its language is looked for."""


def _apply(rule: Rule, text: str, before: str, after: str, alone: Language) -> str:
    out: list[str] = []
    done = 0
    for match in rule.pattern.finditer(text):
        spoken = _reader(rule, match, before, after, alone)(match)
        if spoken is None:
            continue
        between = text[done : match.start()]
        if _run_together(between or (out[-1] if out else ""), spoken):
            spoken = " " + spoken
        done = match.end()
        gap = " " if _run_together(spoken, text[done : done + 1]) else ""
        out += [between, spoken + gap]
    return "".join(out) + text[done:]


def _reader(rule: Rule, match: Match, before: str, after: str, alone: Language) -> Reader:
    if rule.zh is rule.en:
        return rule.zh
    text = match.string
    left = (before + text[max(0, match.start() - _CONTEXT_CHARS) : match.start()])[-_CONTEXT_CHARS:]
    around = left + match[0] + (text[match.end() : match.end() + _CONTEXT_CHARS] + after)[:_CONTEXT_CHARS]
    where = lang.at(around, len(left), len(left) + len(match[0]), rule.alone or alone)
    return rule.zh if where == "zh" else rule.en


def _run_together(left: str, right: str) -> bool:
    """True if joining would make one word of two."""
    a, b = left[-1:], right[:1]
    return a.isascii() and a.isalnum() and b.isascii() and b.isalnum()
