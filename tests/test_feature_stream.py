"""A stream's frames are the clip's, however it was cut."""

from __future__ import annotations

import clips as clip_maker
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from cosyvoice_app.audio.feature_stream import FeatureStream
from cosyvoice_app.audio.features import Extractor, LogMelConfig, extractor_for
from cosyvoice_app.errors import BadInput, ConfigError

EXTRACTORS = {
    "mfcc": extractor_for("mfcc"),
    "mfcc reflect": extractor_for("mfcc", 22050, pad="reflect", lifter=22),
    "mfcc snip": extractor_for("mfcc", 11025, centre=False),
    "fbank": extractor_for("fbank"),
    "logmel": extractor_for("logmel"),
    "logmel inside": Extractor(
        "logmel",
        LogMelConfig(rate_hz=16000, n_fft=512, window_samples=401, hop_samples=160, bins=40, centre=False),
        16000,
    ),
    "mel24k": extractor_for("mel24k"),
}


def streamed(extract: Extractor, x: torch.Tensor, cuts: list[int]) -> torch.Tensor:
    stream = FeatureStream(extract, len(x))
    ends = [*sorted(cut for cut in cuts if cut < x.shape[1]), x.shape[1]]
    pieces, start = [], 0
    for end in ends:
        pieces.append(stream.push(x[:, start:end]))
        start = end
    pieces.append(stream.finish())
    whole = torch.cat(pieces, dim=1)
    assert stream.frames == whole.shape[1]
    return whole


@pytest.mark.parametrize("name", EXTRACTORS)
@given(n=st.integers(0, 6000), cuts=st.lists(st.integers(0, 6000), max_size=12))
@settings(max_examples=25, deadline=None)
def test_any_cuts_give_the_clips_frames(name: str, n: int, cuts: list[int]) -> None:
    extract = EXTRACTORS[name]
    x = torch.randn(2, n, generator=torch.Generator().manual_seed(n))
    assert torch.equal(streamed(extract, x, cuts), extract(x).values)


@pytest.mark.parametrize("name", EXTRACTORS)
def test_one_sample_at_a_time(name: str) -> None:
    extract = EXTRACTORS[name]
    x = torch.randn(1, 2500)
    assert torch.equal(streamed(extract, x, list(range(1, 2500))), extract(x).values)


@pytest.mark.parametrize("name", EXTRACTORS)
def test_speech_in_packets_of_20_ms(name: str) -> None:
    extract = EXTRACTORS[name]
    x, rate_hz = clip_maker.read("p0_en.flac")
    x = torch.from_numpy(clip_maker.change_rate(x, rate_hz, extract.rate_hz))[None]
    packet = extract.rate_hz // 50
    assert torch.equal(streamed(extract, x, list(range(packet, x.shape[1], packet))), extract(x).values)


def test_frames_come_as_soon_as_they_can() -> None:
    stream = FeatureStream(extractor_for("fbank"))
    assert stream.push(torch.zeros(1, 399)).shape == (1, 0, 80)
    assert stream.push(torch.zeros(1, 1)).shape == (1, 1, 80)
    assert stream.push(torch.zeros(1, 320)).shape == (1, 2, 80)
    assert stream.finish().shape == (1, 0, 80)


def test_little_is_held() -> None:
    """A day of audio must not pile up."""
    for extract in EXTRACTORS.values():
        stream = FeatureStream(extract)
        for _ in range(50):
            stream.push(torch.zeros(1, 1600))
        limit = extract.framing.frame + extract.framing.shift + max(extract.framing.right, 0)
        assert stream._held.shape[1] <= limit


def test_float64_stays() -> None:
    x = torch.randn(1, 3000, dtype=torch.float64)
    found = streamed(EXTRACTORS["mfcc"], x, [1000])
    assert found.dtype == torch.float64 and torch.equal(found, EXTRACTORS["mfcc"](x).values)


@pytest.mark.parametrize(("kind", "changes"), [("whisper-mel", {}), ("mfcc", {"top_db": 80.0})])
def test_what_needs_the_whole_clip_says_so(kind: str, changes: dict[str, object]) -> None:
    with pytest.raises(ConfigError, match="whole clip"):
        FeatureStream(extractor_for(kind, **changes))  # type: ignore[arg-type]


def test_bad_chunks_are_refused() -> None:
    stream = FeatureStream(EXTRACTORS["fbank"], 2)
    with pytest.raises(ValueError, match=r"\[2, k\]"):
        stream.push(torch.zeros(1, 100))
    bad = torch.zeros(2, 100)
    bad[1, 7] = torch.nan
    with pytest.raises(BadInput, match="Clip 1 .*sample 7"):
        stream.push(bad)
    assert stream.push(torch.zeros(2, 400)).shape == (2, 1, 80)
    with pytest.raises(BadInput, match="must be floats"):
        stream.push(torch.zeros(2, 400, dtype=torch.int16))
    stream.finish()
    with pytest.raises(BadInput, match="finished"):
        stream.push(torch.zeros(2, 400))
    with pytest.raises(BadInput, match="finished"):
        stream.finish()
