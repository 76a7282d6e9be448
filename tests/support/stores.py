"""A database to test with, built from the real parts."""

from __future__ import annotations

import datetime as dt
import random
import uuid
from typing import Any

from tidegate.storage.database import Database
from tidegate.storage.ddl import Scratch
from tidegate.storage.readers import CompositeReader, PartitionReader, Reader
from tidegate.storage.schema import Relation, Row, TableSchema
from tidegate.storage.sql.rows import Rows
from tidegate.storage.sql.statements import Statement, prepare
from tidegate.storage.view import View

NOW = dt.datetime(2024, 5, 6, 7, 8, 9, 123456)


class SeededView(View):
    """A view with a moment and dice of its own, as a transaction has."""

    __slots__ = ("_dice",)

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._dice = random.Random(self.position)

    @property
    def now(self) -> dt.datetime:
        return NOW

    @property
    def random(self) -> random.Random:
        return self._dice

    def uuid(self) -> uuid.UUID:
        return uuid.UUID(int=self._dice.getrandbits(128), version=4)


class Store:
    """A database with its tables declared, and a counter of positions."""

    def __init__(self, *ddl: str, partition_by: tuple[str, ...] = (), **options: Any) -> None:
        self.scratch = Scratch()
        self.tables: dict[str, TableSchema] = {}
        for text in ddl:
            schema = self.scratch.define_table(text, partition_by)
            self.tables[schema.name] = schema
        self.relations: dict[str, Relation] = {}
        self.database = Database(self.tables.values(), **options)
        self.position = 0

    def relation(self, name: str, columns: str) -> Relation:
        self.relations[name] = self.scratch.define_relation(name, columns)
        return self.relations[name]

    def view(self, position: int | None = None, by_key: Any = None, **options: Any) -> SeededView:
        if position is None:
            self.position = position = self.position + 1
        access = {name: self._reader(name, by_key) for name in self.tables}
        partitions = None if by_key is None else dict.fromkeys(self.tables, by_key)
        return SeededView(self.database, position, access, partitions=partitions, **options)

    def _reader(self, name: str, by_key: Any) -> Reader:
        table = self.database.tables[name]
        if by_key is None:
            return Reader(table, write=True)
        return (PartitionReader if len(table.schema.partition_by) == 1 else CompositeReader)(table, write=True)

    def prepare(self, sql: Any, compiled: bool = True) -> Statement:
        return prepare(sql, self.tables, self.relations, self.scratch, _compile=compiled)

    def run(self, sql: Any, parameters: Any = (), view: View | None = None, compiled: bool = True) -> Rows:
        """Run one statement; without a view, in one of its own that is committed afterwards."""
        own = view if view is not None else self.view()
        result = self.prepare(sql, compiled).run(own, parameters)
        if view is None:
            self.commit(own)
        return result

    def commit(self, view: View, keep_older: bool = False) -> None:
        self.database.commit(view.writes, view.position, keep_older)

    def merge(self, *open_positions: int) -> None:
        self.database.merge(dict, lambda table: open_positions)

    def rows(self, table: str, view: View | None = None) -> list[Row]:
        return [tuple(row) for row in (view or self.view()).scan(table)]

    def close(self) -> None:
        self.database.close()
