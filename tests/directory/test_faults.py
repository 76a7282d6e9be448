"""Disks that fail or fill up, files gone or damaged, second owners: a clear error, nothing lost."""

from __future__ import annotations

import errno
import logging
import os
import shutil
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from recovering import frames, let_go, make_numbers, push, seen

import tidegate
from tidegate import App, Batch, Engine, TidegateError, Transaction
from tidegate.errors import DiskFull, LogDamaged, LogFailed, RecoveryRefused
from tidegate.testing import SimulatedFiles
from tidegate.txn.log.record import FORMAT, Segment, encode, framed

Use = Callable[[SimulatedFiles], None]
Kill = Callable[[Engine], None]
SETTINGS: dict[str, Any] = {"merge_every_s": 3600.0}
SUPPORT = Path(__file__).parents[1] / "support"


def push_until_refused(engine: Engine, first: int) -> tuple[int, Exception]:
    """Push numbers until one is refused; returns the last that was acknowledged, and the error."""
    number = first
    try:
        while True:
            engine.push("numbers", [(number,)], number).result(60)
            number += 1
    except TidegateError as error:
        return number - 1, error


def fill_up(place: Path) -> Path:
    """A file that takes up what room there is."""
    ballast = place / "ballast"
    try:
        with ballast.open("wb", buffering=0) as file:
            while file.write(b"x" * 4096):
                pass
    except OSError:
        return ballast
    raise AssertionError("the disk has no end")


# ---- syncs that fail


def test_who_listens_is_told_of_a_sync_that_failed_while_the_procedure_ran(tmp_path: Path, use: Use) -> None:
    app, files, told = App("failing"), SimulatedFiles(1), threading.Event()
    app.stream("numbers", "n INTEGER NOT NULL", border=True)
    use(files)
    engines: list[Engine] = []

    @app.procedure(inputs="numbers")
    def fail(txn: Transaction, numbers: Batch) -> None:
        durable = engines[0].durable
        assert durable is not None
        files.fail_sync_at = files.syncs + 1
        with pytest.raises(LogFailed):
            durable.writer.wait(durable.writer.appended)

    engines.append(tidegate.open(app, tmp_path, max_delay_s=60, **SETTINGS))
    ticket = engines[0].push("numbers", [(1,)])
    ticket.add_done_callback(lambda _: told.set())
    assert told.wait(60)
    with pytest.raises(LogFailed):
        ticket.result()
    let_go(engines[0])


@pytest.mark.parametrize("sync", ["group", "always"])
@pytest.mark.parametrize("fail_at", [2, 3, 7, 8])
def test_a_failed_sync_stops_the_engine(
    way: tuple[Any, str], sync: Any, fail_at: int, tmp_path: Path, use: Use
) -> None:
    mode, executor = way
    files = SimulatedFiles(fail_at)
    use(files)
    engine = tidegate.open(make_numbers(mode), tmp_path, executor=executor, sync=sync, **SETTINGS)
    files.fail_sync_at = files.syncs + fail_at
    acknowledged, error = push_until_refused(engine, 1)
    assert isinstance(error, LogFailed)
    assert "could not be synced" in str(error)
    for work in (
        lambda: engine.push("numbers", [(1_000,)]),
        lambda: engine.call("total", 1),
        engine.checkpoint,
    ):
        with pytest.raises(LogFailed):
            work()
    with pytest.raises(LogFailed):
        engine.close()
    use(files.after_power_loss())
    with tidegate.open(make_numbers(mode), tmp_path) as engine:
        assert len(seen(engine)) >= acknowledged


SHIM = """
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <stdlib.h>
#include <sys/types.h>
#include <sys/uio.h>
#include <unistd.h>
typedef ssize_t (*write_t)(int, const struct iovec *, int, off_t, int);
static int done = 0;
static int fails(void) {  /* from the SYNCS-th sync on, or only that one: FOR syncs */
    int number = done++ - atoi(getenv("SYNCS"));
    if (number < 0 || number >= atoi(getenv("FOR"))) return 0;
    errno = atoi(getenv("ERRNO"));
    return 1;
}
int fdatasync(int fd) {
    return fails() ? -1 : ((int (*)(int)) dlsym(RTLD_NEXT, "fdatasync"))(fd);
}
static ssize_t at_once(const char *name, int fd, const struct iovec *parts, int count, off_t offset, int flags) {
    if (getenv("NO_DSYNC")) { errno = EOPNOTSUPP; return -1; }
    ssize_t written = ((write_t) dlsym(RTLD_NEXT, name))(fd, parts, count, offset, flags);
    return fails() ? -1 : written;  /* it may have been written */
}
ssize_t pwritev2(int fd, const struct iovec *parts, int count, off_t offset, int flags) {
    return at_once("pwritev2", fd, parts, count, offset, flags);
}
ssize_t pwritev64v2(int fd, const struct iovec *parts, int count, off_t offset, int flags) {
    return at_once("pwritev64v2", fd, parts, count, offset, flags);
}
"""


@pytest.fixture(scope="module")
def shim(tmp_path_factory: pytest.TempPathFactory) -> Path:
    if shutil.which("gcc") is None:
        pytest.skip("no gcc to build the shim with")
    place = tmp_path_factory.mktemp("shim")
    (place / "shim.c").write_text(SHIM)
    subprocess.run(["gcc", "-shared", "-fPIC", "-o", place / "shim.so", place / "shim.c", "-ldl"], check=True)
    return place / "shim.so"


def push_with(shim: Path, path: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    """Push up to 99 numbers with syncs of the system that fail; each is printed when it is acknowledged."""
    code = f"""
import sys, time; sys.path.insert(0, {str(SUPPORT)!r})
import tidegate
from recovering import make_numbers
from tidegate.errors import DiskFull, LogFailed
engine = tidegate.open(make_numbers(), {str(path)!r}, merge_every_s=3600.0)
number = 1
while number < 100:
    try:
        engine.push("numbers", [(number,)], number).result()
        print(number, flush=True)
        number += 1
    except DiskFull:
        time.sleep(0.02)
    except LogFailed:
        sys.exit(7)
engine.close()
"""
    settings = {**os.environ, "LD_PRELOAD": str(shim), "FOR": "1000000", "ERRNO": str(errno.EIO), **environment}
    return subprocess.run([sys.executable, "-c", code], env=settings, capture_output=True, text=True, check=False)


@pytest.mark.parametrize("syncs", [12, 30])
@pytest.mark.parametrize("ways", [{}, {"NO_DSYNC": "1"}], ids=["at once", "write, then sync"])
def test_a_sync_of_the_system_that_fails(syncs: int, ways: dict[str, str], shim: Path, tmp_path: Path) -> None:
    done = push_with(shim, tmp_path / "db", SYNCS=str(syncs), **ways)
    assert done.returncode == 7, done.stderr
    acknowledged = len(done.stdout.split())
    assert 0 < acknowledged < 99
    with tidegate.open(make_numbers(), tmp_path / "db") as engine:
        assert len(seen(engine)) >= acknowledged


@pytest.mark.parametrize("syncs", [5, 12, 30])
@pytest.mark.parametrize("ways", [{}, {"NO_DSYNC": "1"}], ids=["at once", "write, then sync"])
def test_a_sync_that_finds_no_room_is_made_again_whole(
    syncs: int, ways: dict[str, str], shim: Path, tmp_path: Path
) -> None:
    """What it was to sync is written once more in the same place, so that nothing is twice in the log."""
    done = push_with(shim, tmp_path / "db", SYNCS=str(syncs), FOR="3", ERRNO=str(errno.ENOSPC), **ways)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == [str(number) for number in range(1, 100)]
    with tidegate.open(make_numbers(), tmp_path / "db") as engine:
        assert len(seen(engine)) == 99


# ---- disks that fill up


@pytest.mark.parametrize("sync", ["group", "always"])
def test_a_full_disk_refuses_new_work_and_goes_on_when_there_is_room(
    way: tuple[Any, str], sync: Any, tmp_path: Path, use: Use, killed: Kill
) -> None:
    mode, executor = way
    files = SimulatedFiles(1)
    use(files)
    engine = tidegate.open(make_numbers(mode), tmp_path, executor=executor, sync=sync, **SETTINGS)
    push(engine, 1, 5)
    files.capacity = files.used + 20
    with pytest.raises(DiskFull):
        push(engine, 6, 6)  # accepted, but nobody was told that it is on disk
    with pytest.raises(DiskFull, match=r"nothing new is accepted.*work resumes by itself"):
        push(engine, 7, 7)
    with pytest.raises(DiskFull):
        engine.call("total", 1)
    files.capacity = None
    assert engine.push("numbers", [(6,)], 6).duplicate
    push(engine, 7, 9)
    killed(engine)
    use(files.after_power_loss())
    with tidegate.open(make_numbers(mode), tmp_path) as engine:
        assert len(seen(engine)) == 9


def test_a_disk_that_is_full_for_good_loses_nothing_acknowledged(tmp_path: Path, use: Use) -> None:
    files = SimulatedFiles(1)
    use(files)
    engine = tidegate.open(make_numbers(), tmp_path, **SETTINGS)
    push(engine, 1, 5)
    files.capacity = files.used
    with pytest.raises(DiskFull):
        push(engine, 6, 6)
    with pytest.raises(DiskFull):
        engine.close()
    files.capacity = None
    use(files.after_power_loss())
    with tidegate.open(make_numbers(), tmp_path) as engine:
        assert len(seen(engine)) == 5


@pytest.mark.parametrize("room", range(0, 140, 20))
def test_no_room_for_a_new_segment(room: int, tmp_path: Path, use: Use) -> None:
    files = SimulatedFiles(room)
    use(files)
    with tidegate.open(make_numbers(), tmp_path, **SETTINGS) as engine:
        push(engine, 1, 5)
    files.capacity = files.used + room
    with pytest.raises(DiskFull):
        tidegate.open(make_numbers(), tmp_path, **SETTINGS).close()
    files.capacity = None
    with tidegate.open(make_numbers(), tmp_path, **SETTINGS) as engine:
        assert len(seen(engine)) == 5


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Callable[[str], Path]]:
    """``small_disk("3m")``: a tmpfs of that size, or the same one made larger."""
    place = tmp_path / "small"
    place.mkdir()
    mounted = []

    def make(size: str) -> Path:
        options = f"remount,size={size}" if mounted else f"size={size}"
        done = subprocess.run(["mount", "-t", "tmpfs", "-o", options, "tmpfs", place], capture_output=True, check=False)
        if done.returncode:
            pytest.skip("a small tmpfs needs root")
        mounted.append(size)
        return place

    yield make
    if mounted:
        subprocess.run(["umount", "-l", place], check=False)


def test_a_tmpfs_that_is_full(small_disk: Callable[[str], Path], killed: Kill) -> None:
    path = small_disk("2m") / "db"
    engine = tidegate.open(make_numbers(), path, **SETTINGS)
    push(engine, 1, 5)
    ballast = fill_up(path.parent)
    acknowledged, error = push_until_refused(engine, 6)
    assert isinstance(error, DiskFull)
    last = len(seen(engine))
    assert last >= acknowledged
    ballast.unlink()
    push(engine, last + 1, last + 3)
    killed(engine)
    with tidegate.open(make_numbers(), path) as engine:
        assert len(seen(engine)) == last + 3


def test_no_room_for_the_merge(small_disk: Callable[[str], Path], tmp_path: Path, killed: Kill) -> None:
    """The log has room, the base has not."""
    path = small_disk("1m") / "db"
    path.mkdir()
    (tmp_path / "log").mkdir()
    (path / "log").symlink_to(tmp_path / "log")
    engine = tidegate.open(make_numbers(), path, **SETTINGS)
    push(engine, 1, 3)
    engine.checkpoint()
    ballast = fill_up(path)
    engine.feed("numbers", [(n,) for n in range(4, 3_000)])
    with pytest.raises(DiskFull, match=r"no room to merge.*work resumes automatically"):
        engine.checkpoint()
    push(engine, 3_000, 3_010)
    assert len(seen(engine)) == 3_010
    ballast.unlink()
    small_disk("64m")
    engine.checkpoint(generation=True)
    push(engine, 3_011, 3_020)
    killed(engine)
    with tidegate.open(make_numbers(), path) as engine:
        assert len(seen(engine)) == 3_020
        assert engine.recovery.replayed == {"batches": 10}


def test_no_room_for_a_background_merge_refuses_new_work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    engine = tidegate.open(make_numbers(), tmp_path, merge_every_s=0.01)
    full = DiskFull("no room")

    def refuse() -> None:
        raise full

    monkeypatch.setattr(engine.database.base, "publish", refuse)
    engine.push("numbers", [(1,)], 1).result()
    while engine.merger.failed is None:
        pass
    with pytest.raises(DiskFull):
        engine.push("numbers", [(2,)], 2)
    monkeypatch.undo()
    while engine.merger.failed is not None:
        pass  # work resumes by itself
    push(engine, 2, 3)
    assert len(seen(engine)) == 3
    engine.close()
    with tidegate.open(make_numbers(), tmp_path) as engine:
        assert len(seen(engine)) == 3


# ---- the log


def test_a_second_process_is_refused_by_pid(tmp_path: Path) -> None:
    code = f"""
import sys; sys.path.insert(0, {str(SUPPORT)!r})
import tidegate
from recovering import make_numbers
tidegate.open(make_numbers(), {str(tmp_path)!r})
"""
    with tidegate.open(make_numbers(), tmp_path) as engine:
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
        assert done.returncode != 0
        assert f"is open in process {os.getpid()}" in done.stderr
        push(engine, 1, 2)


def segments(path: Path) -> list[Path]:
    return sorted((path / "log").iterdir())


def filled(path: Path, kill: Kill, count: int = 5) -> Path:
    """A directory whose process died; returns its log segment."""
    engine = tidegate.open(make_numbers(), path, **SETTINGS)
    push(engine, 1, count)
    kill(engine)
    return segments(path)[-1]


def test_a_torn_tail_is_cut_and_reported(tmp_path: Path, killed: Kill) -> None:
    log = filled(tmp_path, killed)
    whole = log.read_bytes()
    log.write_bytes(whole + b"\x30\x00\x00\x00torn")
    with tidegate.open(make_numbers(), tmp_path) as engine:
        assert f"cut a torn tail of 8 bytes off {log.name}" in str(engine.recovery)
        assert len(seen(engine)) == 5
    assert log.read_bytes() == whole


def test_a_damaged_record_stops_with_file_and_offset(tmp_path: Path, killed: Kill) -> None:
    log = filled(tmp_path, killed)
    data = bytearray(log.read_bytes())
    place = len(data) * 4 // 5  # behind the header
    data[place] ^= 1
    log.write_bytes(data)
    with pytest.raises(LogDamaged, match=rf"{log.name} is damaged at byte \d+") as told:
        tidegate.open(make_numbers(), tmp_path)
    assert told.value.file == log.name  # type: ignore[attr-defined]
    assert 0 < told.value.offset <= place  # type: ignore[attr-defined]
    assert log.read_bytes() == bytes(data), "nothing was cut"


def test_a_missing_segment_is_named(tmp_path: Path, killed: Kill) -> None:
    for _ in range(3):
        filled(tmp_path, killed)
    (tmp_path / "base.duckdb").unlink()
    segments(tmp_path)[1].unlink()
    with pytest.raises(LogDamaged, match=r"the log has a gap"):
        tidegate.open(make_numbers(), tmp_path)


def test_a_log_that_ends_before_the_base_is_refused(tmp_path: Path) -> None:
    with tidegate.open(make_numbers(), tmp_path) as engine:
        push(engine, 1, 5)
    segments(tmp_path)[-1].unlink()
    with pytest.raises(LogDamaged, match=r"the base holds everything up to LSN \d+, but the log ends at 0"):
        tidegate.open(make_numbers(), tmp_path)


@pytest.mark.parametrize("content", ["segment", "record"])
def test_a_newer_format_is_refused_and_left_alone(content: str, tmp_path: Path, killed: Kill) -> None:
    log = filled(tmp_path, killed)
    if content == "segment":
        newer = log.with_name(f"{log.stat().st_size + int(log.stem):020d}.log")
        newer.write_bytes(encode(Segment(FORMAT + 1, "numbers", "weak", {}, {})))
    else:
        unknown = b"\x91\x7b"  # [123]: a kind of record that is not known here
        frame, _ = framed(unknown, frames(log.read_bytes())[-1].crc)
        log.write_bytes(log.read_bytes() + frame)
    before = {path: path.read_bytes() for path in segments(tmp_path)}
    with pytest.raises(RecoveryRefused, match=r"upgrade tidegate"):
        tidegate.open(make_numbers(), tmp_path)
    assert {path: path.read_bytes() for path in segments(tmp_path)} == before


def test_the_log_of_another_app_is_refused(tmp_path: Path, killed: Kill) -> None:
    filled(tmp_path, killed)
    other = make_numbers()
    other.name = "others"
    with pytest.raises(RecoveryRefused, match=r"belongs to app 'numbers'"):
        tidegate.open(other, tmp_path)


# ---- the base


def died(path: Path, merges: int = 3, **settings: Any) -> None:
    """Numbers 1 to 5 * merges + 5, a merge with a generation after every five but the last."""
    for turn in range(merges):
        engine = tidegate.open(make_numbers(), path, **{**SETTINGS, **settings})
        push(engine, 5 * turn + 1, 5 * turn + 5)
        engine.checkpoint(generation=True)
        let_go(engine)
    engine = tidegate.open(make_numbers(), path, **SETTINGS)
    push(engine, 5 * merges + 1, 5 * merges + 5)
    let_go(engine)


def damage(path: Path) -> None:
    data = bytearray(path.read_bytes())
    for place in range(0, len(data), 64):
        data[place] ^= 0x55
    path.write_bytes(data)


def reopened(path: Path) -> str:
    """What recovery said; everything is there."""
    with tidegate.open(make_numbers(), path) as engine:
        assert len(seen(engine)) == 20
        windows = [tuple(row) for row in engine.query("SELECT name, held, fired FROM tidegate.windows")]
        assert windows == [("recent", 3, 18)]
        told = str(engine.recovery)
    with tidegate.open(make_numbers(), path) as engine:
        assert engine.recovery.notes == []
        assert len(seen(engine)) == 20
    return told


def test_a_sound_base_needs_no_words(tmp_path: Path) -> None:
    died(tmp_path)
    assert reopened(tmp_path).startswith("replayed 5 batches")


def test_a_missing_base_is_rebuilt(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    died(tmp_path)
    (tmp_path / "base.duckdb").unlink()
    with caplog.at_level(logging.WARNING, "tidegate"):
        told = reopened(tmp_path)
    assert told in caplog.text, "nobody has to ask for it"
    assert "base.duckdb is missing" in told
    assert "the base was rebuilt from generation 3" in told


def test_a_damaged_base_is_rebuilt(tmp_path: Path) -> None:
    died(tmp_path)
    damage(tmp_path / "base.duckdb")
    told = reopened(tmp_path)
    assert "base.duckdb is damaged" in told
    assert "rebuilt from generation 3" in told
    assert list(tmp_path.glob("base.duckdb.damaged-*")), "what was damaged is kept"


def test_a_damaged_generation_is_skipped(tmp_path: Path) -> None:
    died(tmp_path)
    damage(tmp_path / "base.duckdb")
    newest, older = sorted((tmp_path / "generations").iterdir(), reverse=True)
    damage(newest)
    told = reopened(tmp_path)
    assert f"{newest.name} is damaged" in told
    assert f"rebuilt from generation {int(older.name.split('-')[0])}" in told


def test_with_nothing_sound_left_the_error_says_so(tmp_path: Path) -> None:
    died(tmp_path, 4)
    for path in [tmp_path / "base.duckdb", *(tmp_path / "generations").iterdir()]:
        damage(path)
    with pytest.raises(TidegateError, match=r"neither the base nor a generation of it can be read.*restore a backup"):
        tidegate.open(make_numbers(), tmp_path)


def test_without_generations_the_whole_log_does(tmp_path: Path, killed: Kill) -> None:
    filled(tmp_path, killed, 20)
    damage(tmp_path / "base.duckdb")
    assert "rebuilt from the whole log" in reopened(tmp_path)


def test_a_base_that_is_behind_is_brought_forward(tmp_path: Path) -> None:
    died(tmp_path, 2)
    old = (tmp_path / "base.duckdb").read_bytes()
    engine = tidegate.open(make_numbers(), tmp_path, **SETTINGS)
    push(engine, 16, 20)
    engine.checkpoint()
    let_go(engine)
    (tmp_path / "base.duckdb").write_bytes(old)
    (tmp_path / "base.duckdb.wal").unlink(missing_ok=True)
    assert "the base is at merge 2, but the log has merge 3" in reopened(tmp_path)


def test_a_stale_wal_of_duckdb_does_no_harm(tmp_path: Path) -> None:
    engine = tidegate.open(make_numbers(), tmp_path, **SETTINGS)
    push(engine, 1, 5)
    engine.checkpoint()
    stale = (tmp_path / "base.duckdb.wal").read_bytes()
    engine.close()
    for turn in range(1, 4):
        with tidegate.open(make_numbers(), tmp_path, **SETTINGS) as engine:
            push(engine, 5 * turn + 1, 5 * turn + 5)
    assert stale
    (tmp_path / "base.duckdb.wal").write_bytes(stale)
    reopened(tmp_path)


def test_a_wal_without_its_base_is_put_aside(tmp_path: Path) -> None:
    died(tmp_path)
    engine = tidegate.open(make_numbers(), tmp_path, **SETTINGS)
    engine.checkpoint()
    wal = (tmp_path / "base.duckdb.wal").read_bytes()
    let_go(engine)
    (tmp_path / "base.duckdb").unlink()
    (tmp_path / "base.duckdb.wal").write_bytes(wal)
    assert "base.duckdb.wal was renamed to" in reopened(tmp_path)


def test_retention_keeps_what_a_rebuild_needs(tmp_path: Path) -> None:
    for turn in range(8):
        engine = tidegate.open(make_numbers(), tmp_path, **SETTINGS)
        push(engine, 5 * turn + 1, 5 * turn + 5)
        engine.checkpoint(generation=turn % 2 == 0)
        let_go(engine)
        kept = sorted((tmp_path / "generations").iterdir())
        assert len(kept) <= 2
        for number, generation in enumerate(kept):
            copy = tmp_path.parent / f"{tmp_path.name}-{turn}-{number}"
            shutil.copytree(tmp_path, copy)
            (copy / "base.duckdb").unlink()
            for other in kept:
                if other != generation:
                    (copy / "generations" / other.name).unlink()
            with tidegate.open(make_numbers(), copy) as engine:
                assert len(seen(engine)) == 5 * turn + 5
    assert int(segments(tmp_path)[0].stem) > 0, "old segments are gone"
