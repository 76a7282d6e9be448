"""Does a window fit the stream it is over?"""

from __future__ import annotations

from math import gcd

from tidegate.errors import DeclarationError
from tidegate.storage.schema import Relation
from tidegate.streams.windows.declare.functions import Aggregates
from tidegate.streams.windows.declare.kinds import FINAL, LABELS, WindowSpec
from tidegate.streams.windows.declare.scales import Calendar

LONGEST = 1 << 60  # bounds are 64-bit numbers
MOST = 1 << 27  # windows that hold a row, and panes of a window: each slide is a step for somebody
MOST_IN_TIME = 1 << 22  # when time passes, panes without rows are steps, too


def check_columns(spec: WindowSpec, relation: Relation, what: str) -> None:
    """The columns that a window names exist and have fitting types."""
    until = spec.until if isinstance(spec.until, str) else None
    named = [("on", spec.on), ("source", spec.source), ("close or until", until)]
    computed = () if spec.compute is None else spec.compute.columns(relation)
    for role, name in [*named, *(("by", by) for by in spec.by), *(("compute", column) for column in computed)]:
        if name is not None and name not in relation.index_of:
            columns = ", ".join(relation.index_of)
            raise DeclarationError(
                f"{what}: {role} names column {name!r}; stream {spec.stream} has {columns}", column=name
            )
    _refuse_labels(spec, relation, what)
    _refuse_impossible(spec, relation, what)
    for role, name in named[2:]:
        if name is not None and relation.column(name).type.family != "boolean":
            raise DeclarationError(f"{what}: {role} names {name}, which is {relation.column(name).type}, not BOOLEAN")
    for name in spec.by:
        kind = relation.column(name).type
        if not kind.hashable_key:
            raise DeclarationError(
                f"{what}: by names {name}, which is {kind}; equality of its values is not well enough defined to "
                "group by. Emit a whole number or text instead"
            )
    if spec.on is None:
        return
    column = relation.column(spec.on)
    families = ("integer", "float") if spec.kind == "delta" else ("timestamp", "date", "integer")
    if column.type.family not in families or column.type.sql == "UBIGINT":
        raise DeclarationError(
            f"{what}: on names {spec.on}, which is {column.type}; it must be {', '.join(families)} to be a "
            f"{'difference' if spec.kind == 'delta' else 'time'}"
        )
    if column.nullable:
        raise DeclarationError(
            f"{what}: on names {spec.on}, which may be NULL; declare it NOT NULL in stream {spec.stream}"
        )
    if column.type.family == "date" and isinstance(spec.scale, Calendar) and spec.scale.zone is not None:
        raise DeclarationError(
            f"{what}: on names {spec.on}, which is a DATE: a day as people count it, in no time zone; leave out timezone="
        )
    wants_time = column.type.family in ("timestamp", "date")
    if spec.by_time and spec.timed != wants_time:
        raise DeclarationError(
            f"{what}: {spec.on} is {column.type}, so its lengths are "
            f"{'lengths of time' if wants_time else 'whole numbers in its unit'}, for example "
            f"{repr('10s') if wants_time else 10}"
        )


def _refuse_labels(spec: WindowSpec, relation: Relation, what: str) -> None:
    """What SQL reads of a window has columns of its own beside the rows' (with ``compute``: beside the ``by`` columns)."""
    labels = (*LABELS, FINAL) if spec.refines else LABELS
    own = ", ".join(labels)
    for name in relation.column_names if spec.compute is None else spec.by:
        if name.lower() in labels:
            other = ", or let the window compute= what you need" if spec.compute is None else ""
            raise DeclarationError(
                f"{what}: stream {spec.stream} has a column {name}, but SQL reads the window's own {own} under these names; "
                f"rename the column of the stream, for example to of_{name.lower()}{other}",
                column=name,
            )


def _refuse_impossible(spec: WindowSpec, relation: Relation, what: str) -> None:
    """More windows or panes than anything could work through."""
    lengths = {"range": spec.size, "slide": spec.slide}
    for name, length in lengths.items():
        if isinstance(length, int) and length > LONGEST:
            raise DeclarationError(
                f"{what}: its {name} is {length:,}; lengths go up to 2**60, bounds are 64-bit numbers"
            )
    if spec.kind not in ("count", "batches", "time", "landmark"):
        return
    most = MOST_IN_TIME if spec.kind == "time" else MOST
    overlap = spec.size // spec.slide
    if overlap > most:
        holds = "each reset would be after" if spec.kind == "landmark" else "each row would be in"
        raise DeclarationError(
            f"{what} ({spec}): {holds} {overlap:,} windows, and {most:,} is what can be worked through; take a larger slide="
        )
    compute = spec.compute
    if not isinstance(compute, Aggregates) or any(one.fields(relation) is None for one in compute.named.values()):
        return
    panes = spec.size // gcd(spec.size, spec.slide)
    if spec.kind != "landmark" and panes > most:
        raise DeclarationError(
            f"{what} ({spec}): its panes are as long as the largest common divisor of range and slide, so a window would have "
            f"{panes:,}, and {most:,} is what can be worked through; take a slide= that divides the range, or has more in "
            f"common with it"
        )
