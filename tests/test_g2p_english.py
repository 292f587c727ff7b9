"""English readings from the real lexicons, and sentences in two languages."""

from __future__ import annotations

import json
import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cosyvoice_app import assets, bench
from cosyvoice_app.engines.lite.g2p import G2PPaths, LiteG2P
from cosyvoice_app.engines.lite.g2p_symbols import MAX_SYMBOLS, SYMBOLS, from_arpabet
from cosyvoice_app.errors import TextError
from cosyvoice_app.text import arpabet
from cosyvoice_app.text.frontend import prepare

pytestmark = pytest.mark.weights


@pytest.fixture(scope="module")
def g2p() -> LiteG2P:
    return LiteG2P(G2PPaths(*(assets.path(name) for name in ("misaki-us-gold", "misaki-us-silver", "g2p-en"))))


def said(g2p: LiteG2P, text: str) -> str:
    return " ".join(g2p(segment).symbols for segment in prepare(text).segments)


@pytest.mark.parametrize(
    ("text", "symbols"),
    [
        ("The quick brown fox jumps over the lazy dog.", "ðə kwˈɪk bɹˈWn fˈɑks ʤˈʌmps ˈOvəɹ ðə lˈAzi dˈɔɡ."),
        ("the end", "ði ˈɛnd"),
        ("the dog", "ðə dˈɔɡ"),
        ("an apple", "ɐn ˈæpᵊl"),
        ("to eat", "tʊ ˈit"),
        ("to go", "tə ɡˌO"),
        ("I used to.", "ˌI jˈust tu."),
        ("a dog", "ɐ dˈɔɡ"),
        ("an A", "ɐn ˈA"),
        ("FBI and GPT", "ˌɛfbˌiˈI ænd ʤˌipˌitˈi"),
        ("NASA", "nˈæsə"),
        ("wanted, needed, walked, hugged", "wˈɑntᵻd, nˈidᵻd, wˈɔkt, hˈʌɡd"),
        ("cats dogs boxes", "kˈæts dˈɔɡz bˈɑksᵻz"),
        ("cities", "sˈɪɾiz"),
        ("twenty-seven", "twˈɛnti sˈɛvən"),
        ("it's", "ɪts"),
        ("the students' books", "ðə stˈudᵊnts bˈʊks"),
        ("café", "kæfˈA"),
    ],
)
def test_words(g2p: LiteG2P, text: str, symbols: str) -> None:
    assert said(g2p, text) == symbols


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("[L][EH1][D]", "[L][IY1][D]"),
        ("[B][EY1][S]", "[B][AE1][S]"),
        ("[D][EH1][Z][ER0][T]", "[D][IH0][Z][ER1][T]"),
        ("[W][IH1][N][D]", "[W][AY1][N][D]"),
        ("[D][AH1][V]", "[D][OW1][V]"),
    ],
)
def test_arpabet_tags_are_read_exactly(g2p: LiteG2P, one: str, other: str) -> None:
    for tag in (one, other):
        phonemes = g2p(prepare(f"The word is {tag}.").segments[0])
        surface, start, end = phonemes.words[-1]
        assert surface == tag
        assert phonemes.symbols[start:end] == from_arpabet(tuple(re.findall(r"\w+", tag)))
    assert said(g2p, f"The word is {one}.") != said(g2p, f"The word is {other}.")


def test_the_weak_form_before_a_tag_follows_its_sound(g2p: LiteG2P) -> None:
    assert said(g2p, "the [AE1][P]").startswith("ði ")
    assert said(g2p, "the [B][AE1][P]").startswith("ðə ")


@pytest.mark.parametrize(
    "word",
    [
        "blorptastic",
        "Zyxwv",
        "kubectl",
        "OpenAI",
        "iPhone",
        "qwrtpsdf",
        "hhhhhh",
        "Nguyễn",
        "x" * 60,
        "pneumono" * 8,
        "Łódź",
        "MacBook's",
        "GPTs",
        "ÀÉÎ",
    ],
)
def test_no_word_vanishes(g2p: LiteG2P, word: str) -> None:
    phonemes = g2p(prepare(f"The {word} is here.").segments[0])
    assert len(phonemes.words) >= 4 or len(prepare(f"The {word} is here.").segments) > 1
    assert set(phonemes.symbols) <= SYMBOLS


def test_heteronyms_by_their_neighbours(g2p: LiteG2P) -> None:
    assert "ɹəkˈɔɹd" in said(g2p, "to record it")
    assert "ɹˈɛkəɹd" in said(g2p, "the record")
    assert "ɹˈɛd" in said(g2p, "I have read it")


def test_two_languages_in_one_sentence(g2p: LiteG2P) -> None:
    assert said(g2p, "NASA和FBI都在用GPT。") == "nˈæsə xɤ↗ ˌɛfbˌiˈI tou→ ʦai↘ jʊ↘ŋ ʤˌipˌitˈi."
    assert said(g2p, "我的A四纸") == "wo↓ tɤ ˈA sɨ↘ꭧɨ↓"
    assert said(g2p, "[h][ào] means good.") == "xau↘ mˈinz ɡˈʊd."


def test_capitals_are_words(g2p: LiteG2P) -> None:
    assert said(g2p, "PLEASE READ THIS SIGN SLOWLY.").lower() == said(g2p, "Please read this sign slowly.").lower()


def test_other_scripts_are_quoted(g2p: LiteG2P) -> None:
    assert any("Привет" in w for w in g2p(prepare("Hello Привет.").segments[0]).warnings)
    with pytest.raises(TextError, match="Привет"):
        g2p(prepare("Привет").segments[0])


MIX = st.lists(
    st.one_of(
        st.sampled_from(["今天", "图书馆", "长", "重庆", "儿", "不", "一", "了"]),
        st.sampled_from(["apple", "I", "the", "a", "NASA", "xqz", "don't", "U.S."]).map(lambda w: f" {w} "),
        st.sampled_from(["12", "2024-02-29", "$5", "50%"]),
        st.sampled_from([*"。？！，、…—「」“”.?!,:;()\"' \n", "[h][ào]", "[M][AY0]", "[breath]"]),
        st.lists(st.sampled_from(arpabet.SYMBOLS), min_size=1, max_size=3).map(lambda s: "".join(f"[{x}]" for x in s)),
        st.text(max_size=4),
    ),
    max_size=20,
).map("".join)


def test_any_text_gives_symbols_of_the_vocabulary(g2p: LiteG2P) -> None:
    @settings(max_examples=300, deadline=None)
    @given(MIX)
    def law(text: str) -> None:
        try:
            segments = prepare(text).segments
        except TextError:
            return
        for segment in segments:
            try:
                phonemes = g2p(segment)
            except TextError:
                continue
            assert set(phonemes.symbols) <= SYMBOLS
            assert 0 < len(phonemes.symbols) <= MAX_SYMBOLS
            assert "  " not in phonemes.symbols
            ends = [0]
            for _, start, end in phonemes.words:
                assert ends[-1] <= start < end
                ends.append(end)

    law()


def test_the_bench_times_every_part(capsys: pytest.CaptureFixture[str]) -> None:
    assert bench.cli(["reading", "--runs", "1"]) == 0
    found = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert all(found[name] > 0.0 for name in ("text_200_ms", "polyphones_60_ms", "homograph_ms"))


def test_more_than_one_pass_can_hold_is_refused_with_the_measure(g2p: LiteG2P) -> None:
    with pytest.raises(TextError, match=f"without a place to pause; {MAX_SYMBOLS} fit"):
        said(g2p, "w" * 140)


@pytest.mark.parametrize(
    ("text", "word", "spelled"),
    [
        ("The IT guy left.", "IT", True),
        ("IT行业", "IT", True),
        ("Go to the US now.", "US", True),
        ("The WHO said so.", "WHO", True),
        ("Show your ID card.", "ID", True),
        ("我们AA制", "AA", True),
        ("Give it to us.", "us", False),
        ("WHO DID IT AND WHY", "IT", False),
    ],
)
def test_initials_that_are_also_words_are_spelled_unless_shouted(
    g2p: LiteG2P, text: str, word: str, spelled: bool
) -> None:
    (segment,) = prepare(text).segments
    phonemes = g2p(segment)
    said = {surface: phonemes.symbols[start:end] for surface, start, end in phonemes.words}
    assert (said[word] == g2p._english.letters(word.upper())) is spelled
