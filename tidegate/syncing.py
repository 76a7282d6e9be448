"""Making files durable."""

from __future__ import annotations

import os
from pathlib import Path


def sync_file(path: Path) -> None:
    """Returns when the contents of a file are on disk or, of a directory, the creations, renames and removals in it."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
