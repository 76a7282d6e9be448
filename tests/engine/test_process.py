"""What an open engine changes in its process, and that it puts it back."""

from __future__ import annotations

import gc
import sys
import weakref
from collections.abc import Iterator
from pathlib import Path

import pytest

import tidegate
from tidegate import App, TidegateError
from tidegate import tuning as process

USUAL = (700, 10, 10)


@pytest.fixture(autouse=True)
def nothing_frozen(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Before and after each test no engine is open and nothing is frozen."""
    monkeypatch.setattr(process, "_open", 0)  # another test may have left one behind
    monkeypatch.setattr(process, "_thresholds", None)
    gc.unfreeze()
    before = gc.get_threshold()
    gc.set_threshold(*USUAL)
    yield
    assert gc.get_freeze_count() == 0
    gc.set_threshold(*before)


def test_what_existed_before_is_left_out_of_collections_while_an_engine_is_open() -> None:
    first, second = tidegate.open(App("one")), tidegate.open(App("two"))
    assert gc.get_freeze_count() > 1_000
    first.close()
    first.close()
    assert gc.get_freeze_count() > 1_000  # the other one is still open
    second.close()


def test_full_collections_are_rarer_while_an_engine_is_open() -> None:
    first, second = tidegate.open(App("one")), tidegate.open(App("two"))
    assert gc.get_threshold() == (700, 10, 10 * process.RARER)
    first.close()
    assert gc.get_threshold() == (700, 10, 10 * process.RARER)
    second.close()
    assert gc.get_threshold() == USUAL


def test_thresholds_that_someone_else_sets_meanwhile_stay() -> None:
    with tidegate.open(App("one")):
        gc.set_threshold(5_000, 20, 30)
    assert gc.get_threshold() == (5_000, 20, 30)


@pytest.mark.parametrize("another", [False, True], ids=["alone", "beside-another"])
def test_what_is_left_of_closed_engines_goes(another: bool) -> None:
    """Freezing must not keep full collections from ever coming in a process that opens one engine after the other."""
    beside = tidegate.open(App("beside")) if another else None
    left: list[weakref.ref[tidegate.Engine]] = []
    for _ in range(40):
        engine = tidegate.open(App("one"))
        left.append(weakref.ref(engine))
        kept = [[] for _ in range(10_000)]  # type: ignore[var-annotated]  # work for short collections
        engine.close()
        del engine, kept
    there = sum(ref() is not None for ref in left)
    if beside is not None:
        beside.close()
    assert there < 30


def test_a_process_with_rules_of_its_own_is_left_alone() -> None:
    with tidegate.open(App("one"), tune_process=False):
        assert gc.get_freeze_count() == 0
        assert gc.get_threshold() == USUAL


def test_an_abandoned_engine_puts_it_back_too() -> None:
    tidegate.open(App("one")).abandon()


def test_other_values_are_refused() -> None:
    with pytest.raises(TidegateError, match="tune_process must be True or False, got 'yes'"):
        tidegate.open(App("one"), tune_process="yes")


@pytest.fixture
def counter() -> App:
    app = App("counter")
    app.table("CREATE TABLE t (id BIGINT PRIMARY KEY)")
    app.stream("events", "id BIGINT", border=True)

    @app.procedure(inputs="events", writes=["t"])
    def add(txn: tidegate.Transaction, events: tidegate.Batch) -> None:
        for event in events:
            txn.insert("t", event)

    return app


@pytest.fixture
def usual_turns() -> Iterator[float]:
    before = sys.getswitchinterval()
    sys.setswitchinterval(0.005)
    yield 0.005
    sys.setswitchinterval(before)


def push(engine: tidegate.Engine, number: int, listen: bool) -> None:
    ticket = engine.push("events", [(number,)])
    if listen:
        ticket.listen(lambda _: None)
    ticket.result()


def test_threads_take_turns_faster_while_somebody_listens(counter: App, usual_turns: float, tmp_path: Path) -> None:
    with tidegate.open(counter, tmp_path / "one") as engine, tidegate.open(App("two"), tmp_path / "two"):
        push(engine, 1, listen=False)
        assert sys.getswitchinterval() == usual_turns
        push(engine, 2, listen=True)
        push(engine, 3, listen=True)
        assert sys.getswitchinterval() == process.QUICK_S
        push(engine, 4, listen=False)
        push(engine, 5, listen=False)
        assert sys.getswitchinterval() == usual_turns
        push(engine, 6, listen=True)
        push(engine, 7, listen=True)
    assert sys.getswitchinterval() == usual_turns


def test_turns_that_somebody_else_sets_stay(counter: App, usual_turns: float, tmp_path: Path) -> None:
    with tidegate.open(counter, tmp_path / "one") as engine:
        push(engine, 1, listen=True)
        push(engine, 2, listen=True)
        sys.setswitchinterval(0.003)
    assert sys.getswitchinterval() == pytest.approx(0.003)
    sys.setswitchinterval(0.0002)
    with tidegate.open(counter, tmp_path / "two") as engine:
        push(engine, 1, listen=True)
        push(engine, 2, listen=True)
        assert sys.getswitchinterval() == pytest.approx(0.0002)
    assert sys.getswitchinterval() == pytest.approx(0.0002)


def test_turns_are_left_alone_when_asked_to(counter: App, usual_turns: float, tmp_path: Path) -> None:
    with tidegate.open(counter, tmp_path, tune_process=False) as engine:
        push(engine, 1, listen=True)
        push(engine, 2, listen=True)
        assert sys.getswitchinterval() == usual_turns
