"""A few rows in windows that keep their rows: kept as they came, until a window fires or many come.

Sessions fire here, too: most of them have a few rows. Whatever else fires takes the way of large batches, which makes columns
of what was kept. The results are the same to the last bit either way.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from heapq import heapify, heappop, heappush
from typing import TYPE_CHECKING, Any, NamedTuple

from tidegate.errors import DataError
from tidegate.storage.schema import Relation
from tidegate.streams.watermarks import END, NEVER
from tidegate.streams.windows.declare.functions import Aggregates, Extent
from tidegate.streams.windows.declare.kinds import WindowSpec
from tidegate.streams.windows.state.columns import Columns
from tidegate.streams.windows.state.held import Held
from tidegate.streams.windows.state.keys import Key, sort_key
from tidegate.streams.windows.state.one import OneByOne, whole_of
from tidegate.streams.windows.state.results import ResultRows, Results, Slide
from tidegate.streams.windows.state.values import Row, key_of

if TYPE_CHECKING:
    from tidegate.streams.windows.state.rows import RowState

MOST = 1_000  # rows of a session that is computed row by row


def few_held(spec: WindowSpec, relation: Relation, results: Results | None) -> FewHeld | None:
    """How a few rows are taken in; None: like many."""
    if spec.kind == "session":
        return FewInSessions(spec, relation, results)
    if spec.kind in ("time", "landmark", "count", "batches") and (spec.kind == "landmark" or spec.slide <= spec.size):
        return FewHeld(spec, relation)
    return None


class FewHeld:
    """Keeps rows for as long as no window ends."""

    def __init__(self, spec: WindowSpec, relation: Relation) -> None:
        self.spec = spec
        self.key_of = key_of(relation, spec.by)
        self.shift = spec.slide if spec.kind == "landmark" else spec.size
        self.by_count = spec.kind == "count" or (spec.kind == "landmark" and not spec.by_time)

    def slide(self, state: RowState, rows: Sequence[Any], now_us: int) -> Slide | None:
        """What taking in these rows would do; None: not in this way. Nothing changes until it is committed."""
        step = None if state.time is None else state.time.few(rows, now_us)
        if step is None and state.time is not None:
            return None
        kept = rows if step is None else step.rows
        came: dict[Key, tuple[list[Any], list[int]]] = {}
        for place, row in enumerate(kept):
            key = self.key_of(row)
            mine = came.get(key)
            if mine is None:
                mine = came[key] = [], []
            mine[0].append(row)
            if self.by_count:
                held = state.by_key.get(key)
                mine[1].append((0 if held is None else held.seen) + len(mine[1]))
            else:
                mine[1].append(state.batches if step is None or not self.spec.by_time else step.times[place])
        if self.by_count:
            if any(self._ends(at[0], at[-1] + 1) for _, at in came.values()):
                return None
        elif step is not None and self.spec.by_time and state.time is not None:
            if self._ends(state.time.watermark, step.watermark):
                return None
        elif self._ends(state.batches, state.batches + 1):
            return None
        none = None if state.results is None else state.results.none()
        watermark, late = (NEVER, ()) if step is None else (step.watermark, tuple(step.late))
        return HeldSlide(state, rows, watermark, late, self, came, (), none)

    def _ends(self, before: int, after: int) -> bool:
        """Does a window end between the two? See :meth:`.RangeCutter.ends`."""
        slide = self.spec.slide
        return bool((before - self.shift) // slide != (after - self.shift) // slide)

    def keep(self, state: RowState, kept: Any) -> None:
        """Keep what the slide by these rows leaves."""
        for key, (rows, at) in kept.items():
            held = state.by_key.get(key)
            if held is None:
                held = state.by_key[key] = Held()
            held.recent.extend(rows)
            held.at.extend(at)
            held.rows += len(rows)
            held.seen += len(rows)

    def oldest(self, state: RowState, kept: Any) -> int:
        """The time of the oldest row that is in an open window then."""
        return state._oldest()


class HeldSlide(Slide):
    """What a few rows do to a window that keeps its rows. ``keeper`` knows what is to be ``kept``."""

    __slots__ = ("_keeper", "_kept", "_state", "_watermark")

    late: Any
    windows: Any

    def __init__(
        self,
        state: RowState,
        rows: Sequence[Any],
        watermark: int,
        late: Sequence[Any],
        keeper: FewHeld,
        kept: Any,
        windows: tuple[Extent, ...],
        results: ResultRows | None,
    ) -> None:
        self._added = rows
        self._state = state
        self._watermark = watermark
        self.late = late
        self._keeper = keeper
        self._kept = kept
        self.windows = windows
        self.results = results
        self.slid = len(windows if results is None else results) > 0

    def held_back(self) -> int:
        return self._state.held_back(self._watermark, partial(self._keeper.oldest, self._state, self._kept))

    def commit(self) -> None:
        state = self._state
        self._keeper.keep(state, self._kept)
        if state.time is not None:
            state.time.watermark = self._watermark
        state.batches += 1
        if self.slid:
            state.fired += len(self.windows if self.results is None else self.results)
        if self.late:
            state.note_late(self.late)


class Dues:
    """When sessions end if nothing more comes: of each key that has rows, a time that is not later. ``forget``: many rows
    came in another way; it is made anew when it is asked for.
    """

    def __init__(self) -> None:
        self.heap: list[tuple[int, int, Key]] | None = None
        self.queued: set[Key] = set()
        self.number = 0

    def forget(self) -> None:
        self.heap = None

    def add(self, key: Key, due: int) -> None:
        if self.heap is not None and key not in self.queued:
            self.queued.add(key)
            self.number += 1  # keys of equal times need not be comparable
            heappush(self.heap, (due, self.number, key))

    def until(self, by_key: Mapping[Key, Held], gap: int, reached: int) -> Sequence[Key]:
        """The keys whose session has ended by then. They stay in it: nothing has been committed."""
        if self.heap is None:
            held = [(one.newest + gap, key) for key, one in by_key.items() if one.rows]
            self.heap = [(due, number, key) for number, (due, key) in enumerate(held)]
            self.number = len(held)
            self.queued = {key for _, key in held}
            heapify(self.heap)
        heap = self.heap
        if not heap or heap[0][0] > reached:
            return ()
        found = []
        while heap and heap[0][0] <= reached:
            due, number, key = heappop(heap)
            one = by_key.get(key)
            if one is None or not one.rows:
                self.queued.discard(key)
            elif one.newest + gap > reached:
                heappush(heap, (one.newest + gap, number, key))
            else:
                found.append((due, number, key))
        for entry in found:
            heappush(heap, entry)
        return [key for _, _, key in found]


class Session(NamedTuple):
    """A session that ends. ``order``: when, among those of the batch."""

    order: tuple[int, ...]
    key: Key
    number: int
    start: int
    end: int
    rows: list[Any]


class Left:
    """What a batch leaves of a key: the rows of its open session, with their times; windows so far; how many rows came."""

    __slots__ = ("at", "came", "number", "rows")

    def __init__(self, rows: list[Any], at: list[int], number: int) -> None:
        self.rows = rows
        self.at = at
        self.number = number
        self.came = 0

    def ended(self, key: Key, end: int, order: tuple[int, ...]) -> Session:
        """The session, which ends here."""
        session = Session(order, key, self.number, self.at[0], end, self.rows)
        self.rows, self.at, self.number = [], [], self.number + 1
        return session


def left_of(held: Held | None) -> Left | None:
    """What a key has before the batch, to be added to; None where that is too much, or in columns."""
    if held is None:
        return Left([], [], 0)
    if held.parts or held.rows > MOST:
        return None
    return Left(held.recent.copy(), held.at.copy(), held.number)


class FewInSessions(FewHeld):
    """Sessions, row by row."""

    def __init__(self, spec: WindowSpec, relation: Relation, results: Results | None) -> None:
        super().__init__(spec, relation)
        self.relation = relation
        self.ends_with = _marks(spec, relation)
        self.one: OneByOne | None = None
        if results is not None and isinstance(spec.compute, Aggregates):
            self.one = whole_of(spec.compute, relation)

    def slide(self, state: RowState, rows: Sequence[Any], now_us: int) -> Slide | None:
        assert state.time is not None
        step = state.time.few(rows, now_us)
        if step is None:
            return None
        kept, times, reached, late = step
        gap, by_key = self.spec.size, state.by_key
        changed: dict[Key, Left] = {}
        ended: list[Session] = []
        for place, row in enumerate(kept):
            key, at = self.key_of(row), times[place]
            left = changed.get(key)
            if left is None:
                left = left_of(by_key.get(key))
                if left is None:
                    return None
                changed[key] = left
            if left.at and at - left.at[-1] >= gap:
                end = left.at[-1] + gap
                ended.append(left.ended(key, end, (end, 0)))
            left.came += 1
            left.rows.append(row)
            left.at.append(at)
            if self.ends_with is not None and self.ends_with(row):
                ended.append(left.ended(key, at, (at, 1, place)))
        for key in (*state.dues.until(by_key, gap, reached), *changed):
            left = changed.get(key)
            if left is None:
                left = left_of(by_key[key])
                if left is None:
                    return None
                changed[key] = left
            if left.at and left.at[-1] + gap <= reached:
                end = left.at[-1] + gap
                ended.append(left.ended(key, end, (end, 0)))
        found = self._fired(state, ended)
        if found is None:
            return None
        windows, results = found
        return HeldSlide(state, rows, reached, tuple(late) if late else (), self, changed, windows, results)

    def _fired(self, state: RowState, ended: list[Session]) -> tuple[tuple[Extent, ...], ResultRows | None] | None:
        """What the procedure sees of these sessions: windows, or results. None: one is refused; the usual way tells which."""
        results = state.results
        if not ended:
            return (), None if results is None else results.none()
        if len(ended) > 1:
            ended.sort(key=lambda session: (session.order, sort_key(session.key)))
        if results is not None and self.one is not None:
            try:
                found = [self._result(results, self.one, session) for session in ended]
            except DataError:
                return None
            return (), ResultRows.of_rows(results.relation, found)
        windows = [
            Extent(s.number, s.key, s.start, s.end, Columns.of_rows(self.relation, s.rows, state.names).protected())
            for s in ended
        ]
        if results is None or state.plan is None:
            return tuple(windows), None
        return (), results.rows(windows, state.plan.whole(windows))

    def _result(self, results: Results, one: OneByOne, session: Session) -> Any:
        labels = session.number, results.bound(session.start), results.bound(session.end)
        partials = one.empty
        for row in session.rows:
            partials = one.folded(partials, row)
        return results.relation.conform((*session.key, *labels, *one.results(list(partials), len(session.rows))))

    def keep(self, state: RowState, kept: Any) -> None:
        for key, left in kept.items():
            held = state.by_key.get(key)
            if held is None:
                held = state.by_key[key] = Held()
            held.recent, held.at, held.rows, held.number = left.rows, left.at, len(left.rows), left.number
            held.seen += left.came
            if left.at:
                state.dues.add(key, left.at[-1] + self.spec.size)

    def oldest(self, state: RowState, kept: Any) -> int:
        open_ = [left.at[0] for left in kept.values() if left.at]
        open_ += [held.oldest for key, held in state.by_key.items() if held.rows and key not in kept]
        return min(open_, default=END)


def _marks(spec: WindowSpec, relation: Relation) -> Callable[[Row], bool] | None:
    """Does a row end its session?"""
    if spec.until is None:
        return None
    if isinstance(spec.until, str):
        place = relation.index_of[spec.until]
        return lambda row: row[place] is True
    until = spec.until
    return lambda row: bool(until(row))
