"""An app is upgraded: what was acknowledged is never run by other code, whatever happens to the base afterwards."""

from __future__ import annotations

import logging
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from recovering import let_go

import tidegate
from tidegate import App, Batch, Engine, Transaction, window
from tidegate.dataflows.fingerprint import fingerprint
from tidegate.directory.backup import backup_directory, backup_engine
from tidegate.errors import RecoveryRefused, TidegateError
from tidegate.offline.log_entries import entries
from tidegate.offline.verify import verify
from tidegate.windows import decomposed

Kill = Callable[[Engine], None]
SETTINGS: dict[str, Any] = {"merge_every_s": 3600.0}
MODES = ("weak", "strong", "effects")


def ward(mode: Any = "weak", *, factor: int = 1, note: bool = False, version: str | None = None) -> App:
    """readings → give → given: each reading times ``factor``; ``note``: another procedure writes down every dose."""
    app = App("ward", recovery=mode, version=version)
    app.table("CREATE TABLE doses (n BIGINT PRIMARY KEY, mg BIGINT NOT NULL)")
    app.stream("readings", "n BIGINT NOT NULL", border=True)
    app.stream("given", "n BIGINT, mg BIGINT")

    def dose(n: int) -> int:
        return n * factor

    @app.procedure(inputs="readings", outputs="given", writes=["doses"])
    def give(txn: Transaction, readings: Batch) -> None:
        for row in readings:
            txn.insert("doses", (row.n, dose(row.n)))
            txn.emit("given", n=row.n, mg=dose(row.n))

    if note:
        app.table("CREATE TABLE notes (n BIGINT PRIMARY KEY)")

        @app.procedure(inputs="given", writes=["notes"])
        def write(txn: Transaction, given: Batch) -> None:
            for row in given:
                txn.insert("notes", (row.n,))

    return app


def push(engine: Engine, first: int, last: int) -> None:
    for n in range(first, last + 1):
        engine.push("readings", [(n,)]).result()


def work(app: App, path: Path, first: int, last: int) -> None:
    with tidegate.open(app, path, **SETTINGS) as engine:
        push(engine, first, last)


def doses(engine: Engine) -> list[int]:
    return [mg for (mg,) in engine.query("SELECT mg FROM doses ORDER BY n")]


def count(engine: Engine, table: str) -> int:
    return int(engine.query(f"SELECT count(*) FROM {table}").scalar())


def damage(path: Path) -> None:
    path.write_bytes(b"no database")


@pytest.mark.parametrize("mode", ["weak", "strong"])
def test_a_helper_that_changed_after_a_kill_is_refused(mode: Any, tmp_path: Path, killed: Kill) -> None:
    engine = tidegate.open(ward(mode), tmp_path, **SETTINGS)
    push(engine, 1, 3)
    killed(engine)
    with pytest.raises(
        RecoveryRefused, match=r"procedure give: variable factor around dose\(\) in test_upgrades.py changed"
    ):
        tidegate.open(ward(mode, factor=100), tmp_path)
    with tidegate.open(ward(mode), tmp_path) as engine:
        assert doses(engine) == [1, 2, 3], "nothing was harmed"
    with tidegate.open(ward(mode, factor=100), tmp_path) as engine:
        push(engine, 4, 4)
        assert doses(engine) == [1, 2, 3, 400]
        assert "the app was upgraded: procedure give: variable factor" in str(engine.recovery)
    assert verify(ward(mode, factor=100), tmp_path).same


@pytest.mark.parametrize("lost", [False, True], ids=["damaged", "removed"])
@pytest.mark.parametrize("mode", MODES)
def test_a_base_that_is_damaged_after_a_procedure_was_added(
    mode: Any, lost: bool, tmp_path: Path, killed: Kill
) -> None:
    """The new procedure sees what came after it, and nothing else."""
    work(ward(mode), tmp_path, 1, 5)
    engine = tidegate.open(ward(mode, note=True), tmp_path, **SETTINGS)
    push(engine, 6, 8)
    assert count(engine, "notes") == 3
    killed(engine)
    if lost:
        (tmp_path / "base.duckdb").unlink()
    else:
        damage(tmp_path / "base.duckdb")
    with tidegate.open(ward(mode, note=True), tmp_path, **SETTINGS) as engine:
        assert "rebuilt from generation" in str(engine.recovery)
        assert (count(engine, "doses"), count(engine, "notes")) == (8, 3)
    assert verify(ward(mode, note=True), tmp_path).same


@pytest.mark.parametrize("mode", ["weak", "strong"])
def test_a_base_that_is_damaged_after_a_procedure_was_changed(mode: Any, tmp_path: Path, killed: Kill) -> None:
    work(ward(mode), tmp_path, 1, 5)
    engine = tidegate.open(ward(mode, factor=10), tmp_path, **SETTINGS)
    push(engine, 6, 7)
    killed(engine)
    damage(tmp_path / "base.duckdb")
    with tidegate.open(ward(mode, factor=10), tmp_path, **SETTINGS) as engine:
        assert doses(engine) == [1, 2, 3, 4, 5, 60, 70]


@pytest.mark.parametrize("mode", MODES)
def test_verify_begins_at_the_upgrade(mode: Any, tmp_path: Path) -> None:
    work(ward(mode), tmp_path / "d", 1, 5)
    work(ward(mode, note=True), tmp_path / "d", 6, 8)
    for _ in range(2):  # opened again, it is not upgraded again
        found = verify(ward(mode, note=True), tmp_path / "d")
        assert found.differences == []
        assert found.since.startswith("the upgrade at ")
        assert found.since.endswith("; what was before was executed by another version of the app")
        work(ward(mode, note=True), tmp_path / "d", 9, 9) if found.tables["doses"] == 8 else None
    upgrades = [entry for entry in entries(tmp_path / "d") if entry["kind"] == "upgraded"]
    assert len(upgrades) == 1


def test_a_version_counts_and_is_told(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    work(ward(version="1.0"), tmp_path, 1, 2)
    with caplog.at_level(logging.INFO, "tidegate"):
        work(ward(version="1.1"), tmp_path, 3, 3)
    assert "the app was upgraded (version 1.0 to version 1.1)" in caplog.text
    (upgrade,) = [entry for entry in entries(tmp_path) if entry["kind"] == "upgraded"]
    assert (upgrade["was"], upgrade["version"]) == ("1.0", "1.1")
    assert upgrade["after"] == fingerprint(ward(version="1.1"))["digest"]


def test_when_the_generation_of_the_upgrade_is_damaged_too(tmp_path: Path, killed: Kill) -> None:
    """There is nothing to start from: refused, never other rows."""
    work(ward(), tmp_path, 1, 5)
    engine = tidegate.open(ward(factor=10), tmp_path, **SETTINGS)
    push(engine, 6, 7)
    killed(engine)
    (generation,) = (tmp_path / "generations").iterdir()
    kept = generation.read_bytes()
    damage(tmp_path / "base.duckdb")
    damage(generation)
    for app in (ward(factor=10), ward()):
        with pytest.raises(
            RecoveryRefused, match=r"is (damaged|missing).*several versions of the app.*restore a backup"
        ):
            tidegate.open(app, tmp_path)
    generation.write_bytes(kept)
    with tidegate.open(ward(factor=10), tmp_path) as engine:
        assert doses(engine) == [1, 2, 3, 4, 5, 60, 70]


def test_an_upgrade_that_was_interrupted_is_made_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The copy of the base is what the new version starts from: without it nothing is accepted."""
    work(ward(), tmp_path, 1, 2)
    with monkeypatch.context() as broken:
        broken.setattr("tidegate.directory.log.copy_base", lambda *_: (_ for _ in ()).throw(OSError("no room")))
        with pytest.raises(TidegateError, match="no copy of the base could be kept"):
            tidegate.open(ward(factor=10), tmp_path)
    with tidegate.open(ward(factor=10), tmp_path, **SETTINGS) as engine:
        assert "the app was upgraded" in str(engine.recovery)
        push(engine, 3, 3)
    (tmp_path / "base.duckdb").unlink()
    with tidegate.open(ward(factor=10), tmp_path) as engine:
        assert doses(engine) == [1, 2, 30]


def test_the_old_version_may_come_back(tmp_path: Path, killed: Kill) -> None:
    work(ward(), tmp_path, 1, 2)
    engine = tidegate.open(ward(factor=10), tmp_path, **SETTINGS)
    push(engine, 3, 3)
    killed(engine)
    with pytest.raises(RecoveryRefused, match="variable factor"):
        tidegate.open(ward(), tmp_path)
    tidegate.open(ward(factor=10), tmp_path).close()
    engine = tidegate.open(ward(), tmp_path, **SETTINGS)
    push(engine, 4, 4)
    killed(engine)
    damage(tmp_path / "base.duckdb")
    with tidegate.open(ward(), tmp_path) as engine:
        assert doses(engine) == [1, 2, 30, 4]


def test_old_generations_are_removed_and_later_ones_do(tmp_path: Path, killed: Kill) -> None:
    work(ward(), tmp_path / "d", 1, 3)
    with tidegate.open(ward(note=True), tmp_path / "d", **SETTINGS) as engine:
        for n in range(4, 8):
            push(engine, n, n)
            engine.checkpoint(generation=True)
        push(engine, 8, 8)
    assert verify(ward(note=True), tmp_path / "d").since.startswith("generation")
    for path in (tmp_path / "d" / "generations").iterdir():
        damage(path)
    damage(tmp_path / "d" / "base.duckdb")
    with pytest.raises(TidegateError, match="damaged"):
        tidegate.open(ward(note=True), tmp_path / "d")


@pytest.mark.parametrize("inside", [True, False], ids=["inside", "outside"])
def test_a_backup_carries_the_upgrade(inside: bool, tmp_path: Path) -> None:
    work(ward(), tmp_path / "d", 1, 5)
    with tidegate.open(ward(note=True), tmp_path / "d", **SETTINGS) as engine:
        push(engine, 6, 8)
        if inside:
            backup_engine(engine, tmp_path / "copy")
    if not inside:
        backup_directory(tmp_path / "d", tmp_path / "copy")
    assert verify(ward(note=True), tmp_path / "copy").same
    (tmp_path / "copy" / "base.duckdb").unlink()
    with tidegate.open(ward(note=True), tmp_path / "copy") as engine:
        assert (count(engine, "doses"), count(engine, "notes")) == (8, 3)


# ---- mode effects


def test_effects_of_another_version_are_applied_as_recorded(tmp_path: Path, killed: Kill) -> None:
    engine = tidegate.open(ward("effects"), tmp_path, **SETTINGS)
    push(engine, 1, 3)
    killed(engine)
    engine = tidegate.open(ward("effects", factor=10), tmp_path, **SETTINGS)
    assert doses(engine) == [1, 2, 3]
    assert "the app was upgraded" in str(engine.recovery)
    push(engine, 4, 4)
    killed(engine)
    damage(tmp_path / "base.duckdb")
    with tidegate.open(ward("effects", factor=10), tmp_path) as engine:
        assert doses(engine) == [1, 2, 3, 40]


def test_effects_are_refused_where_another_procedure_would_see_them(tmp_path: Path, killed: Kill) -> None:
    engine = tidegate.open(ward("effects"), tmp_path, **SETTINGS)
    push(engine, 1, 3)
    killed(engine)
    with pytest.raises(RecoveryRefused, match="procedure write: is new"):
        tidegate.open(ward("effects", note=True), tmp_path)


def sliding(add: int) -> App:
    app = App("sliding", recovery="effects")
    app.stream("readings", "n BIGINT NOT NULL", border=True)
    computed = decomposed(lambda pane: int(sum(pane["n"])) + add, sum, "n BIGINT")

    @app.procedure(inputs="readings", windows={"sums": window("readings", count=4, slide=2, compute=computed)})
    def look(txn: Transaction, readings: Batch) -> None:
        pass

    return app


def test_effects_are_refused_where_a_window_would_hold_something_else(tmp_path: Path, killed: Kill) -> None:
    """Windows slide again in every mode, with the code that they are given."""
    engine = tidegate.open(sliding(0), tmp_path, **SETTINGS)
    push(engine, 1, 3)
    killed(engine)
    with pytest.raises(RecoveryRefused, match=r"window look.sums: variable add"):
        tidegate.open(sliding(1), tmp_path)


def asking(mg: int) -> App:
    app = App("asking", recovery="effects")
    app.table("CREATE TABLE given (n BIGINT PRIMARY KEY, mg BIGINT)")
    app.stream("asks", "n BIGINT", border=True)
    app.stream("asked", "n BIGINT, mg BIGINT")
    app.stream("answers", "yes BOOLEAN", border=True, deadline_s=600.0, default={"yes": False})

    @app.procedure(inputs="asks", outputs="asked")
    def propose(txn: Transaction, asks: Batch) -> None:
        txn.emit("asked", n=asks[0].n, mg=mg)

    @app.procedure(inputs=["asked", "answers"], writes=["given"])
    def give(txn: Transaction, asked: Batch, answers: Batch) -> None:
        if answers[0].yes:
            txn.insert("given", (asked[0].n, asked[0].mg))

    app.nested("propose", "give", name="dosing")
    return app


def test_a_question_of_another_version_stays_as_it_was_asked(tmp_path: Path, killed: Kill) -> None:
    """What was done in front of it is in the log: nobody is asked something else."""
    engine = tidegate.open(asking(5), tmp_path, **SETTINGS)
    engine.push("asks", [(1,)], 1)
    engine.durable.sync()
    killed(engine)
    with tidegate.open(asking(500), tmp_path) as engine:
        engine.push("answers", [(True,)], 1).result()
        assert engine.query("SELECT mg FROM given").scalar() == 5


def test_effects_are_refused_where_an_outcome_is_missing(tmp_path: Path) -> None:
    """Accepted, but not known to have ended: other code would run it."""
    engine = tidegate.open(ward("effects"), tmp_path, executor="manual", **SETTINGS)
    engine.push("readings", [(1,)])
    engine.durable.sync()
    let_go(engine)
    with pytest.raises(RecoveryRefused, match=r"1 accepted batches or calls \(.*had not ended"):
        tidegate.open(ward("effects", factor=10), tmp_path)
    with tidegate.open(ward("effects"), tmp_path) as engine:
        assert doses(engine) == [1]


def test_a_halted_dataflow_is_resumed_by_the_fixed_app(tmp_path: Path, killed: Kill) -> None:
    """What never ran is not what was acknowledged: the new version runs it, when told to."""

    def app(fixed: bool) -> App:
        app = App("halting", recovery="effects")
        app.table("CREATE TABLE t (n BIGINT PRIMARY KEY)")
        app.stream("readings", "n BIGINT NOT NULL", border=True)

        @app.procedure(inputs="readings", writes=["t"])
        def put(txn: Transaction, readings: Batch) -> None:
            if readings[0].n == 2 and not fixed:
                raise RuntimeError("two")
            txn.insert("t", readings[0])

        return app

    engine = tidegate.open(app(False), tmp_path, **SETTINGS)
    for n in (1, 2, 3):
        engine.push("readings", [(n,)])
    engine.durable.sync()
    killed(engine)
    with tidegate.open(app(True), tmp_path) as engine:
        assert count(engine, "t") == 1
        engine.resume()
        engine.run_until_idle()
        assert count(engine, "t") == 3
    shutil.copytree(tmp_path, tmp_path.parent / "copied")
    assert verify(app(True), tmp_path.parent / "copied").same
