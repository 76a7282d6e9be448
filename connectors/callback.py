"""A Python function as a sink: at least once."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from tidegate.storage.schema import Relation
from tidegate.streams.batch import Batch


class CallbackSink:
    """Calls ``function(batch)`` for every batch; an exception has the batch sent again later.

    At least once: a crash after the function returned and before that is in the log calls it again with the
    same batch. ``batch.stable_id`` tells; a function that stores it together with its effect, both or none,
    makes it exactly once.
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
