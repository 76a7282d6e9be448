"""Windows over real series, against pandas and DuckDB."""

from __future__ import annotations

import datetime as dt
import random
from typing import Any

import duckdb
import pandas as pd
import pytest
from shared_data import DATA, PAP, needs_pap
from window_cases import Batches, results

from tidegate.storage.schema import Column, Relation
from tidegate.storage.types import column_type
from tidegate.streams.windows import open_state, window
from tidegate.streams.windows.declare.aggregates import Count, Max, Mean, Quantile

NAB = DATA / "nab_real_series" / "nab_real.csv.gz"
MACHINE = "realKnownCause/machine_temperature_system_failure"
RECORD, RECORD_START = "p010013-2125-10-04-23-37", dt.datetime(2125, 10, 4, 23, 37)

needs_nab = pytest.mark.skipif(not NAB.is_file(), reason="the shared NAB series are not beside this checkout")

SERIES = Relation(
    "s",
    (
        Column("series", column_type("VARCHAR"), nullable=False),
        Column("at", column_type("TIMESTAMP"), nullable=False),
        Column("value", column_type("DOUBLE")),
    ),
)
FOUR: dict[str, Any] = {"n": Count(), "mean": Mean("value"), "max": Max("value"), "p90": Quantile("value", 0.9)}
SQL_FOUR = "count(*)::BIGINT, avg(value), max(value), quantile_cont(value, 0.9)"


def in_batches(rows: list[Any], seed: int = 7) -> Batches:
    """Batches of very different sizes."""
    dice = random.Random(seed)
    batches, place = [], 0
    while place < len(rows):
        size = dice.choice([1, 10, 400, 10_000])
        batches.append((rows[place : place + size], 0))
        place += size
    return batches


def assert_same(found: list[Any], wanted: list[Any]) -> None:
    """Labels and counts equal, floats up to rounding."""
    assert len(found) == len(wanted)
    for one, other in zip(found, wanted, strict=True):
        exact = [v for v in one if not isinstance(v, float)]
        assert exact == [v for v in other if not isinstance(v, float)], (one, other)
        floats = [v for v in one if isinstance(v, float)]
        assert floats == pytest.approx([v for v in other if isinstance(v, float)], rel=1e-9, abs=1e-9), (one, other)


def by_duckdb(frame: pd.DataFrame, size: str, slide: str, by: str, upto: dt.datetime) -> list[Any]:
    """Time windows of ``frame`` that end up to ``upto``: every row joined to each window that holds it."""
    with duckdb.connect() as connection:
        connection.execute("SET TimeZone = 'UTC'")
        connection.register("frame", frame)
        return connection.execute(
            f"""
            WITH params AS (SELECT epoch_us(INTERVAL '{size}') AS w, epoch_us(INTERVAL '{slide}') AS s),
            spread AS (
                SELECT *, unnest(range((epoch_us("at") - w) // s + 1, epoch_us("at") // s + 1)) AS number
                FROM frame, params
            )
            SELECT {by} number, make_timestamp(number * s), make_timestamp(number * s + w), {SQL_FOUR}
            FROM spread GROUP BY ALL HAVING make_timestamp(number * s + w) <= ?
            ORDER BY make_timestamp(number * s + w), {by} number
            """,
            [upto],
        ).fetchall()


# ---- NAB: metrics of machines and roads


@pytest.fixture(scope="module")
def nab() -> pd.DataFrame:
    if not NAB.is_file():
        pytest.skip("the shared NAB series are not beside this checkout")
    frame = pd.read_csv(NAB, usecols=["series", "timestamp", "value"], parse_dates=["timestamp"])
    chosen = [
        MACHINE, "realAWSCloudwatch/ec2_cpu_utilization_24ae8d", "realAWSCloudwatch/ec2_network_in_5abac7",
        "realAdExchange/exchange-2_cpc_results", "realTraffic/speed_7578",
    ]  # fmt: skip
    frame = frame[frame["series"].isin(chosen)].rename(columns={"timestamp": "at"}).reset_index(drop=True)
    assert frame["series"].nunique() == len(chosen)
    return frame


def rows_of(frame: pd.DataFrame) -> list[Any]:
    values = [None if value != value else value for value in frame["value"].tolist()]
    times = frame["at"].dt.to_pydatetime()
    return [SERIES.conform(row) for row in zip(frame["series"].tolist(), list(times), values, strict=True)]


@needs_nab
@pytest.mark.parametrize(("size", "slide"), [(288, 12), (100, 100), (50, 70)])
def test_count_windows_of_each_series_equal_pandas(nab: pd.DataFrame, size: int, slide: int) -> None:
    spec = window("s", count=size, slide=slide, by="series", compute=FOUR)
    found: dict[str, list[Any]] = {}
    for row in results(spec, in_batches(rows_of(nab)), SERIES):
        found.setdefault(row.series, []).append(tuple(row[4:]))
    for name, values in nab.groupby("series")["value"]:
        rolling = values.rolling(size)
        frame = pd.DataFrame(
            {
                "n": rolling.count().fillna(0).astype(int),
                "mean": rolling.mean(),
                "max": rolling.max(),
                "p90": rolling.quantile(0.9),
            }
        )
        assert_same(found[str(name)], [tuple(row) for row in frame.iloc[size - 1 :: slide].itertuples(index=False)])


@needs_nab
@pytest.mark.parametrize(("size", "slide"), [("6 hours", "1 hour"), ("1 day", "1 day"), ("50 minutes", "70 minutes")])
def test_time_windows_over_all_series_equal_duckdb(nab: pd.DataFrame, size: str, slide: str) -> None:
    merged = nab.sort_values("at", kind="stable")
    lengths = {name: pd.Timedelta(text).to_pytimedelta() for name, text in (("time", size), ("slide", slide))}
    spec = window("s", on="at", by="series", compute=FOUR, **lengths)
    found = results(spec, in_batches(rows_of(merged)), SERIES)
    assert_same(
        [tuple(row) for row in found], by_duckdb(merged, size, slide, "series,", merged["at"].max().to_pydatetime())
    )


@needs_nab
def test_a_clock_that_was_put_back_is_within_the_delay_or_late(nab: pd.DataFrame) -> None:
    """The temperature series really steps back in time once, and repeats 12 timestamps."""
    machine = nab[nab["series"] == MACHINE]
    rows = rows_of(machine)
    newest = machine["at"].cummax()
    late = int((machine["at"] < newest.shift(fill_value=dt.datetime(1970, 1, 1))).sum())
    assert late > 0
    state = open_state(window("s", time="1h", on="at", compute=FOUR), SERIES)
    told = 0
    for batch, now_us in in_batches(rows):
        slide = state.slide(batch, now_us)
        told += len(slide.late)
        slide.commit()
    assert told == late

    delay = (newest - machine["at"]).max().to_pytimedelta()
    found = results(window("s", time="1h", on="at", delay=delay, compute=FOUR), in_batches(rows), SERIES)
    assert_same(
        [tuple(row) for row in found], by_duckdb(machine, "1 hour", "1 hour", "", newest.max().to_pydatetime() - delay)
    )


# ---- PAP: pressure in a vessel, 125 values a second, some of them missing


@pytest.fixture(scope="module")
def pap() -> pd.DataFrame:
    if not PAP.is_dir():
        pytest.skip("the shared PAP waveforms are not beside this checkout")
    frame = pd.read_parquet(PAP / f"pap_{RECORD}.parquet")
    frame = frame[frame["t_ms"].between(17 * 60_000, 27 * 60_000)]  # placed, zeroed, then 35 to 46 mmHg
    start = pd.Timestamp(RECORD_START).as_unit("us")
    return pd.DataFrame(
        {
            "series": RECORD,
            "at": start + pd.to_timedelta(frame["t_ms"], unit="ms"),
            "value": frame["pap_mmhg"].astype("f8"),
        }
    ).reset_index(drop=True)


@needs_pap
def test_ten_seconds_of_pressure_every_second_equal_duckdb(pap: pd.DataFrame) -> None:
    assert pap["value"].isna().any()
    found = results(window("s", time="10s", slide="1s", on="at", compute=FOUR), in_batches(rows_of(pap)), SERIES)
    with_nulls = pap.assign(value=pap["value"].astype("Float64"))
    wanted = by_duckdb(with_nulls, "10 seconds", "1 second", "", pap["at"].max().to_pydatetime())
    assert_same([tuple(row) for row in found], wanted)


@needs_pap
def test_slide_by_tuple_equals_pandas_over_time(pap: pd.DataFrame) -> None:
    """pandas' rolling("10s") holds what is in (τ − 10 s, τ], for every row: slide-by-tuple."""
    spec = window("s", time="10s", slide_rows=125, on="at", compute=FOUR)
    found = results(spec, in_batches(rows_of(pap)), SERIES)
    rolling = pap.set_index("at")["value"].rolling("10s")
    held = pap.set_index("at")["value"].fillna(0.0).rolling("10s").count().astype(int)
    frame = pd.DataFrame({"n": held, "mean": rolling.mean(), "max": rolling.max(), "p90": rolling.quantile(0.9)})[
        124::125
    ]
    wanted = [tuple(None if value != value else value for value in row) for row in frame.itertuples(index=False)]
    assert_same([tuple(row[3:]) for row in found], wanted)


@needs_pap
def test_minutes_have_the_published_means(pap: pd.DataFrame) -> None:
    """minute_means.csv was made from the waveform by other means."""
    published = pd.read_csv(PAP / "minute_means.csv").query("record == @RECORD").set_index("minute")["mpap_60s"]
    found = results(window("s", time="1m", on="at", compute=FOUR), in_batches(rows_of(pap)), SERIES)
    assert len(found) == 10
    for row in found:
        minute = (row.window_start - RECORD_START) // dt.timedelta(minutes=1)
        wanted = published[minute]
        assert (row.mean is None) == (wanted != wanted)
        if row.mean is not None:
            assert row.mean == pytest.approx(wanted, abs=0.051)  # published with one decimal
