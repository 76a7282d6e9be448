"""A real server process on a free port."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx

import tidegate
from tidegate.client import Client

HERE = Path(__file__).parent


@contextmanager
def killed(process: subprocess.Popen[str]) -> Iterator[None]:
    """Whatever happens inside, the process is gone afterwards; Popen alone would wait for it."""
    try:
        yield
    finally:
        process.kill()


class Server:
    """One server process."""

    def __init__(self, log: Path, **asked: Any) -> None:
        self._log = log
        self._asked = asked
        self.start()

    def start(self, port: int = 0) -> None:
        """Start it (again, on the same port and directory)."""
        asked = {**self._asked, "settings": {**self._asked.get("settings", {}), **({"port": port} if port else {})}}
        with self._log.open("ab") as log:
            self.process = subprocess.Popen(
                [sys.executable, str(HERE / "serving.py"), json.dumps(asked)],
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
            )
        assert self.process.stdout is not None
        self.url = self.process.stdout.readline().strip()
        assert self.url, self.log
        self.port = int(self.url.rpartition(":")[2])

    @property
    def log(self) -> str:
        return self._log.read_text()

    def assert_no_errors(self) -> None:
        """Nothing unexpected was logged."""
        errors = [line for line in self.log.splitlines() if '"level":"error"' in line]
        assert not errors, errors

    def client(self, token: str | None = None, **options: Any) -> Client:
        return tidegate.connect(self.url, token, **{"retry_s": 5.0, **options})

    def http(self, **options: Any) -> httpx.Client:
        return httpx.Client(base_url=self.url, **{"timeout": 30, **options})

    def kill(self) -> None:
        """kill -9."""
        self.process.kill()
        self.process.wait()
        assert self.process.stdout is not None
        self.process.stdout.close()

    def stop(self) -> int:
        """Ask it to stop; returns its exit code."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        try:
            return self.process.wait(timeout=30)
        finally:
            self.process.kill()
            assert self.process.stdout is not None
            self.process.stdout.close()
