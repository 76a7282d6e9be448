"""The contract: whatever runs in parallel, everything ends up as if all executions had run in position order.

150 random apps here; ``make sim N=10000`` runs more.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tidegate.errors import DeclarationError
from tidegate.storage.chains import TRIMMED, below
from tidegate.storage.indexes import SecondaryIndex
from tidegate.storage.readers import PartitionReader
from tidegate.storage.versions import VersionedTable
from tidegate.testing import OrderViolation
from tidegate.testing.simulation import run
from tidegate.testing.simulation.apps import build
from tidegate.testing.simulation.run import make_case, modes, run_case, simulate_seed, world
from tidegate.txn import locks
from tidegate.txn.execution import READY, Reason, Why
from tidegate.txn.locks import Block, LowWaterMarks
from tidegate.txn.scheduler import Scheduler

CHUNK = 25


@pytest.mark.parametrize("start", range(0, 150, CHUNK))
def test_random_apps_run_as_if_in_position_order(start):
    for seed in range(start, start + CHUNK):
        failures = simulate_seed(seed).failures
        assert not failures, failures[0].text


def test_a_seed_always_makes_the_same_app_and_the_same_run():
    one, two = make_case(11), make_case(11)
    # as text: functions of windows are made anew, and equal nothing but themselves
    assert (str(one.spec), one.inputs, one.broken, one.config) == (str(two.spec), two.inputs, two.broken, two.config)
    assert run_case(one, "manual") == run_case(two, "manual")


def test_random_apps_have_everything_in_them():
    cases = [make_case(seed) for seed in range(160)]
    flows = [flow for case in cases for flow in case.spec.flows]
    procedures = [procedure for case in cases for procedure in case.spec.procedures()]
    ops = {op.kind for procedure in procedures for op in procedure.ops}
    assert {
        "get",
        "scan",
        "find",
        "count",
        "upsert",
        "insert",
        "delete",
        "delete_where",
        "update_each",
        "abort",
        "raise",
        "flaky",
        "break",
        "window",
    } <= ops
    assert {"sql_read", "sql_write", "move", "audit", "chance", "now"} <= ops
    assert {access.how for procedure in procedures for access in procedure.access} == {
        "table",
        "partition",
        "named",
        "committed",
    }
    named = [(p, access) for p in procedures for access in p.access if access.how == "named"]
    assert len([p for p, _ in named if not p.inputs]) > 20
    assert {frozenset(name.rpartition(".")[2] for name in access.by) for _, access in named} == {
        frozenset({"k"}),
        frozenset({"j"}),
        frozenset({"k", "j"}),
        frozenset({"", "j"}),
    }
    assert any("." in name for _, access in named for name in access.by)
    assert {len(flow.borders) for flow in flows} == {1, 2, 3}
    assert {flow.keyed for flow in flows} == {True, False}
    assert any(flow.awaited for flow in flows)
    assert any(flow.triggers for flow in flows)
    assert any(len(procedure.inputs) > 1 for procedure in procedures)
    eithers = [flow for flow in flows if any(procedure.either for procedure in flow.procedures)]
    assert len(eithers) > 30
    assert {flow.keyed for flow in eithers} == {True, False}
    assert any(flow.nested for flow in eithers)
    assert any(flow.awaited for flow in eithers)
    assert max(len(case.spec.flows) for case in cases) == 4  # one of them for what timers bring
    windows = [procedure.window for procedure in procedures if procedure.window is not None]
    kinds = {"count", "batches", "time", "session", "landmark", "slide_by_tuple", "slide_by_time", "delta", "join"}
    assert {window.kind for window in windows} == kinds | {"pattern"}
    patterns = [window for window in windows if window.kind == "pattern"]
    assert {window.select for window in patterns} == {"any", "next", "strict"}
    assert {len(window.streams) > 1 for window in patterns} == {True, False}
    assert any("!b)" in window.match for window in patterns)
    assert {window.compute is None for window in windows} == {True, False}
    assert any(case.two_phase for case in cases)
    assert any(case.config.get("cached_rows") for case in cases)
    assert {mode for seed in range(160) for mode in modes(seed, threads=False)} == {
        "manual",
        "serial",
        "threads",
    }
    for case in cases[:20]:
        try:
            build(case.spec, world()).app.graph()
        except DeclarationError as error:  # pragma: no cover
            pytest.fail(f"seed {case.seed} can't be declared: {error}")


# ---- mistakes planted on purpose: the oracle must find every one of them


def violations(seeds: range) -> Iterator[OrderViolation]:
    for seed in seeds:
        try:
            run_case(make_case(seed), "manual")
        except OrderViolation as violation:
            yield violation


def test_without_a_mistake_nothing_is_found():
    assert not list(violations(range(40)))


def test_an_old_reader_served_the_latest_version_is_found(monkeypatch):
    def read(table, key, position):
        newest, version = table.newest(key), below(table.chains.get(key), position)
        return newest if version is None or version is TRIMMED else version[1]

    trim = VersionedTable.trim
    monkeypatch.setattr(VersionedTable, "read", read)
    monkeypatch.setattr(
        VersionedTable, "trim", lambda table, positions, commits=(), keys=None: trim(table, (), commits, keys)
    )
    found = next(violations(range(200)))
    assert "differences" in str(found)


def test_versions_freed_below_the_mark_are_found(monkeypatch):
    trim = VersionedTable.trim
    monkeypatch.setattr(
        VersionedTable, "trim", lambda table, positions, commits=(), keys=None: trim(table, (), commits, keys)
    )
    assert any("was freed" in str(violation) for violation in violations(range(200)))


def test_versions_freed_at_commit_are_found(monkeypatch):
    commit = VersionedTable.commit
    monkeypatch.setattr(
        VersionedTable, "commit", lambda table, w, at, number, keep: commit(table, w, at, number, False)
    )
    assert any("was freed" in str(violation) for violation in violations(range(200)))


def test_versions_kept_for_nobody_are_found(monkeypatch):
    monkeypatch.setattr(VersionedTable, "trim", lambda table, positions, commits=(), keys=None: None)
    assert any("kept that no reader can reach" in str(violation) for violation in violations(range(50)))


def test_an_index_that_forgets_a_row_is_found_in_the_step_that_did_it(monkeypatch):
    monkeypatch.setattr(SecondaryIndex, "add", lambda index, row, key: None)
    found = next(violations(range(50)))
    assert "CorruptionError" in str(found)
    assert "and the rows have" in str(found)


def test_a_scheduler_that_ignores_stream_order_is_found(monkeypatch):
    def why(scheduler, execution):
        if execution.missing:
            return Reason(Why.INPUT, stream=min(execution.missing)), None
        block = scheduler.locks.blocker(execution.position, execution.reads, execution.writes)
        return (READY, None) if block is None else (Reason(Why.LOCK, item=block.item, behind=block.behind), block.until)

    monkeypatch.setattr(Scheduler, "_why", why)
    assert next(violations(range(200)))


def test_locks_that_are_always_granted_are_found(monkeypatch):
    monkeypatch.setattr(LowWaterMarks, "blocker", lambda marks, at, reads, writes: None)
    assert next(violations(range(200)))


def test_locks_that_do_not_see_a_table_and_its_partitions_overlap_are_found(monkeypatch):
    monkeypatch.setattr(
        locks._Intents, "overlapping", lambda intents, item: [found] if (found := intents._exact.get(item)) else []
    )
    assert next(violations(range(200)))


def test_locks_that_let_readers_past_writers_are_found(monkeypatch):
    def blocker(marks, at, reads, writes):
        for item in writes:
            mark = marks.low_water_mark(item)
            if mark is not None and mark < at:
                return Block(item, mark, mark)
        return None

    monkeypatch.setattr(LowWaterMarks, "blocker", blocker)
    assert next(violations(range(200)))


def test_a_named_partition_that_is_not_locked_is_found(monkeypatch):
    items = Scheduler._items

    def forgetful(scheduler, unit, key, partitions):
        fewer = {table: list(values)[:-1] if len(values) > 1 else values for table, values in partitions.items()}
        return items(scheduler, unit, key, fewer)

    monkeypatch.setattr(Scheduler, "_items", forgetful)
    assert next(violations(range(200)))


def test_rows_of_partitions_that_are_not_named_are_found(monkeypatch):
    monkeypatch.setattr(PartitionReader, "check", lambda reader, view, key: None)
    assert any("but was to work on" in str(violation) for violation in violations(range(200)))


def test_a_violation_is_told_with_a_small_history(monkeypatch):
    monkeypatch.setattr(LowWaterMarks, "blocker", lambda marks, at, reads, writes: None)
    monkeypatch.setattr(run, "SHRINK_S", 20.0)
    in_memory = (seed for seed in range(200) if seed % run.REOPEN_EVERY)  # shrinking takes many runs
    seed = next(seed for seed in in_memory if list(violations(range(seed, seed + 1))))
    (failure,) = [f for f in simulate_seed(seed, tries=5).failures if f.executor == "manual"]
    assert f"seed {seed}" in failure.text or "seed " in failure.text
    assert "inputs:" in failure.text
    assert "what happened:" in failure.text
    pushed = failure.text.partition("inputs:")[2].partition("what happened:")[0].strip().splitlines()
    assert len(pushed) < len(make_case(seed).inputs)
