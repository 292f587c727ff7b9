"""The stock voices: 54 mean style vectors and what each sounds like, so that a clip's nearest voice is found at no
cost.

Derived by `train/derive_styles.py` from the voice packs of Kokoro-82M v1.0 (hexgrad, Apache-2.0) and committed with the
program. A style is 256 numbers: 0-127 acoustic, for the decoder; 128-255 prosodic, for the predictor.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from cosyvoice_app.errors import AssetError, BadInput
from cosyvoice_app.nn.loading import load_tensors

DATA = Path(__file__).parent / "data"

PITCH_FREE_SEMITONES = 1.0
PITCH_COST_PER_SEMITONE = 0.08
"""What a semitone of pitch difference beyond the free ones costs, in cosine: shifting a voice far makes it rough."""
GOOD_MOS = 3.4
QUALITY_COST_PER_MOS = 0.5
"""What a voice rougher than GOOD_MOS costs: a fit starts from its roughness and keeps it."""


@dataclass(frozen=True, slots=True)
class StockVoice:
    """`language` and `gender` as the release names them. Measured on the voice's own speech by `speaker.measure`,
    except `symbols_per_s`, phoneme symbols a second of speaking time, and `quality_mos`, its DNSMOS (1 to 5).
    """

    name: str
    language: str
    gender: str
    f0_median_hz: float
    f0_range_semitones: float
    syllables_per_s: float
    symbols_per_s: float
    quality_mos: float


@dataclass(frozen=True, slots=True)
class StyleTable:
    """Row i of `styles` [N, 256] and `speakers` [N, 192] (CAM++ unit vectors of the voice speaking) belongs to
    `voices[i]`.
    """

    voices: tuple[StockVoice, ...]
    styles: Tensor
    speakers: Tensor

    @staticmethod
    def load(folder: Path = DATA) -> StyleTable:
        """Raises AssetError when the table is missing or its two files disagree."""
        try:
            rows = json.loads((folder / "styles.json").read_text(encoding="utf-8"))["voices"]
            voices = tuple(StockVoice(**row) for row in rows)
        except (OSError, ValueError, KeyError, TypeError) as e:
            raise AssetError(f"The table of stock voices in {folder} is damaged ({e}). Reinstall the program.") from e
        tensors = load_tensors(folder / "styles.safetensors")
        shapes = {k: list(v.shape) for k, v in tensors.items()}
        if shapes != {"styles": [len(voices), 256], "speakers": [len(voices), 192]}:
            raise AssetError(f"The table of stock voices in {folder} holds {shapes} for {len(voices)} names. "
                             "Reinstall the program.")
        return StyleTable(voices, tensors["styles"].float(), tensors["speakers"].float())

    def index(self, name: str) -> int:
        """Raises BadInput listing the names there are."""
        names = [v.name for v in self.voices]
        if name not in names:
            raise BadInput(f"There is no stock voice {name!r}. There are: {', '.join(names)}.", param="voice")
        return names.index(name)

    def style(self, name: str) -> Tensor:
        """[256]."""
        return self.styles[self.index(name)]

    def nearest(self, speaker: Tensor, f0_median_hz: float = 0.0, *, count: int = 1,
                languages: Sequence[str] | None = None) -> list[tuple[StockVoice, float]]:
        """The `count` best voices for a CAM++ unit vector [192], best first, each with its score.

        Score: cosine to the voice, less a cost for each semitone between their F0 medians beyond one (0 Hz = unknown,
        no cost) and for roughness. `languages` keeps only voices of these (as in `StockVoice.language`).
        """
        cosine = self.speakers @ torch.nn.functional.normalize(speaker.detach().float().cpu(), dim=0)
        scored = []
        for voice, similarity in zip(self.voices, cosine.tolist(), strict=True):
            if languages is not None and voice.language not in languages:
                continue
            cost = QUALITY_COST_PER_MOS * max(0.0, GOOD_MOS - voice.quality_mos)
            if f0_median_hz > 0:
                distance = abs(12.0 * torch.log2(torch.tensor(f0_median_hz / voice.f0_median_hz)).item())
                cost += PITCH_COST_PER_SEMITONE * max(0.0, distance - PITCH_FREE_SEMITONES)
            scored.append((voice, similarity - cost))
        if not scored:
            raise BadInput(f"No stock voice speaks any of {list(languages or [])}.", param="language")
        return sorted(scored, key=lambda pair: pair[1], reverse=True)[:count]
