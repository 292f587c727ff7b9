"""Sizes of the lite engine's model. They are those of the published Kokoro-82M v1.0 weights (StyleTTS 2, iSTFTNet)."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class LiteConfig:
    """Frozen sizes; the defaults are the released weights', tests use smaller ones."""

    symbols: int = 178
    style: int = 128
    """Size of each half of a style vector: the first half is acoustic (decoder), the second prosodic (predictor)."""
    hidden: int = 512
    bert_embedding: int = 128
    bert_hidden: int = 768
    bert_heads: int = 12
    bert_ffn: int = 2048
    bert_layers: int = 12
    max_symbols: int = 512
    text_convs: int = 3
    text_kernel: int = 5
    predictor_layers: int = 3
    max_frames_per_symbol: int = 50
    decoder: int = 1024
    decoder_residual: int = 64
    upsample_rates: tuple[int, int] = (10, 6)
    resblock_kernels: tuple[int, ...] = (3, 7, 11)
    resblock_dilations: tuple[int, ...] = (1, 3, 5)
    noise_kernels: tuple[int, int] = (7, 11)
    n_fft: int = 20
    istft_hop_samples: int = 5
    harmonics: int = 8
    rate_hz: int = 24_000

    @property
    def prosody_hop_samples(self) -> int:
        """Samples a frame of F0 and energy (80 a second)."""
        return self.upsample_rates[0] * self.upsample_rates[1] * self.istft_hop_samples

    @property
    def frame_hop_samples(self) -> int:
        """Samples a frame of text features and durations (40 a second)."""
        return 2 * self.prosody_hop_samples

    @property
    def prosody_rate_hz(self) -> float:
        return self.rate_hz / self.prosody_hop_samples
