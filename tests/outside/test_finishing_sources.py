"""A source that ends: its stream ends with it, where asked for, and everything that waits for time fires."""

from __future__ import annotations

import datetime as dt
import json
from pathlib import Path
from typing import Any

import pytest
from timely import app

import tidegate
from tidegate import App, Engine
from tidegate.connectors.files.source import FileSource
from tidegate.errors import BatchError, DeclarationError, SourceError, TidegateError

NOON = dt.datetime(2026, 3, 1, 12)


def write(path: Path, seconds: range) -> Path:
    lines = [
        {"room": n % 2, "at_time": (NOON + dt.timedelta(seconds=n)).isoformat(), "loud": n % 3 == 0} for n in seconds
    ]
    with path.open("a") as file:
        file.writelines(json.dumps(line) + "\n" for line in lines)
    return path


def minutes(engine: Engine) -> list[Any]:
    return [tuple(row) for row in engine.query("SELECT room, minute(began), n FROM minutes ORDER BY ALL")]


ALL = [(0, 0, 10), (0, 1, 5), (1, 0, 10), (1, 1, 5)]


@pytest.mark.parametrize("directory", [None, "db"])
def test_windows_fire_when_the_file_has_ended(tmp_path: Path, directory: str | None) -> None:
    source = FileSource(write(tmp_path / "seen.ndjson", range(90)))
    with tidegate.open(app, directory and tmp_path / directory) as engine:
        ingestion = engine.ingest("seen", source, "file", size=7, finish=True)
        assert ingestion.pump() == 90
        assert ingestion.finished
        assert minutes(engine) == ALL
    if directory is not None:
        with tidegate.open(app, tmp_path / directory) as engine:
            again = engine.ingest("seen", FileSource(tmp_path / "seen.ndjson"), "file", finish=True, background=True)
            assert again.wait(30)
            assert minutes(engine) == ALL
            write(tmp_path / "seen.ndjson", range(90, 95))
            with pytest.raises(BatchError, match="was finished"):
                engine.ingest("seen", FileSource(tmp_path / "seen.ndjson"), "file").pump()


def test_without_it_the_stream_goes_on(tmp_path: Path) -> None:
    with tidegate.open(app) as engine:
        for part in (range(45), range(45, 90)):
            name = f"{part.start}.ndjson"
            engine.ingest("seen", FileSource(write(tmp_path / name, part)), name).pump()
        assert minutes(engine) == [(0, 0, 10), (1, 0, 10)]


def test_a_kill_between_the_last_row_and_the_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def die() -> None:
        raise KeyboardInterrupt

    path = write(tmp_path / "seen.ndjson", range(90))
    engine = tidegate.open(app, tmp_path / "db")
    ingestion = engine.ingest("seen", FileSource(path), "file", finish=True)
    monkeypatch.setattr(ingestion, "_finish_stream", die)
    with pytest.raises(KeyboardInterrupt):
        ingestion.pump()
    engine.abandon()
    with tidegate.open(app, tmp_path / "db") as engine:
        assert minutes(engine) == [(0, 0, 10), (1, 0, 10)]
        assert engine.ingest("seen", FileSource(path), "file", finish=True).pump() == 0
        assert minutes(engine) == ALL


def test_an_app_declares_it(tmp_path: Path) -> None:
    from copy import copy

    declared = copy(app)
    declared.sources = {}
    declared.source("seen", FileSource(write(tmp_path / "seen.ndjson", range(90))), name="file", finish=True)
    with tidegate.open(declared) as engine:
        (ingestion,) = engine.start().ingestions
        assert ingestion.wait(30)
        assert minutes(engine) == ALL
    with pytest.raises(DeclarationError, match=r"option 'finsh'.*did you mean 'finish'"):
        declared.source("seen", FileSource(tmp_path / "seen.ndjson"), name="other", finsh=True)


def test_what_can_not_be_finished_alone_is_refused_before_a_row_is_read(tmp_path: Path) -> None:
    pair = App("pair")
    for name in ("lefts", "rights"):
        pair.stream(name, "id BIGINT NOT NULL", border=True)

    @pair.procedure(inputs=["lefts", "rights"])
    def both(txn: Any, lefts: Any, rights: Any) -> None: ...

    (tmp_path / "lefts.ndjson").write_text('{"id": 1}\n')
    with tidegate.open(pair) as engine:
        with pytest.raises(BatchError, match=r"finish\(\) finishes all"):
            engine.ingest("lefts", FileSource(tmp_path / "lefts.ndjson"), finish=True)
        assert engine.ingestions == {}


def test_in_a_file_of_connectors(tmp_path: Path) -> None:
    from tidegate.connectors.shared.running import running
    from tidegate.connectors.shared.toml_file import read_setup

    write(tmp_path / "seen.ndjson", range(90))
    (tmp_path / "app.py").write_text("from timely import app\n")
    text = f"""
app = "{tmp_path}/app.py:app"
directory = "{tmp_path}/db"
[[source]]
name = "file"
kind = "files"
stream = "seen"
path = "{tmp_path}/seen.ndjson"
finish = FINISH
"""
    (tmp_path / "wrong.toml").write_text(text.replace("FINISH", "1"))
    with pytest.raises(TidegateError, match=r"source\[1\].finish = 1: expected true or false"):
        read_setup(tmp_path / "wrong.toml")
    (tmp_path / "right.toml").write_text(text.replace("FINISH", "true"))
    with running(read_setup(tmp_path / "right.toml")) as started:
        assert started.ingestions[0].wait(30)
    with tidegate.open(app, tmp_path / "db") as engine:
        assert minutes(engine) == ALL


def test_a_source_that_fails_does_not_end(tmp_path: Path) -> None:
    path = write(tmp_path / "seen.ndjson", range(60))
    with path.open("a") as file:
        file.write("no row\n")
    with tidegate.open(app) as engine:
        with pytest.raises(SourceError):
            engine.ingest("seen", FileSource(path), "file", finish=True).pump()
        assert not engine.borders["seen"].finished
