"""Engines that are hard to end or that crash, for tests of the supervision. Named `engines_for_supervision:Class`."""

from __future__ import annotations

import atexit
import ctypes
import os
import subprocess
import sys
import threading
import time
from pathlib import Path

from engines_for_tests import QuickTone

from cosyvoice_app.engines.tone import ToneAcoustic
from cosyvoice_app.errors import AssetError
from cosyvoice_app.settings import Settings
from cosyvoice_app.types import OnProgress, Progress

FOREVER_S = 600


def hold_the_interpreter() -> None:
    """A C call that keeps the interpreter's lock: no other thread of the process runs meanwhile."""
    ctypes.PyDLL(None).sleep(FOREVER_S)


class LockedLoading(QuickTone):
    """Says that it loads, and goes into C code for good."""

    @classmethod
    def load(cls, settings: Settings, progress: OnProgress) -> LockedLoading:
        progress(Progress("loading", 0.5, "about to be stuck"))
        hold_the_interpreter()
        return cls()


class LockedWhenReady(QuickTone):
    """Half a second after it was loaded, it goes into C code for good."""

    @classmethod
    def load(cls, settings: Settings, progress: OnProgress) -> LockedWhenReady:
        threading.Timer(0.5, hold_the_interpreter).start()
        return cls()


class HangsAtExit(QuickTone):
    """Works well, but its process never gets through its own exit."""

    @classmethod
    def load(cls, settings: Settings, progress: OnProgress) -> HangsAtExit:
        atexit.register(time.sleep, FOREVER_S)
        return cls()


class FailsAndHangsAtExit(HangsAtExit):
    @classmethod
    def load(cls, settings: Settings, progress: OnProgress) -> FailsAndHangsAtExit:
        super().load(settings, progress)
        raise AssetError("The model file weights.bin is missing. Run: python -m cosyvoice_app assets fetch")


class HasAChild(QuickTone):
    """Starts a process of its own, whose number is told as loading progress."""

    @classmethod
    def load(cls, settings: Settings, progress: OnProgress) -> HasAChild:
        child = subprocess.Popen([sys.executable, "-c", f"import time; time.sleep({FOREVER_S})"], close_fds=False)
        progress(Progress("loading", 0.5, str(child.pid)))
        return cls()


class NeedsItsFile(QuickTone):
    """Loads once there is a file "weights" in the cache folder."""

    @classmethod
    def load(cls, settings: Settings, progress: OnProgress) -> NeedsItsFile:
        assert settings.cache is not None
        if not Path(settings.cache, "weights").exists():
            raise AssetError("The model file weights is missing. Run: python -m cosyvoice_app assets fetch")
        return cls()


class _Crashing(ToneAcoustic):
    def _work(self, seed: int, cancel: object) -> None:
        if seed == 9010:
            os._exit(11)
        super()._work(seed, cancel)  # type: ignore[arg-type]


class Crashes(QuickTone):
    """Seed 9010 ends its process."""

    def __init__(self) -> None:
        super().__init__()
        self.acoustic_model = _Crashing(self.sleep_s, self.step_s, self.steps)
