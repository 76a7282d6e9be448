"""A shipment that is never picked up raises its alert, once: with no input at all, and after kills in between."""

from __future__ import annotations

import datetime as dt
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

import tidegate
from tidegate.examples.shipments.app import app
from tidegate.offline.verify import verify
from tidegate.testing import ManualClock

PROGRAM = Path(__file__).parent.parent / "support" / "shipments_process.py"


def desk(directory: Path, *booking: object) -> subprocess.Popen[str]:
    """A process that is ready."""
    process = subprocess.Popen(
        [sys.executable, str(PROGRAM), str(directory), *map(str, booking)], stdout=subprocess.PIPE, text=True
    )
    watch = threading.Timer(60, process.kill)  # a test that waits in vain fails
    watch.daemon = True
    watch.start()
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    return process


def kill(process: subprocess.Popen[str]) -> list[str]:
    """Kill it; what else it has told."""
    process.send_signal(signal.SIGKILL)
    assert process.stdout is not None
    with process.stdout:
        told = process.stdout.read().splitlines()
    process.wait()
    return told


def test_one_that_was_never_picked_up_is_noticed_in_silence_after_a_kill(tmp_path: Path) -> None:
    first = desk(tmp_path / "state", 7, 1.5)
    assert kill(first) == []  # killed before it is due
    second = desk(tmp_path / "state")
    assert second.stdout is not None
    word, shipment, late_s = second.stdout.readline().split()
    assert (word, shipment) == ("alert", "7")
    assert float(late_s) >= 0  # not before its time
    kill(second)
    with tidegate.open(app, tmp_path / "state") as engine:
        engine.tick()
        assert engine.query("SELECT id, state FROM shipments").rows == [(7, "overdue")]
        assert engine.query("SELECT count(*) FROM tidegate.timers").scalar() == 0
    found = verify(app, tmp_path / "state")
    assert found.same
    assert found.emitted == {"alerts": 1}  # not a second time


@pytest.mark.parametrize("executor", ["serial", "threads"])
def test_only_what_waits_past_its_time_is_overdue(executor: str) -> None:
    clock = ManualClock()
    with tidegate.open(app, clock=clock, executor=executor) as engine:
        alerts = engine.subscribe("alerts")
        due = clock.now() + dt.timedelta(hours=1)
        engine.push("booked", [(1, due), (2, due), (3, due + dt.timedelta(hours=1))])
        engine.push("picked_up", [(2,)])
        engine.run_until_idle()
        for _ in range(3):
            clock.advance(1200)
            engine.tick()
            engine.run_until_idle()
        assert [tuple(row) for batch in iter(alerts.get, None) for row in batch] == [(1, due, due)]
        assert engine.query("SELECT stream, due FROM tidegate.timers").rows == [
            ("unclaimed", due + dt.timedelta(hours=1))
        ]
