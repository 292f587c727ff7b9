"""What the weights of `heteronyms` are trained on: the labelled sentences, our own, and stand-ins; and how every
homograph is said.
"""

from __future__ import annotations

import csv
import json
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from cosyvoice_app import assets
from cosyvoice_app.engines.lite.g2p_symbols import SYMBOLS
from cosyvoice_app.engines.lite.heteronyms import ADJECTIVE, NOUN, PAST, VERB, Reading, features
from cosyvoice_app.text.chars import LATIN, words

OURS = Path(__file__).with_name("heteronym_sentences.tsv")
_TOKEN = re.compile(rf"[{LATIN}]+(?:['’][{LATIN}]+)*['’]?|\d[\d,.]*|[–—,.!?;:()\"“”…]")

BUILT = {
    "aged_adj": "ˈAʤɪd", "august_nam": "ˈWɡˌʊst", "blessed_adj": "blˈɛsɪd", "bologna": "bəlˈOni",
    "celtic_adj-nou-sports": "sˈɛltɪk", "export_vrb": "ɪkspˈɔɹt", "expose_nou": "ˌɛkspOzˈA",
    "frequent_vrb": "fɹikwˈɛnt", "impact_vrb": "ɪmpˈækt", "increment_vrb": "ˈɪŋkɹəmˌɛnt",
    "instrument_vrb": "ˈɪnstɹəmˌɛnt", "jesus_es": "hAsˈus", "job_bible": "ʤˈOb", "lead_nou": "lˈɛd",
    "mate_nou": "mˈɑtˌA", "mobile_nou-art": "mˈObˌil", "nestle_nam": "nˈɛsli", "perfume_nou": "pˈɜɹfjˌum",
    "perfume_vrb": "pəɹfjˈum", "protest_vrb": "pɹətˈɛst", "ravel_nam": "ɹəvˈɛl", "reading_geo": "ɹˈɛdɪŋ",
    "recount_nou": "ɹˈikˌWnt", "resume_nou": "ɹˈɛzəmˌA", "rodeo_geo": "ɹOdˈAO", "row_2": "ɹˈW", "sake_jp": "sˈɑkˌA",
}  # fmt: skip
"""Readings that the lexicon lacks, from the sounds that the data's `wordids.tsv` gives."""
_FROM_LEXICON = {
    "august": "August", "mobile_geo": "Mobile", "polish_geo": "Polish",
}  # fmt: skip
"""Readings that the lexicon has under the name with a capital."""
_ROLES = {"read_past": PAST, "bow_nou-ship": VERB}
"""Roles that the names in the data don't show."""
_ADJECTIVE_AS_VERB = frozenset({"upset"})
"""The data puts the adjective with the noun ("an ˈupset"), but "I'm upˈset" is said like the verb."""


TENSE, POS = "@tense", "@pos"
"""Names of the stand-ins: words whose spelling shows what a heteronym's hides. Irregular verbs (write, wrote) show
where a past stands; plain verbs and nouns show where each of those stands.
"""
STAND_INS = {
    TENSE: (Reading("base", "", ""), Reading("past", PAST, "")),
    POS: (Reading("noun", NOUN, ""), Reading("base", VERB, "")),
}
_NOUNS_KEPT = 4
"""One noun in so many is taken: they are far more than the verbs."""
_IRREGULAR = words(
    "write/wrote/written take/took/taken give/gave/given go/went/gone see/-/seen eat/ate/eaten know/knew/known "
    "begin/began/begun tell/told/told say/said/said find/-/- hear/heard/heard get/got/gotten forget/forgot/forgotten "
    "speak/spoke/spoken choose/chose/chosen draw/drew/drawn break/broke/broken keep/kept/kept send/sent/sent "
    "buy/bought/bought bring/brought/brought teach/taught/taught catch/caught/caught think/thought/thought "
    "sing/sang/sung wear/wore/worn throw/threw/thrown -/won/won lose/lost/lost sell/sold/sold build/built/built "
    "meet/met/met sit/sat/sat -/stood/stood -/became/- -/fell/fallen grow/grew/grown make/made/made pay/paid/paid "
    "learn/learned/learned -/watched/- -/played/- ask/asked/asked -/tried/- receive/received/received "
    "believe/believed/believed remember/remembered/remembered understand/understood/understood "
    "want/wanted/wanted need/needed/needed love/loved/loved listen/listened/listened enjoy/enjoyed/enjoyed"
)
_TENSES = {
    word: "past" if i else "base"
    for verb in _IRREGULAR
    for i, word in reversed(list(enumerate(verb.split("/"))))
    if word != "-"
}
_ONLY_VERBS = words(
    "write take give go eat know begin tell say hear get forget speak choose keep send buy bring teach think sing lose "
    "sell meet sit become grow make pay learn ask receive believe remember understand listen enjoy explain describe "
    "follow contain include provide allow appear arrive belong continue decide develop discover exist happen improve "
    "join lie marry occur prefer prove realize reduce remain require seem serve suggest survive tend wait win create"
)
_ONLY_NOUNS = words(
    "child city river family idea year school team song album film member village church government game man woman "
    "country area person book company system war day world century building player band group life language king town "
    "story teacher doctor friend car bird tree dog cat animal picture problem street department district mountain "
    "island artist actor event series award season role version author period army leader title science music "
    "university"
)


def _with_s(word: str) -> str:
    if word.endswith("y") and word[-2] not in "aeou":
        return f"{word[:-1]}ies"
    return f"{word}es" if word.endswith(("o", "ch", "sh", "s")) else f"{word}s"


_POS = {form: "base" for verb in _ONLY_VERBS for form in (verb, _with_s(verb))} | {
    form: "noun" for noun in _ONLY_NOUNS for form in (noun, _with_s(noun))
}


@dataclass(frozen=True, slots=True)
class Example:
    """One homograph (or stand-in) in a sentence. `ours` marks the sentences we wrote."""

    word: str
    name: str
    tokens: tuple[str, ...]
    at: int
    ours: bool = False


def tokenize(text: str) -> list[tuple[str, int]]:
    """Words, numbers and marks with their places."""
    return [(m[0].replace("’", "'"), m.start()) for m in _TOKEN.finditer(text)]


def example(word: str, name: str, text: str, start: int, ours: bool = False) -> Example:
    tokens = tokenize(text)
    at = max(i for i, (_, place) in enumerate(tokens) if place <= start)
    found = re.sub(r"'s?$", "", tokens[at][0].lower())
    if found != word and word not in STAND_INS:
        raise ValueError(f'"{word}" is not at {start} of "{text}", but "{tokens[at][0]}".')
    return Example(word, name, tuple(t for t, _ in tokens), at, ours)


def read_rows(folder: Path) -> Iterator[Example]:
    """`train` or `eval` of the data. `start` counts bytes."""
    for file in sorted(folder.glob("*.tsv")):
        with file.open(encoding="utf-8", newline="") as lines:
            for row in csv.DictReader(lines, delimiter="\t"):
                start = len(row["sentence"].encode()[: int(row["start"])].decode())
                yield example(row["homograph"], row["wordid"], row["sentence"], start)


def read_ours(file: Path) -> Iterator[Example]:
    """Sentences with the homograph in braces: `homograph`, `wordid`, `sentence`."""
    with file.open(encoding="utf-8", newline="") as lines:
        for row in csv.DictReader(lines, delimiter="\t", quoting=csv.QUOTE_NONE):
            text = row["sentence"]
            plain = text.replace("{", "").replace("}", "")
            yield example(row["homograph"], row["wordid"], plain, text.index("{"), ours=True)


def role_of(word: str, name: str, label: str = "") -> str:
    """From the name in the data (`live_adj`, `lives_vrb`), or its description where the name is bare."""
    kind = name.removeprefix(word).lstrip("_")
    if name in _ROLES:
        return _ROLES[name]
    if kind in ("", "nou-vrb"):
        return {"verb": VERB, "noun": NOUN}.get(label, "")
    return {"vrb": VERB, "adj": ADJECTIVE, "nou": NOUN, "adj-nou": NOUN}.get(kind, "")


def table(data: Path, ours: Iterable[Example]) -> dict[str, tuple[Reading, ...]]:
    """Readings of every homograph: the lexicon's where it has them. Raises ValueError where one can't be made."""
    lexicon = json.loads(assets.path("misaki-us-gold").read_text(encoding="utf-8"))
    silver = json.loads(assets.path("misaki-us-silver").read_text(encoding="utf-8"))
    names: dict[str, dict[str, str]] = defaultdict(dict)
    with (data / "wordids.tsv").open(encoding="utf-8", newline="") as lines:
        for row in csv.DictReader(lines, delimiter="\t"):
            names[row["homograph"]][row["wordid"]] = role_of(row["homograph"], row["wordid"], row["label"])
    for item in ours:
        if item.word not in STAND_INS and item.name not in names[item.word]:
            role = role_of(item.word, item.name)
            names[item.word].update({f"{item.word}_nou": NOUN, item.name: role})
            if role != ADJECTIVE:
                names[item.word][f"{item.word}_vrb"] = VERB
    out = {}
    for word, roles in names.items():
        entry = lexicon.get(word) or silver.get(word)
        out[word] = tuple(Reading(n, r, _symbols(word, n, r, entry, lexicon)) for n, r in roles.items())
        if len({r.symbols for r in out[word]}) < len(out[word]) or any(set(r.symbols) - SYMBOLS for r in out[word]):
            raise ValueError(f"Readings of {word} are alike or not the model's: {out[word]}")
    return out


def _symbols(word: str, name: str, role: str, entry: object, lexicon: dict[str, object]) -> str:
    if name in BUILT:
        return BUILT[name]
    if name in _FROM_LEXICON:
        entry = lexicon[_FROM_LEXICON[name]]
    if isinstance(entry, dict):
        kind = name.removeprefix(word).lstrip("_")
        tags = {
            "axes_nou-vrb": ("VERB",), "bass": ("ADJ",), "bow_nou-ship": ("VERB",), "close_adj-nou": ("DEFAULT",),
            "pasty_adj": ("ADJ",), "read_past": ("VBD",), "wound_vrb": ("VBD",), "axes_nou": ("DEFAULT",),
        }.get(name) or {
            VERB: ("VERB",), NOUN: ("NOUN", "ADJ") if "adj" in kind else ("NOUN",), ADJECTIVE: ("ADJ",), "": ()
        }[role]  # fmt: skip
        entry = next((entry[t] for t in tags if t in entry), entry["DEFAULT"])
    if not isinstance(entry, str):
        raise ValueError(f"No reading of {name}.")
    return entry


def stand_ins(examples: Iterable[Example]) -> list[Example]:
    """Stand-ins anywhere in the sentences of `examples`."""
    out, nouns = [], 0
    for tokens, ours in {e.tokens: e.ours for e in examples if e.word not in STAND_INS}.items():
        for i, word in enumerate(t.lower() for t in tokens):
            if word in _TENSES:
                out.append(Example(TENSE, _TENSES[word], tokens, i, ours))
            if word in _POS:
                nouns += _POS[word] == "noun"
                if _POS[word] == "base" or nouns % _NOUNS_KEPT == 0:
                    out.append(Example(POS, _POS[word], tokens, i, ours))
    return out


def adjust(examples: Iterable[Example]) -> list[Example]:
    """Examples under the readings that we say (see `_ADJECTIVE_AS_VERB`)."""
    out = []
    for e in examples:
        if e.word in _ADJECTIVE_AS_VERB and e.name.endswith("_nou") and not e.ours:
            seen = features(e.tokens, e.at)
            if not any(f.startswith(("L:det", "L:poss", "L:jj", "L:adj", "L:num", "L:w")) for f in seen):
                e = Example(e.word, f"{e.word}_vrb", e.tokens, e.at)
        out.append(e)
    return out
