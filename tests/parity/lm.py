"""The language model beside the official code, with the same random weights: ids, logits, samples and speed.

    python tests/parity/lm.py [--golden FILE | --speed [--precision int8 ...] [--pairs 3]]

COSYVOICE_OFFICIAL and MATCHA_OFFICIAL name clones of the official code and of Matcha-TTS; its requirements
(transformers and so on) must be installed. Without options: parity, at toy size and at full size. `--golden` writes
what tests/test_cv3_lm.py compares with. `--speed` times prefill and 200 steps in alternating pairs. Exit status 1
when a measure misses its bar.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

sys.path[:0] = [str(folder) for folder in Path(__file__).resolve().parents[1:3]]
for _variable in ("COSYVOICE_OFFICIAL", "MATCHA_OFFICIAL"):
    sys.path.append(os.environ[_variable])

from cosyvoice.llm.llm import CosyVoice3LM, Qwen2Encoder  # noqa: E402
from cosyvoice.utils import common  # noqa: E402
from cv3_decode import generate  # noqa: E402
from cv3_lm_weights import checksum, official_shapes, random_state  # noqa: E402
from transformers import Qwen2Config, Qwen2ForCausalLM  # noqa: E402

from cosyvoice_app.engines.cosyvoice3.config import TINY, LMConfig, ModelConfig, SamplingConfig  # noqa: E402
from cosyvoice_app.engines.cosyvoice3.decoding import LmBatch, LmPrompt  # noqa: E402
from cosyvoice_app.engines.cosyvoice3.lm import LM, UNUSED  # noqa: E402
from cosyvoice_app.engines.cosyvoice3.sampler import Draws, sample  # noqa: E402
from cosyvoice_app.nn.kv_cache import PromptAttention  # noqa: E402

Measure = tuple[str, str, str, bool]
"""What, how much, the bar, kept?"""
END_OF_PROMPT = 151_646
"""The official code asks for it in every text."""
CPU = torch.device("cpu")
STEPS = 200


def official(config: LMConfig, seed: int) -> CosyVoice3LM:
    """The official model with random weights, wide enough apart that greedy ids don't settle into a loop."""
    sizes = Qwen2Config(
        vocab_size=config.text_vocab, hidden_size=config.width, intermediate_size=config.mlp,
        num_hidden_layers=config.layers, num_attention_heads=config.heads, num_key_value_heads=config.kv_heads,
        rope_theta=config.rope_theta, rms_norm_eps=config.norm_eps, tie_word_embeddings=True)
    with torch.device("meta"):  # not to draw half a billion numbers twice
        qwen = Qwen2ForCausalLM(sizes)
        encoder = Qwen2Encoder.__new__(Qwen2Encoder)  # its constructor asks for a folder with weights
        torch.nn.Module.__init__(encoder)
        encoder.model = qwen
        model = CosyVoice3LM(config.width, config.width, config.speech_vocab, encoder, common.ras_sampling).eval()
    state = random_state(official_shapes(config), seed)
    model.load_state_dict(state | {UNUSED: state["llm.model.model.embed_tokens.weight"]}, assign=True)
    qwen.model.rotary_emb = type(qwen.model.rotary_emb)(config=sizes)  # its buffer is in no state dict
    return model


def mine(model: CosyVoice3LM, config: LMConfig, precision: str = "fp32") -> LM:
    return LM.load(dict(model.state_dict()), config, device=CPU, precision=precision, source="the official model")


def prompt(text: int, speech: int, *, seed: int = 1, most: int = STEPS, least: int = STEPS) -> LmPrompt:
    generator = torch.Generator().manual_seed(100 + text)
    ids = torch.randint(0, 150_000, (text,), generator=generator).tolist()
    ids[text // 2] = END_OF_PROMPT
    tokens = torch.randint(0, 6561, (speech,), generator=generator).tolist()
    return LmPrompt(tuple(ids), tuple(tokens), seed, least, most)


def official_ids(model: CosyVoice3LM, p: LmPrompt, sampling: Callable[..., int]) -> Iterator[int]:
    """By its own `inference`. min_tokens and max_tokens come from ratios there: of a text of one token here."""
    model.sampling = sampling
    text = torch.tensor([p.text])
    # The last text token is "the text", all before it the transcript: so its ratios are counts.
    yield from model.inference(
        text[:, -1:], torch.tensor([1]), text[:, :-1], torch.tensor([len(p.text) - 1]), torch.tensor([p.speech]),
        torch.tensor([len(p.speech)]), torch.zeros(0), min_token_text_ratio=p.min_tokens,
        max_token_text_ratio=p.max_tokens)


def greedy(scores: Tensor, decoded: list[int], top_k: int) -> int:
    scores[6561:] = -torch.inf  # random weights end at once otherwise; ours masks them by min_tokens
    return int(scores.argmax())


@contextmanager
def uniforms_for_multinomial(stream: Iterator[float]) -> Iterator[None]:
    """`Tensor.multinomial` by the inverse of the cumulated weights, on numbers from `stream`."""

    def multinomial(weights: Tensor, count: int, replacement: bool = False) -> Tensor:
        sums = weights.double().cumsum(0)
        target = min(next(stream) * float(sums[-1]), float(np.nextafter(float(sums[-1]), 0.0)))
        return torch.searchsorted(sums, torch.tensor([target], dtype=torch.float64), right=True)

    before = Tensor.multinomial
    Tensor.multinomial = multinomial  # type: ignore[assignment,method-assign]
    try:
        yield
    finally:
        Tensor.multinomial = before  # type: ignore[method-assign]


class Paired:
    """The official sampler fed with our uniforms: one for the draw, one for the draw again, per step."""

    def __init__(self, seed: int, config: SamplingConfig) -> None:
        self.draws, self.config = Draws(seed), config
        self.rows: list[list[float]] = []

    def __call__(self, scores: Tensor, decoded: list[int], top_k: int) -> int:
        if not self.rows:
            self.rows = self.draws.block().tolist()
        with uniforms_for_multinomial(iter(self.rows.pop(0))):
            c = self.config
            return int(common.ras_sampling(scores, decoded, top_k, c.top_p, c.top_k, c.window, c.repeats))


def report(rows: list[Measure]) -> int:
    for name, value, bar, kept in rows:
        print(f"{name:58s} {value:>16s}   {bar:22s} {'ok' if kept else 'MISSED'}", flush=True)
    return 0 if all(kept for *_, kept in rows) else 1


@torch.inference_mode()
def prompt_logits(lm: LM, p: LmPrompt) -> Tensor:
    """Of every position."""
    h = lm.embed_prompt(p.text, p.speech)[None]
    cache, rotary = lm.new_cache(1, p.length), lm.new_rotary()
    cache.reserve(0, p.length)
    rotary.reserve(p.length)
    cos, sin = rotary.cos[None, : p.length], rotary.sin[None, : p.length]
    return lm.logits(lm(h, cos, sin, PromptAttention(cache, [0], [p.length])))[0]


@torch.inference_mode()
def official_logits(model: CosyVoice3LM, p: LmPrompt) -> Tensor:
    marks = model.speech_embedding.weight
    x = torch.cat((marks[6561:6562], model.llm.model.model.embed_tokens(torch.tensor(p.text)), marks[6563:6564],
                   model.speech_embedding(torch.tensor(p.speech, dtype=torch.long))))[None]
    ones = torch.ones(1, p.length, p.length, dtype=torch.bool).tril()
    return model.llm_decoder(model.llm.forward_one_step(x, ones)[0])[0]


def off_by(a: Tensor, b: Tensor) -> float:
    return float((a - b).norm() / b.norm())


def parity(config: ModelConfig, size: str, precisions: tuple[str, ...]) -> list[Measure]:
    rows: list[Measure] = []
    model = official(config.lm, seed=3)
    p = prompt(24, 60)
    theirs = official_logits(model, p)
    expected = list(official_ids(model, p, greedy))
    for precision in precisions:
        before = len(rows)
        lm = mine(model, config.lm, precision)
        ours = prompt_logits(lm, p)
        # These weights amplify any rounding about 30-fold over 24 layers, so few bits are measured here without a bar;
        # tests/test_quantized.py bounds each layer.
        bar = 1e-4 if precision == "fp32" else float("inf")
        worst = float((ours - theirs).abs().max() / theirs.abs().max())
        rows.append((f"{size} {precision}: logits, RMS, relative", f"{off_by(ours, theirs):.1e}", f"<= {bar:.0e}",
                     off_by(ours, theirs) <= bar))
        rows.append((f"{size} {precision}: logits, worst, of the largest", f"{worst:.1e}", f"<= {bar:.0e}",
                     worst <= bar))
        ids = list(generate(lm, p, config.sampling, greedy=True))
        same = next((i for i, (a, b) in enumerate(zip(ids, expected, strict=True)) if a != b), len(ids))
        need = STEPS if precision == "fp32" else 0
        rows.append((f"{size} {precision}: greedy ids before the first other one", f"{same} of {STEPS}", f">= {need}",
                     same >= need))
        if precision == "fp32":
            rows.append((f"{size} {precision}: different ids among them", str(len(set(expected))), ">= 50",
                         len(set(expected)) >= 50))
            for seed in (1, 2, 3) if config.lm.layers < 10 else (1,):
                q = replace(p, seed=seed, min_tokens=2 if seed == 3 else 0, max_tokens=STEPS // 2)
                drawn = list(generate(lm, q, config.sampling, mask_stops=False))
                they = list(official_ids(model, q, Paired(seed, config.sampling)))
                rows.append((f"{size} {precision}: sampled ids, seed {seed}, {len(they)} of them, equal",
                             str(drawn == they), "True", drawn == they))
        del lm
        report(rows[before:])
    return rows


def sampler_parity() -> list[Measure]:
    """The sampler alone: peaked and flat distributions, histories full of repeats."""
    config, generator, equal, redrawn = SamplingConfig(), torch.Generator().manual_seed(0), 0, 0
    trials = 600
    logits = torch.randn(trials, 6761, generator=generator) * torch.linspace(0.5, 8.0, trials)[:, None]
    uniforms = torch.rand(trials, 2, generator=generator)
    likely = logits.topk(4).indices
    recent = torch.full((trials, config.window), -1)
    recent[::2, :4] = likely[::2]
    ids = sample(logits, uniforms, recent, config)
    for n in range(trials):
        history = [int(i) for i in recent[n] if i >= 0]
        with uniforms_for_multinomial(iter(uniforms[n].tolist())):
            scores = logits[n].log_softmax(-1)
            theirs = common.ras_sampling(scores, history, config.top_k, config.top_p, config.top_k, config.window,
                                         config.repeats)
        equal += int(ids[n]) == theirs
        redrawn += bool(torch.isinf(scores).any())
    return [("sampler: ids equal on the same uniforms", f"{equal} of {trials}", f">= {trials}", equal == trials),
            ("sampler: of these drawn again", str(redrawn), ">= 50", redrawn >= 50)]


def speed(precisions: tuple[str, ...], pairs: int, text: int, speech: int, steps: int) -> list[Measure]:
    """Prefill and `steps` sampled steps. Random weights: the ids differ between precisions, the work doesn't."""
    config = ModelConfig()
    model = official(config.lm, seed=3)
    p = prompt(text, speech, most=steps, least=steps)
    rows = []
    for precision in precisions:
        lm = mine(model, config.lm, precision)
        ratios, first, ours_s, theirs_s = [], [], [], []
        for n in range(pairs + 1):
            start = time.perf_counter()
            they = official_ids(model, p, sampled(config.lm.speech_vocab))
            next(they)
            their_first = time.perf_counter() - start
            count = 1 + sum(1 for _ in they)
            theirs = time.perf_counter() - start
            start = time.perf_counter()
            our = generate(lm, p, config.sampling)
            next(our)
            our_first = time.perf_counter() - start
            mine_count = 1 + sum(1 for _ in our)
            ours = time.perf_counter() - start
            assert count == mine_count == steps, (count, mine_count)
            print(f"{precision}: pair {n}: official {theirs:.2f} s (first id {their_first:.2f}), ours {ours:.2f} s "
                  f"({our_first:.2f})", flush=True)
            if n:  # the first pair warms up
                ratios.append(theirs / ours)
                first.append(their_first / our_first)
                ours_s.append(ours)
                theirs_s.append(theirs)
        bar = 1.3 if precision == "fp32" else 3.0 if precision == "int8" else 0.0
        ratio = statistics.median(ratios)
        print(f"{precision}: official {statistics.median(theirs_s):.2f} s, ours {statistics.median(ours_s):.2f} s, "
              f"first id {statistics.median(first):.2f} times as fast; pairs {[round(r, 2) for r in ratios]}",
              flush=True)
        rows.append((f"{precision}: prefill {p.length} + {steps} steps, times as fast", f"{ratio:.2f}", f">= {bar}",
                     ratio >= bar))
        del lm
    return rows


def sampled(first_stop: int) -> Callable[..., int]:
    """The official sampler, stops masked so that all 200 steps are taken, as ours does."""

    def sampling(scores: Tensor, decoded: list[int], top_k: int) -> int:
        scores[first_stop:] = -torch.inf
        return int(common.ras_sampling(scores, decoded, top_k))

    return sampling


def golden(file: Path) -> None:
    """What the official code makes of toy weights; tests make the weights again from the seed."""
    config = TINY
    model = official(config.lm, seed=5)
    arrays: dict[str, Any] = {}
    for n, (text, speech) in enumerate(((9, 0), (17, 40))):
        p = replace(prompt(text, speech, seed=11 + n), min_tokens=60, max_tokens=60)
        arrays |= {f"text{n}": p.text, f"speech{n}": p.speech, f"greedy{n}": list(official_ids(model, p, greedy)),
                   f"logits{n}": official_logits(model, p)[-1].numpy()}
        free = replace(p, min_tokens=0)
        arrays[f"sampled{n}"] = list(official_ids(model, free, Paired(p.seed, config.sampling)))
        arrays[f"seed{n}"] = p.seed
    arrays["checksum"] = checksum(random_state(official_shapes(config.lm), seed=5))
    np.savez_compressed(file, **{k: np.asarray(v) for k, v in arrays.items()})
    print(file, file.stat().st_size, {k: np.asarray(v).shape for k, v in arrays.items()})


def batch_speed(precision: str, slots: int) -> None:
    """Not a bar: how a step grows with rows."""
    config = ModelConfig()
    lm = mine(official(config.lm, seed=3), config.lm, precision)
    batch = LmBatch(lm, slots=slots, max_positions=1024, sampling=config.sampling)
    for n in range(slots):
        batch.add(replace(prompt(30, 80, seed=n + 1), max_tokens=400))
        times = []
        for _ in range(12):
            start = time.perf_counter()
            batch.step()
            times.append(time.perf_counter() - start)
        print(f"{precision}: {n + 1} rows, {statistics.median(times) * 1e3:.1f} ms a step", flush=True)


def main() -> int:
    parser = argparse.ArgumentParser(description="Language model: parity with the official code, and speed")
    parser.add_argument("--golden", type=Path)
    parser.add_argument("--speed", action="store_true")
    parser.add_argument("--batch", type=int, default=0, help="time a step with 1 to so many rows")
    parser.add_argument("--tiny", action="store_true", help="parity at toy size only")
    parser.add_argument("--precision", nargs="*", default=["fp32", "fp16", "int8"])
    parser.add_argument("--pairs", type=int, default=3)
    parser.add_argument("--text", type=int, default=40)
    parser.add_argument("--speech", type=int, default=125)
    parser.add_argument("--steps", type=int, default=STEPS, help="of --speed")
    parser.add_argument("--threads", type=int, default=2)
    a = parser.parse_args()
    torch.set_num_threads(a.threads)
    if a.golden:
        golden(a.golden)
        return 0
    if a.batch:
        for precision in a.precision:
            batch_speed(precision, a.batch)
        return 0
    if a.speed:
        return report(speed(tuple(a.precision), a.pairs, a.text, a.speech, a.steps))
    rows = sampler_parity()
    report(rows)
    rows += parity(TINY, "toy", ("fp32",))
    if not a.tiny:
        rows += parity(ModelConfig(), "full", tuple(a.precision))
    missed = [name for name, *_, kept in rows if not kept]
    print("missed:", missed or "none")
    return 1 if missed else 0


if __name__ == "__main__":
    with torch.inference_mode():
        sys.exit(main())
