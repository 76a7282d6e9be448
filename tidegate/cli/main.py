"""The command line."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.markup import escape
from rich.table import Table

from tidegate.cli import (
    backfill,
    connect,
    demo,
    halts,
    killing,
    looking,
    measuring,
    new,
    questions,
    serve,
    sql,
    timing,
    upgrading,
    work,
)
from tidegate.cli.printing import console, measured, print_facts, told
from tidegate.errors import TidegateError

app = typer.Typer(
    help="tidegate: a transactional stream engine.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
bench = typer.Typer(help="Measure tidegate on this machine, beside its peers.", no_args_is_help=True)
for measure in (
    measuring.transactions,
    measuring.apps,
    measuring.auto,
    measuring.connectors,
    measuring.growth,
    measuring.latency,
    measuring.time,
    measuring.patterns,
    measuring.topics,
    measuring.sql,
    measuring.memory,
    measuring.state,
    measuring.profile,
):
    bench.command(measure.__name__)(measure)
BEGIN, WORK, LOOK, KEEP, PROVE = "Begin", "Work", "Look", "Directories and connectors", "Prove and measure"
PANELS: dict[str, dict[str, Callable[..., Any]]] = {
    BEGIN: {"new": new.new, "run": work.run, "serve": serve.serve, "graph": looking.graph},
    WORK: {
        **{"push": work.push, "call": work.call, "advance": timing.advance, "finish": timing.finish},
        **{"answer": questions.answer, "reask": questions.reask, "resume": halts.resume, "skip": halts.skip},
    },
    LOOK: {
        "status": looking.status,
        "explain": looking.explain,
        "topics": looking.topics,
        "sql": sql.sql,
        "questions": questions.questions,
        "halted": halts.halted,
    },
    KEEP: {
        **{"upgrade": upgrading.upgrade, "connect": connect.connect},
        **{"backfill": backfill.backfill, "rebuild": connect.rebuild},
    },
    PROVE: {"crash-test": killing.crash_test, "soak": killing.soak},
}
for panel, commands in PANELS.items():
    for name, command in commands.items():
        app.command(name, rich_help_panel=panel)(command)
app.add_typer(demo.demo_app, name="demo", rich_help_panel=BEGIN)
app.add_typer(serve.tokens_app, name="token", rich_help_panel=BEGIN)
app.add_typer(halts.dead_letters_app, name="dead-letters", rich_help_panel=WORK)
app.add_typer(bench, name="bench", rich_help_panel=PROVE)
Json = Annotated[bool, typer.Option("--json", help="Print one JSON object instead of a table.")]


@bench.command("leaderboard")
def bench_leaderboard(
    votes: Annotated[int, typer.Option(min=1, help="Votes per round.")] = 30_000,
    rounds: Annotated[int, typer.Option(min=1, help="Rounds; medians are reported.")] = 5,
    durable: Annotated[bool, typer.Option("--durable", help="With a directory and group commit.")] = False,
    variants: Annotated[bool, typer.Option("--variants", help="Also run other settings of a durable engine.")] = False,
    sql: Annotated[bool, typer.Option("--sql", help="Contestants leave by one UPDATE with a subquery.")] = False,
    peers: Annotated[str, typer.Option(help="Other systems that run the same votes: sqlite,redis,… or all.")] = "",
    as_json: Json = False,
) -> None:
    """The S-Store leaderboard against bare dictionaries, and against other systems.

    Example: tidegate bench leaderboard --votes 30000 --durable --json

    Example: tidegate bench leaderboard --durable --peers sqlite,redis,postgres_function
    """
    from tidegate.benchmarks.leaderboard import bench as run
    from tidegate.benchmarks.peers import chosen

    contenders = chosen(peers)
    facts = measured(run, votes, rounds, durable=durable, variants=variants, peers=contenders, sql=sql)
    if not as_json:
        _print_peers(facts.pop("variants", {}), facts.pop("peers", {}))
    print_facts(facts, as_json)


@bench.command("kernel")
def bench_kernel(
    rounds: Annotated[int, typer.Option(min=1, help="Rounds; medians are reported.")] = 5,
    as_json: Json = False,
) -> None:
    """What statements, growth, threads and locking cost.

    Example: tidegate bench kernel
    """
    from tidegate.benchmarks.kernel import bench as run

    print_facts(measured(run, rounds), as_json)


@bench.command("durability")
def bench_durability(
    rounds: Annotated[int, typer.Option(min=1, help="Rounds; medians are reported.")] = 3,
    as_json: Json = False,
) -> None:
    """Acknowledgement latency, log size, recovery speed, and what a merge holds up.

    Example: tidegate bench durability
    """
    from tidegate.benchmarks.durability import bench as run

    print_facts(measured(run, rounds), as_json)


@bench.command("windows")
def bench_windows(
    rows: Annotated[int, typer.Option(min=100_000, help="Rows per round.")] = 5_000_000,
    rounds: Annotated[int, typer.Option(min=1, help="Rounds; medians are reported.")] = 3,
    peers: Annotated[
        bool, typer.Option("--peers", help="Also run Polars, Bytewax and Spark, where installed.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Windows end to end, in large batches and row by row; the window state alone, beside numpy, DuckDB and plain Python.

    Example: tidegate bench windows --rows 2000000 --json
    """
    from tidegate.benchmarks.windows import bench as run

    facts = measured(run, rows, rounds, peers=peers)
    print_facts(facts, as_json)
    if not facts["correct"]:
        raise typer.Exit(1)


@bench.command("spark")
def bench_spark(
    windows: Annotated[int, typer.Option(min=40, help="Heavy windows per round.")] = 400,
    rounds: Annotated[int, typer.Option(min=1, help="Rounds after a first one to warm up; medians are reported.")] = 3,
    plot: Annotated[Path | None, typer.Option(help="Draw the latency by depth of look-ahead to this SVG file.")] = None,
    as_json: Json = False,
) -> None:
    """Heavy windows on Spark with look-ahead, end to end, beside this process alone and a bare process pool.

    Example: tidegate bench spark --plot docs/img/look-ahead.svg --json
    """
    from tidegate.benchmarks.spark import bench as run

    with told.status("starting Spark") as status:
        facts = run(windows, rounds, progress=status.update)
    if plot is not None:
        from tidegate.benchmarks.spark_plot import draw

        draw(facts, plot)
    print_facts(facts, as_json)
    if not facts["correct"]:
        raise typer.Exit(1)


@bench.command("hospital")
def bench_hospital(
    patients: Annotated[int, typer.Option(min=10, help="Patients, each 125 samples a second.")] = 200,
    seconds: Annotated[int, typer.Option(min=1, help="How long, in real time.")] = 30,
    durable: Annotated[bool, typer.Option("--durable", help="With a directory and group commit.")] = False,
    as_json: Json = False,
) -> None:
    """The hospital at real-time speed: does it keep up, and how fast are its alerts? Exit code 1: it does not keep up.

    Example: tidegate bench hospital --patients 200 --json
    """
    from tidegate.benchmarks.hospital import bench as run

    facts = measured(run, patients, seconds, durable)
    print_facts(facts, as_json)
    if not facts["holds"]:
        raise typer.Exit(1)


@bench.command("replica")
def bench_replica(
    rounds: Annotated[int, typer.Option(min=1, help="Rounds; medians are reported.")] = 5,
    as_json: Json = False,
) -> None:
    """Rows a second out of the query replica, and what it costs the engine.

    Example: tidegate bench replica
    """
    from tidegate.benchmarks.replica import bench as run

    print_facts(measured(run, rounds), as_json)


@bench.command("server")
def bench_server(
    clients: Annotated[int, typer.Option(min=1, help="Connections that push at the same time.")] = 50,
    pushes: Annotated[int, typer.Option(min=1, help="Pushes per round.")] = 20_000,
    rounds: Annotated[int, typer.Option(min=1, help="Rounds; medians are reported.")] = 3,
    rate: Annotated[float, typer.Option(min=1, help="Pushes a second of the paced half.")] = 2_000,
    as_json: Json = False,
) -> None:
    """Pushes over HTTP from many clients, with subscribers attached; and what an idle server costs.

    Example: tidegate bench server --clients 50 --json

    Exit code 1: something was lost.
    """
    from tidegate.benchmarks.server import bench as run

    facts = measured(run, clients, pushes, rounds, rate)
    print_facts(facts, as_json)
    if not facts["verified"] or facts["lost_by_server"] or facts["lost_by_subscribers"]:
        raise typer.Exit(1)


@bench.command("report")
def bench_report(
    only: Annotated[list[str] | None, typer.Argument(help="Sections to measure again; all otherwise.")] = None,
    results: Annotated[Path | None, typer.Option(help="Where to write it; benchmarks/results otherwise.")] = None,
    as_json: Json = False,
) -> None:
    """Run all benchmarks, short, and write a report with tables and plots.

    Example: tidegate bench report leaderboard windows
    """
    from tidegate.benchmarks.report import RESULTS, SECTIONS, run

    names = [section.name for section in SECTIONS]
    for name in only or ():
        if name not in names:
            raise TidegateError(f"the report has no section {name!r}; it has {', '.join(names)}")
    with told.status("measuring") as status:
        failed = run(list(only or ()), results or RESULTS, status.update)
    print_facts({"report": str((results or RESULTS) / "report.md"), "failed": failed}, as_json)
    for name, why in failed.items():
        told.print(f"[red]{name}:[/] {escape(why)}", soft_wrap=True)
    if failed:
        raise typer.Exit(1)


@app.command(rich_help_panel=PROVE)
def sim(
    seeds: Annotated[int, typer.Option(min=1, help="How many random apps and interleavings.")] = 1_000,
    start: Annotated[int, typer.Option(min=0, help="The first seed.")] = 0,
    upgrades: Annotated[bool, typer.Option(help="Instead: an app is changed at closes, merges and kills.")] = False,
    as_json: Json = False,
) -> None:
    """Check order: random apps under random interleavings must end like a serial run.

    Example: tidegate sim --seeds 10000

    Example: tidegate sim --upgrades --seeds 500
    """
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    from tidegate.testing.simulation import simulate_parallel
    from tidegate.testing.simulation.upgrades import upgrade_parallel

    columns = (TextColumn("seeds"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=told, transient=True) as bar:
        task = bar.add_task("seeds", total=seeds)
        run = upgrade_parallel if upgrades else simulate_parallel
        summary = run(range(start, start + seeds), progress=lambda s: bar.update(task, completed=s.seeds))
    for failure in summary.failures:
        told.print(failure.text, markup=False)
    facts = {**asdict(summary), "failures": [failure.seed for failure in summary.failures]}
    print_facts(facts, as_json)
    if summary.failures:
        raise typer.Exit(1)


@app.command("log", rich_help_panel=KEEP)
def show_log(
    directory: Annotated[Path, typer.Argument(help="The engine's directory.")],
    limit: Annotated[int, typer.Option(min=1, help="Records to show.")] = 50,
    start: Annotated[int, typer.Option("--from", min=0, help="Begin at this LSN.")] = 0,
    as_json: Json = False,
) -> None:
    """Print the command log. The engine may be running.

    Example: tidegate log data --limit 20
    """
    from tidegate.offline.log_entries import entries, table

    found: list[dict[str, Any]] = []
    try:
        for entry in entries(directory, start, limit):
            found.append(entry)
            if as_json:
                typer.echo(json.dumps(entry, default=str))
    finally:  # including what precedes a damaged record
        if found and not as_json:
            console.print(table(found))


@app.command("repair", rich_help_panel=KEEP)
def repair_directory(
    directory: Annotated[Path, typer.Argument(help="The engine's directory; no process may have it open.")],
    skip: Annotated[int, typer.Option("--skip", metavar="RECORD", min=0, help="The LSN of the record to skip.")],
    because: Annotated[str, typer.Option("--because", help="Why; kept in the log and with the dead letters.")],
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
    as_json: Json = False,
) -> None:
    """Skip a record of the log that can't be replayed: its rows become dead letters, and nothing of it runs.

    The skip is itself logged. Its batch-ids and offsets count as accepted, so no source sends the rows again.

    Example: tidegate repair data --skip 81234 --because "the model never converges"
    """
    from tidegate.offline.repair import Repair

    with Repair(directory) as repairing:
        found = repairing.find(skip)
        if not as_json:
            print_facts(found.facts())
        if not yes and not typer.confirm(f"Skip record {skip}? What it would have caused will not happen"):
            raise typer.Exit(1)
        at = repairing.skip(found, because)
    facts = {"skipped": skip, "holds": found.what, "because": because, "logged_at": at}
    print_facts(facts, as_json)


@app.command(rich_help_panel=KEEP)
def verify(
    directory: Annotated[Path, typer.Argument(help="The engine's directory; no process may have it open.")],
    where: Annotated[str, typer.Option("--app", help="The app: package.module:app, file.py:app or file.sql.")],
    as_json: Json = False,
) -> None:
    """Re-execute the whole log and compare every table, window and emitted batch. Exit code 1: different.

    Example: tidegate verify data --app app.py:app
    """
    from tidegate.loading import load_app
    from tidegate.offline.verify import verify as run

    with _progress("replaying") as progress:
        found = run(load_app(where), directory, progress=progress)
    facts = {**asdict(found), "same": found.same}
    if not as_json:
        del facts["differences"]
    print_facts(facts, as_json)
    if not found.same:
        for difference in () if as_json else found.differences:
            console.print(f"[red]different:[/] {escape(difference)}", soft_wrap=True)
        raise typer.Exit(1)


@app.command(rich_help_panel=KEEP)
def backup(
    directory: Annotated[Path, typer.Argument(help="The engine's directory; it may be running.")],
    target: Annotated[Path, typer.Argument(help="A new directory.")],
    as_json: Json = False,
) -> None:
    """Copy an engine's directory, running or not. The copy can be opened where it is; see restore.

    Example: tidegate backup data backups/monday
    """
    from tidegate.directory.backup import backup_directory

    backup_directory(directory, target)
    _copied(directory, target, as_json)


@app.command(rich_help_panel=KEEP)
def restore(
    backup: Annotated[Path, typer.Argument(help="A directory that tidegate backup wrote.")],
    target: Annotated[Path, typer.Argument(help="A new directory, to open the engine in.")],
    as_json: Json = False,
) -> None:
    """Check the log of a backup, and copy it to where the engine will be opened. tidegate verify checks the rest.

    Example: tidegate restore backups/monday data
    """
    from tidegate.directory.backup import restore as run

    run(backup, target)
    _copied(backup, target, as_json)


def _copied(source: Path, target: Path, as_json: bool) -> None:
    if as_json:
        print_facts({"directory": str(source), "target": str(target)}, as_json)
    else:
        console.print(f"{source} copied to {target}")


@app.command(rich_help_panel=LOOK)
def version(as_json: Json = False) -> None:
    """Print the version.

    Example: tidegate version --json
    """
    from importlib.metadata import version as of

    if as_json:
        print_facts({"tidegate": of("tidegate"), "duckdb": of("duckdb"), "python": sys.version.split()[0]}, as_json)
    else:
        typer.echo(of("tidegate"))


@contextmanager
def _progress(what: str) -> Iterator[Callable[[int, int, str], None]]:
    """A progress bar for long replays; calls give bytes done, bytes in all, and what is at hand."""
    from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn

    columns = (
        TextColumn(what),
        BarColumn(),
        TaskProgressColumn(),
        TimeRemainingColumn(),
        TextColumn("{task.description}"),
    )
    with Progress(*columns, console=told, transient=True) as bar:
        task = bar.add_task("", total=None)
        yield lambda done, total, doing: bar.update(task, completed=done, total=total, description=escape(doing))


def _print_peers(variants: dict[str, Any], peers: dict[str, Any]) -> None:
    """How many votes a second each makes, and with which guarantees."""
    if variants:
        table = Table("tidegate, one push a vote", "votes/s", "correct", box=None)
        for name, found in variants.items():
            table.add_row(name, f"{found['push_votes_per_s']:,}", "yes" if found["correct"] else "[red]no[/]")
        console.print(table)
    if peers:
        table = Table("peer", "votes/s", "tidegate is", "correct", box=None)
        for name, found in peers.items():
            if "skipped" in found:
                table.add_row(name, "-", "-", "[dim]skipped[/]")
                continue
            times = f"{found['times']:,.1f} ×"
            table.add_row(name, f"{found['votes_per_s']:,}", times, "yes" if found["correct"] else "[red]no[/]")
        console.print(table)
        for name, found in peers.items():
            given = found.get("guarantees", {"skipped": found.get("skipped")})
            told_of = "; ".join(f"{what.replace('_', ' ')}: {how}" for what, how in given.items())
            console.print(f"[bold]{name}[/]  {escape(told_of)}")


def _show_version(wanted: bool) -> None:
    if wanted:
        version()
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None: ...


def main() -> None:
    """Entry point: our errors are one clear message and exit code 2, never a traceback.

    Exit codes: 0 done; 1 done, and the answer is no (undone, different, halted); 2 not done; 130 interrupted.
    """
    try:
        app()
    except TidegateError as error:
        if "--json" in sys.argv:
            typer.echo(json.dumps({"error": {"type": type(error).__name__, "message": str(error)}}), err=True)
            sys.exit(2)
        told.print(f"[red]tidegate:[/] {escape(str(error))}", soft_wrap=True)
        sys.exit(2)
    except KeyboardInterrupt:
        sys.exit(130)


if __name__ == "__main__":
    main()
