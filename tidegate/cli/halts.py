"""``tidegate halted``, ``resume``, ``skip`` and ``dead-letters``: what a person does about a failure."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer
from msgspec import UNSET
from rich.table import Table
from rich.text import Text

from tidegate.cli.printing import LOCAL, Json, TokenOption, Url, client_of, console, print_json

if TYPE_CHECKING:
    from tidegate.client import Client

Dataflow = Annotated[str, typer.Argument(help="The halted dataflow: see tidegate halted.")]
Key = Annotated[str | None, typer.Option(help="Only this key of it.")]
dead_letters_app = typer.Typer(help="Batches that were put aside after a failure.", invoke_without_command=True)


def halted(url: Url = LOCAL, token: TokenOption = None, as_json: Json = False) -> None:
    """What is halted, why, and the rows of the batch it stopped in front of.

    Example: tidegate halted

    Exit code 1: something is halted.
    """
    with client_of(url, token) as client:
        found = client.halted()
    if as_json:
        print_json({"halted": found})
    elif not found:
        console.print("nothing is halted")
    for one in found if not as_json else ():
        key = "" if one["key"] is None else f", key {one['key']}"
        console.print(Text(f"{one['dataflow']}{key}: {one['waiting']} executions wait", "bold red"))
        console.print(Text(f"  in front of batch {one['batch_id']} at position {one['position']}"))
        console.print(Text(f"  {one['error']}"))
        console.print(Text(one["trace"].rstrip("\n"), "dim"))
        for stream, rows in one["batches"].items():
            for row in rows[:10]:
                console.print(Text(f"  {stream}: {row}"))
    if found:
        raise typer.Exit(1)


def resume(
    dataflow: Dataflow, key: Key = None, url: Url = LOCAL, token: TokenOption = None, as_json: Json = False
) -> None:
    """Continue a halted dataflow with the batch it stopped in front of, once the cause is repaired.

    Example: tidegate resume accept --key 7

    Exit code 1: it is halted again.
    """
    with client_of(url, token) as client:
        client.resume(dataflow, key=_given(key))
        again = _halted_again(client, dataflow, key)
    told = f"resumed {dataflow}" + (f", and it is {again}" if again else "")
    _told({"resumed": dataflow, "key": key, "halted": again is not None}, told, as_json)
    if again:
        raise typer.Exit(1)


def skip(
    dataflow: Dataflow, key: Key = None, url: Url = LOCAL, token: TokenOption = None, as_json: Json = False
) -> None:
    """Move the batch that a halted dataflow stopped in front of to the dead letters, and continue after it.

    Example: tidegate skip accept --key 7
    """
    with client_of(url, token) as client:
        client.skip(dataflow, key=_given(key))
        again = _halted_again(client, dataflow, key)
    told = f"skipped a batch of {dataflow}: see tidegate dead-letters" + (f". Now it is {again}" if again else "")
    _told({"skipped": dataflow, "key": key, "halted": again is not None}, told, as_json)


def _halted_again(client: Client, dataflow: str, key: str | None) -> str | None:
    """Where it stopped next, if it did. With threads it may still be running."""
    for one in client.halted():
        if one["dataflow"] == dataflow and key in (None, str(one["key"])):
            return f"halted in front of batch {one['batch_id']}: {one['error']}"
    return None


def _told(facts: dict[str, Any], text: str, as_json: bool) -> None:
    if as_json:
        print_json(facts)
    else:
        console.print(text, markup=False, soft_wrap=True)


def _given(key: str | None) -> Any:
    return UNSET if key is None else key


@dead_letters_app.callback()
def dead_letters(context: typer.Context, url: Url = LOCAL, token: TokenOption = None, as_json: Json = False) -> None:
    """List the newest dead letters of a server.

    Example: tidegate dead-letters

    Example: tidegate dead-letters requeue 17.0
    """
    if context.invoked_subcommand is not None:
        return
    with client_of(url, token) as client:
        found = client.status()["recent_dead_letters"]
    if as_json:
        print_json({"dead_letters": found})
        return
    table = Table("position", "procedure", "stream", "batch", "key", "rows", "error")
    for one in found:
        names = ("position", "procedure", "stream", "batch_id", "key", "rows", "error")
        table.add_row(*(Text("" if one[name] is None else str(one[name])) for name in names))
    console.print(table if found else "there are no dead letters")


@dead_letters_app.command()
def requeue(
    position: Annotated[
        str, typer.Argument(help="The position of the dead letter, as tidegate dead-letters shows it.")
    ],
    url: Url = LOCAL,
    token: TokenOption = None,
    as_json: Json = False,
) -> None:
    """Accept the batch of a dead letter again, once, as new work under a new id.

    Example: tidegate dead-letters requeue 17.0

    Exit code 1: it was undone again.
    """
    with client_of(url, token) as client:
        ticket = client.requeue(position)
        error = None if ticket.error is None else str(ticket.error)
        told = f"requeued {position} as batch {', '.join(map(str, ticket.batch_ids))}"
        _told({"requeued": position, "batch_ids": ticket.batch_ids, "error": error}, told, as_json)
    if error is not None:
        if not as_json:
            console.print(Text(error, "red"))
        raise typer.Exit(1)
