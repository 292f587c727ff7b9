"""Engines that misbehave on purpose, for tests of the service. The worker knows them as `engines_for_tests:Class`."""

from __future__ import annotations

import os
import time
from dataclasses import replace
from pathlib import Path

from cosyvoice_app.engines.capabilities import TONE
from cosyvoice_app.engines.tone import ToneAcoustic, ToneEngine
from cosyvoice_app.errors import AssetError
from cosyvoice_app.settings import Settings
from cosyvoice_app.types import OnProgress, Progress


class QuickTone(ToneEngine):
    """The tone engine without its waits; seed 9010 takes 2 s in 0.05 s steps."""

    sleep_s = 0.02
    step_s = 0.05
    steps = 40


class SlowSentence(QuickTone):
    """Seed 9010 takes 10 minutes, unless it is cancelled."""

    steps = 12_000


class NotAnEngine:
    """Has none of the parts."""


class SlowToLoad(QuickTone):
    """Takes a second to load and half a second to warm up."""

    @classmethod
    def load(cls, settings: Settings, progress: OnProgress) -> SlowToLoad:
        progress(Progress("loading", 0.5, "half way"))
        time.sleep(1.0)
        return cls()

    def warm_up(self) -> None:
        time.sleep(0.5)


class TakesForever(QuickTone):
    @classmethod
    def load(cls, settings: Settings, progress: OnProgress) -> TakesForever:
        time.sleep(600.0)
        return cls()


class WithoutFiles(QuickTone):
    @classmethod
    def load(cls, settings: Settings, progress: OnProgress) -> WithoutFiles:
        raise AssetError("The model file weights.bin is missing. Run: python -m cosyvoice_app assets fetch")


class DiesWhileLoading(QuickTone):
    """Ends its process while loading; counts its attempts in a file of the cache folder."""

    @classmethod
    def load(cls, settings: Settings, progress: OnProgress) -> DiesWhileLoading:
        assert settings.cache is not None
        with Path(settings.cache, "attempts").open("a") as file:
            file.write("x")
        os._exit(7)


class _Deaf(ToneAcoustic):
    """Never looks at the cancel token and sleeps through seed 9010."""

    def _work(self, seed: int, cancel: object) -> None:
        time.sleep(60.0 if seed == 9010 else self._sleep_s)


class DeafTone(QuickTone):
    def __init__(self) -> None:
        super().__init__()
        self.acoustic_model = _Deaf(self.sleep_s, self.step_s, self.steps)


class DeafLane(DeafTone):
    """As DeafTone, with its calls joined by the lane: while one sleeps the others wait."""

    capabilities = replace(TONE, concurrent=False)


class _DeviceLost(_Deaf):
    def _work(self, seed: int, cancel: object) -> None:
        if seed == 9010:
            raise RuntimeError("CUDA error: device-side assert triggered")
        time.sleep(60.0 if seed == 9011 else self._sleep_s)


class LosesItsDevice(QuickTone):
    """Seed 9010 breaks the device; seed 9011 sleeps on it for a minute."""

    def __init__(self) -> None:
        super().__init__()
        self.acoustic_model = _DeviceLost(self.sleep_s, self.step_s, self.steps)
