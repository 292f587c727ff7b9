"""What stands on both sides of a slash: fractions, scores out of ten, decimals set beside each other."""

from __future__ import annotations

import re

from cosyvoice_app.text import numbers as n
from cosyvoice_app.text.abbreviations import MONTHS
from cosyvoice_app.text.dates import is_date
from cosyvoice_app.text.rule import Match, after, before
from cosyvoice_app.text.units import UNITS


def zh_part_of_unit(m: Match) -> str | None:
    top, bottom = m[2], m[3]
    if not 0 < int(top) < int(bottom):
        return None
    whole = n.zh_integer(m[1]) + "又" if m[1] else ""
    return f"{whole}{n.zh_integer(bottom)}分之{n.zh_integer(top)}{UNITS[m[4]][0] if m[4] else ''}"


def en_part_of_unit(m: Match) -> str | None:
    top, bottom = m[2], m[3]
    if not 0 < int(top) < int(bottom):
        return None
    name = _en_part(int(top), int(bottom))
    said = f"{n.en_integer(m[1])} and {re.sub('^one ', 'a ', name)}" if m[1] else name
    return f"{said} {UNITS[m[4]][2 if m[1] else 1]}" if m[4] else said


def _en_part(top: int, bottom: int) -> str:
    name = {2: "half", 4: "quarter"}.get(bottom, n.en_ordinal(str(bottom)))
    if top != 1:
        name = {2: "halves"}.get(bottom, name + "s")
    return f"{n.en_integer(str(top))} {name}"


def zh_fraction(m: Match) -> str:
    if m[1] == m[2] or int(m[2]) == 0 or re.search("[血高低]压[为是约：:]?$", before(m)):
        return f"{n.zh_integer(m[1])}比{n.zh_integer(m[2])}"
    return f"{n.zh_integer(m[2])}分之{n.zh_integer(m[1])}"


def en_fraction(m: Match) -> str:
    top, bottom = int(m[1]), int(m[2])
    if top == bottom:
        return f"{n.en_integer(m[1])}-{n.en_integer(m[2])}"
    if bottom == 0 or top > bottom:
        return f"{n.en_integer(m[1])} over {n.en_integer(m[2])}"
    if bottom > 12 and bottom not in (16, 20, 32, 64):
        if is_date(m[1], m[2]) and re.match(r"\s?(?:[.,;:!?)]|$|(?:at|from|to|through|until|and)\b)", after(m)):
            return f"{MONTHS[top - 1]} {n.en_ordinal(m[2])}"
        return f"{n.en_integer(m[1])} out of {n.en_integer(m[2])}"
    of_ten = bottom in (10, 100) and not re.match(r"\s(?:of|a|an|inch|mile)\b", after(m))
    if of_ten or re.match(r"\sstars?\b", after(m)):
        return f"{n.en_integer(m[1])} out of {n.en_integer(m[2])}"
    return _en_part(top, bottom)


def zh_decimals(m: Match) -> str:
    """3.9/4.0 sets two figures beside each other; 1/2.8 is a fraction. The figures are read by the rules behind."""
    top, bottom = m[0].split("/")
    return f"{bottom}分之{top}" if top == "1" else f"{top}比{bottom}"


def en_decimals(m: Match) -> str:
    top, bottom = m[0].split("/")
    return f"{top} {'out of' if 1 < float(top) <= float(bottom) else 'over'} {bottom}"
