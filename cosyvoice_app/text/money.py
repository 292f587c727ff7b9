"""Sums of money, sign or code before or behind, with magnitudes and ranges."""

from __future__ import annotations

import re
from decimal import Decimal

from cosyvoice_app.text import numbers as n
from cosyvoice_app.text.rule import CAPITALS, DASH, DIGITS, NUM, Match, Reader, Rule, after, before, rule
from cosyvoice_app.text.simplified import simplified
from cosyvoice_app.text.units import CURRENCIES, MAGNITUDES

_NAMES = "|".join(re.escape(c) for c in sorted(CURRENCIES, key=len, reverse=True))
_LATER_NAMES = "|".join(re.escape(c) for c in sorted(CURRENCIES, key=len, reverse=True) if c not in "$")
_MAGNITUDE = r"(?:\s?(thousand|million|billion|trillion|万亿|千万|百万|万|亿)|(bn|mn|tn|[kKmMbBwW])(?![A-Za-z]))?"
_MONEY_CHARS = "".join(c for c in CURRENCIES if len(c) == 1)
_BEFORE_A_THING = re.compile(
    r"\s(?:bills?|notes?|coins?|bets?|tickets?|deposits?|fees?|fines?|discounts?|coupons?|vouchers?|gift|deals?|company|"
    r"contracts?|budget|funds?|loans?|investment|project|prize|donation|bonus|tip|meal|house)\b"
)


def scaled(number: str, magnitude: str) -> str | None:
    """`number` times its magnitude as a plain digit string; None when that is no whole number or has no name.

    >>> scaled("5.3", "billion"), scaled("1.5", "k"), scaled("0.12345", "k")
    ('5300000000', '1500', None)
    """
    value = Decimal(number.replace(",", "")).scaleb(MAGNITUDES[simplified(magnitude)])
    digits = f"{value:f}"
    whole, _, part = digits.partition(".")
    return whole if not part.strip("0") and len(whole) <= n.MAX_DIGITS else None


def zh_scaled(number: str, magnitude: str | None) -> str:
    """万 and 亿 as typed; what Mandarin has no step for (million, k) as the whole number."""
    if not magnitude:
        return n.zh_number(_plain(number))
    if re.fullmatch("[千百]?[万亿]+", simplified(magnitude)):
        return ("两" if number == "2" else n.zh_number(number)) + magnitude
    whole = scaled(number, magnitude)
    return n.zh_integer(whole) if whole else n.zh_number(number) + magnitude


def en_scaled(number: str, magnitude: str | None) -> str:
    """English steps by name; 万 and 亿 as the whole number."""
    if not magnitude:
        return n.en_number(_plain(number))
    power = MAGNITUDES[simplified(magnitude)]
    if power % 3:
        whole = scaled(number, magnitude)
        return n.en_integer(whole) if whole else f"{n.en_number(number)} {magnitude}"
    step = {3: "thousand", 6: "million", 9: "billion", 12: "trillion"}[power]
    return f"{n.en_number(number)} {step}"


def _plain(number: str) -> str:
    """Without thousands commas; €20,50 has a decimal one."""
    return number.replace(",", ".") if re.fullmatch(r"\d+,\d\d", number) else number.replace(",", "")


def _sign(m: Match) -> str:
    return (m["sign"] or m["late_sign"] or "").replace("−", "-")


def _zh_money(m: Match) -> str:
    sign = {"-": "负", "+": "正"}.get(_sign(m), "")
    amount = zh_scaled(m["number"], m["word"] or m["letter"])
    if m["to"]:
        amount = f"{amount}到{zh_scaled(m['to'], m['to_word'] or m['to_letter'])}"
    named = "人民币" if m["name"] in ("RMB", "CNY") else ""
    return named + sign + amount + CURRENCIES[m["name"]][0]


def _en_money(m: Match) -> str:
    if re.search("[万亿元]", simplified(m[0])):
        return _zh_money(m)  # what is typed in Han stays Han
    sign = {"-": "minus ", "+": "plus "}.get(_sign(m), "")
    if m["to"]:
        low = en_scaled(m["number"], m["word"] or m["letter"])
        return f"{sign}{low} to {en_scaled(m['to'], m['to_word'] or m['to_letter'])} {CURRENCIES[m['name']][2]}"
    return sign + _en_sum(m["number"], m["word"] or m["letter"], m["name"], bool(_BEFORE_A_THING.match(after(m))))


def _en_sum(number: str, magnitude: str | None, name: str, before_a_thing: bool) -> str:
    _, unit, units, hundredth, hundredths = CURRENCIES[name]
    if before_a_thing:
        units = unit
    amount = _plain(number)
    whole, _, part = amount.partition(".")
    if magnitude:
        return f"{en_scaled(amount, magnitude)} {units}"
    if len(part) == 2 and int(part):
        cents = f"{n.en_integer(part)} {hundredth if int(part) == 1 else hundredths}"
        return f"{n.en_integer(whole)} {unit if int(whole) == 1 else units} and {cents}" if int(whole) else cents
    if not part.strip("0"):
        return f"{n.en_integer(whole)} {unit if int(whole) == 1 else units}"
    return f"{n.en_number(amount)} {units}"


def _zh_behind(m: Match) -> str:
    return zh_scaled(m["number"], m["word"] or m["letter"]) + CURRENCIES[m["name"]][0]


def _en_behind(m: Match) -> str:
    if re.search("[万亿]", simplified(m[0])):
        return _zh_behind(m)
    return _en_sum(m["number"], m["word"] or m["letter"], m["name"], False)


def _named(magnitude: str, prefix: str) -> str:
    word, letter = f"(?P<{prefix}word>", f"(?P<{prefix}letter>"
    return magnitude.replace("(thousand", word + "thousand").replace("(bn", letter + "bn")


def _money(names: str, behind: str) -> str:
    return (
        rf"(?<![A-Za-z\d])(?:(?<![A-Za-z\d])(?P<sign>[-−+]))?(?<![A-Za-z])(?P<name>{names})\s?(?P<late_sign>[-−])?(?P<number>\d+,\d\d(?![\d,])|{NUM})"
        rf"{_named(_MAGNITUDE, '')}(?:{DASH}(?:{names})?\s?(?P<to>{NUM}){_named(_MAGNITUDE, 'to_')}(?![-\d]))?{behind}"
    )


def _about(word: str) -> Reader:
    return lambda m: None if re.search(r"[\d%％℃°元年月日点分]\s*$", before(m)) else word


MONEY: tuple[Rule, ...] = (
    rule(r"(?<![\w~～])[~～]\s?(?=[$€£¥￥]?\d)", _about("约"), _about("about "), "~～", DIGITS),
    rule(_money("[￥¥]|RMB|CNY", "元?"), _zh_money, _en_money, DIGITS, "￥¥RC"),
    rule(_money(_NAMES, "(?:美?元)?"), _zh_money, _en_money, DIGITS, _MONEY_CHARS + CAPITALS, alone="en"),
    rule(
        rf"(?<![A-Za-z\d.])(?P<number>{NUM}){_named(_MAGNITUDE, '')}\s?(?P<name>{_LATER_NAMES}|\$)(?![A-Za-z\d])",
        _zh_behind,
        _en_behind,
        DIGITS,
        _MONEY_CHARS + CAPITALS,
        alone="en",
    ),
    rule(
        r"(\d+)\s?¢",
        lambda m: n.zh_integer(m[1]) + "美分",
        lambda m: f"{n.en_integer(m[1])} cent{'' if m[1] == '1' else 's'}",
        "¢",
        alone="en",
    ),
)
