"""A Spark driver for the kill tests: python driver_process.py INPUT CHECKPOINT TARGET, a URL or a directory.

Pipes all files in, and prints the number of micro-batches dealt with whenever that changes.
"""

from __future__ import annotations

import sys
from contextlib import ExitStack
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))


def main(incoming: str, checkpoint: str, target: str) -> None:
    from meters import make_app, readings

    import tidegate
    from tidegate.connectors.spark.pipeline import pipe
    from tidegate.streams.spark.session import spark_session

    with ExitStack() as stack:
        engine = tidegate.connect(target) if "://" in target else tidegate.open(make_app(), target, merge_rows=200)
        stack.enter_context(engine)
        frame = readings(spark_session("local[1]"), Path(incoming))
        pipeline = pipe(frame, engine, "readings", checkpoint=checkpoint, trigger={"availableNow": True})
        told = 0
        while not pipeline.query._jsq.awaitTermination(10):
            if pipeline.pushed + pipeline.repeated != told:
                told = pipeline.pushed + pipeline.repeated
                print(told, flush=True)
        pipeline.wait()


if __name__ == "__main__":
    main(*sys.argv[1:])
