"""Numbers as words, Mandarin and English. Arguments are digit strings, so that leading zeros and length are never
lost.
"""

from __future__ import annotations

from cosyvoice_app.text.chars import words

_ZH_DIGITS = "零一二三四五六七八九"
_ZH_GROUPS = ("", "万", "亿", "万亿", "亿亿")
_EN_ONES = words(
    "zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen "
    "seventeen eighteen nineteen"
)
_EN_TENS = words("twenty thirty forty fifty sixty seventy eighty ninety")
_EN_GROUPS = ("", "thousand", "million", "billion", "trillion", "quadrillion")
_EN_ORDINALS = {
    "one": "first",
    "two": "second",
    "three": "third",
    "five": "fifth",
    "eight": "eighth",
    "nine": "ninth",
    "twelve": "twelfth",
}
MAX_DIGITS = 18
"""Longer than this, a number is read digit by digit in both languages."""


def zh_digits(digits: str, *, phone: bool = False) -> str:
    """Digit by digit. On the phone 1 is 幺.

    >>> zh_digits("0087"), zh_digits("120", phone=True)
    ('零零八七', '幺二零')
    """
    spoken = "".join(_ZH_DIGITS[int(d)] for d in digits)
    return spoken.replace("一", "幺") if phone else spoken


def _zh_below_10000(n: int) -> str:
    out, zero = "", False
    for unit, name in ((1000, "千"), (100, "百"), (10, "十"), (1, "")):
        digit, n = divmod(n, unit)
        if digit:
            out += ("零" if zero and out else "") + _ZH_DIGITS[digit] + name
            zero = False
        else:
            zero = True
    return out


def zh_integer(digits: str) -> str:
    """As a quantity; 二千 and more are 两千, as spoken.

    >>> zh_integer("120"), zh_integer("15"), zh_integer("2000"), zh_integer("10010"), zh_integer("200000000")
    ('一百二十', '十五', '两千', '一万零一十', '两亿')
    """
    if len(digits) > MAX_DIGITS:
        return zh_digits(digits)
    n = int(digits)
    if n == 0:
        return "零"
    groups: list[int] = []
    while n:
        n, low = divmod(n, 10_000)
        groups.append(low)
    out, gap = "", False
    for i in range(len(groups) - 1, -1, -1):
        value = groups[i]
        if value == 0:
            gap = True
            continue
        spoken = _zh_below_10000(value)
        if out and (gap or value < 1000):
            out += "零"
        if value == 2 and i > 0 and not out:
            spoken = "两"
        out += spoken.replace("二千", "两千", 1) + _ZH_GROUPS[i]
        gap = False
    return out[1:] if out.startswith("一十") else out


def zh_number(number: str) -> str:
    """An optional sign, an integer (commas allowed) and an optional decimal part.

    >>> zh_number("-5"), zh_number("99.90"), zh_number("1,234.5")
    ('负五', '九十九点九零', '一千二百三十四点五')
    """
    sign = "负" if number[:1] in "-−" else ""
    whole, _, part = number.lstrip("-−+").replace(",", "").partition(".")
    return sign + zh_integer(whole or "0") + ("点" + zh_digits(part) if part else "")


def en_digits(digits: str) -> str:
    """
    >>> en_digits("911")
    'nine one one'
    """
    return " ".join(_EN_ONES[int(d)] for d in digits)


def _en_below_1000(n: int) -> str:
    words = []
    if n >= 100:
        words += [_EN_ONES[n // 100], "hundred"]
        n %= 100
    if n >= 20:
        words.append(_EN_TENS[n // 10 - 2] + ("-" + _EN_ONES[n % 10] if n % 10 else ""))
    elif n:
        words.append(_EN_ONES[n])
    return " ".join(words)


def en_integer(digits: str) -> str:
    """
    >>> en_integer("911"), en_integer("200000"), en_integer("1042")
    ('nine hundred eleven', 'two hundred thousand', 'one thousand forty-two')
    """
    if len(digits) > MAX_DIGITS:
        return en_digits(digits)
    n = int(digits)
    if n == 0:
        return "zero"
    words: list[str] = []
    for group in range(len(_EN_GROUPS) - 1, -1, -1):
        value, n = divmod(n, 1000**group)
        if value:
            words.append(_en_below_1000(value) + (" " + _EN_GROUPS[group] if group else ""))
    return " ".join(words)


def en_number(number: str) -> str:
    """
    >>> en_number("-5.30"), en_number("1,234")
    ('minus five point three zero', 'one thousand two hundred thirty-four')
    """
    sign = "minus " if number[:1] in "-−" else ""
    whole, _, part = number.lstrip("-−+").replace(",", "").partition(".")
    return sign + en_integer(whole or "0") + (" point " + en_digits(part) if part else "")


def en_year(digits: str) -> str:
    """
    >>> en_year("1997"), en_year("2005"), en_year("1900"), en_year("2024")
    ('nineteen ninety-seven', 'two thousand five', 'nineteen hundred', 'twenty twenty-four')
    """
    if len(digits) != 4 or digits.startswith("0") or digits[1:3] == "00":
        return en_integer(digits)
    century, rest = int(digits[:2]), int(digits[2:])
    if rest == 0:
        return _en_below_1000(century) + " hundred"
    return _en_below_1000(century) + (" oh " if rest < 10 else " ") + _en_below_1000(rest)


def en_ordinal(digits: str) -> str:
    """
    >>> en_ordinal("1"), en_ordinal("22"), en_ordinal("40"), en_ordinal("100")
    ('first', 'twenty-second', 'fortieth', 'one hundredth')
    """
    return en_ordinal_of(en_integer(digits))


def en_ordinal_of(words: str) -> str:
    at = max(words.rfind(" "), words.rfind("-")) + 1
    head, last = words[:at], words[at:]
    if last in _EN_ORDINALS:
        return head + _EN_ORDINALS[last]
    return head + (last[:-1] + "ieth" if last.endswith("y") else last + ("h" if last.endswith("t") else "th"))


def en_plural(word: str) -> str:
    """
    >>> en_plural("nineteen ninety"), en_plural("six")
    ('nineteen nineties', 'sixes')
    """
    if word.endswith("y"):
        return word[:-1] + "ies"
    return word + ("es" if word.endswith(("x", "s")) else "s")
