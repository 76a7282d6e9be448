"""A merge in the background that fails is tried again, with real faults: no descriptors, files that may not grow."""

from __future__ import annotations

import logging
import resource
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from recovering import make_numbers, push

import tidegate
from tidegate import Engine
from tidegate.errors import BaseDamaged, EngineClosed, MergeFailed, Overloaded
from tidegate.offline.verify import verify

Kill = Callable[[Engine], None]
Limit = Callable[[int, int], None]


@pytest.fixture
def limit() -> Iterator[Limit]:
    """``limit(RLIMIT_NOFILE, 3)``: this process may have no more than that, until the test ends or lifts it."""
    before = {kind: resource.getrlimit(kind) for kind in (resource.RLIMIT_NOFILE, resource.RLIMIT_FSIZE)}

    def set_to(kind: int, value: int) -> None:
        resource.setrlimit(kind, (value if value >= 0 else before[kind][0], before[kind][1]))

    yield set_to
    for kind in before:
        set_to(kind, -1)


def until(condition: Callable[[], Any]) -> None:
    """Wait for it; a minute means that it never comes."""
    end = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < end, "it never came"
        time.sleep(0.001)


def merge_state(engine: Engine) -> dict[str, Any]:
    return dict(engine.query("FROM tidegate.merge_state").arrow.to_pylist()[0])


def count(engine: Engine) -> int:
    return int(engine.query("SELECT count(*) FROM seen").scalar())


def test_nothing_is_merged_into_an_engine_that_has_closed(tmp_path: Path) -> None:
    engine = tidegate.open(make_numbers(), tmp_path)
    push(engine, 1, 3)
    engine.close()
    with pytest.raises(EngineClosed, match="nothing is merged"):
        engine.merger.merge()
    with pytest.raises(EngineClosed):
        engine.checkpoint()


def test_no_descriptors(tmp_path: Path, limit: Limit, killed: Kill, caplog: pytest.LogCaptureFixture) -> None:
    engine = tidegate.open(make_numbers(), tmp_path, merge_every_s=0.01)
    engine.push("numbers", [(1,)], 1).result()
    until(lambda: engine.merger.count)
    with caplog.at_level(logging.WARNING, "tidegate"):
        limit(resource.RLIMIT_NOFILE, 3)
        engine.push("numbers", [(2,)], 2).result()
        until(lambda: engine.merger.tries >= 2)
        engine.push("numbers", [(3,)], 3).result()  # work goes on
        limit(resource.RLIMIT_NOFILE, -1)
        facts = merge_state(engine)
        assert "Too many open files" in facts["last_failure"]
        assert facts["failing_since"] is not None
        until(lambda: engine.merger.failed is None)
    assert "Too many open files" in caplog.text
    assert "merges succeed again" in caplog.text
    facts = merge_state(engine)
    assert (facts["tries"], facts["failing_since"]) == (0, None)
    assert "Too many open files" in facts["last_failure"]  # it can still be looked up
    until(lambda: engine.database.unmerged == 0)
    killed(engine)
    with tidegate.open(make_numbers(), tmp_path) as engine:
        assert count(engine) == 3
        assert engine.recovery.records <= 1
    assert verify(make_numbers(), tmp_path).same


def test_a_checkpoint_without_descriptors_says_so(tmp_path: Path, limit: Limit) -> None:
    with tidegate.open(make_numbers(), tmp_path, merge_every_s=3600) as engine:
        engine.checkpoint()
        push(engine, 1, 3)
        limit(resource.RLIMIT_NOFILE, 3)
        with pytest.raises(MergeFailed, match=r"Too many open files.*safe in the log"):
            engine.checkpoint()
        limit(resource.RLIMIT_NOFILE, -1)
        engine.checkpoint()
    with tidegate.open(make_numbers(), tmp_path) as engine:
        assert count(engine) == 3
    assert verify(make_numbers(), tmp_path).same


def test_no_descriptors_for_a_generation(tmp_path: Path, limit: Limit, caplog: pytest.LogCaptureFixture) -> None:
    """A copy of the base is a convenience: the merge does not fail for want of one."""
    with tidegate.open(make_numbers(), tmp_path, merge_every_s=3600) as engine:
        engine.push("numbers", [(1,)], 1).result()
        engine.database.base.cursor().execute("SELECT 1")
        engine.checkpoint()
        (tmp_path / "generations").rmdir()
        (tmp_path / "generations").write_text("in the way")
        engine.push("numbers", [(2,)], 2).result()
        engine.checkpoint(generation=True)
        assert "no generation was kept" in caplog.text
        (tmp_path / "generations").unlink()
        (tmp_path / "generations").mkdir()
        engine.push("numbers", [(3,)], 3).result()
        engine.checkpoint(generation=True)
        assert len(list((tmp_path / "generations").iterdir())) == 1


def test_files_that_may_not_grow(tmp_path: Path, limit: Limit) -> None:
    """DuckDB can't write its own log; ours, which is smaller, can be written."""
    with tidegate.open(make_numbers(), tmp_path, merge_every_s=0.01) as engine:
        engine.push("numbers", [(1,)], 1).result()
        until(lambda: engine.merger.count)
        with engine.merger.paused():
            engine.feed("numbers", [(n,) for n in range(2, 3_000)])
            limit(resource.RLIMIT_FSIZE, 20_000)
        until(lambda: engine.merger.tries >= 2)
        assert isinstance(engine.merger.failed, MergeFailed)
        engine.push("numbers", [(3_000,)], 3_000).result()
        with pytest.raises(MergeFailed, match=r"File too large.*retried automatically"):
            engine.checkpoint()  # by hand it raises
        limit(resource.RLIMIT_FSIZE, -1)
        until(lambda: engine.merger.failed is None and engine.database.unmerged == 0)
        assert count(engine) == 3_000
    with tidegate.open(make_numbers(), tmp_path) as engine:
        assert count(engine) == 3_000
    assert verify(make_numbers(), tmp_path).same


def test_a_base_that_duckdb_has_given_up_on_is_opened_again(tmp_path: Path, limit: Limit, killed: Kill) -> None:
    """Here the commit succeeded and what DuckDB does after it did not: no row may be there twice."""
    engine = tidegate.open(make_numbers(), tmp_path, merge_every_s=0.01)
    engine.push("numbers", [(1,)], 1).result()
    until(lambda: engine.merger.count)
    assert count(engine) == 1
    with engine.merger.paused():
        engine.database.base.connection.execute("PRAGMA wal_autocheckpoint = '1KB'")
        engine.feed("numbers", [(n,) for n in range(2, 1_000)])
        limit(resource.RLIMIT_FSIZE, 100_000)
    until(lambda: isinstance(engine.merger.failed, BaseDamaged) or engine.merger.last_failure)
    limit(resource.RLIMIT_FSIZE, -1)
    assert engine.merger.last_failure is not None
    assert "invalidated" in engine.merger.last_failure[1]
    until(lambda: engine.merger.failed is None)
    engine.push("numbers", [(1_000,)], 1_000).result()
    assert count(engine) == 1_000
    assert engine.database.base.count(engine.app.tables["seen"]) >= 999
    until(lambda: engine.database.unmerged == 0)
    killed(engine)
    with tidegate.open(make_numbers(), tmp_path) as engine:
        assert count(engine) == 1_000
    assert verify(make_numbers(), tmp_path).same


def test_too_much_unmerged_is_refused(tmp_path: Path, limit: Limit) -> None:
    with tidegate.open(make_numbers(), tmp_path, merge_every_s=0.01, merge_rows=1) as engine:
        engine.push("numbers", [(1,)], 1).result()
        until(lambda: engine.merger.count)
        limit(resource.RLIMIT_FSIZE, (tmp_path / "base.duckdb.wal").stat().st_size + 10)
        engine.push("numbers", [(2,)], 2).result()
        until(lambda: engine.merger.tries)
        for n in range(3, 13):
            engine.push("numbers", [(n,)], n).result()
        with pytest.raises(Overloaded, match=r"wait for a merge.*merges have failed since.*File too large"):
            engine.push("numbers", [(13,)], 13)
        limit(resource.RLIMIT_FSIZE, -1)
        until(lambda: engine.merger.failed is None)
        engine.push("numbers", [(13,)], 13).result()
