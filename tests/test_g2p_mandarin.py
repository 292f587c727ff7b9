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


# After Chao (1968), sections 1.3, 1.4 and 3.5, and Lin (2007), chapter 9.
BU = [
    ("不去", "bu2 qu4"), ("不来", "bu4 lai2"), ("不走", "bu4 zou3"), ("不吃", "bu4 chi1"),
    ("去不去", "qu4 bu5 qu4"), ("来不来", "lai2 bu5 lai2"), ("差不多", "cha4 bu5 duo1"),
    ("对不起", "dui4 bu5 qi3"), ("来不及", "lai2 bu5 ji2"), ("办不了", "ban4 bu5 liao3"),
    ("买不起", "mai3 bu5 qi3"), ("睡不着", "shui4 bu5 zhao2"), ("不会不去", "bu2 hui4 bu2 qu4"),
]  # fmt: skip
YI = [
    ("一张", "yi4 zhang1"), ("一条", "yi4 tiao2"), ("一把", "yi4 ba3"), ("一块", "yi2 kuai4"),
    ("一半", "yi2 ban4"), ("一起", "yi4 qi3"), ("一会儿", "yi2 hui4 er5"), ("一楼", "yi1 lou2"),
    ("一年级", "yi1 nian2 ji2"), ("一等奖", "yi1 deng2 jiang3"), ("一号", "yi1 hao4"),
    ("三十一岁", "san1 shi2 yi1 sui4"), ("一万", "yi2 wan4"), ("一千", "yi4 qian1"),
    ("一百一十一", "yi4 bai3 yi1 shi2 yi1"), ("万一", "wan4 yi1"), ("始终如一", "shi3 zhong1 ru2 yi1"),
    ("试一试", "shi4 yi5 shi4"), ("想一想", "xiang3 yi5 xiang3"), ("说一说", "shuo1 yi5 shuo1"),
    ("一五一十", "yi4 wu3 yi4 shi2"), ("一心一意", "yi4 xin1 yi2 yi4"), ("唯一的", "wei2 yi1 de5"),
]  # fmt: skip
THIRD = [
    ("水果", "shui2 guo3"), ("老虎", "lao2 hu3"), ("小老虎", "xiao3 lao2 hu3"), ("好总理", "hao3 zong2 li3"),
    ("老李", "lao2 li3"), ("洗脸水", "xi2 lian2 shui3"), ("蒙古语", "meng2 gu2 yu3"),
    ("很美好", "hen3 mei2 hao3"), ("我想走", "wo2 xiang2 zou3"), ("雨伞厂", "yu2 san2 chang3"),
    ("五百五", "wu2 bai2 wu3"), ("买水果", "mai3 shui2 guo3"), ("找老板", "zhao3 lao2 ban3"),
    ("纸老虎", "zhi3 lao2 hu3"), ("美好理想", "mei2 hao3 li2 xiang3"), ("岂有此理", "qi2 you3 ci2 li3"),
    ("想想", "xiang2 xiang5"), ("走走", "zou2 zou5"), ("姐姐", "jie3 jie5"), ("奶奶", "nai3 nai5"),
    ("我很了解你", "wo2 hen3 liao2 jie2 ni3"), ("可以", "ke2 yi3"), ("手表", "shou2 biao3"),
    ("椅子", "yi3 zi5"), ("法语老师", "fa2 yu3 lao3 shi1"),
]  # fmt: skip
ER = [
    ("花儿", "hua1 er5"), ("女儿", "nv3 er2"), ("哪儿", "na3 er5"), ("事儿", "shi4 er5"), ("玩儿", "wan2 er5"),
    ("这儿", "zhe4 er5"), ("那儿", "na4 er5"), ("小孩儿", "xiao3 hai2 er5"), ("儿子", "er2 zi5"),
    ("儿歌", "er2 ge1"), ("婴儿", "ying1 er2"), ("一点儿", "yi4 dian3 er5"), ("有空儿", "you3 kong4 er5"),
    ("儿女", "er2 nv3"), ("幼儿园", "you4 er2 yuan2"), ("冰棍儿", "bing1 gun4 er5"),
    ("面条儿", "mian4 tiao2 er5"), ("托儿所", "tuo1 er2 suo3"),
]  # fmt: skip
NEUTRAL = [
    ("看看", "kan4 kan5"), ("说说", "shuo1 shuo5"), ("爸爸", "ba4 ba5"), ("桌子", "zhuo1 zi5"),
    ("石头", "shi2 tou5"), ("木头", "mu4 tou5"), ("我们", "wo3 men5"), ("同学们", "tong2 xue2 men5"),
    ("你的", "ni3 de5"), ("来了", "lai2 le5"), ("坐着", "zuo4 zhe5"), ("去过", "qu4 guo5"),
    ("好吗", "hao3 ma5"), ("走吧", "zou3 ba5"), ("你呢", "ni3 ne5"), ("是啊", "shi4 a5"),
    ("站起来", "zhan4 qi3 lai5"), ("跑出去", "pao3 chu1 qu5"), ("拿过来", "na2 guo4 lai5"),
    ("走进来", "zou3 jin4 lai5"), ("杯子", "bei1 zi5"), ("馒头", "man2 tou5"), ("骨头", "gu3 tou5"),
    ("耳朵", "er3 duo5"), ("电子", "dian4 zi3"), ("原子", "yuan2 zi3"), ("人人", "ren2 ren2"),
    ("天天", "tian1 tian1"), ("听听", "ting1 ting5"), ("试试看", "shi4 shi5 kan4"),
    ("休息休息", "xiu1 xi5 xiu1 xi5"), ("什么", "shen2 me5"), ("怎么", "zen3 me5"), ("这么", "zhe4 me5"),
    ("宝宝", "bao3 bao5"), ("谢谢", "xie4 xie5"), ("星星", "xing1 xing5"), ("吃过饭了", "chi1 guo5 fan4 le5"),
    ("见过他", "jian4 guo5 ta1"), ("过马路", "guo4 ma3 lu4"),
]  # fmt: skip


@pytest.mark.parametrize(("text", "reading"), BU + YI + THIRD + ER + NEUTRAL)
def test_tones_as_the_grammars_describe_them(text: str, reading: str) -> None:
    assert symbols(text) == of(reading)


@pytest.mark.parametrize(
    ("text", "reading"),
    [
        ("一個", "yi2 ge5"),
        ("不對", "bu2 dui4"),
        ("花兒", "hua1 er5"),
        ("女兒", "nv3 er2"),
        ("裡面", "li3 mian5"),
        ("這裡", "zhe4 li3"),
        ("看不見", "kan4 bu5 jian4"),
        ("一會兒", "yi2 hui4 er5"),
        ("買水果", "mai3 shui2 guo3"),
        ("說說", "shuo1 shuo5"),
        ("站起來", "zhan4 qi3 lai5"),
        ("試一試", "shi4 yi5 shi4"),
    ],
)
def test_sandhi_of_traditional_text(text: str, reading: str) -> None:
    assert symbols(text) == of(reading)


def test_a_tag_is_the_company_of_what_stands_beside_it() -> None:
    assert symbols("一[g][è]人") == of("yi2 ge4 ren2")
    assert symbols("[n][ǐ][h][ǎo]好") == of("ni3 hao3 hao3")


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
