"""Python workers of Spark: what they find in their environment, and what it means when they fail.

A session that was not started here gives its workers the first ``python3`` of the PATH, and one BLAS thread. Windows are to
have the same bytes as in this process, so their workers get the settings of this process and, on this machine, its
interpreter and its modules. Whatever else runs in that session keeps its own workers.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from tidegate.streams.spark.session import import_path, worker_environment

RAISED = re.compile(r"[A-Za-z_][\w.]*(Error|Exception|Exit|Interrupt)\b")


@contextmanager
def workers_like_here(context: Any) -> Iterator[None]:
    """Jobs put together meanwhile run in workers with the settings of this process."""
    wanted = worker_environment()
    if wanted.items() <= context.environment.items():  # a session of ours: all of its workers are like that
        yield
        return
    before = context.environment, context.pythonExec
    context.environment = {**before[0], **wanted}
    if str(context.master).startswith("local"):
        context.environment["PYTHONPATH"] = os.pathsep.join(import_path())
        context.pythonExec = os.environ.get("PYSPARK_PYTHON", sys.executable)
    try:
        yield
    finally:
        context.environment, context.pythonExec = before


def reason_of(error: BaseException) -> str:
    """In one line, why a job failed: of an exception in a worker the exception itself, which Spark tells of last."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    raised = [line for line in lines if RAISED.match(line)]
    found = raised[-1] if raised else lines[0] if lines else type(error).__name__
    if "No module named" in found:
        found += (
            "; Spark's Python workers lack that module: install there what this process has, put it on their PYTHONPATH, or "
            "name the right Python with PYSPARK_PYTHON before the session starts"
        )
    return found
