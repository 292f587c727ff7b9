"""What the HTTP API takes and gives, as pydantic models. Unknown fields are refused, never ignored."""

from __future__ import annotations

from typing import Any, Literal

from fastapi import UploadFile
from pydantic import BaseModel, ConfigDict, Field

AudioFormat = Literal["wav", "mp3", "opus", "flac", "pcm"]
StreamFormat = Literal["audio", "sse"]


class Strict(BaseModel):
    model_config = ConfigDict(extra="forbid")


class VoiceRef(Strict):
    id: str


class SpeechBody(Strict):
    """OpenAI's speech request, plus `seed` and `refine`. `model` is accepted for the clients that must send one."""

    input: str = Field(description="What to say.")
    voice: str | VoiceRef = Field(description="A saved voice's id, from POST /v1/voices.")
    model: str = Field("", description="Accepted and not used: the loaded engine speaks (see /health).")
    instructions: str | None = Field(None, description="How to say it, in English or Chinese.")
    response_format: AudioFormat = Field("mp3", description="As OpenAI's, mp3 when not given.")
    speed: Any = Field(1.0, description="0.5 to 2; a number, or a number as text.")
    stream_format: StreamFormat | None = Field(
        None,
        description="audio: sent segment by segment as it is made; sse: the same as events; not given: one whole file.",
    )
    seed: Any = Field(None, description="1 to 100000000; null or blank: random, and reported in X-Seed.")
    refine: str | None = Field(None, description="off, fast or full; the server's default when not given.")
    pronunciations: dict[str, str] | str | None = Field(
        None,
        description='Readings of words, as an object or as "word = reading" lines: {"行家": "háng jiā"}.',
    )

    @property
    def voice_id(self) -> str:
        return self.voice.id if isinstance(self.voice, VoiceRef) else self.voice


class CloneForm(Strict):
    file: UploadFile
    text: str
    prompt_text: str = ""
    instruct: str = ""
    seed: str = ""
    speed: str = ""
    refine: str = ""
    pronunciations: str = ""
    response_format: AudioFormat = "wav"


class VoiceForm(Strict):
    file: UploadFile
    name: str
    prompt_text: str = ""
