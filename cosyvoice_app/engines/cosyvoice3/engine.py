"""The cosyvoice3 engine: the official Fun-CosyVoice3-0.5B weights on our own networks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import torch

from cosyvoice_app import assets
from cosyvoice_app.engines import registry
from cosyvoice_app.engines.capabilities import COSYVOICE3
from cosyvoice_app.engines.cosyvoice3.config import PROMPT_RATE_HZ
from cosyvoice_app.engines.cosyvoice3.model import Model
from cosyvoice_app.engines.cosyvoice3.speak import (
    CosyVoice3AcousticModel,
    CosyVoice3StyleEncoder,
    CosyVoice3Vocoder,
)
from cosyvoice_app.engines.cosyvoice3.stream_memory import StreamMemory
from cosyvoice_app.engines.cosyvoice3.streamer import CosyVoice3Streamer
from cosyvoice_app.engines.cosyvoice3.turns import Turns
from cosyvoice_app.engines.cosyvoice3.voice import CosyVoice3SpeakerEncoder
from cosyvoice_app.engines.cosyvoice3.voice_store import PromptStore
from cosyvoice_app.engines.device import Device, choose, make_exact
from cosyvoice_app.engines.memory import read_memory
from cosyvoice_app.settings import Settings
from cosyvoice_app.types import (
    CacheCounts,
    Intent,
    NeverCancelled,
    OnProgress,
    PromptClip,
    Row,
    Segment,
    Text,
    Utterance,
    ignore_progress,
)

GIB = 1 << 30
CPU_SLOTS = 4
"""Most rows of the language model that run together on a CPU. Four in int8 take a step of 1.4 times the time of one, in
16 bits 1.9 times, in float32 3.4 times; the flow, which takes most of the time there, gains nothing from company."""


class CosyVoice3Engine:
    """Built by `load`. Holds networks and caches of prompts; nothing of a request."""

    name = "cosyvoice3"

    def __init__(self, model: Model, store: PromptStore, *, device_reason: str, precision: str, steps: int,
                 slots: int = 1) -> None:
        """`slots` rows of the language model run together at most. On CUDA each takes its memory from the start."""
        on_gpu = model.device.type == "cuda"
        self._model = model
        self._store = store
        self.device = str(model.device)
        self.device_reason = device_reason
        self.precision = precision
        self.model_hash = model.model_hash if steps == model.config.flow.steps else f"{model.model_hash}-{steps}steps"
        # On a CPU each of the two already takes all cores.
        self.capabilities = replace(COSYVOICE3, overlaps=on_gpu)
        turns = Turns()
        self.speaker_encoder = CosyVoice3SpeakerEncoder(model, store, turns, release_after=precision == "int8")
        self.style_encoder = CosyVoice3StyleEncoder()
        self.acoustic_model = CosyVoice3AcousticModel(model, turns, slots=slots)
        self.vocoder = CosyVoice3Vocoder(model, turns, steps=steps)
        stream_bytes = _stream_bytes(on_gpu, precision)
        self.streamer = CosyVoice3Streamer(model, self.acoustic_model, turns,
                                          StreamMemory(_all_streams_bytes(model.device, stream_bytes)), steps=steps,
                                          overlaps=on_gpu, cache_bytes=stream_bytes, prefix_bytes=GIB if on_gpu else 0)

    @classmethod
    def load(cls, settings: Settings, progress: OnProgress = ignore_progress) -> CosyVoice3Engine:
        """Read the official directory. Raises AssetError, DeviceError or ConfigError."""
        folder = registry.model_dir(settings)
        chosen = choose(settings.device, settings.precision)
        precision = resolve_precision(settings, chosen)
        make_exact(chosen)
        model = Model.load(folder, device=torch.device(chosen.name), precision=precision,
                           lm_file=registry.LLM_FILES[settings.llm_weights], steps=settings.flow_steps,
                           progress=progress)
        store = PromptStore(assets.cache_dir(settings.cache) / "voices-cosyvoice3",
                            most_bytes=settings.voice_disk_mb * 1_000_000)
        slots = settings.max_batch if chosen.is_cuda else min(settings.max_batch, CPU_SLOTS)
        return cls(model, store, device_reason=chosen.reason, precision=precision, steps=settings.flow_steps,
                   slots=slots)

    def check_text(self, segments: Sequence[Segment]) -> tuple[str, ...]:
        """Everything can be said: the tokenizer has bytes for any text. What isn't a language of the model is warned
        about by the front end."""
        return ()

    def components(self) -> dict[str, str]:
        def where(net: torch.nn.Module) -> str:
            return str(next(iter(net.state_dict().values())).device)

        model = self._model
        return {
            "speaker_encoder": str(model.prompts.device),
            "style_encoder": "cpu",
            "acoustic_model": where(model.lm),
            "flow": where(model.flow),
            "vocoder": where(model.vocoder),
        }

    def memory(self) -> dict[str, int]:
        return read_memory(self.device)

    def caches(self) -> dict[str, CacheCounts]:
        return {"voice_disk": self._store.counts()}

    def warm_up(self) -> None:
        """Say something short in the voice of a hum, so that kernels are chosen before the first request. Raises
        BadAudio or EngineFailure where this precision gives no usable numbers on this device."""
        time_s = np.arange(3 * PROMPT_RATE_HZ, dtype=np.float32) / PROMPT_RATE_HZ
        hum = (0.1 * np.sin(2 * np.pi * 150.0 * time_s)).astype(np.float32)
        clip = PromptClip(hum, PROMPT_RATE_HZ, "warm-up", -23.0, "wav")
        never = NeverCancelled()
        voice = self.speaker_encoder.encode(clip, transcript="", refine="off", progress=ignore_progress, cancel=never)
        style = self.style_encoder.encode(Intent(), speed=1.0)
        segment = Segment("Hi.", (Text("Hi.", "en"),))
        row = Row(Utterance((segment,), Intent(), 1), 0, voice, style, 1)
        self.acoustic_model.warm_up()
        tokens = self.acoustic_model.predict([row], cancel=never)
        self.vocoder.decode(tokens, [row], cancel=never)

    def close(self) -> None:
        """Requests that are still under way end with EngineFailure. Nothing is held outside this process."""
        self.acoustic_model.close()


def resolve_precision(settings: Settings, device: Device) -> str:
    """`settings.precision` with "auto" decided: bf16, but fp32 on a GPU that has no bf16. On a CPU that means weights
    in 16 bits: a third of fp32's time a step, and logits within 0.1 %."""
    if settings.precision != "auto":
        return settings.precision
    return "fp32" if device.is_cuda and torch.cuda.get_device_capability(device.name)[0] < 8 else "bf16"


def _stream_bytes(on_gpu: bool, precision: str) -> int:
    """What a running stream may keep. Whoever chooses int8 has little memory."""
    if precision == "int8":
        return GIB // 2
    return 4 * GIB if on_gpu else 3 * GIB


def _all_streams_bytes(device: torch.device, stream_bytes: int) -> int:
    """What running streams may keep together: on a GPU half of what the networks left free, if that is more."""
    if device.type != "cuda":
        return stream_bytes
    free_bytes, _ = torch.cuda.mem_get_info(device)
    return max(stream_bytes, free_bytes // 2)
