"""A Spark query of a Kafka topic into an engine, in a process that can be killed.

SERVERS TOPIC JARS DIRECTORY, and ``all`` to stop when everything that is there now has come in. It prints a line for each
batch and, with ``all``, the table as JSON at the end.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import tidegate
from tidegate.connectors.spark.pipeline import pipe
from tidegate.streams.spark.session import Spark, SparkSettings

app = tidegate.App("meters")
app.table("CREATE TABLE meters (meter VARCHAR PRIMARY KEY, readings BIGINT NOT NULL, total DOUBLE NOT NULL)")
app.stream("readings", "meter VARCHAR NOT NULL, value DOUBLE NOT NULL", border=True)


@app.procedure(inputs="readings", reads=["meters"], writes=["meters"])
def add(txn: tidegate.Transaction, readings: tidegate.Batch) -> None:
    for meter, value in readings:
        old = txn.get("meters", meter)
        txn.upsert("meters", (meter, 1 + (old.readings if old else 0), value + (old.total if old else 0.0)))
    print("batch", txn.batch_id, flush=True)


def main(servers: str, topic: str, jars: str, directory: str, *until: str) -> None:
    spark = Spark(settings=SparkSettings("local[2]", more={"spark.jars": ",".join(map(str, Path(jars).glob("*.jar")))}))
    source = spark.session().readStream.format("kafka").option("kafka.bootstrap.servers", servers)
    source = source.option("subscribe", topic).option("startingOffsets", "earliest").option("maxOffsetsPerTrigger", 20)
    frame = (
        source.load().selectExpr("from_json(CAST(value AS STRING), 'meter STRING, value DOUBLE') AS r").select("r.*")
    )
    trigger = {"availableNow": True} if until else None
    with tidegate.open(app, Path(directory) / "db") as engine:
        pipe(frame, engine, "readings", checkpoint=f"{directory}/checkpoint", source="kafka", trigger=trigger).wait()
        print(json.dumps([list(row) for row in engine.query("SELECT * FROM meters ORDER BY meter")]), flush=True)
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
