"""The symbols Kokoro's text encoder knows, and how marks and ARPAbet are written in them."""

from __future__ import annotations

SYMBOLS = frozenset(
    ';:,.!?—…"()“” \u0303ʣʥʦʨᵝ\uab67AIOQSTWYᵊabcdefhijklmnopqrstuvwxyz'
    "ɑɐɒæβɔɕçɖðʤəɚɛɜɟɡɥɨɪʝɯɰŋɳɲɴøɸθœɹɾɻʁɽʂʃʈʧʊʋʌɣɤχʎʒʔˈˌːʰʲ↓→↗↘ᵻ"
)
"""The 114 keys of the model's vocabulary. Nothing else may be emitted."""

MAX_SYMBOLS = 510
"""The text encoder has 512 positions; two are the ends."""

MARKS = {
    "，": ",", "、": ",", "。": ".", "．": ".", "！": "!", "？": "?", "：": ":", "；": ";", "…": "…", "—": "—",
    "–": "—",
    ",": ",", ".": ".", "!": "!", "?": "?", ":": ":", ";": ";", "(": "(", ")": ")", "（": "(", "）": ")", "〔": "(",
    "〕": ")",
    "“": "“", "”": "”", "「": "“", "」": "”", "『": "“", "』": "”", "《": "“", "》": "”", "〈": "“", "〉": "”",
    "【": "“", "】": "”", "«": "“", "»": "”", "‘": "“", "’": "”",
}
"""Marks as the model's. A straight double quote depends on which side it stands; others (`·`, `～`, `-`) are silent."""

OPENING_MARKS = frozenset("(“")

_VOWELS = {
    "AA": "ɑ", "AE": "æ", "AH": "ʌ", "AO": "ɔ", "AW": "W", "AY": "I", "EH": "ɛ", "ER": "ɜɹ", "EY": "A", "IH": "ɪ",
    "IY": "i",
    "OW": "O", "OY": "Y", "UH": "ʊ", "UW": "u",
}
_REDUCED = {"AH": "ə", "ER": "əɹ"}
_CONSONANTS = {
    "B": "b", "CH": "ʧ", "D": "d", "DH": "ð", "F": "f", "G": "ɡ", "HH": "h", "JH": "ʤ", "K": "k", "L": "l", "M": "m",
    "N": "n",
    "NG": "ŋ", "P": "p", "R": "ɹ", "S": "s", "SH": "ʃ", "T": "t", "TH": "θ", "V": "v", "W": "w", "Y": "j", "Z": "z",
    "ZH": "ʒ",
}


def from_arpabet(symbols: tuple[str, ...]) -> str:
    """ARPAbet as Kokoro's symbols, a stress mark before its vowel.

    When no vowel has a stress digit the first is stressed; a word with digits is stressed exactly as they say.

    >>> from_arpabet(("M", "AY0", "N", "UW1", "T")), from_arpabet(("L", "EH", "D"))
    ('mInˈut', 'lˈɛd')
    """
    stated = any(s[-1].isdigit() for s in symbols)
    out, stressed = [], False
    for symbol in symbols:
        if symbol in _CONSONANTS:
            out.append(_CONSONANTS[symbol])
            continue
        vowel, digit = (symbol[:-1], symbol[-1]) if symbol[-1].isdigit() else (symbol, "")
        if not digit:
            digit = "0" if stated or stressed else "1"
            stressed = True
        if digit == "0":
            out.append(_REDUCED.get(vowel, _VOWELS[vowel]))
        else:
            out.append(("ˈ" if digit == "1" else "ˌ") + _VOWELS[vowel])
    return "".join(out)
