"""Maintainers' script: what the released graph computes, to hold our model against. Needs `onnx` and `onnxruntime`.

    python -m cosyvoice_app.engines.lite.train.onnx_reference KOKORO_ONNX VOCAB OUT.npz

The released file quantises activations on the fly, which alone moves F0 enough for waveforms to drift apart within a
second. `float_graph` takes that out and keeps everything else, so that ONNX Runtime computes in float32 what the
weights mean; our model must agree with that closely (`tests/test_lite_parity.py`). Facts about the graph that matter
when comparing:

- its harmonic source has no noise and no random phase: it is deterministic;
- its last step divides only the first 20 samples by the window's overlap, so the rest is 1.5 times too loud (`GAIN`);
- it pads the source with zeros where ours reflects: the first and last 10 samples differ;
- where the source is silent the phase of empty bins is rounding noise; `source` is given out so that it can be shared.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from cosyvoice_app.engines.lite.styles import StyleTable

Floats = npt.NDArray[np.float32]

GAIN = 1.5
SENTENCES = (
    ("af_heart", "ðə wˈɛðɚ wʌz kˈɑm, ænd ði ˈOld bˈOt dɹˈɪftᵻd slˈOli tʊwˈɔɹdz ðə vˈɪlɪʤ."),
    ("am_michael", "plˈiz bɹˈɪŋ θɹˈi bˈæɡz ʌv ɹˈIs ænd ɐ bˈɑɾəl ʌv wˈɔɾɚ bəfˈɔɹ dˈɪnɚ."),
    ("bf_emma", "nˈObˌɑdi nˈu wˌI ðə lˈIts wɛnt ˈWt, bˌʌt ˈɛvɹiwən stˈAd kwˈIət."),
    ("bm_george", "hˌW lˈɔŋ hæv ju bɪn wˈAɾɪŋ fɔɹ ðə tɹˈAn?"),
    ("af_bella", "ɪt wʌz ɐ bɹˈIt kˈOld dˈA, ænd ðə bˈɜɹdz wɜɹ sˈɪŋɪŋ ˈOvɚ ðə ɡˈɑɹdən."),
    ("zf_xiaoxiao", "tʰjɛ→nʨʰi↘ xə↓n xau↓, lau↓ꭧʰwa↗n ma↘nma↘n ti↘ pʰjau→ɕja↘ŋ ʦʰwə→nꭧwa→ŋ."),
    ("zm_yunxi", "wa↓nfa↘n ʨʰjɛ↗n ʨʰi↓ŋ tai↘ sa→ntai↘ mi↓ xɤ↗ i→pʰi↗ŋ ʂwei↓ xwei↗lai↗."),
    ("zf_xiaobei", "tʰa→ ʦʰʊ↗ŋlai↗ mei↗jou↓ ʦai↘ tʊ→ŋtʰjɛ→n tɤ je↘li↓ ʨjɛ↘nkwo↘ ꭧɤ↘mɤ two→ tə→ŋkwa→ŋ."),
    ("zm_yunjian", "wo↓mən mi↗ŋtʰjɛ→n ʦau↓ʂa↘ŋ pa→tjɛ↓n ʦai↘ ɕɥe↗ɕjau↘ mə↗nkʰou↓ ʨjɛ↘nmjɛ↘n."),
    ("am_michael", "ꭧɤ↘ pə↓nʂu→ ʨja↓ŋ tɤ ʂɨ↘ i↗kɤ↘ kwa→ny↗ jʊ↓ŋʨʰi↘ tɤ ku↘ʂɨ↘."),
)

_OUTPUTS = {
    "durations": "/encoder/Div_output_0",
    "f0": "/decoder/decoder/Unsqueeze_output_0",
    "energy": "/encoder/N_proj/Conv_output_0",
    "source": "/decoder/decoder/generator/Concat_3_output_0",
}


@dataclass(frozen=True, slots=True)
class Reference:
    """One utterance. `durations` [N] frames of 40 Hz, unrounded; `f0` [T] in Hz and `energy` [T] at 80 Hz; `source`
    [60 T + 1, 22] magnitude and phase; `audio` [300 T] at 24 kHz, with `GAIN` taken out.
    """

    durations: Floats
    f0: Floats
    energy: Floats
    source: Floats
    audio: Floats


class ReferenceModel:
    """The released graph under ONNX Runtime: as it is (`quantised`) or with its weights in float32."""

    def __init__(self, onnx_path: Path, *, quantised: bool) -> None:
        import onnx
        import onnxruntime

        model = onnx.load(str(onnx_path)) if quantised else float_graph(onnx_path)
        for name in _OUTPUTS.values():
            model.graph.output.append(onnx.helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, None))
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = 1
        options.log_severity_level = 3
        options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_BASIC
        self._session = onnxruntime.InferenceSession(model.SerializeToString(), options, ["CPUExecutionProvider"])

    def __call__(self, ids: Sequence[int], style: Floats) -> Reference:
        """`ids` with a 0 at both ends, `style` [256]."""
        feed = {"tokens": np.array([ids]), "style": style[None].astype(np.float32), "speed": np.ones(1, np.float32)}
        audio, *rest = self._session.run(None, feed)
        found = {name: np.asarray(value[0], np.float32) for name, value in zip(_OUTPUTS, rest, strict=True)}
        return Reference(found["durations"], found["f0"][0], found["energy"][0], found["source"].T,
                         audio.reshape(-1) / GAIN)


def float_graph(onnx_path: Path) -> Any:
    """The graph (onnx.ModelProto) with activations left in float32: quantisers pass their input on with scale 1 and
    zero point 0, integer products become float ones, biases are no longer rounded to the integer grid.
    """
    import onnx
    from onnx import helper, numpy_helper

    model = onnx.load(str(onnx_path))
    graph = model.graph
    constants = {i.name: numpy_helper.to_array(i) for i in graph.initializer}
    added: dict[str, Any] = {}

    def constant(name: str, value: Any) -> str:
        added[name] = numpy_helper.from_array(np.ascontiguousarray(value, np.float32), name)
        return name

    one, zero = constant("float.one", 1.0), constant("float.zero", 0.0)
    nodes: list[Any] = []
    for node in graph.node:
        inputs, made = list(node.input), []
        if node.op_type == "DynamicQuantizeLinear":
            given = (inputs[0], one, zero)
            made = [helper.make_node("Identity", [a], [b]) for a, b in zip(given, node.output, strict=True)]
        elif node.op_type in ("ConvInteger", "MatMulInteger"):
            q, z = (constants[n].astype(np.float32) for n in (inputs[1], inputs[3]))
            if node.op_type == "ConvInteger" and z.size > 1:
                z = z.reshape(-1, *[1] * (q.ndim - 1))
            weight = constant(inputs[1] + ".float", q - z)
            made = [helper.make_node(node.op_type.removesuffix("Integer"), [inputs[0], weight], node.output, node.name)]
        elif node.op_type == "DynamicQuantizeLSTM":
            for at, scale, offset in ((1, 8, 9), (2, 10, 11)):
                q, s, z = (constants[inputs[i]].astype(np.float32) for i in (at, scale, offset))
                value = (q - z.reshape(2, 1, 1)) * s.reshape(2, 1, 1)
                inputs[at] = constant(f"{node.name}.{at}", value.transpose(0, 2, 1))
            made = [helper.make_node("LSTM", inputs[:8], node.output, node.name)]
        elif node.name.endswith(("bias_quant_rounded", "bias_quantized_node")):  # Floor and Cast of a bias
            made = [helper.make_node("Identity", inputs, node.output)]
        else:
            nodes.append(node)
            continue
        if made[-1].op_type != "Identity":
            made[-1].attribute.extend(node.attribute)
        nodes += made
    del graph.value_info[:]
    del graph.node[:]
    graph.node.extend(nodes)
    graph.initializer.extend(added.values())
    return model


def symbol_ids(sentence: str, symbols: dict[str, int]) -> list[int]:
    return [0, *(symbols[c] for c in sentence), 0]


def load_symbols(vocab: Path) -> dict[str, int]:
    found = json.loads(vocab.read_text(encoding="utf-8"))
    symbols: dict[str, int] = found.get("vocab", found)
    return symbols


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name in ("onnx", "vocab", "out"):
        parser.add_argument(name, type=Path)
    a = parser.parse_args()
    model, symbols, table = ReferenceModel(a.onnx, quantised=False), load_symbols(a.vocab), StyleTable.load()
    kept: dict[str, Any] = {}
    for n, (voice, sentence) in enumerate(SENTENCES):
        found = model(symbol_ids(sentence, symbols), table.style(voice).numpy())
        kept |= {f"durations_{n}": found.durations, f"f0_{n}": found.f0, f"energy_{n}": found.energy,
                 f"loudness_{n}": loudness(found.audio)}
    small = {k: v if k.startswith("durations") else v.astype(np.float16) for k, v in kept.items()}
    np.savez_compressed(a.out, **small)


def loudness(audio: Floats) -> Floats:
    """Log-mel spectrogram [T, 40] of 24 kHz audio [n], 40 frames a second: what two renderings are compared by."""
    import torch

    from cosyvoice_app.audio.features import LogMelConfig, log_mel

    config = LogMelConfig(rate_hz=24_000, n_fft=1024, window_samples=1024, hop_samples=600, bins=40, floor=1e-4)
    out: Floats = log_mel(torch.from_numpy(np.ascontiguousarray(audio))[None], config)[0].numpy()
    return out


if __name__ == "__main__":
    main()
