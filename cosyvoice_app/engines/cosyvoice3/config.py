"""Sizes and constants of Fun-CosyVoice3-0.5B. The defaults are the official model; `TINY` is the same at toy size.

Read from the official code and checked against the files' published sizes. Time is counted in tokens (25 Hz), mel
frames (50 Hz, 480 samples) and samples (24 kHz).
"""

from __future__ import annotations

from dataclasses import dataclass, field

RATE_HZ = 24_000
PROMPT_RATE_HZ = 16_000
"""Of the speaker encoder and the speech tokenizer."""
HOP_SAMPLES = 480
FRAMES_PER_TOKEN = 2
TOKENS_PER_S = 25
MELS = 80
SPEAKER = 192
SPEECH_VOCAB = 6561
"""3^8: ids that stand for sound. Rows above are marks."""

SILENT_TOKENS = frozenset({1, 2, 28, 29, 55, 248, 494, 2241, 2242, 2322, 2323})
"""Silence and breath. Only the first `MAX_SILENT_RUN` of a run reach the flow."""
MAX_SILENT_RUN = 5


@dataclass(frozen=True, slots=True)
class LMConfig:
    """The Qwen2-0.5B trunk that turns text into speech tokens."""

    layers: int = 24
    width: int = 896
    heads: int = 14
    kv_heads: int = 2
    head: int = 64
    mlp: int = 4864
    text_vocab: int = 151_936
    speech_vocab: int = SPEECH_VOCAB
    marks: int = 200
    """Rows of the speech table after the speech ids; any of them ends the speech."""
    rope_theta: float = 1_000_000.0
    norm_eps: float = 1e-6

    @property
    def rows(self) -> int:
        return self.speech_vocab + self.marks

    @property
    def start(self) -> int:
        return self.speech_vocab

    @property
    def end(self) -> int:
        return self.speech_vocab + 1

    @property
    def task(self) -> int:
        return self.speech_vocab + 2

    @property
    def fill(self) -> int:
        return self.speech_vocab + 3


@dataclass(frozen=True, slots=True)
class SamplingConfig:
    """Repetition-aware sampling: top-p within top-k, drawn again from everything when the id came up lately."""

    top_p: float = 0.8
    top_k: int = 25
    window: int = 10
    repeats: float = 0.1
    """Share of the window from which on an id counts as repeated: 0.1 of 10 is once."""
    min_ratio: float = 2.0
    max_ratio: float = 20.0
    """Speech tokens a text token: fewest and most."""


@dataclass(frozen=True, slots=True)
class FlowConfig:
    """The diffusion transformer that turns speech tokens into mel, and its solver."""

    mels: int = MELS
    vocab: int = SPEECH_VOCAB
    speaker: int = SPEAKER
    lookahead_width: int = 1024
    lookahead_tokens: int = 3
    width: int = 1024
    blocks: int = 22
    heads: int = 16
    head: int = 64
    mlp: int = 2048
    time: int = 256
    position_kernel: int = 31
    position_groups: int = 16
    chunk_frames: int = 50
    steps: int = 10
    guidance: float = 0.7
    noise_frames: int = 15_000
    """300 s: the longest prompt and speech together."""


@dataclass(frozen=True, slots=True)
class VocoderConfig:
    """CausalHiFT: mel to samples."""

    mels: int = MELS
    width: int = 512
    rates: tuple[int, ...] = (8, 5, 3)
    rate_kernels: tuple[int, ...] = (16, 11, 7)
    resblock_kernels: tuple[int, ...] = (3, 7, 11)
    source_kernels: tuple[int, ...] = (7, 7, 11)
    dilations: tuple[int, ...] = (1, 3, 5)
    harmonics: int = 9
    fft: int = 16
    hop: int = 4
    f0_width: int = 512
    pre_lookahead: int = 4
    f0_lookahead: int = 3


@dataclass(frozen=True, slots=True)
class TokenizerConfig:
    """Speech tokenizer v3: 16 kHz clip to speech tokens."""

    mels: int = 128
    width: int = 1280
    heads: int = 20
    head: int = 64
    blocks: int = 12
    mlp: int = 5120
    memory_kernel: int = 31
    digits: int = 8
    rope_theta: float = 10_000.0
    norm_eps: float = 1e-5
    max_s: float = 30.0


@dataclass(frozen=True, slots=True)
class ModelConfig:
    lm: LMConfig = field(default_factory=LMConfig)
    sampling: SamplingConfig = field(default_factory=SamplingConfig)
    flow: FlowConfig = field(default_factory=FlowConfig)
    vocoder: VocoderConfig = field(default_factory=VocoderConfig)
    tokenizer: TokenizerConfig = field(default_factory=TokenizerConfig)


TINY = ModelConfig(
    lm=LMConfig(layers=2, width=64, heads=4, kv_heads=2, head=16, mlp=128),
    flow=FlowConfig(lookahead_width=32, width=64, blocks=2, heads=4, head=16, mlp=128, time=32, position_groups=4),
    vocoder=VocoderConfig(width=32, f0_width=32),
    tokenizer=TokenizerConfig(width=64, heads=4, head=16, blocks=2, mlp=128),
)
"""For tests: every kind of layer, the official vocabularies and time constants, toy widths."""
