"""What all columnar window states have in common: event time, late rows, counters, and the way a batch is taken in."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from copy import copy
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple, Self

from tidegate.storage.column_rows import ColumnRows
from tidegate.storage.schema import Relation
from tidegate.streams.watermarks import END, NEVER
from tidegate.streams.windows.declare.functions import Extent
from tidegate.streams.windows.declare.kinds import LABELS, WindowSpec, first_window
from tidegate.streams.windows.state import saving
from tidegate.streams.windows.state.columns import Columns
from tidegate.streams.windows.state.keys import sort_key
from tidegate.streams.windows.state.results import ResultRows, Results, Slide
from tidegate.streams.windows.state.sizes import bytes_of
from tidegate.streams.windows.state.times import EventTime, Step

FEW = 32
LATE_SHOWN = 100  # the newest of the late rows are kept for inspection


LateRows = deque[Any] | tuple[()]


def late_with(known: LateRows, more: Sequence[Any]) -> LateRows:
    """The newest rows that came too late; a window without any pays for none."""
    if not more:
        return known
    found = deque(known, LATE_SHOWN)
    found.extend(more)
    return found


class Frontier(NamedTuple):
    """How far a batch advances the stream: the watermark, or else the number of batches, before and after it."""

    before: int
    after: int


@dataclass
class Taken:
    """One batch, computed: what fires, in order, and how to commit it. ``oldest``: the time of the oldest row that is in
    an open window then, where rows decide what is in one.
    """

    store: Callable[[], None]
    fired: int
    windows: list[Extent] = field(default_factory=list)
    results: ResultRows | None = None
    oldest: Callable[[], int] | None = None


class ColumnState(ABC):
    """The state of one window (of one stream key) that takes its batches in as columns."""

    results: Results | None
    few = FEW  # rows: from here on arrays cost less than looking at rows one by one

    def __init__(self, spec: WindowSpec, relation: Relation) -> None:
        self.spec = spec
        self.relation = relation
        self.names = needed_columns(spec, relation)
        self.time = EventTime(spec, relation, self.names) if spec.in_event_order else None
        if spec.scale is not None:
            self.few = 0  # places of a few times are worked out as arrays, too
        self.batches = 0
        self.fired = 0
        self.late = 0
        self.late_rows: LateRows = ()
        self.since: int | None = None  # windows that start before are not whole, and do not fire; see begin_after

    @property
    def watermark(self) -> int | None:
        """The time before which no row is expected; None where there is none, or nothing has arrived yet."""
        return None if self.time is None or self.time.watermark == NEVER else self.time.watermark

    def slide(self, rows: Any, now_us: int = 0, mark: int | None = None) -> Slide:
        """What taking in a batch, and then the watermark ``mark``, would do. Nothing changes until the slide is committed."""
        if mark is None and self.since is None and 0 < len(rows) <= self.few and type(rows) is not Columns:
            slide = self._few(rows.rows if type(rows) is ColumnRows else rows, now_us)
            if slide is not None:
                return slide
        columns = self._columns(rows)
        step = self._step(columns, now_us, mark)
        taken = self._take(columns if step is None else step.columns, step)
        if self.since is not None:
            taken = self._whole(taken, self.since)
        last = self._at_end(columns, now_us) if mark == END and self.spec.partial else Taken(_nothing, 0)
        if last.fired:
            taken = self._together(taken, last)
        return self._slide(rows, step, taken, counts=mark is None or len(columns) > 0)

    def _columns(self, rows: Any) -> Columns:
        return rows if isinstance(rows, Columns) else Columns.of_rows(self.relation, rows, self.names)

    def _step(self, columns: Columns, now_us: int, mark: int | None) -> Step | None:
        """What they do to event time; with the rows' places on the scale of the windows."""
        step = None if self.time is None else self.time.step(columns, now_us, mark)
        if step is not None and self.spec.scale is not None:
            step.times = self.spec.scale.places(step.times)
        return step

    def _slide(self, rows: Any, step: Step | None, taken: Taken, counts: bool) -> Slide:
        """What was worked out, to be committed. ``counts``: is it a batch, and not only a watermark?"""
        late = _late_rows(rows, step)

        def commit() -> None:
            taken.store()
            if step is not None and self.time is not None:
                step.commit(self.time)
            self.batches += counts
            self.fired += taken.fired
            self.note_late(late)
            if self.since is not None and step is not None and step.watermark >= self._first_end():
                self.since = None if self.spec.kind != "session" else self.since  # a session may take any time

        held_back = partial(self.held_back, NEVER if step is None else step.watermark, taken.oldest)
        return Slide(rows, taken.windows, taken.results, taken.fired, late, commit, held_back)

    def still(self) -> Slide:
        """Nothing arrived on the window's stream: nothing fires, nothing changes."""
        watermark = NEVER if self.time is None else self.time.watermark
        results = None if self.results is None else self.results.none()
        return Slide((), [], results, 0, [], lambda: None, partial(self.held_back, watermark, self._oldest))

    def _few(self, rows: Sequence[Any], now_us: int) -> Slide | None:
        """``slide`` for a few rows, one by one, where that is quicker. None: it is not, or can't be done in this way."""
        return None

    def held_back(self, watermark: int, oldest: Callable[[], int] | None) -> int:
        """The time before which no window of this state will begin any more: its watermark, held back by open windows."""
        if watermark in (NEVER, END):
            return watermark
        spec, place = self.spec, self._place(watermark)
        match spec.kind:
            case "time":
                return min(watermark, self._time(first_window(place, spec.size, spec.slide) * spec.slide))
            case "landmark":
                return self._time(place // spec.size * spec.size)
            case "slide_by_tuple":
                return int(watermark - spec.size)
            case "session" | "slide_by_time":
                assert oldest is not None
                return min(watermark, oldest())
        return NEVER

    def _place(self, time: int) -> int:
        """Where a time is on the scale of the windows."""
        return time if self.spec.scale is None else self.spec.scale.place(time)

    def _time(self, place: int) -> int:
        return int(place if self.spec.scale is None else self.spec.scale.time(place))

    def _first_end(self) -> int:
        """When the first window that is whole ends, in a state that began anew."""
        assert self.since is not None
        return self._time(self._place(self.since) + self.spec.size)

    def _oldest(self) -> int:
        """The time of the oldest row in an open window, where rows decide what is in one."""
        return END

    def note_late(self, rows: Sequence[Any]) -> None:
        """These came too late."""
        self.late += len(rows)
        self.late_rows = late_with(self.late_rows, rows)

    def fresh(self) -> Self:
        """A new state like this one, which is empty, for another key of the stream."""
        found = copy(self)
        found.time = None if self.time is None else self.time.fresh()
        return found

    @abstractmethod
    def _take(self, columns: Columns, step: Step | None) -> Taken:
        """Compute what these rows, in window order, do."""

    def _at_end(self, columns: Columns, now_us: int) -> Taken:
        """The windows that the last rows do not fill, once these have been taken in. The end comes once: a copy takes them in."""
        ended = self.fresh()
        ended.restore(self.save())
        step = None if ended.time is None else ended.time.step(columns, now_us, END)
        ended._take(columns if step is None else step.columns, step).store()
        return ended._last()

    def _last(self) -> Taken:
        """What has begun, and would fire later if more rows came: windows by number and key."""
        raise NotImplementedError

    def _begun(self, seen: int) -> range:
        """The numbers of the windows of a key with so many tuples that have begun, and not fired."""
        spec = self.spec
        return range(max((seen - spec.size) // spec.slide + 1, spec.first), (seen - 1) // spec.slide + 1)

    def _together(self, one: Taken, other: Taken) -> Taken:
        results = one.results
        if self.results is not None and isinstance(results, ResultRows) and other.results is not None:
            results = ResultRows.of_rows(self.results.relation, [*results.rows, *other.results.rows])
        return Taken(one.store, one.fired + other.fired, [*one.windows, *other.windows], results, one.oldest)

    def _frontier(self, step: Step | None) -> Frontier:
        if step is not None and self.time is not None and self.spec.by_time:
            return Frontier(self._place(self.time.watermark), self._place(step.watermark))
        return Frontier(self.batches, self.batches + 1)

    def _whole(self, taken: Taken, since: int) -> Taken:
        """Without the windows that start before ``since``."""
        windows = [window for window in taken.windows if window.start >= since]
        results, fired = taken.results, len(windows)
        if isinstance(results, ResultRows) and self.results is not None:  # not those of a shadow
            place = self.results.relation.index_of[LABELS[1]]
            bound = self.results.bound(since)
            results = ResultRows.of_rows(self.results.relation, [row for row in results.rows if row[place] >= bound])
            fired = taken.fired if len(results) == len(taken.results or ()) else len(results)
        return Taken(taken.store, fired, windows, results, taken.oldest)

    def stands(self) -> dict[str, Any]:
        """What a checkpoint says about it in words. ``reached``: the largest time seen."""
        if self.time is None:
            return {"rows": self.held()}
        return {"rows": self.held(), "watermark": self.time.watermark, "reached": self.time.reached()}

    def begin_after(self, stands: Mapping[str, Any]) -> None:
        """Begin with the first window that holds no row which the earlier state may have seen."""
        spec, reached = self.spec, stands.get("reached", NEVER)
        if self.time is None or reached == NEVER:
            return
        self.time.watermark = stands["watermark"]
        if spec.by_time:
            step = {"time": spec.slide, "landmark": spec.size}.get(spec.kind)
            if step is not None:
                self.since = self._time((self._place(reached) // step + 1) * step)
            else:
                self.since = reached + (spec.size if spec.kind == "session" else 1)

    def held(self) -> int:
        """How many rows and panes are kept for windows that can still fire."""
        return self._held() + (0 if self.time is None else len(self.time.waiting))

    @abstractmethod
    def _held(self) -> int: ...

    def bytes_held(self) -> int:
        """The memory that everything kept takes."""
        time = self.time
        waiting = () if time is None else (time.waiting, time.times, time.sources)
        return bytes_of(self.late_rows, *waiting, *self._kept())

    @abstractmethod
    def _kept(self) -> Iterable[Any]:
        """Everything that is kept besides event time and late rows."""

    def contents(self) -> Any:
        """What is held, as plain values that can be compared: by key, in the order of keys, which need not be how they came."""
        found = self._contents()
        return {key: found[key] for key in sorted(found, key=sort_key)}

    @abstractmethod
    def _contents(self) -> dict[Any, Any]: ...

    # ---- checkpoints

    def save(self) -> bytes:
        """The state, for a checkpoint."""
        time = None if self.time is None else self.time.saved()
        late = [tuple(row) for row in self.late_rows]
        return saving.pack([self.batches, self.fired, self.late, late, time, self._saved(), self.since], self.relation)

    def restore(self, saved: bytes) -> None:
        """Become the saved state."""
        self.batches, self.fired, self.late, late, time, rest, self.since = saving.unpack(
            saved, self.relation, self.names
        )
        self.late_rows = late_with((), late)
        if self.time is not None and time is not None:
            self.time.restore(time)
        self._restore(rest)

    @abstractmethod
    def _saved(self) -> list[Any]: ...

    @abstractmethod
    def _restore(self, saved: list[Any]) -> None: ...


def _nothing() -> None: ...


def needed_columns(spec: WindowSpec, relation: Relation) -> list[str]:
    """The columns of the stream that are needed."""
    if spec.compute is None or callable(spec.until):
        return relation.column_names
    named: Iterable[str | None] = (
        *spec.by, spec.on, spec.source, spec.until if isinstance(spec.until, str) else None,
        *spec.compute.columns(relation),
    )  # fmt: skip
    wanted = set(named)
    return [name for name in relation.column_names if name in wanted]


def _late_rows(rows: Any, step: Step | None) -> list[Any]:
    if step is None or step.late is None:
        return []
    if isinstance(rows, Columns):
        return rows.take(step.late).tuples()
    if type(rows) is ColumnRows:
        return list(rows.take(step.late).rows)
    return [rows[i] for i in step.late.tolist()]
