"""Windows over one stream whose panes are the same: what a batch does is worked out by the first of them, and taken over by the
others.

They may belong to different procedures, which commit and abort on their own. So each window keeps a state of its own, and
what is in it never depends on the others. But a slide depends on nothing except the state and the batch. A state's *past*
stands for what it holds: two states of the same past hold the same, whatever they are::

    past of SP1's window    e ──batch 1──▶ p1 ──batch 2──▶ p2       worked out here, kept as (p1, batch 2): p2
    past of the display's   e ──batch 1──▶ p1 ─ ─ ─ ─ ─ ─▶ p2       taken over: the slide from p1 by batch 2 is known
    ... if batch 2 is undone there, its past stays p1, and what follows is worked out for it alone

What is held are values that never change, so windows that agree also share the memory.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import TYPE_CHECKING, Any

from tidegate.mutex import Rank, mutex

if TYPE_CHECKING:
    from tidegate.streams.windows.evaluate.plan import Plan

EMPTY = "empty"  # the past of a state that has taken in nothing
BEHIND = 64  # slides that are kept for windows that have not come so far

Past = Hashable


def alone() -> Past:
    """A past that no other state has."""
    return object()


def past_of(saved: bytes) -> Past:
    """The past of a state that was read from a checkpoint."""
    return blake2b(saved, digest_size=16).digest()


@dataclass(slots=True)
class Worked:
    """A slide that was worked out. ``after``: the past it leads to; ``results``: of each function, as far as known."""

    rows: Any
    what: Any
    after: Past = field(default_factory=alone)
    results: dict[Any, Any] = field(default_factory=dict)
    taken: int = 1


class Sharing:
    """The slides of some windows with the same panes, by where they started. ``windows``: how many there are.

    Results do not depend on it; what is forgotten is worked out again. Several threads may use it.
    """

    def __init__(self, names: list[str]) -> None:
        self.names = names
        self.slides = self.shared = 0
        self._worked: dict[Any, Worked] = {}
        self._lock = mutex(Rank.LEAF)

    def find(self, past: Past, rows: Any, now_us: int, mark: int | None) -> Worked | None:
        """The slide from this past by this batch, if it is known."""
        with self._lock:
            place = (past, id(rows), now_us, mark)
            found = self._worked.get(place)
            if found is None:
                return None
            self.shared += 1
            found.taken += 1
            if found.taken >= len(self.names):
                del self._worked[place]
            return found

    def keep(self, past: Past, rows: Any, now_us: int, mark: int | None, what: Any) -> Worked:
        """Keep a slide that was worked out; if another window was quicker, its own counts."""
        with self._lock:
            self.slides += 1
            place = (past, id(rows), now_us, mark)
            found = self._worked.get(place)
            if found is None:
                found = self._worked[place] = Worked(rows, what)
                if len(self._worked) > BEHIND:
                    del self._worked[next(iter(self._worked))]
            return found

    def __str__(self) -> str:
        return f"the same as those of {', '.join(self.names)}: {self.shared:,} slides taken over, {self.slides:,} worked out"


def share(plans: Iterable[tuple[str, Plan]]) -> None:
    """Let the windows whose panes are the same share them. ``plans``: with the names of their windows."""
    alike: dict[Any, list[tuple[str, Plan]]] = {}
    for name, plan in plans:
        if plan.by_pane and not plan.vectorised:
            alike.setdefault(plan.panes_are, []).append((name, plan))
    for windows in alike.values():
        if len(windows) > 1:
            sharing = Sharing([name for name, _ in windows])
            for _, plan in windows:
                plan.sharing = sharing
