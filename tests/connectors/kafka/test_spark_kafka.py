"""Kafka into a border stream through Spark's own Kafka source."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tidegate.benchmarks.kafka_broker import KafkaBroker, Unavailable, find_jars

pytestmark = [pytest.mark.kafka, pytest.mark.slow, pytest.mark.xdist_group("kafka")]

# Maven Central has neither of the first two for Spark 4.3, and the second one not for 4.2 either
NEEDED = (
    ("org.apache.spark", "spark-sql-kafka-0-10_2.13", "4.2.0"),
    ("org.apache.spark", "spark-token-provider-kafka-0-10_2.13", "4.0.0"),
    ("org.apache.kafka", "kafka-clients", "3.9.2"),
    ("org.apache.commons", "commons-pool2", "2.13.1"),
)
DEPENDENCY = """<dependency><groupId>{}</groupId><artifactId>{}</artifactId><version>{}</version>
  <exclusions><exclusion><groupId>*</groupId><artifactId>*</artifactId></exclusion></exclusions></dependency>"""
POM = f"""<project xmlns="http://maven.apache.org/POM/4.0.0">
  <modelVersion>4.0.0</modelVersion>
  <groupId>tidegate.tests</groupId><artifactId>spark-kafka</artifactId><version>1</version><packaging>pom</packaging>
  <dependencies>{"".join(DEPENDENCY.format(*one) for one in NEEDED)}</dependencies>
</project>
"""


@pytest.fixture(scope="module")
def jars() -> Path:
    try:
        return find_jars("spark-kafka-4.2.0", POM)
    except Unavailable as error:
        pytest.skip(str(error))


def test_a_topic_comes_in_once_across_a_kill(
    broker: KafkaBroker, jars: Path, topic: Callable[..., str], write: Callable[..., None], tmp_path: Path
) -> None:
    name = topic(2)
    for i in range(200):
        write(name, json.dumps({"meter": f"m{i % 3}", "value": float(i)}).encode(), partition=i % 2)
    program = Path(__file__).parents[2] / "support" / "spark_kafka_process.py"
    command = [sys.executable, str(program), broker.servers, name, str(jars), str(tmp_path)]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) as process:
        assert process.stdout is not None
        heard = [process.stdout.readline() for _ in range(3)]
        process.kill()
    assert heard[-1].startswith("batch")
    done = subprocess.run([*command, "all"], stdout=subprocess.PIPE, text=True, env=environment, timeout=300)
    assert done.returncode == 0
    lines = done.stdout.splitlines()
    assert len(lines) > 2  # it had been killed in the middle
    expected = {f"m{k}": [float(i) for i in range(200) if i % 3 == k] for k in range(3)}
    assert json.loads(lines[-1]) == [[meter, len(values), sum(values)] for meter, values in sorted(expected.items())]
