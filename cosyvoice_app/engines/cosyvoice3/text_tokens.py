"""The tokens that the official model adds to its text vocabulary, in their fixed order: 278, from id 151 646 on.

After the marks and events come the pronunciations: ARPAbet symbols, then pinyin parts, each sorted by code point. They
are the inventory of the tags (`text/arpabet.py`, `text/pinyin.py`), so whatever the front end lets through has an id.
"""

from __future__ import annotations

from cosyvoice_app.text import arpabet, pinyin

BASE_TOKENS = 151_643
"""Byte-pair tokens of Qwen2. Its own three marks follow."""
BASE_MARKS = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
END_OF_PROMPT = "<|endofprompt|>"

_EVENTS = (
    "[breath]", "<strong>", "</strong>", "[noise]", "[laughter]", "[cough]", "[clucking]", "[accent]",
    "[quick_breath]", "<laughter>", "</laughter>", "[hissing]", "[sigh]", "[vocalized-noise]", "[lipsmack]", "[mn]",
)

ADDED: tuple[str, ...] = (
    END_OF_PROMPT,
    *_EVENTS,
    "<|endofsystem|>",
    *(f"[{symbol}]" for symbol in sorted(arpabet.SYMBOLS)),
    *(f"[{part}]" for part in sorted((*pinyin.INITIALS, *pinyin.FINALS))),
)
"""The i-th has the id of the base vocabulary's size + i."""
