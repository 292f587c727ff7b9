"""The flow against the official code, with the same random weights: mels, streaming chunks, speed.

    COSYVOICE_OFFICIAL=... MATCHA_OFFICIAL=... python tests/parity/flow.py [--tiny] [--speed] [--golden FILE]

The two variables name clones of FunAudioLLM/CosyVoice and shivammehta25/Matcha-TTS. Without `--tiny` the sizes are
those of the published model (5 GB of memory). `--golden` writes the official code's mels at tiny sizes, from which
`tests/test_cv3_flow.py` checks parity without it. Prints what it measured; exits 1 when a bar is missed.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parent), str(HERE.parent.parent)]
for variable in ("COSYVOICE_OFFICIAL", "MATCHA_OFFICIAL"):
    if variable not in os.environ:
        raise SystemExit(f"Set {variable} to a clone of the official repository.")
    sys.path.append(os.environ[variable])

from cv3_flow_weights import random_flow_state  # noqa: E402

from cosyvoice_app.engines.cosyvoice3.config import TINY, FlowConfig  # noqa: E402
from cosyvoice_app.engines.cosyvoice3.flow import Flow  # noqa: E402
from cosyvoice_app.engines.cosyvoice3.flow_stream import FlowStream  # noqa: E402

MEL_BAR = 1e-4
SPEED_BAR = 1.2
GOLDEN_SEED = 7


def official(config: FlowConfig, state: dict[str, Tensor]) -> Any:
    """The official module with the sizes of `config` and the weights of `state`."""
    from cosyvoice.flow.DiT.dit import DiT
    from cosyvoice.flow.DiT.modules import CausalConvPositionEmbedding, TimestepEmbedding
    from cosyvoice.flow.flow import CausalMaskedDiffWithDiT
    from cosyvoice.flow.flow_matching import CausalConditionalCFM
    from cosyvoice.transformer.upsample_encoder import PreLookaheadLayer
    from omegaconf import DictConfig

    estimator = DiT(dim=config.width, depth=config.blocks, heads=config.heads, dim_head=config.head,
                    ff_mult=config.mlp // config.width, mel_dim=config.mels, mu_dim=config.mels, spk_dim=config.mels,
                    out_channels=config.mels, static_chunk_size=config.chunk_frames, num_decoding_left_chunks=-1)
    estimator.time_embed = TimestepEmbedding(config.width, config.time)
    estimator.input_embed.conv_pos_embed = CausalConvPositionEmbedding(
        config.width, config.position_kernel, config.position_groups)
    cfm = DictConfig({"sigma_min": 1e-6, "solver": "euler", "t_scheduler": "cosine", "training_cfg_rate": 0.2,
                      "inference_cfg_rate": config.guidance, "reg_loss_type": "l1"})
    flow = CausalMaskedDiffWithDiT(
        input_size=config.mels, output_size=config.mels, spk_embed_dim=config.speaker, vocab_size=config.vocab,
        pre_lookahead_len=config.lookahead_tokens,
        pre_lookahead_layer=PreLookaheadLayer(config.mels, config.lookahead_width, config.lookahead_tokens),
        decoder=CausalConditionalCFM(in_channels=3 * config.mels, cfm_params=cfm, n_spks=1, spk_emb_dim=config.mels,
                                     estimator=estimator))
    flow.load_state_dict(state)
    return flow.eval()


def inputs(config: FlowConfig, prompt: int, speech: int, seed: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Prompt tokens [prompt], speech tokens [speech], prompt mel [2 * prompt, 80], speaker [192]."""
    generator = torch.Generator().manual_seed(seed)
    ids = torch.randint(0, config.vocab, (prompt + speech,), generator=generator)
    mel = torch.randn(2 * prompt, config.mels, generator=generator) * 2.0 - 5.0
    return ids[:prompt], ids[prompt:], mel, torch.randn(config.speaker, generator=generator)


def theirs(flow: Any, given: tuple[Tensor, Tensor, Tensor, Tensor], *, streaming: bool, finalize: bool) -> Tensor:
    """The official mel of the speech [frames, 80]."""
    prompt, speech, mel, speaker = given
    out, _ = flow.inference(speech[None], torch.tensor([len(speech)]), prompt[None], torch.tensor([len(prompt)]),
                            mel[None], torch.tensor([len(mel)]), speaker[None], streaming, finalize)
    return out[0].T.contiguous()


def ours(flow: Flow, given: tuple[Tensor, Tensor, Tensor, Tensor], *, chunked: bool, steps: int | None = None
         ) -> Tensor:
    prompt, speech, mel, speaker = given
    tokens = torch.cat((prompt, speech))
    out = flow(tokens[None], torch.tensor([len(tokens)]), mel[None], torch.tensor([len(mel)]), speaker[None],
               chunked=chunked, steps=steps)
    return out[0, len(mel):]


def error(a: Tensor, b: Tensor) -> float:
    """Largest difference over the largest value."""
    return float((a - b).abs().max() / b.abs().max())


def compare(config: FlowConfig, reference: Any, flow: Flow, sizes: tuple[int, int]) -> bool:
    given = inputs(config, *sizes, seed=1)
    prompt, speech, mel, speaker = given
    rows = [("offline, finalize", error(ours(flow, given, chunked=False), theirs(
        reference, given, streaming=False, finalize=True)))]
    wanted = theirs(reference, given, streaming=True, finalize=True)
    rows.append(("chunked, finalize", error(ours(flow, given, chunked=True), wanted)))
    stream, hop = FlowStream(flow, prompt, mel, speaker), 25 + -len(prompt) % 25
    part = theirs(reference, (prompt, speech[:hop + 3], mel, speaker), streaming=True, finalize=False)
    first = stream.push(speech[:hop + 3], final=False)
    rows.append(("first chunk, finalize=False", error(first, part)))
    rest = stream.push(speech[hop + 3:], final=True)
    rows.append(("stream against one run", error(torch.cat((first, rest)), wanted)))
    print(f"{'case':32}{'largest difference / largest value':>36}")
    for name, value in rows:
        print(f"{name:32}{value:36.2e}")
    return all(value <= MEL_BAR for _, value in rows)


def speed(config: FlowConfig, reference: Any, flow: Flow, pairs: int, steps: int) -> bool:
    """Pairs of runs, ours and theirs in turn: 3 s of prompt, 6 s of speech. `steps` of the solver's ten."""
    given = inputs(config, 75, 150, seed=2)
    solve = reference.decoder.forward
    reference.decoder.forward = lambda **kw: solve(**{**kw, "n_timesteps": steps})
    ratios, own = [], []
    for _ in range(pairs):
        t0 = time.perf_counter()
        theirs(reference, given, streaming=False, finalize=True)
        t1 = time.perf_counter()
        ours(flow, given, chunked=False, steps=steps)
        t2 = time.perf_counter()
        ratios.append((t1 - t0) / (t2 - t1))
        own.append(t2 - t1)
        print(f"official {t1 - t0:7.2f} s  ours {t2 - t1:7.2f} s  ratio {ratios[-1]:.2f}", flush=True)
    median = statistics.median(ratios)
    print(f"{steps} steps, {torch.get_num_threads()} threads: {median:.2f} times as fast (median of {pairs} pairs), "
          f"{statistics.median(own):.2f} s")
    return median >= SPEED_BAR


def golden(file: Path) -> None:
    config = TINY.flow
    reference = official(config, random_flow_state(config, GOLDEN_SEED))
    given = inputs(config, 20, 40, seed=GOLDEN_SEED)
    saved = {name: tensor.numpy() for name, tensor in zip(("prompt", "speech", "mel", "speaker"), given, strict=True)}
    saved["offline"] = theirs(reference, given, streaming=False, finalize=True).numpy()
    saved["chunked"] = theirs(reference, given, streaming=True, finalize=True).numpy()
    saved["unfinished"] = theirs(reference, given, streaming=True, finalize=False).numpy()
    np.savez_compressed(file, **saved)
    print(f"wrote {file} ({file.stat().st_size} bytes)")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tiny", action="store_true")
    parser.add_argument("--speed", action="store_true")
    parser.add_argument("--pairs", type=int, default=5)
    parser.add_argument("--steps", type=int, default=1, help="of the solver in --speed; each costs the same")
    parser.add_argument("--golden", type=Path)
    options = parser.parse_args()
    torch.set_grad_enabled(False)
    if options.golden:
        golden(options.golden)
        return 0
    config = TINY.flow if options.tiny else FlowConfig()
    state = random_flow_state(config, 0)
    flow = Flow.load(state, config, device=torch.device("cpu"), dtype=torch.float32, precision="fp32", source="random")
    reference = official(config, state)
    del state
    if options.speed:
        return 0 if speed(config, reference, flow, options.pairs, options.steps) else 1
    return 0 if compare(config, reference, flow, (37, 60)) else 1


if __name__ == "__main__":
    sys.exit(main())
