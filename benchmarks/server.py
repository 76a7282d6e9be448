"""What a server costs: pushes a second from many clients over HTTP, their latency, and an idle server beside the engine.

The server is a separate process over a directory with group commit. Two subscribers follow its output, and a client
queries it all the time. The clients are another process, ``tidegate.benchmarks.server_clients``. Afterwards the
directory is verified: re-executing its log must give the same tables.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tidegate.benchmarks.setting import setting

APP = "tidegate.examples.leaderboard.app:app"
TICK_S = 1 / os.sysconf("SC_CLK_TCK")


def bench(
    clients: int = 50,
    pushes: int = 20_000,
    rounds: int = 3,
    rate: float = 2_000.0,
    *,
    progress: Callable[[str], None] = lambda text: None,
) -> dict[str, Any]:
    """All figures; medians over ``rounds``."""
    loads = []
    for number in range(rounds):
        progress(f"load, round {number + 1} of {rounds}")
        loads.append(_load(clients, pushes, rate))
    progress("an idle server beside the engine")
    return {
        "clients": clients,
        "pushes": pushes,
        "paced_rate": rate,
        "subscribers": 2,
        **{name: statistics.median(load[name] for load in loads) for name in loads[0]},
        **idle(rounds),
        **setting(),
    }


def _load(clients: int, pushes: int, rate: float) -> dict[str, float]:
    """One run against a fresh server."""
    with tempfile.TemporaryDirectory() as folder:
        command = [
            sys.executable,
            "-c",
            "from tidegate.cli.main import main; main()",
            "serve",
            APP,
            "--json",
            "--port",
            "0",
        ]
        server = subprocess.Popen([*command, "--data", f"{folder}/data"], stdout=subprocess.PIPE, text=True)
        try:
            assert server.stdout is not None
            url = json.loads(server.stdout.readline())["url"]
            before = _cpu_s(server.pid)
            driver = [sys.executable, "-m", "tidegate.benchmarks.server_clients", url]
            told = subprocess.run(
                [*driver, str(clients), str(pushes), str(rate)], stdout=subprocess.PIPE, text=True, check=True
            )
            used = _cpu_s(server.pid) - before
        finally:
            server.terminate()
            server.wait()
            assert server.stdout is not None
            server.stdout.close()
        found: dict[str, float] = json.loads(told.stdout)
        return {**found, "server_cpu_us_per_push": round(used / (2 * pushes) * 1e6), "verified": _verified(folder)}


def _cpu_s(process: int) -> float:
    """Processor time of a process so far, its threads together; 0 where the system does not report it."""
    try:
        fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0.0
    return (int(fields[11]) + int(fields[12])) * TICK_S


def _verified(folder: str) -> bool:
    """Does what the server left behind agree with its log?"""
    from tidegate.loading import load_app
    from tidegate.offline.verify import verify

    return verify(load_app(APP), Path(folder) / "data").same


def idle(rounds: int, votes: int = 30_000) -> dict[str, float]:
    """Throughput and processor time of an engine with an idle server and query replica, relative to without: medians
    of the ratios of pairs, one after the other.
    """
    rates, times = [], []
    for _ in range(max(rounds, 5)):
        alone, attached = (_votes(votes, serve) for serve in (False, True))
        rates.append(alone[0] / attached[0])
        times.append(attached[1] / alone[1])
    return {
        "idle_server_ratio": round(statistics.median(rates), 3),
        "idle_server_cpu_ratio": round(statistics.median(times), 3),
    }


def _votes(votes: int, serve: bool) -> tuple[float, float]:
    """Seconds, and seconds of processor time, for this many votes."""
    import tidegate
    from tidegate.examples.leaderboard.app import leaderboard
    from tidegate.examples.leaderboard.reference import random_votes

    with tidegate.open(leaderboard()) as engine:
        engine.call("set_up")
        cast = list(random_votes(votes))
        stop = _attach(engine) if serve else lambda: None
        began, used = time.perf_counter(), time.process_time()
        engine.feed("votes_in", cast)
        found = time.perf_counter() - began, time.process_time() - used
        stop()
    return found


def _attach(engine: Any) -> Callable[[], None]:
    """A server over this engine on a thread of this process; returns how to stop it."""
    import uvicorn

    from tidegate.replica import Limits, ReplicaProcess
    from tidegate.server.app import make_app
    from tidegate.server.settings import Settings
    from tidegate.server.tokens import Tokens

    replica = ReplicaProcess(engine, Limits()).start()
    config = uvicorn.Config(make_app(engine, Settings(), Tokens(), replica), port=0, log_config=None, lifespan="on")
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run)
    thread.start()
    while not server.started:
        time.sleep(0.01)

    def stop() -> None:
        server.should_exit = True
        thread.join()
        replica.stop()

    return stop
