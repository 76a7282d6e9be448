"""``priority=`` and ``capacity=``: whose work goes first where several may run, and how much of it may wait."""

from __future__ import annotations

from typing import Any

from tidegate.dataflows.definitions import Procedure, Stream
from tidegate.errors import DeclarationError

HIGHEST = 1_000


def check_precedence(what: str, entered: bool, priority: Any, capacity: Any = None) -> None:
    """``entered``: does work come in there from outside?"""
    if type(priority) is not int or not -HIGHEST <= priority <= HIGHEST:
        raise DeclarationError(f"{what}: priority={priority!r} is not a whole number from {-HIGHEST} to {HIGHEST}")
    if capacity is not None and (type(capacity) is not int or capacity < 1):
        raise DeclarationError(f"{what}: capacity={capacity!r} is not a positive whole number")
    if not entered and (priority or capacity is not None):
        raise DeclarationError(
            f"{what}: priority= and capacity= belong where work comes in: to border streams, and to procedures that clients "
            f"call. What these cause inherits them"
        )


class Precedence:
    """Priorities by border stream and by procedure that clients call; ``any``: does any differ from the others?"""

    def __init__(self, streams: dict[str, Stream], procedures: dict[str, Procedure]) -> None:
        self._streams = {s.name: s.priority for s in streams.values() if s.border}
        self._calls = {p.name: p.priority for p in procedures.values() if not p.streaming}
        self.any = any(self._streams.values()) or any(self._calls.values())
        self.limited = any(s.capacity is not None for s in streams.values())

    def of(self, name: str) -> int:
        """Of a border stream, or of a procedure that is called."""
        return self._streams.get(name, 0) or self._calls.get(name, 0)

    def among(self, ancestors: Any) -> int:
        """Of work that any of these border streams may have caused."""
        return max((self.of(name) for name in ancestors), default=0)
