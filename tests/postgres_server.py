"""A PostgreSQL server of the tests' own: on a socket in a temporary directory, removed after."""

from __future__ import annotations

import fcntl
import getpass
import os
import pwd
import shutil
import subprocess
import tempfile
from pathlib import Path


class Unavailable(Exception):
    """Why there is no server; the tests are skipped with it."""


def find_programs() -> Path:
    """The directory with initdb and pg_ctl: on the path, where Debian puts them, or installed now."""
    for _ in range(2):
        found = shutil.which("pg_ctl")
        if found:
            return Path(found).parent
        known = sorted(Path("/usr/lib/postgresql").glob("*/bin/pg_ctl"), key=lambda p: float(p.parts[-3]))
        if known:
            return known[-1].parent
        install()
    raise Unavailable("PostgreSQL was installed, but pg_ctl is not under /usr/lib/postgresql")


def install() -> None:
    if os.getuid() != 0 or not shutil.which("apt-get"):
        raise Unavailable("no PostgreSQL here (pg_ctl, /usr/lib/postgresql/*/bin): apt-get install postgresql")
    with open(Path(tempfile.gettempdir()) / "tidegate-postgres-install.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if any(Path("/usr/lib/postgresql").glob("*/bin/pg_ctl")):
            return
        environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
        command = ["apt-get", "install", "-y", "--no-install-recommends", "postgresql"]
        done = subprocess.run(command, capture_output=True, text=True, timeout=300, env=environment)
        if done.returncode:
            raise Unavailable(f"apt-get install postgresql failed: {done.stderr.strip()[-200:]}")


class PostgresServer:
    """Runs as an unprivileged user, because PostgreSQL refuses root."""

    def __init__(self) -> None:
        self._programs = find_programs()
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
        options = f"-c listen_addresses='' -c unix_socket_directories={self.root} -c shared_buffers=16MB"
        self._run("pg_ctl", "-D", self._data, "-l", self.root / "server.log", "-w", "-o", options, "start")

    def kill(self) -> None:
        """Stop as a crash does: no checkpoint, no word to clients. The next start recovers."""
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
