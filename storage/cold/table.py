"""The stored rows of one table by key: runs over each other, and runs of its indexes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, Protocol

from tidegate.storage.cold.packing import Packing, index_packing, packing_of
from tidegate.storage.cold.runs import ABSENT, Entries, Run, mask_of, masks_of, merged, pack_rows, write_run
from tidegate.storage.schema import Index, Key, Row, TableSchema

FANOUT = 6  # runs of about the same size that become one
SMALLEST = 4096  # rows; smaller runs are of the same size
BUILT_AT_ONCE = 250_000  # rows of a run that is built from unsorted ones
MOST_KEYS = 10_000  # of one indexed value; DuckDB finds more


class Places(Protocol):
    """Where new runs go."""

    def next(self) -> Path | None: ...


class Level:
    """Runs over each other, the newest first. Readers take the tuple once: it is replaced, never changed."""

    def __init__(self, packing: Packing, runs: Sequence[Run] = ()) -> None:
        self.packing = packing
        self.runs: tuple[Run, ...] = tuple(runs)

    @property
    def rows(self) -> int:
        """Records, those of the same key in several runs included."""
        return sum(run.rows for run in self.runs)

    def built(self, rows: Iterable[Row], places: Places) -> tuple[Run, ...]:
        """One run of rows that come in any order. None of them comes twice, unless they are equal."""
        parts: list[Run] = []
        taken: list[Row] = []
        for row in rows:
            taken.append(row)
            if len(taken) >= BUILT_AT_ONCE:
                parts.append(write_run(places.next(), len(taken), [pack_rows(self.packing, taken)]))
                taken = []
        if taken:
            parts.append(write_run(places.next(), len(taken), [pack_rows(self.packing, taken)]))
        if len(parts) > 1:
            return (self.joined(parts, True, places),)
        return tuple(parts)

    def joined(self, runs: Sequence[Run], whole: bool, places: Places) -> Run:
        """Runs that lie over each other, as one."""
        return write_run(places.next(), sum(run.rows for run in runs), merged(runs, self.packing, whole))

    def crowded(self) -> int:
        """How many of the newest runs should become one; 0: none."""
        sizes = [_size(run.rows) for run in self.runs]
        for size in sorted(set(sizes)):
            count = next((i for i, other in enumerate(sizes) if other > size), len(sizes))
            if count >= FANOUT:
                return count
        return 0


def _size(rows: int) -> int:
    size = 0
    while rows > SMALLEST * FANOUT**size:
        size += 1
    return size


class ColdTable:
    """The rows of a table as of the last merge. Any number of threads may read."""

    def __init__(self, schema: TableSchema) -> None:
        self.schema = schema
        self.rows = Level(packing_of(schema))
        self.indexes = {index.name: Level(index_packing(schema, index.columns)) for index in schema.indexes}
        self._indexed = {index.name: _entries_of(schema, index) for index in schema.indexes}

    @property
    def levels(self) -> dict[str, Level]:
        """All of them by name; that of the rows has none."""
        return {"": self.rows, **self.indexes}

    @property
    def size(self) -> int:
        """Bytes, of all runs."""
        return sum(run.size for level in self.levels.values() for run in level.runs)

    @property
    def held(self) -> int:
        """Bytes that it takes in this process."""
        return sum(run.held for level in self.levels.values() for run in level.runs)

    # ---- reading

    def get(self, key: Key) -> Row | None:
        packing = self.rows.packing
        spread = packing.spread(key)
        mask = mask_of(spread)
        for run in self.rows.runs:
            found = run.find(spread, mask, key, packing)
            if found is not ABSENT:
                return found  # type: ignore[no-any-return]
        return None

    def get_all(self, keys: Sequence[Key]) -> dict[Key, Row]:
        """The rows that there are."""
        if len(keys) < 8:
            return {key: row for key in keys if (row := self.get(key)) is not None}
        packing = self.rows.packing
        hashes = packing.spread_all(keys)
        masks = masks_of(hashes)
        found: dict[Key, Row] = {}
        gone: set[Key] = set()
        for run in self.rows.runs:
            there = run.may_have(hashes, masks).nonzero()[0].tolist()
            for place in there:
                key = keys[place]
                if key not in found and key not in gone:
                    row = run.find(int(hashes[place]), int(masks[place]), key, packing)
                    if row is None:
                        gone.add(key)
                    elif row is not ABSENT:
                        found[key] = row
        return found

    def keys_with(self, index: str, values: tuple[Any, ...]) -> list[Key] | None:
        """The keys of the rows that have these indexed values, and of some that had them; None: too many."""
        level = self.indexes[index]
        width, alone = len(values), len(self.schema.primary_key) == 1
        value = values if width > 1 else values[0]
        spread = level.packing.spread(value)
        mask = mask_of(spread)
        keys: dict[Key, None] = {}
        for run in level.runs:
            records = run.find_all(spread, mask, MOST_KEYS)
            if records is None:
                return None
            for record in records:
                entry = level.packing.row(record)
                if entry[:width] == values:
                    keys[entry[width] if alone else entry[width:]] = None
        return list(keys)

    # ---- writing: the runs that take the place of those of each level, to be put there by the caller

    def with_changes(self, rows: Sequence[Row], gone: Sequence[Key], places: Places) -> dict[str, tuple[Run, ...]]:
        """What a merge changes. Entries of an index are only added: who reads them looks at the rows."""
        new = {"": (write_run(places.next(), len(rows) + len(gone), [pack_rows(self.rows.packing, rows, gone)]),)}
        if rows:
            for name, level in self.indexes.items():
                entries = pack_rows(level.packing, self._indexed[name](rows))
                if len(entries.hashes):
                    new[name] = (write_run(places.next(), len(entries.hashes), [entries]),)
        return {name: (*runs, *self.levels[name].runs) for name, runs in new.items()}

    def built(self, rows: Iterable[Row], places: Places) -> dict[str, tuple[Run, ...]]:
        """All of it anew."""
        made = {"": self.rows.built(rows, places)}
        for name in self.indexes:
            made[name] = self._index_built(name, made[""], places)
        return made

    def tidied(self, places: Places) -> dict[str, tuple[Run, ...]]:
        """Runs that have become many are joined; an index of which most is outdated is made anew."""
        changed = {}
        for name, level in self.levels.items():
            count = level.crowded()
            if count:
                whole = count == len(level.runs)
                changed[name] = (level.joined(level.runs[:count], whole, places), *level.runs[count:])
        rows = changed.get("", self.rows.runs)
        for name in self.indexes:
            entries = sum(run.rows for run in changed.get(name, self.indexes[name].runs))
            if entries > 2 * sum(run.rows for run in rows) + SMALLEST:
                changed[name] = self._index_built(name, rows, places)
        return changed

    def put(self, changed: dict[str, tuple[Run, ...]]) -> None:
        for name, runs in changed.items():
            self.levels[name].runs = runs

    def differs(self, base: Iterable[Row]) -> str | None:
        """What is wrong with it, where these are all rows of the base."""
        stored = {self.schema.key_of(row): row for row in base}
        held = {self.schema.key_of(row): row for row in self._all(merged(self.rows.runs, self.rows.packing, True))}
        if held != stored:
            return f"cold rows of {self.schema.name} are {held}, and the base has {stored}"
        for index in self.schema.indexes:
            for key, row in stored.items():
                values = tuple([row[self.schema.index_of[name]] for name in index.columns])
                found = None if None in values else self.keys_with(index.name, values)
                if found is not None and key not in found:
                    return f"key {key!r} of {self.schema.name} is not found by {index.name} = {values}"
        return None

    def _index_built(self, name: str, runs: Sequence[Run], places: Places) -> tuple[Run, ...]:
        rows = self._all(merged(runs, self.rows.packing, True))
        return self.indexes[name].built((entry for row in rows for entry in self._indexed[name]([row])), places)

    def _all(self, parts: Iterable[Entries]) -> Iterator[Row]:
        for part in parts:
            yield from map(self.rows.packing.row, part.records)


def _entries_of(schema: TableSchema, index: Index) -> Any:
    """A function that gives the entries of rows in an index: the indexed values, if none is NULL, and the key."""
    values = [schema.index_of[name] for name in index.columns]
    places = [*values, *schema.key_indexes]

    def entries(rows: Sequence[Row]) -> list[Row]:
        return [
            tuple([row[place] for place in places]) for row in rows if all(row[place] is not None for place in values)
        ]

    return entries
