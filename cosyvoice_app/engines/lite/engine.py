"""The embedded default engine: Kokoro-82M with a decoder fitted to the clip. Speaks Mandarin and American English."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import torch

from cosyvoice_app import assets
from cosyvoice_app.engines.capabilities import LITE
from cosyvoice_app.engines.device import choose, make_exact
from cosyvoice_app.engines.lite.clone import LiteSpeakerEncoder
from cosyvoice_app.engines.lite.lanes import Lanes, products_agree
from cosyvoice_app.engines.lite.model import LiteModel
from cosyvoice_app.engines.lite.speak import Features, LiteAcousticModel, LiteStyleEncoder, LiteVocoder, levelled
from cosyvoice_app.engines.lite.voice import LiteVoice, Measures, VoiceStore
from cosyvoice_app.engines.memory import read_memory
from cosyvoice_app.errors import ConfigError
from cosyvoice_app.settings import Settings
from cosyvoice_app.text.frontend import prepare
from cosyvoice_app.types import (
    CacheCounts,
    FloatArray,
    Intent,
    NeverCancelled,
    OnProgress,
    Row,
    Segment,
    Utterance,
    Voice,
    ignore_progress,
)

log = logging.getLogger(__name__)

PRECISIONS = {"auto": torch.float32, "fp32": torch.float32, "bf16": torch.bfloat16}
"""Of the text side. The vocoder and the speaker encoder stay in fp32: phases and long sums need it."""


class LiteEngine:
    """Built by `load`. Holds networks and tables only; nothing of a request."""

    name = "lite"

    def __init__(self, model: LiteModel, store: VoiceStore, *, device_reason: str, precision: str) -> None:
        self._model = model
        self._store = store
        self.device = str(model.device)
        self.device_reason = device_reason
        self.precision = precision
        self.model_hash = model.model_hash
        # On a GPU rows go one after another: together they would be the same within rounding only.
        self._lanes = Lanes(torch.get_num_threads() if model.device.type == "cpu" else 1)
        self.capabilities = replace(
            LITE, rate_hz=model.config.rate_hz, max_rows=LITE.max_rows if self._lanes.count > 1 else 1
        )
        self.speaker_encoder = LiteSpeakerEncoder(model, store)
        self.style_encoder = LiteStyleEncoder()
        self.acoustic_model = LiteAcousticModel(model, self._lanes)
        self.vocoder = LiteVocoder(model, self._lanes)

    @classmethod
    def load(cls, settings: Settings, progress: OnProgress = ignore_progress) -> LiteEngine:
        """Fetch and convert what is missing, then load. Raises AssetError, DeviceError or ConfigError."""
        if settings.precision not in PRECISIONS:
            raise ConfigError(
                f"The lite engine has no {settings.precision} mode; allowed: {', '.join(PRECISIONS)}.",
                param="precision",
            )
        chosen = choose(settings.device, settings.precision)
        dtype = PRECISIONS[settings.precision]
        make_exact(chosen)
        model = LiteModel.load(settings.cache, torch.device(chosen.name), dtype, progress)
        store = VoiceStore(
            assets.cache_dir(settings.cache) / "voices-lite",
            model.decoder.generator,
            most_bytes=settings.voice_disk_mb * 1_000_000,
        )
        precision = "bf16" if dtype == torch.bfloat16 else "fp32"
        return cls(model, store, device_reason=chosen.reason, precision=precision)

    def check_text(self, segments: Sequence[Segment]) -> tuple[str, ...]:
        """Warnings that quote what this engine will not speak. Raises TextError for a segment it can't speak at all."""
        warnings = [warning for segment in segments for warning in self._model.g2p(segment).warnings]
        return tuple(dict.fromkeys(warnings))

    def components(self) -> dict[str, str]:
        def where(net: torch.nn.Module) -> str:
            return str(next(net.parameters()).device)

        model = self._model
        return {
            "speaker_encoder": where(model.speaker),
            "style_encoder": "cpu",
            "acoustic_model": where(model.acoustic),
            "vocoder": where(model.decoder),
        }

    def memory(self) -> dict[str, int]:
        return read_memory(self.device)

    def caches(self) -> dict[str, CacheCounts]:
        return {"voice_disk": self._store.counts()}

    def warm_up(self) -> None:
        """Speak two short sentences, so that lexicons are read and kernels chosen before the first request; with many
        cores, once more side by side. Only where both give the same bits will rows be joined.
        """
        model = self._model
        rows = _short_rows(model)
        with torch.inference_mode():
            features = self.acoustic_model.predict(rows, cancel=NeverCancelled())
            waves = [audio.samples for audio in self.vocoder.decode(features, rows, cancel=NeverCancelled())]
            if not all(np.isfinite(wave).all() for wave in waves):
                raise ConfigError(
                    f"{self.precision} on {self.device} gives no usable audio; use --precision fp32.",
                    param="precision",
                )
            if self._lanes.count > 1 and not self._lanes.trusted:
                self._lanes.trusted = self._agree(rows, features, waves) and products_agree(self._lanes)
            if not self._lanes.trusted and self.capabilities.max_rows > 1:
                log.warning("Segments are spoken one after another: on this CPU a segment would not come out the same "
                            "to the last bit when others are spoken beside it.")  # fmt: skip
                self.capabilities = replace(self.capabilities, max_rows=1)
        rate = model.config.rate_hz
        model.speaker.embed(torch.from_numpy(np.sin(np.arange(rate, dtype=np.float32) * 0.05))[None].to(model.device))

    def _agree(self, rows: Sequence[Row], features: Sequence[Features], waves: Sequence[FloatArray]) -> bool:
        """Whether rows made one after another (`features`, `waves`) come out the same, bit for bit, side by side."""
        shaped = self._lanes.beside(
            [work for row in rows for work in self.acoustic_model.works(row)], NeverCancelled()
        )
        alone = [prosody for item in features for prosody in item.passes]
        for (prosody, _), other in zip(shaped, alone, strict=True):
            pairs = ((prosody.text, other.text), (prosody.f0, other.f0), (prosody.energy, other.energy))
            if not all(torch.equal(a, b) for a, b in pairs):
                return False
        again = self._lanes.beside(
            [work for item, row in zip(features, rows, strict=True) for work in self.vocoder.works(item, row)],
            NeverCancelled(),
        )
        return all(np.array_equal(levelled(a.numpy(), self._model.config.rate_hz, 0.0), b)
                   for a, b in zip(again, waves, strict=True))  # fmt: skip

    def close(self) -> None:
        """End the lanes' threads; nothing is held outside this process."""
        self._lanes.close()


def _short_rows(model: LiteModel) -> list[Row]:
    """Two short sentences in a stock voice."""
    voice = LiteVoice(model.styles.styles[0].to(model.device), Measures("", 0.0, 1.0, 1.0, "off"))
    style = LiteStyleEncoder().encode(Intent(), speed=1.0)
    rows = []
    for text in ("Good morning to you.", "大家早上好。"):
        utterance = Utterance(prepare(text, max_chars=None).segments, Intent(), 1)
        rows.append(Row(utterance, 0, Voice("", voice), style, 1))
    return rows
