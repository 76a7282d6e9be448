"""The rows that a window keeps for one key."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from tidegate.storage.schema import Relation
from tidegate.streams.windows.state.columns import Array, Columns


@dataclass(slots=True)
class Held:
    """What is kept for one key: rows (as parts, joined when needed) and their coordinates.

    ``x``: each row's coordinate: its time, its place in the key's sequence, the number of its batch, or δ. ``seen``: rows
    of the key so far; ``number``: windows fired so far, where they are counted; ``mark``: δ of the last trigger.
    ``recent``: rows behind those of ``parts`` that came a few at a time, as they came, and ``at``, their coordinates.
    """

    parts: tuple[Columns, ...] = ()
    x: tuple[Array, ...] = ()
    rows: int = 0
    seen: int = 0
    number: int = 0
    mark: float | None = None
    recent: list[Any] = field(default_factory=list)
    at: list[int] = field(default_factory=list)

    @property
    def oldest(self) -> int:
        return int(self.x[0][0]) if self.x else self.at[0]

    @property
    def newest(self) -> int:
        return self.at[-1] if self.at else int(self.x[-1][-1])

    def settled(self, relation: Relation, names: list[str]) -> Held:
        """The same with all rows as parts. This one stays as it is: a slide and a checkpoint may look at it at once."""
        if not self.recent:
            return self
        parts = (*self.parts, Columns.of_rows(relation, self.recent, names))
        return replace(self, parts=parts, x=(*self.x, np.array(self.at, "i8")), recent=[], at=[])

    def joined(self) -> tuple[Columns, Array]:
        """The rows and their coordinates, joined into one piece each and kept so."""
        if len(self.parts) != 1:
            self.parts, self.x = (Columns.joined(self.parts),), (np.concatenate(self.x),)
        return self.parts[0], self.x[0]

    def keeping(self, columns: Columns, x: Array, which: Any) -> Held:
        """The same with only these rows; a small remainder is copied, so that its large array can be freed."""
        kept = columns.take(which) if isinstance(which, np.ndarray) else columns.slice(which, len(columns))
        kept_x = x[which] if isinstance(which, np.ndarray) else x[which:]
        if not len(kept):
            return replace(self, parts=(), x=(), rows=0, recent=[], at=[])
        if not isinstance(which, np.ndarray) and 2 * len(kept) < len(columns):
            every = np.arange(len(kept))
            kept, kept_x = kept.take(every), kept_x.copy()
        return replace(self, parts=(kept,), x=(kept_x,), rows=len(kept), recent=[], at=[])
