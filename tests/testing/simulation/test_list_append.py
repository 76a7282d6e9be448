"""Serializability of concurrent runs, from what transactions saw: the list-append check of Elle, in small.

Every transaction appends its own number to some lists and reads others whole. A list read is a prefix of
every longer one, so reads give away the order of appends (ww), who read whose append (wr) and which append a
reader did not see yet (rw). A cycle through these edges means that no serial order explains the run.
"""

from __future__ import annotations

import random
import sys
import threading
from collections.abc import Iterator
from graphlib import CycleError, TopologicalSorter
from itertools import pairwise

import pytest

import tidegate
from tidegate import App
from tidegate.txn.locks import LowWaterMarks, TwoPhaseLocks, locking_with

LISTS = 4
Reads = dict[int, dict[int, tuple[int, ...]]]  # transaction -> list -> what it read, before its own append


class Seen:
    """What each transaction saw of which list, and where it appended."""

    def __init__(self) -> None:
        self.reads: Reads = {}
        self.appends: dict[int, set[int]] = {}


def edges(seen: Seen) -> Iterator[tuple[int, int, str]]:
    """(before, after, why) for every dependency that the reads prove."""
    longest: dict[int, tuple[int, ...]] = {}
    for reads in seen.reads.values():
        for name, items in reads.items():
            known = longest.get(name, ())
            assert items[: len(known)] == known[: len(items)], f"list {name} was read as {items} and as {known}"
            longest[name] = max(items, known, key=len)
    for name, items in longest.items():
        for before, after in pairwise(items):
            yield before, after, f"ww on {name}"
    for number, reads in seen.reads.items():
        for name, items in reads.items():
            if items:
                yield items[-1], number, f"wr on {name}"
            if len(items) < len(longest[name]) and longest[name][len(items)] != number:
                yield number, longest[name][len(items)], f"rw on {name}"


def cycle(seen: Seen) -> list[int] | None:
    graph: dict[int, set[int]] = {number: set() for number in seen.reads}
    for before, after, _ in edges(seen):
        if before != after:
            graph[after].add(before)
    try:
        list(TopologicalSorter(graph).static_order())
    except CycleError as error:
        found: list[int] = error.args[1]
        return found
    return None


def make(seen: Seen) -> App:
    app = App("lists")
    app.table("CREATE TABLE lists (name INTEGER PRIMARY KEY, items BIGINT[] NOT NULL)", partition_by="name")
    app.stream("work", "number BIGINT, appends INTEGER[], reads INTEGER[]", border=True)
    app.stream("more", "number BIGINT, appends INTEGER[], reads INTEGER[]")

    def run(txn, number, appends, reads):
        saw = {}
        for name in {*appends, *reads}:
            row = txn.get("lists", name)
            saw[name] = () if row is None else row.items
            if name in appends:
                txn.upsert("lists", (name, [*saw[name], number]))
        seen.reads[number] = saw
        seen.appends[number] = set(appends)

    @app.procedure(inputs="work", outputs="more", writes=["lists"])
    def first(txn, work):
        for row in work:
            run(txn, row.number, row.appends, row.reads)
        txn.emit("more", [(row.number + 1, row.reads, row.appends) for row in work])

    @app.procedure(inputs="more", writes=["lists"])
    def second(txn, more):
        for row in more:
            run(txn, row.number, row.appends, row.reads)

    @app.procedure(writes=[tidegate.partition("lists", by="name")])
    def touch(txn, number, name):
        run(txn, number, (name,), ())

    @app.procedure(reads=["lists"])
    def look(txn, number):
        run(txn, number, (), range(LISTS))

    return app


@pytest.fixture
def restless():
    """Threads change over as often as Python lets them."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    yield
    sys.setswitchinterval(before)


def client(engine: tidegate.Engine, number: int, rounds: int) -> None:
    rng = random.Random(number)
    for i in range(rounds):
        name = 10 * (number * 1000 + i)
        match rng.randrange(4):
            case 0:
                engine.submit("touch", name, rng.randrange(LISTS))
            case 1:
                engine.submit("look", name)
            case _:
                some = rng.sample(range(LISTS), 3)
                engine.push("work", [(name, some[:1], some[1:])])


@pytest.mark.parametrize("locks", [LowWaterMarks, TwoPhaseLocks])
@pytest.mark.usefixtures("restless")
def test_concurrent_clients_see_a_serial_order(locks):
    seen = Seen()
    with locking_with(locks), tidegate.open(make(seen), executor="threads", workers=4, merge_rows=20) as engine:
        clients = [threading.Thread(target=client, args=(engine, number, 60)) for number in range(1, 4)]
        for one in clients:
            one.start()
        for one in clients:
            one.join()
        engine.run_until_idle()
        final = {row.name: row.items for row in engine.query("SELECT * FROM lists")}
    appended = {name: {n for n, lists in seen.appends.items() if name in lists} for name in range(LISTS)}
    assert {name: set(items) for name, items in final.items()} == appended
    assert len(seen.reads) > 180
    assert cycle(seen) is None


def test_the_check_finds_a_lost_update_and_a_write_skew():
    lost = Seen()
    lost.reads = {1: {0: ()}, 2: {0: ()}, 3: {0: (1, 2)}}
    assert cycle(lost) is not None
    skew = Seen()
    skew.reads = {1: {0: (), 1: ()}, 2: {0: (), 1: ()}, 3: {0: (1,), 1: (2,)}}
    assert cycle(skew) is not None
    fine = Seen()
    fine.reads = {1: {0: ()}, 2: {0: (1,)}, 3: {0: (1, 2)}}
    assert cycle(fine) is None
