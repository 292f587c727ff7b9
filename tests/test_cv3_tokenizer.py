"""Text ids: the fixed inventory, what is special and what never is, and vocabularies that are not the official one's.

The vocabulary here is a toy: the 256 bytes and a handful of merges. tests/parity/tokenizer.py compares the published
one with the official tokenizer.
"""

from __future__ import annotations

import json
import unicodedata
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import pre_tokenizers

from cosyvoice_app.engines.cosyvoice3.text_tokens import ADDED, BASE_MARKS, BASE_TOKENS
from cosyvoice_app.engines.cosyvoice3.tokenizer import TextTokenizer
from cosyvoice_app.errors import AssetError, TextError
from cosyvoice_app.text import tags
from cosyvoice_app.types import Arpabet, Event, Pause, Piece, Pinyin, Text

MERGES = (("h", "e"), ("l", "l"), ("he", "ll"), ("hell", "o"), ("Ġ", "w"), ("<", "|"), ("|", ">"), ("æĺ", "¯"),
          ("æ", "ĺ"))
TOKENS = [*sorted(pre_tokenizers.ByteLevel.alphabet()), *dict.fromkeys(a + b for a, b in MERGES)]
BASE = len(TOKENS)
EVENTS = (*tags.POINT_EVENTS, *tags.SPAN_EVENTS)


def write(folder: Path, *, vocab: object = None, merges: str | None = None) -> Path:
    table = {token: i for i, token in enumerate(TOKENS)} if vocab is None else vocab
    lines = "".join(f"{a} {b}\n" for a, b in MERGES) if merges is None else merges
    (folder / "vocab.json").write_text(json.dumps(table, ensure_ascii=False), encoding="utf-8")
    (folder / "merges.txt").write_text(lines, encoding="utf-8")
    return folder


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> TextTokenizer:
    return TextTokenizer.load(write(tmp_path_factory.mktemp("blank")), base_tokens=BASE)


def plain_ids(tokenizer: TextTokenizer, text: str) -> tuple[int, ...]:
    return tokenizer.encode_pieces((Text(text, "en"),))


def test_the_added_tokens_are_the_official_ones_in_order() -> None:
    ids = {token: BASE_TOKENS + i for i, token in enumerate((*BASE_MARKS, *ADDED))}
    assert len(ADDED) == 278 == len(set(ADDED))
    assert {ids[token] for token in ADDED} == set(range(151_646, 151_924))
    expected = {"<|endoftext|>": 151_643, "<|im_end|>": 151_645, "<|endofprompt|>": 151_646, "[breath]": 151_647,
                "[mn]": 151_662, "<|endofsystem|>": 151_663, "[AA]": 151_664, "[AY0]": 151_685, "[M]": 151_718,
                "[ZH]": 151_747, "[a]": 151_748, "[h]": 151_763, "[j]": 151_797, "[ào]": 151_854, "[ǐ]": 151_913,
                "[ǜ]": 151_923}
    assert {token: ids[token] for token in expected} == expected
    assert all(unicodedata.is_normalized("NFC", token) for token in ADDED)


def test_no_special_token_is_the_start_of_another() -> None:
    every = (*BASE_MARKS, *ADDED)
    assert not [(a, b) for a in every for b in every if a != b and b.startswith(a)]


def test_every_tag_of_the_front_end_has_a_token(tokenizer: TextTokenizer) -> None:
    from cosyvoice_app.text import arpabet, pinyin

    pieces: list[Piece] = [Arpabet((symbol,)) for symbol in arpabet.SYMBOLS]
    pieces += [Pinyin(initial, "a") for initial in pinyin.INITIALS] + [Pinyin("", final) for final in pinyin.FINALS]
    pieces += [Event(name) for name in EVENTS]
    ids = tokenizer.encode_pieces(pieces)
    assert set(ids) == set(range(BASE + 4, BASE + 3 + 278)) - {BASE + 3 + 17}, "all but the two marks of prompts"


def test_tags_become_their_tokens_and_pauses_nothing(tokenizer: TextTokenizer) -> None:
    pieces = (Text("hello", "en"), Pinyin("j", "ǐ"), Pause(500), Arpabet(("M", "AY0")), Event("breath"),
              Event("<strong>"), Text(" w", "en"))
    written = "hello[j][ǐ][M][AY0][breath]<strong> w"
    assert tokenizer.encode_pieces(pieces) == tokenizer.encode(written)
    assert len(tokenizer.encode_pieces(pieces)) == 8
    assert tokenizer.decode(tokenizer.encode(written)) == written


@given(st.lists(st.one_of(
    st.builds(Text, st.text(alphabet=st.characters(exclude_characters="<[", exclude_categories=["Cs"]), max_size=12),
              st.just("en")),
    st.sampled_from([Pinyin("h", "ào"), Pinyin("", "ér"), Arpabet(("M", "AY0")), Event("breath"), Event("<laughter>")]),
), max_size=8))
def test_pieces_are_the_written_segment(tokenizer: TextTokenizer, pieces: list[Piece]) -> None:
    """Added tokens split a text before it is normalised or cut, so encoding in pieces changes nothing."""
    assert tokenizer.encode_pieces(pieces) == tokenizer.encode("".join(map(tags.write, pieces)))


@given(st.lists(st.text(alphabet="he lo w<|>0é\u0301\n'", max_size=6), max_size=6))
def test_words_cut_between_pieces_are_one_text(tokenizer: TextTokenizer, words: list[str]) -> None:
    assert tokenizer.encode_pieces([Text(word, "en") for word in words]) == plain_ids(tokenizer, "".join(words))


def test_typed_special_tokens_stay_text(tokenizer: TextTokenizer) -> None:
    for i, token in enumerate((*BASE_MARKS, *ADDED)):
        halves = (Text(token[:3], "en"), Text(token[3:], "en"))
        for pieces in ((Text(token, "en"),), (Text(f"x{token}y", "en"),), halves):
            assert max(tokenizer.encode_pieces(pieces)) < BASE, token
        assert tokenizer.encode(token) == (BASE + i,)


@given(st.text(alphabet=st.characters(exclude_categories=["Cs"]), max_size=30))
def test_any_text_has_ids_and_comes_back(tokenizer: TextTokenizer, text: str) -> None:
    ids = plain_ids(tokenizer, text)
    assert all(0 <= i < BASE for i in ids)
    assert tokenizer.decode(ids) == unicodedata.normalize("NFC", text)


def test_the_merges_are_applied_and_the_text_cut_first(tokenizer: TextTokenizer) -> None:
    assert plain_ids(tokenizer, "hello") == (TOKENS.index("hello"),)
    assert plain_ids(tokenizer, "he11o") == tuple(TOKENS.index(t) for t in ("he", "1", "1", "o"))
    assert plain_ids(tokenizer, " w w")[0] == TOKENS.index("Ġw")
    assert plain_ids(tokenizer, "") == ()


def test_both_spellings_of_an_accent_are_one(tokenizer: TextTokenizer) -> None:
    assert plain_ids(tokenizer, "e\u0301") == plain_ids(tokenizer, "\u00e9")


@pytest.mark.parametrize("piece", [Pinyin("l", "ǖ"), Pinyin("hh", "ào"), Arpabet(("QQ",)), Event("cheer"),
                                   Event("<|endoftext|>")])
def test_a_tag_without_a_token_is_refused(tokenizer: TextTokenizer, piece: Piece) -> None:
    with pytest.raises(TextError, match="no token"):
        tokenizer.encode_pieces((piece,))


def test_a_first_line_with_the_version_is_no_merge(tmp_path: Path, tokenizer: TextTokenizer) -> None:
    lines = "#version: 0.2\n" + "".join(f"{a} {b}\r\n" for a, b in MERGES)
    other = TextTokenizer.load(write(tmp_path, merges=lines), base_tokens=BASE)
    assert other.encode("hello world是") == tokenizer.encode("hello world是")


@pytest.mark.parametrize(("vocab", "merges", "says"), [
    ({"a": 0}, None, "has 1 tokens, expected"),
    ({token: i + 1 for i, token in enumerate(TOKENS)}, None, "another model's vocabulary"),
    ({token: str(i) for i, token in enumerate(TOKENS)}, None, "no vocabulary"),
    ([1, 2], None, "no vocabulary"),
    ({("[breath]" if token == "hello" else token): i for i, token in enumerate(TOKENS)}, "h e\n", "itself"),
    ({("xyz" if token == "h" else token): i for i, token in enumerate(TOKENS)}, "l l\n", "lacks 1 of the 256"),
    (None, "h e\nq q\n", "'q q' joins tokens"),
    (None, "hello\n", "'hello' joins tokens"),
    (None, "", "no merges"),
    (None, "version https://git-lfs.github.com/spec/v1\n", "joins tokens"),
])
def test_a_wrong_vocabulary_is_named(tmp_path: Path, vocab: object, merges: str | None, says: str) -> None:
    with pytest.raises(AssetError, match=says):
        TextTokenizer.load(write(tmp_path, vocab=vocab, merges=merges), base_tokens=BASE)


def test_missing_and_broken_files_are_named(tmp_path: Path) -> None:
    with pytest.raises(AssetError, match=r"vocab.json is missing.*assets fetch cosyvoice3"):
        TextTokenizer.load(tmp_path)
    write(tmp_path)
    with pytest.raises(AssetError, match=f"has {BASE} tokens, expected 151643"):
        TextTokenizer.load(tmp_path)
    (tmp_path / "merges.txt").unlink()
    with pytest.raises(AssetError, match="merges.txt is missing"):
        TextTokenizer.load(tmp_path, base_tokens=BASE)
    (tmp_path / "vocab.json").write_bytes(b"\xff\xfe")
    with pytest.raises(AssetError, match="can't be read"):
        TextTokenizer.load(tmp_path, base_tokens=BASE)
