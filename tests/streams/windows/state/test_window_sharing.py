"""Windows with the same panes: what each gives is what it would give alone, and the work is done once."""

from __future__ import annotations

import random
import threading
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

import tidegate
from tidegate import windows as w
from tidegate.streams.windows.state.sharing import BEHIND, EMPTY, Sharing
from tidegate.testing import ManualClock
from tidegate.txn import runtime

WORKED: Counter[tuple[Any, int]] = Counter()


def summed(pane: Any) -> tuple[int, float]:
    WORKED[pane.key, pane.number] += 1
    return len(pane), float(pane["x"].sum())


def added(panes: Sequence[tuple[int, float]]) -> tuple[int, float]:
    return sum(n for n, _ in panes), sum(x for _, x in panes)


def largest(panes: Sequence[tuple[int, float]]) -> float:
    return max(x for _, x in panes)


TOTAL = w.decomposed(summed, added, "n BIGINT, total DOUBLE", ["x"])
PEAK = w.decomposed(summed, largest, "total DOUBLE", ["x"])
KINDS: dict[str, dict[str, Any]] = {
    "count": {"count": 6, "slide": 2},
    "by key": {"count": 4, "slide": 2, "by": "k"},
    "gaps": {"count": 2, "slide": 5},
    "time": {"time": 8, "slide": 3, "on": "t"},
    "late": {"time": 6, "on": "t", "delay": 4, "by": "k"},
    "batches": {"batches": 3, "slide": 1},
    "landmark": {"landmark": 12, "slide": 4, "on": "t"},
}


def app_of(kind: str, *, key: str | None = None, aborts: bool = False, second: Any = TOTAL) -> tidegate.App:
    """Two procedures that look at the same windows of one stream; each aborts some of its batches."""
    app = tidegate.App("two")
    app.table("CREATE TABLE kept (who VARCHAR, number BIGINT, PRIMARY KEY (who, number), told VARCHAR)")
    app.stream("points", "k INTEGER NOT NULL, t BIGINT NOT NULL, x DOUBLE NOT NULL", border=True, key=key)

    def declare(name: str, compute: Any, refused: int) -> None:
        def look(txn: tidegate.Transaction, points: tidegate.Batch) -> None:
            if aborts and points and points[0].t % 10 == refused:
                txn.abort("not this one")
            for row in txn.window("last").results:
                txn.insert("kept", (name, len(txn.scan("kept")), repr(tuple(row))))

        seen = tidegate.window("points", **KINDS[kind], compute=compute)
        look.__name__ = name
        app.procedure(inputs="points", writes=["kept"], windows={"last": seen}, on_failure="dead_letter")(look)

    declare("first", TOTAL, 3)
    declare("second", second, 7)
    return app


def rows_of(count: int, seed: int) -> list[tuple[int, int, float]]:
    dice, at, rows = random.Random(seed), 0, []
    for _ in range(count):
        at += dice.choice((0, 1, 1, 2))
        rows.append((dice.randrange(3), max(0, at - dice.choice((0, 0, 0, 3, 9))), dice.random()))
    return rows


def play(engine: tidegate.Engine, rows: list[Any], seed: int) -> None:
    dice = random.Random(seed)
    while rows:
        size = dice.randint(1, 9)
        engine.push("points", rows[:size])
        rows = rows[size:]
    engine.run_until_idle()


def found(engine: tidegate.Engine) -> tuple[Any, ...]:
    states = {}
    for name in ("first", "second"):
        by_key = engine.runtime.programs[name].windows["last"]
        states[name] = {key: (state.contents(), state.fired, state.late) for key, state in by_key.items()}
    return engine.query("SELECT * FROM kept ORDER BY ALL").rows, states


def sharing_of(engine: tidegate.Engine, name: str = "first") -> Any:
    return engine.plan(f"{name}.last").sharing


@pytest.mark.parametrize("key", [None, "k"], ids=["one", "keyed"])
@pytest.mark.parametrize("aborts", [False, True], ids=["all commit", "some abort"])
@pytest.mark.parametrize("kind", KINDS)
def test_each_window_is_what_it_would_be_alone(
    kind: str, aborts: bool, key: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    for second in (TOTAL, PEAK):
        rows = rows_of(150, 7)
        with tidegate.open(app_of(kind, key=key, aborts=aborts, second=second), clock=ManualClock()) as engine:
            play(engine, rows, 1)
            shared, sharing = found(engine), sharing_of(engine)
        assert sharing.shared > (0 if aborts else 20)
        with monkeypatch.context() as patch:
            patch.setattr(runtime, "share", list)
            with tidegate.open(app_of(kind, key=key, aborts=aborts, second=second), clock=ManualClock()) as engine:
                play(engine, rows, 1)
                assert sharing_of(engine) is None
                assert found(engine) == shared
        assert len(shared[0]) > 10


def test_the_panes_are_worked_out_once() -> None:
    with tidegate.open(app_of("by key", second=PEAK)) as engine:
        WORKED.clear()
        play(engine, rows_of(200, 3), 2)
        sharing = sharing_of(engine)
        assert sharing is sharing_of(engine, "second")
        assert set(WORKED.values()) == {1}
        assert sharing.slides == sharing.shared > 0
        told = engine.plan("second.last").explain()
    assert f"the same as those of first.last, second.last: {sharing.shared} slides taken over" in told


def test_after_an_abort_a_window_goes_on_by_itself() -> None:
    with tidegate.open(app_of("count", aborts=True)) as engine:
        WORKED.clear()
        engine.push("points", [(1, 0, 1.0), (1, 0, 2.0)])
        assert set(WORKED.values()) == {1}
        engine.push("points", [(1, 3, 3.0), (1, 3, 4.0)])  # undone in the first
        engine.push("points", [(1, 5, 5.0), (1, 5, 6.0)])
        assert sharing_of(engine).shared == 2
        assert WORKED == {((), 0): 1, ((), 1): 2, ((), 2): 1}  # pane 1 is (5, 6) in the first, (3, 4) in the second


@pytest.mark.parametrize("checkpoint", [True, False])
def test_after_a_restart_windows_that_hold_the_same_share_again(tmp_path: Path, checkpoint: bool) -> None:
    app = app_of("late")
    engine = tidegate.open(app, tmp_path / "data")
    play(engine, rows_of(60, 1), 1)
    if checkpoint:
        engine.checkpoint()
    engine.close()
    with tidegate.open(app, tmp_path / "data") as engine:
        before = sharing_of(engine).shared
        engine.push("points", [(1, 500, 1.0)])
        assert sharing_of(engine).shared == before + 1


@pytest.mark.parametrize(
    "other",
    [
        {"count": 6, "slide": 3},
        {"count": 6, "slide": 2, "by": "k"},
        {"count": 6, "slide": 2, "compute": w.decomposed(added, added, "n BIGINT, total DOUBLE", ["x"])},
        {"count": 6, "slide": 2, "compute": w.decomposed(summed, added, "n BIGINT, total DOUBLE")},
    ],
    ids=["slide", "by", "function", "columns"],
)
def test_windows_that_differ_share_nothing(other: dict[str, Any]) -> None:
    app = tidegate.App("other")
    app.stream("points", "k INTEGER NOT NULL, t BIGINT NOT NULL, x DOUBLE NOT NULL", border=True)
    windows = {"one": {"count": 6, "slide": 2}, "two": other}
    made = {name: tidegate.window("points", **{"compute": TOTAL, **how}) for name, how in windows.items()}

    @app.procedure(inputs="points", windows=made)
    def look(txn: tidegate.Transaction, points: tidegate.Batch) -> None: ...

    with tidegate.open(app) as engine:
        assert engine.plan("look.one").sharing is None
        assert "shared" not in engine.plan("look.two").explain()


def test_of_two_threads_that_work_out_the_same_slide_one_counts() -> None:
    sharing, rows = Sharing(["one", "two", "three"]), [(1,)]
    ready = threading.Barrier(2)
    pasts: list[Any] = []

    def work() -> None:
        ready.wait()
        pasts.append(sharing.keep(EMPTY, rows, 0, None, "slide").after)

    threads = [threading.Thread(target=work) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert pasts[0] is pasts[1]
    known = sharing.find(EMPTY, rows, 0, None)
    assert known is not None
    assert known.after is pasts[0]


def test_what_no_one_comes_for_is_forgotten() -> None:
    sharing, batches = Sharing(["one", "two"]), [[(i,)] for i in range(BEHIND + 3)]
    for rows in batches:
        sharing.keep(EMPTY, rows, 0, None, "slide")
    assert [sharing.find(EMPTY, rows, 0, None) is None for rows in batches] == [True] * 3 + [False] * BEHIND
    assert sharing.find(EMPTY, batches[-1], 0, None) is None  # taken by both
