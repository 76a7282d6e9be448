"""How much memory a window's state takes.

An array counts with the whole buffer that it keeps alive, and once, however many views there are. Python objects count
with their own size and what they refer to; in a container of more than ``SAMPLE``, that many, evenly spread, are taken
as representative.
"""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Collection
from dataclasses import fields, is_dataclass
from itertools import islice
from typing import Any

import numpy as np

from tidegate.streams.windows.state.columns import Array, Columns

SAMPLE = 1_000


def bytes_of(*held: Any) -> int:
    """The bytes that these take together."""
    walk = _Walk()
    return sum(walk.of(value) for value in held)


class _Walk:
    def __init__(self) -> None:
        self.seen: set[int] = set()

    def of(self, value: Any) -> int:
        if value is None or isinstance(value, (bool, type)):
            return 0
        if isinstance(value, np.ndarray):
            return self._array(value)
        if not self._first(value):
            return 0
        own = sys.getsizeof(value)
        if isinstance(value, Columns):
            return own + self.of(value.values) + self.of(value.valid) + self.of(value._rows)
        if isinstance(value, dict):
            return own + self._all(value.keys()) + self._all(value.values())
        if isinstance(value, (list, tuple, deque, set, frozenset)):
            return own + self._all(value)
        if is_dataclass(value):
            return own + sum(self.of(getattr(value, field.name)) for field in fields(value))
        return own

    def _array(self, array: Array) -> int:
        root = array
        while isinstance(root.base, np.ndarray):
            root = root.base
        if not self._first(root):
            return 0
        own = sys.getsizeof(root) + (0 if root.base is None else root.nbytes)  # Arrow's buffers give only the address
        return own + self._all(root.reshape(-1)) if root.dtype == np.dtype(object) else own

    def _all(self, values: Collection[Any]) -> int:
        picked = [self.of(value) for value in islice(values, 0, None, -(-len(values) // SAMPLE) or 1)]
        return sum(picked) * len(values) // len(picked) if picked else 0

    def _first(self, value: Any) -> bool:
        """Is it seen for the first time?"""
        known = id(value) in self.seen
        self.seen.add(id(value))
        return not known
