"""Positions: the total order that every run must be equivalent to.

The position of an execution is ``(sequence, rank)``: the number its border batch or call got on entry, and its
procedure's place in the topological order of its dataflow. It is kept as one integer, so that comparing two positions
is comparing two numbers.

>>> position(12, 1) < position(12, 2) < position(13, 0)
True
>>> describe(position(12, 1))
'12.1'
"""

from __future__ import annotations

RANK_BITS = 16
MAX_RANK = (1 << RANK_BITS) - 1

Position = int


def position(sequence: int, rank: int) -> Position:
    return sequence << RANK_BITS | rank


def sequence_of(at: Position) -> int:
    return at >> RANK_BITS


def rank_of(at: Position) -> int:
    return at & MAX_RANK


def describe(at: Position) -> str:
    """A position as people read it: ``sequence.rank``."""
    return f"{sequence_of(at)}.{rank_of(at)}"
