"""What a killed process left behind half written."""

from __future__ import annotations

import contextlib
import shutil
import time
from pathlib import Path

STALE_S = 3600.0
"""Nothing is written for so long: younger ones may belong to a living process."""


def remove_leftovers(folder: Path, pattern: str) -> None:
    """Remove files and folders in `folder` that match `pattern` and were last changed an hour ago or longer. What
    can't be removed stays."""
    for path in folder.glob(pattern):
        with contextlib.suppress(OSError):
            if time.time() - path.lstat().st_mtime < STALE_S:
                continue
            if path.is_dir() and not path.is_symlink():
                shutil.rmtree(path)
            else:
                path.unlink()
