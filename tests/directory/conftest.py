"""Logs on a simulated disk."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tidegate.testing import SimulatedFiles


@pytest.fixture
def use(monkeypatch: pytest.MonkeyPatch) -> Callable[[SimulatedFiles], None]:
    """``use(files)``: engines opened from now on have their log on these."""

    def on(files: SimulatedFiles) -> None:
        monkeypatch.setattr("tidegate.directory.layout.OsFiles", lambda path: files)

    return on
