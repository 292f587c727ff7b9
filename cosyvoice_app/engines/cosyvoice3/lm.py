"""The language model: a Qwen2 trunk that reads text and a clip's speech tokens and goes on with speech tokens.

A row of input is `[start] text [task] speech`; start and task are rows of the speech table. Causal transformer, RMS
norm before each part, grouped-query attention with half-split rotary positions, SiLU-gated MLP; the head gives a logit
for each of the 6561 speech ids and 200 marks. Norms, rotary positions, the residual sum and the logits are float32 in
every precision. q, k, v are one matrix here, and so are gate and up.

What a precision means, by device:

| | CPU | CUDA |
|---|---|---|
| fp32 | float32, packed | float32 |
| bf16, fp16 | weights in half precision, all else float32 | weights, activations and cache in it; head float32 |
| int8 | weights in int8, head in half, all else float32 | weights in int8, activations bf16; head float32 |

On CUDA int8 saves memory only: each product first turns its matrix back into bf16.

Measured on a CPU at full size, random weights of Qwen2's initial spread (0.02): logits are 0.09 % off in half precision
and 3.1 % in int8 (RMS, relative; the likeliest id is another one at 9 % of positions, the distribution moves by 2 %).
What that does to speech with trained weights is not measured.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from cosyvoice_app.engines.cosyvoice3.config import LMConfig
from cosyvoice_app.errors import ConfigError
from cosyvoice_app.nn.kv_cache import KvCache
from cosyvoice_app.nn.loading import REMEDY, materialise
from cosyvoice_app.nn.packed import PackedLinear, half_sizes, pack
from cosyvoice_app.nn.quantized import Int8Embedding
from cosyvoice_app.nn.rotary import RotaryTable, rotate

Place = Callable[[nn.Linear], nn.Module]
"""Gives a float32 layer the form, the device and the dtype that it runs in."""

PRECISIONS = ("fp32", "bf16", "fp16", "int8")
UNUSED = "llm.model.lm_head.weight"
"""Qwen2's own head, in the file but never applied."""


class Attention(Protocol):
    """See `nn.kv_cache`: q [B, T, heads, head], k and v [B, T, kv_heads, head] -> [B, T, heads * head]."""

    def __call__(self, layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor: ...


class RmsNorm(nn.Module):
    def __init__(self, width: int, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(width))
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        return F.rms_norm(x, (x.shape[-1],), self.weight, self.eps)


class _OfficialAttention(nn.Module):
    def __init__(self, c: LMConfig) -> None:
        super().__init__()
        self.q_proj = nn.Linear(c.width, c.heads * c.head)
        self.k_proj = nn.Linear(c.width, c.kv_heads * c.head)
        self.v_proj = nn.Linear(c.width, c.kv_heads * c.head)
        self.o_proj = nn.Linear(c.heads * c.head, c.width, bias=False)


class _OfficialMlp(nn.Module):
    def __init__(self, c: LMConfig) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(c.width, c.mlp, bias=False)
        self.up_proj = nn.Linear(c.width, c.mlp, bias=False)
        self.down_proj = nn.Linear(c.mlp, c.width, bias=False)


class _OfficialLayer(nn.Module):
    def __init__(self, c: LMConfig) -> None:
        super().__init__()
        self.self_attn = _OfficialAttention(c)
        self.mlp = _OfficialMlp(c)
        self.input_layernorm = RmsNorm(c.width, c.norm_eps)
        self.post_attention_layernorm = RmsNorm(c.width, c.norm_eps)


class _OfficialTrunk(nn.Module):
    def __init__(self, c: LMConfig) -> None:
        super().__init__()
        self.embed_tokens = nn.Embedding(c.text_vocab, c.width)
        self.layers = nn.ModuleList(_OfficialLayer(c) for _ in range(c.layers))
        self.norm = RmsNorm(c.width, c.norm_eps)


class _OfficialLM(nn.Module):
    """The names and shapes of llm.pt, nothing more: strict loading compares with it."""

    def __init__(self, c: LMConfig) -> None:
        super().__init__()
        trunk = _OfficialTrunk(c)
        self.llm = nn.ModuleDict({"model": nn.ModuleDict({"model": trunk})})
        self.speech_embedding = nn.Embedding(c.rows, c.width)
        self.llm_decoder = nn.Linear(c.width, c.rows, bias=False)

    @property
    def trunk(self) -> _OfficialTrunk:
        return cast(_OfficialTrunk, cast(nn.ModuleDict, self.llm["model"])["model"])


def _fused(parts: Sequence[nn.Linear]) -> nn.Linear:
    """One layer whose outputs are those of `parts`, one after the other."""
    fused = nn.Linear(1, 1, bias=False, device="meta")
    fused.weight = nn.Parameter(torch.cat([p.weight for p in parts]), requires_grad=False)
    if parts[0].bias is not None:
        fused.bias = nn.Parameter(torch.cat([p.bias for p in parts]), requires_grad=False)
    return fused


class Layer(nn.Module):
    def __init__(self, official: _OfficialLayer, c: LMConfig, place: Place, dtype: torch.dtype) -> None:
        super().__init__()
        self.heads, self.kv_heads, self.head, self.dtype = c.heads, c.kv_heads, c.head, dtype
        attention, mlp = official.self_attn, official.mlp
        self.norm1, self.norm2 = official.input_layernorm, official.post_attention_layernorm
        self.qkv = place(_fused((attention.q_proj, attention.k_proj, attention.v_proj)))
        self.out = place(attention.o_proj)
        self.gate_up = place(_fused((mlp.gate_proj, mlp.up_proj)))
        self.down = place(mlp.down_proj)

    def forward(self, h: Tensor, cos: Tensor, sin: Tensor, number: int, attend: Attention) -> Tensor:
        """h [B, T, width] float32 -> the same; `number` is this layer's place in the cache."""
        qkv = self.qkv(self.norm1(h).to(self.dtype)).unflatten(-1, (-1, self.head))
        turned = rotate(qkv[:, :, : self.heads + self.kv_heads], cos, sin)
        attended = attend(number, turned[:, :, : self.heads], turned[:, :, self.heads :],
                          qkv[:, :, self.heads + self.kv_heads :])
        h = h + self.out(attended)
        gate, up = self.gate_up(self.norm2(h).to(self.dtype)).chunk(2, -1)
        return h + self.down(F.silu(gate) * up)


class LM(nn.Module):
    """Made by `load`. Every tensor of it lies on `device`; activations and the cache have `dtype`."""

    def __init__(self, config: LMConfig, *, device: torch.device | None = None, dtype: torch.dtype = torch.float32,
                 precision: str = "fp32") -> None:
        """An empty model: no layer, no table. `load` fills it."""
        super().__init__()
        self.config, self.precision, self.dtype = config, precision, dtype
        self.device = device or torch.device("cpu")
        self.layers = nn.ModuleList()
        self.text_embedding: nn.Module
        self.speech_embedding: nn.Module
        self.norm: nn.Module
        self.head: nn.Module

    @classmethod
    def load(cls, state: dict[str, Tensor], config: LMConfig, *, device: torch.device, dtype: torch.dtype | None = None,
             precision: str = "fp32", source: str = "llm.pt", remedy: str = REMEDY) -> LM:
        """From the official state dict, which is emptied as tensors are taken from it.

        `dtype` is that of activations and cache on CUDA; None follows `precision`. On a CPU it is always float32: no
        faster kernel takes another. Names and shapes must be exactly those of llm.pt (Qwen2's unused head may be there
        or not), else AssetError lists what differs. ConfigError for an unknown precision. Layers are converted one at a
        time.
        """
        if precision not in PRECISIONS:
            raise ConfigError(f"Precision {precision!r} is unknown; use one of {', '.join(PRECISIONS)}.",
                              param="precision")
        by_precision = {"fp32": torch.float32, "fp16": torch.float16}.get(precision, torch.bfloat16)
        dtype = torch.float32 if device.type == "cpu" else dtype or by_precision
        state.pop(UNUSED, None)
        with torch.device("meta"):
            official = _OfficialLM(config)
        lies = next(iter(state.values())).device if state else device
        # No copy where the state is float32 already, as a mapped file is: layers are read from it one by one.
        materialise(official, state, source, device=lies, dtype=torch.float32, remedy=remedy)

        def place(linear: nn.Linear) -> nn.Module:
            return pack(linear.to(device, None if precision == "int8" else dtype), precision)

        lm = cls(config, device=device, dtype=dtype, precision=precision)
        trunk = official.trunk
        for number in range(config.layers):
            lm.layers.append(Layer(cast(_OfficialLayer, trunk.layers[number]), config, place, dtype).to(device))
            trunk.layers[number] = nn.Identity()  # lets go of the plain matrices
        lm.norm = trunk.norm.to(device)
        lm.speech_embedding = official.speech_embedding.to(device)
        lm.text_embedding = _text_table(trunk.embed_tokens, precision, dtype).to(device)
        # A head of few bits rounds the logits that decide between ids; it is small, so it stays finer than the layers.
        head = official.llm_decoder.to(device)
        lm.head = pack(head, "fp16" if precision == "int8" else precision) if device.type == "cpu" else head
        return lm.requires_grad_(False).eval()

    def filled_up(self, h: Tensor, positions: Tensor) -> tuple[Tensor, Tensor]:
        """h [B, 1, width] and positions [B] of a step, and rows of zeros up to a number that products would be filled
        up to one by one: done here, it is done once. `RowAttention` passes over them."""
        missing = -len(h) % self._step_rows
        return (F.pad(h, (0, 0, 0, 0, 0, missing)), F.pad(positions, (0, missing))) if missing else (h, positions)

    @property
    def _step_rows(self) -> int:
        in_half = [isinstance(part, PackedLinear) and part.half_weights for part in (self.head, self.layers[0].down)]
        return half_sizes()[0] if all(in_half) else 1

    def new_cache(self, slots: int, max_positions: int, *, whole: bool | None = None) -> KvCache:
        c = self.config
        return KvCache(c.layers, slots, c.kv_heads, c.head, max_positions=max_positions, device=self.device,
                       dtype=self.dtype, whole=whole)

    def new_rotary(self) -> RotaryTable:
        """Empty: reserve as many positions as are used."""
        return RotaryTable(self.config.head, self.config.rope_theta, 0, self.device)

    def embed_prompt(self, text: Sequence[int], speech: Sequence[int]) -> Tensor:
        """`[start] text [task] speech` -> float32 [2 + text + speech, width]. Ids must be in range."""
        c = self.config
        text_ids = torch.tensor(text, dtype=torch.long, device=self.device)
        marks = self.embed_speech(torch.tensor([c.start, c.task, *speech], dtype=torch.long, device=self.device))
        return torch.cat((marks[:1], self.text_embedding(text_ids).float(), marks[1:]))

    def embed_speech(self, ids: Tensor) -> Tensor:
        """ids [...] -> float32 [..., width]."""
        out: Tensor = self.speech_embedding(ids)
        return out.float()

    def forward(self, h: Tensor, cos: Tensor, sin: Tensor, attend: Attention) -> Tensor:
        """Embeddings h [B, T, width] float32 -> normalised hidden states, float32.

        cos, sin: the rotary table's rows of each position, [B or 1, T, 1, head].
        """
        for number, layer in enumerate(self.layers):
            h = layer(h, cos, sin, number, attend)
        out: Tensor = self.norm(h)
        return out

    def logits(self, hidden: Tensor) -> Tensor:
        """Normalised hidden states [..., width] -> float32 [..., rows]."""
        out: Tensor = self.head(hidden)
        return out.float()


def _text_table(table: nn.Embedding, precision: str, dtype: torch.dtype) -> nn.Module:
    """136 M numbers of which a request reads a few dozen rows: in a form no larger than the layers' weights."""
    if precision == "int8":
        return Int8Embedding(table.weight)
    if precision == "fp32":
        return table
    return table.to(torch.float16 if dtype == torch.float32 else dtype)
