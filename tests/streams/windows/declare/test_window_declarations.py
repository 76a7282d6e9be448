"""What window() refuses: each message names what was given, why it can't be, and what to do."""

from __future__ import annotations

import datetime as dt
from typing import Any

import pytest
from window_cases import EVENTS

import tidegate
from tidegate import windows as w
from tidegate.streams.windows import open_state, window
from tidegate.streams.windows.declare.durations import described, microseconds

HOUR = 3_600_000_000


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({}, ["exactly one of", "count", "session", "got none"]),
        ({"count": 3, "time": "3s"}, ["exactly one of", "got count, time"]),
        ({"count": 0}, ["count", "positive whole number", "0"]),
        ({"count": True}, ["count", "positive whole number", "True"]),
        ({"count": 2.5}, ["count", "positive whole number", "2.5"]),
        ({"count": "3s"}, ["count", "positive whole number", "'3s'"]),
        ({"count": 3, "slide": -1}, ["slide", "positive whole number", "-1"]),
        ({"count": 3, "slide": "1s"}, ["slide", "positive whole number", "'1s'", "slide_time="]),
        ({"count": 3, "late": "raise"}, ["late=", "event time", "on="]),
        ({"count": 3, "by": ["k", "k"]}, ["by=", "twice", "k"]),
        ({"session": "3s", "until": "quiet", "on": "at"}, ["exactly one of", "close="]),
        ({"batches": 0}, ["batches", "positive whole number"]),
        ({"batches": 2, "on": "at"}, ["batches", "on="]),
        ({"batches": 2, "delay": "1s"}, ["delay=", "event time", "on="]),
        ({"time": "3 parsecs", "on": "at"}, ["'3 parsecs'", "length of time", "10s"]),
        ({"time": "", "on": "at"}, ["length of time"]),
        ({"time": "0s", "on": "at"}, ["time", "positive", "'0s'"]),
        ({"time": 3}, ["on=", "lengths of time", "integer column"]),
        ({"time": 2.5, "on": "tick"}, ["time", "whole number", "2.5"]),
        ({"time": "3s", "slide": 2, "on": "at"}, ["slide", "2", "lengths of time", "one of the two", "slide_rows="]),
        ({"time": 3, "slide": "2s", "on": "tick"}, ["slide", "'2s'", "whole numbers", "one of the two"]),
        ({"time": "3s", "delay": 2, "on": "at"}, ["delay", "2", "lengths of time"]),
        ({"time": "3s", "delay": "-1s", "on": "at"}, ["'-1s'", "length of time"]),
        ({"time": "3s", "delay": dt.timedelta(-1), "on": "at"}, ["delay", "at least 0"]),
        ({"time": "3s", "slide": "1s", "slide_rows": 2, "on": "at"}, ["slide_rows", "time=", "in place of slide="]),
        ({"count": 3, "slide_rows": 2}, ["slide_rows", "time="]),
        ({"time": "3s", "slide_time": "2s"}, ["slide_time", "count="]),
        ({"time": "3s", "slide_rows": 0, "on": "at"}, ["slide_rows", "positive whole number"]),
        ({"delta": 2.0}, ["delta=", "on=", "column"]),
        ({"delta": 0, "on": "level"}, ["delta", "positive number", "0"]),
        ({"delta": float("nan"), "on": "level"}, ["delta", "positive number", "nan"]),
        ({"delta": 1, "slide": -1, "on": "level"}, ["slide", "positive number"]),
        ({"delta": 1.0, "on": "level", "delay": "1s"}, ["delay=", "event time"]),
        ({"session": "3s", "slide": "1s", "on": "at"}, ["session=", "no slide"]),
        ({"until": "mark", "slide": 1}, ["until=", "no slide"]),
        ({"count": 3, "close": "mark"}, ["close=", "session"]),
        ({"landmark": 5, "slide": 2}, ["landmark=5", "multiple", "slide=2"]),
        ({"landmark": "5s", "slide": 2}, ["slide", "lengths of time"]),
        ({"count": 3, "late": "ignore"}, ["late", "'drop'", "'adjust'", "'raise'", "'ignore'"]),
        ({"count": 3, "source": "k"}, ["source=", "event time", "on="]),
        ({"time": "3s", "on": "at", "idle": "3s"}, ["idle=", "source="]),
        ({"count": 3, "compute": {}}, ["compute=", "no aggregate"]),
        ({"count": 3, "compute": {"n": len}}, ["compute=", "'n'", "not an aggregate"]),
        ({"count": 3, "compute": len}, ["compute=", "bare function", "returns="]),
        ({"count": 3, "compute": 7}, ["compute=", "7"]),
    ],
)
def test_a_contradiction_is_named(options: dict[str, Any], words: list[str]) -> None:
    with pytest.raises(tidegate.DeclarationError) as refused:
        window("s", **options)
    for word in words:
        assert word in str(refused.value)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"time": "3s", "on": "later"}, ["later"]),
        ({"count": 3, "by": "kk"}, ["kk"]),
        ({"time": "3s", "on": "at", "source": "nobody"}, ["nobody"]),
        ({"time": "3s", "on": "name"}, ["name", "VARCHAR"]),
        ({"time": "3s", "on": "v"}, ["v", "DOUBLE"]),
        ({"time": "3s", "on": "tick"}, ["tick", "BIGINT"]),
        ({"time": 3, "on": "at"}, ["at", "TIMESTAMP"]),
        ({"time": "3s", "on": "seen"}, ["seen", "NOT NULL"]),
        ({"delta": 1, "on": "name"}, ["name", "VARCHAR"]),
        ({"until": "v"}, ["v", "BOOLEAN"]),
        ({"until": "nothing"}, ["nothing"]),
        ({"session": "3s", "on": "at", "close": "name"}, ["name", "BOOLEAN"]),
        ({"count": 3, "compute": {"m": w.mean("vv")}}, ["compute names column 'vv'", "name"]),
        ({"count": 3, "compute": "SELECT avg(vv) AS m FROM window"}, ["compute names column 'vv'"]),
        ({"count": 3, "compute": w.whole(len, "n BIGINT", columns=["vv"])}, ["compute names column 'vv'"]),
    ],
)
def test_a_window_that_does_not_fit_its_stream_is_refused(options: dict[str, Any], words: list[str]) -> None:
    with pytest.raises(tidegate.TidegateError) as refused:
        open_state(window("s", **options), EVENTS)
    for word in words:
        assert word in str(refused.value)


@pytest.mark.parametrize(
    ("given", "us"),
    [
        ("10s", 10_000_000), ("250ms", 250_000), ("5us", 5), ("5µs", 5), ("1m 30s", 90_000_000), ("1min", 60_000_000),
        ("2h", 2 * HOUR), ("1d", 24 * HOUR), ("1.5s", 1_500_000), (" 3 s ", 3_000_000), ("1d2h", 26 * HOUR),
        (dt.timedelta(milliseconds=3), 3000),
    ],
)  # fmt: skip
def test_lengths_of_time_are_read_as_written(given: Any, us: int) -> None:
    assert microseconds(given) == us
    spec = window("s", time=given, on="at")
    assert (spec.size, spec.slide, spec.timed) == (us, us, True)


@pytest.mark.parametrize("us", [1, 250, 1_000, 1_500, 1_000_000, 1_500_000, 90_000_000, HOUR, 26 * HOUR])
def test_what_is_said_about_a_length_reads_back_as_the_same(us: int) -> None:
    assert microseconds(described(us)) == us


def test_lengths_are_exact_however_long() -> None:
    assert microseconds("0.000001s") == 1
    assert microseconds("300000d 1us") == 300_000 * 24 * HOUR + 1
    assert microseconds("106751d 0.000001s") == 106_751 * 24 * HOUR + 1


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"count": 100, "slide": 1}, "count 100 slide 1"),
        ({"count": 100}, "count 100"),
        ({"batches": 3}, "batches 3"),
        ({"time": "10s", "slide": "1s", "on": "at", "by": "k"}, "time 10s slide 1s on at by k"),
        ({"time": 10, "slide": 2, "on": "tick"}, "time 10 slide 2 on tick"),
        ({"time": "10s", "slide_rows": 5, "on": "at"}, "slide-by-tuple 10s slide 5 on at"),
        ({"count": 5, "slide_time": "2s", "on": "at"}, "slide-by-time 5 slide 2s on at"),
        ({"delta": 2.5, "on": "level"}, "delta 2.5 on level"),
        ({"session": "30m", "on": "at", "by": ("k", "g")}, "session 30m on at by k, g"),
        ({"landmark": "1d", "slide": "1h", "on": "at"}, "landmark 1d slide 1h on at"),
        ({"landmark": 6, "slide": 2}, "landmark 6 slide 2"),
        ({"until": "mark"}, "punctuated"),
    ],
)
def test_a_window_says_what_it_is(options: dict[str, Any], said: str) -> None:
    assert str(window("s", **options)) == said
