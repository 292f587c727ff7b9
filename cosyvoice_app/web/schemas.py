"""What the HTTP API takes and gives, as pydantic models. Unknown fields are refused, never ignored."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from fastapi import UploadFile
from pydantic import AfterValidator, BaseModel, ConfigDict, Field, WithJsonSchema

from cosyvoice_app.pipeline import INSTRUCT_MAX_CHARS, SPEED_MAX, SPEED_MIN
from cosyvoice_app.types import PROMPT_TEXT_MAX_CHARS, SEED_MAX, SEED_MIN
from cosyvoice_app.voices.library import NAME_MAX_CHARS
from cosyvoice_app.web.control import RestartMode
from cosyvoice_app.web.door import half_of

AudioFormat = Literal["wav", "mp3", "opus", "flac", "aac", "pcm"]
StreamFormat = Literal["audio", "sse"]

# Numbers may come as numbers or as text. What is in them is judged at the door, which says more than a schema can.
_SEED = {"minimum": SEED_MIN, "maximum": SEED_MAX}
_SPEED = {"minimum": SPEED_MIN, "maximum": SPEED_MAX}
Seed = Annotated[
    Any, WithJsonSchema({"anyOf": [{"type": "integer", **_SEED}, {"type": "string"}, {"type": "null"}]})
]
Speed = Annotated[Any, WithJsonSchema({"anyOf": [{"type": "number", **_SPEED}, {"type": "string"}, {"type": "null"}]})]


def _whole(text: str) -> str:
    """Kept in a list that everybody reads, so it must be possible to send."""
    if half_of(text) is not None:
        raise ValueError("half of a character stands here; send whole ones, as UTF-8")
    return text


Whole = Annotated[str, AfterValidator(_whole)]


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
    speed: Speed = Field(1.0, description="0.5 to 2; a number, or a number as text.")
    stream_format: StreamFormat | None = Field(
        None,
        description="audio: sent as it is made; sse: the same as events; not given: one whole file.",
    )
    seed: Seed = Field(None, description="1 to 100000000; null or blank: random, and reported in X-Seed.")
    refine: str | None = Field(None, description="off, fast or full; the server's default when not given.")
    pronunciations: dict[str, str] | str | None = Field(
        None,
        description='Readings of words, as an object or as "word = reading" lines: {"行家": "háng jiā"}.',
    )

    @property
    def voice_id(self) -> str:
        return self.voice.id if isinstance(self.voice, VoiceRef) else self.voice


class CloneForm(Strict):
    file: UploadFile = Field(description="The clip: 3 to 15 s of one person speaking.")
    text: str = Field(description="What to say.")
    prompt_text: str = Field("", description=f"The clip's exact words, at most {PROMPT_TEXT_MAX_CHARS} characters.")
    instruct: str = Field("", description=f"How to say it, at most {INSTRUCT_MAX_CHARS} characters.")
    seed: str = Field("", description="1 to 100000000; blank: random, and reported in X-Seed.")
    speed: str = Field("", description="0.5 to 2.")
    refine: str = Field("", description="off, fast or full; the server's default when blank.")
    pronunciations: str = Field("", description='Readings of words, one "word = reading" a line.')
    response_format: AudioFormat = "wav"


class VoiceForm(Strict):
    file: UploadFile = Field(description="The clip: 3 to 15 s of one person speaking.")
    name: Whole = Field(description=f"At most {NAME_MAX_CHARS} characters.")
    prompt_text: Whole = Field("", description="The clip's exact words.")


class RestartBody(Strict):
    mode: RestartMode | None = Field(None, description="cancel stops what runs; drain lets it finish first.")


class Error(BaseModel):
    """`param` is the field or header at fault."""

    type: str
    message: str
    param: str | None


class ErrorBody(BaseModel):
    error: Error


class Voice(BaseModel):
    """A saved voice. `created` is ISO 8601 in UTC; `sha256` is of the decoded clip."""

    object: Literal["voice"] = "voice"
    id: str
    name: str
    prompt_text: str
    created: str
    duration_s: float
    rate_hz: int
    sha256: str


class NewVoice(Voice):
    warnings: list[str] = Field(description="What is less than good about the clip.")


class VoiceList(BaseModel):
    object: Literal["list"] = "list"
    data: list[Voice]


class DeletedVoice(BaseModel):
    id: str
    object: Literal["voice"] = "voice"
    deleted: Literal[True] = True


class Model(BaseModel):
    id: str
    object: Literal["model"] = "model"
    created: int = Field(description="When the server was started, in seconds since 1970.")
    owned_by: str


class ModelList(BaseModel):
    object: Literal["list"] = "list"
    data: list[Model]


class Health(BaseModel):
    """The live state; the engine's process reports it. More fields may come."""

    model_config = ConfigDict(extra="allow")

    status: str = Field(description="ok, idle (loads for the next request), or the state when it isn't ready.")
    state: Literal["loading", "ready", "unloaded", "failed"]
    version: str
    engine: str
    device: str
    worker_pid: int | None


class Change(BaseModel):
    before: Health
    after: Health


class Loaded(BaseModel):
    after: Health
