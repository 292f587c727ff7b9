"""English abbreviations with a point or a slash -> the words they are read as."""

from __future__ import annotations

import re

from cosyvoice_app.text import numbers as n
from cosyvoice_app.text.chars import words
from cosyvoice_app.text.rule import Match, Rule, after, before, each, rule, says

MONTHS = words("January February March April May June July August September October November December")
_ANYWHERE = {
    "mr": "Mister",
    "mrs": "Missus",
    "messrs": "Messers",
    "prof": "Professor",
    "etc": "et cetera",
    "e.g": "for example",
    "i.e": "that is",
    "approx": "approximately",
    "dept": "department",
    "jr": "Junior",
    "sr": "Senior",
    "ave": "Avenue",
    "blvd": "Boulevard",
    "tel": "telephone",
    "ext": "extension",
    "inc": "Incorporated",
    "ltd": "Limited",
    "corp": "Corporation",
    "govt": "government",
    "est": "established",
}
_BEFORE_A_NAME = {
    "Gen": "General",
    "Capt": "Captain",
    "Lt": "Lieutenant",
    "Col": "Colonel",
    "Sgt": "Sergeant",
    "Maj": "Major",
    "Adm": "Admiral",
    "Rev": "Reverend",
    "Hon": "Honorable",
    "Sen": "Senator",
    "Rep": "Representative",
    "Gov": "Governor",
    "Pres": "President",
    "Mt": "Mount",
    "Ft": "Fort",
}
_BEFORE_A_NUMBER = {
    "fig": "figure",
    "figs": "figures",
    "vol": "volume",
    "vols": "volumes",
    "ch": "chapter",
    "sec": "section",
    "p": "page",
    "pp": "pages",
    "apt": "apartment",
    "eq": "equation",
    "ver": "version",
}
DAYS = {"Mon": "Monday", "Tue": "Tuesday", "Tues": "Tuesday", "Wed": "Wednesday", "Thu": "Thursday"} | {
    "Thurs": "Thursday", "Fri": "Friday", "Sat": "Saturday", "Sun": "Sunday"
}  # fmt: skip
_NOT_STREETS = "In|At|The|To|From|Near|Of|And|Visit|On|By|For|With|But|Our|My|His|Her|This|Is|Was"


def _like(word: str, typed: str) -> str:
    return word[0].upper() + word[1:] if typed[0].isupper() else word


def _street_or_saint(m: Match, place: str, person: str) -> str | None:
    """`Main St.` and `St. Mary`: a name before it makes a street, a name behind it a saint. Both: the street, when
    the name before it isn't a word that only begins the sentence.
    """
    named_before = re.search(rf"(?<![A-Za-z'])(?!(?:{_NOT_STREETS})\s)(?:[A-Z][a-z]+|\d+(?:st|nd|rd|th))\s$", before(m))
    if named_before:
        return place + ("." if re.match(r"\s*$|\s+[A-Z]", after(m)) else "")
    return person if re.match(r"\s[A-Z]", after(m)) else None


def _month(typed: str) -> str:
    return next(month for month in MONTHS if month.startswith(typed[:3]))


def _ending(m: Match) -> str:
    """The point of an abbreviation that ends the sentence too."""
    return "." if re.match(r"\s*$|\s*\n|\s+(?:The|It|He|She|We|They|This|That|But|And|In|On|You|I)\b", after(m)) else ""


ABBREVIATIONS: tuple[Rule, ...] = (
    rule(
        r"(?<![A-Za-z_])(?:vs\.?|V[sS]\.|V[sS](?=\s?(?!Code\b|Studio\b|20|twenty|二零)[^\s.,，。!?]))(?![A-Za-z_])",
        *says("对", "versus"),
        "vV",
        alone="en",
    ),
    rule(
        r"\bPub\. L\.(?: No\.)?\s(\d{2,3})-(\d{1,3})(?![\d-])",
        *each(lambda m: f"Public Law {n.en_integer(m[1])} dash {n.en_integer(m[2])}"),
    ),
    rule(r"\bPub\. L\.(?=\s)", *each(lambda m: "Public Law"), "P"),
    rule(r"\betc\.(?=\s*$|\s+[A-Z])", *each(lambda m: "et cetera."), ".", alone="en"),
    rule(
        rf"\b({'|'.join(re.escape(a) for a in _ANYWHERE if a not in ('inc', 'ltd', 'corp', 'ave', 'est'))})\.",
        *each(lambda m: _ANYWHERE[m[1].lower()]),
        ".",
        alone="en",
        flags=re.IGNORECASE,
    ),
    rule(
        r"\b(Inc|Ltd|Corp|Ave)\.",
        *each(lambda m: _ANYWHERE[m[1].lower()] + _ending(m)),
        ".",
        alone="en",
    ),
    rule(r"\bDr\.", *each(lambda m: _street_or_saint(m, "Drive", "Doctor") or "Doctor"), ".", alone="en"),
    rule(r"\bMs\.", *each(lambda m: "Miz"), ".", alone="en"),
    rule(r"\bSt\.", *each(lambda m: _street_or_saint(m, "Street", "Saint")), ".", alone="en"),
    rule(r"\bRd\.(?!\w)", *each(lambda m: "Road" + _ending(m)), ".", alone="en"),
    rule(rf"\b({'|'.join(_BEFORE_A_NAME)})\.(?=\s[A-Z])", *each(lambda m: _BEFORE_A_NAME[m[1]]), ".", alone="en"),
    rule(
        rf"\b({'|'.join(_BEFORE_A_NUMBER)})\.\s?(?=\d|(?<!\bp\.\s)(?<!\bp\.)[IVX]+\b)",
        *each(lambda m: _like(_BEFORE_A_NUMBER[m[1].lower()], m[1]) + " "),
        ".",
        alone="en",
        flags=re.IGNORECASE,
    ),
    rule(
        r"\b(Jan|Feb|Mar|Apr|Jun|Jul|Aug|Sept?|Oct|Nov|Dec)\.(?!\w*\.)",
        *each(lambda m: _month(m[1]) + _ending(m)),
        ".",
        alone="en",
    ),
    rule(
        rf"\b({'|'.join(DAYS)})\.(?=,?\s(?:{'|'.join(m[:3] for m in MONTHS)}|\d|at\b|to\b|and\b|through\b))",
        *each(lambda m: DAYS[m[1]]),
        ".",
        alone="en",
    ),
    rule(r"(?<![\w/])w/o(?![\w/])", *each(lambda m: "without"), "/", alone="en"),
    rule(r"(?<![\w/])w/(?=\s?[A-Za-z]{2})", *each(lambda m: "with "), "/", alone="en"),
    # List marks: "1. Open the door. 2. Sit down." are no decimals.
    rule(
        r"(?:(?<=^)|(?<=\n)|(?<=[.。!?！？]\s))(\d{1,3})[.)、．]\s+(?=[^\s\d])",
        lambda m: n.zh_integer(m[1]) + "，",
        lambda m: n.en_integer(m[1]) + ", ",
    ),
)
