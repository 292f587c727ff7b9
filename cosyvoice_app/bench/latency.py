"""`bench latency`: how long one person waits. One request at a time, the voice fitted once, nothing else running.

The first run is shown apart: it holds the voice's fitting and whatever the engine does once. What a server adds on top
(queue, upload, encoding) is not measured here.
"""

from __future__ import annotations

import argparse
import platform
import statistics
from pathlib import Path
from typing import Any

from cosyvoice_app.cli.fields import add_engine_arguments, engine_settings, plan_options, read_clip
from cosyvoice_app.console import print_json
from cosyvoice_app.errors import BadInput
from cosyvoice_app.local import LocalEngine
from cosyvoice_app.pipeline import Spoken, plan

NAME = "latency"
HELP = "time a text, run after run: voice, first audio, whole, RTF"

DEFAULT_TEXT = "The quick brown fox jumps over the lazy dog."
_RUNS_MAX = 1000


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--prompt", type=Path, required=True, metavar="FILE", help="the clip whose voice to take")
    parser.add_argument("--text", default=DEFAULT_TEXT, help="what to say [default: %(default)s]")
    parser.add_argument("--runs", type=int, default=5, help="how often, after the first [default: %(default)s]")
    add_engine_arguments(parser)


def run(options: argparse.Namespace) -> int:
    if not 1 <= options.runs <= _RUNS_MAX:
        raise BadInput(f"--runs is {options.runs}; allowed: 1 to {_RUNS_MAX}.", param="runs")
    settings = engine_settings(options)
    clip = read_clip(options.prompt)
    reading = plan_options(settings)
    jobs = [plan(clip, options.text, seed=seed, **reading) for seed in range(1, options.runs + 2)]
    with LocalEngine(settings, warm_up=True) as local:
        print(f"{local.facts.engine} on {local.facts.device} ({local.facts.precision}), {len(options.text)} characters")
        print(f"{'run':>5} {'voice s':>9} {'first ms':>9} {'total s':>9} {'audio s':>9} {'RTF':>7}")
        results = []
        for number, job in enumerate(jobs):
            results.append(local.run(job))
            _print_row("first" if number == 0 else str(number), results[-1])
        memory = local.engine.memory()
        facts = local.facts
    print_json({
        "bench": NAME, "engine": facts.engine, "device": facts.device, "precision": facts.precision,
        "refine": settings.refine, "threads": settings.threads, "machine": platform.processor() or platform.machine(),
        "characters": len(options.text), "runs": options.runs, "first_voice_s": round(results[0].timings["voice_s"], 4),
        "first_audio_ms": _spread(results[1:], "first_audio_ms"), "total_s": _spread(results[1:], "total_s"),
        "rtf": _spread(results[1:], "rtf"), "memory": memory,
    }, indent=None)
    return 0


def _print_row(name: str, spoken: Spoken) -> None:
    t = spoken.timings
    print(f"{name:>5} {t['voice_s']:>9.3f} {t['first_audio_ms']:>9.1f} {t['total_s']:>9.3f} "
          f"{spoken.audio.duration_s:>9.2f} {t['rtf']:>7.3f}", flush=True)


def _spread(results: list[Spoken], timing: str) -> dict[str, Any]:
    values = sorted(spoken.timings[timing] for spoken in results)
    return {"median": round(statistics.median(values), 4), "min": round(values[0], 4), "max": round(values[-1], 4)}
