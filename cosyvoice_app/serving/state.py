"""The service's true state in words: where the engine runs, and what is not as it was asked for."""

from __future__ import annotations

from cosyvoice_app.pipeline import EngineFacts
from cosyvoice_app.serving.messages import Report


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
