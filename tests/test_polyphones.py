"""Which reading of a Mandarin character: the rules, the network, and the scores they reach together.

Sentences of `data/mandarin_polyphones.tsv`: `tune*` lines were looked at while the rules were written, `held` and
`last` ones were not.
"""

from __future__ import annotations

import io
import pickle
import re
import time
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from cosyvoice_app import assets
from cosyvoice_app.engines.lite import g2p_pinyin, g2p_zh, g2p_zh_context
from cosyvoice_app.engines.lite.g2p_zh import SETTLED
from cosyvoice_app.engines.lite.g2p_zh_read import readings
from cosyvoice_app.engines.lite.polyphones import WINDOW, Polyphones, convert_g2pm
from cosyvoice_app.errors import AssetError
from cosyvoice_app.text.chars import HAN as HAN_CHARS
from cosyvoice_app.text.simplified import simplified
from cosyvoice_app.types import Pinyin

SENTENCES = Path(__file__).parent / "data" / "mandarin_polyphones.tsv"
HAN = re.compile(f"[{HAN_CHARS}]+")


def sentences() -> list[tuple[str, str, dict[int, str]]]:
    """(set, sentence, place -> reading)."""
    rows = []
    for line in SENTENCES.read_text(encoding="utf-8").splitlines():
        if line.startswith("#"):
            continue
        part, marked = line.split("\t")
        text, judged = "", {}
        for char, reading in re.findall(r"([^a-z])([a-z]+[1-5])?", marked):
            if reading:
                judged[len(text)] = reading
            text += char
        rows.append((part, text, judged))
    return rows


def read(text: str, network: Polyphones | None = None) -> list[str]:
    """A reading for each Han character of `text`, before sandhi; other characters as they are."""
    out = list(text)
    for run in HAN.finditer(text):
        before, after = simplified(text[: run.start()]), simplified(text[run.end() :])
        syllables, _ = g2p_zh._read(run[0], 0, network, before, after)
        out[run.start() : run.end()] = [f"{s.initial}{s.final}{s.tone}".replace("ü", "v") for s in syllables]
    assert len(out) == len(text)
    return out


@pytest.fixture(scope="module")
def network() -> Polyphones:
    try:
        return Polyphones(assets.path("g2pm"))
    except AssetError as e:
        pytest.skip(f"needs the asset: {e}")


def scores(network: Polyphones | None) -> dict[str, float]:
    """Share of judged characters read right, by set."""
    right: Counter[str] = Counter()
    judged: Counter[str] = Counter()
    for part, text, readings_ in sentences():
        said = read(text, network)
        judged[part] += len(readings_)
        right[part] += sum(said[place] == reading for place, reading in readings_.items())
    return {part: right[part] / judged[part] for part in judged}


FLOORS = {"tune": 0.99, "held": 0.97, "last": 0.95, "tune2": 0.98, "tune3": 0.98, "tune4": 0.98, "tune5": 0.98}
"""What was measured, rounded down; plain pypinyin reaches 0.83, 0.86, 0.84, 0.67, 0.73, 0.71 and 0.80."""


def test_the_sentences_cover_what_they_should() -> None:
    seen: dict[str, set[str]] = {}
    for _, text, judged in sentences():
        for place, reading in judged.items():
            seen.setdefault(text[place], set()).add(reading)
    assert len(sentences()) >= 400
    assert sum(len(r) > 1 for r in seen.values()) >= 110


def test_everyday_sentences_are_read_as_well_as_measured() -> None:
    got = scores(None)
    assert {part: got[part] >= floor for part, floor in FLOORS.items()} == dict.fromkeys(FLOORS, True), got


@pytest.mark.weights
def test_the_network_makes_everyday_sentences_no_worse(network: Polyphones) -> None:
    got = scores(network)
    assert {part: got[part] >= floor for part, floor in FLOORS.items()} == dict.fromkeys(FLOORS, True), got


# --- rules ----------------------------------------------------------------------------------------------------


def test_every_rule_names_its_character_and_a_syllable_that_exists() -> None:
    for char, rules in g2p_zh_context.rules().items():
        for pattern, reading in rules:
            assert char in pattern.pattern, (char, pattern.pattern)
            assert re.fullmatch(r"[a-z]+[1-5]", reading)
            assert g2p_pinyin.to_symbols(*g2p_pinyin.split_syllable(reading[:-1]), int(reading[-1]))


def test_a_rule_never_breaks_a_word() -> None:
    assert readings("首都是北京")[0][:3] == ["shou3", "du1", "shi4"]
    assert readings("城市长大了")[0][:3] == ["cheng2", "shi4", "zhang3"]


@pytest.mark.parametrize("text", ["长长长长", "的的的", "一一", "得", "地", "着了过", "行行行行行", "不不不", "乐"])
def test_any_run_gets_a_reading_for_every_character(text: str) -> None:
    said, words = readings(text)
    assert len(said) == len(text) and "".join(words) == text


@pytest.mark.parametrize("run", ["得" * 3000, "地长" * 1500, "说说" * 1500, "调我" * 1500])
def test_a_long_run_takes_no_longer_than_its_length(run: str) -> None:
    start = time.perf_counter()
    readings(run)
    assert time.perf_counter() - start < 3


def test_readings_do_not_depend_on_what_was_read_before() -> None:
    rows = [text for _, text, _ in sentences()][:60]
    assert [read(t) for t in rows] == [read(t) for t in reversed(rows)][::-1]


# --- Traditional ----------------------------------------------------------------------------------------------

TWINS = [
    ("后面的头发干了，里面还有面条。", "後面的頭髮乾了，裡面還有麵條。"),
    ("皇后住在宫里。", "皇后住在宮裡。"),
    ("他睡着了还看着窗外。", "他睡著了還看著窗外。"),
    ("这只猫长得真可爱，只是有点儿胖。", "這隻貓長得真可愛，只是有點兒胖。"),
    ("乾隆皇帝很著名。", "乾隆皇帝很著名。"),
    ("干部们在干什么？", "幹部們在幹什麼？"),
    ("我们系的系主任系着围巾。", "我們系的系主任繫著圍巾。"),
    ("尽管尽了力，还是没尽兴。", "儘管盡了力，還是沒盡興。"),
    ("把袖子卷起来，看第三卷。", "把袖子捲起來，看第三卷。"),
    ("他舍不得离开宿舍。", "他捨不得離開宿舍。"),
    ("请重新调整音量。", "請重新調整音量。"),
    ("一个银行行长说行，不行就换行。", "一個銀行行長說行，不行就換行。"),
    ("苹果和台风没关系。", "蘋果和颱風沒關係。"),
    ("花儿、女儿和一会儿。", "花兒、女兒和一會兒。"),
    ("这个里面不是个个都有。", "這個裡面不是個個都有。"),
    ("他发现头发白了。", "他發現頭髮白了。"),
    ("钟先生看了看钟。", "鍾先生看了看鐘。"),
    ("特征很明显，他穿着朴素。", "特徵很明顯，他穿著樸素。"),
]


def spoken(text: str) -> str:
    return " ".join(w.symbols for run in HAN.findall(text) for w in g2p_zh.phrase([run])[0])


@pytest.mark.parametrize(("simple", "traditional"), TWINS)
def test_traditional_is_read_as_its_simplified_twin(simple: str, traditional: str) -> None:
    assert spoken(traditional) == spoken(simple)


@pytest.mark.parametrize(
    ("text", "place", "reading"),
    [
        ("乾", 0, "gan1"),
        ("乾坤", 0, "qian2"),
        ("兩隻", 1, "zhi1"),
        ("發", 0, "fa1"),
        ("髮", 0, "fa4"),
        ("名著", 1, "zhu4"),
    ],
)
def test_a_traditional_character_that_says_more_settles_it(text: str, place: int, reading: str) -> None:
    assert read(text)[place] == reading


def test_a_simplified_copy_keeps_every_place() -> None:
    texts = [text for _, text, _ in sentences()] + [t for pair in TWINS for t in pair] + ["".join(SETTLED)]
    for text in texts:
        assert len(simplified(text)) == len(text)
    for text in (text for _, text, _ in sentences()):
        assert simplified(text) == text


def test_the_surface_stays_as_it_was_written() -> None:
    assert "".join(w.surface for w in g2p_zh.phrase(["後面的頭髮乾了"])[0]) == "後面的頭髮乾了"


# --- tags -----------------------------------------------------------------------------------------------------


def test_tags_win_over_everything() -> None:
    for part in (["银", Pinyin("x", "íng")], ["银", Pinyin("h", "àng"), "长"]):
        tag = part[1]
        assert isinstance(tag, Pinyin)
        said, unknown = g2p_zh.phrase(list(part))
        assert not unknown
        expected = g2p_pinyin.to_symbols(
            tag.initial, "ing" if "x" in tag.initial else "ang", 2 if "x" in tag.initial else 4
        )
        assert [w.symbols for w in said if w.surface.startswith("[")] == [expected]


# --- the network ----------------------------------------------------------------------------------------------


class Toy:
    """Four pickles laid out as the package's, with weights small enough to follow by hand."""

    CHARS = ("<PAD>", "<UNK>", "시", "끝", "，", "长", "大", "度")
    CLASSES = ("chang2", "zhang3", "da4", "du4", "lu:4")

    def __init__(self, directory: Path) -> None:
        rng = np.random.default_rng(5)

        def array(*shape: int) -> np.ndarray:
            return rng.normal(0, 0.4, shape).astype(np.float32)

        self.state = {
            "embedding.weight": array(len(self.CHARS), 6), "logit_layer.0.weight": array(4, 6),
            "logit_layer.0.bias": array(4), "logit_layer.2.weight": array(len(self.CLASSES), 4),
            "logit_layer.2.bias": array(len(self.CLASSES)),
        }  # fmt: skip
        for way in ("", "_reverse"):
            self.state |= {
                f"lstm.weight_ih_l0{way}": array(12, 6), f"lstm.weight_hh_l0{way}": array(12, 3),
                f"lstm.bias_ih_l0{way}": array(12), f"lstm.bias_hh_l0{way}": array(12),
            }  # fmt: skip
        tables = {
            "np_ckpt.pkl": self.state,
            "char2idx.pkl": {c: i for i, c in enumerate(self.CHARS)},
            "class2idx.pkl": {c: i for i, c in enumerate(self.CLASSES)},
            "digest_cedict.pkl": {"长": ["chang2", "zhang3"], "大": ["da4"], "A": ["a"], "度": ["du4", "lu:4"]},
        }
        self.sources = {}
        for name, table in tables.items():
            self.sources[name] = directory / name
            self.sources[name].write_bytes(pickle.dumps(table))

    def scores(self, text: str, place: int) -> np.ndarray:
        """By the definition of an LSTM, a step at a time in float64."""
        ids = [2, *(self.CHARS.index(c) if c in self.CHARS else 1 for c in text), 3]
        halves = []
        for way, order in (("", ids[: place + 2]), ("_reverse", ids[:place:-1])):
            w, u = self.state[f"lstm.weight_ih_l0{way}"], self.state[f"lstm.weight_hh_l0{way}"]
            b = self.state[f"lstm.bias_ih_l0{way}"] + self.state[f"lstm.bias_hh_l0{way}"]
            h, c = np.zeros(3), np.zeros(3)
            for i in order:
                z = w.astype(float) @ self.state["embedding.weight"][i] + u @ h + b
                i_, f, o = (1 / (1 + np.exp(-z[k : k + 3])) for k in (0, 3, 9))
                c = f * c + i_ * np.tanh(z[6:9])
                h = o * np.tanh(c)
            halves.append(h)
        inner = self.state["logit_layer.0.weight"] @ np.concatenate(halves) + self.state["logit_layer.0.bias"]
        return self.state["logit_layer.2.weight"] @ np.maximum(inner, 0) + self.state["logit_layer.2.bias"]


@pytest.fixture
def toy(tmp_path: Path) -> Toy:
    return Toy(tmp_path)


def test_the_forward_pass_equals_the_definition(toy: Toy, tmp_path: Path) -> None:
    convert_g2pm(toy.sources, tmp_path / "toy.npz")
    net = Polyphones(tmp_path / "toy.npz")
    text = "大长，度長大"
    got = net.scores(text, [0, 1, 3, 5])
    want = np.stack([toy.scores(text, place) for place in (0, 1, 3, 5)])
    np.testing.assert_allclose(got, want, atol=2e-6)


def test_only_readings_of_the_dictionary_are_weighed(toy: Toy, tmp_path: Path) -> None:
    convert_g2pm(toy.sources, tmp_path / "toy.npz")
    net = Polyphones(tmp_path / "toy.npz")
    said = net.read("大长度", range(3))
    assert set(said) == {1, 2}
    assert said[1][0] in ("chang2", "zhang3") and said[2][0] in ("du4", "lü4")
    assert all(0.5 <= sure <= 1 for _, sure in said.values())
    assert "长" in net and "大" not in net


class Danger:
    def __reduce__(self) -> tuple[object, tuple[str]]:
        return (print, ("this would have run",))


@pytest.mark.parametrize("payload", [Danger(), {"embedding.weight": Danger()}, io.BytesIO, Counter("ab")])
def test_a_pickle_that_would_run_something_is_refused(
    toy: Toy, tmp_path: Path, payload: object, capsys: pytest.CaptureFixture[str]
) -> None:
    toy.sources["np_ckpt.pkl"].write_bytes(pickle.dumps(payload))
    with pytest.raises(AssetError, match="not a pickle of arrays and tables"):
        convert_g2pm(toy.sources, tmp_path / "toy.npz")
    assert capsys.readouterr().out == "" and not (tmp_path / "toy.npz").exists()


@pytest.mark.parametrize(
    "data", [b"", b"no pickle", b"PK\x03\x04 cut off", pickle.dumps([1, 2]), pickle.dumps({"a": 1})]
)
def test_other_files_are_refused(toy: Toy, tmp_path: Path, data: bytes) -> None:
    toy.sources["np_ckpt.pkl"].write_bytes(data)
    with pytest.raises(AssetError):
        convert_g2pm(toy.sources, tmp_path / "toy.npz")
    (tmp_path / "toy.npz").write_bytes(data)
    with pytest.raises(AssetError, match="assets fetch g2pm"):
        Polyphones(tmp_path / "toy.npz")


GOLDEN = [
    ("他长大后头发很长。", 1, "zhang3", -0.940476), ("他长大后头发很长。", 7, "zhang3", -2.747686),
    ("这幢大楼建于1930年。", 1, "zhuang4", 4.294422), ("他出生于河北省晋州市的一个翟姓家庭。", 13, "zhai2", 3.924469),
    ("缪先生是清代学者。", 0, "miao4", 3.503455), ("河里有一只很大的蛤蟆。", 8, "ge2", -6.814468),
    ("他攒了很多钱，买了一把镐。", 1, "zan3", 2.566205), ("他攒了很多钱，买了一把镐。", 11, "hao4", 4.150507),
    ("朴先生来自韩国。", 0, "piao2", -2.442645), ("将军率领军队攻打城市。", 2, "shuai4", 5.891664),
    ("率领", 0, "shuai4", 5.861091), ("效率", 1, "lu:4", 1.955372),
]  # fmt: skip
"""Sentence, place, reading and its score as the package g2pM 0.1.2.5 itself computes them."""


@pytest.mark.weights
def test_the_network_scores_as_the_package_does(network: Polyphones) -> None:
    for text, place, reading, score in GOLDEN:
        scores_ = network.scores(text, [place])[0]
        assert network._classes[int(scores_.argmax())].replace("ü", "u:") == reading, text
        assert scores_.max() == pytest.approx(score, abs=1e-3), text


@pytest.mark.weights
def test_rare_characters_are_read_by_their_sentence(network: Polyphones) -> None:
    """Rules leave these to the network; pypinyin's usual reading is wrong for each."""
    for text, place, reading in (
        ("他出生于河北省晋州市的一个翟姓家庭。", 13, "zhai2"),
        ("缪先生是清代学者。", 0, "miao4"),
        ("这幢大楼建于1930年。", 1, "zhuang4"),
    ):
        assert read(text, network)[place] == reading, text


@pytest.mark.weights
def test_a_text_is_read_in_one_pass_over_what_surrounds_the_places(
    network: Polyphones, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What it costs: `bench reading`."""
    steps: list[int] = []
    lstm = network._lstm
    monkeypatch.setattr(network, "_lstm", lambda x: steps.append(len(x)) or lstm(x))
    text = ("这幢大楼旁边有只蛤蟆，他缪先生攒钱买了一把镐，" * 4)[:60]
    network.read(text, range(len(text)))
    network.read("我" * 2000 + "幢" + "我" * 2000, [2000])
    network.read("我们走。", [])
    assert steps == [60 + 2, 2 * WINDOW + 1 + 2]  # and the marks of a beginning and an end


@pytest.mark.parametrize(
    ("text", "place", "reading"),
    [
        ("水分子由两个氢原子组成。", 1, "fen1"),
        ("空气里的分子", 4, "fen1"),
        ("他是知识分子。", 4, "fen4"),
        ("诶，你来啦？", 0, "ei1"),
        ("请大夫看看", 2, "fu5"),
        ("士大夫的趣味", 1, "da4"),
        ("薄荷糖", 1, "he5"),
        ("解先生来了", 0, "xie4"),
        ("他解先生的围", 1, "jie3"),
    ],
)
def test_readings_that_listeners_missed(text: str, place: int, reading: str) -> None:
    run = "".join(HAN.findall(text))
    assert readings(run)[0][place] == reading
