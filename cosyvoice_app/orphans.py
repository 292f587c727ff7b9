"""A process that serves another one must not outlive it. Light on purpose: called before anything heavy is imported."""

from __future__ import annotations

import ctypes
import os
import signal
import sys

_PR_SET_PDEATHSIG = 1
"""From linux/prctl.h."""


def end_with_parent(parent_pid: int) -> bool:
    """Have the kernel kill this process (SIGKILL) when its parent ends, whatever this process is doing: also while C
    code holds the interpreter's lock, and while it is stopped. Ends it now if the parent is gone already.

    Linux only; False elsewhere or where the system refuses, and the caller must watch its parent itself. The kernel
    means the parent's *thread*: whoever starts this process must do so from a thread that lives as long.
    """
    if sys.platform != "linux":
        return False
    if ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0) != 0:
        return False
    if os.getppid() != parent_pid:  # it ended before the call above, so that no signal will come
        os._exit(0)
    return True
