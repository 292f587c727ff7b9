"""English words written alike and said differently: the weights, the readings in sentences, and their training."""

from __future__ import annotations

import csv
import io
import itertools
import random
from pathlib import Path

import numpy as np
import pytest

from cosyvoice_app import assets
from cosyvoice_app.engines.lite.g2p import G2PPaths, LiteG2P
from cosyvoice_app.engines.lite.g2p_symbols import SYMBOLS
from cosyvoice_app.engines.lite.heteronyms import DATA, EDGE, SHARED, Heteronyms, Reading, features, heteronyms, normal
from cosyvoice_app.engines.lite.train import heteronym_data as data
from cosyvoice_app.engines.lite.train import train_heteronyms as trainer
from cosyvoice_app.text.frontend import prepare

SPOKEN = Path(__file__).with_name("data") / "heteronyms.tsv"
"""Sentences as people speak to a voice app, none of them trained on: the first 134 were written before any weights were
made, the rest after the first were seen (`data/heteronyms.md`).
"""
COUNT, MEASURED = 220, 212
"""How many there are, and how many were read rightly. Fewer would be a loss."""


def rows() -> list[dict[str, str]]:
    with SPOKEN.open(encoding="utf-8", newline="") as lines:
        return list(csv.DictReader(lines, delimiter="\t", quoting=csv.QUOTE_NONE))


@pytest.fixture(scope="module")
def g2p() -> LiteG2P:
    return LiteG2P(G2PPaths(*(assets.path(name) for name in ("misaki-us-gold", "misaki-us-silver", "g2p-en"))))


def said(g2p: LiteG2P, text: str) -> list[tuple[str, str]]:
    """Every word with its symbols."""
    out = []
    for segment in prepare(text).segments:
        phonemes = g2p(segment)
        out += [(word, phonemes.symbols[start:end]) for word, start, end in phonemes.words]
    return out


def reading(g2p: LiteG2P, braced: str) -> str:
    """Symbols of the word in braces."""
    before = braced.partition("{")[0]
    at = len(said(g2p, before)) if before.strip() else 0
    return said(g2p, braced.replace("{", "").replace("}", ""))[at][1]


@pytest.mark.weights
def test_spoken_sentences_are_read_as_well_as_measured(g2p: LiteG2P) -> None:
    wrong = [row["sentence"] for row in rows() if reading(g2p, row["sentence"]) != row["symbols"]]
    assert len(rows()) == COUNT
    assert len(rows()) - len(wrong) >= MEASURED, wrong


@pytest.mark.weights
@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("I {read} it yesterday.", "I will {read} it tomorrow."),
        ("He will {lead} the team.", "They put in a {lead} pipe."),
        ("They {live} here.", "It was a {live} show."),
        ("Please {close} the door.", "They stay {close}."),
        ("The {wind} blows.", "I have to {wind} the clock."),
        ("Don't {tear} it.", "A {tear} ran down her cheek."),
        ("We {record} on Mondays.", "It's a world {record}."),
        ("I {object}!", "It's an {object}."),
        ("You can {use} it.", "It's no {use}."),
        ("I {refuse} to go.", "The {refuse} is in the bin."),
        ("You must {bow} to the queen.", "He hunts with a {bow} and arrow."),
        ("We {polish} the shoes.", "I met a {Polish} friend."),
        ("I need a new {résumé}.", "We will {resume} soon."),
        ("They {segment} the market.", "This is the next {segment}."),
    ],
)
def test_a_word_has_both_its_readings(g2p: LiteG2P, one: str, other: str) -> None:
    assert reading(g2p, one).replace("ˌ", "ˈ") != reading(g2p, other).replace("ˌ", "ˈ")


@pytest.mark.weights
@pytest.mark.parametrize(
    ("braced", "symbols"),
    [
        ("They {lived} here.", "lˈɪvd"),
        ("He {bowed} to her.", "bˈWd"),
        ("They {mated} in spring.", "mˈAɾᵻd"),
        ("Ten {minutes} more.", "mˈɪnəts"),
        ("He was {wounded}.", "wˈundᵻd"),
        ("It's {August's} best day.", "ˈɔɡəsts"),
        ("The {record's} owner.", "ɹˈɛkəɹdz"),
        ("We {exported} it.", "ɪkspˈɔɹɾᵻd"),
        ("I like the {Celtics}.", "sˈɛltɪks"),
        ("I have {used} it.", "jˈuzd"),
        ("I {used} to.", "jˈust"),
    ],
)
def test_forms_of_a_heteronym(g2p: LiteG2P, braced: str, symbols: str) -> None:
    assert reading(g2p, braced) == symbols


@pytest.mark.weights
def test_a_tag_decides_whatever_stands_around(g2p: LiteG2P) -> None:
    assert dict(said(g2p, "I [R][IY1][D] it yesterday."))["[R][IY1][D]"] == "ɹˈid"
    assert dict(said(g2p, "A [L][IY1][D] pipe."))["[L][IY1][D]"] == "lˈid"


@pytest.mark.weights
def test_another_sentence_changes_nothing(g2p: LiteG2P) -> None:
    plain = [row["sentence"].replace("{", "").replace("}", "") for row in rows()]
    alone = {text: said(g2p, text) for text in plain}
    random.Random(1).shuffle(plain)
    for one, other in itertools.pairwise(plain):
        assert said(g2p, f"{one} {other}") == alone[one] + alone[other]


@pytest.mark.weights
def test_chinese_around_a_word_is_an_edge(g2p: LiteG2P) -> None:
    assert dict(said(g2p, "请你 read 一下。"))["read"] in ("ɹˈid", "ɹˈɛd")
    assert dict(said(g2p, "我觉得 close the door 很难。"))["close"] == "klˈOz"


def test_the_table_is_sound() -> None:
    table = heteronyms().readings
    assert len(table) >= 162
    for word, readings in table.items():
        assert word == word.lower()
        assert len(readings) >= 2
        assert len({r.symbols for r in readings}) == len({r.name for r in readings}) == len(readings)
        for r in readings:
            assert r.symbols
            assert set(r.symbols) <= SYMBOLS
            assert r.symbols.count("ˈ") == 1
            assert r.role in ("", "N", *SHARED)


def test_every_spoken_row_is_one_of_the_words_readings() -> None:
    table = heteronyms().readings
    for row in rows():
        if row["homograph"] in table:
            assert (row["wordid"], row["symbols"]) in {(r.name, r.symbols) for r in table[row["homograph"]]}
        assert row["sentence"].lower().count("{" + row["homograph"] + "}") == 1


def test_no_test_sentence_was_trained_on() -> None:
    def key(tokens: tuple[str, ...]) -> str:
        return " ".join(t.lower() for t in tokens if t[0].isalpha())

    trained = {key(e.tokens) for e in data.read_ours(data.OURS)}
    for row in rows():
        text = row["sentence"].replace("{", "").replace("}", "")
        assert key(tuple(t for t, _ in data.tokenize(text))) not in trained, text


def test_every_place_in_a_sentence_has_features() -> None:
    tokens = ("“", "In", "1999", "twenty", "three", EDGE, "bass", ",", "Bass", "”", "don’t", "?")
    for sentence in (tokens, tokens[:1], ("READ", "IT", "NOW"), ("x",)):
        for at in range(len(sentence)):
            assert "bias" in features(sentence, at)
    assert features(("READ", "IT", "NOW"), 0) == features(("read", "it", "now"), 0)
    assert [normal(t) for t in ("Twenty", "1999", "Don’t", "“")] == ["#", "#", "don't", '"']


def test_a_word_is_looked_at_once_however_long_its_sentence() -> None:
    """What it costs: `bench reading`."""
    short = ("if", "you", "want", "to", "read", "the", "book")
    many = tuple("".join(letters) for letters in itertools.product("bdfgklmn", repeat=3))  # 512 different ones
    seen = len(features((*many, *short, *many), len(many) + 4))
    assert seen == len(features((*many[-50:], *short, *many[:50]), 54)) < 100
    assert DATA.stat().st_size < 600_000


def made_up(tmp_path: Path) -> Path:
    """A folder in the data's form, with one homograph."""
    texts = [
        ("row_2", "They had a terrible row again.", "row"),
        ("row_1", "Our names stood in the same row.", "row"),
        ("row_2", "The “big” row between them was loud.", "row"),
        ("row_1", "A row of old trees stood there.", "row"),
    ]
    for part in ("train", "eval"):
        (tmp_path / part).mkdir()
        lines = ["homograph\twordid\tsentence\tstart\tend"]
        for name, text, word in texts:
            start = len(text[: text.index(f" {word}") + 1].encode())
            lines.append(f'"row"\t"{name}"\t"{text}"\t{start}\t{start + len(word)}')
        (tmp_path / part / "row.tsv").write_text("\n".join(lines) + "\n", encoding="utf-8")
    return tmp_path


def test_training_learns_made_up_rows_and_repeats_itself(tmp_path: Path) -> None:
    examples = list(data.read_rows(made_up(tmp_path) / "train"))
    assert [e.tokens[e.at] for e in examples] == ["row"] * 4
    table = {"row": (Reading("row_1", "", "ɹˈO"), Reading("row_2", "", "ɹˈW"))}
    options = trainer.Options(least_own=1)
    packed = trainer.train(examples, table, options)
    assert packed == trainer.train(examples, table, options)
    micro, macro, _ = trainer.score(Heteronyms(io.BytesIO(packed)), examples)
    assert micro == macro == 1.0
    with pytest.raises(ValueError, match='"row" is not at 0'):
        data.example("row", "row_1", "Another word.", 0)


def test_the_gradient_is_that_of_the_loss(tmp_path: Path) -> None:
    examples = list(data.read_rows(made_up(tmp_path) / "train"))
    table = {"row": (Reading("row_1", "N", "ɹˈO"), Reading("row_2", "V", "ɹˈW"))}
    problem = trainer.Problem(examples, table, trainer.Options(least_own=1, least_shared=1))
    generator = np.random.default_rng(1)
    theta = generator.normal(size=len(problem.gain))
    _, slope = problem.loss(theta)
    for i in generator.integers(0, len(theta), 10):
        step = np.zeros(len(theta))
        step[i] = 1e-5
        measured = (problem.loss(theta + step)[0] - problem.loss(theta - step)[0]) / 2e-5
        assert measured == pytest.approx(slope[i], abs=1e-5)


@pytest.mark.weights
def test_our_sentences_name_readings_that_exist() -> None:
    table = heteronyms().readings
    ours = list(data.read_ours(data.OURS))
    assert len([e for e in ours if e.word not in data.STAND_INS]) >= 150
    for e in ours:
        assert e.name in {r.name for r in (table | data.STAND_INS)[e.word]}, e


def test_stand_ins_are_where_spelling_tells() -> None:
    found = data.stand_ins([data.Example("row", "row_1", ("She", "wrote", "to", "me", "and", "teaches", "."), 0)])
    assert [(e.word, e.name, e.at) for e in found] == [("@tense", "past", 1), ("@pos", "base", 5)]
