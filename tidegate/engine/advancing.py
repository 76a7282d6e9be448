"""Time on border streams: ``advance`` and ``finish``.

A watermark enters as a batch without rows, with a batch-id and a sequence number of its own, so that it has its place in
the order, is in the log, and happens again in a replay.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any

from tidegate.clock import EPOCH
from tidegate.engine.closing import stop_if_torn
from tidegate.errors import BatchError, DataError, TidegateError
from tidegate.streams.border import Border
from tidegate.streams.watermarks import END
from tidegate.txn.entries import Advance
from tidegate.txn.log.record import to_us
from tidegate.txn.ticket import Ticket

if TYPE_CHECKING:
    from tidegate.engine.engine import Engine


def advance(engine: Engine, stream: str, to: Any, key: Any, batch_id: int | None, timeout_s: float | None) -> Ticket:
    """See :meth:`Engine.advance`."""
    border = engine.acceptance.border(stream)
    _check_passes(engine, "advance", stream)
    mark = _mark(engine, border, to)
    if key is not None and border.key is None:
        raise TidegateError(f"advance({stream!r}): stream {stream} has no key, got key={key!r}", stream=stream)
    if batch_id is not None:
        border.check_ids({}, batch_id)
    elif len(_paired(engine, stream)) > 1:
        raise BatchError(
            f"advance({stream!r}): a procedure needs batches with the same id on {', '.join(sorted(_paired(engine, stream)))}, "
            f"and a watermark is a batch, too: advance each of them with the same batch_id=",
            stream=stream,
        )
    keys = None if key is None else (border.relation.check_value(border.relation.column(str(border.key)), key),)

    def entries(ticket: Ticket) -> Iterable[Advance]:
        border.check_unfinished()
        fresh = _fresh(engine, border, mark, keys, batch_id)
        ticket.duplicate = not fresh and batch_id is not None and bool(border.sequences)
        return [Advance(border, mark, batch_id, keys)] if fresh else []

    return _accepted(engine, [stream], entries, timeout_s)


def finish(engine: Engine, stream: str | None, timeout_s: float | None) -> Ticket:
    """See :meth:`Engine.finish`."""
    names = [name for name in engine.borders if name not in engine.acceptance.awaited] if stream is None else [stream]
    check_finish(engine, names)
    borders = [engine.acceptance.border(name) for name in names]

    def entries(_: Ticket) -> Iterable[Advance]:
        return _last(engine, [border for border in borders if not border.finished])

    return _accepted(engine, [border.name for border in borders if not border.finished], entries, timeout_s)


def check_finish(engine: Engine, names: list[str]) -> None:
    """Refuse what can't be finished, or not without others."""
    for name in names:
        engine.acceptance.border(name)
        _check_passes(engine, "finish", name)
        if name in engine.acceptance.awaited:
            raise TidegateError(f"finish({name!r}): {name} answers questions, and has no time of its own", stream=name)
        if missing := _paired(engine, name) - {*names}:
            raise BatchError(
                f"finish({name!r}): a procedure needs batches with the same id on {name} and {', '.join(sorted(missing))}; "
                f"finish() finishes all streams together",
                stream=name,
            )


def _accepted(
    engine: Engine, streams: list[str], entries: Callable[[Ticket], Iterable[Advance]], timeout_s: float | None
) -> Ticket:
    """Accept what ``entries`` gives once there is room on these streams."""
    try:
        with engine.turn:
            engine.check_open()
            for stream in streams:
                engine.acceptance.begin(stream, timeout_s)
            ticket = Ticket(engine.teller)
            for entry in entries(ticket):
                engine.acceptance.accept(entry, ticket)
            engine.acceptance.acknowledge(ticket)
    except BaseException:
        stop_if_torn(engine)
        raise
    engine.merger.look()
    return ticket


def _last(engine: Engine, borders: list[Border]) -> Iterator[Advance]:
    """The end of these streams. Where batches of several are needed together, they get the same id."""
    for border in borders:
        paired = [engine.borders[name] for name in _paired(engine, border.name)]
        if border.name not in engine.graph.times.ends and len(paired) == 1:
            yield Advance(border, END, None, ())  # nobody minds
        elif len(paired) == 1:
            yield Advance(border, END)
    together = {frozenset(_paired(engine, border.name)): None for border in borders}
    for names in sorted((names for names in together if len(names) > 1), key=sorted):
        group = [engine.borders[name] for name in sorted(names)]
        last: dict[Any, int] = {}
        for border in group:
            for key, sequence in border.sequences.items():
                last[key] = max(last.get(key, 0), sequence.last or 0)
        for key, number in last.items():
            yield from (Advance(border, END, number + 1, (key,)) for border in group)
        yield from (Advance(border, END, None, ()) for border in group if not last)


def _check_passes(engine: Engine, what: str, stream: str) -> None:
    procedure = engine.graph.times.left_out.get(stream)
    if procedure is not None:
        raise TidegateError(
            f"{what}({stream!r}): the windows of {procedure} would not get this time. Behind {stream} an interior stream has a "
            f"key of its own, and time does not pass through such a dataflow yet; its windows fire by rows. Push rows of a "
            f"later time instead{', or finish the other streams by name' if what == 'finish' else ''}",
            stream=stream,
        )


def _paired(engine: Engine, stream: str) -> set[str]:
    """The border streams that some procedure needs a batch of with the same id, this one among them."""
    found, more = {stream}, [stream]
    while more:
        for unit in engine.graph.caused_by.get(more.pop(), ()):
            new = set(unit.ancestors) - found if unit.numbered_by is None else set()
            found |= new
            more += new
    return found


def _fresh(engine: Engine, border: Border, mark: int, keys: tuple[Any, ...] | None, batch_id: int | None) -> bool:
    """Is this watermark new, for all keys? False: there is no key, or it was accepted under this id before."""
    known: Iterable[Any] = keys if keys is not None else [None] if border.key is None else [*border.sequences]
    new = []
    for key in known:
        sequence = border.sequences.get(key)
        if batch_id is not None and border.repeats(key, mark, batch_id):
            continue
        new.append(key)
        if sequence is not None and mark < sequence.mark:
            raise BatchError(
                f"time on {border.name} does not go back: it was advanced to {_told(engine, border, sequence.mark)}, which is "
                f"later than {_told(engine, border, mark)}",
                stream=border.name,
            )
        if sequence is not None and sequence.digests and batch_id is None:
            raise BatchError(
                f"the batches of {border.name} have ids that their sender chose, and a watermark is a batch, too: give it "
                f"batch_id=, larger than {sequence.last}",
                stream=border.name,
            )
    if new and len(new) < len([*known]):
        raise BatchError(
            f"batch {batch_id} on {border.name} was accepted for some of its keys only; use a new id",
            stream=border.name,
        )
    return bool(new)


def _mark(engine: Engine, border: Border, to: Any) -> int:
    """The watermark as windows measure it."""
    stream, axes = border.name, engine.graph.times.axes.get(border.name, frozenset())
    if len(axes) != 1:
        why = (
            f"no window over event time gets the time of {stream}. Windows name its column with on=; procedures pass it on "
            f"if their own windows are by time or joins"
            if not axes
            else f"behind {stream} time is measured both as a timestamp and as a number; no value means both"
        )
        raise TidegateError(f"advance({stream!r}): {why}", stream=stream)
    if "number" in axes:
        if isinstance(to, int) and not isinstance(to, bool) and -(2**61) < to < 2**61:
            return to
        raise DataError(f"advance({stream!r}): its time is a whole number, got {to!r}", relation=stream, value=to)
    if isinstance(to, str):
        try:
            to = dt.datetime.fromisoformat(to)
        except ValueError:
            to = to or None
    if isinstance(to, dt.datetime):
        return to_us(to if to.tzinfo is None else to.astimezone(dt.UTC).replace(tzinfo=None))
    if isinstance(to, dt.date):
        return to_us(dt.datetime(to.year, to.month, to.day))
    raise DataError(
        f"advance({stream!r}): its time is a timestamp; give a datetime, a date or text like '2026-03-01T08:00:10', got {to!r}",
        relation=stream,
        value=to,
    )


def _told(engine: Engine, border: Border, mark: int) -> str:
    if mark == END or "number" in engine.graph.times.axes.get(border.name, ()):
        return "its end" if mark == END else str(mark)
    return (EPOCH + dt.timedelta(microseconds=mark)).isoformat(" ")
