"""``crash-test`` and ``soak``: engines that are killed again and again, and what must survive."""

from __future__ import annotations

import shutil
import tempfile
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.table import Table

from tidegate.cli.printing import Json, console, need_server, print_facts, print_json, told


class Executors(StrEnum):
    """The executor of each life; both: in turn."""

    serial = "serial"
    threads = "threads"
    both = "both"


def crash_test(
    address: Annotated[
        str | None, typer.Argument(metavar="[APP]", help="module:app or file.py:app; two built-in apps otherwise.")
    ] = None,
    rounds: Annotated[int, typer.Option(min=1, help="Workloads to run, each killed one to three times.")] = 24,
    seed: Annotated[int, typer.Option(help="The first round's seed.")] = 0,
    upgrades: Annotated[bool, typer.Option(help="Instead: the app is changed between kills.")] = False,
    as_json: Json = False,
) -> None:
    """Kill an engine at random moments and at named crash points: nothing acknowledged may be lost, doubled or different.

    Example: tidegate crash-test --rounds 24

    Example: tidegate crash-test shop.py:app --rounds 10 --seed 7

    Example: tidegate crash-test --upgrades --rounds 20

    The work is rows made from the schemas of APP's border streams, or what crash_workload(seed) beside it returns: a list
    of tidegate.testing.Push (with batch_id) and Call.
    """
    from tidegate.testing.crashes import crash_test as run
    from tidegate.testing.crashes import facts

    if upgrades:
        _crash_upgrades(address, rounds, seed, as_json)
        return

    columns = (TextColumn("rounds"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=told, transient=True) as bar:
        task = bar.add_task("rounds", total=rounds)
        summary = run(rounds, seed, address, progress=lambda s: bar.update(task, completed=s.rounds + len(s.failures)))
    for failure in summary.failures:
        told.print(failure, markup=False)
    found = facts(summary)
    if as_json:
        print_json(found)
    else:
        points = found.pop("points")
        found["failures"] = len(summary.failures)
        table = Table("died at", "times", box=None)
        for name, count in points.items():
            table.add_row(name, str(count))
        console.print(table)
        print_facts(found)
    if not summary.sound:
        raise typer.Exit(1)


def _crash_upgrades(address: str | None, rounds: int, seed: int, as_json: bool) -> None:
    from tidegate.testing.upgrade_crashes import crash_upgrades

    if address is not None:
        raise typer.BadParameter("--upgrades changes an app of its own; leave out APP")
    folder = Path(tempfile.mkdtemp(prefix="tidegate-upgrades-"))
    counts, failures = crash_upgrades(rounds, seed, folder)
    for failure in failures:
        told.print(failure, markup=False)
    print_facts({**counts, "failures": len(failures)}, as_json)
    if failures:
        raise typer.Exit(1)
    shutil.rmtree(folder)


def soak(
    minutes: Annotated[float, typer.Option(min=0.01, help="How long.")] = 10.0,
    seed: Annotated[int, typer.Option(help="For the kills and for the schedule of the clients.")] = 0,
    kills_every: Annotated[float, typer.Option(min=0.1, help="Seconds between two ends of the process.")] = 20.0,
    executor: Annotated[Executors, typer.Option(help="serial, threads, or both in turn.")] = Executors.both,
    keep: Annotated[
        Path | None, typer.Option(help="Keep data, log and stacks here; without it they are kept only after a failure.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Everything at once, for minutes, with kills in between: nothing may hang, be lost, doubled or seen half done.

    Pushes by push, feed, call and HTTP, SQL in procedures, queries, subscribers, a slow consumer, questions, merges
    every second; at the end the log is re-executed (tidegate verify) and every number is checked. Exit code 1:
    something is wrong.

    Example: tidegate soak --minutes 10

    Example: tidegate soak --minutes 2 --executor threads --kills-every 10 --seed 7 --keep soaked
    """
    need_server()
    from tidegate.testing.soak import facts
    from tidegate.testing.soak import soak as run

    columns = (TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn(), TimeRemainingColumn())
    with Progress(*columns, console=told, transient=True) as bar:
        task = bar.add_task("soaking", total=minutes * 60)
        summary = run(
            minutes,
            seed,
            kills_every,
            executor.value,
            keep,
            lambda what, s: bar.update(task, description=what, completed=s),
        )
    found = facts(summary)
    if as_json:
        print_json(found)
    else:
        found["violations"] = len(summary.violations)
        print_facts(found)
        for violation in summary.violations:
            told.print(f"[red]wrong:[/] {escape(violation)}", soft_wrap=True)
    if not summary.sound:
        raise typer.Exit(1)
