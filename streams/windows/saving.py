"""Window state as bytes: arrays as they lie in memory, columns of text and decimals as Arrow, everything else as msgpack.

A checkpoint writes all that a window holds, so what counts is the cost of a row: no Python step for each value.
"""

from __future__ import annotations

import pickle
from collections.abc import Sequence
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa

from tidegate.errors import CorruptionError
from tidegate.storage.codec import from_json, to_json
from tidegate.storage.schema import Relation
from tidegate.streams.windows.columns import Columns, array_of

AS_ARROW = frozenset({"text", "decimal"})


def pack(value: Any) -> bytes:
    """``value`` (lists, dicts with text keys, tuples, arrays, columns, SQL values) as bytes."""
    return msgspec.msgpack.encode(_packed(value))


def unpack(saved: bytes, relation: Relation, names: Sequence[str]) -> Any:
    """What :func:`pack` was given. Columns are ``names`` of ``relation``; one that it has got since is NULL."""
    return _unpacked(msgspec.msgpack.decode(saved), relation, names)


def _packed(value: Any) -> Any:
    match value:
        case None | bool() | int() | float() | str():
            return value
        case np.ndarray() if value.dtype == object:
            return {"objects": [_packed(v) for v in value.tolist()]}
        case np.ndarray():
            return {"array": value.dtype.str, "shape": value.shape, "data": np.ascontiguousarray(value).tobytes()}
        case Columns():
            named = {name: [_column(value, name), _packed(value.valid[name])] for name in value.values}
            return {"columns": named, "length": value.length}
        case list():
            return [_packed(v) for v in value]
        case tuple():
            return {"tuple": [_packed(v) for v in value]}
        case set():
            return {"set": [_packed(v) for v in sorted(value, key=repr)]}
        case dict():
            return {"dict": [[_packed(k), _packed(v)] for k, v in value.items()]}
        case np.generic():
            return _packed(value.item())
    try:
        return {"sql": to_json(value)}
    except CorruptionError:  # what a user's pane function returned
        return {"pickle": pickle.dumps(value, 5)}


def _column(columns: Columns, name: str) -> Any:
    column, array = columns.relation.column(name), columns.values[name]
    if array.dtype != object or column.type.family not in AS_ARROW:
        return _packed(array)
    sink = pa.BufferOutputStream()
    batch = pa.record_batch([pa.array(array.tolist(), type=column.type.arrow)], [name])
    with pa.ipc.new_stream(sink, batch.schema) as stream:
        stream.write_batch(batch)
    return {"arrow": sink.getvalue().to_pybytes()}


def _unpacked(value: Any, relation: Relation, names: Sequence[str]) -> Any:
    if isinstance(value, list):
        return [_unpacked(v, relation, names) for v in value]
    if not isinstance(value, dict):
        return value
    if "array" in value:
        return np.frombuffer(value["data"], value["array"]).reshape(value["shape"]).copy()
    if "arrow" in value:
        values = pa.ipc.open_stream(value["arrow"]).read_all().column(0).to_pylist()
        return np.fromiter(values, object, len(values))
    if "objects" in value:
        return np.fromiter((_unpacked(v, relation, names) for v in value["objects"]), object, len(value["objects"]))
    if "tuple" in value:
        return tuple(_unpacked(v, relation, names) for v in value["tuple"])
    if "set" in value:
        return {_unpacked(v, relation, names) for v in value["set"]}
    if "dict" in value:
        return {_unpacked(k, relation, names): _unpacked(v, relation, names) for k, v in value["dict"]}
    if "columns" in value:
        return _columns(value["columns"], value["length"], relation, names)
    if "pickle" in value:
        return pickle.loads(value["pickle"])
    return from_json(value["sql"])


def _columns(named: dict[str, Any], length: int, relation: Relation, names: Sequence[str]) -> Columns:
    values, valid = {}, {}
    for name in names:
        if name in named:
            values[name], valid[name] = (_unpacked(part, relation, names) for part in named[name])
        else:
            values[name], valid[name] = array_of(relation.column(name), [None] * length)
    return Columns(relation, length, values, valid)
