"""Reading a log back that ends anywhere."""

from __future__ import annotations

from pathlib import Path

from tidegate.txn.log.files import OsFiles
from tidegate.txn.log.reader import LogReader
from tidegate.txn.log.record import FORMAT, HEADER, Called, Executed, Fed, Record, Segment, encode

RECORDS: list[Record] = [
    Called(1, 0, "p", ["x" * 40], {}),
    Fed(2, 0, "s", 1, [[1, "a"], [2, "b"]], "source", 7),
    Executed(2 << 20, "dead_letter", "p", "because"),
]


def test_a_log_may_end_at_any_byte_and_a_record_counts_whole_or_not_at_all(tmp_path: Path) -> None:
    head = encode(Segment(FORMAT, "app", "weak", {}, {}))
    frames, chain = [], HEADER.unpack_from(head)[1]
    for record in RECORDS:
        frames.append(encode(record, chain))
        chain = HEADER.unpack_from(frames[-1])[1]
    whole = head + b"".join(frames)
    ends = [len(head) + sum(map(len, frames[:count])) for count in range(len(frames) + 1)]
    name = f"{0:020d}.log"
    files = OsFiles(tmp_path)
    for end in range(len(head), len(whole) + 1):
        (tmp_path / name).write_bytes(whole[:end])
        reader = LogReader(files)
        found = [entry.record for entry in reader]
        count = sum(1 for place in ends[1:] if place <= end)
        assert found == RECORDS[:count], end
        assert reader.end == ends[count], end
        assert reader.cut == (None if end in ends else (name, ends[count], end - ends[count])), end
