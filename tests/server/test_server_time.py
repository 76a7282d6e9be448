"""Time over HTTP: sources that know that nothing earlier will follow, and that nothing will."""

from __future__ import annotations

import asyncio
import datetime as dt
import json
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from server_process import Server

import tidegate
from tidegate.cli.main import main
from tidegate.errors import BatchError, DataError, TidegateError

AT = dt.datetime(2026, 3, 1, 8, 0)


@pytest.fixture
def timely(tmp_path: Path) -> Iterator[Server]:
    server = Server(tmp_path / "server.log", app="timely", data=str(tmp_path / "data"), queries=True)
    yield server
    server.stop()


def check(server: Server, wanted: list[tuple[int, int]]) -> None:
    """What was counted for each room; the replica that answers is a little behind."""
    found: list[tuple[int, int]] = []
    with server.client() as client:
        for _ in range(100):
            found = [(room, n) for room, n in client.query("SELECT room, n FROM minutes ORDER BY room, began").rows]
            if found == wanted:
                return
            time.sleep(0.1)
    assert found == wanted


def test_time_advances_and_ends_over_http(timely: Server) -> None:
    big = 2**60 + 1
    with timely.client() as client:
        client.push("seen", [(1, AT, True), (2, AT, True), (big, AT, True)])
        assert client.advance("seen", AT + dt.timedelta(minutes=1), key=big).done
        check(timely, [(big, 1)])
        ticket = client.advance("seen", "2026-03-01T08:01:00")
        assert (ticket.done, ticket.error) == (True, None)
        check(timely, [(1, 1), (2, 1), (big, 1)])
        with pytest.raises(BatchError, match="time on seen does not go back"):
            client.advance("seen", AT)
        with pytest.raises(DataError, match="its time is a timestamp"):
            client.advance("seen", 7)
        with pytest.raises(TidegateError, match="loud"):
            client.advance("loud", AT)
        client.push("seen", [(1, AT + dt.timedelta(minutes=5), True)])
        assert client.finish("seen").done
        check(timely, [(1, 1), (1, 1), (2, 1), (big, 1)])
        assert client.finish().done  # again, and of all streams
        with pytest.raises(BatchError, match="finished"):
            client.push("seen", [(1, AT, True)])
    timely.assert_no_errors()


def test_asyncio_passes_time_too(timely: Server) -> None:
    async def work() -> None:
        async with tidegate.connect_async(timely.url) as client:
            await client.push("seen", [(1, AT, True)], 1)
            told = await client.advance("seen", AT + dt.timedelta(minutes=2), batch_id=2)
            again = await client.advance("seen", AT + dt.timedelta(minutes=2), batch_id=2)
            assert (told.done, told.duplicate, again.duplicate) == (True, False, True)
            await client.finish()

    asyncio.run(work())
    check(timely, [(1, 1)])


def test_time_passes_from_the_command_line(
    timely: Server, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def run(*arguments: str) -> tuple[int, str]:
        monkeypatch.setattr(sys, "argv", ["tidegate", *arguments, "--url", timely.url])
        capsys.readouterr()
        with pytest.raises(SystemExit) as ended:
            main()
        told = capsys.readouterr()
        return int(ended.value.code or 0), told.out + told.err

    with timely.client() as client:
        client.push("seen", [(1, AT, True), (2, AT, True)])
    code, told = run("advance", "seen", "2026-03-01T08:01", "--key", "2", "--json")
    assert (code, json.loads(told)["done"]) == (0, True)
    check(timely, [(2, 1)])
    code, told = run("advance", "seen", "2026-03-01T07:00", "--key", "2")
    assert code == 2
    assert "time on seen does not go back" in told
    code, told = run("finish", "--json")
    assert code == 0
    check(timely, [(1, 1), (2, 1)])
