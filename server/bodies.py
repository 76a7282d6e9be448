"""Reading requests within limits of size and time, and into rows."""

from __future__ import annotations

import asyncio
import datetime as dt
import struct
from collections.abc import Callable, Collection, Mapping
from concurrent.futures import ThreadPoolExecutor
from difflib import get_close_matches
from typing import Any, TypeVar
from urllib.parse import parse_qsl

import msgspec
import numpy as np
import pyarrow as pa
from msgspec import UNSET
from starlette.requests import ClientDisconnect, Request

from tidegate.errors import DataError, ServerError
from tidegate.outside.durable import Start
from tidegate.server.settings import Settings

JSON = "application/json"
NDJSON = "application/x-ndjson"
ARROW = "application/vnd.apache.arrow.stream"
ROW_TYPES = (JSON, NDJSON, ARROW)
_NDJSON_ALSO = {"application/ndjson", "application/jsonl", "application/x-jsonlines"}
LARGE = 256 << 10  # from this many bytes on, a body is processed outside the event loop
DEEPEST = 100  # nesting of lists and objects in a body

T = TypeVar("T")
_LARGE_BODIES = ThreadPoolExecutor(2, "tidegate-large")  # few, so that other threads get a turn in the interpreter


class Pushed(msgspec.Struct, forbid_unknown_fields=True):
    """The body of a push in JSON."""

    rows: list[Any]
    batch_id: int | str | None = None
    source: str | None = None
    offset: Any = None
    after: Any = UNSET


class Called(msgspec.Struct, forbid_unknown_fields=True):
    """The body of a call. ``encoding="tagged"``: values as ``tidegate.storage.codec`` writes them, without loss; ``"text"``:
    arguments as typed by a person. Plain ones and texts are read by the procedure's annotations.
    """

    arguments: list[Any] = []
    named: dict[str, Any] = {}
    encoding: str = "plain"


class Advanced(msgspec.Struct, forbid_unknown_fields=True):
    """The body of a watermark."""

    to: int | str
    key: Any = None
    batch_id: int | str | None = None


class Queried(msgspec.Struct, forbid_unknown_fields=True):
    """The body of a query."""

    sql: str
    parameters: list[Any] | dict[str, Any] | None = None
    row_limit: int | None = None
    timeout_s: float | None = None
    as_of: int | str | None = None
    encoding: str = "plain"


class Acknowledged(msgspec.Struct, forbid_unknown_fields=True):
    """The body of an acknowledgement. ``refused``: why the batches are refused; they become dead letters."""

    cursors: list[str]
    up_to: bool = False
    refused: str | None = None


class Sought(msgspec.Struct, forbid_unknown_fields=True):
    """The body of a seek."""

    to: int | str


def read_start(given: int | str | None) -> Start:
    """Where a subscription begins: now, earliest, an offset, or a time."""
    if given is None:
        return "now"
    if isinstance(given, int) or given in ("now", "earliest"):
        return given  # type: ignore[return-value]
    if given.isascii() and given.isdigit() and len(given) < 19:
        return int(given)
    try:
        return dt.datetime.fromisoformat(given)
    except ValueError:
        raise DataError(
            f"start {given[:80]!r} is no place in a topic: give now, earliest, an offset, or a time in ISO 8601",
            column="start",
        ) from None


def read_on_lag(given: str | None) -> Any:
    """What becomes of what waits: keep, block, or drop:NUMBER."""
    kind, _, number = (given or "").partition(":")
    if kind == "drop" and number.isascii() and number.isdigit() and len(number) < 19:
        return "drop", int(number)
    return given or None


def check_query(query_string: bytes, known: Collection[str]) -> None:
    """Raise for an unknown or repeated query parameter: otherwise it would be ignored silently. And for bytes that are no
    text: two names could become the same one.
    """
    seen: set[str] = set()
    try:
        given = parse_qsl(query_string.decode("ascii"), keep_blank_values=True, errors="strict")
    except UnicodeDecodeError:
        raise ServerError("the query string is not UTF-8 in percent-encoding; encode its text so", status=400) from None
    for name, _ in given:
        if name not in known:
            close = get_close_matches(name, known, n=1)
            hint = f"; did you mean {close[0]!r}?" if close else ""
            raise ServerError(
                f"there is no parameter {name[:80]!r} here; this endpoint takes {', '.join(known) or 'none'}{hint}",
                status=400,
                parameter=name[:80],
            )
        if name in seen:
            raise ServerError(f"the parameter {name!r} is given twice; give it once", status=400, parameter=name)
        seen.add(name)


async def read_body(request: Request, settings: Settings) -> bytes:
    """The whole body, if it is small enough and arrives in time."""
    headers = request.scope["state"]["headers"]
    if headers.get("content-encoding", "identity") != "identity":
        raise ServerError("encoded bodies are not accepted: send it without Content-Encoding", status=415)
    declared = headers.get("content-length", "0")
    limit = settings.body_bytes
    if declared.isdigit() and int(declared) > limit:
        raise _too_large(limit)
    parts: list[bytes] = []
    size = 0
    try:
        async with asyncio.timeout(settings.body_timeout_s):
            async for part in request.stream():
                size += len(part)
                if size > limit:
                    raise _too_large(limit)
                parts.append(part)
    except TimeoutError:
        raise ServerError(f"the body did not arrive within {settings.body_timeout_s:g} seconds", status=408) from None
    except ClientDisconnect:
        raise ServerError("the client disconnected", status=400) from None
    return parts[0] if len(parts) == 1 else b"".join(parts)


def _too_large(limit: int) -> ServerError:
    return ServerError(
        f"the body is larger than {limit:,} bytes; send fewer rows at a time (the limit is --body-limit)", status=413
    )


def content_type(request: Request) -> str:
    kind = request.scope["state"]["headers"].get("content-type", JSON).partition(";")[0].strip().lower()
    return NDJSON if kind in _NDJSON_ALSO else kind


async def aside(size: int, function: Callable[..., T], *arguments: Any) -> T:
    """The result of a function of ``size`` bytes, in a thread when they are many: others are served meanwhile."""
    if size <= LARGE:
        return function(*arguments)
    return await asyncio.get_running_loop().run_in_executor(_LARGE_BODIES, function, *arguments)


async def read_json(request: Request, settings: Settings, kind: Any, then: Callable[[Any], T] = lambda told: told) -> T:
    """The body as JSON of this shape; or what ``then`` makes of it, in a thread when it is large."""
    if content_type(request) != JSON:
        raise ServerError(f"send {JSON}, not {content_type(request)!r}", status=415)
    body = await read_body(request, settings)
    return await aside(len(body), lambda: then(decode(body, kind)))


def decode(body: bytes, kind: Any) -> Any:
    check_depth(body)
    try:
        decoded = msgspec.json.decode(body, type=kind)
        named = msgspec.json.decode(body, type=dict[str, msgspec.Raw]) if isinstance(decoded, msgspec.Struct) else {}
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise DataError(f"the body does not fit: {error}") from None
    values = [getattr(decoded, name) for name in named] if named else [decoded]
    check_repeated(body, len(named), values)
    return decoded


def check_depth(body: bytes) -> None:
    """Raise when lists and objects are nested too deeply: code that walks through them later would fail.

    >>> check_depth(b'[{"a": "[[["}]' * 1000)
    """
    if body.count(b"[") + body.count(b"{") <= DEEPEST:
        return
    text, outside = _outside_strings(body)
    opened = ((text == ord("[")) | (text == ord("{"))) & outside
    closed = ((text == ord("]")) | (text == ord("}"))) & outside
    depth = int((opened.astype(np.int8) - closed.astype(np.int8)).cumsum(dtype=np.int32).max())
    if depth > DEEPEST:
        raise DataError(
            f"the body nests lists and objects {depth:,} levels deep, and at most {DEEPEST} are accepted; send it "
            "flatter, or as text"
        )


def _outside_strings(body: bytes) -> tuple[Any, Any]:
    """The characters of JSON, and which of them are outside of strings."""
    text = np.frombuffer(body.replace(rb"\\", b"__").replace(rb"\"", b"__"), np.uint8)
    return text, np.logical_not(np.logical_xor.accumulate(text == ord('"')))


def check_repeated(body: bytes, named: int, values: Any) -> None:
    """Raise when an object has a key twice: one of the values would be lost in silence. Such a text has more colons than
    what became of it has keys.

    ``named``: the keys that are not in ``values``.

    >>> check_repeated(b'[{"at": "10:30"}]', 0, [{"at": "10:30"}])
    """
    colons = body.count(b":")  # those in strings, too
    rows = values[0] if len(values) == 1 and type(values[0]) is list else values
    if colons == named + sum([len(row) for row in rows if type(row) is dict]) or colons == (
        keys := named + _keys_in(values)
    ):
        return
    text, outside = _outside_strings(body)
    if int(((text == ord(":")) & outside).sum()) != keys:
        raise DataError(
            "an object in the body has the same key twice, so that one of the values would be lost; send each once"
        )


def _keys_in(value: Any) -> int:
    if type(value) is dict:
        return len(value) + sum([_keys_in(each) for each in value.values() if type(each) in (dict, list)])
    return sum([_keys_in(each) for each in value if type(each) in (dict, list)])


async def read_push(request: Request, settings: Settings, rows: Callable[[list[Any], bool], list[Any]]) -> Pushed:
    """Rows in JSON, NDJSON or Arrow, as ``rows(given, large)`` makes them; batch-id, source and offset in the JSON, or as
    query parameters.
    """
    kind = content_type(request)
    if kind not in ROW_TYPES:
        raise ServerError(f"send rows as {', '.join(ROW_TYPES)}, not {kind!r}", status=415)
    body = await read_body(request, settings)

    def read() -> Pushed:
        pushed = parse_push(body, kind, settings.body_rows)
        pushed.rows = rows(pushed.rows, len(body) > LARGE)
        return pushed

    pushed = await aside(len(body), read)
    query: Mapping[str, str] = request.query_params if request.scope["query_string"] else {}
    if "batch_id" in query:
        pushed.batch_id = query["batch_id"]
    if isinstance(pushed.batch_id, str):
        pushed.batch_id = whole_number(pushed.batch_id, "batch_id")
    if "source" in query:
        pushed.source = query["source"]
    if "offset" in query:
        pushed.offset = decode(query["offset"].encode("utf-8", "replace"), Any)
    if "after" in query:
        pushed.after = decode(query["after"].encode("utf-8", "replace"), Any)
    if pushed.offset is not None and pushed.source is None:
        raise DataError("an offset belongs to a source: send source too", column="source")
    return pushed


def parse_push(body: bytes, kind: str, row_limit: int) -> Pushed:
    if kind == ARROW:
        return Pushed(read_arrow(body, row_limit))
    if kind == NDJSON:
        pushed = Pushed(_lines(body))
    elif body.lstrip()[:1] == b"[":
        pushed = Pushed(decode(body, list[Any]))
    else:
        pushed = decode(body, Pushed)
    if len(pushed.rows) > row_limit:
        raise _too_many(row_limit)
    return pushed


def _too_many(row_limit: int) -> DataError:
    return DataError(f"one push takes at most {row_limit:,} rows; send fewer at a time")


def _lines(body: bytes) -> list[Any]:
    check_depth(body)
    rows = []
    for number, line in enumerate(body.splitlines(), 1):
        if line.strip():
            try:
                rows.append(msgspec.json.decode(line))
            except (msgspec.DecodeError, UnicodeDecodeError) as error:
                raise DataError(f"line {number} is not JSON: {error}") from None
    check_repeated(body, 0, rows)
    return rows


def whole_number(text: str, name: str) -> int:
    digits = text.removeprefix("-")
    if not digits.isascii() or not digits.isdigit() or len(digits) > 19:
        raise DataError(f"{name} must be a whole number of 64 bits, got {text[:40]!r}", column=name)
    return int(text)


# ---- Arrow: only what can't expand into much more than was sent


def read_arrow(body: bytes, row_limit: int) -> list[dict[str, Any]]:
    """The rows of an Arrow IPC stream. Compressed buffers and types that repeat values by reference are refused: a
    small body could otherwise expand to more rows than fit in memory.
    """
    rows: list[dict[str, Any]] = []
    try:
        _refuse_compression(body)
        reader = pa.ipc.open_stream(pa.py_buffer(body))
        for field in reader.schema:
            if not _flat(field.type):
                raise DataError(
                    f"column {field.name!r} has Arrow type {field.type}, which is not supported; cast it to a plain "
                    "one",
                    column=field.name,
                )
        for batch in reader:
            if len(rows) + batch.num_rows > row_limit:
                raise _too_many(row_limit)
            batch.validate(full=True)
            rows.extend(batch.to_pylist())
    except (pa.ArrowException, OSError, ValueError, struct.error, IndexError, OverflowError) as error:
        raise DataError(f"the body is not a readable Arrow IPC stream: {error}") from None
    return rows


def _flat(kind: pa.DataType) -> bool:
    types = pa.types
    if types.is_list(kind) or types.is_large_list(kind):
        return _flat(kind.value_type) and not types.is_null(kind.value_type)
    return bool(
        types.is_integer(kind)
        or types.is_floating(kind)
        or types.is_boolean(kind)
        or types.is_decimal(kind)
        or types.is_string(kind)
        or types.is_large_string(kind)
        or types.is_binary(kind)
        or types.is_large_binary(kind)
        or types.is_date(kind)
        or types.is_time(kind)
        or types.is_timestamp(kind)
        or types.is_duration(kind)
        or types.is_null(kind)
    )


def _refuse_compression(body: bytes) -> None:
    """Look at the metadata of every message (flatbuffers) for a ``compression`` field."""
    place = 0
    while place + 8 <= len(body):
        (marker, size) = struct.unpack_from("<iI", body, place)
        if marker != -1:
            marker, size, place = -1, marker & 0xFFFFFFFF, place - 4  # before version 0.15 there was no marker
        if size == 0:
            return
        start = place + 8
        message = _table(body, start + struct.unpack_from("<I", body, start)[0])
        (kind,) = struct.unpack_from("<B", body, message[1]) if 1 in message else (0,)
        length = struct.unpack_from("<q", body, message[3])[0] if 3 in message else 0
        if length < 0:
            raise ValueError("a message has a negative length")
        if kind in (2, 3) and 2 in message:  # DictionaryBatch, RecordBatch
            header = _table(body, message[2] + struct.unpack_from("<I", body, message[2])[0])
            if kind == 2:
                raise DataError("dictionary-encoded columns are not supported; cast them to plain ones")
            if 3 in header:
                raise DataError("compressed Arrow buffers are not supported; write the stream without compression")
        place = start + size + length


def _table(body: bytes, at: int) -> dict[int, int]:
    """Where the fields of a flatbuffers table are: field number -> offset."""
    vtable = at - struct.unpack_from("<i", body, at)[0]
    if vtable < 0:
        raise ValueError("its metadata is damaged")
    (size,) = struct.unpack_from("<H", body, vtable)
    found = {}
    for number in range((size - 4) // 2):
        (offset,) = struct.unpack_from("<H", body, vtable + 4 + 2 * number)
        if offset:
            found[number] = at + offset
    return found
