"""Laws of repetition-aware sampling."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from cosyvoice_app.engines.cosyvoice3.config import SamplingConfig
from cosyvoice_app.engines.cosyvoice3.sampler import BLOCK_STEPS, Draws, anything_but, nucleus, sample, without

CONFIG = SamplingConfig()
JUST_BELOW_1 = 1.0 - 2.0**-24
NONE = torch.full((1, CONFIG.window), -1)


def logits_of(*probabilities: float) -> Tensor:
    return torch.tensor([probabilities]).log()


def uniforms(*values: float) -> Tensor:
    return torch.tensor([values])


def test_the_item_that_crosses_top_p_is_kept_and_the_next_is_not() -> None:
    logits = logits_of(0.1, 0.5, 0.25, 0.15)  # 0.5, 0.75 < 0.8, and 0.15 crosses it
    drawn = {int(nucleus(logits, torch.tensor([u]), CONFIG)) for u in torch.linspace(0, JUST_BELOW_1, 200).tolist()}
    assert drawn == {1, 2, 3}
    assert int(nucleus(logits, torch.tensor([JUST_BELOW_1]), CONFIG)) == 3


def test_at_most_top_k_are_kept() -> None:
    logits = torch.zeros(1, 100)
    logits[0, 40:70] = 0.1
    drawn = {int(nucleus(logits, torch.tensor([u]), CONFIG)) for u in torch.linspace(0, JUST_BELOW_1, 500).tolist()}
    assert len(drawn) == CONFIG.top_k
    assert drawn <= set(range(40, 70))


def test_one_likely_id_is_always_drawn() -> None:
    for u in (0.0, 0.5, JUST_BELOW_1):
        assert int(nucleus(logits_of(0.05, 0.9, 0.05), torch.tensor([u]), CONFIG)) == 1


def test_shares_are_those_of_the_kept_probabilities() -> None:
    rows = 40_000
    logits = logits_of(0.1, 0.5, 0.25, 0.15).expand(rows, -1)
    drawn = nucleus(logits, torch.rand(rows, generator=torch.Generator().manual_seed(0)), CONFIG)
    shares = torch.bincount(drawn, minlength=4) / rows
    torch.testing.assert_close(shares, torch.tensor([0.0, 0.5, 0.25, 0.15]) / 0.9, atol=0.01, rtol=0)


def test_coming_up_once_in_the_window_is_enough_to_draw_again_from_all_others() -> None:
    logits = logits_of(0.9, 0.04, 0.03, 0.03)
    once = NONE.clone()
    once[0, 7] = 0
    assert int(sample(logits, uniforms(0.5, 0.5), NONE, CONFIG)) == 0
    drawn = {int(sample(logits, uniforms(0.5, u), once, CONFIG)) for u in torch.linspace(0, JUST_BELOW_1, 100).tolist()}
    assert drawn == {1, 2, 3}  # no top-p here


def test_more_repeats_may_be_allowed() -> None:
    logits = logits_of(0.9, 0.1)
    twice = SamplingConfig(repeats=0.2)
    recent = NONE.clone()
    recent[0, 0] = 0
    assert int(sample(logits, uniforms(0.5, 0.5), recent, twice)) == 0
    recent[0, 1] = 0
    assert int(sample(logits, uniforms(0.5, 0.5), recent, twice)) == 1


@pytest.mark.parametrize("u", [0.0, 0.25, 0.999_999, JUST_BELOW_1])
def test_what_is_impossible_is_never_drawn(u: float) -> None:
    logits = torch.randn(64, 6761, generator=torch.Generator().manual_seed(1))
    masked = without(logits, 6561, 6761, torch.ones(64, dtype=torch.bool))
    masked[:, :5] = -torch.inf
    one = torch.full((64,), u)
    first = nucleus(masked, one, CONFIG)
    again = anything_but(masked, first, one)
    for ids in (first, again):
        assert bool(masked.gather(1, ids[:, None]).isfinite().all())
    assert bool((again != first).all())


def test_stops_are_masked_only_where_asked() -> None:
    logits = torch.zeros(2, 8)
    masked = without(logits, 5, 7, torch.tensor([True, False]))
    assert masked[0].isinf().tolist() == [False] * 5 + [True, True, False]
    assert not masked[1].isinf().any()


def test_a_row_draws_the_same_in_any_batch() -> None:
    generator = torch.Generator().manual_seed(2)
    logits, draws = torch.randn(9, 6761, generator=generator) * 4, torch.rand(9, 2, generator=generator)
    recent = logits.topk(CONFIG.window).indices
    recent[::2] = -1
    together = sample(logits, draws, recent, CONFIG)
    single = [int(sample(logits[n : n + 1], draws[n : n + 1], recent[n : n + 1], CONFIG)) for n in range(9)]
    assert together.tolist() == single


def test_draws_are_of_the_seed_alone_and_go_on() -> None:
    one, same, other = Draws(7), Draws(7), Draws(8)
    before = torch.get_rng_state()
    first = one.block()
    assert first.shape == (BLOCK_STEPS, 2)
    assert 0 <= float(first.min()) and float(first.max()) < 1
    assert torch.equal(first, same.block())
    assert not torch.equal(first, other.block())
    assert not torch.equal(first, one.block())
    assert torch.equal(before, torch.get_rng_state())
