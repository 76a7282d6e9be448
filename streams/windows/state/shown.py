"""What SQL reads under the name of a window without ``compute``: the rows of every window that fired, each row with the
number and the bounds of its window.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import pyarrow as pa

from tidegate.storage.schema import Column, Relation
from tidegate.storage.types import column_type
from tidegate.streams.windows.declare.functions import Extent
from tidegate.streams.windows.declare.kinds import LABELS, WindowSpec
from tidegate.streams.windows.state.columns import dtype_of


def bound_type(spec: WindowSpec, relation: Relation) -> str:
    """The SQL type of a window's bounds."""
    if spec.kind == "delta":
        return "DOUBLE"
    if not spec.by_time:
        return "BIGINT"
    return "TIMESTAMP" if spec.on is None or dtype_of(relation.column(spec.on)).kind == "M" else "BIGINT"


def label_columns(spec: WindowSpec, relation: Relation) -> tuple[Column, ...]:
    """The columns that tell windows apart: number, start, end."""
    bound = bound_type(spec, relation)
    return tuple(
        Column(name, column_type(kind), nullable=False)
        for name, kind in zip(LABELS, ("BIGINT", bound, bound), strict=True)
    )


def shown(relation: Relation, windows: Sequence[Extent]) -> pa.Table | tuple[()]:
    """The rows of these windows, one window after another. ``relation``: the labels, then the columns of the stream."""
    if not windows:
        return ()
    lengths = [len(window) for window in windows]
    told = zip(*((window.number, window.start, window.end) for window in windows), strict=True)
    labels = []
    for column, values in zip(relation.columns, told, strict=False):
        array = np.array(values, "f8" if column.type.family == "float" else "i8")
        labels.append(pa.array(np.repeat(array, lengths)).cast(column.type.arrow))
    rows = windows[0].to_arrow()
    if len(windows) > 1:
        rows = pa.concat_tables([rows, *(window.to_arrow() for window in windows[1:])]).combine_chunks()
    told_types = [column.type.arrow for column in relation.columns[len(labels) :]]  # numpy's integers are wider
    columns = [one.cast(kind) for one, kind in zip(rows.columns, told_types, strict=True)]
    return pa.Table.from_arrays([*labels, *columns], names=relation.column_names)


def shown_each(relation: Relation, windows: Sequence[Extent]) -> Iterator[pa.Table]:
    """The same for one window after another."""
    for window in windows:
        yield shown(relation, [window])
