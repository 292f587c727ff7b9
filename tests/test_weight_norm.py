"""Weight norm undone at load: PyTorch's own parametrisation is the law, in both of its spellings."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from cosyvoice_app.nn.weight_norm import fold_weight_norm


def normed_conv():
    generator = torch.Generator().manual_seed(1)
    conv = nn.Conv1d(5, 7, 3)
    nn.utils.parametrizations.weight_norm(conv)
    for parameter in conv.parameters():
        parameter.data = torch.randn(parameter.shape, generator=generator)
    return conv


def old_spelling(state):
    names = {"parametrizations.weight.original0": "weight_g", "parametrizations.weight.original1": "weight_v"}
    out = {}
    for name, value in state.items():
        for new, old in names.items():
            name = name.replace(new, old)
        out[name] = value
    return out


@pytest.mark.parametrize("spell", [dict, old_spelling])
@pytest.mark.parametrize("prefix", ["", "a.b.0."])
def test_the_folded_weight_is_what_the_layer_computes(spell, prefix):
    conv = normed_conv()
    state = spell({prefix + name: value for name, value in conv.state_dict().items()})
    folded = fold_weight_norm(state)
    assert set(folded) == {f"{prefix}weight", f"{prefix}bias"}
    torch.testing.assert_close(folded[f"{prefix}weight"], conv.weight.detach(), rtol=1e-6, atol=1e-7)
    assert folded[f"{prefix}bias"] is state[f"{prefix}bias"]


def test_both_spellings_fold_to_the_same_bits():
    state = normed_conv().state_dict()
    assert torch.equal(fold_weight_norm(state)["weight"], fold_weight_norm(old_spelling(state))["weight"])


def test_float64_folds_in_float64():
    state = {name: value.double() for name, value in normed_conv().state_dict().items()}
    folded = fold_weight_norm(state)["weight"]
    assert folded.dtype == torch.float64
    norms = folded.norm(dim=(1, 2))
    assert torch.allclose(norms, state["parametrizations.weight.original0"].flatten().abs(), rtol=1e-14)


def test_plain_weights_and_half_pairs_pass_through():
    state = {"x.weight": torch.ones(2, 2), "y.weight_g": torch.ones(2, 1, 1), "not_weight_g": torch.ones(2, 1, 1),
             "not_weight_v": torch.ones(2, 3, 3)}  # fmt: skip
    assert fold_weight_norm(state) == state


def test_a_pair_of_unlike_shapes_is_left_for_strict_loading_to_name():
    state = {"x.weight_g": torch.ones(3, 1, 1), "x.weight_v": torch.ones(2, 4, 3)}
    assert set(fold_weight_norm(state)) == set(state)
