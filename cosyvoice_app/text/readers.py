"""How each written form is spoken, in Mandarin (`zh_...`) and in English (`en_...`): a match of its rule -> words.

A reader answers None when the match isn't what it looked like: 2024-13-40 is no date.
"""

from __future__ import annotations

import re

from cosyvoice_app.text import numbers as n
from cosyvoice_app.text.chars import words
from cosyvoice_app.text.units import CURRENCIES, MAGNITUDES, SYMBOLS, UNITS

Match = re.Match[str]

MONTHS = words("January February March April May June July August September October November December")
_MEASURES = "个位只条件次天张块杯斤遍本名家种辆台双对口份倍元米点幅封根间颗首套项场篇瓶碗盒包箱袋片粒"


def month(number: str) -> str:
    return MONTHS[int(number) - 1]


def is_date(month: str, day: str) -> bool:
    return 1 <= int(month) <= 12 and 1 <= int(day) <= 31


def zh_date(m: Match) -> str | None:
    year, month, day = m[1], m[2], m[3]
    if not is_date(month, day):
        return None
    return f"{n.zh_digits(year)}年{n.zh_integer(month)}月{n.zh_integer(day)}日"


def en_date(m: Match) -> str | None:
    if not is_date(m[2], m[3]):
        return None
    return f"{month(m[2])} {n.en_ordinal(m[3])}, {n.en_year(m[1])}"


def en_named_date(m: Match) -> str:
    return f"{m[1]} {n.en_ordinal(m[2])}" + (f", {n.en_year(m[3])}" if m[3] else "")


def zh_us_date(m: Match) -> str | None:
    month_, day = (m[1], m[2]) if int(m[1]) <= 12 else (m[2], m[1])
    return f"{n.zh_digits(m[3])}年{n.zh_integer(month_)}月{n.zh_integer(day)}日" if is_date(month_, day) else None


def en_us_date(m: Match) -> str | None:
    month_, day = (m[1], m[2]) if int(m[1]) <= 12 else (m[2], m[1])
    return f"{month(month_)} {n.en_ordinal(day)}, {n.en_year(m[3])}" if is_date(month_, day) else None


def _is_ratio(m: Match) -> bool:
    named = r"(?:比例|比率|比分|画幅|ratio|score|aspect)\W*\w{0,4}\W*$"
    return bool(re.search(named, m.string[: m.start()], re.IGNORECASE))


def zh_time(m: Match) -> str | None:
    if _is_ratio(m):
        return None
    hour, minute, second, half = m[1], m[2], m[3], (m[4] or "").lower().replace(".", "")
    spoken = {"am": "上午", "pm": "下午"}.get(half, "") + ("两" if int(hour) == 2 else n.zh_integer(hour)) + "点"
    if int(minute) or second:
        spoken += ("零" if 0 < int(minute) < 10 else "") + n.zh_integer(minute) + "分"
    if second:
        spoken += n.zh_integer(second) + "秒"
    return spoken


def en_time(m: Match) -> str | None:
    if _is_ratio(m):
        return None
    hour, minute, second, half = int(m[1]), int(m[2]), m[3], (m[4] or "").replace(".", "")
    tail = f" {half.upper()}" if half else ""
    if second:
        return f"{n.en_integer(m[1])} {n.en_integer(m[2])} and {n.en_integer(second)} seconds{tail}"
    if minute == 0:
        return n.en_integer(m[1]) + (tail or (" o'clock" if 1 <= hour <= 12 else " hundred hours"))
    return n.en_integer(m[1]) + (" oh " if minute < 10 else " ") + n.en_integer(m[2]) + tail


def digits_only(written: str) -> str:
    return re.sub(r"\D", "", written)


def en_phone(written: str) -> str:
    groups = re.findall(r"\d+", written)
    return ("plus " if written.startswith("+") else "") + ", ".join(n.en_digits(g) for g in groups)


def zh_phone(written: str) -> str:
    return ("加" if written.startswith("+") else "") + n.zh_digits(digits_only(written), phone=True)


def zh_magnitude(word: str | None) -> str:
    return MAGNITUDES[word][0] if word else ""


def zh_money(m: Match) -> str:
    return n.zh_number(m[2]) + zh_magnitude(m[3] or m[4]) + CURRENCIES[m[1]][0]


def en_money(m: Match) -> str:
    _, unit, units, hundredth, hundredths = CURRENCIES[m[1]]
    amount, magnitude = m[2].replace(",", ""), m[3] or m[4]
    whole, _, part = amount.partition(".")
    if magnitude:
        return f"{n.en_number(amount)} {MAGNITUDES[magnitude][1]} {units}"
    if len(part) == 2 and int(part):
        cents = f"{n.en_integer(part)} {hundredth if int(part) == 1 else hundredths}"
        return f"{n.en_integer(whole)} {unit if int(whole) == 1 else units} and {cents}" if int(whole) else cents
    if not part.strip("0"):
        return f"{n.en_integer(whole)} {unit if int(whole) == 1 else units}"
    return f"{n.en_number(amount)} {units}"


def zh_percent(m: Match) -> str:
    name = {"%": "百分之", "％": "百分之", "‰": "千分之"}[m[2]]
    sign = {"-": "负", "−": "负", "+": "正"}.get(m[1][:1], "")
    return sign + name + n.zh_number(m[1].lstrip("+-−"))


def en_percent(m: Match) -> str:
    sign = "plus " if m[1].startswith("+") else ""
    return f"{sign}{n.en_number(m[1])} {'per mille' if m[2] == '‰' else 'percent'}"


def zh_quantity(number: str, unit: str) -> str:
    amount = "两" if number == "2" and not unit.startswith("千") else n.zh_number(number)
    return amount + unit


def zh_unit(m: Match) -> str:
    unit = UNITS[m[3]][0]
    if m[2]:
        return f"{n.zh_number(m[1])}到{n.zh_number(m[2])}{unit}"
    return zh_quantity(m[1], unit)


def en_unit(m: Match) -> str:
    _, one, many = UNITS[m[3]]
    if m[2]:
        return f"{n.en_number(m[1])} to {n.en_number(m[2])} {many}"
    return f"{n.en_number(m[1])} {one if m[1] == '1' else many}"


def zh_below(number: str) -> str:
    return ("零下" if number[:1] in "-−" else "") + n.zh_number(number.lstrip("+-−"))


def zh_degrees(m: Match) -> str:
    scale = "华氏度" if m[3][-1] in "F℉" else "摄氏度"
    return (f"{zh_below(m[1])}到{zh_below(m[2])}" if m[2] else zh_below(m[1])) + scale


def en_degrees(m: Match) -> str:
    scale = "Fahrenheit" if m[3][-1] in "F℉" else "Celsius"
    amount = f"{n.en_number(m[1])} to {n.en_number(m[2])}" if m[2] else n.en_number(m[1])
    return f"{amount} degree{'' if amount.endswith('one') else 's'} {scale}"


def zh_version(m: Match) -> str:
    return m[1] + "点".join(
        n.zh_digits(p) if p.startswith("0") or len(p) > 2 else n.zh_integer(p) for p in m[2].split(".")
    )


def en_version(m: Match) -> str:
    spoken = " point ".join(n.en_digits(p) if len(p) > 2 else n.en_integer(p) for p in m[2].split("."))
    return f"{m[1]} {spoken}".strip()


def zh_fraction(m: Match) -> str:
    if m[1] == m[2] or int(m[2]) == 0:
        return f"{n.zh_integer(m[1])}比{n.zh_integer(m[2])}"
    return f"{n.zh_integer(m[2])}分之{n.zh_integer(m[1])}"


def en_fraction(m: Match) -> str:
    top, bottom = int(m[1]), int(m[2])
    if top == bottom:
        return f"{n.en_integer(m[1])}-{n.en_integer(m[2])}"
    if bottom == 0 or top > bottom:
        return f"{n.en_integer(m[1])} over {n.en_integer(m[2])}"
    name = {2: "half", 4: "quarter"}.get(bottom, n.en_ordinal(m[2]))
    if top != 1:
        name = {2: "halves"}.get(bottom, name + "s")
    return f"{n.en_integer(m[1])} {name}"


def is_phone_like(m: Match) -> bool:
    return len(digits_only(m[0])) >= 7 or (m[2].startswith("0") and len(m[2]) > 1)


def zh_range(m: Match) -> str:
    if is_phone_like(m) and not (len(m[1]) == len(m[2]) == 4):
        return n.zh_digits(digits_only(m[0]), phone=True)
    return f"{n.zh_number(m[1])}到{n.zh_number(m[2])}"


def en_range(m: Match) -> str:
    if len(m[1]) == len(m[2]) == 4 and m[1][0] in "12" and m[2][0] in "12":
        return f"{n.en_year(m[1])} to {n.en_year(m[2])}"
    if is_phone_like(m):
        return en_phone(m[0])
    return f"{n.en_number(m[1])} to {n.en_number(m[2])}"


def zh_in_name(m: Match) -> str:
    digits = m[1]
    return n.zh_integer(digits) if len(digits) < 3 and not digits.startswith("0") else n.zh_digits(digits)


def en_in_name(m: Match) -> str:
    digits = m[1]
    if len(digits) == 4 and digits[0] in "12":
        return n.en_year(digits)
    return n.en_integer(digits) if len(digits) < 3 and not digits.startswith("0") else n.en_digits(digits)


def zh_plain(m: Match) -> str:
    written = m[1]
    digits = written.lstrip("+-−")
    if "." not in digits and "," not in digits and digits.startswith("0") and len(digits) > 1:
        return n.zh_digits(digits)
    if (
        written == "2"
        and re.match(rf"\s?(?:[{_MEASURES}]|年(?!级)|小时|分钟|公里|千米)", m.string[m.end() :])
        and not m.string[: m.start()].endswith("第")
    ):
        return "两"
    sign = "正" if written.startswith("+") else ""
    return sign + n.zh_number(written)


def en_plain(m: Match) -> str:
    written = m[1]
    digits = written.lstrip("+-−")
    if digits.isdecimal():
        if digits.startswith("0") and len(digits) > 1:
            return n.en_digits(digits)
        if len(digits) == 4 and digits == written and 1100 <= int(digits) <= 2099:
            return n.en_year(digits)
    return ("plus " if written.startswith("+") else "") + n.en_number(written)


def zh_symbol(m: Match) -> str:
    return SYMBOLS[m[0]][0]


def en_symbol(m: Match) -> str:
    return SYMBOLS[m[0]][1]


_ADDRESS_WORDS = {
    ".": ("点", "dot"),
    "/": ("斜杠", "slash"),
    "@": ("艾特", "at"),
    "_": ("下划线", "underscore"),
    "-": ("杠", "dash"),
    ":": ("冒号", "colon"),
    "?": ("问号", "question mark"),
    "=": ("等于", "equals"),
    "&": ("和", "and"),
    "#": ("井号", "hash"),
    "%": ("百分号", "percent"),
    "+": ("加", "plus"),
    "~": ("波浪号", "tilde"),
}


def address(written: str, which: int) -> str:
    """An address is read as it stands: no scheme and no closing slash, letters as words, digits one by one, marks by
    name.
    """
    written = re.sub(r"^[a-z]+://", "", written, flags=re.IGNORECASE).rstrip("/")
    words = []
    for part in re.findall(r"[A-Za-z]+|\d|.", written):
        if part.isdecimal():
            words.append(n.zh_digits(part) if which == 0 else n.en_digits(part))
        elif part in _ADDRESS_WORDS:
            words.append(_ADDRESS_WORDS[part][which])
        else:
            words.append(part)
    return " ".join(words)
