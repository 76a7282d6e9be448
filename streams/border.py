"""Border streams: accepting each batch once, in ascending order of batch-ids."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from typing import Any

from tidegate.errors import BatchError, DataError, shown
from tidegate.storage.schema import Relation, Row
from tidegate.streams.batch import Batch

Parts = dict[Any, tuple[Row, ...]]  # the rows of a push, by key

REMEMBERED = 10_000  # batch-ids per key whose payload can still be compared


class Sequence:
    """The batch-ids accepted on one border stream for one key."""

    __slots__ = ("digests", "last")

    def __init__(self) -> None:
        self.last: int | None = None
        self.digests: dict[int, str] = {}


class Border:
    """The entry of one border stream: checks rows, splits by key, numbers batches, recognises repeats."""

    def __init__(self, relation: Relation, key: str | None) -> None:
        self.relation = relation
        self.name = relation.name
        self.key = key
        self._key_place = None if key is None else relation.index_of[key]
        self.sequences: dict[Any, Sequence] = {}

    def take(self, rows: Any) -> Parts:
        """The rows of a push, checked and split by key. Nothing is accepted yet."""
        return self.split(self.check_rows(rows))

    def check_rows(self, rows: Any) -> tuple[Row, ...]:
        """The rows as stored, every value checked. Nothing is accepted yet."""
        if type(rows) is not list:
            rows = as_rows(rows)
            self._check_iterable(rows)
        checked = self.relation.conform_all(rows)
        if self._key_place is not None:
            self._check_keys(checked, self._key_place)
        return checked

    def _check_iterable(self, rows: Any) -> None:
        if isinstance(rows, (str, Mapping)) or not isinstance(rows, Iterable):
            raise DataError(
                f"push({self.name!r}, rows) takes a list of rows, got {type(rows).__name__}; wrap a single row in a list",
                relation=self.name,
                value=rows,
            )

    def check_row(self, row: Any) -> Row:
        """One row as stored, every value checked."""
        checked = self.relation.conform(row)
        if self._key_place is not None:
            self._check_keys((checked,), self._key_place)
        return checked

    def _check_keys(self, rows: Iterable[Row], place: int) -> None:
        for row in rows:
            if row[place] is None:
                raise DataError(
                    f"{self.name}.{self.key} is the stream's key and can't be NULL, in row {shown(tuple(row))}",
                    relation=self.name,
                    column=self.key,
                )

    def split(self, rows: tuple[Row, ...]) -> Parts:
        """The rows of each key value, in order of first appearance; ``{None: rows}`` on a stream without key."""
        place = self._key_place
        if place is None:
            return {None: rows} if rows else {}
        parts: dict[Any, list[Row]] = {}
        for row in rows:
            parts.setdefault(row[place], []).append(row)
        return {key: tuple(part) for key, part in parts.items()}

    def split_into(self, rows: tuple[Row, ...], size: int) -> list[tuple[Any, tuple[Row, ...]]]:
        """What :meth:`split` makes of every ``size`` rows, in order."""
        chunks = list(zip(rows)) if size == 1 else [rows[i : i + size] for i in range(0, len(rows), size)]
        if self._key_place is None:
            return [(None, chunk) for chunk in chunks]
        return [part for chunk in chunks for part in self.split(chunk).items()]

    def check_ids(self, parts: Parts, batch_id: int) -> Parts:
        """The parts not yet accepted under this id; raises, with nothing accepted, when one can't be."""
        if type(batch_id) is not int or not -(2**63) <= batch_id < 2**63:
            raise BatchError(
                f"batch-id on {self.name} must be a whole number of 64 bits, got {batch_id!r}",
                stream=self.name,
                batch_id=batch_id,
            )
        return {key: rows for key, rows in parts.items() if not self._seen(key, rows, batch_id)}

    def accept(self, key: Any, rows: tuple[Row, ...], batch_id: int | None = None) -> Batch:
        """The batch, numbered after the last one or with the (checked) id given."""
        sequence = self._sequence(key)
        last = sequence.last
        if batch_id is None:
            sequence.last = batch_id = 1 if last is None else last + 1
            return Batch(self.relation, batch_id, rows, key)
        sequence.digests[batch_id] = digest(rows)
        if len(sequence.digests) > REMEMBERED:
            del sequence.digests[next(iter(sequence.digests))]
        if last is None or batch_id > last:  # a deadline's default may come after later answers
            sequence.last = batch_id
        return Batch(self.relation, batch_id, rows, key)

    def accept_all(self, parts: Iterable[tuple[Any, tuple[Row, ...]]]) -> list[Batch]:
        """A batch for each of these, by key, numbered after the last one."""
        if self._key_place is not None:
            return [self.accept(key, rows) for key, rows in parts]
        relation, sequence = self.relation, self._sequence(None)
        batches = [Batch(relation, i, rows) for i, (_, rows) in enumerate(parts, (sequence.last or 0) + 1)]
        if batches:
            sequence.last = batches[-1].id
        return batches

    def remembers(self, key: Any, batch_id: int) -> bool:
        """Was a batch accepted under this id, given by its source? The newest 10,000 ids of each key are remembered."""
        sequence = self.sequences.get(key)
        return sequence is not None and batch_id in sequence.digests

    def _sequence(self, key: Any) -> Sequence:
        found = self.sequences.get(key)
        if found is None:
            found = self.sequences[key] = Sequence()
        return found

    def _seen(self, key: Any, rows: tuple[Row, ...], batch_id: int) -> bool:
        """Was exactly this batch accepted before? Raises for an id that can no longer be accepted."""
        sequence = self.sequences.get(key)
        if sequence is None or sequence.last is None or batch_id > sequence.last:
            return False
        known = sequence.digests.get(batch_id)
        where = self.name if key is None else f"{self.name} (key {key!r})"
        facts = {"stream": self.name, "batch_id": batch_id, "last_id": sequence.last}
        if known is None:
            raise BatchError(
                f"batch {batch_id} on {where} comes too late: ids ascend, and {sequence.last} was already accepted. "
                "This id was never accepted; push the batch with a larger one",
                **facts,
            )
        if known != digest(rows):
            raise BatchError(
                f"batch {batch_id} on {where} was accepted before with other rows; a batch-id names one payload for good. "
                f"Use a new id for new rows",
                **facts,
            )
        return True


def as_rows(rows: Any) -> Any:
    """Rows one by one, from a data frame too: Arrow, pandas and polars tables give dicts by column name."""
    if hasattr(rows, "to_pylist"):
        return rows.to_pylist()
    if hasattr(rows, "itertuples"):
        import pyarrow as pa

        return pa.Table.from_pandas(rows, preserve_index=False).to_pylist()
    if hasattr(rows, "to_dicts"):
        return rows.to_dicts()
    return rows


def digest(rows: Iterable[Row]) -> str:
    """A fingerprint of a payload: equal for equal rows, in any run."""
    plain = [tuple(row) for row in rows]
    return hashlib.blake2b(repr(plain).encode(), digest_size=12).hexdigest()
