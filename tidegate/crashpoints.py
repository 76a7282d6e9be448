"""Named moments at which a crash is interesting. In production they do nothing.

``tidegate crash-test`` runs a workload in a child process that kills itself at one of them; every name below is hit by
a test. Listed in the order in which a batch passes them.
"""

from __future__ import annotations

from collections.abc import Callable

CRASH_POINTS = (
    "log-before-write",
    "log-after-sync",
    "execution-before-commit",
    "execution-after-commit",
    "merge-before-write",
    "rows-before-manifest",
    "rows-after-manifest",
    "merge-before-commit",
    "merge-after-commit",
    "merge-after-checkpoint",
    "generation-before-copy",
    "generation-before-rename",
    "generation-after-rename",
    "retention-before-remove",
    "topic-before-write",
    "topic-before-sync",
    "topic-before-remove",
    "migration-between-tables",
    "migration-before-commit",
    "migration-after-commit",
    "delivery-before-send",
    "delivery-after-send",
    "ingestion-before-push",
    "ingestion-before-committed",
)

listened_to = False  # for code that passes so often that even a call matters
_on_reach: Callable[[str], None] | None = None


def crash_point(name: str) -> None:
    """Mark a moment. Costs one comparison unless a test listens."""
    if _on_reach is not None:
        assert name in CRASH_POINTS, name
        _on_reach(name)


def listen(on_reach: Callable[[str], None] | None) -> None:
    """Call ``on_reach(name)`` at every crash point of this process (None: stop). For tests."""
    global _on_reach, listened_to
    _on_reach = on_reach
    listened_to = on_reach is not None
