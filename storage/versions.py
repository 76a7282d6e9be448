"""Versions of rows in memory: the multi-version table that executions read and commit to.

The table keeps the newest row of every key, as it is. Only where an unfinished execution may still read what a commit
replaced is there also a chain of versions (:mod:`tidegate.storage.chains`). An execution at position p reads the newest
version *below* p::

    rows    key ─▶ row                                          for every reader above the *settled* position
    chains  key ─▶ (position 9, row) ─▶ (position -1, row)      p = 9 and below read the second one

Which older versions must stay is decided by :meth:`VersionedTable.trim`: for every unfinished execution with an intent on
the table, the newest version below its position. Reading what was not kept is a broken invariant and raises, instead of
falling back to some other version: both classic mistakes of this scheme (an old reader served the latest version; versions
freed that a waiting reader still needs) end in that error, not in a wrong answer. A row without a chain has no position of
its own; its reader must be above all positions whose older versions were dropped, anywhere in the table.

Readers on other threads need no lock: they read the row first and then check whether it is valid as it is, and a commit
that keeps older versions first says that it is not.

Rows are plain tuples, not named ones: the cyclic garbage collector does not track a plain tuple of plain values, and
every collection would walk through a million tracked ones.

Pure data structure: no clock, file or DuckDB. Rows not in memory come through the ``load`` callback.
"""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final

from tidegate.errors import CorruptionError
from tidegate.mutex import Rank, reentrant
from tidegate.storage.chains import BASE, NEVER, TRIMMED, Position, Version, as_of, below, kept, lost, rows_of
from tidegate.storage.codec import widened
from tidegate.storage.indexes import Aged, SecondaryIndex
from tidegate.storage.invariants import broken, check_readers, surplus
from tidegate.storage.merges import TableMerge
from tidegate.storage.schema import Key, Row, TableSchema

WHOLE: Final = slice(None)  # row[WHOLE] is row[:], without making the slice

NEWS = 1 << 17  # keys remembered for SQL; when there are more, it looks at all changes again
MISSED = 256  # keys remembered to learn from
MANY = 8  # from this many writes to a table on, a joint pass pays off

# rows of the base by key, or None when the loader filled the whole table instead
Loader = Callable[["VersionedTable", Sequence[Key]], dict[Key, Row] | None]


class VersionedTable:
    """One table: the newest committed row of every cached key, older versions while someone may read them.

    ``complete``: every row of the table is in memory, so a missing key is an absent row. Otherwise a missing key is
    looked up in the base through ``load``, and an absent row is remembered as None.
    """

    def __init__(self, schema: TableSchema, load: Loader | None = None, complete: bool = True) -> None:
        self.schema = schema
        self.name = schema.name
        self.rows: dict[Key, Row | None] = Aged()  # the newest ones; None where it is known that there is none
        self.newest_held = self.rows.get  # the newest row with a key, if it is in memory
        self.chains: dict[Key, Version] = {}  # of the keys with more than their newest version
        self.straight: Position = BASE  # above it ``rows`` is what a reader sees; NEVER while there are chains
        self.complete = complete
        self.dirty: dict[Key, bool] = {}  # changed since the last merge -> the base has a row for it
        self.merge: TableMerge | None = None  # the merge that is writing earlier changes now
        self.used: Mapping[Key, Any] = {}  # written since the merge before the last
        self.missed: list[Key] | None = None  # keys that were read one by one, while somebody wants to know
        self.cold_reads = 0  # rows that were read because they were not in memory, or known to be absent
        self.gone: list[Key] = []  # deleted according to the last merge, and to be forgotten
        self.indexes = [SecondaryIndex(schema, index) for index in schema.indexes]
        self.indexed = {_names(index.columns): index for index in reversed(self.indexes)}
        self.newest_commit = self.merges = 0
        self.due_loaded: tuple[int, Any] = (-1, None)  # see tidegate.storage.expiry: evictions, and up to which time
        self.columns: Any = None  # rows as SQL reads them, kept by tidegate.storage.sql.columns
        self.news: deque[Key] | None = None  # keys committed since SQL last looked, if it has ever looked
        self._load = load
        self._settled = (BASE, 0)  # while there are chains: the position and the commit below which nothing was kept
        self.evictions = 0  # how often rows were evicted: while it is unchanged, a complete table stays complete
        self._placing = reentrant(Rank.PLACING)

    # ---- reading

    def newest(self, key: Key) -> Row | None:
        """The newest row with ``key``, from the base if needed; None when there is none."""
        row: Any = self.rows.get(key, TRIMMED)
        if row is TRIMMED and not self.lacks(key):
            row = self._fetched(key)
        return None if row is TRIMMED else row

    def _fetched(self, key: Key) -> Any:
        """``fetch`` for one key, and its row; TRIMMED where that is not known to be absent, but is."""
        load, rows = self._load, self.rows
        assert load is not None
        while not self.lacks(key):
            evictions = self.evictions
            self.cold_reads += 1
            if self.missed is not None and len(self.missed) < MISSED:
                self.missed.append(key)
            found = load(self, (key,))
            with self._placing:
                if found is not None and self.evictions == evictions and not self.complete:
                    self._place(key, found.get(key))
                row = rows.get(key, TRIMMED)
                if row is not TRIMMED:
                    return row
        return rows.get(key, TRIMMED)

    def lacks(self, key: Key) -> bool:
        """Is it certain that there is no row with ``key``? Only a complete table can tell.

        An eviction ends ``complete``, then counts itself, then takes rows out. So a table that was complete before a
        lookup, and has counted nothing since before that, had all its rows during it.
        """
        evictions = self.evictions
        return self.complete and key not in self.rows and self.evictions == evictions

    def mark(self) -> int:
        """A number that equals ``evictions`` for as long as no row that is in memory now has been evicted."""
        evictions = self.evictions
        if not self.complete:  # an eviction may be under way
            with self._placing:
                evictions = self.evictions
        return evictions

    def read(self, key: Key, position: Position) -> Row | None:
        """The row of ``key`` an execution at ``position`` sees."""
        row = self.newest(key)
        chain = self.chains.get(key)
        version = below(chain, position)
        if version is TRIMMED or (chain is None and position <= self.settled[0]):
            raise lost(self.name, key, f"position {position}")
        return row if chain is None else None if version is None else version[1]

    def read_committed(self, key: Key, commit: int) -> Row | None:
        """The newest row committed no later than commit number ``commit``."""
        row = self.newest(key)
        chain = self.chains.get(key)
        version = as_of(chain, commit)
        if version is TRIMMED or (chain is None and commit < self.settled[1]):
            raise lost(self.name, key, f"a reader of commit {commit}")
        return row if chain is None else None if version is None else version[1]

    @property
    def settled(self) -> tuple[Position, int]:
        """The newest position, and the newest commit, at which nothing older was kept: no reader is below them."""
        straight = self.straight
        return self._settled if straight == NEVER else (straight, self.newest_commit)

    def keys(self) -> list[Key]:
        """All keys in memory (every key of the table when it is complete), in no order."""
        return list(self.rows)

    def keys_if_complete(self) -> list[Key] | None:
        """Every key of the table, or None when not all rows are in memory."""
        with self._placing:
            return list(self.rows) if self.complete else None

    def index_on(self, columns: Iterable[str]) -> SecondaryIndex | None:
        wanted = frozenset(columns)
        return next((index for index in self.indexes if frozenset(index.columns) == wanted), None)

    def overlay_keys(self) -> Iterable[Key]:
        """Keys whose visible row may differ from the base row: changed since the merge, or read in an old version."""
        with self._placing:  # a merge that begins moves them
            merged = self.merge.changed if self.merge is not None else {}
            return {**merged, **self.dirty, **dict.fromkeys(list(self.chains))}

    @property
    def above_base(self) -> int:
        """How many keys :meth:`overlay_keys` has, or more."""
        with self._placing:
            return len(self.dirty) + len(self.chains) + (len(self.merge.changed) if self.merge is not None else 0)

    def start_news(self) -> None:
        """From now on remember which keys are committed: SQL is about to look at all of them."""
        self.news = deque(maxlen=NEWS)

    def take_news(self) -> list[Key] | None:
        """The keys committed since they were last taken; None when there were too many to remember."""
        news = self.news
        if news is None or len(news) >= NEWS:
            return None
        return [news.popleft() for _ in range(len(news))]

    # ---- loading

    def fetch(self, keys: Iterable[Key]) -> None:
        """Load rows from the base into memory; keys the base does not have are remembered as absent."""
        if self.complete:
            return
        missing = [key for key in keys if key not in self.rows]
        if missing:
            load = self._load
            assert load is not None
            self.cold_reads += len(missing)

            def place(found: dict[Key, Row] | None) -> None:
                for key in missing if found is not None else ():
                    self._place(key, found.get(key))  # type: ignore[union-attr]

            self._read_in(lambda: load(self, missing), place)

    def take(self, read: Callable[[], Iterable[Row]]) -> None:
        """Cache rows of the base; rows already in memory are newer or the same."""
        self._read_in(read, self._place_all)

    def fill(self, read: Callable[[], Iterable[Row]]) -> None:
        """Take every row of the base: from now on the table is complete."""

        def place(rows: Iterable[Row]) -> None:
            self._place_all(rows)
            self._make_complete()  # atomically with the rows: nothing may be evicted in between

        self._read_in(read, place)

    def fill_in_parts(self, parts: Iterable[Sequence[Row]]) -> bool:
        """``fill`` while others use the table: returns whether it is complete. Nothing may be merged meanwhile."""
        evictions = self.mark()
        for part in parts:
            with self._placing:
                if self.complete:
                    return True
                if self.evictions != evictions:
                    return False
                self._place_all(part)
        with self._placing:
            if self.evictions == evictions and not self.complete:
                self._make_complete()
            return self.complete

    def _make_complete(self) -> None:
        """Every row of the base is here: it need not be remembered any more which are not."""
        absent = [key for key, row in list(self.rows.items()) if row is None]
        self.gone.extend([key for key in absent if not self.needed(key)])  # a commit may be about to use them
        self.complete = True

    def needed(self, key: Key) -> bool:
        """Must it be remembered that ``key`` has no row, or not this one?"""
        return key in self.dirty or key in self.chains or (self.merge is not None and key in self.merge.changed)

    def _read_in(self, read: Callable[[], Any], place: Callable[[Any], None]) -> None:
        """Read from the base and cache it; repeat if rows were evicted meanwhile.

        A row that was read, then changed, merged and evicted by others must not reappear in its old form.
        """
        while True:
            evictions = self.evictions
            found = read()
            with self._placing:
                if self.complete:  # another thread has loaded all of it meanwhile
                    return
                if self.evictions == evictions:
                    place(found)
                    return

    def _place_all(self, rows: Iterable[Row]) -> None:
        key_of = self.schema.key_of
        for row in rows:
            self._place(key_of(row), row)

    def _place(self, key: Key, row: Row | None) -> None:
        """Cache a base row, unless a commit on another thread put a newer version there meanwhile."""
        if key not in self.rows:
            self.rows[key] = row
            if row is not None:
                for index in self.indexes:
                    index.add(row, key)

    # ---- committing

    def commit(self, writes: dict[Key, Row | None], position: Position, commit: int, keep_older: bool) -> None:
        """Append ``writes`` as versions at ``position``.

        ``keep_older``: some unfinished execution may still read what was there before; otherwise it is dropped at once,
        which is all the garbage collection a serial run needs.
        """
        if keep_older or self.chains or self.merge is not None or not self.complete:
            held = not self.indexes and writes.keys() <= self.rows.keys()  # nobody else writes to such places
            if keep_older or self.chains or self.merge is not None or not held:
                self._commit_slowly(writes, position, commit, keep_older)
                return
        rows, dirty = self.rows, self.dirty
        if self.indexes:
            self._commit_indexed(writes)
        else:
            for key, row in writes.items():
                if key not in dirty:
                    dirty[key] = rows.get(key) is not None
                rows[key] = row and row[WHOLE]  # a plain tuple, whatever it was
        self.straight = position
        self.newest_commit = commit
        if self.news is not None:  # after the rows have changed: who finds the key here finds the row
            self.news.extend(writes)

    def _commit_indexed(self, writes: dict[Key, Row | None]) -> None:
        if len(writes) >= MANY:
            writes = self._commit_many(writes)
        rows, dirty, indexes = self.rows, self.dirty, self.indexes
        for key, row in writes.items():
            old = rows.get(key)
            if key not in dirty:
                dirty[key] = old is not None
            rows[key] = row = row and row[WHOLE]
            for index in indexes:
                if old is None and row is not None:
                    index.add(row, key)
                else:
                    index.replace(old, row, key)

    def _commit_slowly(self, writes: dict[Key, Row | None], position: Position, commit: int, keep_older: bool) -> None:
        """``commit`` where older versions may be or were read, a merge is under way, or rows are not in memory."""
        if not writes:
            return
        if self.merge is not None:
            self.merge.put_aside(writes)
        if keep_older:
            self._keep_older(writes, position, commit)
        elif self.chains or self.merge is not None or not self._commit_held(writes, position):
            self._commit_each(writes, position, commit)
        self.newest_commit = commit
        if self.news is not None:
            self.news.extend(writes)

    def _commit_held(self, writes: dict[Key, Row | None], position: Position) -> bool:
        """``commit`` if it replaces rows that are in memory, or known to be absent; returns whether it does."""
        with self._placing:
            if not writes.keys() <= self.rows.keys():
                return False
            self._commit_indexed(writes)
            self.straight = position
            return True

    def _commit_many(self, writes: dict[Key, Row | None]) -> dict[Key, Row | None]:
        """Commit what replaces existing rows; returns the rest. One pass: reaching many rows is what costs."""
        rows, dirty, indexes = self.rows, self.dirty, self.indexes
        gone: list[Row] = []
        gone_keys: list[Key] = []
        rest: dict[Key, Row | None] = {}
        for key, row in writes.items():
            old = rows.get(key)
            if old is None:
                rest[key] = row
                continue
            dirty.setdefault(key, True)
            if row is None:
                gone.append(old)
                gone_keys.append(key)
                rows[key] = None
                continue
            row = row[:]
            for index in indexes:
                index.replace(old, row, key)
            rows[key] = row
        for index in indexes:
            index.drop_all(list(map(index.columns_of, gone)), gone_keys)
        return rest

    def _commit_each(self, writes: dict[Key, Row | None], position: Position, commit: int) -> None:
        """``commit`` over chains that are no longer read, or while other threads load rows of the base."""
        self.fetch(writes)  # not under the lock: loading the whole table takes another lock first and then this one
        with self._placing:
            for key, written in writes.items():
                row = None if written is None else written[:]
                old = self._changing(key)
                chain = self.chains.pop(key, None)
                for index in self.indexes:
                    index.replace(old, row, key)
                    if chain is not None:
                        index.replace_older(chain[2], row, key)
                self.rows[key] = row
            if self.chains:
                self._settled = (position, commit)
            else:
                self.straight = position

    def _keep_older(self, writes: dict[Key, Row | None], position: Position, commit: int) -> None:
        """``commit`` where some execution may still read what was there before."""
        self.fetch(writes)
        with self._placing:
            if self.straight != NEVER:
                self._settled, self.straight = self.settled, NEVER
            for key, written in writes.items():
                row = None if written is None else written[:]
                older: Any = self.chains.get(key)
                if older is None and key in self.rows:
                    older = (BASE, self.rows[key], None, 0)
                self._changing(key)
                if row is not None:
                    for index in self.indexes:
                        index.add(row, key)
                self.chains[key] = (position, row, older, commit)
                self.rows[key] = row

    def _changing(self, key: Key) -> Row | None:
        """The newest row with ``key``, which is about to change."""
        old = self.rows.get(key)
        if key not in self.dirty:
            self.dirty[key] = old is not None
        return old

    # ---- garbage collection and merge

    def trim(
        self,
        open_positions: Sequence[Position],
        open_commits: Sequence[int] = (),
        keys: Iterable[Key] | None = None,
    ) -> None:
        """Drop versions that no reader needs, of these keys or of all: keep the newest, and the newest below each of
        ``open_positions``.

        ``open_positions`` (ascending): positions of the unfinished executions with an intent on this table.
        ``open_commits``: commit numbers that readers of the committed state hold.
        """
        with self._placing:
            self._trim(open_positions, open_commits, self.chains if keys is None else self.chains.keys() & keys)

    def _trim(self, open_positions: Sequence[Position], open_commits: Sequence[int], keys: Iterable[Key]) -> None:
        for key in list(keys):
            before = self.chains[key]
            after, longer = kept(before, open_positions, open_commits)
            if self.indexes:
                self._drop_unkept(key, before, after)
            if longer:
                self.chains[key] = after
            else:
                position, commit = self._settled
                self._settled = (max(position, before[0]), max(commit, before[3]))
                del self.chains[key]
                if after[1] is None and self.complete and not self.needed(key):
                    del self.rows[key]
        if not self.chains and self.straight == NEVER:
            self.straight = self._settled[0]

    def _drop_unkept(self, key: Key, before: Version, after: Version) -> None:
        kept_rows = [row for row in rows_of(after) if row is not None]
        for index in self.indexes:
            values = {index.value_of(row) for row in kept_rows}
            for row in rows_of(before):
                if row is not None and index.value_of(row) not in values:
                    index.drop(row, key)

    def begin_merge(self) -> TableMerge:
        """Everything committed so far is to be merged. Once the base has what the merge took, call :meth:`merged` and
        :meth:`forget`; otherwise :meth:`merge_failed`. Commits may continue all the while.
        """
        assert self.merge is None, "one merge at a time"
        with self._placing:
            self.merge = TableMerge(self.dirty, self.rows)
            self.dirty = {}
            return self.merge

    def merged(self, left_out: Iterable[Key] = ()) -> None:
        """The changes taken are in the base now, except these keys, for which it has no row."""
        assert self.merge is not None
        with self._placing:
            self.dirty.update(dict.fromkeys(left_out, False))
            self.gone += self.merge.gone
            self.used = self.merge.changed
            self.merge = None
            self.merges += 1
            if self.news is not None and len(self.news) >= NEWS:
                self.news = self.columns = None  # SQL does not look any more

    def merge_failed(self) -> None:
        """The changes taken did not reach the base, or it is unknown whether they did: they are dirty again, and the
        base may have a row for each.
        """
        with self._placing:
            if self.merge is not None:  # otherwise it had ended, and a later step failed
                self.dirty.update(dict.fromkeys(self.merge.changed, True))
                self.merge = None

    def forget(self, size: int) -> bool:
        """Drop up to ``size`` rows that the merge found deleted and not written since; False when none are left."""
        gone = self.gone
        for _ in range(min(size, len(gone))):
            key = gone.pop()
            if self.complete and self.rows.get(key, gone) is None and not self.needed(key):
                del self.rows[key]
        return bool(gone)

    def restore_left_out(self, key: Key, row: Row) -> None:
        """Put back a row that the base does not have."""
        with self._placing:
            self.rows[key] = row
            self.dirty[key] = False
            for index in self.indexes:
                index.add(row, key)
        if self.news is not None:
            self.news.append(key)

    def export_chains(self, encode: Callable[[Any], Any]) -> list[Any]:
        """The chains of keys with more than their newest version, for the checkpoint."""
        chains = []
        for key, head in self.chains.items():
            versions: list[Any] = []
            version: Any = head
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
                stored = None if row is None else widened(self.schema, decode(row))[:]  # a plain tuple
                version = (position, stored, version, 0)
                if stored is not None:
                    for index in self.indexes:
                        index.add(stored, key)
            self.straight = NEVER
            self.chains[key] = version
            self.rows[key] = version[1]

    def evict(self, keep: int) -> None:
        """Forget clean single-version rows beyond ``keep``: they can be read again. Oldest first, and those that the last
        merge wrote after all others: they were used.
        """
        spare = len(self.rows) - keep
        if spare <= 0 or self._load is None:
            return
        with self._placing:
            self.complete = False
            self.evictions += 1  # in this order: see lacks
            used = self.used
            for again in (False, True):
                for key in list(self.rows):
                    if spare <= 0:
                        return
                    if (again or key not in used) and not self.needed(key):
                        row = self.rows.pop(key)
                        if row is not None:
                            for index in self.indexes:
                                index.drop(row, key)
                        spare -= 1

    # ---- invariants

    def check(
        self, open_positions: Sequence[Position] = (), open_commits: Sequence[int] = (), trimmed: bool = False
    ) -> None:
        """Raise CorruptionError if an invariant is broken: see :mod:`tidegate.storage.invariants`.

        The readers are those of :meth:`trim`. ``trimmed``: ``trim`` was just called for these readers and all keys.
        """
        with self._placing:
            check_readers(self, open_positions, open_commits)
            unread = surplus(self, open_positions, open_commits) if trimmed else ()
            wrong = next(itertools.chain(broken(self), unread), None)
        if wrong is not None:
            raise CorruptionError(
                f"table {self.name}: {wrong}; this is a bug in tidegate, not in your app: please report it with the app and "
                f"the seed",
                table=self.name,
            )


def _names(columns: tuple[str, ...]) -> str | tuple[str, ...]:
    """One column by its name, several as a tuple."""
    return columns if len(columns) > 1 else columns[0]
