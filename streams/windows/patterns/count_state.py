"""The state of a pattern that is only counted: for each key, what is kept of its rows (:mod:`.counting`)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from heapq import heapify, heappop, heappush
from typing import Any

from tidegate.storage.schema import Relation
from tidegate.streams.windows.patterns.counting import Counting, Stacks
from tidegate.streams.windows.patterns.declare import PatternSpec
from tidegate.streams.windows.patterns.matches import PatternSlide
from tidegate.streams.windows.patterns.state import Arrived, PatternState
from tidegate.streams.windows.state import saving
from tidegate.streams.windows.state.keys import sort_key
from tidegate.streams.windows.state.results import ResultRows
from tidegate.streams.windows.state.sizes import bytes_of


class CountState(PatternState):
    """The state of one pattern with ``aggregate=`` (of one key of its streams)."""

    def __init__(self, spec: PatternSpec, relations: Mapping[str, Relation]) -> None:
        super().__init__(spec, relations)
        assert self.plan.counting is not None
        self.counting: Counting = self.plan.counting

    def _begin(self) -> None:
        super()._begin()
        self.kept: dict[Any, Stacks] = {}
        self.over: list[tuple[int, int, Any]] = []  # when a key may hold nothing any more (a heap)
        self._pushed = 0

    def _taken(self, given: Any, arrived: Arrived, marks: list[int]) -> PatternSlide:
        plan, counting = self.plan, self.counting
        changed: dict[Any, Stacks] = {}
        found = []
        key_of, starts_with = plan.key_of, counting.starts_with
        hits = plan.hits(arrived.rows)
        for place, hit in enumerate(hits):
            if not hit:
                continue
            row, at = arrived.rows[place], arrived.times[place]
            key = () if key_of is None else key_of(row)
            kept = changed.get(key) or self.kept.get(key)
            if kept is None:
                if not hit & starts_with:
                    continue
                kept = counting.empty._replace(rows=[])
            changed[key], values = counting.take(kept, at, hit, counting.weights(row))
            if values is not None:
                node = (None, self.seen + place + 1, 0, row, at)
                found.append(plan.aggregated((*plan.by_values(row), plan.when(node)), values))
        late = [plan.shown(row) for row in arrived.late]

        def commit() -> None:
            self._keep(changed, arrived.watermark)
            self._commit_time(arrived, marks, late)
            self.seen += len(arrived.rows)
            self.fired += len(found)

        held_back = partial(self._oldest, changed, arrived.watermark)
        return PatternSlide(given, plan, found, 1, (), ResultRows.of_rows(plan.results, found), late, commit, held_back)

    def _keep(self, changed: Mapping[Any, Stacks], watermark: int) -> None:
        size = self.spec.size
        for key, kept in changed.items():
            if size is not None and key not in self.kept:
                self._pushed += 1
                heappush(self.over, (kept.last + size, self._pushed, key))
            self.kept[key] = kept
        while self.over and size is not None and self.over[0][0] <= watermark:
            _, number, key = heappop(self.over)
            if self.kept[key].last + size <= watermark:
                del self.kept[key]
            else:
                heappush(self.over, (self.kept[key].last + size, number, key))

    def _oldest(self, changed: Mapping[Any, Stacks], watermark: int) -> int:
        """No result has an earlier time than the rows to come."""
        return watermark

    def held(self) -> int:
        """How many rows are kept, and wait for their time."""
        waiting = 0 if self.time is None else len(self.time.waiting)
        rows = [kept.low + kept.younger if self.spec.size is not None else 1 for kept in list(self.kept.values())]
        return sum(rows) + waiting

    def bytes_held(self) -> int:
        """The memory that everything kept takes."""
        waiting = () if self.time is None else (self.time.waiting, self.time.times)
        kept = [list(one) for one in list(self.kept.values())]
        return bytes_of(list(self.kept), kept, self.over, self._late_rows, *waiting)

    def contents(self) -> Any:
        """What is held, as plain values that can be compared."""
        single = len(self.spec.by) == 1
        found = {(key,) if single else key: _plain(kept) for key, kept in self.kept.items()}
        return {key: found[key] for key in sorted(found, key=sort_key)}

    def _saved_runs(self) -> list[Any]:
        keys: Sequence[Any] = list(self.kept)
        return [
            [list(key) if isinstance(key, tuple) else [key] for key in keys],
            [_plain(self.kept[key]) for key in keys],
        ]

    def save(self) -> bytes:
        """The state, for a checkpoint."""
        return saving.pack([super().save(), *self._saved_runs()])

    def restore(self, saved: bytes) -> None:
        """Become the saved state."""
        rest, keys, kept = saving.unpack(saved, self.plan.relation, ())
        super().restore(rest)
        single = len(self.spec.by) == 1
        self.kept = {}
        for key, (older, rows, products) in zip(keys, kept, strict=True):
            stacks = Stacks(
                [(at, tuple(v)) for at, v in older],
                len(older),
                [(a, h, tuple(w)) for a, h, w in rows],
                len(rows),
                tuple(products),
            )
            self.kept[key[0] if single else tuple(key)] = stacks
        size = self.spec.size
        if size is not None:
            self.over = [(one.last + size, number, key) for number, (key, one) in enumerate(self.kept.items())]
            heapify(self.over)
            self._pushed = len(self.over)


def _plain(kept: Stacks) -> list[Any]:
    older = [[at, [list(v) for v in vectors]] for at, vectors in kept.older[: kept.low]]
    rows = [[at, hit, list(weights)] for at, hit, weights in kept.rows[: kept.younger]]
    return [older, rows, [[list(v) for v in product] for product in kept.products]]
