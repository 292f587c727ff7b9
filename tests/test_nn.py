"""Our layers against PyTorch's: same numbers, same gradients, other memory layout."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from cosyvoice_app.nn.adain import AdaIN, unit_snake_
from cosyvoice_app.nn.conv import Conv1d, DepthwiseUpsample2, TransposedConv1d


@pytest.fixture
def rng() -> torch.Generator:
    return torch.Generator().manual_seed(3)


@pytest.mark.parametrize(
    ("kernel", "dilation", "length"),
    [(1, 1, 5), (3, 1, 9), (7, 3, 40), (11, 5, 64), (11, 5, 7), (5, 2, 1), (7, 3, 120)],
)
def test_conv_equals_torch_forwards_and_backwards(rng, kernel, dilation, length):
    conv = Conv1d(4, 6, kernel, dilation=dilation).double()
    x = torch.randn(2, length, 4, generator=rng, dtype=torch.float64, requires_grad=True)
    again = x.detach().clone().requires_grad_()
    weight, bias = conv.weight.detach().clone().requires_grad_(), conv.bias.detach().clone().requires_grad_()
    ours = conv(x)
    theirs = F.conv1d(again.transpose(1, 2), weight, bias, padding=(kernel - 1) // 2 * dilation, dilation=dilation)
    theirs = theirs.transpose(1, 2)
    assert torch.allclose(ours, theirs, atol=1e-12)
    slope = torch.randn(ours.shape, generator=rng, dtype=torch.float64)
    (ours * slope).sum().backward()
    (theirs * slope).sum().backward()
    for mine, other in ((x.grad, again.grad), (conv.weight.grad, weight.grad), (conv.bias.grad, bias.grad)):
        assert torch.allclose(mine, other, atol=1e-12)


def test_conv_gives_no_gradient_where_none_is_wanted(rng):
    conv = Conv1d(3, 3, 3).requires_grad_(False)
    x = torch.randn(1, 8, 3, generator=rng, requires_grad=True)
    conv(x).sum().backward()
    assert x.grad is not None and conv.weight.grad is None and conv.bias.grad is None


@pytest.mark.parametrize("stride", [2, 6, 10])
def test_transposed_conv_equals_torch(rng, stride):
    up = TransposedConv1d(5, 3, stride=stride).double()
    x = torch.randn(2, 7, 5, generator=rng, dtype=torch.float64)
    theirs = F.conv_transpose1d(x.transpose(1, 2), up.weight, up.bias, stride=stride, padding=stride // 2)
    assert torch.allclose(up(x), theirs.transpose(1, 2), atol=1e-12)


@pytest.mark.parametrize("length", [1, 2, 9])
def test_depthwise_upsampling_equals_torch(rng, length):
    up = DepthwiseUpsample2(5).double()
    x = torch.randn(2, length, 5, generator=rng, dtype=torch.float64)
    theirs = F.conv_transpose1d(x.transpose(1, 2), up.weight, up.bias, stride=2, padding=1, output_padding=1, groups=5)
    assert torch.allclose(up(x), theirs.transpose(1, 2), atol=1e-12)


def test_snake_and_its_slope(rng):
    x = torch.randn(2, 6, 3, generator=rng, dtype=torch.float64, requires_grad=True)
    wanted = x + torch.sin(x).square()
    assert torch.allclose(unit_snake_(x), wanted)
    assert torch.autograd.gradcheck(unit_snake_, (x,))
    with torch.no_grad():
        assert torch.allclose(unit_snake_(x.detach().clone()), wanted)


def test_conv_gain_multiplies_the_input_channels(rng):
    conv = Conv1d(4, 3, 3).double()
    x = torch.randn(1, 9, 4, generator=rng, dtype=torch.float64)
    gain = torch.rand(4, generator=rng, dtype=torch.float64) + 0.5
    assert torch.allclose(conv(x, gain), conv(x * gain), atol=1e-12)


def test_adain_of_a_padded_row_equals_the_row_alone(rng):
    norm = AdaIN(4, 6)
    rows = [torch.randn(1, n, 6, generator=rng) for n in (9, 5)]
    styles = torch.randn(2, 4, generator=rng)
    batch = torch.zeros(2, 9, 6)
    mask = torch.zeros(2, 9, 1)
    for i, row in enumerate(rows):
        batch[i, : row.shape[1]], mask[i, : row.shape[1]] = row[0], 1.0
    together = norm(batch, styles, mask)
    for i, row in enumerate(rows):
        alone = norm(row, styles[i : i + 1])
        assert torch.allclose(together[i, : row.shape[1]], alone[0], atol=1e-5)
        assert not together[i, row.shape[1] :].any()
