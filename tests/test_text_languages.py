"""Sentences of an engine that speaks more than Chinese and English: each is read in its own language or left as typed,
and no English or Mandarin word is put into another language.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cosyvoice_app.engines.capabilities import COSYVOICE3, LITE
from cosyvoice_app.errors import TextError
from cosyvoice_app.pipeline import plan
from cosyvoice_app.text import japanese
from cosyvoice_app.text.cuts import sentences
from cosyvoice_app.text.frontend import FrontEnd, prepare
from cosyvoice_app.text.languages import NATIVE, verdict
from cosyvoice_app.text.pronunciations import from_lines
from cosyvoice_app.text.tags import write
from cosyvoice_app.text.transcript import prepare_transcript
from cosyvoice_app.types import Piece, PromptClip, SplitLimits, Text


@pytest.fixture(autouse=True, scope="module")
def without_the_package() -> Iterator[None]:
    """So that nothing here depends on what is installed."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(japanese, "_frontend", lambda: None)
        yield


def nine(text: str, limits: SplitLimits = COSYVOICE3.split) -> FrontEnd:
    return prepare(text, limits=limits, languages=COSYVOICE3.languages)


def said(text: str) -> str:
    return "".join(segment.text for segment in nine(text).segments)


def languages(text: str) -> set[str]:
    return {piece.language for s in nine(text).segments for piece in s.pieces if isinstance(piece, Text)}


AS_TYPED = {
    "de": (
        "Ich habe 5 Äpfel.",
        "Das kostet 12,50 € am 3. Mai 2024.",
        "Der Zug kommt um 8:30 Uhr auf Gleis 5.",
        "Wir treffen uns am 24. Dezember, ca. 18 Uhr, in der Friedrichstraße 12.",
        "Ich finde das iPhone 15 Pro und den Song Shape of You gut.",
        "Es sind 25 °C, z. B. im Juli, und 80 %.",
        "Können Sie mir die Nr. 0171-123456 geben?",
    ),
    "es": (
        "Tengo 5 gatos y 2 perros.",
        "¿Cuánto cuesta? Son 20 euros.",
        "El 12 de octubre de 1492 llegó Colón a América.",
        "La reunión es a las 15:30 en la sala 4.",
        "Hay 1.500 personas, el 25 % del total.",
        "Él tiene un iPhone 15 y ella un Galaxy S24.",
    ),
    "fr": (
        "J'ai 3 enfants et 2 chats.",
        "C'est 20 % moins cher: 15 € au lieu de 18,75 €.",
        "Le train part à 8 h 45 de la voie 2.",
        "Nous sommes le 14 juillet 1789.",
        "Il y a 7 jours dans une semaine.",
        "L'Airbus A320 est arrivé à 10:05.",
    ),
    "it": (
        "Ci sono 12 mesi in un anno.",
        "L'appuntamento è alle 15:30 del 4 maggio.",
        "Questo libro costa 9,99 € e quello 12.",
        "Abbiamo 3 figli e 2 gatti.",
        "La temperatura è di 30 °C, molto più di ieri.",
        "Il 25 aprile 1945 non si lavora.",
    ),
    "ru": (
        "У меня 3 кошки и 2 собаки.",
        "В 2024 г. население составило 146 млн чел.",
        "Поезд отходит в 8:30 с 5-го пути.",
        "Это стоит 1500 ₽, т. е. 20 % дороже.",
        "Я купил iPhone 15 Pro за 100 тыс. руб.",
        "12 апреля 1961 года.",
    ),
    "ko": (
        "저는 사과를 5개 샀어요.",
        "오늘은 2024년 4월 1일입니다.",
        "회의는 10:30에 시작해요.",
        "이것은 1,500원입니다.",
        "기온은 -3.5℃, 습도는 80%입니다.",
        "iPhone 15 Pro를 샀어요.",
    ),
}


@pytest.mark.parametrize(
    ("language", "text"), [(language, text) for language, texts in AS_TYPED.items() for text in texts]
)
def test_digits_dates_units_and_abbreviations_stay_as_typed(language: str, text: str) -> None:
    assert said(text) == text
    assert languages(text) == {language}
    assert nine(text).warnings == ()


@pytest.mark.parametrize("text", [text for texts in AS_TYPED.values() for text in texts])
def test_an_engine_without_the_language_reads_as_before(text: str) -> None:
    assert prepare(text, languages=LITE.languages) == prepare(text)
    assert not re.search("[0-9]", "".join(s.text for s in prepare(text, languages=("zh", "en", "ja")).segments))


@pytest.mark.parametrize(
    ("text", "spoken"),
    [
        ("Die Hard 2 is on at 9.", "Die Hard two is on at nine."),
        ("Las Vegas has 3 airports.", "Las Vegas has three airports."),
        ("The Il-2 first flew in 1939.", "The Il two first flew in nineteen thirty-nine."),
        ("Il-2", "Il two"),
        ("Los Angeles 2028", "Los Angeles twenty twenty-eight"),
        ("El Niño 2016", "El Niño twenty sixteen"),
        ("La Casa de Papel 3", "La Casa de Papel three"),
        ("5 PM EST.", "five PM EST."),
        ("Pour 200 g of flour.", "Pour two hundred grams of flour."),
        ("A naïve café with 5 résumés.", "A naïve café with five résumés."),
        ("Crème brûlée for 5 dollars.", "Crème brûlée for five dollars."),
        ("Smith et al. had 3 par 5 holes.", "Smith et al. had three par five holes."),
        ('She said to me: "Ich habe 5."', 'She said to me: "Ich habe five."'),
        ("The word привет has 6 letters.", "The word привет has six letters."),
        ("The word こんにちは has 5 kana.", "The word こんにちは has five kana."),
        ("El Niño 的影响有3个方面。", "El Niño 的影响有三个方面。"),
        ("他喜欢「ドラえもん」，看了3遍。", "他喜欢「ドラえもん」，看了三遍。"),
        ("鲜の味道有3种。", "鲜の味道有三种。"),
        ("我的朋友叫サトウ，有3个孩子。", "我的朋友叫サトウ，有三个孩子。"),
        ("我最喜欢的韩国菜是김치，吃了3次。", "我最喜欢的韩国菜是김치，吃了三次。"),
        ("42", "四十二"),
    ],
)
def test_chinese_and_english_are_not_taken_for_another_language(text: str, spoken: str) -> None:
    assert said(text) == spoken == "".join(s.text for s in prepare(text).segments)


@pytest.mark.parametrize(
    ("text", "spoken"),
    [
        ("我有3个。저는 사과 5개가 있어요. I have 7 apples.", "我有三个。저는 사과 5개가 있어요. I have seven apples."),
        ("Ich habe 3.\nBerlin 2024.\nThe price is 5 dollars.", "Ich habe 3. Berlin 2024. The price is five dollars."),
        ("안녕하세요. Please press button 5.", "안녕하세요. Please press button five."),
        ("Привет! 42. It is 5 o'clock.", "Привет! 42. It is five o'clock."),
        ("It costs $5. Ça coûte 5 €.", "It costs five dollars. Ça coûte 5 €."),
        ("价格是5元。Das sind 5 €.", "价格是五元。Das sind 5 €."),
    ],
)
def test_each_sentence_is_read_in_its_own_language(text: str, spoken: str) -> None:
    assert said(text) == spoken


def test_what_tells_nothing_follows_its_neighbour() -> None:
    assert verdict("Berlin 2024.") is None
    assert verdict("42.") is None
    assert verdict("Das ist gut.") == "de"
    assert verdict("This is good.") == NATIVE


def test_markup_emoji_and_control_tokens_go_and_quotes_are_one_kind() -> None:
    front = nine("<|endofprompt|>Ich habe **5**  Äpfel 😂\u200b und „gut“ geschlafen -- danke!!!!!")
    assert front.segments[0].text == "Ich habe 5 Äpfel und “gut” geschlafen—danke!!!"
    assert [w for w in front.warnings if "😂" in w] and [w for w in front.warnings if "<|endofprompt|>" in w]


def test_full_width_digits_and_squared_units_are_plain() -> None:
    assert said("저는 ５개와 ３㎏를 샀어요.") == "저는 5개와 3kg를 샀어요."


def test_letters_are_composed() -> None:
    assert said("Ich habe fu\u0308nf A\u0308pfel.") == "Ich habe fünf Äpfel."


def test_tags_inside_such_a_sentence_keep_working() -> None:
    text = "한국어 [h][ào] 5개 [M][AY0][N] [breath]입니다. Ich habe 5 [M][AY0][N] und [pause 1s] 6."
    assert said(text).replace(" ", "") == text.replace("[pause 1s]", "").replace(" ", "")
    assert nine("Ich habe 5 Äpfel [pause 1s] und 6 Birnen.").segments[0].pause_after_ms == 1000
    assert '"[xyz9]"' in nine("Ich habe [xyz9] 5 Äpfel.").warnings[0]


def test_ones_own_english_readings_work_there_and_mandarin_ones_do_not() -> None:
    words = from_lines("Siobhan = SH IH0 V AO1 N\n東 = dōng")
    front = prepare("Ich habe 5 mit Siobhan. 東へ行く。", languages=COSYVOICE3.languages, pronunciations=words)
    spoken = "".join(s.text for s in front.segments)
    assert spoken.startswith("Ich habe 5 mit [SH][IH0][V][AO1][N].") and "[d]" not in spoken


def test_a_sentence_is_not_cut_behind_an_ordinal_or_an_abbreviation() -> None:
    pieces = list(nine("Wir kommen am 3. Mai, z. B. um 5 Uhr, bzw. am 24. Juni. Danke.").segments[0].pieces)
    assert len(sentences(pieces)) == 2
    assert len(sentences(list(nine("В 2024 г. было 5 тыс. человек. Да.").segments[0].pieces))) == 2


def test_long_sentences_are_cut_beside_numbers_never_in_them() -> None:
    limits = SplitLimits(most=20, least=0, unit="tokens")
    text = "Ich habe 12.500,50 € und noch 3,75 € und dazu 99,99 € und 10:30 Uhr ist es auch schon."
    segments = nine(text, limits).segments
    assert len(segments) > 1
    for number in ("12.500,50", "3,75", "99,99", "10:30"):
        assert sum(number in s.text for s in segments) == 1


def test_words_of_a_clip_are_counted_in_their_language() -> None:
    german = prepare_transcript("Ich habe 25 Äpfel gekauft.", 3.0, languages=COSYVOICE3.languages)
    assert german.text == "Ich habe 25 Äpfel gekauft." and german.warnings == ()
    korean = prepare_transcript("저는 오늘 사과를 샀어요", 2.5, languages=COSYVOICE3.languages)
    assert korean.syllables == 10 and korean.warnings == ()
    russian = prepare_transcript("Сегодня хорошая погода", 2.5, languages=COSYVOICE3.languages)
    assert russian.syllables == 10 and russian.warnings == ()
    assert prepare_transcript("Ich habe 25 Äpfel gekauft.", 3.0).text == "Ich habe twenty-five Äpfel gekauft."


def test_a_plan_follows_the_engines_languages() -> None:
    clip = PromptClip(np.zeros(48_000, np.float32), 16_000, "0" * 64, -20.0, "wav")
    for engine, count in ((COSYVOICE3, "5"), (LITE, "five"), (None, "five")):
        job = plan(clip, "Ich habe 5 Äpfel.", seed=1, max_chars=200, engine=engine, transcript="Das sind 3 Wörter.")
        assert job.segments[0].text == f"Ich habe {count} Äpfel."
        assert ("3" in job.transcript) == (engine is COSYVOICE3)


# Laws for any mix.

PARTS = st.sampled_from(
    ["Ich habe", "nicht", "der", "J'ai", "très", "¿Cuánto", "tengo", "è", "sono", "привет", "в 2024 г.", "저는", "사과",
     "今天", "我们", "銀行", "こんにちは", "トマト", "私は", "apple", "the", "is", "Paris", "NASA", "Äpfel", "5",
     "12,50 €", "3.", "10:30", "-3", "+ 5", "# 5", "50 %", "2024-04-01", "1/2", "z. B.", "①", "½", "。", "！",
     ".", ".", "?", ",", ";", ":", "-", "--", "...", "„", "“", '"', "(", ")", "«", "\n", "😂", "★", "→", "<=", "=", "_",
     "*", "~", "&", "@", "[h][ào]", "[M][AY0]", "[breath]", "[xyz9]", "<|x|>", "[", "]", "<strong>", "</strong>", "|",
     "`"]
)  # fmt: skip
MIX = st.lists(st.tuples(PARTS, st.sampled_from(["", " "])).map("".join), max_size=25).map("".join)


@settings(max_examples=400, deadline=None)
@given(MIX)
def test_no_mix_lets_markup_through_or_raises_anything_but_text_error(text: str) -> None:
    try:
        front = nine(text)
    except TextError:
        return
    for segment in front.segments:
        bare = re.sub(r"\[[A-Za-zü\u00c0-\u01ff0-2_]+\]|</?(?:strong|laughter)>", "x", segment.text)
        assert not re.search(r"[<>|\[\]{}*`😂★→]|  |\n", bare), segment.text
        assert segment.text == segment.text.lstrip() != ""


@settings(max_examples=400, deadline=None)
@given(MIX)
def test_preparing_again_changes_nothing(text: str) -> None:
    """Sentence by sentence: a language that a sentence doesn't show itself would follow other neighbours."""
    try:
        once = nine(text)
    except TextError:
        return
    for segment in once.segments:
        if not all(map(shows_its_language, sentences(list(segment.pieces)))):
            continue
        again = nine(segment.text)
        assert "".join(s.text for s in again.segments).rstrip() == segment.text.rstrip()


def shows_its_language(sentence: Sequence[Piece]) -> bool:
    found = {NATIVE if p.language in ("zh", "en") else p.language for p in sentence if isinstance(p, Text)}
    return found == {verdict("".join(write(piece) for piece in sentence))}


@settings(max_examples=300, deadline=None)
@given(
    st.lists(
        st.sampled_from(
            ["今天", "我们有", "吗", "银行", " apple ", " the ", " is ", "Paris ", "5", "12.5", "$5", "3:30", "，",
             "。", "!", ". ", "\n", "[h][ào]", "[M][AY0]", "[breath]", "[pause 1s]", "😂", "#", "-"]
        ),
        max_size=25,
    ).map("".join)
)  # fmt: skip
def test_chinese_and_english_are_the_same_for_every_engine(text: str) -> None:
    try:
        usual = prepare(text)
    except TextError:
        with pytest.raises(TextError):
            prepare(text, languages=COSYVOICE3.languages)
        return
    assert prepare(text, languages=COSYVOICE3.languages) == usual
