"""The commands of ``tidegate bench`` that print a table for each group of figures, ``transactions`` and others."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer
from rich.table import Table

from tidegate.cli.printing import Json, console, measured, print_json, told

Rounds = Annotated[int, typer.Option(min=1, help="Rounds; medians are reported.")]


def transactions(
    events: Annotated[int, typer.Option(min=1, help="Transactions per round.")] = 20_000,
    rounds: Rounds = 3,
    skew: Annotated[float, typer.Option(min=0, help="Zipf exponent of the keys (YCSB-T runs with several).")] = 0.6,
    length: Annotated[int, typer.Option(min=2, help="Rows that a long transaction touches.")] = 10,
    multi_partition: Annotated[float, typer.Option(min=0, max=1, help="Share that spans several partitions.")] = 0.25,
    aborts: Annotated[float, typer.Option(min=0, max=0.5, help="Share that is aborted.")] = 0.01,
    as_json: Json = False,
) -> None:
    """The transactional streaming suite and YCSB-T transfers, durable, each against a plain serial oracle.

    Example: tidegate bench transactions --events 20000 --json

    Example: tidegate bench transactions --skew 0.9 --multi-partition 0.5 --aborts 0.1
    """
    from tidegate.benchmarks.transactions import bench
    from tidegate.benchmarks.workloads import Parameters

    given = Parameters(skew=skew, length=length, multi_partition=multi_partition, aborts=aborts)
    _print(measured(bench, events, rounds, given), as_json)


def growth(
    rounds: Rounds = 5,
    batches: Annotated[int, typer.Option(min=30, help="Batches per round.")] = 10_000,
    factor: Annotated[int, typer.Option(min=2, help="How many times larger state and windows are.")] = 1_000,
    as_json: Json = False,
) -> None:
    """What a batch costs with 1,000 times the state or window, and ten times the procedures or tables.

    Example: tidegate bench growth --json
    """
    from tidegate.benchmarks.growth import bench

    _print(measured(bench, rounds, batches, factor), as_json)


def apps(
    rows: Annotated[int, typer.Option(min=2_000, help="Rows of each application.")] = 50_000,
    rounds: Rounds = 3,
    rate: Annotated[
        int, typer.Option(min=100, help="Rows a second at which latency is measured, for a second.")
    ] = 10_000,
    only: Annotated[list[str] | None, typer.Option(help="Only this application (repeatable).")] = None,
    as_json: Json = False,
) -> None:
    """Twelve applications of stream processing, in batches of 1, 100 and 10,000 rows, beside plain Python.

    Example: tidegate bench apps --json

    Example: tidegate bench apps --only "word count" --only Nexmark --rows 20000
    """
    from tidegate.benchmarks.apps.run import CASES, bench
    from tidegate.errors import unknown

    for name in only or ():
        if name not in CASES:
            raise unknown("bench apps", "application", name, CASES)
    _print(measured(bench, rows, rounds, rate, only or ()), as_json)


def auto(
    rounds: Annotated[int, typer.Option(min=1, help="Stretches of the steady state; medians are reported.")] = 7,
    scale: Annotated[float, typer.Option(min=0.01, help="How long it is fed, as a multiple of the default.")] = 1.0,
    spark: Annotated[bool, typer.Option("--spark", help="Also all of them on Spark, where installed.")] = False,
    as_json: Json = False,
) -> None:
    """Does backend="auto" keep up with the best fixed choice, over twenty shapes of windows?

    Example: tidegate bench auto --json
    """
    from tidegate.benchmarks.auto import bench

    _print(measured(bench, rounds, scale, spark), as_json)


def connectors(
    votes: Annotated[int, typer.Option(min=1, help="Votes through Kafka per round.")] = 30_000,
    rows: Annotated[int, typer.Option(min=1, help="Rows of a file.")] = 500_000,
    rounds: Rounds = 3,
    as_json: Json = False,
) -> None:
    """Kafka in, leaderboard, Kafka out, with all guarantees; CSV and Parquet in beside DuckDB's own readers.

    Example: tidegate bench connectors --json
    """
    from tidegate.benchmarks.connectors import bench

    _print(measured(bench, votes, rows, rounds), as_json)


def latency(
    seconds: Annotated[float, typer.Option(min=0.1, help="Seconds at each load.")] = 2.0,
    rounds: Rounds = 3,
    as_json: Json = False,
) -> None:
    """Milliseconds to an acknowledgement at parts of the peak, open loop, with group commit.

    Example: tidegate bench latency --seconds 4 --json
    """
    from tidegate.benchmarks.latency import bench

    _print(measured(bench, seconds, rounds), as_json)


def time(
    open_timers: Annotated[int, typer.Option("--open", min=0, help="Timers that are open and not due.")] = 100_000,
    alerts: Annotated[int, typer.Option(min=1, help="Shipments that are not picked up, per round.")] = 200,
    rows: Annotated[int, typer.Option(min=1, help="Messages of the dedupe, per round.")] = 100_000,
    rounds: Rounds = 3,
    as_json: Json = False,
) -> None:
    """How late absence is noticed with 100,000 timers open, what a tick costs, and a one-hour dedupe.

    Example: tidegate bench time --json
    """
    from tidegate.benchmarks.time import bench

    _print(measured(bench, open_timers, alerts, rows, rounds), as_json)


def patterns(
    rows: Annotated[int, typer.Option(min=10_000, help="Rows per round.")] = 100_000,
    open_partials: Annotated[int, typer.Option("--open", min=0, help="Partial matches that are not due.")] = 100_000,
    rounds: Rounds = 3,
    as_json: Json = False,
) -> None:
    """Event patterns: rows a second of processor time, counting with a longer WITHIN, and how late absence is noticed.

    Example: tidegate bench patterns --json
    """
    from tidegate.benchmarks.patterns import bench

    _print(measured(bench, rows, open_partials, rounds), as_json)


def topics(
    waiting: Annotated[int, typer.Option(min=100, help="Batches that wait for one subscriber.")] = 1_000_000,
    rounds: Rounds = 3,
    as_json: Json = False,
) -> None:
    """What a subscriber that is away costs: merges, the longest push, opening again, beside the same with nothing waiting.

    Example: tidegate bench topics --waiting 200000 --json
    """
    from tidegate.benchmarks.topics import bench

    _print(measured(bench, waiting, rounds), as_json)


def sql(
    rows: Annotated[int, typer.Option(min=1_000, help="Rows of each figure at 10,000 rows a batch.")] = 200_000,
    rounds: Rounds = 3,
    peers: Annotated[bool, typer.Option("--peers", help="Also Pathway, if it is installed.")] = False,
    as_json: Json = False,
) -> None:
    """Filters, lookups, windows and materialized views declared in SQL, beside the same by hand.

    Example: tidegate bench sql --json
    """
    from tidegate.benchmarks.sql import bench

    _print(measured(bench, rows, rounds, peers), as_json)


def memory(
    rows: Annotated[int, typer.Option(min=5_000, help="How many of each are allocated.")] = 100_000,
    votes: Annotated[int, typer.Option(min=1, help="Votes cast in a separate process.")] = 200_000,
    as_json: Json = False,
) -> None:
    """Bytes per row, version, window row, waiting batch and ticket; megabytes of a process.

    Example: tidegate bench memory --json
    """
    from tidegate.benchmarks.memory import bench

    _print(measured(bench, rows, votes), as_json)


def state(
    rows: Annotated[int, typer.Option(min=1_000, help="Rows of the large table.")] = 20_000_000,
    rounds: Rounds = 3,
    peers: Annotated[bool, typer.Option(help="The same work in SQLite, and in LMDB where installed.")] = True,
    as_json: Json = False,
) -> None:
    """A table of which 1 % fits in memory: cold rows, opening, checkpoints and merges.

    Example: tidegate bench state --rows 1000000 --json
    """
    from tidegate.benchmarks.state import bench

    _print(measured(bench, rows, rounds, peers), as_json)


def profile(
    size: Annotated[int | None, typer.Option(min=1, help="Votes and rows; 100,000 and 1,000,000 otherwise.")] = None,
    results: Annotated[Path | None, typer.Option(help="Where to write; benchmarks/results otherwise.")] = None,
    as_json: Json = False,
) -> None:
    """Flame graphs of the leaderboard and of windows: SVG by py-spy, or a file for speedscope without it.

    Example: tidegate bench profile --size 50000
    """
    from tidegate.benchmarks.profile import RESULTS
    from tidegate.benchmarks.profile import profile as run

    with told.status("sampling") as status:
        facts = run(size, results or RESULTS, progress=status.update)
    _print(facts, as_json)


def _print(facts: dict[str, Any], as_json: bool) -> None:
    """One JSON object, or a table for each group of figures. Exit code 1: a result was wrong."""
    if as_json:
        print_json(facts)
    else:
        for name, group in facts.items():
            if isinstance(group, dict) and all(isinstance(each, dict) for each in group.values()):
                columns = list(next(iter(group.values())))
                table = Table(name.replace("_", " "), *(column.replace("_", " ") for column in columns), box=None)
                for each, figures in group.items():
                    table.add_row(each, *(_shown(figures[column]) for column in columns))
                console.print(table)
        table = Table(show_header=False, box=None)
        for name, value in facts.items():
            if not isinstance(value, dict) or not all(isinstance(each, dict) for each in value.values()):
                table.add_row(f"[bold]{name}[/]", _shown(value))
        console.print(table)
    if not facts["correct"]:
        raise typer.Exit(1)


def _shown(value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "[red]no[/]"
    if isinstance(value, dict):
        return ", ".join(f"{name} {_shown(each)}" for name, each in value.items())
    return f"{value:,}" if isinstance(value, int) else str(value)
