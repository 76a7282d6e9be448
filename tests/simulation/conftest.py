"""Simulated apps fail on purpose, thousands of times: their log lines are silenced here, and only here."""

from __future__ import annotations

import logging
from collections.abc import Iterator

import pytest


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    logger = logging.getLogger("tidegate")
    before = logger.level
    yield
    logger.setLevel(before)
