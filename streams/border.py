"""Border streams: accepting each batch once, in ascending order of batch-ids."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from functools import partial
from itertools import count, repeat
from operator import itemgetter
from typing import Any

from tidegate.errors import BatchError, DataError, shown
from tidegate.storage.column_rows import ColumnRows
from tidegate.storage.columnar import Given, conform_columns, is_columnar
from tidegate.storage.schema import Relation, Row
from tidegate.streams.batch import Batch, batch_of
from tidegate.streams.watermarks import NEVER

Parts = dict[Any, Given]  # the rows of a push, by key

_rows = itemgetter(1)  # of a part

REMEMBERED = 10_000  # batch-ids per key whose payload can still be compared


class Sequence:
    """The batch-ids accepted on one border stream for one key, and how far its time has come."""

    __slots__ = ("digests", "last", "mark")

    def __init__(self) -> None:
        self.last: int | None = None
        self.mark = NEVER  # the last watermark
        self.digests: dict[int, str] = {}


class Border:
    """The entry of one border stream: checks rows, splits by key, numbers batches, recognises repeats."""

    def __init__(self, relation: Relation, key: str | None) -> None:
        self.relation = relation
        self.name = relation.name
        self.key = key
        self._key_place = None if key is None else relation.index_of[key]
        self.sequences: dict[Any, Sequence] = {}
        self.finished = False  # nothing follows

    def check_rows(self, rows: Any) -> Given:
        """The rows as stored, every value checked: as columns if they came so. Nothing is accepted yet."""
        if type(rows) is not list:
            if is_columnar(rows):
                return self._check_columns(rows)
            rows = as_rows(rows)
            self._check_iterable(rows)
        checked = self.relation.conform_all(rows)
        if self._key_place is not None:
            self._check_keys(checked, self._key_place)
        return checked

    def _check_columns(self, given: Any) -> Given:
        checked = conform_columns(self.relation, given)
        place = self._key_place
        if place is not None and (type(checked) is tuple or checked.table.column(place).null_count):  # type: ignore[union-attr]
            self._check_keys(checked, place)
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

    def split(self, rows: Given) -> Parts:
        """The rows of each key value, in order of first appearance; ``{None: rows}`` on a stream without key."""
        place = self._key_place
        if place is None:
            return {None: rows} if rows else {}
        if type(rows) is ColumnRows:
            return rows.split(place)
        parts: dict[Any, list[Row]] = {}
        for row in rows:
            parts.setdefault(row[place], []).append(row)
        return {key: tuple(part) for key, part in parts.items()}

    def split_into(self, rows: Given, size: int) -> list[tuple[Any, Given]]:
        """What :meth:`split` makes of every ``size`` rows, in order."""
        chunks: list[Any] = list(zip(rows)) if size == 1 else [rows[i : i + size] for i in range(0, len(rows), size)]
        if self._key_place is None:
            return list(zip(repeat(None), chunks, strict=False))
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

    def accept(self, key: Any, rows: Given, batch_id: int | None = None) -> Batch:
        """The batch, numbered after the last one or with the (checked) id given."""
        sequence = self._sequence(key)
        last = sequence.last
        if batch_id is None:
            sequence.last = batch_id = 1 if last is None else last + 1
            return batch_of(self.relation, batch_id, rows, key)
        sequence.digests[batch_id] = digest_of(rows)
        if len(sequence.digests) > REMEMBERED:
            del sequence.digests[next(iter(sequence.digests))]
        if last is None or batch_id > last:  # a deadline's default may come after later answers
            sequence.last = batch_id
        return batch_of(self.relation, batch_id, rows, key)

    def accept_all(self, parts: list[tuple[Any, Given]]) -> list[Batch]:
        """A batch for each of these, by key, numbered after the last one."""
        if self._key_place is not None:
            return [self.accept(key, rows) for key, rows in parts]
        relation, sequence = self.relation, self.sequences.get(None) or self._sequence(None)
        first = (sequence.last or 0) + 1
        if len(parts) == 1:  # of a push
            sequence.last = first
            rows = parts[0][1]
            return [Batch(relation, first, rows) if type(rows) is tuple else batch_of(relation, first, rows)]
        made: Any = Batch if parts and type(parts[0][1]) is tuple else partial(batch_of, key=None)
        batches = list(map(made, repeat(relation), count(first), map(_rows, parts)))
        if batches:
            sequence.last = batches[-1].id
        return batches

    def advance(self, key: Any, to: int, batch_id: int | None = None) -> Batch:
        """A batch without rows: no row before ``to`` follows. Numbered as any other."""
        sequence = self._sequence(key)
        sequence.mark = to
        if batch_id is None:
            batch_id = 1 if sequence.last is None else sequence.last + 1
        else:
            sequence.digests[batch_id] = digest_of_watermark(to)
            if len(sequence.digests) > REMEMBERED:
                del sequence.digests[next(iter(sequence.digests))]
        sequence.last = batch_id
        return Batch(self.relation, batch_id, (), key, to)

    def repeats(self, key: Any, to: int, batch_id: int) -> bool:
        """Was this watermark accepted under this id? Raises if anything else was, or if the id comes too late."""
        return self._seen(key, None, batch_id, to)

    def check_unfinished(self) -> None:
        """Raise when it was said that nothing follows."""
        if self.finished:
            raise BatchError(
                f"stream {self.name} was finished: its windows have fired, and rows that come now would be late. Finish it when "
                f"nothing more will come; while something may, advance it",
                stream=self.name,
            )

    def remembers(self, key: Any, batch_id: int) -> bool:
        """Was a batch accepted under this id, given by its source? The newest 10,000 ids of each key are remembered."""
        sequence = self.sequences.get(key)
        return sequence is not None and batch_id in sequence.digests

    def _sequence(self, key: Any) -> Sequence:
        found = self.sequences.get(key)
        if found is None:
            found = self.sequences[key] = Sequence()
        return found

    def _seen(self, key: Any, rows: Given | None, batch_id: int, watermark: int = NEVER) -> bool:
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
        if known != (digest_of_watermark(watermark) if rows is None else digest_of(rows, known, self.relation)):
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


_COLUMNS = "columns "  # a digest that begins so was made from columns


def digest_of(rows: Given, like: str | None = None, relation: Relation | None = None) -> str:
    """A fingerprint of a payload, from the form it has; ``like``: made as this one was, so that the two can be compared."""
    columns = type(rows) is ColumnRows if like is None else like.startswith(_COLUMNS)
    if not columns:
        return digest(rows)
    if type(rows) is not ColumnRows:
        assert relation is not None
        rows = ColumnRows.of_rows(relation, rows)
    return _COLUMNS + rows.digest()


def digest(rows: Iterable[Row]) -> str:
    """A fingerprint of a payload: equal for equal rows, in any run."""
    plain = [tuple(row) for row in rows]
    return hashlib.blake2b(repr(plain).encode(), digest_size=12).hexdigest()


def digest_of_watermark(to: int) -> str:
    """The same for a batch without rows that says how far time has come."""
    return digest([("watermark", to)])
