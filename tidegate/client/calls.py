"""Requests and answers as values: what both clients send and how they read the response. No I/O."""

from __future__ import annotations

import datetime as dt
import io
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from itertools import islice
from typing import Any
from urllib.parse import quote

import msgspec
import pyarrow as pa
from msgspec import UNSET

from tidegate import errors
from tidegate.engine.fed import Fed
from tidegate.engine.questions import Question
from tidegate.engine.result import Result
from tidegate.errors import DataError, NotAllowed, QueryFailed, ServerError, TidegateError
from tidegate.storage.codec import from_json
from tidegate.storage.types import ColumnType, column_type
from tidegate.streams.batch import Batch
from tidegate.txn.ticket import Original
from tidegate.wire import RowWire, encode, finite, read_relation, read_value, tagged, whole

JSON = "application/json"
ARROW = "application/vnd.apache.arrow.stream"
FEED_ROWS = 2_000  # rows of one request of feed()
FEED_BYTES = 4 << 20  # and its size, as far as batches allow
REMEMBERED = 100_000  # addresses of batches that a named subscriber recognises as repeats

_ERRORS: dict[str, type[TidegateError]] = {
    name: kind for name, kind in vars(errors).items() if isinstance(kind, type) and issubclass(kind, TidegateError)
}
_WHOLE = {"batch_id", "last_id", "lsn", "offset"}  # facts of errors that are integers; large ones come as text


@dataclass(frozen=True)
class Call:
    """One request. ``again``: sending it twice has the effect of sending it once."""

    method: str
    path: str
    query: dict[str, Any] = field(default_factory=dict)
    body: bytes = b""
    kind: str = JSON
    accept: str = JSON
    again: bool = False


@dataclass(frozen=True)
class Answer:
    """The response to a call."""

    status: int
    body: bytes
    kind: str = JSON

    def facts(self) -> Any:
        """The JSON of an answer; raises if the answer is an error."""
        if self.status >= 400:
            raise self.error()
        try:
            return msgspec.json.decode(self.body)
        except msgspec.DecodeError:
            raise ServerError(f"the server's answer is not JSON: {self.body[:200]!r}", status=self.status) from None

    def error(self) -> TidegateError:
        try:
            return raised(msgspec.json.decode(self.body)["error"], self.status)
        except (msgspec.DecodeError, KeyError, TypeError):
            told = self.body[:300].decode(errors="replace") or "nothing"
            return ServerError(f"the server answered {self.status} and said: {told}", status=self.status)


def raised(told: Mapping[str, Any], status: int | None = None) -> TidegateError:
    """The error that the server raised, of the same class and with the same facts."""
    fallback = NotAllowed if status in (401, 403, 421) else ServerError
    kind = _ERRORS.get(told["type"], fallback)
    facts = {name: whole(value) if name in _WHOLE else value for name, value in (told.get("facts") or {}).items()}
    if issubclass(kind, ServerError):
        facts.setdefault("status", status)
    return kind(told["message"], **facts)


# ---- requests


def push(
    stream: str,
    rows: Any,
    batch_id: int | None,
    source: str | None,
    offset: Any,
    timeout_s: float | None,
    wait: bool,
    after: Any = UNSET,
) -> Call:
    path = f"/v1/streams/{quote(stream, '')}/batches"
    again = batch_id is not None or after is not UNSET
    query: dict[str, Any] = {"wait": "true" if wait else "false"}
    if timeout_s is not None:
        query["timeout_s"] = timeout_s
    if hasattr(rows, "itertuples"):
        rows = pa.Table.from_pandas(rows, preserve_index=False)
    if isinstance(rows, (pa.Table, pa.RecordBatch)):
        query |= {} if batch_id is None else {"batch_id": batch_id}
        query |= {} if source is None else {"source": source, "offset": encode(offset).decode()}
        query |= {} if after is UNSET else {"after": encode(after).decode()}
        return Call("POST", path, query, _ipc(rows), ARROW, again=again)
    facts = {"rows": _rows(stream, rows), "batch_id": batch_id, "source": source, "offset": offset}
    body = encode(facts if after is UNSET else {**facts, "after": after})
    return Call("POST", path, query, body, again=again)


def advance(stream: str, to: Any, key: Any, batch_id: int | None, wait: bool) -> Call:
    told = to if isinstance(to, int) or not hasattr(to, "isoformat") else to.isoformat()
    body = encode({"to": told, "key": key, "batch_id": batch_id})
    path = f"/v1/streams/{quote(stream, '')}/advance"
    return Call("POST", path, {"wait": "true" if wait else "false"}, body, again=batch_id is not None)


def finish(stream: str | None, wait: bool) -> Call:
    path = "/v1/finish" if stream is None else f"/v1/streams/{quote(stream, '')}/finish"
    return Call("POST", path, {"wait": "true" if wait else "false"}, again=True)


def continuing(dataflow: str, act: str, key: Any) -> Call:
    """Resume or skip."""
    query = {} if key is UNSET else {"key": str(key)}
    return Call("POST", f"/v1/dataflows/{quote(dataflow, '')}/{act}", query)


def requeue(letter: str) -> Call:
    return Call("POST", f"/v1/dead_letters/{quote(letter, '')}/requeue")


def fed(facts: Mapping[str, Any]) -> Fed:
    """The answer to a feed."""
    return Fed(**{field.name: facts[field.name] for field in fields(Fed)})


def feed(stream: str, rows: list[Any], size: int) -> Iterator[Call]:
    """Requests for these rows, each small enough."""
    body = encode(_rows(stream, rows))
    if len(body) <= FEED_BYTES or len(rows) <= size:
        yield Call("POST", f"/v1/streams/{quote(stream, '')}/feed", {"size": size}, body)
        return
    half = max(len(rows) // 2 // size, 1) * size
    yield from feed(stream, rows[:half], size)
    yield from feed(stream, rows[half:], size)


def feed_whole(stream: str, rows: Any, size: int, source: str, offset: Any = None, after: Any = UNSET) -> Call:
    """All rows of a source in one request, with its offset."""
    told = {"rows": _rows(stream, rows), "source": source, "offset": offset}
    body = encode(told if after is UNSET else {**told, "after": after})
    return Call("POST", f"/v1/streams/{quote(stream, '')}/feed", {"size": size}, body, again=after is not UNSET)


def feeds(stream: str, rows: Iterable[Any], size: int) -> Iterator[Call]:
    """Requests for any number of rows."""
    if type(size) is not int or size < 1:
        raise TidegateError(f"feed({stream!r}, …): size is a positive whole number of rows, got {size!r}")
    source = iter(rows)
    while chunk := list(islice(source, max(FEED_ROWS // size, 1) * size)):
        yield from feed(stream, chunk, size)


def submit(
    procedure: str | Callable[..., Any], arguments: tuple[Any, ...], named: Mapping[str, Any], wait: bool
) -> Call:
    name = procedure if isinstance(procedure, str) else procedure.__name__
    try:
        body = {
            "arguments": [tagged(value) for value in arguments],
            "named": {key: tagged(value) for key, value in named.items()},
            "encoding": "tagged",
        }
    except TidegateError:
        kinds = sorted({type(value).__name__ for value in (*arguments, *named.values())})
        raise DataError(
            f"an argument of {name} can't be sent; pass numbers, text, bytes, dates, decimals, lists and dicts of them (got "
            f"{', '.join(kinds)})",
            relation=name,
        ) from None
    return Call("POST", f"/v1/procedures/{quote(name, '')}", {"wait": "true" if wait else "false"}, encode(body))


def submit_texts(procedure: str, arguments: Sequence[str], named: Mapping[str, str]) -> Call:
    """A call with its arguments as typed: the server reads them by the procedure's annotations."""
    body = encode({"arguments": list(arguments), "named": dict(named), "encoding": "text"})
    return Call("POST", f"/v1/procedures/{quote(procedure, '')}", {"wait": "true"}, body)


def query(
    sql: str, parameters: tuple[Any, ...], named: Mapping[str, Any], row_limit: int | None, as_of: int | None
) -> Call:
    given: Any = {k: tagged(v) for k, v in named.items()} if named else [tagged(v) for v in parameters]
    body = {"sql": str(sql), "parameters": given, "row_limit": row_limit, "as_of": as_of, "encoding": "tagged"}
    return Call("POST", "/v1/query", body=encode(body), accept=ARROW, again=True)


def ticket(name: str, wait_s: float) -> Call:
    asked = {"wait": "true", "timeout_s": wait_s, "encoding": "tagged"}
    return Call("GET", f"/v1/tickets/{quote(name, '')}", asked, again=True)


def answer(question: Question, row: Mapping[str, Any]) -> Call:
    """The answer to exactly this question."""
    path = f"/v1/questions/{quote(question.stream, '')}/{question.batch_id}"
    body = encode(_rows(question.stream, [row])[0])
    return Call("POST", path, {"question": question.id, "digest": question.digest}, body, again=True)


def reask(question: Question) -> Call:
    path = f"/v1/questions/{quote(question.stream, '')}/{question.batch_id}/reask"
    return Call("POST", path, {"question": question.id, "digest": question.digest})


def position(source: str) -> Call:
    return Call("GET", "/v1/position", {"source": source, "encoding": "tagged"}, again=True)


def acknowledge(name: str, cursors: list[str], refused: str | None = None) -> Call:
    told = {"cursors": cursors} if refused is None else {"cursors": cursors, "refused": refused}
    return Call("POST", f"/v1/subscriptions/{quote(name, '')}/ack", body=encode(told), again=True)


def begins(start: Any, on_lag: Any) -> dict[str, Any]:
    """Where a new named subscription begins, and what becomes of what waits for it."""
    asked = {} if start == "now" else {"start": start.isoformat() if isinstance(start, dt.datetime) else str(start)}
    if on_lag is not None:
        asked["on_lag"] = on_lag if isinstance(on_lag, str) else ":".join(map(str, on_lag))
    return asked


def seek(name: str, to: Any) -> Call:
    told = {"to": to.isoformat() if isinstance(to, dt.datetime) else to}
    return Call("POST", f"/v1/subscriptions/{quote(name, '')}/seek", body=encode(told), again=True)


def events(stream: str, name: str | None, cursor: str | None, more: Mapping[str, Any]) -> Call:
    asked = {**{key: value for key, value in (("name", name), ("cursor", cursor)) if value is not None}, **more}
    return Call("GET", f"/v1/streams/{quote(stream, '')}/events", asked, accept="text/event-stream", again=True)


def get(path: str, **asked: Any) -> Call:
    return Call("GET", path, asked, again=True)


def post(path: str) -> Call:
    return Call("POST", path, again=True)


def delete(path: str) -> Call:
    return Call("DELETE", path)


def _rows(stream: str, rows: Any) -> list[Any]:
    if hasattr(rows, "to_dicts"):
        rows = rows.to_dicts()
    if isinstance(rows, (str, Mapping)) or not isinstance(rows, Iterable):
        raise DataError(
            f"push({stream!r}, rows) takes a list of rows, got {type(rows).__name__}; wrap a single row in a list",
            relation=stream,
            value=rows,
        )
    return [{k: finite(v) for k, v in row.items()} if isinstance(row, Mapping) else finite(row) for row in rows]


def _ipc(rows: pa.Table | pa.RecordBatch) -> bytes:
    sink = io.BytesIO()
    with pa.ipc.new_stream(sink, rows.schema) as writer:
        writer.write(rows)
    return sink.getvalue()


# ---- answers


def result(answer: Answer) -> Result:
    """The rows of a query."""
    if answer.status >= 400:
        raise answer.error()
    try:
        return Result(pa.ipc.open_stream(pa.py_buffer(answer.body)).read_all())
    except pa.ArrowException as error:
        raise QueryFailed(f"the result broke off: {error}") from None


def value_of(facts: Mapping[str, Any]) -> Any:
    """What a procedure returned."""
    return facts["value"] if "note" in facts else from_json(facts["value"])


def batch_ids(facts: Mapping[str, Any]) -> list[int]:
    """The ids that the batches of a push got."""
    return [whole(batch_id) for batch_id in facts["batch_ids"]]


class Schemas:
    """The app's streams as the server describes them: how to read the rows of batches."""

    def __init__(self, facts: Mapping[str, Any]) -> None:
        self.wires = {s["name"]: RowWire(read_relation(s["name"], s["columns"])) for s in facts["streams"]}
        self._keys: dict[str, ColumnType | None] = {
            s["name"]: None if s["key_type"] is None else column_type(s["key_type"]) for s in facts["streams"]
        }

    def batch(self, facts: Mapping[str, Any]) -> Batch:
        """A batch as a subscriber receives it."""
        stream = facts["stream"]
        wire = self.wires[stream]
        key = read_value(self._keys.get(stream), facts["key"])
        return Batch(wire.relation, whole(facts["batch_id"]), wire.read_stored(facts["rows"]), key)

    def questions(self, facts: Mapping[str, Any]) -> list[Question]:
        return [self._question(told) for told in facts["questions"]]

    def _question(self, told: Mapping[str, Any]) -> Question:
        key = read_value(self._keys.get(told["stream"]), told["key"])
        batch_id = whole(told["batch_id"])
        batches = {
            name: Batch(self.wires[name].relation, batch_id, self.wires[name].read_stored(rows), key)
            for name, rows in told["batches"].items()
        }
        facts = {name: value for name, value in told.items() if name != "question"}
        return Question(**{**facts, "key": key, "batch_id": batch_id, "batches": batches, "id": told["question"]})

    def originals(self, stream: str, facts: Mapping[str, Any]) -> list[Original]:
        """The outcomes of the batches that a push repeats."""
        kind = self._keys.get(stream)
        return [
            Original(whole(o["batch_id"]), read_value(kind, o["key"]), o["state"], o["reason"])
            for o in facts["original"] or ()
        ]


class Deduplicated:
    """Which batches a named subscriber has been given: a repeat after a restart is recognised."""

    def __init__(self) -> None:
        self._given: OrderedDict[Any, bool] = OrderedDict()  # address -> acknowledged

    def is_new(self, batch: Batch) -> bool:
        address = (batch.key, batch.id)
        if address in self._given:
            return False
        self._given[address] = False
        if len(self._given) > REMEMBERED:
            self._given.popitem(last=False)
        return True

    def acknowledged(self, batches: Iterable[Batch]) -> None:
        for batch in batches:
            self._given[batch.key, batch.id] = True

    def was_acknowledged(self, batch: Batch) -> bool:
        return self._given.get((batch.key, batch.id), False)


# ---- Server-Sent Events


@dataclass
class ServerEvent:
    """One event of a stream of them."""

    kind: str = "message"
    data: str = ""
    id: str | None = None


class EventReader:
    """Lines in, events out."""

    def __init__(self) -> None:
        self._event = ServerEvent()
        self._data: list[str] = []

    def line(self, line: str) -> ServerEvent | None:
        """The event that this line completes, if it does."""
        if not line:
            event, self._event = self._event, ServerEvent()
            event.data, self._data = "\n".join(self._data), []
            return event if event.data else None
        name, _, value = line.partition(":")
        value = value.removeprefix(" ")
        if name == "data":
            self._data.append(value)
        elif name == "event":
            self._event.kind = value
        elif name == "id":
            self._event.id = value
        return None
