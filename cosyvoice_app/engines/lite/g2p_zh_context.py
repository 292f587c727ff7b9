"""Rules that read a polyphonic character by the company it keeps: `data/mandarin_context.txt`.

They know nothing of tones in speech: every reading is the one a dictionary would print.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from importlib.resources import files

ALONE = {
    "切": "qie1", "盛": "cheng2", "教": "jiao1", "闷": "men1", "铺": "pu1", "削": "xiao1", "弹": "tan2",
    "调": "tiao2", "塞": "sai1", "藏": "cang2", "剥": "bao1", "卷": "juan3", "薄": "bao2", "扎": "zha1",
    "累": "lei4", "埋": "mai2", "涨": "zhang3", "吐": "tu3", "难": "nan2", "倒": "dao4", "种": "zhong3", "差": "cha4",
    "量": "liang4", "背": "bei4", "觉": "jue2", "系": "xi4", "喝": "he1", "圈": "quan1", "哄": "hong3", "挑": "tiao1",
    "为": "wei4", "尽": "jin4", "少": "shao3", "只": "zhi3", "干": "gan4", "看": "kan4", "着": "zhe5", "了": "le5",
    "都": "dou1", "还": "hai2", "要": "yao4", "会": "hui4", "和": "he2", "给": "gei3", "没": "mei2", "正": "zheng4",
    "更": "geng4", "曲": "qu3", "应": "ying1", "率": "shuai4", "攒": "zan3", "漂": "piao1", "供": "gong1",
    "吧": "ba5", "呢": "ne5", "吗": "ma5", "啊": "a5", "嘛": "ma5", "呀": "ya5", "呗": "bei5", "么": "me5",
    "们": "men5", "的": "de5", "过": "guo4", "个": "ge4", "那": "na4", "哪": "na3", "不": "bu4", "一": "yi1",
    "儿": "er2", "上": "shang4", "下": "xia4", "来": "lai2", "去": "qu4", "打": "da3", "说": "shuo1", "谁": "shei2",
}  # fmt: skip
"""Characters of everyday talk and their reading as a word by itself. Where nothing around says otherwise it holds, and
the network isn't asked: of these it knows the Wikipedia's use better than a speaker's.
"""


@dataclass(frozen=True, slots=True)
class Match:
    """`reading` for the character at `place`, by a rule that saw `start` to `end` of the text."""

    place: int
    start: int
    end: int
    reading: str

    @property
    def length(self) -> int:
        return self.end - self.start


@lru_cache(maxsize=1)
def rules() -> dict[str, list[tuple[re.Pattern[str], str]]]:
    """Character -> patterns and the reading each gives, in the order of the file. Raises ValueError for a bad line."""
    source = files("cosyvoice_app.engines.lite") / "data" / "mandarin_context.txt"
    table: dict[str, list[tuple[re.Pattern[str], str]]] = {}
    for line in source.read_text(encoding="utf-8").splitlines():
        if not line.strip() or line.startswith("#"):
            continue
        head, colon, patterns = line.partition(": ")
        char, _, reading = head.partition(" ")
        if not colon or len(char) != 1 or not reading or not patterns.strip():
            raise ValueError(f"mandarin_context.txt: {line!r} isn't `character reading: patterns`")
        # One expression a pattern: in an alternation the first that fits would hide a longer one.
        table.setdefault(char, []).extend((re.compile(pattern), reading) for pattern in patterns.split())
    return table


def matches(run: str) -> Iterator[Match]:
    """Every match of every rule in `run`, also those that contradict each other."""
    table = rules()
    for char in dict.fromkeys(run):
        for pattern, reading in table.get(char, ()):
            for found in pattern.finditer(run):
                for place in range(found.start(), found.end()):
                    if run[place] == char:
                        yield Match(place, found.start(), found.end(), reading)
