"""Schedules, compared with looking at every minute."""

from __future__ import annotations

import datetime as dt
import random

import pytest

from tidegate import App
from tidegate.dataflows.schedules import MINUTE_US, Cron, Every, Schedule, read_cron
from tidegate.errors import DeclarationError
from tidegate.txn.log.record import from_us, to_us

DAYS = 40
START = to_us(dt.datetime(2028, 2, 10))  # a leap year


def field(low: int, high: int, chance: random.Random) -> tuple[str, set[int]]:
    """A field of a cron line, and what it means."""
    everything = set(range(low, high + 1))
    parts, meant = [], set()
    for _ in range(chance.choice((1, 1, 2))):
        begin = chance.randint(low, high)
        end, step = chance.randint(begin, high), chance.randint(1, min(high, 9))
        text, means = chance.choice(
            [
                ("*", everything),
                (str(begin), {begin}),
                (f"{begin}-{end}", set(range(begin, end + 1))),
                (f"{begin}-{end}/{step}", set(range(begin, end + 1, step))),
                (f"{begin}/{step}", set(range(begin, high + 1, step))),
                (f"*/{step}", set(range(low, high + 1, step))),
            ]
        )
        parts.append(text)
        meant |= means
    return ",".join(parts), meant


@pytest.mark.parametrize("seed", range(12))
def test_cron_comes_at_the_minutes_it_names(seed: int) -> None:
    chance = random.Random(seed)
    (minute, minutes), (hour, hours) = field(0, 59, chance), field(0, 23, chance)
    (day, days), (weekday, weekdays) = field(1, 31, chance), field(0, 6, chance)
    cron = read_cron(f"{minute} {hour} {day} feb,mar {weekday}")
    either = not day.startswith("*") and not weekday.startswith("*")

    def comes(at: dt.datetime) -> bool:
        on = [at.day in days, at.isoweekday() % 7 in weekdays]
        return at.minute in minutes and at.hour in hours and at.month in (2, 3) and (any(on) if either else all(on))

    expected = [us for i in range(DAYS * 1440) if comes(from_us(us := START + i * MINUTE_US))]
    found, us = [], START - 1
    while (us := cron.after(us)) < START + DAYS * 1440 * MINUTE_US:
        found.append(us)
    assert found == expected
    for us in chance.sample(expected, min(20, len(expected))):
        assert cron.until(us) == us
        assert cron.until(cron.after(us) - 1) == us
        assert cron.after(us - 1) == us


def test_names_sundays_and_shorthands() -> None:
    assert read_cron("0 3 * * 7").weekdays == read_cron("0 3 * * sun").weekdays == {0}
    assert read_cron("0 0 * jan-mar mon,WED").months == {1, 2, 3}
    monthly = read_cron("@monthly")
    assert from_us(monthly.after(START)) == dt.datetime(2028, 3, 1)
    leap = read_cron("0 0 29 2 *")
    assert from_us(leap.after(to_us(dt.datetime(2028, 3, 1)))) == dt.datetime(2032, 2, 29)


def test_an_interval_counts_from_the_epoch_whenever_it_begins() -> None:
    hourly = Every(60 * MINUTE_US)
    assert from_us(hourly.after(START + 1)) == from_us(START) + dt.timedelta(hours=1)
    assert hourly.until(START) == START
    assert hourly.until(START - 1) == START - 60 * MINUTE_US


@pytest.mark.parametrize("times", [Every(15 * MINUTE_US), read_cron("*/15 * * * *")], ids=str)
def test_missed_times(times: Every | Cron) -> None:
    quarter = 15 * MINUTE_US
    now = START + 3 * quarter + 7
    assert list(Schedule(times, "catch_up").due(START, now)) == [
        START + quarter,
        START + 2 * quarter,
        START + 3 * quarter,
    ]
    assert list(Schedule(times, "skip").due(START, now)) == [START + 3 * quarter]
    assert list(Schedule(times, "skip").due(START, START + quarter - 1)) == []


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"every": "1m", "cron": "0 3 * * *"}, "is one of them"),
        ({"every": "0s"}, "the shortest interval is 1ms"),
        ({"every": 60}, "a length of time such as '1m'"),
        ({"every": "soon"}, "is not a length of time"),
        ({"missed": "skip"}, "belongs to a schedule"),
        ({"every": "1m", "missed": "later"}, "missed is 'skip'"),
        ({"cron": "0 3 * *"}, "it has 4 fields"),
        ({"cron": "60 3 * * *"}, "'60' as minute is not a number from 0 to 59"),
        ({"cron": "0 5-3 * * *"}, "ends before it begins"),
        ({"cron": "0 0 30 2 *"}, "never comes"),
        ({"cron": "0 0 * foo *"}, "'foo' as month"),
        ({"every": "1m", "inputs": "rows"}, "has both inputs and a schedule"),
        ({"inputs": "rows", "timers": "row"}, "did you mean"),
        ({"inputs": "rows", "timers": "made"}, "is fed by a procedure"),
        ({"inputs": "rows", "timers": "answers"}, "answers questions"),
    ],
)
def test_mistakes_are_told_when_declaring(options: dict[str, str], told: str) -> None:
    app = App("wrong")
    app.stream("rows", "n BIGINT", border=True)
    app.stream("made", "n BIGINT")
    app.stream("answers", "n BIGINT", border=True, deadline_s=1, default={"n": 1})
    before = dict(app.streams)
    with pytest.raises(DeclarationError, match=told):

        @app.procedure(**options)  # type: ignore[arg-type]
        def work(txn: object, rows: object) -> None: ...

    assert app.streams == before
    assert not app.procedures


def test_what_the_clock_brings_in_has_an_id_of_its_own() -> None:
    app = App("paired")
    app.stream("left_rows", "n BIGINT", border=True)
    app.stream("right_rows", "n BIGINT", border=True)

    @app.procedure(inputs=["left_rows", "right_rows"], timers="right_rows")
    def both(txn: object, left: object, right: object) -> None: ...

    with pytest.raises(DeclarationError, match="both needs a batch of the same id on left_rows"):
        app.graph()
