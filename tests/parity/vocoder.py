"""Compare the vocoder with the official CausalHiFT at its full size, on random weights.

    COSYVOICE_OFFICIAL=<clone of CosyVoice> MATCHA_OFFICIAL=<clone of Matcha-TTS> python tests/parity/vocoder.py
        [--frames 300] [--speed PAIRS] [--threads N] [--golden]

Prints a table of differences; exit code 1 when a bar is missed. `--speed` times pairs of calls, theirs and ours
in turn. `--golden` makes tests/data/cv3_vocoder_golden.npz from the official code at toy size instead.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import time
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

TESTS = Path(__file__).parents[1]
sys.path[:0] = [str(TESTS), str(TESTS.parent), os.environ["COSYVOICE_OFFICIAL"], os.environ["MATCHA_OFFICIAL"]]

from cosyvoice.hifigan.f0_predictor import CausalConvRNNF0Predictor  # noqa: E402
from cosyvoice.hifigan.generator import CausalHiFTGenerator  # noqa: E402
from cv3_vocoder_weights import official_state, random_mel  # noqa: E402

from cosyvoice_app.engines.cosyvoice3.config import HOP_SAMPLES, TINY, VocoderConfig  # noqa: E402
from cosyvoice_app.engines.cosyvoice3.vocoder import Vocoder  # noqa: E402
from cosyvoice_app.engines.cosyvoice3.vocoder_source import VOICED_ABOVE_HZ, uniform_noise  # noqa: E402
from cosyvoice_app.engines.cosyvoice3.vocoder_stream import VocoderStream  # noqa: E402

BAR = 1e-4
GOLDEN = TESTS / "data" / "cv3_vocoder_golden.npz"
CPU = torch.device("cpu")


def official(config: VocoderConfig) -> CausalHiFTGenerator:
    dilations = [list(config.dilations)] * 3
    net = CausalHiFTGenerator(
        in_channels=config.mels, base_channels=config.width, nb_harmonics=config.harmonics - 1, sampling_rate=24_000,
        nsf_alpha=0.1, nsf_sigma=0.003, nsf_voiced_threshold=10, upsample_rates=list(config.rates),
        upsample_kernel_sizes=list(config.rate_kernels), istft_params={"n_fft": config.fft, "hop_len": config.hop},
        resblock_kernel_sizes=list(config.resblock_kernels), resblock_dilation_sizes=dilations,
        source_resblock_kernel_sizes=list(config.source_kernels), source_resblock_dilation_sizes=dilations,
        lrelu_slope=0.1, audio_limit=0.99, conv_pre_look_right=config.pre_lookahead,
        f0_predictor=CausalConvRNNF0Predictor(1, config.mels, config.f0_width),
    )  # fmt: skip
    net.load_state_dict(official_state(config), strict=True)
    return net.eval()


def theirs(net: CausalHiFTGenerator, mel: Tensor, *, final: bool = True) -> Tensor:
    wave: Tensor = net.inference(mel.transpose(1, 2), finalize=final)[0]
    return wave


def make_golden() -> None:
    net = official(TINY.vocoder)
    count = 24 * HOP_SAMPLES
    net.m_source.l_sin_gen.sine_waves[0, :count] = uniform_noise(0, count, TINY.vocoder.harmonics, CPU)
    mel = random_mel(1, 24)
    waves = {f"wave_{frames}": theirs(net, mel[:, :frames])[0].numpy() for frames in (1, 9, 24)}
    f0 = net.f0_predictor(mel.double().transpose(1, 2)).float().detach()
    voiced = int((f0 > VOICED_ABOVE_HZ).sum())
    print(f"{voiced} of 24 frames voiced; peak {max(abs(w).max() for w in waves.values()):.3f}")
    np.savez(GOLDEN, f0=f0[0].numpy(), **waves)


def report(name: str, ours: Tensor, reference: Tensor, failures: list[str]) -> None:
    gap, size = (ours - reference).abs().max().item(), reference.abs().max().item()
    print(f"{name:44} {gap:10.2e} {gap / size:10.2e}")
    if not gap / size <= BAR:
        failures.append(name)


def compare(net: CausalHiFTGenerator, ours: Vocoder, frames: int) -> list[str]:
    failures: list[str] = []
    noise = net.m_source.l_sin_gen.sine_waves
    mel = random_mel(1, frames)
    count = torch.tensor([frames])
    f0_ours = ours.f0_predictor(torch.nn.functional.pad(mel, (0, 0, 0, 3)), {})
    f0_single = net.f0_predictor.float()(mel.transpose(1, 2))
    f0_theirs = net.f0_predictor.double()(mel.double().transpose(1, 2)).float()
    voiced = f0_theirs > VOICED_ABOVE_HZ
    print(f"F0 {f0_theirs.min():.1f} to {f0_theirs.max():.1f} Hz, {int(voiced.sum())} of {frames} frames voiced")
    print(f"{'':44} {'absolute':>10} {'relative':>10}")
    report("F0", f0_ours, f0_theirs, failures)
    reference, wave = theirs(net, mel), ours(mel, count, noise=noise)
    print(f"peak {reference.abs().max():.3f}, rms {reference.std():.3f}")
    report("wave, whole", wave, reference, failures)
    prefix = theirs(net, mel, final=False)
    stream = VocoderStream(ours, noise=noise)
    parts = [stream.push(mel[0, :frames], final=False)]
    if parts[0].shape[0] != prefix.shape[1]:
        failures.append("length of an unfinished run")
    report("wave, unfinished", parts[0][None], prefix, failures)
    stream, parts = VocoderStream(ours, noise=noise), []
    for start in range(0, frames, 50):
        parts.append(stream.push(mel[0, start : start + 50], final=start + 50 >= frames))
    report("wave, streamed 50 by 50", torch.cat(parts)[None], reference, failures)
    report("  against our whole", torch.cat(parts)[None], wave, failures)

    # What float32 in the F0 predictor would do: to F0, the decision, the phase, the wave.
    flips = int(((f0_single > VOICED_ABOVE_HZ) != voiced).sum())
    drift = (f0_single.double() - f0_theirs.double()).cumsum(1).abs().max() * 9 / 50 * 2 * torch.pi
    print(f"with F0 in float32: F0 off by {(f0_single - f0_theirs).abs().max():.1e} Hz, {flips} frames flip, "
          f"9th harmonic's phase off by {drift:.1e} rad", end=", ")  # fmt: skip
    kept = net.f0_predictor.forward
    net.f0_predictor.forward = lambda x, finalize=True: f0_single.double()
    changed = theirs(net, mel)
    net.f0_predictor.forward = kept
    print(f"wave off by {(changed - reference).abs().max():.1e}")
    return failures


def speed(net: CausalHiFTGenerator, ours: Vocoder, frames: int, pairs: int) -> None:
    mel, count = random_mel(1, frames), torch.tensor([frames])
    ratios, wall, least = [], [], [float("inf")] * 2
    for n in range(pairs + 1):
        begin, begin_cpu = time.perf_counter(), time.process_time()
        theirs(net, mel)
        middle, middle_cpu = time.perf_counter(), time.process_time()
        ours(mel, count)
        end, end_cpu = time.perf_counter(), time.process_time()
        if n:  # the first pair warms up
            wall.append((middle - begin, end - middle))
            cpu = (middle_cpu - begin_cpu, end_cpu - middle_cpu)
            ratios.append(cpu[0] / cpu[1])
            least = [min(pair) for pair in zip(least, cpu, strict=True)]
            print(f"theirs {wall[-1][0]:.2f} s, ours {wall[-1][1]:.2f} s; CPU time {ratios[-1]:.2f} times", flush=True)
    by_wall, by_cpu = statistics.median(a / b for a, b in wall), statistics.median(ratios)
    print(f"{frames / 50:.1f} s of mel, {torch.get_num_threads()} threads: "
          f"median of pairs {by_wall:.2f} times in wall time, {by_cpu:.2f} in CPU time; "
          f"least CPU times {least[0]:.2f} and {least[1]:.2f} s, {least[0] / least[1]:.2f} times")  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--frames", type=int, default=300)
    parser.add_argument("--speed", type=int, default=0, metavar="PAIRS")
    parser.add_argument("--threads", type=int, default=0)
    parser.add_argument("--golden", action="store_true")
    options = parser.parse_args()
    if options.threads:
        torch.set_num_threads(options.threads)
    with torch.inference_mode():
        if options.golden:
            make_golden()
            return
        config = VocoderConfig()
        net = official(config)
        ours = Vocoder.load(net.state_dict(), config, device=CPU, source="official code")
        if options.speed:
            speed(net, ours, options.frames, options.speed)
            return
        failures = compare(net, ours, options.frames)
    print("missed: " + ", ".join(failures) if failures else f"all within {BAR:.0e} of the peak")
    sys.exit(bool(failures))


if __name__ == "__main__":
    main()
