"""Rows by the values of their grouping columns."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from tidegate.streams.windows.state.columns import Array, Columns

Key = tuple[Any, ...]


class Groups(NamedTuple):
    """The keys; the rows sorted by key (``order``: their places), and each key's run."""

    keys: list[Key]
    order: Array | None  # None: there is one key, and the rows keep their order
    starts: Array
    ends: Array


def grouped(columns: Columns, by: Sequence[str]) -> Groups:
    """Group rows by key; within a key they stay in order."""
    length = len(columns)
    if not length:
        return Groups([], None, np.empty(0, "i8"), np.empty(0, "i8"))
    if not by:
        return Groups([()], None, np.array([0]), np.array([length]))
    if len(by) == 1 and (found := _near(columns, by[0])) is not None:
        return found
    values, codes = _encoded(columns, by[0])
    keys: list[Key] = [(value,) for value in values]
    for name in by[1:]:
        values, more = _encoded(columns, name)
        both, inverse = np.unique(codes.astype("i8") * len(values) + more, return_inverse=True)
        keys = [(*keys[pair // len(values)], values[pair % len(values)]) for pair in both.tolist()]
        codes = inverse
    if len(keys) < 1 << 16:
        codes = codes.astype("u1" if len(keys) <= 1 << 8 else "u2")  # radix sort
    order = np.argsort(codes, kind="stable")
    ends = np.cumsum(np.bincount(codes, minlength=len(keys)))
    return Groups(keys, order, ends - np.diff(ends, prepend=0), ends)


def _near(columns: Columns, name: str) -> Groups | None:
    """Integers in a narrow range need no dictionary."""
    array = columns.values[name]
    if array.dtype.kind != "i" or columns.valid[name] is not None:
        return None
    low, high = int(array.min()), int(array.max())
    if high - low >= 1 << 16:
        return None
    codes = (array - low).astype("u1" if high - low < 1 << 8 else "u2")  # the smaller the type, the faster the sort
    counts = np.bincount(codes)
    present = np.flatnonzero(counts)
    ends = np.cumsum(counts[present])
    keys = [(key,) for key in (present + low).tolist()]
    return Groups(keys, np.argsort(codes, kind="stable"), ends - counts[present], ends)


def ascending(places: Array, length: int) -> Array:
    """The order of different places among ``length`` rows."""
    return np.argsort(places.astype("u2"), kind="stable") if length <= 1 << 16 else np.argsort(places)


def _encoded(columns: Columns, name: str) -> tuple[list[Any], Array]:
    """A column's distinct values, and each row's place among them."""
    array, mask = columns.values[name], columns.valid[name]
    if array.dtype == np.dtype(object):
        places: dict[Any, int] = {}
        codes = np.fromiter((places.setdefault(value, len(places)) for value in array), "i8", len(array))
        return list(places), codes
    dictionary = pa.array(array, mask=None if mask is None else ~mask).dictionary_encode(null_encoding="encode")
    return dictionary.dictionary.to_pylist(), dictionary.indices.to_numpy(zero_copy_only=False)


def sort_key(key: Key) -> tuple[Any, ...]:
    """Orders keys by value, NULL first."""
    return tuple((value is not None, 0 if value is None else value) for value in key)
