"""The pipeline in one process, with the tone engine: what decides the result, and what must not."""

from __future__ import annotations

import dataclasses
import sys
import zlib
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from engines_for_tests import QuickTone

from cosyvoice_app.assets import official
from cosyvoice_app.engines import device, registry
from cosyvoice_app.engines.failure import is_poisonous, translate
from cosyvoice_app.engines.tone import ToneEngine, ToneVocoder, frequency_hz
from cosyvoice_app.errors import (
    BadAudio,
    BadInput,
    Cancelled,
    ConfigError,
    DeviceError,
    EngineFailure,
    OutOfMemory,
    TextError,
    is_out_of_memory,
)
from cosyvoice_app.pipeline import (
    INSTRUCT_MAX_CHARS,
    PROMPT_TEXT_MAX_CHARS,
    Job,
    Pipeline,
    Spoken,
    plan,
    segment_seed,
)
from cosyvoice_app.settings import Settings
from cosyvoice_app.types import Audio, Intent, Progress, PromptClip, Row, Segment, Style, Text, Utterance
from cosyvoice_app.voices.cache import VoiceCache

THREE_SENTENCES = "The first sentence is here. The second one follows it closely. And the third one ends the text. " * 2


def job(clip: PromptClip, text: str = "Hello there.", **changes: Any) -> Job:
    return plan(clip, text, **{"seed": 7, "max_chars": 1000, **changes})


def run(prepared: Job, engine: ToneEngine | None = None, **hooks: Any) -> Spoken:
    return Pipeline(engine or QuickTone(), VoiceCache()).run(prepared, **hooks)


def two_segments(clip: PromptClip, pause_ms: int) -> Job:
    segments = (Segment("one.", (Text("one.", "en"),), pause_ms), Segment("two.", (Text("two.", "en"),), 999))
    return dataclasses.replace(job(clip), segments=segments)


def test_the_tone_is_a_hash_of_text_clip_instruct_and_seed(p0: PromptClip) -> None:
    prepared = job(p0, "Hello there.", instruct="speak gently")
    audio = run(prepared).audio
    said = "".join(s.text for s in prepared.segments) + p0.sha256 + "speak gently" + "7"
    expected_hz = 300 + (zlib.crc32(said.encode()) % 100_003) / 50
    spectrum = np.abs(np.fft.rfft(audio.samples, 1 << 20))
    assert spectrum.argmax() * audio.rate_hz / (1 << 20) == pytest.approx(expected_hz, abs=0.5)
    assert np.abs(audio.samples).max() == pytest.approx(0.3, abs=0.001)
    assert audio.duration_s == pytest.approx(0.05 * len("".join(s.text for s in prepared.segments)), abs=1e-3)


def test_everything_that_should_matter_matters_and_nothing_else_does(p0: PromptClip, p1: PromptClip) -> None:
    base = run(job(p0)).audio.samples.tobytes()
    assert run(job(p0)).audio.samples.tobytes() == base
    assert run(job(p0, instruct="   ")).audio.samples.tobytes() == base
    renamed = dataclasses.replace(p0, container="flac", report={})
    assert run(job(renamed)).audio.samples.tobytes() == base
    others = [job(p1), job(p0, "Hello where."), job(p0, instruct="sadly"), job(p0, seed=8)]
    made = {run(other).audio.samples.tobytes() for other in others}
    assert len(made | {base}) == 5


def test_segments_are_joined_with_their_pauses_and_none_at_the_end(p0: PromptClip) -> None:
    chunks: list[tuple[int, Audio]] = []
    spoken = run(two_segments(p0, 250), on_chunk=lambda audio, index: chunks.append((index, audio)))
    assert [index for index, _ in chunks] == [0, 1]
    assert np.array_equal(np.concatenate([audio.samples for _, audio in chunks]), spoken.audio.samples)
    assert spoken.audio.duration_s == pytest.approx(0.2 + 0.25 + 0.2)
    assert not chunks[0][1].samples[-6000:].any()


def test_the_instruct_reaches_the_engine_exactly(p0: PromptClip) -> None:
    engine = QuickTone()
    for instruct in ("用开心的语气说", "Speak slowly and sadly.", ""):
        run(job(p0, instruct=instruct), engine)
    assert engine.instructs == ("用开心的语气说", "Speak slowly and sadly.", "")


@pytest.mark.parametrize("seed", [9001, 9002, 9003, 9004, 9005])
def test_broken_audio_is_never_a_result(p0: PromptClip, seed: int) -> None:
    with pytest.raises(BadAudio, match="no usable audio"):
        run(job(p0, seed=seed))


@pytest.mark.parametrize(("seed", "rate_hz"), [(9008, 16_000), (9009, 44_100)])
def test_the_rate_and_level_are_the_engine_s(p0: PromptClip, seed: int, rate_hz: int) -> None:
    audio = run(job(p0, "Hi.", seed=seed)).audio
    assert (audio.rate_hz, len(audio.samples)) == (rate_hz, rate_hz)
    assert 20 * np.log10(np.abs(audio.samples).max()) == pytest.approx(-30.0, abs=0.01)


def test_out_of_memory_is_told_as_such_and_the_engine_goes_on(p0: PromptClip) -> None:
    engine = QuickTone()
    with pytest.raises(OutOfMemory, match=r"memory.*shorter text"):
        run(job(p0, seed=9006), engine)
    assert run(job(p0), engine).audio.samples.any()


def test_a_voice_is_made_once_per_content(p0: PromptClip) -> None:
    pipeline = Pipeline(QuickTone(), VoiceCache())
    cached = [pipeline.run(made).voice_cached for made in (
        job(p0), job(p0, "Another text."), job(p0, transcript="words"), job(p0, refine="off"), job(p0))]
    assert cached == [False, True, False, False, True]


def test_the_voice_cache_forgets_what_was_used_longest_ago(p0: PromptClip, p1: PromptClip) -> None:
    pipeline = Pipeline(QuickTone(), VoiceCache(most_bytes=1))
    assert [pipeline.run(job(clip)).voice_cached for clip in (p0, p0, p1, p0)] == [False, True, False, False]
    with pytest.raises(ValueError, match="negative"):
        VoiceCache(-1)


class CancelAfter:
    def __init__(self, checks: int) -> None:
        self.left = checks

    def check(self) -> None:
        self.left -= 1
        if self.left < 0:
            raise Cancelled("stop")


@pytest.mark.parametrize("checks", [0, 1, 5])
def test_cancel_stops_at_the_next_step(p0: PromptClip, checks: int) -> None:
    token = CancelAfter(checks)
    with pytest.raises(Cancelled):
        run(job(p0, seed=9010), cancel=token)
    assert token.left == -1


def test_progress_never_runs_backwards(p0: PromptClip) -> None:
    seen: list[Progress] = []
    run(job(p0, THREE_SENTENCES), on_progress=seen.append)
    speaking = [p.fraction for p in seen if p.stage == "speaking"]
    assert speaking == sorted(speaking)
    assert speaking[0] == 0.0


class TwoRates(ToneVocoder):
    def decode(self, features: Sequence[Any], rows: Sequence[Row], *, cancel: Any) -> list[Audio]:
        return [Audio(a.samples, a.rate_hz + row.index)
                for a, row in zip(super().decode(features, rows, cancel=cancel), rows, strict=True)]


class Raising(ToneVocoder):
    def __init__(self, error: Exception) -> None:
        self._error = error

    def decode(self, features: Sequence[Any], rows: Sequence[Row], *, cancel: Any) -> list[Audio]:
        raise self._error


def with_vocoder(vocoder: ToneVocoder) -> ToneEngine:
    engine = QuickTone()
    engine.vocoder = vocoder
    return engine


def test_an_engine_that_changes_its_rate_is_refused(p0: PromptClip) -> None:
    with pytest.raises(BadAudio, match="24000, 24001 Hz"):
        run(two_segments(p0, 0), with_vocoder(TwoRates()))


class OutOfMemoryError(RuntimeError):
    """Named as torch's is."""


@pytest.mark.parametrize(("raised", "told"), [
    (ValueError("shape [3] is wrong"), EngineFailure),
    (MemoryError(), OutOfMemory),
    (OutOfMemoryError("x"), OutOfMemory),
    (RuntimeError("CUDA out of memory. Tried to allocate"), OutOfMemory),
    (RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried"), OutOfMemory),
    (TextError("no"), TextError),
])
def test_what_an_engine_raises_leaves_as_an_error_of_the_product(
    p0: PromptClip, raised: Exception, told: type[Exception]
) -> None:
    with pytest.raises(told) as caught:
        run(job(p0), with_vocoder(Raising(raised)))
    assert type(caught.value) is told


def test_only_a_lost_device_asks_for_a_new_process() -> None:
    assert is_poisonous(RuntimeError("CUDA error: an illegal memory access was encountered"))
    assert not is_poisonous(RuntimeError("CUDA error: out of memory"))
    assert not is_poisonous(ValueError("shape"))
    assert is_out_of_memory(OutOfMemory("x"))
    assert "ValueError: shape" in translate(ValueError("shape")).message


@pytest.mark.parametrize(("field", "value"), [("seed", 0), ("seed", 100_000_001), ("speed", 0.4), ("speed", 2.1)])
def test_numbers_out_of_range_are_refused_with_the_range(p0: PromptClip, field: str, value: float) -> None:
    with pytest.raises(BadInput, match="allowed") as caught:
        job(p0, **{field: value})
    assert caught.value.param == field


@pytest.mark.parametrize(("argument", "param", "most"), [
    ("instruct", "instruct", INSTRUCT_MAX_CHARS), ("transcript", "prompt_text", PROMPT_TEXT_MAX_CHARS),
])
def test_words_beside_the_text_are_refused_by_their_own_name(
    p0: PromptClip, argument: str, param: str, most: int
) -> None:
    assert job(p0, **{argument: " " + "慢" * most + "\n"})
    with pytest.raises(BadInput, match=f"{param} has {most + 1} characters; at most {most}") as caught:
        job(p0, **{argument: "慢" * (most + 1)})
    assert caught.value.param == param and not isinstance(caught.value, TextError)


@pytest.mark.parametrize("displaces", [False, True])
def test_the_clip_s_words_are_asked_for_where_they_would_be_used(p0: PromptClip, displaces: bool) -> None:
    class Styles:
        def encode(self, intent: Intent, *, speed: float) -> Style:
            return Style(None, displaces_words=displaces)

    engine = QuickTone()
    engine.capabilities = dataclasses.replace(engine.capabilities, needs_transcript=True)
    engine.style_encoder = Styles()  # type: ignore[assignment]
    asked = [any("type what is said in it" in warning for warning in run(job(p0, **words), engine).warnings)
             for words in ({"instruct": "慢一点"}, {"transcript": "The words."})]
    assert asked == [not displaces, False]


def test_segment_seeds_differ_and_are_fixed_for_ever() -> None:
    assert [segment_seed(42, index) for index in (0, 1)] == [segment_seed(42, index) for index in (0, 1)]
    assert segment_seed(42, 0) == 708_420_325
    assert len({segment_seed(seed, index) for seed in range(1, 50) for index in range(20)}) == 49 * 20


def test_the_tone_s_pitch_stays_in_its_range(p0: PromptClip) -> None:
    pitches = [frequency_hz(Utterance((Segment("x", ()),), Intent(), seed, prompt_sha256=p0.sha256))
               for seed in range(1, 200)]
    assert 300 <= min(pitches) and max(pitches) <= 2301
    assert len(set(pitches)) > 190


# The registry and the device.


@pytest.mark.parametrize(("name", "says"), [
    ("nothing", "allowed: auto, lite"), ("no.such.module:Engine", "no module"),
    ("engines_for_tests:Missing", "has no 'Missing'"), ("engines_for_tests:NotAnEngine", "is not an engine: it lacks"),
])
def test_a_wrong_engine_name_says_what_is_wrong(name: str, says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        registry.create(Settings(engine=name))


def test_auto_says_why(tmp_path: Any) -> None:
    name, why = registry.resolve_name(Settings(engine="auto", model_dir=tmp_path))
    assert name == "lite"
    assert str(tmp_path) in why and "llm.pt" in why
    for file in official.FILES:
        (tmp_path / file.name).parent.mkdir(exist_ok=True)
        (tmp_path / file.name).write_text("x")
    name, why = registry.resolve_name(Settings(engine="auto", model_dir=tmp_path))
    assert (name, why) == ("cosyvoice3", f"{tmp_path} holds the official files")


def test_any_class_that_satisfies_the_protocol_can_be_named() -> None:
    assert registry.create(Settings(engine="engines_for_tests:QuickTone")).name == "tone"


class FakeTorch:
    """As much of torch as `device` looks at."""

    __version__ = "9.9"

    def __init__(self, *, build: str | None = "13.0", count: int = 1, capability: tuple[int, int] = (9, 0),
                 archs: tuple[str, ...] = ("sm_80", "sm_90"), error: str = "") -> None:
        self.version = type("version", (), {"cuda": build, "hip": None})
        outer = self

        class cuda:
            @staticmethod
            def is_available() -> bool:
                return not error and count > 0

            @staticmethod
            def device_count() -> int:
                return count

            @staticmethod
            def init() -> None:
                if error:
                    raise RuntimeError(error)

            @staticmethod
            def get_device_capability(_: object) -> tuple[int, int]:
                return capability

            @staticmethod
            def get_device_name(_: object) -> str:
                return "Card"

            @staticmethod
            def get_arch_list() -> list[str]:
                return list(archs)

        outer.cuda = cuda  # type: ignore[attr-defined]


@pytest.mark.parametrize(("torch", "visible", "cause"), [
    (FakeTorch(build=None), None, "CPU-only build"),
    (FakeTorch(), "", "CUDA_VISIBLE_DEVICES is '', which hides every GPU"),
    (FakeTorch(error="The NVIDIA driver on your system is too old (found version 11040)"), None, "driver is too old"),
    (FakeTorch(error="Found no NVIDIA driver on your system."), None, "no NVIDIA driver"),
    (FakeTorch(capability=(5, 2)), None, "capability 5.2"),
])
def test_cuda_without_a_usable_gpu_names_the_cause(
    monkeypatch: pytest.MonkeyPatch, torch: FakeTorch, visible: str | None, cause: str
) -> None:
    monkeypatch.setitem(sys.modules, "torch", torch)
    if visible is None:
        monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    else:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    with pytest.raises(DeviceError, match="can't be used") as caught:
        device.choose("cuda")
    assert cause in caught.value.message
    auto = device.choose("auto")
    assert auto.name == "cpu"
    assert cause in auto.reason


def test_a_usable_gpu_is_taken_and_a_wrong_number_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch", FakeTorch(archs=("sm_80", "compute_80")))
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    assert device.choose("auto") == device.Device("cuda:0", "Card, found")
    with pytest.raises(DeviceError, match="no GPU number 3: 1 is visible"):
        device.choose("cuda:3")
    with pytest.raises(ConfigError, match="allowed: auto"):
        device.choose("gpu")
    with pytest.raises(ConfigError, match="fp16 needs a GPU"):
        device.choose("cpu", "fp16")
