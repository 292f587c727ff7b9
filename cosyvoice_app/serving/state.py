"""The service's true state in words: where the engine runs, and what is not as it was asked for."""

from __future__ import annotations

from collections.abc import Mapping

from cosyvoice_app.pipeline import EngineFacts
from cosyvoice_app.serving.messages import Report
from cosyvoice_app.serving.request import Status
from cosyvoice_app.serving.supervisor import Supervisor
from cosyvoice_app.settings import Settings


def describe(engine: Supervisor, settings: Settings, answer: Report | None, last: Report | None,
             memory: Mapping[str, int], *, silent_s: float, queue: int, running: int, draining: bool,
             uptime_s: float) -> Status:
    """`answer` is the worker's own account of itself, None when it gave none within `silent_s`; then its `last` one
    counts. `memory` is what the system says of it. Called with the service's lock held."""
    facts = engine.facts
    warnings = device_warnings(settings.device, facts, answer)
    if answer is None and engine.process is not None:
        warnings += (f"The engine process did not answer within {silent_s:g} s; "
                     "its devices are the last it reported.",)
        answer = last
    device = {kind: value for kind, value in answer.memory.items() if kind != "rss"} if answer else {}
    return Status(
        state=engine.state, detail=f"finishing {running} before the restart" if draining else engine.detail,
        engine=facts.engine if facts else settings.engine,
        device=facts.device if facts else "",
        device_reason=facts.device_reason if facts else "",
        precision=facts.precision if facts else "",
        model_hash=facts.model_hash if facts else "",
        components=answer.components if answer else {},
        memory={"rss": 0, "device_allocated": 0, "device_reserved": 0, **device, **memory},
        capabilities=facts.capabilities if facts else None,
        queue=queue, running=running, uptime_s=uptime_s,
        worker_pid=engine.process.pid if engine.process else None, warnings=warnings,
        loads_on_demand=engine.loads_on_demand,
    )


def device_warnings(asked: str, facts: EngineFacts | None, report: Report | None) -> tuple[str, ...]:
    """Say it when a component does not run where the engine does, or the engine not where it was asked to.

    A style encoder reads words and may do so on the CPU without a loss.
    """
    if facts is None:
        return ()
    warnings = []
    if asked != "auto" and not facts.device.startswith(asked):
        warnings.append(f"--device {asked} was asked for, but the engine runs on {facts.device}: "
                        f"{facts.device_reason}.")
    elsewhere = {name: place for name, place in (report.components if report else {}).items()
                 if place.partition(":")[0] != facts.device.partition(":")[0] and name != "style_encoder"}
    if elsewhere:
        places = ", ".join(f"{name} on {place}" for name, place in elsewhere.items())
        warnings.append(f"The engine runs on {facts.device}, but {places}.")
    return tuple(warnings)
