"""A border stream as a sink, of this engine or of another: exactly once, because batches keep their ids."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from tidegate.errors import DataError, SinkError, SinkRefused, TidegateError
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
    """

    transactional = True
    at_once = 100

    def __init__(self, target: Engine | Client, stream: str) -> None:
        self.target = target
        self.stream = stream

    def open(self, name: str, relation: Relation) -> None:
        from tidegate.outside.destinations import destination_of

        found = destination_of(self.target).relation(self.stream)
        if [(c.name, c.type) for c in found.columns] != [(c.name, c.type) for c in relation.columns]:
            raise SinkError(
                f"border stream {self.stream} ({_told(found)}) can't take the batches of {relation.name} ({_told(relation)}); "
                f"declare it with the same columns",
                sink=name,
                stream=relation.name,
            )

    def send(self, batches: Sequence[Batch]) -> None:
        try:
            for batch in batches:
                self.target.push(self.stream, batch.rows, batch.id)
            durable: Any = getattr(self.target, "durable", None)
            if durable is not None:
                durable.sync()
        except TidegateError as error:
            kind = SinkRefused if isinstance(error, DataError) else SinkError
            raise kind(f"{self.stream} did not accept {batches[0]!r}: {error}", stream=batches[0].stream) from error

    def close(self) -> None:
        pass


def _told(relation: Relation) -> str:
    return ", ".join(f"{column.name} {column.type}" for column in relation.columns)
