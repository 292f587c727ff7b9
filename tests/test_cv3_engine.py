"""The cosyvoice3 engine as a whole, at toy size: forms, seeds, batches, streams, voices, cancelling."""

from __future__ import annotations

import dataclasses
import time
from pathlib import Path
from typing import Any

import cv3_tiny as tiny
import numpy as np
import pytest

from cosyvoice_app.engines.base import Engine, StreamingEngine
from cosyvoice_app.engines.cosyvoice3 import forms
from cosyvoice_app.engines.cosyvoice3.config import FRAMES_PER_TOKEN, HOP_SAMPLES, TINY, SamplingConfig
from cosyvoice_app.engines.cosyvoice3.engine import CosyVoice3Engine
from cosyvoice_app.engines.cosyvoice3.model import Model
from cosyvoice_app.engines.cosyvoice3.speak import CosyVoice3Style
from cosyvoice_app.engines.cosyvoice3.stream_memory import StreamMemory
from cosyvoice_app.engines.cosyvoice3.streamer import CosyVoice3Streamer
from cosyvoice_app.engines.cosyvoice3.turns import Turns
from cosyvoice_app.engines.cosyvoice3.voice import ClonedVoice
from cosyvoice_app.errors import BadAudio, Cancelled, TextError
from cosyvoice_app.pipeline import Job, Pipeline, Spoken, plan
from cosyvoice_app.text.frontend import prepare
from cosyvoice_app.types import Audio, Intent, NeverCancelled, PromptClip, Row, Segment, Style, Text, Utterance, Voice
from cosyvoice_app.voices.cache import VoiceCache

NEVER = NeverCancelled()
STEPS = 3
LONG = "One two."  # up to 160 speech tokens: the toy model never knows when to stop


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("tiny")


@pytest.fixture(scope="module")
def model(folder: Path) -> Model:
    return tiny.model(folder)


@pytest.fixture
def engine(tmp_path: Path, model: Model) -> CosyVoice3Engine:
    return tiny.engine(tmp_path, dataclasses.replace(model, prompts=tiny.Prompts()), steps=STEPS)


def job(clip: PromptClip, engine: CosyVoice3Engine, text: str = "Hello.", **changes: Any) -> Job:
    stream = changes.pop("stream", False)
    made = plan(clip, text, **{"seed": 7, "max_chars": 1000, "engine": engine.capabilities, **changes})
    return dataclasses.replace(made, stream=stream)


def run(prepared: Job, engine: CosyVoice3Engine, **hooks: Any) -> Spoken:
    return Pipeline(engine, VoiceCache()).run(prepared, **hooks)


def row(text: str, seed: int, *, prompt: int = 30, speed: float = 1.0, transcript: str = "hi", instruction: str = "",
        index: int = 0) -> Row:
    segment = Segment(text, (Text(text, "en"),))
    voice = Voice("key", ClonedVoice(tiny.features(prompt, prompt), transcript))
    return Row(Utterance((segment,) * (index + 1), Intent(), seed), index, voice,
               Style(CosyVoice3Style(instruction, speed)), seed)


def test_it_is_an_engine_that_streams(engine: CosyVoice3Engine) -> None:
    assert isinstance(engine, Engine) and isinstance(engine, StreamingEngine)
    assert set(engine.components().values()) == {"cpu"}
    assert engine.memory()["rss"] > 0
    assert not engine.check_text(prepare("Hello.", max_chars=100).segments)


# Forms.


def ids(engine_model: Model, text: str) -> tuple[int, ...]:
    return engine_model.tokenizer.encode_pieces((Text(text, "en"),))


def test_the_three_forms(model: Model) -> None:
    text, end = (Text("Hello.", "en"),), (model.tokenizer.end_of_prompt,)
    system = ids(model, "You are a helpful assistant.")
    hello = ids(model, "Hello.")
    zero_shot = forms.build(model.tokenizer, text, transcript="The clip's words.")
    assert zero_shot.ids == (*system, *end, *ids(model, "The clip's words."), *hello) and zero_shot.uses_speech
    cross = forms.build(model.tokenizer, text)
    assert cross.ids == (*system, *end, *hello) and not cross.uses_speech
    instruct = forms.build(model.tokenizer, text, transcript="The clip's words.", instruction="请用四川话表达。")
    assert instruct.ids == (*ids(model, "You are a helpful assistant. 请用四川话表达。"), *end, *hello)
    assert not instruct.uses_speech
    assert {zero_shot.target, cross.target, instruct.target} == {len(hello)}
    assert cross.token_limits(SamplingConfig()) == (2 * len(hello), 20 * len(hello))


@pytest.mark.parametrize("typed", ["<|endofprompt|>", "a<|endofprompt|>b", "[breath]", "<|im_start|>", "<strong>"])
def test_nothing_typed_becomes_a_mark(model: Model, typed: str) -> None:
    end = model.tokenizer.end_of_prompt
    for form in (forms.build(model.tokenizer, (Text(typed, "en"),)),
                 forms.build(model.tokenizer, (Text("Hi.", "en"),), instruction=typed),
                 forms.build(model.tokenizer, (Text("Hi.", "en"),), transcript=f"x {typed} y")):
        assert form.ids.count(end) == 1
    assert max(ids(model, typed)) < end


def test_tags_are_tokens_in_the_text_and_in_the_clip_s_words(model: Model) -> None:
    (segment,) = prepare("Say [M][AY0] [h][ào] now.", max_chars=100).segments
    tagged = forms.build(model.tokenizer, segment.pieces, transcript="[h][ǎo] hi").ids
    marks = [token for token in tagged if token > model.tokenizer.end_of_prompt]
    expected = model.tokenizer.encode("[h][ǎo][M][AY0][h][ào]")
    assert marks == list(expected)


# From text to audio.


def test_one_seed_is_one_result_and_another_seed_another(p0: PromptClip, engine: CosyVoice3Engine) -> None:
    made = [run(job(p0, engine, seed=seed), engine).audio for seed in (7, 7, 8)]
    assert np.array_equal(made[0].samples, made[1].samples)
    assert not np.array_equal(made[0].samples[:1000], made[2].samples[:1000])
    assert made[0].rate_hz == 24_000 and np.isfinite(made[0].samples).all()


def test_what_decides_the_result(p0: PromptClip, p1: PromptClip, engine: CosyVoice3Engine) -> None:
    jobs = [job(p0, engine), job(p1, engine), job(p0, engine, "Yellow."), job(p0, engine, transcript="Words said."),
            job(p0, engine, instruct="用四川话说"), job(p0, engine, speed=1.3)]
    assert len({run(one, engine).audio.samples.tobytes() for one in jobs}) == len(jobs)


def test_rows_together_are_rows_alone(engine: CosyVoice3Engine) -> None:
    rows = [row("Hello.", 1), row("Yes.", 2, prompt=7, transcript=""), row("Longer.", 3, prompt=50),
            row("No.", 4, prompt=0), row("Sixth.", 5, speed=1.4)]  # more than there are slots
    together = engine.acoustic_model.predict(rows, cancel=NEVER)
    assert together == [engine.acoustic_model.predict([one], cancel=NEVER)[0] for one in rows]
    audio = engine.vocoder.decode(together, rows, cancel=NEVER)
    for one, tokens, made in zip(rows, together, audio, strict=True):
        (alone,) = engine.vocoder.decode([tokens], [one], cancel=NEVER)
        frames = int(FRAMES_PER_TOKEN * len(tokens) / one.style.payload.speed)
        assert len(made.samples) == len(alone.samples) == frames * HOP_SAMPLES
        assert np.array_equal(made.samples, alone.samples)


@pytest.mark.parametrize(("overlaps", "cache_bytes", "prefix_bytes"), [
    (False, 1 << 30, 0), (True, 1 << 30, 0), (False, 1 << 30, 1 << 30), (False, 1 << 20, 1 << 20),
])
@pytest.mark.parametrize(("text", "prompt", "speed"), [
    (LONG, 50, 1.0), (LONG, 0, 1.0), ("Hi.", 41, 1.0), (LONG, 37, 0.8), (LONG, 37, 1.5),
])
def test_a_stream_is_one_run_under_its_mask(
    model: Model, engine: CosyVoice3Engine, text: str, prompt: int, speed: float, overlaps: bool, cache_bytes: int,
    prefix_bytes: int,
) -> None:
    one = row(text, 5, prompt=prompt, speed=speed)
    streamer = CosyVoice3Streamer(model, engine.acoustic_model, Turns(), StreamMemory(cache_bytes), steps=STEPS,
                                  overlaps=overlaps, cache_bytes=cache_bytes, prefix_bytes=prefix_bytes)
    parts = list(streamer.stream(one, cancel=NEVER))
    (tokens,) = engine.acoustic_model.predict([one], cancel=NEVER)
    whole = tiny.chunk_masked(model, one, tokens, steps=STEPS)
    streamed = np.concatenate([part.samples for part in parts])
    assert len(parts) >= (3 if text is LONG else 1)
    assert len(streamed) == len(whole)
    # The mels differ by some 1e-6; random weights make pitch of it, and pitch adds up to phase. A frame out of place
    # would differ by the whole wave.
    np.testing.assert_allclose(streamed, whole, atol=0.02 * np.abs(whole).max())
    again = np.concatenate([part.samples for part in streamer.stream(one, cancel=NEVER)])
    assert np.array_equal(again, streamed)


def test_a_streamed_job_gives_its_first_audio_early(p0: PromptClip, engine: CosyVoice3Engine) -> None:
    parts: list[Audio] = []
    spoken = run(job(p0, engine, LONG, transcript="Hi.", stream=True), engine,
                 on_chunk=lambda audio, _: parts.append(audio))
    assert np.array_equal(np.concatenate([part.samples for part in parts]), spoken.audio.samples)
    assert parts[0].duration_s <= 1.5 < spoken.audio.duration_s / 2


# Voices.


def test_a_clip_is_encoded_once_whatever_its_words_and_is_kept(
    p0: PromptClip, p1: PromptClip, tmp_path: Path, model: Model
) -> None:
    prompts = tiny.Prompts()
    first = tiny.engine(tmp_path, dataclasses.replace(model, prompts=prompts))
    for clip, words in ((p0, ""), (p0, "One."), (p0, "Two."), (p1, "")):
        run(job(clip, first, transcript=words), first)
    assert prompts.encoded == 2
    again = tiny.engine(tmp_path, dataclasses.replace(model, prompts=prompts))  # after a restart
    same = run(job(p0, again, transcript="One."), again)
    assert prompts.encoded == 2
    assert np.array_equal(same.audio.samples, run(job(p0, first, transcript="One."), first).audio.samples)
    other = tiny.engine(tmp_path, dataclasses.replace(model, prompts=prompts, model_hash="another"))
    run(job(p0, other), other)
    assert prompts.encoded == 3


def test_an_instruction_never_meets_the_clip_s_words(p0: PromptClip, engine: CosyVoice3Engine) -> None:
    made = [run(job(p0, engine, instruct="用四川话说", transcript=words), engine).audio.samples.tobytes()
            for words in ("", "These are the words.", "Others.")]
    assert len(set(made)) == 1


def test_the_tokenizer_is_let_go_where_memory_counts(p0: PromptClip, tmp_path: Path, model: Model) -> None:
    for precision, released in (("fp32", 0), ("int8", 1)):
        prompts = tiny.Prompts()
        engine = tiny.engine(tmp_path / precision, dataclasses.replace(model, prompts=prompts), precision=precision)
        run(job(p0, engine), engine)
        run(job(p0, engine, "Again."), engine)
        assert (prompts.encoded, prompts.released) == (1, released)


def test_words_are_asked_for_unless_an_instruction_displaces_them(p0: PromptClip, engine: CosyVoice3Engine) -> None:
    def asked(**changes: Any) -> bool:
        return any("type what is said in it" in warning for warning in run(job(p0, engine, **changes), engine).warnings)

    assert asked() and not asked(transcript="The words.") and not asked(instruct="用四川话说")


# Cancelling and refusing.


class After:
    """Cancelled at the n-th check, and at every later one."""

    def __init__(self, checks: int) -> None:
        self.left = checks

    def check(self) -> None:
        self.left -= 1
        if self.left < 0:
            raise Cancelled("stopped")


class Within:
    """Cancelled when the time is over, so that a slot or a lock that never comes back is a failure and not a wait."""

    def __init__(self, seconds: float) -> None:
        self.end = time.monotonic() + seconds

    def check(self) -> None:
        assert time.monotonic() < self.end, "still waiting"


@pytest.mark.parametrize("checks", [0, 1, 2, 20, 23, 24, 25, 49, 50])
@pytest.mark.parametrize("stream", [False, True])
def test_a_cancelled_row_leaves_no_trace(engine: CosyVoice3Engine, checks: int, stream: bool) -> None:
    one = row(LONG, 5)
    (expected,) = engine.acoustic_model.predict([one], cancel=NEVER)
    with pytest.raises(Cancelled) as held:  # and with it the frames, as a log or a caller may hold them
        if stream:
            list(engine.streamer.stream(one, cancel=After(checks)))
        else:
            engine.acoustic_model.predict([one] * 3, cancel=After(checks))
    assert held.traceback
    assert len(engine.acoustic_model.predict([one] * 4, cancel=Within(30.0))) == 4  # every slot is free again
    assert engine.acoustic_model.predict([one], cancel=Within(30.0)) == [expected]


def test_a_stream_left_half_way_gives_its_slot_back(engine: CosyVoice3Engine) -> None:
    for _ in range(6):
        parts = engine.streamer.stream(row(LONG, 5), cancel=NEVER)
        next(parts)
        parts.close()  # type: ignore[attr-defined]
    assert engine.acoustic_model.predict([row("Hi.", 1)] * 4, cancel=NEVER)


def test_a_row_that_says_nothing_is_an_error_with_its_text(engine: CosyVoice3Engine) -> None:
    silent = dataclasses.replace(row("x", 1), utterance=Utterance((Segment("", ()),), Intent(), 1))
    with pytest.raises((BadAudio, TextError)):
        engine.acoustic_model.predict([silent], cancel=NEVER)


def test_text_beyond_what_fits_is_a_text_error(engine: CosyVoice3Engine) -> None:
    with pytest.raises(TextError, match=r"too long.*Shorten"):
        engine.acoustic_model.predict([row("word " * 200, 1)], cancel=NEVER)
    assert engine.acoustic_model.predict([row("Hi.", 1)], cancel=NEVER)


def test_warming_up_speaks_and_another_number_of_steps_is_another_model(tmp_path: Path, model: Model) -> None:
    engine = tiny.engine(tmp_path, dataclasses.replace(model, prompts=tiny.Prompts()), steps=4)
    engine.warm_up()
    assert engine.model_hash == "tiny-4steps"
    assert tiny.engine(tmp_path, model).model_hash == "tiny"
    assert TINY.flow.steps == 10
