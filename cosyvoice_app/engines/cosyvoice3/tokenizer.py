"""Text to the ids that the language model reads: Qwen2's byte-pair tokens and the official model's added ones.

Two ways in. `encode` is for text of the app's own: special tokens written in it become their ids, as in the official
tokenizer. `encode_pieces` is for what users typed: words are only ever words, whatever they spell, and tags are ids.
The official `merges.txt` is not Qwen2's: merges that would join two or more Han characters (or a space and one) were
taken out, so each Han character is a token of its own.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from itertools import groupby
from pathlib import Path

from tokenizers import Regex, Tokenizer, decoders, normalizers, pre_tokenizers
from tokenizers.models import BPE

from cosyvoice_app.assets.official import FETCH
from cosyvoice_app.engines.cosyvoice3.text_tokens import ADDED, BASE_MARKS, BASE_TOKENS, END_OF_PROMPT
from cosyvoice_app.errors import AssetError, TextError
from cosyvoice_app.text import tags
from cosyvoice_app.types import Arpabet, Event, Pause, Piece, Pinyin, Text

# How Qwen2 cuts text before byte pairs are joined: contractions, words with one sign before, single digits, signs,
# line breaks, spaces. The pattern is part of the vocabulary's definition.
_CUT = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+"
        r"|\s+(?!\S)|\s+")
_REMEDY = f"Fetch the official files again with `{FETCH}`."


class TextTokenizer:
    """Built by `load`. Reading only, safe to share between threads."""

    def __init__(self, byte_pairs: Tokenizer, first_mark: int) -> None:
        """`first_mark` is the id after the last of `byte_pairs`; marks and added tokens follow in order."""
        self._byte_pairs = byte_pairs
        self._ids = {token: first_mark + i for i, token in enumerate((*BASE_MARKS, *ADDED))}
        self._names = {i: token for token, i in self._ids.items()}
        # None is the start of another, so their order doesn't matter.
        self._special = re.compile("(" + "|".join(map(re.escape, self._ids)) + ")")
        self.end_of_prompt = self._ids[END_OF_PROMPT]
        self.size = first_mark + len(self._ids)

    @classmethod
    def load(cls, folder: Path, *, base_tokens: int = BASE_TOKENS) -> TextTokenizer:
        """Read `vocab.json` and `merges.txt` of the directory CosyVoice-BlankEN.

        Raises AssetError when they are missing, damaged or of another model: exactly `base_tokens` byte-pair tokens are
        wanted, with ids from 0 on.
        """
        vocab = _read_vocab(folder / "vocab.json", base_tokens)
        return cls(_byte_pairs(vocab, _read_merges(folder / "merges.txt", vocab)), base_tokens)

    def encode(self, text: str) -> tuple[int, ...]:
        """Ids of text the app itself wrote: `<|endofprompt|>`, `[breath]`, `[h][ào]` and so on in it are special.

        Exactly the official tokenizer's ids. Never for what a user typed. Pronunciation tags must be in NFC.
        """
        ids: list[int] = []
        for i, part in enumerate(self._special.split(text)):  # the odd ones are what matched
            ids += [self._ids[part]] if i % 2 else self._words([part])
        return tuple(ids)

    def encode_pieces(self, pieces: Sequence[Piece]) -> tuple[int, ...]:
        """Ids of a segment. Words are byte pairs only: no special token can be typed. A pause gives none.

        Equal to `encode` of the written segment, as added tokens split a text before anything else is done to it; save
        that words may spell a special token here and stay words. Raises TextError for a tag without a token.
        """
        ids: list[int] = []
        words: list[str] = []
        for piece in pieces:
            if isinstance(piece, Text):
                words.append(piece.text)  # neighbours are one text: a cut of ours must not change how it is read
                continue
            if isinstance(piece, Pause):
                continue
            ids += self._words(words)
            words = []
            ids += [self._tag(part, piece) for part in _parts(piece)]
        return (*ids, *self._words(words))

    def decode(self, ids: Sequence[int]) -> str:
        """The text, special tokens spelled out; for logs and tests."""
        parts: list[str] = []
        for special, run in groupby(ids, key=lambda i: i in self._names):
            group = list(run)
            parts.append("".join(self._names[i] for i in group) if special else self._byte_pairs.decode(group))
        return "".join(parts)

    def _words(self, words: list[str]) -> list[int]:
        return list(self._byte_pairs.encode("".join(words), add_special_tokens=False).ids)

    def _tag(self, part: str, piece: Piece) -> int:
        found = self._ids.get(part)
        if found is None or part in BASE_MARKS:
            raise TextError(f"{tags.write(piece)!r} can't be spoken: the model has no token {part!r}. docs/text.md "
                            "lists the tags that there are.", param="text")
        return found


def _parts(piece: Pinyin | Arpabet | Event) -> list[str]:
    """The bracketed units of a tag."""
    if isinstance(piece, Pinyin):
        return [f"[{part}]" for part in (piece.initial, piece.final) if part]
    if isinstance(piece, Arpabet):
        return [f"[{symbol}]" for symbol in piece.symbols]
    return [tags.write(piece)]


def _byte_pairs(vocab: dict[str, int], merges: list[tuple[str, str]]) -> Tokenizer:
    tokenizer = Tokenizer(BPE(vocab=vocab, merges=merges))
    tokenizer.normalizer = normalizers.NFC()
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([
        pre_tokenizers.Split(Regex(_CUT), behavior="isolated"),
        pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
    ])
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer


def _read_vocab(file: Path, base_tokens: int) -> dict[str, int]:
    try:
        vocab = json.loads(file.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise AssetError(f"{file} is missing. {_REMEDY}") from None
    except (OSError, ValueError) as error:
        raise AssetError(f"{file} can't be read as JSON ({error}). {_REMEDY}") from error
    if not isinstance(vocab, dict) or not all(type(i) is int for i in vocab.values()):
        raise AssetError(f"{file} is no vocabulary: expected a table from tokens to ids. {_REMEDY}")
    if sorted(vocab.values()) != list(range(base_tokens)):
        raise AssetError(f"{file} has {len(vocab)} tokens, expected {base_tokens} with the ids 0 to {base_tokens - 1}: "
                         f"it is another model's vocabulary. {_REMEDY}")
    if wrong := [token for token in (*BASE_MARKS, *ADDED) if token in vocab]:
        raise AssetError(f"{file} holds {wrong[0]!r} itself, which should get its id after the byte pairs: it is "
                         f"another model's vocabulary. {_REMEDY}")
    absent = [byte for byte in pre_tokenizers.ByteLevel.alphabet() if byte not in vocab]
    if absent:
        raise AssetError(f"{file} lacks {len(absent)} of the 256 byte tokens, so some text would be lost. {_REMEDY}")
    return vocab


def _read_merges(file: Path, vocab: dict[str, int]) -> list[tuple[str, str]]:
    """One merge a line, first the earliest. A first line `#version: ...` is no merge; the official file has none."""
    try:
        lines = file.read_text(encoding="utf-8").split("\n")
    except FileNotFoundError:
        raise AssetError(f"{file} is missing. {_REMEDY}") from None
    except (OSError, ValueError) as error:
        raise AssetError(f"{file} can't be read as text ({error}). {_REMEDY}") from error
    if lines[0].startswith("#version"):
        del lines[0]
    merges = []
    for line in lines:
        if not (line := line.rstrip("\r")):
            continue
        left, _, right = line.partition(" ")
        if left not in vocab or right not in vocab or left + right not in vocab:
            raise AssetError(f"{file}: {line!r} joins tokens that the vocabulary lacks: the two files are not of one "
                             f"model. {_REMEDY}")
        merges.append((left, right))
    if not merges:
        raise AssetError(f"{file} holds no merges. {_REMEDY}")
    return merges
