"""Flame graphs of the leaderboard and of the windows: where the time goes. ``make profile`` writes them.

py-spy draws them (SVG) where it is installed and may trace its child. Otherwise a thread of the process itself samples
it, and the file is for speedscope; that one sees only Python, and only moments at which Python can switch threads.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import sysconfig
import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

Progress = Callable[[str], None]
RESULTS = Path(__file__).resolve().parent / "results"
INTERVAL_S = 0.002


def leaderboard(votes: int) -> bool:
    """Votes pushed one by one into an engine with a directory."""
    from tidegate.benchmarks.latency import peak

    return peak(votes)[1]


def windows(rows: int) -> bool:
    """A sliding aggregate over many keys, batch by batch, in an engine."""
    import tidegate
    from tidegate import App, Batch, Transaction, window
    from tidegate import windows as w

    app = App("windows")
    app.stream("values_in", "sensor INTEGER NOT NULL, value DOUBLE NOT NULL", border=True)
    compute = {"total": w.sum("value"), "mean": w.mean("value"), "peak": w.max("value")}
    last = window("values_in", count=1_000, slide=200, by="sensor", compute=compute)
    fired = 0

    @app.procedure(inputs="values_in", windows={"last": last})
    def look(txn: Transaction, values_in: Batch) -> None:
        nonlocal fired
        fired += len(txn.window("last").rows)

    with tidegate.open(app) as engine:
        engine.feed("values_in", [(i % 100, i / 7) for i in range(rows)], size=10_000)
    per_sensor = rows // 100
    return fired == 100 * max((per_sensor - 1_000) // 200 + 1, 0)


WORK: dict[str, tuple[Callable[[int], bool], int]] = {
    "leaderboard": (leaderboard, 100_000),
    "windows": (windows, 1_000_000),
}


def profile(size: int | None = None, results: Path = RESULTS, progress: Progress = lambda text: None) -> dict[str, Any]:
    """A flame graph of each; returns the files written. ``size``: votes and rows, for a quick look."""
    results.mkdir(parents=True, exist_ok=True)
    written: dict[str, Any] = {}
    for name, (_, usual) in WORK.items():
        progress(name)
        written[name] = str(_drawn(name, size or usual, results))
    return {**written, "correct": all(Path(path).stat().st_size > 0 for path in written.values())}


def _drawn(name: str, size: int, results: Path) -> Path:
    run = [sys.executable, "-m", "tidegate.benchmarks.profile", name, str(size)]
    spy = shutil.which("py-spy") or shutil.which("py-spy", path=sysconfig.get_path("scripts"))
    if spy is not None:
        path = results / f"profile-{name}.svg"
        command = [spy, "record", "--rate", "500", "--output", str(path), "--", *run]
        if subprocess.run(command, capture_output=True).returncode == 0 and path.is_file():
            return path
    path = results / f"profile-{name}.speedscope.json"
    subprocess.run([*run, str(path)], check=True)
    return path


class Sampler:
    """Looks at the main thread's stack every 2 ms."""

    def __init__(self) -> None:
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._look, args=(threading.get_ident(),), daemon=True)
        self._frames: dict[tuple[str, str], int] = {}
        self._samples: list[list[int]] = []
        self._weights: list[float] = []

    def __enter__(self) -> Sampler:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    def _look(self, main: int) -> None:
        before = time.perf_counter()
        while not self._stop.wait(INTERVAL_S):
            frame: FrameType | None = sys._current_frames().get(main)
            stack: list[int] = []
            while frame is not None:
                where = (frame.f_code.co_qualname, frame.f_code.co_filename)
                stack.append(self._frames.setdefault(where, len(self._frames)))
                frame = frame.f_back
            now = time.perf_counter()
            self._samples.append(stack[::-1])
            self._weights.append(now - before)
            before = now

    def speedscope(self, name: str) -> dict[str, Any]:
        """The samples as speedscope reads them."""
        return {
            "$schema": "https://www.speedscope.app/file-format-schema.json",
            "shared": {"frames": [{"name": function, "file": file} for function, file in self._frames]},
            "profiles": [
                {
                    "type": "sampled",
                    "name": name,
                    "unit": "seconds",
                    "startValue": 0,
                    "endValue": sum(self._weights),
                    "samples": self._samples,
                    "weights": self._weights,
                }
            ],
        }


def main(name: str, size: str, output: str | None = None) -> int:
    """Do the work, alone or under its own sampler."""
    work = WORK[name][0]
    if output is None:
        return 0 if work(int(size)) else 1
    with Sampler() as sampler:
        right = work(int(size))
    Path(output).write_text(json.dumps(sampler.speedscope(name)))
    return 0 if right else 1


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
