"""tidegate sql: against directories (open or not), the PostgreSQL endpoint, and typed at a prompt."""

from __future__ import annotations

import contextlib
import io
import json
import os
import pty
import select
import subprocess
import sys
import tempfile
import textwrap
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pyarrow as pa
import pytest
from prompt_toolkit.completion import CompleteEvent
from prompt_toolkit.document import Document
from prompt_toolkit.history import InMemoryHistory
from prompt_toolkit.input import create_pipe_input
from prompt_toolkit.output import DummyOutput
from rich.console import Console

import tidegate
from tidegate.cli.main import main
from tidegate.errors import TidegateError
from tidegate.loading import load_app
from tidegate.replica import Limits, ReplicaProcess
from tidegate.shell.prompt import Shell, SqlCompleter
from tidegate.shell.showing import as_csv, as_json, show
from tidegate.shell.sources import open_source

APP = """
from tidegate import App

app = App("shop")
app.table("CREATE TABLE stock (item VARCHAR PRIMARY KEY, pieces INTEGER NOT NULL)")
app.stream("orders", "item VARCHAR NOT NULL, pieces INTEGER NOT NULL", border=True)

@app.procedure(inputs="orders", writes=["stock"])
def ship(txn, orders):
    for order in orders:
        txn.upsert("stock", order)
"""


@pytest.fixture
def app_file(tmp_path: Path) -> Path:
    place = tmp_path / "shop.py"
    place.write_text(textwrap.dedent(APP))
    return place


@pytest.fixture
def app(app_file: Path) -> tidegate.App:
    return load_app(f"{app_file}:app")


@pytest.fixture
def data(tmp_path: Path, app: tidegate.App) -> Path:
    with tidegate.open(app, tmp_path / "data") as engine:
        engine.push("orders", [("tea", 10), ("jam", 3)])
    return tmp_path / "data"


class Done(NamedTuple):
    returncode: int
    stdout: str
    stderr: str


Run = Callable[..., Done]


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    """``run(*arguments, given="")``: the command in this process, with this standard input."""

    def runs(*arguments: str, given: str = "") -> Done:
        monkeypatch.setattr(sys, "argv", ["tidegate", "sql", *arguments])
        monkeypatch.setattr(sys, "stdin", io.StringIO(given))
        try:
            main()
            code = 0
        except SystemExit as end:
            code = int(end.code or 0)
        return Done(code, *capsys.readouterr())

    return runs


QUERY = "SELECT item, pieces FROM stock ORDER BY item"


def test_a_closed_directory(data: Path, run: Run) -> None:
    done = run(str(data), "-c", QUERY, "--csv")
    assert (done.returncode, done.stdout) == (0, "item,pieces\njam,3\ntea,10\n"), done.stderr
    assert json.loads(run(str(data), "-c", QUERY, "--json").stdout) == {
        "columns": ["item", "pieces"],
        "rows": [["jam", 3], ["tea", 10]],
    }
    shown = run(str(data), "-c", QUERY).stdout
    assert "│ jam" in shown
    assert "2 rows in" in shown


def test_standard_input(data: Path, run: Run) -> None:
    assert run(str(data), "--csv", given="SELECT 1 AS a; SELECT ';' AS b;").stdout == "a\n1\nb\n;\n"


def test_errors_are_one_message(data: Path, tmp_path: Path, run: Run) -> None:
    for arguments, told in (
        ((str(data), "-c", "SELECT * FROM nowhere"), "nowhere does not exist"),
        ((str(data), "-c", "DELETE FROM stock"), "read-only"),
        ((str(tmp_path), "-c", "SELECT 1"), "has no log"),
        (("ftp://x", "-c", "SELECT 1"), "give a directory"),
        (("postgresql://u:hidden@127.0.0.1:1/tidegate", "-c", "SELECT 1"), "can't connect"),
        ((str(data), "-c", "SELECT 1", "--json", "--csv"), "not both"),
        ((str(data), "-c", "  "), "nothing to run"),
    ):
        done = run(*arguments)
        assert done.returncode == 2
        assert told in " ".join(done.stderr.split())
        assert "Traceback" not in done.stderr
        assert "hidden" not in done.stderr


def test_a_running_engine_is_not_disturbed(
    data: Path, app: tidegate.App, app_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    with tidegate.open(app, data) as engine:
        engine.push("orders", [("cake", 1)])
        with pytest.raises(TidegateError, match="has kept no copy of its tables yet"):
            open_source(str(data))
        replayed = open_source(str(data), f"{app_file}:app")  # base from the log: everything acknowledged
        assert replayed.query("SELECT count(*) AS n FROM stock").to_pylist() == [{"n": 3}]
        assert "tidegate.locks" in replayed.schema()
        replayed.close()
        engine.checkpoint(generation=True)
        engine.push("orders", [("later", 1)])
        stored = open_source(str(data))
        assert stored.query("SELECT count(*) AS n FROM stock").to_pylist() == [{"n": 3}]
        assert "last kept copy" in stored.note
        stored.close()
        engine.push("orders", [("more", 1)])
        assert engine.query("SELECT count(*) FROM stock").scalar() == 5
    assert not list(tmp_path.glob("tidegate-read-*"))  # nothing is left behind


def test_the_postgres_endpoint(app: tidegate.App, run: Run) -> None:
    with tidegate.open(app) as engine:
        engine.push("orders", [("tea", 10)])
        engine.checkpoint()
        with ReplicaProcess(engine, Limits(), pg_port=0) as replica:
            assert replica.pg_address is not None
            url = f"postgresql://me@{replica.pg_address[0]}:{replica.pg_address[1]}/tidegate"
            assert run(url, "-c", QUERY, "--csv").stdout == "item,pieces\ntea,10\n"
            done = run(url, "-c", "DROP TABLE stock")
            assert done.returncode == 2
            assert "not allowed" in done.stderr
            source = open_source(url)
            assert [name for name, _ in source.schema()["stock"]] == ["item", "pieces"]
            assert "tidegate.streams" in source.schema()
            assert source.query("SET application_name = 'x'").to_pylist() == [{"answer": "SET"}]
            source.close()


# ---- at the prompt


def typed(data: Path, *lines: str) -> str:
    out = io.StringIO()
    source = open_source(str(data))
    with create_pipe_input() as keys:
        keys.send_text("".join(f"{line}\n" for line in lines) + "\x04")
        console = Console(file=out, width=100)
        Shell(source, console, history=InMemoryHistory(), input=keys, output=DummyOutput()).run()
    source.close()
    return out.getvalue()


def test_a_conversation(data: Path) -> None:
    told = typed(
        data, "SELECT item", "FROM stock", "ORDER BY item;", "SELEC 1;", ".tables", ".schema stock", ".nonsense"
    )
    assert "│ jam" in told
    assert "2 rows in" in told
    assert "error:" in told
    assert "2 columns" in told
    assert "VARCHAR" in told
    assert ".nonsense is not a command" in told


def test_modes_and_timer(data: Path) -> None:
    told = typed(
        data, ".mode csv", "SELECT 1 AS x;", ".mode table", ".timer off", "SELECT 2 AS x;", ".schema no", ".help"
    )
    assert "x\n1\n" in told
    assert "1 row\n" in told
    assert "there is no table no" in told
    assert ".mode table|json|csv" in told
    assert "unreached" not in typed(data, ".quit", "SELECT 1 AS unreached;")


def test_completion() -> None:
    completer = SqlCompleter(lambda: {"stock": [("item", "VARCHAR"), ("pieces", "INTEGER")], "tidegate.locks": []})

    def complete(text: str) -> list[str]:
        return [c.text for c in completer.get_completions(Document(text), CompleteEvent())]

    assert complete("SELECT * FROM st") == ["stock"]
    assert complete("SELECT pi") == ["pieces"]
    assert complete("SELECT stock.p") == ["stock.pieces"]
    assert complete("FROM tidegate.l") == ["tidegate.locks"]
    assert "SELECT" in complete("sel")
    assert complete(".ta") == [".tables"]


def test_on_a_real_terminal(data: Path, tmp_path: Path) -> None:
    """The whole command with a pseudo-terminal: typed at, answered, history kept."""
    keyboard, terminal = pty.openpty()
    environment = {
        **os.environ,
        "XDG_STATE_HOME": str(tmp_path / "state"),
        "TERM": "xterm",
        "PROMPT_TOOLKIT_NO_CPR": "1",
    }
    code = "from tidegate.cli.main import main; main()"
    process = subprocess.Popen(
        [sys.executable, "-c", code, "sql", str(data)],
        stdin=terminal,
        stdout=terminal,
        stderr=terminal,
        env=environment,
    )
    os.close(terminal)
    said = b""

    def wait_for(text: bytes) -> None:
        """Until it says ``text``, from here on."""
        nonlocal said
        deadline = time.monotonic() + 60
        while text not in said:
            assert select.select([keyboard], [], [], deadline - time.monotonic())[0], said
            said += os.read(keyboard, 4096)
        said = said.partition(text)[2]

    wait_for(b"tidegate>")
    wait_for(b"\x1b[?25h")  # it reads keys now
    os.write(keyboard, b"SELECT 40 + 2 AS answer;\r")
    wait_for(b"     42 ")
    wait_for(b"tidegate>")
    wait_for(b"\x1b[?25h")
    os.write(keyboard, b"\x04")
    with contextlib.suppress(OSError):  # the other end is closed
        while select.select([keyboard], [], [], 60)[0] and os.read(keyboard, 4096):
            pass
    assert process.wait(timeout=60) == 0
    os.close(keyboard)
    assert "SELECT 40 + 2 AS answer;" in (tmp_path / "state" / "tidegate" / "sql_history").read_text()


def test_forms() -> None:
    answer = pa.table({"b": [b"\x01", None], "t": ["a,b", "[red]"]})
    assert json.loads(as_json(answer))["rows"] == [["01", "a,b"], [None, "[red]"]]
    assert as_csv(pa.table({"x": ["a,b", None]})) == 'x\n"a,b"\n""\n'
    out = io.StringIO()
    show(answer, "table", Console(file=out, width=80))
    assert "[red]" in out.getvalue()


def test_two_columns_of_one_name_and_numbers_that_json_lacks() -> None:
    answer = pa.Table.from_arrays([pa.array([1]), pa.array([float("nan")])], names=["a", "a"])
    assert json.loads(as_json(answer)) == {"columns": ["a", "a"], "rows": [[1, "NaN"]]}
    assert as_csv(answer) == "a,a\n1,nan\n"


def test_rows_wider_than_the_screen_are_shown_line_by_line() -> None:
    answer = pa.table({f"a_long_name_{n}": [n, n + 100] for n in range(9)})
    out = io.StringIO()
    show(answer, "table", Console(file=out, width=80))
    lines = [line.split() for line in out.getvalue().splitlines()]
    assert lines[:2] == [["row", "1"], ["a_long_name_0", "0"]]
    assert ["a_long_name_8", "108"] in lines
    assert lines[-1] == ["2", "rows"]
