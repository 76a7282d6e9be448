"""FileSink: one file per batch, whole, named by its id, written once."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import duckdb
import pyarrow.parquet as pq
import pytest
from every_type import NULLS, ROW

from tidegate import App, Batch, Engine
from tidegate.connectors.files.sink import FileSink
from tidegate.errors import SinkError

Open = Callable[..., Engine]
FORMATS = ["ndjson", "csv", "parquet"]


def batch_of(app: App, batch_id: int, word: str, key: Any = None) -> Batch:
    relation = app.streams["words"].relation
    return Batch(relation, batch_id, relation.conform_all([(word,)]), key)


def opened(app: App, directory: Path, format: Any = "ndjson") -> FileSink:
    sink = FileSink(directory, format)
    sink.open("out", app.streams["words"].relation)
    return sink


@pytest.mark.parametrize("format", FORMATS)
def test_a_batch_is_a_file(types: App, open_engine: Open, tmp_path: Path, format: Any) -> None:
    engine = open_engine(types, tmp_path / "db")
    delivery = engine.deliver("everything", FileSink(tmp_path / "out", format))
    engine.push("incoming", [ROW, NULLS])
    assert delivery.pump() == 2
    names = sorted(path.name for path in (tmp_path / "out").iterdir())
    assert names == [f"everything-4-{1:020d}.{format}", f"everything-5-{1:020d}.{format}"]
    path = tmp_path / "out" / names[0]
    if format == "ndjson":
        row = json.loads(path.read_text())
        assert (row["n"], row["price"], row["many"]) == (4, "12345.60", [1, None, 3])
    elif format == "csv":
        header, line = path.read_text().splitlines()
        assert header.startswith('"small","n","big"')
        assert line.startswith(
            '-3,4,4611686018427387904,18446744073709551615,0.5,0.1,"12345.60","says ""hej"", å",true'
        )
        assert (tmp_path / "out" / names[1]).read_text().splitlines()[1] == ",5" + "," * 15
    else:
        assert pq.read_table(path).column("n").to_pylist() == [4]


@pytest.mark.parametrize("format", FORMATS)
def test_a_repeat_changes_nothing_and_other_rows_are_refused(words: App, tmp_path: Path, format: Any) -> None:
    sink = opened(words, tmp_path, format)
    sink.send([batch_of(words, 1, "a"), batch_of(words, 2, "b")])
    before = {path: (path.stat().st_mtime_ns, path.read_bytes()) for path in tmp_path.iterdir()}
    sink.send([batch_of(words, 1, "a"), batch_of(words, 2, "b")])
    assert {path: (path.stat().st_mtime_ns, path.read_bytes()) for path in tmp_path.iterdir()} == before
    with pytest.raises(SinkError, match=r"with other rows than .* its own directory"):
        sink.send([batch_of(words, 2, "c")])


def test_keys_make_names_that_are_safe_and_different(words: App, tmp_path: Path) -> None:
    sink = opened(words, tmp_path)
    keys = [None, "", "a", "a-1", "../../etc", ".", "å/ä", "x" * 1000, "x" * 1001, 7]
    sink.send([batch_of(words, 1, "w", key) for key in keys])
    names = [path.name for path in tmp_path.iterdir()]
    assert len(set(names)) == len(keys)
    assert all(name.startswith("words-") and len(name.encode()) <= 255 for name in names)
    assert sink.path_of(batch_of(words, 1, "w", "a-1")).name == f"words-a%2D1-{1:020d}.ndjson"


def test_what_was_left_half_written_is_removed(words: App, tmp_path: Path) -> None:
    (tmp_path / ".words-0123.tmp").write_text("half")
    (tmp_path / ".other-0123.tmp").write_text("not ours")
    opened(words, tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == [".other-0123.tmp"]


def test_a_place_that_is_no_directory(words: App, open_engine: Open, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(SinkError, match=r"can't write batches of words to .*file: .*permissions"):
        open_engine(words, tmp_path / "db").deliver("words", FileSink(tmp_path / "file"))
    with pytest.raises(SinkError, match="use one of ndjson, csv, parquet"):
        FileSink(tmp_path, "xml")  # type: ignore[arg-type]


def test_a_directory_that_vanishes_keeps_the_batch(words: App, open_engine: Open, tmp_path: Path) -> None:
    engine = open_engine(words, tmp_path / "db")
    out = tmp_path / "out"
    delivery = engine.deliver("words", FileSink(out))
    engine.push("incoming", [("a",)])
    out.rmdir()
    with pytest.raises(SinkError, match="kept and written again"):
        delivery.pump()
    out.mkdir()
    assert delivery.pump() == 1
    assert json.loads((out / f"words-{1:020d}.ndjson").read_text()) == {"word": "a"}


def test_batches_are_divided_by_partition(open_engine: Open, tmp_path: Path) -> None:
    """A file for each value, readable as a partitioned set; sending again changes nothing."""
    app = App("wards")
    app.stream("incoming", "ward VARCHAR, n BIGINT", border=True)
    app.stream("outgoing", "ward VARCHAR, n BIGINT")

    @app.procedure(inputs="incoming", outputs="outgoing")
    def pass_on(txn: Any, incoming: Batch) -> None:
        txn.emit("outgoing", list(incoming))

    engine = open_engine(app, tmp_path / "db")
    sink = FileSink(tmp_path / "out", "parquet", partition_by="ward")
    delivery = engine.deliver("outgoing", sink)
    engine.push("incoming", [("a", 1), ("b/c", 2), ("a", 3), (None, 4)])
    engine.push("incoming", [("a", 5)])
    batches = delivery._subscription.take(10)
    sink.send(batches)
    sink.send(batches)
    found = {str(path.relative_to(tmp_path / "out")) for path in (tmp_path / "out").rglob("*.parquet")}
    number = "outgoing-0000000000000000000"
    assert found == {
        f"ward=a/{number}1.parquet",
        f"ward=a/{number}2.parquet",
        f"ward=b%2Fc/{number}1.parquet",
        f"ward=__HIVE_DEFAULT_PARTITION__/{number}1.parquet",
    }
    rows = duckdb.sql(f"SELECT ward, n FROM read_parquet('{tmp_path}/out/**/*.parquet', hive_partitioning = false)")
    assert sorted(rows.fetchall(), key=lambda row: row[1]) == [("a", 1), ("b/c", 2), ("a", 3), (None, 4), ("a", 5)]
    with pytest.raises(SinkError, match="has no column bed"):
        engine.deliver("outgoing", FileSink(tmp_path / "out", partition_by=["ward", "bed"]), "other")
