"""Processes killed at random moments and at every named crash point: nothing acknowledged is lost."""

from __future__ import annotations

import json
from collections import Counter
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from tidegate.testing.crashes import OURS, Round, Summary, crash_test, run_round
from tidegate.testing.workloads import BUILT_IN, Checkpoint

MODES = ("weak", "strong", "effects")


def soundly(summary: Summary) -> Summary:
    assert summary.failures == []
    assert (summary.lost, summary.duplicated, summary.different) == (0, 0, 0)
    return summary


def generations(app: str, seed: int) -> int:
    """How many copies of the base the workload makes."""
    return BUILT_IN[app]("weak").steps(seed).count(Checkpoint(generation=True))


@pytest.mark.parametrize("point", OURS)
def test_dying_at(point: str, tmp_path: Path) -> None:
    number = OURS.index(point)
    executor = ("serial", "threads")[number % 2]
    sync = ("group", "always")[number // 2 % 2]
    summary = Summary()
    app = "ward" if number % 3 else "leaderboard"
    seed = next(seed for seed in count(number) if generations(app, seed) > 3)
    run_round(Round(app, seed, MODES[number % 3], executor, sync, (point,)), tmp_path, summary)
    assert soundly(summary).points == Counter({point: 1})


@pytest.mark.parametrize("executor", ["serial", "threads"])
@pytest.mark.parametrize("mode", MODES)
def test_dying_between_two_streams(mode: str, executor: str, tmp_path: Path) -> None:
    """Either-procedures and joins: unfinished, halted, half in the log."""
    summary = Summary()
    points = ("execution-after-commit", "", "merge-after-checkpoint")
    run_round(Round("till", MODES.index(mode), mode, executor, "group", points), tmp_path, summary)
    assert soundly(summary).kills >= 2


@pytest.mark.parametrize(("mode", "executor"), [("weak", "serial"), ("effects", "threads")])
def test_each_timer_comes_once(mode: str, executor: str, tmp_path: Path) -> None:
    summary = Summary()
    points = ("", "log-before-write", "merge-after-checkpoint")
    run_round(Round("desk", 3, mode, executor, "group", points), tmp_path, summary)
    assert soundly(summary).kills >= 2


@pytest.mark.parametrize("block", range(1))
def test_dying_at_any_moment(block: int) -> None:
    summary = soundly(crash_test(3, seed=10 + 3 * block, points=("",)))
    assert summary.rounds == 3
    assert summary.kills >= 2


@pytest.mark.slow
@pytest.mark.parametrize("block", range(10))
def test_many_rounds(block: int) -> None:
    soundly(crash_test(20, seed=1_000 + 20 * block))


APP = """
from tidegate import App
from tidegate.testing import Call, Push

app = App("shop", recovery="strong")
app.table("CREATE TABLE sold (item VARCHAR PRIMARY KEY, n DECIMAL(9,2) NOT NULL)")
app.stream("sales", "item VARCHAR NOT NULL, n DECIMAL(9,2) NOT NULL", border=True)

@app.procedure(inputs="sales", writes=["sold"])
def sell(txn, sales):
    for sale in sales:
        before = txn.get("sold", sale.item)
        txn.upsert("sold", (sale.item, sale.n + (0 if before is None else before.n)))

@app.procedure(reads=["sold"])
def total(txn, item):
    row = txn.get("sold", item)
    return None if row is None else row.n
"""
WORKLOAD = """
def crash_workload(seed):
    return [Push("sales", (("tea", number),), number) for number in range(1, 30)] + [Call("total", ("tea",))]
"""


@pytest.mark.parametrize("workload", ["", WORKLOAD], ids=["from the schemas", "crash_workload"])
def test_the_command_takes_any_app(workload: str, tmp_path: Path) -> None:
    from tidegate.cli.main import app

    (tmp_path / "shop.py").write_text(APP + workload)
    command = ["crash-test", f"{tmp_path}/shop.py:app", "--rounds", "1", "--json"]
    result = CliRunner().invoke(app, command)
    assert result.exit_code == 0, result.output
    facts: dict[str, Any] = json.loads(result.stdout)
    assert facts["rounds"] == 1
    assert facts["acknowledged"] >= (29 if workload else 100)  # a call in doubt is not acknowledged
    assert facts["lost"] == facts["duplicated"] == facts["different"] == 0
