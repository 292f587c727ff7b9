"""Memory of this process, in bytes, as the page and `/health` show it."""

from __future__ import annotations

import ctypes
import gc
import sys

import psutil


def read_memory(device: str = "cpu") -> dict[str, int]:
    """`rss` of the process; `device_allocated` and `device_reserved` of torch's allocator on `device` (0 on the CPU).

    Never imports torch: an engine that uses the device has done so.
    """
    memory = {"rss": int(psutil.Process().memory_info().rss), "device_allocated": 0, "device_reserved": 0}
    torch = sys.modules.get("torch")
    if torch is not None and device.startswith("cuda"):
        memory["device_allocated"] = int(torch.cuda.memory_allocated(device))
        memory["device_reserved"] = int(torch.cuda.memory_reserved(device))
    return memory


def give_back_freed() -> None:
    """Return freed memory to the system. glibc keeps what thousands of small blocks left free, some hundred MB after a
    model was loaded; other systems return it by themselves."""
    gc.collect()
    if sys.platform == "linux":
        trim = getattr(ctypes.CDLL(None), "malloc_trim", None)  # glibc has it, musl hasn't
        if trim is not None:
            trim(0)
