from __future__ import annotations

import random

from tidegate.txn.positions import describe, position, rank_of, sequence_of


def test_positions_order_like_pairs() -> None:
    rng = random.Random(1)
    pairs = [(rng.randrange(10**9), rng.randrange(100)) for _ in range(500)]
    assert [(sequence_of(p), rank_of(p)) for p in sorted(position(*pair) for pair in pairs)] == sorted(pairs)


def test_a_position_reads_as_sequence_and_rank() -> None:
    assert describe(position(12, 3)) == "12.3"
