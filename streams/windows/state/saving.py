"""Window state as bytes: arrays as in memory, columns of text and decimals as Arrow, everything else as msgpack.

A checkpoint writes all that a window holds, so what counts is the cost of a row: no Python step for each value.
Reading it back makes values of the kinds named here and nothing else: no bytes in a base can execute code.
"""

from __future__ import annotations

import datetime as dt
import io
import uuid
from collections import Counter
from collections.abc import Iterable, Sequence
from decimal import Decimal
from itertools import chain
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa

from tidegate.errors import CorruptionError
from tidegate.storage.codec import from_json, plain, to_json
from tidegate.storage.codec import widened as widened_row
from tidegate.storage.schema import Column, Relation
from tidegate.streams.windows.state.columns import Columns, array_of

AS_ARROW = frozenset({"text", "decimal"})
DEEPEST = 50  # how deep containers may be nested
PLAIN = frozenset({
    type(None), bool, int, float, bytes, Decimal, uuid.UUID, dt.datetime, dt.date, dt.time, dt.timedelta
})  # fmt: skip
CONTAINERS = {kind.__name__: kind for kind in (tuple, set, frozenset)}
MAPPINGS: dict[str, type[dict[Any, Any]]] = {kind.__name__.lower(): kind for kind in (dict, Counter)}


def unstorable(value: Any, relation: Relation, depth: int = 0) -> str | None:
    """What in ``value`` can't be kept exactly, in words: it would come back changed. None: all of it can be kept."""
    kind = type(value)
    if kind in PLAIN:
        return None
    if kind is str:
        return None if _is_unicode(value) else f"text that is not valid Unicode ({value[:40]!r})"
    if depth > DEEPEST:
        return f"containers nested more than {DEEPEST} levels deep"
    inside: Iterable[Any]
    if isinstance(value, np.generic) or kind is np.ndarray:
        if not value.dtype.hasobject:
            return None
        if value.dtype != object:
            return f"an array of {value.dtype}"
        inside = value.reshape(-1)
    elif kind in (dict, Counter):
        inside = chain(value.keys(), value.values())
    elif kind in (list, tuple, set, frozenset) or _is_row(kind, relation):
        inside = value
    else:
        return f"a {kind.__module__}.{kind.__qualname__}".replace("a builtins.", "a ")
    return next((told for item in inside if (told := unstorable(item, relation, depth + 1)) is not None), None)


def _is_unicode(text: str) -> bool:
    try:
        return text.isascii() or bool(text.encode())
    except UnicodeEncodeError:
        return False


def _is_row(kind: Any, relation: Relation) -> bool:
    return kind is relation.row or kind is relation.row._unchecked


def pack(value: Any, relation: Relation | None = None) -> bytes:
    """``value`` (lists, dicts, tuples, sets, arrays, columns, SQL values, rows of ``relation``) as bytes."""
    return msgspec.msgpack.encode(_packed(value, relation))


def unpack(saved: bytes, relation: Relation, names: Sequence[str]) -> Any:
    """What :func:`pack` was given. Columns are ``names`` of ``relation``; one that was added since is NULL."""
    return _unpacked(msgspec.msgpack.decode(saved), relation, names)


def widened(saved: bytes, added: Sequence[tuple[Column, Any]]) -> bytes:
    """Saved state whose stream got these columns at its end since, each with one value for all rows held."""
    return msgspec.msgpack.encode(_widened(msgspec.msgpack.decode(saved), added))


def _widened(value: Any, added: Sequence[tuple[Column, Any]]) -> Any:
    if isinstance(value, list):
        return [_widened(v, added) for v in value]
    if not isinstance(value, dict):
        return value
    found = {kind: _widened(inside, added) for kind, inside in value.items()}
    if "columns" in value and "length" in value:
        for column, fill in added:
            if fill is not None:
                parts = array_of(column, [fill] * value["length"])
                found["columns"][column.name] = [_packed(part, None) for part in parts]
    elif "row" in value:
        found["row"] = [*found["row"], *(_packed(fill, None) for _, fill in added)]
    return found


def _packed(value: Any, relation: Relation | None) -> Any:
    match value:
        case np.ndarray():
            return _array(value, relation)
        case np.generic():
            return {"scalar": _array(np.asarray(value), relation)}
        case None | bool() | bytes():
            return value
        case float() | str():
            return plain(value)
        case int():
            return plain(value) if -(2**63) <= value < 2**63 else {"int": hex(value)}
        case Columns():
            named = {name: [_column(value, name), _packed(value.valid[name], relation)] for name in value.values}
            return {"columns": named, "length": value.length}
        case list():
            return [_packed(v, relation) for v in value]
        case tuple() if relation is not None and _is_row(type(value), relation):
            return {"row": [_packed(v, relation) for v in value]}
        case tuple():
            return {"tuple": [_packed(v, relation) for v in value]}
        case set() | frozenset():
            kind = "set" if isinstance(value, set) else "frozenset"
            return {kind: [_packed(v, relation) for v in sorted(value, key=repr)]}
        case dict():
            kind = "counter" if isinstance(value, Counter) else "dict"
            return {kind: [[_packed(k, relation), _packed(v, relation)] for k, v in value.items()]}
    return {"sql": to_json(value)}


def _array(array: Any, relation: Relation | None) -> Any:
    """An array: as it is in memory, except fields, which numpy describes, and objects, which are written one by one."""
    if array.dtype == object:
        return {"objects": [_packed(v, relation) for v in array.reshape(-1)], "shape": array.shape}
    if array.dtype.names is not None:
        sink = io.BytesIO()
        np.save(sink, array, allow_pickle=False)
        return {"npy": sink.getvalue()}
    return {"array": array.dtype.str, "shape": array.shape, "data": np.ascontiguousarray(array).tobytes()}


def _column(columns: Columns, name: str) -> Any:
    column, array = columns.relation.column(name), columns.values[name]
    if array.dtype != object or column.type.family not in AS_ARROW:
        return _packed(array, columns.relation)
    sink = pa.BufferOutputStream()
    batch = pa.record_batch([pa.array(array.tolist(), type=column.type.arrow)], [name])
    with pa.ipc.new_stream(sink, batch.schema) as stream:
        stream.write_batch(batch)
    return {"arrow": sink.getvalue().to_pybytes()}


def _unpacked(value: Any, relation: Relation, names: Sequence[str]) -> Any:  # noqa: C901  a case for each type
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
        found = np.fromiter((_unpacked(v, relation, names) for v in value["objects"]), object, len(value["objects"]))
        return found.reshape(value["shape"])
    if "columns" in value:
        return _columns(value["columns"], value["length"], relation, names)
    ((kind, inside),) = value.items()
    if kind in CONTAINERS:
        return CONTAINERS[kind](_unpacked(v, relation, names) for v in inside)
    if kind in MAPPINGS:
        return MAPPINGS[kind]({_unpacked(k, relation, names): _unpacked(v, relation, names) for k, v in inside})
    match kind:
        case "row":
            return widened_row(relation, [_unpacked(v, relation, names) for v in inside])
        case "scalar":
            return _unpacked(inside, relation, names)[()]
        case "npy":
            return np.load(io.BytesIO(inside), allow_pickle=False)
        case "int":
            return int(inside, 16)
        case "sql":
            return from_json(inside)
    raise CorruptionError(f"unknown kind of value {kind!r} in the state of a window")


def _columns(named: dict[str, Any], length: int, relation: Relation, names: Sequence[str]) -> Columns:
    values, valid = {}, {}
    for name in names:
        if name in named:
            values[name], valid[name] = (_unpacked(part, relation, names) for part in named[name])
        else:
            values[name], valid[name] = array_of(relation.column(name), [None] * length)
    return Columns(relation, length, values, valid)
