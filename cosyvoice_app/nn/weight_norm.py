"""Weight normalisation undone once, at load: the plain weight instead of its direction and length.

A weight-normed layer stores v and g, and computes w = g * v / ||v|| with the norm over all dimensions but the first
(Salimans and Kingma, arXiv:1602.07868). PyTorch writes the pair under two spellings, by its version.
"""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor

PAIRS = (("parametrizations.weight.original0", "parametrizations.weight.original1"), ("weight_g", "weight_v"))
"""Names of g and v after the layer's own name."""


def fold_weight_norm(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The same state with `<layer>.weight` in place of every pair, in the pair's dtype; the rest is passed on.

    Half a pair, or one whose shapes don't belong together, is passed on too: strict loading then names it.
    """
    out = dict(state)
    for name in state:
        for g_name, v_name in PAIRS:
            layer = name.removesuffix(g_name)
            if layer == name or (layer and not layer.endswith(".")) or layer + v_name not in state:
                continue
            g, v = state[name], state[layer + v_name]
            if g.shape != (v.shape[0], *[1] * (v.ndim - 1)):
                continue
            del out[name], out[layer + v_name]
            out[f"{layer}weight"] = v * (g / v.norm(dim=tuple(range(1, v.ndim)), keepdim=True))
    return out
