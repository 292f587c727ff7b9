"""`bench cosyvoice3`: what each stage of the cosyvoice3 engine takes, at full size.

With `--model-dir` the official weights are used, without it random ones of the same form, which take the same time.
Every figure is the median of `--runs`, after one run that isn't counted. On CUDA the device is waited for around each.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from cosyvoice_app.cli.fields import add_engine_arguments, engine_settings
from cosyvoice_app.console import print_json
from cosyvoice_app.engines import registry
from cosyvoice_app.engines.cosyvoice3 import layout
from cosyvoice_app.engines.cosyvoice3.config import (
    FRAMES_PER_TOKEN,
    MELS,
    SPEAKER,
    TOKENS_PER_S,
    ModelConfig,
)
from cosyvoice_app.engines.cosyvoice3.decoding import LmBatch, LmPrompt
from cosyvoice_app.engines.cosyvoice3.engine import resolve_precision
from cosyvoice_app.engines.cosyvoice3.flow import Flow
from cosyvoice_app.engines.cosyvoice3.flow_stream import FlowStream
from cosyvoice_app.engines.cosyvoice3.lm import LM
from cosyvoice_app.engines.cosyvoice3.model import compute_dtype, settle
from cosyvoice_app.engines.cosyvoice3.vocoder import Vocoder
from cosyvoice_app.engines.cosyvoice3.vocoder_stream import VocoderStream
from cosyvoice_app.engines.cosyvoice3.weights import read_state
from cosyvoice_app.engines.device import choose, make_exact
from cosyvoice_app.engines.memory import read_memory
from cosyvoice_app.errors import BadInput
from cosyvoice_app.settings import Settings

NAME = "cosyvoice3"
HELP = "time the cosyvoice3 engine stage by stage: language model, flow, vocoder, whole, streamed"

PROMPT_S = 3
TEXT_TOKENS = 40
FIRST_TOKENS = 28


@dataclass(frozen=True, slots=True)
class Parts:
    """The three networks and how long they took to load."""

    lm: LM
    flow: Flow
    vocoder: Vocoder
    load_s: float


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--runs", type=int, default=5, help="how often each is timed [default: %(default)s]")
    parser.add_argument("--seconds", type=int, default=5, help="of speech a row [default: %(default)s]")
    parser.add_argument("--steps", type=int, default=200, help="of the language model [default: %(default)s]")
    parser.add_argument("--batches", default="1", metavar="N,N", help="rows run together, such as 1,4,16 "
                        "[default: %(default)s]")
    add_engine_arguments(parser)


@torch.inference_mode()
def run(options: argparse.Namespace) -> int:
    for name, least in (("runs", 1), ("seconds", 1), ("steps", 1)):
        if getattr(options, name) < least:
            raise BadInput(f"--{name} is {getattr(options, name)}; it must be at least {least}.", param=name)
    sizes = batches(options.batches)
    settings = engine_settings(options)
    chosen = choose(settings.device, settings.precision)
    make_exact(chosen)
    device, precision = torch.device(chosen.name), resolve_precision(settings, chosen)
    folder = settings.model_dir
    parts = load(folder, device, precision, settings)
    weights = "official" if folder else "random"
    print(f"{chosen.name} ({chosen.reason}), {precision}, {torch.get_num_threads()} threads, {weights} weights, "
          f"loaded in {parts.load_s:.1f} s")
    print(f"{'rows':>5} {'prefill ms':>11} {'LM step ms':>11} {'flow ms':>10} {'vocoder ms':>11} {'RTF':>7} "
          f"{'audio s/s':>10}")
    results = [time_rows(parts, rows, options, settings) for rows in sizes]
    first_ms = time_first(parts, options, settings)
    memory = read_memory(chosen.name)
    if device.type == "cuda":
        memory["device_peak"] = int(torch.cuda.max_memory_allocated(device))
    print(f"first audio, streamed, {FIRST_TOKENS} tokens: {first_ms:.0f} ms")
    print("memory: " + ", ".join(f"{name} {value / 1e9:.2f} GB" for name, value in memory.items()))
    print_json({"bench": NAME, "device": chosen.name, "device_name": chosen.reason, "precision": precision,
                "weights": weights, "threads": torch.get_num_threads(), "seconds": options.seconds,
                "flow_steps": settings.flow_steps, "rows": results, "first_audio_ms": round(first_ms, 1),
                "load_s": round(parts.load_s, 2), "memory": memory}, indent=None)
    return 0


def load(folder: Path | None, device: torch.device, precision: str, settings: Settings) -> Parts:
    """From the official directory, or with random weights when there is none."""
    config, dtype = ModelConfig(), compute_dtype(precision, device)
    if folder is not None:
        names = (registry.LLM_FILES[settings.llm_weights], "flow.pt", "hift.pt")
        states = (read_state(folder / name) for name in names)
    else:
        shapes = (layout.lm_shapes(config.lm), layout.flow_shapes(config.flow), layout.vocoder_shapes(config.vocoder))
        states = (layout.random_state(shape, seed) for seed, shape in enumerate(shapes))
    started = time.perf_counter()
    lm = LM.load(next(states), config.lm, device=device, dtype=dtype, precision=precision, source="llm")
    flow = Flow.load(next(states), config.flow, device=device, dtype=dtype, precision=precision, source="flow")
    vocoder = Vocoder.load(next(states), config.vocoder, device=device, source="hift")
    settle(lm, flow, vocoder, steps=settings.flow_steps)
    return Parts(lm, flow, vocoder, time.perf_counter() - started)


def batches(text: str) -> list[int]:
    """Raises BadInput for anything but whole numbers from 1, with commas between."""
    numbers = [part.strip() for part in text.split(",")]
    if not all(part.isascii() and part.isdigit() and 1 <= int(part) <= 256 for part in numbers):
        raise BadInput(f"--batches is {text!r}; it must be numbers of rows from 1 to 256, such as 1,4,16.",
                       param="batches")
    return [int(part) for part in numbers]


def time_rows(parts: Parts, rows: int, options: argparse.Namespace, settings: Settings) -> dict[str, Any]:
    """Each stage on `rows` rows of `--seconds` of speech in a 3 s voice."""
    prefill_s, step_s = _time_lm(parts.lm, rows, options)
    device, speech = parts.lm.device, options.seconds * TOKENS_PER_S
    tokens, mel, speaker = _voice(device, speech)
    lengths = torch.full((rows,), len(tokens), device=device)
    prompt_frames = torch.full((rows,), len(mel), device=device)
    arguments = (tokens.expand(rows, -1), lengths, mel.expand(rows, -1, -1), prompt_frames, speaker.expand(rows, -1))
    flow_s = _median(lambda: parts.flow(*arguments, steps=settings.flow_steps), options.runs, device)
    made = torch.randn(rows, speech * FRAMES_PER_TOKEN, MELS, device=device)
    frames = torch.full((rows,), made.shape[1], device=device)
    vocoder_s = _median(lambda: parts.vocoder(made, frames), options.runs, device)
    whole_s = prefill_s + speech * step_s + flow_s + vocoder_s
    rtf = whole_s / options.seconds
    print(f"{rows:>5} {1e3 * prefill_s:>11.1f} {1e3 * step_s:>11.2f} {1e3 * flow_s:>10.1f} {1e3 * vocoder_s:>11.1f} "
          f"{rtf:>7.3f} {rows / rtf:>10.2f}", flush=True)
    return {"rows": rows, "prefill_ms": round(1e3 * prefill_s, 2), "step_ms": round(1e3 * step_s, 3),
            "flow_ms": round(1e3 * flow_s, 2), "vocoder_ms": round(1e3 * vocoder_s, 2), "rtf": round(rtf, 4),
            "audio_s_per_s": round(rows / rtf, 3)}


def time_first(parts: Parts, options: argparse.Namespace, settings: Settings) -> float:
    """Milliseconds from a request in a known voice to the first piece of a streamed answer."""
    device = parts.lm.device
    tokens, mel, speaker = _voice(device, 0)
    batch = LmBatch(parts.lm, slots=1, max_positions=1024, sampling=ModelConfig().sampling)

    def first() -> None:
        slot = batch.add(_prompt(FIRST_TOKENS))
        said = [batch.step()[slot] for _ in range(FIRST_TOKENS)]
        batch.release(slot)
        stream = FlowStream(parts.flow, tokens, mel, speaker, steps=settings.flow_steps)
        VocoderStream(parts.vocoder).push(stream.push(torch.tensor(said, device=device), final=False), final=False)

    return 1e3 * _median(first, options.runs, device)


def _time_lm(lm: LM, rows: int, options: argparse.Namespace) -> tuple[float, float]:
    """(prefill, one step) in seconds."""
    batch = LmBatch(lm, slots=rows, max_positions=2048, sampling=ModelConfig().sampling)
    prefills, steps = [], []
    for _ in range(options.runs + 1):
        started = _now(lm.device)
        slots = batch.add_many([_prompt(options.steps + 1, seed) for seed in range(1, rows + 1)])
        filled = _now(lm.device)
        for _ in range(options.steps + 1):  # the first of them only gives out what the prefill drew
            batch.step()
        done = _now(lm.device)
        for slot in slots:
            batch.release(slot)
        prefills.append(filled - started)
        steps.append((done - filled) / options.steps)
    return statistics.median(prefills[1:]), statistics.median(steps[1:])


def _prompt(tokens: int, seed: int = 1) -> LmPrompt:
    speech = tuple(range(100, 100 + PROMPT_S * TOKENS_PER_S))
    return LmPrompt(tuple(range(1000, 1000 + TEXT_TOKENS)), speech, seed, tokens, tokens)


def _voice(device: torch.device, speech: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """A 3 s prompt's tokens with `speech` more after them, its mel, a speaker vector."""
    generator = torch.Generator().manual_seed(1)
    prompt = PROMPT_S * TOKENS_PER_S
    tokens = torch.randint(0, 6561, (prompt + speech,), generator=generator)
    mel = torch.randn(prompt * FRAMES_PER_TOKEN, MELS, generator=generator)
    return tokens.to(device), mel.to(device), torch.randn(SPEAKER, generator=generator).to(device)


def _median(work: Callable[[], object], runs: int, device: torch.device) -> float:
    times = []
    for _ in range(runs + 1):
        started = _now(device)
        work()
        times.append(_now(device) - started)
    return statistics.median(times[1:])


def _now(device: torch.device) -> float:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter()
