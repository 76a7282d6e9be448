"""What a source of rows is: the protocol between an ingestion and the connectors that read from outside."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

from tidegate.errors import DataError, text_of
from tidegate.storage.codec import writable
from tidegate.storage.schema import Relation


@dataclass(frozen=True, slots=True)
class Malformed:
    """A record that can't become a row. ``place``: where it is in the source, the same whenever it is read."""

    place: str
    record: str
    reason: str


@dataclass(frozen=True, slots=True)
class Polled:
    """Some rows of a source, in order; ``offset`` is after them and after the malformed records among them.

    ``place(i)``: where row i is in the source.
    """

    rows: Sequence[Any]
    offset: Any
    malformed: Sequence[Malformed] = ()
    place: Callable[[int], str] | None = None


def check_stored_name(what: str, name: Any) -> None:
    """Refuse a name that could not be stored."""
    if not isinstance(name, str) or not name or text_of(name) != name:
        raise DataError(f"{what} must be non-empty text without halves of surrogate pairs; got {name!r}")


def check_place(source: str | None = None, offset: Any = None, **_: Any) -> None:
    """Refuse a source or offset that could not be stored with the rows, before anything is accepted."""
    if source is None:
        return
    check_stored_name("source", source)
    try:
        writable(offset)
    except ValueError as error:
        raise DataError(
            f"the offset of source {source!r} can't be written to the log: {text_of(error)}. Use numbers (of 64 bits), text, "
            f"bytes, dates, decimals, lists and dicts of them",
            value=offset,
        ) from None


class Source(Protocol):
    """Where rows come from. Called by one thread at a time."""

    @property
    def lag(self) -> int | None:
        """How many records (or bytes, for files) are known to wait; None when that can't be known."""

    @property
    def finished(self) -> bool:
        """True when there will never be more."""

    def open(self, name: str, relation: Relation, offset: Any) -> None:
        """Connect, check that what is there fits ``relation``, and go to ``offset`` (None: the beginning).

        SourceError if that can't work, ``fatal`` when trying again won't help.
        """

    def poll(self, limit: int, timeout_s: float) -> Polled | None:
        """The next records, about ``limit`` at most; None when none arrives within ``timeout_s`` seconds."""

    def committed(self, offset: Any) -> None:
        """Everything up to ``offset`` is on disk here; the other side may discard it."""

    def close(self) -> None:
        """Close connections. It may be opened again.

        A source that can wait long for something that does not answer also has ``interrupt()``: called on another
        thread when the ingestion closes, it ends that wait.

        One that knows how far time has come has ``watermark``: a time (a whole number for an integer column) before which it
        will have no record besides those polled already, or None. The stream is advanced to it.
        """


class Checked(NamedTuple):
    """A source that can be read: what was found, in words, and its ``lag``."""

    found: str
    lag: int | None


class CheckedSource(Source, Protocol):
    """A source that ``tidegate connect --check`` can look at."""

    def check(self, name: str, relation: Relation, offset: Any) -> Checked:
        """Would :meth:`open` succeed? SourceError if not. Creates, takes over and moves nothing, on either side."""
