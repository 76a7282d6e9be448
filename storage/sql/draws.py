"""The time and random numbers of a transaction, as SQL's functions see them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tidegate.storage.view import View


def draw(view: View, kind: str) -> Any:
    """One value: ``now``, ``today``, ``time``, ``random`` or ``uuid``."""
    if kind == "random":
        return float(view.random.random())
    if kind == "uuid":
        return view.uuid()
    now = view.now
    return now.date() if kind == "today" else now.time() if kind == "time" else now


def draw_all(view: View, kinds: Sequence[str]) -> tuple[Any, ...]:
    """One value for each place in the statement that needs one, in text order."""
    return tuple([draw(view, kind) for kind in kinds])
