"""`bench batching`: segments one after another against the same segments together, in the engine alone.

Both take turns in one process, so that a busy machine slows both; the ratio is the median over the turns' ratios. Every
segment's samples are compared: they must be the same to the last bit, whichever way it was made.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from cosyvoice_app.cli.fields import add_engine_arguments, engine_settings, plan_options, read_clip
from cosyvoice_app.console import print_json
from cosyvoice_app.engines.base import Engine
from cosyvoice_app.errors import BadInput
from cosyvoice_app.local import LocalEngine
from cosyvoice_app.pipeline import plan, segment_seed
from cosyvoice_app.types import FloatArray, NeverCancelled, PromptClip, Row, Utterance, Voice, ignore_progress

NAME = "batching"
HELP = "time segments one after another and together, and compare their samples"

CLIP = Path(__file__).parents[1] / "web" / "samples" / "en.flac"
TEXTS = {
    "short": ("Yes, I do.", "Not today.", "早上好。", "Come in.", "明天见。", "So long.", "没关系。", "Wait here."),
    "middle": ("Good morning, everyone.", "The rain has stopped.", "今天天气很好。", "Shall we walk home?",
               "请把书还给图书馆。", "It is time to go now.", "See you tomorrow at noon.", "门已经关好了，请放心。"),
}  # fmt: skip
"""About one second each, and two to three."""
_NEVER = NeverCancelled()


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--prompt", type=Path, default=CLIP, metavar="FILE",
                        help="the clip whose voice to take [default: a sample of the page's]")
    parser.add_argument("--rows", type=int, default=8, help="segments at once [default: %(default)s]")
    parser.add_argument("--pairs", type=int, default=5, help="turns each way takes [default: %(default)s]")
    add_engine_arguments(parser)


def run(options: argparse.Namespace) -> int:
    if not 1 <= options.rows <= 64 or not 1 <= options.pairs <= 1000:
        raise BadInput("--rows must be 1 to 64 and --pairs 1 to 1000.", param="rows")
    settings = engine_settings(options)
    clip = read_clip(options.prompt)
    reading = plan_options(settings)
    with LocalEngine(settings, warm_up=True) as local:
        engine, facts = local.engine, local.facts
        print(f"{facts.engine} on {facts.device} ({facts.precision}), {options.rows} segments, at most "
              f"{facts.capabilities.max_rows} at once")
        voice = engine.speaker_encoder.encode(clip, transcript="", refine=reading["refine"], progress=ignore_progress,
                                              cancel=_NEVER)
        results = {}
        for kind, texts in TEXTS.items():
            rows = [_row(engine, clip, voice, texts[i % len(texts)], 42 + i, reading) for i in range(options.rows)]
            results[kind] = _take_turns(engine, rows, options.pairs)
            _print(kind, results[kind])
    print_json({"bench": NAME, "engine": facts.engine, "device": facts.device, "precision": facts.precision,
                "refine": settings.refine, "threads": settings.threads, "rows": options.rows,
                "max_rows": facts.capabilities.max_rows, **results}, indent=None)
    return 0 if all(result["same_bits"] for result in results.values()) else 1


def _row(engine: Engine, clip: PromptClip, voice: Voice, text: str, seed: int, reading: Any) -> Row:
    job = plan(clip, text, seed=seed, **reading)
    utterance = Utterance(job.segments, job.intent, job.seed, job.speed, clip.sha256)
    return Row(utterance, 0, voice, engine.style_encoder.encode(job.intent, speed=1.0), segment_seed(seed, 0))


def _speak(engine: Engine, rows: Sequence[Row]) -> list[FloatArray]:
    features = engine.acoustic_model.predict(rows, cancel=_NEVER)
    return [audio.samples for audio in engine.vocoder.decode(features, rows, cancel=_NEVER)]


def _take_turns(engine: Engine, rows: Sequence[Row], pairs: int) -> dict[str, Any]:
    """Median seconds of both ways, the median ratio of their times (above 1: together is faster), and whether all
    samples were the same.
    """
    most = max(1, engine.capabilities.max_rows)
    rate_hz = engine.capabilities.rate_hz
    reference = [wave for row in rows for wave in _speak(engine, [row])]  # not timed
    alone_s, together_s, same = [], [], True
    for _ in range(pairs):
        started = time.perf_counter()
        alone = [wave for row in rows for wave in _speak(engine, [row])]
        between = time.perf_counter()
        together = [wave for at in range(0, len(rows), most) for wave in _speak(engine, rows[at : at + most])]
        ended = time.perf_counter()
        alone_s.append(between - started)
        together_s.append(ended - between)
        for waves in (alone, together):
            same = same and all(np.array_equal(a, b) for a, b in zip(waves, reference, strict=True))
    return {
        "audio_s": round(sum(len(wave) for wave in reference) / rate_hz, 2),
        "alone_s": round(statistics.median(alone_s), 3), "together_s": round(statistics.median(together_s), 3),
        "ratios": [round(a / b, 3) for a, b in zip(alone_s, together_s, strict=True)],
        "ratio": round(statistics.median(a / b for a, b in zip(alone_s, together_s, strict=True)), 3),
        "same_bits": same,
    }  # fmt: skip


def _print(kind: str, result: dict[str, Any]) -> None:
    print(f"{kind:>7}: {result['audio_s']:.1f} s of audio; one after another {result['alone_s']:.2f} s, together "
          f"{result['together_s']:.2f} s, ratio {result['ratio']:.2f}, "
          f"bits {'the same' if result['same_bits'] else 'DIFFER'}", flush=True)
