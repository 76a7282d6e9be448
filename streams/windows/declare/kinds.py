"""The kinds of window: what is in each, and when it fires.

A window belongs to one procedure and one input stream. With ``by=`` there is one sequence of windows per value of the
grouping columns; on a keyed stream there is one per key anyway. Below, a *tuple* i is the i-th row of the sequence
(from 0), τ its time (``on=``), W the range, S the slide (default: W, *tumbling*; S < W *sliding*; S > W *hopping*, with
gaps between windows). A window without any row never fires. Times are aligned to 1970-01-01.

**count** (``count=W``): w holds the tuples i with wS ≤ i < wS + W; fires with tuple wS + W − 1::

    W = 4, S = 2      i   0 1 2 3 4 5 6 7
    window 0              ───────
    window 1                  ───────
    window 2                      ───────

With ``partial``, those fire, too, that the first rows (w < 0) or at the end the last rows do not fill.

**batches** (``batches=W``): the same, with whole batches in the place of tuples.

**time** (``time=W``): w holds those with wS ≤ τ < wS + W; fires when the watermark reaches wS + W::

    W = 4s, S = 2s    τ   0s  1s  2s  3s  4s  5s  6s
    rows                  •   •       •   •   ••
    window 0              [───────────────)
    window 1                      [───────────────)

With ``offset``, in months, or in days of a time zone, wS is a place on a scale of its own (:mod:`.scales`).

**slide-by-tuple** (``time=W, slide_rows=S``): w is triggered by tuple r = (w+1)S − 1 and holds those up to r with
τ(r) − W < τ ≤ τ(r)::

    W = 3s, S = 2     τ   0s  1s  2s  3s  4s  5s
    rows                  •0  •1      •2  •3  •4
    window 0          (───────]                        triggered by tuple 1
    window 1                  (───────────]            triggered by tuple 3

**slide-by-time** (``count=W, slide_time=S``): w is triggered when the watermark reaches e = (w+1)S, if there is a row
with wS ≤ τ < e, and holds the last W rows with τ < e::

    W = 3, S = 2s     τ   0s  1s  2s  3s  4s
    rows                  •0  •1  •2 •3   •4
    window 0              ──────                       at 2s: rows 0, 1
    window 1                  ────────                 at 4s: rows 1, 2, 3

**delta** (``delta=W``): of an attribute δ (``on=``). The first tuple triggers, then each whose δ exceeds that of the
previous trigger by more than S. It holds the tuples up to the trigger with δ ≥ δ(trigger) − W. A δ of NaN is in none::

    W = 5, S = 3      δ   0   2   4   5   9
    triggers              ▲       ▲       ▲
    holds                 0  0..4         4..9

**session** (``session=G``): rows that follow each other in less than G of time. It ends when the watermark reaches
τ(last) + G, or with a row for which ``close`` is true, which is its last::

    G = 2s            τ   0s  1s  2s  3s  4s  5s  6s
    rows                  •   •               •   •
    session 0             [───────)··│
    session 1                                 [───────

**landmark** (``landmark=R``): grows from iR on and restarts at (i+1)R; fires every S (R is a multiple of S): w holds
those with ⌊wS/R⌋R ≤ x < (w+1)S, x being τ when ``on=`` or a length of time is given, else i::

    R = 6, S = 2      i   0 1 2 3 4 5 6 7 8
    window 0              ───
    window 1              ───────
    window 2              ───────────
    window 3                          ───              restarted

**punctuated** (``until=``): ends with (and includes) each row for which ``until`` is true::

    until             i   0 1 2 3 4 5 6
    is true                   ▲     ▲
    window 0              ─────
    window 1                    ─────
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from math import gcd
from typing import TYPE_CHECKING, Any, Literal

from tidegate.errors import DeclarationError
from tidegate.streams.windows.declare.durations import Duration, described, microseconds
from tidegate.streams.windows.declare.scales import Scale, Shifted, check_zone, months, scaled

if TYPE_CHECKING:
    from tidegate.streams.windows.declare.functions import Function
    from tidegate.streams.windows.declare.patterns import Pattern

Kind = Literal[
    "count", "batches", "time", "slide_by_tuple", "slide_by_time", "delta", "session", "landmark", "punctuated"
]
Late = Literal["drop", "adjust", "raise", "refire"]
Where = Literal["local", "spark", "auto"]
Predicate = str | Callable[[Any], bool]  # a BOOLEAN column, or a function of a row

LABELS = ("window_number", "window_start", "window_end")  # columns of everything that SQL reads of a window
FINAL = "final"  # and of the results of one that fires more than once
CONTEXT_FREE: frozenset[Kind] = frozenset({"count", "batches", "time", "landmark"})


@dataclass(frozen=True)
class WindowSpec:
    """A declared window. ``size`` is its range W (session: the gap, landmark: the reset interval), ``slide`` its S.

    ``timed``: lengths along ``on`` are in microseconds, not in units of an integer column. ``scale``: what W and S are lengths
    on, where that is not time itself. ``partial``: windows of tuples that the first or the last rows do not fill fire, too.
    ``emit_every``: how far apart early results are; ``refire``: for how long after its end late rows change a window.
    """

    kind: Kind
    stream: str
    size: Any = None
    slide: Any = None
    on: str | None = None
    by: tuple[str, ...] = ()
    timed: bool = False
    until: Predicate | None = None
    delay: int = 0
    late: Late = "drop"
    source: str | None = None
    idle_us: int | None = None
    compute: Function | None = None
    pattern: Pattern | None = None
    backend: Where | None = None
    max_delay_us: int | None = None
    scale: Scale | None = None
    partial: bool = False
    emit_every: int | None = None
    refire: int = 0
    edition: int = field(default=1, compare=False)
    renamed_from: str | None = field(default=None, compare=False)

    @property
    def streams(self) -> tuple[str, ...]:
        """The streams whose rows it takes in."""
        return (self.stream,)

    @property
    def in_event_order(self) -> bool:
        """Are rows put into the order of their time first?"""
        return self.kind != "delta" and (self.on is not None or self.by_time)

    @property
    def by_time(self) -> bool:
        """Does time decide what is in a window, or when it fires?"""
        return self.kind in ("time", "slide_by_tuple", "slide_by_time", "session") or (
            self.kind == "landmark" and (self.on is not None or self.timed)
        )

    @property
    def plain(self) -> bool:
        """Tuples or batches in arrival order, one sequence, read by the procedure itself: what S-Store has."""
        return (
            self.kind in ("count", "batches")
            and not (self.on or self.by or self.compute or self.partial)
            and self.slide <= self.size
        )

    @property
    def refines(self) -> bool:
        """Does a window fire more than once?"""
        return self.emit_every is not None or self.late == "refire"

    @property
    def first(self) -> int:
        """The number of the first window of tuples or batches: with ``partial``, the first that ends after the first tuple."""
        return -self.size // self.slide + 1 if self.partial else 0

    def __str__(self) -> str:
        def length(value: Any, is_time: bool) -> str:
            if is_time and self.scale is not None:
                return self.scale.length(value)
            return (
                described(value) if is_time and self.timed else f"{value:,}" if isinstance(value, int) else f"{value:g}"
            )

        told = [self.kind.replace("_", "-")]
        if self.size is not None:
            told.append(length(self.size, self.kind not in ("count", "batches", "slide_by_time", "delta")))
        if self.slide is not None and self.slide != self.size:
            told.append(f"slide {length(self.slide, self.by_time and self.kind != 'slide_by_tuple')}")
        if self.scale is not None:
            told.append(str(self.scale))
        if self.partial:
            told.append("partial")
        if self.emit_every is not None:
            told.append(f"emitting every {length(self.emit_every, True)}")
        if self.refire:
            told.append(f"refiring for {length(self.refire, True)}")
        if self.on:
            told.append(f"on {self.on}")
        if self.by:
            told.append(f"by {', '.join(self.by)}")
        return " ".join(told)


def window(
    stream: str,
    *,
    count: int | None = None,
    batches: int | None = None,
    time: Duration | None = None,
    delta: float | None = None,
    session: Duration | None = None,
    landmark: Duration | None = None,
    until: Predicate | None = None,
    slide: Any = None,
    slide_rows: int | None = None,
    slide_time: Duration | None = None,
    offset: Duration | None = None,
    timezone: str | None = None,
    partial: bool = False,
    close: Predicate | None = None,
    on: str | None = None,
    by: str | tuple[str, ...] | list[str] = (),
    delay: Duration | None = None,
    late: Late = "drop",
    refire_for: Duration | None = None,
    emit_every: Duration | None = None,
    source: str | None = None,
    idle: Duration | None = None,
    compute: Function | Mapping[str, Any] | str | None = None,
    pattern: Pattern | None = None,
    backend: Where | None = None,
    max_delay: Duration | None = None,
    edition: int = 1,
    renamed_from: str | None = None,
) -> WindowSpec:
    """Declare a window over ``stream``; give exactly one of ``count``, ``batches``, ``time``, ``delta``, ``session``,
    ``landmark``, ``until``. The module's docstring defines each kind.

    ``slide``: in the unit of the range; ``slide_rows`` with ``time``, ``slide_time`` with ``count``: in the other one.
    ``offset``: windows of ``time`` and ``landmark`` begin so much later than at multiples of the slide since 1970. ``timezone``:
    lengths are days, or months, quarters and years, of this time zone; ``"1 month"`` without it is one of UTC. ``partial``: of
    tuples, windows that the first rows do not fill fire, too, and at the end of the stream those that the last rows do not.
    ``on``: the column with the rows' time (TIMESTAMP, DATE or integer, NOT NULL), or δ of a delta window. Without it,
    time is when the batch entered the engine. ``by``: one sequence of windows per value of these columns.
    ``delay``: how much later than its successors a row may arrive; rows wait that long in a reorder buffer. ``late``:
    what to do with one that comes later still: ``drop`` it (counted, and kept in ``tidegate.late_rows``), ``adjust``
    its time to the watermark, ``raise``, which aborts the batch, or ``refire``: its windows fire again, for ``refire_for`` after
    their end. ``emit_every``: windows of time fire early, too, whenever so much time has passed. A column ``final``
    then says which result is the last. ``source``: a column; the watermark follows the
    slowest of its values, except those silent for longer than ``idle``. Without rows, ``engine.advance`` moves it.
    ``compute``: what to compute for each window that fires: aggregates by name, a function, or
    ``SELECT … FROM window GROUP BY …``. ``pattern``: how to do it in parallel. ``backend``: where: on this machine
    (``local``), on ``spark``, or wherever it is measured to be faster (``auto``); default: what the engine is opened with.
    The latter two look ahead: windows of batches that wait are evaluated together, so the first of them gets its result up
    to ``max_delay`` (default: 1 s) later than it would alone.
    ``edition``: raise it when the declaration changes; in a directory with rows of an earlier edition, the window begins
    anew with its next whole window. ``renamed_from``: the name it had before, or ``"procedure.window"``.

    >>> print(window("votes", count=100, slide=1))
    count 100 slide 1
    >>> print(window("pap", time="10s", slide="1s", on="ts", by="patient"))
    time 10s slide 1s on ts by patient
    """
    from tidegate.streams.windows.declare.functions import as_function

    given: dict[str, Any] = {
        "count": count, "batches": batches, "time": time, "delta": delta, "session": session, "landmark": landmark,
        "until": until,
    }  # fmt: skip
    named = [name for name, value in given.items() if value is not None]
    if len(named) != 1:
        hint = ". What ends a session early is close=" if named == ["session", "until"] else ""
        raise DeclarationError(
            f"window over {stream}: give exactly one of {', '.join(given)}; got {', '.join(named) or 'none'}{hint}"
        )
    lengths = Lengths(f"window over {stream}")
    kind, size, step, scale = _on_scale(
        named[0], given[named[0]], slide, slide_rows, slide_time, lengths, offset, timezone
    )
    if partial and kind != "count":
        raise DeclarationError(
            f"window over {stream}: partial= is about windows of tuples, count=; this one is by {kind}"
        )
    if close is not None and kind != "session":
        raise DeclarationError(f"window over {stream}: close= ends a session; a {kind} window has none")
    if pattern is not None and compute is None:
        raise DeclarationError(
            f"window over {stream}: pattern={pattern} says how to compute in parallel, but compute= is missing"
        )
    if backend not in (None, "local", "spark", "auto"):
        raise DeclarationError(f"window over {stream}: backend must be 'local', 'spark' or 'auto', got {backend!r}")
    if compute is None and (backend is not None or max_delay is not None):
        raise DeclarationError(
            f"window over {stream}: backend= and max_delay= are about what is computed, but compute= is missing"
        )
    if late not in ("drop", "adjust", "raise", "refire"):
        raise DeclarationError(
            f"window over {stream}: late must be 'drop', 'adjust', 'raise' or 'refire', got {late!r}"
        )
    if (late == "refire") != (refire_for is not None):
        raise DeclarationError(
            f"window over {stream}: late='refire' and refire_for= go together: how long after its end late rows still change a "
            f"window, and its state is kept; got late={late!r}, refire_for={refire_for!r}"
        )
    every = None if emit_every is None else lengths.of("emit_every", emit_every)
    refire = 0 if refire_for is None else lengths.of("refire_for", refire_for)
    wait = 0 if delay is None else lengths.of("delay", delay, low=0)
    idle_us = None if idle is None else Lengths(f"window over {stream}").of("idle", idle)
    max_delay_us = None if max_delay is None else Lengths(f"window over {stream}").of("max_delay", max_delay)
    by = (by,) if isinstance(by, str) else tuple(by)
    function = as_function(compute, by)
    if function is not None and function.by:
        by = function.by  # of SQL's GROUP BY
    spec = WindowSpec(
        kind, stream, size, step, on, by, bool(lengths.timed), close if close is not None else until, wait, late, source,
        idle_us, function, pattern, backend, max_delay_us, scale, partial, every, refire,
        check_edition(f"window over {stream}", edition), renamed_from,
    )  # fmt: skip
    _refuse_contradictions(spec)
    return spec


def check_edition(what: str, edition: Any) -> int:
    if not isinstance(edition, int) or isinstance(edition, bool) or edition < 1:
        raise DeclarationError(f"{what}: edition= is a whole number from 1 on, got {edition!r}")
    return edition


class Lengths:
    """Lengths along the time of one window (``what``): all as text (or timedelta), or all as whole numbers."""

    def __init__(self, what: str) -> None:
        self.what = what
        self.timed: bool | None = None

    def of(self, name: str, given: Any, low: int = 1) -> int:
        timed = isinstance(given, (str, dt.timedelta))
        if not timed and (not isinstance(given, int) or isinstance(given, bool)):
            raise DeclarationError(
                f"{self.what}: {name} must be a length of time ('10s', timedelta) or, for an integer time "
                f"column, a whole number; got {given!r}"
            )
        if self.timed not in (None, timed):
            raise DeclarationError(
                f"{self.what}: {name} is {given!r}, but the other lengths are "
                f"{'lengths of time' if self.timed else 'whole numbers'}; use one of the two throughout"
            )
        self.timed = timed
        length = microseconds(given) if timed else given
        if length < low:
            raise DeclarationError(f"{self.what}: {name} must be {'positive' if low else 'at least 0'}, got {given!r}")
        return length

    def whole(self, name: str, given: Any) -> int:
        """A number of rows or batches."""
        if not isinstance(given, int) or isinstance(given, bool) or given < 1:
            raise DeclarationError(f"{self.what}: {name} must be a positive whole number, got {given!r}")
        return given


def _on_scale(
    named: str, size: Any, slide: Any, slide_rows: Any, slide_time: Any, lengths: Lengths, offset: Any, zone: str | None
) -> tuple[Kind, Any, Any, Scale | None]:
    """Kind, range and slide, and the scale on which these are lengths."""
    what = lengths.what
    by_calendar = zone is not None or months(size) is not None or months(slide) is not None
    if not by_calendar and offset is None:
        return *_range_and_slide(named, size, slide, slide_rows, slide_time, lengths), None
    if named not in ("time", "landmark") or slide_rows is not None:
        given = "timezone=" if zone is not None else "a length in months" if by_calendar else "offset="
        raise DeclarationError(
            f"{what}: {given} says where windows over time begin; it goes with time= and slide=, or with landmark="
        )
    shift = 0 if offset is None else lengths.of("offset", offset, low=0)
    if zone is not None:
        check_zone(what, zone)
    calendar = scaled(what, size, slide, shift, zone) if by_calendar else None
    if calendar is None:
        kind, size, step = _range_and_slide(named, size, slide, slide_rows, slide_time, lengths)
        return kind, size, step, Shifted(shift, bool(lengths.timed)) if shift else None
    if lengths.timed is False:
        raise DeclarationError(f"{what}: offset must be a length of time, as the others are; got {offset!r}")
    lengths.timed = True
    scale, range_, step = calendar
    if named == "landmark":
        _check_restart(what, range_, step, size, slide)
    return ("time" if named == "time" else "landmark"), range_, step, scale


def _range_and_slide(
    named: str, size: Any, slide: Any, slide_rows: Any, slide_time: Any, lengths: Lengths
) -> tuple[Kind, Any, Any]:
    what = lengths.what
    _check_slide(what, named, size, slide, slide_rows, slide_time)
    match named:
        case "count" if slide_time is not None:
            return "slide_by_time", lengths.whole("count", size), lengths.of("slide_time", slide_time)
        case "count" | "batches":
            return (
                ("count" if named == "count" else "batches"),
                lengths.whole(named, size),
                lengths.whole("slide", size if slide is None else slide),
            )
        case "time" if slide_rows is not None:
            return "slide_by_tuple", lengths.of("time", size), lengths.whole("slide_rows", slide_rows)
        case "time":
            return "time", lengths.of("time", size), lengths.of("slide", size if slide is None else slide)
        case "session":
            return "session", lengths.of("session", size), None
        case "until":
            return "punctuated", None, None
        case "delta":
            step = size if slide is None else slide
            for name, value in (("delta", size), ("slide", step)):
                if isinstance(value, bool) or not isinstance(value, (int, float)) or not value > 0:
                    raise DeclarationError(f"{what}: {name} must be a positive number, got {value!r}")
            return "delta", size, step
    step = size if slide is None else slide
    interval, every = lengths.of("landmark", size), lengths.of("slide", step)
    _check_restart(what, interval, every, size, step)
    return "landmark", interval, every


def _check_restart(what: str, interval: int, every: int, size: Any, slide: Any) -> None:
    if interval % every:
        raise DeclarationError(
            f"{what}: landmark={size!r} is not a multiple of slide={slide!r}: it would restart inside a slide"
        )


def _check_slide(what: str, named: str, size: Any, slide: Any, slide_rows: Any, slide_time: Any) -> None:
    """Is the slide given once, and in a unit that goes with the range?"""
    if named == "count" and isinstance(slide, (str, dt.timedelta)):
        raise DeclarationError(
            f"{what}: slide must be a positive whole number, got {slide!r}; in time, it is slide_time="
        )
    if named == "time" and isinstance(size, (str, dt.timedelta)) and isinstance(slide, int):
        raise DeclarationError(
            f"{what}: slide is {slide!r}, but the other lengths are lengths of time; use one of the two throughout. In "
            f"rows, it is slide_rows="
        )
    for name, value, wanted in (("slide_rows", slide_rows, "time"), ("slide_time", slide_time, "count")):
        if value is not None and (named != wanted or slide is not None):
            raise DeclarationError(f"{what}: {name} goes with {wanted}=, in place of slide=")
    if slide is not None and named in ("session", "until"):
        raise DeclarationError(f"{what}: a window with {named}= has no slide: rows decide where it ends")


def _refuse_contradictions(spec: WindowSpec) -> None:
    what = f"window over {spec.stream}"
    if spec.kind == "delta" and spec.on is None:
        raise DeclarationError(f"{what}: delta= needs on=, the column whose difference counts")
    if spec.kind == "batches" and spec.on is not None:
        raise DeclarationError(
            f"{what}: windows of whole batches follow the order of arrival, not the time in a column; leave out on="
        )
    if spec.refines:
        _check_refining(spec, what)
    if spec.scale is not None and not spec.by_time:
        raise DeclarationError(f"{what}: offset= says where windows over time begin; this one is of tuples. Name on=")
    if len(set(spec.by)) < len(spec.by):
        raise DeclarationError(f"{what}: by= names a column twice: {', '.join(spec.by)}")
    if not spec.in_event_order or spec.on is None:
        late = spec.late != "drop"
        named = ("delay", spec.delay), ("late", late), ("source", spec.source)
        for name, value in named:
            if value:
                raise DeclarationError(f"{what}: {name}= is about event time; name its column with on=")
    if spec.idle_us is not None and spec.source is None:
        raise DeclarationError(
            f"{what}: idle= says when a source no longer holds back the watermark; name the column with source="
        )
    if spec.by_time and spec.on is None and not spec.timed:
        raise DeclarationError(
            f"{what}: without on=, time is when the batch was accepted; give lengths of time ('10s') or name an "
            "integer column with on="
        )


def _check_refining(spec: WindowSpec, what: str) -> None:
    given = "emit_every=" if spec.emit_every is not None else "late='refire'"
    if spec.kind != "time" or spec.compute is None:
        raise DeclarationError(
            f"{what}: {given} is about the results of windows of time; it goes with time= and compute="
        )
    if spec.scale is not None and not isinstance(spec.scale, Shifted):
        raise DeclarationError(
            f"{what}: {given} goes with lengths that are always the same, not with months or days of a time zone. For early "
            f"results of those, see landmark="
        )
    unit = spec.emit_every or gcd(spec.size, spec.slide)
    if spec.size % unit or spec.slide % unit:
        raise DeclarationError(
            f"{what}: emit_every must divide the range and the slide, so that every window ends with a result ({spec})"
        )
    if spec.refire % unit:
        every = "emit_every" if spec.emit_every is not None else "the largest common divisor of range and slide"
        raise DeclarationError(
            f"{what}: windows fire again at multiples of {every}, so refire_for must be one, too ({spec}). For corrections that "
            f"come sooner, give emit_every="
        )


# ---- which windows an element belongs to; context-free kinds


def first_window(x: Any, size: int, slide: int) -> Any:
    """The first window that holds element (or time) ``x``: the smallest w with x < wS + W. Also for numpy arrays.

    Of tuples and batches, which begin at 0, take ``max(0, …)``. When it is larger than :func:`last_window`, ``x`` lies
    in a gap between windows.
    """
    return (x - size) // slide + 1


def last_window(x: Any, slide: int) -> Any:
    """The last window that holds element (or time) ``x``: the largest w with wS ≤ x."""
    return x // slide


def extent(number: int, size: int, slide: int) -> tuple[int, int]:
    """The elements (or times) [low, high) of window ``number``."""
    return number * slide, number * slide + size
