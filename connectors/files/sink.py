"""A directory as a sink: one file per batch, exactly once.

The name of a file is the batch's stable id, and a file appears under its name whole or not at all: it is written under
another name, synced, renamed, and the directory is synced before the batch counts as delivered. A batch that is sent
again finds its file in place and changes nothing. That holds as long as the files stay until their delivery is
acknowledged: a reader that moves a file away before that may see it again, under the same name.
"""

from __future__ import annotations

import io
import json
import os
import uuid
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, Literal
from urllib.parse import quote

import pyarrow.parquet as pq

from tidegate.connectors.shared.plain import LONGEST_KEY, plain, plain_rows, short_digest
from tidegate.errors import SinkError
from tidegate.storage.schema import Relation
from tidegate.streams.batch import Batch
from tidegate.streams.border import digest
from tidegate.syncing import sync_file

Format = Literal["ndjson", "csv", "parquet"]
DIGEST = b"tidegate.digest"


class FileSink:
    """Writes each batch to ``directory/stream-key-batchid.format`` (``stream-batchid.format`` without key).

    ``format``: ``"ndjson"`` (one JSON object per line), ``"csv"`` (with a header) or ``"parquet"``. ``partition_by``: columns
    whose values name a subdirectory, ``ward=7/day=2026-01-02/``, as DuckDB and Spark read them; a batch is then a file in
    each directory that it has rows for.
    """

    transactional = True
    at_once = 100  # they share one sync of the directory

    def __init__(
        self, directory: str | Path, format: Format = "ndjson", *, partition_by: str | Sequence[str] = ()
    ) -> None:
        if format not in WRITERS:
            raise SinkError(f"FileSink(format={format!r}): use one of {', '.join(WRITERS)}", sink=str(directory))
        self.directory = Path(directory)
        self.format = format
        self.partition_by = (partition_by,) if isinstance(partition_by, str) else tuple(partition_by)

    def open(self, name: str, relation: Relation) -> None:
        """Create the directory, and remove half-written files of an earlier process."""
        self._check_fit(name, relation)
        try:
            self.directory.mkdir(parents=True, exist_ok=True)
            for left in self.directory.rglob(f".{relation.name}-*.tmp"):
                left.unlink(missing_ok=True)
            sync_file(self.directory.parent)
        except OSError as error:
            raise self._refused(relation.name, error) from error

    def check(self, name: str, relation: Relation) -> str:
        """Would :meth:`open` succeed? Creates and removes nothing."""
        self._check_fit(name, relation)
        there = next(place for place in (self.directory, *self.directory.absolute().parents) if place.exists())
        if not there.is_dir() or not os.access(there, os.W_OK | os.X_OK):
            what = "a file" if not there.is_dir() else "a directory that we may not write to"
            raise SinkError(f"can't deliver {relation.name} to {self.directory}: {there} is {what}", sink=name)
        return f"directory {self.directory} {'exists' if there == self.directory else 'will be created'}"

    def _check_fit(self, name: str, relation: Relation) -> None:
        if missing := [column for column in self.partition_by if column not in relation.index_of]:
            raise SinkError(
                f"FileSink(partition_by=…): stream {relation.name} has no column {', '.join(missing)}; it has "
                f"{', '.join(relation.column_names)}",
                sink=name,
                stream=relation.name,
            )

    def path_of(self, batch: Batch) -> Path:
        """Where the batch goes; with partitions, where one of its parts goes."""
        key = "" if batch.key is None else f"-{_in_a_name(str(plain(batch.key)))}"
        place = self.directory
        for column in self.partition_by:
            value = plain(batch.column(column)[0])
            place /= f"{column}={'__HIVE_DEFAULT_PARTITION__' if value is None else _in_a_name(str(value))}"
        return place / f"{batch.stream}{key}-{batch.id:020d}.{self.format}"

    def _parts(self, batch: Batch) -> Iterable[Batch]:
        """The batch, or one of the same id for each partition."""
        if not self.partition_by:
            return (batch,)
        places = [batch.relation.index_of[column] for column in self.partition_by]
        rows: dict[Any, list[Any]] = {}
        for row in batch.rows:
            rows.setdefault(tuple(row[place] for place in places), []).append(row)
        return [Batch(batch.relation, batch.id, tuple(part), batch.key) for part in rows.values()]

    def send(self, batches: Sequence[Batch]) -> None:
        try:
            touched = {self.directory}
            for batch in batches:
                for part in self._parts(batch):
                    path = self.path_of(part)
                    touched |= self._made(path.parent)
                    self._put(part, path)
            for directory in touched:
                sync_file(directory)  # even when all files were there: the rename may not be on disk yet
        except OSError as error:
            raise self._refused(batches[0].stream, error) from error

    def _made(self, place: Path) -> set[Path]:
        """The directories of a partition, created if needed. Our own is not: it may have been a mount."""
        found: set[Path] = set()
        inner = self.directory
        for name in place.relative_to(self.directory).parts:
            inner /= name
            inner.mkdir(exist_ok=True)
            found.add(inner)
        return found

    def _put(self, batch: Batch, path: Path) -> None:
        data = WRITERS[self.format](batch)
        if path.exists():
            self._check_same(batch, path, data)
            return
        hidden = path.parent / f".{batch.stream}-{uuid.uuid4().hex}.tmp"  # unique: no two processes write the same file
        try:
            with hidden.open("xb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            hidden.rename(path)
        except BaseException:
            hidden.unlink(missing_ok=True)
            raise

    def _check_same(self, batch: Batch, path: Path, data: bytes) -> None:
        """A file in place must be this batch, delivered before; otherwise two engines write here."""
        if self.format == "parquet":
            same = (pq.read_schema(path).metadata or {}).get(DIGEST) == digest(batch.rows).encode()
        else:
            same = path.read_bytes() == data
        if not same:
            raise SinkError(
                f"{path} already exists with other rows than {batch!r}; another engine, or an earlier one whose "
                "directory is gone, wrote it. Give every engine its own directory for files",
                sink=str(self.directory),
                stream=batch.stream,
                batch_id=batch.id,
            )

    def _refused(self, stream: str, error: OSError) -> SinkError:
        return SinkError(
            f"can't write batches of {stream} to {self.directory}: {error}. Check that it is a directory, its "
            "permissions and the free disk space; the batch is kept and written again",
            sink=str(self.directory),
            stream=stream,
        )

    def close(self) -> None:
        pass


def _in_a_name(key: str) -> str:
    text = quote(key, safe="").replace("-", "%2D")
    if len(text) <= LONGEST_KEY:
        return text
    return f"{text[:LONGEST_KEY]}~{short_digest(key)}"


# ---- a batch as the bytes of a file: the same bytes for the same batch


def _ndjson(batch: Batch) -> bytes:
    return "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in plain_rows(batch)).encode()


def _csv(batch: Batch) -> bytes:
    """With a header. NULL is an empty field; text is always quoted, so that an empty one is not NULL."""
    lines = [batch.relation.column_names, *([plain(value) for value in row] for row in batch.rows)]
    return "".join(",".join(map(_csv_field, line)) + "\n" for line in lines).encode()


def _csv_field(value: Any) -> str:
    match value:
        case None:
            return ""
        case bool():
            return str(value).lower()
        case int() | float():
            return str(value)
        case list():
            value = json.dumps(value, ensure_ascii=False)
    return '"' + str(value).replace('"', '""') + '"'


def _parquet(batch: Batch) -> bytes:
    table = batch.to_arrow()
    table = table.replace_schema_metadata({DIGEST: digest(batch.rows).encode()})
    data = io.BytesIO()
    pq.write_table(table, data)
    return data.getvalue()


WRITERS: dict[str, Callable[[Batch], bytes]] = {"ndjson": _ndjson, "csv": _csv, "parquet": _parquet}
