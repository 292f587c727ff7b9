"""American English words -> Kokoro's symbols.

Lexicons: misaki's us_gold (checked by hand) and us_silver (by machine), as data. Endings (-s, -ed, -ing, 's) are
derived from the stem as misaki 0.9.4 does; a word no lexicon has is spelled when it looks like initials, else guessed
by `g2p_oov`. Words with two readings are told apart by `heteronyms`.
"""

from __future__ import annotations

import json
import re
import unicodedata
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from cosyvoice_app.engines.lite.g2p_oov import LetterToSound
from cosyvoice_app.engines.lite.g2p_symbols import from_arpabet
from cosyvoice_app.engines.lite.heteronyms import ADJECTIVE, NOUN, VERB, heteronyms
from cosyvoice_app.text.chars import words

VOWELS = frozenset("AIOQWYaiuæɑɐɒəɛɜɪʊʌᵻ")
_SOUNDS = VOWELS | frozenset("bdfhjklmnpstvwzðŋɡɹɾʃʒʤʧθ")
_FLAPPING = frozenset("AIOWYiuæɑəɛɪɹʊʌ")
"""After these a t before an ending is tapped."""

Entry = str | dict[str, str | None]
Ending = Literal["", "s", "'s", "ed", "ing"]

_EMPHASISED = frozenset(
    words(
        "NOT AND ALL YOU THE ARE WAS BUT FOR NOW NEW YES BIG ONE TWO WHY HOW OUT OFF MY ME HE WE IS BE DO GO NO SO "
        "UP ON IF OR"
    )
)
_SPELLED = frozenset(words("US IT WHO PM TV PC ID UK EU UN HR PR CV DJ MC VIP CEO ATM FAQ USA DIY AA"))
_MAX_GUESSED = 24
_NOUN_BEFORE = frozenset(
    words("a an the my your his her its our their this that these those some any no of in with for by")
)
_VERB_BEFORE = frozenset(
    words(
        "to will would can could should shall must may might i you we they don't didn't doesn't won't can't not "
        "let's please"
    )
)
_PARTICIPLE_BEFORE = frozenset(words("have has had having i've you've we've they've is are was were been being be"))


_BY_SPELLING = {
    "résumé": "ɹˈɛzəmˌA", "resumé": "ɹˈɛzəmˌA", "exposé": "ˌɛkspOzˈA", "maté": "mˈɑtˌA", "nestlé": "nˈɛsli",
    "saké": "sˈɑkˌA", "celtics": "sˈɛltɪks", "closer": "klˈOsəɹ",
}  # fmt: skip
"""Forms that show (or nearly always are) one reading of a heteronym, where the lexicons don't say so."""
_NEVER_VERBS = frozenset(words("downhill overhead uptown"))
"""Nouns in the lexicon that are adverbs otherwise."""


@dataclass(frozen=True, slots=True)
class Context:
    """What the next sound is: a vowel, a consonant, or (None) a mark or the end. `previous`/`following` are lower-case
    words; `sentence` is all of it, as tokens, with the word at `at`.
    """

    future_vowel: bool | None = None
    previous: str = ""
    following: str = ""
    sentence: tuple[str, ...] = ()
    at: int = 0


class EnglishLexicon:
    """Thread-safe once built. `word` returns nothing only for a word without a letter of A-Z, accents aside."""

    def __init__(self, gold: Path, silver: Path, oov: Path) -> None:
        self._gold: dict[str, Entry] = json.loads(gold.read_text(encoding="utf-8"))
        self._silver: dict[str, Entry] = json.loads(silver.read_text(encoding="utf-8"))
        self._letter_to_sound = LetterToSound(oov)

    def word(self, written: str, context: Context) -> str:
        """Symbols of one word as written, apostrophes inside. Hyphens and spaces are the caller's."""
        special = self._function_word(written, context)
        if special is not None:
            return special
        if written.lower() in _BY_SPELLING:
            return _BY_SPELLING[written.lower()]
        stress = None if written == written.lower() else 2.0 if written == written.upper() and len(written) > 1 else 0.5
        found = self._known(written, context, stress)
        if found is None:
            plain = _without_accents(written)
            found = self._known(plain, context, stress) if plain != written else None
            if found is None:
                found = self._unknown(plain, context)
        return found

    def letters(self, written: str) -> str:
        """Spelled out: the last letter carries the stress, as in F-B-I."""
        names = [self._letter(c) for c in _without_accents(written)]
        joined = "".join(_restress(name, 0) for name in names if name)
        head, mark, tail = joined.rpartition("ˌ")
        return f"{head}ˈ{tail}" if mark else joined

    def _letter(self, char: str) -> str:
        entry = self._gold.get(char.upper())
        return entry if isinstance(entry, str) else ""

    def _function_word(self, written: str, context: Context) -> str | None:
        """Words whose sound depends on what follows: the, a, an, to, in, am, I, used to."""
        word, vowel = written.lower(), context.future_vowel
        if written == "I":
            return "ˌI"
        if word == "a":
            article = written == "a" or (not context.previous and len(context.following) > 1)
            return "ɐ" if article and vowel is not None and context.following else "ˈA"
        if word == "the" and written != "THE":
            return "ði" if vowel else "ðə"
        if word == "an" and written != "AN":
            return "ɐn"
        if word == "to" and written != "TO":
            return {None: "tu", False: "tə", True: "tʊ"}[vowel]
        if word == "in" and written != "IN":
            return "ˈɪn" if vowel is None else "ɪn"
        if written == "am":
            return "æm" if vowel is None else "ɐm"
        if word == "used":
            return "jˈust" if context.following == "to" else "jˈuzd"
        return None

    def _known(self, written: str, context: Context, stress: float | None) -> str | None:
        """From the lexicons, as written or in lower case, whole or by its ending; initials spelled."""
        if len(written) == 1:
            return _restress(self._letter(written), stress) or None
        initials = written in _SPELLED and not _shouted(context)
        if initials or (written.isupper() and written not in self._gold and self._is_initials(written)):
            return self.letters(written) or None
        lower = written.lower()
        if lower in heteronyms().readings:
            return _restress(heteronyms().choose(lower, *_place(written, context)).symbols, stress)
        for form in dict.fromkeys((written, lower, written.capitalize())):
            if form in self._gold or form in self._silver:
                return self._entry(form, context, stress)
        if lower.endswith("s'") and lower[:-1] not in heteronyms().readings:
            return self._known(lower[:-2] + "'s", context, stress) or self._known(lower[:-1], context, stress)
        if lower.endswith("'"):
            return self._known(lower[:-1], context, stress)
        return (
            self._ending_s(lower, context, stress)
            or self._ending_ed(lower, context, stress)
            or self._ending_ing(lower, context, stress)
        )

    def _is_initials(self, written: str) -> bool:
        letters = written.replace("'", "")
        if letters in _SPELLED:
            return True
        if letters in _EMPHASISED or letters.lower() in self._gold:
            return False
        return len(letters) <= 3 or not _looks_like_word(letters)

    def _entry(self, form: str, context: Context, stress: float | None, ending: Ending = "") -> str | None:
        entry = self._gold.get(form) or self._silver.get(form)
        if isinstance(entry, dict):
            roles = _roles(form, entry)
            if roles:
                entry = roles[_role(roles, ending, context)]
            else:
                chosen = entry["None"] if context.future_vowel is None and entry.get("None") else None
                for tag in _tags(context):
                    chosen = chosen or entry.get(tag)
                entry = chosen or entry["DEFAULT"]
        return _restress(entry, stress) if entry else None

    def _stem(self, stem: str, context: Context, stress: float | None, ending: Ending) -> str | None:
        """A stem without its ending, which tells a verb (-ed, -ing) or a noun ('s) by itself."""
        model = heteronyms()
        if stem in model.readings:
            roles = {r.role: r.symbols for r in model.readings[stem]}
            if VERB in roles or (NOUN in roles and ending in ("s", "'s")):
                return _restress(roles[_role(roles, ending, context)], stress)
            if ending in ("s", "'s"):
                return _restress(model.choose(stem, *_place(stem, context)).symbols, stress)
        for form in (stem, stem.capitalize()):
            if form in self._gold or form in self._silver:
                return self._entry(form, context, stress, ending)
        return None

    def _ending_s(self, word: str, context: Context, stress: float | None) -> str | None:
        stem = None
        if len(word) >= 3 and word.endswith("s") and not word.endswith("ss"):
            stem = self._stem(word[:-1], context, stress, "s")
        if stem is None and (
            word.endswith("'s") or (len(word) > 4 and word.endswith("es") and not word.endswith("ies"))
        ):
            stem = self._stem(word[:-2], context, stress, "'s" if word.endswith("'s") else "s") or (
                self._known(word[:-2], context, stress) if word.endswith("'s") else None
            )
        if stem is None and len(word) > 4 and word.endswith("ies"):
            stem = self._stem(word[:-3] + "y", context, stress, "s")
        return _add_s(stem) if stem else None

    def _ending_ed(self, word: str, context: Context, stress: float | None) -> str | None:
        stem = None
        if len(word) >= 4 and word.endswith("ed") and word[:-2] not in heteronyms().readings:
            stem = self._stem(word[:-1], context, stress, "ed")
        if stem is None and len(word) > 4 and word.endswith("ed") and not word.endswith("eed"):
            stem = self._stem(word[:-2], context, stress, "ed")
            if stem is None and re.search(r"([bdgklmnprtvz])\1ed$", word):
                stem = self._stem(word[:-3], context, stress, "ed")
        return _add_ed(stem) if stem else None

    def _ending_ing(self, word: str, context: Context, stress: float | None) -> str | None:
        if len(word) < 5 or not word.endswith("ing"):
            return None
        stress = 0.5 if stress is None else stress
        stem = self._stem(word[:-3], context, stress, "ing") if len(word) > 5 else None
        stem = stem or self._stem(word[:-3] + "e", context, stress, "ing")
        if stem is None and re.search(r"([bcdgklmnprstvxz])\1ing$|cking$", word):
            stem = self._stem(word[:-4], context, stress, "ing")
        return _add_ing(stem) if stem else None

    def _unknown(self, word: str, context: Context) -> str:
        """A word of no lexicon: its parts when it is CamelCase, its letters when it can't be said, else a guess."""
        if word.lower().endswith("'s") and len(word) > 2:
            stem = self.word(word[:-2], context)
            return _add_s(stem) or stem
        humps = re.findall(r"[A-Z]{2,}(?=s$)|[A-Z]{2,}(?![a-z])|[A-Z]?[a-z']+|[A-Z]+|[^A-Za-z']+", word)
        if len(humps) > 1 and not word[1:].islower():
            if len(humps) == 2 and humps[1] == "s":
                return _add_s(self.word(humps[0], context)) or ""
            return " ".join(said for hump in humps if (said := self.word(hump, context)))
        letters = re.sub(r"[^a-z]", "", word.lower())
        if not letters:
            return ""
        if not _looks_like_word(letters) or (word.isupper() and len(letters) <= 3):
            return self.letters(letters)
        return " ".join(self._guess(letters[i : i + _MAX_GUESSED]) for i in range(0, len(letters), _MAX_GUESSED))

    def _guess(self, word: str) -> str:
        symbols = self._letter_to_sound.predict(word)
        if not any(s[-1].isdigit() for s in symbols):
            return self.letters(word)
        if not any(s.endswith("1") for s in symbols):
            at = next(i for i, s in enumerate(symbols) if s[-1].isdigit())
            symbols = (*symbols[:at], symbols[at][:-1] + "1", *symbols[at + 1 :])
        return re.sub(r"(?<=[AIOWYiuæɑəɛɪɹʊʌ])t(?=[əiɪᵻ])", "ɾ", from_arpabet(symbols))


def first_sound_is_vowel(symbols: str) -> bool | None:
    """True or False by the first sound; None when there is no sound before a mark."""
    for char in symbols:
        if char in ";:,.!?—…":
            return None
        if char in _SOUNDS:
            return char in VOWELS
    return None


def _roles(form: str, entry: dict[str, str | None]) -> dict[str, str]:
    """Readings of a lexicon entry as a verb and as something else; nothing where that isn't what parts them."""
    default = entry["DEFAULT"] or ""
    verb, noun, adjective = entry.get("VERB"), entry.get("NOUN"), entry.get("ADJ")
    if verb:
        return {VERB: verb, NOUN: noun or default}
    if noun and form.islower() and form not in _NEVER_VERBS:
        return {VERB: default, NOUN: noun}
    if adjective and form.endswith("ate"):
        return {VERB: default, ADJECTIVE: adjective}
    return {}


def _role(roles: dict[str, str], ending: Ending, context: Context) -> str:
    """Which of `roles` a word has: as its ending says, else as the sentence does."""
    left = {"ed": (VERB,), "ing": (VERB,), "'s": (NOUN,), "s": (NOUN, VERB)}.get(ending, tuple(roles))
    roles = {r: roles[r] for r in left if r in roles} or roles
    if len(roles) == 1:
        return next(iter(roles))
    return heteronyms().role(*_place("", context), tuple(roles))


def _place(written: str, context: Context) -> tuple[tuple[str, ...], int]:
    """The sentence of a word and its place there; a word by itself is its own sentence."""
    return (context.sentence, context.at) if context.sentence else ((written or "x",), 0)


def _tags(context: Context) -> tuple[str, ...]:
    """Likely parts of speech by the word before, for the few words that differ by more than verb against noun
    (overhead, nearby). Without a cue the default reading stands.
    """
    if context.previous in _PARTICIPLE_BEFORE:
        return ("VBN", "VBD", "ADJ") if context.previous not in ("is", "are", "was", "were", "be") else ("VBN", "ADJ")
    if context.previous in _VERB_BEFORE:
        return ("VB", "VERB")
    if context.previous in _NOUN_BEFORE:
        return ("NN", "NOUN")
    return ()


def _shouted(context: Context) -> bool:
    """Whether a word beside is in capitals too and no initials: DO IT NOW."""
    beside = context.sentence[max(0, context.at - 1) : context.at] + context.sentence[context.at + 1 : context.at + 2]
    return any(len(word) > 1 and word.isalpha() and word.isupper() and word not in _SPELLED for word in beside)


def _looks_like_word(letters: str) -> bool:
    """Can it be said as a word: has a vowel, and no pile of consonants."""
    lower = letters.lower()
    if not re.search(r"[aeiouy]", lower):
        return False
    return not re.search(r"[^aeiouy]{5,}|^[^aeiouy]{4,}|(.)\1\1", lower)


def _without_accents(word: str) -> str:
    special = {"ß": "ss", "æ": "ae", "œ": "oe", "ø": "o", "ł": "l", "đ": "d", "ð": "d", "þ": "th", "ı": "i"}
    decomposed = unicodedata.normalize("NFD", "".join(special.get(c, c) for c in word))
    return "".join(c for c in decomposed if not unicodedata.combining(c))


def _restress(symbols: str, stress: float | None) -> str:
    """misaki's stress levels: 0 weakens a primary stress, 0.5 gives an unstressed word a secondary one, 2 a primary
    one.
    """
    if stress is None or not symbols:
        return symbols
    if stress == 0 and "ˈ" in symbols:
        return symbols.replace("ˌ", "").replace("ˈ", "ˌ")
    if "ˈ" in symbols:
        return symbols
    if "ˌ" in symbols:
        return symbols.replace("ˌ", "ˈ") if stress >= 1 else symbols
    for i, char in enumerate(symbols):
        if char in VOWELS:
            return symbols[:i] + ("ˈ" if stress > 1 else "ˌ") + symbols[i:]
    return symbols


def _add_s(stem: str | None) -> str | None:
    if not stem:
        return None
    if stem[-1] in "ptkfθ":
        return stem + "s"
    return stem + ("ᵻz" if stem[-1] in "szʃʒʧʤ" else "z")


def _add_ed(stem: str) -> str:
    if stem[-1] in "pkfθʃsʧ":
        return stem + "t"
    if stem[-1] == "d":
        return stem + "ᵻd"
    if stem[-1] != "t":
        return stem + "d"
    return stem[:-1] + "ɾᵻd" if len(stem) > 1 and stem[-2] in _FLAPPING else stem + "ᵻd"


def _add_ing(stem: str) -> str:
    if len(stem) > 1 and stem[-1] == "t" and stem[-2] in _FLAPPING:
        return stem[:-1] + "ɾɪŋ"
    return stem + "ɪŋ"
