"""Settings of one engine."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from tidegate.errors import TidegateError

LEAST_MEMORY = 1 << 20


@dataclass(frozen=True)
class Config:
    """How an engine runs an app. The results do not depend on any of it.

    ``executor``: ``"serial"`` runs executions inline, in position order, inside ``push`` and ``call``; ``"threads"`` runs
    them on ``workers`` threads; ``"manual"`` runs them only in ``engine.step()`` and ``engine.run_until_idle()``.
    ``capacity``: executions that may be unfinished before ``push`` waits or raises ``Overloaded``; and batches of one stream
    that may wait for those of another.
    ``backlog``: batches that may wait for a durable subscriber or a delivery with ``on_lag="block"`` before work that leads
    to its stream does the same.
    ``merge_rows``: fold committed changes into the DuckDB base when this many rows have changed; engines with threads or a
    directory do it in the background, and also every ``merge_every_s`` seconds.
    ``cached_rows``: rows of one table kept in memory; a table that fits is held whole.
    ``memory``: bytes that the rows of all tables, windows and waiting work may take together; tables give up rows, which are
    then read from disk by key. None: only ``cached_rows`` counts.
    ``procedure_deadline_s``: an execution that runs longer is stopped, and has failed (``on_failure``); None: it may take as
    long as it likes. A procedure's own ``deadline_s`` takes its place.

    ``backend``: where windows that name no backend are evaluated: ``"local"``, ``"spark"`` or ``"auto"`` (whichever is
    measured to be faster). ``spark``: a SparkSession, a master URL, or None for one embedded in this process, started
    when needed.
    ``look_ahead``: windows of at most this many waiting batches are evaluated together (``"local"`` never looks ahead).

    For an engine with a directory: ``sync`` is when the log goes to disk: ``"group"`` (many records at a time, at most
    ``max_delay_s`` after the first), ``"always"`` (before every push returns) or ``"off"`` (whenever the operating
    system decides: an acknowledgement then means little). ``generation_bytes``: keep a copy of the base after this much
    log.

    ``tune_process``: while the engine is open, what existed before it is left out of garbage collections
    (``gc.freeze``), and full ones are rarer; while there are listeners for acknowledgements, threads switch every
    millisecond; large tables are put into large memory pages. False: for a process that manages these itself.
    """

    executor: Literal["serial", "threads", "manual"] = "serial"
    workers: int = 4
    capacity: int = 10_000
    backlog: int = 1_000_000
    merge_rows: int = 100_000
    merge_every_s: float = 60.0
    cached_rows: int = 2_000_000
    memory: int | None = None
    procedure_deadline_s: float | None = 60.0
    backend: Literal["local", "spark", "auto"] = "local"
    spark: Any = None
    look_ahead: int = 256
    sync: Literal["always", "group", "off"] = "group"
    max_delay_s: float = 0.002
    generation_bytes: int = 256 << 20
    tune_process: bool = True

    def __post_init__(self) -> None:
        for name, allowed in (
            ("executor", ("serial", "threads", "manual")),
            ("sync", ("always", "group", "off")),
            ("backend", ("local", "spark", "auto")),
        ):
            if getattr(self, name) not in allowed:
                raise TidegateError(f"config {name}={getattr(self, name)!r}: use one of {', '.join(allowed)}")
        for name in ("workers", "capacity", "backlog", "merge_rows", "cached_rows", "look_ahead", "generation_bytes"):
            value = getattr(self, name)
            if not isinstance(value, int) or value < 1:
                raise TidegateError(f"config {name} must be a positive whole number, got {value!r}")
        if self.memory is not None and (
            isinstance(self.memory, bool) or not isinstance(self.memory, int) or self.memory < LEAST_MEMORY
        ):
            raise TidegateError(
                f"config memory is a number of bytes, at least {LEAST_MEMORY:,}, or None, got {self.memory!r}; 2 GiB is 2 << 30"
            )
        if not isinstance(self.tune_process, bool):
            raise TidegateError(f"config tune_process must be True or False, got {self.tune_process!r}")
        limit_s = self.procedure_deadline_s
        if limit_s is not None and (
            isinstance(limit_s, bool) or not isinstance(limit_s, (int, float)) or not limit_s > 0
        ):
            raise TidegateError(
                f"config procedure_deadline_s must be a positive number of seconds or None, got {limit_s!r}"
            )
        if not 0 <= self.max_delay_s <= 60:
            raise TidegateError(f"config max_delay_s must be between 0 and 60 seconds, got {self.max_delay_s!r}")
