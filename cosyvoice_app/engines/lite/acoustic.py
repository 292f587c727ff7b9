"""Symbols and a style in; durations, text features, F0 and energy out: the text side of StyleTTS 2 (arXiv:2306.07691).

Text encoder (convolutions and an LSTM) for what is said; ALBERT (arXiv:1909.11942), a duration encoder and
predictors for how. Time-major [B, T, C]; rows may differ in length, and a row's result does not depend on its
neighbours.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from cosyvoice_app.engines.lite.blocks import AdaINBlock, length_mask
from cosyvoice_app.engines.lite.config import LiteConfig
from cosyvoice_app.nn.conv import Conv1d


def run_lstm(lstm: nn.LSTM, x: Tensor, lengths: Tensor) -> Tensor:
    """Bidirectional LSTM over rows of differing length; zeros beyond each row's end."""
    if len(x) == 1:
        return lstm(x)[0]
    packed = pack_padded_sequence(x, lengths.cpu(), batch_first=True, enforce_sorted=False)
    return pad_packed_sequence(lstm(packed)[0], batch_first=True, total_length=x.shape[1])[0]


class ChannelNorm(nn.Module):
    """Layer normalisation over channels, with the checkpoint's parameter names."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.gamma = nn.Parameter(torch.ones(channels))
        self.beta = nn.Parameter(torch.zeros(channels))

    def forward(self, x: Tensor) -> Tensor:
        return F.layer_norm(x, self.gamma.shape, self.gamma, self.beta, 1e-5)


class TextEncoder(nn.Module):
    """Symbol ids [B, N] -> features [B, N, hidden]."""

    def __init__(self, config: LiteConfig) -> None:
        super().__init__()
        size = config.hidden
        self.embedding = nn.Embedding(config.symbols, size)
        self.cnn = nn.ModuleList(
            nn.Sequential(Conv1d(size, size, config.text_kernel), ChannelNorm(size), nn.LeakyReLU(0.2))
            for _ in range(config.text_convs)
        )
        self.lstm = nn.LSTM(size, size // 2, batch_first=True, bidirectional=True)

    def forward(self, ids: Tensor, lengths: Tensor, mask: Tensor) -> Tensor:
        x = self.embedding(ids) * mask
        for layer in self.cnn:
            x = layer(x) * mask
        return run_lstm(self.lstm, x, lengths) * mask


class AlbertLayer(nn.Module):
    """One post-norm transformer layer; ALBERT applies the same one twelve times."""

    def __init__(self, config: LiteConfig) -> None:
        super().__init__()
        size = config.bert_hidden
        self.heads = config.bert_heads
        self.attention = nn.ModuleDict(
            {name: nn.Linear(size, size) for name in ("query", "key", "value", "dense")}
            | {"LayerNorm": nn.LayerNorm(size, eps=1e-12)}
        )
        self.ffn = nn.Linear(size, config.bert_ffn)
        self.ffn_output = nn.Linear(config.bert_ffn, size)
        self.full_layer_layer_norm = nn.LayerNorm(size, eps=1e-12)

    def forward(self, x: Tensor, attend: Tensor) -> Tensor:
        rows, length, size = x.shape
        query, key, value = (
            self.attention[name](x).view(rows, length, self.heads, -1).transpose(1, 2)
            for name in ("query", "key", "value")
        )
        mixed = F.scaled_dot_product_attention(query, key, value, attn_mask=attend)
        mixed = self.attention["dense"](mixed.transpose(1, 2).reshape(rows, length, size))
        x = self.attention["LayerNorm"](x + mixed)
        return self.full_layer_layer_norm(x + self.ffn_output(F.gelu(self.ffn(x), approximate="tanh")))


class AlbertGroup(nn.Module):
    """The checkpoint's name for one set of shared weights."""

    def __init__(self, config: LiteConfig) -> None:
        super().__init__()
        self.albert_layers = nn.ModuleList([AlbertLayer(config)])

    def forward(self, x: Tensor, attend: Tensor) -> Tensor:
        return self.albert_layers[0](x, attend)


class AlbertStack(nn.Module):
    """Embeddings [B, N, 128] -> features [B, N, 768]: the shared layer, applied `bert_layers` times."""

    def __init__(self, config: LiteConfig) -> None:
        super().__init__()
        self.layers = config.bert_layers
        self.embedding_hidden_mapping_in = nn.Linear(config.bert_embedding, config.bert_hidden)
        self.albert_layer_groups = nn.ModuleList([AlbertGroup(config)])

    def forward(self, x: Tensor, attend: Tensor) -> Tensor:
        x = self.embedding_hidden_mapping_in(x)
        for _ in range(self.layers):
            x = self.albert_layer_groups[0](x, attend)
        return x


class AlbertEmbeddings(nn.Module):
    """Symbol ids [B, N] -> [B, N, 128]: symbol, position and the one token type there is."""

    def __init__(self, config: LiteConfig) -> None:
        super().__init__()
        size = config.bert_embedding
        self.word_embeddings = nn.Embedding(config.symbols, size)
        self.position_embeddings = nn.Embedding(config.max_symbols, size)
        self.token_type_embeddings = nn.Embedding(2, size)
        self.LayerNorm = nn.LayerNorm(size, eps=1e-12)

    def forward(self, ids: Tensor) -> Tensor:
        places = self.position_embeddings(torch.arange(ids.shape[1], device=ids.device))
        return self.LayerNorm(self.word_embeddings(ids) + places + self.token_type_embeddings.weight[0])


class Albert(nn.Module):
    """Symbol ids [B, N] -> contextual features [B, N, 768]."""

    def __init__(self, config: LiteConfig) -> None:
        super().__init__()
        self.embeddings = AlbertEmbeddings(config)
        self.encoder = AlbertStack(config)

    def forward(self, ids: Tensor, mask: Tensor) -> Tensor:
        return self.encoder(self.embeddings(ids), mask[:, None, None, :, 0] > 0)


class AdaLayerNorm(nn.Module):
    """Layer normalisation over channels whose scale and shift come from the style."""

    def __init__(self, style: int, channels: int) -> None:
        super().__init__()
        self.fc = nn.Linear(style, 2 * channels)

    def forward(self, x: Tensor, style: Tensor) -> Tensor:
        gamma, beta = self.fc(style)[:, None].chunk(2, dim=-1)
        return (1.0 + gamma) * F.layer_norm(x, x.shape[-1:], eps=1e-5) + beta


class DurationEncoder(nn.Module):
    """[B, N, hidden] and style -> [B, N, hidden + style]: LSTMs, each followed by a style-conditioned norm."""

    def __init__(self, config: LiteConfig) -> None:
        super().__init__()
        size, style = config.hidden, config.style
        layers: list[nn.Module] = []
        for _ in range(config.predictor_layers):
            layers += [
                nn.LSTM(size + style, size // 2, batch_first=True, bidirectional=True),
                AdaLayerNorm(style, size),
            ]
        self.lstms = nn.ModuleList(layers)

    def forward(self, x: Tensor, style: Tensor, lengths: Tensor, mask: Tensor) -> Tensor:
        spread = style[:, None].expand(-1, x.shape[1], -1)
        x = torch.cat([x, spread], dim=-1) * mask
        for layer in self.lstms:
            if isinstance(layer, nn.LSTM):
                x = run_lstm(layer, x, lengths)
            else:
                x = torch.cat([layer(x, style), spread], dim=-1) * mask
        return x


class ProsodyPredictor(nn.Module):
    """Contextual features and the prosodic half of the style -> durations, then F0 and energy curves."""

    def __init__(self, config: LiteConfig) -> None:
        super().__init__()
        size, style = config.hidden, config.style
        self.text_encoder = DurationEncoder(config)
        self.lstm = nn.LSTM(size + style, size // 2, batch_first=True, bidirectional=True)
        self.duration_proj = nn.ModuleDict({"linear_layer": nn.Linear(size, config.max_frames_per_symbol)})
        self.shared = nn.LSTM(size + style, size // 2, batch_first=True, bidirectional=True)
        self.F0 = _curve_blocks(size, style)
        self.N = _curve_blocks(size, style)
        self.F0_proj = Conv1d(size // 2, 1, 1)
        self.N_proj = Conv1d(size // 2, 1, 1)

    def durations(self, encoded: Tensor, lengths: Tensor) -> Tensor:
        """[B, N, hidden + style] -> expected frames a symbol [B, N], unrounded."""
        x = run_lstm(self.lstm, encoded, lengths)
        return torch.sigmoid(self.duration_proj["linear_layer"](x).float()).sum(-1)

    def curves(self, aligned: Tensor, style: Tensor, lengths: Tensor | None) -> tuple[Tensor, Tensor]:
        """[B, T, hidden + style] at 40 Hz -> F0 in Hz and log energy, each [B, 2T] at 80 Hz."""
        whole = torch.full((len(aligned),), aligned.shape[1]) if lengths is None else lengths
        mask = None if lengths is None else length_mask(lengths, aligned.shape[1]).to(aligned.dtype)
        mask2 = None if lengths is None else length_mask(lengths * 2, 2 * aligned.shape[1]).to(aligned.dtype)
        shared = run_lstm(self.shared, aligned, whole)
        results = []
        for blocks, project in ((self.F0, self.F0_proj), (self.N, self.N_proj)):
            x = blocks[0](shared, style, mask, mask)
            x = blocks[1](x, style, mask, mask2)
            x = blocks[2](x, style, mask2, mask2)
            curve = project(x)[..., 0]
            results.append(curve if mask2 is None else curve * mask2[..., 0])
        return results[0], results[1]


def _curve_blocks(size: int, style: int) -> nn.ModuleList:
    half = size // 2
    return nn.ModuleList(
        [AdaINBlock(size, size, style), AdaINBlock(size, half, style, upsample=True), AdaINBlock(half, half, style)]
    )


@dataclass(frozen=True, slots=True)
class Encoded:
    """Everything about a batch of symbol rows that does not depend on the final durations."""

    text: Tensor
    """What is said, [B, N, hidden]."""
    prosody: Tensor
    """How, [B, N, hidden + style]."""
    frames: Tensor
    """Expected frames (40 Hz) a symbol, [B, N], unrounded, 0 beyond a row's end."""
    lengths: Tensor


class AcousticNet(nn.Module):
    """The text side, with the checkpoint's module names."""

    def __init__(self, config: LiteConfig) -> None:
        super().__init__()
        self.config = config
        self.bert = Albert(config)
        self.bert_encoder = nn.Linear(config.bert_hidden, config.hidden)
        self.predictor = ProsodyPredictor(config)
        self.text_encoder = TextEncoder(config)

    def encode(self, ids: Tensor, lengths: Tensor, prosody_style: Tensor) -> Encoded:
        """`ids` [B, N] (0 at both ends of each row), `lengths` [B], `prosody_style` [B, 128]."""
        mask = length_mask(lengths, ids.shape[1]).to(self.bert_encoder.weight.dtype)
        context = self.bert_encoder(self.bert(ids, mask))
        prosody = self.predictor.text_encoder(context, prosody_style, lengths, mask)
        frames = self.predictor.durations(prosody, lengths) * mask[..., 0]
        return Encoded(self.text_encoder(ids, lengths, mask), prosody, frames, lengths)

    def curves(self, prosody: Tensor, style: Tensor, lengths: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """F0 and energy of already expanded prosody features [B, T, 640]; see `expand`."""
        return self.predictor.curves(prosody, style, lengths)


def whole_frames(frames: Tensor, speed: float = 1.0) -> Tensor:
    """Expected frames [N] -> whole frames [N], at least 1 each: rounded as the released model does."""
    return torch.round(frames / speed).clamp(min=1).long()


def expand(features: Tensor, frames: Tensor) -> Tensor:
    """[N, C] and whole frames [N] -> [sum frames, C]."""
    return torch.repeat_interleave(features, frames, dim=0)
