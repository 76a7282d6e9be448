"""The commands, as a user types them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer

import tidegate
from tidegate.cli.main import app as cli
from tidegate.examples.leaderboard.app import app
from tidegate.examples.leaderboard.reference import random_votes
from tidegate.loading import load_app

APP = "tidegate.examples.leaderboard.app:app"


def run(*arguments: str, code: int = 0) -> subprocess.CompletedProcess[str]:
    done = subprocess.run(
        [sys.executable, "-c", "from tidegate.cli.main import main; main()", *arguments],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == code, done.stdout + done.stderr
    return done


@pytest.fixture
def data(tmp_path: Path) -> Path:
    with tidegate.open(app, tmp_path / "data") as engine:
        engine.call("set_up")
        engine.feed("votes_in", random_votes(50))
        engine.push("votes_in", [(1_000, 1, 1)], batch_id=1_000).result()
    return tmp_path / "data"


def test_help_lists_the_commands() -> None:
    told = run("--help").stdout
    for command in ("demo", "bench", "sim", "log", "verify", "backup", "version"):
        assert command in told


def _commands(group: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    for name, command in group.commands.items():
        if hasattr(command, "commands"):
            yield from _commands(command, (*path, name))
        else:
            yield (*path, name), command


COMMANDS = dict(_commands(typer.main.get_command(cli)))


def test_help_does_not_import_an_engine() -> None:
    asked = (
        "import sys; from tidegate.cli import main; print(sorted({'duckdb', 'sqlglot', 'numpy'} & set(sys.modules)))"
    )
    assert subprocess.run([sys.executable, "-c", asked], capture_output=True, text=True, check=True).stdout == "[]\n"


@pytest.mark.parametrize("path", COMMANDS, ids=" ".join)
def test_every_command_has_an_example_and_json(path: tuple[str, ...]) -> None:
    command = COMMANDS[path]
    assert f"Example: tidegate {' '.join(path)}" in command.help
    assert any("--json" in parameter.opts for parameter in command.params)
    reference = (Path(__file__).parents[2] / "docs" / "reference" / "command-line.md").read_text()
    assert f"`tidegate {' '.join(path)}" in reference


def test_version() -> None:
    told = run("version").stdout.strip()
    assert json.loads(run("version", "--json").stdout)["tidegate"] == told
    assert run("--version").stdout.strip() == told
    as_module = [sys.executable, "-m", "tidegate", "--version"]
    assert subprocess.run(as_module, capture_output=True, text=True, check=True).stdout.strip() == told


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("import nosuch", "can't be imported: ModuleNotFoundError: No module named 'nosuch' (line 1 of"),
        ("def f(:", "is not valid Python: invalid syntax (line 1 of"),
        ("\nx = y", "can't be imported: NameError: name 'y' is not defined (line 2 of"),
        ("import tidegate\ntidegate.App('a').table('CREATE TABL t')", "DuckDB refuses this DDL"),
        ("app = 5", "has no app called 'app'; it has no App"),
        ("def app():\n    raise ValueError('no')", "ValueError: no (line 2 of"),
    ],
)
def test_an_app_that_does_not_import_is_one_error(tmp_path: Path, text: str, told: str) -> None:
    (tmp_path / "bad_app.py").write_text(text)
    with pytest.raises(tidegate.TidegateError) as refused:
        load_app(f"{tmp_path / 'bad_app.py'}:app")
    assert told in str(refused.value)


def test_demo_equals_the_reference() -> None:
    told = run("demo", "leaderboard", "--votes", "500", "--seconds", "0").stdout
    assert "equals the serial reference" in told


def test_bench_leaderboard_prints_what_it_promises() -> None:
    facts = json.loads(run("bench", "leaderboard", "--votes", "1800", "--rounds", "1", "--sql", "--json").stdout)
    assert {"votes_per_s", "dicts_votes_per_s", "overhead_us_per_execution", "correct", "machine", "commit"} <= set(
        facts
    )
    assert facts["correct"] is True


def test_sim_reports_no_violation() -> None:
    facts = json.loads(run("sim", "--seeds", "4", "--json").stdout)
    assert facts["seeds"] == 4
    assert facts["failures"] == []


def test_log_for_people_and_for_programs(data: Path) -> None:
    assert "set_up" in run("log", str(data)).stdout
    kinds = [json.loads(line)["kind"] for line in run("log", str(data), "--json").stdout.splitlines()]
    assert kinds == ["called", "fed", "pushed", "checkpoint"]


def test_verify_says_same_or_different(data: Path) -> None:
    assert json.loads(run("verify", str(data), "--app", APP, "--json").stdout)["same"] is True
    import duckdb

    with duckdb.connect(str(data / "base.duckdb")) as base:
        base.execute("UPDATE tidegate_base.contestants SET total = total + 1 WHERE id = 3")
    told = run("verify", str(data), "--app", APP, code=1).stdout
    assert "contestants" in told
    assert "same" in told


def test_an_upgrade_is_asked_for_beforehand(tmp_path: Path) -> None:
    shop = tmp_path / "shop.py"
    text = """from tidegate import App

app = App("shop")
app.table("CREATE TABLE t (k INTEGER PRIMARY KEY{})")

@app.procedure(writes=["t"])
def put(txn, k: int):
    txn.insert("t", {{"k": k}})
"""
    where, data = f"{shop}:app", str(tmp_path / "data")
    shop.write_text(text.format(", word VARCHAR"))
    with tidegate.open(load_app(where), data) as engine:
        engine.call("put", 1)
        held = run("upgrade", "--check", where, data, code=2)
        assert "is open in process" in held.stderr
    assert "nothing has changed" in run("upgrade", "--check", where, data).stdout
    shop.write_text(text.format(", n INTEGER NOT NULL DEFAULT 7"))
    files = {path: path.read_bytes() for path in (tmp_path / "data").rglob("*") if path.is_file()}
    told = json.loads(run("upgrade", "--check", where, data, "--json", code=1).stdout)
    assert [(change["name"], change["verdict"]) for change in told["changes"]] == [
        ("t.n", "refilled"),
        ("t.word", "refused"),
    ]
    assert "dropped" in run("upgrade", "--check", where, data, "--drop", "t.word").stdout
    assert files == {path: path.read_bytes() for path in (tmp_path / "data").rglob("*") if path.is_file()}
    assert "--drop t.word" in run("upgrade", where, data, code=2).stderr
    assert "refilled" in run("upgrade", where, data, "--drop", "t.word").stdout
    shop.write_text(shop.read_text().replace('{"k": k}', '{"k": k + 1}'))
    told_of = json.loads(run("upgrade", "--check", where, data, "--json").stdout)
    assert told_of["same"]["table"] == ["t"]
    assert "procedure put" in told_of["code"][0]
    run("upgrade", where, data)
    assert "nothing has changed" in run("upgrade", "--check", where, data).stdout


def test_backup_of_a_closed_and_of_a_running_engine(data: Path, tmp_path: Path) -> None:
    run("backup", str(data), str(tmp_path / "closed"))
    with tidegate.open(app, data) as engine:
        engine.push("votes_in", [(1_001, 2, 2)]).result()
        run("backup", str(data), str(tmp_path / "running"))
        engine.backup(tmp_path / "inside")
        votes = engine.query("SELECT count(*) FROM votes").scalar()
    for name, lost in (("closed", 1), ("running", 0), ("inside", 0)):
        run("verify", str(tmp_path / name), "--app", APP)
        with tidegate.open(app, tmp_path / name) as copy:
            assert copy.query("SELECT count(*) FROM votes").scalar() == votes - lost, name


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (("log", "nowhere"), "has no log"),
        (("verify", "nowhere", "--app", "nothing_here:app"), "can't import"),
        (("verify", "nowhere", "--app", "missing.py:app"), "there is no file"),
        (("backup", "nowhere", "target"), "has no log"),
    ],
)
def test_mistakes_are_one_clear_line(arguments: tuple[str, ...], told: str) -> None:
    error = run(*arguments, code=2).stderr
    assert told in " ".join(error.split())
    assert "Traceback" not in error


def test_a_mistake_is_json_for_programs() -> None:
    error = json.loads(run("log", "nowhere", "--json", code=2).stderr)["error"]
    assert error["type"] == "TidegateError"
    assert "has no log" in error["message"]


@pytest.mark.parametrize("module", ["typer", "duckdb", "rich.markup"])
def test_an_interrupt_while_the_command_begins_leaves_no_trace(tmp_path: Path, module: str) -> None:
    """Ctrl-C while the command still imports: here, at this module."""
    (tmp_path / "sitecustomize.py").write_text(
        f"""
import signal, sys
signal.signal(signal.SIGINT, signal.default_int_handler)
class Interrupted:
    def find_spec(self, name, path=None, target=None):
        if name == {module!r}:
            signal.raise_signal(signal.SIGINT)
sys.meta_path.insert(0, Interrupted())
"""
    )
    places = os.pathsep.join([str(tmp_path), *filter(None, sys.path)])
    done = subprocess.run(
        [sys.executable, "-m", "tidegate", "graph", APP],
        env={**os.environ, "PYTHONPATH": places}, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (130, "")
