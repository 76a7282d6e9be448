"""A ``txn`` that outlives its procedure refuses everything, in any thread; the error names the procedure."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest
from tills import tills, total

import tidegate
from tidegate.errors import AccessError

USES: list[Callable[[Any], Any]] = [
    lambda txn: txn.get("totals", "a"),
    lambda txn: txn.scan("totals"),
    lambda txn: txn.count("totals"),
    lambda txn: txn.insert("totals", ("b", 1)),
    lambda txn: txn.upsert("totals", ("a", 1_000)),
    lambda txn: txn.update("totals", "a", cents=1_000),
    lambda txn: txn.update_each("totals", ["a"], cents=1_000),
    lambda txn: txn.delete("totals", "a"),
    lambda txn: txn.delete_where("totals", cents=1),
    lambda txn: txn.execute("UPDATE totals SET cents = 1000"),
    lambda txn: txn.execute("SELECT sum(cents) FROM totals"),
    lambda txn: txn.emit("sums", [("a", 1_000)]),
    lambda txn: txn.window("w"),
    lambda txn: txn.abort("too late"),
]


@pytest.mark.parametrize("executor", ["serial", "threads", "manual"])
def test_it_refuses_everything_after_the_end(executor: Any) -> None:
    kept: list[Any] = []
    with tidegate.open(tills(lambda txn, _: kept.append(txn)), executor=executor) as engine:
        sums = engine.subscribe("sums")
        engine.push("sales", [("a", 1)])
        engine.run_until_idle()
        engine.call("reset", "c")
        for txn, name in zip(kept, ("add_up", "reset"), strict=True):
            for use in USES:
                with pytest.raises(AccessError, match=f"procedure {name} has ended") as refused:
                    use(txn)
                assert refused.value.procedure == name  # type: ignore[attr-defined]
        engine.push("sales", [("a", 1)])
        engine.run_until_idle()
        assert total(engine) == 2
        assert [row for batch in sums for row in batch.rows] == [("a", 1), ("a", 2)]


def test_it_refuses_a_thread_that_goes_on(tmp_path: Any) -> None:
    """A thread that a procedure has left behind writes nothing into what has committed."""
    go, outcome = threading.Event(), []

    def write_later(txn: Any, _: Any) -> None:
        def write() -> None:
            assert go.wait(20)
            try:
                txn.upsert("totals", ("a", 1_000))
            except AccessError as error:
                outcome.append(error)

        threads.append(threading.Thread(target=write))
        threads[-1].start()

    threads: list[threading.Thread] = []
    with tidegate.open(tills(write_later), tmp_path) as engine:
        engine.push("sales", [("a", 1)]).result()
        go.set()
        threads[0].join()
        assert len(outcome) == 1
        engine.checkpoint()
        assert total(engine) == 1


def test_a_failed_attempt_does_not_open_it_again() -> None:
    kept: list[Any] = []

    def fail(txn: Any, sales: Any) -> None:
        kept.append(txn)
        raise ValueError("no")

    with tidegate.open(tills(fail)) as engine:
        with pytest.raises(tidegate.ProcedureFailed):
            engine.call("reset", "a")
        with pytest.raises(AccessError, match="reset has ended"):
            kept[0].upsert("totals", ("a", 1))
