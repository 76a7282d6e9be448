"""The cold rows of all tables, and how they keep in step with the base.

A table that is not held in memory whole is read by key, millions of times; DuckDB takes half a millisecond for that. So
its rows are kept a second time, by key (:mod:`tidegate.storage.cold.runs`). The base remains the authority: this is a
copy, written by the same merge, and made anew from the base whenever it is missing, behind or damaged.

``DIR/rows/<stamp>.manifest`` names the runs of the merge that the base calls by that stamp::

    the merge writes to DuckDB, in a transaction
    begin    new runs and the manifest for the new stamp, all on disk
    COMMIT   from now on the base has the new stamp
    adopt    readers get the new runs; the old manifest and what only it needs are removed

So after a kill at any moment there is the manifest that belongs to the base, whichever of the two that is. A base
without one (a generation, a backup, one that an upgrade rewrote) has no cold rows until they are built.
"""

from __future__ import annotations

import itertools
import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple
from zlib import crc32

import msgspec

from tidegate.crashpoints import crash_point
from tidegate.errors import text_of
from tidegate.storage.cold.runs import Damaged, Run, open_run
from tidegate.storage.cold.table import ColdTable
from tidegate.storage.merges import Changes
from tidegate.storage.schema import Key, Row, TableSchema
from tidegate.syncing import sync_file

log = logging.getLogger("tidegate")

TRY_AGAIN = 50  # merges after which it is tried again to build what could not be written


class Gathered(NamedTuple):
    """What a merge changes in one table."""

    rows: list[Row]
    deleted: list[Key]


class Numbers:
    """The names of new runs. In memory they have none."""

    def __init__(self, folder: Path | None) -> None:
        self._folder = folder
        self._numbers = itertools.count(1 + max(map(_number, folder.glob("*.run")), default=0) if folder else 1)
        self.made: list[Path] = []

    def next(self) -> Path | None:
        if self._folder is None:
            return None
        self.made.append(self._folder / f"{next(self._numbers):012d}.run")
        return self.made[-1]


class ColdStore:
    """Cold rows of the tables that have them. Merges change it, one at a time; any number of threads read.

    ``folder``: where it is kept; None: in memory. ``stamp``: of the base as it is.
    """

    def __init__(self, folder: Path | None, schemas: Iterable[TableSchema], stamp: str | None) -> None:
        self.folder = folder
        self.tables: dict[str, ColdTable] = {}
        self._schemas = {schema.name: schema for schema in schemas}
        self._stamp = stamp
        self._next: tuple[str | None, dict[str, dict[str, tuple[Run, ...]]]] | None = None
        self._failed_at: int | None = None
        self._merges = 0
        if folder is not None:
            folder.mkdir(mode=0o700, exist_ok=True)
            self._open()
            self._remove_others()
        self._numbers = Numbers(folder)

    # ---- reading

    def get(self, table: str) -> ColdTable | None:
        return self.tables.get(table)

    def condemn(self, table: str, error: Exception) -> None:
        """What was read is not what was written: the table has no cold rows until they are built again."""
        if self.tables.pop(table, None) is not None:
            log.warning("the rows of %s by key are made anew from the base, and slow to find until then: %s", table,
                        text_of(error))  # fmt: skip

    @property
    def size(self) -> int:
        return sum(table.size for table in list(self.tables.values()))

    @property
    def held(self) -> int:
        return sum(table.held for table in list(self.tables.values()))

    # ---- a merge

    def gather(self, schema: TableSchema, parts: Iterable[Changes], into: dict[str, Gathered]) -> Iterator[Changes]:
        """The changes of a table pass through here on their way to the base."""
        if schema.name not in self.tables:
            yield from parts
            return
        gathered = into[schema.name] = Gathered([], [])
        for part in parts:
            gathered.rows.extend(part.inserted)
            gathered.deleted.extend(part.deleted)
            yield part

    def begin(self, stamp: str | None, changes: Mapping[str, Gathered], refused: Mapping[tuple[str, Key], Any]) -> None:
        """Write what the merge changes, without ``refused``, rows that the base does not have."""
        self._merges += 1
        new: dict[str, dict[str, tuple[Run, ...]]] = {}
        for name, gathered in changes.items():
            table = self.tables.get(name)
            if table is None:
                continue
            key_of = table.schema.key_of
            rows = [row for row in gathered.rows if (name, key_of(row)) not in refused] if refused else gathered.rows
            there = set(map(key_of, rows))
            gone = [key for key in gathered.deleted if key not in there]
            try:
                if rows or gone:
                    new[name] = table.with_changes(rows, gone, self._numbers)
            except (OSError, Damaged) as error:
                self._give_up(name, error)
        self._next = (stamp, new)
        self._write_manifest(stamp, new)
        crash_point("rows-after-manifest")

    def adopt(self) -> None:
        """The base was committed. The caller keeps everybody from evicting rows that the merge changed."""
        if self._next is None:
            return
        self._stamp, new = self._next
        self._next = None
        for name, changed in new.items():
            if name in self.tables:
                self.tables[name].put(changed)

    def drop_next(self) -> None:
        """The base was not committed, or nobody knows: its manifest stays, in case it was."""
        self._next = None

    def settle(self) -> None:
        """Remove what the merge before needed, and join runs that have become many."""
        for name, table in list(self.tables.items()):
            try:
                changed = table.tidied(self._numbers)
            except Damaged as error:
                self.condemn(name, error)
                continue
            except OSError as error:
                self._give_up(name, error)
                continue
            if changed:
                table.put(changed)
                self._write_manifest(self._stamp, {})
        self._remove_others()

    # ---- tables that come and go

    def build(self, schema: TableSchema, rows: Iterable[Row]) -> bool:
        """From now on the table has cold rows: these, which are those of the base. Nothing is merged meanwhile."""
        if self._failed_at is not None and self._merges < self._failed_at + TRY_AGAIN:
            return False
        table = ColdTable(schema)
        try:
            table.put(table.built(rows, self._numbers))
        except (OSError, Damaged) as error:
            self._give_up(schema.name, error)
            return False
        self._failed_at = None
        self.tables[schema.name] = table
        self._write_manifest(self._stamp, {})
        self._remove_others()
        return True

    def forget(self, table: str) -> None:
        """The table is held in memory."""
        if self.tables.pop(table, None) is not None:
            self._write_manifest(self._stamp, {})
            self._remove_others()

    def _give_up(self, name: str, error: Exception) -> None:
        """Merges go on without: the base has everything."""
        self._failed_at = self._merges
        self.tables.pop(name, None)
        log.warning(
            "the rows of %s can't be kept by key, and are slow to find until they can: %s", name, text_of(error)
        )

    # ---- files

    def _write_manifest(self, stamp: str | None, new: Mapping[str, Mapping[str, Sequence[Run]]]) -> None:
        """Say which runs there are at this stamp, once they are on disk."""
        if self.folder is None or stamp is None:
            return
        if not self.tables:
            (self.folder / f"{stamp}.manifest").unlink(missing_ok=True)
            return
        try:
            for made in self._numbers.made:
                if made.exists():
                    made.chmod(0o600)
                    sync_file(made)
            self._numbers.made.clear()
            told = {
                name: {
                    "declared": _declared(table.schema),
                    "runs": {
                        level: [_told(run) for run in new.get(name, {}).get(level, held.runs)]
                        for level, held in table.levels.items()
                    },
                }
                for name, table in self.tables.items()
            }
            body = msgspec.json.encode({"stamp": stamp, "tables": told})
            partial = self.folder / "manifest.partial"
            partial.write_bytes(f"{crc32(body):08x}\n".encode() + body)
            partial.chmod(0o600)
            sync_file(partial)
            crash_point("rows-before-manifest")
            partial.replace(self.folder / f"{stamp}.manifest")
            sync_file(self.folder)
        except OSError as error:
            for name in list(self.tables):
                self._give_up(name, error)

    def _open(self) -> None:
        """Take the runs that belong to the base as it is. What can't be read is built again."""
        assert self.folder is not None
        path = self.folder / f"{self._stamp}.manifest"
        if self._stamp is None or not path.exists():
            return
        try:
            crc, _, body = path.read_bytes().partition(b"\n")
            if f"{crc32(body):08x}".encode() != crc:
                raise Damaged(f"{self.folder.name}/{path.name} is not as it was written", path=path)
            told = msgspec.json.decode(body)
        except (OSError, Damaged, msgspec.DecodeError) as error:
            log.warning("the rows by key are made anew from the base, and slow to find until then: %s", text_of(error))
            return
        for name, one in told["tables"].items():
            schema = self._schemas.get(name)
            if schema is None or one["declared"] != _declared(schema):
                continue
            table = self.tables[name] = ColdTable(schema)
            try:
                table.put({level: tuple(map(self._opened, runs)) for level, runs in one["runs"].items()})
            except Damaged as error:
                self.condemn(name, error)

    def _opened(self, told: Sequence[Any]) -> Run:
        assert self.folder is not None
        run = open_run(self.folder / told[0])
        if _told(run) != list(told):
            raise Damaged(f"{self.folder.name}/{told[0]} is another run than the one that was written", path=run.path)
        return run

    def _remove_others(self) -> None:
        """Remove the files that nobody needs. A reader that still has one mapped keeps what it has."""
        if self.folder is None:
            return
        needed = {
            run.path for table in self.tables.values() for level in table.levels.values() for run in level.runs
        }  # fmt: skip
        for path in self.folder.iterdir():
            if path not in needed and path.name != f"{self._stamp}.manifest":
                path.unlink(missing_ok=True)


def _told(run: Run) -> list[Any]:
    assert run.path is not None
    return [run.path.name, run.rows, run.size, run.mark]


def _declared(schema: TableSchema) -> list[Any]:
    """What the runs of a table depend on."""
    columns = [[column.name, column.type.sql] for column in schema.columns]
    indexes = sorted([index.name, list(index.columns)] for index in schema.indexes)
    return [columns, list(schema.primary_key), indexes]


def _number(path: Path) -> int:
    return int(path.stem) if path.stem.isdigit() else 0
