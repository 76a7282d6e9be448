"""What a log accepted, as a history that the serial reference can run."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from tidegate.dataflows.app import App
from tidegate.storage.codec import RowCodec, from_json
from tidegate.storage.database import Database
from tidegate.streams.batch import Batch
from tidegate.streams.border import Border
from tidegate.testing.history import Entry, History
from tidegate.txn.entries import Advance, Call
from tidegate.txn.log.record import Advanced, Asked, Called, Fed, Pushed, Reasked, Record, Requeued, Resumed, from_us
from tidegate.txn.positions import rank_of, sequence_of
from tidegate.txn.runtime import Runtime
from tidegate.txn.shown import Shown
from tidegate.txn.teller import Teller
from tidegate.txn.ticket import Ticket


def accepted_history(app: App, records: Iterable[Record]) -> tuple[History, int]:
    """The history that these records (of a whole log, in order) describe, and its last sequence number."""
    return _Accepted(app).read(records)


def key_place(app: App, stream: str) -> int | None:
    """The place of a keyed stream's key in its rows."""
    key = app.streams[stream].key
    return None if key is None else app.streams[stream].relation.index_of[key]


class _Accepted:
    def __init__(self, app: App) -> None:
        self._app = app
        self._graph = app.graph()
        self._runtime = Runtime(app, self._graph, Database(app.tables.values()))  # to bind the arguments of calls
        self._borders = {s.name: Border(s.relation, s.key) for s in app.streams.values() if s.border}
        self._origin: dict[int, tuple[Batch, int]] = {}  # sequence -> its batch, and the first sequence of that
        self._shown: dict[int, tuple[Shown, ...]] = {}  # position -> the questions asked there
        self._history = History()
        self._last = 0

    def read(self, records: Iterable[Record]) -> tuple[History, int]:
        for record in records:
            match record:
                case Pushed() | Fed() | Requeued():
                    self._history.entered.update(getattr(record, "timers", None) or ())
                    for sequence, batch in self._batches(record):
                        self._origin[sequence] = batch, sequence
                        self._enter(Entry(sequence, from_us(record.time_us), Ticket(_TELLER), batch=batch))
                case Advanced():
                    keys = None if record.keys is None else tuple(from_json(key) for key in record.keys)
                    advance = Advance(self._borders[record.stream], record.to, record.batch_id, keys)
                    for sequence, batch in enumerate(advance.batches(), record.sequence):
                        self._origin[sequence] = batch, sequence
                        self._enter(Entry(sequence, from_us(record.time_us), Ticket(_TELLER), batch=batch))
                case Called():
                    self._enter(self._call(record))
                case Asked():
                    asked = Shown(record.stream, record.procedure, record.digest, 0.0, None)
                    before = [q for q in self._shown.get(record.position, ()) if q.stream != record.stream]
                    self._shown[record.position] = (*before, asked)
                case Reasked():
                    self._shown[record.position] = self._shown[record.position][:-1]
                case Resumed():
                    for old, new in record.moved:
                        self._move(old, new)
        self._runtime.database.close()
        return self._history, self._last

    def _enter(self, entry: Entry) -> None:
        self._history.entries.append(entry)
        self._last = max(self._last, entry.sequence)

    def _batches(self, record: Pushed | Fed | Requeued) -> Iterator[tuple[int, Batch]]:
        border = self._borders[record.stream]
        rows = RowCodec(border.relation).unpack(record.rows)
        sequence = record.sequence
        size = record.size if isinstance(record, Fed) else len(rows)
        for start in range(0, len(rows), size):
            for key, part in border.split(rows[start : start + size]).items():
                yield (
                    sequence,
                    border.accept(key, part, record.batch_id if isinstance(record, Pushed) else None),
                )
                sequence += 1

    def _call(self, record: Called) -> Entry:
        unit = self._runtime.units[record.procedure]
        named = {name: from_json(value) for name, value in record.named.items()}
        call = Call(unit, *unit.members[0].bind_call(from_json(record.arguments), named))
        return Entry(record.sequence, from_us(record.time_us), Ticket(_TELLER), call=call)

    def _move(self, old: int, new: int) -> None:
        batch, entry = self._origin[sequence_of(new)] = self._origin[sequence_of(old)]
        units = self._graph.caused_by[batch.stream]
        unit = next(unit for unit in units if unit.rank <= rank_of(old) < unit.rank + unit.room)
        self._history.moves[old] = new
        if unit.divided:  # which key it is for is not in the log
            self._shown[new] = self._history.answered_at[new] = self._shown.pop(old, ())
            self._last = max(self._last, sequence_of(new))
            return
        number = batch.id if unit.numbered_by is None else entry
        self._history.moved[unit.name, batch.key, number] = new
        self._shown[new] = self._history.answered[unit.name, batch.key, number] = self._shown.pop(old, ())
        self._last = max(self._last, sequence_of(new))


def _never(_: Ticket, _timeout_s: float | None) -> None:
    raise AssertionError("tickets in a history can't be waited for")


_TELLER = Teller(_never)
