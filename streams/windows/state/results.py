"""What a procedure sees of a window after its batch was taken in."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import groupby
from typing import TYPE_CHECKING, Any, Protocol, overload

import pyarrow as pa

from tidegate.clock import EPOCH
from tidegate.errors import DeclarationError, MistakeError, near
from tidegate.storage.column_rows import ColumnRows
from tidegate.storage.schema import Column, Relation
from tidegate.storage.types import column_type
from tidegate.streams.windows.declare.functions import Extent, Function, result_rows
from tidegate.streams.windows.declare.kinds import FINAL, LABELS, WindowSpec
from tidegate.streams.windows.state.columns import Array, Columns
from tidegate.streams.windows.state.shown import label_columns, shown, shown_each

if TYPE_CHECKING:
    from tidegate.streams.windows.declare.joins import JoinSpec
    from tidegate.streams.windows.patterns.declare import PatternSpec


class Results:
    """The relation of a window's results: the ``by`` columns, the window's number and bounds, what was computed."""

    def __init__(self, spec: WindowSpec, relation: Relation) -> None:
        assert spec.compute is not None
        self.function: Function = spec.compute
        told = label_columns(spec, relation)
        self.as_time = told[-1].type.family == "timestamp"
        self.refines = spec.refines
        if self.refines:
            told = (*told, Column(FINAL, column_type("BOOLEAN"), nullable=False))
        labels = [*(relation.column(name) for name in spec.by), *told]
        returned = self.function.returns(relation)
        taken = {column.name for column in labels}
        for column in returned:
            if column.name in taken:
                raise DeclarationError(
                    f"window over {spec.stream}: the result column {column.name} has the name of a column that every result "
                    f"has ({', '.join(taken)}); choose another"
                )
        self.relation = Relation(f"{spec.stream} windows", (*labels, *returned))
        self._none = ResultRows.of_rows(self.relation, [])

    def rows(self, windows: Sequence[Extent], returned: Sequence[Any]) -> ResultRows:
        """Results of fired windows, from what the function returned for each."""
        found: list[Any] = []
        for window, given in zip(windows, returned, strict=True):
            found.extend(self.each(window, given))
        return ResultRows.of_rows(self.relation, found)

    def each(self, window: Extent, returned: Any) -> list[Any]:
        """The results of one window."""
        return result_rows(self.relation, returned, self.labels(window))

    def none(self) -> ResultRows:
        """No results."""
        return self._none

    def labels(self, window: Extent) -> tuple[Any, ...]:
        told = (*window.key, window.number, self.bound(window.start), self.bound(window.end))
        return (*told, window.final) if self.refines else told  # type: ignore[attr-defined]

    def bound(self, value: Any) -> Any:
        """A bound in readable form."""
        return EPOCH + dt.timedelta(0, 0, int(value)) if self.as_time else value


class ResultRows(Sequence[Any]):
    """A window's results: a sequence of rows, held as columns. ``results["mean"]`` is a column as a numpy array.

    Rows are Python objects, and cost accordingly; they are made on first access. ``ready``: the columns that
    need no work, ``complete``: makes them all (of results that are rows already, their relation does).
    """

    __slots__ = ("_columns", "_complete", "_length", "_ready", "_rows")

    def __init__(self, length: int, ready: Columns, complete: Callable[[], Columns]) -> None:
        self._length = length
        self._ready: Columns | None = ready.protected()
        self._complete: Callable[[], Columns] | Relation = complete
        self._columns: Columns | None = None
        self._rows: tuple[Any, ...] | None = None

    @classmethod
    def of_rows(cls, relation: Relation, given: Iterable[Any]) -> ResultRows:
        """Results that are rows already."""
        found = cls.__new__(cls)
        found._rows = rows = tuple(given)
        found._length = len(rows)
        found._ready = None
        found._complete = relation
        found._columns = None
        return found

    @property
    def are_rows(self) -> bool:
        """Are they Python rows already?"""
        return self._rows is not None

    @property
    def columns(self) -> Columns:
        """All columns."""
        if self._columns is None:
            made = self._complete
            found = Columns.of_rows(made, self.rows) if isinstance(made, Relation) else made()
            self._columns = found.protected()
        return self._columns

    @property
    def rows(self) -> tuple[Any, ...]:
        """The rows as named tuples."""
        if self._rows is None:
            self._rows = self.columns.rows
        return self._rows

    def to_arrow(self) -> pa.Table:
        """The results as an Arrow table."""
        return self.columns.to_arrow()

    def __len__(self) -> int:
        return self._length

    @overload
    def __getitem__(self, which: int) -> Any: ...
    @overload
    def __getitem__(self, which: slice) -> tuple[Any, ...]: ...
    @overload
    def __getitem__(self, which: str) -> Array: ...
    def __getitem__(self, which: int | slice | str) -> Any:
        """A row, some rows, or a column (NULLs of a float column are NaN; see ``columns.valid``)."""
        if not isinstance(which, str):
            return self.rows[which]
        if self._ready is not None and which in self._ready.values:
            return self._ready.values[which]
        if which not in self.columns.values:
            hint = near(which, self.columns.values, "they have")
            raise MistakeError(f"the results have no column {which!r}; {hint}", column=which)
        return self.columns.values[which]

    def __iter__(self) -> Iterator[Any]:
        return iter(self.rows)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Sequence) and self.rows == tuple(other)

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return repr(list(self.rows))


class WindowState(Protocol):
    """The state of one window (of one stream key): what execution *i* leaves to execution *i + 1*."""

    @property
    def spec(self) -> WindowSpec | JoinSpec | PatternSpec: ...

    @property
    def fired(self) -> int:
        """How many windows (of a join: results) so far."""

    @property
    def late(self) -> int:
        """How many rows have come too late so far."""

    @property
    def late_rows(self) -> Any:
        """The newest of them; of a join each with its stream."""

    def slide(self, rows: Any, now_us: int = 0) -> Any:
        """What taking in a batch would do. Nothing changes until the slide is committed. A window in the order of time
        takes a watermark, too (a join: one for each side), which counts after the rows.
        """

    def still(self) -> Any:
        """What a procedure sees when nothing arrived on the window's stream: nothing fires, nothing changes."""

    def held(self) -> int:
        """How many rows (or panes) are kept for windows that can still fire."""

    def bytes_held(self) -> int:
        """The memory that everything kept takes (:mod:`.sizes`)."""

    @property
    def watermark(self) -> int | None:
        """The time before which no row is expected; None where time does not matter."""

    def stands(self) -> dict[str, Any]:
        """What a checkpoint says about it in words: how many ``rows`` it holds, and how far it has come."""

    def begin_after(self, stands: Any) -> None:
        """Empty: begin with the first whole window after what a state that stood there has seen."""

    def contents(self) -> Any:
        """What is held, as plain values that can be compared."""

    def save(self) -> bytes:
        """The state, for a checkpoint."""

    def restore(self, saved: bytes) -> None:
        """Become the saved state."""


class Slide:
    """One execution's view of a window: the windows its batch made fire.

    ``windows``: the extents that fired, in order (of a window without ``compute``); ``results``: the rows computed for
    them; ``slid``: did any; ``late``: rows of this batch that came too late. ``held_back()``: the time before which no
    window that is still to fire begins.
    """

    __slots__ = ("_added", "_commit", "held_back", "late", "results", "slid", "windows")

    def __init__(
        self,
        added: Any,
        windows: Sequence[Extent],
        results: ResultRows | None,
        fired: int,
        late: Sequence[Any],
        commit: Any,
        held_back: Callable[[], int],
    ) -> None:
        self._added = added
        self.windows = tuple(windows)
        self.results = results
        self.slid = fired > 0
        self.late = tuple(late)
        self._commit = commit
        self.held_back = held_back

    @property
    def added(self) -> Any:
        """The rows that this batch brought; of a join, those of either stream."""
        return self._added.rows if isinstance(self._added, ColumnRows) else self._added

    @property
    def rows(self) -> tuple[Any, ...]:
        """The results, or without ``compute`` the rows of the newest of ``windows``."""
        if self.results is not None:
            return self.results.rows
        return self.windows[-1].rows if self.windows else ()

    def shown(self, relation: Relation) -> Any:
        """What SQL reads under the window's name: the results, or the rows of all windows that fired."""
        return shown(relation, self.windows) if self.results is None else self.results.rows

    def shown_each(self, relation: Relation) -> Iterator[Any]:
        """The same for one window after another; those whose function returned no row have nothing to show."""
        if self.results is None:
            yield from shown_each(relation, self.windows)
        else:
            labels = relation.index_of[LABELS[-1]] + 1
            for _, rows in groupby(self.results.rows, key=lambda row: row[:labels]):
                yield tuple(rows)

    def commit(self) -> None:
        """Make the slide the window's state."""
        self._commit()
