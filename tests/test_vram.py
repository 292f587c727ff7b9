"""Memory as the driver sees it, with a driver that is played: which GPU is meant, whose memory it is, and silence."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from types import SimpleNamespace
from typing import Any

import pytest

from cosyvoice_app.serving import vram
from cosyvoice_app.serving.vram import WorkerMemory, rss_bytes

MB = 1 << 20


class NVMLError(Exception):
    pass


class FakeNvml:
    """The part of pynvml that is used. GPUs are namespaces, and handles are the GPUs."""

    NVMLError = NVMLError

    def __init__(self, *gpus: SimpleNamespace, driver: bool = True) -> None:
        self.gpus = gpus
        self.driver = driver
        self.opened = 0
        self.stuck: threading.Event | None = None

    def nvmlInit(self) -> None:
        if not self.driver:
            raise NVMLError("Driver Not Loaded")
        self.opened += 1

    def nvmlShutdown(self) -> None:
        self.opened -= 1

    def nvmlDeviceGetCount(self) -> int:
        if self.stuck is not None:
            self.stuck.wait(30.0)
        return len(self.gpus)

    def nvmlDeviceGetHandleByIndex(self, index: int) -> SimpleNamespace:
        if self.gpus[index].lost:
            raise NVMLError("GPU is lost")
        return self.gpus[index]

    def nvmlDeviceGetName(self, gpu: SimpleNamespace) -> str:
        return str(gpu.name)

    def nvmlDeviceGetUUID(self, gpu: SimpleNamespace) -> str:
        return str(gpu.uuid)

    def nvmlDeviceGetPciInfo(self, gpu: SimpleNamespace) -> SimpleNamespace:
        return SimpleNamespace(domain=0, bus=gpu.bus, device=0)

    def nvmlDeviceGetMigMode(self, gpu: SimpleNamespace) -> list[int]:
        if gpu.mig is None:
            raise NVMLError("Not Supported")
        return [gpu.mig, gpu.mig]

    def nvmlDeviceGetMemoryInfo(self, gpu: SimpleNamespace) -> SimpleNamespace:
        return SimpleNamespace(total=gpu.total, used=gpu.used, free=gpu.total - gpu.used)

    def nvmlDeviceGetComputeRunningProcesses(self, gpu: SimpleNamespace) -> list[SimpleNamespace]:
        return [SimpleNamespace(pid=pid, usedGpuMemory=used) for pid, used in gpu.processes.items()]


def gpu(uuid: str, bus: int, *, name: str = "A100", used: int = 100 * MB, mig: int | None = None, lost: bool = False,
        **processes: int | None) -> SimpleNamespace:
    return SimpleNamespace(uuid=f"GPU-{uuid}", bus=bus, name=name, used=used, total=1000 * MB, mig=mig, lost=lost,
                           processes={int(pid.strip("p")): size for pid, size in processes.items()})


def used_of(gpus: list[SimpleNamespace], device: str = "cuda:0", **environ: str) -> int | None:
    """Which GPU was meant, told by how much of it is used."""
    return WorkerMemory(FakeNvml(*gpus), environ).read(None, device).get("device_used")


TWINS = [gpu("aaaa-1", 9, used=1), gpu("aabb-2", 4, used=2)]
"""The driver's order is not the bus's: CUDA counts the second one first."""
OTHERS = [gpu("aaaa-1", 4, used=1, name="T4"), gpu("aabb-2", 9, used=2)]


@pytest.mark.parametrize(("gpus", "device", "environ", "used"), [
    (TWINS, "cuda", {}, 2),
    (TWINS, "cuda:1", {}, 1),
    (TWINS, "cuda:2", {}, None),
    (TWINS, "cuda:0", {"CUDA_VISIBLE_DEVICES": "1"}, 1),
    (TWINS, "cuda:1", {"CUDA_VISIBLE_DEVICES": "1"}, None),
    (TWINS, "cuda:1", {"CUDA_VISIBLE_DEVICES": "1, 0"}, 2),
    (TWINS, "cuda:0", {"CUDA_VISIBLE_DEVICES": ""}, None),
    (TWINS, "cuda:0", {"CUDA_VISIBLE_DEVICES": "-1"}, None),
    (TWINS, "cuda:0", {"CUDA_VISIBLE_DEVICES": "GPU-aabb-2"}, 2),
    (TWINS, "cuda:0", {"CUDA_VISIBLE_DEVICES": "GPU-aaaa"}, 1),
    (TWINS, "cuda:0", {"CUDA_VISIBLE_DEVICES": "GPU-aa"}, None),
    (TWINS, "cuda:0", {"CUDA_VISIBLE_DEVICES": "MIG-aaaa-1"}, None),
    (OTHERS, "cuda:0", {}, None),
    (OTHERS, "cuda:0", {"CUDA_VISIBLE_DEVICES": "0"}, None),
    (OTHERS, "cuda:0", {"CUDA_DEVICE_ORDER": "PCI_BUS_ID"}, 1),
    (OTHERS, "cuda:1", {"CUDA_DEVICE_ORDER": "PCI_BUS_ID"}, 2),
    (OTHERS, "cuda:0", {"CUDA_VISIBLE_DEVICES": "GPU-aabb"}, 2),
    ([gpu("x", 1, used=5, mig=1)], "cuda:0", {}, None),
    ([gpu("x", 1, used=5, mig=0)], "cuda:0", {}, 5),
    ([gpu("x", 1, used=5, mig=0), gpu("y", 2, mig=1)], "cuda:0", {}, None),
    ([gpu("x", 1, used=5, mig=0), gpu("y", 2, mig=1)], "cuda:0", {"CUDA_VISIBLE_DEVICES": "GPU-x"}, 5),
    ([gpu("x", 1, used=5), gpu("y", 2, lost=True)], "cuda:0", {}, None),
    (TWINS, "cpu", {}, None),
])
def test_the_gpu_is_the_one_that_cuda_counts_so_or_unknown(
    gpus: list[SimpleNamespace], device: str, environ: dict[str, str], used: int | None
) -> None:
    assert used_of(gpus, device, **environ) == used


def test_the_whole_gpu_and_the_worker_s_part_of_it() -> None:
    memory = WorkerMemory(FakeNvml(gpu("x", 1, p41=30 * MB, p42=20 * MB)), {}).read(42, "cuda:0")
    assert memory == {"rss": rss_bytes(42), "device_total": 1000 * MB, "device_used": 100 * MB,
                      "device_process": 20 * MB}


def test_nothing_left_is_proof_only_of_a_process_that_was_seen() -> None:
    card = gpu("x", 1, p42=20 * MB)
    memory = WorkerMemory(FakeNvml(card), {})
    assert "device_process" not in memory.read(77, "cuda:0"), "in a container the driver's numbers are other ones"
    assert memory.read(42, "cuda:0")["device_process"] == 20 * MB
    card.processes.clear()
    assert memory.read(42, "cuda:0")["device_process"] == 0
    assert "device_process" not in memory.read(43, "cuda:0")


def test_a_driver_that_does_not_count_by_process_says_nothing_of_it() -> None:
    memory = WorkerMemory(FakeNvml(gpu("x", 1, p42=None)), {}).read(42, "cuda:0")
    assert "device_process" not in memory and memory["device_used"] == 100 * MB


def test_without_a_driver_there_is_silence(caplog: pytest.LogCaptureFixture) -> None:
    nvml = FakeNvml(gpu("x", 1), driver=False)
    memory = WorkerMemory(nvml, {})
    assert memory.read(None, "cuda:0") == {"rss": 0}
    nvml.driver = True
    assert memory.read(None, "cuda:0") == {"rss": 0}, "asked once, not at each look"
    assert [record for record in caplog.records if record.levelname != "DEBUG"] == []


def test_here_it_works_with_or_without_a_gpu() -> None:
    memory = WorkerMemory()
    assert memory.read(os.getpid(), "cpu")["rss"] > 10 * MB
    assert memory.read(os.getpid(), "cuda:0")["rss"] > 10 * MB
    memory.close()


def test_a_wedged_driver_holds_up_one_thread_and_nobody_for_long(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(vram, "_ANSWER_S", 0.05)
    nvml = FakeNvml(gpu("x", 1))
    memory = WorkerMemory(nvml, {})
    nvml.stuck = threading.Event()
    threads = threading.active_count()
    for _ in range(20):
        assert memory.read(os.getpid(), "cuda:0").keys() == {"rss"}
    assert threading.active_count() == threads + 1
    nvml.stuck.set()
    end = time.monotonic() + 10.0
    while "device_used" not in memory.read(None, "cuda:0"):
        assert time.monotonic() < end, "it answers again"
    memory.close()
    assert nvml.opened == 0


def test_an_error_of_our_own_is_logged_and_costs_nothing(caplog: pytest.LogCaptureFixture) -> None:
    broken: Any = FakeNvml(gpu("x", 1))
    broken.nvmlDeviceGetCount = lambda: "many"
    assert WorkerMemory(broken, {}).read(None, "cuda:0") == {"rss": 0}
    assert "can't be read" in caplog.text


def test_the_memory_of_a_process_that_ended_is_none() -> None:
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    assert rss_bytes(child.pid) > 0
    child.kill()
    child.wait()
    assert child.stdin is not None
    child.stdin.close()
    assert rss_bytes(child.pid) == rss_bytes(None) == 0
