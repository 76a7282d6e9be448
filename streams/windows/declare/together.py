"""A function of all windows that a batch makes fire, as arrays."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cached_property
from typing import Any

import numpy as np

from tidegate.errors import MistakeError
from tidegate.streams.windows.declare.functions import Extent, Written
from tidegate.streams.windows.state.columns import Array


class WindowBatch(Sequence[Extent]):
    """Windows that are computed together. ``batch["column"]`` has the rows of all of them, one window after another.

    ``starts``, ``ends``: where the rows of each window begin and end there; ``lengths``: how many they are. Each window by
    itself is an :class:`~tidegate.windows.Extent`: ``batch[0]``, or by iteration.

    >>> ranges = np.maximum.reduceat(batch["x"], batch.starts) - np.minimum.reduceat(batch["x"], batch.starts)  # doctest: +SKIP
    """

    def __init__(self, windows: Sequence[Extent]) -> None:
        self._windows = windows
        self._columns: dict[str, Array] = {}

    def __len__(self) -> int:
        return len(self._windows)

    def __iter__(self) -> Iterator[Extent]:
        return iter(self._windows)

    def __getitem__(self, which: Any) -> Any:
        """A column of all rows, or a window."""
        if not isinstance(which, str):
            return self._windows[which]
        if which not in self._columns:
            self._columns[which] = np.concatenate([window[which] for window in self._windows])
        return self._columns[which]

    @cached_property
    def lengths(self) -> Array:
        return np.array([len(window) for window in self._windows], "i8")

    @cached_property
    def ends(self) -> Array:
        found: Array = np.cumsum(self.lengths)
        return found

    @cached_property
    def starts(self) -> Array:
        found: Array = self.ends - self.lengths
        return found

    def __repr__(self) -> str:
        return f"<{len(self)} windows, {int(self.ends[-1]) if len(self) else 0} rows>"


class WholeBatch(Written):
    """A function of many whole windows: as many as fire together, or fewer."""

    def __init__(
        self, function: Callable[[WindowBatch], Any], returns: str, columns: Sequence[str] | None = None
    ) -> None:
        super().__init__(returns, columns)
        self.function = function

    def __repr__(self) -> str:
        return f"whole_batch({getattr(self.function, '__name__', self.function)})"

    def whole(self, extent: Extent) -> Any:
        return self.together([extent])[0]

    def together(self, extents: Sequence[Extent]) -> list[tuple[Any, ...]]:
        """The result of each window."""
        given = self.function(WindowBatch(extents))
        names = [column.name for column in self._returns]
        if isinstance(given, Mapping):
            if set(given) != set(names):
                raise MistakeError(
                    f"{self!r} returned the columns {', '.join(map(str, given)) or 'none'}; returns= names {', '.join(names)}"
                )
            columns = [given[name] for name in names]
        else:
            columns = list(given) if isinstance(given, tuple) else [given]
        lengths = [len(column) if hasattr(column, "__len__") else None for column in columns]
        if len(columns) != len(names) or any(length != len(extents) for length in lengths):
            told = ", ".join("a single value" if length is None else f"{length:,} values" for length in lengths)
            raise MistakeError(
                f"{self!r} returned {told} for {len(extents):,} windows; return an array with a value for each window, for each "
                f"of the columns {', '.join(names)}: one array, a tuple of arrays, or a dict"
            )
        values = [column.tolist() if isinstance(column, np.ndarray) else list(column) for column in columns]
        return list(zip(*values, strict=True))
