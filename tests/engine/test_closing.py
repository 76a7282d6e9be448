"""close() returns wherever it is called, and the engine is closed soon after; sys.exit() in somebody's callback harms nobody."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from msgspec import UNSET
from tills import run_script, tills, total

import tidegate
from tidegate import App, DeclarationError, TidegateError
from tidegate.connectors.callback import CallbackSink
from tidegate.errors import EngineClosed, ServerError
from tidegate.server.driver import Driver

EXECUTORS = ["serial", "threads"]


def wait_until_closed(engine: tidegate.Engine) -> None:
    """Calling it again, from outside, returns when it is closed."""
    engine.close()
    assert engine.closed
    with pytest.raises(EngineClosed):
        engine.push("sales", [("a", 1)])


@pytest.mark.parametrize("executor", EXECUTORS)
def test_in_a_procedure(tmp_path: Path, executor: Any) -> None:
    made: list[tidegate.Engine] = []
    app = tills(lambda txn, sales: made[0].close())
    engine = tidegate.open(app, tmp_path, executor=executor)
    made.append(engine)
    engine.push("sales", [("a", 1)])
    wait_until_closed(engine)
    with tidegate.open(app, tmp_path) as again:
        assert total(again) == 1


@pytest.mark.parametrize("executor", EXECUTORS)
def test_in_a_callback_of_a_ticket(tmp_path: Path, executor: Any) -> None:
    engine = tidegate.open(tills(), tmp_path, executor=executor)
    called = threading.Event()

    def close(_: object) -> None:
        engine.close()
        called.set()

    engine.push("sales", [("a", 1)]).add_done_callback(close)
    assert called.wait(20)
    wait_until_closed(engine)
    with tidegate.open(tills(), tmp_path) as again:
        assert total(again) == 1


def test_in_on_batch_and_its_timer(tmp_path: Path) -> None:
    for number, rows in enumerate((1, 2)):
        engine = tidegate.open(tills(), tmp_path / str(number))
        called = threading.Event()

        def close(_: object, engine: Any = engine, called: threading.Event = called) -> None:
            engine.close()
            called.set()

        batcher = engine.batcher("sales", count=2, delay="20ms", on_batch=close)
        for _ in range(rows):
            batcher.add(("a", 1))
        assert called.wait(20)
        wait_until_closed(engine)


@pytest.mark.parametrize("background", [True, False])
def test_in_a_sink(tmp_path: Path, background: bool) -> None:
    engine = tidegate.open(tills(), tmp_path)
    called = threading.Event()

    def close(_: object) -> None:
        engine.close()
        called.set()

    delivery = engine.deliver("sums", CallbackSink(close), "closing", background=background)
    engine.push("sales", [("a", 1)])
    if not background:
        delivery.pump()
    assert called.wait(20)
    wait_until_closed(engine)


class ClosingSource:
    """Brings a row, and closes the engine."""

    finished = False
    lag = None

    def __init__(self, close: Callable[[], None]) -> None:
        self.close_engine = close
        self.closed = threading.Event()

    def open(self, *_: Any) -> None:
        pass

    def poll(self, limit: int, timeout_s: float) -> Any:
        self.close_engine()
        return None

    def committed(self, offset: Any) -> None:
        pass

    def close(self) -> None:
        self.closed.set()


def test_in_a_source(tmp_path: Path) -> None:
    engine = tidegate.open(tills(), tmp_path)
    source = ClosingSource(engine.close)
    engine.ingest("sales", source, "closing", background=True)  # type: ignore[arg-type]
    assert source.closed.wait(20)
    wait_until_closed(engine)


@pytest.mark.parametrize("executor", EXECUTORS)
def test_from_many_threads_at_once(tmp_path: Path, executor: Any) -> None:
    """All return, and for all of them the engine is closed: its directory can be opened."""
    engine = tidegate.open(tills(), tmp_path, executor=executor)
    engine.feed("sales", [("a", 1)] * 1000)
    begin = threading.Barrier(4)
    failed: list[BaseException] = []

    def close() -> None:
        begin.wait()
        try:
            engine.close()
            assert engine.database is not None
            with pytest.raises(Exception, match="closed"):
                engine.database.base.connection.execute("SELECT 1")
        except BaseException as error:
            failed.append(error)

    threads = [threading.Thread(target=close) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert not failed
    with tidegate.open(tills(), tmp_path) as again:
        assert total(again) == 1000


SIGNALS = """
    import os, signal, sys, threading, time
    import tidegate
    from tills import tills, total
    path, executor, work, ending = sys.argv[1:]
    engine = tidegate.open(tills(), path, executor=executor, merge_rows=500)
    pushed = 0
    def stop(number, frame):
        engine.close()
        if ending == "exit":
            sys.exit(7)
    signal.signal(signal.SIGTERM, stop)
    threading.Thread(target=lambda: (time.sleep(0.3), os.kill(os.getpid(), signal.SIGTERM)), daemon=True).start()
    try:
        while True:
            if work == "push":
                engine.push("sales", [("a", 1)])
                if executor == "manual":
                    engine.run_until_idle()
            elif work == "feed":
                engine.feed("sales", [("a", 1)] * 2000)
            elif work == "query":
                engine.query("SELECT sum(cents) FROM totals")
            elif work == "wait":
                engine.push("sales", [("a", 1)]).result()
    except tidegate.errors.EngineClosed:
        engine.close()
        tidegate.open(tills(), path).close()
        sys.exit(7)
"""


@pytest.mark.parametrize(
    ("executor", "work", "ending"),
    [
        ("serial", "push", "exit"),
        ("serial", "feed", "go on"),
        ("manual", "push", "exit"),
        ("threads", "push", "go on"),
        ("threads", "wait", "exit"),
        ("serial", "query", "go on"),
    ],
)
def test_in_a_signal_handler(tmp_path: Path, executor: str, work: str, ending: str) -> None:
    """The handler closes while the main thread is at work inside; the process ends by itself, with a clean close."""
    run_script(SIGNALS, tmp_path / "data", executor, work, ending, expect=7)
    with tidegate.open(tills(), tmp_path / "data") as engine:
        if ending == "go on":  # an exit in the middle of a step stops the engine there: the rest is in the log
            assert engine.recovery.records == 0


@pytest.mark.parametrize("executor", EXECUTORS)
def test_at_the_end_of_the_interpreter(tmp_path: Path, executor: str) -> None:
    run_script(
        """
        import atexit, sys
        import tidegate
        from tills import tills
        engine = tidegate.open(tills(), sys.argv[1], executor=sys.argv[2])
        engine.push("sales", [("a", 1)])
        atexit.register(engine.close)
        """,
        tmp_path / "data",
        executor,
    )
    with tidegate.open(tills(), tmp_path / "data") as engine:
        assert engine.recovery.records == 0
        assert total(engine) == 1


def test_in_a_destructor(tmp_path: Path) -> None:
    """Garbage may be collected anywhere, in the middle of a commit for example."""

    class Owner:
        def __init__(self, engine: tidegate.Engine) -> None:
            self.engine = engine

        def __del__(self) -> None:
            self.engine.close()

    owners: list[Owner] = []
    engine = tidegate.open(tills(lambda txn, sales: owners.clear()), tmp_path)
    owners.append(Owner(engine))
    engine.push("sales", [("a", 1)])
    wait_until_closed(engine)


# ---- sys.exit()


def test_sys_exit_in_a_callback_is_logged_and_the_next_is_called(caplog: pytest.LogCaptureFixture) -> None:
    with tidegate.open(tills()) as engine:
        called = threading.Event()
        ticket = engine.push("sales", [("a", 1)])
        ticket.add_done_callback(lambda _: sys.exit("bye"))
        ticket.add_done_callback(lambda _: called.set())
        assert called.wait(20)
    assert "a ticket callback failed" in caplog.text
    assert "SystemExit: bye" in caplog.text


def test_sys_exit_in_a_sink_is_a_failure_like_any_other(caplog: pytest.LogCaptureFixture) -> None:
    seen: list[Any] = []

    def take(batch: Any) -> None:
        seen.append(batch)
        if len(seen) == 1:
            sys.exit("bye")

    with tidegate.open(tills()) as engine:
        delivery = engine.deliver("sums", CallbackSink(take), "exits", background=True)
        engine.push("sales", [("a", 1)])
        assert delivery.drain(20)
        assert [batch.id for batch in seen] == [1, 1]
        assert delivery.delivered == 1
    assert "SystemExit" in caplog.text


def test_sys_exit_in_a_source_stops_that_source_and_says_so(caplog: pytest.LogCaptureFixture) -> None:
    with tidegate.open(tills()) as engine:
        source = ClosingSource(lambda: sys.exit("bye"))
        ingestion = engine.ingest("sales", source, "exits", background=True)  # type: ignore[arg-type]
        ingestion.wait(20)
        assert ingestion.state == "stopped"
        assert "SystemExit" in str(ingestion.error)
        engine.push("sales", [("a", 1)])
    assert "ingestion exits has stopped" in caplog.text


def test_sys_exit_in_on_batch_of_the_timer(caplog: pytest.LogCaptureFixture) -> None:
    """The next call hears of it; after that the batcher goes on, timer and all."""
    called = threading.Semaphore(0)

    def leave(_: object) -> None:
        called.release()
        sys.exit("bye")

    with tidegate.open(tills()) as engine:
        batcher = engine.batcher("sales", delay="1ms", on_batch=leave)
        for _ in range(3):
            batcher.add(("a", 1))
            assert called.acquire(timeout=20)
            while batcher._timer is not None:
                pass
            with pytest.raises(tidegate.TidegateError, match="SystemExit"):
                batcher.flush()
        assert total(engine) == 3
        batcher.close()
    assert "raised SystemExit" in caplog.text


def test_sys_exit_in_a_procedure_does_not_end_a_server() -> None:
    """Raised in its event loop, it would; whoever pushes gets an error, and the next request is answered."""

    async def work(engine: tidegate.Engine) -> None:
        driver = Driver(engine)
        with pytest.raises(ServerError, match="SystemExit"):
            await driver.push("sales", [("a", 1)], None, None, None, UNSET, None)
        with pytest.raises(ServerError, match="SystemExit"):
            await driver.submit(engine.acceptance.prepare_call("reset", ("a",), {}))
        assert await driver.do(lambda: engine.sequence) == 2
        await driver.close()

    with tidegate.open(tills(lambda txn, sales: sys.exit("bye"))) as engine:
        asyncio.run(work(engine))


@pytest.mark.parametrize("executor", ["serial", "threads"])
def test_an_engine_left_open_is_closed_when_the_process_exits(tmp_path: Path, executor: str) -> None:
    text = f"""
import tidegate
from tidegate import App, DeclarationError, TidegateError
from tidegate import App
app = App("left")
app.table("CREATE TABLE seen (n BIGINT PRIMARY KEY)")
app.stream("numbers", "n BIGINT NOT NULL", border=True)
@app.procedure(inputs="numbers", writes=["seen"])
def keep(txn, numbers):
    for number in numbers:
        txn.insert("seen", number)
engine = tidegate.open(app, "~/data", executor={executor!r})
engine.push("numbers", [(1,), (2,)])
"""
    done = subprocess.run(
        [sys.executable, "-c", text],
        env={**os.environ, "HOME": str(tmp_path)},
        capture_output=True,
        text=True,
        check=True,
        timeout=120,
    )
    assert done.stderr.splitlines() == [
        "the engine of left is still open as the process exits, and is closed now; open it in a with block, or call close()"
    ]
    assert (tmp_path / "data" / "base.duckdb").exists()


def test_what_open_can_not_use_is_told(tmp_path: Path) -> None:
    app = App("any")
    (tmp_path / "pay.py").touch()
    with pytest.raises(DeclarationError, match=r"open\(\) takes an App, got 'pay.py'.*tidegate serve pay.py:app"):
        tidegate.open("pay.py")  # type: ignore[arg-type]
    with pytest.raises(TidegateError, match="is a file"):
        tidegate.open(app, tmp_path / "pay.py")
    with pytest.raises(TidegateError, match="may create and write to"):
        tidegate.open(app, "/proc/nothing/here")
    with pytest.raises(TidegateError, match="or None to run in memory; got ''"):
        tidegate.open(app, "")
