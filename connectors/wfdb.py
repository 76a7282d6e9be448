"""Waveform records of PhysioNet's WFDB format as a source: exactly once. Needs ``tidegate[wfdb]``.

The offset is the number of the next sample. A stream that is to take a record has a column for each signal that is
wanted, named like the signal in lower case with underscores (``ABP`` → ``abp``, ``MCL1`` → ``mcl1``), or mapped with
``fields``; besides, it may have ``record VARCHAR``, ``sample BIGINT``, ``seconds DOUBLE`` and ``at_time TIMESTAMP``.
"""

from __future__ import annotations

import datetime as dt
import re
import time
import warnings
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from tidegate.errors import SourceError
from tidegate.outside.sources import Checked, Polled
from tidegate.storage.schema import Relation

with warnings.catch_warnings():  # it uses deprecated parts of pandas
    warnings.simplefilter("ignore")
    import wfdb

OWN = {
    "record": ("the record's name", ("text",)),
    "sample": ("a number of samples", ("integer", "float", "decimal")),
    "seconds": ("seconds with fractions", ("float",)),
    "at_time": ("a time", ("timestamp",)),
}
SIGNAL = ("a signal's samples", ("float",))


class WfdbSource:
    """The samples of the record at ``path`` (without ``.hea``), in physical units; missing ones are NULL.

    ``begin``: the time of the first sample, when the header has none. ``speed``: replay at so many times the pace at which
    it was recorded (1: as it was); None: as fast as possible.
    """

    def __init__(
        self,
        path: str | Path,
        *,
        fields: Mapping[str, str] | None = None,
        begin: dt.datetime | None = None,
        speed: float | None = None,
    ) -> None:
        self.path = Path(path).with_suffix("") if str(path).endswith(".hea") else Path(path)
        self._fields = dict(fields or {})
        self._begin = begin
        self._speed = speed
        self._at = 0
        self._length = 0
        self.finished = False

    @property
    def lag(self) -> int | None:
        """Samples that are left."""
        return self._length - self._at

    def check(self, name: str, relation: Relation, offset: Any) -> Checked:
        self.open(name, relation, offset)  # which only reads
        return Checked(f"{self._length} samples at {self._rate:g} Hz", self.lag)

    def open(self, name: str, relation: Relation, offset: Any) -> None:
        try:
            header = wfdb.rdheader(str(self.path))
        except (OSError, ValueError, IndexError) as error:
            raise SourceError(f"can't read the WFDB record {self.path}: {error}", source=name, fatal=True) from None
        self._relation = relation
        self._length = int(header.sig_len)
        self._rate = float(header.fs)
        self._start = self._begin or header.base_datetime
        names = self._signals()
        known = {_column(signal): place for place, signal in enumerate(names)} | {s: p for p, s in enumerate(names)}
        self._places: list[int | str] = []
        missing = []
        for column in relation.columns:
            wanted = self._fields.get(column.name, column.name)
            if wanted in known:
                self._places.append(known[wanted])
            elif column.name in OWN:
                self._places.append(column.name)
            else:
                missing.append(column.name)
        if missing or ("at_time" in self._places and self._start is None):
            told = (
                f"no signal for {', '.join(missing)}; it has {', '.join(names)}" if missing else "no date: give begin="
            )
            raise SourceError(
                f"record {self.path.name} does not fit stream {relation.name}: {told}. Map signals with "
                f"fields={{column: signal}}",
                source=name,
                fatal=True,
            )
        self._check_types(name, relation)
        self._at = int(offset or 0)
        self.finished = self._at >= self._length
        self._since, self._from = time.monotonic(), self._at

    def _check_types(self, name: str, relation: Relation) -> None:
        unfit = [
            f"{column.name} {column.type} can't take {what}"
            for column, place in zip(relation.columns, self._places, strict=True)
            for what, families in [OWN[place] if isinstance(place, str) else SIGNAL]
            if column.type.family not in families
        ]
        if unfit:
            raise SourceError(
                f"record {self.path.name} does not fit stream {relation.name}: {'; '.join(unfit)}. Signals and seconds are "
                "DOUBLE, record VARCHAR, sample BIGINT, at_time TIMESTAMP",
                source=name,
                fatal=True,
            )

    def _signals(self) -> list[str]:
        """The names of the signals: of a record in several segments, those of the record as a whole."""
        header = wfdb.rdheader(str(self.path), rd_segments=True)
        return list(header.get_sig_name() if hasattr(header, "get_sig_name") else header.sig_name)

    def poll(self, limit: int, timeout_s: float) -> Polled | None:
        if self.finished:
            return None
        count = min(limit, self._length - self._at)
        if self._speed is not None:
            due = int(self._from + (time.monotonic() - self._since) * self._rate * self._speed) - self._at
            if due < 1:
                time.sleep(min(timeout_s, 1 / (self._rate * self._speed)))
                return None
            count = min(count, due)
        first, self._at = self._at, self._at + count
        rows = self._rows(first, self._at)
        self.finished = self._at >= self._length
        return Polled(rows, self._at, (), lambda i: f"{self.path.name}#{first + i}")

    def _rows(self, first: int, last: int) -> list[tuple[Any, ...]]:
        samples = wfdb.rdrecord(str(self.path), sampfrom=first, sampto=last, smooth_frames=True).p_signal
        numbers = range(first, last)
        own: dict[str, Callable[[int], Any]] = {
            "record": lambda i: self.path.name,
            "sample": lambda i: i,
            "seconds": lambda i: i / self._rate,
            "at_time": lambda i: self._start + dt.timedelta(microseconds=round(i * 1_000_000 / self._rate)),
        }
        columns: list[list[Any]] = []
        for place in self._places:
            if isinstance(place, str):
                columns.append([own[place](i) for i in numbers])
            else:
                values = samples[:, place]
                columns.append([None if gone else v for v, gone in zip(values.tolist(), np.isnan(values), strict=True)])
        return list(zip(*columns, strict=True))

    def committed(self, offset: Any) -> None:
        pass

    def close(self) -> None:
        pass


def _column(signal: str) -> str:
    return re.sub(r"\W+", "_", signal.lower()).strip("_")
