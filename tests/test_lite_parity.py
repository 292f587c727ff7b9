"""Our model against the released graph.

Two references. `data/kokoro_golden.npz` holds what the graph computes with its weights in float32 (made by
`engines/lite/train/onnx_reference.py`): durations, F0, energy and a log-mel spectrogram of ten sentences. Where the
original file is named by `KOKORO_ONNX` and `onnx` and `onnxruntime` are installed, the graph itself is run too, with
our network given the graph's own excitation, so that waveforms can be compared sample by sample.

The graph as released quantises activations on the fly; how far that takes it from its own weights is measured as well.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from cosyvoice_app import assets
from cosyvoice_app.engines.lite.acoustic import AcousticNet, expand, whole_frames
from cosyvoice_app.engines.lite.config import LiteConfig
from cosyvoice_app.engines.lite.styles import StyleTable
from cosyvoice_app.engines.lite.train.onnx_reference import (
    SENTENCES,
    ReferenceModel,
    load_symbols,
    loudness,
    symbol_ids,
)
from cosyvoice_app.engines.lite.vocoder import Decoder
from cosyvoice_app.nn.loading import assign_strict, load_tensors

pytestmark = pytest.mark.weights
GOLDEN = Path(__file__).parent / "data" / "kokoro_golden.npz"
CASES = [pytest.param(n, id=f"{n}-{voice}") for n, (voice, _) in enumerate(SENTENCES)]


@pytest.fixture(scope="module")
def ours() -> SimpleNamespace:
    state = load_tensors(assets.path("kokoro"))
    acoustic, decoder = AcousticNet(LiteConfig()), Decoder(LiteConfig())
    assign_strict(acoustic, {k: v for k, v in state.items() if not k.startswith("decoder.")}, "kokoro")
    assign_strict(decoder, {k[8:]: v for k, v in state.items() if k.startswith("decoder.")}, "kokoro")
    for net in (acoustic, decoder):
        net.eval().requires_grad_(False)
    return SimpleNamespace(acoustic=acoustic, decoder=decoder, symbols=load_symbols(assets.path("kokoro-vocab")),
                           styles=StyleTable.load())


def text_side(ours: SimpleNamespace, n: int) -> SimpleNamespace:
    voice, sentence = SENTENCES[n]
    style = ours.styles.style(voice)[None]
    ids = torch.tensor([symbol_ids(sentence, ours.symbols)])
    encoded = ours.acoustic.encode(ids, torch.tensor([ids.shape[1]]), style[:, 128:])
    frames = whole_frames(encoded.frames[0])
    f0, energy = ours.acoustic.curves(expand(encoded.prosody[0], frames)[None], style[:, 128:])
    return SimpleNamespace(durations=encoded.frames[0], frames=frames, f0=f0, energy=energy, style=style[:, :128],
                           text=expand(encoded.text[0], frames)[None])


def speak(ours: SimpleNamespace, side: SimpleNamespace) -> np.ndarray:
    """Without noise, as the graph has none."""
    noise = torch.zeros(1, 600 * int(side.frames.sum()))
    wave: np.ndarray = ours.decoder(side.text, side.f0, side.energy, side.style, noise)[0].numpy()
    return wave


def speech_mean(difference: np.ndarray, reference: np.ndarray) -> float:
    """Mean absolute difference of log-mels (natural log) over frames within 30 dB of the loudest."""
    level = reference.max(1)
    return float(np.abs(difference)[level > level.max() - 6.9].mean())


@pytest.mark.parametrize("n", CASES)
def test_durations_pitch_and_energy_are_the_graphs(ours: SimpleNamespace, n: int) -> None:
    golden, side = np.load(GOLDEN), text_side(ours, n)
    np.testing.assert_allclose(side.durations.numpy(), golden[f"durations_{n}"], atol=1e-4)
    assert np.array_equal(side.frames.numpy(), np.maximum(1, np.round(golden[f"durations_{n}"])))
    f0 = golden[f"f0_{n}"].astype(np.float32)
    np.testing.assert_allclose(side.f0[0].numpy(), f0, atol=0.15)  # float16 steps by 0.25 at 300 Hz
    np.testing.assert_allclose(side.energy[0].numpy(), golden[f"energy_{n}"].astype(np.float32), atol=0.005)


@pytest.mark.slow
@pytest.mark.parametrize("n", CASES)
def test_the_spectrum_is_the_graphs(ours: SimpleNamespace, n: int) -> None:
    golden = np.load(GOLDEN)[f"loudness_{n}"].astype(np.float32)
    found = loudness(speak(ours, text_side(ours, n)))
    assert found.shape == golden.shape
    # Measured 0.18: where the excitation is silent, the phases of its empty bins are rounding noise in both.
    assert speech_mean(found - golden, golden) < 0.25


@pytest.fixture(scope="module")
def graphs() -> Iterator[dict[str, ReferenceModel]]:
    path = os.environ.get("KOKORO_ONNX", "")
    if not path:
        pytest.skip("KOKORO_ONNX does not name the original kokoro-v1.0.int8.onnx")
    pytest.importorskip("onnx")
    pytest.importorskip("onnxruntime")
    yield {"float": ReferenceModel(Path(path), quantised=False), "int8": ReferenceModel(Path(path), quantised=True)}


@pytest.mark.slow
@pytest.mark.parametrize("n", CASES)
def test_samples_are_the_graphs_given_its_excitation(
    ours: SimpleNamespace, graphs: dict[str, ReferenceModel], n: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    voice, sentence = SENTENCES[n]
    reference = graphs["float"](symbol_ids(sentence, ours.symbols), ours.styles.style(voice).numpy())
    source = torch.from_numpy(reference.source.copy())[None]

    def given(*_: Any) -> torch.Tensor:
        return source

    monkeypatch.setattr(ours.decoder.generator, "_source_spectrum", given)
    wave = speak(ours, text_side(ours, n))
    inner = slice(100, -100)  # the ends are padded differently
    error = wave[inner] - reference.audio[inner]
    snr_db = 10 * np.log10(np.square(reference.audio[inner]).sum() / np.square(error).sum())
    assert snr_db > 55, f"{snr_db:.1f} dB"


@pytest.mark.slow
@pytest.mark.parametrize("n", CASES)
def test_the_released_int8_graph_is_further_from_its_weights_than_we_are(
    ours: SimpleNamespace, graphs: dict[str, ReferenceModel], n: int, record_property: Any
) -> None:
    voice, sentence = SENTENCES[n]
    quantised = graphs["int8"](symbol_ids(sentence, ours.symbols), ours.styles.style(voice).numpy())
    side, golden = text_side(ours, n), np.load(GOLDEN)
    rounded = np.maximum(1, np.round(quantised.durations))
    moved = int((rounded != side.frames.numpy()).sum())
    assert np.abs(quantised.durations - side.durations.numpy()).max() < 2.0
    assert np.abs(side.durations.numpy() - golden[f"durations_{n}"]).max() < np.abs(
        quantised.durations - golden[f"durations_{n}"]).max()
    record_property("symbols_of_other_length", moved)
    if moved:
        return  # the two no longer line up in time
    voiced = (side.f0[0].numpy() > 40) & (quantised.f0 > 40)
    cents = 1200 * np.abs(np.log2(side.f0[0].numpy()[voiced] / quantised.f0[voiced]))
    record_property("median_f0_cents", float(np.median(cents)))
    assert np.median(cents) < 50
