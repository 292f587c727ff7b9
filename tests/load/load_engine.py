"""An engine for load tests, known to the worker as `load_engine:LoadTone` once this folder is on PYTHONPATH."""

from __future__ import annotations

from cosyvoice_app.engines.tone import ToneEngine


class LoadTone(ToneEngine):
    """The tone engine with short waits; seed 9010 takes 10 s in 0.05 s steps."""

    sleep_s = 0.02
    step_s = 0.05
    steps = 200
