"""Servers that tests need, from Debian's packages where they are not installed yet and root may install them."""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
import tempfile
from collections.abc import Callable
from pathlib import Path


def install(package: str, there: Callable[[], object]) -> str | None:
    """Make sure that ``there()`` is true, by installing the package; or say why it can't be."""
    if there():
        return None
    if os.getuid() != 0 or not shutil.which("apt-get"):
        return f"{package} is not installed: apt-get install {package}"
    with open(Path(tempfile.gettempdir()) / "tidegate-install.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if there():
            return None
        environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
        command = ["apt-get", "install", "-y", "--no-install-recommends", package]
        done = _run(command, environment)
        if done.returncode:  # the lists of packages may be old, or not there at all
            _run(["apt-get", "update"], environment)
            done = _run(command, environment)
    if done.returncode or not there():
        return f"apt-get install {package} failed: {done.stderr.strip()[-200:]}"
    return None


def _run(command: list[str], environment: dict[str, str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, capture_output=True, text=True, timeout=300, env=environment)
