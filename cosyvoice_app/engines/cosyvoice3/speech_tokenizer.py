"""Speech tokenizer v3: a clip's Whisper log-mel -> speech tokens, 25 a second, ids 0..6560.

Two strided convolutions, then pre-norm transformer blocks over 40 ms steps. Attention turns its queries and keys by
their position, and beside it runs a memory: each value channel plus a 31-step window of itself, which goes around the
attention and its output projection. The last state becomes eight digits of -1, 0 or 1, read as one number to base 3.

Sources: "CosyVoice 3" (arXiv:2505.17589) for the kind of network; the open port S3Tokenizer for its exact layers. The
released file has opset 16 and 242 009 608 weights in 198 tensors, and so has this module: keys have no bias.

Ids are rounded, so two exact computations may differ by a digit where a state lies within a float's error of a
boundary. Everything is done in float32, also where the rest of the engine isn't.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from cosyvoice_app.engines.cosyvoice3.config import TokenizerConfig
from cosyvoice_app.nn.conv import StridedConv1d

_ROUNDED = 0.9990000128746033
"""The tanh is scaled by this before rounding, so that nothing but a real 1 rounds away from the three digits."""


class SpeechTokenizer(nn.Module):
    """Weights are whatever the constructor leaves: fill them with `speech_tokenizer_weights`. Build it on the meta
    device where that matters.
    """

    def __init__(self, config: TokenizerConfig) -> None:
        super().__init__()
        self.config = config
        self.conv1 = StridedConv1d(config.mels, config.width, 3, stride=2, padding=1)
        self.conv2 = StridedConv1d(config.width, config.width, 3, stride=2, padding=1)
        self.blocks = nn.ModuleList(Block(config) for _ in range(config.blocks))
        self.digits = nn.Linear(config.width, config.digits)
        self.requires_grad_(False)
        self.eval()

    def forward(self, mel: Tensor, lengths: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """mel [B, frames, 128] fp32 at 100 Hz, `lengths` [B] int64 on the same device (None: all of it) -> ids
        [B, tokens] int64, zeros past each row's own, and tokens a row [B]. Tokens are `tokens_of(frames)`.

        What lies past a row's length is never looked at; a row gets the same ids as alone but for rounding.
        """
        states, lengths = self.encode(mel, lengths)
        digits = (self.digits(states).tanh() * _ROUNDED).round() + 1.0
        places = torch.tensor([3**n for n in range(self.config.digits)], device=mel.device)
        ids = (digits.long() * places).sum(-1)
        return ids.masked_fill(~_inside(lengths, ids.shape[1]), 0), lengths

    def encode(self, mel: Tensor, lengths: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Likewise -> the states before rounding [B, tokens, width], and tokens a row [B]."""
        rows, frames, _ = mel.shape
        if lengths is None:
            lengths = torch.full((rows,), frames, dtype=torch.int64, device=mel.device)
            padded = False
        else:
            padded = bool((lengths < frames).any())
        x = mel
        for conv in (self.conv1, self.conv2):
            x = F.gelu(conv(_silenced(x, lengths) if padded else x))
            lengths = _halved(lengths)
        mask = _inside(lengths, x.shape[1]) if padded else None
        turn = rotary(self.config, x.shape[1], x.device)
        for block in self.blocks:
            x = block(x, turn, mask)
        return x, lengths


def tokens_of(frames: int) -> int:
    """Tokens that so many mel frames give: one for every four, and one for a rest."""
    return -(-frames // 4)


class Block(nn.Module):
    def __init__(self, config: TokenizerConfig) -> None:
        super().__init__()
        self.attention_norm = nn.LayerNorm(config.width, eps=config.norm_eps)
        self.attention = Attention(config)
        self.mlp_norm = nn.LayerNorm(config.width, eps=config.norm_eps)
        self.up = nn.Linear(config.width, config.mlp)
        self.down = nn.Linear(config.mlp, config.width)

    def forward(self, x: Tensor, turn: tuple[Tensor, Tensor], mask: Tensor | None) -> Tensor:
        x = x + self.attention(self.attention_norm(x), turn, mask)
        out: Tensor = x + self.down(F.gelu(self.up(self.mlp_norm(x))))
        return out


class Attention(nn.Module):
    """[B, T, width] -> the same. `mask` [B, T] is False past a row's length."""

    def __init__(self, config: TokenizerConfig) -> None:
        super().__init__()
        self.heads, self.head = config.heads, config.head
        # Three products, not one of three times the width: on a CPU that took 1.3 to 1.6 times as long.
        self.query = nn.Linear(config.width, config.heads * config.head)
        self.key = nn.Linear(config.width, config.heads * config.head, bias=False)
        self.value = nn.Linear(config.width, config.heads * config.head)
        self.out = nn.Linear(config.heads * config.head, config.width)
        self.memory = Memory(config.width, config.memory_kernel)

    def forward(self, x: Tensor, turn: tuple[Tensor, Tensor], mask: Tensor | None) -> Tensor:
        value = self.value(x)
        remembered = self.memory(value, mask)
        query, key, values = (self._by_head(y) for y in (self.query(x), self.key(x), value))
        seen = None if mask is None else mask[:, None, None]
        mixed = F.scaled_dot_product_attention(rotated(query, turn), rotated(key, turn), values, attn_mask=seen)
        out: Tensor = self.out(mixed.transpose(1, 2).flatten(2)) + remembered
        return out

    def _by_head(self, x: Tensor) -> Tensor:
        return x.view(*x.shape[:2], self.heads, self.head).transpose(1, 2)


class Memory(nn.Module):
    """x plus a window over its own channel: [B, T, C] -> the same; an FSMN block (arXiv:1512.08301)."""

    def __init__(self, channels: int, kernel: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(channels, 1, kernel).normal_(0.0, 0.02))

    def forward(self, x: Tensor, mask: Tensor | None) -> Tensor:
        x = x if mask is None else x * mask[..., None]
        channels, _, kernel = self.weight.shape
        before = (kernel - 1) // 2
        if x.device.type != "cpu":
            image = F.pad(x.transpose(1, 2), (before, kernel - 1 - before))
            return F.conv1d(image, self.weight, groups=channels).transpose(1, 2) + x
        # A pass a tap: four to five times as fast as the library's depthwise kernel on a CPU.
        padded, frames = F.pad(x, (0, 0, before, kernel - 1 - before)), x.shape[1]
        out, taps = x.clone(), self.weight[:, 0].T.contiguous()
        for tap in range(kernel):
            out.addcmul_(padded[:, tap : tap + frames], taps[tap])
        return out


def rotary(config: TokenizerConfig, frames: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """cos and sin [frames, head] of the angles by which position turns a head; the two halves have the same ones."""
    steps = torch.arange(0, config.head, 2, dtype=torch.float32, device=device) / config.head
    angles = torch.outer(torch.arange(frames, dtype=torch.float32, device=device), 1.0 / config.rope_theta**steps)
    angles = torch.cat((angles, angles), -1)
    return angles.cos(), angles.sin()


def rotated(x: Tensor, turn: tuple[Tensor, Tensor]) -> Tensor:
    """x [B, heads, T, head] with channel i of the first half turned against channel i of the second."""
    cos, sin = turn
    first, second = x.chunk(2, -1)
    return x * cos + torch.cat((-second, first), -1) * sin


def _halved(lengths: Tensor) -> Tensor:
    return (lengths + 1) // 2


def _inside(lengths: Tensor, steps: int) -> Tensor:
    return torch.arange(steps, device=lengths.device) < lengths[:, None]


def _silenced(x: Tensor, lengths: Tensor) -> Tensor:
    """Zeros past each row's length, whatever was there (also NaN)."""
    return x.masked_fill(~_inside(lengths, x.shape[1])[..., None], 0.0)
