"""Versions of rows in memory: the multi-version table that executions read and commit to.

For every key the table keeps a chain of versions, newest first::

    key ─▶ (position 9, row) ─▶ (position 4, row) ─▶ None       did not exist before position 4
    key ─▶ (position 9, row) ─▶ TRIMMED                         nobody may still read what was before

An execution at position p reads the newest version *below* p. Which older versions must stay is decided by
:meth:`VersionedTable.trim`: for every unfinished execution with an intent on the table, the newest version below
its position. Reading past the end of what was kept is a broken invariant and raises, instead of falling back to
some other version: both classic mistakes of this scheme (an old reader served the latest version; versions freed
that a waiting reader still needs) end in that error, not in a wrong answer.

Rows and versions are plain tuples, not named ones: a plain tuple of plain values is left alone by the cyclic garbage
collector, and a million tracked ones would cost every collection a walk through all of them.

Pure data structure: no clock, file or DuckDB. Rows not in memory come through the ``load`` callback.
"""

from __future__ import annotations

import threading
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice
from typing import Any, Final, NamedTuple

from tidegate.errors import CorruptionError
from tidegate.storage.codec import widened
from tidegate.storage.indexes import TRIMMED, Aged, Position, SecondaryIndex, Version, rows_of
from tidegate.storage.schema import Key, Row, TableSchema

BASE: Final[Position] = -1  # the position of a row that came from the base: below every execution

MANY = 8  # so many writes to a table are worth a look at what they have in common

# rows of the base by key, or None when the loader filled the whole table instead
Loader = Callable[["VersionedTable", Sequence[Key]], dict[Key, Row] | None]


class Changes(NamedTuple):
    """What a merge writes to the base, or a part of it: keys to delete there, and rows to insert."""

    deleted: list[Key]
    inserted: list[Row]


class VersionedTable:
    """One table: the newest committed row of every cached key, older versions while someone may read them.

    ``complete``: every row of the table is in memory, so a missing key is an absent row. Otherwise a missing key is
    asked from the base through ``load``; absent keys are remembered as deleted at BASE.
    """

    def __init__(self, schema: TableSchema, load: Loader | None = None, complete: bool = True) -> None:
        self.schema = schema
        self.name = schema.name
        self.row = schema.row  # the class in which users get rows
        self.key_of = schema.key_of
        self.rows: dict[Key, Version] = Aged()
        self.newest_held = self.rows.get  # the newest version of a key, if it is in memory
        self.complete = complete
        self.dirty: dict[Key, bool] = {}  # changed since the last merge -> the base has a row for it
        self.merging: dict[Key, bool] = {}  # the same, for changes that a merge is writing right now
        self.chained: set[Key] = set()  # keys with more than their newest version
        self.indexes = [SecondaryIndex(schema, index) for index in schema.indexes]
        self.indexed = {_names(index.columns): index for index in reversed(self.indexes)}
        self.guarded = bool(schema.checks) or any(index.unique for index in self.indexes)
        self.changes = 0  # grows with every commit: overlays built for SQL are reused while it stands still
        self.overlay: Any = None  # the changes above the base as SQL reads them, kept by tidegate.storage.overlay
        self._load = load
        self._taken = 0  # the newest commit of which the merge has taken the changes
        # rows that a merge has yet to read and that were replaced since; it ends with None, on its own thread, without a lock
        self._aside: dict[Key, Row | None] | None = None
        self._gone: list[Key] = []  # deleted, according to the merge
        self._evictions = 0
        self._placing = threading.RLock()

    # ---- reading

    def head(self, key: Key) -> Version | None:
        """The newest version of ``key``; None when there is none and never was."""
        version = self.rows.get(key)
        if version is None and not self.complete:
            self.fetch((key,))
            version = self.rows.get(key)
        return version

    def read(self, key: Key, position: Position) -> Row | None:
        """The row of ``key`` an execution at ``position`` sees."""
        version: Any = self.head(key)
        while version is not None:
            if version is TRIMMED:
                raise _lost(self.name, key, position)
            if version[0] < position:
                row: Row | None = version[1]
                return row
            version = version[2]
        return None

    def read_committed(self, key: Key, commit: int) -> Row | None:
        """The newest row committed no later than commit number ``commit``."""
        version: Any = self.head(key)
        while version is not None:
            if version is TRIMMED:
                raise _lost(self.name, key, commit)
            if version[3] <= commit:
                row: Row | None = version[1]
                return row
            version = version[2]
        return None

    def newest(self, key: Key) -> Row | None:
        version = self.head(key)
        return None if version is None else version[1]

    def keys(self) -> list[Key]:
        """All keys in memory (every key of the table when it is complete), in no order."""
        return list(self.rows)

    def index_on(self, columns: Iterable[str]) -> SecondaryIndex | None:
        wanted = frozenset(columns)
        return next((index for index in self.indexes if frozenset(index.columns) == wanted), None)

    @property
    def settled(self) -> bool:
        """Is the newest version of every row in memory, and what everybody sees? An index then holds what is found, no more."""
        return self.complete and not self.chained

    def overlay_keys(self) -> Iterator[Key]:
        """Keys whose visible row may differ from the base row: changed since the merge, or read in an old version."""
        yield from {**self.merging, **self.dirty, **dict.fromkeys(self.chained)}

    # ---- loading

    def fetch(self, keys: Iterable[Key]) -> None:
        """Bring rows from the base into memory; keys the base does not have are remembered as absent."""
        if self.complete:
            return
        missing = [key for key in keys if key not in self.rows]
        if missing:
            load = self._load
            assert load is not None

            def place(found: dict[Key, Row] | None) -> None:
                for key in missing if found is not None else ():
                    self._place(key, found.get(key))  # type: ignore[union-attr]

            self._read_in(lambda: load(self, missing), place)

    def take(self, read: Callable[[], Iterable[Row]]) -> None:
        """Cache rows of the base; what is in memory already is newer or the same."""
        key_of = self.schema.key_of

        def place(rows: Iterable[Row]) -> None:
            for row in rows:
                self._place(key_of(row), row)

        self._read_in(read, place)

    def fill(self, read: Callable[[], Iterable[Row]]) -> None:
        """Take every row of the base: from now on the table is complete."""
        self.take(read)
        for key, version in list(self.rows.items()):
            if version == (BASE, None, None, 0):
                del self.rows[key]
        self.complete = True

    def _read_in(self, read: Callable[[], Any], place: Callable[[Any], None]) -> None:
        """Read from the base and put it in place; again, if rows were evicted meanwhile.

        A row that was read, then changed, merged and evicted by others must not come back in its old form.
        """
        while True:
            evictions = self._evictions
            found = read()
            with self._placing:
                if self._evictions == evictions:
                    place(found)
                    return

    def _place(self, key: Key, row: Row | None) -> None:
        """Cache a base row, unless a commit on another thread put a newer version there meanwhile."""
        version: Version = (BASE, row, None, 0)
        if self.rows.setdefault(key, version) is version and row is not None:
            for index in self.indexes:
                index.add(row, key)

    # ---- committing

    def commit(self, writes: dict[Key, Row | None], position: Position, commit: int, keep_older: bool) -> None:
        """Append ``writes`` as versions at ``position``.

        ``keep_older``: some unfinished execution may still read what was there before; otherwise it is dropped at
        once, which is the whole of garbage collection for a serial run.
        """
        aside = self._aside  # looked at once: the merge may end it at any moment
        if aside is not None:
            self._set_aside(aside, writes)
        if keep_older or self.indexes:
            if self.complete:
                self._commit_each(writes, position, commit, keep_older)
            else:
                with self._placing:  # rows of the base come in meanwhile, on other threads, and into the indexes
                    self._commit_each(writes, position, commit, keep_older)
            return
        if len(writes) >= MANY and not self.chained:
            writes = self._commit_many(writes, position, commit)
        rows, dirty = self.rows, self.dirty
        for key, row in writes.items():  # nobody asks what it replaces, beyond whether the base has it
            older: Any = TRIMMED
            if key not in dirty:
                head = self.newest_held(key) if self.complete else self.head(key)
                dirty[key] = head is not None and head[1] is not None
                if head is None:
                    older = None
            rows[key] = (position, None if row is None else row[:], older, commit)  # a plain tuple, whatever it was
        self.changes += 1

    def _commit_each(self, writes: dict[Key, Row | None], position: Position, commit: int, keep_older: bool) -> None:
        """``commit`` with indexes to keep up, or older versions to keep."""
        if len(writes) >= MANY and not keep_older and not self.chained:
            writes = self._commit_many(writes, position, commit)
        rows, dirty = self.rows, self.dirty
        for key, written in writes.items():
            row = None if written is None else written[:]
            head = self.newest_held(key) if self.complete else self.head(key)
            if key not in dirty:
                dirty[key] = head is not None and head[1] is not None
            for index in self.indexes:
                if head is not None and not keep_older:
                    index.replace(head, row, key)
                elif row is not None:
                    index.add(row, key)
            if keep_older:
                rows[key] = (position, row, head, commit)
                self.chained.add(key)
            else:
                rows[key] = (position, row, None if head is None else TRIMMED, commit)
        self.changes += 1

    def _commit_many(self, writes: dict[Key, Row | None], position: Position, commit: int) -> dict[Key, Row | None]:
        """Commit what replaces rows whose only version is in memory; returns the rest.

        One pass: with many rows it is reaching them that costs. What was committed since the last merge is dirty already.
        """
        rows, dirty, taken = self.rows, self.dirty, self._taken
        deleted = (position, None, TRIMMED, commit)
        indexes = self.indexes
        gone: list[Row] = []
        gone_keys: list[Key] = []
        rest: dict[Key, Row | None] = {}
        for key, row in writes.items():
            head = rows.get(key)
            if head is None or head[1] is None:
                rest[key] = row
                continue
            if head[3] <= taken and key not in dirty:
                dirty[key] = True
            if row is None:
                if indexes:
                    gone.append(head[1])
                    gone_keys.append(key)
                rows[key] = deleted
                continue
            for index in indexes:
                index.replace(head, row, key)
            rows[key] = (position, row[:], TRIMMED, commit)
        for index in indexes:
            index.drop_all(list(map(index.columns_of, gone)), gone_keys)
        return rest

    # ---- garbage collection and merge

    def trim(
        self,
        open_positions: Sequence[Position],
        open_commits: Sequence[int] = (),
        keys: Iterable[Key] | None = None,
    ) -> None:
        """Drop versions nobody may read, of these keys or of all: keep the newest, and the newest below each of
        ``open_positions``.

        ``open_positions`` (ascending): positions of the unfinished executions with an intent on this table.
        ``open_commits``: commit numbers that readers of the committed state hold on to.
        """
        with self._placing:
            self._trim(open_positions, open_commits, self.chained if keys is None else self.chained.intersection(keys))

    def _trim(self, open_positions: Sequence[Position], open_commits: Sequence[int], keys: Iterable[Key]) -> None:
        for key in list(keys):
            kept, longer = _kept(self.rows[key], open_positions, open_commits)
            if self.indexes:
                self._drop_unkept(key, self.rows[key], kept)
            self.rows[key] = kept
            if not longer:
                self.chained.discard(key)
                if kept[1] is None and self.complete and key not in self.dirty and key not in self.merging:
                    del self.rows[key]

    def _drop_unkept(self, key: Key, before: Version, after: Version) -> None:
        kept_rows = [row for row in rows_of(after) if row is not None]
        for index in self.indexes:
            values = {index.value_of(row) for row in kept_rows}
            for row in rows_of(before):
                if row is not None and index.value_of(row) not in values:
                    index.drop(row, key)

    def begin_merge(self, commit: int) -> None:
        """Everything committed so far, up to commit number ``commit``, is to be merged. Then come :meth:`taken` and, when that is
        in the base, :meth:`merged` and :meth:`forget`; or :meth:`merge_failed`. Commits may go on all the while.
        """
        assert not self.merging, "one merge at a time"
        self.merging, self.dirty = self.dirty, {}
        self._taken = commit
        self._aside, self._gone = {}, []

    def _set_aside(self, aside: dict[Key, Row | None], writes: Iterable[Key]) -> None:
        """These keys are about to change while a merge reads what they were."""
        for key in writes:
            if key in self.merging and key not in aside:
                aside[key] = self.rows[key][1]

    def taken(self, size: int) -> Iterator[Changes]:
        """What the base lacks: the state of every changed key as of ``begin_merge``, ``size`` keys at a time.

        Needs no lock. A commit puts what it replaces aside *before* it replaces it, and here it is looked for *after* the row was
        read: a row that is too new is always found out.
        """
        aside, rows = self._aside, self.rows
        assert aside is not None
        changed = iter(self.merging.items())
        while part := list(islice(changed, size)):
            inserted = []
            for key, _ in part:
                row = rows[key][1]
                if key in aside:
                    row = aside[key]
                if row is None:
                    self._gone.append(key)
                else:
                    inserted.append(row)
            yield Changes([key for key, in_base in part if in_base], inserted)
        self._aside = None

    def merged(self) -> None:
        """The changes taken are in the base now."""
        self.merging, self._aside = {}, None
        self.changes += 1

    def forget(self, size: int) -> bool:
        """Drop up to ``size`` rows that the merge found deleted and nobody has written since; False when there are no more."""
        gone = self._gone
        for _ in range(min(size, len(gone))):
            key = gone.pop()
            version = self.rows.get(key)
            free = version is not None and version[1] is None and key not in self.chained and key not in self.dirty
            if free and self.complete:
                del self.rows[key]
        return bool(gone)

    def merge_failed(self) -> None:
        """The changes taken did not reach the base: they are dirty again."""
        self.dirty.update(self.merging)
        self.merging, self._aside, self._gone = {}, None, []

    def export_chains(self, encode: Callable[[Any], Any]) -> list[Any]:
        """The chains of keys with more than their newest version, for the checkpoint."""
        chains = []
        for key in self.chained:
            versions: list[Any] = []
            version: Any = self.rows[key]
            while version is not None and version is not TRIMMED:
                versions.append([version[0], None if version[1] is None else encode(tuple(version[1]))])
                version = version[2]
            chains.append([encode(key), versions, version is TRIMMED])
        return chains

    def restore_chains(self, chains: list[Any], decode: Callable[[Any], Any]) -> None:
        """Put back what :meth:`export_chains` wrote."""
        for key, versions, trimmed in chains:
            version: Any = TRIMMED if trimmed else None
            key = decode(key)
            for position, row in reversed(versions):
                stored = None if row is None else widened(self.schema, decode(row))
                version = (position, stored, version, 0)
                if stored is not None:
                    for index in self.indexes:
                        index.add(stored, key)
            self.rows[key] = version
            self.chained.add(key)

    def evict(self, keep: int) -> None:
        """Forget clean single-version rows beyond ``keep``: they can be read again from the base. Oldest first."""
        spare = len(self.rows) - keep
        if spare <= 0 or self._load is None:
            return
        with self._placing:
            self._evictions += 1
            self.complete = False
            for key in list(self.rows):
                if spare <= 0:
                    return
                if key not in self.dirty and key not in self.merging and key not in self.chained:
                    row = self.rows.pop(key)[1]
                    if row is not None:
                        for index in self.indexes:
                            index.drop(row, key)
                    spare -= 1


def _names(columns: tuple[str, ...]) -> str | tuple[str, ...]:
    """One column by its name, several as a tuple."""
    return columns if len(columns) > 1 else columns[0]


def _kept(head: Version, positions: Sequence[Position], commits: Sequence[int]) -> tuple[Version, bool]:
    """``head`` with only the versions still needed below it, and whether any reader is older than ``head``."""
    chain: list[Version] = []
    version: Any = head
    while version is not None and version is not TRIMMED:
        chain.append(version)
        version = version[2]
    end = version
    needed = [head]
    for newer, older in zip(chain, [*chain[1:], None], strict=True):
        # a reader r sees `older` (or nothing, at the end) when older < r <= newer
        if older is not None and (
            _any_in(positions, older[0], newer[0]) or any(older[3] <= c < newer[3] for c in commits)
        ):
            needed.append(older)
    reads_before = (bool(positions) and positions[0] <= head[0]) or any(c < head[3] for c in commits)
    oldest = chain[-1]
    reads_end = (bool(positions) and positions[0] <= oldest[0]) or any(c < oldest[3] for c in commits)
    tail: Any = end if reads_end or (end is None and len(needed) == len(chain)) else TRIMMED
    for version in reversed(needed):
        tail = (version[0], version[1], tail, version[3])
    return tail, reads_before


def _any_in(positions: Sequence[Position], low: Position, high: Position) -> bool:
    """Is there a position r with low < r <= high?"""
    place = bisect_left(positions, low + 1)
    return place < len(positions) and positions[place] <= high


def _lost(table: str, key: Key, position: int) -> CorruptionError:
    return CorruptionError(
        f"the version of {table}[{key!r}] that position {position} must read was freed; "
        f"this is a bug in tidegate, not in your app: please report it with the app and the seed",
        table=table,
        key=key,
        position=position,
    )
