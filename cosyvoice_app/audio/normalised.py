"""An extractor with the normalisation of its results, as one that a pipeline can drive."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from cosyvoice_app.audio.features import Extractor, Features
from cosyvoice_app.audio.normalise import NormConfig, normalise


@dataclass(frozen=True, slots=True)
class Normalised:
    """Each clip's features are normalised over its own frames, so neighbours and padding don't count here either."""

    extractor: Extractor
    config: NormConfig

    @property
    def rate_hz(self) -> int:
        return self.extractor.rate_hz

    @property
    def bins(self) -> int:
        return self.extractor.bins

    def frames(self, samples: int, /) -> int:
        return self.extractor.frames(samples)

    def __call__(self, samples: Tensor, lengths: Tensor, /, *, check: bool) -> Features:
        made = self.extractor(samples, lengths, check=check)
        return Features(normalise(made.values, made.lengths, self.config), made.lengths)
