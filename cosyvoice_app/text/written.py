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
from cosyvoice_app.text.rule import Rule, rule
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
    out, done = [], 0
    for match in rule.pattern.finditer(text):
        left = (before + text[: match.start()])[-_CONTEXT_CHARS:]
        around = left + match[0] + (text[match.end() :] + after)[:_CONTEXT_CHARS]
        where = lang.at(around, len(left), len(left) + len(match[0]), rule.alone or alone)
        spoken = (rule.zh if where == "zh" else rule.en)(match)
        if spoken is None:
            continue
        out.append(text[done : match.start()])
        if out[-1][-1:].isascii() and out[-1][-1:].isalnum() and spoken[:1].isascii() and spoken[:1].isalnum():
            out.append(" ")
        out.append(spoken)
        following = text[match.end() : match.end() + 1]
        if following.isascii() and following.isalnum() and spoken[-1:].isascii() and spoken[-1:].isalnum():
            out.append(" ")
        done = match.end()
    return "".join(out) + text[done:]
