"""English words written alike and said differently (read, live, close, record): which one a sentence means.

A linear model over the words around: weights that all heteronyms share ("after `to` stands a verb"), and each word's
own ("a lead pipe is of metal"). `train/train_heteronyms.py` makes `data/heteronyms.npz`; `data/heteronyms.md` says
from what, and how often it is right.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import BinaryIO
from zlib import crc32

import numpy as np

from cosyvoice_app.text.chars import words

DATA = Path(__file__).parent / "data" / "heteronyms.npz"
VERB, ADJECTIVE, PAST, NOUN = "V", "A", "P", "N"
"""Roles of a reading; those but the noun have weights that words share. A noun that is an adjective too (present,
separate) counts as a noun; the past is that of `read`, against its base form.
"""
SHARED = (VERB, ADJECTIVE, PAST)

_CLASSES: dict[str, tuple[str, ...]] = {
    "det": words("the a an this these those each another any some no both either neither such"),
    "that": ("that",),
    "poss": words("my your his its our their whose her"),
    "subj": words("i you we they who people everyone everybody nobody somebody someone anyone"),
    "subj3": words("he she it there"),
    "obj": words("me him us them myself yourself himself herself itself ourselves themselves"),
    "to": ("to",),
    "modal": words(
        "will would can could shall should must may might can't cannot couldn't won't wouldn't shouldn't mustn't "
        "i'll you'll he'll she'll it'll we'll they'll i'd you'd he'd she'd we'd they'd let's gonna wanna gotta"
    ),
    "do": words("do don't does doesn't did didn't"),
    "please": words("please let lets help make makes made"),
    "be": words(
        "is are was were be been being am isn't aren't wasn't weren't i'm you're we're they're he's she's it's "
        "that's what's who's there's here's"
    ),
    "have": words("have has had having haven't hasn't hadn't i've you've we've they've"),
    "prep": words(
        "of in on at by for with from into onto over under about against between during without within through "
        "after before since until upon across among around behind near off toward towards via per like as than"
    ),
    "part": words("up down out away back apart together open shut"),
    "conj": words("and or but nor so"),
    "sub": words("because if when while although though unless whether where why how what which once"),
    "neg": words("not never"),
    "adv": words(
        "also yet still just already now then ever even only again soon almost here too very really quite more "
        "most less well far home once twice all maybe finally"
    ),
    "habit": words("always often sometimes usually rarely every"),
    "ago": words("yesterday ago last earlier previously"),
    "when": words("today tomorrow tonight next morning night day week month year"),
    "num": words("one half dozen hundred thousand million billion first second third"),
    "past": words(
        "went came took made said told got gave saw knew thought found felt left kept held brought began wrote "
        "sat stood ran fell won lost met paid sent built spent heard became grew drew broke spoke chose drove ate "
        "drank sang wore threw flew rose shook woke caught taught bought fought led fed slept swept bent lent "
        "meant dealt hid bit struck stuck swung"
    ),
    "verb": words(
        "go come take get give see know think find feel leave keep hold bring begin write sit stand run tell say "
        "want need try like love hate start stop ask seem become help"
    ),
    "adj": words("good bad new old big small great long short high low little own other same early late many few"),
}
_CLASS = {word: name for name, listed in reversed(_CLASSES.items()) for word in listed}
_NUMBERS = frozenset(
    words(
        "zero two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen "
        "seventeen eighteen nineteen twenty thirty forty fifty sixty seventy eighty ninety hundred thousand"
    )
)
_ENDINGS = (
    ("ing", "ing"), ("ed", "ed"), ("ly", "ly"), ("tion", "nn"), ("sion", "nn"), ("ment", "nn"), ("ness", "nn"),
    ("ity", "nn"), ("ism", "nn"), ("ance", "nn"), ("ence", "nn"), ("ship", "nn"), ("ous", "jj"), ("ful", "jj"),
    ("less", "jj"), ("able", "jj"), ("ible", "jj"), ("ical", "jj"), ("ive", "jj"), ("ish", "jj"), ("al", "jj"),
    ("ic", "jj"), ("ary", "jj"), ("est", "est"), ("er", "er"), ("or", "er"), ("ss", "w"), ("us", "w"), ("is", "w"),
    ("'s", "poss"), ("s'", "poss"), ("s", "s"),
)  # fmt: skip
_SKIPPED = frozenset({"adv", "habit", "ly", "neg"})
_AUXILIARY = frozenset({"to", "modal", "do", "be", "have", "please"})
_CONTENT = frozenset({"adj", "adv", "habit", "ago", "verb", "past", "when", "neg", "part"})
_FUNCTION = frozenset(_CLASSES) - _CONTENT | {"mark"}
EDGE = "|"
"""A token that stands for the end of what can be read: a sentence's ends, and Chinese within it."""
_BAG_REACH = 12


def normal(token: str) -> str:
    """A token as the model knows it: lower case, straight apostrophes, `#` for a number in digits or words."""
    lower = token.lower().replace("’", "'")
    if lower in "“”":
        return '"'
    if lower[:1].isdigit() or lower in _NUMBERS:
        return "#"
    return lower


def word_class(word: str) -> str:
    """Coarse part of speech of a normalised token, by a list of function words, else by its ending."""
    if word in _CLASS:
        return _CLASS[word]
    if not word[:1].isalpha():
        return "num" if word == "#" else "edge" if word == EDGE else "mark"
    if len(word) > 3:
        for ending, name in _ENDINGS:
            if word.endswith(ending):
                return name
    return "w"


def features(tokens: Sequence[str], at: int) -> list[str]:
    """What is seen around `tokens[at]`. `tokens` are the words and marks of one sentence as written, no spaces. Those
    that start with `b:` (a word somewhere near) say something about one heteronym only.
    """
    shouted = sum(t.isupper() for t in tokens) * 2 > sum(t[:1].isalpha() for t in tokens)
    seen: list[str] = []
    here = 0
    for i, token in enumerate(tokens):
        word = normal(token)
        if word == "#" and seen and seen[-1] == "#" and i != at:
            continue
        if i == at:
            here = len(seen)
        seen.append(word)
    padded = [EDGE] * 3 + seen + [EDGE] * 3
    at_padded = here + 3
    near = padded[at_padded - 3 : at_padded + 4]
    a, b, c, _, x, y, z = near
    ca, cb, cc, _, cx, cy, cz = (word_class(w) for w in near)
    target = tokens[at]
    case = "lower" if target[:1].islower() or shouted else "upper" if target.isupper() else "title"
    before = tokens[at - 1] if at else ""
    after = tokens[at + 1] if at + 1 < len(tokens) else ""
    begins = not any(t[:1].isalpha() for t in tokens[:at])
    out = [
        "bias",
        f"case:{case}:{begins}",
        f"-1:{c}", f"-2:{b}", f"-3:{a}", f"+1:{x}", f"+2:{y}", f"+3:{z}",
        f"c-1:{cc}", f"c-2:{cb}", f"c-3:{ca}", f"c+1:{cx}", f"c+2:{cy}", f"c+3:{cz}",
        f"-2-1:{b} {c}", f"-1+1:{c} {x}", f"+1+2:{x} {y}",
        f"c-2-1:{cb} {cc}", f"c-1+1:{cc} {cx}", f"c+1+2:{cx} {cy}", f"c-3-2-1:{ca} {cb} {cc}",
        f"c-2-1+1:{cb} {cc} {cx}", f"c-1+1+2:{cc} {cx} {cy}",
        f"-1c+1:{c} {cx}", f"c-1+1w:{cc} {x}", f"-1e:{c[-3:]}", f"+1e:{x[-3:]}", f"-1c-2:{c} {cb}",
        f"-1s:{_stem(c)}", f"+1s:{_stem(x)}",
    ]  # fmt: skip
    if here > 1 and before[:1].isupper() and not shouted and c[0] != "i":
        out.append("cap-1")
    if after[:1].isupper() and not shouted:
        out.append("cap+1")
    out += _wider(seen, here)
    if seen[here].endswith("s"):
        out += [f"s {f}" for f in out if f.startswith(("bias", "c-1", "c+1", "L", "R", "c-2-1:"))]
    lowest, highest = max(0, here - _BAG_REACH), here + _BAG_REACH + 1
    bag = {w for i, w in enumerate(seen[lowest:highest], lowest) if i != here and w[0].isalpha()}
    return out + sorted({f"b:{_stem(w)}" for w in bag if _CLASS.get(w) not in ("det", "prep", "conj")})


def _stem(word: str) -> str:
    """Without a regular ending, so that `pipe` and `pipes` are one."""
    for ending in ("'s", "ing", "ed", "es", "s", "e"):
        if word.endswith(ending) and len(word) - len(ending) > 2 and not word.endswith("ss"):
            return word[: -len(ending)]
    return word


def _wider(seen: list[str], here: int) -> Iterator[str]:
    """Clues that aren't next door: the word before adverbs, the nearest function words, the tense of the sentence."""
    classes = [word_class(w) for w in seen]
    left = here - 1
    while left >= 0 and classes[left] in _SKIPPED:
        left -= 1
    yield f"L:{classes[left] if left >= 0 else 'edge'}"
    yield f"Lw:{seen[left] if left >= 0 else EDGE}"
    right = here + 1
    while right < len(seen) and classes[right] in _SKIPPED:
        right += 1
    yield f"R:{classes[right] if right < len(seen) else 'edge'}"
    nearest = next((i for i in range(here - 1, max(-1, here - 6), -1) if classes[i] in _FUNCTION), None)
    found = "edge" if nearest is None else f"{classes[nearest]} {min(here - nearest, 4)}"
    yield f"LF:{found}"
    yield f"LFw:{EDGE if nearest is None else seen[nearest]}"
    ahead = next((i for i in range(here + 1, min(len(seen), here + 6)) if classes[i] in _FUNCTION), None)
    after = "edge" if ahead is None else f"{classes[ahead]} {min(ahead - here, 4)}"
    yield f"RF:{after}"
    yield f"LF RF:{found} {after}"
    helper = next((i for i in range(here - 1, max(-1, here - 7), -1) if classes[i] in _AUXILIARY | {"mark"}), None)
    helped = "none" if helper is None else classes[helper]
    between = "" if helper is None else " ".join(c for c in classes[helper + 1 : here] if c not in _SKIPPED)[:16]
    yield f"X:{helped}"
    yield f"Xb:{helped} {between}"
    yield f"X L:{helped} {classes[left] if left >= 0 else 'edge'}"
    yield f"X-:{classes[helper - 1] if helper else 'edge'} {helped}"
    others = {c for i, c in enumerate(classes) if i != here}
    yield f"tense:{'past' in others or 'ed' in others} {'modal' in others}"
    for side, span in (("l", classes[:here]), ("r", classes[here + 1 :])):
        for name in ("modal", "do", "have", "be", "past", "verb", "ed", "to", "habit", "ago"):
            if name in span:
                yield f"{side}:{name}"
    if seen[-1] == "?":
        yield "question"


@dataclass(frozen=True, slots=True)
class Reading:
    """One way to say a heteronym: the name it has in the data, its role ("" where it has none) and symbols."""

    name: str
    role: str
    symbols: str


class Heteronyms:
    """Weights of `data/heteronyms.npz`. Reads nothing but what it is given, so one sentence never sways another."""

    def __init__(self, file: Path | BinaryIO = DATA) -> None:
        with np.load(file, allow_pickle=False) as stored:
            table = json.loads(bytes(stored["table"]).decode("utf-8"))
            keys: np.ndarray = stored["keys"]
            values = stored["values"].astype(np.float32) * stored["scale"]
        self._weights: dict[int, float] = dict(zip(keys.tolist(), values.tolist(), strict=True))
        self.readings: dict[str, tuple[Reading, ...]] = {
            word: tuple(Reading(*reading) for reading in readings) for word, readings in table.items()
        }

    def choose(self, word: str, tokens: Sequence[str], at: int) -> Reading:
        """The likeliest of `readings[word]` (lower case) where it stands. Raises KeyError for other words."""
        readings = self.readings[word]
        seen = features(tokens, at)
        scores = [self._role(r.role, seen) + self._own(word, k, seen) for k, r in enumerate(readings)]
        return readings[scores.index(max(scores))]

    def role(self, tokens: Sequence[str], at: int, roles: Sequence[str]) -> str:
        """The likeliest of `roles` for a word without weights of its own."""
        seen = features(tokens, at)
        return max(roles, key=lambda role: self._role(role, seen))

    def _role(self, role: str, seen: list[str]) -> float:
        if role not in SHARED:
            return 0.0
        return sum(self._weights.get(shared_key(role, f), 0.0) for f in seen)

    def _own(self, word: str, k: int, seen: list[str]) -> float:
        return sum(self._weights.get(own_key(word, k, f), 0.0) for f in seen) if k else 0.0


def shared_key(role: str, feature: str) -> int:
    return crc32(f"{role} {feature}".encode())


def own_key(word: str, k: int, feature: str) -> int:
    return crc32(f"{word}/{k} {feature}".encode())


@lru_cache(maxsize=1)
def heteronyms() -> Heteronyms:
    """The one copy, read when first asked for."""
    return Heteronyms()
