"""Cloning with the real weights: nearer to the clip, the words kept, the same again, and nothing worse when it
fails.
"""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import pytest
import torch
import torchaudio.functional as AF
from clips import P0_TEXT, P1_TEXT
from safetensors import SafetensorError

from cosyvoice_app import assets
from cosyvoice_app.engines.lite import adapt, clone
from cosyvoice_app.engines.lite.clone import LiteSpeakerEncoder
from cosyvoice_app.engines.lite.engine import LiteEngine
from cosyvoice_app.engines.lite.model import LiteModel, Prosody, Resonance
from cosyvoice_app.engines.lite.voice import VoiceStore
from cosyvoice_app.errors import Cancelled, TextError
from cosyvoice_app.pipeline import Pipeline, plan
from cosyvoice_app.settings import Settings
from cosyvoice_app.types import NeverCancelled, Progress, Row, Utterance, ignore_progress
from cosyvoice_app.voices.cache import VoiceCache

pytestmark = pytest.mark.weights

ENGLISH = "Please bring three bags of rice and a bottle of water before dinner."
MANDARIN = "晚饭前请带三袋米和一瓶水回来。"


@pytest.fixture(scope="module")
def model() -> LiteModel:
    return LiteModel.load(None, torch.device("cpu"), torch.float32)


@pytest.fixture
def encoder(model: LiteModel, tmp_path: Path) -> LiteSpeakerEncoder:
    return LiteSpeakerEncoder(model, VoiceStore(tmp_path / "voices", model.decoder.generator))


@pytest.fixture(scope="module")
def engine(model: LiteModel, tmp_path_factory: pytest.TempPathFactory) -> LiteEngine:
    store = VoiceStore(tmp_path_factory.mktemp("voices"), model.decoder.generator)
    return LiteEngine(model, store, device_reason="test", precision="fp32")


def speak(engine: LiteEngine, clip, text: str, **options):
    job = plan(clip, text, max_chars=200, **{"seed": 42, "refine": "off", **options})
    return Pipeline(engine, VoiceCache()).run(job)


def likeness(model: LiteModel, samples: np.ndarray, rate_hz: int, clip) -> float:
    vectors = []
    for x, rate in ((samples, rate_hz), (clip.samples, clip.rate_hz)):
        vectors.append(model.speaker.embed(AF.resample(torch.from_numpy(x), rate, 16_000)[None])[0])
    return float(vectors[0] @ vectors[1])


def test_the_same_request_gives_the_same_samples_and_another_seed_does_not(engine, p0):
    one, other, again = (speak(engine, p0, ENGLISH, seed=s).audio.samples for s in (42, 43, 42))
    assert np.array_equal(one, again)
    assert len(one) != len(other) or not np.allclose(one, other)


def test_instruct_changes_the_length_and_a_dialect_is_refused_aloud(engine, p0):
    fast = speak(engine, p0, ENGLISH, instruct="请用尽可能快的语速说")
    slow = speak(engine, p0, ENGLISH, instruct="请用尽可能慢的语速说")
    assert fast.audio.duration_s / slow.audio.duration_s <= 0.8
    told = speak(engine, p0, ENGLISH, instruct="用四川话说")
    assert any("四川话" in w for w in told.warnings)
    assert np.array_equal(told.audio.samples, speak(engine, p0, ENGLISH).audio.samples)


@pytest.mark.parametrize(("which", "text", "words"), [("p0", ENGLISH, P0_TEXT), ("p1", MANDARIN, P1_TEXT)])
def test_a_fit_brings_the_voice_nearer_and_keeps_the_words(engine, model, request, monkeypatch, which, text, words):
    clip = request.getfixturevalue(which)
    monkeypatch.setattr(clone, "FAST", dataclasses.replace(adapt.FAST, steps=8, pieces=4))
    seen: list[Progress] = []
    job = plan(clip, text, seed=42, max_chars=200, refine="fast", transcript=words)
    fitted = Pipeline(engine, VoiceCache()).run(job, on_progress=seen.append)
    plain = speak(engine, clip, text)
    before, after = (likeness(model, s.audio.samples, s.audio.rate_hz, clip) for s in (plain, fitted))
    assert after > before + 0.15
    assert abs(fitted.audio.duration_s - plain.audio.duration_s) < 0.2
    assert any("words were found" in n for n in fitted.notes)
    fractions = [p.fraction for p in seen if p.stage == "fitting"]
    assert fractions == sorted(fractions) and fractions[-1] == 1.0


def test_a_voice_comes_back_from_disk_as_it_was(model, encoder, engine, p0, monkeypatch, tmp_path):
    monkeypatch.setattr(clone, "FAST", dataclasses.replace(adapt.FAST, steps=2, pieces=2, piece_frames=40))

    def make(progress=ignore_progress):
        return encoder.encode(p0, transcript="", refine="fast", progress=progress, cancel=NeverCancelled())

    first = make()
    stages: list[str] = []
    again = make(lambda p: stages.append(p.stage))
    assert not stages, "a kept voice is not made again"
    assert again.payload.measures == first.payload.measures
    for name, tensor in first.payload.fitted.weights.items():
        kept = again.payload.fitted.weights[name]
        assert kept.stride() == tensor.stride()
        assert torch.equal(kept, tensor), "a voice sounds the same before and after a restart"
    (file,) = (tmp_path / "voices").glob("*.safetensors")
    file.write_bytes(b"broken")
    make(lambda p: stages.append(p.stage))
    assert "fitting" in stages, "a damaged file is made again"


def test_a_cancelled_fit_leaves_nothing(encoder, p0, tmp_path):
    class AfterThree:
        left = 5

        def check(self) -> None:
            self.left -= 1
            if self.left == 0:
                raise Cancelled("stopped")

    with pytest.raises(Cancelled):
        encoder.encode(p0, transcript="", refine="fast", progress=ignore_progress, cancel=AfterThree())
    assert not (tmp_path / "voices").exists()


def test_a_fit_that_hurts_the_words_is_not_kept_whole(model, encoder, p0):
    """Large random weights wreck the speech; the judgement must see it and go back towards the stock voice."""
    style = model.styles.styles[0]
    clip = torch.from_numpy(p0.samples)
    target = adapt.make_target(model, clip, p0.rate_hz)
    generator = torch.Generator().manual_seed(0)
    wrecked = Resonance(
        style[:128],
        {n: t + t.std() * torch.randn(t.shape, generator=generator) for n, t in adapt.moving(model).items()},
    )
    voice = clone.LiteVoice(style, clone._measures(model.styles.voices[0], clone.measure(p0.samples, p0.rate_hz)))
    with torch.no_grad():
        sentence = encoder._rehearse(voice)[-1]
    judged = adapt.judge(model, target, style[:128], wrecked, sentence)
    assert judged.scores["words_1"] < adapt.KEEP_WORDS
    assert judged.scale < 1.0
    note = clone._with_fit(voice, judged, "fast").measures
    assert (
        any("of the fit kept" in n for n in note.notes)
        if judged.fitted
        else any("not be fitted" in w for w in note.warnings)
    )


def test_pieces_alternate_between_the_clip_and_unspoken_text(model, encoder, p0):
    """With the clip's words known, every second piece is the clip itself, cut frame for frame."""
    hop = model.config.frame_hop_samples
    prosody = Prosody(torch.zeros(70, model.config.hidden), torch.full((140,), 140.0), torch.zeros(140))
    copy = adapt.Copy(prosody, torch.arange(70.0 * hop))
    style, config = model.styles.styles[0][:128], dataclasses.replace(adapt.FAST, piece_frames=10)
    with torch.no_grad():
        pieces = [adapt._prepare(model, [prosody], copy, style, config, i) for i in range(4)]
        alone = adapt._prepare(model, [prosody], None, style, config, 1)
    assert [p.is_copy for p in pieces] == [False, True, False, True] and not alone.is_copy
    start = int(pieces[1].reference[0])
    assert start % hop == 0 and torch.equal(pieces[1].reference, copy.samples[start : start + 10 * hop])
    assert pieces[0].reference.shape == pieces[1].reference.shape


def test_wrong_words_are_noticed_and_not_used(encoder, p0):
    voice = encoder._make(p0, "", "off", ignore_progress, NeverCancelled())
    copy, measures = encoder._copy(torch.from_numpy(p0.samples), p0.rate_hz, "这句话跟录音里说的完全不一样。", voice)
    assert copy is None
    assert any("do not match" in w for w in measures.warnings)


def test_reduced_precision_says_the_same(p0):
    full, half = (LiteEngine.load(Settings(device="cpu", precision=p)) for p in ("fp32", "bf16"))
    a, b = (speak(e, p0, ENGLISH).audio for e in (full, half))
    assert abs(a.duration_s / b.duration_s - 1.0) < 0.1
    assert np.isfinite(b.samples).all()


def test_what_is_not_spoken_is_said_and_costs_nothing(engine, p0):
    told = speak(engine, p0, "Good morning. [laughter] こんにちは。 See you soon.")
    assert any("こんにちは" in w for w in told.warnings) and any("laughter" in w for w in told.warnings)
    with pytest.raises(TextError, match="오늘은"):
        speak(engine, p0, "오늘은 날씨가 좋아요.", refine="fast")


def test_a_full_disk_costs_the_kept_file_and_nothing_else(model, encoder, p0, monkeypatch, tmp_path):
    def full(*_: object, **__: object) -> None:
        raise SafetensorError("No space left on device")

    monkeypatch.setattr("cosyvoice_app.engines.voice_files.save_file", full)
    monkeypatch.setattr(clone, "FAST", dataclasses.replace(adapt.FAST, steps=1, pieces=1, piece_frames=40))
    voice = encoder.encode(p0, transcript="", refine="fast", progress=ignore_progress, cancel=NeverCancelled())
    assert voice.payload.style.shape == (256,)
    assert not list((tmp_path / "voices").iterdir())


def test_a_segment_sounds_the_same_whatever_runs_beside_it(engine, p0):
    job = plan(p0, "One short sentence. 还有一句中文。", seed=5, max_chars=200, refine="off")
    voice = engine.speaker_encoder.encode(
        p0, transcript="", refine="off", progress=ignore_progress, cancel=NeverCancelled()
    )
    style = engine.style_encoder.encode(job.intent, speed=1.0)
    whole = Utterance(job.segments, job.intent, 5)
    rows = [Row(whole, i, voice, style, 100 + i) for i in range(len(job.segments))]
    together = engine.acoustic_model.predict(rows, cancel=NeverCancelled())
    for row, features in zip(rows, together, strict=True):
        (alone,) = engine.acoustic_model.predict([row], cancel=NeverCancelled())
        assert alone.seeds == features.seeds
        assert torch.allclose(alone.passes[0].f0, features.passes[0].f0, atol=0.5)


def test_weights_are_where_they_were_fetched():
    assert assets.path("kokoro").name.endswith(".safetensors")
