"""What is sent in a Spark job, and what the worker does with it.

Rows go by reference where driver and workers share a file system: the columns of all windows of a job are written once,
as Arrow tensors, into a file that workers map into memory; a task says which rows of it make up which window. Otherwise
the columns of a task's windows are part of the task, in the same form. Rows that several windows share are written
once.
"""

from __future__ import annotations

import pickle
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from tidegate.streams.windows.declare.functions import Extent
from tidegate.streams.windows.evaluate.processes import Reply, lay_out, packed, unpacked
from tidegate.streams.windows.evaluate.tasks import Operation, Task, Work
from tidegate.streams.windows.state.columns import Columns

Place = tuple[str, int, str]  # form, offset in the file, numpy type


@dataclass(frozen=True)
class Load:
    """Extents of one task. ``columns``: for values and masks of each column, where its array is, and which part of it
    belongs to which window; ``source``: the file with the arrays, or the arrays themselves."""

    labels: list[tuple[Any, ...]]
    columns: list[tuple[str, bool, Place | None, list[tuple[int, int] | None]]]
    source: str | bytes


def load_by_reference(tasks: Sequence[Task], path: Path) -> list[Load]:
    """The loads of a job's tasks; writes the file they refer to."""
    every = [extent for task in tasks for extent in task.items]
    with pa.OSFile(str(path), "wb") as sink:
        labels, columns = _write(every, sink)
    loads, low = [], 0
    for task in tasks:
        high = low + len(task.items)
        mine = [(name, mask, place, parts[low:high]) for name, mask, place, parts in columns]
        loads.append(Load(labels[low:high], mine, str(path)))
        low = high
    return loads


def load_by_value(task: Task) -> Load:
    """The load of one task, with its rows in it."""
    sink = pa.BufferOutputStream()
    labels, columns = _write(task.items, sink)
    return Load(labels, columns, sink.getvalue().to_pybytes())


def _write(extents: Sequence[Extent], sink: Any) -> tuple[list[Any], list[Any]]:
    labels, values, valid = lay_out(extents)
    columns = []
    for mask, joined in ((False, values), (True, valid)):
        for name, (array, parts) in joined.items():
            columns.append((name, mask, None if array is None else _put(array, sink), parts))
    return labels, columns


def _put(array: Any, sink: Any) -> Place:
    sink.write(bytes(-sink.tell() % 64))
    at = sink.tell()
    if array.dtype != np.dtype(object):
        plain = np.ascontiguousarray(array).view(_carrier(array.dtype))
        pa.ipc.write_tensor(pa.Tensor.from_numpy(plain), sink)
        return "tensor", at, array.dtype.str
    if all(type(value) is str or value is None for value in array):
        column = pa.record_batch([pa.array(array.tolist(), pa.large_string())], names=["values"])
        with pa.ipc.new_stream(sink, column.schema) as stream:
            stream.write_batch(column)
        return "text", at, "O"
    sink.write(pickle.dumps(array.tolist(), protocol=5))  # DECIMAL, UUID, lists and the like: as they are
    return "objects", at, "O"


def _carrier(dtype: Any) -> str:
    """Tensors have neither times nor booleans; those are sent as integers."""
    return "i8" if dtype.kind == "M" else "u1" if dtype.kind == "b" else dtype.str


class Arrays:
    """The arrays of a load, each opened when first asked for."""

    def __init__(self, source: str | bytes) -> None:
        self._source = pa.memory_map(source) if isinstance(source, str) else pa.BufferReader(source)
        self._open: dict[Place, Any] = {}

    def part(self, place: Place, low: int, high: int) -> Any:
        form, at, kind = place
        if place not in self._open:
            self._source.seek(at)
            if form == "tensor":
                self._open[place] = pa.ipc.read_tensor(self._source).to_numpy().view(kind)
            elif form == "text":
                self._open[place] = pa.ipc.open_stream(self._source).read_next_batch().column(0)
            else:
                self._open[place] = pickle.loads(self._source.read())
        whole = self._open[place]
        if form == "tensor":
            return whole[low:high]
        values = whole.slice(low, high - low).to_pylist() if form == "text" else whole[low:high]
        return np.fromiter(values, object, len(values))


def extents_of(work: Work, load: Load) -> list[Extent]:
    """The original extents."""
    arrays = Arrays(load.source)
    found = []
    for i, (number, key, start, end, cuts, length) in enumerate(load.labels):
        values: dict[str, Any] = {}
        valid: dict[str, Any] = {}
        for name, mask, place, parts in load.columns:
            part = parts[i]
            array = None if part is None or place is None else arrays.part(place, *part)
            (valid if mask else values)[name] = array
        found.append(Extent(number, key, start, end, Columns(work.relation, length, values, valid), cuts))
    return found


# ---- in the worker

_works: dict[bytes, Work] = {}


def answer(message: bytes) -> bytes:
    """Carry out one task in a Python worker of Spark. What the user's function raises is part of the answer."""
    what, operation, told = unpacked(message)
    reply = _carried_out(bytes(what), operation, told)
    try:
        return packed(reply)
    except Exception as error:
        return packed(Reply([], raised=f"its result can't be sent: {error}"))


def _carried_out(what: bytes, operation: Operation, told: Any) -> Reply:
    try:
        work = _works.get(what)
        if work is None:
            if len(_works) > 100:
                _works.clear()
            work = _works[what] = Work.unpacked(what)
    except Exception as error:
        return Reply([], refused=f"{type(error).__name__}: {error}")
    results: list[Any] = []
    try:
        for item in told if operation == "combine" else extents_of(work, told):
            results.append(work.do(operation, item))  # noqa: PERF401 - what was done before it raised counts
    except Exception as error:
        return Reply(results, raised=f"{type(error).__name__}: {error}")
    return Reply(results)


def warm(_: int) -> int:
    """A task with nothing to do: afterwards the worker has loaded what evaluation needs."""
    return len(_works)
