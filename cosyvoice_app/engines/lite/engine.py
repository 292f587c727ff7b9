"""The embedded default engine: Kokoro-82M with a decoder fitted to the clip. Speaks Mandarin and American English."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import torch

from cosyvoice_app import assets
from cosyvoice_app.engines.capabilities import LITE
from cosyvoice_app.engines.device import choose, make_exact
from cosyvoice_app.engines.lite.clone import LiteSpeakerEncoder
from cosyvoice_app.engines.lite.model import LiteModel
from cosyvoice_app.engines.lite.speak import LiteAcousticModel, LiteStyleEncoder, LiteVocoder
from cosyvoice_app.engines.lite.voice import VoiceStore
from cosyvoice_app.engines.memory import read_memory
from cosyvoice_app.errors import ConfigError
from cosyvoice_app.settings import Settings
from cosyvoice_app.types import OnProgress, Segment, ignore_progress

PRECISIONS = {"auto": torch.float32, "fp32": torch.float32, "bf16": torch.bfloat16}
"""Of the text side. The vocoder and the speaker encoder stay in fp32: phases and long sums need it."""


class LiteEngine:
    """Built by `load`. Holds networks and tables only; nothing of a request."""

    name = "lite"

    def __init__(self, model: LiteModel, store: VoiceStore, *, device_reason: str, precision: str) -> None:
        self._model = model
        self.device = str(model.device)
        self.device_reason = device_reason
        self.precision = precision
        self.model_hash = model.model_hash
        self.capabilities = replace(LITE, rate_hz=model.config.rate_hz)
        self.speaker_encoder = LiteSpeakerEncoder(model, store)
        self.style_encoder = LiteStyleEncoder()
        self.acoustic_model = LiteAcousticModel(model)
        self.vocoder = LiteVocoder(model)

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
        store = VoiceStore(assets.cache_dir(settings.cache) / "voices-lite", model.decoder.generator)
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

    def warm_up(self) -> None:
        """Speak two short sentences, so that lexicons are read and kernels chosen before the first request."""
        from cosyvoice_app.engines.lite.prosody import Shape
        from cosyvoice_app.engines.lite.speak import encode_batch, shape_row
        from cosyvoice_app.text.frontend import prepare

        model, half = self._model, self._model.config.style
        with torch.inference_mode():
            for text in ("Good morning, everyone.", "大家早上好。"):
                style = model.styles.styles[0].to(model.device)
                symbols = [model.g2p(segment).symbols for segment in prepare(text, max_chars=None).segments]
                encoded = encode_batch(model, symbols, style[half:].expand(len(symbols), -1))
                prosody = shape_row(model, encoded, 0, style[half:], Shape())
                wave = model.decode(prosody, style[:half], model.noise(prosody.frames, 1))
                if not bool(torch.isfinite(wave).all()):
                    raise ConfigError(
                        f"{self.precision} on {self.device} gives no usable audio; use --precision fp32.",
                        param="precision",
                    )
        rate = model.config.rate_hz
        model.speaker.embed(torch.from_numpy(np.sin(np.arange(rate, dtype=np.float32) * 0.05))[None].to(model.device))

    def close(self) -> None:
        """Nothing is held outside this process."""
