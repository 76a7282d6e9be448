"""A real cluster: Spark's own standalone master and two workers, on loopback. One worker is killed in the middle."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from spark_java import java_for_tests
from wards import make_app, rows, state

import tidegate
from tidegate.errors import SparkUnavailable
from tidegate.streams.spark.gateway import spark_home
from tidegate.streams.spark.java import find_java

SUPPORT = Path(__file__).parents[2] / "support"
COUNT = 4_000
OPENED = [
    f"--add-opens=java.base/{package}=ALL-UNNAMED"
    for package in ("java.lang", "java.lang.invoke", "java.io", "java.net", "java.nio", "java.util", "sun.nio.ch")
]

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("spark")]


class Cluster:
    """A master and two workers with a core each. Nothing listens beyond this machine."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._java = find_java()
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        self.url = f"spark://127.0.0.1:{port}"
        self.processes: list[subprocess.Popen[bytes]] = []
        self._start("master", "master.Master", "--port", str(port))
        self.await_(self.log("master"), "I have been elected leader|New state: ALIVE")
        for n in (1, 2):
            work = folder / f"work-{n}"
            self._start(
                f"worker-{n}", "worker.Worker", "--cores", "1", "--memory", "1g", "--work-dir", str(work), self.url
            )
        for n in (1, 2):
            self.await_(self.log(f"worker-{n}"), "Successfully registered with master")

    @property
    def environment(self) -> dict[str, str]:
        path = os.pathsep.join(filter(None, [str(SUPPORT), *sys.path]))
        ours = {"SPARK_LOCAL_IP": "127.0.0.1", "PYSPARK_PYTHON": sys.executable, "PYTHONPATH": path}
        return {**os.environ, **ours, "SPARK_SCALA_VERSION": "2.13"}  # which spark-class would set

    def log(self, name: str) -> Path:
        return self._folder / f"{name}.log"

    def _start(self, name: str, kind: str, *arguments: str) -> None:
        home = spark_home()
        with self.log(name).open("wb") as log:
            self.processes.append(
                subprocess.Popen(
                    [
                        self._java.command, "-Xmx512m", "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", *OPENED,
                        "-cp", f"{home}/jars/*", f"org.apache.spark.deploy.{kind}",
                        "--host", "127.0.0.1", "--webui-port", "0", *arguments,
                    ],
                    stdout=log, stderr=subprocess.STDOUT, start_new_session=True,
                    env={**self.environment, "SPARK_HOME": str(home), "JAVA_HOME": str(self._java.home)},
                )
            )  # fmt: skip

    def await_(self, log: Path, text: str) -> None:
        while not re.search(text, log.read_text()):
            assert all(process.poll() is None for process in self.processes), log.read_text()
            time.sleep(0.1)

    def kill(self, process: subprocess.Popen[bytes]) -> None:
        """With everything it has started."""
        try:
            os.killpg(process.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass  # it had ended
        process.wait()

    def close(self) -> None:
        for process in reversed(self.processes):
            self.kill(process)


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    try:
        java_for_tests()
    except SparkUnavailable as error:
        pytest.skip(str(error))
    found = Cluster(tmp_path)
    yield found
    found.close()


def test_a_worker_dies_and_the_result_is_that_of_one_process(cluster: Cluster, tmp_path: Path) -> None:
    with (tmp_path / "driver.log").open("wb") as log:
        driver = subprocess.Popen(
            [sys.executable, str(SUPPORT / "cluster_process.py"), cluster.url, str(tmp_path / "db"), str(COUNT)],
            stdout=subprocess.PIPE, stderr=log, text=True, env=cluster.environment,
        )  # fmt: skip
    assert driver.stdout is not None
    try:
        lines = []
        for line in driver.stdout:
            lines.append(line)
            if len(lines) == 3:
                for n in (1, 2):
                    cluster.await_(cluster.log(f"worker-{n}"), "Asked to launch executor")
                cluster.kill(cluster.processes[1])
        assert driver.wait() == 0, (tmp_path / "driver.log").read_text()[-3000:]
    finally:
        driver.kill()
        driver.stdout.close()
    assert lines[:-1] == [f"{part}\n" for part in range(10)]
    told = json.loads(lines[-1])
    assert cluster.url in told["plan"]
    assert "Spark tasks" in told["way"], told  # to the end, on the worker that was left
    assert "Lost executor" in (tmp_path / "driver.log").read_text()
    with tidegate.open(make_app()) as engine:
        engine.feed("vitals", rows(COUNT), size=20)
        expected = state(engine)
    with tidegate.open(make_app(), tmp_path / "db") as engine:
        assert state(engine) == expected
