"""``tidegate questions``, ``answer`` and ``reask``: what a server waits for people to decide."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tidegate.cli.printing import LOCAL, Json, TokenOption, Url, client_of, console, parsed
from tidegate.cli.work import print_lossless, print_result
from tidegate.errors import NotAsked, TidegateError

if TYPE_CHECKING:
    from tidegate.client import Client
    from tidegate.engine.questions import Question

Which = Annotated[str, typer.Argument(metavar="QUESTION", help="The question's id, as tidegate questions shows it.")]
Digest = Annotated[str, typer.Argument(help="The digest of what it showed, next to the id.")]


def questions(url: Url = LOCAL, token: TokenOption = None, as_json: Json = False) -> None:
    """What a server waits for people to decide, oldest first.

    Example: tidegate questions

    Example: tidegate questions --json | jq -r '.questions[0] | [.question, .digest] | @tsv'
    """
    from tidegate.client import calls

    with client_of(url, token) as client:
        if as_json:
            print_lossless(client.send(calls.get("/v1/questions")).facts())
            return
        found = client.questions()
    if not found:
        console.print("No decision is pending.")
    for question in found:
        _show(question)


def _show(question: Question) -> None:
    from rich.markup import escape
    from rich.table import Table

    key = "" if question.key is None else f" of key {question.key}"
    left = "" if question.deadline_in_s is None else f", default in {question.deadline_in_s:.0f} s"
    console.print(
        f"[bold]{escape(question.unit)}[/]{escape(key)} asked {question.asked_s:.0f} s ago{left}", highlight=False
    )
    console.print(f"answer on {question.stream}, batch {question.batch_id}", highlight=False)
    for name, batch in question.batches.items():
        shown = Table(*batch.relation.column_names, title=name, title_justify="left")
        for row in batch:
            shown.add_row(*(escape(str(value)) for value in row))
        console.print(shown)
    console.print(f"tidegate answer {question.id} {question.digest} '{{…}}'\n", highlight=False, soft_wrap=True)


def answer(
    which: Which,
    digest: Digest,
    row: Annotated[str, typer.Argument(help="The answer: a row of its stream as a JSON object; the key is filled in.")],
    url: Url = LOCAL,
    token: TokenOption = None,
    as_json: Json = False,
) -> None:
    """Answer a question, if it still shows what it showed.

    Example: tidegate answer 4be1a2c09d3f7e55 0f9c5cf7f3a7f2b0c9b1f2a6f7d3e410 '{"give": true}'

    Exit code 1: it was undone. Exit code 2: it was not accepted: the question is not open, or shows something else now.
    """
    values = parsed(row, "an answer")
    if not isinstance(values, dict):
        raise TidegateError(f'an answer is a JSON object, such as {{"give": true}}; got {row[:200]}')
    with client_of(url, token) as client:
        ticket = client.answer(replace(_find(client, which), digest=digest), **values)
    facts: dict[str, Any] = {"done": ticket.done, "duplicate": ticket.duplicate}
    print_result({**facts, "error": None if ticket.error is None else str(ticket.error)}, as_json)
    if ticket.error is not None:
        raise typer.Exit(1)


def reask(which: Which, digest: Digest, url: Url = LOCAL, token: TokenOption = None, as_json: Json = False) -> None:
    """Withdraw a question: what led to it runs again, with the code in force now, and asks anew.

    Example: tidegate reask 4be1a2c09d3f7e55 0f9c5cf7f3a7f2b0c9b1f2a6f7d3e410

    Exit code 2: the question is not open, or shows something else now.
    """
    with client_of(url, token) as client:
        client.reask(replace(_find(client, which), digest=digest))
    print_result({"reasked": which}, as_json)


def _find(client: Client, which: str) -> Question:
    found = client.questions()
    for question in found:
        if question.id == which:
            return question
    named = ", ".join(q.id for q in found[:5]) or "none"
    raise NotAsked(
        f"question {which} is not open: it was never asked, or it was answered. Open are: {named}", question=which
    )
