"""The command line: for people."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from tidegate.errors import TidegateError

app = typer.Typer(
    help="tidegate: a transactional stream engine.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
bench = typer.Typer(help="Measure tidegate on this machine, beside its peers.", no_args_is_help=True)
app.add_typer(bench, name="bench")
console = Console()
told = Console(stderr=True)

Json = Annotated[bool, typer.Option("--json", help="Print one JSON object instead of a table.")]


@app.command()
def demo(
    votes: Annotated[int, typer.Option(min=1, help="Votes to cast.")] = 60_000,
    seed: Annotated[int, typer.Option(help="Which contest.")] = 1,
    seconds: Annotated[float, typer.Option(min=0, help="How long to show it; 0 for as fast as it goes.")] = 8.0,
) -> None:
    """Run the leaderboard, live.

    Example: tidegate demo --seconds 3
    """
    from tidegate.examples.leaderboard.demo import run

    if not run(votes, seed, seconds, console):
        raise typer.Exit(1)


@bench.command("leaderboard")
def bench_leaderboard(
    votes: Annotated[int, typer.Option(min=1, help="Votes per round.")] = 30_000,
    rounds: Annotated[int, typer.Option(min=1, help="Rounds; medians are reported.")] = 5,
    durable: Annotated[bool, typer.Option("--durable", help="With a directory and group commit.")] = False,
    as_json: Json = False,
) -> None:
    """The S-Store leaderboard against bare dictionaries.

    Example: tidegate bench leaderboard --votes 30000 --durable --json
    """
    from tidegate.benchmarks.leaderboard import bench as run

    with told.status("measuring") as status:
        facts = run(votes, rounds, durable=durable, progress=status.update)
    _print(facts, as_json)


@bench.command("kernel")
def bench_kernel(
    rounds: Annotated[int, typer.Option(min=1, help="Rounds; medians are reported.")] = 5,
    as_json: Json = False,
) -> None:
    """What statements, growth, threads and locking cost.

    Example: tidegate bench kernel
    """
    from tidegate.benchmarks.kernel import bench as run

    with told.status("measuring") as status:
        facts = run(rounds, progress=status.update)
    _print(facts, as_json)


@bench.command("durability")
def bench_durability(
    rounds: Annotated[int, typer.Option(min=1, help="Rounds; medians are reported.")] = 3,
    as_json: Json = False,
) -> None:
    """Acknowledgement latency, log size, recovery speed, and what a merge holds up.

    Example: tidegate bench durability
    """
    from tidegate.benchmarks.durability import bench as run

    with told.status("measuring") as status:
        facts = run(rounds, progress=status.update)
    _print(facts, as_json)


@app.command()
def sim(
    seeds: Annotated[int, typer.Option(min=1, help="How many random apps and interleavings.")] = 1_000,
    start: Annotated[int, typer.Option(min=0, help="The first seed.")] = 0,
    as_json: Json = False,
) -> None:
    """Check order: random apps under random interleavings must end like a serial run.

    Example: tidegate sim --seeds 10000
    """
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    from tidegate.simulation import simulate_parallel

    columns = (TextColumn("seeds"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=told, transient=True) as bar:
        task = bar.add_task("seeds", total=seeds)
        summary = simulate_parallel(range(start, start + seeds), progress=lambda s: bar.update(task, completed=s.seeds))
    for failure in summary.failures:
        told.print(failure.text, markup=False)
    facts = {**asdict(summary), "failures": [failure.seed for failure in summary.failures]}
    _print(facts, as_json)
    if summary.failures:
        raise typer.Exit(1)


@app.command("log")
def show_log(
    directory: Annotated[Path, typer.Argument(help="The engine's directory.")],
    limit: Annotated[int, typer.Option(min=1, help="Records to show.")] = 50,
    start: Annotated[int, typer.Option("--from", min=0, help="Begin at this LSN.")] = 0,
    as_json: Json = False,
) -> None:
    """Print the command log. The engine may be running.

    Example: tidegate log data --limit 20
    """
    from tidegate.logview import entries, table

    found = entries(directory, start, limit)
    if as_json:
        for entry in found:
            typer.echo(json.dumps(entry, default=str))
    else:
        console.print(table(found))


@app.command()
def verify(
    directory: Annotated[Path, typer.Argument(help="The engine's directory, not open anywhere.")],
    where: Annotated[str, typer.Option("--app", help="The app: package.module:app or file.py:app.")],
    accept_changed: Annotated[bool, typer.Option(help="Re-execute with procedures that have changed since.")] = False,
    as_json: Json = False,
) -> None:
    """Run the log again from as far back as it goes and compare every table, window and waiting batch. Exit code 1: different.

    Example: tidegate verify data --app app.py:app
    """
    from tidegate.loading import load_app
    from tidegate.verify import verify as run

    with _progress("replaying") as progress:
        found = run(load_app(where), directory, accept_changed=accept_changed, progress=progress)
    facts = {**asdict(found), "same": found.same}
    _print(facts, as_json)
    if not found.same:
        raise typer.Exit(1)


@app.command()
def backup(
    directory: Annotated[Path, typer.Argument(help="The engine's directory; it may be running.")],
    target: Annotated[Path, typer.Argument(help="A new directory.")],
) -> None:
    """Copy an engine's directory, running or not. To restore, open the copy (or copy it back).

    Example: tidegate backup data backups/monday
    """
    from tidegate.backup import backup_directory

    backup_directory(directory, target)
    console.print(f"{directory} copied to {target}")


@app.command("crash-test")
def crash_test(
    address: Annotated[
        str | None, typer.Argument(metavar="[APP]", help="module:app or file.py:app; two built-in apps otherwise.")
    ] = None,
    rounds: Annotated[int, typer.Option(min=1, help="Workloads to run, each killed one to three times.")] = 24,
    seed: Annotated[int, typer.Option(help="The first round's seed.")] = 0,
    as_json: Json = False,
) -> None:
    """Kill an engine at random moments and at named crash points: nothing acknowledged may be lost, doubled or different.

    Example: tidegate crash-test --rounds 24

    Example: tidegate crash-test shop.py:app --rounds 10 --seed 7

    The work is rows made from the schemas of APP's border streams, or what crash_workload(seed) beside it returns: a list
    of tidegate.testing.Push (with batch_id) and Call.
    """
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    from tidegate.crashtest import crash_test as run
    from tidegate.crashtest import facts

    columns = (TextColumn("rounds"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=told, transient=True) as bar:
        task = bar.add_task("rounds", total=rounds)
        summary = run(rounds, seed, address, progress=lambda s: bar.update(task, completed=s.rounds + len(s.failures)))
    for failure in summary.failures:
        told.print(failure, markup=False)
    found = facts(summary)
    if not as_json:
        points = found.pop("points")
        found["failures"] = len(summary.failures)
        table = Table("died at", "times", box=None)
        for name, count in points.items():
            table.add_row(name, str(count))
        console.print(table)
    _print(found, as_json)
    if not summary.sound:
        raise typer.Exit(1)


@app.command()
def version() -> None:
    """Print the version."""
    from importlib.metadata import version as of

    typer.echo(of("tidegate"))


@contextmanager
def _progress(what: str) -> Iterator[Callable[[int, int], None]]:
    """A progress bar for long replays; calls give bytes done and bytes in all."""
    from rich.progress import Progress

    with Progress(console=told, transient=True) as bar:
        task = bar.add_task(what, total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total)


def _print(facts: dict[str, Any], as_json: bool) -> None:
    if as_json:
        typer.echo(json.dumps(facts, default=str))
        return
    table = Table(show_header=False, box=None)
    for name, value in facts.items():
        shown = f"{value:,}" if isinstance(value, int) and not isinstance(value, bool) else str(value)
        table.add_row(f"[bold]{name}[/]", shown)
    console.print(table)


def main() -> None:
    """Entry point: errors of ours are one clear message and exit code 2, never a traceback."""
    try:
        app()
    except TidegateError as error:
        told.print(f"[red]tidegate:[/] {error}")
        sys.exit(2)
    except KeyboardInterrupt:
        sys.exit(130)
