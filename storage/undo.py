"""Undoing a change of many rows that is refused in the middle."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tidegate.storage.schema import Key, Row

if TYPE_CHECKING:
    from tidegate.storage.view import View

_ABSENT: Any = object()


class Undo:
    """The write set of one table, which can be restored to what it was."""

    def __init__(self, view: View, table: str) -> None:
        self._view = view
        self._table = table
        self._before: list[tuple[Key, Any]] = []

    def remember(self, key: Key) -> None:
        """This key is about to be written."""
        self._before.append((key, self._view.writes.get(self._table, {}).get(key, _ABSENT)))

    def put(self, key: Key, row: Row | None) -> None:
        self.remember(key)
        self._view.put(self._table, key, row)

    def roll_back(self) -> None:
        written = self._view.writes.get(self._table, {})
        self._view.forget_written_index()
        for key, row in reversed(self._before):
            if row is _ABSENT:
                written.pop(key, None)
            else:
                written[key] = row
