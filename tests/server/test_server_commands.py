"""The commands that talk to a server, or make one, as a user types them."""

from __future__ import annotations

import io
import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
from rich.console import Console
from server_process import HERE, Server, killed

from tidegate import App
from tidegate.cli.main import main
from tidegate.cli.status_tables import status_tables
from tidegate.dataflows.drawing import describe_graph, mermaid, svg, text

SHOP = f"{HERE / 'shop.py'}:app"


class Told:
    """What a command printed."""

    def __init__(self, stdout: str, stderr: str) -> None:
        self.stdout, self.stderr = stdout, stderr


Run = Callable[..., Told]


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    """The command line, in this process: starting one for every command takes longer than all the rest."""
    monkeypatch.setenv("COLUMNS", "160")
    monkeypatch.setattr(sys, "path", list(sys.path))

    def do(*arguments: str, code: int = 0, stdin: str = "") -> Told:
        monkeypatch.setattr(sys, "argv", ["tidegate", *arguments])
        monkeypatch.setattr(sys, "stdin", io.StringIO(stdin))
        capsys.readouterr()
        with pytest.raises(SystemExit) as ended:
            main()
        told = Told(*capsys.readouterr())
        assert (ended.value.code or 0) == code, told.stdout + told.stderr
        return told

    return do


def test_push_and_call(run: Run, shared: Server) -> None:
    there = ("--url", shared.url, "--json")
    assert json.loads(run("call", "deliver", "tea", "10", *there).stdout) == {"value": 10}
    pushed = json.loads(run("push", "orders", '["tea", 4]', '{"item": "tea", "pieces": 1}', *there).stdout)
    assert (pushed["done"], pushed["error"]) == (True, None)
    refused = json.loads(run("push", "orders", '["tea", 400]', *there, code=1).stdout)
    assert "pieces >= 0" in refused["error"]
    run("call", "fail", *there, code=1)
    lines = '["tea", 0]\n' * 25
    fed = json.loads(run("push", "orders", "-i", "-", "--size", "10", *there, stdin=lines).stdout)
    assert (fed["batches"], fed["committed"]) == (3, 3)
    assert "did you mean 'orders'" in run("push", "order", "[]", *there, code=2).stderr
    assert "write each as" in run("push", "orders", "tea", "4", *there, code=2).stderr
    assert "for CSV, add --csv" in run("push", "orders", *there, stdin="item,pieces\ntea,1\n", code=2).stderr
    assert "is the server running" in run("push", "orders", "[]", "--url", "http://127.0.0.1:1", code=2).stderr


def test_questions_are_listed_answered_and_asked_anew(run: Run, shared: Server) -> None:
    there = ("--url", shared.url)
    with shared.client() as client:
        client.push("alerts", [(55,)])
        (question,) = [q for q in client.questions() if q.key == 55]
        told = run("questions", *there).stdout
        for word in (
            "treat",
            "of key 55",
            "answer on decisions",
            "proposals",
            f"answer {question.id} {question.digest}",
        ):
            assert word in told, told
        listed = json.loads(run("questions", *there, "--json").stdout)["questions"]
        assert question.digest in [q["digest"] for q in listed]
        assert json.loads(run("reask", question.id, question.digest, *there, "--json").stdout) == {
            "reasked": question.id
        }
        named = ("answer", question.id)
        refused = run(*named, "0" * 32, '{"give": true}', *there, code=2).stderr
        assert "Nothing was accepted" in refused
        assert "an answer is a JSON object" in run(*named, question.digest, "[1]", *there, code=2).stderr
        assert json.loads(run(*named, question.digest, '{"give": false}', *there, "--json").stdout)["done"]
        assert "is not open" in run(*named, question.digest, '{"give": true}', *there, code=2).stderr
        assert "is not open" in run("reask", question.id, question.digest, *there, code=2).stderr


def test_rows_from_a_pipe_and_from_csv(run: Run, shared: Server, tmp_path: Path) -> None:
    there = ("--url", shared.url, "--json")
    piped = run("push", "orders", "--size", "2", *there, stdin='["tea", 0]\n["tea", 0]\n\n["tea", 0]\n')
    assert json.loads(piped.stdout)["batches"] == 2
    table = 'big,price,word,yes,day\n7,12.50,"a, b",true,2026-01-31\n8,,,,\n'
    assert json.loads(run("push", "anything", "--csv", *there, stdin=table).stdout)["error"] is None
    with shared.client() as client:
        kept = client.query("SELECT big, price, word, yes, day FROM kept WHERE big IN (7, 8) ORDER BY big").rows
    assert [tuple(map(str, row)) for row in kept] == [
        ("7", "12.50", "a, b", "True", "2026-01-31"),
        ("8", "None", "None", "None", "None"),
    ]
    (tmp_path / "orders.csv").write_text("item,pieces\ntea,0\ntea,many\n")
    wrong = run("push", "orders", "-i", str(tmp_path / "orders.csv"), *there, code=2).stderr
    assert "line 3 of the CSV: pieces INTEGER can't take 'many'" in wrong
    assert "the columns item, pieces" in run("push", "orders", "--csv", *there, stdin="item,peaces\n", code=2).stderr
    assert "1 fields, the header 2" in run("push", "orders", "--csv", *there, stdin="item,pieces\ntea\n", code=2).stderr
    assert "the input is empty" in run("push", "orders", *there, stdin="", code=2).stderr


def test_arguments_are_read_by_the_procedures_annotations(run: Run, shared: Server) -> None:
    there = ("--url", shared.url, "--json")
    assert json.loads(run("call", "deliver", "0123", "--named", "pieces=4", *there).stdout) == {"value": 4}
    assert (
        "deliver: pieces takes a whole number, got 'many'"
        in run("call", "deliver", "tea", "many", *there, code=2).stderr
    )
    assert "NAME=VALUE" in run("call", "deliver", "tea", "--named", "4", *there, code=2).stderr
    with shared.client() as client:
        answer = client.http.post("/v1/procedures/deliver", json={"arguments": ["tea", 1.5]})
        assert (answer.status_code, "whole number" in answer.text) == (422, True)
        answer = client.http.post("/v1/procedures/deliver", json={"arguments": ["tea", 1], "encoding": "text"})
        assert "every argument is a text" in answer.text


def test_markup_in_an_error_is_text(run: Run, shared: Server) -> None:
    told = run("push", "orders", '["[spark]", 400]', "--url", shared.url, code=1).stdout
    assert "pieces >= 0" in told
    assert "echo: [spark]" not in told
    assert run("call", "echo", "[spark] [/]", "--url", shared.url).stdout.strip() == "[spark] [/]"


def test_status_once(run: Run, shared: Server) -> None:
    with shared.client() as client:
        client.push("alerts", [(1,)])
        client.push("alerts", [(1,)])
        client.push("orders", [("nothing", 3)])
        told = run("status", "--url", shared.url).stdout  # no terminal: printed once
        for word in ("shop", "alerts", "waiting for people", "low-water marks", "aborts", "pieces >= 0"):
            assert word in told, told
        assert re.search(r"treat at \d+.0 +waits for its turn +treat at \d+.0", told), told
        assert json.loads(run("status", "--url", shared.url, "--json").stdout)["unfinished"] == 2
        before = client.status()
        client.push("orders", [("tea", 0)])
        console = Console(width=160, record=True)
        console.print(status_tables(client.status(), before, 0.5))
        shown = " ".join(console.export_text().split())
        assert "a second 2 " in shown
        assert "trend recent" in shown


def test_graph_of_an_app_and_of_a_server(run: Run, shared: Server, tmp_path: Path) -> None:
    told = run("graph", SHOP).stdout
    assert "orders (border)\n└─▶ [ship] writes stock\n    └─▶ shipments" in told
    assert "decisions (waits for people, by patient)" in told
    assert run("graph", "--url", shared.url, "--format", "mermaid").stdout.startswith("flowchart LR")
    run("graph", SHOP, "--format", "svg", "--output", str(tmp_path / "shop.svg"))
    assert ElementTree.parse(tmp_path / "shop.svg").getroot().tag.endswith("svg")
    assert len(json.loads(run("graph", SHOP, "--json").stdout)["nodes"]) > 10
    run("graph", code=2)
    run("graph", SHOP, "--format", "png", code=2)


def test_nodes_of_a_drawing_do_not_cover_each_other() -> None:
    from tidegate.examples.leaderboard.app import app

    described = describe_graph(app.graph())
    places = [
        (rect.get("x"), rect.get("y"))
        for group in ElementTree.fromstring(svg(described)).iter("{http://www.w3.org/2000/svg}g")
        if "node" in str(group.get("class"))
        for rect in group.iter("{http://www.w3.org/2000/svg}rect")
    ]
    assert len(places) == len(set(places)) == len(described["nodes"])
    assert "subgraph" in mermaid(described)
    assert "[vote] in" in text(described)


def test_a_drawing_shows_where_the_key_changes() -> None:
    app = App("words")
    app.stream("lines", "page INTEGER NOT NULL, line VARCHAR", border=True, key="page")
    app.stream("words", "word VARCHAR NOT NULL", key="word")

    @app.procedure(inputs="lines", outputs="words")
    def split(txn: Any, lines: Any) -> None: ...

    described = describe_graph(app.graph())
    assert "lines (border, by page)\n└─▶ [split]\n    └─▶ words (split by word)" in text(described)
    assert '(["words<br/>split by word"])' in mermaid(described)
    drawn = ElementTree.fromstring(svg(described)).iter("{http://www.w3.org/2000/svg}text")
    assert [t.text for t in drawn if t.get("class") == "key"] == ["by page", "split by word"]


def test_run_over_lines(run: Run, tmp_path: Path) -> None:
    lines = '{"call": "deliver", "arguments": ["tea", 5]}\n{"stream": "orders", "rows": [["tea", 4]], "batch_id": 9}\n'
    done = run("run", SHOP, "--data", str(tmp_path / "data"), "--follow", "shipments", "--json", stdin=lines)
    batch, facts = (json.loads(line) for line in done.stdout.splitlines())
    assert (batch["batch_id"], batch["rows"]) == (9, [{"item": "tea", "pieces": 4}])
    assert facts == {"lines": 2, "undone": 0, "sequence": 2, "waiting": 0}
    (tmp_path / "rows").write_text('["tea", 1]\n["tea", 1]\n')
    more = ("--data", str(tmp_path / "data"), "--stream", "orders", "-i", str(tmp_path / "rows"))
    assert "pieces >= 0" in run("run", SHOP, *more, code=1).stderr
    assert "a line is" in run("run", SHOP, stdin="[1]\n", code=2).stderr


def test_tokens_are_made_and_kept_as_hashes(run: Run, tmp_path: Path) -> None:
    file = tmp_path / "tokens.toml"
    first = json.loads(run("token", "new", "--name", "a", "--role", "push", "--file", str(file), "--json").stdout)
    run("token", "new", "--name", "b", "--role", "query", "--days", "3", "--rate", "9", "--file", str(file))
    assert first["token"] not in file.read_text()
    assert file.stat().st_mode & 0o077 == 0
    assert "roles must be a list" in run("token", "new", "--name", "c", "--role", "boss", code=2).stderr
    from tidegate.server.tokens import load_tokens

    assert load_tokens(file, None).required


def test_serve_starts_says_where_and_stops(run: Run, tmp_path: Path) -> None:
    command = [
        sys.executable,
        "-c",
        "from tidegate.cli.main import main; main()",
        "serve",
        SHOP,
        "--port",
        "0",
        "--json",
    ]
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    with (
        subprocess.Popen(
            [*command, "--data", str(tmp_path / "d")], stdout=subprocess.PIPE, text=True, env=env
        ) as server,
        killed(server),
    ):
        assert server.stdout is not None
        facts = json.loads(server.stdout.readline())
        pushed = run("push", "orders", '["tea", 0]', "--json", "--url", facts["url"]).stdout
        assert json.loads(pushed)["done"] is True
        told = run("serve", SHOP, "--port", facts["url"].rpartition(":")[2], code=2).stderr
        assert "is another server running there?" in told
        server.send_signal(signal.SIGINT)
        assert server.wait(timeout=30) == 0


ENDLESS = """
from tidegate import App

app = App("endless")

@app.procedure()
def spin(txn):
    while True:
        pass
"""


def test_a_server_has_a_deadline_for_procedures(run: Run, tmp_path: Path) -> None:
    (tmp_path / "endless.py").write_text(ENDLESS)
    command = [sys.executable, "-m", "tidegate", "serve", str(tmp_path / "endless.py:app"), "--port", "0", "--json"]
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    with (
        subprocess.Popen(
            [*command, "--procedure-deadline", "0.5"], stdout=subprocess.PIPE, text=True, env=env
        ) as server,
        killed(server),
    ):
        assert server.stdout is not None
        url = json.loads(server.stdout.readline())["url"]
        assert "0.5 s" in run("call", "spin", "--url", url, code=1).stderr
        server.send_signal(signal.SIGINT)
        assert server.wait(timeout=30) == 0


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_to_the_whole_group_stops_it_quietly(tmp_path: Path, number: int) -> None:
    command = [sys.executable, "-m", "tidegate", "serve", SHOP, "--port", "0", "--data", str(tmp_path / "d"), "--json"]
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    with (
        subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=env, start_new_session=True
        ) as server,
        killed(server),
    ):
        assert server.stdout is not None
        assert json.loads(server.stdout.readline())["process"] == server.pid
        os.killpg(server.pid, number)
        _, told = server.communicate(timeout=120)
    assert (server.returncode, told) == (0, "")


@pytest.mark.parametrize(
    "arguments", [("--host", "0.0.0.0"), ("--tls-cert", "none"), ("--tokens", "none"), ("--executor", "x")]
)
def test_serve_refuses_what_can_not_be_meant(run: Run, arguments: tuple[str, ...]) -> None:
    assert "tidegate:" in run("serve", SHOP, "--port", "0", *arguments, code=2).stderr


def test_the_shell_completes_commands_and_what_the_server_knows(shared: Server) -> None:
    def completed(words: str) -> list[str]:
        asked = {"_TIDEGATE_COMPLETE": "complete_bash", "COMP_WORDS": words, "COMP_CWORD": str(words.count(" "))}
        done = subprocess.run(
            [sys.executable, "-c", "import sys; sys.argv[0] = 'tidegate'; from tidegate.cli.main import main; main()"],
            env={
                **os.environ,
                **asked,
                "TIDEGATE_URL": shared.url,
                "PYTHONPATH": os.pathsep.join(filter(None, sys.path)),
            },
            capture_output=True,
            text=True,
            check=False,
        )
        return done.stdout.split()

    assert completed("tidegate st") == ["status"]
    assert completed("tidegate push a") == ["anything", "alerts"]
    assert completed("tidegate call del") == ["deliver"]
    assert completed("tidegate push --url http://127.0.0.1:1 o") == []
