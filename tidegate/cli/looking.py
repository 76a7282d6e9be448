"""``tidegate status`` and ``tidegate graph``: what a server is doing, and what an app looks like."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tidegate.cli.printing import LOCAL, Json, TokenOption, Url, client_of, console, print_json
from tidegate.errors import ServerError, TidegateError

if TYPE_CHECKING:
    from tidegate.client import Client


def status(
    url: Url = LOCAL,
    token: TokenOption = None,
    once: Annotated[bool, typer.Option("--once", help="Print it once instead of keeping it live.")] = False,
    every: Annotated[float, typer.Option(min=0.2, help="Seconds between updates.")] = 1.0,
    as_json: Json = False,
) -> None:
    """What a server is doing: streams and rates, lag, who waits for whom, windows, merges. Ctrl-C ends it.
    When the output is not a terminal, it is printed once.

    Example: tidegate status

    Example: tidegate status --url http://127.0.0.1:8080 --once --json

    Exit code 1: a dataflow is halted, merges fail, or the log refuses new records.
    """
    with client_of(url, token) as client:
        if as_json or once or not console.is_terminal:
            facts = client.status()
            if as_json:
                print_json(facts)
            else:
                from tidegate.cli.status_tables import status_tables

                console.print(status_tables(facts, None, 0.0))
            if facts["halted"] or facts["merge_tries"] or (facts["log"] is not None and not facts["log"]["taking"]):
                raise typer.Exit(1)
            return
        _live(client, every)


def topics(
    url: Url = LOCAL,
    token: TokenOption = None,
    seek: Annotated[str | None, typer.Option(help="The subscription to move.")] = None,
    to: Annotated[str | None, typer.Option(help="Where to: earliest, now, an offset, or a time in ISO 8601.")] = None,
    as_json: Json = False,
) -> None:
    """What is kept of streams, who follows them, and how far behind they are; or let a subscription go on from another place.

    Example: tidegate topics

    Example: tidegate topics --seek reports --to earliest
    """
    if (seek is None) != (to is None):
        raise typer.BadParameter("--seek NAME and --to PLACE go together")
    with client_of(url, token) as client:
        if seek is not None:
            client.seek(seek, int(to) if to is not None and to.isdigit() else to)
        facts = {"topics": client.topics(), "subscriptions": client.subscriptions()}
    if as_json:
        print_json(facts)
        return
    from tidegate.cli.status_tables import listed

    for title, rows, columns in (
        ("topics", facts["topics"], ("stream", "keep", "first_offset", "end_offset", "batches", "bytes")),
        ("subscriptions", facts["subscriptions"], ("name", "stream", "next_offset", "waiting", "lag_s", "on_lag")),
    ):
        console.print(listed(title, rows, columns) if rows else f"no {title}")


def _live(client: Client, every_s: float) -> None:
    from rich.live import Live
    from rich.text import Text

    from tidegate.cli.status_tables import status_tables

    before = client.status()
    looked_at = time.monotonic()
    with Live(status_tables(before, None, 0.0), console=console, screen=True, auto_refresh=False) as live:
        while True:
            time.sleep(every_s)
            try:
                now = client.status()
            except ServerError as error:
                live.update(Text(f"{error}\n\ntrying again …", style="red"), refresh=True)
                continue
            seconds, looked_at = time.monotonic() - looked_at, time.monotonic()
            live.update(status_tables(now, before, seconds), refresh=True)
            before = now


def explain(
    where: Annotated[str, typer.Argument(metavar="APP", help="file.sql, file.py:app or package.module:app")],
    name: Annotated[str | None, typer.Argument(help="A stream or materialized view; all, if none is named.")] = None,
    as_json: Json = False,
) -> None:
    """Say how each stream and materialized view declared in SQL is made: what is compiled, what goes to DuckDB, what is held.

    Example: tidegate explain flows.sql

    Example: tidegate explain flows.sql top_errors
    """
    from tidegate.loading import load_app

    app = load_app(where)
    views = [
        view.name
        for view in app.views.values()
        if any(one.state.name in view.tables for one in app.maintained.values())
    ]
    told = {one: app.explain(one) for one in ([name] if name is not None else [*app.plans, *views])}
    if as_json:
        print_json(told)
    elif told:
        typer.echo("\n\n".join(told.values()))
    else:
        raise TidegateError(
            f"{where} declares no stream or materialized view in SQL; tidegate graph draws the dataflow"
        )


def graph(
    where: Annotated[
        str | None, typer.Argument(metavar="[APP]", help="package.module:app, file.py:app or file.sql")
    ] = None,
    url: Url = "",
    token: TokenOption = None,
    form: Annotated[str, typer.Option("--format", "-f", help="text, mermaid or svg.")] = "text",
    output: Annotated[Path | None, typer.Option("--output", "-o", help="Write it to this file.")] = None,
    as_json: Json = False,
) -> None:
    """Draw the dataflow of an app: streams, procedures, nested transactions.

    Example: tidegate graph shop.py:app

    Example: tidegate graph shop.py:app --format svg --output shop.svg

    Example: tidegate graph --url http://127.0.0.1:8080 --format mermaid
    """
    from tidegate.client import calls
    from tidegate.dataflows import drawing as graphview
    from tidegate.loading import load_app

    if (where is None) == (not url):
        raise TidegateError("give either an app (file.py:app) or a server (--url)")
    if where is not None:
        described = graphview.describe_graph(load_app(where).graph())
    else:
        with client_of(url, token) as client:
            described = client.send(calls.get("/v1/graph")).facts()
    if as_json:
        print_json(described)
        return
    drawers = {"text": graphview.text, "mermaid": graphview.mermaid, "svg": graphview.svg}
    if form not in drawers:
        raise TidegateError(f"--format is {', '.join(drawers)}, got {form!r}")
    drawn = drawers[form](described)
    if output is None:
        typer.echo(drawn, nl=False)
    else:
        output.write_text(drawn, encoding="utf-8")
        console.print(f"written to {output}")
