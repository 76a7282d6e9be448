"""Panes of a keyed stream: all its keys share the arrays of one :class:`~.panes.PaneState`.

A key has a row in these arrays, and an object with what else it has of its own: event time and counters. That is some
hundred bytes, where arrays of its own would take thousands. A batch that is too large to be taken in row by row gets a state
made for it, with a copy of the key's row that is written back when the slide commits.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from typing import Any

from tidegate.storage.column_rows import ColumnRows
from tidegate.streams.watermarks import NEVER
from tidegate.streams.windows.declare.kinds import WindowSpec
from tidegate.streams.windows.state.column_state import LateRows, late_with
from tidegate.streams.windows.state.columns import Columns
from tidegate.streams.windows.state.keys import Key
from tidegate.streams.windows.state.panes import PaneState
from tidegate.streams.windows.state.results import Slide
from tidegate.streams.windows.state.sizes import bytes_of


class SharedPanes:
    """The panes of all keys of a stream. ``by_key``: results are labelled with the key, too."""

    def __init__(self, state: PaneState) -> None:
        self.state = state
        self.by_key = bool(state.spec.by)
        self.rows = 0

    def open(self, key: Any) -> KeyedPanes:
        """The state of a key, empty."""
        return KeyedPanes(self, (key,) if self.by_key else ())

    def new_row(self) -> int:
        """A row for a key. What others have computed but not committed yet stays valid: rows never move, and who reads one
        meanwhile, in another thread, finds it in the arrays of before or in those of after.
        """
        self.rows += 1
        if self.rows > len(self.state.seen):
            grown = self.state.fresh()
            grown.make_room(2 * self.rows)
            grown.copy_rows(slice(0, len(self.state.seen)), self.state, slice(None))
            self.state.take_arrays(grown)
        return self.rows - 1

    def bytes_of_row(self) -> int:
        """What a key takes of the arrays, with its share of what is spare."""
        state = self.state
        arrays = state.seen.nbytes + state.tags.nbytes + sum(array.nbytes for array in state.ring.values())
        return int(arrays) // max(self.rows, 1)


class KeyedPanes:
    """The state of one key. ``code``: its row, -1 before it has one."""

    __slots__ = ("batches", "code", "fired", "key", "late", "late_rows", "shared", "since", "time")

    def __init__(self, shared: SharedPanes, key: Key) -> None:
        time = shared.state.time
        self.shared = shared
        self.key = key
        self.code = -1
        self.time = None if time is None else time.fresh()
        self.batches = 0
        self.fired = 0
        self.late = 0
        self.late_rows: LateRows = ()
        self.since: int | None = None

    @property
    def spec(self) -> WindowSpec:
        return self.shared.state.spec

    @property
    def watermark(self) -> int | None:
        return None if self.time is None or self.time.watermark == NEVER else self.time.watermark

    def slide(self, rows: Any, now_us: int = 0, mark: int | None = None) -> Slide:
        """See :meth:`.ColumnState.slide`."""
        if mark is None and self.since is None and 0 < len(rows) <= self.shared.state.few and type(rows) is not Columns:
            slide = self._few(rows.rows if type(rows) is ColumnRows else rows, now_us)
            if slide is not None:
                return slide
        own = self._own()
        slide = own.slide(rows, now_us, mark)
        commit = slide._commit

        def commit_here() -> None:
            commit()
            self._become(own)

        slide._commit = commit_here
        return slide

    def still(self) -> Slide:
        return self._own().still()

    # ---- a few rows: see few.py

    def _few(self, rows: Sequence[Any], now_us: int) -> Slide | None:
        return self.shared.state.few_rows.slide(self, rows, now_us)

    @property
    def table(self) -> PaneState:
        return self.shared.state

    def few_fit(self, frontier: int) -> bool:
        return True

    def code_of(self, key: Key) -> int:
        return self.code

    def code_for(self, key: Key) -> int:
        if self.code < 0:
            self.code = self.shared.new_row()
        return self.code

    def held_codes(self, most: int) -> Sequence[tuple[Key, int]] | None:
        return [(self.key, self.code)] if self.code >= 0 else []

    def held_back(self, watermark: int, oldest: Any) -> int:
        return self.shared.state.held_back(watermark, oldest)

    def note_late(self, rows: Sequence[Any]) -> None:
        self.late += len(rows)
        self.late_rows = late_with(self.late_rows, rows)

    def let_go(self) -> None:
        """A row is kept as long as its key has a state."""

    # ---- the state of one key as one of its own

    def _own(self) -> PaneState:
        state = self.shared.state
        own = state.fresh()
        own.few = 0
        own.time, own.batches, own.fired = self.time, self.batches, self.fired
        own.late, own.late_rows, own.since = self.late, self.late_rows, self.since
        if self.code >= 0:
            own.copy_rows(own.code_for(self.key), state, self.code)
        return own

    def _become(self, own: PaneState) -> None:
        self.time, self.batches, self.fired = own.time, own.batches, own.fired
        self.late, self.late_rows, self.since = own.late, own.late_rows, own.since
        for key, code in own.codes.items():
            assert key == self.key, f"rows of key {key} came to the window of {self.key}"
            self.shared.state.copy_rows(self.code_for(key), own, code)

    def held(self) -> int:
        return self._own().held()

    def bytes_held(self) -> int:
        """Its share of the arrays, and what it has of its own."""
        time = self.time
        own = () if time is None else (time.sources, *((time.waiting, time.times) if len(time.waiting) else ()))
        objects = sys.getsizeof(self) + sys.getsizeof(time)
        return (
            objects + bytes_of(self.key, self.late_rows, *own) + (self.shared.bytes_of_row() if self.code >= 0 else 0)
        )

    def stands(self) -> dict[str, Any]:
        return self._own().stands()

    def begin_after(self, stands: Mapping[str, Any]) -> None:
        own = self._own()
        own.begin_after(stands)
        self._become(own)

    def contents(self) -> Any:
        return self._own().contents()

    def save(self) -> bytes:
        return self._own().save()

    def restore(self, saved: bytes) -> None:
        own = self._own()
        own.restore(saved)
        self._become(own)
