"""``tidegate serve --reload``: the server in a process of its own, started again when a file of the app changes.

It is stopped with SIGTERM, so it closes cleanly: the changed code begins where the code before it ended.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from importlib.util import find_spec
from pathlib import Path

from tidegate.cli.printing import told

LOOK_S = 0.4  # between two looks at the files
SUFFIXES = (".py", ".sql")
ELSEWHERE = {"__pycache__", "node_modules", "site-packages"}


def serve_again_and_again(where: str, arguments: list[str]) -> None:
    """Serve with these arguments until interrupted, or until somebody asks this process to stop."""
    folder = folder_of(where)
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(0))
    told.print(f"[dim]watching {folder} for changes[/]", highlight=False)
    while True:
        before = times(folder)
        server = subprocess.Popen([sys.executable, "-m", "tidegate", *arguments])
        try:
            changed = _changed(folder, before, server)
        finally:
            stop(server)
        told.print(f"[dim]{changed} has changed: starting again[/]", highlight=False)


def _changed(folder: Path, before: dict[Path, int], server: subprocess.Popen[bytes]) -> str:
    """The file that has changed, once one has. A server that could not start waits for a change, too."""
    ended = False
    while (now := times(folder)) == before:
        if not ended and server.poll() is not None:
            ended = True
            told.print("[yellow]the server has ended; it starts again when a file changes[/]")
        time.sleep(LOOK_S)
    path = next(path for path in (now.keys() | before.keys()) if now.get(path) != before.get(path))
    return str(path.relative_to(folder))


def stop(server: subprocess.Popen[bytes]) -> None:
    """Let it close cleanly."""
    if server.poll() is None:
        server.terminate()
    while True:
        try:
            server.wait()
            return
        except KeyboardInterrupt:  # the terminal interrupts both; the server is closing
            continue


def folder_of(where: str) -> Path:
    """The folder whose files make up the app."""
    place = where.partition(":")[0]
    if place.endswith(".py"):
        return Path(place).resolve().parent
    sys.path.insert(0, str(Path.cwd()))
    spec = find_spec(place.partition(".")[0])
    return Path.cwd() if spec is None or spec.origin is None else Path(spec.origin).resolve().parent


def times(folder: Path) -> dict[Path, int]:
    """When each file was changed last."""
    found = {}
    for place, folders, files in os.walk(folder):
        folders[:] = [name for name in folders if not name.startswith(".") and name not in ELSEWHERE]
        for name in files:
            if name.endswith(SUFFIXES) and not name.startswith("."):
                path = Path(place, name)
                try:
                    found[path] = path.stat().st_mtime_ns
                except OSError:  # gone, or being replaced
                    continue
    return found
