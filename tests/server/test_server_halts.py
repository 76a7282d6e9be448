"""A failure as people meet it: over HTTP, in the client, on the command line and on the console."""

from __future__ import annotations

import io
import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from chromium import NoBrowser, chromium
from server_process import Server

from tidegate.cli.main import main
from tidegate.errors import DeclarationError, FeedHalted, TidegateError

Run = Callable[..., str]


@pytest.fixture
def broken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    monkeypatch.setenv("REPAIRED", str(tmp_path / "repaired"))
    server = Server(tmp_path / "server.log", app="halting")
    yield server
    server.stop()


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], broken: Server) -> Run:
    """The command line, in this process."""
    monkeypatch.setenv("COLUMNS", "200")

    def do(*arguments: str, code: int = 0) -> str:
        monkeypatch.setattr(sys, "argv", ["tidegate", *arguments, "--url", broken.url])
        monkeypatch.setattr(sys, "stdin", io.StringIO(""))
        capsys.readouterr()
        with pytest.raises(SystemExit) as ended:
            main()
        told = capsys.readouterr()
        assert (ended.value.code or 0) == code, told.out + told.err
        return told.out

    return do


def test_halts_are_shown_resumed_skipped_and_requeued(broken: Server, run: Run, tmp_path: Path) -> None:
    with broken.client() as client:
        assert run("halted") == "nothing is halted\n"
        for n, bed in enumerate([1, 2, 2, 3]):
            client.push("readings", [(bed, n)], wait=False)
        (halt,) = client.halted()
        assert (halt["dataflow"], halt["key"], halt["waiting"], halt["batches"]) == (
            "check",
            2,
            2,
            {"readings": [{"bed": 2, "n": 1}]},
        )
        assert "did you mean 'bed'" in halt["error"]
        assert "halting.py" in halt["trace"]
        told = run("halted", code=1)
        assert "check, key 2: 2 executions wait" in told
        assert json.loads(run("halted", "--json", code=1))["halted"] == [halt]
        with pytest.raises(DeclarationError, match="not halted for key '9'"):
            client.skip("check", key=9)
        again = run("resume", "check", code=1)
        assert "resumed check, and it is halted in front of batch 1: " in again
        assert "did you mean 'bed'" in again
        assert json.loads(run("resume", "check", "--json", code=1)) == {"resumed": "check", "key": None, "halted": True}
        assert "Now it is halted in front of batch 2: " in run("skip", "check", "--key", "2")
        (halt,) = client.halted()
        assert halt["batch_id"] == 2
        (tmp_path / "repaired").touch()
        assert run("resume", "check") == "resumed check\n"
        assert client.halted() == []
        letters = client.status()["recent_dead_letters"]
        assert [(one["procedure"], one["rows"]) for one in letters] == [("check", '[{"bed":2,"n":1}]')]
        assert letters[0]["position"] in run("dead-letters")
        assert "requeued" in run("dead-letters", "requeue", letters[0]["position"])
        assert client.status()["recent_dead_letters"] == []
        with pytest.raises(DeclarationError, match="no dead letter"):
            client.requeue(letters[0]["position"])


def test_a_feed_over_http_says_what_became_of_it(broken: Server) -> None:
    with broken.client() as client:
        fed = client.feed("letters", [(1, 1), (2, 2), (3, 1)])
        assert (fed.rows, fed.committed, fed.aborted, fed.dead_letters) == (3, 1, 1, 1)
        assert any("did you mean 'bed'" in reason for reason in fed.reasons)
        with pytest.raises(FeedHalted, match=r"dataflow whole is halted in front of .*engine.resume") as caught:
            client.feed("plain", [(1, 10), (2, 11), (3, 12)])
        assert (caught.value.fed, caught.value.dataflow) == (3, "whole")  # type: ignore[attr-defined]


def test_the_console_shows_a_halt_and_its_buttons_work(broken: Server, tmp_path: Path) -> None:
    with broken.client() as client:
        client.push("readings", [(2, 1)], wait=False)
        client.push("plain", [(2, 3)], wait=False)
        client.push("letters", [(2, 4)], wait=False)
        try:
            with chromium() as browser:
                page: Any = browser.new_page(viewport={"width": 1300, "height": 1000})
                page.goto(broken.url)
                page.click("#tab-trouble")
                page.wait_for_selector("#halted >> text=check, key 2")
                assert "did you mean 'bed'" in page.inner_text("#halted")
                assert "halting.py" in page.inner_text("#halted")
                assert '"n":1' in page.inner_text("#halted")
                page.screenshot(path=str(tmp_path / "trouble.png"))
                (tmp_path / "repaired").touch()
                page.locator("#halted .halt", has_text="check, key 2").get_by_text("Skip this batch").click()
                page.wait_for_selector("#dead >> text=check")
                page.locator("#halted .halt", has_text="whole").get_by_text("Resume").click()
                page.wait_for_selector("#halted >> text=No dataflow is halted.")
                page.locator("#dead tr", has_text="lenient").get_by_text("Requeue").click()
                page.wait_for_selector("#dead tr:has-text('lenient')", state="detached")
        except NoBrowser as error:
            pytest.skip(str(error))
        assert client.halted() == []
        with pytest.raises(TidegateError):
            client.requeue("0.0")
