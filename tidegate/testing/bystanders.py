"""What happens beside the work of an engine: background merges, queries, status views, subscribers.

None of it may change a result, block anything forever, or see a state that never existed.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from types import TracebackType

from tidegate.engine.engine import Engine
from tidegate.errors import EngineClosed, TidegateError

LOOKED_AT = ("executions", "locks", "streams", "windows", "merges", "tables")


class Bystanders:
    """Threads that merge, query and listen while others work. Use it in a ``with`` block: it raises their errors.

    ``never``: queries that must not find a row, in any state that is ever committed. ``pause_s``: between two looks.
    """

    def __init__(
        self, engine: Engine, never: Sequence[str] = (), merge_every_s: float = 0.001, pause_s: float = 0.001
    ) -> None:
        self._engine = engine
        self._never = never
        self._merge_every_s = merge_every_s
        self._pause_s = pause_s
        self._stopping = threading.Event()
        self._failed: list[BaseException] = []
        self._threads = [
            threading.Thread(target=self._guarded, args=(one,), name=f"tidegate-bystander-{one.__name__}", daemon=True)
            for one in (self._ask, self._look, self._listen)
        ]
        self.asked = 0

    def __enter__(self) -> Bystanders:
        self._engine.merger.in_background(self._merge_every_s)
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stopping.set()
        for thread in self._threads:
            thread.join()
        self._engine.merger.close()  # from now on nothing changes, and tables can be compared row by row
        if self._failed and error is None:
            raise self._failed[0]

    def _guarded(self, one: Callable[[], None]) -> None:
        try:
            one()
        except EngineClosed:
            pass
        except BaseException as error:
            self._failed.append(error)

    def _ask(self) -> None:
        while not self._stopping.wait(self._pause_s):
            for name in self._engine.app.tables:
                self._engine.query(f'SELECT count(*), min(t) FROM "{name}" AS t')
                self.asked += 1
            for sql in self._never:
                found = self._engine.query(sql).rows
                if found:
                    raise TidegateError(f"a reader saw a state that never was: {sql} gave {found[:3]}")

    def _look(self) -> None:
        while not self._stopping.wait(self._pause_s):
            for view in LOOKED_AT:
                self._engine.query(f"SELECT count(*) FROM tidegate.{view}")
            self._engine.questions()

    def _listen(self) -> None:
        emitted = [stream.name for stream in self._engine.app.streams.values() if not stream.border]
        while not self._stopping.is_set():
            for name in emitted:
                with self._engine.subscribe(name) as following:
                    following.get(0.001)
            self._stopping.wait(self._pause_s)
