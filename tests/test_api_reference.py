"""docs/reference/api.md says what the code does: every name on it exists, with these parameters and defaults.

The page is read by its headings and by the first column of its tables. A heading names functions or a class; under it,
a table headed ``method`` or ``member`` lists what the class has, one headed ``argument`` parameters of the function.
A default written ``…`` is one that can't be written down; a lone ``…`` stands for parameters listed elsewhere.
"""

from __future__ import annotations

import ast
import dataclasses
import importlib
import inspect
import re
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import pytest

import tidegate
from tidegate.engine.feeding import Feeding
from tidegate.outside.delivery import start_delivery
from tidegate.outside.ingestion import ingest

REFERENCE = Path(__file__).resolve().parent.parent / "docs" / "reference"
PLACES = {  # of classes that users get, and do not import
    "Batcher": "tidegate.engine.batcher",
    "Client": "tidegate.client.blocking",
    "Delivery": "tidegate.outside.delivery",
    "DurableSubscription": "tidegate.outside.outbox",
    "Ingestion": "tidegate.outside.ingestion",
    "Pipeline": "tidegate.connectors.spark.pipeline",
    "Result": "tidegate.engine.result",
    "Subscription": "tidegate.outside.subscription",
}
FORWARDED: dict[str, Callable[..., Any]] = {  # where the **keywords of these go
    "Engine.deliver": start_delivery,
    "Engine.feed": Feeding.feed,
    "Engine.ingest": ingest,
}
TRAPS = {"App.procedure": "bare"}  # a parameter that is there to be refused with a better text than Python's
REQUIRED = inspect.Parameter.empty
OPERATORS = {"await ticket": "__await__"}
# What other rooms of tidegate call on these, and users do not. A new method is documented, or named here.
INTERNAL = {
    "App": {"statement"},
    "Batch": set[str](),
    "Engine": {"check_emitted", "check_followed", "check_open"},
    "Ticket": {"arrive", "event", "expect", "listen", "resume", "stop"},
    "Transaction": {
        "default", "expired_error", "fire", "forget_written_index", "index_keys", "inputs", "insert_stored",
        "point", "procedure", "put", "put_all", "put_checked", "put_out", "restart", "rows_of", "seal", "undeclared",
        "visible", "writable", "written_index",
    },
}  # fmt: skip


class Parameter(NamedTuple):
    name: str
    kind: str
    default: Any


class Entry(NamedTuple):
    """Something written in code on the page, and what it is said to belong to."""

    owner: str
    written: str

    @property
    def name(self) -> str:
        return OPERATORS.get(self.written) or re.split(r"[( ]", self.written, maxsplit=1)[0].split(".")[-1]

    @property
    def parameters(self) -> str | None:
        found = re.fullmatch(r"[\w.]+\((.*)\)(?: -> \S+)?", self.written)
        return None if found is None else found[1]

    @property
    def returned(self) -> str | None:
        return self.written.rpartition(" -> ")[2] if " -> " in self.written else None


def spans(text: str) -> list[str]:
    return re.findall(r"`([^`]+)`", text)


def tables(text: str) -> Iterator[tuple[str, list[str]]]:
    """The head and the first column of each table."""
    for table in re.findall(r"(?:^\|.*\n)+", text, re.MULTILINE):
        head, _, *cells = (line.split(" | ")[0].removeprefix("| ") for line in table.splitlines())
        yield head, cells


def read(page: str) -> Iterator[Entry]:
    for heading, body in re.findall(r"^## (.*)\n((?:(?!^## ).*\n)*)", (REFERENCE / page).read_text(), re.MULTILINE):
        titles = spans(heading)
        paths = [title.split("(")[0] for title in titles]
        for title, path in zip(titles, paths, strict=True):
            if path not in ("tidegate.testing", "tidegate.windows"):
                yield Entry(owner_of(path), title)
        for head, cells in tables(body):
            owner = (*spans(head), *paths, "")[0]
            for written in (span for cell in cells for span in spans(cell)):
                if head in ("method", "member"):
                    yield Entry(f"{owner_of(owner)}.{owner}", written)
                elif head == "argument":
                    yield Entry(f"{owner_of(owner)}.{owner}", f"argument {written}")
                elif head.startswith("name"):
                    yield Entry(owner, written)
                elif head == "sink":
                    yield Entry(written.split("(")[0].rpartition(".")[0], written)
        for method, listed in re.findall(r"^Arguments of `(\w+)`:\n\n((?:[- ] .*\n)+)", body, re.MULTILINE):
            for names in re.findall(r"^- (.*?):", listed, re.MULTILINE):
                yield from (Entry(f"tidegate.{paths[0]}.{method}", f"argument {name}") for name in spans(names))


def owner_of(name: str) -> str:
    """The module of something in a heading."""
    return PLACES.get(name, "tidegate")


def resolve(path: str) -> Any:
    """A module, or something in one."""
    parts = path.split(".")
    for end in range(len(parts), 0, -1):
        try:
            found = importlib.import_module(".".join(parts[:end]))
        except ModuleNotFoundError:
            continue
        for name in parts[end:]:
            found = getattr(found, name)
        return found
    raise LookupError(path)


def has(owner: Any, name: str) -> bool:
    return hasattr(owner, name) or (
        inspect.isclass(owner)
        and any(
            re.search(rf"\bself\.{name}\b(:[^=\n]+)?( =|$)", inspect.getsource(c), re.M) for c in owner.__mro__[:-1]
        )
    )


def written_parameters(text: str) -> tuple[list[Parameter], bool]:
    """The parameters as they stand on the page, and whether those are all."""
    all_of_them = not re.search(r"(^|, )…$", text)
    text = re.sub(r"(^|, )(\*, )?…$", "", text).replace("=…", "=...")
    definition = ast.parse(f"def f({text}): pass").body[0]
    assert isinstance(definition, ast.FunctionDef)
    given = definition.args
    ordered = [*given.posonlyargs, *given.args]
    defaults = [REQUIRED] * (len(ordered) - len(given.defaults)) + [*map(ast.literal_eval, given.defaults)]
    kinds = ["POSITIONAL_ONLY"] * len(given.posonlyargs) + ["POSITIONAL_OR_KEYWORD"] * len(given.args)
    found = [Parameter(a.arg, kind, d) for a, kind, d in zip(ordered, kinds, defaults, strict=True)]
    if given.vararg is not None:
        found.append(Parameter(given.vararg.arg, "VAR_POSITIONAL", REQUIRED))
    for argument, default in zip(given.kwonlyargs, given.kw_defaults, strict=True):
        found.append(
            Parameter(argument.arg, "KEYWORD_ONLY", REQUIRED if default is None else ast.literal_eval(default))
        )
    if given.kwarg is not None:
        found.append(Parameter(given.kwarg.arg, "VAR_KEYWORD", REQUIRED))
    return found, all_of_them


def real_parameters(owner: Any, name: str) -> list[Parameter]:
    function = getattr(owner, name)
    path = f"{owner.__name__}.{name}"
    found = [
        Parameter(p.name, p.kind.name, writable(p.default))
        for p in inspect.signature(function).parameters.values()
        if p.name != TRAPS.get(path)
    ]
    if inspect.isclass(owner) and not isinstance(inspect.getattr_static(owner, name), (staticmethod, classmethod)):
        found = found[1:]  # self
    if path in FORWARDED:
        assert found.pop().kind == "VAR_KEYWORD"
        known = {p.name for p in found} | {"self", "engine", "target"}
        passed_on = inspect.signature(FORWARDED[path]).parameters.values()
        found += [Parameter(p.name, "KEYWORD_ONLY", writable(p.default)) for p in passed_on if p.name not in known]
    return found


def writable(default: Any) -> Any:
    """A default as it would be written on the page: ``…`` for what is no literal."""
    if default is REQUIRED:
        return default
    try:
        return ast.literal_eval(repr(default))
    except (SyntaxError, ValueError):
        return ...


ENTRIES = list(read("api.md"))


@pytest.mark.parametrize("entry", ENTRIES, ids=lambda entry: f"{entry.owner.split('.')[-1]}.{entry.written}")
def test_what_the_page_names_is_there_as_written(entry: Entry) -> None:
    owner = resolve(entry.owner)
    if entry.written.startswith("argument "):
        assert entry.written.removeprefix("argument ") in inspect.signature(owner).parameters
        return
    assert has(owner, entry.name), f"{entry.owner} has no {entry.name}"
    if entry.parameters is not None:
        written, all_of_them = written_parameters(entry.parameters)
        real = real_parameters(owner, entry.name)
        assert written == (real if all_of_them else real[: len(written)])
    elif inspect.isfunction(getattr(owner, entry.name, None)) and entry.written not in OPERATORS:
        pytest.fail(f"{entry.name} is called: write its parameters")
    if entry.returned is not None:
        real_type = str(inspect.signature(getattr(owner, entry.name)).return_annotation)
        assert entry.returned in (real_type, real_type.removesuffix(" | None")) or real_type == "Any"


def test_the_page_was_read_at_all() -> None:
    assert len([e for e in ENTRIES if e.parameters is not None]) > 80
    assert Entry("tidegate.Engine", "step() -> bool") in ENTRIES
    assert Entry("tidegate.App.stream", "argument border") in ENTRIES


def test_every_public_name_is_on_a_page() -> None:
    errors = {name for head, cells in page_tables("errors.md") if head == "error" for c in cells for name in spans(c)}
    documented = {entry.name for entry in ENTRIES if entry.owner == "tidegate"}
    assert not set(tidegate.__all__) - documented - errors


@pytest.mark.parametrize("kind", sorted(INTERNAL))
def test_every_public_method_is_on_the_page(kind: str) -> None:
    documented = {entry.name for entry in ENTRIES if entry.owner == f"tidegate.{kind}"}
    there = {
        name
        for name, member in inspect.getmembers(getattr(tidegate, kind))
        if not name.startswith("_") and (inspect.isfunction(member) or isinstance(member, property))
    }
    assert not there - documented - INTERNAL[kind], "document them in api.md, or list them as INTERNAL here"
    assert not INTERNAL[kind] - there, "INTERNAL names what is gone"
    assert not INTERNAL[kind] & documented, "api.md names what is INTERNAL"


@cache
def page_tables(page: str) -> list[tuple[str, list[str]]]:
    return list(tables((REFERENCE / page).read_text()))


def test_the_settings_have_the_defaults_on_their_page() -> None:
    rows = re.findall(r"^\| `(\w+)` \| (.*?) \|", (REFERENCE / "config.md").read_text(), re.MULTILINE)
    written = {name: ast.literal_eval(default.strip("`").replace(",", "")) for name, default in rows}
    assert written == {field.name: field.default for field in dataclasses.fields(tidegate.Config)}


def test_every_parameter_of_a_window_is_on_its_page() -> None:
    cells = [cell for head, cells in page_tables("windows.md") if head == "parameter" for cell in cells]
    written = {name.split("=")[0] for cell in cells for span in spans(cell) for name in span.split(", ")}
    assert set(inspect.signature(tidegate.window).parameters) - written == {"stream"}


@pytest.mark.parametrize(
    ("written", "real"),
    [
        ("subscribe(stream, *, capacity=10)", "a default"),
        ("subscribe(stream, capacity=100_000)", "a kind"),
        ("subscribe(stream)", "a parameter that is left out"),
        ("subscribe(name, *, capacity=100_000)", "a name"),
        ("follow(stream)", "no such method"),
        ("subscribe", "no parameters"),
        ("subscribe(stream, *, capacity=100_000) -> Delivery", "another result"),
    ],
)
def test_a_wrong_page_would_be_noticed(written: str, real: str) -> None:
    with pytest.raises((AssertionError, pytest.fail.Exception)):
        test_what_the_page_names_is_there_as_written(Entry("tidegate.Engine", written))
