"""``tidegate demo`` as people and machines call it."""

from __future__ import annotations

import io
import json
import subprocess
import sys

import pytest
from rich.console import Console
from shared_data import PAP, needs_pap

from tidegate.examples.mimic_alerts.backends import choose_backend
from tidegate.examples.mimic_alerts.demo import Options, run_headless


def demo(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", "from tidegate.cli import main; main()", "demo", *arguments]
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
    assert "nowhere is no folder" in done.stderr


def test_everything_happens_in_ten_minutes() -> None:
    console = Console(file=io.StringIO(), width=140)
    facts = run_headless(Options(backend="local"), console)
    assert facts["safe"]
    for what in ("given", "declined", "lapsed", "recent", "clash", "alarms", "visits", "refused"):
        assert facts[what] > 0, what
    text = console.file.getvalue()  # type: ignore[attr-defined]
    assert "line clamped at 90 mmHg" in text


@needs_pap
def test_recorded_waveforms() -> None:
    console = Console(file=io.StringIO(), width=140)
    facts = run_headless(Options(backend="local", data=PAP, only=(23922,)), console)
    assert facts["safe"]
    assert facts["packets"] == 6000


@pytest.mark.parametrize("wanted", ["auto", "local"])
def test_there_is_always_a_backend(wanted: str) -> None:
    assert choose_backend(wanted).told.startswith("windows")
