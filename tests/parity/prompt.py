"""The prompt side against the official code: features, speech tokenizer, CAM++, and whole clips, with random weights.

    python tests/parity/prompt.py [features tokenizer campplus clips full]
    python tests/parity/prompt.py --golden tests/data/cv3_prompt_tokenizer.npz

Needs openai-whisper, torchaudio, onnx, onnxruntime and s3tokenizer >= 0.3; MATCHA_OFFICIAL and SPEAKER_OFFICIAL are
the folders of Matcha-TTS and 3D-Speaker. `full` exports the tokenizer at its full size (1 GB in a temporary folder),
reads it back and measures time and memory; it runs only when named. With COSYVOICE_MODEL_DIR, the official files are
checked against onnxruntime too. `--golden` writes the tiny tokenizer's graph and its ids for the tests. Exits 1 when a
bar is missed.
"""

from __future__ import annotations

import argparse
import gc
import os
import statistics
import sys
import tempfile
import time
import warnings
from dataclasses import replace
from pathlib import Path
from unittest import mock

import numpy as np
import onnxruntime
import psutil
import torch
import torchaudio
from torch import Tensor, nn

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from cosyvoice_app.audio.features import extractor_for
from cosyvoice_app.engines.cosyvoice3.campplus_weights import load_campplus_onnx
from cosyvoice_app.engines.cosyvoice3.config import TINY, ModelConfig, TokenizerConfig
from cosyvoice_app.engines.cosyvoice3.prompt import PromptEncoder, with_tail
from cosyvoice_app.engines.cosyvoice3.speech_tokenizer_weights import load_speech_tokenizer

CPU = torch.device("cpu")
# The official class has an MLP four times as wide as the model.
SMALL = replace(TINY, tokenizer=replace(TINY.tokenizer, mlp=4 * TINY.tokenizer.width))
failed: list[str] = []


def row(name: str, measured: float, bar: float, *, least: bool = False) -> None:
    fine = measured >= bar if least else measured <= bar
    print(f"{name:58s} {measured:12.4g}   {'at least' if least else 'at most'} {bar:g}   {'ok' if fine else 'MISSED'}",
          flush=True)
    if not fine:
        failed.append(name)


def official_path(variable: str) -> str:
    if variable not in os.environ:
        sys.exit(f"set {variable} to the folder of the official code")
    return os.environ[variable]


def speechlike(seconds: float, rate_hz: int, seed: int) -> np.ndarray:
    """A gliding harmonic tone with an envelope and some noise, float32."""
    rng = np.random.default_rng(seed)
    t = np.arange(int(seconds * rate_hz)) / rate_hz
    phase = 2 * np.pi * (110 + 10 * seed) * t + 3 * np.sin(2 * np.pi * 1.3 * t)
    voice = sum(np.sin(k * phase) / k for k in range(1, 25))
    x = voice * (0.55 + 0.45 * np.sin(2 * np.pi * 3.7 * t)) * 0.1 + rng.normal(size=len(t)) * 0.003
    return x.astype(np.float32)


def features() -> None:
    import torchaudio.compliance.kaldi as kaldi
    import whisper

    sys.path.insert(0, official_path("MATCHA_OFFICIAL"))
    from matcha.utils.audio import mel_spectrogram

    for seconds in (0.5, 3.01, 9.7):
        x16 = torch.from_numpy(speechlike(seconds, 16_000, 1))[None]
        x24 = torch.from_numpy(speechlike(seconds, 24_000, 2))[None]
        theirs = whisper.log_mel_spectrogram(x16, n_mels=128).transpose(1, 2)
        row(f"whisper mel, {seconds} s", diff(extractor_for("whisper-mel")(x16).values, theirs), 1e-4)
        theirs = kaldi.fbank(x16, num_mel_bins=80, dither=0, sample_frequency=16_000)
        ours = extractor_for("fbank", 16_000)(x16).values[0]
        row(f"kaldi fbank less its mean, {seconds} s", diff(ours - ours.mean(0), theirs - theirs.mean(0)), 1e-4)
        theirs = mel_spectrogram(x24, 1920, 80, 24_000, 480, 1920, 0, None, False).transpose(1, 2)
        row(f"24 kHz mel, {seconds} s", diff(extractor_for("mel24k", high_hz=12_000.0)(x24).values, theirs), 1e-4)


def diff(ours: Tensor, theirs: Tensor) -> float:
    return float((ours - theirs).abs().max()) if ours.shape == theirs.shape else float("inf")


def official_tokenizer(config: TokenizerConfig) -> nn.Module:
    import s3tokenizer.model_v3 as v3

    torch.manual_seed(5)
    sizes = v3.ModelConfigV3(n_audio_state=config.width, n_audio_head=config.heads, n_audio_layer=config.blocks)
    net = v3.S3TokenizerV3("speech_tokenizer_v3_25hz", sizes).eval()
    net.encoder.freqs_cis = v3.precompute_freqs_cis(config.head, 2048)
    for p in net.parameters():
        if p.ndim == 1:
            p.data.add_(torch.randn_like(p) * 0.1)
    # States as large as a trained model's, so that all three digits come up.
    net.quantizer._codebook.project_down.weight.data.mul_(6.0)
    return net


def export_tokenizer(net: nn.Module, path: Path, opset: int) -> None:
    """As the released file is: batch 1, time free, node names by module, weights mostly without names."""
    from s3tokenizer.model_v2 import FSQCodebook

    class Whole(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.encoder, self.quantizer = net.encoder, net.quantizer

        def forward(self, mel: Tensor, length: Tensor) -> Tensor:
            return FSQCodebook.encode.__wrapped__(self.quantizer._codebook, self.encoder(mel, length)[0])

    kept = net.encoder.freqs_cis
    net.encoder.freqs_cis = torch.view_as_real(kept)  # ONNX has no complex numbers
    sample = (torch.randn(1, 128, 101), torch.tensor([101], dtype=torch.int32))
    with (warnings.catch_warnings(), mock.patch.object(torch, "view_as_real", lambda x: x),
          mock.patch.object(FSQCodebook, "preprocess", lambda _, x: x.flatten(0, -2))):
        warnings.simplefilter("ignore")
        torch.onnx.export(Whole(), sample, str(path), opset_version=opset, do_constant_folding=True, dynamo=False,
                          input_names=["feats", "feats_length"], output_names=["indices"],
                          dynamic_axes={"feats": {2: "T"}})
    net.encoder.freqs_cis = kept


def session(path: Path, threads: int) -> onnxruntime.InferenceSession:
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    return onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])


def run_onnx(net: onnxruntime.InferenceSession, mel: Tensor) -> np.ndarray:
    names = [one.name for one in net.get_inputs()]
    feeds = {names[0]: mel.transpose(1, 2).contiguous().numpy()}
    if len(names) > 1:
        feeds[names[1]] = np.array([mel.shape[1]], np.int32)
    else:
        feeds[names[0]] = mel.numpy()
    return net.run(None, feeds)[0].reshape(1, -1)


def tokenizer(folder: Path, config: TokenizerConfig, opsets: tuple[int, ...], label: str) -> None:
    theirs = official_tokenizer(config)
    whisper = extractor_for("whisper-mel")
    for opset in opsets:
        path = folder / f"tokenizer_{label}_{opset}.onnx"
        export_tokenizer(theirs, path, opset)
        ours, ort = load_speech_tokenizer(path, config, device=CPU), session(path, 2)
        same_torch, same_ort, worst, variety = [], [], 0.0, set()
        for seed, seconds in enumerate((0.1, 1.0, 3.33, 5.0, 10.0)):
            mel = whisper(torch.from_numpy(speechlike(seconds, 16_000, seed))[None]).values
            ids, _ = ours(mel)
            length = torch.tensor([mel.shape[1]])
            official, _ = theirs.quantize(mel.transpose(1, 2), length)
            states, _ = ours.encode(mel)
            worst = max(worst, diff(states, theirs.encoder(mel.transpose(1, 2), length)[0]))
            same_torch += (ids == official).flatten().tolist()
            same_ort += (ids.numpy() == run_onnx(ort, mel)).flatten().tolist()
            variety |= set(ids.flatten().tolist())
        row(f"{label} tokenizer, opset {opset}: states before rounding", worst, 2e-3)
        row(f"{label} tokenizer, opset {opset}: ids as s3tokenizer's", float(np.mean(same_torch)), 0.99, least=True)
        row(f"{label} tokenizer, opset {opset}: ids as onnxruntime's", float(np.mean(same_ort)), 0.99, least=True)
        row(f"{label} tokenizer, opset {opset}: different ids seen", len(variety), 20, least=True)
        del ours, ort


def official_campplus() -> nn.Module:
    sys.path.insert(0, official_path("SPEAKER_OFFICIAL"))
    from speakerlab.models.campplus.DTDNN import CAMPPlus

    torch.manual_seed(6)
    net = CAMPPlus(feat_dim=80, embedding_size=192).eval()
    for module in net.modules():
        if isinstance(module, nn.BatchNorm1d | nn.BatchNorm2d):
            module.running_mean.normal_(0.0, 0.1)
            module.running_var.uniform_(0.5, 2.0)
            if module.weight is not None:
                module.weight.data.uniform_(0.5, 1.5)
                module.bias.data.normal_(0.0, 0.1)
        elif isinstance(module, nn.Conv1d) and module.bias is not None:
            module.bias.data.normal_(0.0, 0.1)
    return net


def export_campplus(net: nn.Module, path: Path, opset: int, *, folded: bool = True) -> None:
    how = {} if folded else {"training": torch.onnx.TrainingMode.PRESERVE}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.onnx.export(net, torch.randn(1, 345, 80), str(path), opset_version=opset, do_constant_folding=folded,
                          dynamo=False, input_names=["input"], output_names=["output"],
                          dynamic_axes={"input": {0: "B", 1: "T"}}, **how)


def campplus(folder: Path) -> None:
    theirs = official_campplus()
    for opset, folded in ((11, True), (16, True), (13, False)):
        path = folder / "campplus.onnx"
        export_campplus(theirs, path, opset, folded=folded)
        ours, ort = load_campplus_onnx(path), session(path, 2)
        official, runtime = 0.0, 0.0
        for frames in (60, 201, 345, 999):
            x = torch.randn(1, frames, 80)
            mine = ours(x)
            official = max(official, diff(mine, theirs(x)))
            runtime = max(runtime, diff(mine, torch.from_numpy(ort.run(None, {"input": x.numpy()})[0])))
        label = f"CAM++, opset {opset}, norms {'folded' if folded else 'apart'}"
        row(f"{label}: to 3D-Speaker", official, 1e-4)
        row(f"{label}: to onnxruntime", runtime, 1e-4)


def clips(folder: Path) -> None:
    """Whole clips through a model folder, against the official steps written out."""
    import torchaudio.compliance.kaldi as kaldi
    import whisper

    sys.path.insert(0, official_path("MATCHA_OFFICIAL"))
    from matcha.utils.audio import mel_spectrogram

    path = folder / "speech_tokenizer_v3.onnx"
    export_tokenizer(official_tokenizer(SMALL.tokenizer), path, 16)
    export_campplus(official_campplus(), folder / "campplus.onnx", 16)
    encoder = PromptEncoder.load(folder, SMALL, device=CPU)
    tokens, speaker = session(path, 1), session(folder / "campplus.onnx", 1)
    for rate_hz in (16_000, 24_000, 44_100, 48_000):
        samples = speechlike(4.321, rate_hz, 3)
        ours = encoder.encode([(samples, rate_hz)])[0]

        def at(to_hz: int, x: np.ndarray, rate_hz: int = rate_hz) -> Tensor:
            wave = torch.from_numpy(x)[None]
            return wave if rate_hz == to_hz else torchaudio.transforms.Resample(rate_hz, to_hz)(wave)

        longer = with_tail(samples, rate_hz, 0.2, max_s=30.0)
        mel = mel_spectrogram(at(24_000, longer), 1920, 80, 24_000, 480, 1920, 0, None, False)[0].T
        ids = run_onnx(tokens, whisper.log_mel_spectrogram(at(16_000, longer), n_mels=128).transpose(1, 2))[0]
        bands = kaldi.fbank(at(16_000, samples), num_mel_bins=80, dither=0, sample_frequency=16_000)
        vector = speaker.run(None, {"input": (bands - bands.mean(0, keepdim=True))[None].numpy()})[0][0]
        count = min(len(mel) // 2, len(ids))
        row(f"clip at {rate_hz}: tokens equal", float((ours.tokens.numpy() == ids[:count]).mean()), 0.98, least=True)
        # Where the clip has nothing (above 8 kHz at 16 kHz) the logarithm blows up the last bits of near zero.
        bar = 1e-4 if rate_hz >= 24_000 else 5e-3
        row(f"clip at {rate_hz}: mel", diff(ours.mel, mel[: 2 * count]), bar)
        row(f"clip at {rate_hz}: speaker", diff(ours.speaker, torch.from_numpy(vector)), 1e-4)


def full_size(folder: Path) -> None:
    config = TokenizerConfig()
    path = folder / "full.onnx"
    theirs = official_tokenizer(config)
    export_tokenizer(theirs, path, 16)
    memory = psutil.Process()
    gc.collect()
    before = memory.memory_info().rss
    start = time.perf_counter()
    ours = load_speech_tokenizer(path, config, device=CPU)
    gc.collect()
    print(f"loading: {time.perf_counter() - start:.1f} s, resident {(memory.memory_info().rss - before) / 1e6:.0f} MB, "
          f"{sum(p.numel() for p in ours.parameters())} weights")
    torch.set_num_threads(2)
    whisper = extractor_for("whisper-mel")
    for other in ("s3tokenizer", "onnxruntime, 1 thread", "onnxruntime, 2 threads"):
        runtime = session(path, int(other[13])) if other.startswith("onnx") else None  # one at a time in memory
        for seconds in (5.0, 10.0):
            mel = whisper(torch.from_numpy(speechlike(seconds, 16_000, 4))[None]).values
            length = torch.tensor([mel.shape[1]])

            def run(mel: Tensor = mel, length: Tensor = length, runtime: object = runtime) -> np.ndarray:
                if runtime is not None:
                    return run_onnx(runtime, mel)
                return theirs.quantize(mel.transpose(1, 2), length)[0].numpy()

            mine, ids = ours(mel)[0].numpy(), run()
            times = []
            for _ in range(5):
                begun = time.perf_counter()
                ours(mel)
                between = time.perf_counter()
                run()
                times.append((between - begun, time.perf_counter() - between))
            ratio = statistics.median(b / a for a, b in times)
            a, b = (statistics.median(side) for side in zip(*times, strict=True))
            print(f"{seconds:g} s clip: ours {a:.2f} s, {other} {b:.2f} s: {ratio:.2f} of ours", flush=True)
            row(f"full tokenizer, {seconds:g} s: ids as {other}", float((ids == mine).mean()), 0.99, least=True)
        del runtime
        gc.collect()
    states = diff(ours.encode(mel)[0], theirs.encoder(mel.transpose(1, 2), length)[0])
    row("full tokenizer: states before rounding", states, 2e-3)


def official_files(folder: Path) -> None:
    """The released files read by us and run by onnxruntime, on one made-up clip."""
    encoder = PromptEncoder.load(folder, ModelConfig(), device=CPU)
    samples = speechlike(5.0, 16_000, 7)
    ours = encoder.encode([(samples, 16_000)], tail_silence_s=0.0)[0]
    mel = extractor_for("whisper-mel")(torch.from_numpy(samples)[None]).values
    ids = run_onnx(session(folder / "speech_tokenizer_v3.onnx", 2), mel)[0]
    row("official tokenizer: ids as onnxruntime's", float((ours.tokens.numpy() == ids[: len(ours.tokens)]).mean()),
        0.98, least=True)
    bands = extractor_for("fbank", 16_000)(torch.from_numpy(samples)[None]).values
    net = session(folder / "campplus.onnx", 2)
    vector = net.run(None, {net.get_inputs()[0].name: (bands - bands.mean(1, keepdim=True)).numpy()})[0][0]
    row("official CAM++: to onnxruntime", diff(ours.speaker, torch.from_numpy(vector)), 1e-3)


def golden(out: Path, folder: Path) -> None:
    """The tiny official tokenizer as a graph, and what s3tokenizer and onnxruntime make of mels: for the tests."""
    config = TokenizerConfig(width=24, heads=2, head=12, blocks=2, mlp=96)
    theirs, path = official_tokenizer(config), folder / "golden.onnx"
    theirs.encoder.freqs_cis = theirs.encoder.freqs_cis[:64]  # the graph holds the whole table
    export_tokenizer(theirs, path, 16)
    held = {"graph": np.frombuffer(path.read_bytes(), np.uint8)}
    for frames in (1, 6, 37, 101):
        mel = torch.randn(1, frames, 128, generator=torch.Generator().manual_seed(frames)).half().float()
        ids = theirs.quantize(mel.transpose(1, 2), torch.tensor([frames]))[0]
        if not np.array_equal(ids.numpy(), run_onnx(session(path, 1), mel)):
            sys.exit("s3tokenizer and onnxruntime differ; take other numbers")
        held[f"mel_{frames}"], held[f"ids_{frames}"] = mel[0].half().numpy(), ids[0].numpy()
        held[f"states_{frames}"] = theirs.encoder(mel.transpose(1, 2), torch.tensor([frames]))[0][0].numpy()
    np.savez_compressed(out, **held)
    print(f"{out}: {out.stat().st_size} bytes")


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("parts", nargs="*", metavar="part", help="features, tokenizer, campplus, clips, full")
    parser.add_argument("--golden", type=Path)
    options = parser.parse_args()
    torch.set_grad_enabled(False)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        if options.golden:
            golden(options.golden, folder)
            return 0
        steps = {"features": features,
                 "tokenizer": lambda: tokenizer(folder, SMALL.tokenizer, (11, 13, 16, 17), "tiny"),
                 "campplus": lambda: campplus(folder), "clips": lambda: clips(folder),
                 "full": lambda: full_size(folder)}
        for part in options.parts or ("features", "tokenizer", "campplus", "clips"):
            steps[part]()
    if "COSYVOICE_MODEL_DIR" in os.environ:
        official_files(Path(os.environ["COSYVOICE_MODEL_DIR"]))
    print("all bars kept" if not failed else f"missed: {'; '.join(failed)}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
