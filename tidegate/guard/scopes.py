"""Names that a holder may use: patterns like ``orders`` and ``meter.*``, in which only the star has a meaning."""

from __future__ import annotations

from collections.abc import Iterable


def matches(patterns: Iterable[str], name: str) -> bool:
    """Does one of the patterns fit the whole name?"""
    return any(pattern == name or ("*" in pattern and _fits(pattern, name)) for pattern in patterns)


def _fits(pattern: str, name: str) -> bool:
    """Each part is matched at its first place, so there is no backtracking, however long the name is."""
    first, *middle, last = pattern.split("*")
    if not name.startswith(first) or not name.endswith(last) or len(name) < len(first) + len(last):
        return False
    place, end = len(first), len(name) - len(last)
    for part in middle:
        found = name.find(part, place, end)
        if found < 0:
            return False
        place = found + len(part)
    return True
