"""Which way an evaluation goes, with a timer that says what things cost."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from plan_cases import RELATION, columns_of, spec_of

from tidegate.streams.windows.declare.functions import Extent, Whole
from tidegate.streams.windows.declare.patterns import Sequential, WindowFarm
from tidegate.streams.windows.evaluate.choosing import FORGOTTEN
from tidegate.streams.windows.evaluate.local import HERE, PROCESSES, THREADS, Way
from tidegate.streams.windows.evaluate.plan import Plan
from tidegate.streams.windows.evaluate.tasks import Outcome, Task, Work, carry_out


class Machine:
    """A backend on which everything takes the time it is told, and the timer that shows it."""

    replicas = 1
    place = "a machine"
    only = None

    def __init__(self, cost_s: float, threads: float = 1.0, processes: float = 1.0) -> None:
        self.now = 0.0
        self.cost_s = cost_s
        self.speedup = {HERE: 1.0, THREADS: threads, PROCESSES: processes}
        self.ran: list[tuple[str, int, int]] = []  # way, workers, tasks
        self.notes: list[str] = []
        self.started = self.ready = False

    def timer(self) -> float:
        return self.now

    def spend(self, extent: Extent) -> int:
        """The window function."""
        self.now += self.cost_s
        return extent.number

    def ways(self, work: Work) -> Sequence[Way]:
        return [
            Way(HERE),
            Way(THREADS, 0.003),
            Way(PROCESSES, 0.025, 0.0 if self.ready else 1.0, self.started and not self.ready),
        ]

    def workers(self, asked: int) -> int:
        return asked

    def start(self, way: str, workers: int) -> None:
        assert not self.started
        self.started = True

    def run(self, way: str, tasks: Sequence[Task], workers: int) -> list[Outcome]:
        self.ran.append((way, workers, len(tasks)))
        began = self.now
        outcomes = [carry_out(task) for task in tasks]
        self.now = began + (self.now - began) / self.speedup[way]
        return outcomes

    def close(self) -> None:
        pass


def plan_on(machine: Machine, pattern: Any = WindowFarm(2)) -> Plan:  # noqa: B008
    return Plan(spec_of("session", Whole(machine.spend, "n BIGINT"), pattern), RELATION, machine, timer=machine.timer)


def windows(count: int) -> list[Extent]:
    columns = columns_of("ann", 10)
    return [Extent(i, ("ann",), 0, 1, columns) for i in range(count)]


def evaluate(plan: Plan, count: int) -> str:
    assert plan.whole(windows(count)) == list(range(count))
    return plan.decisions["whole"].way


def test_little_work_stays_here_and_says_why() -> None:
    machine = Machine(0.0001)
    plan = plan_on(machine)
    assert [evaluate(plan, 8) for _ in range(5)] == [HERE] * 5
    assert not machine.ran
    assert (
        "windows   100 µs per window measured over 32 windows, 8 waiting: 800 µs of work, below the 3.0 ms at which "
        "two threads pay: in this process" in plan.explain()
    )


def test_sequential_never_asks() -> None:
    machine = Machine(1.0)
    plan = plan_on(machine, Sequential())
    assert evaluate(plan, 5) == HERE
    assert not machine.ran
    assert "1.0 s per window measured over 5 windows; one worker: in this process" in plan.explain()


def test_threads_are_tried_and_kept_where_they_help() -> None:
    machine = Machine(0.002, threads=1.9)
    plan = plan_on(machine)
    assert [evaluate(plan, 40) for _ in range(4)] == [THREADS] * 4
    assert not machine.started  # as good as it gets: no need for processes
    assert "processes are not started, since threads save most of what 2 workers can" in plan.explain()
    assert (
        "measured per window: 2.0 ms in this process, 1.1 ms in threads: in two threads, 4 chunks each"
        in plan.explain()
    )


def test_threads_are_given_up_where_they_do_not_help() -> None:
    machine = Machine(0.0005, threads=0.8)
    plan = plan_on(machine)
    assert [evaluate(plan, 40) for _ in range(4)] == [THREADS, HERE, HERE, HERE]


def test_processes_start_when_they_have_become_worth_it() -> None:
    machine = Machine(0.01, threads=1.0, processes=1.7)
    plan = plan_on(machine)
    while not machine.started:
        assert evaluate(plan, 20) in (HERE, THREADS)
    assert 0.8 < machine.now < 1.3  # about what the start costs
    assert evaluate(plan, 20) in (HERE, THREADS)  # not ready yet: nobody waits for them
    machine.ready = True
    assert [evaluate(plan, 20) for _ in range(3)] == [PROCESSES] * 3
    assert machine.ran[-1] == (PROCESSES, 2, 8)
    assert "in two processes, 4 chunks each" in plan.explain()
    assert evaluate(plan, 2) != PROCESSES  # too little for them


def test_each_way_waits_for_its_own_price() -> None:
    """Work that would have paid for a cheap start does not count twice towards a dear one."""

    class Third(Machine):
        def ways(self, work: Work) -> Sequence[Way]:
            return [*super().ways(work), Way("others", 0.1, 8.0)]

    machine = Third(0.01)
    plan = plan_on(machine)
    evaluate(plan, 52)
    assert (
        "500 ms of such work so far, less than the 1.0 s to start processes; "
        "500 ms of such work so far, less than the 8.0 s to start others" in plan.explain()
    )


def test_what_has_the_same_cores_is_not_started_but_used_if_it_runs() -> None:
    class Third(Machine):
        starts_in = 8.0

        def ways(self, work: Work) -> Sequence[Way]:
            return [*super().ways(work), Way("others", 0.1, self.starts_in, like=PROCESSES)]

    machine = Third(0.01, processes=1.1)
    machine.started = machine.ready = True
    machine.speedup["others"] = 1.8
    plan = plan_on(machine)
    assert {evaluate(plan, 40) for _ in range(100)} == {THREADS, PROCESSES}  # 40 s of work
    assert "others are not started, since they would have no other cores than processes" in plan.explain()
    machine.starts_in = 0.0
    assert [evaluate(plan, 40) for _ in range(3)] == ["others"] * 3


def test_a_round_trip_counts_for_few_as_it_did_for_many() -> None:
    """What 100 windows took, with a round trip of 50 ms, says little about 10."""

    class Far(Machine):
        def run(self, way: str, tasks: Sequence[Task], workers: int) -> list[Outcome]:
            outcomes = super().run(way, tasks, workers)
            self.now += 0.05 if way == PROCESSES else 0.0
            return outcomes

    machine = Far(0.005, processes=2.0)
    machine.started = machine.ready = True
    plan = plan_on(machine)
    assert [evaluate(plan, 100) for _ in range(4)] == [THREADS, PROCESSES, PROCESSES, PROCESSES]
    assert evaluate(plan, 10) in (HERE, THREADS)  # 50 ms here, 75 ms there
    assert evaluate(plan, 50) == PROCESSES  # 250 ms here, 175 ms there


def test_a_window_without_a_pattern_goes_to_all_workers_once_they_are_known() -> None:
    machine = Machine(0.01, threads=1.9)
    machine.replicas = 2
    plan = plan_on(machine, None)
    evaluate(plan, 24)
    machine.replicas = 8  # of a cluster that has started meanwhile
    evaluate(plan, 24)
    assert machine.ran[-1][1] == 8
    named = plan_on(machine)
    evaluate(named, 24)
    assert machine.ran[-1][1] == 2


def test_processes_that_do_not_help_are_given_up_and_tried_again_later() -> None:
    machine = Machine(0.01, threads=1.2, processes=0.5)
    machine.started = machine.ready = True
    plan = plan_on(machine)
    ways = [evaluate(plan, 10) for _ in range(FORGOTTEN + 20)]
    assert ways[:4] == [THREADS, PROCESSES, THREADS, THREADS]
    assert ways[4:].count(PROCESSES) == 1


def test_the_first_evaluation_does_not_wait_until_all_is_done() -> None:
    """Two windows show what one costs; the others go where that says."""
    machine = Machine(0.5, processes=2.0)
    machine.started = machine.ready = True
    plan = plan_on(machine)
    evaluate(plan, 50)
    assert machine.ran == [(THREADS, 2, 8)]


def test_chunks_follow_the_work() -> None:
    for cost, tasks in ((0.0005, 2), (0.002, 6), (0.01, 8)):
        machine = Machine(cost)
        evaluate(plan_on(machine), 17)
        assert machine.ran == [(THREADS, 2, tasks)], cost


@pytest.mark.parametrize("workers", [1, 2])
def test_one_core_is_no_place_for_workers(workers: int) -> None:
    machine = Machine(0.1)
    machine.workers = lambda asked: workers  # type: ignore[method-assign]
    plan = plan_on(machine)
    assert (evaluate(plan, 10) == HERE) == (workers == 1)
    assert ("one core: in this process" in plan.explain()) == (workers == 1)
