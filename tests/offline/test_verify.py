"""Verifying a directory compares all that was emitted since the oldest record it runs again, not only what still waits."""

from __future__ import annotations

import gc
import itertools
from pathlib import Path
from typing import Any

import pytest
from recovering import let_go, make_numbers, push

import tidegate
from tidegate import App, Batch, Transaction
from tidegate.directory.backup import backup_directory
from tidegate.errors import LogDamaged, RecoveryRefused, TidegateError
from tidegate.offline.log_entries import entries
from tidegate.offline.verify import verify

MODES = ("weak", "strong", "effects")


def test_verifying_changes_nothing_and_warns_of_nothing(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with tidegate.open(make_echo(), tmp_path / "echo") as engine:
        engine.push("numbers", [(1, 1)]).result()
    caplog.clear()
    assert verify(make_echo(), tmp_path / "echo").same
    assert [record.message for record in caplog.records if record.levelname == "WARNING"] == []
    assert [path.name for path in tmp_path.iterdir()] == ["echo"]


def make_echo(shown: Any = lambda batch: batch[0].n, *, keyed: bool = False, recovery: Any = "weak") -> App:
    """numbers → echo → echoes: touches no table, so that nothing but what it emits can differ."""
    app = App("echo", recovery=recovery)
    app.stream("numbers", "k INTEGER NOT NULL, n BIGINT NOT NULL", border=True, key="k" if keyed else None)
    app.stream("echoes", "k INTEGER, n BIGINT")

    @app.procedure(inputs="numbers", outputs="echoes")
    def echo(txn: Transaction, numbers: Batch) -> None:
        said = shown(numbers)
        if said is not None:
            txn.emit("echoes", k=numbers[0].k, n=said)

    return app


def echoed(app: App, path: Path, count: int, **settings: Any) -> None:
    with tidegate.open(app, path, **settings) as engine:
        for n in range(1, count + 1):
            engine.push("numbers", [(n % 5, n)])
        engine.run_until_idle()


@pytest.mark.parametrize("mode", MODES)
def test_waiting_batches_are_compared(mode: str, tmp_path: Path) -> None:
    app = make_numbers(mode)
    with tidegate.open(app, tmp_path / "d") as engine:
        subscription = engine.subscribe_durably("sums", "reader")
        push(engine, 1, 5)
        engine.checkpoint()
        push(engine, 6, 9)
        subscription.ack(subscription.take(2))
    found = verify(app, tmp_path / "d")
    assert found.differences == []
    assert found.waiting == 7
    assert found.emitted == {"sums": 9}


def test_a_lost_batch_is_a_difference(tmp_path: Path) -> None:
    app = make_numbers("strong")
    with tidegate.open(app, tmp_path / "d") as engine:
        subscription = engine.subscribe_durably("sums", "reader")
        push(engine, 1, 3)
        subscription.forget([1])  # the base will say that it was acknowledged, the log does not
    (told,) = verify(app, tmp_path / "d").differences
    assert told.startswith("batch waiting for ('reader', None, 2): stored 'nothing', re-executed [(3,)]")


@pytest.mark.parametrize("keyed", [False, True])
@pytest.mark.parametrize("mode", ["weak", "strong"])
def test_a_batch_that_does_not_come_again_is_named(mode: str, keyed: bool, tmp_path: Path) -> None:
    """A procedure that depends on the outside, once: whoever has read the batch by now has read something else."""
    chance = itertools.chain([7], itertools.repeat(0))
    app = make_echo(lambda batch: batch[0].n + (next(chance) if batch[0].n == 13 else 0), keyed=keyed, recovery=mode)
    echoed(app, tmp_path / "d", 20)
    (told,) = verify(app, tmp_path / "d").differences
    assert told == f"stream echoes: batch {'3 of key 3' if keyed else 13} differs"


def test_a_batch_that_is_missing_is_found(tmp_path: Path) -> None:
    said = itertools.chain([True], itertools.repeat(False))
    app = make_echo(lambda batch: None if batch[0].n == 300 and not next(said) else batch[0].n)
    echoed(app, tmp_path / "d", 500)
    (told,) = verify(app, tmp_path / "d").differences
    assert told == (
        "stream echoes: one of the 8 batches after batch 296 up to batch 304 differs (stored 500 batches, re-executed 499)"
    )


def test_rows_in_another_order_are_a_difference(tmp_path: Path) -> None:
    backwards = itertools.chain([False], itertools.repeat(True))
    app = App("pairs")
    app.stream("numbers", "n BIGINT NOT NULL", border=True)
    app.stream("pairs", "n BIGINT")

    @app.procedure(inputs="numbers", outputs="pairs")
    def pair(txn: Transaction, numbers: Batch) -> None:
        rows = [(numbers[0].n,), (-numbers[0].n,)]
        txn.emit("pairs", rows[::-1] if numbers[0].n == 2 and next(backwards) else rows)

    with tidegate.open(app, tmp_path / "d") as engine:
        push(engine, 1, 3)
    assert verify(app, tmp_path / "d").differences == ["stream pairs: batch 2 differs"]


@pytest.mark.parametrize("keyed", [False, True])
@pytest.mark.parametrize("mode", MODES)
def test_no_run_counts_a_batch_twice(mode: str, keyed: bool, tmp_path: Path) -> None:
    """Live on threads, killed between checkpoints, recovered, rebuilt from the whole log: the same fingerprints."""
    app = make_echo(keyed=keyed, recovery=mode)
    for number, settings in enumerate(({"executor": "threads"}, {}, {"executor": "threads"})):
        engine = tidegate.open(app, tmp_path / "d", **settings)
        for n in range(100):
            engine.push("numbers", [(k, 100 * number + n) for k in range(3)] if keyed else [(n % 3, n)])
            if n == 50:
                engine.checkpoint()
        engine.run_until_idle()
        engine.durable.sync()
        let_go(engine)
    found = verify(app, tmp_path / "d")
    assert found.differences == []
    assert found.emitted == {"echoes": 900 if keyed else 300}
    (tmp_path / "d" / "base.duckdb").unlink()
    with tidegate.open(app, tmp_path / "d") as engine:
        assert engine.recovery.notes
    found = verify(app, tmp_path / "d")
    assert (found.differences, found.since) == ([], "the beginning")


@pytest.mark.parametrize("keyed", [False, True])
def test_a_log_that_begins_with_a_generation(keyed: bool, tmp_path: Path) -> None:
    """What was emitted before the oldest record is counted, but not run again; what was emitted since is compared."""
    chance = itertools.chain([5], itertools.repeat(0))
    app = make_echo(lambda batch: batch[0].n + (next(chance) if batch[0].n == 95 else 0), keyed=keyed)
    with tidegate.open(app, tmp_path / "d") as engine:
        engine.durable.writer._segment_bytes = 1_000
        for n in range(1, 101):
            engine.push("numbers", [(0, n)]).result()
            if n % 10 == 0 and n <= 80:
                engine.checkpoint(generation=True)
    backup_directory(tmp_path / "d", tmp_path / "copy")
    for copy in ("d", "copy"):
        found = verify(app, tmp_path / copy)
        assert found.since.startswith("generation")
        assert found.emitted["echoes"] < 100
        (told,) = found.differences
        place = (
            "2 batches of key 0 with batch-ids from 94 to 95"
            if keyed
            else "the 2 batches after batch 94 up to batch 96"
        )
        assert told == f"stream echoes: one of {place} differs"
        chance = itertools.chain([5], itertools.repeat(0))  # as it was: this time the same comes out
        assert verify(app, tmp_path / copy).differences == []


def test_a_directory_without_fingerprints_is_verified_without_them(tmp_path: Path) -> None:
    app = make_numbers("weak")
    with tidegate.open(app, tmp_path / "d") as engine:
        push(engine, 1, 3)
        engine.runtime.emitted.save = lambda: None  # type: ignore[method-assign]
    with tidegate.open(app, tmp_path / "d") as engine:
        assert engine.runtime.emitted.since == 3
        push(engine, 4, 5)
    found = verify(app, tmp_path / "d")
    assert (found.differences, found.emitted) == ([], {})


def test_a_directory_that_is_not_there_is_not_made(tmp_path: Path) -> None:
    with pytest.raises(TidegateError, match="nowhere has no log"):
        verify(make_echo(), tmp_path / "nowhere")
    assert not (tmp_path / "nowhere").exists()


def test_what_opening_took_is_told(tmp_path: Path) -> None:
    echoed(make_echo(), tmp_path / "d", 20)
    (tmp_path / "d" / "base.duckdb").write_bytes(b"no database")
    found = verify(make_echo(), tmp_path / "d")
    assert found.same
    assert "the base was rebuilt from the whole log" in found.notes
    assert (tmp_path / "d" / "base.duckdb").read_bytes() == b"no database"


def test_the_log_is_shown_up_to_a_damaged_record(tmp_path: Path) -> None:
    echoed(make_echo(), tmp_path / "d", 20)
    fifth = [entry for entry in entries(tmp_path / "d") if entry["kind"] == "pushed"][4]
    (segment,) = (tmp_path / "d" / "log").iterdir()
    data = bytearray(segment.read_bytes())
    data[fifth["lsn"] + 12] ^= 1
    segment.write_bytes(data)
    found = entries(tmp_path / "d")
    shown = [next(found)["sequence"] for _ in range(4)]
    with pytest.raises(LogDamaged, match=f"damaged at byte {fifth['lsn']}"):
        next(found)
    assert shown == [1, 2, 3, 4]


def test_a_replay_leaves_the_collector_as_it_was(tmp_path: Path) -> None:
    before = gc.get_threshold()
    engine = tidegate.open(make_numbers(), tmp_path / "d")
    push(engine, 1, 3)
    engine.durable.sync()
    let_go(engine)
    with tidegate.open(make_numbers(), tmp_path / "d") as engine:
        assert engine.recovery.replayed == {"batches": 3}
        assert gc.get_threshold() == before


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("partitioned", [False, True])
def test_what_followers_of_a_changelog_got_is_compared(mode: str, partitioned: bool, tmp_path: Path) -> None:
    """Also what they have long acknowledged; tables that are the same in the end do not hide it."""

    def make() -> App:
        app = App("counts", recovery=mode)
        split = {"partition_by": "k"} if partitioned else {}
        app.table("CREATE TABLE counts (k INTEGER PRIMARY KEY, n BIGINT NOT NULL)", changelog=True, **split)
        app.stream("numbers", "k INTEGER NOT NULL, n BIGINT NOT NULL", border=True)

        @app.procedure(inputs="numbers", writes=["counts"])
        def keep(txn: Transaction, numbers: Batch) -> None:
            for row in numbers:
                txn.upsert("counts", (row.k, row.n + next(detour) if row.n == 13 else row.n))

        return app

    detour = itertools.chain([7], itertools.repeat(0))
    with tidegate.open(make(), tmp_path / "d") as engine:
        follower = engine.subscribe_durably("counts_changes", "follower")
        for n in range(1, 21):
            engine.push("numbers", [(n % 3, n), (n % 3 + 1, n)])
            if n == 15:
                engine.checkpoint()
        follower.ack(list(follower))
    with tidegate.open(make(), tmp_path / "d") as engine:  # goes on from the fingerprint of the checkpoint
        engine.push("numbers", [(1, 21)])
        engine.outbox.subscriptions["follower"].ack(list(engine.outbox.subscriptions["follower"]))
    found = verify(make(), tmp_path / "d")
    assert found.changelogs == {"follower": 41 if partitioned else 21}
    if mode == "effects":
        assert found.differences == []
    else:
        (told,) = found.differences
        assert told.startswith("changelog counts_changes for 'follower': ")
        assert "differs" in told


def changed_echo(mode: Any) -> App:
    app = App("echo", recovery=mode)
    app.stream("numbers", "k INTEGER NOT NULL, n BIGINT NOT NULL", border=True)
    app.stream("echoes", "k INTEGER, n BIGINT")

    @app.procedure(inputs="numbers", outputs="echoes")
    def echo(txn: Transaction, numbers: Batch) -> None:
        txn.emit("echoes", k=0, n=0)

    return app


@pytest.mark.parametrize("mode", MODES)
def test_it_says_what_it_proves(mode: Any, tmp_path: Path) -> None:
    """In mode effects a changed procedure makes no difference; in the others it would prove nothing, and is refused."""
    echoed(make_echo(recovery=mode), tmp_path / "d", 3)
    assert verify(make_echo(recovery=mode), tmp_path / "d").proof.startswith(
        "no proc" if mode == "effects" else "every"
    )
    if mode == "effects":
        assert verify(changed_echo(mode), tmp_path / "d").same
    else:
        with pytest.raises(RecoveryRefused, match=r"last opened by another version.*function echo\(\).*Verify it with"):
            verify(changed_echo(mode), tmp_path / "d")


def test_an_app_that_could_not_have_written_the_log_is_refused(tmp_path: Path) -> None:
    echoed(make_echo(), tmp_path / "d", 3)
    with pytest.raises(RecoveryRefused, match="recovery mode: was weak, is strong"):
        verify(make_echo(recovery="strong"), tmp_path / "d")
