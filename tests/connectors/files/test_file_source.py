"""Files as a source: formats, directories, following, bad records, and going on where it was."""

from __future__ import annotations

import contextlib
import datetime as dt
import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from source_apps import keeping, kept, rejected

from tidegate import Engine, crashpoints
from tidegate.connectors.files.sink import FileSink
from tidegate.connectors.files.source import FileSource
from tidegate.errors import Overloaded, SourceError, TidegateError

Open = Callable[..., Engine]
DAY = dt.date(2026, 1, 2)
ROWS = [(i, f"thing {i}" if i % 3 else None, i / 4, DAY) for i in range(1, 41)]
NAMES = ["id", "name", "weight", "on_day"]


def write(path: Path, rows: list[Any], names: list[str] = NAMES) -> Path:
    """The rows as a file of the kind its name says."""
    if path.suffix == ".parquet":
        pq.write_table(pa.table(dict(zip(names, zip(*rows, strict=True), strict=True))), path, row_group_size=7)
    elif path.suffix == ".csv":
        lines = [",".join("" if v is None else str(v) for v in row) for row in rows]
        path.write_text("\n".join([",".join(names), *lines]) + "\n")
    else:
        path.write_text("".join(json.dumps(dict(zip(names, row, strict=True)), default=str) + "\n" for row in rows))
    return path


@pytest.mark.parametrize("kind", ["csv", "ndjson", "parquet"])
def test_a_file_is_read_to_its_end_and_once(open_engine: Open, tmp_path: Path, kind: str) -> None:
    path = write(tmp_path / f"things.{kind}", ROWS)
    engine = open_engine(keeping(), tmp_path / "db")
    ingestion = engine.ingest("things", FileSource(path), "in", limit=7)
    assert ingestion.pump() == 40
    assert ingestion.finished
    assert ingestion.lag == 0
    assert kept(engine) == ROWS
    engine.close()
    again = open_engine(keeping(), tmp_path / "db")
    assert again.ingest("things", FileSource(path), "in").pump() == 0
    assert kept(again) == ROWS


@pytest.mark.parametrize("kind", ["csv", "ndjson", "parquet"])
def test_it_goes_on_in_the_middle_of_a_file(open_engine: Open, tmp_path: Path, kind: str) -> None:
    path = write(tmp_path / f"things.{kind}", ROWS)
    engine = open_engine(keeping(), tmp_path / "db")
    ingestion = engine.ingest("things", FileSource(path), "in", limit=5)
    with ingestion._reading:
        assert [ingestion._take(0) for _ in range(3)] == [5, 5, 5]
    assert ingestion.lag
    engine.abandon()
    again = open_engine(keeping(), tmp_path / "db")
    assert again.ingest("things", FileSource(path), "in", limit=9).pump() == 25
    assert kept(again) == ROWS


@pytest.mark.parametrize(
    ("executor", "recovery", "key"),
    [("serial", "weak", None), ("serial", "effects", "id"), ("threads", "strong", None), ("threads", "weak", "id")],
)
def test_batches_of_a_size_keep_their_position(
    open_engine: Open, tmp_path: Path, executor: str, recovery: str, key: str | None
) -> None:
    """Many small batches and one position: one record in the log, in every mode."""
    path = write(tmp_path / "things.ndjson", ROWS)
    settings = {"executor": executor}
    engine = open_engine(keeping(recovery=recovery, key=key), tmp_path / "db", **settings)
    with engine.subscribe("seen") as seen:
        ingestion = engine.ingest("things", FileSource(path), "in", limit=16, size=3)
        with ingestion._reading:
            ingestion._take(0)
        engine.run_until_idle()
        assert sorted(len(batch) for batch in seen) == ([1] * 16 if key else [1, 3, 3, 3, 3, 3])
    at = engine.position("in")
    engine.abandon()
    again = open_engine(keeping(recovery=recovery, key=key), tmp_path / "db", **settings)
    assert json.dumps(again.position("in")) == json.dumps(at)
    assert again.ingest("things", FileSource(path), "in", size=3).pump() == 24
    again.run_until_idle()
    assert kept(again) == ROWS


def test_a_directory_is_read_in_order_and_watched(open_engine: Open, tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    write(tmp_path / "in" / "b.csv", ROWS[10:20])
    write(tmp_path / "in" / "a.ndjson", ROWS[:10])
    (tmp_path / "in" / ".hidden").write_text("no")
    (tmp_path / "in" / "half.tmp").write_text("no")
    engine = open_engine(keeping(), tmp_path / "db")
    ingestion = engine.ingest("things", FileSource(tmp_path / "in", follow=True), "in")
    assert ingestion.pump() == 20
    write(tmp_path / "in" / "aa.csv", ROWS[20:30])  # its name comes before one that was read
    assert ingestion.pump() == 10
    assert not ingestion.finished
    engine.close()
    write(tmp_path / "in" / "c.parquet", ROWS[30:])
    again = open_engine(keeping(), tmp_path / "db")
    ingestion = again.ingest("things", FileSource(tmp_path / "in"), "in")
    assert ingestion.pump() == 10
    assert ingestion.finished
    assert kept(again) == ROWS


def test_files_are_moved_to_the_archive_once_they_are_in(open_engine: Open, tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    for i, name in enumerate(["a.csv", "b.csv"]):
        write(tmp_path / "in" / name, ROWS[i * 20 : i * 20 + 20])
    engine = open_engine(keeping(), tmp_path / "db")
    source = FileSource(tmp_path / "in" / "*.csv", archive=tmp_path / "read")
    assert engine.ingest("things", source, "in", limit=15).pump() == 40
    assert sorted(path.name for path in (tmp_path / "read").iterdir()) == ["a.csv", "b.csv"]
    assert not list((tmp_path / "in").iterdir())
    assert kept(engine) == ROWS
    assert len(json.dumps(engine.position("in"))) < 100


def test_a_growing_file_is_followed(open_engine: Open, tmp_path: Path) -> None:
    path = tmp_path / "log.ndjson"
    engine = open_engine(keeping(), tmp_path / "db")
    ingestion = engine.ingest("things", FileSource(path, follow=True), "in")
    assert ingestion.pump() == 0  # it is not even there
    with path.open("a") as file:
        for row in ROWS[:3]:
            file.write(json.dumps(dict(zip(NAMES, row, strict=True)), default=str) + "\n")
        file.write('{"id": 4, "name": null, ')
        file.flush()
        assert ingestion.pump() == 3  # half a line waits
        file.write('"weight": 1.0, "on_day": "2026-01-02"}\n')
        file.flush()
        assert ingestion.pump() == 1
    path.rename(tmp_path / "log.1")
    write(path, ROWS[4:6])
    assert ingestion.pump() == 2
    assert [row[0] for row in kept(engine)] == [1, 2, 3, 4, 5, 6]


def test_bad_records_go_to_the_dead_letters_with_the_reason(open_engine: Open, tmp_path: Path) -> None:
    path = tmp_path / "things.ndjson"
    path.write_text('{"id": 1}\nnonsense\n\n{"id": "two"}\n{"id": 3, "colour": "red"}\n[4, "x", 0.5, null]\n')
    engine = open_engine(keeping(), tmp_path / "db")
    told = engine.subscribe("rejected_out")
    ingestion = engine.ingest("things", FileSource(path), "in")
    assert ingestion.pump() == 2
    assert ingestion.rejected == 3
    assert [row[0] for row in kept(engine)] == [1, 4]
    (malformed, wrong_type, unknown) = rejected(engine)
    assert malformed[0] == "things.ndjson:10"
    assert "DecodeError" in malformed[1]
    assert wrong_type == (
        "things.ndjson:20",
        "things.id (BIGINT) can't take 'two': expected an integer, got str; convert it first: int(value)",
    )
    assert "'colour'" in unknown[1]
    assert sum(len(batch) for batch in told) == 3
    facts = engine.query("SELECT name, stream, state, rows, rejected, lag FROM tidegate.sources").rows
    assert [tuple(row) for row in facts] == [("in", "things", "finished", 2, 3, 0)]


def test_bad_lines_of_csv_and_what_is_null(open_engine: Open, tmp_path: Path) -> None:
    path = tmp_path / "things.csv"
    text = 'id,name,weight,on_day\r\n1,"a ""b"", c",0.5,2026-01-02\r\n2,"two\nlines",,\r\n3,"",1e3,\r\nx,,,\r\n5,,1\r\n6,,,\r\n'
    path.write_bytes(text.encode())
    engine = open_engine(keeping(), tmp_path / "db")
    engine.ingest("things", FileSource(path), "in").pump()
    assert kept(engine) == [
        (1, 'a "b", c', 0.5, DAY),
        (2, "two\nlines", None, None),
        (3, "", 1000.0, None),
        (6, None, None, None),
    ]
    text, short = (reason for _, reason in rejected(engine))
    assert text == "id BIGINT can't take 'x'"
    assert "3 fields" in short


def test_a_rejected_record_that_comes_again_is_recognised(open_engine: Open, tmp_path: Path) -> None:
    """The rejects are in, and the crash comes before the rows around them are."""
    path = tmp_path / "things.ndjson"
    path.write_text('nonsense\n{"id": 1}\n')

    class Crash(BaseException):
        pass

    def crash(point: str) -> None:
        if point == "ingestion-before-push":
            raise Crash

    engine = open_engine(keeping(), tmp_path / "db")
    crashpoints.listen(crash)
    try:
        with pytest.raises(Crash):
            engine.ingest("things", FileSource(path), "in").pump()
    finally:
        crashpoints.listen(None)
    assert engine.position("in") is None
    assert len(rejected(engine)) == 1
    engine.abandon()
    again = open_engine(keeping(), tmp_path / "db")
    assert again.ingest("things", FileSource(path), "in").pump() == 1
    assert [place for place, _ in rejected(again)] == ["things.ndjson:0"]


def test_without_a_place_for_rejects_it_stops_at_the_first(open_engine: Open, tmp_path: Path) -> None:
    path = tmp_path / "things.ndjson"
    path.write_text('{"id": 1}\nnonsense\n')
    engine = open_engine(keeping(rejected=False), tmp_path / "db")
    ingestion = engine.ingest("things", FileSource(path), "in", background=True)
    assert not ingestion.wait(60)
    assert ingestion.state == "stopped"
    assert "things.ndjson:10 is not a row of things" in str(ingestion.error)
    assert "declare_rejected" in str(ingestion.error)
    assert kept(engine) == []


@pytest.mark.parametrize("kind", ["csv", "parquet"])
def test_a_file_that_does_not_fit_is_refused_at_the_start(open_engine: Open, tmp_path: Path, kind: str) -> None:
    path = write(tmp_path / f"things.{kind}", [("a", 1)], ["name", "colour"])
    engine = open_engine(keeping())
    with pytest.raises(
        SourceError, match=r"has 'colour', which the stream does not have; it lacks id, which can't be NULL"
    ):
        engine.ingest("things", FileSource(path), "in", background=True)
    ingestion = engine.ingest("things", FileSource(path, fields={"id": "colour"}), "in")
    assert ingestion.pump() == 1
    assert kept(engine) == [(1, "a", None, None)]


def test_mistakes_are_told(open_engine: Open, tmp_path: Path) -> None:
    engine = open_engine(keeping())
    with pytest.raises(SourceError, match="there is no file"):
        engine.ingest("things", FileSource(tmp_path / "gone.csv"))
    (tmp_path / "data.bin").write_text("x\n")
    with pytest.raises(SourceError, match="give format="):
        engine.ingest("things", FileSource(tmp_path / "data.bin"))
    with pytest.raises(SourceError, match="use one of"):
        FileSource(tmp_path, format="xml")
    with pytest.raises(TidegateError, match="no border stream 'nothing'"):
        engine.ingest("nothing", FileSource(tmp_path / "data.bin"))
    (tmp_path / "a.ndjson").write_text("")
    engine.ingest("things", FileSource(tmp_path / "a.ndjson", follow=True), "in", background=True)
    with pytest.raises(TidegateError, match="already running"):
        engine.ingest("things", FileSource(tmp_path / "a.ndjson"), "in")


def test_another_file_under_the_name_is_refused(open_engine: Open, tmp_path: Path) -> None:
    path = write(tmp_path / "things.csv", ROWS)
    engine = open_engine(keeping())
    engine.ingest("things", FileSource(path), "in").pump()
    write(path, [(99, None, None, DAY)])
    with pytest.raises(SourceError, match="its first bytes differ"):
        engine.ingest("things", FileSource(path), "in")


@pytest.mark.parametrize("kind", ["ndjson", "csv", "parquet"])
def test_what_the_sink_writes_the_source_reads(open_engine: Open, tmp_path: Path, kind: Any) -> None:
    engine = open_engine(keeping(), tmp_path / "db")
    delivery = engine.deliver("seen", FileSink(tmp_path / "out", kind))
    engine.push("things", ROWS)
    engine.push("things", [(41, None, None, None)])
    delivery.pump()
    other = open_engine(keeping("id BIGINT NOT NULL, n BIGINT"))
    source = FileSource(tmp_path / "out", fields={"n": "times"})
    assert other.ingest("things", source).pump() == 41
    assert kept(other) == [(i, 1) for i in range(1, 42)]


def test_a_second_process_under_the_name_is_refused(open_engine: Open) -> None:
    engine = open_engine(keeping())
    engine.feed("things", [(1, None, None, None)], source="in", offset=1, after=None)
    assert engine.feed("things", [(1, None, None, None)], source="in", offset=1, after=None).batches == 0  # a repeat
    with pytest.raises(TidegateError, match="source 'in' is at 1"):
        engine.feed("things", [(1, None, None, None)], source="in", offset=2, after=0)
    engine.feed("things", [(2, None, None, None)], source="in", offset=2, after=1)
    assert [row[0] for row in kept(engine)] == [1, 2]


@pytest.mark.parametrize("size", [None, 2])
def test_full_queues_hold_the_source_back(open_engine: Open, tmp_path: Path, size: int | None) -> None:
    """What was read waits here, and nothing more is read until there is room."""
    path = write(tmp_path / "things.ndjson", ROWS)
    engine = open_engine(keeping(), executor="manual", capacity=2)
    ingestion = engine.ingest("things", FileSource(path), "in", limit=4, size=size)
    with pytest.raises(Overloaded):
        ingestion.pump()
    taken = ingestion.rows
    assert 0 < taken < 40
    assert ingestion.state == "failing"
    with pytest.raises(Overloaded):
        ingestion.pump()
    assert ingestion.rows == taken
    while not ingestion.finished:
        engine.run_until_idle()
        with contextlib.suppress(Overloaded):
            ingestion.pump()
    engine.run_until_idle()
    assert kept(engine) == ROWS


def test_an_engine_closes_while_its_source_waits_for_room(open_engine: Open, tmp_path: Path) -> None:
    path = write(tmp_path / "things.ndjson", ROWS)
    engine = open_engine(keeping(), executor="manual", capacity=2)
    ingestion = engine.ingest("things", FileSource(path, follow=True), "in", limit=4, background=True)
    until = time.monotonic() + 60
    while not isinstance(ingestion.error, Overloaded):
        assert time.monotonic() < until, ingestion
        time.sleep(0.01)
    engine.close()
    assert ingestion.state == "closed"
