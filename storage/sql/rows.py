"""What a statement returns."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from tidegate.errors import StatementError


class Rows(list[Any]):
    """The rows of a result, as named tuples. ``count``: how many were returned or, without RETURNING,
    affected.
    """

    __slots__ = ("count",)

    count: int  # type: ignore[assignment]

    def __init__(self, rows: Iterable[Any] = (), affected: int | None = None) -> None:
        super().__init__(rows)
        self.count = len(self) if affected is None else affected

    def one(self) -> Any:
        """The only row."""
        if len(self) != 1:
            raise StatementError(f"expected exactly one row, got {len(self)}", count=len(self))
        return self[0]

    def scalar(self) -> Any:
        """The first column of the only row."""
        return self.one()[0]
