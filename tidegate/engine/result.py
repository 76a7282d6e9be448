"""The result of a query, in the form the caller prefers."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from decimal import Decimal
from html import escape
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from tidegate.errors import TidegateError
from tidegate.storage.schema import row_class

if TYPE_CHECKING:
    import pandas
    import polars
    from rich.table import Table

HTML_ROWS = 100  # of a result, in a notebook


class Result:
    """Rows of a query. Iterate for named tuples; ``arrow``, ``pandas()``, ``polars()`` for columns."""

    def __init__(self, table: pa.Table) -> None:
        self.arrow = table

    @property
    def columns(self) -> list[str]:
        return list(self.arrow.column_names)

    @property
    def rows(self) -> list[Any]:
        """The rows as named tuples."""
        make = row_class("Row", self.columns)._make
        columns = [[plain(value) for value in column.to_pylist()] for column in self.arrow.columns]
        return [make(values) for values in zip(*columns, strict=True)]

    def __iter__(self) -> Iterator[Any]:
        return iter(self.rows)

    def __len__(self) -> int:
        return int(self.arrow.num_rows)

    def scalar(self) -> Any:
        """The one value of a one-row, one-column result."""
        if self.arrow.num_rows != 1 or self.arrow.num_columns != 1:
            raise TidegateError(
                f"scalar() needs one row and one column, this result has {self.arrow.num_rows} rows and "
                f"{self.arrow.num_columns} columns"
            )
        return self.rows[0][0]

    def pandas(self) -> pandas.DataFrame:
        """A pandas data frame (needs pandas)."""
        try:
            return self.arrow.to_pandas()
        except ImportError:
            raise TidegateError("pandas is not installed; pip install 'tidegate[pandas]'") from None

    def polars(self) -> polars.DataFrame:
        """A polars data frame (needs polars)."""
        try:
            import polars
        except ImportError:
            raise TidegateError("polars is not installed; pip install 'tidegate[polars]'") from None
        return polars.from_arrow(self.arrow)  # type: ignore[return-value]

    def __rich__(self) -> Table:
        from rich.table import Table

        table = Table(*self.columns)
        for row in self.rows:
            table.add_row(*("NULL" if value is None else str(value) for value in row))
        return table

    def _repr_html_(self) -> str:
        """A table, as notebooks show it: the first rows."""
        shown = self.arrow.slice(0, HTML_ROWS)
        head = "".join(f"<th>{escape(name)}</th>" for name in self.columns)
        body = "".join(f"<tr>{''.join(map(_cell, row))}</tr>" for row in Result(shown).rows)
        left = len(self) - shown.num_rows
        rows = f"{len(self):,} row{'' if len(self) == 1 else 's'}" + (
            f", {shown.num_rows} of them shown" if left else ""
        )
        return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table><p>{rows}</p>"

    def __repr__(self) -> str:
        return f"<Result {len(self)} row{'' if len(self) == 1 else 's'}: {', '.join(self.columns)}>"


def _cell(value: Any) -> str:
    if value is None:
        return "<td><i>NULL</i></td>"
    number = isinstance(value, (int, float, Decimal)) and not isinstance(value, bool)
    return f"<td{' align=right' if number else ''}>{escape(str(value))}</td>"


def plain(value: Any) -> Any:
    """A value of an Arrow column as stored: lists are tuples, intervals timedeltas."""
    if isinstance(value, list):
        return tuple(plain(item) for item in value)
    if isinstance(value, pa.MonthDayNano):
        return timedelta(days=value.months * 30 + value.days, microseconds=value.nanoseconds // 1000)
    return value
