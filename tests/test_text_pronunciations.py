"""A user's own word list: checked whole, obeyed exactly, reloaded when its file changes, and never above a tag."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cosyvoice_app.errors import BadInput, ConfigError
from cosyvoice_app.text.frontend import prepare
from cosyvoice_app.text.pronunciation_file import PronunciationFile
from cosyvoice_app.text.pronunciations import NONE, Pronunciations, from_lines, from_request, from_toml

LIST = """
# names
行家 = háng jiā
行家里手 = hang2 jia1 li3 shou3
花儿 = huār
Siobhan = SH IH0 V AO1 N
Polish = P OW1 L IH0 SH
polish = P AA1 L IH0 SH
New Delhi = [N][UW1] [D][EH1][L][IY0]
GPT-4o = JH IY2 P IY2 T IY1 F AO1 R OW1
"""


def said(text: str, words: str = LIST) -> str:
    return "".join(s.text for s in prepare(text, pronunciations=from_lines(words)).segments)


@pytest.mark.parametrize(
    ("text", "spoken"),
    [
        ("他是行家。", "他是[h][áng][j][iā]。"),
        ("他是行家里手。", "他是[h][áng][j][iā][l][ǐ][sh][ǒu]。"),
        ("他是[x][íng]家。", "他是[x][íng]家。"),
        ("花儿开了", "[h][uā]儿开了"),
        ("花兒開了", "[h][uā]儿開了"),
        ("行傢，行家", "[h][áng][j][iā]，[h][áng][j][iā]"),
        ("Ｓｉｏｂｈａｎ left", "[SH][IH0][V][AO1][N] left"),
        ("Siobhan left.", "[SH][IH0][V][AO1][N] left."),
        ("siobhan and Siobhane", "siobhan and Siobhane"),
        ("Siobhan’s cat, Siobhan.", "[SH][IH0][V][AO1][N][Z] cat, [SH][IH0][V][AO1][N]."),
        ("Polish the Polish silver. polish it. POLISH", "[P][OW1][L][IH0][SH] the [P][OW1][L][IH0][SH] silver. "
         "[P][AA1][L][IH0][SH] it. [P][AA1][L][IH0][SH]"),
        ("In New Delhi now", "In [N][UW1] [D][EH1][L][IY0] now"),
        ("用GPT-4o写", "用[JH][IY2][P][IY2][T][IY1][F][AO1][R][OW1]写"),
        ("polish@example.com", "polish at example dot com"),
        ("a-polish b_polish", "a-polish b polish"),
    ],
)  # fmt: skip
def test_words_are_said_as_listed(text: str, spoken: str) -> None:
    assert said(text) == spoken


def test_the_language_of_a_number_beside_a_listed_word() -> None:
    assert said("Siobhan has 3 cats") == "[SH][IH0][V][AO1][N] has three cats"
    assert said("行家有3个") == "[h][áng][j][iā]有三个"


@pytest.mark.parametrize(
    "reading", ["háng jiā", "hang2 jia1", "[h][áng][j][iā]", "[háng][jiā]", "[hang2][jia1]", "HANG2 JIA1", "háng·jiā"]
)
def test_every_spelling_of_a_reading_is_the_same(reading: str) -> None:
    assert from_lines(f"行家 = {reading}") == from_lines("行家 = háng jiā")


@pytest.mark.parametrize("reading", ["SH IH0 V AO1 N", "sh ih0 v ao1 n", "[SH][IH0][V][AO1][N]"])
def test_every_spelling_of_an_english_reading_is_the_same(reading: str) -> None:
    assert from_lines(f"Siobhan = {reading}") == from_lines("Siobhan = SH IH0 V AO1 N")


@pytest.mark.parametrize(
    ("line", "complaint"),
    [
        ("行家", "has no ="),
        ("行家 =", "has the reading"),
        ("行家 = hang jia", "syllables with tones"),
        ("行家 = háng", "2 characters and 1 syllables"),
        ("行家 = háng jiā le5", "2 characters and 3 syllables"),
        ("Siobhan = shiv-awn", "ARPAbet"),
        ("Siobhan = SH V N", "ARPAbet"),
        ("Siobhan = [SH][IH0][XX]", "ARPAbet"),
        ("123 = B AA1", "is no word"),
        ("[h] = hao4", "bracket"),
        (f"{'长' * 41} = hao4", "longer than"),
        ("行家 = háng jiā\n行家 = xíng jiā", "is there twice"),
        ("绿 = [l][ǖ]", "has the reading"),
    ],
)
def test_a_wrong_line_is_named_with_what_is_allowed(line: str, complaint: str) -> None:
    with pytest.raises(BadInput, match=r".*") as raised:
        from_lines(line)
    assert complaint in raised.value.message and raised.value.param == "pronunciations"


def test_every_wrong_line_is_told_at_once() -> None:
    with pytest.raises(BadInput) as raised:
        from_lines("甲\n乙 = x\n好 = hao3")
    assert "甲" in raised.value.message and "乙" in raised.value.message and "好" not in raised.value.message


def test_toml_is_the_same_list() -> None:
    table = '[zh]\n"行家" = "háng jiā"\n[en]\nSiobhan = "SH IH0 V AO1 N"\n"New Delhi" = "[N][UW1] [D][EH1][L][IY0]"\n'
    lines = "行家 = háng jiā\nSiobhan = SH IH0 V AO1 N\nNew Delhi = [N][UW1] [D][EH1][L][IY0]"
    assert (
        from_toml(table)
        == from_lines(lines)
        == from_request({"行家": "háng jiā", "Siobhan": "SH IH0 V AO1 N", "New Delhi": "[N][UW1] [D][EH1][L][IY0]"})
    )


@pytest.mark.parametrize(
    ("toml", "complaint"),
    [
        ("[zh", "not valid TOML"),
        ('[fr]\nx = "a"', "[zh] and [en]"),
        ('x = "a"', "[zh] and [en]"),
        ("[zh]\n好 = 1", "not valid TOML"),
        ('[zh]\n"好" = 1', "text in quotes"),
        ('[zh]\n"行家" = "SH IH0"', "under [zh]"),
        ('[en]\nSiobhan = "xiu1"', "under [en]"),
    ],
)
def test_wrong_toml_is_refused(toml: str, complaint: str) -> None:
    with pytest.raises(BadInput) as raised:
        from_toml(toml)
    assert complaint in raised.value.message


def test_ones_own_words_come_before_the_servers() -> None:
    own, server = from_lines("好 = hao4"), from_lines("好 = hao3\n行家 = háng jiā")
    both = own.over(server)
    assert both == from_lines("好 = hao4\n行家 = háng jiā") and NONE.over(server) == server


def test_nothing_else_is_an_api_value() -> None:
    assert from_request(None) == from_request("") == NONE
    for wrong in (3, ["a"], {"a": 1}):
        with pytest.raises(BadInput):
            from_request(wrong)


# the file


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "pronunciations.toml"
    path.write_text('[zh]\n"好" = "hao4"\n', encoding="utf-8")
    return path


def rewrite(path: Path, text: str) -> None:
    before = path.stat().st_mtime_ns
    path.write_text(text, encoding="utf-8")
    os.utime(path, ns=(before + 10**9, before + 10**9))


def test_an_edit_is_used_without_a_restart(file: Path) -> None:
    store = PronunciationFile(file)
    assert store.current() == (from_lines("好 = hao4"), ())
    rewrite(file, '[zh]\n"好" = "hao3"\n')
    assert store.current() == (from_lines("好 = hao3"), ())
    file.unlink()
    entries, warnings = store.current()
    assert entries == from_lines("好 = hao3") and "is gone" in warnings[0]
    file.write_text("", encoding="utf-8")
    assert store.current() == (NONE, ())


def test_a_bad_edit_keeps_what_was_and_says_so_until_it_is_mended(file: Path) -> None:
    store = PronunciationFile(file)
    rewrite(file, '[zh]\n"好" = "hao"\n')
    for _ in range(2):
        entries, warnings = store.current()
        assert entries == from_lines("好 = hao4")
        assert len(warnings) == 1 and "好" in warnings[0]
    rewrite(file, '[zh]\n"好" = "hao2"\n')
    assert store.current() == (from_lines("好 = hao2"), ())


def test_a_bad_file_at_the_start_is_an_error(file: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="There is no pronunciation file"):
        PronunciationFile(tmp_path / "none.toml")
    file.write_text("[zh", encoding="utf-8")
    with pytest.raises(ConfigError, match="not valid TOML"):
        PronunciationFile(file)


def test_without_a_named_file_the_working_directorys_is_used(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(file.parent)
    assert PronunciationFile(None).current() == (from_lines("好 = hao4"), ())
    monkeypatch.chdir(file.parent.parent)
    assert PronunciationFile(None).current() == (NONE, ())


# laws

WORDS = {"行家": "háng jiā", "重庆": "chóng qìng", "apple": "AE1 P AH0 L", "Paris": "P EH1 R IH0 S", "长": "zhǎng"}
PIECES = st.sampled_from(
    [*WORDS, "apples", "银行家", "，", " ", "。", "3", "[h][ào]", "长大", "paris", "x", "\n", "😂"]
)


@settings(max_examples=300, deadline=None)
@given(st.lists(PIECES, max_size=20).map("".join))
def test_the_rest_of_the_text_is_as_without_the_list(text: str) -> None:
    """Taking the tags out again, what is left is what an empty list leaves, the listed words taken out."""
    words = from_request(WORDS)
    parts = ("甲", text)
    out = "".join(part if isinstance(part, str) else "" for part in words.apply(parts))
    rest = text
    assert all(part in ("甲", text) for part in Pronunciations().apply(parts))
    for word in ("行家", "重庆", "长"):
        rest = rest.replace(word, "")
    for word in ("行家", "重庆", "长"):
        assert word not in out
    assert [c for c in out if c not in "甲applePris "] == [c for c in rest if c not in "applePris "]


def test_ones_own_small_word_hides_every_spelling_of_the_servers() -> None:
    both = from_lines("sql = EH1 S").over(from_lines("SQL = S IY1\nGPU = JH IY1"))
    assert both == from_lines("sql = EH1 S\nGPU = JH IY1")


@pytest.mark.parametrize(
    ("words", "text"),
    [
        ("3D = TH R IY1", "13D"),
        (".NET = D AA1 T", "ASP.NET"),
        ("AI = EY1", "x@ai.com AI_x"),
        ("行家 = háng jiā", "www.example.com/行家 和 行家.pdf"),
    ],
)
def test_a_word_never_matches_inside_another(words: str, text: str) -> None:
    assert "[" not in said(text, words)


def test_a_deeply_nested_file_is_an_error_and_not_a_crash() -> None:
    with pytest.raises(BadInput):
        from_toml("a=" + "[" * 5000)


def test_both_scripts_of_a_word_may_be_listed_with_one_reading() -> None:
    assert from_lines("银行 = yín háng\n銀行 = yin2 hang2") == from_lines("銀行 = yín háng")
    with pytest.raises(BadInput, match="with two readings"):
        from_lines("银行 = yín háng\n銀行 = yín xíng")
