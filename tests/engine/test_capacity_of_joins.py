"""Batches that wait for another stream's count against the capacity of their own stream, and what completes them is let in."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import tidegate
from tidegate import App, Batch, Transaction
from tidegate.errors import Overloaded


def pairs() -> App:
    app = App("pairs")
    app.table("CREATE TABLE t (n INTEGER PRIMARY KEY)")
    app.stream("left", "n INTEGER", border=True)
    app.stream("right", "n INTEGER", border=True)

    @app.procedure(inputs=["left", "right"], writes=["t"])
    def pair(txn: Transaction, left: Batch, right: Batch) -> None:
        txn.insert("t", left[0])

    return app


@pytest.mark.parametrize("executor", ["serial", "manual", "threads"])
def test_one_side_alone_is_refused_when_it_is_too_far_ahead(executor: Any) -> None:
    with tidegate.open(pairs(), executor=executor, capacity=3) as engine:
        for number in (1, 2, 3):
            engine.push("left", [(number,)], number)
        with pytest.raises(Overloaded, match=r"3 of its batches wait for a batch of another stream"):
            engine.push("left", [(4,)], 4, timeout_s=0)
        engine.push("right", [(1,)], 1)  # completes the first
        engine.run_until_idle()
        engine.push("left", [(4,)], 4, timeout_s=0)
        for number in (2, 3, 4):
            engine.push("right", [(number,)], number)
        engine.run_until_idle()
        assert engine.query("SELECT count(*) FROM t").scalar() == 4
        assert not engine.scheduler.incomplete


def test_batches_that_can_not_be_completed_any_more_do_not_count() -> None:
    with tidegate.open(pairs(), capacity=3) as engine:
        for number in (1, 2, 3):
            engine.push("left", [(number,)], number)
        engine.push("right", [(9,)], 9)  # ids ascend: 1, 2 and 3 will never come
        for number in (4, 5):
            engine.push("left", [(number,)], number, timeout_s=0)
        assert engine.scheduler.incomplete == {"left": 2, "right": 1}


def test_after_a_restart_it_is_the_same(tmp_path: Path) -> None:
    with tidegate.open(pairs(), tmp_path, capacity=2) as engine:
        engine.push("left", [(1,)], 1)
        engine.push("left", [(2,)], 2)
    with tidegate.open(pairs(), tmp_path, capacity=2) as engine:
        with pytest.raises(Overloaded):
            engine.push("left", [(3,)], 3)
        engine.push("right", [(1,)], 1)
        engine.push("left", [(3,)], 3)
