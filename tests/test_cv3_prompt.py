"""Clips to prompt features, at toy size, and the store they are kept in."""

from __future__ import annotations

import logging
import os
from pathlib import Path

import numpy as np
import pytest
import torch

from cosyvoice_app.audio.clip_loading import resampled
from cosyvoice_app.audio.features import extractor_for
from cosyvoice_app.engines.campplus import CamPlusPlus
from cosyvoice_app.engines.cosyvoice3.config import TINY, TokenizerConfig
from cosyvoice_app.engines.cosyvoice3.prompt import PromptEncoder, PromptFeatures, with_tail
from cosyvoice_app.engines.cosyvoice3.speech_tokenizer import tokens_of
from cosyvoice_app.engines.cosyvoice3.voice_store import PromptStore, prompt_key
from cosyvoice_app.errors import AssetError, Cancelled, PromptError
from cosyvoice_app.types import FloatArray, NeverCancelled

CPU = torch.device("cpu")
GOLDEN = Path(__file__).parent / "data" / "cv3_prompt_tokenizer.npz"
CONFIG = TokenizerConfig(width=24, heads=2, head=12, blocks=2, mlp=96)


@pytest.fixture(scope="module")
def encoder(tmp_path_factory: pytest.TempPathFactory) -> PromptEncoder:
    path = tmp_path_factory.mktemp("model") / "speech_tokenizer_v3.onnx"
    with np.load(GOLDEN) as held:
        path.write_bytes(held["graph"].tobytes())
    generator = torch.Generator().manual_seed(2)
    speaker = CamPlusPlus()
    for p in speaker.parameters():
        p.copy_(torch.randn(p.shape, generator=generator) * (0.05 if p.ndim == 1 else p[0].numel() ** -0.5))
    return PromptEncoder(speaker, path, CONFIG, device=CPU)


def voice(seconds: float, rate_hz: int, seed: int = 0) -> FloatArray:
    t = np.arange(round(seconds * rate_hz)) / rate_hz
    tone = sum(np.sin(2 * np.pi * (120 + 15 * seed) * k * t) / k for k in range(1, 12))
    noise = np.random.default_rng(seed).normal(size=len(t)) * 0.002
    return (0.1 * tone * (0.6 + 0.4 * np.sin(2 * np.pi * 3 * t)) + noise).astype(np.float32)


def same(a: PromptFeatures, b: PromptFeatures) -> bool:
    return torch.equal(a.tokens, b.tokens) and torch.equal(a.mel, b.mel) and torch.equal(a.speaker, b.speaker)


@pytest.mark.parametrize("rate_hz", [8_000, 11_025, 16_000, 22_050, 24_000, 44_100, 48_000])
@pytest.mark.parametrize("seconds", [0.12, 1.003])
def test_lengths_agree_at_every_rate(encoder: PromptEncoder, rate_hz: int, seconds: float) -> None:
    (made,) = encoder.encode([(voice(seconds, rate_hz), rate_hz)], tail_silence_s=0.0)
    n = len(voice(seconds, rate_hz))
    at_16k, at_24k = -(-n * 16_000 // rate_hz), -(-n * 24_000 // rate_hz)
    count = min(at_24k // 480 // 2, tokens_of(at_16k // 160))
    assert made.tokens.shape == (count,) and made.mel.shape == (2 * count, 80) and made.speaker.shape == (192,)
    assert made.tokens.dtype == torch.int64 and made.mel.dtype == made.speaker.dtype == torch.float32
    assert abs(count - seconds * 25) < 1.5 and bool(made.mel.isfinite().all() and made.speaker.isfinite().all())


def test_each_part_is_made_of_the_clip_at_its_own_rate(encoder: PromptEncoder) -> None:
    clip = voice(1.5, 44_100)
    (made,) = encoder.encode([(clip, 44_100)], tail_silence_s=0.0)
    at_16k, at_24k = (torch.from_numpy(resampled(clip, 44_100, to_hz))[None] for to_hz in (16_000, 24_000))
    n = len(made.tokens)
    assert torch.equal(made.mel, extractor_for("mel24k")(at_24k).values[0, : 2 * n])
    assert encoder._tokenizer is not None
    assert torch.equal(made.tokens, encoder._tokenizer(extractor_for("whisper-mel")(at_16k).values)[0][0, :n])
    bands = extractor_for("fbank")(at_16k).values
    assert torch.equal(made.speaker, encoder._speaker(bands - bands.mean(1, keepdim=True))[0])


def test_the_mels_upper_edge_is_the_models(encoder: PromptEncoder) -> None:
    lower = PromptEncoder(encoder._speaker, encoder._tokenizer_path, CONFIG, device=CPU, fmax_hz=8_000.0)
    clip = (voice(0.5, 24_000), 24_000)
    assert not torch.equal(lower.encode([clip])[0].mel, encoder.encode([clip])[0].mel)


def test_a_clip_has_the_same_bits_alone_and_in_company(encoder: PromptEncoder) -> None:
    clips = [(voice(s, r, n), r) for n, (s, r) in enumerate([(0.7, 16_000), (1.9, 48_000), (1.2, 24_000)])]
    together = encoder.encode(clips)
    assert all(same(one, encoder.encode([clip])[0]) for one, clip in zip(together, clips, strict=True))
    assert encoder.encode([]) == []


def test_clips_that_go_together_give_the_same(encoder: PromptEncoder) -> None:
    """What a GPU does with them, run on the CPU: only rounding differs, which flips no token of these clips."""
    clips = [(voice(s, r, n), r) for n, (s, r) in enumerate([(0.7, 16_000), (1.9, 48_000), (1.2, 24_000)])]
    for one, clip in zip(encoder._group(clips, NeverCancelled(), 0.2), clips, strict=True):
        alone = encoder.encode([clip])[0]
        assert torch.equal(one.tokens, alone.tokens) and torch.equal(one.speaker, alone.speaker)
        torch.testing.assert_close(one.mel, alone.mel)


def test_silence_is_a_clip_too(encoder: PromptEncoder) -> None:
    (made,) = encoder.encode([(np.zeros(24_000, np.float32), 24_000)])
    assert len(made.tokens) == 25 and bool(made.speaker.isfinite().all())
    assert made.mel.unique().numel() == 1


def test_speech_that_stops_at_once_gets_a_tail_and_a_pause_is_left_alone(encoder: PromptEncoder) -> None:
    clip = voice(1.0, 16_000)
    longer = with_tail(clip, 16_000, 0.2, max_s=30.0)
    assert 0.15 <= (len(longer) - len(clip)) / 16_000 <= 0.2
    assert np.array_equal(longer[: len(clip)], clip) and not longer[len(clip) :].any()
    paused = np.concatenate([clip, np.zeros(8_000, np.float32)])
    assert with_tail(paused, 16_000, 0.2, max_s=30.0) is paused
    assert with_tail(clip, 16_000, 0.0, max_s=30.0) is clip
    assert len(with_tail(clip, 16_000, 0.2, max_s=1.05)) == int(1.05 * 16_000), "never over the limit"
    plain, tailed = (encoder.encode([(clip, 16_000)], tail_silence_s=s)[0] for s in (0.0, 0.2))
    assert len(tailed.tokens) - len(plain.tokens) in (4, 5)
    assert torch.equal(plain.speaker, tailed.speaker), "the tail is not part of who speaks"


def test_unusable_clips_are_refused_before_any_work(encoder: PromptEncoder) -> None:
    good = voice(0.5, 16_000)
    broken = good.copy()
    broken[3] = np.nan
    for clip, rate_hz, words in [
        (np.zeros(30 * 16_000 + 1, np.float32), 16_000, "0.1 to 30 s"),
        (good[:100], 16_000, "0.01 s long"),
        (good[:0], 16_000, "0.00 s long"),
        (broken, 16_000, "1 samples that are not finite"),
        (good[None], 16_000, r"shape \(1, 8000\)"),
        (np.zeros(8_000, np.int16), 16_000, "int16"),
        (good, 0, "rate of 0 Hz"),
    ]:
        with pytest.raises(PromptError, match=words):
            encoder.encode([(good, 16_000), (clip, rate_hz)])
    assert len(encoder.encode([(np.zeros(30 * 16_000, np.float32), 16_000)])[0].tokens) == 750


def test_the_tokenizer_comes_with_the_first_clip_and_goes_when_released(encoder: PromptEncoder) -> None:
    clip = (voice(0.5, 16_000), 16_000)
    before = encoder.encode([clip])[0]
    assert encoder.loaded
    encoder.release()
    assert not encoder.loaded
    assert same(before, encoder.encode([clip])[0]) and encoder.loaded


def test_a_cancelled_clip_stops(encoder: PromptEncoder) -> None:
    class Stop:
        def check(self) -> None:
            raise Cancelled("stopped")

    with pytest.raises(Cancelled):
        encoder.encode([(voice(0.5, 16_000), 16_000)], Stop())


def test_a_folder_without_the_files_is_refused_by_name(tmp_path: Path) -> None:
    (tmp_path / "campplus.onnx").write_bytes(b"junk")
    with pytest.raises(AssetError, match="has no speech_tokenizer_v3.onnx"):
        PromptEncoder.load(tmp_path, TINY, device=CPU)
    (tmp_path / "speech_tokenizer_v3.onnx").write_bytes(b"junk")
    with pytest.raises(AssetError, match="campplus.onnx is not a usable ONNX file"):
        PromptEncoder.load(tmp_path, TINY, device=CPU)


def features(tokens: int = 7) -> PromptFeatures:
    generator = torch.Generator().manual_seed(tokens)
    return PromptFeatures(torch.randint(0, 6561, (tokens,), generator=generator),
                          torch.randn(2 * tokens, 80, generator=generator), torch.randn(192, generator=generator))


def test_kept_features_come_back_to_the_bit(tmp_path: Path) -> None:
    store = PromptStore(tmp_path / "deep" / "prompts")
    assert store.load("a", CPU) is None
    store.save("a", features())
    back = store.load("a", CPU)
    assert back is not None and same(back, features())
    assert [f.name for f in (tmp_path / "deep" / "prompts").iterdir()] == ["a.safetensors"]


def test_the_key_is_of_the_clip_the_model_and_the_tail() -> None:
    base = prompt_key("clip", "model", tail_silence_s=0.2)
    others = [prompt_key("clip2", "model", tail_silence_s=0.2), prompt_key("clip", "model2", tail_silence_s=0.2),
              prompt_key("clip", "model", tail_silence_s=0.1), prompt_key("clipmodel", "", tail_silence_s=0.2)]
    assert len({base, *others}) == 5 and base == prompt_key("clip", "model", tail_silence_s=0.2)


@pytest.mark.parametrize("harm", ["cut", "junk", "tokens", "shape", "nan"])
def test_a_damaged_file_counts_as_absent_and_is_logged(tmp_path: Path, caplog: pytest.LogCaptureFixture,
                                                       harm: str) -> None:
    store, good = PromptStore(tmp_path), features()
    harmed = {
        "tokens": PromptFeatures(good.tokens + 6561, good.mel, good.speaker),
        "shape": PromptFeatures(good.tokens[:3], good.mel, good.speaker),
        "nan": PromptFeatures(good.tokens, good.mel * torch.nan, good.speaker),
    }.get(harm, good)
    store.save("a", harmed)
    path = tmp_path / "a.safetensors"
    if harm == "cut":
        path.write_bytes(path.read_bytes()[:-100])
    elif harm == "junk":
        path.write_bytes(b"junk")
    with caplog.at_level(logging.WARNING):
        assert store.load("a", CPU) is None
    assert "can't be read and is made again" in caplog.text
    store.save("a", good)
    assert store.load("a", CPU) is not None


def test_the_least_recently_used_go_first(tmp_path: Path) -> None:
    store = PromptStore(tmp_path, keep=2)
    for n, key in enumerate("abc"):
        store.save(key, features())
        os.utime(tmp_path / f"{key}.safetensors", (n, n))
        if key == "b":
            store.load("a", CPU)
    assert sorted(f.stem for f in tmp_path.iterdir()) == ["a", "c"]


def test_a_folder_that_cannot_be_written_costs_only_the_file(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "file").write_text("in the way")
    with caplog.at_level(logging.WARNING):
        PromptStore(tmp_path / "file" / "prompts").save("a", features())
    assert "could not be kept" in caplog.text
