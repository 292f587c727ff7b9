"""The page: what is on it, what is wired to what, and how it is mounted. What the buttons do is in `desk.py`."""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import partial
from html import escape
from pathlib import Path
from typing import Any

import gradio as gr
from fastapi import FastAPI, Request, Response
from fastapi.responses import HTMLResponse

from cosyvoice_app.audio.recognise import why_not
from cosyvoice_app.engines import registry
from cosyvoice_app.errors import ConfigError
from cosyvoice_app.pipeline import SPEED_MAX, SPEED_MIN
from cosyvoice_app.serving.request import Service
from cosyvoice_app.settings import Settings
from cosyvoice_app.text.instruct import Chip, chips_for
from cosyvoice_app.types import Capabilities
from cosyvoice_app.voices.clips import ClipCache
from cosyvoice_app.web import page_parts
from cosyvoice_app.web.control import EngineControl
from cosyvoice_app.web.desk import Desk
from cosyvoice_app.web.i18n import LANGS, language_of, say, strings
from cosyvoice_app.web.leaving import surround
from cosyvoice_app.web.mcp import run_in_place
from cosyvoice_app.web.page_style import CSS_FILE, HEAD_FILE, PLAYER_FILE, theme

_ENGINE_CAN = "engine_can"
"""Key of a string that depends on the engine."""
CACHE_SWEEP_S = 3600
KEEP_UPLOADS_S = 24 * 3600

EXAMPLES = [
    ["The rain has stopped. Shall we walk home along the river?", "speak gently, slower"],
    ["今天的晚霞真好看，我们去江边走走吧。", "温柔一点"],
    ["Good news: the train is on time, and we have three minutes to spare!", "cheerful"],
    ["我的 laptop 没电了，可以借用一下你的充电器吗？", ""],
    ["She [R][EH1][D] the letter twice, then put it away.", ""],
    ["他的爱[h][ào]是唱歌。", "语速快一点"],
]

_COUNT_JS = """(text) => { const n = [...(text || "").trim()].length, most = %d;
  return `<span class="${n > most ? "over" : ""}">${n} / ${most}</span>`; }"""
_KEEP_JS = "(info) => info && info.seed ? String(info.seed) : ''"
# Adds the chip's words, or takes them out again when they are already there.
_CHIP_JS = """(text) => { const zh = (navigator.language || "").toLowerCase().startsWith("zh");
  const chip = zh ? %s : %s, parts = (text || "").split(/[,，]\\s*/).filter(Boolean);
  const rest = parts.filter((part) => part !== chip);
  return (rest.length < parts.length ? rest : [...parts, chip]).join(zh ? "，" : ", "); }"""
_WHOLE_CHIP_JS = """(text) => { const zh = (navigator.language || "").toLowerCase().startsWith("zh");
  const chip = zh ? %s : %s; return (text || "").trim() === chip ? "" : chip; }"""
# A browser may forbid a page to keep anything; the list then lasts as long as the tab.
_REMEMBER_JS = "(list) => { try { localStorage.setItem('pronunciations', list || ''); } catch (_) { return; } }"
_REMEMBER_LISTEN_JS = "(on) => { try { localStorage.setItem('listen', on ? 'on' : 'off'); } catch (_) { return; } }"
# Whoever was quicker than the page, and has already chosen, is not overruled.
_RECALL_LISTEN_JS = """() => {
  const root = document.documentElement, box = document.querySelector('#listen input');
  root.dataset.recalled = 'yes';
  try { if (localStorage.getItem('listen') === 'off') return false; } catch (_) { /* storage is closed to us */ }
  return box ? box.checked : true;
}"""
_RECALL_JS = "() => { try { return localStorage.getItem('pronunciations') || ''; } catch (_) { return ''; } }"


def accept_uploads_only(audio: gr.Audio) -> None:
    """Refuse a path of this machine, or an address to fetch, where an upload should be.

    Set on the component, not in a subclass: Gradio writes a stub file beside the source of every subclass it meets.
    """
    move = audio.async_move_resource_to_block_cache

    async def move_upload(named: str | Path | None) -> str | None:
        if named is not None:
            path = Path(named).resolve()
            if not path.is_relative_to(Path(audio.GRADIO_CACHE).resolve()) or not path.is_file():
                raise gr.Error("The clip is not an upload. Upload the file, then send what the upload returned.")
        return await move(named)

    audio.async_move_resource_to_block_cache = move_upload  # type: ignore[method-assign, assignment]


def translations(engine: Capabilities | None, chips: Sequence[Chip]) -> gr.I18n:
    tables: dict[str, dict[str, str]] = {lang: strings(lang) for lang in LANGS}
    for column, lang in enumerate(("zh", "en")):
        tables[lang] |= {f"chip_{index}": chip.label[column] for index, chip in enumerate(chips)}
    for lang in LANGS:
        tables[lang][_ENGINE_CAN] = page_parts.can_do(engine, lang) if engine else ""
        if engine:
            tables[lang]["text_placeholder"] = page_parts.languages(engine, lang)
    return gr.I18n(**tables, **dict.fromkeys(("zh-CN", "zh-TW", "zh-HK", "zh-Hans", "zh-Hant"), tables["zh"]))


def build_page(settings: Settings, desk: Desk) -> gr.Blocks:
    engine = registry.capabilities(settings)
    offered = chips_for(engine)
    i18n = translations(engine, offered)
    with gr.Blocks(
        title=i18n("title"),
        analytics_enabled=False,
        delete_cache=(CACHE_SWEEP_S, KEEP_UPLOADS_S),
    ) as page:
        with gr.Column(elem_id="head"):
            gr.HTML(i18n("title"), elem_id="title")
            gr.HTML(i18n("tagline"), elem_classes="vc-note")
            gone = {lang: escape(say(lang, "status_gone")) for lang in LANGS}
            gr.HTML(
                f'<div id="status-line" data-gone-en="{gone["en"]}" data-gone-zh="{gone["zh"]}" '
                f'data-rate-hz="{engine.rate_hz if engine else ""}"></div>',
                elem_id="status",
            )
        with gr.Row(equal_height=False):
            with gr.Column(scale=5, min_width=320):
                with gr.Column(elem_classes="vc-card"):
                    gr.Markdown(i18n("voice_heading"), elem_classes="vc-heading")
                    clip = gr.Audio(
                        label=i18n("clip"),
                        type="filepath",
                        sources=["upload", "microphone"],
                        elem_id="clip",
                        # What Gradio's trim tool writes: above every engine's need, so trimming costs nothing.
                        waveform_options=gr.WaveformOptions(sample_rate=48_000, trim_region_color="#4f46e5"),
                        buttons=[],
                    )
                    doctor = gr.HTML(i18n("doctor_idle"), elem_id="doctor", elem_classes="vc-note")
                    stretch = gr.Button(i18n("use_stretch"), size="sm", visible=False, elem_id="stretch")
                    with gr.Row(elem_id="samples"):
                        samples = {lang: gr.Button(i18n(f"sample_{lang}"), size="sm") for lang in LANGS}
                    found = gr.JSON(visible=False)
                    prompt_text = gr.Textbox(
                        "",
                        label=i18n("transcript"),
                        info=i18n("transcript_info"),
                        placeholder=i18n("transcript_placeholder"),
                        lines=2,
                        max_lines=5,
                        elem_id="transcript",
                    )
                    words_fit = gr.HTML(elem_id="words-fit")
                    recognise = gr.Button(
                        i18n("recognise"), size="sm", visible=not why_not(settings.cache), elem_id="recognise"
                    )
                    words_note = gr.HTML(elem_id="words-note")
                    refine = gr.Radio(
                        ["off", "fast", "full"],
                        value=settings.refine,
                        label=i18n("refine"),
                        info=i18n("refine_info"),
                        elem_id="refine",
                        visible=False,
                    )
                examples_place = gr.Column(elem_classes="vc-card", elem_id="examples")
            with gr.Column(scale=6, min_width=320):
                with gr.Column(elem_classes="vc-card"):
                    gr.Markdown(i18n("words_heading"), elem_classes="vc-heading")
                    text = gr.Textbox(
                        "",
                        label=i18n("text"),
                        placeholder=i18n("text_placeholder"),
                        info=i18n("text_info"),
                        lines=4,
                        max_lines=12,
                        elem_id="text",
                        autofocus=True,
                    )
                    count = gr.HTML(f"<span>0 / {settings.max_chars}</span>", elem_id="count")
                    reading = gr.HTML(elem_id="reading")
                    with gr.Accordion(i18n("own_heading"), open=False, elem_id="own-box"):
                        own = gr.Textbox(
                            "",
                            label=i18n("own"),
                            info=i18n("own_info"),
                            placeholder=i18n("own_placeholder"),
                            lines=3,
                            max_lines=12,
                            elem_id="own",
                        )
                    instruct = gr.Textbox(
                        "",
                        label=i18n("instruct"),
                        info=i18n(_ENGINE_CAN) if engine and page_parts.can_do(engine, "en") else None,
                        placeholder=i18n("instruct_placeholder"),
                        lines=1,
                        max_lines=4,
                        elem_id="instruct",
                    )
                    with gr.Row(elem_id="chips"):
                        chips = [gr.Button(i18n(f"chip_{i}"), size="sm") for i in range(len(offered))]
                    with gr.Row(elem_id="seed-row"):
                        with gr.Column(min_width=220):
                            seed = gr.Textbox(
                                "",
                                label=i18n("seed"),
                                placeholder=i18n("seed_placeholder"),
                                info=i18n("seed_info"),
                                max_lines=1,
                                elem_id="seed",
                            )
                            with gr.Row(elem_id="seed-buttons"):
                                dice = gr.Button(i18n("dice"), size="sm", elem_id="dice")
                                keep = gr.Button(i18n("keep"), size="sm", elem_id="keep")
                        speed = gr.Slider(
                            SPEED_MIN,
                            SPEED_MAX,
                            value=1.0,
                            step=0.05,
                            label=i18n("speed"),
                            info=i18n("speed_info"),
                            min_width=220,
                            elem_id="speed",
                        )
                    with gr.Row(elem_id="go"):
                        generate = gr.Button(i18n("generate"), variant="primary", size="lg", elem_id="generate")
                        stop = gr.Button(i18n("stop"), variant="stop", size="lg", elem_id="stop")
                with gr.Column(elem_classes="vc-card"):
                    gr.Markdown(i18n("result_heading"), elem_classes="vc-heading")
                    # format=None and a path: Gradio hands the very file on, neither re-encoded nor normalised.
                    audio = gr.Audio(
                        label=i18n("result"),
                        type="filepath",
                        interactive=False,
                        buttons=["download"],
                        elem_id="result",
                        waveform_options=gr.WaveformOptions(waveform_progress_color="#4f46e5"),
                    )
                    # Whole segments are played, so that the request is the same with and without it.
                    listen = gr.Checkbox(True, label=i18n("listen"), elem_id="listen", container=False)
                    summary = gr.HTML(i18n("result_idle"), elem_id="summary", elem_classes="vc-note")
                    with gr.Accordion(i18n("details"), open=False):
                        info = gr.JSON(show_label=False, elem_id="info")
        with examples_place:
            gr.Markdown(i18n("examples"), elem_classes="vc-heading")
            gr.Examples(EXAMPLES, [text, instruct], label=i18n("examples_hint"))
        with gr.Accordion(i18n("engine_heading"), open=False, elem_classes="vc-card"):
            gr.Markdown(i18n("engine_info"), elem_classes="vc-note")
            with gr.Row():
                restart = gr.Button(i18n("restart"), size="sm", elem_id="restart")
                unload = gr.Button(i18n("unload"), size="sm", elem_id="unload")
                load = gr.Button(i18n("load"), size="sm", elem_id="load")
            drain = gr.Checkbox(False, label=i18n("drain"), elem_id="drain", container=False)
            engine_note = gr.HTML(elem_id="engine-note")

        accept_uploads_only(clip)
        quiet: dict[str, Any] = {"queue": False, "show_progress": "hidden", "api_visibility": "private"}
        # The service's queue is the queue: Gradio's own never holds a visitor back.
        free: dict[str, Any] = {"concurrency_limit": None, "show_progress": "hidden"}
        generate.click(
            desk.synthesize,
            [clip, text, prompt_text, instruct, seed, speed, refine, own],
            [audio, info, summary],
            api_name="synthesize",
            validator=desk.check_fields,
            trigger_mode="once",
            **free,
        )
        stop.click(desk.stop, **quiet)
        clip.change(
            desk.check_prompt,
            [clip],
            [found, doctor, stretch],
            api_name="check_prompt",
            trigger_mode="always_last",
            **free,
        )
        stretch.click(desk.use_stretch, [clip, found], [clip], **quiet)
        recognise.click(
            desk.recognise_words,
            [clip, prompt_text],
            [prompt_text, words_note],
            trigger_mode="once",
            concurrency_limit=1,  # one clip at a time is all the recogniser does
            show_progress_on=[prompt_text],
            api_visibility="private",
        )
        clip.change(None, None, [words_note], js="() => ''", api_visibility="private")
        for lang, button in samples.items():
            button.click(partial(desk.use_sample, lang), None, [clip, prompt_text], **quiet)
        text.change(None, [text], [count], js=_COUNT_JS % settings.max_chars, api_visibility="private")
        gr.on(
            [text.change, own.change],
            desk.read,
            [text, own],
            [reading],
            api_name="read",
            trigger_mode="always_last",
            queue=False,
            show_progress="hidden",
        )
        gr.on(
            [prompt_text.change, found.change],
            desk.check_words,
            [prompt_text, found],
            [words_fit],
            trigger_mode="always_last",
            **quiet,
        )
        page.load(None, None, [own], js=_RECALL_JS, api_visibility="private")
        own.change(None, [own], None, js=_REMEMBER_JS, api_visibility="private")
        for button, chip in zip(chips, offered, strict=True):
            zh, en = map(json.dumps, chip.words)
            js = (_WHOLE_CHIP_JS if chip.whole else _CHIP_JS) % (zh, en)
            button.click(None, [instruct], [instruct], js=js, api_visibility="private")
        dice.click(desk.random_seed, None, [seed], api_name="random_seed", queue=False, show_progress="hidden")
        keep.click(None, [info], [seed], js=_KEEP_JS, api_visibility="private")
        page.load(None, None, [listen], js=_RECALL_LISTEN_JS, api_visibility="private")
        listen.change(None, [listen], None, js=_REMEMBER_LISTEN_JS, api_visibility="private")
        restart.click(desk.restart, [drain], [engine_note], api_name="restart", **free)
        unload.click(desk.unload, None, [engine_note], api_name="unload", **free)
        load.click(desk.load, None, [engine_note], api_name="load", **free)
        until_loaded = gr.Timer(2.0, active=True)
        gr.on([page.load, until_loaded.tick], desk.greet, None, [refine, until_loaded], **quiet)
        page.unload(desk.leave)
    page.i18n_instance = i18n
    return page


def mount_page(
    app: FastAPI,
    settings: Settings,
    service: Service,
    uploads: Path,
    clips: ClipCache,
    control: EngineControl,
) -> None:
    """Mount the page at `/`. Gradio serves only what it keeps for its visitors: uploads and copies of results."""
    desk = Desk(settings, service, uploads, clips, control)
    page = build_page(settings, desk)

    @app.get("/page/status", include_in_schema=False)
    async def status(request: Request) -> HTMLResponse:
        lang = language_of(request.headers.get("accept-language"))
        return HTMLResponse(page_parts.status_line(await control.status(), lang))

    @app.get("/page/stream/{token}", include_in_schema=False)
    async def stream(token: str) -> Response:
        return await desk.live.answer(token)

    gr.mount_gradio_app(
        app,
        page,
        path="/",
        server_name=settings.host,
        server_port=settings.port,
        auth=_login(settings.login),
        allowed_paths=[],
        show_error=True,
        max_file_size=f"{settings.max_upload_mb}mb",
        footer_links=["api"],
        run_history=False,
        ssr_mode=False,
        enable_monitoring=False,
        pwa=False,
        i18n=page.i18n_instance,
        mcp_server=True,
        theme=theme(),
        css_paths=CSS_FILE,
        head_paths=HEAD_FILE,
        head=f"<script>{PLAYER_FILE.read_text('utf-8')}</script>",
    )
    # Gradio checks that a caller's files are uploads only on pages it has launched itself. Without this line a call
    # that names a file of this machine instead of an upload would have it opened.
    page.has_launched = True
    run_in_place(page.mcp_server_obj)
    surround(app, page)


def _login(login: str) -> tuple[str, str] | None:
    if not login:
        return None
    user, colon, password = login.partition(":")
    if not colon or not user or not password:
        raise ConfigError("--login must be user:password.", param="login")
    return user, password
