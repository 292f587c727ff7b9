"""Linear layers in int8 and packed: how far off they may be, and that rows don't meet."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from cosyvoice_app.nn.packed import STEP_ROWS, PackedLinear, pack
from cosyvoice_app.nn.quantized import Int8Embedding, Int8Linear, quantize_rows

CPU = torch.device("cpu")
kernel = pytest.mark.skipif("fbgemm" not in torch.backends.quantized.supported_engines, reason="no FBGEMM here")


def linear(columns: int = 896, rows: int = 320, *, bias: bool = True) -> nn.Linear:
    generator = torch.Generator().manual_seed(columns)
    layer = nn.Linear(columns, rows, bias=bias).requires_grad_(False)
    layer.weight.copy_(torch.randn(rows, columns, generator=generator) * 0.03)
    if bias:
        layer.bias.copy_(torch.randn(rows, generator=generator))
    return layer


def activations(rows: int, columns: int = 896, *, outlier: float = 1.0) -> Tensor:
    x = torch.randn(rows, columns, generator=torch.Generator().manual_seed(rows))
    x[:, 3] *= outlier
    return x


def rounded(layer: nn.Linear) -> Tensor:
    """The matrix as its integers and scales say, float32."""
    whole, scale = quantize_rows(layer.weight)
    return whole.float() * scale[:, None]


def off_by(a: Tensor, b: Tensor) -> float:
    return float((a - b).norm() / b.norm())


def test_weights_are_rounded_to_half_a_step() -> None:
    weight = linear().weight
    whole, scale = quantize_rows(weight)
    assert whole.dtype == torch.int8 and int(whole.min()) >= -127 and int(whole.max()) == 127
    assert bool(((whole.float() * scale[:, None] - weight).abs() <= scale[:, None] * 0.5001).all())


def test_rows_of_zeros_stay_zeros() -> None:
    whole, scale = quantize_rows(torch.zeros(2, 8))
    assert not whole.any() and bool(scale.isfinite().all())


@pytest.mark.parametrize("rows", [1, 2, 7, 200])
@pytest.mark.parametrize("outlier", [1.0, 300.0])
@pytest.mark.parametrize("bias", [True, False])
def test_two_passes_are_off_by_the_weights_rounding_only(rows: int, outlier: float, bias: bool) -> None:
    """Against the float product of the rounded weights they are exact to one part in thousands of the row's peak, also
    where one activation is 300 times the others.
    """
    layer = linear(bias=bias)
    x = activations(rows, outlier=outlier)
    int8 = Int8Linear.from_linear(layer)
    exact = nn.functional.linear(x, rounded(layer), layer.bias if bias else None)
    step = x.abs().amax(1, keepdim=True) / (63 * 126)
    worst = rounded(layer).norm(dim=1) * step * 3  # sums of 896 roundings of up to half a step
    assert bool(((int8(x) - exact).abs() <= worst + 1e-4).all())
    assert off_by(int8(x), layer(x)) < 0.012


@kernel
def test_products_do_not_saturate() -> None:
    """All weights and activations at their largest: pairs of products are what 16 bits just hold."""
    layer = nn.Linear(4864, 16, bias=False).requires_grad_(False)
    layer.weight.fill_(0.5)
    layer.weight[::2] *= -1
    for sign in (1.0, -1.0):
        x = torch.full((3, 4864), 2.0 * sign)
        torch.testing.assert_close(Int8Linear.from_linear(layer)(x), layer(x), rtol=1e-4, atol=0)


def test_a_row_is_the_same_to_the_bit_in_any_batch() -> None:
    int8 = Int8Linear.from_linear(linear())
    x = activations(9, outlier=50.0)
    x[4] *= 1000.0
    together = int8(x)
    for n in range(9):
        assert torch.equal(int8(x[n : n + 1])[0], together[n])


def test_shape_dtype_and_zeros() -> None:
    layer = linear(64, 24)
    int8 = Int8Linear.from_linear(layer)
    x = activations(6, 64).view(2, 3, 64)
    assert int8(x).shape == (2, 3, 24)
    assert int8(x.bfloat16()).dtype == torch.bfloat16
    torch.testing.assert_close(int8(torch.zeros(1, 64))[0], layer.bias)


@pytest.fixture
def no_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("cosyvoice_app.nn.quantized.has_int8_kernel", lambda device: False)


def test_without_the_kernel_the_product_is_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    layer, x = linear(), activations(5)
    fast = Int8Linear.from_linear(layer)
    monkeypatch.setattr("cosyvoice_app.nn.quantized.has_int8_kernel", lambda device: False)
    plain = Int8Linear.from_linear(layer)
    assert plain.packed is None
    torch.testing.assert_close(plain(x), nn.functional.linear(x, rounded(layer), layer.bias))
    assert off_by(fast(x), plain(x)) < 1e-3


@pytest.mark.usefixtures("no_kernel")
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_without_the_kernel_scales_are_applied_before_rounding(dtype: torch.dtype) -> None:
    layer, x = linear(), activations(5).to(dtype)
    expected = nn.functional.linear(x, rounded(layer).to(dtype), layer.bias.to(dtype))
    assert torch.equal(Int8Linear.from_linear(layer)(x), expected)


@pytest.mark.usefixtures("no_kernel")
def test_without_the_kernel_half_precision_holds_what_the_layer_gives() -> None:
    """The integers' own sum is 896 * 127 here, beyond 65 504."""
    layer = nn.Linear(896, 4, bias=False).requires_grad_(False)
    layer.weight.fill_(0.01)
    out = Int8Linear.from_linear(layer)(torch.ones(1, 896).half())
    torch.testing.assert_close(out, torch.full((1, 4), 8.96).half(), rtol=2e-3, atol=0)


def test_packing_leaves_the_process_setting_alone() -> None:
    before = torch.backends.quantized.engine
    Int8Linear.from_linear(linear(64, 24))
    assert torch.backends.quantized.engine == before


def test_a_table_is_off_by_under_a_percent() -> None:
    table = torch.randn(20_000, 64, generator=torch.Generator().manual_seed(0))
    ids = torch.tensor([[0, 19_999], [8191, 8192]])
    small = Int8Embedding(table)
    assert small(ids).shape == (2, 2, 64)
    assert off_by(small(ids), table[ids]) < 0.010
    assert sum(b.numel() * b.element_size() for b in small.buffers()) == 20_000 * (64 + 4)


@pytest.mark.parametrize("precision, within", [("fp32", 1e-6), ("fp16", 4e-4), ("bf16", 4e-4), ("int8", 1e-2)])
@pytest.mark.parametrize("bias", [True, False])
def test_packed_layers_compute_the_layer(precision: str, within: float, bias: bool) -> None:
    layer = linear(bias=bias)
    packed = pack(layer, precision)
    for rows in (1, 8, 130):
        x = activations(rows)
        assert off_by(packed(x), layer(x)) < within
        assert packed(x.view(1, rows, -1)).shape == (1, rows, 320)


@pytest.mark.parametrize("precision", ["fp32", "bf16", "int8"])
@pytest.mark.parametrize("bias", [True, False])
def test_a_row_of_few_is_the_row_alone_to_the_bit(precision: str, bias: bool) -> None:
    packed, x = pack(linear(bias=bias), precision), activations(STEP_ROWS)
    alone = torch.cat([packed(row) for row in x[:, None]])
    for rows in range(1, STEP_ROWS + 1):
        assert torch.equal(packed(x[:rows]), alone[:rows])
        assert torch.equal(packed(x.flip(0)[None, :rows]), alone.flip(0)[None, :rows])


def test_packed_half_weights_keep_activations_whole() -> None:
    """An activation beyond half precision's range goes through."""
    layer = linear(bias=False)
    x = activations(2) * 1e6
    assert off_by(PackedLinear(layer.weight, None, half=True)(x), layer(x)) < 4e-4


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_on_cuda_the_weights_alone_are_rounded(dtype: torch.dtype) -> None:
    layer, x = linear(), activations(5, outlier=100.0)
    int8 = Int8Linear.from_linear(linear().cuda())
    assert off_by(int8(x.cuda().to(dtype)).float().cpu(), layer(x)) < 0.015
