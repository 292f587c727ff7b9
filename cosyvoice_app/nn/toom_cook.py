"""Long filters on a CPU with half the multiplications: Toom-Cook, also known as Winograd's minimal filtering.

Four outputs of a filter of four taps are the coefficients of a product of polynomials. Evaluated at seven points
the product is seven multiplications in place of sixteen; here each of them is a matrix product over channels. A longer
filter is a sum of filters of four taps, which share the evaluated input. With points as small as these, float32 loses
about one bit against the direct convolution.

The price is two small matrix products a tile of four frames, and seven quarters of the weight's memory.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

OUTPUTS = 4
TAPS = 4
POINTS = (0.0, 1.0, -1.0, 2.0, -2.0, 0.5)
"""And infinity."""
SIZE = OUTPUTS + TAPS - 1


def _matrices() -> tuple[Tensor, Tensor, Tensor]:
    """`evaluate` [7, 7] of 7 frames, `combine` [4, 7] to 4 frames, `spread` [7, 4] of 4 taps, all float64.

    By transposing the algorithm that multiplies polynomials. Rows of `evaluate` are scaled to a largest value of 1 and
    those of `spread` the other way, so that no intermediate value is large.
    """

    def powers(count: int) -> Tensor:
        table = torch.zeros(SIZE, count, dtype=torch.float64)
        for row, point in enumerate(POINTS):
            table[row] = torch.tensor([point**n for n in range(count)], dtype=torch.float64)
        table[-1, -1] = 1.0
        return table

    evaluate = torch.linalg.inv(powers(SIZE)).T
    scale = evaluate.abs().amax(1, keepdim=True)
    return evaluate / scale, powers(OUTPUTS).T.contiguous(), powers(TAPS) * scale


class FastFilter:
    """One convolution of stride 1, weight [O, I, K], without padding. Holds its transformed weight."""

    def __init__(self, weight: Tensor, bias: Tensor, dilation: int) -> None:
        size, channels, kernel = weight.shape
        evaluate, combine, spread = _matrices()
        self.bias, self.dilation, self.size = bias, dilation, size
        self.blocks = -(-kernel // TAPS)
        taps = F.pad(weight, (0, self.blocks * TAPS - kernel)).reshape(size, channels, self.blocks, TAPS)
        filters = torch.einsum("pk,oibk->poib", spread, taps.double()).float().reshape(-1, channels, 1, self.blocks)
        self.filters = filters.contiguous(memory_format=torch.channels_last)
        self.evaluate, self.combine = evaluate.float(), combine.float()

    def frames_seen(self, frames: int) -> int:
        """Rows of input that it reads to make `frames` of output; those beyond the last output's own must be finite."""
        tiles = -(-frames // (OUTPUTS * self.dilation)) + self.blocks - 1
        return (OUTPUTS * (tiles - 1) + SIZE) * self.dilation

    def __call__(self, x: Tensor, frames: int) -> Tensor:
        """x [B, at least frames_seen(frames), I] contiguous -> [B, frames, O]."""
        step = OUTPUTS * self.dilation
        count = -(-frames // step)
        out = x.new_empty(x.shape[0], count, OUTPUTS, self.dilation, self.size)
        for row in range(x.shape[0]):
            self._filter(x[row], out[row])
        return out.reshape(x.shape[0], -1, self.size)[:, :frames]

    def _filter(self, x: Tensor, out: Tensor) -> None:
        """x [rows, I] -> out [count, 4, dilation, O]. Frames of equal number modulo `dilation` don't meet."""
        channels, count = x.shape[1], out.shape[0]
        tiles = count + self.blocks - 1
        values = x.new_empty(self.dilation, tiles, SIZE, channels)
        strides = (OUTPUTS * self.dilation * channels, self.dilation * channels, 1)
        for n in range(self.dilation):
            tile = x[n:].as_strided((tiles, SIZE, channels), strides)
            torch.matmul(self.evaluate, tile, out=values[n])
        image = values.reshape(1, self.dilation, tiles, SIZE * channels).permute(0, 3, 1, 2)
        products = F.conv2d(image, self.filters, groups=SIZE).permute(0, 2, 3, 1)
        products = products.reshape(self.dilation, count, SIZE, self.size)
        for n in range(self.dilation):
            torch.baddbmm(self.bias, self.combine.expand(count, -1, -1), products[n], out=out[:, :, n])
