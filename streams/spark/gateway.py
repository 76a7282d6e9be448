"""Starting the driver's JVM, and connecting to it."""

from __future__ import annotations

import os
import struct
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tidegate.errors import SparkUnavailable
from tidegate.mutex import Flag
from tidegate.streams.spark.java import Java, flags

STARTED_WITHIN_S = 90.0
# Spark logs every failed task as an error; what matters is raised anyway. That a job waits for workers is only logged
LOG = """rootLogger.level = error
rootLogger.appenderRef.stderr.ref = stderr
appender.stderr.type = Console
appender.stderr.name = stderr
appender.stderr.target = SYSTEM_ERR
appender.stderr.layout.type = PatternLayout
logger.gateway.name = org.apache.spark.api.python.PythonGatewayServer
logger.gateway.level = error
logger.executor.name = org.apache.spark.executor.Executor
logger.executor.level = off
logger.tasks.name = org.apache.spark.scheduler.TaskSetManager
logger.tasks.level = off
logger.scheduler.name = org.apache.spark.scheduler.TaskSchedulerImpl
logger.scheduler.level = warn
appender.stderr.layout.pattern = %d{HH:mm:ss} spark %p %c{1}: %m%n
"""


def start_gateway(
    java: Java, folder: Path, memory: str, quick: bool, environment: Mapping[str, str], settings: Mapping[str, str]
) -> Any:
    """A JVM with Spark in it. It reads a pipe that only this process holds, and so ends when this process does.

    ``folder``: for its temporary files. ``settings``: those of the session; those that name jars must be known when the
    JVM starts.
    """
    jars = [
        word
        for name, value in settings.items()
        if name.startswith("spark.jars")
        for word in ("--conf", f"{name}={value}")
    ]
    told = folder / "gateway"
    (folder / "log4j2.properties").write_text(LOG)
    process = subprocess.Popen(
        [
            java.command, "-cp", f"{folder}{os.pathsep}{spark_home()}/jars/*", *flags(memory, quick, folder),
            f"-Dlog4j2.configurationFile={folder / 'log4j2.properties'}",
            "org.apache.spark.deploy.SparkSubmit", *jars, "pyspark-shell",
        ],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        env={**os.environ, **environment, "JAVA_HOME": str(java.home), "_PYSPARK_DRIVER_CONN_INFO_PATH": str(told)},
        process_group=0,  # Ctrl-C is for the program, which decides when Spark ends
    )  # fmt: skip
    port, secret = _address(process, told, java)
    from pyspark.java_gateway import launch_gateway

    with _setting(PYSPARK_GATEWAY_PORT=str(port), PYSPARK_GATEWAY_SECRET=secret):
        gateway: Any = launch_gateway()  # type: ignore[no-untyped-call]
    gateway.proc = process
    return gateway


def spark_home() -> Path:
    """Where Spark's jars are: SPARK_HOME, else inside pyspark itself."""
    from pyspark.find_spark_home import _find_spark_home

    return Path(_find_spark_home())


def _address(process: subprocess.Popen[bytes], told: Path, java: Java) -> tuple[int, str]:
    """Port and secret, which the JVM writes into a file atomically when it is ready."""
    pause = Flag()
    for _ in range(int(STARTED_WITHIN_S / 0.02)):
        if told.exists():
            break
        if process.poll() is not None:
            raise SparkUnavailable(
                f"Spark's JVM ended with exit code {process.returncode} before it was ready; its own message is above. "
                f"It was started with {java.command} (Java {java.version})",
                exit_code=process.returncode,
            )
        pause.wait(0.02)
    else:
        process.kill()
        raise SparkUnavailable(
            f"Spark's JVM was not ready after {STARTED_WITHIN_S:.0f} s and was stopped; is the machine short of "
            f"memory or cores? It was started with {java.command} (Java {java.version})"
        )
    body = told.read_bytes()
    (port,) = struct.unpack_from("!i", body)
    (length,) = struct.unpack_from("!i", body, 4)
    return port, body[8 : 8 + length].decode()


_environment = threading.Lock()


@contextmanager
def _setting(**values: str) -> Iterator[None]:
    """pyspark reads some settings only from the environment, which is restored afterwards."""
    with _environment:
        before = {name: os.environ.get(name) for name in values}
        os.environ.update(values)
        try:
            yield
        finally:
            for name, value in before.items():
                if value is None:
                    del os.environ[name]
                else:
                    os.environ[name] = value


def worker_python() -> Any:
    """A context in which sessions use this interpreter for Python workers, unless the user has named another one."""
    return _setting(PYSPARK_PYTHON=os.environ.get("PYSPARK_PYTHON", sys.executable))
