"""Windows by their definitions, worked out from the whole input at once, slowly and plainly.

:func:`expected` takes everything that was pushed and returns what must have happened by now: the windows that fired, in
order, with their rows; the late rows; and the rows that a window still to come can hold. It knows no state, no batches
(except for windows of whole batches) and no incremental step, so it can't share a mistake with an implementation that does.

1. Rows are taken one by one in order of arrival. The watermark is the largest time seen, less the delay. A row whose time
   lies before the watermark is late.
2. The others are put into the order of their time (arrival, where equal). Those up to the watermark are there; the rest wait.
3. Each key's rows are a sequence, and each kind says which windows of it have fired.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Sequence
from math import gcd
from typing import Any, NamedTuple
from zoneinfo import ZoneInfo

from tidegate.streams.watermarks import END
from tidegate.streams.windows.declare.kinds import WindowSpec
from tidegate.streams.windows.declare.scales import UNIT, Calendar, Shifted

EPOCH = dt.datetime(1970, 1, 1)
BEFORE_ALL_TIME = -(10**30)


class Fired(NamedTuple):
    """A window that fired."""

    number: int
    key: tuple[Any, ...]
    start: Any
    end: Any
    rows: tuple[Any, ...]


class Outcome(NamedTuple):
    """What must have happened."""

    fired: list[Fired]
    late: list[Any]
    open: list[Any]  # rows that can be in a window still to fire, those in the reorder buffer included
    rows: list[Any]  # all rows that are data
    watermark: int


class Element(NamedTuple):
    """A row with its place in the order in which rows are processed, and its time (or the number of its batch)."""

    place: int
    time: int
    row: Any


class Found(NamedTuple):
    """A window of one key's sequence. ``order``: sorts all windows of the stream into firing order."""

    order: Any
    number: int
    start: Any
    end: Any
    elements: list[Element]


def expected(spec: WindowSpec, batches: Sequence[tuple[Any, ...]]) -> Outcome:
    """What must have happened after ``batches``: each its rows (named tuples), its time of arrival and, perhaps, the
    watermark that came with it.
    """
    data, late, watermark = _in_order_of_processing(spec, batches)
    here = [e for e in data if e.time <= watermark] if spec.in_event_order else data
    waiting = [e for e in data if e.time > watermark] if spec.in_event_order else []
    if spec.kind == "batches":
        watermark = len(batches)
    ended = watermark >= END or any(END in mark for _, _, *mark in batches)
    sequences: dict[tuple[Any, ...], list[Element]] = {}
    for element in here:
        sequences.setdefault(_key(spec, element.row), []).append(element)
    found = [
        (window.order, Fired(window.number, key, window.start, window.end, tuple(e.row for e in window.elements)))
        for key, elements in sequences.items()
        for window in _KINDS[spec.kind](spec, elements, watermark, _sortable(key))
        if window.elements
    ]
    if spec.partial and ended:
        found += [
            ((float("inf"), window.number, _sortable(key)), Fired(window.number, key, window.start, window.end, rows))
            for key, elements in sequences.items()
            for window in _unfilled(spec, elements)
            if (rows := tuple(e.row for e in window.elements))
        ]
    found.sort(key=lambda pair: pair[0])
    still = [e for key, elements in sequences.items() for e in _still_needed(spec, elements, watermark)]
    rows = [row for batch, *_ in batches for row in batch]
    return Outcome([f for _, f in found], late, [e.row for e in [*still, *waiting]], rows, watermark)


# ---- windows that fire more than once


class Refined(NamedTuple):
    """One firing of a window that fires more than once."""

    fired: Fired
    final: bool


def refined(spec: WindowSpec, batches: Sequence[tuple[Any, ...]]) -> tuple[list[Refined], list[Any]]:
    """Row by row, in order of arrival: whenever the watermark passes a multiple of E, every window is looked at that there is. It
    fires if what it holds has changed since it last fired, at its end, and at the end of the time for corrections.
    """
    every = spec.emit_every or gcd(spec.size, spec.slide)
    shift = spec.scale.offset if isinstance(spec.scale, Shifted) else 0
    data: list[tuple[int, int, Any]] = []  # time, arrival, row
    found: list[Refined] = []
    late: list[Any] = []
    told: dict[tuple[Any, int], int] = {}
    watermark = BEFORE_ALL_TIME
    for rows, now_us, *mark in batches:
        for row in [*rows, *mark]:
            is_row = not isinstance(row, int)
            before = watermark
            if is_row:
                time = now_us if spec.on is None else time_of(getattr(row, spec.on))
                if spec.on is None:
                    time = max(time, watermark)
                if time < watermark - spec.refire:
                    late.append(row)
                else:
                    data.append((time - shift, len(data), row))
                watermark = max(watermark, time - spec.delay)
            else:
                watermark = max(watermark, row if spec.on is not None or row >= END else watermark)
            found += _at_boundaries(spec, every, shift, data, told, before, watermark)
    return found, late


def _at_boundaries(
    spec: WindowSpec, every: int, shift: int, data: list[Any], told: dict[Any, int], before: int, watermark: int
) -> list[Refined]:
    if not data:
        return []
    newest = max(time for time, *_ in data) + spec.size + spec.refire + 2 * every
    low, high = max(before - shift, min(data)[0] - every), min(watermark - shift, newest)
    found = []
    for boundary in range((low // every + 1) * every, high + 1, every):
        keys = {_key(spec, row) for *_, row in data}
        now = []
        for key in sorted(keys, key=_sortable):
            mine = [one for one in sorted(data, key=lambda one: one[:2]) if _key(spec, one[2]) == key]
            for w in {w for time, *_ in mine for w in range((time - spec.size) // spec.slide, time // spec.slide + 1)}:
                start, end = w * spec.slide, w * spec.slide + spec.size
                rows = tuple(row for time, _, row in mine if start <= time < min(end, boundary))
                if not rows or boundary > end + spec.refire or (boundary < end and spec.emit_every is None):
                    continue
                if len(rows) != told.get((key, w)) or boundary in (end, end + spec.refire):
                    told[key, w] = len(rows)
                    fired = Fired(w, key, start + shift, end + shift, rows)
                    now.append(((w, _sortable(key)), Refined(fired, boundary == end + spec.refire)))
        found += [one for _, one in sorted(now, key=lambda one: one[0])]
    return found


# ---- time


def _in_order_of_processing(
    spec: WindowSpec, batches: Sequence[tuple[Any, ...]]
) -> tuple[list[Element], list[Any], int]:
    """All rows that are not late in the order in which they are processed, the late ones, and the watermark."""
    times: list[tuple[int, int, Any]] = []  # time, order of arrival, row
    late: list[Any] = []
    watermark = BEFORE_ALL_TIME
    newest: dict[Any, int] = {}  # per source
    heard: dict[Any, int] = {}
    arrival = 0
    for number, (rows, now_us, *mark) in enumerate(batches):
        for row in rows:
            arrival += 1
            if spec.kind == "batches":
                times.append((number, arrival, row))
                continue
            if not spec.in_event_order:
                times.append((0, arrival, row))
                continue
            time = now_us if spec.on is None else time_of(getattr(row, spec.on))
            if time < watermark:
                late.append(row)
                if spec.late == "adjust":
                    times.append((watermark, arrival, row))
            else:
                times.append((time, arrival, row))
            source = None if spec.source is None else getattr(row, spec.source)
            newest[source] = max(newest.get(source, time), time)
            heard[source] = now_us
            awake = [s for s in newest if spec.idle_us is None or now_us - heard[s] <= spec.idle_us]
            watermark = max(watermark, min(newest[s] for s in awake) - spec.delay)
        if spec.in_event_order and mark:
            watermark = max(watermark, *mark)
    times.sort(key=lambda t: t[:2])
    return [Element(place, time, row) for place, (time, _, row) in enumerate(times)], late, watermark


def time_of(value: Any) -> int:
    """A time in microseconds since 1970, or an integer itself."""
    if isinstance(value, dt.datetime):
        return (value - EPOCH) // dt.timedelta(microseconds=1)
    if isinstance(value, dt.date):
        return time_of(dt.datetime(value.year, value.month, value.day))
    return int(value)


def _is_true(predicate: str | Callable[[Any], bool] | None, row: Any) -> bool:
    if predicate is None:
        return False
    return bool(getattr(row, predicate) if isinstance(predicate, str) else predicate(row))


def _key(spec: WindowSpec, row: Any) -> tuple[Any, ...]:
    return tuple(getattr(row, name) for name in spec.by)


def _sortable(key: tuple[Any, ...]) -> tuple[Any, ...]:
    """Keys sort by their values, None first, NaN last."""
    return tuple((value is not None, value != value, 0 if value != value else value) for value in key)


# ---- kinds: the windows of one key's sequence that have fired

Order = tuple[Any, ...]


def _count(spec: WindowSpec, elements: list[Element], watermark: int, key: Order) -> list[Found]:
    found = []
    for w in range(-spec.size if spec.partial else 0, len(elements)):
        low, high = w * spec.slide, w * spec.slide + spec.size
        if 0 < high <= len(elements):
            trigger = elements[high - 1]
            found.append(Found((trigger.place,), w, low, high, elements[max(low, 0) : high]))
    return found


def _unfilled(spec: WindowSpec, elements: list[Element]) -> list[Found]:
    """Windows of tuples that have begun when the stream ends."""
    found = []
    for w in range(-spec.size, len(elements)):
        low, high = w * spec.slide, w * spec.slide + spec.size
        if high > len(elements):
            found.append(Found((), w, low, high, elements[max(low, 0) :]))
    return found


def _batches(spec: WindowSpec, elements: list[Element], batches: int, key: Order) -> list[Found]:
    found = []
    for w in range(batches):
        low, high = w * spec.slide, w * spec.slide + spec.size
        if high <= batches:
            found.append(Found((w, key), w, low, high, [e for e in elements if low <= e.time < high]))
    return found


def _time(spec: WindowSpec, elements: list[Element], watermark: int, key: Order) -> list[Found]:
    found = []
    for w in _windows_around(spec, elements):
        low, high = _bounds(spec, w)
        if high <= watermark:
            found.append(Found((high, w, key), w, low, high, [e for e in elements if low <= e.time < high]))
    return found


def _bounds(spec: WindowSpec, w: int) -> tuple[int, int]:
    """When window w of a time window begins and ends; a landmark window starts again at each reset."""
    reset = spec.kind == "landmark"
    low = w * spec.slide // spec.size * spec.size if reset else w * spec.slide
    high = (w + 1) * spec.slide if reset else w * spec.slide + spec.size
    match spec.scale:
        case Shifted(offset):
            return low + offset, high + offset
        case Calendar(unit, zone, offset):
            return _local(unit, zone, offset, low // UNIT[unit]), _local(unit, zone, offset, high // UNIT[unit])
    return low, high


def _local(unit: str, zone: str | None, offset: int, number: int) -> int:
    """When day or month ``number`` since January 1970 begins somewhere: the first instant at which clocks there show at least
    its beginning, looked for minute by minute.
    """
    month = dt.datetime(1970 + number // 12, number % 12 + 1, 1) if unit == "month" else EPOCH
    begins = (EPOCH + dt.timedelta(days=number) if unit == "day" else month) + dt.timedelta(microseconds=offset)
    if zone is None:
        return time_of(begins)
    now = begins - dt.timedelta(hours=30)
    while now.replace(tzinfo=dt.UTC).astimezone(ZoneInfo(zone)).replace(tzinfo=None) < begins:
        now += dt.timedelta(minutes=15)
    return time_of(now)


def _slide_by_tuple(spec: WindowSpec, elements: list[Element], watermark: int, key: Order) -> list[Found]:
    found = []
    for w in range(len(elements)):
        r = (w + 1) * spec.slide - 1
        if r < len(elements):
            now = elements[r].time
            inside = [e for e in elements[: r + 1] if now - spec.size < e.time <= now]
            found.append(Found(elements[r].place, w, now - spec.size, now, inside))
    return found


def _slide_by_time(spec: WindowSpec, elements: list[Element], watermark: int, key: Order) -> list[Found]:
    found = []
    for w in sorted({e.time // spec.slide for e in elements}):
        end = (w + 1) * spec.slide
        if end <= watermark:
            inside = [e for e in elements if e.time < end][-spec.size :]
            found.append(Found((end, key), w, inside[0].time, end, inside))
    return found


def _delta(spec: WindowSpec, elements: list[Element], watermark: int, key: Order) -> list[Found]:
    assert spec.on is not None
    found: list[Found] = []
    before: float | None = None
    for place, element in enumerate(elements):
        now = getattr(element.row, spec.on)
        if before is None or now - before > spec.slide:
            inside = [e for e in elements[: place + 1] if getattr(e.row, spec.on) >= now - spec.size]
            found.append(Found(element.place, len(found), float(now - spec.size), float(now), inside))
            before = now
    return found


def _sessions(spec: WindowSpec, elements: list[Element]) -> list[tuple[list[Element], bool]]:
    """Sessions, and whether the last row closed them."""
    found: list[tuple[list[Element], bool]] = []
    current: list[Element] = []
    for element in elements:
        if current and element.time - current[-1].time >= spec.size:
            found.append((current, False))
            current = []
        current.append(element)
        if _is_true(spec.until, element.row):
            found.append((current, True))
            current = []
    return [*found, (current, False)] if current else found


def _session(spec: WindowSpec, elements: list[Element], watermark: int, key: Order) -> list[Found]:
    found: list[Found] = []
    for session, closed in _sessions(spec, elements):
        last = session[-1]
        end = last.time if closed else last.time + spec.size
        if closed or end <= watermark:
            # where both happen at one time: what timed out comes before what a row closed
            order = (end, 1, (), last.place) if closed else (end, 0, key, 0)
            found.append(Found(order, len(found), session[0].time, end, session))
    return found


def _landmark(spec: WindowSpec, elements: list[Element], watermark: int, key: Order) -> list[Found]:
    found = []
    if not spec.by_time:
        for w in range(len(elements)):
            low, high = w * spec.slide // spec.size * spec.size, (w + 1) * spec.slide
            if high <= len(elements):
                found.append(Found(elements[high - 1].place, w, low, high, elements[low:high]))
        return found
    for w in _windows_around(spec, elements):
        low, high = _bounds(spec, w)
        if high <= watermark:
            found.append(Found((high, w, key), w, low, high, [e for e in elements if low <= e.time < high]))
    return found


def _punctuated(spec: WindowSpec, elements: list[Element], watermark: int, key: Order) -> list[Found]:
    found: list[Found] = []
    begin = 0
    for place, element in enumerate(elements):
        if _is_true(spec.until, element.row):
            found.append(Found(element.place, len(found), begin, place + 1, elements[begin : place + 1]))
            begin = place + 1
    return found


_KINDS: dict[str, Callable[[WindowSpec, list[Element], int, Order], list[Found]]] = {
    "count": _count,
    "batches": _batches,
    "time": _time,
    "slide_by_tuple": _slide_by_tuple,
    "slide_by_time": _slide_by_time,
    "delta": _delta,
    "session": _session,
    "landmark": _landmark,
    "punctuated": _punctuated,
}


def _windows_around(spec: WindowSpec, elements: list[Element]) -> list[int]:
    """The numbers of all windows that could hold one of the elements, and a few more."""
    numbers: set[int] = set()
    for element in elements:
        low, high = _around(spec, element.time)
        numbers.update(range((low - spec.size) // spec.slide - 1, (high + spec.size) // spec.slide + 2))
    return sorted(numbers)


def _around(spec: WindowSpec, time: int) -> tuple[int, int]:
    """About where a time is in the unit of range and slide."""
    match spec.scale:
        case Shifted(offset):
            return time - offset, time - offset
        case Calendar(unit, _, offset):
            days = (time - offset) // (86_400 * 10**6)
            day = EPOCH + dt.timedelta(days=days)
            number = days if unit == "day" else (day.year - 1970) * 12 + day.month - 1
            return (number - 2) * UNIT[unit], (number + 2) * UNIT[unit]
    return time, time


# ---- what windows to come can hold


def _still_needed(spec: WindowSpec, elements: list[Element], watermark: int) -> list[Element]:
    """Which of one key's elements can be in a window that has not fired."""
    size, slide = spec.size, spec.slide
    match spec.kind:
        case "count":
            return [
                e
                for i, e in enumerate(elements)
                if any(w * slide <= i < w * slide + size and w * slide + size > len(elements) for w in range(i + 1))
            ]
        case "batches" | "time":
            return [
                e
                for e in elements
                if any(
                    w * slide <= e.time < w * slide + size and w * slide + size > watermark
                    for w in range((e.time - size) // slide - 1, e.time // slide + 1)
                    if w >= 0 or spec.kind == "time"
                )
            ]
        case "landmark":
            if spec.by_time:
                return [e for e in elements if (e.time // size + 1) * size > watermark]
            return elements[len(elements) // size * size :]
        case "slide_by_tuple":
            # a key is looked at when a row of it comes, not when the watermark moves
            return [e for e in elements if e.time > elements[-1].time - size]
        case "slide_by_time":
            # the last W of the rows whose end has come, and all of the others: each end shows the last W before it
            done = [e for e in elements if (e.time // slide + 1) * slide <= watermark]
            return done[-size:] + elements[len(done) :]
        case "delta":
            windows = _delta(spec, elements, watermark, ())
            low = windows[-1].end + slide - size if windows else 0.0
            return [e for e in elements if getattr(e.row, str(spec.on)) > low]
        case "session":
            ended = sum(len(w.elements) for w in _session(spec, elements, watermark, ()))
            return elements[ended:]
        case _:
            ended = sum(len(w.elements) for w in _punctuated(spec, elements, watermark, ()))
            return elements[ended:]
