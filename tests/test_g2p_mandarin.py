"""Mandarin readings: every syllable as the model was trained on, tags exact, sandhi where it is spoken."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from cosyvoice_app.engines.lite import g2p_pinyin
from cosyvoice_app.engines.lite.g2p import G2PPaths, LiteG2P
from cosyvoice_app.engines.lite.g2p_symbols import SYMBOLS
from cosyvoice_app.engines.lite.g2p_zh_words import READINGS
from cosyvoice_app.errors import TextError
from cosyvoice_app.text import pinyin
from cosyvoice_app.text.frontend import prepare

DATA = Path(__file__).parent / "data" / "mandarin_syllables.json"
NOWHERE = Path("there/is/no/lexicon")


def syllable(numbered: str) -> str:
    """Symbols of one syllable as `hao4`."""
    initial, final = g2p_pinyin.split_syllable(numbered[:-1])
    return g2p_pinyin.to_symbols(initial, final, int(numbered[-1]))


def symbols(text: str) -> str:
    """Symbols of a Mandarin text without spaces. No lexicon is needed, so none is given."""
    g2p = LiteG2P(G2PPaths(NOWHERE, NOWHERE, NOWHERE))
    return " ".join(g2p(segment).symbols for segment in prepare(text).segments).replace(" ", "")


def of(numbered: str) -> str:
    return "".join(syllable(s) if s[-1].isdigit() else s for s in numbered.split())


@pytest.fixture(scope="module")
def reference() -> dict[str, str]:
    data: dict[str, str] = json.loads(DATA.read_text(encoding="utf-8"))
    return data


def test_every_syllable_equals_the_reference(reference: dict[str, str]) -> None:
    assert len(reference) > 2000
    assert {s: syllable(s) for s in reference} == reference


def test_every_pair_of_the_tag_inventory_is_readable() -> None:
    for initial in ("", *pinyin.INITIALS):
        for final in pinyin.FINALS:
            letters, tone = pinyin.split_tone(final)
            said = g2p_pinyin.to_symbols(initial, letters, tone)
            assert said
            assert set(said) <= SYMBOLS
            assert sum(c in "→↗↓↘" for c in said) == (tone != 5)


@pytest.mark.parametrize(
    ("text", "reading"),
    [
        ("[y][īng]行", "ying1 xing2"),
        ("他[zh][ǎng]大后头发很[ch][áng]。", "ta1 zhang3 da4 hou4 tou2 fa5 hen3 chang2 ."),
        ("[h][uán]书的人[h][ái]没来。", "huan2 shu1 de5 ren2 hai2 mei2 lai2 ."),
        ("[n][ǎi]奶", "nai3 nai3"),
    ],
)
def test_a_tag_is_read_exactly(text: str, reading: str) -> None:
    assert symbols(text) == of(reading)


B12 = [
    ("银[h][áng][h][áng]长说[x][íng]，不[x][íng]就换[h][áng]。", ["[h][áng]", "[x][íng]"], ["hang2", "xing2"]),
    ("他[zh][ǎng]大后头发很[ch][áng]。", ["[zh][ǎng]", "[ch][áng]"], ["zhang3", "chang2"]),
    ("[h][uán]书的人[h][ái]没来。", ["[h][uán]", "[h][ái]"], ["huan2", "hai2"]),
    ("[ch][óng]庆的包裹[zh][òng]量超标。", ["[ch][óng]", "[zh][òng]"], ["chong2", "zhong4"]),
    ("音[y][uè]让人快[l][è]。", ["[y][uè]", "[l][è]"], ["yue4", "le4"]),
    ("[ch][áo]阳区的人看[zh][āo]阳。", ["[ch][áo]", "[zh][āo]"], ["chao2", "zhao1"]),
    ("[ch][ù]长正在[ch][ǔ]理文件。", ["[ch][ù]", "[ch][ǔ]"], ["chu4", "chu3"]),
    ("他[ch][à]点忘了出[ch][āi]。", ["[ch][à]", "[ch][āi]"], ["cha4", "chai1"]),
    ("[k][uài]计开[h][uì]去了。", ["[k][uài]", "[h][uì]"], ["kuai4", "hui4"]),
    ("他[sh][ǔ]了[sh][ǔ]这些[sh][ù]字。", ["[sh][ǔ]", "[sh][ù]"], ["shu3", "shu4"]),
    ("睡[zh][áo]了还看[zh][e]窗外。", ["[zh][áo]", "[zh][e]"], ["zhao2", "zhe5"]),
    ("[t][án]琴的人捡到子[d][àn]。", ["[t][án]", "[d][àn]"], ["tan2", "dan4"]),
]


@pytest.mark.parametrize(("text", "tags", "readings"), B12)
def test_forced_polyphones(text: str, tags: list[str], readings: list[str]) -> None:
    g2p = LiteG2P(G2PPaths(NOWHERE, NOWHERE, NOWHERE))
    said: dict[str, set[str]] = {}
    for segment in prepare(text).segments:
        phonemes = g2p(segment)
        for surface, start, end in phonemes.words:
            said.setdefault(surface, set()).add(phonemes.symbols[start:end])
    for tag, reading in zip(tags, readings, strict=True):
        assert said[tag] == {syllable(reading)}, tag


@pytest.mark.parametrize(
    ("text", "reading"),
    [
        ("银行行长说行，不行就换行。", "yin2 hang2 hang2 zhang3 shuo1 xing2 , bu4 xing2 jiu4 huan4 hang2 ."),
        ("他长大后头发很长。", "ta1 zhang3 da4 hou4 tou2 fa5 hen3 chang2 ."),
        ("还书的人还没来。", "huan2 shu1 de5 ren2 hai2 mei2 lai2 ."),
        ("重庆的包裹重量超标。", "chong2 qing4 de5 bao1 guo3 zhong4 liang4 chao1 biao1 ."),
        ("音乐让人快乐。", "yin1 yue4 rang4 ren2 kuai4 le4 ."),
        ("朝阳区的人看朝阳。", "chao2 yang2 qu1 de5 ren2 kan4 zhao1 yang2 ."),
        ("处长正在处理文件。", "chu4 zhang3 zheng4 zai4 chu2 li3 wen2 jian4 ."),
        ("他差点忘了出差。", "ta1 cha4 dian3 wang4 le5 chu1 chai1 ."),
        ("会计开会去了。", "kuai4 ji4 kai1 hui4 qu4 le5 ."),
        ("他数了数这些数字。", "ta1 shu3 le5 shu3 zhe4 xie1 shu4 zi4 ."),
        ("睡着了还看着窗外。", "shui4 zhao2 le5 hai2 kan4 zhe5 chuang1 wai4 ."),
        ("弹琴的人捡到子弹。", "tan2 qin2 de5 ren2 jian3 dao4 zi3 dan4 ."),
        ("中国的首都是北京。", "zhong1 guo2 de5 shou3 du1 shi4 bei3 jing1 ."),
        ("他得了第一名，高兴得跳。", "ta1 de2 le5 di4 yi1 ming2 , gao1 xing4 de5 tiao4 ."),
        ("一不小心", "yi2 bu4 xiao3 xin1"),
        ("看不懂", "kan4 bu5 dong3"),
        ("二分之一的人", "er4 fen1 zhi1 yi1 de5 ren2"),
        ("皇后住在宮裡。", "huang2 hou4 zhu4 zai4 gong1 li3 ."),
    ],
)
def test_polyphones_in_context(text: str, reading: str) -> None:
    assert symbols(text) == of(reading)


@pytest.mark.parametrize(
    ("text", "reading"),
    [
        ("不是", "bu2 shi4"),
        ("不好", "bu4 hao3"),
        ("好不好", "hao3 bu5 hao3"),
        ("我不", "wo3 bu4"),
        ("不[sh][ì]", "bu2 shi4"),
        ("一天", "yi4 tian1"),
        ("一年", "yi4 nian2"),
        ("一样", "yi2 yang4"),
        ("一个", "yi2 ge5"),
        ("第一", "di4 yi1"),
        ("十一", "shi2 yi1"),
        ("一百", "yi4 bai3"),
        ("统一了", "tong3 yi1 le5"),
        ("看一看", "kan4 yi5 kan4"),
        ("二零一一年", "er4 ling2 yi1 yi1 nian2"),
        ("一点五", "yi1 dian2 wu3"),
        ("一月一日", "yi1 yue4 yi1 ri4"),
        ("你好", "ni2 hao3"),
        ("小雨伞", "xiao3 yu2 san3"),
        ("展览馆", "zhan2 lan2 guan3"),
        ("我很好", "wo2 hen2 hao3"),
        ("[n][ǐ]好", "ni3 hao3"),
        ("花儿", "hua1 er5"),
        ("一点儿", "yi4 dian3 er5"),
        ("儿子", "er2 zi5"),
        ("女儿", "nv3 er2"),
        ("儿童", "er2 tong2"),
    ],
)
def test_sandhi(text: str, reading: str) -> None:
    expected = of(reading)
    assert symbols(text) == expected


@pytest.mark.parametrize(("a", "b"), [("后面的头发干了，里面还有面条。", "後面的頭髮乾了，裡面還有麵條。")])
def test_traditional_reads_as_simplified(a: str, b: str) -> None:
    traditional, simplified = symbols(b), symbols(a)
    assert traditional == simplified.replace(syllable("gan4"), syllable("gan1")) or traditional == simplified


def test_marks_become_the_models() -> None:
    assert symbols("好，吧！是吗？（对）“行”。") == of("hao3 , ba5 ! shi4 ma5 ? ( dui4 ) “ xing2 ” .")
    assert symbols("《书》「书」——……书") == of("“ shu1 ” “ shu1 ” — … shu1")


@pytest.mark.parametrize("text", ["東京は今日も晴れです。", "오늘은 날씨가 좋아요.", "カタカナ", "한국"])
def test_japanese_and_korean_are_refused_not_read_as_chinese(text: str) -> None:
    with pytest.raises(TextError, match="not supported"):
        symbols(text)


def test_a_japanese_sentence_among_others_is_left_out_with_a_notice() -> None:
    g2p = LiteG2P(G2PPaths(NOWHERE, NOWHERE, NOWHERE))
    phonemes = g2p(prepare("今天来了。東京は晴れです。").segments[0])
    assert phonemes.symbols.replace(" ", "") == of("jin1 tian1 lai2 le5 .")
    assert "東京は晴れです" in phonemes.warnings[0]


def test_a_character_without_a_reading_is_quoted() -> None:
    g2p = LiteG2P(G2PPaths(NOWHERE, NOWHERE, NOWHERE))
    phonemes = g2p(prepare("好\U0003134a好").segments[0])
    assert any("\U0003134a" in w for w in phonemes.warnings)


def test_words_are_placed() -> None:
    g2p = LiteG2P(G2PPaths(NOWHERE, NOWHERE, NOWHERE))
    phonemes = g2p(prepare("今天天气很好，我们走。").segments[0])
    assert "".join(w for w, _, _ in phonemes.words) == "今天天气很好我们走"
    for _, start, end in phonemes.words:
        assert 0 <= start < end <= len(phonemes.symbols)
        assert " " not in phonemes.symbols[start:end]


def test_the_word_list_gives_syllables_that_exist(reference: dict[str, str]) -> None:
    for word, readings in READINGS.items():
        for reading in readings:
            assert reading.replace("ü", "v") in reference or reading in reference, (word, reading)
