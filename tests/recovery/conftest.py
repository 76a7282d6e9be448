"""Fixtures of the recovery tests: kills, every way to recover, logs on a simulated disk."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from recovering import let_go

from tidegate import Engine
from tidegate.testing import SimulatedFiles

MODES = ("weak", "strong", "effects")


@pytest.fixture
def killed() -> Callable[[Engine], None]:
    """``killed(engine)``: everything appended is on disk, nothing is merged, nothing is closed."""

    def kill(engine: Engine) -> None:
        engine.run_until_idle()
        assert engine.durable is not None
        engine.durable.sync()
        let_go(engine)

    return kill


@pytest.fixture(params=[(mode, executor) for mode in MODES for executor in ("serial", "threads")], ids="-".join)
def way(request: pytest.FixtureRequest) -> tuple[Any, str]:
    """Every recovery mode with every executor."""
    mode, executor = request.param
    return mode, executor


@pytest.fixture
def use(monkeypatch: pytest.MonkeyPatch) -> Callable[[SimulatedFiles], None]:
    """``use(files)``: engines opened from now on have their log on these."""

    def on(files: SimulatedFiles) -> None:
        monkeypatch.setattr("tidegate.directory.layout.OsFiles", lambda path: files)

    return on
