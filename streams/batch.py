"""Atomic batches: what travels on a stream."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import msgspec

from tidegate.storage.column_rows import ColumnRows
from tidegate.storage.schema import Relation, Row

if TYPE_CHECKING:
    import pyarrow as pa


class Batch(msgspec.Struct, eq=False, frozen=True):
    """Rows of one stream that are processed as one, under one batch-id (and one key on a keyed stream).

    Iterating gives the rows as named tuples. Deeply immutable: every consumer sees the same rows, whatever another did
    with them; ``list(batch.rows)`` is a private copy. (A ``Struct`` because its constructor is not Python code: a small
    transaction makes two batches.)
    ``watermark``: no row of an earlier time follows on its stream (for its key). It holds after the rows, of which there
    may be none; it is not part of what equal batches have in common.
    """

    relation: Relation
    id: int
    rows: tuple[Row, ...]
    key: Any = None
    watermark: int | None = None

    def __iter__(self) -> Iterator[Any]:
        return iter(self.rows)

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, place: int) -> Any:
        return self.rows[place]

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Batch):
            return NotImplemented
        return (self.relation.name, self.id, self.key, self.rows) == (
            other.relation.name,
            other.id,
            other.key,
            other.rows,
        )

    def __hash__(self) -> int:
        return hash((self.relation.name, self.id, self.key))

    def __repr__(self) -> str:
        key = "" if self.key is None else f" key={self.key!r}"
        return f"<Batch {self.relation.name} id={self.id}{key} {len(self)} rows>"

    @property
    def stream(self) -> str:
        return self.relation.name

    @property
    def stable_id(self) -> tuple[str, Any, int]:
        """(stream, key, batch-id): names these rows for good, in every run and after every crash."""
        return self.relation.name, self.key, self.id

    @property
    def given(self) -> tuple[Row, ...] | ColumnRows:
        """The rows in the form they came in."""
        return self.rows

    def column(self, name: str) -> list[Any]:
        """The values of one column."""
        self.relation.column(name)
        place = self.relation.index_of[name]
        return [row[place] for row in self.rows]

    def to_arrow(self) -> pa.Table:
        """The rows as an Arrow table."""
        from tidegate.storage.arrow import arrow_table

        return arrow_table(self.relation, self.rows)


_slot: Any = Batch.rows.__get__  # type: ignore[attr-defined]


class ColumnBatch(Batch, eq=False, frozen=True):
    """A batch that came as columns. Its rows are made when somebody asks for them, once.

    (A class of its own: ``rows`` of the usual batch stays a plain attribute.)
    """

    @property  # type: ignore[misc]
    def rows(self) -> tuple[Row, ...]:
        found: tuple[Row, ...] = _slot(self).rows
        return found

    @property
    def given(self) -> ColumnRows:
        found: ColumnRows = _slot(self)
        return found

    def __len__(self) -> int:
        return len(self.given)

    def column(self, name: str) -> list[Any]:
        """The values of one column."""
        self.relation.column(name)
        return self.given.python(self.relation.index_of[name])

    def to_arrow(self) -> pa.Table:
        """The rows as an Arrow table."""
        return self.given.arrow


def batch_of(
    relation: Relation,
    batch_id: int,
    rows: tuple[Row, ...] | ColumnRows,
    key: Any = None,
    watermark: int | None = None,
) -> Batch:
    """A batch of rows in either form."""
    made: Any = ColumnBatch if type(rows) is ColumnRows else Batch
    return made(relation, batch_id, rows, key, watermark)  # type: ignore[no-any-return]
