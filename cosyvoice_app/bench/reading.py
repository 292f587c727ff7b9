"""`bench reading`: what the lite engine's text side costs before a model speaks: words, homographs, polyphones.

Each figure is the best of many runs, since whatever else the machine does only ever adds to it.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable

from cosyvoice_app import assets
from cosyvoice_app.console import print_json
from cosyvoice_app.engines.lite.g2p import G2PPaths, LiteG2P
from cosyvoice_app.engines.lite.heteronyms import heteronyms
from cosyvoice_app.engines.lite.polyphones import Polyphones
from cosyvoice_app.errors import BadInput
from cosyvoice_app.text.frontend import prepare

NAME = "reading"
HELP = "time the lite engine's reading of text: phonemes, homographs, polyphones"

MIXED = ("今天是2024年2月29日，She said fifteen minutes ago that the weather is lovely。[h][ào]的！" * 4)[:200]
RARE = ("这幢大楼旁边有只蛤蟆，他缪先生攒钱买了一把镐，" * 4)[:60]
HOMOGRAPH = ("if", "you", "want", "to", "read", "the", "whole", "book", ",", "do", "not", "close", "it", ".")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--runs", type=int, default=20, help="how often each is timed [default: %(default)s]")


def run(options: argparse.Namespace) -> int:
    if not 1 <= options.runs <= 10_000:
        raise BadInput(f"--runs is {options.runs}; allowed: 1 to 10000.", param="runs")
    g2p = LiteG2P(G2PPaths(*(assets.path(name) for name in ("misaki-us-gold", "misaki-us-silver", "g2p-en"))))
    network, words = Polyphones(assets.path("g2pm")), heteronyms()
    segments = prepare(MIXED).segments
    found = {
        "text_200_ms": _best_ms(lambda: [g2p(segment) for segment in segments], options.runs),
        "polyphones_60_ms": _best_ms(lambda: network.read(RARE, range(len(RARE))), options.runs),
        "homograph_ms": _best_ms(lambda: words.choose("read", HOMOGRAPH, 4), 10 * options.runs),
    }
    for name, took_ms in found.items():
        print(f"{name:>18}  {took_ms:.3f}")
    print_json({"bench": NAME, "runs": options.runs, **found}, indent=None)
    return 0


def _best_ms(work: Callable[[], object], runs: int) -> float:
    work()
    best = float("inf")
    for _ in range(runs):
        started = time.perf_counter()
        work()
        best = min(best, time.perf_counter() - started)
    return round(best * 1000.0, 4)
