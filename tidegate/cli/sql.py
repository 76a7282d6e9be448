"""``tidegate sql``: query a directory or a server."""

from __future__ import annotations

import sys
import time
from typing import Annotated

import typer
from rich.console import Console

from tidegate.cli.printing import LOCAL
from tidegate.errors import TidegateError


def sql(
    target: Annotated[
        str,
        typer.Argument(
            envvar="TIDEGATE_URL", help="A directory, postgresql://…, or the http(s)://… of a server.", show_envvar=True
        ),
    ] = LOCAL,
    command: Annotated[str | None, typer.Option("-c", "--command", help="Run this query and exit.")] = None,
    app: Annotated[
        str | None, typer.Option("--app", help="For a directory: the app, to replay what is not merged yet.")
    ] = None,
    token: Annotated[
        str | None, typer.Option("--token", envvar="TIDEGATE_TOKEN", help="A token, for http(s)://.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object per answer.")] = False,
    as_csv: Annotated[bool, typer.Option("--csv", help="Print CSV with a header.")] = False,
) -> None:
    """Query with SQL: interactively, or with -c (or standard input) without prompts.

    A directory is read from a copy: an engine that has it open is not disturbed.

    Example: tidegate sql

    Example: tidegate sql data

    Example: tidegate sql data --app app.py:app -c "SELECT count(*) FROM stock"

    Example: tidegate sql postgresql://127.0.0.1:5433/tidegate -c "SELECT * FROM stock" --csv
    """
    from tidegate.shell.showing import Form, show
    from tidegate.shell.sources import open_source

    if as_json and as_csv:
        raise TidegateError("--json or --csv, not both")
    form: Form = "json" if as_json else "csv" if as_csv else "table"
    console = Console()
    source = open_source(target, app, token)
    try:
        if command is None and sys.stdin.isatty():
            _interactive(source, console, form)
            return
        for statement in _statements(command if command is not None else sys.stdin.read()):
            began = time.monotonic()
            answer = source.query(statement)
            show(answer, form, console, time.monotonic() - began)
    finally:
        source.close()


def _interactive(source: object, console: Console, form: str) -> None:
    try:
        from tidegate.shell.prompt import Shell
    except ImportError:
        raise TidegateError("the interactive shell needs prompt_toolkit; pip install 'tidegate[sql]'") from None
    Shell(source, console, form).run()  # type: ignore[arg-type]


def _statements(text: str) -> list[str]:
    from tidegate.replica.text import split

    found = split(text)
    if not found:
        raise TidegateError('nothing to run; give a query, as in -c "SELECT 1"')
    return found
