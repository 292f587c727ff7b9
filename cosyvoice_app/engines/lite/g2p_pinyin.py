"""One Mandarin syllable -> Kokoro's symbols: IPA with a tone arrow after the vowel, none for the neutral tone.

The readings are those the model was trained on (pinyin to IPA after Lin 2007 and Duanmu 2007, non-syllabic marks
dropped); `tests/data/mandarin_syllables.json` holds the reference for every syllable.
"""

from __future__ import annotations

from functools import lru_cache

TONES = {1: "→", 2: "↗", 3: "↓", 4: "↘", 5: ""}

_INITIALS = {
    "": "", "b": "p", "p": "pʰ", "m": "m", "f": "f", "d": "t", "t": "tʰ", "n": "n", "l": "l",
    "g": "k", "k": "kʰ", "h": "x", "j": "ʨ", "q": "ʨʰ", "x": "ɕ",
    "zh": "\uab67", "ch": "\uab67ʰ", "sh": "ʂ", "r": "ɻ", "z": "ʦ", "c": "ʦʰ", "s": "s",
}
# "0" is where the tone goes.
_FINALS = {
    "a": "a0", "ai": "ai0", "an": "a0n", "ang": "a0ŋ", "ao": "au0", "e": "ɤ0", "ei": "ei0", "en": "ə0n",
    "eng": "ə0ŋ", "ê": "ɛ0", "er": "ɚ0", "i": "i0", "ia": "ja0", "ian": "jɛ0n", "iang": "ja0ŋ", "iao": "jau0",
    "ie": "je0", "in": "i0n", "ing": "i0ŋ", "io": "jɔ0", "iong": "jʊ0ŋ", "iou": "jou0", "o": "wo0",
    "ong": "ʊ0ŋ", "ou": "ou0", "u": "u0", "ua": "wa0", "uai": "wai0", "uan": "wa0n", "uang": "wa0ŋ",
    "uei": "wei0", "uen": "wə0n", "ueng": "wə0ŋ", "uo": "wo0", "ü": "y0", "üan": "ɥɛ0n", "üe": "ɥe0",
    "ün": "y0n",
}
_SYLLABIC = {"m": "m0", "n": "n0", "ng": "ŋ0", "hm": "hm0", "hng": "hŋ0", "o": "ɔ0"}
_CONTRACTED = {"iu": "iou", "ui": "uei", "un": "uen", "ue": "üe", "ve": "üe", "v": "ü", "van": "üan", "vn": "ün"}
_BUZZING = frozenset(("zh", "ch", "sh", "r", "z", "c", "s"))


def split_syllable(letters: str) -> tuple[str, str]:
    """Spelled pinyin without its tone as (initial, final as spelled): ("zh", "ang"), ("", "er"), ("y", "uan")."""
    if letters in _SYLLABIC:
        return "", letters
    for size in (2, 1):
        if letters[:size] in ("zh", "ch", "sh") or (size == 1 and letters[:1] in "bpmfdtnlgkhjqxrzcsyw"):
            return letters[:size], letters[size:]
    return "", letters


@lru_cache(maxsize=4096)
def to_symbols(initial: str, final: str, tone: int) -> str:
    """A syllable as spelled (`initial` may be "w" or "y", `final` toneless) and its tone, 1-5.

    Any pairing is read, also one that Mandarin doesn't have: a tag means exactly what it says.

    >>> to_symbols("h", "ao", 4), to_symbols("y", "uan", 2), to_symbols("sh", "i", 4), to_symbols("", "er", 2)
    ('xau↘', 'ɥɛ↗n', 'ʂɨ↘', 'ɚ↗')
    """
    arrow = TONES[tone]
    if not initial and final in _SYLLABIC:
        return _SYLLABIC[final].replace("0", arrow)
    if not final:
        return (_SYLLABIC.get(initial) or _INITIALS[initial] + "ə0").replace("0", arrow)
    if initial == "h" and final in ("m", "ng"):
        return _SYLLABIC["h" + final].replace("0", arrow)
    if initial in _BUZZING and final == "i":
        return _INITIALS[initial] + "ɨ" + arrow
    if initial == "y":
        initial, final = "", _after_y(final)
    elif initial == "w":
        initial, final = "", "u" if final == "u" else {"ei": "uei", "en": "uen"}.get(final, "u" + final)
    elif initial in ("j", "q", "x") and final[:1] == "u":
        final = "ü" + final[1:]
    final = _CONTRACTED.get(final, final)
    if final not in _FINALS:
        glide, rest = {"i": "j", "u": "w", "ü": "ɥ"}.get(final[:1], ""), final[1:]
        return _INITIALS[initial] + glide + _FINALS[_CONTRACTED.get(rest, rest)].replace("0", arrow)
    return _INITIALS[initial] + _FINALS[final].replace("0", arrow)


def _after_y(final: str) -> str:
    if final[:1] in ("i", "ü"):
        return final
    if final[:1] == "u":
        return "ü" + final[1:]
    return {"ou": "iou"}.get(final, "i" + final)
