"""The log in readable form: what was accepted, and its outcome."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import msgspec
from rich.table import Table

from tidegate.errors import TidegateError
from tidegate.storage.column_rows import plain_rows
from tidegate.txn.log.files import OsFiles
from tidegate.txn.log.reader import LogReader
from tidegate.txn.log.record import from_us
from tidegate.txn.positions import describe


def entries(directory: Path, start: int = 0, limit: int | None = None) -> Iterator[dict[str, Any]]:
    """Records of the log as plain dicts: LSN, kind and fields. Reading does not disturb a running engine.

    Raises LogDamaged where the log is damaged, after the records before it.
    """
    if not (directory / "log").is_dir():
        raise TidegateError(f"{directory} has no log; give the directory an engine was opened with", path=directory)
    reader = LogReader(OsFiles(directory / "log"), start)
    return islice(_plain(reader), limit)


def _plain(reader: LogReader) -> Iterator[dict[str, Any]]:
    for entry in reader:
        fields = msgspec.structs.asdict(entry.record)
        if "time_us" in fields:
            fields["time"] = from_us(fields.pop("time_us"))
        if "rows" in fields:
            fields["rows"] = plain_rows(fields["rows"])
        if "position" in fields:
            fields["position"] = describe(fields["position"])
        yield {"lsn": entry.lsn, "bytes": entry.end - entry.lsn, "kind": type(entry.record).__name__.lower(), **fields}


def table(found: Iterable[dict[str, Any]]) -> Table:
    """The records as a table."""
    shown = Table("LSN", "kind", "sequence", "time", "what", show_lines=False)
    for entry in found:
        rest = {
            k: v
            for k, v in entry.items()
            if k not in ("lsn", "bytes", "kind", "sequence", "time") and v not in (None, False)
        }
        what = " ".join(f"{name}={_short(value)}" for name, value in rest.items())
        time = entry.get("time")
        shown.add_row(
            str(entry["lsn"]),
            entry["kind"],
            str(entry.get("sequence", "")),
            "" if time is None else f"{time:%H:%M:%S.%f}",
            what,
        )
    return shown


def _short(value: Any, limit: int = 60) -> str:
    text = str(value)
    return text if len(text) <= limit else text[: limit - 1] + "…"
