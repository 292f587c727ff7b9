"""Signs with a name, and the arithmetic they stand in."""

from __future__ import annotations

import re

from cosyvoice_app.text import numbers as n
from cosyvoice_app.text.chars import GREEK, HAN
from cosyvoice_app.text.rule import DIGITS, Match, Rule, before, each, rule, says
from cosyvoice_app.text.units import SYMBOLS, UNITS

_OPERATORS = {"+": ("加", "plus"), "-": ("减", "minus"), "−": ("减", "minus"), "–": ("减", "minus")} | {
    "×": ("乘", "times"), "x": ("乘", "times"), "*": ("乘", "times"), "·": ("乘", "times"), "÷": ("除以", "divided by")
}  # fmt: skip
_SUPERSCRIPTS = str.maketrans("⁰¹²³⁴⁵⁶⁷⁸⁹⁺⁻", "0123456789+-")
_RAISED = "⁰¹²³⁴⁵⁶⁷⁸⁹"
_SHORT = {"mo": "month", "yr": "year", "hr": "hour", "wk": "week"}
_PER = "kg|g|mg|lb|oz|L|mL|ml|km|m²|㎡|m³|h|hr|min|sec|GB|kWh|sq ft"
_SPEEDS = "|".join(re.escape(u) for u in sorted(UNITS, key=len, reverse=True) if "/" in u)
_LONG_UNITS = "|".join(u for u in ("kg", "mg", "mol", "mmol", "km", "cm", "mm", "mL", "ml", "kcal", "kWh"))
_ALL_UNITS = "|".join(re.escape(u) for u in sorted(UNITS, key=len, reverse=True) if u[0].isalpha())
_SQUARED = "|".join(re.escape(u) for u in sorted(UNITS, key=len, reverse=True) if u[-1] in "²³")


def _sum(m: Match, which: int) -> str:
    gap = ("", " ")[which]
    return re.sub(r"(?<=\d)\s?([-+−–×x*÷·])\s?(?=\d)", lambda op: gap + _OPERATORS[op[1]][which] + gap, m[0])


def _zh_power(m: Match) -> str:
    power = m[1].translate(_SUPERSCRIPTS)
    return {"2": "平方", "3": "立方"}.get(power) or f"的{_zh_exponent(power)}次方"


def _en_power(m: Match) -> str:
    power = m[1].translate(_SUPERSCRIPTS)
    return {"2": " squared", "3": " cubed"}.get(power) or f" to the power of {_en_exponent(power)}"


def _zh_exponent(power: str) -> str:
    return n.zh_number(power)


def _en_exponent(power: str) -> str:
    return n.en_number(power)


def _zh_scientific(m: Match) -> str:
    return f"{n.zh_number(m[1])}乘十的{_zh_exponent(m[2])}次方"


def _en_scientific(m: Match) -> str:
    return f"{n.en_number(m[1])} times ten to the power of {_en_exponent(m[2])}"


_GREEK_BEFORE, _GREEK_AFTER = re.compile(rf"[{GREEK}]*\Z"), re.compile(rf"[{GREEK}]*")
_LONGEST_WORD = 40


def _sign(m: Match, which: int) -> str:
    """Greek letters are named, unless they stand in a word: that has letters which are no signs, as in κόσμε."""
    start, end = m.span()
    left = _GREEK_BEFORE.search(m.string[max(0, start - _LONGEST_WORD) : start])
    right = _GREEK_AFTER.match(m.string[start : end + _LONGEST_WORD])
    run = (left[0] if left else "") + (right[0] if right else "")
    if len(run) > 2 and not set(run) <= SYMBOLS.keys():
        return m[0]
    return SYMBOLS[m[0]][which]


MATHS: tuple[Rule, ...] = (
    rule(
        r"(?<![\w.])\d+(?:\.\d+)?(?:\s?[-+−–×x*÷·]\s?\d+(?:\.\d+)?)+(?=\s?[=≈])",
        lambda m: _sum(m, 0),
        lambda m: _sum(m, 1),
        "=≈",
        DIGITS,
    ),
    rule(r"(?<![\w.])(\d+\.\d+|\d+(?=[eE][+-]))[eE]([+-]?\d{1,3})(?!\w)", _zh_scientific, _en_scientific, "eE", DIGITS),
    rule(
        r"(\d+|(?<![A-Za-z])[A-Za-z])\^\(?([-+−]?\d+)\)?",
        lambda m: f"{m[1]}的{_zh_exponent(m[2])}次方",
        lambda m: f"{m[1]} to the power of {_en_exponent(m[2])}",
        "^",
        DIGITS,
    ),
    rule(
        r"(?<![A-Za-z])([xyz])\s?[-−]\s?(?=\d)",
        lambda m: f"{m[1]}减",
        lambda m: f"{m[1]} minus ",
        "-−",
        "xyz",
    ),
    rule(
        r"(?<=\d)(?:\s[xX]\s|[xX])(?=\d)",
        lambda m: "乘",
        lambda m: " times " if re.search(r"(?i)\b(?:what'?s|what is|calculate|compute|solve)\b", before(m)) else " by ",
        "xX",
        DIGITS,
    ),
    rule(r"(?<=\d)\s?[×*]\s?(?=\d)", *says("乘", " times "), "×*", DIGITS),
    rule(
        rf"(?<=[{HAN}\s])[xX×](?!(?:86|64)\b)(\d+)(?![\w.])(?!\s?[-+*/=^<>])",
        lambda m: f"乘{m[1]}",
        lambda m: f"times {m[1]}",
        "xX×",
    ),
    rule(rf"(?<=\d)([⁺⁻]?[{_RAISED}]+)", _zh_power, _en_power, _RAISED, DIGITS),
    rule(r"(?<=\d)\s/\s(?=\d)", *says("除以", " divided by "), "/", DIGITS),
    # Angle brackets around words, and no comparison: <未知>, </foo>, List<String>.
    rule(
        rf"(?:(?<![\w)\]{HAN}])(?<![\w)\]{HAN}]\s)<|(?<=\s)<(?!\d)|</|(?<=[a-z])<(?=[A-Z])"
        rf"|(?:(?<=[{HAN}])|(?<=[A-Za-z]{{2}}))<(?=[A-Za-z{HAN}][^<>\s，、且或]{{0,30}}>))([^<>\s\n][^<>\n]{{0,30}})(?<!\s)>",
        *each(lambda m: f" {m[1]} "),
        "<",
    ),
    rule(r"<(\d[\d.]*)>", *each(lambda m: f" {m[1]} "), "<", DIGITS),
    rule(r"(?<=\d)\s?[★☆⭐]", *says("星", " star"), "★☆⭐"),
    rule(
        r"(?<=[a-z\d])/(?=(?:day|week|month|year|hour|minute|second|night|person|mile|head|seat|user|unit|piece)\b)",
        *says(" per ", " per "),
        "/",
    ),
    rule(
        r"(?<=[\da-z])/(mo|yr|hr|wk)\b",
        lambda m: f" per {_SHORT[m[1]]}",
        lambda m: f" per {_SHORT[m[1]]}",
        "/",
    ),
    rule(
        r"(?<![\w<>=)\]])(?<![\w)\]]\s)[<>](?=\s?\d)",
        lambda m: SYMBOLS[m[0]][0],
        lambda m: SYMBOLS[m[0]][1][3:] + " ",
        "<>",
    ),
)

PER_UNIT: tuple[Rule, ...] = (
    rule(rf"(?<=[元块次人个里米克斤升页字步$币镑])/(?=[{HAN}])", *says("每", "每"), "/"),
    rule(
        rf"(?<=[元块币镑次个])/({_PER})(?![A-Za-z\d])",
        lambda m: f"每{UNITS.get(m[1], (m[1],))[0]}",
        lambda m: f"每{UNITS.get(m[1], (m[1],))[0]}",
        "/",
    ),
    rule(
        rf"(?<=(?:llars|ounds|euros|cents|.yuan|ories))/({_PER})(?![A-Za-z\d])",
        lambda m: f"每{UNITS[m[1]][0]}",
        lambda m: f" per {UNITS[m[1]][1]}",
        "/",
    ),
)
"""After money has been spoken: 8元/kg, $5/kg."""

SIGNS: tuple[Rule, ...] = (
    # Units of their own: "in km/h", 单位是kg/m³.
    rule(rf"(?<![A-Za-z\d/])({_SPEEDS})(?![A-Za-z\d²³])", lambda m: UNITS[m[1]][0], lambda m: UNITS[m[1]][2], "/"),
    rule(
        rf"(?<![A-Za-z\d/])({_LONG_UNITS})/({_ALL_UNITS})(?![A-Za-z\d²³])",
        lambda m: f"{UNITS[m[1]][0]}每{UNITS[m[2]][0]}",
        lambda m: f"{UNITS[m[1]][2]} per {UNITS[m[2]][1]}",
        "/",
    ),
    rule(rf"(?<![A-Za-z])({_SQUARED})(?![A-Za-z\d])", lambda m: UNITS[m[1]][0], lambda m: UNITS[m[1]][2], "²³"),
    rule(rf"(?<=[A-Za-z\d)]|[{HAN}])([⁺⁻]?[{_RAISED}]+)(?<!(?:[{HAN}])[⁰¹⁴-⁹])", _zh_power, _en_power, _RAISED),
    rule(r"(?<=\b[CFcf])[#＃]", *says(" sharp", " sharp"), "#＃", alone="en"),
    rule("&{2,}", *says("和", " and "), "&"),
    rule(r"(?<=[A-Za-z])\+\+", *says("加加", " plus plus"), "+"),
    rule(
        "|".join(re.escape(s) for s in sorted(SYMBOLS, key=len, reverse=True) if s not in "<>"),
        lambda m: _sign(m, 0),
        lambda m: _sign(m, 1),
        "".join(SYMBOLS),
    ),
    rule(
        rf"(?<=[A-Za-z{HAN}])\s?[<>]\s?(?=[A-Za-z{HAN}])",
        lambda m: SYMBOLS[m[0].strip()][0],
        lambda m: SYMBOLS[m[0].strip()][1],
        "<>",
    ),
)
