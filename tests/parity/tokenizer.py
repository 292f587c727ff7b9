"""The text tokenizer against the official one, with the published vocabulary.

    COSYVOICE_OFFICIAL=... MATCHA_OFFICIAL=... python tests/parity/tokenizer.py BLANK_DIR [--rebuild TOKENIZER_JSON]

BLANK_DIR is CosyVoice-BlankEN of the official files, or a directory that `--rebuild` fills from a `tokenizer.json` of
Qwen2 or Qwen2.5 (several public packages hold one). What is rebuilt is compared with the published SHA-256, so it is
those files to the byte. Compares ids on some hundreds of strings, whole and in pieces; exits 1 at the first difference.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import random
import shutil
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parent.parent)]
for variable in ("COSYVOICE_OFFICIAL", "MATCHA_OFFICIAL"):
    if variable not in os.environ:
        raise SystemExit(f"Set {variable} to a clone of the official repository.")
    sys.path.append(os.environ[variable])

from cosyvoice_app.assets.official import TEXT_MERGES, TEXT_VOCAB  # noqa: E402
from cosyvoice_app.engines.cosyvoice3.text_tokens import ADDED, BASE_MARKS  # noqa: E402
from cosyvoice_app.engines.cosyvoice3.tokenizer import TextTokenizer  # noqa: E402
from cosyvoice_app.text import tags  # noqa: E402
from cosyvoice_app.types import Arpabet, Event, Piece, Pinyin, Text  # noqa: E402

PLAIN = (
    "", " ", "\n", "  two  spaces ", "Hello, world!", "It's 3.14 o'clock; DON'T 'll we'RE x'm", "snake_case CamelCase",
    "1234567890 12,345.67 0x1F 50% $9.99 1/2", "http://example.org/a?b=c&d=e#f me@x.io", "tab\tand\r\nlines\n\n\nend",
    "今天天气真不错，我们去公园走走吧。",
    "收到好友从远方寄来的生日礼物，那份意外的惊喜与深深的祝福让我心中充满了甜蜜的快乐。",
    "我 用 GPT-4 写代码，花了￥128.5元！", " 你好 世界", "龘靐齉爩鱻麤𠮷𪚥", "（括号）【方】《书》“引”‘单’……——、；：",
    "こんにちは、今日はとても天気がいいですね。", "トウキョウ タワー ニ イキマシタ", "出会い 一緒に ｶﾀｶﾅ",
    "안녕하세요. 오늘 날씨가 좋네요!",
    "Übermäßig größer Straße Äpfel", "L'été où ça naïve cœur façade", "¿Qué tal? ¡Mañana!", "Привет, как дела?",
    "مرحبا بالعالم", "שלום עולם", "नमस्ते दुनिया", "สวัสดีชาวโลก", "Xin chào Việt Nam", "ελληνικά", "Łódź źdźbło",
    "😀 👍🏽 👨‍👩‍👧‍👦 🇨🇳🇺🇸 ❤️", "zero\u200bwidth\u200djoin\ufeffbom", "e\u0301 a\u0304 n\u0303 ü\u030c ﬁ ① Ⅳ ㎏ ™",
    "\u00a0nbsp\u3000ideographic\u2003em", "\x00\x01\x7f control", "a" * 300, "哈" * 100, "!" * 50, "\n" * 20 + "x",
)
TAGGED = (
    "You are a helpful assistant.<|endofprompt|>希望你以后能够做的比我还好呦。",
    "You are a helpful assistant. 请用广东话表达。<|endofprompt|>", "<|endofprompt|>", "<|im_start|>system<|im_end|>\n",
    "高管也通过电话、短信、微信等方式对报道[j][ǐ]予好评。", "[M][AY0][N][UW1][T] minute",
    "[breath]在他讲述那个荒诞故事的过程中",
    "<laughter>哈哈</laughter> <strong>很</strong>好[laughter]", "a [breath] b [ breath] [breath ] [Breath]",
    "[er][ér][ēr][ǖ][ǘ][lv]",
    "[h][ào]\u4f60[h][a\u0300o]", "[[breath]] [breath][breath]", "<|endoftext|>x<|endofsystem|>", "<|endofprompt|",
    "<|unknown|> [zzz]",
)
SPELLED = ("<|endofprompt|>", "<|im_start|>", "<|im_end|>", "<|endoftext|>", "<|endofsystem|>", "[breath]", "[h][ào]",
           "<strong>", "[AY0]", "x<|endofprompt|>y", "<|endofprompt|><|endofprompt|>", "[a][b]", "</laughter>")


def rebuild(tokenizer_json: Path, folder: Path) -> None:
    """Write the published vocab.json and merges.txt. The official merges are Qwen2's without those that make a token of
    two or more characters which are all Han once spaces at the ends are dropped."""
    model = json.loads(tokenizer_json.read_text("utf-8"))["model"]
    bytes_of = {char: byte for byte, char in _byte_letters().items()}

    def joins_han(token: str) -> bool:
        text = bytes(bytes_of[char] for char in token).decode("utf-8", "replace")
        core = text.strip()
        return len(text) > 1 and bool(core) and all("\u4e00" <= char <= "\u9fff" for char in core)

    merges = [merge if isinstance(merge, str) else " ".join(merge) for merge in model["merges"]]
    kept = [merge for merge in merges if not joins_han(merge.replace(" ", "", 1))]
    vocab = dict(sorted(model["vocab"].items(), key=lambda item: item[1]))
    folder.mkdir(parents=True, exist_ok=True)
    for file, text in ((TEXT_VOCAB, json.dumps(vocab, ensure_ascii=False, separators=(",", ":"))),
                       (TEXT_MERGES, "".join(f"{merge}\n" for merge in kept))):
        data = text.encode()
        same = hashlib.sha256(data).hexdigest() == file.sha256
        print(f"{file.name}: {len(data):,} bytes, {'the published file' if same else 'NOT the published file'}")
        if not same:
            raise SystemExit(1)
        (folder / Path(file.name).name).write_bytes(data)
    print(f"{len(merges):,} merges of Qwen2, {len(merges) - len(kept):,} left out")


def _byte_letters() -> dict[int, str]:
    """The letters that stand for bytes in a byte-level vocabulary: printable ones themselves, the rest from U+0100."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    rest = [byte for byte in range(256) if byte not in printable]
    return {**{byte: chr(byte) for byte in printable}, **{byte: chr(256 + i) for i, byte in enumerate(rest)}}


def official_tokenizer(folder: Path) -> Any:
    """The official class; a tokenizer_config.json is written beside a copy where there is none."""
    from cosyvoice.tokenizer.tokenizer import CosyVoice3Tokenizer

    if (folder / "tokenizer_config.json").is_file() and (folder / "config.json").is_file():
        return CosyVoice3Tokenizer(str(folder))
    with tempfile.TemporaryDirectory() as work:
        for name in ("vocab.json", "merges.txt"):
            shutil.copyfile(folder / name, Path(work) / name)
        (Path(work) / "config.json").write_text('{"model_type": "qwen2"}')
        marks = {str(151_643 + i): {"content": token, "special": True, "lstrip": False, "rstrip": False,
                                    "normalized": False, "single_word": False} for i, token in enumerate(BASE_MARKS)}
        (Path(work) / "tokenizer_config.json").write_text(json.dumps({
            "tokenizer_class": "Qwen2Tokenizer", "added_tokens_decoder": marks, "eos_token": BASE_MARKS[0],
            "pad_token": BASE_MARKS[0], "add_prefix_space": False}))
        return CosyVoice3Tokenizer(work)


def random_pieces(rng: random.Random) -> tuple[Piece, ...]:
    words = [text for text in PLAIN if text and "\u0301" not in text]
    pieces: list[Piece] = []
    for _ in range(rng.randint(1, 7)):
        kind = rng.randrange(4)
        if kind == 0:
            pieces.append(Pinyin(rng.choice(["", "h", "zh", "j"]), rng.choice(["ào", "ǐ", "ér", "un"])))
        elif kind == 1:
            pieces.append(Arpabet(tuple(rng.choices(["M", "AY0", "N", "UW1", "ZH"], k=rng.randint(1, 4)))))
        elif kind == 2:
            pieces.append(Event(rng.choice([*tags.POINT_EVENTS, *tags.SPAN_EVENTS])))
        else:
            word = rng.choice(words)
            start = rng.randrange(len(word))
            pieces.append(Text(word[start : start + rng.randint(1, 40)], "zh"))
    return tuple(pieces)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--rebuild", type=Path, metavar="TOKENIZER_JSON")
    options = parser.parse_args()
    if options.rebuild:
        rebuild(options.rebuild, options.folder)
    started = time.perf_counter()
    ours = TextTokenizer.load(options.folder)
    loaded_s = time.perf_counter() - started
    theirs = official_tokenizer(options.folder)
    names = theirs.tokenizer
    failures = [f"id of {token}" for i, token in enumerate((*BASE_MARKS, *ADDED))
                if names.convert_tokens_to_ids(token) != 151_643 + i]
    special = len(BASE_MARKS) + len(ADDED)
    print(f"{special} special tokens, {len(names)} in all: {'equal' if not failures else 'DIFFER'}")

    rng = random.Random(5)
    mixed = ["".join(rng.choices((*PLAIN[3:-4], *TAGGED, *SPELLED), k=rng.randint(2, 6))) for _ in range(300)]
    noise = ["".join(chr(rng.choice([rng.randrange(32, 127), rng.randrange(0x80, 0x800), rng.randrange(0x3000, 0x9FFF),
                                     rng.randrange(0x1F300, 0x1FAFF)])) for _ in range(rng.randint(1, 60)))
             for _ in range(300)]
    sets = {"plain": PLAIN, "tagged": TAGGED, "spelled": SPELLED, "mixed": mixed, "noise": noise}
    for title, texts in sets.items():
        wrong = [text for text in texts if list(ours.encode(text)) != _encode(theirs, text)]
        back = [text for text in PLAIN if ours.decode(ours.encode(text)) != names.decode(_encode(theirs, text))]
        print(f"encode, {title:8} {len(texts):4} strings: {'equal' if not wrong else f'{len(wrong)} DIFFER'}")
        failures += [f"encode {text!r}" for text in wrong] + [f"decode {text!r}" for text in back]

    segments = [random_pieces(rng) for _ in range(500)]
    wrong_pieces = [pieces for pieces in segments
                    if list(ours.encode_pieces(pieces)) != _encode(theirs, "".join(map(tags.write, pieces)))]
    print(f"pieces against the whole text, {len(segments)} segments: "
          f"{'equal' if not wrong_pieces else f'{len(wrong_pieces)} DIFFER'}")
    failures += [f"pieces {pieces}" for pieces in wrong_pieces]

    plain = _without_added(theirs, options.folder)
    leaks = [text for text in (*SPELLED, *TAGGED)
             if list(ours.encode_pieces((Text(text, "en"),))) != plain.encode(text).ids
             or max(ours.encode_pieces((Text(text, "en"),))) >= 151_643]
    print(f"typed special tokens stay text, {len(SPELLED) + len(TAGGED)} strings: "
          f"{'yes' if not leaks else f'{len(leaks)} DO NOT'}")
    failures += [f"typed {text!r}" for text in leaks]

    started = time.perf_counter()
    for text in mixed:
        ours.encode(text)
    per_text_us = (time.perf_counter() - started) / len(mixed) * 1e6
    print(f"loaded in {loaded_s:.2f} s; {per_text_us:.0f} us a text of {sum(map(len, mixed)) // len(mixed)} characters")
    for failure in failures[:10]:
        print("FAILED:", failure)
    return 1 if failures else 0


def _encode(theirs: Any, text: str) -> list[int]:
    # The official class makes a tensor of one row; an empty text would make one of floats.
    return [int(i) for i in theirs.encode(text)] if text else []


def _without_added(theirs: Any, folder: Path) -> Any:
    """transformers' own pipeline for this vocabulary, without any added token: what plain text must give."""
    from tokenizers import Tokenizer
    from tokenizers.models import BPE

    bare = Tokenizer(BPE.from_file(str(folder / "vocab.json"), str(folder / "merges.txt")))
    built = theirs.tokenizer.backend_tokenizer
    bare.normalizer, bare.pre_tokenizer = built.normalizer, built.pre_tokenizer
    return bare


if __name__ == "__main__":
    sys.exit(main())
