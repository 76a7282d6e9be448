"""Looking ahead as long as it pays: the gauge, and a look-ahead that changes its mind."""

from __future__ import annotations

import random
from typing import Any

import tidegate
from tidegate.storage.schema import Column, Relation
from tidegate.storage.types import column_type
from tidegate.streams.windows import open_state
from tidegate.streams.windows.declare.functions import Whole
from tidegate.streams.windows.evaluate.ahead import LookAhead
from tidegate.streams.windows.evaluate.gauge import BATCHES, GLANCE, LONGEST, REST, Gauge
from tidegate.streams.windows.evaluate.plan import Plan


class Load:
    """Batches that take the time it is told, with look-ahead and without."""

    def __init__(self, ahead_s: float, without_s: float) -> None:
        self.now = 0.0
        self.takes = {True: ahead_s, False: without_s}
        self.ready = 1
        self.hopeless = False
        self.gauge = Gauge(lambda: self.now, lambda batches: self.hopeless, lambda: self.ready)
        self.spent = {True: 0.0, False: 0.0}

    def run(self, batches: int, waiting: bool = True) -> None:
        for _ in range(batches):
            self.gauge.slid(10, waiting)
            taken = self.takes[self.gauge.ahead]
            self.spent[self.gauge.ahead] += taken
            self.now += taken


def test_what_pays_is_kept_and_the_other_is_tried_less_and_less() -> None:
    for better in (True, False):
        load = Load(*((0.001, 0.003) if better else (0.003, 0.001)))
        load.run(6 * BATCHES)
        assert load.gauge.ahead is better
        before = load.spent[not better]
        load.run(2_000 * BATCHES)
        assert load.gauge.ahead is better
        share = (load.spent[not better] - before) / (load.spent[better] + load.spent[not better])
        assert 0 < share < 0.05  # it is tried again, which costs little


def test_it_changes_with_what_is_measured() -> None:
    load = Load(0.003, 0.001)
    load.run(6 * BATCHES)
    assert not load.gauge.ahead
    load.takes = {True: 0.0005, False: 0.001}
    load.run(20 * REST * BATCHES)
    assert load.gauge.ahead
    load.takes = {True: 0.005, False: 0.001}
    load.run(20 * REST * BATCHES)
    assert not load.gauge.ahead


def test_a_way_that_has_started_is_a_reason_to_measure_again() -> None:
    load = Load(0.003, 0.001)
    load.run(LONGEST * BATCHES)  # long rests by now
    assert not load.gauge.ahead
    load.takes[True], load.ready = 0.0005, 2
    load.run(8 * BATCHES)
    assert load.gauge.ahead


def test_where_there_is_too_little_to_do_it_is_not_even_tried() -> None:
    load = Load(0.003, 0.001)
    load.hopeless = True
    load.run(100 * BATCHES)
    assert not load.gauge.ahead
    assert load.spent[True] <= 0.003 * GLANCE
    assert str(load.gauge) == "not done: there is too little to evaluate"
    load.hopeless, load.takes[True] = False, 0.0005  # its function has more to do than before
    load.run(6 * BATCHES)
    assert load.gauge.ahead


def test_what_is_not_waited_for_says_nothing() -> None:
    load = Load(0.003, 0.001)
    load.run(10 * BATCHES, waiting=False)
    assert load.gauge.ahead
    assert str(load.gauge) == "whether it pays is not known yet"


def test_both_figures_are_told() -> None:
    load = Load(0.003, 0.001)
    load.run(6 * BATCHES)
    assert str(load.gauge) == ("a row takes 300 µs from end to end with it, 100 µs without: each batch in its turn")


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
