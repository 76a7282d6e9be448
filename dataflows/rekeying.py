"""Interior streams with a key of their own: what is behind them, and what can't be.

What a producer emits on such a stream is split by the key when it commits. The units behind it are placed before that, so
their keys are not known yet: they are divided into one execution per key later (``txn/division.py``).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

from tidegate.dataflows.definitions import Procedure
from tidegate.errors import DeclarationError

if TYPE_CHECKING:
    from tidegate.dataflows.app import App


class Rekeyed(NamedTuple):
    """A stream with a key of its own, where it is emitted. ``most``: as many keys can one batch have."""

    stream: str
    key: str
    most: int


RANKS = 1 << 16  # of one sequence number, see txn/positions.py
UNDIVIDED = 1 << 10  # as many are for units that are not divided, so that another procedure does not change the rest


class Rekeying:
    """Which nodes of the graph are divided, and how many ranks each gets.

    ``nodes``: the procedures of each, in topological order; ``dataflows``: those with a stream that has its own key.
    """

    def __init__(self, app: App, nodes: Mapping[str, Sequence[Procedure]], names: Mapping[str, str]) -> None:
        self._app = app
        self._nodes = nodes
        self.divided: dict[str, str] = {}  # node -> the stream with its own key that it is behind
        self.dataflows = {names[node] for node in nodes if self._outputs(node)}
        behind: dict[str, str] = {}  # stream -> the same for its batches
        for node in nodes:
            self._check_inside(node)
            inputs = [s for member in nodes[node] for s in member.inputs if s in behind]
            if inputs:
                self.divided[node] = behind[inputs[0]]
                self._check_once(node)
                behind.update((s, self.divided[node]) for member in nodes[node] for s in member.outputs)
            behind.update((s, s) for s in self._outputs(node))
        self._rooms = {dataflow: self._each(dataflow, names) for dataflow in self.dataflows}
        self._names = names

    def rekeyed(self, node: str) -> tuple[Rekeyed, ...]:
        """The streams with a key of their own that the node emits."""
        return tuple(
            Rekeyed(name, str(self._app.streams[name].key), self._rooms[self._names[node]] - 1)
            for name in self._outputs(node)
        )

    def _outputs(self, node: str) -> tuple[str, ...]:
        return tuple(s for member in self._nodes[node] for s in member.outputs if self._app.streams[s].key is not None)

    def room(self, node: str) -> int:
        """How many ranks the node gets."""
        return self._rooms[self._names[node]] if node in self.divided else len(self._nodes[node])

    def _each(self, dataflow: str, names: Mapping[str, str]) -> int:
        """The ranks of a dataflow that are left, shared by the nodes that are divided."""
        mine = [node for node in self._nodes if names[node] == dataflow]
        divided = sum(node in self.divided for node in mine)
        taken = sum(len(self._nodes[node]) for node in mine if node not in self.divided)
        return (RANKS - max(taken, UNDIVIDED)) // max(divided, 1)

    def _check_inside(self, node: str) -> None:
        read = {s: member.name for member in self._nodes[node] for s in member.inputs}
        for stream in self._outputs(node):
            if stream in read:
                raise DeclarationError(
                    f"nested transaction {node}: stream {stream} has its own key ({self._app.streams[stream].key}), so "
                    f"{read[stream]} runs once for each, in a transaction of its own; it can't be in one with the procedure that "
                    f"emits to {stream}. Declare {stream} without key=, or take {read[stream]} out of the nested transaction",
                    nested=node,
                    stream=stream,
                )

    def _check_once(self, node: str) -> None:
        for stream in self._outputs(node):
            first = self.divided[node]
            raise DeclarationError(
                f"stream {stream} has its own key ({self._app.streams[stream].key}), but {node}, which emits to it, is behind "
                f"{first}, which has one already: batches of several keys would have to be put together again. Emit to {stream} "
                f"where {first} is emitted, or declare a border stream with that key and "
                f"deliver {node}'s output to it: EngineSink(…, keep_ids=False)",
                stream=stream,
            )
