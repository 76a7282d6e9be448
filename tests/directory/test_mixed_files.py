"""Files that do not belong together: removed, swapped, cut, or taken from another directory or another copy of it."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
from recovering import frames, let_go, make_numbers, push, seen

import tidegate
from tidegate.directory.backup import backup_directory, restore
from tidegate.errors import LogDamaged, RecoveryRefused
from tidegate.offline.verify import verify
from tidegate.storage.generations import Inspector
from tidegate.txn.log.files import OsFiles
from tidegate.txn.log.reader import LogReader
from tidegate.txn.log.record import HEADER, Mark, Segment, body_of, decode, encode, framed, seal

SETTINGS: dict[str, Any] = {"merge_every_s": 3600.0}


def lived(path: Path, first: int, last: int, generation: bool | None = None) -> None:
    """An opening, and so a segment, of a process that dies: numbers, and perhaps a merge in their middle."""
    engine = tidegate.open(make_numbers(), path, **SETTINGS)
    middle = (first + last) // 2
    push(engine, first, middle)
    if generation is not None:
        engine.checkpoint(generation=generation)
    push(engine, middle + 1, last)
    assert engine.durable is not None
    engine.durable.sync()
    let_go(engine)


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Four segments, never merged."""
    path = tmp_path_factory.mktemp("plain") / "db"
    for turn in range(4):
        lived(path, 5 * turn + 1, 5 * turn + 5)
    return path


@pytest.fixture(scope="module")
def merged(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Six segments, the first of them gone; two generations, and a base behind them."""
    path = tmp_path_factory.mktemp("merged") / "db"
    for turn in range(6):
        lived(path, 5 * turn + 1, 5 * turn + 5, generation=turn < 5)
    assert len(list((path / "generations").iterdir())) == 2
    assert segments(path)[0].stem != "0" * 20
    return path


@pytest.fixture(scope="module")
def another(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Another directory of the same app, with the same history."""
    path = tmp_path_factory.mktemp("another") / "db"
    for turn in range(6):
        lived(path, 5 * turn + 1, 5 * turn + 5, generation=turn < 5)
    return path


def copied(path: Path, target: Path) -> Path:
    shutil.copytree(path, target)
    return target


def segments(path: Path) -> list[Path]:
    return sorted((path / "log").iterdir())


def identity(path: Path) -> str:
    header = decode(frames(segments(path)[0].read_bytes())[0].data[HEADER.size :])
    assert isinstance(header, Segment)
    return header.directory


def read(path: Path) -> int:
    """Go through the log; returns how many bytes at its end are torn."""
    reader = LogReader(OsFiles(path / "log"), survey=True)
    for _ in reader:
        pass
    return 0 if reader.cut is None else reader.cut.size


def rewritten(segment: bytes, **facts: Any) -> bytes:
    """The segment as somebody else would have written it: all of its frames check."""
    head, *rest = (frame.data[HEADER.size :] for frame in frames(segment))
    made, chain = framed(body_of(msgspec.structs.replace(decode(head), **facts)), 0)
    for body in rest:
        frame, chain = framed(body, chain)
        made += frame
    return made


def refused(path: Path, error: type[Exception], told: str) -> Any:
    """Opening is refused, and nothing on disk has changed."""
    before = {file: file.read_bytes() for file in (path / "log").iterdir()}
    with pytest.raises(error, match=told) as caught:
        tidegate.open(make_numbers(), path)
    assert {file: file.read_bytes() for file in (path / "log").iterdir()} == before
    return caught.value


# ---- segments


@pytest.mark.parametrize("which", [1, 2])
def test_a_segment_is_missing(which: int, plain: Path, tmp_path: Path) -> None:
    path = copied(plain, tmp_path / "db")
    names = [segment.name for segment in segments(path)]
    (path / "log" / names[which]).unlink()
    error = refused(path, LogDamaged, rf"gap: {names[which + 1]} begins at .* \({names[which - 1]}\) ends at")
    assert (error.file, error.offset) == (names[which + 1], 0)


def test_the_first_segment_is_missing(plain: Path, tmp_path: Path) -> None:
    path = copied(plain, tmp_path / "db")
    lived(path, 21, 25, generation=False)
    segments(path)[0].unlink()
    refused(path, LogDamaged, r"the log begins at LSN \d+, but the base says that it is kept from LSN 0 on")


def test_a_segment_that_a_generation_needs_is_missing(merged: Path, tmp_path: Path) -> None:
    path = copied(merged, tmp_path / "db")
    for segment in segments(path)[:-1]:
        segment.unlink()
    refused(path, LogDamaged, r"generation \d+-\d+.duckdb is at LSN \d+, but the log reaches from \d+ to")


@pytest.mark.parametrize("one", [0, 1, 2])
def test_two_segments_are_swapped(one: int, plain: Path, tmp_path: Path) -> None:
    path = copied(plain, tmp_path / "db")
    left, right = segments(path)[one : one + 2]
    before = left.read_bytes()
    left.write_bytes(right.read_bytes())
    right.write_bytes(before)
    error = refused(path, LogDamaged, rf"{left.name} says that it begins at LSN {int(right.stem)}: it was renamed")
    assert (error.file, error.offset) == (left.name, 0)


@pytest.mark.parametrize("which", range(4))
def test_a_segment_of_another_directory_with_the_same_lsns(which: int, plain: Path, tmp_path: Path) -> None:
    path = copied(plain, tmp_path / "db")
    mine, theirs = identity(path), "f" * 16
    segment = segments(path)[which]
    segment.write_bytes(rewritten(segment.read_bytes(), directory=theirs))
    error = refused(path, RecoveryRefused, "a file of another directory was copied in")
    assert mine in str(error)
    assert theirs in str(error)
    named = segments(path)[max(which, 1)].name, segments(path)[max(which, 1) - 1].name
    assert all(name in str(error) for name in named)


@pytest.mark.parametrize("which", [0, 1, 2])
def test_a_segment_of_another_copy_of_the_directory(which: int, plain: Path, tmp_path: Path) -> None:
    """It went on separately, so the next one follows something else."""
    path = copied(plain, tmp_path / "db")
    segment, following = segments(path)[which : which + 2]
    segment.write_bytes(rewritten(segment.read_bytes(), opening="0" * 16))
    error = refused(path, LogDamaged, rf"{following.name} does not continue where {segment.name} ends")
    assert (error.file, error.offset) == (following.name, 0)


def test_a_segment_but_the_last_is_cut_at_the_end_of_a_record(plain: Path, tmp_path: Path) -> None:
    for which in (0, 2):
        path = copied(plain, tmp_path / str(which))
        segment, following = segments(path)[which : which + 2]
        data = segment.read_bytes()
        for frame in frames(data):
            segment.write_bytes(data[: frame.offset])
            with pytest.raises(LogDamaged) as told:
                read(path)
            assert told.value.file in (segment.name, following.name)  # type: ignore[attr-defined]
            assert told.value.offset == 0  # type: ignore[attr-defined]


def test_a_file_that_is_no_segment_is_named(plain: Path, tmp_path: Path) -> None:
    path = copied(plain, tmp_path / "db")
    shutil.copyfile(segments(path)[1], path / "log" / f"{segments(path)[1].stem} (copy).log")
    refused(path, RecoveryRefused, r"has a file \d+ \(copy\).log, which is not a segment")


def test_a_log_of_an_early_release_is_refused(tmp_path: Path) -> None:
    (tmp_path / "log").mkdir()
    frame, _ = framed(msgspec.msgpack.encode([0, 1, "numbers", "weak", {}, {}]), 0)
    (tmp_path / "log" / f"{0:020d}.log").write_bytes(frame)
    refused(
        tmp_path, RecoveryRefused, r"has format 1, this tidegate reads format 4; open it with the release that wrote it"
    )


def test_a_log_without_columns_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Format 3 has rows as lists, which is what format 4 writes for rows that came as such."""
    with monkeypatch.context() as before:
        before.setattr("tidegate.directory.survey.FORMAT", 3)
        lived(tmp_path / "db", 1, 5)
    head = decode(frames(segments(tmp_path / "db")[0].read_bytes())[0].data[HEADER.size :])
    assert isinstance(head, Segment)
    assert head.format == 3
    lived(tmp_path / "db", 6, 7)
    with tidegate.open(make_numbers(), tmp_path / "db") as engine:
        assert engine.recovery.replayed["batches"] == 7


# ---- frames


def dropped(all_: list[bytes], place: int) -> list[bytes]:
    return all_[:place] + all_[place + 1 :]


def doubled(all_: list[bytes], place: int) -> list[bytes]:
    return [*all_[: place + 1], *all_[place:]]


def exchanged(all_: list[bytes], place: int) -> list[bytes]:
    return [*all_[:place], all_[place + 1], all_[place], *all_[place + 2 :]]


@pytest.mark.parametrize("which", [1, -1], ids=["middle segment", "last segment"])
@pytest.mark.parametrize("change", [dropped, doubled, exchanged])
def test_a_frame_is_not_where_it_belongs(
    change: Callable[[list[bytes], int], list[bytes]], which: int, plain: Path, tmp_path: Path
) -> None:
    """Wherever that is, in front of a mark that says that it was on disk. (The last record twice: the second is a torn tail.)"""
    path = copied(plain, tmp_path / "db")
    segment = segments(path)[which]
    data = [frame.data for frame in frames(segment.read_bytes())]
    marks = [place for place, frame in enumerate(data) if isinstance(decode(frame[HEADER.size :]), Mark)]
    last = marks[-1] - (change is doubled)
    for place in range(last):
        changed = change(data, place)
        segment.write_bytes(b"".join(changed))
        with pytest.raises(LogDamaged, match=r"is damaged at byte|does not begin with a header") as told:
            read(path)
        assert told.value.file == segment.name  # type: ignore[attr-defined]
    segment.write_bytes(b"".join(dropped(data, 3)))
    refused(path, LogDamaged, rf"{segment.name} is damaged at byte {sum(map(len, data[:3]))} ")


def test_a_torn_tail_with_a_row_that_looks_like_a_mark_is_cut(plain: Path, tmp_path: Path) -> None:
    """Whoever pushes bytes does not know the identity; a mark of this directory there is damage."""
    path = copied(plain, tmp_path / "db")
    segment = segments(path)[-1]
    whole = segment.read_bytes()
    beyond = int(segment.stem) + len(whole) + 1_000
    torn = b"\xff\x00\x00\x00torn" + b"x" * 40
    segment.write_bytes(whole + torn + encode(Mark(beyond, seal("f" * 16, beyond))))
    assert read(path) == segment.stat().st_size - len(whole)
    with tidegate.open(make_numbers(), path) as engine:
        assert len(seen(engine)) == 20
    assert segment.read_bytes() == whole
    segment = copied(plain, tmp_path / "again") / "log" / segment.name
    segment.write_bytes(whole + torn + encode(Mark(beyond, seal(identity(path), beyond))))
    with pytest.raises(LogDamaged, match=f"damaged at byte {len(whole)} "):
        read(tmp_path / "again")


# ---- bases and generations


def test_the_base_of_another_directory(merged: Path, another: Path, tmp_path: Path) -> None:
    path = copied(merged, tmp_path / "db")
    for name in ("base.duckdb", "base.duckdb.wal"):
        (path / name).unlink(missing_ok=True)
        if (another / name).exists():
            shutil.copyfile(another / name, path / name)
    error = refused(path, RecoveryRefused, "base.duckdb belongs to directory")
    assert identity(another) in str(error)
    assert identity(path) in str(error)
    assert segments(path)[-1].name in str(error)
    for name in ("base.duckdb", "base.duckdb.wal"):
        (path / name).unlink(missing_ok=True)
    with tidegate.open(make_numbers(), path) as engine:  # as the error says
        assert len(seen(engine)) == 30


def test_the_generation_of_another_directory(merged: Path, another: Path, tmp_path: Path) -> None:
    path = copied(merged, tmp_path / "db")
    theirs = max((another / "generations").iterdir())
    shutil.copyfile(theirs, path / "generations" / theirs.name.replace("-", "7-", 1))
    error = refused(path, RecoveryRefused, "belongs to directory")
    assert identity(another) in str(error)
    assert identity(path) in str(error)


def test_the_base_of_a_copy_that_went_on_separately(merged: Path, tmp_path: Path) -> None:
    left, right = copied(merged, tmp_path / "left"), copied(merged, tmp_path / "right")
    lived(left, 31, 40)
    lived(right, 31, 36, generation=False)
    assert identity(left) == identity(right)
    for name in ("base.duckdb", "base.duckdb.wal"):
        (left / name).unlink(missing_ok=True)
        if (right / name).exists():
            shutil.copyfile(right / name, left / name)
    refused(left, RecoveryRefused, "copies of one directory that were used separately")
    for name in ("base.duckdb", "base.duckdb.wal"):
        (left / name).unlink(missing_ok=True)
    with tidegate.open(make_numbers(), left) as engine:  # as the error says
        assert len(seen(engine)) == 40


# ---- backups


def test_a_backup_has_the_identity_of_its_directory_and_goes_on(merged: Path, tmp_path: Path) -> None:
    path = copied(merged, tmp_path / "db")
    with tidegate.open(make_numbers(), path, **SETTINGS) as engine:
        engine.backup(tmp_path / "inside")
    backup_directory(path, tmp_path / "outside")
    for name in ("inside", "outside"):
        restore(tmp_path / name, tmp_path / f"{name} again")
        again = tmp_path / f"{name} again"
        found = verify(make_numbers(), again)
        assert found.differences == []
        assert found.since.startswith({"inside": "the base", "outside": "generation"}[name])
        lived(again, 31, 35, generation=True)
        assert identity(again) == identity(path)
        with Inspector() as inspector:
            assert inspector.read_all(max((again / "generations").iterdir()))["directory"] == identity(path)
        assert verify(make_numbers(), again).differences == []
        with tidegate.open(make_numbers(), again) as engine:
            assert len(seen(engine)) == 35


@pytest.mark.parametrize("generation", [True, False])
def test_a_backup_copied_over_its_directory(generation: bool, plain: Path, tmp_path: Path) -> None:
    """Files of now between files of then: refused, unless they are those of the backup alone."""
    path = copied(plain, tmp_path / "db")
    engine = tidegate.open(make_numbers(), path, **SETTINGS)
    push(engine, 21, 25)
    engine.backup(tmp_path / "backup")
    push(engine, 26, 30)
    engine.checkpoint(generation=generation)
    let_go(engine)
    lived(path, 31, 35)
    shutil.copytree(tmp_path / "backup", path, dirs_exist_ok=True)
    refused(path, LogDamaged, "the log has a gap")
    segments(path)[-1].unlink()
    if generation:
        refused(path, LogDamaged, r"generation \d+-\d+.duckdb is at LSN \d+, but the log reaches from 0 to")
        shutil.rmtree(path / "generations")
    (path / "base.duckdb.wal").unlink(missing_ok=True)
    with tidegate.open(make_numbers(), path) as engine:
        assert len(seen(engine)) == 25
