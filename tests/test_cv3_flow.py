"""Laws of the cosyvoice3 flow, at toy size with random weights. Parity with the official code: golden mels that it made
(`tests/parity/flow.py --golden`)."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from cv3_flow_weights import random_flow_state
from torch import Tensor

from cosyvoice_app.engines.cosyvoice3.config import TINY, FlowConfig
from cosyvoice_app.engines.cosyvoice3.dit import rotary_table, rotate_first_head_, solver_times
from cosyvoice_app.engines.cosyvoice3.flow import Flow
from cosyvoice_app.engines.cosyvoice3.flow_attend import chunk_mask, chunk_sight, padded_sight
from cosyvoice_app.engines.cosyvoice3.flow_graph import bucket
from cosyvoice_app.engines.cosyvoice3.flow_load import ROTARY, from_official, official_shapes
from cosyvoice_app.errors import AssetError, BadInput, ConfigError, EngineFailure
from cosyvoice_app.nn.quantized import quantize_rows

CONFIG = TINY.flow
CPU = torch.device("cpu")
GOLDEN = Path(__file__).parent / "data" / "cv3_flow_golden.npz"
GOLDEN_SEED = 7
TOLERANCE = 1e-4
"""Of the largest value: sums in another order over ten steps."""


def make(config: FlowConfig = CONFIG, *, seed: int = 0, dtype: torch.dtype = torch.float32, precision: str = "fp32",
         device: torch.device = CPU) -> Flow:
    return Flow.load(random_flow_state(config, seed), config, device=device, dtype=dtype, precision=precision,
                     source="random weights")


@pytest.fixture(scope="module", autouse=True)
def _inference() -> object:
    with torch.inference_mode():
        yield


@pytest.fixture(scope="module")
def flow() -> Flow:
    return make()


def batch(counts: list[int], prompts: list[int], seed: int = 3) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """tokens, lengths, prompt mel, prompt frames, speaker; prompts in tokens. Padding holds what must not matter."""
    g = torch.Generator().manual_seed(seed)
    tokens = torch.randint(0, CONFIG.vocab, (len(counts), max(counts)), generator=g)
    mel = torch.randn(len(counts), 2 * max(prompts), 80, generator=g)
    for row, (n, p) in enumerate(zip(counts, prompts, strict=True)):
        tokens[row, n:] = -1
        mel[row, 2 * p:] = float("nan")
    speaker = torch.randn(len(counts), 192, generator=g)
    return tokens, torch.tensor(counts), mel, 2 * torch.tensor(prompts), speaker


def row(given: tuple[Tensor, Tensor, Tensor, Tensor, Tensor], i: int) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    tokens, lengths, mel, frames, speaker = given
    return (tokens[i:i + 1, :int(lengths[i])], lengths[i:i + 1], mel[i:i + 1, :int(frames[i])], frames[i:i + 1],
            speaker[i:i + 1])


def close(a: Tensor, b: Tensor, tolerance: float = TOLERANCE) -> None:
    assert a.shape == b.shape
    assert float((a - b).abs().max()) <= tolerance * float(b.abs().max())


def golden() -> dict[str, Tensor]:
    with np.load(GOLDEN) as saved:
        return {name: torch.from_numpy(saved[name]) for name in saved.files}


@pytest.mark.parametrize(("name", "chunked"), [("offline", False), ("chunked", True)])
def test_the_mel_is_the_official_codes(name: str, chunked: bool) -> None:
    saved = golden()
    tokens = torch.cat((saved["prompt"], saved["speech"]))[None]
    mel = make(seed=GOLDEN_SEED)(tokens, torch.tensor([tokens.shape[1]]), saved["mel"][None],
                                 torch.tensor([len(saved["mel"])]), saved["speaker"][None], chunked=chunked)
    assert mel.dtype == torch.float32
    close(mel[0, len(saved["mel"]):], saved[name], 1e-5)


def test_the_two_masks_give_different_mels() -> None:
    saved = golden()
    assert float((saved["offline"] - saved["chunked"]).abs().max()) > 0.01


@pytest.mark.parametrize("chunked", [False, True])
@pytest.mark.parametrize("together", [False, True])
def test_a_row_of_a_batch_is_the_row_alone(flow: Flow, chunked: bool, together: bool) -> None:
    given = batch([60, 12, 37, 1], [20, 0, 11, 0])
    flow.rows_together = together
    try:
        mel = flow(*given, chunked=chunked, steps=4)
    finally:
        flow.rows_together = None
    assert mel.shape == (4, 120, 80)
    for i, n in enumerate([60, 12, 37, 1]):
        alone = flow(*row(given, i), chunked=chunked, steps=4)[0]
        if together:
            close(mel[i, :2 * n], alone)
        else:
            assert torch.equal(mel[i, :2 * n], alone)
        assert not mel[i, 2 * n:].any()


def test_rows_of_one_length_are_rows_alone(flow: Flow) -> None:
    given = batch([30, 30], [10, 5])
    mel = flow(*given, steps=4)
    for i in range(2):
        close(mel[i], flow(*row(given, i), steps=4)[0])


def test_the_table_may_be_wider_than_its_longest_row(flow: Flow) -> None:
    tokens, lengths, mel, frames, speaker = batch([20], [5])
    wide = torch.nn.functional.pad(tokens, (0, 7), value=-1)
    out = flow(wide, lengths, mel, frames, speaker)
    assert torch.equal(out[:, :40], flow(tokens, lengths, mel, frames, speaker))
    assert out.shape == (1, 54, 80)
    assert not out[:, 40:].any()


def test_the_same_input_gives_the_same_bits_and_touches_no_global_generator(flow: Flow) -> None:
    given = batch([30, 22], [10, 5])
    torch.manual_seed(123)
    before = torch.get_rng_state()
    assert torch.equal(flow(*given), flow(*given))
    fresh = make()
    assert torch.equal(fresh(*given), flow(*given))
    assert torch.equal(torch.get_rng_state(), before)


def test_the_noise_is_upstreams(flow: Flow) -> None:
    state = torch.get_rng_state()
    torch.manual_seed(0)
    expected = torch.randn(1, 80, 15_000)
    torch.set_rng_state(state)
    assert torch.equal(flow.noise, expected[0].T)


def test_the_schedule_is_the_specs(flow: Flow) -> None:
    spec = [0, .012312, .048943, .108993, .190983, .292893, .412215, .546010, .690983, .843566, 1]
    assert solver_times(10).tolist() == pytest.approx(spec, abs=1e-6)
    schedule = flow.schedule(None)
    assert schedule.steps == 10
    assert list(schedule.times) == pytest.approx(spec[:-1], abs=1e-6)
    assert sum(schedule.spans) == pytest.approx(1.0, abs=1e-6)
    assert flow.schedule(10) is schedule
    assert schedule.blocks.shape == (10, CONFIG.blocks, 6, CONFIG.width)


@pytest.mark.parametrize("steps", [0, 51, -1])
def test_a_number_of_steps_out_of_range_is_refused(flow: Flow, steps: int) -> None:
    with pytest.raises(ConfigError, match="1 to 50 steps"):
        flow(*batch([10], [2]), steps=steps)


def test_kept_schedules_are_few(flow: Flow) -> None:
    for steps in range(1, 12):
        flow.schedule(steps)
    assert len(flow.dit._schedules) <= 4


def test_a_settled_flow_gives_the_same_with_less_and_knows_its_steps_only() -> None:
    given, settled = batch([20], [8]), make()
    expected = settled(*given, steps=4)
    values = sum(p.numel() for p in settled.parameters())
    settled.dit.settle(4)
    assert torch.equal(settled(*given, steps=4), expected)
    block = 6 * CONFIG.width * (CONFIG.width + 1)
    assert values - sum(p.numel() for p in settled.parameters()) == CONFIG.blocks * block
    with pytest.raises(ConfigError, match=r"loaded for 4 solver steps, not 10.*--flow-steps 10"):
        settled(*given, steps=10)


def test_guidance_mixes_two_velocities() -> None:
    """One step is linear in the velocity, so guidance 0 (told), -1 (untold) and 0.7 lie on a line."""
    given = batch([30], [10])
    mels = {g: make(replace(CONFIG, guidance=g))(*given, steps=1) for g in (0.0, -1.0, 0.7)}
    close(mels[0.7], 1.7 * mels[0.0] - 0.7 * mels[-1.0], 1e-5)
    other = make(replace(CONFIG, guidance=-1.0))(*batch([30], [10], seed=4), steps=1)
    assert torch.equal(mels[-1.0], other)  # the untold velocity knows neither tokens nor prompt nor speaker
    assert not torch.allclose(mels[0.0], make(replace(CONFIG, guidance=0.0))(*batch([30], [10], seed=4), steps=1))


def test_only_the_speakers_direction_counts(flow: Flow) -> None:
    tokens, lengths, mel, frames, speaker = batch([12], [4])
    close(flow(tokens, lengths, mel, frames, speaker * 7.5), flow(tokens, lengths, mel, frames, speaker))


def test_positions_turn_the_first_head_alone() -> None:
    qkv = torch.randn(2, 9, 3, 4, 16, generator=torch.Generator().manual_seed(1))
    turned, shifted = qkv.clone(), qkv.clone()
    table = rotary_table(20, 16, CPU)
    rotate_first_head_(turned, table[:9])
    rotate_first_head_(shifted, table[5:14])
    assert torch.equal(turned[:, :, :, 1:], qkv[:, :, :, 1:])
    assert torch.equal(turned[:, :, 2], qkv[:, :, 2])
    assert torch.equal(turned[:, 0], qkv[:, 0])
    assert not torch.allclose(turned[:, 1:, :2, 0], qkv[:, 1:, :2, 0])
    assert not torch.allclose(turned[:, :, :2, 0], shifted[:, :, :2, 0])
    scores = [torch.einsum("rqc,rkc->rqk", t[:, :, 0, 0], t[:, :, 1, 0]) for t in (turned, shifted)]
    torch.testing.assert_close(scores[0], scores[1], rtol=1e-4, atol=1e-4)  # what is seen are distances
    angle = 8 * 1e4 ** (-2 / 16)  # channels 2 and 3 are the second pair
    a, b = qkv[0, 8, 0, 0, 2:4].tolist()
    assert turned[0, 8, 0, 0, 2] == pytest.approx(a * math.cos(angle) - b * math.sin(angle), abs=1e-5)
    assert turned[0, 8, 0, 0, 3] == pytest.approx(b * math.cos(angle) + a * math.sin(angle), abs=1e-5)


def test_a_chunk_sees_itself_and_what_came_before() -> None:
    mask = chunk_mask(0, 120, 50, CPU)
    for query, seen in ((0, 50), (49, 50), (50, 100), (99, 100), (100, 120), (119, 120)):
        assert mask[query].tolist() == [key < seen for key in range(120)]


@pytest.mark.parametrize(("start", "end"), [(0, 30), (0, 50), (0, 170), (50, 100), (100, 180)])
def test_chunk_by_chunk_is_what_the_mask_says(start: int, end: int) -> None:
    g = torch.Generator().manual_seed(5)
    q, k, v = (torch.randn(2, n, 4, 16, generator=g) for n in (end - start, end, end))
    got = chunk_sight(start, end, 50, CPU).look(q, k, v)
    mask = chunk_mask(start, end, 50, CPU)
    scores = torch.einsum("rqhc,rkhc->rhqk", q, k) / 4.0
    wanted = torch.einsum("rhqk,rkhc->rqhc", scores.masked_fill(~mask, -math.inf).softmax(-1), v).flatten(2)
    torch.testing.assert_close(got, wanted, rtol=1e-5, atol=1e-5)


def test_padding_is_hidden_from_every_row() -> None:
    sight = padded_sight(torch.tensor([3, 5]), 5, chunk=None, rows=4)
    assert sight.mask is not None
    assert sight.mask[:, 0, 0].sum(-1).tolist() == [3, 5, 3, 5]


def test_mu_sees_two_tokens_before_and_three_ahead(flow: Flow) -> None:
    tokens = batch([20], [0])[0]
    mu = flow.features(tokens)
    assert mu.shape == (1, 40, 80)
    changed = tokens.clone()
    changed[0, 10] = (changed[0, 10] + 1) % CONFIG.vocab
    moved = (flow.features(changed) != mu).any(-1)[0]
    assert moved.nonzero().flatten().tolist() == list(range(2 * 7, 2 * 13))


def test_more_than_300_s_is_refused(flow: Flow) -> None:
    tokens = torch.zeros(1, 7501, dtype=torch.int64)
    with pytest.raises(BadInput, match=r"at most 300 s at once\. Split the text"):
        flow(tokens, torch.tensor([7501]), torch.zeros(1, 0, 80), torch.tensor([0]), torch.ones(1, 192))


@pytest.mark.parametrize("bad", [-1, 6561, 6562])
def test_an_id_that_is_no_speech_token_is_refused(flow: Flow, bad: int) -> None:
    given = batch([10, 8], [2, 0])
    given[0][1, 7] = bad
    with pytest.raises(EngineFailure, match=f"the id {bad}, which is no speech token. Allowed: 0 to 6560"):
        flow(*given)


@pytest.mark.parametrize(("lengths", "frames", "words"), [([0], [0], "at least 1"), ([11], [0], "table of 10"),
                                                          ([10], [22], "Trim it to two frames a token")])
def test_lengths_that_do_not_fit_are_refused(flow: Flow, lengths: list[int], frames: list[int], words: str) -> None:
    with pytest.raises(EngineFailure, match=words):
        flow(torch.zeros(1, 10, dtype=torch.int64), torch.tensor(lengths), torch.zeros(1, 22, 80),
             torch.tensor(frames), torch.ones(1, 192))


def test_a_mel_that_is_not_finite_is_an_error(flow: Flow) -> None:
    tokens, lengths, mel, frames, speaker = batch([10], [4])
    mel[0, 3, 5] = math.inf
    with pytest.raises(EngineFailure, match="not finite"):
        flow(tokens, lengths, mel, frames, speaker)


def test_loading_names_every_fault_as_the_file_does() -> None:
    state = random_flow_state(CONFIG, 0)
    del state["decoder.estimator.proj_out.bias"]
    state["decoder.estimator.proj_in.bias"] = torch.zeros(3)
    state["input_embedding.weight"] = torch.zeros(6561, 512)
    state["spk_embed_affine_layer.bias"] = torch.zeros(80, dtype=torch.int64)
    with pytest.raises(AssetError) as caught:
        Flow.load(state, CONFIG, device=CPU, dtype=torch.float32, precision="fp32", source="some/flow.pt")
    for words in ("some/flow.pt", "missing: decoder.estimator.proj_out.bias", "not expected: decoder.estimator.proj_in",
                  "input_embedding.weight is [6561, 512], expected [6561, 80]", "torch.int64, not floats", "Fetch"):
        assert words in caught.value.message


def test_the_saved_rotary_frequencies_may_lack_but_not_differ() -> None:
    state = random_flow_state(CONFIG, 0)
    state[ROTARY] = state[ROTARY] * 2.0
    with pytest.raises(AssetError, match="other rotary frequencies"):
        Flow.load(state, CONFIG, device=CPU, dtype=torch.float32, precision="fp32", source="x")
    del state[ROTARY]
    names = set(state)
    Flow.load(state, CONFIG, device=CPU, dtype=torch.float32, precision="fp32", source="x")
    assert set(state) == names


@pytest.mark.parametrize(("precision", "dtype", "device"), [
    ("fp32", torch.bfloat16, "cuda"), ("bf16", torch.float32, "cuda"), ("int8", torch.int8, "cuda"),
    ("fp8", torch.float16, "cpu")])
def test_a_precision_that_does_not_go_with_the_type_is_refused(precision: str, dtype: torch.dtype, device: str
                                                               ) -> None:
    with pytest.raises(ConfigError, match="can't run at precision"):
        make(precision=precision, dtype=dtype, device=torch.device(device))


def test_the_official_file_has_the_published_size() -> None:
    """332 257 120 elements, the rotary frequencies included: what the file on the model's page holds."""
    config = FlowConfig()
    assert sum(math.prod(s) for s in official_shapes(config).values()) + config.head // 2 == 332_257_120


@pytest.mark.parametrize(("precision", "bar"), [("bf16", 0.004), ("fp16", 0.004), ("int8", 0.05)])
def test_small_weights_stay_near_on_a_cpu(flow: Flow, precision: str, bar: float) -> None:
    """Whatever type is asked for, a CPU computes in float32; only the weights are kept smaller."""
    given = batch([40, 25], [10, 5])
    small = make(precision=precision, dtype=torch.bfloat16)
    assert small.dit.compute_dtype == torch.float32
    mel = small(*given, steps=4)
    assert mel.dtype == torch.float32
    assert not torch.equal(mel, flow(*given, steps=4))
    close(mel, flow(*given, steps=4), bar)


def test_integers_are_made_of_weights_that_were_not_rounded_before() -> None:
    state = random_flow_state(CONFIG, 0)
    tensors = from_official(state, CONFIG, "x", dtype=torch.bfloat16, table=torch.float16, matrices=torch.float32)
    for name, theirs in (("out", "attn.to_out.0"), ("up", "ff.ff.0.0"), ("down", "ff.ff.2")):
        saved = state[f"decoder.estimator.transformer_blocks.1.{theirs}.weight"]
        assert torch.equal(tensors[f"dit.blocks.1.{name}.weight"], saved)
    assert tensors["dit.blocks.0.qkv.weight"].dtype == torch.float32
    assert tensors["dit.positions.conv1.weight"].dtype == torch.bfloat16
    assert tensors["dit.blocks.0.modulation.weight"].dtype == torch.float16


def halved(dtype: torch.dtype) -> Flow:
    """What CUDA runs at half precision, on the CPU."""
    return Flow._plain(random_flow_state(CONFIG, 0), CONFIG, device=CPU, dtype=dtype, table=torch.float16, source="x")


@pytest.mark.parametrize(("dtype", "bar"), [(torch.bfloat16, 0.03), (torch.float16, 0.004)])
def test_half_precision_stays_near(flow: Flow, dtype: torch.dtype, bar: float) -> None:
    half = halved(dtype)
    assert half.dit.blocks[0].qkv.weight.dtype == dtype
    assert half.dit.to_mel.weight.dtype == half.schedule(None).blocks.dtype == torch.float32
    given = batch([40, 25], [10, 5])
    mel = half(*given, steps=4)
    assert mel.dtype == torch.float32
    close(mel, flow(*given, steps=4), bar)


def test_half_precision_takes_a_residual_that_overflows_fp16() -> None:
    """The residual and the norms are fp32, so values beyond 65 504 in them are no matter."""
    state = random_flow_state(CONFIG, 0)
    state["decoder.estimator.transformer_blocks.0.attn_norm.linear.bias"][-CONFIG.width:] += 1e6  # the last gate
    whole, half = (Flow._plain(state, CONFIG, device=CPU, dtype=dtype, table=torch.float32, source="x")
                   for dtype in (torch.float32, torch.float16))
    seen: list[float] = []
    half.dit.blocks[1].register_forward_pre_hook(lambda _, given: seen.append(float(given[0].abs().max())))
    given = batch([20], [10])
    close(half(*given), whole(*given), 0.02)
    assert min(seen) > 65_504


def test_buckets_are_few_and_close() -> None:
    sizes = [bucket(n) for n in range(1, 4001)]
    assert all(n <= size <= max(64, 1.25 * n + 63) for n, size in enumerate(sizes, 1))
    assert sizes == sorted(sizes)
    assert len(set(sizes)) <= 40


@pytest.mark.gpu
@pytest.mark.parametrize("chunked", [False, True])
def test_graphs_give_what_the_solver_gives(chunked: bool) -> None:
    if not torch.cuda.is_available():
        pytest.skip("no CUDA device")
    flow = make(device=torch.device("cuda"))
    given = tuple(t.cuda() for t in batch([60, 12, 37], [20, 0, 11]))
    graphed = flow(*given, chunked=chunked)
    assert torch.equal(flow(*given, chunked=chunked), graphed)
    assert len(flow._graphs._kept) == 1
    for i, n in enumerate([60, 12, 37]):
        close(graphed[i, :2 * n].cpu(), make()(*row(batch([60, 12, 37], [20, 0, 11]), i), chunked=chunked)[0], 1e-3)


@pytest.mark.gpu
def test_integers_on_cuda_are_those_of_the_file() -> None:
    if not torch.cuda.is_available():
        pytest.skip("no CUDA device")
    flow = make(device=torch.device("cuda"), dtype=torch.bfloat16, precision="int8")
    saved = random_flow_state(CONFIG, 0)["decoder.estimator.transformer_blocks.0.ff.ff.2.weight"]
    whole, scale = quantize_rows(saved)
    assert torch.equal(flow.dit.blocks[0].down.weight.cpu(), whole)
    torch.testing.assert_close(flow.dit.blocks[0].down.scale.cpu(), scale)
