"""Memory of the worker as the system and the GPU's driver see it, asked from outside: true also while the worker is
busy, hangs, or is gone. No torch and no CUDA here, only the driver's management library (NVML).
"""

from __future__ import annotations

import importlib
import logging
import os
import re
import threading
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from concurrent.futures import TimeoutError as NoAnswer
from typing import Any

import psutil

log = logging.getLogger(__name__)

_ANSWER_S = 1.0
"""A driver that takes longer is wedged, or busy with a GPU that fell off."""


class WorkerMemory:
    """`read` gives bytes by kind and leaves out what isn't known:

    - `rss`: of the process; 0 when there is none;
    - `device_total`, `device_used`: of the GPU that torch calls `device`, all programs together. Not known on the CPU,
      without NVIDIA's driver, of a MIG slice, or when it can't be told which GPU that is;
    - `device_process`: what the driver has for this process. Not known where the driver never listed the process: it
      has nothing there, or the driver counts processes otherwise (containers, Windows). Once it was listed, 0 is proof
      that all is given back.

    Threads may share it. A driver that doesn't answer costs a second, one thread at most, and no fault.
    """

    def __init__(self, nvml: Any = None, environ: Mapping[str, str] = os.environ) -> None:
        """`nvml` is the module pynvml or a stand-in; None: the installed one, if there is a driver for it."""
        self._nvml = nvml
        self._environ = environ
        self._lock = threading.Lock()
        self._open: bool | None = None
        self._listed: int | None = None
        self._pending: Future[dict[str, int]] | None = None

    def read(self, pid: int | None, device: str) -> dict[str, int]:
        """`pid`: the worker's, or that of the last one; `device`: torch's name of the device it uses or used."""
        memory = {"rss": rss_bytes(pid)}
        if device.startswith("cuda"):
            memory.update(self._in_time(lambda: self._of_device(pid, int(device.partition(":")[2] or 0))))
        return memory

    def close(self) -> None:
        with self._lock:
            if self._open:
                self._open = None
                self._quietly(self._nvml.nvmlShutdown)

    def _in_time(self, ask: Callable[[], dict[str, int]]) -> dict[str, int]:
        with self._lock:
            if self._open is False or (self._pending is not None and not self._pending.done()):
                return {}
            answer: Future[dict[str, int]] = Future()
            self._pending = answer

        def run() -> None:
            try:
                answer.set_result(ask())
            except Exception:
                log.exception("the GPU's memory can't be read")
                answer.set_result({})

        threading.Thread(target=run, name="nvml", daemon=True).start()
        try:
            return answer.result(_ANSWER_S)
        except NoAnswer:
            return {}

    def _of_device(self, pid: int | None, index: int) -> dict[str, int]:
        if not self._opened():
            return {}
        handle = self._gpu(index)
        if handle is None:
            return {}
        memory: dict[str, int] = {}
        whole = self._ask("nvmlDeviceGetMemoryInfo", handle)
        if whole is not None:
            memory.update(device_total=int(whole.total), device_used=int(whole.used))
        processes = self._ask("nvmlDeviceGetComputeRunningProcesses", handle)
        if processes is not None and pid is not None:
            own = [process.usedGpuMemory for process in processes if process.pid == pid]
            if own:
                self._listed = pid
            if self._listed == pid and None not in own:
                memory["device_process"] = sum(map(int, own))
        return memory

    def _opened(self) -> bool:
        """Starts NVML once. Where there is no driver, nothing is asked again."""
        if self._open is None:
            try:
                self._nvml = self._nvml or importlib.import_module("pynvml")
                self._nvml.nvmlInit()
                self._open = True
            except ImportError:
                self._open = False
            except self._nvml.NVMLError as error:
                log.debug("no GPU memory from the driver: %s", error)
                self._open = False
        return self._open

    def _gpu(self, index: int) -> Any:
        """NVML's handle of the GPU that CUDA counts as `index` in the worker, None when that can't be said for sure.

        CUDA counts what CUDA_VISIBLE_DEVICES lists. A number in it counts in CUDA's own order, the fastest first, which
        is known only of GPUs that are all alike, or with CUDA_DEVICE_ORDER=PCI_BUS_ID, and not beside MIG slices.
        """
        gpus = self._by_bus()
        sliced = [gpu for gpu in gpus if (self._ask("nvmlDeviceGetMigMode", gpu) or (0,))[0]]
        alike = len({self._ask("nvmlDeviceGetName", gpu) for gpu in gpus}) == 1
        in_order = not sliced and (alike or self._environ.get("CUDA_DEVICE_ORDER") == "PCI_BUS_ID")
        visible = self._environ.get("CUDA_VISIBLE_DEVICES")
        entry = str(index)
        if visible is not None:
            entries = [part.strip() for part in visible.split(",")]
            entry = entries[index] if index < len(entries) else ""
        found = [gpu for gpu in gpus if entry.startswith("GPU-") and self._uuid(gpu).startswith(entry.lower())]
        if re.fullmatch(r"\d+", entry) and in_order:
            found = gpus[int(entry):int(entry) + 1]
        return found[0] if len(found) == 1 and found[0] not in sliced else None

    def _by_bus(self) -> list[Any]:
        count = self._ask("nvmlDeviceGetCount") or 0
        gpus = [self._ask("nvmlDeviceGetHandleByIndex", i) for i in range(count)]
        if None in gpus:  # one that the driver can't reach: the others' places are uncertain
            return []
        places = [self._ask("nvmlDeviceGetPciInfo", gpu) for gpu in gpus]
        if None in places:
            return []
        order = sorted(range(count), key=lambda i: (places[i].domain, places[i].bus, places[i].device))
        return [gpus[i] for i in order]

    def _uuid(self, gpu: Any) -> str:
        uuid = self._ask("nvmlDeviceGetUUID", gpu) or ""
        return (uuid.decode() if isinstance(uuid, bytes) else str(uuid)).lower()

    def _ask(self, name: str, *args: Any) -> Any:
        """None where this GPU or driver has no such thing."""
        try:
            return getattr(self._nvml, name)(*args)
        except (self._nvml.NVMLError, AttributeError):
            return None

    def _quietly(self, call: Callable[[], object]) -> None:
        try:
            call()
        except self._nvml.NVMLError as error:
            log.debug("NVML does not shut down: %s", error)


def rss_bytes(pid: int | None) -> int:
    """Resident memory of a process; 0 when it is gone."""
    try:
        return 0 if pid is None else int(psutil.Process(pid).memory_info().rss)
    except psutil.Error:
        return 0
