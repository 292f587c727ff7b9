"""Warnings of the text front end and the engines, in the page's language.

They are written in English where they arise, since the API and the log show them too. What is matched here is the
sentence without what it quotes; one that isn't known is shown as it came.
"""

from __future__ import annotations

import re
from typing import NamedTuple

from cosyvoice_app.web.i18n import Lang


class _Remark(NamedTuple):
    english: str
    chinese: str


_REMARKS = (
    _Remark(r'Not spoken: "(.*)"\.', "未读出：“{0}”。"),
    _Remark(r'"(.*)" is not a tag this app knows; it was not spoken\.', "“{0}”不是可识别的标注，未读出。"),
    _Remark(r'"(.*)" closes nothing; it was not spoken\.', "“{0}”没有对应的开始标记，未读出。"),
    _Remark(
        r'"(.*)" is a control mark of the model, not text; it was left out\.', "“{0}”是模型的控制符，不是文字，已去掉。"
    ),
    _Remark(
        r'"(.*)": an opening bracket without its closing one; the bracket was left out\.',
        "“{0}”处的方括号没有闭合，已去掉该括号。",
    ),
    _Remark(r'"(.*)" is never closed; it holds to the end of the text\.', "“{0}”没有结束标记，一直作用到文末。"),
    _Remark(r'"(.*)" is longer than the longest pause, (\d+) s; that was used\.', "“{0}”超过最长停顿，按 {1} 秒处理。"),
    _Remark(r'"(.*)" has nothing to part there; it was left out\.', "“{0}”所在位置没有前后文字，已忽略。"),
    _Remark(
        r'Subtitle times are not spoken: "(.*)" and (\d+) more of this kind\.',
        "字幕时间码不会读出：“{0}”等，另有 {1} 处。",
    ),
    _Remark(r'Subtitle times are not spoken: "(.*)"\.', "字幕时间码不会读出：“{0}”。"),
    _Remark(r"And (\d+) more of this kind\.", "还有 {0} 条同类提示。"),
    _Remark(
        r'"(.*)" may be misread: Japanese has to be written in katakana, and the package that reads kanji is not '
        r"installed\. Run `pip install -r requirements-japanese\.txt`\.",
        "“{0}”可能读错：日语须写成片假名，而读汉字所需的软件包未安装。"
        "请运行 `pip install -r requirements-japanese.txt`。",
    ),
    _Remark(r'This engine has no "(.*)"; it was left out\.', "当前引擎不支持“{0}”，已忽略。"),
    _Remark(r'Japanese is not supported by this engine: "(.*)" was not spoken\.', "当前引擎不支持日语：“{0}”未读出。"),
    _Remark(r'Korean is not supported by this engine: "(.*)" was not spoken\.', "当前引擎不支持韩语：“{0}”未读出。"),
    _Remark(
        r'This engine reads Chinese and English only; "(.*)" was not spoken\.', "当前引擎只读中文和英文：“{0}”未读出。"
    ),
    _Remark(r'No reading is known for "(.*)"; it was not spoken\.', "不知道“{0}”的读音，未读出。"),
    _Remark(
        r"This engine speaks no dialect: “(.*)” was left out; the text is read in standard Mandarin or American "
        r"English\.",
        "当前引擎不会方言：已忽略“{0}”，按普通话或美式英语朗读。",
    ),
    _Remark(r"This engine plays no roles: “(.*)” was left out\.", "当前引擎不支持角色：已忽略“{0}”。"),
    _Remark(
        r"This part of the instruction was not understood and has no effect: (.*)\.",
        "以下要求未能理解，不起作用：{0}。",
    ),
    _Remark(
        r'"(.*)" is not one of the instructions this model was tuned on; it may not follow it\.',
        "“{0}”不在该模型训练过的指令之列，效果可能不符合要求。",
    ),
    _Remark(
        r'"(.*)" has letters that none of this engine\'s languages is written in; it may be misread\.',
        "“{0}”中有当前引擎所支持的语言都不使用的文字，可能读错。",
    ),
    _Remark(r"Speed (.*) was held to (.*), the most that stays clear\.", "语速 {0} 已限制为 {1}，以保证清晰。"),
    _Remark(
        r"The clip's words have about (\d+) syllables?, and (.*) s of the clip are speech: (.*) a second, too many to "
        r"be what is said in it\. Type exactly what the clip says, no more, or leave the words out\.",
        "片段原文约有 {0} 个音节，而片段中的语音只有 {1} 秒（每秒 {2} 个），字数过多。请只填片段里说的内容，或留空。",
    ),
    _Remark(
        r"The clip's words have about (\d+) syllables?, and (.*) s of the clip are speech: (.*) a second, too few to "
        r"be what is said in it\. Type exactly what the clip says, all of it, or leave the words out\.",
        "片段原文约有 {0} 个音节，而片段中的语音有 {1} 秒（每秒 {2} 个），字数过少。请填写片段的全部内容，或留空。",
    ),
    _Remark(
        r"The clip's words hold nothing that can be spoken; they were not used\.",
        "片段原文没有可以朗读的内容，未使用。",
    ),
    _Remark(
        r"The given words do not match what is heard in the clip \(match (.*)\), so they were not used\. Correct them "
        r"for a closer voice\.",
        "填写的原文与片段内容不符（匹配度 {0}），未使用。改正后声音会更接近。",
    ),
    _Remark(
        r"This engine copies a voice more closely with the clip's words: type what is said in it\.",
        "填写片段的原文，当前引擎会更接近原声。",
    ),
    _Remark(
        r"There is nothing to speak in the text\. Type at least one word\.",
        "文字中没有可以朗读的内容。请至少输入一个词。",
    ),
    _Remark(
        r"The text is (\d+) characters long; the limit is (\d+)\. Shorten it, or speak it in parts\.",
        "文字有 {0} 个字符，最多 {1} 个。请缩短，或分几次生成。",
    ),
    _Remark(
        r'The model said nothing for "(.*)"\. Nothing was saved\. Try another seed, or type the clip\'s words\.',
        "模型没有读出“{0}”，未保存任何内容。请换一个种子，或填写片段的原文。",
    ),
    _Remark(
        r"The text is too long for the language model: (\d+) text tokens, (\d+) tokens of the clip and up to (\d+) to "
        r"be spoken need (\d+) positions, and (\d+) are there\. Shorten the text or the clip\.",
        "文字超出语言模型的长度：文字 {0} 个单元、片段 {1} 个、最多读出 {2} 个，共需 {3} 个位置，"
        "而只有 {4} 个。请缩短文字或片段。",
    ),
    _Remark(r"prompt_text has (\d+) characters; at most (\d+) are allowed\.", "片段原文有 {0} 个字符，最多 {1} 个。"),
    _Remark(r"instruct has (\d+) characters; at most (\d+) are allowed\.", "指令有 {0} 个字符，最多 {1} 个。"),
)
_COMPILED = tuple((re.compile(remark.english, re.DOTALL), remark.chinese) for remark in _REMARKS)
_OF_THE_CLIP = "In the clip's words: "


def remark(message: str, lang: Lang) -> str:
    """`message` in the page's language where it is known, else as it is."""
    if lang == "en":
        return message
    if message.startswith(_OF_THE_CLIP):
        return "片段原文：" + remark(message.removeprefix(_OF_THE_CLIP), lang)
    for pattern, chinese in _COMPILED:
        match = pattern.fullmatch(message)
        if match:
            return chinese.format(*match.groups())
    return message
