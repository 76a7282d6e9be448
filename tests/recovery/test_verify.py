"""Verifying a directory compares what durable subscribers have not had yet, too."""

from __future__ import annotations

from pathlib import Path

import pytest
from recovering import make_numbers, push

import tidegate
from tidegate.verify import verify

MODES = ("weak", "strong", "effects")


@pytest.mark.parametrize("mode", MODES)
def test_waiting_batches_are_compared(mode: str, tmp_path: Path) -> None:
    app = make_numbers(mode)
    with tidegate.open(app, tmp_path / "d") as engine:
        subscription = engine.subscribe_durably("sums", "reader")
        push(engine, 1, 5)
        engine.checkpoint()
        push(engine, 6, 9)
        subscription.ack(subscription.take(2))
    found = verify(app, tmp_path / "d")
    assert found.differences == []
    assert found.batches == 7


def test_a_lost_batch_is_a_difference(tmp_path: Path) -> None:
    app = make_numbers("strong")
    with tidegate.open(app, tmp_path / "d") as engine:
        subscription = engine.subscribe_durably("sums", "reader")
        push(engine, 1, 3)
        del subscription.waiting[None, 2]  # the base will say that it was acknowledged, the log does not
    (told,) = verify(app, tmp_path / "d").differences
    assert told.startswith("batch waiting for ('reader', None, 2): stored 'nothing', re-executed [(3,)]")
