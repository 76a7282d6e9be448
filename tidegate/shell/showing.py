"""Answers on the screen: as a table, or as JSON or CSV for programs."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterator
from typing import Any, Literal

import pyarrow as pa
from rich.console import Console
from rich.table import Table
from rich.text import Text

from tidegate.wire import finite

Form = Literal["table", "json", "csv"]
SHOWN_ROWS = 1_000  # on a screen
SHOWN_TEXT = 200


def show(answer: pa.Table, form: Form, console: Console, seconds: float | None = None) -> None:
    """Print an answer; ``seconds``: and how long it took."""
    if form == "table":
        wide = sum(len(name) + 3 for name in answer.column_names) + 1 > console.width
        console.print(as_records(answer) if wide and answer.num_rows else as_table(answer))
        rows = f"{answer.num_rows:,} row{'' if answer.num_rows == 1 else 's'}"
        more = f", the first {SHOWN_ROWS:,} shown" if answer.num_rows > SHOWN_ROWS else ""
        timing = "" if seconds is None else f" in {seconds * 1000:,.1f} ms"
        console.print(f"[dim]{rows}{more}{timing}[/]")
    else:
        console.file.write(as_json(answer) if form == "json" else as_csv(answer))


def as_table(answer: pa.Table) -> Table:
    """The rows as a table, numbers aligned right."""
    table = Table(header_style="bold")
    for field in answer.schema:
        number = pa.types.is_integer(field.type) or pa.types.is_floating(field.type) or pa.types.is_decimal(field.type)
        table.add_column(field.name, justify="right" if number else "left", overflow="fold")
    for row in _rows(answer.slice(0, SHOWN_ROWS)):
        table.add_row(*(_cell(value) for value in row))
    return table


def as_records(answer: pa.Table) -> Table:
    """A line for every value, for rows that have more columns than the screen is wide."""
    table = Table(show_header=False, box=None, pad_edge=False)
    for number, row in enumerate(_rows(answer.slice(0, SHOWN_ROWS)), 1):
        table.add_row(f"[dim]row {number:,}[/]", "")
        for name, value in zip(answer.column_names, row, strict=True):
            table.add_row(Text(f"  {name}", "bold"), _cell(value))
    return table


def _rows(answer: pa.Table) -> Iterator[tuple[Any, ...]]:
    """By place: two columns may have the same name."""
    return zip(*(column.to_pylist() for column in answer.columns), strict=True)


def _cell(value: Any) -> Any:
    if value is None:
        return Text("NULL", style="dim")
    text = str(value)
    return Text(text if len(text) <= SHOWN_TEXT else text[: SHOWN_TEXT - 1] + "…")


def as_json(answer: pa.Table) -> str:
    """One JSON object: columns and rows."""
    rows = [[finite(value) for value in row] for row in _rows(answer)]
    return json.dumps({"columns": answer.column_names, "rows": rows}, default=_plain) + "\n"


def as_csv(answer: pa.Table) -> str:
    """A header and the rows; NULL is empty."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(answer.column_names)
    for row in _rows(answer):
        writer.writerow(["" if value is None else value for value in row])
    return out.getvalue()


def _plain(value: Any) -> Any:
    return value.hex() if isinstance(value, bytes) else str(value)
