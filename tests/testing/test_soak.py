"""The soak: a short one with kills, and that it notices what it is there to notice."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import duckdb
import pytest
from typer.testing import CliRunner

import tidegate
from tidegate.cli.main import app as cli
from tidegate.testing.soak import Soak, Watch
from tidegate.testing.soak_app import SUBSCRIBERS, rows_of, soak_app
from tidegate.testing.soak_judge import Evidence, judge


def soaked(*options: str) -> dict[str, Any]:
    done = CliRunner().invoke(cli, ["soak", "--json", *options])
    found: dict[str, Any] = json.loads(done.stdout)
    assert (done.exit_code, found["violations"]) == (0, []), found
    return found


def test_a_few_seconds_with_kills(tmp_path: Path) -> None:
    found = soaked("--minutes", "0.05", "--kills-every", "3", "--seed", "2", "--keep", str(tmp_path / "kept"))
    assert found["lives"] >= 2
    assert found["kills"] >= 1
    assert found["rows accounted for"] > 0
    assert found["rows verified"]["ledger"] > 0
    assert found["merges"] > 0
    assert (tmp_path / "kept" / "data" / "log").is_dir()


@pytest.mark.slow
@pytest.mark.parametrize("executor", ["serial", "threads"])
def test_a_minute_with_kills(executor: str, tmp_path: Path) -> None:
    found = soaked("--minutes", "1", "--kills-every", "6", "--executor", executor)
    assert found["kills"] >= 2
    assert found["kept"] is None


# ---- the judge


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """What an engine leaves that was given the numbers 1 to 8 of one source, and 1 and 2 of a caller."""
    with tidegate.open(soak_app(), tmp_path / "data") as engine:
        for name, stream in SUBSCRIBERS.items():
            engine.subscribe_durably(stream, name)
        engine.feed("transfers", rows_of("feed", 1, 8), size=4, source="feed", offset=8, after=None)
        for number in (1, 2):
            engine.call("deposit", 3, "call", number, 5)
    return tmp_path / "data"


def test_what_is_whole_is_found_whole(data: Path) -> None:
    found = judge(data, Evidence({"feed": 8, "call": 1}))
    assert found.wrong == []
    assert found.rows == 10


def test_an_acknowledged_number_that_is_not_there_is_lost(data: Path) -> None:
    told = judge(data, Evidence({"feed": 9, "call": 3, "push": 1})).wrong
    assert told == [
        "lost: feed was acknowledged up to 9, and ends at 8",
        "lost: call was acknowledged up to 3, and ends at 2",
        "lost: push was acknowledged up to 1, and ends at 0",
    ]


def test_a_number_that_was_left_out_is_lost(data: Path) -> None:
    with tidegate.open(soak_app(), data) as engine:
        engine.feed("transfers", rows_of("feed", 10, 2), source="feed", offset=11)
    assert judge(data, Evidence()).wrong == ["lost: feed 9"]


def test_a_batch_that_no_subscriber_got_is_missed(data: Path) -> None:
    with tidegate.open(soak_app(), data) as engine:
        subscription = engine.subscribe_durably("handled", "remote")
        subscription.ack(subscription.take(1))
    told = judge(data, Evidence()).wrong
    assert len(told) == 4
    assert all(line.startswith("the subscriber of handled never got (") for line in told)


def test_money_from_nowhere_is_found(data: Path) -> None:
    with duckdb.connect(data / "base.duckdb") as base:
        base.execute("UPDATE tidegate_base.accounts SET balance = balance + 1, peak = peak + 1 WHERE account = 3")
    told = judge(data, Evidence()).wrong
    assert [line.partition(" ")[0] for line in told] == ["verify:", "SELECT", "the"]
    assert "balances" in told[1]
    assert "the changelog of accounts ends in" in told[2]


# ---- the watchdog


def test_who_makes_no_step_is_told_of_once_patience_is_over() -> None:
    watch = Watch(patience_s=60)
    assert watch.look(0, {"feed": 1, "push": 1}) == []
    assert watch.look(50, {"feed": 2, "push": 1}) == []
    assert watch.look(70, {"feed": 2, "push": 1}) == ["push"]
    assert watch.look(80, {"feed": 2, "push": 2}) == []
    assert watch.look(120, {"feed": 0, "push": 2}) == []  # a new life begins to count again


def test_a_life_that_can_not_begin_is_a_failure(tmp_path: Path) -> None:
    with tidegate.open(soak_app(), tmp_path / "data"):
        summary = Soak(tmp_path, 1, 0, 20, "serial").run(lambda what, seconds: None)
    assert [told.partition(";")[0] for told in summary.violations] == ["a life could not start (exit code 1)"]
    assert "DirectoryInUse" in (tmp_path / "server.log").read_text()
