"""A few rows in windows that keep their rows: kept as they came, until a window fires or many come.

Sessions fire here, too: most of them have a few rows. Whatever else fires takes the way of large batches, which makes columns
of what was kept. The results are the same to the last bit either way.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
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
from tidegate.streams.windows.state.times import Few
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
        return slide_of(state, rows, step, partial(self._keep, state, came), ())

    def _ends(self, before: int, after: int) -> bool:
        """Does a window end between the two? See :meth:`.RangeCutter.ends`."""
        slide = self.spec.slide
        return bool((before - self.shift) // slide != (after - self.shift) // slide)

    def _keep(self, state: RowState, came: dict[Key, tuple[list[Any], list[int]]]) -> None:
        for key, (rows, at) in came.items():
            held = state.by_key.get(key)
            if held is None:
                held = state.by_key[key] = Held()
            keep(held, rows, at)


def keep(held: Held, rows: list[Any], at: list[int]) -> None:
    held.recent.extend(rows)
    held.at.extend(at)
    held.rows += len(rows)
    held.seen += len(rows)


def slide_of(
    state: RowState,
    rows: Sequence[Any],
    step: Few | None,
    store: Callable[[], None],
    windows: Sequence[Extent],
    results: ResultRows | None = None,
    oldest: Callable[[], int] | None = None,
) -> Slide:
    """The slide of these rows."""
    late = () if step is None else step.late
    fired = len(windows) if results is None else len(results)

    def commit() -> None:
        store()
        if step is not None and state.time is not None:
            state.time.watermark = step.watermark
        state.batches += 1
        state.fired += fired
        if late:
            state.note_late(late)

    if results is None and state.results is not None:
        results = state.results.none()

    held_back = partial(state.held_back, NEVER if step is None else step.watermark, oldest)
    return Slide(rows, windows, results, fired, late, commit, held_back)


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

    def until(self, by_key: dict[Key, Held], gap: int, reached: int) -> list[Key]:
        """The keys whose session has ended by then. They stay in it: nothing has been committed."""
        if self.heap is None:
            held = [(one.newest + gap, key) for key, one in by_key.items() if one.rows]
            self.heap = [(due, number, key) for number, (due, key) in enumerate(held)]
            self.number = len(held)
            self.queued = {key for _, key in held}
            heapify(self.heap)
        heap, found = self.heap, []
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
    """A session that ends."""

    order: tuple[Any, ...]
    named: tuple[Any, ...]
    key: Key
    number: int
    start: int
    end: int
    rows: list[Any]


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
        gap, reached, by_key = self.spec.size, step.watermark, state.by_key
        changed: dict[Key, tuple[list[Any], list[int], int]] = {}  # what is left, and windows so far
        came: dict[Key, int] = {}
        ended: list[Session] = []
        for place, (row, at) in enumerate(zip(step.rows, step.times, strict=True)):
            key = self.key_of(row)
            now = changed.get(key)
            if now is None:
                held = by_key.get(key)
                if held is not None and (held.parts or held.rows > MOST):
                    return None
                now = changed[key] = ([], [], 0) if held is None else (held.recent.copy(), held.at.copy(), held.number)
            came[key] = came.get(key, 0) + 1
            mine, times, number = now
            if times and at - times[-1] >= gap:
                end = times[-1] + gap
                ended.append(Session((end, 0), sort_key(key), key, number, times[0], end, mine))
                mine, times, number = [], [], number + 1
            mine.append(row)
            times.append(at)
            if self.ends_with is not None and self.ends_with(row):
                ended.append(Session((at, 1, place), sort_key(key), key, number, times[0], at, mine))
                mine, times, number = [], [], number + 1
            changed[key] = mine, times, number
        for key in (*state.dues.until(by_key, gap, reached), *changed):
            now = changed.get(key)
            if now is None:
                held = by_key[key]
                if held.parts or held.rows > MOST:
                    return None
                now = held.recent, held.at, held.number
            mine, times, number = now
            if times and times[-1] + gap <= reached:
                end = times[-1] + gap
                ended.append(Session((end, 0), sort_key(key), key, number, times[0], end, mine))
                changed[key] = [], [], number + 1
        store, oldest = partial(self._store, state, changed, came), partial(_oldest, by_key, changed)
        finished = partial(slide_of, state, rows, step, store, oldest=oldest)
        if not ended:
            return finished(())
        ended.sort(key=lambda session: session[:2])
        return self._fired(state, ended, finished)

    def _fired(self, state: RowState, ended: list[Session], finished: Callable[..., Slide]) -> Slide | None:
        """The slide with these sessions."""
        results = state.results
        if results is not None and self.one is not None:
            try:
                found = [self._result(results, self.one, session) for session in ended]
            except DataError:  # the usual way tells which window it was
                return None
            return finished((), ResultRows.of_rows(results.relation, found))
        windows = [
            Extent(s.number, s.key, s.start, s.end, Columns.of_rows(self.relation, s.rows, state.names).protected())
            for s in ended
        ]
        if results is None or state.plan is None:
            return finished(windows)
        return finished((), results.rows(windows, state.plan.whole(windows)))

    def _result(self, results: Results, one: OneByOne, session: Session) -> Any:
        labels = session.number, results.bound(session.start), results.bound(session.end)
        partials = one.empty
        for row in session.rows:
            partials = one.folded(partials, row)
        return results.relation.conform((*session.key, *labels, *one.results(list(partials), len(session.rows))))

    def _store(
        self, state: RowState, changed: dict[Key, tuple[list[Any], list[int], int]], came: dict[Key, int]
    ) -> None:
        for key, (rows, at, number) in changed.items():
            held = state.by_key.get(key)
            if held is None:
                held = state.by_key[key] = Held()
            held.recent, held.at, held.rows, held.number = rows, at, len(rows), number
            held.seen += came.get(key, 0)
            if at:
                state.dues.add(key, at[-1] + self.spec.size)


Changed = dict[Key, tuple[list[Any], list[int], int]]


def _oldest(by_key: dict[Key, Held], changed: Changed) -> int:
    """The time of the oldest row in a session that is open then."""
    open_ = [at[0] for _, at, _ in changed.values() if at]
    open_ += [held.oldest for key, held in by_key.items() if held.rows and key not in changed]
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
