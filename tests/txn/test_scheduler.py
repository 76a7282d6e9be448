"""The scheduler by itself: batches in, decisions with reasons out."""

from __future__ import annotations

import random
from collections import Counter
from typing import Any

import pytest

from tidegate import App, Batch, partition
from tidegate.txn.execution import TRANSITIONS, Execution, Inputs, State, Why
from tidegate.txn.locks import Item, LowWaterMarks
from tidegate.txn.positions import describe, position
from tidegate.txn.scheduler import Scheduler


class Bench:
    """An app written as text, and a scheduler over it; batches have one row unless said otherwise."""

    def __init__(self, border: str, *procedures: str, nested: tuple[str, ...] = (), keyed: bool = False) -> None:
        """``Bench("b", "p: b > x | t u", "q: x")``: inputs, outputs, tables written (~t: read)."""
        self.app = app = App()
        tables: dict[str, None] = {}
        links = []
        for text in procedures:
            name, _, rest = text.partition(":")
            flow, _, access = rest.partition("|")
            inputs, _, outputs = flow.partition(">")
            links.append((name, inputs.split(), outputs.split(), access.split()))
            tables.update(dict.fromkeys(word.strip("~") for word in access.split()))
        for name in tables:
            app.table(f"CREATE TABLE {name} (a INTEGER PRIMARY KEY)", partition_by="a")
        for name in border.split():
            late = {"deadline_s": 9.0, "default": {"a": 0}} if name.startswith("answer") else {}
            app.stream(name, "a INTEGER", border=True, key="a" if keyed else None, **late)
        for name in dict.fromkeys(stream for _, _, outputs, _ in links for stream in outputs):
            app.stream(name, "a INTEGER")
        for name, inputs, outputs, access in links:

            def body(txn: Any, *batches: Any) -> None: ...

            body.__name__ = name
            wrap = partition if keyed and inputs else str
            reads = [wrap(word[1:]) for word in access if word[0] == "~"]
            writes = [wrap(word) for word in access if word[0] != "~"]
            app.procedure(inputs=inputs, outputs=outputs, reads=reads, writes=writes)(body)
        for members in nested:
            app.nested(*members.split(), name="nest")
        self.graph = app.graph()
        self.scheduler = Scheduler(self.graph)
        self.sequence = 0

    def next_sequence(self) -> int:
        self.sequence += 1
        return self.sequence

    def push(self, stream: str, batch_id: int, key: int | None = None) -> list[Execution]:
        return self.scheduler.admit(self.next_sequence(), self.batch(stream, batch_id, key))

    def batch(self, stream: str, batch_id: int, key: int | None = None) -> Batch:
        return Batch(self.app.streams[stream].relation, batch_id, ((0,),), key)

    def call(self, procedure: str) -> Execution:
        self.sequence += 1
        return self.scheduler.admit_call(self.sequence, self.graph.oltp[procedure], {})

    def run(self, execution: Execution, *emits: str) -> None:
        """Take it and finish it, with one batch on each of these streams."""
        self.scheduler.take(execution)
        self.finish(execution, *emits)

    def finish(self, execution: Execution, *emits: str) -> None:
        assert execution.batch_id is not None or not emits
        self.scheduler.finish(execution, {s: self.batch(s, execution.batch_id or 0, execution.key) for s in emits})

    @property
    def ready(self) -> list[str]:
        return [f"{e.unit.name}@{describe(e.position)}" for e in self.scheduler.ready()]


def why(execution: Execution) -> str:
    return str(execution.reason)


def test_a_batch_places_everything_it_may_cause_at_once() -> None:
    bench = Bench("b", "p: b > x", "q: x > y", "r: y")
    p, q, r = bench.push("b", 1)
    assert [describe(e.position) for e in (p, q, r)] == ["1.0", "1.1", "1.2"]
    assert (p.reason.why, q.reason.why) == (Why.READY, Why.INPUT)
    assert why(q) == "waits for its batch on stream x"
    bench.run(p, "x")
    assert bench.ready == ["q@1.1"]


def test_a_batch_without_rows_withdraws_what_depends_on_it() -> None:
    bench = Bench("b", "p: b > x | t", "q: x > y | u", "r: y | u")
    p, q, r = bench.push("b", 1)
    bench.run(p)
    assert bench.scheduler.withdrawn == [q, r]
    assert bench.scheduler.idle
    assert {q.state, r.state} == {State.WITHDRAWN}
    (p2, *_) = bench.push("b", 2)
    bench.run(p2, "x")
    assert bench.ready == ["q@2.1"], "the locks of the withdrawn are free"


def test_fan_in_is_withdrawn_when_one_input_has_no_rows() -> None:
    bench = Bench("b", "p: b > x y", "q: x > z", "r: y > w", "s: z w")
    p, q, r, s = bench.push("b", 1)
    bench.run(p, "x", "y")
    bench.run(q)
    assert s.state is State.WITHDRAWN
    bench.run(r, "w")
    assert bench.scheduler.idle


def test_batches_of_one_procedure_run_in_order() -> None:
    bench = Bench("b", "p: b")
    (first,) = bench.push("b", 1)
    (second,) = bench.push("b", 5)
    assert why(second) == "waits for its turn behind position 1.0"
    assert second.reason.why is Why.ORDER
    bench.run(first)
    assert bench.ready == ["p@2.0"]


def test_pipelines_overlap_where_nothing_conflicts() -> None:
    bench = Bench("b", "p: b > x", "q: x")
    p1, _ = bench.push("b", 1)
    p2, q2 = bench.push("b", 2)
    bench.run(p1, "x")
    assert bench.ready == ["q@1.1", "p@2.0"]
    bench.run(p2, "x")
    assert (bench.ready, q2.reason.why) == (["q@1.1"], Why.ORDER)


def test_who_waits_for_a_lock_is_asked_when_it_may_have_come_free_and_not_before(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Asking everybody whenever one has finished took 5 ms for each of 2,000."""
    asked: list[Any] = []
    blocker = LowWaterMarks.blocker
    monkeypatch.setattr(LowWaterMarks, "blocker", lambda *given: (asked.append(given), blocker(*given))[1])
    bench = Bench("a", "p: a", "w: | t")
    calls = [bench.call("w") for _ in range(100)]
    for call in calls:
        assert bench.ready == [f"w@{describe(call.position)}"]
        bench.run(call)
    assert len(asked) == 199  # each when it came, and each but the first when the one in front had gone


def test_order_over_a_shared_table_waits_for_the_lower_position() -> None:
    bench = Bench("a b", "p: a > x | t", "q: x | t", "r: b | ~t")
    p, q = bench.push("a", 1)
    (r,) = bench.push("b", 1)
    assert (r.reason.why, r.reason.item, r.reason.behind) == (Why.LOCK, Item("t"), p.position)
    assert why(r) == "waits for the lock on t behind position 1.0"
    bench.run(p, "x")
    bench.scheduler.waiting()
    assert r.reason.behind == q.position, "the intent of the unstarted consumer counts from admission"
    bench.run(q)
    assert bench.ready == ["r@2.0"]


def test_a_reader_holds_up_no_writer() -> None:
    bench = Bench("a b", "p: a | ~t", "q: b | t")
    (p,) = bench.push("a", 1)
    (q,) = bench.push("b", 1)
    assert bench.ready == ["p@1.0", "q@2.0"]
    bench.run(q)
    bench.run(p)


def test_keys_are_independent() -> None:
    bench = Bench("b", "p: b | t", keyed=True)
    bench.push("b", 1, key=1)
    (behind,) = bench.push("b", 2, key=1)
    bench.push("b", 1, key=2)
    assert bench.ready == ["p@1.0", "p@3.0"]
    assert behind.reason.why is Why.ORDER


def test_a_call_takes_its_place_in_the_order() -> None:
    bench = Bench("b", "p: b | t", "look: | ~t")
    (p,) = bench.push("b", 1)
    look = bench.call("look")
    assert look.reason.why is Why.LOCK
    bench.run(p)
    assert bench.ready == ["look@2.0"]
    assert str(look) == "look at position 2.0"


# ---- several border ancestors


def test_a_unit_takes_its_place_when_its_last_border_batch_is_there() -> None:
    bench = Bench("a b", "p: a b")
    assert bench.push("a", 1) == []
    (p,) = bench.push("b", 1)
    assert (describe(p.position), set(p.inputs)) == ("2.0", {"a", "b"})


def test_an_interior_batch_waits_for_the_other_border() -> None:
    bench = Bench("a b", "p: a > x", "q: x b")
    (p,) = bench.push("a", 1)
    bench.run(p, "x")
    (q,) = bench.push("b", 1)
    assert bench.ready == ["q@2.1"]
    bench.run(q)
    assert bench.scheduler.idle


def test_an_empty_interior_batch_withdraws_when_the_other_border_comes() -> None:
    bench = Bench("a b", "p: a > x", "q: x b")
    (p,) = bench.push("a", 1)
    bench.run(p)
    (q,) = bench.push("b", 1)
    assert (q.state, bench.scheduler.idle) == (State.WITHDRAWN, True)


def test_a_gap_in_one_stream_drops_what_can_never_be_complete() -> None:
    bench = Bench("a b", "p: a b")
    bench.push("a", 1)
    bench.push("a", 2)
    (p,) = bench.push("b", 2)
    assert p.batch_id == 2
    assert bench.scheduler.partial == {}, "batch 1 on b can't come any more"


# ---- nested transactions and people


def asking() -> Bench:
    return Bench("b answers", "ask: b > x | t", "decide: x answers | t", nested=("ask decide",), keyed=True)


def test_a_suspended_execution_keeps_its_locks_and_its_place() -> None:
    bench = asking()
    (open_one,) = bench.push("b", 1, key=7)
    (behind,) = bench.push("b", 2, key=7)
    bench.push("b", 1, key=8)
    bench.scheduler.take(open_one)
    bench.scheduler.suspend(open_one, "answers")
    assert why(open_one) == "waits for its batch on stream answers"
    assert bench.ready == ["nest@3.0"], "another patient goes on"
    assert bench.scheduler.awaiting("answers", 7) is open_one
    assert bench.push("answers", 1, key=7) == [open_one]
    assert bench.ready[0] == "nest@1.0"
    bench.run(open_one)
    assert behind.state is State.READY


def test_an_answer_before_its_question_is_kept() -> None:
    bench = asking()
    assert bench.push("answers", 5, key=7) == []
    (execution,) = bench.push("b", 5, key=7)
    assert set(execution.inputs) == {"b", "answers"}


def test_an_answer_while_it_runs_wakes_it_when_it_asks() -> None:
    bench = asking()
    (execution,) = bench.push("b", 1, key=7)
    bench.scheduler.take(execution)
    bench.push("answers", 1, key=7)
    bench.scheduler.suspend(execution, "answers")
    assert execution.state is State.READY


def test_the_oldest_unanswered_question_is_awaited_even_before_it_is_asked() -> None:
    """Else an answer to a later question could be accepted first, and the older one never any more."""
    bench = asking()
    (first,) = bench.push("b", 1, key=7)
    bench.push("b", 2, key=7)
    assert bench.scheduler.awaiting("answers", 7) is first
    bench.push("answers", 1, key=7)
    assert bench.scheduler.awaiting("answers", 7) is not first


# ---- halting


def test_a_halted_dataflow_lets_go_of_its_locks_and_others_go_on() -> None:
    bench = Bench("a b", "p: a > x | t", "q: x | t", "r: b | t")
    p, q = bench.push("a", 1)
    (later, _) = bench.push("a", 2)
    bench.push("b", 1)
    bench.scheduler.take(p)
    bench.scheduler.halt(p)
    assert bench.ready == ["r@3.0"]
    assert {e.state for e in (p, q, later)} == {State.PARKED}
    assert why(later) == "is parked: its dataflow is halted in front of position 1.0"
    (new, _) = bench.push("a", 3)
    assert (new.state, new.reason.why) == (State.PARKED, Why.HALTED)


@pytest.mark.parametrize("started", [False, True])
def test_a_halt_puts_nothing_aside_that_was_open_when_its_state_was_saved(started: bool) -> None:
    bench = Bench("a answer", "p: a > x | t", "q: x answer | t", "r: a | u", nested=("p q",), keyed=True)
    unit = next(unit for unit in bench.graph.units if unit.nested)
    inputs: Inputs = {"a": bench.batch("a", 1, 7)}
    opened = bench.scheduler.readmit(unit, position(1, 0), 7, 1, inputs, set(), 1, started)
    bench.sequence = 1
    other = next(e for e in bench.push("a", 2, 7) if e.unit.name == "r")
    bench.scheduler.reconsider([opened], [], [])
    parked = bench.scheduler.halt(bench.scheduler.take(other))
    assert (opened.position in parked) is not started
    assert opened.state is (State.READY if started else State.PARKED)


def test_resuming_admits_again_in_the_old_order_at_new_positions() -> None:
    bench = Bench("a b", "p: a > x | t", "q: x | t", "r: b | t")
    p, q = bench.push("a", 1)
    (later, _) = bench.push("a", 2)
    bench.scheduler.take(p)
    bench.scheduler.halt(p)
    (r,) = bench.push("b", 1)

    def next_sequence() -> int:
        bench.sequence += 1
        return bench.sequence

    bench.scheduler.resume([("p", None)], next_sequence)
    assert [describe(e.position) for e in (p, q, later)] == ["4.0", "4.1", "5.0"]
    assert bench.ready == ["r@3.0"], "what came in meanwhile stands in front now"
    bench.run(r)
    bench.run(p, "x")
    bench.run(q)
    assert bench.ready == ["p@5.0"]


def test_a_parked_consumer_gets_the_batch_of_a_producer_that_was_running() -> None:
    bench = Bench("b", "p: b > x", "q: x", "r: b", keyed=True)
    p, q, r = sorted(bench.push("b", 1, key=1), key=lambda e: e.unit.name)
    bench.scheduler.take(p)
    bench.scheduler.take(r)
    bench.scheduler.halt(r)
    bench.finish(p, "x")
    assert (q.state, q.missing) == (State.PARKED, set())


def test_a_halt_of_one_key_parks_that_key_alone_and_gives_up_its_intents() -> None:
    bench = Bench("b", "p: b > x | t", "q: x | t", keyed=True)
    p1, q1 = bench.push("b", 1, key=1)
    p2, q2 = bench.push("b", 1, key=2)
    bench.scheduler.halt(bench.scheduler.take(p1))
    assert {e.state for e in (p1, q1)} == {State.PARKED}
    assert bench.ready == [f"p@{describe(p2.position)}"]
    bench.run(p2, "x")
    bench.run(q2)
    (later, _) = bench.push("b", 2, key=1)
    assert later.state is State.PARKED
    bench.scheduler.resume([("p", 1)], bench.next_sequence, skip=True)
    assert (p1.state, q1.state) == (State.WITHDRAWN, State.WITHDRAWN)
    assert bench.ready == [f"p@{describe(later.position)}"]


def test_finishing_in_any_order_leaves_nothing_behind() -> None:
    """A seeded driver: any choice among the ready is correct, and everything drains."""
    import random

    for seed in range(12):
        rng = random.Random(seed)
        bench = Bench("a b", "p: a > x | t", "q: x | u", "r: b x | t u", "s: b | ~t")
        for batch_id in range(1, 6):
            for stream in rng.sample(["a", "b"], 2):
                bench.push(stream, batch_id)
        running: list[Execution] = []
        while bench.scheduler.ready() or running:
            if bench.scheduler.ready() and rng.random() < 0.6:
                running.append(bench.scheduler.take(rng.choice(bench.scheduler.ready())))
            elif running:
                done = running.pop(rng.randrange(len(running)))
                bench.finish(done, *(["x"] if done.unit.name == "p" and rng.random() < 0.7 else []))
        scheduler = bench.scheduler
        assert scheduler.idle
        assert (scheduler.locks.marks(), scheduler._queues, scheduler._by_batch) == ({}, {}, {})
        assert not any(scheduler._blocked.values())


@pytest.mark.parametrize("state", [State.FINISHED, State.WITHDRAWN])
def test_ended_executions_never_come_back(state: State) -> None:
    assert TRANSITIONS[state] == frozenset()


def test_a_wrong_transition_is_an_error_that_says_so() -> None:
    bench = Bench("b", "p: b")
    (p,) = bench.push("b", 1)
    with pytest.raises(AssertionError, match=r"p on batch 1 at position 1.0 can't go from State.READY to"):
        bench.scheduler.finish(p, {})


def test_what_was_taken_out_of_turn_is_forgotten() -> None:
    """A replay takes executions in the order of the log; one that stays ready must not keep the others alive."""
    bench = Bench("b", "p: b | t", keyed=True)
    (first,) = bench.push("b", 1, key=0)
    for key in range(1, 200):
        (execution,) = bench.push("b", 1, key=key)
        bench.run(execution)
    assert bench.scheduler.ready() == [first]
    assert len(bench.scheduler._ready) < 5
    assert bench.scheduler.next() is first


# ---- what is asked often is answered without looking through everything


@pytest.mark.parametrize("seed", range(20))
def test_what_is_kept_at_hand_is_what_a_look_through_all_finds(seed: int) -> None:
    rng = random.Random(seed)
    bench = Bench(
        "b c answers", "ask: b > x | t", "decide: x answers | t", "note: c | u ~t", nested=("ask decide",), keyed=True
    )
    scheduler = bench.scheduler
    numbers: Counter[tuple[str, int]] = Counter()
    running: list[Execution] = []
    open_ones: list[Execution] = []
    for _ in range(150):
        step = rng.choice(["push", "push", "take", "take", "end", "answer", "answer", "halt", "resume"])
        if step == "push":
            stream, key = rng.choice("bc"), rng.randrange(3)
            numbers[stream, key] += 1
            bench.push(stream, numbers[stream, key], key)
        elif step == "take" and scheduler.ready():
            running.append(scheduler.take(rng.choice(scheduler.ready())))
        elif step == "end" and running:
            execution = running.pop(rng.randrange(len(running)))
            if execution.unit.name == "nest" and execution.inputs.get("answers") is None:
                scheduler.suspend(execution, "answers")
                open_ones.append(execution)
            else:
                bench.finish(execution)
        elif step == "answer" and open_ones:
            execution = open_ones.pop(rng.randrange(len(open_ones)))
            assert execution.batch_id is not None
            bench.push("answers", execution.batch_id, execution.key)
        elif step == "halt" and running and not scheduler.halted:
            scheduler.halt(running.pop())
        elif step == "resume" and scheduler.halted:
            scheduler.resume([next(iter(scheduler.halted))], bench.next_sequence)
        live = scheduler.live
        for table in "tu":
            having = sorted(at for at, e in live.items() if any(i.table == table for i in (*e.reads, *e.writes)))
            assert scheduler.open_positions(table) == having
            middle = rng.choice([0, *live])
            assert scheduler.open_positions(table, below=middle) == [at for at in having if at < middle]
        for key in range(3):
            lacking = [e for e in live.values() if e.unit.name == "nest" and e.key == key and "answers" not in e.inputs]
            assert scheduler.awaiting("answers", key) is min(lacking, default=None)
        assert scheduler.any_suspended is bool(scheduler.suspended())
