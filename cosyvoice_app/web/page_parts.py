"""The pieces of HTML the server writes: verdict, progress, result, errors, status. All text is escaped here."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from html import escape
from pathlib import Path
from typing import Any, get_args

from cosyvoice_app.errors import AppError
from cosyvoice_app.serving.request import Queued, Status, SynthesisResult, Working
from cosyvoice_app.text.frontend import FrontEnd
from cosyvoice_app.text.language import NATIVE_LANGUAGES
from cosyvoice_app.types import Capabilities, InstructKind, Said
from cosyvoice_app.web.i18n import Lang, error_heading, has, say
from cosyvoice_app.web.picture import picture_data_uri
from cosyvoice_app.web.remarks import remark

MB = 1_000_000
_TAG = r"(?:\[[^\[\]]+\])+|</?[a-z]+>"


def fact(text: str, value: str = "", *, wide: bool = False) -> str:
    inner = f"{escape(text)} <b>{escape(value)}</b>" if value else escape(text)
    return f'<span class="vc-fact{" wide" if wide else ""}">{inner}</span>'


def bullets(items: Iterable[str]) -> str:
    rows = "".join(f"<li>{escape(item)}</li>" for item in items)
    return f'<ul class="vc-list">{rows}</ul>' if rows else ""


def box(kind: str, heading: str, text: str = "") -> str:
    paragraph = f"<p>{escape(text)}</p>" if text else ""
    return f'<div class="vc-box {kind}"><b>{escape(heading)}</b>{paragraph}</div>'


def note(text: str) -> str:
    return f'<div class="vc-note">{escape(text)}</div>'


def doctor(report: dict[str, Any] | None, lang: Lang) -> str:
    """The verdict on a clip. Findings are shown in the page's language where their code is known."""
    if report is None:
        return note(say(lang, "doctor_idle"))
    facts = []
    if "duration_s" in report:
        facts = [
            fact(f"{report['duration_s']:.1f} s"),
            fact(f"{report['rate_hz'] / 1000:g} kHz"),
            fact(f"{report['rms_dbfs']:.0f} dBFS"),
            fact(f"SNR {report['snr_db']:.0f} dB"),
        ]
    if not report["ok"]:
        key, colour = "doctor_refused", "vc-bad"
    elif report["warnings"]:
        key, colour = "doctor_usable", "vc-warn"
    else:
        key, colour = "doctor_good", "vc-good"
    line = (
        f'<div class="vc-facts"><span class="vc-verdict {colour}">{escape(say(lang, key))}</span>{"".join(facts)}</div>'
    )
    said = [report["error"]] if report["error"] else []
    for code, message in zip(report["findings"], report["warnings"], strict=True):
        said.append(say(lang, f"finding_{code}") if lang != "en" and has(f"finding_{code}") else message)
    return line + bullets(said)


def reading(front: FrontEnd, said: Sequence[Sequence[Said]], notices: Iterable[str], typed: str, lang: Lang) -> str:
    """What will be spoken, part by part, with tags, pauses and readings set off; and what won't be.

    `said` is each segment in stretches with their readings.
    """
    rows = []
    for number, segment in enumerate(front.segments, 1):
        last = number == len(front.segments)
        inside = "".join(map(_stretch, said[number - 1]))
        if not last:
            seconds = segment.pause_after_ms / 1000
            inside += f' <span class="vc-pause">{escape(say(lang, "reading_pause", seconds=seconds))}</span>'
        title = escape(say(lang, "reading_segment", number=number))
        rows.append(f'<li title="{title}">{inside}</li>')
    told = any(stretch.reading for stretches in said for stretch in stretches)
    same = not told and len(rows) == 1 and front.segments[0].text == " ".join(typed.split())
    body = escape(say(lang, "reading_as_typed")) if same else f'<ol class="vc-reading">{"".join(rows)}</ol>'
    heading = f"<b>{escape(say(lang, 'reading_heading'))}</b> "
    return f'<div class="vc-note">{heading}{body}{_notes((*front.warnings, *notices), lang)}</div>'


def _stretch(stretch: Said) -> str:
    written = escape(stretch.text)
    if stretch.reading:
        return f"<ruby>{written}<rp>(</rp><rt>{escape(stretch.reading)}</rt><rp>)</rp></ruby>"
    return f'<span class="vc-tag">{written}</span>' if re.fullmatch(_TAG, stretch.text) else written


def _notes(items: Iterable[str], lang: Lang) -> str:
    rows = "".join(f"<li>{escape(remark(item, lang))}</li>" for item in items)
    return f'<ul class="vc-list vc-warn">{rows}</ul>' if rows else ""


def remarks(items: Iterable[str], lang: Lang) -> str:
    rows = _notes(items, lang)
    return f'<div class="vc-note">{rows}</div>' if rows else ""


def can_do(engine: Capabilities, lang: Lang) -> str:
    """Which kinds of instruct the engine follows and which it doesn't."""
    if engine.instruct == ("free",):
        return ""
    kinds = get_args(InstructKind)
    between = "、" if lang == "zh" else ", "
    can, cannot = (
        between.join(say(lang, f"kind_{kind}") for kind in kinds if (kind in engine.instruct) is does)
        for does in (True, False)
    )
    return say(lang, "instruct_can", can=can) + (say(lang, "instruct_cannot", cannot=cannot) if cannot else "")


def languages(engine: Capabilities, lang: Lang) -> str:
    """What the text may be in, for the box where it is typed."""
    if set(engine.languages) == set(NATIVE_LANGUAGES):
        return say(lang, "text_placeholder")
    *names, last = (say(lang, f"language_{code}") if has(f"language_{code}") else code for code in engine.languages)
    return say(lang, "text_in", names=("、" if lang == "zh" else ", ").join(names), last=last) if names else last


def progress(event: Queued | Working | None, lang: Lang, stream: str = "") -> str:
    """While a request runs. `vc-running` is what the style sheet looks at to show Stop, and `stream` the name under
    which page_player.js fetches the audio."""
    fraction: float | None = None
    if event is None:
        text = say(lang, "sent")
    elif isinstance(event, Queued):
        text = say(lang, "queued_next") if event.position == 0 else say(lang, "queued", position=event.position)
    else:
        key = f"stage_{event.progress.stage}"
        text = say(lang, key if has(key) else "stage_other")
        fraction = event.progress.fraction
        if event.progress.message:
            text += f" · {event.progress.message}"
    width = f"{100 * min(max(fraction or 0.0, 0.0), 1.0):.0f}"
    unknown = "" if fraction else " unknown"  # a bar at 0 looks stuck, so it moves until there is progress to show
    named = f' data-stream="{escape(stream)}"' if stream else ""
    measured = f' aria-valuenow="{width}"' if fraction else ""
    return (
        f'<div class="vc-running"{named}><div class="vc-note" role="status">{escape(text)}</div>'
        f'<div class="vc-bar{unknown}" role="progressbar" aria-label="{escape(say(lang, "progress"))}"{measured}>'
        f'<i style="width:{width}%"></i></div></div>'
    )


def result(made: SynthesisResult, outputs: Path, lang: Lang) -> str:
    timings = made.timings
    picture = f'<img class="vc-picture" alt="{escape(say(lang, "picture_alt"))}" src="{picture_data_uri(made.audio)}">'
    facts = [fact(say(lang, "done_in", duration=made.audio.duration_s, total=timings.get("total_s", 0.0)))]
    facts.append(fact(say(lang, "fact_seed"), str(made.seed)))
    if "rtf" in timings:
        facts.append(fact(say(lang, "fact_rtf"), f"{timings['rtf']:.2f}"))
    facts.append(fact(say(lang, "fact_engine"), f"{made.engine} · {made.device} · {made.precision}"))
    voice = (
        say(lang, "voice_cached")
        if made.voice_cached
        else say(lang, "voice_fitted", seconds=timings.get("voice_s", 0.0))
    )
    facts.append(fact(say(lang, "fact_voice"), voice))
    if len(made.segments) > 1:
        facts.append(fact(say(lang, "fact_segments"), str(len(made.segments))))
    if made.path is not None:
        facts.append(fact(say(lang, "fact_saved"), str(outputs / made.path.name), wide=True))
    html = f'{picture}<div class="vc-facts">{"".join(facts)}</div>'
    if made.warnings:
        html += (
            f'<div class="vc-box warn" style="margin-top:10px"><b>{escape(say(lang, "warnings"))}</b>'
            f"{bullets(remark(warning, lang) for warning in made.warnings)}</div>"
        )
    return html + f'<div class="vc-note">{bullets(made.notes)}</div>'


def failure(error: AppError, lang: Lang) -> str:
    return box("bad", error_heading(lang, error.type), remark(error.message, lang))


def status_line(status: Status, lang: Lang) -> str:
    parts = [f'<span class="vc-dot {escape(status.state)}"></span><b>{escape(say(lang, f"state_{status.state}"))}</b>']
    facts = [part for part in (status.engine, status.device, status.precision) if part]
    parts.append(f'<span title="{escape(status.device_reason)}">{escape(" · ".join(facts))}</span>')
    if status.running or status.queue:
        parts.append(f"<span>{escape(say(lang, 'status_queue', running=status.running, queue=status.queue))}</span>")
    if status.memory:
        parts.append(f"<span>{escape(memory(status, lang))}</span>")
    if status.detail and status.state != "ready":
        parts.append(f"<span>{escape(status.detail)}</span>")
    parts += [f'<span class="vc-warn">{escape(warning)}</span>' for warning in status.warnings]
    return f'<span class="vc-status">{"".join(parts)}</span>'


def memory(status: Status, lang: Lang) -> str:
    """The worker's memory, from its live process: main memory, and the GPU's when it holds any."""
    main, device = status.memory.get("rss", 0), status.memory.get("device_reserved", 0)
    if not main:
        return say(lang, "memory_none")
    if device:
        return say(lang, "memory_device", mb=main / MB, device=device / MB)
    return say(lang, "memory_main", mb=main / MB)


def change(before: Status | None, after: Status, lang: Lang) -> str:
    state = say(lang, f"state_{after.state}")
    if before is None:
        text = say(lang, "memory_now", state=state, after=memory(after, lang))
    else:
        text = say(lang, "memory_change", state=state, before=memory(before, lang), after=memory(after, lang))
    return box("bad", text, after.detail) if after.state == "failed" else note(text)
