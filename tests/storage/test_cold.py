"""Cold rows: runs, tables of them, and in step with the base."""

from __future__ import annotations

import datetime as dt
import logging
import random
from decimal import Decimal
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from stores import Store

from tidegate.storage.cold.packing import packing_of
from tidegate.storage.cold.runs import ABSENT, Damaged, mask_of, merged, open_run, pack_rows, write_run
from tidegate.storage.cold.store import ColdStore
from tidegate.storage.cold.table import ColdTable
from tidegate.storage.ddl import Scratch
from tidegate.storage.schema import TableSchema

SCRATCH = Scratch()
T = SCRATCH.define_table(
    "CREATE TABLE t (k INTEGER PRIMARY KEY, tag INTEGER, s VARCHAR); CREATE INDEX by_tag ON t (tag)", ()
)
EVERY = SCRATCH.define_table(
    """CREATE TABLE every (a VARCHAR, b TIMESTAMP, c UUID, d DECIMAL(9, 2), e BLOB, f BOOLEAN, g DATE, h TIME, i INTERVAL,
                           j JSON, k INTEGER[], l DOUBLE, m UBIGINT, PRIMARY KEY (a, b, c, d, e, m))""",
    (),
)


class Nowhere:
    def next(self) -> Path | None:
        return None


def find(run: Any, schema: TableSchema, key: Any) -> Any:
    packing = packing_of(schema)
    spread = packing.spread(key)
    return run.find(spread, mask_of(spread), key, packing)


def test_a_run_has_its_rows_and_no_others() -> None:
    rows = [(k, None, f"name {k}") for k in range(-5_000, 5_000, 2)]
    run = write_run(None, len(rows), [pack_rows(packing_of(T), rows, gone=[1, 3])])
    assert [find(run, T, row[0]) for row in rows] == rows
    assert find(run, T, 1) is None
    assert all(find(run, T, k) is ABSENT for k in range(-4_999, 5_000, 2) if k not in (1, 3))


def test_every_type_comes_back_as_it_was() -> None:
    row = (
        *(
            "ä\x00",
            dt.datetime(2026, 1, 2, 3, 4, 5, 6),
            UUID(int=7),
            Decimal("1.50"),
            b"\xff",
            True,
            dt.date(9999, 1, 1),
        ),
        *(dt.time(1, 2), dt.timedelta(days=-100_000, microseconds=1), '{"a": 1}', (1, None), float("inf"), 2**64 - 1),
    )
    key = EVERY.key_of(row)
    run = write_run(None, 1, [pack_rows(packing_of(EVERY), [row], gone=[(*key[:-1], 1)])])
    found = find(run, EVERY, key)
    assert found == row
    assert list(map(type, found)) == list(map(type, row))
    assert find(run, EVERY, (*key[:-1], 1)) is None
    assert find(run, EVERY, (*key[:-1], 2)) is ABSENT


changes = st.lists(
    st.dictionaries(st.integers(0, 40), st.one_of(st.none(), st.integers(0, 3)), max_size=30), max_size=20
)


@settings(max_examples=60, deadline=None)
@given(changes)
def test_a_table_reads_as_the_changes_say(merges: list[dict[int, int | None]]) -> None:
    table, expected = ColdTable(T), {}
    for merge in merges:
        rows = [(k, tag, f"{tag}") for k, tag in merge.items() if tag is not None]
        table.put(table.with_changes(rows, [k for k, tag in merge.items() if tag is None], Nowhere()))
        table.put(table.tidied(Nowhere()))
        expected = {**expected, **{row[0]: row for row in rows}}
        expected = {k: row for k, row in expected.items() if merge.get(k, 0) is not None}
        assert table.get_all(range(-1, 42)) == expected
        assert {k: row for k in range(-1, 42) if (row := table.get(k)) is not None} == expected
        for tag in range(4):
            found = table.keys_with("by_tag", (tag,))
            assert found is not None
            assert {k for k, row in expected.items() if row[1] == tag} <= set(found)
        assert table.differs(expected.values()) is None
    assert len(table.rows.runs) < 8


def test_keys_with_the_same_hash_are_told_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    table = ColdTable(T)
    packing = table.rows.packing
    monkeypatch.setattr(packing, "spread", lambda key: 5)
    monkeypatch.setattr(packing, "spread_all", lambda keys: packing_of(T).spread_all([0] * len(keys)) * 0 + 5)
    for part in ([(k, 1, "old") for k in range(50)], [(k, 1, "new") for k in range(0, 50, 2)]):
        table.put(table.with_changes(part, [], Nowhere()))
    table.put(table.with_changes([], [10, 11], Nowhere()))
    expected = {k: (k, 1, "old" if k % 2 else "new") for k in range(50) if k not in (10, 11)}
    assert table.get_all(range(60)) == expected
    joined = ColdTable(T)
    joined.rows.packing = packing
    joined.put({"": (write_run(None, 200, merged(table.rows.runs, packing, True)),)})
    assert joined.get_all(range(60)) == expected
    assert joined.rows.rows == len(expected)


def test_no_flipped_byte_goes_unnoticed(tmp_path: Path) -> None:
    rows = [(k, k % 3, "x") for k in range(40)]
    path = tmp_path / "1.run"
    write_run(path, len(rows), [pack_rows(packing_of(T), rows)])
    sound = path.read_bytes()
    for place in range(len(sound)):
        flipped = bytearray(sound)
        flipped[place] ^= 1 << place % 8
        path.write_bytes(flipped)
        with pytest.raises(Damaged):
            open_run(path).entries(0, 1 << 32)
    path.write_bytes(sound[:-1])
    with pytest.raises(Damaged):
        open_run(path)


# ---- with the base


class Files:
    """A database in a folder, of which most rows are cold, and its merges as an engine stores them."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.number = 0
        self.open()

    def open(self) -> None:
        ddl = "CREATE TABLE t (k INTEGER PRIMARY KEY, tag INTEGER, s VARCHAR); CREATE INDEX by_tag ON t (tag)"
        self.store = Store(ddl, path=self.folder / "base.duckdb", cached_rows=5)
        self.store.position = 1_000 * (self.number + 1)
        self.table = self.store.database.tables["t"]

    def merge(self) -> None:
        self.number += 1
        facts = {"merge": self.number, "lsn": self.number, "chain": 0, "sequence": 0}
        self.store.database.merge(lambda: facts)

    def put(self, *keys: int) -> None:
        view = self.store.view()
        for key in keys:
            view.put("t", key, (key, key % 10, f"{self.number}"))
        self.store.commit(view)

    def close(self) -> None:
        self.store.database.close()

    def cold(self) -> ColdTable | None:
        return self.store.database.cold.get("t")

    def check(self, *keys: int) -> None:
        found = self.store.view().scan("t")
        assert [row[0] for row in found] == sorted(keys)


@pytest.fixture
def files(tmp_path: Path) -> Any:
    made = Files(tmp_path)
    yield made
    made.close()


def test_rows_are_read_from_there_and_not_from_duckdb(files: Files, monkeypatch: pytest.MonkeyPatch) -> None:
    files.put(*range(100))
    files.merge()
    files.close()
    files.open()
    monkeypatch.setattr(files.store.database.base, "fetch", None)
    monkeypatch.setattr(files.store.database.base, "find", None)
    view = files.store.view()
    assert view.get("t", 7) == (7, 7, "0")
    assert view.get("t", 100) is None
    assert [row[0] for row in view.scan("t", tag=7)] == list(range(7, 100, 10))


@pytest.mark.parametrize("reopened", [False, True])
def test_random_changes_and_merges(files: Files, reopened: bool) -> None:
    rng, expected = random.Random(3), {}
    for _ in range(25):
        view = files.store.view()
        for _ in range(rng.randint(1, 12)):
            key = rng.randrange(60)
            row = None if rng.random() < 0.3 else (key, rng.randrange(5), f"{rng.random()}")
            assert view.get("t", key) == expected.get(key)
            view.put("t", key, row)
            expected[key] = row
        files.store.commit(view)
        if rng.random() < 0.7:
            files.merge()
            cold = files.cold()
            assert cold is None or cold.differs(files.store.database.base.scan(cold.schema)) is None
            if reopened:
                files.close()
                files.open()
        tag = rng.randrange(5)
        assert [row[0] for row in files.store.view().scan("t", tag=tag)] == sorted(
            key for key, row in expected.items() if row is not None and row[1] == tag
        )
        files.table.check()


def test_a_base_of_another_merge_has_no_cold_rows(files: Files, tmp_path: Path) -> None:
    files.put(*range(20))
    files.merge()
    files.close()
    earlier = (tmp_path / "base.duckdb").read_bytes()
    files.open()
    files.put(3, 40)
    files.merge()
    files.close()
    (tmp_path / "base.duckdb").write_bytes(earlier)
    files.open()
    assert files.cold() is None
    assert list((tmp_path / "rows").iterdir()) == []
    assert files.store.view().get("t", 3) == (3, 3, "0")
    files.check(*range(20))


@pytest.mark.parametrize("which", ["*.run", "*.manifest"])
@pytest.mark.parametrize("how", ["flipped", "missing", "cut", "empty"])
def test_what_is_damaged_is_made_anew(
    files: Files, tmp_path: Path, which: str, how: str, caplog: pytest.LogCaptureFixture
) -> None:
    files.put(*range(30))
    files.merge()
    files.close()
    for path in (tmp_path / "rows").glob(which):
        content = path.read_bytes()
        if how == "flipped":
            for place in range(0, len(content), 20):
                content = content[:place] + bytes([content[place] ^ 4]) + content[place + 1 :]
        path.write_bytes({"cut": content[: len(content) // 2], "empty": b""}.get(how, content))
        if how == "missing":
            path.unlink()
    with caplog.at_level(logging.WARNING):
        files.open()
        assert [files.store.view().get("t", key)[0] for key in range(30)] == list(range(30))
    assert files.cold() is None
    assert "made anew" in caplog.text or (which, how) == ("*.manifest", "missing")
    files.put(*range(50))
    files.merge()
    files.put(51)
    files.merge()
    cold = files.cold()
    assert cold is not None
    assert cold.differs(files.store.database.base.scan(cold.schema)) is None


def test_a_page_that_is_damaged_while_it_is_open(
    files: Files, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    files.put(*range(30))
    files.merge()
    for path in (tmp_path / "rows").glob("*.run"):
        with path.open("r+b") as file:
            file.seek(20)
            file.write(b"\x00\x01\x02\x03\x04")
    assert files.store.view().get("t", 7) == (7, 7, "0")
    assert "made anew" in caplog.text
    assert files.cold() is None


def test_a_full_disk_does_not_stop_merges(files: Files, monkeypatch: pytest.MonkeyPatch) -> None:
    files.put(*range(30))
    files.merge()

    def refuse(*_: Any) -> Any:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr("tidegate.storage.cold.table.write_run", refuse)
        files.put(1, 2, 77)
        files.merge()
        assert files.cold() is None
    files.check(*range(30), 77)


def test_a_table_that_fits_again_has_none(files: Files, tmp_path: Path) -> None:
    files.put(*range(30))
    files.merge()
    assert files.cold() is not None
    view = files.store.view()
    view.delete_where("t")
    files.store.commit(view)
    files.put(1)
    files.merge()
    files.store.database.hold(files.table)
    files.put(2)
    files.merge()
    assert files.table.complete
    assert files.cold() is None
    assert list((tmp_path / "rows").glob("*.run")) == []


def test_runs_of_another_shape_are_not_used(tmp_path: Path) -> None:
    wider = Scratch().define_table("CREATE TABLE t (k BIGINT PRIMARY KEY, tag INTEGER, s VARCHAR)", ())
    store = ColdStore(tmp_path / "rows", [T], "1-1-1-1")
    store.build(T, [(1, 2, "x")])
    assert ColdStore(tmp_path / "rows", [T], "1-1-1-1").get("t") is not None
    assert ColdStore(tmp_path / "rows", [wider], "1-1-1-1").get("t") is None
