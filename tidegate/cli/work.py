"""``tidegate run``, ``push`` and ``call``: sending work from a terminal or a pipe."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tidegate.cli import completion
from tidegate.cli.printing import LOCAL, Json, TokenOption, Url, client_of, console, parsed, print_json, told
from tidegate.errors import TidegateError

if TYPE_CHECKING:
    from tidegate.engine.engine import Engine

Input = Annotated[str, typer.Option("--input", "-i", help="A file with one JSON value per line; - for standard input.")]


def run(
    where: Annotated[str, typer.Argument(metavar="APP", help="package.module:app or file.py:app")],
    data: Annotated[Path | None, typer.Option(help="The engine's directory; without it, in memory.")] = None,
    stream: Annotated[str | None, typer.Option(help="The border stream that lines are rows of.")] = None,
    source: Input = "-",
    follow: Annotated[list[str] | None, typer.Option(help="Print the batches of this stream; may be repeated.")] = None,
    size: Annotated[int, typer.Option(min=1, help="Rows per batch, with --stream.")] = 1,
    as_json: Json = False,
) -> None:
    """Run an app over lines of JSON.

    With --stream a line is a row. Without, a line says what to do: {"stream": "orders", "rows": [...], "batch_id": 7} or
    {"call": "deliver", "arguments": ["tea", 10]}.

    Example: tidegate run shop.py:app --stream orders --follow shipments < orders.ndjson

    Exit code 1: something was undone.
    """
    import tidegate
    from tidegate.loading import load_app
    from tidegate.wire import RowWire, batch_facts

    app = load_app(where)
    counts = {"lines": 0, "undone": 0}
    with tidegate.open(app, data) as engine:
        following = [engine.subscribe(name) for name in follow or ()]
        wires = {s.name: RowWire(s.relation) for s in app.streams.values()}

        def show() -> None:
            for subscription in following:
                for batch in subscription:
                    print_lossless(batch_facts(wires[batch.stream], batch))

        for action in _actions(_lines(source), stream, size):
            counts["lines"] += 1
            error = _do(engine, wires, action)
            show()
            if error is not None:
                counts["undone"] += 1
                told.print(f"[red]{error}[/]", highlight=False)
    facts = {**counts, "sequence": engine.sequence, "waiting": len(list(engine.scheduler.waiting()))}
    if as_json:
        print_json(facts)
    else:
        told.print(", ".join(f"{name} {value}" for name, value in facts.items()), highlight=False)
    if counts["undone"]:
        raise typer.Exit(1)


def print_lossless(value: Any) -> None:
    from tidegate.wire import encode

    typer.echo(encode(value).decode())


def _actions(lines: Iterator[Any], stream: str | None, size: int) -> Iterator[dict[str, Any]]:
    if stream is None:
        for line in lines:
            if not isinstance(line, dict) or not ("stream" in line or "call" in line):
                raise TidegateError(f'a line is {{"stream": …, "rows": […]}} or {{"call": …}}, got {str(line)[:200]}')
            yield line
        return
    rows: list[Any] = []
    for row in lines:
        rows.append(row)
        if len(rows) == size:
            yield {"stream": stream, "rows": rows}
            rows = []
    if rows:
        yield {"stream": stream, "rows": rows}


def _do(engine: Engine, wires: dict[str, Any], action: dict[str, Any]) -> TidegateError | None:
    if "call" in action:
        ticket = engine.submit(action["call"], *action.get("arguments", []), **action.get("named", {}))
    else:
        engine.acceptance.border(action["stream"])
        rows = wires[action["stream"]].read(action.get("rows", []))
        ticket = engine.push(action["stream"], rows, action.get("batch_id"))
    engine.run_until_idle()
    return ticket.error


def _lines(source: str) -> Iterator[Any]:
    file = sys.stdin if source == "-" else _open(source)
    with file:
        for number, line in enumerate(file, 1):
            if line.strip():
                yield parsed(line, f"line {number}")


def _open(source: str) -> Any:
    try:
        return open(source, encoding="utf-8")
    except OSError as error:
        raise TidegateError(f"can't read {source}: {error.strerror}") from None


def push(
    stream: Annotated[str, typer.Argument(help="A border stream.", autocompletion=completion.border_streams)],
    rows: Annotated[list[str] | None, typer.Argument(help="Rows as JSON, objects or lists.")] = None,
    source: Input = "",
    batch_id: Annotated[
        int | None, typer.Option(help="Ids ascend; pushing the same batch again changes nothing.")
    ] = None,
    size: Annotated[int | None, typer.Option(min=1, help="With --input: rows per batch.")] = None,
    url: Url = LOCAL,
    token: TokenOption = None,
    as_json: Json = False,
) -> None:
    """Push rows to a server, as one batch.

    Example: tidegate push orders '{"item": "tea", "pieces": 4}'

    Example: tidegate push orders --input orders.ndjson --size 100

    Exit code 1: the batch was undone.
    """
    with client_of(url, token) as client:
        if source and size is not None:
            print_result({"batches": client.feed(stream, _lines(source), size=size)}, as_json)
            return
        given = list(_lines(source)) if source else [parsed(row, "a row") for row in rows or ()]
        if not given:
            raise TidegateError("nothing to push: give rows, or --input FILE")
        ticket = client.push(stream, given, batch_id)
        facts = {
            "done": ticket.done,
            "batch_ids": ticket.batch_ids,
            "duplicate": ticket.duplicate,
            "sequence": ticket.sequence,
            "error": None if ticket.error is None else str(ticket.error),
        }
    print_result(facts, as_json)
    if ticket.error is not None:
        raise typer.Exit(1)


def call(
    procedure: Annotated[str, typer.Argument(help="An OLTP procedure.", autocompletion=completion.called_procedures)],
    arguments: Annotated[list[str] | None, typer.Argument(help="Arguments: JSON, or plain text.")] = None,
    url: Url = LOCAL,
    token: TokenOption = None,
    as_json: Json = False,
) -> None:
    """Call a procedure at a server.

    Example: tidegate call deliver tea 10

    Exit code 1: the call was undone.
    """
    from tidegate.errors import Aborted, ProcedureFailed

    with client_of(url, token) as client:
        try:
            value = client.call(procedure, *(_argument(text) for text in arguments or ()))
        except (Aborted, ProcedureFailed) as error:
            told.print(f"[red]{error}[/]", highlight=False)
            raise typer.Exit(1) from None
    if as_json:
        print_lossless({"value": value})
    elif value is not None:
        console.print(value)


def _argument(text: str) -> Any:
    try:
        return parsed(text, "an argument")
    except TidegateError:
        return text


def print_result(facts: dict[str, Any], as_json: bool) -> None:
    if as_json:
        print_json(facts)
        return
    for name, value in facts.items():
        if value is not None:
            console.print(f"[bold]{name}[/] {value}", highlight=False)
