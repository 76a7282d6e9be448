"""``tidegate serve`` and ``tidegate token``: running a server, and giving access to it."""

from __future__ import annotations

import datetime as dt
import logging
import os
import sys
import tomllib
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tidegate.cli.printing import Json, console, need_server, print_json, told
from tidegate.cli.upgrading import Drop
from tidegate.errors import TidegateError
from tidegate.guard.private import check_secret

if TYPE_CHECKING:
    from tidegate.server.settings import Settings
    from tidegate.server.tokens import Tokens

tokens_app = typer.Typer(help="Tokens of a server.", no_args_is_help=True)


def serve(
    where: Annotated[str, typer.Argument(metavar="APP", help="package.module:app, file.py:app or file.sql")],
    data: Annotated[Path | None, typer.Option(help="Keep everything in this directory; without it, in memory.")] = None,
    host: Annotated[
        str, typer.Option(help="Address to listen on. Beyond this machine, tokens are required.")
    ] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port for HTTP; 0 for any free one.")] = 8080,
    pg_port: Annotated[
        int | None, typer.Option(min=0, max=65535, help="Also serve the PostgreSQL protocol here.")
    ] = None,
    tokens: Annotated[Path | None, typer.Option(help="File with tokens (TOML); also TIDEGATE_TOKENS.")] = None,
    pg_passwords: Annotated[
        Path | None, typer.Option(help="File with PostgreSQL users (TOML: name = 'password').")
    ] = None,
    tls_cert: Annotated[Path | None, typer.Option(help="Certificate (chain) for TLS, PEM.")] = None,
    tls_key: Annotated[Path | None, typer.Option(help="Its key, PEM.")] = None,
    allow_host: Annotated[
        list[str] | None, typer.Option(help="A name the server is reached by; may be repeated.")
    ] = None,
    allow_origin: Annotated[list[str] | None, typer.Option(help="Web pages that may use it; may be repeated.")] = None,
    executor: Annotated[str, typer.Option(help="serial, or threads.")] = "serial",
    workers: Annotated[int, typer.Option(min=1, help="Threads, with --executor threads.")] = 4,
    procedure_deadline: Annotated[
        float, typer.Option(min=0, help="Seconds a procedure without deadline_s may run; 0: as long as it likes.")
    ] = 60.0,
    body_limit: Annotated[int, typer.Option(min=1, help="Largest request body, in bytes.")] = 16 << 20,
    rate: Annotated[float, typer.Option(min=1, help="Requests a second for each token.")] = 20_000,
    connections: Annotated[int, typer.Option(min=8, help="HTTP connections at a time.")] = 1_000,
    statement_limit: Annotated[int, typer.Option(min=1, help="Longest SQL text, in bytes.")] = 256 << 10,
    drop: Drop = None,
    reload: Annotated[bool, typer.Option("--reload", help="Start again when a file of the app changes.")] = False,
    log_requests: Annotated[bool, typer.Option(help="Log every request.")] = False,
    json_logs: Annotated[bool, typer.Option("--json-logs", help="Log JSON, one object per line.")] = False,
    as_json: Json = False,
) -> None:
    """Serve an app: HTTP, a console page and, with --pg-port, SQL for any PostgreSQL client.

    Example: tidegate serve shop.py:app --data data --port 8080 --pg-port 5433

    Example: tidegate serve shop.py:app --data data --reload

    Example: tidegate serve shop.py:app --data data --host 0.0.0.0 --tokens tokens.toml --tls-cert c.pem --tls-key k.pem
    """
    need_server()
    if reload:
        from tidegate.cli.reloading import serve_again_and_again

        serve_again_and_again(where, [argument for argument in sys.argv[1:] if argument != "--reload"])
    from tidegate.server.logs import set_up_logs
    from tidegate.server.serve import check_exposed
    from tidegate.server.settings import Settings
    from tidegate.server.tokens import load_tokens

    set_up_logs(json_logs, logging.INFO)
    settings = Settings(
        host=host,
        port=port,
        tls_cert=tls_cert,
        tls_key=tls_key,
        allow_hosts=tuple(allow_host or ()),
        allow_origins=tuple(allow_origin or ()),
        body_bytes=body_limit,
        rate=rate,
        connections=connections,
        statement_bytes=statement_limit,
        log_requests=log_requests,
    )
    known = load_tokens(tokens, os.environ.get("TIDEGATE_TOKENS"))
    check_exposed(settings, known)
    if not settings.loopback and settings.tls_cert is None:
        told.print("[yellow]without TLS, tokens and data can be read in transit; use --tls-cert and --tls-key[/]")
    passwords, tables = _passwords(pg_passwords, pg_port, known)
    _run(
        where,
        data,
        settings,
        known,
        passwords,
        tables,
        pg_port,
        {"executor": executor, "workers": workers, "procedure_deadline_s": procedure_deadline or None},
        {"drop": drop or ()},
        as_json,
    )


def _run(
    where: str,
    data: Path | None,
    settings: Settings,
    known: Tokens,
    passwords: dict[str, str] | None,
    tables: dict[str, list[str]],
    pg_port: int | None,
    config: dict[str, Any],
    opening: dict[str, Any],
    as_json: bool,
) -> None:
    """Open the engine, then the replica, then the server; close them in reverse order."""
    import tidegate
    from tidegate.loading import load_app
    from tidegate.server.serve import serve as run
    from tidegate.server.serve import start_replica
    from tidegate.server.tracing import Tracing

    with ExitStack() as stack:
        app = load_app(where)
        engine = stack.enter_context(tidegate.open(app, data, **opening, **config))
        replica = start_replica(engine, settings, pg_port, passwords, tables)
        if replica is not None:
            stack.callback(replica.stop)
        elif pg_port is not None:
            raise TidegateError("--pg-port needs the query replica (tidegate.replica), which is not installed here")
        address = None if replica is None else replica.pg_address

        def ready(url: str) -> None:
            facts = {"url": url, "app": app.name, "data": None if data is None else str(data), "process": os.getpid()}
            if address is not None:
                facts["postgresql"] = f"postgresql://{address[0]}:{address[1]}/tidegate"
            if as_json:
                print_json(facts)
                return
            console.print(f"[bold]{app.name}[/] at [link={url}]{url}[/] (console, API: /openapi.json)")
            if address is not None:
                console.print(f"SQL at {facts['postgresql']}")
            if data is None:
                told.print("[yellow]in memory: everything is lost when the server stops; --data DIR keeps it[/]")

        tracing = Tracing(app.name) if os.environ.get("OTEL_EXPORTER_OTLP_ENDPOINT") else None
        if tracing is not None:
            stack.callback(tracing.close)
        engine.start()
        run(engine, settings, known, replica, tracing=tracing, on_ready=ready)


def _passwords(
    path: Path | None, pg_port: int | None, known: Tokens
) -> tuple[dict[str, str] | None, dict[str, list[str]]]:
    """PostgreSQL users and their passwords; and for restricted users, the tables they may read."""
    if path is None:
        if pg_port is not None and known.required:
            raise TidegateError(
                "HTTP requires tokens, so the PostgreSQL endpoint must require passwords: pass --pg-passwords FILE "
                "(TOML, a line for each user: name = 'password')"
            )
        return None, {}
    check_secret(path, "passwords")
    try:
        found = tomllib.loads(path.read_text())
    except (OSError, tomllib.TOMLDecodeError) as error:
        raise TidegateError(f"the passwords file {path} can't be read: {error}", path=path) from None
    passwords: dict[str, str] = {}
    tables: dict[str, list[str]] = {}
    for user, entry in found.items():
        match entry:
            case str() if entry:
                passwords[user] = entry
            case {"password": str(password), "tables": [*names]} if password and len(entry) == 2:
                passwords[user], tables[user] = password, [str(name) for name in names]
    if not found or passwords.keys() != found.keys():
        raise TidegateError(
            f"{path}: write a line for each user, name = 'password', or name = {{ password = '…', tables = ['stock'] }}",
            path=path,
        )
    return passwords, tables


@tokens_app.command("new")
def new(
    name: Annotated[str, typer.Option(help="Who it is for; appears in logs.")],
    role: Annotated[list[str], typer.Option(help="push, call, query or admin; may be repeated.")],
    days: Annotated[int | None, typer.Option(min=1, help="Days until it expires.")] = None,
    rate: Annotated[float | None, typer.Option(min=1, help="Requests a second.")] = None,
    stream: Annotated[list[str] | None, typer.Option(help="A stream it may use; may be repeated.")] = None,
    procedure: Annotated[list[str] | None, typer.Option(help="A procedure it may call; may be repeated.")] = None,
    table: Annotated[list[str] | None, typer.Option(help="A table its SQL may read; may be repeated.")] = None,
    subscription: Annotated[list[str] | None, typer.Option(help="A subscription it may use; may be repeated.")] = None,
    source: Annotated[list[str] | None, typer.Option(help="A source it may push as; may be repeated.")] = None,
    file: Annotated[Path | None, typer.Option(help="Add it to this tokens file.")] = None,
    as_json: Json = False,
) -> None:
    """Create a token. It is shown once; the tokens file holds only its hash. In names, * stands for anything.

    Example: tidegate token new --name till-3 --role push --role query --days 365 --file tokens.toml

    Example: tidegate token new --name meters --role push --stream 'meter.*' --source 'meter.*' --file tokens.toml
    """
    from tidegate.server.tokens import digest_of, new_token, parse_tokens

    token = new_token()
    lines = ["[[token]]", f"name = {_quoted(name)}", f'sha256 = "{digest_of(token).hex()}"']
    lines.append(f"roles = [{', '.join(_quoted(one) for one in role)}]")
    if days is not None:
        lines.append(f"expires = {(dt.datetime.now(dt.UTC) + dt.timedelta(days=days)).date()}")
    if rate is not None:
        lines.append(f"rate = {rate:g}")
    scopes = {"streams": stream, "procedures": procedure, "tables": table}
    for field, names in {**scopes, "subscriptions": subscription, "sources": source}.items():
        if names:
            lines.append(f"{field} = [{', '.join(_quoted(one) for one in names)}]")
    entry = "\n".join(lines) + "\n"
    parse_tokens(entry, "the new token")
    if file is not None:
        check_secret(file, "hashes of tokens, and who may do what")
        before = file.read_text() if file.exists() else ""
        parse_tokens(before + "\n" + entry, str(file))
        descriptor = os.open(file, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        with os.fdopen(descriptor, "a") as target:
            target.write(("\n" if before else "") + entry)
    if as_json:
        print_json({"token": token, "entry": entry, "file": None if file is None else str(file)})
        return
    console.print(f"token (shown once): [bold]{token}[/]")
    if file is None:
        console.print("for the tokens file:")
        console.print(entry, markup=False)


def _quoted(text: str) -> str:
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'
