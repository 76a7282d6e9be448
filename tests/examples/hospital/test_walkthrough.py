"""The walkthrough runs, cell after cell."""

from __future__ import annotations

import runpy

import pytest


def test_every_cell_runs(capsys: pytest.CaptureFixture[str]) -> None:
    runpy.run_module("tidegate.examples.mimic_alerts.walkthrough", run_name="__main__")
    told = capsys.readouterr().out
    assert "med_events is used by" in told
    assert "again after 6 h at the earliest" in told
    assert "Verdict(doubled=[]" in told
