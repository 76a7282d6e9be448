"""``tidegate connect`` and ``tidegate rebuild``: connectors from a file, tables from their changelogs."""

from __future__ import annotations

import signal
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.table import Table

from tidegate.cli.printing import Json, TokenOption, console, print_json, told
from tidegate.errors import TidegateError
from tidegate.mutex import Flag

LOOK_S = 0.1


def connect(
    path: Annotated[Path, typer.Argument(metavar="FILE", help=r"A TOML file with [\[source]] and [\[sink]] entries.")],
    check: Annotated[
        bool,
        typer.Option("--check", help="Check every source and sink once without taking or sending anything."),
    ] = False,
    once: Annotated[
        bool, typer.Option("--once", help="Stop when all sources are finished and everything is delivered.")
    ] = False,
    metrics: Annotated[
        int | None, typer.Option(min=0, max=65535, help="Serve GET /metrics for Prometheus on this loopback port.")
    ] = None,
    token: TokenOption = None,
    as_json: Json = False,
) -> None:
    """Run sources and sinks from a TOML file, without code, against a directory or a server, until Ctrl-C.

    Example: tidegate connect connector.toml --check

    Ctrl-C finishes what is being sent and stops; a second one stops at once.

    Exit code 1: a source or sink has given up, or with --once a sink did not take everything; the reason is printed.
    """
    from importlib import import_module

    setup = import_module("tidegate.connectors.shared.toml_file").read_setup(path)
    runner: Any = import_module("tidegate.connectors.shared.running")
    if check:
        _show(runner.check(setup, token), as_json)
        return
    stop = Flag()
    started = Flag()

    def told_to_stop(*_: Any) -> None:
        if stop.is_set() or not started.is_set():  # nothing is under way yet, or it takes too long to finish
            raise KeyboardInterrupt
        stop.set()

    with ExitStack() as stack:
        for number in (signal.SIGTERM, signal.SIGINT):
            stack.callback(signal.signal, number, signal.signal(number, told_to_stop))
        at_work = stack.enter_context(runner.running(setup, token))
        started.set()
        if metrics is not None:
            told.print(f"metrics at http://127.0.0.1:{stack.enter_context(runner.metrics(at_work, metrics))}/metrics")
        while not stop.wait(LOOK_S) and at_work.at_work:
            pass
        while not (once or stop.is_set() or at_work.stopped):
            stop.wait(LOOK_S)
        until = time.monotonic() + runner.DRAIN_S
        while (
            not (drained := stop.is_set() or at_work.drain(LOOK_S)) and not at_work.stopped and time.monotonic() < until
        ):
            pass
        facts, given_up = at_work.facts(), bool(at_work.stopped) or not drained
    _show(facts, as_json)
    if given_up:
        raise typer.Exit(1)


def rebuild(
    directory: Annotated[Path, typer.Argument(help="A new directory.")],
    where: Annotated[str, typer.Option("--app", help="The app: package.module:app, file.py:app or file.sql.")],
    changes: Annotated[list[str], typer.Option("--changes", help="TABLE=DIRECTORY with the NDJSON of its changelog.")],
    as_json: Json = False,
) -> None:
    """Fill the tables of a new engine from changelogs that a file sink wrote.

    Example: tidegate rebuild new.db --app bank.py:app --changes accounts=changes/accounts
    """
    from tidegate.loading import load_app
    from tidegate.outside.changelog import changes_in_files
    from tidegate.outside.changelog import rebuild as run

    found = {}
    for given in changes:
        table, _, place = given.partition("=")
        if not Path(place).is_dir():
            raise TidegateError(f"--changes {given}: write TABLE=DIRECTORY; there is no directory {place!r}")
        found[table] = changes_in_files(place)
    counts = run(load_app(where), directory, found)
    _show([{"table": table, "rows": rows} for table, rows in counts.items()], as_json)


def _show(facts: list[dict[str, Any]], as_json: bool) -> None:
    if as_json:
        print_json(facts)
        return
    for kind in ("source", "sink", "table"):
        chosen = [one for one in facts if kind in one]
        if chosen:
            table = Table(*chosen[0], box=None)
            for one in chosen:
                table.add_row(*("" if value is None else str(value) for value in one.values()))
            console.print(table)
