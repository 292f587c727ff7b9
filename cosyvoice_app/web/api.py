"""The HTTP API. Routes translate between HTTP and `Service`; they decide nothing about speech."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Form, Query, Request, Response
from fastapi.concurrency import run_in_threadpool
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from starlette.exceptions import HTTPException
from starlette.routing import Match

from cosyvoice_app import __version__
from cosyvoice_app.errors import AppError, BadInput, NotFound
from cosyvoice_app.serving.metrics import CONTENT_TYPE as METRICS_TYPE
from cosyvoice_app.serving.request import Service, Status, SynthesisRequest, Ticket
from cosyvoice_app.settings import Settings
from cosyvoice_app.types import PromptClip
from cosyvoice_app.voices.clips import ClipCache
from cosyvoice_app.voices.library import SavedVoice, VoiceLibrary
from cosyvoice_app.web import logs
from cosyvoice_app.web.answers import streamed, whole
from cosyvoice_app.web.caller import Caller, caller_of
from cosyvoice_app.web.control import EngineControl, RestartMode
from cosyvoice_app.web.door import make_request
from cosyvoice_app.web.guard import MB
from cosyvoice_app.web.openapi import METRICS, audio, errors
from cosyvoice_app.web.schemas import (
    Change,
    CloneForm,
    DeletedVoice,
    Health,
    Loaded,
    Model,
    ModelList,
    NewVoice,
    RestartBody,
    SpeechBody,
    VoiceForm,
    VoiceList,
)

By = Annotated[Caller, Depends(caller_of)]


def build_router(settings: Settings, service: Service, library: VoiceLibrary, control: EngineControl) -> APIRouter:
    router = APIRouter()
    started = int(time.time())

    async def submit(asked: SynthesisRequest) -> Ticket:
        logs.note(seed=asked.seed, priority=asked.priority, **logs.described(asked.text))
        return await run_in_threadpool(service.submit, asked)

    @router.post(
        "/v1/audio/speech",
        tags=["speech"],
        response_class=Response,
        responses=audio(events=True) | errors(400, 404, 422, 503, 504),
    )
    async def speech(body: SpeechBody, request: Request, by: By) -> Response:
        """Say `input` in a saved voice. Compatible with OpenAI's speech endpoint."""
        with _fields_named(text="input", instruct="instructions"):
            clip, transcript = await run_in_threadpool(library.load, body.voice_id)
            asked = make_request(
                clip,
                body.input,
                prompt_text=transcript,
                instruct=body.instructions,
                seed=body.seed,
                speed=body.speed,
                refine=body.refine,
                pronunciations=body.pronunciations,
                default_refine=settings.refine,
                stream=body.stream_format is not None,
                client=by.client,
                priority=by.priority,
                deadline_s=by.deadline_s,
                request_id=by.request_id,
            )
            ticket = await submit(asked)
        if body.stream_format is None:
            return await whole(ticket, request, body.response_format)
        return await streamed(ticket, request, asked.seed, body.response_format, sse=body.stream_format == "sse")

    @router.post(
        "/v1/clone",
        tags=["speech"],
        response_class=Response,
        responses=audio(events=False) | errors(400, 422, 503, 504),
    )
    async def clone(form: Annotated[CloneForm, Form()], request: Request, by: By) -> Response:
        """Say `text` in the voice of `file`, once, without saving the voice."""
        await _one_of_each(request)
        clip = await _read_clip(form, settings, library.clips)
        asked = make_request(
            clip,
            form.text,
            prompt_text=form.prompt_text,
            instruct=form.instruct,
            seed=form.seed,
            speed=form.speed,
            refine=form.refine,
            pronunciations=form.pronunciations,
            default_refine=settings.refine,
            client=by.client,
            priority=by.priority,
            deadline_s=by.deadline_s,
            request_id=by.request_id,
        )
        return await whole(await submit(asked), request, form.response_format)

    @router.post(
        "/v1/voices", tags=["voices"], status_code=201, response_model=NewVoice, responses=errors(400, 422)
    )
    async def add_voice(form: Annotated[VoiceForm, Form()], request: Request) -> dict[str, Any]:
        """Save a voice. The answer's `id` is what `voice` takes in /v1/audio/speech."""
        await _one_of_each(request)
        clip = await _read_clip(form, settings, library.clips)
        saved = await run_in_threadpool(library.add, form.name, clip, form.prompt_text)
        return {**_voice(saved), "warnings": list(clip.warnings)}

    @router.get("/v1/voices", tags=["voices"], response_model=VoiceList, responses=errors())
    def list_voices() -> dict[str, Any]:
        return {"data": [_voice(saved) for saved in library.list()]}

    @router.delete(
        "/v1/voices/{voice_id}", tags=["voices"], response_model=DeletedVoice, responses=errors(404, 422)
    )
    def delete_voice(voice_id: str) -> dict[str, Any]:
        library.remove(voice_id)
        return {"id": voice_id}

    async def model() -> Model:
        return Model(id=(await control.status()).engine, created=started, owned_by="local")

    @router.get("/v1/models", tags=["engine"], responses=errors())
    async def list_models() -> ModelList:
        """The loaded engine, in the form OpenAI clients expect."""
        return ModelList(data=[await model()])

    @router.get("/v1/models/{model_id}", tags=["engine"], responses=errors(404, 422))
    async def get_model(model_id: str) -> Model:
        found = await model()
        if model_id != found.id:
            raise NotFound(f"There is no model {model_id[:80]!r}; there is {found.id}.", param="model")
        return found

    @router.get(
        "/health", tags=["engine"], response_model=Health, responses={503: {"model": Health, "description": "Not yet."}}
    )
    async def health() -> JSONResponse:
        """200 when ready to speak, or idle until the next request; 503 otherwise. The body is the same."""
        status = await control.status()
        takes = status.state == "ready" or status.loads_on_demand
        return JSONResponse(status_report(status), status_code=200 if takes else 503)

    @router.get(
        "/metrics",
        tags=["engine"],
        response_class=Response,
        responses=METRICS | errors(),
    )
    async def metrics() -> Response:
        return Response(await control.metrics(), headers={"Content-Type": METRICS_TYPE})

    @router.post("/v1/engine/restart", tags=["engine"], response_model=Change, responses=errors(400, 422, 503))
    async def restart(
        body: RestartBody | None = None,
        mode: Annotated[RestartMode | None, Query(description="As in the body.")] = None,
    ) -> dict[str, Any]:
        """End the engine's process and start another; a second call joins the first. Waiting requests keep waiting.

        What runs is stopped, or with the mode `drain` finished first.
        """
        asked = body.mode if body is not None else None
        if asked and mode and asked != mode:
            raise BadInput(f"The mode is {mode} in the address and {asked} in the body.", param="mode")
        before, after = await control.restart(asked or mode or "cancel")
        return {"before": status_report(before), "after": status_report(after)}

    @router.post("/v1/engine/unload", tags=["engine"], response_model=Change, responses=errors(503))
    async def unload() -> dict[str, Any]:
        """End the engine's process, so that its memory is given back."""
        before, after = await control.unload()
        return {"before": status_report(before), "after": status_report(after)}

    @router.post("/v1/engine/load", tags=["engine"], response_model=Loaded, responses=errors(503))
    async def load() -> dict[str, Any]:
        """Start the engine's process and wait until it is ready, or has failed."""
        return {"after": status_report(await control.load())}

    _refuse_the_rest(router)
    return router


async def _one_of_each(request: Request) -> None:
    """Of a field that comes twice FastAPI would take the last and say nothing."""
    names = [name for name, _ in (await request.form()).multi_items()]
    for name in names:
        if names.count(name) > 1:
            raise RequestValidationError([{"type": "twice", "loc": ("body", name), "msg": "Sent more than once"}])


async def _read_clip(form: CloneForm | VoiceForm, settings: Settings, clips: ClipCache) -> PromptClip:
    data = await form.file.read()
    with _fields_named(prompt="file"):
        return await run_in_threadpool(
            clips.load, data, name_hint=form.file.filename or "", max_bytes=settings.max_upload_mb * MB
        )


@contextmanager
def _fields_named(**names: str) -> Iterator[None]:
    """Errors name the fields of the inner layers; a caller must see the name of the field that was sent."""
    try:
        yield
    except AppError as error:
        error.param = names.get(error.param or "", error.param)
        raise


def _voice(saved: SavedVoice) -> dict[str, Any]:
    return asdict(saved)


def status_report(status: Status) -> dict[str, Any]:
    word = "ok" if status.state == "ready" else "idle" if status.loads_on_demand else status.state
    return {"status": word, "version": __version__, **asdict(status)}


def _refuse_the_rest(router: APIRouter) -> None:
    """404 and 405 for what looks like the API, so that such calls don't fall through to the page."""
    known = list(router.routes)
    methods = ["GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "TRACE", "QUERY"]

    @router.api_route("/v1/{rest:path}", methods=methods, include_in_schema=False)
    @router.api_route("/health", methods=methods, include_in_schema=False)
    @router.api_route("/metrics", methods=methods, include_in_schema=False)
    async def refuse(request: Request) -> Response:
        allowed: set[str] = set()
        for route in known:
            match, _ = route.matches(request.scope)
            if match is Match.PARTIAL:
                allowed |= getattr(route, "methods", None) or set()
        if allowed:
            said = ", ".join(sorted(allowed))
            raise HTTPException(405, f"{request.method} is not allowed here; allowed: {said}.", headers={"Allow": said})
        raise HTTPException(404, f"There is no {request.url.path} here; /openapi.json lists what there is.")
