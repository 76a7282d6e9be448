"""The benchmarks of the engine itself, small: what they compute is right, and they would notice if it were not."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from tidegate import App, Batch, Transaction
from tidegate.benchmarks import growth, keys, latency, memory, profile, state
from tidegate.benchmarks import sql as declared
from tidegate.benchmarks import time as passing
from tidegate.benchmarks.transactions import EXECUTORS, measure
from tidegate.benchmarks.workloads import SUITE, Keys, Parameters, transfers

SMALL = Parameters(events=160, keys=400, length=4, aborts=0.1)


@pytest.mark.parametrize("executor", EXECUTORS)
@pytest.mark.parametrize("name", SUITE)
def test_the_suite_ends_as_plain_python_does(name: str, executor: str) -> None:
    workload = SUITE[name](SMALL)
    found = measure(workload, 1, durable=executor == "serial", **EXECUTORS[executor])
    assert found["correct"]
    assert found["aborted"] > 0


@pytest.mark.parametrize("skew", [0.0, 0.999])
def test_transfers_end_as_plain_python_does(skew: float) -> None:
    workload = transfers(replace(SMALL, events=2_000, keys=20, skew=skew, multi_partition=1.0))
    assert measure(workload, 1, durable=True)["correct"]


def test_a_wrong_end_is_noticed() -> None:
    workload = SUITE["grep_and_sum"](SMALL)
    wrong = dict(workload.state, records=workload.state["records"][:-1])
    assert not measure(replace(workload, state=wrong), 1, durable=False)["correct"]
    assert not measure(replace(workload, aborted=workload.aborted + 1), 1, durable=False)["correct"]


def test_keys_are_as_skewed_and_as_spread_as_asked() -> None:
    def drawn(**given: float) -> list[tuple[int, list[int]]]:
        keys = Keys(Parameters(events=500, keys=1_000, **given))  # type: ignore[arg-type]
        return [keys.some(2) for _ in range(500)]

    def smallest(found: list[tuple[int, list[int]]]) -> int:
        return sum(key < 10 for _, keys in found for key in keys)

    assert smallest(drawn(skew=0.0)) < 50 < smallest(drawn(skew=0.99))
    assert all(part >= 0 for part, _ in drawn(multi_partition=0.0))
    assert sum(part < 0 for part, _ in drawn(multi_partition=1.0)) > 400
    assert all(len(set(keys)) == 2 for _, keys in drawn())


def test_growth_compares_engines_that_do_the_same() -> None:
    facts = growth.bench(rounds=1, batches=60, factor=2)
    assert facts["correct"]
    assert {(each["small"], each["large"]) for each in facts["growth"].values()} == {
        (1_000, 2_000),
        (100, 200),
        (10_000, 2_000),
        (3, 30),
    }
    broken = growth.procedures(3, 60)
    with broken.engine as engine:
        broken.run(0)
        engine.feed("hits_0", [(1,)])
        assert not broken.right()


def test_latency_counts_from_the_moment_a_push_was_due() -> None:
    percentiles, right = latency.at_rate(1_000_000, 0.0002)  # all are due at once, so the last waited for all others
    assert right
    assert 0 < percentiles["p50_ms"] <= percentiles["p99_ms"] <= percentiles["max_ms"]
    rate, right = latency.peak(200)
    assert right
    assert rate > 0


def test_a_load_that_is_too_much_ends_and_counts_what_was_not_sent() -> None:
    percentiles, right = latency.at_rate(1_000_000, 0.01, patience_s=0.0)  # out of patience before the first
    assert right
    assert percentiles["sent"] == 1 / 10_000
    assert percentiles["max_ms"] > 0


def test_absence_and_forgetting_are_checked_and_not_only_timed() -> None:
    late_ms, ticks_us, right = passing.absence(50, 3)
    assert right
    assert len(late_ms) == 3
    assert min(late_ms) >= 0
    assert all(ticks_us)
    rate, right = passing.dedupe(40_000)  # an hour is 36,000 of them
    assert right
    assert rate > 0


def test_memory_says_what_one_of_each_takes() -> None:
    facts = memory.bench(5_000, 200)
    assert facts["correct"]
    assert facts["votes_stored"] > 0
    assert facts["bytes_per_held_version"] > 50
    assert facts["bytes_per_aggregated_row"] < facts["bytes_per_window_row"]


def test_large_state_is_measured_with_the_right_end(monkeypatch: pytest.MonkeyPatch) -> None:
    facts = state.bench(2_000, rounds=1)
    assert facts["correct"]
    assert 20 < facts["resident_bytes_per_row"] < 70 < facts["object_bytes_per_row"]
    assert {"cold_push_us", "cold_feed_rows_per_s", "zipf_rows_per_s", "open_s", "first_push_ms"} < set(facts)
    assert {"checkpoint_two_rows_ms", "merge_growth", "hot_ratio"} < set(facts)
    assert "SQLite" in facts["peers"]
    monkeypatch.setattr(state.Bank, "skewed", lambda self, count: self.paid.update([0]) or self.anywhere(count))
    assert not state.bench(1_000, rounds=1, peers=False)["correct"]


def test_a_profile_without_py_spy_is_for_speedscope(tmp_path: Path) -> None:
    path = tmp_path / "profile.json"
    assert profile.main("leaderboard", "2000", str(path)) == 0
    found = json.loads(path.read_text())
    names = [frame["name"] for frame in found["shared"]["frames"]]
    assert "Engine.push" in names
    (one,) = found["profiles"]
    assert len(one["samples"]) == len(one["weights"]) > 0
    assert all(place < len(names) for stack in one["samples"] for place in stack)


def test_the_windows_that_are_profiled_fire_as_often_as_they_should() -> None:
    assert profile.windows(150_000)


def test_what_keys_cost_is_measured_with_the_same_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(keys, "ROUNDS", 1)
    found = keys.bench(rows=200, keys=20)
    assert {name for name in found if name.endswith("us_per_row")} == {f"{way}, us_per_row" for way in keys.WAYS}

    def forgetful(way: str) -> App:
        app = App("forgetful")
        app.table("CREATE TABLE accounts (account INTEGER PRIMARY KEY, balance BIGINT NOT NULL)")
        app.stream("entries", keys.COLUMNS, border=True)

        @app.procedure(inputs="entries")
        def add(txn: Transaction, entries: Batch) -> None: ...

        return app

    monkeypatch.setattr(keys, "_app", forgetful)
    with pytest.raises(AssertionError, match="wrong balances"):
        keys.bench(rows=200, keys=20)


def test_what_is_declared_in_sql_is_checked_and_not_only_timed() -> None:
    found = declared.bench(2_000, rounds=1)
    assert found["correct"]
    assert {
        "filter_us_1",
        "lookup_us_1",
        "filter_us_row_10k",
        "window_vs_hand",
        "view_us_row",
        "view_growth",
    } <= found.keys()
