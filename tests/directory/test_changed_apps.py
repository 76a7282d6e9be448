"""An app that has changed since: safe changes are taken, the others refused with a remedy."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from recovering import make_numbers, push, seen

import tidegate
from tidegate import App, Batch, Engine, Transaction
from tidegate.errors import RecoveryRefused

Kill = Callable[[Engine], None]
SETTINGS: dict[str, Any] = {"merge_every_s": 3600.0}


def left_behind(path: Path, killed: Kill, clean: bool) -> None:
    engine = tidegate.open(make_numbers(), path, **SETTINGS)
    push(engine, 1, 5)
    if clean:
        engine.close()
    else:
        killed(engine)


@pytest.mark.parametrize("clean", [True, False], ids=["closed", "killed"])
def test_a_nullable_column_a_table_and_a_procedure_may_be_added(clean: bool, tmp_path: Path, killed: Kill) -> None:
    left_behind(tmp_path, killed, clean)
    app = make_numbers.__wrapped__(extra=", remark VARCHAR")
    app.table("CREATE TABLE others (n BIGINT PRIMARY KEY)")

    @app.procedure(writes=["others", "seen"])
    def remark(txn: Transaction, n: int, text: str) -> None:
        txn.insert("others", (n,))
        txn.update("seen", n, remark=text)

    if not clean:
        with pytest.raises(RecoveryRefused, match=r"procedure remark: is new.*as it was and close it cleanly"):
            tidegate.open(app, tmp_path)
        tidegate.open(make_numbers(), tmp_path).close()
    with tidegate.open(app, tmp_path) as engine:
        assert len(seen(engine)) == 5
        engine.call("remark", 3, "three")
        push(engine, 6, 7)
    with tidegate.open(app, tmp_path) as engine:
        assert len(seen(engine)) == 7
        remarks = [tuple(row) for row in engine.query("SELECT n, remark FROM seen WHERE remark IS NOT NULL")]
        assert remarks == [(3, "three")]


def test_old_versions_get_the_new_column_too(tmp_path: Path) -> None:
    """A waiting doctor keeps old versions of rows alive; they are widened when the table is."""

    def app(columns: str) -> App:
        app = App("wide")
        app.table(f"CREATE TABLE t (k INTEGER PRIMARY KEY, n INTEGER{columns})")
        app.stream("asks", "k INTEGER", border=True)
        app.stream("asked", "k INTEGER")
        app.stream("answers", "n INTEGER", border=True, deadline_s=600.0, default={"n": 0})

        @app.procedure(inputs="asks", outputs="asked", reads=["t"])
        def ask(txn: Transaction, asks: Batch) -> None:
            txn.emit("asked", asks)

        @app.procedure(inputs=["asked", "answers"], reads=["t"])
        def answer(txn: Transaction, asked: Batch, answers: Batch) -> None:
            if txn.get("t", 1).n != 1:
                txn.abort("it saw the future")

        @app.procedure(writes=["t"])
        def put(txn: Transaction, n: int) -> None:
            txn.upsert("t", {"k": 1, "n": n})

        app.nested("ask", "answer", name="asking")
        return app

    with tidegate.open(app(""), tmp_path) as engine:
        engine.call("put", 1)
        engine.push("asks", [(1,)], 1)
        engine.call("put", 2)
    with tidegate.open(app(", word VARCHAR"), tmp_path) as engine:
        engine.push("answers", [(1,)], 1).result()
        assert engine.query("SELECT count(*) FROM tidegate.aborts").scalar() == 0
        assert [tuple(row) for row in engine.query("SELECT * FROM t")] == [(1, 2, None)]


def changed_numbers(recovery: Any = "weak") -> App:
    app = make_numbers.__wrapped__(recovery)

    def total(txn: Transaction, n: int) -> int:
        return -1  # not what it was

    app.procedures["total"] = type(app.procedures["total"])(**{**vars_of(app.procedures["total"]), "function": total})
    return app


def vars_of(definition: Any) -> dict[str, Any]:
    return {name: getattr(definition, name) for name in definition.__dataclass_fields__}


@pytest.mark.parametrize("mode", ["weak", "strong"])
def test_changed_code_is_named_before_a_replay(mode: Any, tmp_path: Path, killed: Kill) -> None:
    engine = tidegate.open(make_numbers(mode), tmp_path, **SETTINGS)
    push(engine, 1, 5)
    killed(engine)
    with pytest.raises(
        RecoveryRefused, match=r"has changed since it was written: procedure total: .*total\(\)"
    ) as told:
        tidegate.open(changed_numbers(mode), tmp_path)
    assert len(told.value.changed) == 1  # type: ignore[attr-defined]
    with tidegate.open(make_numbers(mode), tmp_path) as engine:
        assert len(seen(engine)) == 5
    with tidegate.open(changed_numbers(mode), tmp_path) as engine:
        assert engine.recovery.records == 0, "closed cleanly: nothing to replay, so any code will do"
        assert engine.call("total", 3) == -1


def test_effects_do_not_depend_on_code(tmp_path: Path, killed: Kill) -> None:
    engine = tidegate.open(make_numbers("effects"), tmp_path, **SETTINGS)
    push(engine, 1, 5)
    killed(engine)
    with tidegate.open(changed_numbers("effects"), tmp_path) as engine:
        assert len(seen(engine)) == 5


def test_another_recovery_mode_needs_a_clean_close(tmp_path: Path, killed: Kill) -> None:
    left_behind(tmp_path, killed, clean=False)
    with pytest.raises(RecoveryRefused, match=r"written with recovery='weak'.*close it cleanly"):
        tidegate.open(make_numbers("strong"), tmp_path)
    tidegate.open(make_numbers("weak"), tmp_path).close()
    with tidegate.open(make_numbers("strong"), tmp_path) as engine:
        assert len(seen(engine)) == 5


def test_a_procedure_that_ends_differently_is_found_out(tmp_path: Path, killed: Kill) -> None:
    """Mode strong knows how every execution ended."""
    moods = ["good"]

    def app() -> App:
        app = App("moody", recovery="strong")
        app.table("CREATE TABLE t (n INTEGER PRIMARY KEY)")

        @app.procedure(writes=["t"])
        def put(txn: Transaction, n: int) -> None:
            if moods[-1] == "bad":
                txn.abort("not today")
            txn.insert("t", (n,))

        return app

    moody = app()
    engine = tidegate.open(moody, tmp_path, **SETTINGS)
    engine.call("put", 1)
    killed(engine)
    moods.append("bad")
    with pytest.raises(RecoveryRefused, match=r"put.*committed when it first ran.*is not deterministic"):
        tidegate.open(moody, tmp_path)
    moods.append("good")
    with tidegate.open(moody, tmp_path) as engine:
        assert engine.query("SELECT count(*) FROM t").scalar() == 1


@pytest.mark.parametrize(("before", "after"), [("weak", "strong"), ("strong", "effects"), ("effects", "weak")])
def test_a_base_that_is_damaged_after_the_mode_has_changed_is_rebuilt(
    before: Any, after: Any, tmp_path: Path, killed: Kill
) -> None:
    """The log in the old mode can't be replayed together with that in the new one: a copy of the base stands between them."""
    with tidegate.open(make_numbers(before), tmp_path, **SETTINGS) as engine:
        push(engine, 1, 5)
    engine = tidegate.open(make_numbers(after), tmp_path, **SETTINGS)
    assert len(engine.directory.generations()) == 1
    push(engine, 6, 9)
    killed(engine)
    (tmp_path / "base.duckdb").write_bytes(b"no database")
    with tidegate.open(make_numbers(after), tmp_path, **SETTINGS) as engine:
        assert len(seen(engine)) == 9
        assert "rebuilt from generation" in str(engine.recovery)
        assert len(engine.directory.generations()) == 1
