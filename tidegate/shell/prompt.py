"""The prompt: history, completion, statements over several lines, and a few commands that begin with a dot."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

from prompt_toolkit import PromptSession
from prompt_toolkit.completion import CompleteEvent, Completer, Completion
from prompt_toolkit.document import Document
from prompt_toolkit.history import FileHistory, History, InMemoryHistory
from prompt_toolkit.lexers import Lexer, PygmentsLexer
from rich.console import Console
from rich.table import Table

from tidegate.errors import TidegateError
from tidegate.shell.showing import Form, show
from tidegate.shell.sources import Schema, Source

# fmt: off
KEYWORDS = (
    "SELECT", "FROM", "WHERE", "GROUP", "BY", "ORDER", "HAVING", "LIMIT", "OFFSET", "JOIN", "LEFT", "RIGHT", "FULL",
    "INNER", "OUTER", "CROSS", "ON", "USING", "AS", "OF", "POSITION", "DISTINCT", "COUNT", "SUM", "AVG", "MIN",
    "MAX", "AND", "OR", "NOT", "IN", "IS", "NULL", "LIKE", "ILIKE", "BETWEEN", "CASE", "WHEN", "THEN", "ELSE",
    "END", "WITH", "RECURSIVE", "UNION", "ALL", "EXCEPT", "INTERSECT", "VALUES", "CAST", "EXISTS", "OVER",
    "PARTITION", "ASC", "DESC", "TRUE", "FALSE", "EXPLAIN", "DESCRIBE", "SUMMARIZE",
)
# fmt: on
HELP = {
    ".tables": "tables and system views",
    ".schema [TABLE]": "columns of one, or of all",
    ".mode table|json|csv": "how answers are shown",
    ".timer on|off": "how long each took",
    ".help": "this list",
    ".quit": "leave (or Ctrl-D)",
}


class SqlCompleter(Completer):
    """Tables and columns first, then keywords, then commands at the beginning of a line."""

    def __init__(self, schema: Callable[[], Schema]) -> None:
        self._schema = schema

    def get_completions(self, document: Document, complete_event: CompleteEvent) -> Iterator[Completion]:
        before = document.text_before_cursor
        if before.startswith("."):
            for command in HELP:
                name = command.partition(" ")[0]
                if name.startswith(before):
                    yield Completion(name, -len(before))
            return
        word = _last_word(before)
        if not word:
            return
        for text, kind in self._candidates(word):
            if text.lower().startswith(word.lower()) and text.lower() != word.lower():
                yield Completion(text, -len(word), display_meta=kind)

    def _candidates(self, word: str) -> Iterable[tuple[str, str]]:
        schema = self._schema()
        table, dot, _ = word.rpartition(".")
        if dot and table in schema:
            yield from ((f"{table}.{column}", kind) for column, kind in schema[table])
        yield from ((name, "table") for name in schema)
        seen: dict[str, str] = {}
        for columns in schema.values():
            for column, kind in columns:
                seen.setdefault(column, kind)
        yield from seen.items()
        yield from ((keyword, "") for keyword in KEYWORDS)


def _last_word(text: str) -> str:
    place = len(text)
    while place and (text[place - 1].isalnum() or text[place - 1] in "_."):
        place -= 1
    return text[place:]


def history() -> History:
    """In the user's state directory; in memory when that can't be written."""
    state = Path(os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state") / "tidegate"
    try:
        state.mkdir(parents=True, exist_ok=True)
        return FileHistory(str(state / "sql_history"))
    except OSError:
        return InMemoryHistory()


def _lexer() -> Lexer | None:
    try:
        from pygments.lexers.sql import SqlLexer
    except ImportError:
        return None
    return PygmentsLexer(SqlLexer)


class Shell:
    """Reads statements until the end, runs each, shows its answer or its error."""

    def __init__(self, source: Source, console: Console, form: Form = "table", **session: Any) -> None:
        self._source = source
        self._console = console
        self._form: Form = form
        self._timer = True
        self._known: Schema | None = None
        session.setdefault("history", history())
        self._session: PromptSession[str] = PromptSession(
            completer=SqlCompleter(self._schema), lexer=_lexer(), complete_while_typing=False, **session
        )

    def _schema(self) -> Schema:
        if self._known is None:
            try:
                self._known = self._source.schema()
            except TidegateError:
                self._known = {}
        return self._known

    def run(self) -> None:
        """Until Ctrl-D or .quit."""
        self._console.print(
            f"[dim]{self._source.note}. .help lists commands; statements end with ;[/]", highlight=False
        )
        pending: list[str] = []
        while True:
            try:
                line = self._session.prompt("   ...> " if pending else "tidegate> ")
            except KeyboardInterrupt:
                pending = []
                continue
            except EOFError:
                return
            if not pending and line.strip().startswith("."):
                if not self._command(line.split()):
                    return
                continue
            if line.strip() or pending:
                pending.append(line)
            if pending and pending[-1].rstrip().endswith(";"):
                self._ask("\n".join(pending).strip().rstrip(";"))
                pending = []

    def _ask(self, sql: str) -> None:
        if not sql.strip():
            return
        began = time.monotonic()
        try:
            answer = self._source.query(sql)
        except TidegateError as error:
            self._console.print(f"[red]error:[/] {_escaped(str(error))}")
            return
        except KeyboardInterrupt:
            self._console.print("[dim]cancelled[/]")
            return
        show(answer, self._form, self._console, time.monotonic() - began if self._timer else None)

    def _command(self, words: list[str]) -> bool:
        """Run a command; False when it is the last."""
        match words:
            case [".quit" | ".exit"]:
                return False
            case [".help"]:
                self._listed(HELP.items())
            case [".tables"]:
                self._known = None
                self._listed([(name, f"{len(columns)} columns") for name, columns in self._schema().items()])
            case [".schema", *names]:
                self._describe(names)
            case [".mode", "table" | "json" | "csv" as form]:
                self._form = form
            case [".timer", "on" | "off" as state]:
                self._timer = state == "on"
            case _:
                self._console.print(f"[red]error:[/] {_escaped(' '.join(words))} is not a command; .help lists them")
        return True

    def _describe(self, names: list[str]) -> None:
        schema = self._schema()
        for name in names or schema:
            if name not in schema:
                self._console.print(f"[red]error:[/] there is no table {_escaped(name)}; .tables lists them")
                continue
            self._console.print(f"[bold]{_escaped(name)}[/]")
            self._listed(schema[name])

    def _listed(self, rows: Iterable[tuple[str, str]]) -> None:
        table = Table(box=None, show_header=False)
        for left, right in rows:
            table.add_row(_escaped(left), f"[dim]{_escaped(right)}[/]")
        self._console.print(table)


def _escaped(text: str) -> str:
    from rich.markup import escape

    return escape(text)
