"""Every error tidegate raises, in one tree.

    TidegateError
    ├── DeclarationError      the app as declared can't run: unknown name, cycle, two producers, ...
    ├── StatementError        SQL that does not parse, bind or evaluate
    ├── DataError             a value does not fit its column
    │   ├── ConstraintError   PRIMARY KEY, NOT NULL, UNIQUE or CHECK refused a row
    │   └── MistakeError      ... whatever the data: an unknown column, a wrong number of columns, a wrong type or key
    ├── AccessError           a procedure touched something it did not declare
    ├── BatchError            a border batch that can't be accepted: its id is out of order or taken
    │   ├── NotAsked          ... because it answers a question that is not open
    │   └── QuestionChanged   ... because it answers something else than the question shows now
    ├── Aborted               the transaction was undone on purpose (txn.abort, or data that its table refused)
    │   └── DeadlineExceeded  ... because it ran past its deadline
    ├── ProcedureFailed       a procedure raised, and its retries are used up
    │   └── Runaway           ... or it did not end, and was stopped
    ├── FeedHalted            the rows of a feed are accepted, and wait: their dataflow is halted
    ├── StillWaiting          nothing can run now; names what the work waits for
    ├── Overloaded            the queues are full
    ├── EngineClosed          the engine was closed
    ├── SinkError             a sink did not accept a batch; it is kept and sent again
    │   └── SinkRefused       ... because the target rejected it, not because it is unreachable
    ├── SourceError           a source can't be read, or what it holds does not fit its stream
    ├── QueryRefused          SQL from outside that is not allowed: it does more than read, or reaches outside
    ├── QueryFailed           SQL from outside that could not be answered: wrong, too slow, too large, cancelled
    ├── DirectoryInUse        another process has the directory open
    ├── WrongProcess          an engine or a client was used in a fork of the process that made it
    ├── LogError              the log on disk
    │   ├── DiskFull          ... has no room; work resumes when there is
    │   ├── LogFailed         ... could not be written or synced, or a step was interrupted halfway; the engine stops
    │   ├── LogDamaged        ... has a record that was acknowledged and can't be read, or lacks a part
    │   ├── BaseDamaged       the DuckDB base can't be read (it is rebuilt from a generation and the log) or written
    │   ├── MergeFailed       a merge into the base failed; it is tried again
    │   └── RecoveryRefused   ... does not fit: another app or directory, another format, changed schema or code
    ├── SparkUnavailable      Spark is not available here: no Java, no pyspark, or its session did not start
    ├── ServerError           a server refused a request, or could not be reached
    │   ├── NotAllowed        ... because a token, a role or an allowed origin is missing
    │   ├── CursorGone        ... because it no longer holds what came after the cursor
    │   └── TakenOver         ... because another connection serves the same subscription now
    └── CorruptionError       an internal invariant broke; never ignored

Every message says what happened, what was given, the likely cause and the next step; the same facts are attributes, so
that programs need not parse the text. Any foreign text that it quotes is made storable (:func:`text_of`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from difflib import get_close_matches
from typing import Any


def text_of(value: object, told: Callable[[Any], str] = str) -> str:
    """Foreign text (an exception, a reason that was given) as text that can be stored.

    Half of a surrogate pair is not valid Unicode, so it can't be stored; an object may even have no text at all.

    >>> text_of(ValueError("te\\ud800"))
    'te\\\\ud800'
    """
    try:
        return told(value).encode(errors="backslashreplace").decode()
    except Exception as error:
        return f"({type(value).__name__} without a text: asked for it, it raised {type(error).__name__})"


SHOWN = 400  # characters of a value in a message


def shown(value: object) -> str:
    """A value as an error message shows it: as Python writes it, or the two ends of that.

    >>> shown("x" * 1_000)[190:220]
    'xxxxxxxxxx … (602 more) … xxxx'
    """
    told = text_of(value, repr)
    if len(told) <= SHOWN:
        return told
    half = SHOWN // 2
    return f"{told[:half]} … ({len(told) - SHOWN} more) … {told[-half:]}"


def near(name: object, known: Iterable[str], otherwise: str) -> str:
    """The hint for an unknown name: the known one that looks like it, or ``otherwise`` and all of them.

    >>> near("patients_id", ["patient_id", "bed"], "it has")
    "did you mean 'patient_id'?"
    """
    names = list(known)
    lowered = {one.lower(): one for one in names}
    close = get_close_matches(str(name).lower(), lowered, n=1)
    return f"did you mean {lowered[close[0]]!r}?" if close else f"{otherwise} {', '.join(names) or 'none'}"


class TidegateError(Exception):
    """Base of all errors raised by tidegate."""

    def __init__(self, message: str, **facts: Any) -> None:
        self.message = text_of(message)
        super().__init__(self.message)
        self.__dict__.update(facts)


class DeclarationError(TidegateError):
    """The app as declared can't run."""


def unknown(where: str, kind: str, name: object, known: Iterable[str]) -> DeclarationError:
    """The error for a name that was not declared, with the nearest one that was."""
    names = sorted(known)
    return DeclarationError(f"{where}: there is no {kind} {name!r}; {near(name, names, 'declared so far:')}", name=name)


class StatementError(TidegateError):
    """SQL that does not parse, bind or evaluate. Facts: ``sql``."""


class DataError(TidegateError):
    """A value does not fit its column. Facts: ``relation``, ``column``, ``value``."""


class ConstraintError(DataError):
    """A row was refused by a constraint. Facts: ``relation``, ``constraint``, ``key`` or ``column``."""


class MistakeError(DataError):
    """What was given can't be a row, a value or a key here, whatever the data. In a procedure it is a mistake of its
    code: the procedure has failed, it has not aborted. Facts: ``relation``, and ``column`` or ``value``.
    """


class AccessError(TidegateError):
    """A procedure touched something it did not declare. Facts: ``procedure``, ``relation``."""


class BatchError(TidegateError):
    """A border batch that can't be accepted. Facts: ``stream``, ``batch_id``, ``last_id``."""


class NotAsked(BatchError):
    """An answer to a question that is not open. Facts: ``stream``, ``batch_id``."""


class QuestionChanged(BatchError):
    """An answer to something else than what the question shows now. Facts: ``stream``, ``batch_id``, ``digest`` (of what is
    asked now), ``question`` (not over HTTP).
    """


class Aborted(TidegateError):
    """The transaction was undone. Facts: ``procedure``, ``reason``, ``position``."""

    reason: str = "no reason was given"

    def __init__(self, message: str, **facts: Any) -> None:
        super().__init__(message, **facts)
        self.reason = text_of(facts.get("reason", message))


class DeadlineExceeded(Aborted):
    """The transaction was undone because it ran past its deadline."""


class ProcedureFailed(TidegateError):
    """A procedure raised and its retries are used up. Facts: ``procedure``, ``attempts``, ``on_failure``, ``trace`` (the
    frames of the app's code, as text).
    """

    procedure: str
    attempts: int
    on_failure: str
    trace: str = ""
    parked: list[int] | None = None


class Runaway(ProcedureFailed):
    """A procedure ran past the engine's deadline (``procedure_deadline_s``) and was stopped. Facts: ``limit_s``, too."""

    limit_s: float
    position: int


class FeedHalted(TidegateError):
    """The rows of a feed are accepted, but their dataflow is halted. Facts: ``dataflow``, ``fed`` (rows), ``result``."""

    fed: int
    result: Any = None


class StillWaiting(TidegateError):
    """The work is accepted but can't finish now. Facts: ``ticket``, ``reason``."""


class Overloaded(TidegateError):
    """The queues are full. Facts: ``stream``, ``capacity``."""


class EngineClosed(TidegateError):
    """The engine was closed, or, without a directory, has stopped because a step was interrupted halfway."""


class QueryRefused(TidegateError):
    """SQL from outside that is not allowed. Facts: ``sql``, ``sqlstate``."""

    sqlstate: str = "42501"


class QueryFailed(TidegateError):
    """SQL from outside that could not be answered: an error in it, a limit, a cancel. Facts: ``sqlstate``."""

    sqlstate: str = "XX000"


class DirectoryInUse(TidegateError):
    """Another process has the directory open. Facts: ``path``."""


class WrongProcess(TidegateError):
    """Used in a fork of the process that made it: an engine, or what belongs to one. Facts: ``kind``, ``process`` or ``path``."""


class SinkError(TidegateError):
    """A sink did not accept a batch, which is kept and sent again. Facts: ``sink``, and ``stream`` where it applies."""


class SourceError(TidegateError):
    """A source can't be read, or what it holds does not fit. Facts: ``source``; ``fatal``: trying again won't help."""

    fatal: bool = False


class SparkUnavailable(TidegateError):
    """Spark is not available here. Facts: ``tried`` (where Java was looked for), ``exit_code`` (of its JVM) or
    ``master``, where they apply."""


class SinkRefused(SinkError):
    """The target is reachable and rejects this batch: sending it again is pointless until the target changes.

    ``deliver(…, tries=N)`` moves such a batch to the dead letters after N times. Your own sink raises it when it knows.
    """


class LogError(TidegateError):
    """A problem with the log on disk."""


class DiskFull(LogError):
    """The disk with the log is full; what was acknowledged is safe, work resumes when there is room."""


class LogFailed(LogError):
    """The log could not be written or synced, or a logged step was interrupted halfway; the engine has stopped."""


class LogDamaged(LogError):
    """A record that was acknowledged can't be read, or a part of the log is missing. Facts: ``file``, ``offset``, ``lsn``."""


class BaseDamaged(LogError):
    """The DuckDB base can't be read. Handled by rebuilding it."""


class MergeFailed(LogError):
    """Changes could not be merged into the base; they are safe in the log, and merged later. Facts: ``path``."""


class RecoveryRefused(LogError):
    """What is on disk does not fit this app, or not together. Facts: ``changed``, ``table`` or ``file`` where they apply."""


class ServerError(TidegateError):
    """A server refused a request, or could not be reached. Facts: ``status``, the HTTP status, where there is one."""

    status: int | None = 400


class NotAllowed(ServerError):
    """No token, a wrong or expired one, one without the role, or a request from another site."""

    status = 403


class CursorGone(ServerError):
    """The server no longer holds what came after this cursor. Facts: ``stream``, ``cursor``."""

    status = 410


class TakenOver(ServerError):
    """Another connection serves this named subscription now. Facts: ``name``."""

    status = 409


class CorruptionError(TidegateError):
    """An internal invariant broke. Please report it with the text."""
