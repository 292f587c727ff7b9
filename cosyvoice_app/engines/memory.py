"""Memory of this process, in bytes, as the page and `/health` show it."""

from __future__ import annotations

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
