"""A Python function as a sink: at least once."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from tidegate.storage.schema import Relation
from tidegate.streams.batch import Batch


class CallbackSink:
    """Calls ``function(batch)`` for every batch; after an exception the batch is sent again later.

    At least once: after a crash between the function's return and the record of it in the log, it is called again with
    the same batch. ``batch.stable_id`` identifies it; a function that stores this id atomically with its effect makes
    it exactly once.
    """

    transactional = False
    at_once = 1

    def __init__(self, function: Callable[[Batch], Any]) -> None:
        self._function = function

    def open(self, name: str, relation: Relation) -> None:
        pass

    def send(self, batches: Sequence[Batch]) -> None:
        for batch in batches:
            self._function(batch)

    def close(self) -> None:
        pass
