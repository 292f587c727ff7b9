"""Where a text may be cut: sentences first, then clauses, then words. Never inside a tag or a word, and nothing is
lost.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from cosyvoice_app.text.chars import has_speech, is_han
from cosyvoice_app.text.tags import MAX_PAUSE_MS
from cosyvoice_app.types import Arpabet, Pause, Piece, Pinyin, Text


@dataclass(frozen=True, slots=True)
class SplitLimits:
    """Sizes in units: about one phoneme each (`units`). A stretch is cut only above `most`; one below `least` joins
    the next.

    Speech models lose quality on passes of a word or two and on very long ones.
    """

    most: int = 150
    least: int = 30

    def __post_init__(self) -> None:
        if not 0 <= self.least <= self.most or self.most < 20:
            raise ValueError(
                f"SplitLimits(most={self.most}, least={self.least}): need 20 <= most and 0 <= least <= most"
            )


@dataclass(frozen=True, slots=True)
class Stretch:
    """Pieces spoken in one go, and the pause after them."""

    pieces: tuple[Piece, ...]
    pause_after_ms: int


PAUSE_CLAUSE_MS, PAUSE_SENTENCE_MS, PAUSE_LINE_MS, PAUSE_PARAGRAPH_MS = 80, 200, 350, 600

HAN_UNITS, CAPITAL_UNITS = 5, 4

_CLOSERS = "”’」』》】）)\"'"
_SENTENCE_END = re.compile(
    rf"(?:[。！？!?；;]|…+|\.{{2,}}|\.(?=[\s{_CLOSERS}]|$|[\u4e00-\u9fff]))+[{_CLOSERS}]*\s*|\n+"
)
_CLAUSE_END = re.compile(rf"(?:[，,、：:—–～]|(?<=\s)-(?=\s))+[{_CLOSERS}]*\s*")
_INITIAL = re.compile(r"(?:\b[A-Za-z]|\b(?:Mr|Mrs|Ms|Dr|St|Prof|Jr|Sr|vs|No|U\.S|a\.m|p\.m))$")


def units(piece: Piece) -> int:
    """About how many phoneme symbols a piece takes; never much below the truth."""
    if isinstance(piece, Text):
        return text_units(piece.text)
    if isinstance(piece, Pinyin):
        return HAN_UNITS + 1
    if isinstance(piece, Arpabet):
        return len(piece.symbols) + 2
    return 0


def text_units(text: str) -> int:
    return sum(HAN_UNITS if is_han(c) else CAPITAL_UNITS if c.isupper() else 1 for c in text)


def split(pieces: tuple[Piece, ...], limits: SplitLimits) -> list[Stretch]:
    """Cut `pieces` into stretches of at most `limits.most` units, whole sentences where they fit. Pauses and line
    breaks end one.
    """
    out: list[Stretch] = []
    for block, pause_ms in _blocks(pieces):
        fitting = [part for sentence in sentences(block) for part in _fit(sentence, limits)]
        packed = _pack(fitting, limits)
        for i, stretch in enumerate(packed):
            last = i == len(packed) - 1
            out.append(Stretch(_trim(stretch), pause_ms if last else _pause_after(stretch)))
    return out


def _trim(pieces: list[Piece]) -> tuple[Piece, ...]:
    """No space at either end."""
    texts = [p.text if isinstance(p, Text) else None for p in pieces]
    for order, strip in ((range(len(pieces)), str.lstrip), (range(len(pieces) - 1, -1, -1), str.rstrip)):
        for i in order:
            text = texts[i]
            if text is None:
                break
            texts[i] = strip(text)
            if texts[i]:
                break
    return tuple(
        Text(t, p.language) if isinstance(p, Text) and t is not None else p
        for p, t in zip(pieces, texts, strict=True)
        if t != ""
    )


def _blocks(pieces: tuple[Piece, ...]) -> list[tuple[list[Piece], int]]:
    """Pieces between line breaks and asked-for pauses, each with the pause after it."""
    blocks: list[tuple[list[Piece], int]] = []
    current: list[Piece] = []

    def close(ms: int) -> None:
        nonlocal current
        if _has_content(current):
            blocks.append((current, ms))
            current = []
        elif blocks:
            blocks[-1] = (blocks[-1][0], max(blocks[-1][1], ms))

    asked_ms = 0
    for piece in pieces:
        if isinstance(piece, Pause):
            if _has_content(current) or not blocks:
                close(piece.ms)
                asked_ms = piece.ms
            else:
                asked_ms = min(asked_ms + piece.ms, MAX_PAUSE_MS)
                blocks[-1] = (blocks[-1][0], asked_ms)
            continue
        if not isinstance(piece, Text):
            current.append(piece)
            asked_ms = 0
            continue
        for text in re.split(r"(\n+)", piece.text):
            if text.startswith("\n"):
                close(PAUSE_LINE_MS if len(text) == 1 else PAUSE_PARAGRAPH_MS)
            elif text:
                current.append(Text(text, piece.language))
                asked_ms = asked_ms if text.isspace() else 0
    if _has_content(current):
        blocks.append((current, 0))
    elif current and blocks:
        blocks[-1] = (blocks[-1][0] + current, blocks[-1][1])
    return blocks


def _has_content(pieces: list[Piece]) -> bool:
    """Anything to say? An event alone has no words to lean on, so it stays with its neighbours."""
    return any(has_speech(p.text) if isinstance(p, Text) else isinstance(p, Pinyin | Arpabet) for p in pieces)


def sentences(pieces: list[Piece]) -> list[list[Piece]]:
    """`pieces` cut after every sentence, nothing lost."""
    return _cut(pieces, _SENTENCE_END)


def _cut(pieces: list[Piece], end: re.Pattern[str]) -> list[list[Piece]]:
    """Cut after every match of `end` in the text of `pieces`."""
    out: list[list[Piece]] = [[]]
    for i, piece in enumerate(pieces):
        if not isinstance(piece, Text):
            out[-1].append(piece)
            continue
        done = 0
        for match in end.finditer(piece.text):
            if (
                match[0].startswith(".")
                and _INITIAL.search(piece.text[max(0, match.start() - 12) : match.start()])
                and match.end() < len(piece.text)
            ):
                continue
            if (
                match[0].rstrip() == "."
                and match.end() == len(piece.text)
                and i + 1 < len(pieces)
                and not match[0][-1].isspace()
            ):
                following = pieces[i + 1]
                if isinstance(following, Text) and following.language == "en":
                    continue
            out[-1].append(Text(piece.text[done : match.end()], piece.language))
            out.append([])
            done = match.end()
        if piece.text[done:]:
            out[-1].append(Text(piece.text[done:], piece.language))
    return _join_unspoken(out)


def _join_unspoken(parts: list[list[Piece]]) -> list[list[Piece]]:
    """A part without a word (a stray mark) stays with its neighbour."""
    out: list[list[Piece]] = []
    lead: list[Piece] = []
    for part in parts:
        if _has_content(part):
            out.append(lead + part)
            lead = []
        elif out:
            out[-1].extend(part)
        else:
            lead = lead + part
    return out or [lead]


def _size(pieces: list[Piece]) -> int:
    return sum(units(p) for p in pieces)


def _fit(sentence: list[Piece], limits: SplitLimits) -> list[list[Piece]]:
    """One sentence as parts of at most `most` units: cut at clause marks, else between words."""
    if _size(sentence) <= limits.most:
        return [sentence]
    parts = [atom for clause in _cut(sentence, _CLAUSE_END) for atom in _words_fit(clause, limits)]
    return _balance(parts, limits)


def _words_fit(clause: list[Piece], limits: SplitLimits) -> list[list[Piece]]:
    if _size(clause) <= limits.most:
        return [clause]
    atoms: list[Piece] = []
    for piece in clause:
        if isinstance(piece, Text):
            atoms.extend(Text(atom, piece.language) for atom in _atoms(piece.text, limits.most))
        else:
            atoms.append(piece)
    count = -(-_size(clause) // limits.most)
    target = -(-_size(clause) // count)
    out: list[list[Piece]] = [[]]
    for atom in atoms:
        if out[-1] and (_size(out[-1]) >= target or _size(out[-1]) + units(atom) > limits.most):
            out.append([])
        out[-1].append(atom)
    return [_merge(part) for part in out]


def _atoms(text: str, most: int) -> list[str]:
    """Words with the space or mark after them; a word longer than `most` units is cut, for it can't be spoken in one
    go.
    """
    out = []
    for word in re.findall(
        r"[\u3400-\u9fff\U00020000-\U000323af][^\w\s]*\s*|[^\s\u3400-\u9fff\U00020000-\U000323af]+\s*|\s+", text
    ):
        step = max(1, most // CAPITAL_UNITS)
        out.extend([word] if text_units(word) <= most else [word[i : i + step] for i in range(0, len(word), step)])
    return out


def _merge(pieces: list[Piece]) -> list[Piece]:
    """Neighbouring texts of one language as one."""
    out: list[Piece] = []
    for piece in pieces:
        last = out[-1] if out else None
        if isinstance(piece, Text) and isinstance(last, Text) and last.language == piece.language:
            out[-1] = Text(last.text + piece.text, piece.language)
        else:
            out.append(piece)
    return out


def _balance(parts: list[list[Piece]], limits: SplitLimits) -> list[list[Piece]]:
    """Join neighbouring clauses into stretches of about equal size, none above `most`."""
    total = sum(_size(p) for p in parts)
    target = total / -(-total // limits.most)
    out: list[list[Piece]] = [[]]
    for part in parts:
        grown = _size(out[-1]) + _size(part)
        if out[-1] and (grown > limits.most or _size(out[-1]) >= target):
            out.append([])
        out[-1] = _merge(out[-1] + part)
    return out


def _pack(sentences: list[list[Piece]], limits: SplitLimits) -> list[list[Piece]]:
    """Join what is too short to be spoken well alone with what follows, or at the end with what precedes."""
    out: list[list[Piece]] = []
    for sentence in sentences:
        if (
            out
            and _size(out[-1]) + _size(sentence) <= limits.most
            and min(_size(out[-1]), _size(sentence)) < limits.least
        ):
            out[-1] = _merge(out[-1] + sentence)
        else:
            out.append(_merge(sentence))
    return out


def _pause_after(pieces: list[Piece]) -> int:
    text = next((p.text for p in reversed(pieces) if isinstance(p, Text)), "").rstrip().rstrip(_CLOSERS)
    return PAUSE_SENTENCE_MS if text[-1:] in tuple("。！？!?.…；;") else PAUSE_CLAUSE_MS
