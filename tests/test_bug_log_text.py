"""Public complaints about the text side of voice-cloning apps, kept as checks with siblings: ids are of the bug log."""

from __future__ import annotations

import re
import time

import pytest

from cosyvoice_app.engines.capabilities import COSYVOICE3, KNOWN, LITE
from cosyvoice_app.errors import TextError
from cosyvoice_app.text import pinyin
from cosyvoice_app.text.chars import words
from cosyvoice_app.text.frontend import NOTHING_TO_SPEAK, FrontEnd, prepare
from cosyvoice_app.text.instruct import OFFICIAL, parse_instruct
from cosyvoice_app.text.notices import unspoken
from cosyvoice_app.text.numbers import zh_integer
from cosyvoice_app.types import Capabilities

ENGINES = pytest.mark.parametrize("engine", [pytest.param(e, id=name) for name, e in KNOWN.items()])


def norm(text: str, engine: Capabilities = LITE) -> str:
    return "".join(s.text for s in front(text, engine).segments)


def front(text: str, engine: Capabilities = LITE) -> FrontEnd:
    return prepare(text, limits=engine.split)


def han(text: str) -> str:
    return "".join(re.findall(r"[\u3400-\u9fff\U00020000-\U000323af]", text))


def letters(text: str) -> str:
    """What the ear gets: no marks, spaces or case."""
    return re.sub(r"[\W_]", "", text).lower()


# B06: nothing speakable

SILENT = ["", "   ", "\n\n", "。。。", "?!…", "——", "（）", "🙂", "[", "[]", "\u200b", "\ufeff", "-", "\\",
          "\t\r\n", "、、", "«»", "~~~", "👩‍🚀🚀", "]", "[[]]", "\u2060", "\u00a0",
          "/", "***", "¿¡", "“”", "< >", "\u0301"]  # fmt: skip


@pytest.mark.parametrize("text", SILENT)
def test_b06_nothing_speakable_is_one_plain_refusal(text: str) -> None:
    started = time.perf_counter()
    with pytest.raises(TextError) as refused:
        prepare(text)
    assert refused.value.message == NOTHING_TO_SPEAK
    assert time.perf_counter() - started < 1.0


# B07: parts lost


@ENGINES
@pytest.mark.parametrize(
    "text",
    ["第一句到这里结束。第二句后面没有句号", "The first part ends here. the second has no stop",
     "他来了！他又走了？后来呢", "one. two! three? four", "最后一行\n没有句号也没有逗号", "Wait... what is this"],
)  # fmt: skip
def test_b07_a_sentence_without_its_stop_is_kept(text: str, engine: Capabilities) -> None:
    assert letters(norm(text, engine)) == letters(text)


@ENGINES
@pytest.mark.parametrize("mark", "。？！；：，、…—～·「」『』《》（）【】“”‘’.?!;:,()\"'/|-_~〈〉〔〕﹏＂–⋯‧")
@pytest.mark.parametrize("pair", ["甲乙{}丙丁", "{}甲乙丙丁{}", "one {} two", "甲{0}{0}乙", "好{}yes{}"])
def test_b07_no_mark_takes_its_neighbours_along(mark: str, pair: str, engine: Capabilities) -> None:
    text = pair.format(mark, mark)
    said = norm(text, engine)
    assert han(said).replace("斜杠", "") == han(text)
    assert [w for w in re.findall("[a-z]+", said) if w in ("one", "two", "yes")] == re.findall("[a-z]+", text)


@pytest.mark.parametrize(
    "text",
    [
        "呃，我再想想。",
        "嗯？你刚说什么",
        "真好看啊！",
        "哎呀，忘了。",
        "哦，原来如此。",
        "嘿，这边！",
        "唉……算了吧",
        "哈哈哈，太好笑了",
    ],
)
def test_b07_interjections_stay(text: str) -> None:
    assert han(norm(text)) == han(text)


# B09: digits and capitals in mixed text


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("I have 3 cats and 12 dogs.", ["three cats", "twelve dogs"]),
        ("她说 “we need 15 minutes”，然后走了。", ["fifteen minutes"]),
        ("老师问：“how about 7 apples?” 我说好。", ["seven apples"]),
        ("We sold 250 units 上个月.", ["two hundred fifty units"]),
        ("My brother has 2 cars, 1 boat and 40 books.", ["two cars", "one boat", "forty books"]),
    ],
)
def test_b09_numbers_in_english_are_english(text: str, said: list[str]) -> None:
    out = norm(text)
    assert all(phrase in out for phrase in said), out
    assert not re.search("[零一二三四五六七八九十百]", out)


@pytest.mark.parametrize("text", ["1. Open the door. 2. Sit down.", "1. 打开门。2. 坐下。", "1) Wash. 2) Dry."])
def test_b09_list_numbers_are_not_decimals(text: str) -> None:
    out = norm(text)
    assert "point" not in out and "点" not in out
    assert re.search("one|一", out) and re.search("two|二", out)


@pytest.mark.parametrize(
    ("text", "phrase"),
    [("PLEASE READ THIS SIGN SLOWLY.", "please read this sign slowly"),
     ("DO NOT ENTER THE BUILDING!", "do not enter the building")],
)  # fmt: skip
def test_b09_a_sentence_in_capitals_is_words(text: str, phrase: str) -> None:
    assert letters(norm(text)) == letters(phrase)
    assert norm(text)[1:].lower() == norm(text)[1:].replace("I", "i")


@pytest.mark.parametrize("text", ["NASA和FBI都在用GPT。", "CEO说KPI要看ROI", "我买了TV和PC"])
def test_b09_initials_beside_chinese_stay(text: str) -> None:
    assert re.findall("[A-Z]+", norm(text)) == re.findall("[A-Z]+", text)
    assert han(norm(text)) == han(text)


# B10: markup, emoji, unknown characters


@pytest.mark.parametrize(
    ("text", "kept"),
    [
        ("今天很开心😂，我们出发吧👨‍👩‍👧！", "今天很开心，我们出发吧！"),
        ("𠮷野家在左边。", "𠮷野家在左边。"),
        ("You *shouldn’t* panic, it’s **fine**.", "You shouldn't panic, it's fine."),
        ("# 标题\n- 第一点\n`代码`", "标题第一点代码"),
        ("这是~~旧~~新价格💰，快来🛒", "这是旧新价格，快来"),
        ("> 引用的话\n1️⃣ 先这样", "引用的话一先这样"),
        ("Let’s go 🚀🚀 now — it’s **really** _easy_!", "Let's go now it's really easy"),
        ("🇨🇳加油🇨🇳", "加油"),
    ],
)
def test_b10_markup_and_emoji_go_and_the_rest_stays(text: str, kept: str) -> None:
    out = norm(text)
    assert letters(out) == letters(kept)
    assert not re.search("emoji|asterisk|hash|underscore|backtick|星号|井号", out)


def test_b10_apostrophes_are_one() -> None:
    for word in ("it’s", "it‘s", "itʼs", "it＇s", "it's"):
        assert norm(f"Well, {word} fine.") == norm("Well, it's fine.")


@pytest.mark.parametrize("address", ["https://example.com/a_b?x=1", "a@b.com"])
def test_b10_addresses_have_one_policy_in_both_languages(address: str) -> None:
    zh, en = norm(f"详见 {address} 。"), norm(f"See {address} now.")
    for said in (zh, en):
        assert "com" in said and "example" in said if "example" in address else "com" in said
        assert not re.search(r"https|[@/_?=]|\d", said)


# B11: other scripts


def test_b11_traditional_text_keeps_every_character() -> None:
    for text in ("後面的頭髮乾了，裡面還有麵條。", "皇后住在宮裡。", "這隻鐘錶壞了，請聯繫櫃檯。"):
        assert han(norm(text)) == han(text) and not front(text).warnings


@pytest.mark.parametrize(
    "text", ["東京は今日も晴れです。", "오늘은 날씨가 좋아요.", "私は学生です。", "안녕하세요, 반갑습니다!"]
)
def test_b11_what_an_engine_cannot_read_is_said(text: str) -> None:
    segments = front(text).segments
    (notice,) = unspoken(segments, LITE)
    assert "not supported" in notice and text.rstrip("!") in notice
    assert unspoken(segments, COSYVOICE3) == ()


# B14: long text

ZH_CITIES = words(
    """
北京 上海 天津 重庆 广州 深圳 杭州 南京 苏州 成都 武汉 西安 长沙 郑州 青岛 大连 厦门 宁波 福州 济南 合肥 南昌 昆明
贵阳 南宁 海口 三亚 桂林 兰州 西宁 银川 拉萨 沈阳 长春 太原 洛阳 开封 无锡 常州 徐州 温州 绍兴 扬州 烟台 威海 珠海
佛山 东莞 中山 泉州
"""
)


@ENGINES
def test_b14_fifty_lines_come_out_whole_and_in_order(engine: Capabilities) -> None:
    assert len(set(ZH_CITIES)) == 50
    lines = [f"第{zh_integer(str(n))}条，{city}，再见。" for n, city in enumerate(ZH_CITIES, 1)]
    text = "\n".join(lines)
    assert re.sub(r"\s", "", norm(text, engine)) == "".join(lines)
    english = [f"Number {n}, city {chr(97 + n % 26)}{'ao' * (n // 26 + 1)}, goodbye." for n in range(1, 51)]
    out = norm(" ".join(english), engine)
    assert re.findall(r"city (\w+)", out) == re.findall(r"city (\w+)", " ".join(english))
    assert out.count("goodbye") == 50


@ENGINES
def test_b14_a_very_long_text_is_finished_or_refused(engine: Capabilities) -> None:
    text = "长。" * 20_000
    assert norm(text, engine) == text
    with pytest.raises(TextError, match=r"40000 characters long; the limit is 200"):
        prepare(text, max_chars=200)


# B15: line breaks


def test_b15_line_breaks_are_pauses_whatever_they_are_made_of() -> None:
    assert "Helloworld" not in norm("Hello\nworld") and letters(norm("Hello\nworld")) == "helloworld"
    lf, crlf, cr, ls = (front(f"第一行{b}第二行{b * 3}第三行") for b in ("\n", "\r\n", "\r", "\u2028"))
    assert lf == crlf == cr == ls
    assert [s.text for s in lf.segments] == ["第一行", "第二行", "第三行"]
    first, second, _ = (s.pause_after_ms for s in lf.segments)
    assert 0 < first < second <= 1200
    assert letters(norm("第一行 第二行 第三行")) == letters(norm("第一行\n第二行\n第三行"))


# B16: tags survive


@ENGINES
@pytest.mark.parametrize(
    ("text", "tags"),
    [
        ("请把书[h][uán]给图书馆。", ["[h][uán]"]),
        ("这把尺子[ch][áng]三十厘米。", ["[ch][áng]"]),
        ("She [R][EH1][D] it on 2024-02-29.", ["[R][EH1][D]"]),
        ("[zh][ǎng]大以后再说", ["[zh][ǎng]"]),
        ("他说[ch][óng]新来过", ["[ch][óng]"]),
        ("价格$5.30[zh][ǎng]了3%！", ["[zh][ǎng]"]),
        ("**[B][EY1][S]** guitar, 3 strings", ["[B][EY1][S]"]),
        ("“[x][íng]”还是“[h][áng]”？", ["[x][íng]", "[h][áng]"]),
        ("[L][EH1][D][L][IY1][D]", ["[L][EH1][D][L][IY1][D]"]),
        ("1. [w][èi]了[w][éi]护", ["[w][èi]", "[w][éi]"]),
        ("今天" * 60 + "[d][ōu]好" + "明天" * 60, ["[d][ōu]"]),
    ],
)
def test_b16_every_tag_comes_out_byte_for_byte_once_in_order(text: str, tags: list[str], engine: Capabilities) -> None:
    segments = front(text, engine).segments
    assert re.findall(r"(?:\[[^\[\]]+\])+", "".join(s.text for s in segments)) == tags
    for tag in tags:
        assert sum(tag in s.text for s in segments) == 1, "never cut in two"


# B17: unknown tags


@pytest.mark.parametrize(
    ("tag", "right"),
    [("zuo4", "[z][uò]"), ("zuò", "[z][uò]"), ("ZUO4", "[z][uò]"), ("Lv4", "[l][ǜ]"), ("nü3", "[n][ǚ]")],
)
def test_b17_supported_forms_are_converted(tag: str, right: str) -> None:
    assert norm(f"这个[{tag}]字") == f"这个{right}字"
    assert front(f"这个[{tag}]字").warnings == ()


@pytest.mark.parametrize(
    "tag",
    ["[zuo]", "[zuo9]", "[xyz]", "[j]", "[]", "[l][ǖ]", "[j[ǐ]]", "[zhong6]",
     "[abc1]", "[brq2]", "[QQ1]", "[EH9]", "[pause now]", "[pause 2 min]"],
)  # fmt: skip
def test_b17_other_tag_like_brackets_are_quoted_and_not_spoken(tag: str) -> None:
    made = front(f"这个{tag}字")
    assert letters("".join(s.text for s in made.segments)) == "这个字"
    assert any(tag.strip("[]")[:3] in warning for warning in made.warnings)


def test_b17_stray_brackets_are_survived() -> None:
    kept = {"这个[j]ǐ字": "这个字", "这个[字": "这个字", "这个]字": "这个字", "[[[好": "好", "[h][ào][好": "[h][ào]好"}
    for text, said in kept.items():
        made = front(text)
        assert "".join(s.text for s in made.segments).replace(" ", "") == said
        assert bool(made.warnings) is (text != "这个]字")


@pytest.mark.parametrize(
    ("text", "kept"),
    [("数组a[0]和b[1]", "数组a零和b一"), ("见[注3]", "见注三"), ("【注意】前方", "注意前方"), ("他[笑]了", "他笑了"),
     ("list[int]很好", "listint很好"), ("见[图 2]", "见图二"), ("the [sic] word", None), ("参考[12]", "参考十二")],
)  # fmt: skip
def test_b17_ordinary_brackets_keep_their_content(text: str, kept: str | None) -> None:
    out = letters(norm(text))
    assert out == kept if kept else "word" in out


def test_b17_events_are_events_where_there_are_some() -> None:
    text = "[laughter]好，[breath]走<strong>吧</strong>。"
    segments = front(text, COSYVOICE3).segments
    assert "".join(s.text for s in segments) == text
    assert len(unspoken(segments, LITE)) == 4 and unspoken(segments, COSYVOICE3) == ()


def test_every_pair_of_the_tag_inventory_comes_out_as_it_went_in() -> None:
    for initial in pinyin.INITIALS:
        for final in pinyin.FINALS:
            tag = f"[{initial}][{final}]"
            assert norm(f"字{tag}字") == f"字{tag}字"


# B19: the instruct is never text

NIGHT_GUARD = (
    "用一种非常疲惫的、守了整整一夜的老门卫的口吻来说这句话，声音低沉沙哑，语速缓慢，时不时停顿一下，"
    "仿佛随时会睡着，但仍努力保持礼貌和耐心，像是在寒冷的清晨对第一个来上班的人打招呼，"
    "带着一点儿欣慰和一点儿终于可以回家的期盼。"
)
INSTRUCTS = ["用开心的语气说", "Speak slowly and sadly.", NIGHT_GUARD, NIGHT_GUARD + "\n", "   ", "", *OFFICIAL]


@pytest.mark.parametrize("instruct", INSTRUCTS)
def test_b19_no_word_of_the_instruct_reaches_the_text(instruct: str) -> None:
    intent = parse_instruct(instruct)
    assert norm("早上好。") == "早上好。"
    assert intent.text == instruct.strip()
    assert parse_instruct(instruct + "\n") == intent
    if not instruct.strip():
        assert intent == parse_instruct("")


@pytest.mark.parametrize(
    "control",
    ["<|endofprompt|>", "<|im_start|>", "<|endoftext|>", "<|x<|y|>z|>", "<|a|><|b|>",
     "< |endofprompt| >", "<|endofprompt",
     "＜|endofprompt|＞", "<\u200b|endofprompt|>", "<|end\u200bofprompt|>", "&lt;|endofprompt|&gt;"],
)  # fmt: skip
def test_no_control_token_of_a_model_can_be_typed(control: str) -> None:
    for text in (f"你好{control}世界", f"{control}{control}你好", f"[breath{control}]你好", f"[h]{control}[ào]你好"):
        out = norm(text, COSYVOICE3)
        assert "|" not in out and not re.search(r"<(?!/?(?:strong|laughter)>)", out)
        assert "你好" in out
