"""The cosyvoice3 engine on CUDA, at toy size: the language model and the flow run beside each other, in threads and
streams of their own, and each captures graphs while the other computes. Nothing of that may be heard.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from pathlib import Path

import cv3_tiny as tiny
import numpy as np
import pytest
import torch

from cosyvoice_app.engines.cosyvoice3.engine import CosyVoice3Engine
from cosyvoice_app.engines.cosyvoice3.speak import CosyVoice3Style
from cosyvoice_app.engines.cosyvoice3.voice import ClonedVoice
from cosyvoice_app.engines.device import Device, make_exact
from cosyvoice_app.pipeline import Pipeline, plan
from cosyvoice_app.types import Intent, NeverCancelled, PromptClip, Row, Segment, Style, Text, Utterance, Voice
from cosyvoice_app.voices.cache import VoiceCache

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")]

CUDA = torch.device("cuda", 0)
TEXT = "One two.\n\nYes.\n\nThe longest of them.\n\nNo.\n\nAnd four."


@pytest.fixture(autouse=True)
def _exact() -> Iterator[None]:
    before = torch.backends.cudnn.deterministic, torch.backends.cudnn.allow_tf32
    make_exact(Device(str(CUDA), "test"))
    yield
    torch.backends.cudnn.deterministic, torch.backends.cudnn.allow_tf32 = before


def speak(engine: CosyVoice3Engine, clip: PromptClip, *, overlap: bool) -> np.ndarray:
    engine.capabilities = dataclasses.replace(engine.capabilities, overlaps=overlap)
    job = plan(clip, TEXT, seed=7, max_chars=1000, engine=engine.capabilities, transcript="hi")
    assert len({len(segment.text) for segment in job.segments}) >= 3
    return Pipeline(engine, VoiceCache()).run(job).audio.samples


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_segments_made_beside_each_other_are_those_made_in_turn(
    p0: PromptClip, tmp_path: Path, precision: str
) -> None:
    """Equal to the bit, twenty times, each with graphs of its own: half the engines capture while they overlap."""
    expected: np.ndarray | None = None
    for attempt in range(20):
        engine = tiny.engine(tmp_path, tiny.model(tmp_path, precision=precision, device=CUDA), precision=precision,
                             slots=1)
        if attempt % 2:
            engine.warm_up()
        both = [speak(engine, p0, overlap=overlap) for overlap in (attempt % 4 < 2, attempt % 4 >= 2)]
        expected = both[0] if expected is None else expected
        assert all(np.array_equal(samples, expected) for samples in both)


def test_a_stream_is_one_run_under_its_mask(tmp_path: Path) -> None:
    made = tiny.model(tmp_path, device=CUDA)
    engine = tiny.engine(tmp_path, made, slots=1)
    engine.warm_up()
    segment = Segment("One two.", (Text("One two.", "en"),))
    voice = Voice("key", ClonedVoice(tiny.features(37, 37).to(CUDA), "hi"))
    row = Row(Utterance((segment,), Intent(), 5), 0, voice, Style(CosyVoice3Style("", 1.0)), 5)
    streamed = [np.concatenate([part.samples for part in engine.streamer.stream(row, cancel=NeverCancelled())])
                for _ in range(2)]
    (tokens,) = engine.acoustic_model.predict([row], cancel=NeverCancelled())
    whole = tiny.chunk_masked(made, row, tokens)
    assert np.array_equal(streamed[0], streamed[1])
    assert len(streamed[0]) == len(whole)
    # Rounding makes random weights' pitch drift, and pitch adds up to phase; a frame out of place would differ more.
    np.testing.assert_allclose(streamed[0], whole, atol=0.05 * np.abs(whole).max())
