"""The front end: nothing is lost, nothing is spoken that shouldn't be, and each written form is spoken in its
language.
"""

from __future__ import annotations

import re

import pytest

from cosyvoice_app.errors import TextError
from cosyvoice_app.text.frontend import NOTHING_TO_SPEAK, prepare
from cosyvoice_app.types import SplitLimits, Text

MARKS = "。？！；：，、…—～·「」『』《》（）【】“”‘’.?!;:,()\"'/|-_~"


def spoken(text: str) -> str:
    return "".join(s.text for s in prepare(text).segments)


def han(text: str) -> str:
    return "".join(re.findall(r"[\u4e00-\u9fff]", text))


def english(text: str) -> list[str]:
    return re.findall(r"[A-Za-z']+", text)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "   ",
        "\n\n",
        "。。。",
        "?!…",
        "——",
        "（）",
        "🙂",
        "[",
        "[]",
        "\u200b",
        "\ufeff",
        "-",
        "\\",
        "<|endofprompt|>",
        "[xyz]",
        "[breath]",
        "[pause 1s]",
        "**",
        "|",
        "👨‍👩‍👧",
    ],
)
def test_nothing_speakable_is_refused_with_one_plain_message(text: str) -> None:
    with pytest.raises(TextError) as error:
        prepare(text)
    assert error.value.message == NOTHING_TO_SPEAK
    assert error.value.param == "text"


def test_long_text_is_refused_with_the_measured_and_the_allowed_length() -> None:
    assert prepare("长" * 200, max_chars=200).segments
    with pytest.raises(TextError, match="201 characters.*200"):
        prepare("长" * 201, max_chars=200)


def test_text_without_a_limit_is_finished_whole() -> None:
    front = prepare("长。" * 2_000)
    assert han("".join(s.text for s in front.segments)) == "长" * 2_000


@pytest.mark.parametrize(
    "text",
    [
        "第一句到这里结束。第二句后面没有句号",
        "The first part ends here. the second has no stop",
        "第一句……第二句、第三句",
        "One—two… three; four",
    ],
)
def test_a_sentence_without_its_stop_is_kept(text: str) -> None:
    assert han(spoken(text)) == han(text)
    assert english(spoken(text)) == english(text)


@pytest.mark.parametrize("mark", MARKS)
def test_no_mark_takes_its_neighbours_along(mark: str) -> None:
    assert han(spoken(f"甲乙{mark}丙丁")) == "甲乙丙丁"
    words = re.findall("[a-z]+", spoken(f"red {mark} blue"))
    assert words == ["red", "blue"]


@pytest.mark.parametrize(
    "text", ["呃，我再想想。", "嗯？你刚说什么", "真好看啊！", "哎呀，忘了。", "哈哈哈哈，对吧", "那个……花儿呢"]
)
def test_interjections_stay(text: str) -> None:
    assert spoken(text) == text


@pytest.mark.parametrize(
    ("typed", "said"),
    [
        ("2024-02-29", "二零二四年二月二十九日"),
        ("2024/2/29", "二零二四年二月二十九日"),
        ("公司成立于1987年", "公司成立于一九八七年"),
        ("08:30到12:05", "八点三十分到十二点零五分"),
        ("拨打13800001234", "拨打幺三八零零零零幺二三四"),
        ("尾号0087", "尾号零零八七"),
        ("一共120元", "一共一百二十元"),
        ("请拨120", "请拨幺二零"),
        ("每次5ml", "每次五毫升"),
        ("60km/h", "六十千米每小时"),
        ("10m²", "十平方米"),
        ("血压120/80mmHg", "血压一百二十比八十毫米汞柱"),
        ("低于-5℃", "低于零下五摄氏度"),
        ("￥99.90", "九十九点九零元"),
        ("$200,000", "two hundred thousand dollars"),
        ("$5.3 billion", "five point three billion dollars"),
        ("call 911", "call nine one one"),
        ("911 people", "nine hundred eleven people"),
        ("in 1997", "in nineteen ninety-seven"),
        ("v2.0.1", "v two point zero point one"),
    ],
)
def test_written_forms(typed: str, said: str) -> None:
    assert spoken(typed) == said


@pytest.mark.parametrize(
    ("typed", "said"),
    [
        ("1999-12-31开始", "一九九九年十二月三十一日开始"),
        ("2020-2024年", "二零二零到二零二四年"),
        ("下午2点", "下午两点"),
        ("周三14:30-16:00举行", "周三十四点三十分到十六点举行"),
        ("汇率1:7.1", "汇率一比七点一"),
        ("住302室", "住三零二室"),
        ("5元/斤", "五元每斤"),
        ("2的平方是x^2", "二的平方是x的二次方"),
        ("on 12/25/2024", "on December twenty-fifth, twenty twenty-four"),
        ("He's 6'2\" tall", "He's six foot two tall"),
        ("the '90s", "the nineties"),
        ("10 steps/day", "ten steps per day"),
        ("a 50/50 chance", "a fifty-fifty chance"),
        ("比例是16:10", "比例是十六比十"),
        ("a ratio of 16:10", "a ratio of sixteen to ten"),
        ("call +1 415-555-2671", "call plus one, four one five, five five five, two six seven one"),
        ("3．5米", "三点五米"),
        ("比分3:2", "比分三比二"),
        ("买了2个苹果", "买了两个苹果"),
        ("第2个", "第二个"),
        ("电话：010-12345678", "电话：零幺零幺二三四五六七八"),
        ("验证码408812", "验证码四零八八一二"),
        ("打8折", "打八折"),
        ("5~10天", "五到十天"),
        ("增长3.5%", "增长百分之三点五"),
        ("完成了1/2", "完成了二分之一"),
        ("体重70kg", "体重七十千克"),
        ("100001元", "十万零一元"),
        ("20000000人", "两千万人"),
        ("3-5个", "三到五个"),
        ("价格￥1,234.5元", "价格一千二百三十四点五元"),
        ("气温-12~-3℃", "气温零下十二到零下三摄氏度"),
        ("①打开②关上", "一打开二关上"),
        ("１２３元", "一百二十三元"),
        ("It's 5:30 pm", "It's five thirty PM"),
        ("at 9:05", "at nine oh five"),
        ("on March 5, 2024", "on March fifth, twenty twenty-four"),
        ("the 21st century", "the twenty-first century"),
        ("the 1990s", "the nineteen nineties"),
        ("$4.50", "four dollars and fifty cents"),
        ("1/2 cup", "one half cup"),
        ("3/4 of it", "three quarters of it"),
        ("50% off", "fifty percent off"),
        ("-5 degrees", "minus five degrees"),
        ("5 km away", "five kilometers away"),
        ("1 kg of rice", "one kilogram of rice"),
        ("call 555-1234 now", "call five five five, one two three four now"),
        ("Mr. Lee met Dr. Wu", "Mister Lee met Doctor Wu"),
        ("C++ and AT&T", "C plus plus and AT and T"),
        ("pages 5-10", "pages five to ten"),
        ("room 302", "room three zero two"),
        ("GPT-4 is out", "GPT four is out"),
        ("1,234,567 people", "one million two hundred thirty-four thousand five hundred sixty-seven people"),
    ],
)
def test_written_forms_of_the_same_kinds(typed: str, said: str) -> None:
    assert spoken(typed) == said


@pytest.mark.parametrize(
    ("typed", "said"),
    [
        ("I have 3 cats and 12 dogs.", "I have three cats and twelve dogs."),
        ("她说 “we need 15 minutes”，然后走了。", "她说“we need fifteen minutes”，然后走了。"),
        ("1. Open the door. 2. Sit down.", "one, Open the door. two, Sit down."),
        ("我的A4纸和5G手机", "我的A四纸和五G手机"),
        ("我有3个friends", "我有三个friends"),
        ("The 2 of us 去了3次。", "The two of us 去了三次。"),
        ("PLEASE READ THIS SIGN SLOWLY.", "Please read this sign slowly."),
        ("NASA和FBI都在用GPT。", "NASA和FBI都在用GPT。"),
        ("[n][ǐ]有3", "[n][ǐ]有三"),
        ("[M][AY1] 3 cats", "[M][AY1] three cats"),
    ],
)
def test_a_number_is_read_in_the_language_around_it(typed: str, said: str) -> None:
    assert spoken(typed) == said


@pytest.mark.parametrize(
    ("typed", "said"),
    [
        ("今天很开心😂，我们出发吧👨‍👩‍👧！", "今天很开心，我们出发吧！"),
        ("𠮷野家在左边。", "𠮷野家在左边。"),
        ("You *shouldn’t* panic, it’s **fine**.", "You shouldn't panic, it's fine."),
        ("# 标题\n- 第一点\n`代码`", "标题第一点代码"),
        ("~~old~~ __new__ _word_", "old new word"),
        ("> quoted", "quoted"),
        ("| a cell | another |", "a cell another"),
        ("---\n好", "好"),
        ("★重点★", "重点"),
        ("A → B", "A B"),
        ("good--bad", "good—bad"),
        ("soft\u00adhyphen", "softhyphen"),
        ("a\u200bb", "ab"),
    ],
)
def test_markup_and_symbols_are_not_spoken_and_all_else_is(typed: str, said: str) -> None:
    assert spoken(typed) == said


def test_a_symbol_left_out_is_quoted() -> None:
    assert any("😂" in w for w in prepare("好😂").warnings)
    assert prepare("好。").warnings == ()


def test_apostrophes_are_one() -> None:
    assert spoken("it’s o’clock") == spoken("it's o'clock")


@pytest.mark.parametrize(
    ("typed", "said"),
    [
        ("详见 https://example.com/a_b?x=1 。", "详见 example 点 com 斜杠 a 下划线 b 问号 x 等于一。"),
        (
            "See https://example.com/a_b?x=1 now",
            "See example dot com slash a underscore b question mark x equals one now",
        ),
        ("a@b.com", "a at b dot com"),
        ("写信给me@site.org吧", "写信给me 艾特 site 点 org吧"),
        ("www.site.com/x", "www dot site dot com slash x"),
    ],
)
def test_addresses_are_read_as_they_stand(typed: str, said: str) -> None:
    assert spoken(typed) == said


def test_line_breaks_are_pauses_and_never_join_words() -> None:
    front = prepare("第一行\r\n第二行\n\n\n第三行")
    assert [s.text for s in front.segments] == ["第一行", "第二行", "第三行"]
    line, paragraph, last = (s.pause_after_ms for s in front.segments)
    assert 0 < line < paragraph <= 1000
    assert last == 0
    assert prepare("a\r\nb") == prepare("a\nb") == prepare("a\rb")
    assert [s.text for s in prepare("Hello\nworld").segments] == ["Hello ", "world"]


def test_asked_pauses_lie_between_segments() -> None:
    front = prepare("你好[pause 0.8s]世界。[0.3s]再见")
    assert [(s.text, s.pause_after_ms) for s in front.segments] == [("你好", 800), ("世界。", 300), ("再见", 0)]


def test_pauses_in_a_row_add_up_to_a_limit() -> None:
    front = prepare("你好[0.3s][0.5s]世界\n[1s]再见[9s][9s]完")
    assert [s.pause_after_ms for s in front.segments] == [800, 1000, 10_000, 0]


@pytest.mark.parametrize("text", ["[1s]你好", "你好[1s]", "[1s]\n你好。"])
def test_a_pause_with_nothing_to_part_is_reported(text: str) -> None:
    front = prepare(text)
    assert len(front.segments) == 1
    assert "pause 1s" in front.warnings[0]


@pytest.mark.parametrize("text", ["好。\n[laughter]\n好", "[breath]\n好", "好[1s][sigh]"])
def test_an_event_never_stands_alone(text: str) -> None:
    for segment in prepare(text).segments:
        assert "好" in segment.text


def test_segment_text_is_its_pieces_written_out() -> None:
    front = prepare("请把书[h][uán]给 the library，NASA在2024年。[laughter]好")
    for segment in front.segments:
        assert segment.text == segment.text.lstrip()
        assert "".join(p.text for p in segment.pieces if isinstance(p, Text)) in re.sub(r"\[[^]]*\]", "", segment.text)


def test_long_text_is_split_at_sentences_and_nothing_is_lost() -> None:
    text = "".join(f"第{n}条，城市名，再见。" for n in "一二三四五六七八九十" * 5)
    front = prepare(text)
    assert "".join(s.text for s in front.segments) == text
    assert len(front.segments) > 5
    assert all(s.text.endswith("。") for s in front.segments)


def test_segments_keep_within_their_limits() -> None:
    text = "这是一个没有任何标点符号的很长很长的句子" * 12 + "。" + "an endless English sentence without any mark " * 12
    for segment in prepare(text, limits=SplitLimits(most=100, least=20)).segments:
        assert len(han(segment.text)) * 5 + len(re.findall("[A-Za-z ]", segment.text)) <= 100


@pytest.mark.parametrize(
    "text", ["The U.S. economy grew.", "J. K. Rowling wrote it.", "It costs 3.5 dollars.", "Visit a.m. or p.m. today"]
)
def test_a_point_inside_a_sentence_does_not_end_it(text: str) -> None:
    assert len(prepare(text, limits=SplitLimits(most=150, least=0)).segments) == 1
