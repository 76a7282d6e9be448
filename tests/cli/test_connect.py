"""``tidegate connect`` and ``tidegate rebuild``: connectors from a file, and errors that name the key."""

from __future__ import annotations

import contextlib
import importlib
import json
import re
import signal
import socket
import sqlite3
import subprocess
import sys
import time
import urllib.request
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

import tidegate
from tidegate.cli.main import app as commands
from tidegate.connectors.shared.running import metrics, running
from tidegate.connectors.shared.toml_file import SINKS as SINKS_BY_KIND
from tidegate.connectors.shared.toml_file import SOURCES, read_setup
from tidegate.errors import TidegateError

APP = """
from tidegate import App
from tidegate.outside.rejects import declare_rejected

app = App("shop")
app.stream("orders", "id BIGINT NOT NULL, item VARCHAR", border=True)
app.stream("shipments", "id BIGINT, item VARCHAR")
app.table("CREATE TABLE shipped (id BIGINT PRIMARY KEY, item VARCHAR)", changelog=True)
declare_rejected(app)

@app.procedure(inputs="orders", outputs="shipments", writes=["shipped"])
def ship(txn, orders):
    for order in orders:
        txn.insert("shipped", order)
        txn.emit("shipments", [order])
"""
FILE = """
app = "shop.py:app"
directory = "shop.db"

[[source]]
name = "orders"
kind = "files"
stream = "orders"
path = "${PLACE}/in"
size = 1

[[sink]]
name = "out"
kind = "files"
stream = "shipments"
directory = "out"
format = "csv"

[[sink]]
name = "log"
kind = "files"
stream = "shipped_changes"
directory = "changes"
"""


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PLACE", str(tmp_path))
    (tmp_path / "shop.py").write_text(APP)
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "a.ndjson").write_text('{"id": 1, "item": "tea"}\nnonsense\n{"id": 2, "item": "salt"}\n')
    (tmp_path / "connect.toml").write_text(FILE)
    return tmp_path


def run(*arguments: str) -> Any:
    return CliRunner().invoke(commands, list(arguments))


def test_a_file_is_checked_run_and_run_again(place: Path) -> None:
    checked = run("connect", "connect.toml", "--check", "--json")
    assert checked.exit_code == 0, checked.output
    assert {"source": "orders", "stream": "orders", "fits": "1 file to read", "lag": 60} in json.loads(checked.stdout)
    done = run("connect", "connect.toml", "--once", "--json")
    assert done.exit_code == 0, done.output
    source, out, log = json.loads(done.stdout)
    assert (source["rows"], source["rejected"], source["state"]) == (2, 1, "finished")
    assert (out["batches"], log["batches"]) == (2, 2)
    assert len(list((place / "out").glob("*.csv"))) == 2
    (place / "in" / "b.csv").write_text("id,item\n3,rice\n")
    done = run("connect", "connect.toml", "--once")
    assert done.exit_code == 0, done.output
    assert "finished" in done.stdout
    assert len(list((place / "out").glob("*.csv"))) == 3
    rebuilt = run("rebuild", "new.db", "--app", "shop.py:app", "--changes", "shipped=changes", "--json")
    assert json.loads(rebuilt.stdout) == [{"table": "shipped", "rows": 3}], rebuilt.output
    from tidegate.loading import load_app

    with tidegate.open(load_app("shop.py:app"), place / "new.db") as engine:
        assert [row.item for row in engine.query("SELECT item FROM shipped ORDER BY id").rows] == [
            "tea",
            "salt",
            "rice",
        ]


def test_sinks_alone_take_what_waits_and_stop(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """``--once`` without a source ends, too; a sink that does not take everything is a failure."""
    assert run("connect", "connect.toml", "--once").exit_code == 0
    _, *sinks = FILE.split("[[sink]]")
    head = 'app = "shop.py:app"\ndirectory = "shop.db"\n'
    (place / "sinks.toml").write_text(f"{head}[[sink]]{'[[sink]]'.join(sinks)}")
    done = run("connect", "sinks.toml", "--once", "--json")
    assert done.exit_code == 0, done.output
    assert [sink["batches"] for sink in json.loads(done.stdout)] == [0, 0]
    webhook = '[[sink]]\nname = "hook"\nkind = "webhook"\nstream = "shipments"\nurl = "http://127.0.0.1:9/"\n'
    (place / "hook.toml").write_text(head + webhook)
    assert run("connect", "hook.toml", "--once").exit_code == 0
    (place / "in" / "b.csv").write_text("id,item\n3,rice\n")
    assert run("connect", "connect.toml", "--once").exit_code == 0
    monkeypatch.setattr("tidegate.connectors.shared.running.DRAIN_S", 0.5)
    done = run("connect", "hook.toml", "--once", "--json")
    assert done.exit_code == 1
    assert json.loads(done.stdout)[0]["state"] == "failing"
    assert "[[source]]" in run("connect", "--help").stdout


def test_a_source_that_gives_up_is_told(place: Path) -> None:
    (place / "shop.py").write_text(APP.replace("declare_rejected(app)\n", "\n"))
    done = run("connect", "connect.toml", "--json")
    assert done.exit_code == 1
    source = json.loads(done.stdout)[0]
    assert source["state"] == "stopped"
    assert "a.ndjson:25 is not a row of orders" in source["error"]


def test_a_check_leaves_nothing_behind(place: Path) -> None:
    """No directory of the engine, no archive, no database; whatever it finds."""
    source = '[[source]]\nname = "{kind}"\nkind = "{kind}"\nstream = "orders"\n'
    with contextlib.closing(socket.create_server(("127.0.0.1", 0))) as server:
        port = server.getsockname()[1]
    told = f"""
app = "shop.py:app"
directory = "shop.db"
{source.format(kind="files")}path = "in"
archive = "read"
{source.format(kind="http")}port = {port}
{source.format(kind="websocket")}port = 0
[[sink]]
name = "s"
{SINKS["sql"]}
"""
    (place / "check.toml").write_text(told)
    before = sorted(path.name for path in place.iterdir())
    checked = run("connect", "check.toml", "--check", "--json")
    assert checked.exit_code == 0, checked.output
    assert [fact["fits"] for fact in json.loads(checked.stdout)] == [
        "target.sqlite and table shipped will be created",
        "1 file to read",
        f"127.0.0.1:{port} is free to listen on",
        "a free port will be taken",
    ]
    with contextlib.closing(socket.create_server(("127.0.0.1", port))):
        refused = run("connect", "check.toml", "--check")
    assert refused.exit_code == 1
    assert f"source[2] (http): can't listen on 127.0.0.1:{port}: Address already in use" in str(refused.exception)
    (place / "check.toml").write_text(
        f'app = "shop.py:app"\ndirectory = "shop.db"\n{source.format(kind="sql")}'
        'url = "sqlite:///no.sqlite"\ntable = "t"\ncursor = "n"\n'
    )
    refused = run("connect", "check.toml", "--check")
    assert "source[1] (sql): can't read t: there is no file no.sqlite" in str(refused.exception)
    after = sorted(path.name for path in place.iterdir() if path.name != "__pycache__")
    assert after == [name for name in before if name != "__pycache__"]


def test_everything_that_a_file_can_name_can_be_checked() -> None:
    for module, name in [*SOURCES.values(), *SINKS_BY_KIND.values()]:
        assert callable(getattr(importlib.import_module(f"tidegate.connectors.{module}"), name).check), name


SINKS = {
    "files": 'kind = "files"\nstream = "shipments"\ndirectory = "new/out"\n',
    "sql": 'kind = "sql"\nstream = "shipments"\nurl = "sqlite:///target.sqlite"\ntable = "shipped"\n',
    "webhook": 'kind = "webhook"\nstream = "shipments"\nurl = "http://127.0.0.1:{port}/"\n',
}


def with_sink(place: Path, told: str) -> Any:
    head = 'app = "shop.py:app"\ndirectory = "shop.db"\n'
    (place / "sink.toml").write_text(f'{head}[[sink]]\nname = "s"\n{told}')
    return run("connect", "sink.toml", "--check", "--json")


def test_sinks_are_checked_and_nothing_is_made(place: Path) -> None:
    with contextlib.closing(socket.create_server(("127.0.0.1", 0))) as server:
        port = server.getsockname()[1]
        for kind, fits in (
            ("files", "directory new/out will be created"),
            ("sql", "target.sqlite and table shipped will be created"),
            ("webhook", f"127.0.0.1:{port} answers"),
        ):
            checked = with_sink(place, SINKS[kind].replace("{port}", str(port)))
            assert checked.exit_code == 0, checked.output
            assert json.loads(checked.stdout) == [{"sink": "s", "stream": "shipments", "fits": fits}]
    assert not (place / "new").exists()
    target = sqlite3.connect("target.sqlite")
    assert target.execute("SELECT * FROM sqlite_master").fetchall() == []
    target.execute("CREATE TABLE shipped (id INTEGER PRIMARY KEY, item TEXT)")
    target.close()
    assert "has its columns" in with_sink(place, SINKS["sql"]).stdout


def test_sinks_that_would_not_do_are_told(place: Path) -> None:
    target = sqlite3.connect("target.sqlite")
    target.execute("CREATE TABLE shipped (place INTEGER PRIMARY KEY, id INT, price INT NOT NULL)")
    target.execute("CREATE TABLE filled (place INTEGER PRIMARY KEY, id INT, item TEXT, price INT NOT NULL DEFAULT 7)")
    target.close()
    (place / "file").write_text("")
    with contextlib.closing(socket.create_server(("127.0.0.1", 0))) as server:
        free = server.getsockname()[1]
    unreachable = SINKS["sql"].replace("sqlite:///target.sqlite", f"postgresql://nobody@127.0.0.1:{free}/x")
    for sink, told in (
        (SINKS["sql"], "it has no column item, which the stream has; its price is NOT NULL without a default"),
        (unreachable, "can't deliver shipments to table shipped in postgresql"),
        (SINKS["webhook"].replace("{port}", str(free)), f"can't deliver shipments to http://127.0.0.1:{free}/"),
        (SINKS["files"].replace("new/out", "file/out"), "can't deliver shipments to file/out"),
        (SINKS["files"] + 'partition_by = "ward"\n', "has no column ward"),
    ):
        result = with_sink(place, sink)
        assert result.exit_code == 1
        assert "sink[1] (s): " in str(result.exception)
        assert told in str(result.exception)
    assert with_sink(place, SINKS["sql"].replace('"shipped"', '"filled"')).exit_code == 0


def test_a_row_that_is_refused_is_put_aside_after_so_many_tries(place: Path) -> None:
    target = sqlite3.connect("target.sqlite")
    target.execute("CREATE TABLE shipped (id INTEGER, item TEXT CHECK (item <> 'salt'))")
    target.close()
    (place / "in" / "b.csv").write_text("id,item\n3,rice\n")
    source, _, _ = FILE.partition("[[sink]]")
    (place / "connect.toml").write_text(f'{source}[[sink]]\nname = "s"\ntries = 2\n{SINKS["sql"]}')
    done = run("connect", "connect.toml", "--once", "--json")
    assert done.exit_code == 0, done.output
    sink = json.loads(done.stdout)[1]
    assert (sink["state"], sink["batches"], sink["refused"], sink["waiting"]) == ("open", 2, 1, 0)
    target = sqlite3.connect("target.sqlite")
    assert target.execute("SELECT item FROM shipped ORDER BY id").fetchall() == [("tea",), ("rice",)]
    target.close()
    from tidegate.loading import load_app

    with tidegate.open(load_app("shop.py:app"), place / "shop.db") as engine:
        (letter,) = engine.query("SELECT procedure, rows, error FROM tidegate.dead_letters").rows
    assert letter.procedure == "delivery s"
    assert "salt" in letter.rows
    assert "CHECK constraint failed" in letter.error


@pytest.mark.parametrize(
    ("was", "now", "told"),
    [
        ('directory = "shop.db"', "", "give either directory (with app) or url"),
        ('app = "shop.py:app"', "", "key app is missing"),
        ('app = "shop.py:app"', "app = 7", "app = 7: expected text"),
        ('app = "shop.py:app"', 'apps = "shop.py:app"', "unknown key apps; there are app, directory, url"),
        (
            'kind = "files"\nstream = "orders"',
            'kind = "fils"\nstream = "orders"',
            "source[1].kind = 'fils': use one of files",
        ),
        ('path = "${PLACE}/in"', "", "source[1].path is missing; files takes path"),
        ('path = "${PLACE}/in"', "path = 3", "source[1].path = 3: expected"),
        ("size = 1", 'size = "one"', "source[1].size = 'one': expected a positive whole number"),
        ("size = 1", "follow = 1", "source[1].follow = 1: expected bool"),
        ('format = "csv"', "tries = 0", "sink[1].tries = 0: expected a positive whole number"),
        ('format = "csv"', "size = 1", "unknown key sink[1].size"),
        ("size = 1", "colour = 1", "unknown key source[1].colour; there are path, format, follow"),
        ("${PLACE}", "${NOWHERE}", "key path names the environment variable NOWHERE, which is not set"),
        ('format = "csv"', 'format = "xml"', "sink[1]: FileSink(format='xml')"),
        ('name = "log"', 'name = "out"', "sink[1].name: 'out' is used twice"),
        ('name = "orders"\n', "", "source[1].name is missing"),
        ("[[source]]", "[source", "is not valid TOML"),
        ("size = 1", "fields = { id = 3 }", "source[1].fields = {'id': 3}: expected Mapping[str, str]"),
        ('directory = "shop.db"', 'url = "shop"', "url = 'shop': expected the address of a server, http://host:port"),
    ],
)
def test_errors_name_the_key(place: Path, was: str, now: str, told: str) -> None:
    assert was in FILE
    (place / "connect.toml").write_text(FILE.replace(was, now, 1))
    with pytest.raises(TidegateError, match=re.escape(told)):
        read_setup("connect.toml")


@pytest.mark.parametrize(
    ("told", "error"),
    [
        ('kind = "kafka"\nservers = "x"\ntopic = "t"\nvalues = 3', "source[1].values = 3: expected a table, such as"),
        (
            'kind = "kafka"\nservers = "x"\ntopic = "t"\nvalues = { format = "avro", schema = "no.avsc" }',
            "source[1].values: can't read the schema no.avsc",
        ),
        (
            'kind = "sql"\nurl = "shop"\ntable = "t"\ncursor = "n"',
            "source[1]: 'shop' is not a database address; write postg",
        ),
        (
            'kind = "sql"\nurl = "shop://x"\ntable = "t"\ncursor = "n"',
            "SQLAlchemy knows no database 'shop'; write postgresql",
        ),
        ('kind = "http"\nport = 99999', "source[1]: port=99999: give one from 1 to 65535"),
    ],
)
def test_errors_in_what_a_connector_is_given(place: Path, told: str, error: str) -> None:
    (place / "connect.toml").write_text(
        f'app = "shop.py:app"\ndirectory = "d"\n[[source]]\nname = "s"\nstream = "orders"\n{told}\n'
    )
    with pytest.raises(TidegateError, match=re.escape(error)):
        read_setup("connect.toml")


NOT_INSTALLED = [
    ("kafka", "confluent_kafka", 'servers = "x"\ntopic = "t"', "kafka"),
    ("mqtt", "paho", 'host = "x"\ntopics = "#"', "mqtt"),
    ("mqtt", "fastavro", 'host = "x"\ntopics = "#"\nvalues = { format = "avro", schema = "s" }', "kafka"),
    ("wfdb", "wfdb", 'path = "x"', "wfdb"),
    ("websocket", "websockets", "port = 0", "server"),
    ("postgres_changes", "psycopg", 'url = "postgresql://x"\ntable = "t"\nslot = "s"', "postgres"),
]
WITHOUT = """
import sys
sys.argv = ["tidegate", "connect"]
from tidegate.cli.main import main
for number, package in enumerate(sys.stdin.read().split()):
    sys.modules[package] = None
    sys.argv[2:] = [f"{number}.toml"]
    try:
        main()
    except SystemExit as ended:
        print(ended.code, file=sys.stderr)
    if package == "paho":  # the next one needs it
        del sys.modules[package]
"""


def test_what_is_not_installed_is_told(place: Path) -> None:
    """In a process of its own, which can't import it."""
    for number, (kind, _, given, _) in enumerate(NOT_INSTALLED):
        (place / f"{number}.toml").write_text(
            f'app = "shop.py:app"\ndirectory = "d"\n[[source]]\nname = "s"\nkind = "{kind}"\nstream = "orders"\n{given}\n'
        )
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT], input=" ".join(package for _, package, _, _ in NOT_INSTALLED),
        capture_output=True, text=True, timeout=120,
    )  # fmt: skip
    lines = done.stderr.splitlines()
    assert len(lines) == 2 * len(NOT_INSTALLED), done.stderr
    for number, (_, _, _, extra) in enumerate(NOT_INSTALLED):
        told, code = lines[2 * number : 2 * number + 2]
        assert told.startswith(f"tidegate: {number}.toml: source[1]")
        assert f"pip install 'tidegate[{extra}]'" in told
        assert code == "2"


def test_settings_that_kafka_does_not_know_are_told(place: Path) -> None:
    (place / "connect.toml").write_text(
        'app = "shop.py:app"\ndirectory = "d"\n[[source]]\nname = "s"\nkind = "kafka"\nstream = "orders"\n'
        'servers = "127.0.0.1:1"\ntopic = "t"\nsettings = { nonsense = "a" }\n'
    )
    for option in ("--check", "--once"):
        result = run("connect", "connect.toml", option)
        assert 'settings= for topic t: No such configuration property: "nonsense"' in str(result.exception)


def connecting(*options: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "tidegate", "connect", "connect.toml", *options]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def test_ctrl_c_stops_what_is_at_work(place: Path) -> None:
    (place / "connect.toml").write_text(FILE.replace("size = 1", "follow = true"))
    process = connecting("--json")
    until = time.monotonic() + 60
    while not list((place / "out").glob("*.csv")):
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < until
        time.sleep(0.05)
    process.send_signal(signal.SIGINT)
    told, complaints = process.communicate(timeout=60)
    assert process.returncode == 0, complaints
    assert [fact["stream"] for fact in json.loads(told)] == ["orders", "shipments", "shipped_changes"]
    assert "Traceback" not in complaints


def test_ctrl_c_ends_a_start_that_waits_for_a_server(place: Path) -> None:
    """A server that takes connections and never answers."""
    with contextlib.closing(socket.create_server(("127.0.0.1", 0))) as server:
        url = f'url = "http://127.0.0.1:{server.getsockname()[1]}"'
        (place / "connect.toml").write_text(FILE.replace('app = "shop.py:app"\ndirectory = "shop.db"', url))
        process = connecting()
        with contextlib.closing(server.accept()[0]) as connection:
            connection.recv(1)  # it waits for an answer now
            process.send_signal(signal.SIGINT)
            _, complaints = process.communicate(timeout=60)
    assert process.returncode == 130, complaints
    assert "Traceback" not in complaints


def test_streams_that_are_not_there_are_told(place: Path) -> None:
    for was, now, told in (
        ('stream = "orders"', 'stream = "ordres"', "source[1].stream = 'ordres': no border stream; there are orders"),
        (
            'stream = "shipments"',
            'stream = "orders"',
            "sink[1].stream = 'orders': no output stream; there are shipments",
        ),
    ):
        (place / "connect.toml").write_text(FILE.replace(was, now, 1))
        for options in (["--check"], ["--once"]):
            result = run("connect", "connect.toml", *options)
            assert told in str(result.exception)


def test_what_the_connectors_do_is_there_for_prometheus(place: Path) -> None:
    with running(read_setup("connect.toml")) as at_work, metrics(at_work, 0) as port:
        for ingestion in at_work.ingestions:
            assert ingestion.wait(60)
        at_work.drain()
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics") as answer:
            told = answer.read().decode().splitlines()
    assert 'tidegate_source_rows_total{source="orders"} 2' in told
    assert 'tidegate_source_rejected_total{source="orders"} 1' in told
    assert 'tidegate_source_lag{source="orders"} 0' in told
    assert 'tidegate_sink_batches_total{sink="out"} 2' in told
    assert 'tidegate_sink_waiting{sink="out"} 0' in told
    assert 'tidegate_sink_refused_total{sink="out"} 0' in told
