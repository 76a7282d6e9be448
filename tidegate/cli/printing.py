"""What commands share: where they print, and options they have in common."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from tidegate.errors import TidegateError

if TYPE_CHECKING:
    from tidegate.client import Client

console = Console()
told = Console(stderr=True)

Json = Annotated[bool, typer.Option("--json", help="Print JSON instead of text.")]
Url = Annotated[str, typer.Option("--url", envvar="TIDEGATE_URL", help="The server.")]
TokenOption = Annotated[
    str | None,
    typer.Option("--token", envvar="TIDEGATE_TOKEN", help="A token, if the server requires one.", show_envvar=True),
]
LOCAL = "http://127.0.0.1:8080"


def print_json(value: Any) -> None:
    typer.echo(json.dumps(value, default=str))


def print_facts(facts: dict[str, Any], as_json: bool = False) -> None:
    """One JSON object, or a line for each fact."""
    if as_json:
        print_json(facts)
        return
    table = Table(show_header=False, box=None)
    for name, value in facts.items():
        table.add_row(f"[bold]{name}[/]", escape(_shown(value)))
    console.print(table)


def _shown(value: Any) -> str:
    match value:
        case None:
            return "-"
        case bool():
            return "yes" if value else "no"
        case int():
            return f"{value:,}"
        case dict():
            return ", ".join(f"{name} {_shown(part)}" for name, part in value.items()) or "-"
        case list():
            return ", ".join(map(_shown, value)) or "-"
    return str(value)


def measured(run: Callable[..., dict[str, Any]], *given: Any, **options: Any) -> dict[str, Any]:
    """What a benchmark found; it says meanwhile what it is measuring."""
    with told.status("measuring") as status:
        return run(*given, **options, progress=status.update)


def client_of(url: str, token: str | None) -> Client:
    """A client that fails at once when the server does not answer."""
    import tidegate

    return tidegate.connect(url, token, retry_s=0.0, verify=os.environ.get("TIDEGATE_CA") or True)


def parsed(text: str, what: str, advice: str = "") -> Any:
    """JSON from the command line, or an error that says what was expected."""
    try:
        return json.loads(text)
    except ValueError as error:
        raise TidegateError(f"{what} is not JSON ({error}): {text[:200]!r}{advice}") from None


def need_server() -> None:
    """The server's packages are optional; say so before an import fails."""
    from importlib.util import find_spec

    missing = [name for name in ("starlette", "uvicorn", "prometheus_client", "httptools") if find_spec(name) is None]
    if missing:
        raise TidegateError(f"the server needs {', '.join(missing)}; pip install 'tidegate[server]'")
