"""``tidegate demo`` as people and machines call it."""

from __future__ import annotations

import io
import json
import os
import signal
import subprocess
import sys
import threading
import time

import pytest
from rich.console import Console
from shared_data import PAP, needs_pap

from tidegate.examples.mimic_alerts.backends import choose_backend
from tidegate.examples.mimic_alerts.demo import Options, interruptible, run_headless


def demo(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", "from tidegate.cli.main import main; main()", "demo", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=120)


def test_without_a_terminal_it_plays_to_the_end() -> None:
    done = demo("--minutes", "3", "--backend", "local")
    assert done.returncode == 0, done.stderr
    assert "Safe: no dose too early" in done.stdout
    assert "bed 8" in done.stdout


def test_it_tells_machines_too() -> None:
    done = demo("--headless", "--auto-doctor", "--minutes", "2", "--patients", "2", "--backend", "local", "--json")
    facts = json.loads(done.stdout)
    assert facts["safe"]
    assert facts["packets"] == 2 * 2 * 120


def test_an_unknown_backend_or_folder_is_one_clear_line() -> None:
    done = demo("--backend", "abacus")
    assert (done.returncode, done.stderr.strip()) == (2, "tidegate: --backend abacus: use auto, local or spark")
    done = demo("--data", "nowhere")
    assert done.returncode == 2
    assert "nowhere is not a folder" in done.stderr
    done = demo("--patient", "5")
    assert (done.returncode, "give their folder with --data" in done.stderr) == (2, True)


def test_the_first_ctrl_c_asks_and_the_second_insists() -> None:
    before = signal.getsignal(signal.SIGINT)
    with interruptible() as stopped:
        assert not stopped()
        signal.raise_signal(signal.SIGINT)
        assert stopped()
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
    assert signal.getsignal(signal.SIGINT) is before


def test_a_shift_that_is_stopped_is_told_up_to_there() -> None:
    before = signal.getsignal(signal.SIGINT)

    def press() -> None:
        while signal.getsignal(signal.SIGINT) is before:
            time.sleep(0.005)
        os.kill(os.getpid(), signal.SIGINT)

    threading.Thread(target=press, daemon=True).start()
    console = Console(file=io.StringIO(), width=140)
    facts = run_headless(Options(backend="local", speed=10), console)
    assert facts["stopped"]
    assert facts["safe"]
    assert facts["packets"] < 2 * 8 * 600
    assert " of 10:00 on the ward." in console.file.getvalue()  # type: ignore[attr-defined]


def test_everything_happens_in_ten_minutes() -> None:
    console = Console(file=io.StringIO(), width=140)
    facts = run_headless(Options(backend="local"), console)
    assert facts["safe"]
    for what in ("given", "declined", "lapsed", "recent", "clash", "alarms", "visits", "refused"):
        assert facts[what] > 0, what
    text = console.file.getvalue()  # type: ignore[attr-defined]
    assert "the line gets stuck" in text


@needs_pap
def test_recorded_waveforms() -> None:
    console = Console(file=io.StringIO(), width=140)
    facts = run_headless(Options(backend="local", data=PAP, only=(23922,)), console)
    assert facts["safe"]
    assert facts["packets"] == 6000


@pytest.mark.parametrize("wanted", ["auto", "local"])
def test_there_is_always_a_backend(wanted: str) -> None:
    where = choose_backend(wanted)
    assert where.told.startswith("windows: evaluated in this process")
    assert not where.spark  # it would have to be started first
