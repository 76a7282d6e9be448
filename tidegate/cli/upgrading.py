"""Bringing a directory to a changed app, and asking beforehand."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.markup import escape
from rich.table import Table

from tidegate.cli.printing import Json, console, print_json

if TYPE_CHECKING:
    from tidegate.directory.upgrading.changes import Change

Drop = Annotated[
    list[str] | None,
    typer.Option("--drop", help="A table, table.column, procedure.window, stream or subscription that may be lost."),
]
_COLOURS = {"refused": "red", "dropped": "yellow", "restarted": "yellow", "refilled": "cyan", "added": "green"}


def upgrade(
    where: Annotated[str, typer.Argument(metavar="APP", help="The app: package.module:app, file.py:app or file.sql.")],
    directory: Annotated[Path, typer.Argument(help="The engine's directory; no process may have it open.")],
    check: Annotated[bool, typer.Option("--check", help="Only say what would happen; change nothing.")] = False,
    drop: Drop = None,
    as_json: Json = False,
) -> None:
    """Bring a directory to an app that has changed since. With --check, exit code 1: it would be refused.

    Example: tidegate upgrade --check shop.py:app data

    Example: tidegate upgrade shop.py:app data --drop old_table
    """
    import tidegate
    from tidegate.loading import load_app
    from tidegate.offline.upgrade import check as run
    from tidegate.offline.upgrade import misfits_of

    app = load_app(where)
    if not check:
        with tidegate.open(app, directory, drop=drop or ()) as engine:
            misfits, empty = misfits_of(app, engine.upgraded), {"same": {}, "waiting": [], "code": [], "pending": False}
            _print({"changes": engine.upgraded, **empty, "misfits": misfits, "fits": True}, as_json)
        return
    found = run(app, directory, drop or ())
    _print({**vars(found), "fits": found.fits}, as_json)
    if not found.fits:
        raise typer.Exit(1)


def _print(facts: dict[str, Any], as_json: bool) -> None:
    changes, waiting = facts["changes"], facts["waiting"]
    if as_json:
        print_json({**facts, "changes": list(map(asdict, changes)), "waiting": list(map(asdict, waiting))})
        return
    if changes or waiting:
        console.print(_table([*changes, *waiting]))
    for kind, names in facts["same"].items():
        if names:
            console.print(f"as it is: {kind} {escape(', '.join(names))}", soft_wrap=True)
    for line in facts["code"]:
        console.print(f"[cyan]changed code[/]  {escape(line)}", soft_wrap=True)
    for line in facts["misfits"]:
        console.print(f"[yellow]will fail when it is run[/]  {escape(line)}", soft_wrap=True)
    if facts["pending"] and facts["fits"]:
        console.print("the log has records since the last merge: opening replays them, with the code that wrote them")
    if not facts["fits"]:
        console.print("[red]refused[/]: opening the directory with this app changes nothing and raises an error")
    elif not changes and not facts["code"]:
        console.print("nothing has changed: the directory is as the app declares it")


def _table(changes: Iterable[Change]) -> Table:
    table = Table("verdict", "what", "why", "remedy", box=None, pad_edge=False)
    for change in changes:
        colour = _COLOURS.get(change.verdict, "default")
        name = escape(f"{change.kind} {change.name}")
        table.add_row(f"[{colour}]{change.verdict}[/]", name, escape(change.what), escape(change.remedy))
    return table
