"""The command line: for people."""

from __future__ import annotations

import json
import sys
from dataclasses import asdict
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
    as_json: Json = False,
) -> None:
    """The S-Store leaderboard against bare dictionaries.

    Example: tidegate bench leaderboard --votes 30000 --json
    """
    from tidegate.benchmarks.leaderboard import bench as run

    with told.status("measuring") as status:
        _print(run(votes, rounds, progress=status.update), as_json)


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
        _print(run(rounds, progress=status.update), as_json)


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


@app.command()
def version() -> None:
    """Print the version."""
    from importlib.metadata import version as of

    typer.echo(of("tidegate"))


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
