"""Looking ahead as long as it pays: the gauge, and a look-ahead that changes its mind."""

from __future__ import annotations

import random
import re
from typing import Any

import pytest

import tidegate
from tidegate.storage.schema import Column, Relation
from tidegate.storage.types import column_type
from tidegate.streams.windows import open_state
from tidegate.streams.windows.declare.functions import Whole
from tidegate.streams.windows.evaluate.ahead import LookAhead
from tidegate.streams.windows.evaluate.gauge import Gauge
from tidegate.streams.windows.evaluate.plan import Plan


class Load:
    """Batches that take the time it is told, with look-ahead and without; with it eight of them are evaluated together, and the
    first of them waits for all.
    """

    def __init__(self, ahead_s: float, without_s: float) -> None:
        self.now = 0.0
        self.takes = {True: ahead_s, False: without_s}
        self.ready = 1
        self.hopeless = False
        self.gauge = Gauge(lambda: self.now, lambda: self.hopeless, lambda: self.ready)
        self.spent = {True: 0.0, False: 0.0}
        self.groups = self.left = 0

    def run(self, seconds: float, waiting: bool = True) -> None:
        until = self.now + seconds
        while self.now < until:
            self.gauge.slid(10, waiting, self.groups, self.left)
            ahead = self.gauge.ahead
            if ahead and not self.left:
                self.groups, self.left, taken = self.groups + 1, 8, 8 * self.takes[True]
            else:
                taken = 0.0 if self.left else self.takes[False]
            self.left = max(0, self.left - 1)
            self.spent[ahead] += taken
            self.now += taken


def test_what_pays_is_kept_and_the_other_is_tried_less_and_less() -> None:
    for better in (True, False):
        load = Load(*((0.001, 0.003) if better else (0.003, 0.001)))
        load.run(3)
        assert load.gauge.ahead is better
        before = load.spent[not better]
        load.run(600)
        assert load.gauge.ahead is better
        share = (load.spent[not better] - before) / (load.spent[better] + load.spent[not better])
        assert 0 < share < 0.03  # it is tried again, which costs little


def test_a_way_that_loses_by_much_is_tried_less_often() -> None:
    spent = []
    for without_s in (0.0012, 0.010):
        load = Load(0.001, without_s)
        load.run(2)
        before = load.spent[False]
        load.run(60)
        spent.append(load.spent[False] - before)
    assert 0 < spent[1] < spent[0] < 0.1 * 60


def test_a_turn_with_look_ahead_holds_whole_evaluations() -> None:
    load = Load(0.002, 0.0024)  # 8 batches at a time: one comes after 16 ms, seven at once
    load.run(5)
    assert load.gauge.each[True] == pytest.approx(0.0002, rel=0.2)
    assert load.gauge.each[False] == pytest.approx(0.00024)
    assert load.gauge.ahead


def test_the_best_of_the_last_turns_counts() -> None:
    load = Load(0.001, 0.002)
    load.run(3)
    assert load.gauge.ahead
    load.takes[True] = 0.004  # something else keeps the machine busy
    load.run(0.15)
    assert load.gauge.ahead
    load.run(2)
    assert not load.gauge.ahead


def test_it_changes_with_what_is_measured() -> None:
    load = Load(0.003, 0.001)
    load.run(3)
    assert not load.gauge.ahead
    load.takes = {True: 0.0005, False: 0.001}
    load.run(60)
    assert load.gauge.ahead
    load.takes = {True: 0.005, False: 0.001}
    load.run(3)
    assert not load.gauge.ahead


def test_a_way_that_has_started_is_a_reason_to_measure_again() -> None:
    load = Load(0.003, 0.001)
    load.run(1_000)  # long rests by now
    assert not load.gauge.ahead
    load.takes[True], load.ready = 0.0005, 2
    load.run(2)
    assert load.gauge.ahead


def test_where_it_is_known_not_to_pay_it_is_not_even_tried() -> None:
    load = Load(0.003, 0.001)
    load.hopeless = True
    load.run(10)
    assert not load.gauge.ahead
    assert load.spent[True] == 0
    assert str(load.gauge) == "not done: there is too little to evaluate"
    load.hopeless, load.takes[True] = False, 0.0005  # its function has more to do than before
    load.run(3)
    assert load.gauge.ahead


def test_time_counts_from_when_batches_are_announced() -> None:
    load = Load(0.002, 0.001)
    for _ in range(100):  # each time only a few wait, and evaluating them begins before the first of them slides
        load.gauge.announced()
        if load.gauge.ahead:
            load.now, load.groups = load.now + 0.02, load.groups + 1
        for waiting in range(9, -1, -1):
            load.gauge.slid(10, waiting > 0, load.groups, 0)
            load.now += 0.0001 if load.gauge.ahead else 0.001
    assert load.gauge.each[True] == pytest.approx(0.00021, rel=0.05)
    assert not load.gauge.ahead


def test_what_is_not_waited_for_says_nothing() -> None:
    load = Load(0.003, 0.001)
    load.run(10, waiting=False)
    assert load.gauge.ahead
    assert str(load.gauge) == "whether it pays is not known yet"


def test_both_figures_are_told() -> None:
    load = Load(0.003, 0.001)
    load.run(5)
    found = re.fullmatch(
        r"a row takes 3\d\d µs from end to end with it, 100 µs without: each batch in its turn", str(load.gauge)
    )
    assert found


def test_changing_its_mind_changes_no_result() -> None:
    relation = Relation("points", (Column("x", column_type("BIGINT")),))
    compute = Whole(lambda extent: int(extent["x"].sum()), "total BIGINT")
    spec = tidegate.window("points", count=4, slide=2, compute=compute)
    plan = Plan(spec, relation, timer=lambda: 0.0)

    def opened() -> Any:
        return open_state(spec, relation, plan)

    rng = random.Random(7)
    batches: list[Any] = [[(rng.randrange(100),) for _ in range(rng.randint(1, 5))] for _ in range(200)]
    ahead = LookAhead(plan, opened, 64, background=False, measured=True)
    state, plain = ahead.attach((), opened()), opened()
    assert ahead.gauge is not None
    found, expected, coming = [], [], 0
    for number, batch in enumerate(batches):
        while coming < min(len(batches), number + rng.randint(1, 20)):
            ahead.coming((), batches[coming], 0)
            coming += 1
        ahead.gauge.ahead = rng.random() < (0.9 if number // 20 % 2 else 0.2)
        for slid, results in ((state.slide(batch), found), (plain.slide(batch), expected)):
            results.extend(tuple(row) for row in slid.results)
            slid.commit()
    assert found == expected
    assert len(found) > 100
    assert 0 < ahead.used < len(batches)
    assert not ahead.pending
