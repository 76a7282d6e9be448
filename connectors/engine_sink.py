"""A border stream as a sink, of this engine or of another: exactly once, because batches keep their ids, or because the target
remembers the last one of each key.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from tidegate.errors import BatchError, DataError, SinkError, SinkRefused, TidegateError
from tidegate.storage.codec import to_json
from tidegate.storage.schema import Relation
from tidegate.streams.batch import Batch

if TYPE_CHECKING:
    from tidegate.client import Client
    from tidegate.engine.engine import Engine


class EngineSink:
    """Pushes each batch, under its id, to the border stream ``stream`` of an engine or, with a client, of a served one.

    Pushing an id again changes nothing, so each batch counts once. Nothing else may push to the stream: ids ascend. The
    stream has the columns of the delivered one. For a keyed stream, or the changelog of a partitioned table, declare it
    with a key whose batches come in ascending order: the same key, or ``row_key``.

    ``keep_ids=False``: the stream has another key, or none. The target numbers the batches; the id of the last one of each key
    is kept there as the offset of a source, named after the delivery and the key.
    """

    transactional = True
    at_once = 100

    def __init__(self, target: Engine | Client, stream: str, *, keep_ids: bool = True) -> None:
        self.target = target
        self.stream = stream
        self.keep_ids = keep_ids
        self._name = ""
        self._place: int | None = None  # of the stream's key in a row

    def open(self, name: str, relation: Relation) -> None:
        from tidegate.outside.destinations import destination_of

        self._name = name
        destination = destination_of(self.target)
        found = destination.relation(self.stream)
        if [(c.name, c.type) for c in found.columns] != [(c.name, c.type) for c in relation.columns]:
            raise SinkError(
                f"border stream {self.stream} ({_told(found)}) can't take the batches of {relation.name} ({_told(relation)}); "
                f"declare it with the same columns",
                sink=name,
                stream=relation.name,
            )
        key = destination.key(self.stream)
        self._place = None if key is None or key == "row_key" else found.index_of[key]

    def send(self, batches: Sequence[Batch]) -> None:
        try:
            for batch in batches:
                if self.keep_ids:
                    self._check_key(batch)
                    self.target.push(self.stream, batch.rows, batch.id)
                else:
                    self._push_anew(batch)
            durable: Any = getattr(self.target, "durable", None)
            if durable is not None:
                durable.sync()
        except TidegateError as error:
            kind = SinkRefused if isinstance(error, DataError) else SinkError
            raise kind(f"{self.stream} did not accept {batches[0]!r}: {error}", stream=batches[0].stream) from error

    def close(self) -> None:
        pass

    def _check_key(self, batch: Batch) -> None:
        """Batches of two keys may have the same id. With another key, the second one would be taken for a repeat of the first."""
        place, key = self._place, batch.key
        if place is None or key is None:
            return
        for row in batch.rows:
            if row[place] != key:
                raise BatchError(
                    f"{batch.stream} and {self.stream} have different keys (a batch of {key!r} has a row of {row[place]!r}), so "
                    f"ids of different keys would meet there. Have the batches numbered anew: EngineSink(…, {self.stream!r}, "
                    f"keep_ids=False)",
                    stream=self.stream,
                )

    def _push_anew(self, batch: Batch) -> None:
        """Push it unless it is there already: batches of a key come in the order of their ids."""
        source = self._name if batch.key is None else f"{self._name} {to_json(batch.key)}"
        last = self.target.position(source)
        if last is None or last < batch.id:
            self.target.push(self.stream, batch.rows, source=source, offset=batch.id, after=last)


def _told(relation: Relation) -> str:
    return ", ".join(f"{column.name} {column.type}" for column in relation.columns)
