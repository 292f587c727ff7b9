"""Laws of the language model and of decoding in slots, at toy size. float32 tolerances are relative to the largest
logit: kernels sum in another order for another number of rows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from cv3_decode import generate
from cv3_lm_weights import checksum, official_shapes, random_state
from torch import Tensor

from cosyvoice_app.engines.cosyvoice3 import config
from cosyvoice_app.engines.cosyvoice3.decoding import LmBatch, LmPrompt
from cosyvoice_app.engines.cosyvoice3.lm import LM, UNUSED
from cosyvoice_app.errors import AssetError, ConfigError, TextError
from cosyvoice_app.nn.kv_cache import BLOCK, BlockAttention, PromptAttention, RowAttention

C = config.TINY.lm
SAMPLING = config.TINY.sampling
CPU = torch.device("cpu")
GOLDEN = Path(__file__).parent / "data" / "cv3_lm_golden.npz"
CLOSE = 1e-5


def state() -> dict[str, Tensor]:
    return random_state(official_shapes(C), seed=5)


@pytest.fixture(scope="module")
def weights() -> dict[str, Tensor]:
    return state()


@pytest.fixture(scope="module")
def lm(weights: dict[str, Tensor]) -> LM:
    return LM.load(dict(weights), C, device=CPU)


@pytest.fixture(scope="module")
def golden() -> dict[str, np.ndarray]:
    with np.load(GOLDEN) as arrays:
        return dict(arrays)


@pytest.fixture(autouse=True)
def _inference() -> Iterator[None]:
    with torch.inference_mode():
        yield


def prompt(text: int, speech: int, *, seed: int = 1, least: int = 12, most: int = 12) -> LmPrompt:
    return LmPrompt(tuple(range(1000, 1000 + 7 * text, 7)), tuple(range(3, 3 + 5 * speech, 5)), seed, least, most)


PROMPTS = (prompt(3, 9, seed=1), prompt(11, 0, seed=2), prompt(6, 30, seed=3), prompt(3, 9, seed=4))


def batch_of(lm: LM, slots: int, **options: object) -> LmBatch:
    return LmBatch(lm, slots=slots, max_positions=600, sampling=SAMPLING, **options)  # type: ignore[arg-type]


def alone(lm: LM, p: LmPrompt, **options: bool) -> list[int]:
    return list(generate(lm, p, SAMPLING, **options))


def free(batch: LmBatch) -> int:
    return batch._rows.count(None)


def finish(batch: LmBatch, made: dict[int, list[int]]) -> None:
    while batch.running:
        for slot, speech_id in batch.step().items():
            if speech_id is not None:
                made.setdefault(slot, []).append(speech_id)


def full_logits(lm: LM, p: LmPrompt, ids: list[int]) -> Tensor:
    """Of every position of the prompt and `ids`, in one pass without a past."""
    h = lm.embed_prompt(p.text, (*p.speech, *ids))[None]
    length = h.shape[1]
    cache, rotary = lm.new_cache(1, length), lm.new_rotary()
    cache.reserve(0, length)
    rotary.reserve(length)
    return lm.logits(lm(h, rotary.cos[None, :length], rotary.sin[None, :length],
                        PromptAttention(cache, [0], [length])))[0]


def step_logits(lm: LM, p: LmPrompt, ids: list[int], *, block: bool = False) -> Tensor:
    """Of the prompt's last position and of each of `ids`, one by one over the cache."""
    h = lm.embed_prompt(p.text, p.speech)[None]
    cache, rotary = lm.new_cache(1, p.length + len(ids), whole=block), lm.new_rotary()
    cache.reserve(0, p.length + len(ids))
    rotary.reserve(p.length + len(ids))
    hidden = lm(h, rotary.cos[None, : p.length], rotary.sin[None, : p.length], PromptAttention(cache, [0], [p.length]))
    cache.set_length(0, p.length)
    out = [lm.logits(hidden[:, -1])]
    for speech_id in ids:
        at = cache.lengths
        attend = BlockAttention(cache, cache.positions) if block else RowAttention(cache, [0])
        hidden = lm(lm.embed_speech(torch.tensor([[speech_id]])), rotary.cos[at][:, None], rotary.sin[at][:, None],
                    attend)
        out.append(lm.logits(hidden[:, 0]))
        cache.set_length(0, cache.host_lengths[0] + 1)
    return torch.cat(out)


def assert_close(a: Tensor, b: Tensor, within: float = CLOSE) -> None:
    worst = float((a - b).abs().max() / b.abs().max())
    assert worst <= within, worst


# The official code


def test_the_weights_are_those_of_the_golden_values(weights: dict[str, Tensor], golden: dict[str, np.ndarray]) -> None:
    assert checksum(weights) == pytest.approx(float(golden["checksum"]), rel=1e-12)


@pytest.mark.parametrize("n", [0, 1])
def test_logits_and_greedy_ids_are_the_official_ones(lm: LM, golden: dict[str, np.ndarray], n: int) -> None:
    p = LmPrompt(tuple(golden[f"text{n}"].tolist()), tuple(golden[f"speech{n}"].astype(int).tolist()), 1, 60, 60)
    assert_close(full_logits(lm, p, [])[-1], torch.from_numpy(golden[f"logits{n}"]))
    assert len(golden[f"greedy{n}"]) == 60
    assert len(set(golden[f"greedy{n}"].tolist())) > 20
    assert alone(lm, p, greedy=True) == golden[f"greedy{n}"].tolist()


@pytest.mark.parametrize("n", [0, 1])
def test_sampled_ids_are_the_official_ones_on_the_same_uniforms(lm: LM, golden: dict[str, np.ndarray], n: int) -> None:
    p = LmPrompt(tuple(golden[f"text{n}"].tolist()), tuple(golden[f"speech{n}"].astype(int).tolist()),
                 int(golden[f"seed{n}"]), 0, 60)
    assert len(golden[f"sampled{n}"]) > 5
    assert alone(lm, p, mask_stops=False) == golden[f"sampled{n}"].tolist()


# Past and batch


@pytest.mark.parametrize("block", [False, True])
def test_steps_over_the_cache_equal_a_full_pass(lm: LM, block: bool) -> None:
    p, ids = prompt(6, 20), [5, 6000, 77, 77, 3111, 0, 6560]
    assert_close(step_logits(lm, p, ids, block=block), full_logits(lm, p, ids)[p.length - 1 :])


def test_an_earlier_position_does_not_see_a_later_one(lm: LM) -> None:
    p = prompt(6, 20)
    assert_close(full_logits(lm, p, [1, 2, 3])[: p.length], full_logits(lm, p, [9, 8, 7])[: p.length], 1e-6)


@pytest.mark.parametrize("together", [True, False])
def test_rows_of_a_batch_draw_what_they_draw_alone(lm: LM, together: bool) -> None:
    batch = batch_of(lm, 4)
    slots = batch.add_many(PROMPTS) if together else [batch.add(p) for p in PROMPTS]
    made: dict[int, list[int]] = {}
    finish(batch, made)
    assert [made[slot] for slot in slots] == [alone(lm, p) for p in PROMPTS]


@pytest.mark.parametrize("precision", ["fp16", "int8"])
def test_rows_of_a_batch_draw_what_they_draw_alone_in_few_bits(weights: dict[str, Tensor], precision: str) -> None:
    lm = LM.load(dict(weights), C, device=CPU, precision=precision)
    batch = batch_of(lm, 4)
    slots = batch.add_many(PROMPTS)
    made: dict[int, list[int]] = {}
    finish(batch, made)
    assert [made[slot] for slot in slots] == [alone(lm, p) for p in PROMPTS]


def test_rows_join_and_leave_at_any_step(lm: LM) -> None:
    """Each row's ids are its own although others came, ended and were dropped meanwhile, and slots were used again."""
    expected = {p.seed: alone(lm, p) for p in PROMPTS}
    batch = batch_of(lm, 2)
    made: dict[int, list[int]] = {p.seed: [] for p in PROMPTS}
    owner: dict[int, int] = {}

    def steps(count: int) -> None:
        for _ in range(count):
            for slot, speech_id in batch.step().items():
                if speech_id is not None:
                    made[owner[slot]].append(speech_id)

    owner[batch.add(PROMPTS[0])] = 1
    steps(4)
    second = batch.add(PROMPTS[1])
    owner[second] = 2
    assert free(batch) == 0
    steps(3)
    batch.release(second)  # cancelled half-way
    third = batch.add(PROMPTS[2])
    assert third == second
    owner[third] = 3
    steps(7)
    first = next(slot for slot, seed in owner.items() if seed == 1)
    assert first not in batch.running  # 12 ids and the end were given
    batch.release(first)
    owner[batch.add(PROMPTS[3])] = 4
    steps(14)
    assert not batch.running
    assert made[2] == expected[2][:3]
    assert {s: made[s] for s in (1, 3, 4)} == {s: expected[s] for s in (1, 3, 4)}


def test_a_seed_decides_and_batch_mates_do_not(lm: LM) -> None:
    p = prompt(5, 12, seed=8, least=20, most=20)
    expected = alone(lm, p)
    assert alone(lm, replace(p, seed=9)) != expected
    for mates in (range(20, 23), range(30, 33)):
        batch = batch_of(lm, 4)
        for seed in mates:
            batch.add(prompt(2 + seed % 3, seed, seed=seed, least=20, most=20))
        slot = batch.add(p)
        made: dict[int, list[int]] = {}
        finish(batch, made)
        assert made[slot] == expected


def test_a_longer_limit_does_not_change_the_draws(lm: LM) -> None:
    """Across a block of uniforms and a block of positions."""
    p = prompt(5, 12, seed=8, least=300, most=300)
    long = alone(lm, p)
    assert len(long) == 300 > BLOCK
    assert alone(lm, replace(p, min_tokens=40, max_tokens=40)) == long[:40]


# Ends


def test_stops_are_masked_below_the_least_and_the_most_is_kept(weights: dict[str, Tensor]) -> None:
    loud = dict(weights)
    loud["llm_decoder.weight"] = weights["llm_decoder.weight"].clone()
    loud["llm_decoder.weight"][C.end] *= 400.0  # the end is likely at every other step
    lm = LM.load(loud, C, device=CPU)
    lengths = [len(alone(lm, prompt(5, 12, seed=seed, least=10, most=30))) for seed in range(20)]
    assert min(lengths) >= 10
    assert len([n for n in lengths if n < 30]) >= 10
    upstream = [len(alone(lm, prompt(5, 12, seed=seed, least=10, most=30), mask_stops=False)) for seed in range(20)]
    assert min(upstream) < 10  # the official code masks another id than the end
    assert max(lengths + upstream) <= 30


@pytest.mark.parametrize("most", [0, 1, 2, 7])
def test_the_most_is_kept(lm: LM, most: int) -> None:
    ids = alone(lm, prompt(5, 12, least=most, most=most))
    assert len(ids) == most
    assert all(0 <= i < C.speech_vocab for i in ids)


def test_a_row_that_ended_is_left_out_until_released(lm: LM) -> None:
    batch = batch_of(lm, 2)
    short, long = batch.add(prompt(4, 4, least=1, most=1)), batch.add(prompt(4, 4, least=3, most=3))
    assert set(batch.step()) == {short, long}
    assert batch.step()[short] is None
    assert set(batch.step()) == {long}
    assert free(batch) == 0
    batch.release(short)
    assert free(batch) == 1
    with pytest.raises(ValueError, match="free already"):
        batch.release(short)


def test_a_released_slot_leaves_no_trace(lm: LM) -> None:
    batch = batch_of(lm, 1)
    batch.release(batch.add(prompt(20, 200, seed=5, least=100, most=100)))
    for _ in range(3):
        slot = batch.add(PROMPTS[0])
        made: dict[int, list[int]] = {}
        finish(batch, made)
        batch.release(slot)
        assert made[slot] == alone(lm, PROMPTS[0])


# What can't be


def test_a_text_longer_than_the_positions_is_an_error_that_says_so(lm: LM) -> None:
    batch = LmBatch(lm, slots=2, max_positions=64, sampling=SAMPLING)
    fits = prompt(20, 30, least=0, most=13)
    assert fits.positions == 64
    batch.add(fits)
    with pytest.raises(TextError, match="65 positions, and 64 are there. Shorten"):
        batch.add_many((PROMPTS[1], replace(fits, max_tokens=14)))
    assert free(batch) == 1  # nothing was added by half
    made: dict[int, list[int]] = {}
    finish(batch, made)
    assert len(made[0]) <= 13


def test_an_empty_text_and_ids_out_of_range_are_refused(lm: LM) -> None:
    with pytest.raises(TextError, match="no text"):
        alone(lm, LmPrompt((), (1, 2), 1, 0, 5))
    with pytest.raises(ValueError, match="below 151936"):
        alone(lm, LmPrompt((C.text_vocab,), (), 1, 0, 5))
    with pytest.raises(ValueError, match="below 6561"):
        alone(lm, LmPrompt((1,), (C.speech_vocab,), 1, 0, 5))
    with pytest.raises(ValueError, match="free slots"):
        batch_of(lm, 1).add_many(PROMPTS[:2])


class Eager:
    """Stands in for `StepGraphs` where there is no CUDA: warms up as it does, then runs the step itself."""

    def __init__(self, step: Callable[[int], None]) -> None:
        self.step, self.keys, self.runs = step, list[int](), 0

    def __contains__(self, key: int) -> bool:
        return key in self.keys

    def prepare(self, key: int) -> None:
        self.step(key)
        self.keys.append(key)

    def run(self, key: int) -> None:
        assert key in self.keys
        self.step(key)
        self.runs += 1


def as_on_cuda(lm: LM, slots: int) -> tuple[LmBatch, Eager]:
    """A batch that takes the way it takes on CUDA: all slots at once over positions that are there from the start."""
    batch = batch_of(lm, slots, one_shape=True)
    batch._graphs = Eager(batch._step_all)  # type: ignore[assignment]
    return batch, batch._graphs  # type: ignore[return-value]


@pytest.mark.parametrize("warm", [True, False])
def test_steps_of_one_shape_draw_what_rows_draw_alone(lm: LM, warm: bool) -> None:
    """Rows join and leave, a length is captured in the middle of a row unless all were before, a slot is used again."""
    long = prompt(4, 4, seed=9, least=270, most=270)
    batch, graphs = as_on_cuda(lm, 3)
    if warm:
        batch.warm_up()
        assert graphs.keys == [256, 512, 768]
    made: dict[int, list[int]] = {}
    first = batch.add(long)
    for _ in range(5):
        made.setdefault(first, []).append(batch.step()[first] or 0)
    slots = batch.add_many(PROMPTS[:2])
    while any(slot in batch.running for slot in slots):
        for slot, speech_id in batch.step().items():
            if speech_id is not None:
                made.setdefault(slot, []).append(speech_id)
    assert [made.pop(slot) for slot in slots] == [alone(lm, p) for p in PROMPTS[:2]]
    batch.release(slots[0])
    again = batch.add(PROMPTS[2])
    finish(batch, made)
    assert again == slots[0]
    assert made == {first: alone(lm, long), again: alone(lm, PROMPTS[2])}
    assert warm or graphs.keys == [256, 512]


def test_who_is_live_is_written_only_when_it_changes(lm: LM) -> None:
    batch, graphs = as_on_cuda(lm, 2)
    slot = batch.add(prompt(4, 4, least=20, most=20))
    batch.step(), batch.step()
    assert graphs.runs == 1
    written = batch._went_live
    assert written == [slot]
    for _ in range(10):
        batch.step()
        assert batch._went_live is written  # the same list: not written again
    assert batch._live.tolist() == [True, False]
    other = batch.add(prompt(4, 4, least=20, most=20))
    batch.step(), batch.step()
    assert batch._went_live == [slot, other]
    assert batch._live.tolist() == [True, True]


def test_a_batch_may_be_used_where_gradients_are_on(lm: LM) -> None:
    with torch.inference_mode(False):
        batch, _ = as_on_cuda(lm, 2)
        batch.warm_up()
        made: dict[int, list[int]] = {}
        slot = batch.add(PROMPTS[0])
        finish(batch, made)
        batch.release(slot)
    assert made[slot] == alone(lm, PROMPTS[0])


@pytest.mark.parametrize("fails", ["_draw", "cache.set_length"])
def test_a_prefill_that_fails_takes_no_slot(lm: LM, monkeypatch: pytest.MonkeyPatch, fails: str) -> None:
    def broken(*_: object) -> None:
        raise RuntimeError("out of memory")

    batch = batch_of(lm, 3)
    first = batch.add(PROMPTS[0])
    with monkeypatch.context() as patch:
        patch.setattr(batch.cache if "." in fails else batch, fails.rpartition(".")[2], broken)
        with pytest.raises(RuntimeError, match="out of memory"):
            batch.add_many(PROMPTS[1:3])
    assert free(batch) == 2
    assert batch.running == (first,)
    slots = [first, *batch.add_many(PROMPTS[1:3])]
    made: dict[int, list[int]] = {}
    finish(batch, made)
    assert [made[slot] for slot in slots] == [alone(lm, p) for p in PROMPTS[:3]]


# Loading


def test_loading_is_strict_and_lists_what_differs() -> None:
    wrong = state()
    del wrong["llm.model.model.layers.1.self_attn.k_proj.bias"]
    wrong["llm.model.model.layers.0.mlp.up_proj.weight"] = torch.zeros(3, 4)
    wrong["epochs"] = torch.zeros(1)
    wrong[UNUSED] = torch.zeros(1)  # ignored, whatever it is
    with pytest.raises(AssetError) as caught:
        LM.load(wrong, C, device=CPU, source="llm.pt")
    message = caught.value.message
    assert "missing: llm.model.model.layers.1.self_attn.k_proj.bias" in message
    assert "not expected: epochs" in message
    assert "layers.0.mlp.up_proj.weight is [3, 4], expected [128, 64]" in message
    assert "lm_head" not in message
    assert message.startswith("llm.pt doesn't fit")


def test_an_unknown_precision_is_refused() -> None:
    with pytest.raises(ConfigError, match="fp32, bf16, fp16, int8"):
        LM.load({}, C, device=CPU, precision="fp64")


@pytest.mark.parametrize("precision, within", [("fp16", 2e-3), ("bf16", 2e-3), ("int8", 5e-2)])
def test_few_bits_stay_near_float32(lm: LM, weights: dict[str, Tensor], precision: str, within: float) -> None:
    """RMS over all logits, two layers of width 64, weights wider than trained ones."""
    few = LM.load(dict(weights), C, device=CPU, precision=precision)
    p, ids = prompt(6, 20), [5, 6000, 77]
    for few_logits in (full_logits(few, p, ids), step_logits(few, p, ids)):
        expected = full_logits(lm, p, ids)[-len(few_logits) :]
        off = float((few_logits - expected).norm() / expected.norm())
        assert 0 < off <= within, off
        assert few_logits.dtype == torch.float32


def test_int8_keeps_a_quarter(weights: dict[str, Tensor]) -> None:
    lm = LM.load(dict(weights), C, device=CPU, precision="int8")
    table = sum(b.numel() * b.element_size() for b in lm.text_embedding.buffers())
    assert table <= C.text_vocab * (C.width + 4)
    assert not any(isinstance(part, torch.nn.Linear) for part in lm.modules())


# CUDA


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("precision", ["fp32", "bf16", "fp16", "int8"])
def test_captured_steps_equal_eager_ones(precision: str) -> None:
    lm = LM.load(state(), C, device=torch.device("cuda"), precision=precision)
    drawn = []
    for graphs in (False, True):
        batch = batch_of(lm, 4, graphs=graphs)
        batch.warm_up()
        made: dict[int, list[int]] = {}
        batch.add(prompt(4, 4, seed=9, least=270, most=270))  # crosses a block
        for _ in range(5):
            for slot, speech_id in batch.step().items():
                assert speech_id is not None
                made.setdefault(slot, []).append(speech_id)
        batch.add_many(PROMPTS[:3])
        finish(batch, made)
        drawn.append(made)
    assert drawn[0] == drawn[1]
    assert len(drawn[0][0]) == 270


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_the_device_gives_the_same_ids(lm: LM) -> None:
    on_device = LM.load(state(), C, device=torch.device("cuda"))
    assert [alone(on_device, p) for p in PROMPTS] == [alone(lm, p) for p in PROMPTS]
