"""What tests share: a clock that stands still, engines over every executor that are closed afterwards, kills, and servers."""

from __future__ import annotations

import datetime as dt
import logging
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from debian import install
from recovering import let_go
from spark_java import java_for_tests

import tidegate
from tidegate import mutex
from tidegate.benchmarks.peers.postgres_server import PostgresServer, Unavailable, find_programs
from tidegate.testing import ManualClock

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # a job in the background: Ctrl-C is tested all the same
    signal.signal(signal.SIGINT, signal.default_int_handler)
mutex.watch()  # whatever a test does, locks are taken in one order

EXECUTORS = ("serial", "manual", "threads")
MODES = ("weak", "strong", "effects")


@pytest.fixture(autouse=True)
def locks_in_order() -> Iterator[None]:
    """A lock taken out of order on a thread in the background fails the test, too."""
    mutex.violations.clear()
    yield
    found, mutex.violations[:] = list(mutex.violations), []
    assert not found


@pytest.fixture(autouse=True)
def log_level() -> Iterator[None]:
    """The simulator silences the log of the process it runs in; the next test must hear it again."""
    logger = logging.getLogger("tidegate")
    before = logger.level
    yield
    logger.setLevel(before)


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock(dt.datetime(2026, 1, 1))


@pytest.fixture
def open_engine(clock: ManualClock) -> Iterator[Callable[..., tidegate.Engine]]:
    """``open_engine(app, path=None, **settings)``: tidegate.open with the manual clock, closed after."""
    engines: list[tidegate.Engine] = []

    def make(app: tidegate.App, path: Path | None = None, **settings: Any) -> tidegate.Engine:
        engines.append(tidegate.open(app, path, clock=settings.pop("clock", clock), **settings))
        return engines[-1]

    yield make
    for engine in engines:
        engine.close()


@pytest.fixture(params=EXECUTORS)
def engine_of(
    request: pytest.FixtureRequest, open_engine: Callable[..., tidegate.Engine]
) -> Callable[..., tidegate.Engine]:
    """``open_engine`` over every executor. After work has gone in, call ``engine.run_until_idle()``."""

    def make(app: tidegate.App, path: Path | None = None, **settings: Any) -> tidegate.Engine:
        return open_engine(app, path, **{"executor": request.param, "workers": 3, **settings})

    return make


@pytest.fixture(scope="session")
def words() -> tidegate.App:
    """incoming → pass_on → words: one text column, no key."""
    app = tidegate.App("words")
    app.stream("incoming", "word VARCHAR", border=True)
    app.stream("words", "word VARCHAR")

    @app.procedure(inputs="incoming", outputs="words")
    def pass_on(txn: Any, incoming: tidegate.Batch) -> None:
        txn.emit("words", incoming)

    return app


@pytest.fixture
def killed() -> Callable[[tidegate.Engine], None]:
    """``killed(engine)``: everything appended is on disk, nothing is merged, nothing is closed."""

    def kill(engine: tidegate.Engine) -> None:
        engine.run_until_idle()
        assert engine.durable is not None
        engine.durable.sync()
        let_go(engine)

    return kill


@pytest.fixture(params=[(mode, executor) for mode in MODES for executor in ("serial", "threads")], ids="-".join)
def way(request: pytest.FixtureRequest) -> tuple[Any, str]:
    """Every recovery mode with every executor."""
    mode, executor = request.param
    return mode, executor


@pytest.fixture(scope="session")
def postgres() -> Iterator[PostgresServer]:
    """A PostgreSQL server of this run's own. Where there is none, its tests are skipped, saying why."""
    missing = install("postgresql", find_programs)
    if missing is not None:
        pytest.skip(missing)
    try:
        server = PostgresServer("-c wal_level=logical")
    except Unavailable as error:
        pytest.skip(str(error))
    yield server
    server.remove()


@pytest.hookimpl(tryfirst=True)  # before xdist reads the groups
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """What is started once and shared is used in one worker process: the JVM by all tests of Spark, and a server, a ward
    or a broker of a file (a fixture of its module) by the tests of that file. Slow tests take as long as they take.
    """
    for item in items:
        if item.get_closest_marker("slow") is not None and item.get_closest_marker("timeout") is None:
            item.add_marker(pytest.mark.timeout(0))
        if item.get_closest_marker("xdist_group") is not None:
            continue
        if "spark" in getattr(item, "fixturenames", ()):
            item.add_marker(pytest.mark.xdist_group("spark"))
        elif _shares_a_module_fixture(item):
            item.add_marker(pytest.mark.xdist_group(item.nodeid.partition("::")[0]))


@pytest.hookimpl(tryfirst=True)  # before xdist tells what was collected
def pytest_collection_finish(session: pytest.Session) -> None:
    """Some pairs of pytest and xdist ignore groups in silence; then every worker starts a JVM, a broker and servers."""
    if getattr(session.config.option, "loadgroup", False):
        ignored = [i.nodeid for i in session.items if i.get_closest_marker("xdist_group") and "@" not in i.nodeid]
        if ignored:
            raise RuntimeError(f"this pytest-xdist ignores xdist_group with this pytest: {ignored[0]}")


def _shares_a_module_fixture(item: pytest.Item) -> bool:
    found = getattr(item, "_fixtureinfo", None)
    definitions = [] if found is None else [defs[-1] for defs in found.name2fixturedefs.values()]
    return any(one.scope == "module" and one.argname != "evaluated_on" for one in definitions)


@pytest.fixture(scope="session")
def spark() -> Iterator[Any]:
    """The Spark session of this run. Where no Java can be had, its tests are skipped, saying why."""
    from tidegate.errors import SparkUnavailable
    from tidegate.streams.spark.session import shared_spark

    try:
        java_for_tests()
        session = shared_spark().session()
    except SparkUnavailable as error:
        pytest.skip(str(error))
    yield session
    shared_spark().stop()
