"""A private PostgreSQL server: on a socket in a temporary directory, removed afterwards."""

from __future__ import annotations

import getpass
import os
import pwd
import shutil
import subprocess
import tempfile
from pathlib import Path


class Unavailable(Exception):
    """Why there is no server."""


def find_programs() -> Path | None:
    """The directory with initdb and pg_ctl: on the path, or where Debian puts them."""
    found = shutil.which("pg_ctl")
    if found:
        return Path(found).parent
    known = sorted(Path("/usr/lib/postgresql").glob("*/bin/pg_ctl"), key=lambda p: float(p.parts[-3]))
    return known[-1].parent if known else None


class PostgresServer:
    """Runs as an unprivileged user, because PostgreSQL refuses root."""

    def __init__(self, more_options: str = "") -> None:
        self._more = more_options
        programs = find_programs()
        if programs is None:
            raise Unavailable("no PostgreSQL here (pg_ctl, /usr/lib/postgresql/*/bin): apt-get install postgresql")
        self._programs = programs
        self.root = Path(tempfile.mkdtemp(prefix="tidegate-pg-", dir="/tmp"))  # a socket's path must be short
        self._as_user: list[str] = []
        if os.getuid() == 0:
            user = next((u for u in ("postgres", "nobody") if _exists(u)), None)
            if user is None or not shutil.which("runuser"):
                raise Unavailable("PostgreSQL refuses to run as root, and there is no runuser or user nobody")
            shutil.chown(self.root, user)
            self._as_user = ["runuser", "-u", user, "--"]
        self._data = self.root / "data"
        self._run("initdb", "-D", self._data, "-U", "tidegate", "-A", "trust", "-N", "-E", "UTF8", "--no-locale")
        self.start()

    @property
    def url(self) -> str:
        return f"postgresql://tidegate@/postgres?host={self.root}"

    def start(self) -> None:
        options = f"-c listen_addresses='' -c unix_socket_directories={self.root} -c shared_buffers=16MB {self._more}"
        self._run("pg_ctl", "-D", self._data, "-l", self.root / "server.log", "-w", "-o", options, "start")

    def kill(self) -> None:
        """Stop as a crash does: no checkpoint, no message to clients. The next start recovers."""
        self._run("pg_ctl", "-D", self._data, "-m", "immediate", "-w", "stop")

    def remove(self) -> None:
        try:
            self.kill()
        finally:
            shutil.rmtree(self.root, ignore_errors=True)

    def _run(self, program: str, *arguments: str | Path) -> None:
        command = [*self._as_user, str(self._programs / program), *map(str, arguments)]
        null = subprocess.DEVNULL  # the server inherits these, and would keep a pipe open
        done = subprocess.run(command, stdin=null, stdout=null, stderr=null, timeout=60, cwd="/")
        if done.returncode:
            log = self.root / "server.log"
            told = log.read_text()[-500:] if log.exists() else ""
            raise Unavailable(f"{program} as {getpass.getuser()} failed with {done.returncode}: {told}")


def _exists(user: str) -> bool:
    try:
        pwd.getpwnam(user)
    except KeyError:
        return False
    return True
