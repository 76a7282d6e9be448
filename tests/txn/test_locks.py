"""Low-water-mark locks: granted by position alone."""

from __future__ import annotations

import random

import pytest

from tidegate.txn.locks import Block, Item, LockTable, LowWaterMarks, TwoPhaseLocks

T, U = Item("t"), Item("u")
P1, P2 = Item("t", (1,)), Item("t", (2,))


def first(block: Block | None) -> tuple[Item, int]:
    """The item and the first of those in front."""
    assert block is not None
    return block.item, block.behind


def test_a_read_waits_for_the_writers_below_it() -> None:
    locks = LowWaterMarks()
    locks.register(10, [], [T])
    locks.register(20, [T], [])
    assert locks.blocker(5, [T], []) is None
    assert first(locks.blocker(20, [T], [])) == (T, 10)
    locks.release(10, [], [T])
    assert locks.blocker(20, [T], []) is None


def test_a_write_waits_for_the_writers_below_it_only() -> None:
    locks = LowWaterMarks()
    locks.register(10, [T], [])  # a reader holds up nobody
    locks.register(20, [], [T])
    locks.register(30, [], [T])
    assert locks.low_water_mark(T) == 20
    assert locks.blocker(20, [], [T]) is None
    assert first(locks.blocker(30, [], [T])) == (T, 20)


def test_other_tables_are_independent() -> None:
    locks = LowWaterMarks()
    locks.register(10, [], [T])
    assert locks.blocker(20, [U], [U]) is None


def test_partitions_overlap_their_table_and_not_each_other() -> None:
    locks = LowWaterMarks()
    locks.register(10, [], [P1])
    locks.register(20, [], [P2])
    assert first(locks.blocker(30, [P2], [])) == (P2, 20)
    assert locks.blocker(15, [P2], []) is None
    assert first(locks.blocker(30, [T], [])) == (T, 10), "a table waits for any of its partitions"
    locks.register(40, [], [T])
    assert first(locks.blocker(50, [Item("t", (3,))], [])) == (Item("t", (3,)), 40), "a partition waits for its table"
    assert locks.marks() == {P1: 10, P2: 20, T: 10}


def test_release_frees_what_was_registered_and_no_more() -> None:
    locks = LowWaterMarks()
    locks.register(10, [], [P1, P2])
    locks.register(20, [], [P1])
    locks.release(10, [], [P1, P2])
    assert (locks.low_water_mark(P1), locks.low_water_mark(P2), locks.low_water_mark(T)) == (20, None, 20)
    locks.release(20, [], [P1])
    assert locks.marks() == {}


def test_two_phase_writers_also_wait_for_readers() -> None:
    locks = TwoPhaseLocks()
    locks.register(10, [T], [])
    locks.register(20, [], [T])
    assert first(locks.blocker(20, [], [T])) == (T, 10)
    assert LowWaterMarks().blocker(20, [], [T]) is None
    locks.release(10, [T], [])
    assert locks.blocker(20, [], [T]) is None


def test_items_read_well() -> None:
    assert [str(T), str(P1), str(Item("t", ("a",)))] == ["t", "t[1]", "t['a']"]


@pytest.mark.parametrize("scheme", [LowWaterMarks, TwoPhaseLocks])
@pytest.mark.parametrize("seed", range(20))
def test_waits_point_to_unfinished_smaller_positions_that_conflict(scheme: type[LockTable], seed: int) -> None:
    """Against the definition, over random intents: no deadlock is possible, and no conflict is missed."""
    rng = random.Random(seed)
    items = [T, P1, P2, U]
    intents: dict[int, tuple[list[Item], list[Item]]] = {}
    locks = scheme()

    def overlap(mine: list[Item], theirs: list[Item]) -> bool:
        return any(
            a.table == b.table and (None in (a.partition, b.partition) or a.partition == b.partition)
            for a in mine
            for b in theirs
        )

    for at in range(60):
        mine = rng.sample(items, rng.randint(1, 3))
        cut = rng.randint(0, len(mine))
        intents[at] = (mine[:cut], mine[cut:])
        locks.register(at, *intents[at])
        if rng.random() < 0.5:
            done = rng.choice(list(intents))
            locks.release(done, *intents.pop(done))
        for other, (reads, writes) in intents.items():
            conflicts = [
                p
                for p, (r, w) in intents.items()
                if p < other and (overlap(reads + writes, w) or (scheme is TwoPhaseLocks and overlap(writes, r)))
            ]
            block = locks.blocker(other, reads, writes)
            assert (block is None) == (not conflicts)
            assert block is None or (block.behind in conflicts and block.until in conflicts)
            if block is not None:
                on_item = [p for p in conflicts if overlap([block.item], intents[p][1])]
                if scheme is TwoPhaseLocks and not on_item:
                    on_item = [p for p in conflicts if overlap([block.item], intents[p][0])]
                assert (block.behind, block.until) == (min(on_item), max(on_item))
