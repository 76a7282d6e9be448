"""``tidegate run``, ``push`` and ``call``: sending work from a terminal or a pipe."""

from __future__ import annotations

import csv
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.markup import escape

from tidegate.cli import completion
from tidegate.cli.printing import LOCAL, Json, TokenOption, Url, client_of, console, parsed, print_json, told
from tidegate.errors import DataError, TidegateError, unknown

if TYPE_CHECKING:
    from tidegate.engine.engine import Engine
    from tidegate.storage.schema import Relation

Input = Annotated[
    str, typer.Option("--input", "-i", help="A file of JSON lines, or of CSV with a header; - for standard input.")
]
Csv = Annotated[bool, typer.Option("--csv", help="The input is CSV with a header, whatever its name.")]


def run(
    where: Annotated[str, typer.Argument(metavar="APP", help="package.module:app, file.py:app or file.sql")],
    data: Annotated[Path | None, typer.Option(help="The engine's directory; without it, in memory.")] = None,
    stream: Annotated[str | None, typer.Option(help="The border stream that lines are rows of.")] = None,
    source: Input = "-",
    follow: Annotated[list[str] | None, typer.Option(help="Print the batches of this stream; may be repeated.")] = None,
    size: Annotated[int, typer.Option(min=1, help="Rows per batch, with --stream.")] = 1,
    as_csv: Csv = False,
    finish: Annotated[
        bool | None,
        typer.Option(
            help="At the end of the input, finish all streams, so that open windows fire. By default in memory only: with "
            "--data the streams can go on in the next run."
        ),
    ] = None,
    as_json: Json = False,
) -> None:
    """Run an app over lines of JSON, or over CSV.

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

        read_csv = as_csv or source.endswith(".csv")
        if read_csv and stream is None:
            raise TidegateError("CSV holds the rows of one stream: name it with --stream")
        if stream is not None:
            engine.acceptance.border(stream)
        lines = _csv_rows(source, app.streams[stream].relation) if read_csv and stream else _lines(source)
        for action in _actions(lines, stream, size):
            counts["lines"] += 1
            error = _do(engine, wires, action)
            show()
            if error is not None:
                counts["undone"] += 1
                told.print(f"[red]{escape(str(error))}[/]", highlight=False)
        if data is None if finish is None else finish:
            error = finish_all(engine, finish is not None)
            engine.run_until_idle()
            show()
            if error is not None:
                counts["undone"] += 1
                told.print(f"[red]{escape(str(error))}[/]", highlight=False)
    facts = {**counts, "sequence": engine.sequence, "waiting": len(list(engine.scheduler.waiting()))}
    if as_json:
        print_json(facts)
    else:
        told.print(", ".join(f"{name} {value}" for name, value in facts.items()), highlight=False)
    if counts["undone"]:
        raise typer.Exit(1)


def finish_all(engine: Engine, asked: bool) -> TidegateError | None:
    """Finish all streams. Unless it was asked for, an app whose time does not pass everywhere is told of, no more."""
    try:
        return engine.finish().error
    except TidegateError as error:
        if asked:
            raise
        told.print(f"[yellow]open windows stay open: {escape(str(error))}[/]", highlight=False)
        return None


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
        arguments, named = action.get("arguments", []), action.get("named", {})
        if action["call"] in engine.graph.oltp:
            arguments, named = engine.runtime.programs[action["call"]].arguments.read(arguments, named)
        ticket = engine.submit(action["call"], *arguments, **named)
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
                yield parsed(line, f"line {number}", "; for CSV, add --csv")


def _csv_rows(source: str, relation: Relation) -> Iterator[dict[str, Any]]:
    """The rows of a CSV file as a stream takes them. An empty field is NULL."""
    from tidegate.connectors.shared.reading import from_text

    columns = {column.name: column for column in relation.columns}
    with sys.stdin if source == "-" else _open(source, newline="") as file:
        lines = csv.reader(file, strict=True)
        try:
            header = [name.strip().removeprefix("\ufeff") for name in next(lines, [])]
            if wrong := [name for name in header if name not in columns]:
                raise TidegateError(
                    f"the header of the CSV has {', '.join(map(repr, wrong))}, but {relation.name} has the columns "
                    f"{', '.join(columns)}; the first line names the columns"
                )
            for values in lines:
                if values and len(values) != len(header):
                    raise TidegateError(f"line {lines.line_num} has {len(values)} fields, the header {len(header)}")
                named = zip(header, values, strict=False)
                yield {name: from_text(columns[name], value or None) for name, value in named}
        except (csv.Error, DataError) as error:
            raise TidegateError(f"line {lines.line_num} of the CSV: {error}") from None


def _open(source: str, newline: str | None = None) -> Any:
    try:
        return open(source, encoding="utf-8", newline=newline)
    except OSError as error:
        raise TidegateError(f"can't read {source}: {error.strerror}") from None


def push(
    stream: Annotated[str, typer.Argument(help="A border stream.", autocompletion=completion.border_streams)],
    rows: Annotated[
        list[str] | None, typer.Argument(help="Rows as JSON, objects or lists; without any, standard input is read.")
    ] = None,
    source: Input = "",
    batch_id: Annotated[
        int | None, typer.Option(help="Ids ascend; pushing the same batch again changes nothing.")
    ] = None,
    size: Annotated[int | None, typer.Option(min=1, help="Rows per batch; without it, all are one batch.")] = None,
    as_csv: Csv = False,
    url: Url = LOCAL,
    token: TokenOption = None,
    as_json: Json = False,
) -> None:
    """Push rows to a server, as one batch or, with --size, as many.

    Example: tidegate push orders '{"item": "tea", "pieces": 4}'

    Example: tidegate push orders --size 100 < orders.ndjson

    Example: tidegate push orders --input orders.csv --size 100

    Exit code 1: the batch was undone.
    """
    if rows and source:
        raise TidegateError("give rows, or --input FILE, not both")
    if not rows and not source:
        if sys.stdin.isatty():
            raise TidegateError("nothing to push: give rows, --input FILE, or pipe JSON lines in")
        source = "-"
    with client_of(url, token) as client:
        given: Iterable[Any]
        if rows:
            given = [parsed(row, "a row", """; write each as '["tea", 4]' or '{"item": "tea"}'""") for row in rows]
        elif as_csv or source.endswith(".csv"):
            wires = client.schemas().wires
            if stream not in wires:
                raise unknown("push", "border stream", stream, wires)
            given = _csv_rows(source, wires[stream].relation)
        else:
            given = _lines(source)
        if size is not None:
            fed = client.feed(stream, given, size=size)
            print_result({**vars(fed), "committed": fed.committed}, as_json)
            if fed.undone:
                raise typer.Exit(1)
            return
        if not (given := list(given)):
            raise TidegateError("nothing to push: the input is empty")
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
    arguments: Annotated[
        list[str] | None, typer.Argument(help="Arguments, as the procedure's annotations say; otherwise JSON or text.")
    ] = None,
    named: Annotated[list[str] | None, typer.Option(help="NAME=VALUE, for an argument by name; repeatable.")] = None,
    url: Url = LOCAL,
    token: TokenOption = None,
    as_json: Json = False,
) -> None:
    """Call a procedure at a server.

    Example: tidegate call deliver tea 10

    Example: tidegate call transfer alice bob --named amount=12.50 --named due=2026-01-31

    Exit code 1: the call was undone.
    """
    from tidegate.client.blocking import RemoteTicket
    from tidegate.client.calls import submit_texts
    from tidegate.errors import Aborted, ProcedureFailed

    by_name = dict(_named(text) for text in named or ())
    with client_of(url, token) as client:
        try:
            facts = client.send(submit_texts(procedure, arguments or [], by_name)).facts()
            value = RemoteTicket(client, facts).result(30.0)
        except (Aborted, ProcedureFailed) as error:
            told.print(f"[red]{escape(str(error))}[/]", highlight=False)
            raise typer.Exit(1) from None
    if as_json:
        print_lossless({"value": value})
    elif value is not None:
        console.print(value, markup=False)


def _named(text: str) -> tuple[str, str]:
    name, found, value = text.partition("=")
    if not found or not name.isidentifier():
        raise TidegateError(f"--named takes NAME=VALUE, got {text!r}")
    return name, value


def print_result(facts: dict[str, Any], as_json: bool) -> None:
    if as_json:
        print_json(facts)
        return
    for name, value in facts.items():
        if value is not None:
            console.print(f"[bold]{name}[/] {escape(str(value))}", highlight=False)
