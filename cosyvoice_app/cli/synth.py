"""`synth`: one text in one voice."""

from __future__ import annotations

import argparse
import os
import uuid
from pathlib import Path
from typing import Any

from cosyvoice_app.audio.encode import EXTENSIONS, encode
from cosyvoice_app.cli.fields import (
    add_engine_arguments,
    engine_settings,
    plan_options,
    read_clip,
    read_seed,
    read_speed,
    read_text,
)
from cosyvoice_app.console import print_json, warn
from cosyvoice_app.errors import AppError, BadInput
from cosyvoice_app.local import LocalEngine
from cosyvoice_app.outputs import OutputStore, describe, write_synced
from cosyvoice_app.pipeline import EngineFacts, Job, Spoken, plan
from cosyvoice_app.settings import Settings
from cosyvoice_app.types import Audio, PromptClip
from cosyvoice_app.voices.library import VoiceLibrary

NAME = "synth"
HELP = "say a text in the voice of a clip"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    voice = parser.add_mutually_exclusive_group(required=True)
    voice.add_argument("--prompt", type=Path, metavar="FILE", help="the clip whose voice to take, 3-15 s of speech")
    voice.add_argument("--voice", metavar="ID", help="a saved voice instead of a clip")
    parser.add_argument("--text", required=True, help='what to say; "-" reads standard input')
    parser.add_argument("--prompt-text", default="", help="what is said in the clip (some engines come closer with it)")
    parser.add_argument("--instruct", default="", help='how to say it, such as "speak gently" or "加快语速"')
    parser.add_argument("--seed", default="", help="1 to 100000000; same seed, same audio [default: random]")
    parser.add_argument("--speed", default="", help="0.5 to 2 [default: 1]")
    parser.add_argument("--out", type=Path, metavar="FILE",
                        help=f"write here, in the format of its ending ({', '.join(EXTENSIONS)}) "
                             "[default: a new file in --outputs, with a .json beside it]")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    add_engine_arguments(parser)


def run(options: argparse.Namespace) -> int:
    settings = engine_settings(options)
    text = read_text(options.text)
    clip, words = _voice(options, settings)
    seed = read_seed(options.seed)
    job = plan(clip, text, seed=seed, transcript=words, instruct=options.instruct, speed=read_speed(options.speed),
               **plan_options(settings))
    # Everything that can be wrong with the call is found out before a model is loaded.
    audio_format = _format_of(options.out) if options.out is not None else ""
    store = OutputStore(settings.outputs) if options.out is None else None
    with LocalEngine(settings) as local:
        spoken = local.run(job)
        facts = local.facts
    if store is not None:
        path = store.save(spoken.audio, describe(text, job, spoken, facts, spoken.timings))
    else:
        path = write_file(options.out, encode(spoken.audio, audio_format))
    report = _report(path, text, job, spoken, facts)
    report["seed_was_random"] = not options.seed.strip()
    if options.json:
        print_json(report)
    else:
        for message in spoken.warnings:
            warn(message)
        print(path)
        print(f"seed {seed}, {_summary(spoken.audio, spoken.timings)}, {facts.engine} on {facts.device}")
    return 0


def write_file(path: Path, data: bytes) -> Path:
    """Write whole or not at all, replacing what was there: the caller named this very file. Raises AppError."""
    part = path.with_name(f".unfinished-{uuid.uuid4().hex}.tmp")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            write_synced(part, data)
            os.replace(part, path)
        finally:
            part.unlink(missing_ok=True)
    except OSError as error:
        raise AppError(f"{path} can't be written: {error.strerror or error}.") from error
    return path.resolve()


def _voice(options: argparse.Namespace, settings: Settings) -> tuple[PromptClip, str]:
    if options.voice is None:
        return read_clip(options.prompt), options.prompt_text
    clip, words = VoiceLibrary(settings).load(options.voice)
    return clip, options.prompt_text or words


def _format_of(path: Path) -> str:
    ending = path.suffix.lower().lstrip(".") or "none"
    if ending not in EXTENSIONS:
        raise BadInput(f"--out ends in {ending!r}; allowed: {', '.join(EXTENSIONS)}.", param="out")
    return ending


def _report(path: Path, text: str, job: Job, spoken: Spoken, facts: EngineFacts) -> dict[str, Any]:
    return {"path": str(path), "duration_s": round(spoken.audio.duration_s, 6), "rate_hz": spoken.audio.rate_hz,
            **describe(text, job, spoken, facts, spoken.timings)}


def _summary(audio: Audio, timings: dict[str, float]) -> str:
    return f"{audio.duration_s:.2f} s of audio in {timings['total_s']:.2f} s (RTF {timings['rtf']:.2f})"
