"""Fingerprints of emitted batches: the same for the same batches however they come, different for anything else."""

from __future__ import annotations

import json
import random
from typing import Any

import pytest

from tidegate import App
from tidegate.streams.batch import Batch
from tidegate.streams.emitted import KEPT, Blocks, Chain, Emitted

Made = list[tuple[int, Batch]]


@pytest.fixture
def batches() -> Made:
    """1,000 batches of one to three rows, at positions with gaps, ten keys."""
    app = App("a")
    app.stream("s", "n BIGINT", border=True)
    relation = app.streams["s"].relation
    chance = random.Random(1)
    made = []
    for number in range(1, 1_001):
        rows = tuple(relation.row(chance.randrange(1 << 40)) for _ in range(chance.randrange(1, 4)))
        made.append((number * 7 << 16, Batch(relation, number, rows, number % 10)))
    return made


def taken(kind: type[Chain | Blocks], batches: Made, cuts: random.Random | None = None) -> Any:
    """Fed to a fingerprint, which is saved and restored now and then."""
    marks = kind()
    for position, batch in batches:
        marks.add(position, batch)
        if cuts is not None and cuts.random() < 0.05:
            saved = json.loads(json.dumps(marks.save()))
            marks = kind()
            marks.restore(saved)
    return marks


def changed(batches: Made, place: int, **values: Any) -> Made:
    position, batch = batches[place]
    other = Batch(
        batch.relation, values.get("id", batch.id), values.get("rows", batch.rows), values.get("key", batch.key)
    )
    return [*batches[:place], (position, other), *batches[place + 1 :]]


@pytest.mark.parametrize("kind", [Chain, Blocks])
@pytest.mark.parametrize("seed", range(5))
def test_where_it_was_saved_makes_no_difference(kind: type[Chain | Blocks], seed: int, batches: Made) -> None:
    one, other = taken(kind, batches), taken(kind, batches, random.Random(seed))
    assert one.save() == other.save()
    assert one.difference(other) is None


@pytest.mark.parametrize("seed", range(5))
def test_the_order_between_keys_makes_no_difference(seed: int, batches: Made) -> None:
    mixed = random.Random(seed).sample(batches, len(batches))
    assert taken(Blocks, batches).difference(taken(Blocks, mixed, random.Random(seed))) is None


@pytest.mark.parametrize("kind", [Chain, Blocks])
@pytest.mark.parametrize("place", [0, 1, 62, 500, 999])
def test_any_change_is_found_near_its_place(kind: type[Chain | Blocks], place: int, batches: Made) -> None:
    row = batches[place][1].rows[0]
    for other in (
        changed(batches, place, rows=[row._replace(n=row.n + 1), *batches[place][1].rows[1:]]),
        changed(batches, place, rows=[*batches[place][1].rows, row]),
        [*batches[:place], *batches[place + 1 :]],
    ):
        told = taken(kind, batches).difference(taken(kind, other))
        assert told is not None
        numbers = [int(word) for word in told.split(" (")[0].split() if word.isdigit()]
        near = 1_000 // (KEPT // 2)
        assert any(abs(number - (place + 1)) <= near for number in numbers), told


@pytest.mark.parametrize("kind", [Chain, Blocks])
def test_rows_of_two_batches_exchanged_are_found(kind: type[Chain | Blocks], batches: Made) -> None:
    """Also of batches that differ in one bit: checksums of those are close relatives."""
    for one, two in [(i, j) for i in range(60) for j in range(i)]:
        rows = batches[one][1].rows, batches[two][1].rows
        if len(rows[0]) == len(rows[1]):
            other = changed(changed(batches[:60], one, rows=rows[1]), two, rows=rows[0])
            assert taken(kind, batches[:60]).difference(taken(kind, other)) is not None


def test_few_batches_are_named_exactly(batches: Made) -> None:
    few = batches[:KEPT]
    other = changed(few, 30, rows=few[31][1].rows)
    assert taken(Chain, few).difference(taken(Chain, other)) == "batch 31 differs"
    assert taken(Blocks, few).difference(taken(Blocks, other)) == "batch 31 of key 1 differs"
    more = "batch 64 differs (stored 63 batches, re-executed 64)"
    assert taken(Blocks, few[:-1]).difference(taken(Blocks, few)) == more.replace("differs", "of key 4 differs")
    told = taken(Chain, few[:-1]).difference(taken(Chain, few))
    assert told == "a batch after batch 63 differs (stored 63 batches, re-executed 64)"


def test_what_is_saved_stays_small(batches: Made) -> None:
    for kind in (Chain, Blocks):
        assert len(json.dumps(taken(kind, batches).save())) < 6_000


def test_a_stream_that_is_keyed_now_begins_anew(batches: Made) -> None:
    saved = Emitted({"s": False}).save()
    emitted = Emitted({"s": True})
    emitted.restore(saved, 5)
    assert emitted.streams["s"].count == 0
    assert emitted.since == 0
