"""``tidegate advance`` and ``tidegate finish``: what a person or a script says about the time of a stream."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from tidegate.cli import completion
from tidegate.cli.printing import LOCAL, Json, TokenOption, Url, client_of
from tidegate.cli.work import print_result

Border = Annotated[str, typer.Argument(help="A border stream.", autocompletion=completion.border_streams)]


def advance(
    stream: Border,
    to: Annotated[
        str, typer.Argument(help="A time like 2026-03-01T08:00, or a number where the stream's time is one.")
    ],
    key: Annotated[str | None, typer.Option(help="Only this key of it.")] = None,
    batch_id: Annotated[int | None, typer.Option(help="Where the sender of the rows chooses ids: a new one.")] = None,
    url: Url = LOCAL,
    token: TokenOption = None,
    as_json: Json = False,
) -> None:
    """Say that no row before a time will follow on a stream, so that windows and joins up to there fire.

    Example: tidegate advance readings 2026-03-01T08:00

    Exit code 1: something was undone.
    """
    with client_of(url, token) as client:
        _tell(client.advance(stream, to, key=key, batch_id=batch_id), as_json)


def finish(
    stream: Annotated[str | None, typer.Argument(help="A border stream; all of them without it.")] = None,
    url: Url = LOCAL,
    token: TokenOption = None,
    as_json: Json = False,
) -> None:
    """Say that nothing will follow on a stream, or on any: all that waits for time fires. Later rows are refused.

    Example: tidegate finish readings

    Exit code 1: something was undone.
    """
    with client_of(url, token) as client:
        _tell(client.finish(stream), as_json)


def _tell(ticket: Any, as_json: bool) -> None:
    error = None if ticket.error is None else str(ticket.error)
    print_result({"done": ticket.done, "sequence": ticket.sequence, "error": error}, as_json)
    if error is not None:
        raise typer.Exit(1)
