"""A durable subscription that is made while work is on its way begins at one place in the order, before and after a crash."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import tidegate
from tidegate import App, Engine
from tidegate.offline.verify import verify


class Slow:
    """A procedure that takes its time, once."""

    def __init__(self) -> None:
        self.began, self.may_end = threading.Event(), threading.Event()

    def app(self, mode: Any) -> App:
        app = App("meanwhile", recovery=mode)
        app.stream("numbers", "n INTEGER", border=True)
        app.stream("doubled", "n INTEGER")

        @app.procedure(inputs="numbers", outputs="doubled")
        def double(txn: Any, numbers: Any) -> None:
            self.began.set()
            self.may_end.wait(60)
            txn.emit("doubled", [(2 * row.n,) for row in numbers])

        return app


def waiting(engine: Engine) -> list[list[int]]:
    return [[row.n for row in batch] for batch in engine.subscribe_durably("doubled", "late").peek()]


def test_what_came_before_the_subscription_is_not_its(
    way: tuple[Any, str], killed: Callable[[Engine], None], tmp_path: Path
) -> None:
    mode, executor = way
    slow = Slow()
    app = slow.app(mode)
    engine = tidegate.open(app, tmp_path / "data", executor=executor)
    pushing = threading.Thread(target=engine.push, args=("numbers", [(1,)]))
    subscribing = threading.Thread(target=engine.subscribe_durably, args=("doubled", "late"))
    pushing.start()
    slow.began.wait(60)
    subscribing.start()
    subscribing.join(0.3)  # where it has to wait for the batch to end, it waits for it
    slow.may_end.set()
    for thread in (pushing, subscribing):
        thread.join(60)
    engine.push("numbers", [(2,)]).result()
    found = waiting(engine)
    killed(engine)
    assert verify(app, tmp_path / "data").differences == []
    with tidegate.open(app, tmp_path / "data") as engine:
        assert waiting(engine) == found == [[4]]
