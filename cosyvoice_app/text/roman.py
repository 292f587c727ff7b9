"""Roman numerals, where the words around them say that they are numbers: Henry VIII, Chapter IV, 路易XIV, II型.

Letters that only look like numerals are far more common (I, XL, CD, iPhone X, MIX), so nothing is read without such a
word.
"""

from __future__ import annotations

import re

from cosyvoice_app.text import numbers as n
from cosyvoice_app.text.chars import words
from cosyvoice_app.text.rule import Match, Reader, Rule, after, before, each, rule

_RULERS = words(
    "Henry Louis Elizabeth Charles George Edward William James Richard Philip Felipe Peter Catherine Alexander "
    "Nicholas Napoleon John Paul Pius Benedict Gregory Leo Clement Innocent Francis Frederick Ferdinand Ramses "
    "Ramesses Ptolemy Alfonso Alphonse Carlos Gustav Karl Wilhelm Victor Umberto Ivan Mehmed Suleiman Selim Murad "
    "Robert Malcolm Harald Olaf Christian Haakon Sixtus Urban Julius Boniface Celestine Leopold Albert Baldwin Otto "
    "Rudolf Maximilian Xerxes Darius Artaxerxes Cleopatra Pedro Emmanuel Manuel Stephen Matthias Sigismund Casimir "
    "Vladislav Margaret Mary Anne Isabella Joseph Constantine Justinian Theodosius Abdul Ahmed Osman Mahmud "
    "Thutmose Amenhotep Seti Tiberius Philippe"
)
_ZH_RULERS = (
    "路易|亨利|伊丽莎白|查理|查尔斯|乔治|爱德华|威廉|詹姆斯|理查|理查德|腓特烈|弗里德里希|彼得|叶卡捷琳娜|凯瑟琳|亚历山大|尼古拉|"
    "拿破仑|菲利普|腓力|费利佩|约翰|保罗|保禄|本笃|庇护|方济各|格列高利|利奥|拉美西斯|托勒密|阿方索|卡洛斯|费迪南|斐迪南|古斯塔夫|"
    "卡尔|利奥波德|维克托|伊凡|穆罕默德|苏莱曼|哈拉尔|奥托|鲁道夫|马克西米利安|大流士|薛西斯|克利奥帕特拉|佩德罗|玛丽|玛格丽特|若望"
)
_TITLES = "King|Queen|Pope|Emperor|Empress|Tsar|Czar|Prince|Sultan|Pharaoh|Kaiser|Saint"
_NUMBERED = (
    "Chapter|Part|Act|Scene|Book|Volume|Section|Article|Phase|Type|Class|Grade|Level|Stage|Appendix|Figure|Table|Title|"
    "War|Bowl|Mark|Unit|Lesson|Factor|Page|Episode|Season|Tier|Category|Round|Group|Division|Schedule|Annex|Exhibit|"
    "Module|Step|Item|Paragraph|Psalm|Sonnet|Symphony|Olympiad|Congress|Amendment|Canto|Vatican"
)
_LOWER_NUMBERED = (
    "chapter|part|act|scene|book|volume|section|article|phase|type|stage|appendix|figure|table|level|grade"
)
_LOOKALIKES = frozenset(words("XX XXX XL XXL XXXL MIX MM CC CD DC CV MD DM MC LL LI DI MI CI CL VI IV XI XV"))
_LESS_ALIKE = frozenset(("IV", "VI", "XI", "XV"))
_VERB_OF_I = re.compile(
    r"\s(?:took|bought|got|made|use|used|see|hear|went|go|am|have|had|did|do|love|like|want|think|know|read|saw|wrote|need|will|would|can|could|should|play|played)\b|'"
)
_GOES_ON = r"[;:)!?—]|['’]s\b|\s(?:of|ruled|reigned|became|died|who)\b|\.?\s*$|\s?[\u4e00-\u9fff]"
_ROMAN = re.compile(r"M{0,3}(CM|CD|D?C{0,3})(XC|XL|L?X{0,3})(IX|IV|V?I{0,3})")
_VALUES = {"I": 1, "V": 5, "X": 10, "L": 50, "C": 100, "D": 500, "M": 1000}
_R = "([IVXLCDM]+)(?![A-Za-z0-9])(?!-[A-Z])"
_SMALL = "([IVX]+)(?![A-Za-z0-9])(?!-[A-Z])"


def value(roman: str) -> int | None:
    """The number of a numeral in its one right spelling, else None.

    >>> value("XIV"), value("IIX"), value("MCMLXXXIV")
    (14, None, 1984)
    """
    if not roman or not _ROMAN.fullmatch(roman):
        return None
    total = 0
    for this, following in zip(roman, roman[1:] + " ", strict=True):
        worth = _VALUES[this]
        total += -worth if _VALUES.get(following, 0) > worth else worth
    return total


def _cardinal(m: Match) -> str | None:
    """`Chapter IV`. A lone I behind a numbered thing may still be the speaker: "the Part I played"."""
    roman = m[2]
    if value(roman) is None or roman in ("C", "D", "L", "M"):
        return None
    if roman == "I" and (_VERB_OF_I.match(after(m)) or m[1][0].islower()):
        return None
    return f"{m[1]}{n.en_integer(str(value(roman)))}"


def _ordinal(m: Match) -> str | None:
    """`Henry VIII`; a lone letter only behind a title, or where a sentence about the person goes on."""
    roman = m[2]
    if value(roman) is None or roman in ("C", "D", "L", "M"):
        return None
    said = f"{m[1]}the {n.en_ordinal(str(value(roman)))}"
    if len(roman) > 1 or re.search(rf"\b(?:{_TITLES})\s$", before(m)):
        return said
    if re.match(_GOES_ON, after(m)):
        return said
    # "Charles I was king", but "when I met Mary I was happy".
    starts = re.search(r"(?:^|[.!?\n]\s?)$", before(m)) or roman != "I"
    return said if starts and re.match(r"\s(?:was|is|had|and|in)\b", after(m)) else None


def _titled(m: Match) -> str | None:
    """A name that isn't in the list, behind a title: King Kamehameha III."""
    return _ordinal(m) if re.search(rf"\b(?:{_TITLES})\s$", before(m)) else None


def _heir(m: Match) -> str | None:
    return f"{m[1]}the {n.en_ordinal(str(value(m[2])))}" if value(m[2]) and m[2] in ("II", "III", "IV") else None


def _sequel(m: Match) -> str | None:
    """`Rocky III`, `Final Fantasy VII`: a name with a numeral that is no usual abbreviation."""
    number, several = value(m[2]), m[1].count(" ") > 1
    if number is None or len(m[2]) < 2 or (m[2] in _LOOKALIKES and not (several and m[2] in _LESS_ALIKE)):
        return None
    return f"{m[1]}{n.en_integer(str(number))}"


def _zh(before_: int, numeral: int) -> Reader:
    def read(m: Match) -> str | None:
        number = value(m[numeral])
        head = m[before_] if before_ else ""
        if number is None or m[numeral] in _LOOKALIKES - _LESS_ALIKE:
            return None
        if m[numeral] in ("C", "D", "L", "M") or (head.startswith("第") and m[numeral] == "X"):
            return None  # 第X章 is a blank to fill in
        return head + n.zh_integer(str(number))

    return read


def _en_century(m: Match) -> str | None:
    return n.en_ordinal(str(value(m[1]))) if value(m[1]) else None


def _list_mark(language: int) -> Reader:
    """`I. Introduction`, when the text has a second item too."""

    def read(m: Match) -> str | None:
        number = value(m[1])
        if number is None or not (re.search(r"(?m)^I\.\s", m.string) and re.search(r"(?m)^II\.\s", m.string)):
            return None
        return n.zh_integer(str(number)) + "，" if language == 0 else n.en_integer(str(number)) + ", "

    return read


ROMAN: tuple[Rule, ...] = (
    rule(rf"(?m)^{_SMALL}\.\s+(?=\S)", _list_mark(0), _list_mark(1), "IVX", "."),
    rule(rf"((?:{_ZH_RULERS}|第)\s?)([IVXLCDM]+)(?![A-Za-z])(?!-[A-Z])", *each(_zh(1, 2)), "IVXLCDM"),
    rule(
        r"(?<![A-Za-z])(I|[IVX]{2,})(?=\s?(?:型|期|级|类|世|度|卷|章|篇|幕|部分|阶段|相|区|组|册|号线|因子)|世纪)",
        *each(_zh(0, 1)),
        "IVX",
    ),
    rule(r"(?<![A-Za-z0-9])([IVX]{2,})(?:th)?(?=[\s-]century)", *each(_en_century), "IVX", alone="en"),
    rule(r"\bWW(I{1,2})\b", *each(lambda m: f"World War {n.en_integer(str(len(m[1])))}"), "W"),
    rule(rf"\b((?:{_NUMBERED}|{_LOWER_NUMBERED})\s){_R}", *each(_cardinal), "IVXLCDM"),
    rule(rf"\b((?:{'|'.join(_RULERS)})\s[A-Z][a-z]+\s)([IVX]+)\b", *each(_heir), "IVX"),
    rule(rf"\b((?:{'|'.join(_RULERS)})\s){_R}", *each(_ordinal), "IVXLCDM"),
    rule(rf"\b([A-Z][a-z]+\s){_SMALL}", *each(_titled), "IVX"),
    rule(rf"\b(?!Celsius|Fahrenheit)((?:[A-Z][a-z]+\s){{1,3}}){_SMALL}", *each(_sequel), "IVX"),
)
