"""What Spark runs in place of ``pyspark.daemon``: the same, with Python workers that do not walk through everything
they have loaded after each task.

A worker collects garbage after every task, which takes 18 ms with the modules of an application in memory. What is
loaded after the first tasks stays, so it is hidden from the collector: 1.2 ms.
"""

from __future__ import annotations

import gc
from socket import socket

from pyspark import daemon

FREEZES = frozenset({1, 2, 4, 16, 64})  # after this many tasks of a worker: by then everything is loaded

_carry_out = daemon.worker
_done = 0


def worker(sock: socket, authenticated: bool) -> int:
    """One task, as usual. A connection that Spark has closed, as at the end of a session, is not an error."""
    global _done
    try:
        code = _carry_out(sock, authenticated)
    except (EOFError, ConnectionError):
        return 1
    _done += 1
    if _done in FREEZES:
        gc.collect()
        gc.freeze()
    return code


daemon.worker = worker

if __name__ == "__main__":
    daemon.manager()
