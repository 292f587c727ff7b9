"""The speaker encoder: folding changes nothing, segments are means, gradients reach the samples, the released weights'
numbers are the reference implementation's.
"""

from __future__ import annotations

import copy
import math

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from cosyvoice_app import assets
from cosyvoice_app.engines import campplus
from cosyvoice_app.engines.campplus import CamPlusPlus, SpeakerNet, fold
from cosyvoice_app.errors import AssetError
from cosyvoice_app.nn.loading import assign_strict


@pytest.fixture(scope="module")
def small_net() -> CamPlusPlus:
    net = CamPlusPlus()
    generator = torch.Generator().manual_seed(3)
    for p in net.parameters():
        spread = 0.05 if p.ndim == 1 else 1.0 / math.sqrt(p[0].numel())
        p.data.copy_(torch.randn(p.shape, generator=generator) * spread)
    for name, p in net.named_parameters():
        if name.endswith("norm.scale"):
            p.data.add_(1.0)
    return net


def tone(seconds: float = 3.0) -> Tensor:
    """A gliding harmonic tone with a syllable-like envelope, [n] at 16 kHz."""
    t = torch.arange(round(16_000 * seconds), dtype=torch.float64) / 16_000
    phase = 2 * math.pi * (120 * t + 8 * torch.sin(2 * math.pi * 1.5 * t))
    voice = sum((torch.sin(h * phase) / h for h in range(1, 21)), torch.zeros_like(t))
    return (voice * (0.6 + 0.4 * torch.sin(2 * math.pi * 4 * t)) * 0.1).float()


def test_context_is_the_clip_mean_plus_each_segment_mean() -> None:
    h = torch.randn(2, 230, 5, generator=torch.Generator().manual_seed(0))
    expected = torch.stack([h.mean(1) + part.mean(1) for part in (h[:, :100], h[:, 100:200], h[:, 200:])], 1)
    torch.testing.assert_close(campplus._context(h), expected)
    torch.testing.assert_close(campplus._context(h[:, :100]), 2 * h[:, :100].mean(1, keepdim=True))


def test_rows_do_not_see_each_other(small_net: CamPlusPlus) -> None:
    x = torch.randn(2, 260, 80, generator=torch.Generator().manual_seed(1))
    together = small_net(x)
    torch.testing.assert_close(together[1:], small_net(x[1:]), atol=1e-5, rtol=1e-4)


def test_a_folded_batch_norm_computes_what_the_two_layers_did() -> None:
    generator = torch.Generator().manual_seed(2)
    state = checkpoint(generator)
    out = fold(state)
    x = torch.randn(1, 320, 21, generator=generator)
    norm = "xvector.tdnn.nonlinear.batchnorm"
    y = F.conv1d(x, state["xvector.tdnn.linear.weight"])
    expected = F.batch_norm(y, *(state[f"{norm}.{k}"] for k in ("running_mean", "running_var", "weight", "bias")))
    torch.testing.assert_close(F.conv1d(x, out["tdnn.weight"], out["tdnn.bias"]), expected, atol=1e-4, rtol=1e-4)
    assign_strict(CamPlusPlus(), out, "test")


def test_a_checkpoint_with_a_name_missing_or_left_over_is_refused() -> None:
    state = checkpoint(torch.Generator().manual_seed(2))
    with pytest.raises(AssetError, match=r"xvector\.dense\.linear\.weight"):
        fold({k: v for k, v in state.items() if k != "xvector.dense.linear.weight"})
    with pytest.raises(AssetError, match="not expected: head.extra"):
        assign_strict(CamPlusPlus(), fold(state | {"head.extra": torch.ones(1)}), "test")


def checkpoint(generator: torch.Generator) -> dict[str, Tensor]:
    """Random tensors under 3D-Speaker's names, with its shapes."""
    def draw(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator) * 0.1

    def norm(name: str, size: int, *, affine: bool = True) -> dict[str, Tensor]:
        found = {f"{name}.running_mean": draw(size), f"{name}.running_var": draw(size).abs() + 0.5}
        return found | ({f"{name}.weight": draw(size) + 1, f"{name}.bias": draw(size)} if affine else {})

    state = {"head.conv1.weight": draw(32, 1, 3, 3), "head.conv2.weight": draw(32, 32, 3, 3)}
    state |= norm("head.bn1", 32) | norm("head.bn2", 32)
    for layer in ("layer1.0", "layer1.1", "layer2.0", "layer2.1"):
        for n in (1, 2):
            state[f"head.{layer}.conv{n}.weight"] = draw(32, 32, 3, 3)
            state |= norm(f"head.{layer}.bn{n}", 32)
        if layer.endswith(".0"):
            state[f"head.{layer}.shortcut.0.weight"] = draw(32, 32, 1, 1)
            state |= norm(f"head.{layer}.shortcut.1", 32)
    state["xvector.tdnn.linear.weight"] = draw(128, 320, 5)
    state |= norm("xvector.tdnn.nonlinear.batchnorm", 128)
    channels = 128
    for b, (layers, _) in enumerate(campplus.BLOCKS, 1):
        for n in range(1, layers + 1):
            name = f"xvector.block{b}.tdnnd{n}"
            state |= norm(f"{name}.nonlinear1.batchnorm", channels) | norm(f"{name}.nonlinear2.batchnorm", 128)
            state |= {f"{name}.linear1.weight": draw(128, channels, 1),
                      f"{name}.cam_layer.linear_local.weight": draw(32, 128, 3),
                      f"{name}.cam_layer.linear1.weight": draw(64, 128, 1), f"{name}.cam_layer.linear1.bias": draw(64),
                      f"{name}.cam_layer.linear2.weight": draw(32, 64, 1), f"{name}.cam_layer.linear2.bias": draw(32)}
            channels += 32
        state |= norm(f"xvector.transit{b}.nonlinear.batchnorm", channels)
        state[f"xvector.transit{b}.linear.weight"] = draw(channels // 2, channels, 1)
        channels //= 2
    state["xvector.dense.linear.weight"] = draw(192, 2 * channels, 1)
    state |= norm("xvector.out_nonlinear.batchnorm", 512)
    return state | norm("xvector.dense.nonlinear.batchnorm", 192, affine=False)


def test_gradient_reaches_the_samples_and_is_right(small_net: CamPlusPlus) -> None:
    net = SpeakerNet(copy.deepcopy(small_net)).double()
    generator = torch.Generator().manual_seed(5)
    x = tone(0.8)[None].double() + 0.003 * torch.randn(1, 12_800, generator=generator)
    goal, direction = torch.randn(1, 192, generator=generator), torch.randn(x.shape, generator=generator)
    x.requires_grad_(True)
    (net.embed(x) * goal).sum().backward()
    assert x.grad is not None
    with torch.no_grad():
        step = 1e-8  # small, so that few of the ReLUs switch in between
        numeric = ((net.embed(x + step * direction) - net.embed(x - step * direction)) * goal).sum() / (2 * step)
    assert (x.grad * direction).sum().item() == pytest.approx(numeric.item(), rel=1e-3)


def test_silence_has_a_finite_vector_and_gradient(small_net: CamPlusPlus) -> None:
    x = torch.zeros(1, 16_000, requires_grad=True)
    embedding = SpeakerNet(small_net).embed(x)
    embedding.sum().backward()
    assert torch.isfinite(embedding).all() and x.grad is not None and torch.isfinite(x.grad).all()


def test_too_short_a_clip_is_named() -> None:
    with pytest.raises(ValueError, match="719 samples"):
        SpeakerNet(CamPlusPlus()).embed(torch.zeros(1, 719))


@pytest.mark.weights
def test_released_weights_give_the_reference_implementations_numbers() -> None:
    """Golden numbers: 3D-Speaker's network in PyTorch on torchaudio's Kaldi features, on `tone()`; every 24th value."""
    net = SpeakerNet.load(assets.path("campplus"))
    with torch.no_grad():
        found = net.embed(torch.stack([tone(), tone()]))
    golden = [-0.0139083, -0.0264333, 0.0634182, 0.0050822, -0.0028730, 0.0026882, -0.0430539, 0.0045117]
    for row in found:
        assert row[::24].tolist() == pytest.approx(golden, abs=1e-4)
        assert row.norm().item() == pytest.approx(1.0, abs=1e-5)
