"""Where a figure was measured."""

from __future__ import annotations

import os
import platform
import subprocess
from importlib.metadata import version
from pathlib import Path
from typing import Any


def setting() -> dict[str, Any]:
    """Machine, versions and commit, to print beside every figure."""
    return {
        "machine": f"{_processor()}, {os.cpu_count()} cores, {_memory_gb()} GB",
        "system": f"{platform.system()} {platform.release()}",
        "python": platform.python_version(),
        **{name: version(name) for name in ("tidegate", "duckdb", "pyarrow", "sqlglot")},
        "commit": _commit(),
    }


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        return next(line.split(":", 1)[1].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        return platform.processor() or platform.machine()


def _memory_gb() -> int:
    try:
        return round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30)
    except (ValueError, OSError):
        return 0


def _commit() -> str:
    here = Path(__file__).resolve().parent
    try:
        run = ["git", "-C", str(here), "describe", "--always", "--dirty", "--abbrev=10"]
        return subprocess.run(run, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return "unknown (not a checkout)"
