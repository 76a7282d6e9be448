"""The environment of Spark's Python workers.

A session that was not started here gives its workers the first ``python3`` on the PATH, and one BLAS thread. Windows
must give the same bytes as in this process, so their workers get the settings of this process and, on this machine, its
interpreter and its modules. Whatever else runs in that session keeps its own workers.
"""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from tidegate.streams.spark.session import import_path, worker_environment

_changing = threading.Lock()


@contextmanager
def workers_like_here(context: Any) -> Iterator[None]:
    """Jobs built inside this context run in workers with the settings of this process."""
    wanted = worker_environment()
    with _changing:
        before = context.environment, context.pythonExec
        if not wanted.items() <= before[0].items():  # otherwise it is our own session: all of its workers are like that
            context.environment = {**before[0], **wanted}
            if str(context.master).startswith("local"):
                context.environment["PYTHONPATH"] = os.pathsep.join(import_path())
                context.pythonExec = os.environ.get("PYSPARK_PYTHON", sys.executable)
        try:
            yield
        finally:
            context.environment, context.pythonExec = before
