"""Random apps with streams that have a key of their own, and mistakes planted in how executions are divided by it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tidegate.testing import OrderViolation
from tidegate.testing.simulation.run import Case, make_case, run_case, simulate_seed
from tidegate.txn import division
from tidegate.txn.division import Division, keys_of
from tidegate.txn.execution import State


def rekeyed(seeds: range) -> Iterator[Case]:
    """The cases among these seeds that have such streams."""
    for seed in seeds:
        case = make_case(seed)
        if any(flow.rekeyed for flow in case.spec.flows):
            yield case


def first_violation(seeds: range = range(2000)) -> OrderViolation:
    for case in rekeyed(seeds):
        try:
            run_case(case, "manual")
        except OrderViolation as violation:
            return violation
    pytest.fail("the mistake was not found")


@pytest.mark.parametrize("start", range(1000, 1100, 25))
def test_random_apps_with_keys_on_interior_streams_run_as_if_in_position_order(start):
    for case in rekeyed(range(start, start + 25)):
        failures = simulate_seed(case.seed).failures
        assert not failures, failures[0].text


def test_such_apps_have_everything_in_them():
    flows = [flow for case in rekeyed(range(400)) for flow in case.spec.flows if flow.rekeyed]
    assert {flow.keyed for flow in flows} == {True, False}
    assert {column for flow in flows for _, column in flow.rekeyed} == {"k", "j"}
    behind = [(f, p) for f in flows for p in f.procedures if set(p.inputs) & {stream for stream, _ in f.rekeyed}]
    assert {a.how for _, p in behind for a in p.access} >= {"table", "partition", "named"}
    assert {p.either for _, p in behind} == {True, False}
    assert {p.on_failure for _, p in behind} == {"halt", "dead_letter"}
    assert any(p.window is not None for _, p in behind)
    assert any(len(p.inputs) > 1 and not p.either for _, p in behind)
    assert any(p.name in group for f, p in behind for group in f.nested)
    assert any(f.awaited and p.name in group for f, p in behind for group in f.nested if group[0] == p.name)
    further = {s for _, p in behind for s in p.outputs}
    assert any(set(p.inputs) & further for f in flows for p in f.procedures)
    assert any(any("." in name for a in p.access for name in a.by) for _, p in behind)


# ---- mistakes planted on purpose


def test_intents_narrowed_before_the_keys_are_known_are_found(monkeypatch):
    monkeypatch.setattr(Division, "_items_of_all", lambda division, unit, partitions: ((), ()))
    first_violation()


def test_keys_in_the_wrong_order_are_found(monkeypatch):
    monkeypatch.setattr(division, "keys_of", lambda whole: keys_of(whole)[::-1])
    first_violation()


def test_a_forgotten_key_is_found(monkeypatch):
    monkeypatch.setattr(division, "keys_of", lambda whole: keys_of(whole)[:2])
    first_violation()


def test_a_forgotten_partition_is_found(monkeypatch):
    part_of, items = Division._part_of, []

    def unlocked(division, whole, key, at):
        items[:] = [division._items]
        division._items = lambda unit, key, partitions: (items[0](unit, key, partitions)[0], ())
        try:
            return part_of(division, whole, key, at)
        finally:
            del division._items

    monkeypatch.setattr(Division, "_part_of", unlocked)
    first_violation()


def test_batches_of_a_key_that_overtake_one_another_are_found(monkeypatch):
    def divide(division, unit):
        for whole in list(division._lines.get(unit.name, ())):
            if whole.state is State.WAITING and not whole.missing:
                division._divide(whole)

    monkeypatch.setattr(Division, "_divide_in_order", divide)
    first_violation()
