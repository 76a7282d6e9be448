"""A Kafka broker for tests and benchmarks: resolved with Maven, on loopback, in KRaft mode, removed afterwards."""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from pathlib import Path
from typing import Any

from confluent_kafka import Consumer, KafkaError, TopicPartition

VERSION = "3.9.1"
POM = f"""<project xmlns="http://maven.apache.org/POM/4.0.0">
  <modelVersion>4.0.0</modelVersion>
  <groupId>tidegate.tests</groupId><artifactId>kafka</artifactId><version>1</version><packaging>pom</packaging>
  <dependencies><dependency>
    <groupId>org.apache.kafka</groupId><artifactId>kafka_2.13</artifactId><version>{VERSION}</version>
  </dependency></dependencies>
</project>
"""
META = "version=1\nnode.id={node}\ncluster.id=dGlkZWdhdGUtdGVzdHMtMQ\ndirectory.id=dGlkZWdhdGUtdGVzdHM{node}Mg\n"
PROPERTIES = """process.roles={roles}
node.id={node}
controller.quorum.voters=1@127.0.0.1:{controller}
listeners={listeners}
controller.listener.names=CONTROLLER
log.dirs={data}
offsets.topic.num.partitions=1
offsets.topic.replication.factor=1
transaction.state.log.num.partitions=1
transaction.state.log.replication.factor=1
transaction.state.log.min.isr=1
group.initial.rebalance.delay.ms=0
broker.session.timeout.ms=2000
broker.heartbeat.interval.ms=300
auto.create.topics.enable=false
"""


class Unavailable(Exception):
    """Why there is no broker; tests are skipped with this reason."""


def find_jars(name: str = f"kafka-{VERSION}", pom: str = POM) -> Path:
    """The directory with what ``pom`` depends on, Kafka by default: resolved once per machine."""
    for program in ("java", "mvn"):
        if not shutil.which(program):
            raise Unavailable(f"Kafka is resolved and run with java and mvn; there is no {program} here")
    place = Path(tempfile.gettempdir()) / f"tidegate-{name}"
    with open(place.with_name(f"{place.name}.lock"), "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (place / "complete").exists():
            place.mkdir(exist_ok=True)
            (place / "pom.xml").write_text(pom)
            goal = f"dependency:copy-dependencies -DoutputDirectory={place / 'lib'} -DincludeScope=runtime"
            command = ["mvn", "-q", "-B", *goal.split()]
            done = subprocess.run(command, cwd=place, capture_output=True, text=True, timeout=300)
            if done.returncode:
                raise Unavailable(f"Maven can't resolve {name}: {done.stdout.strip()[-200:]}")
            (place / "complete").touch()
    return place / "lib"


class KafkaBroker:
    """One broker that is its own controller; or, ``beside`` another one, a second broker of its cluster."""

    def __init__(self, beside: KafkaBroker | None = None) -> None:
        self._jars = find_jars()
        self.root = Path(tempfile.mkdtemp(prefix="tidegate-kafka-"))
        data = self.root / "data"
        data.mkdir()
        self.node = 1 if beside is None else 2
        (data / "meta.properties").write_text(META.format(node=self.node))
        self._port = _free_port()
        self._controller: int = _free_port() if beside is None else beside._controller
        listeners = f"PLAINTEXT://127.0.0.1:{self._port}"
        if beside is None:
            listeners += f",CONTROLLER://127.0.0.1:{self._controller}"
        filled = PROPERTIES.format(
            roles="broker,controller" if beside is None else "broker",
            node=self.node,
            controller=self._controller,
            listeners=listeners,
            data=data,
        )
        (self.root / "server.properties").write_text(filled)
        self._process: subprocess.Popen[bytes] | None = None
        self.start()

    @property
    def servers(self) -> str:
        return f"127.0.0.1:{self._port}"

    def start(self) -> None:
        quick = ["-Xmx256m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1"]
        command = ["java", *quick, "-cp", f"{self._jars}/*", "kafka.Kafka", str(self.root / "server.properties")]
        with open(self.root / "server.log", "ab") as log:
            self._process = subprocess.Popen(command, stdout=log, stderr=log, stdin=subprocess.DEVNULL, cwd=self.root)
        ends = time.monotonic() + 120
        while not self._answers():
            if self._process.poll() is not None or time.monotonic() > ends:
                told = (self.root / "server.log").read_text()[-500:]
                raise Unavailable(f"the broker did not start: {told}")
            time.sleep(0.1)

    def _answers(self) -> bool:
        with contextlib.closing(socket.socket()) as probe:
            return probe.connect_ex(("127.0.0.1", self._port)) == 0

    def kill(self) -> None:
        """Stop as a crash does."""
        assert self._process is not None
        os.kill(self._process.pid, signal.SIGKILL)
        self._process.wait()

    def remove(self) -> None:
        try:
            self.kill()
        finally:
            shutil.rmtree(self.root, ignore_errors=True)


def _free_port() -> int:
    with contextlib.closing(socket.socket()) as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def read(servers: str, topic: str, partitions: int = 1) -> list[tuple[Any, Any]]:
    """Key and value of every committed record, in order."""
    settings = {"bootstrap.servers": servers, "group.id": "tests", "isolation.level": "read_committed"}
    consumer = Consumer({**settings, "enable.partition.eof": True, "auto.offset.reset": "earliest"})
    found, left = [], set(range(partitions))
    consumer.assign([TopicPartition(topic, p, 0) for p in left])
    while left:
        message = consumer.poll(60)
        assert message is not None, f"{topic} can't be read"
        if message.error() is None:
            found.append((message.key(), message.value()))
        elif message.error().code() == KafkaError._PARTITION_EOF:
            left.discard(message.partition())
        else:
            raise AssertionError(message.error())
    consumer.close()
    return found
