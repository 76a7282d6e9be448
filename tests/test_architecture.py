"""The architecture, guarded: who imports whom, who may touch what, and how many others a module knows."""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).resolve().parent.parent
FOLDERS = ("storage", "streams", "dataflows", "txn", "connectors", "server")
CORE = ("storage", "streams", "dataflows", "txn")

# each layer may import itself and those before it; what is not named stands at the top: the command line
LAYERS = (
    (
        "tidegate.errors",
        "tidegate.config",
        "tidegate.clock",
        "tidegate.crashpoints",
        "tidegate.forking",
        "tidegate.mutex",
        "tidegate.syncing",
        "tidegate.tuning",
    ),
    ("tidegate.guard",),
    ("tidegate.storage",),
    ("tidegate.streams", "tidegate.windows", "tidegate.wire"),
    ("tidegate.dataflows", "tidegate.loading"),
    ("tidegate.txn",),
    ("tidegate.directory", "tidegate.outside"),
    ("tidegate.engine",),
    ("tidegate.client", "tidegate.connecting", "tidegate.replica"),
    ("tidegate.server",),
    ("tidegate.connectors",),
    ("tidegate.offline", "tidegate.testing"),
    ("tidegate.dialect", "tidegate.shell"),
)
TOP = len(LAYERS)

# imports of what stands above, for annotations and inside functions: there are so many from each room, and no new ones
UPWARD = {"tidegate.directory": 1, "tidegate.outside": 9}
OWN_MODULES = 14  # of tidegate/ itself: what is more belongs into a room

FAN_OUT = 24  # modules of ours that one imports; a file is as long as its idea, and ruff bounds complexity
WIDER = {"tidegate.engine.engine": 49}  # puts everything together

# the clock reads the machine's time; the rest of the core gets time and chance from the transaction
CLOCKS = {
    "time.time",
    "time.time_ns",
    "time.monotonic",
    "time.perf_counter",
    "datetime.now",
    "datetime.utcnow",
    "datetime.today",
    "date.today",
    "uuid.uuid1",
    "uuid.uuid4",
    "os.urandom",
    "secrets.token_bytes",
}
CHANCE = {"random.Random"}  # a seeded generator is the one thing the core may take from random


def source_files() -> Iterator[Path]:
    """Our modules at their real places (the links in tidegate/ are followed by the folders themselves)."""
    for folder in (*FOLDERS, "tidegate"):
        for path in sorted((ROOT / folder).rglob("*.py")):
            inside = path.relative_to(ROOT / folder)
            if folder != "tidegate" or not (ROOT / "tidegate" / inside.parts[0]).is_symlink():
                yield path


FILES = list(source_files())


def module_of(path: Path) -> str:
    parts = path.relative_to(ROOT).with_suffix("").parts
    name = ".".join(parts if parts[0] == "tidegate" else ("tidegate", *parts))
    return name.removesuffix(".__init__")


MODULES = {module_of(path): path for path in FILES}


class Imports(NamedTuple):
    """Modules that a file imports: when it is imported itself, inside functions, and for annotations only."""

    plain: set[str]
    deferred: set[str]
    typing: set[str]

    @property
    def at_run_time(self) -> set[str]:
        return self.plain | self.deferred


@cache
def imports(path: Path) -> Imports:
    found = Imports(set(), set(), set())

    def visit(node: ast.AST, into: set[str]) -> None:
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)) and into is found.plain:
            into = found.deferred
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            for child in node.body:
                visit(child, found.typing)
            for child in node.orelse:
                visit(child, into)
            return
        if isinstance(node, ast.Import):
            into.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert not node.level, f"{path}: relative import"
            assert node.module is not None
            for alias in node.names:
                inner = f"{node.module}.{alias.name}"
                into.add(inner if inner in MODULES else node.module)
        for child in ast.iter_child_nodes(node):
            visit(child, into)

    visit(ast.parse(path.read_text()), found.plain)
    return found


def layer_of(module: str) -> int:
    if module == "tidegate":  # the public names: they need the client's, and everything above may use them
        module = "tidegate.connecting"
    for number, names in enumerate(LAYERS):
        if any(module == name or module.startswith(name + ".") for name in names):
            return number
    return TOP


def room_of(module: str) -> str:
    return ".".join(module.split(".")[:2])


def test_there_is_something_to_guard() -> None:
    assert len(FILES) > 40
    assert {layer_of(module) for module in MODULES} == set(range(TOP + 1))


@pytest.mark.parametrize("path", FILES, ids=module_of)
def test_imports_go_one_way(path: Path) -> None:
    mine = layer_of(module_of(path))
    upward = {name for name in imports(path).plain & set(MODULES) if layer_of(name) > mine}
    assert not upward, f"{module_of(path)} stands below what it imports: {', '.join(sorted(upward))}"


def test_imports_upwards_inside_functions_and_for_annotations_are_counted() -> None:
    found: Counter[str] = Counter()
    for module, path in MODULES.items():
        later = (imports(path).deferred | imports(path).typing) & set(MODULES)
        found[room_of(module)] += sum(layer_of(name) > layer_of(module) for name in later)
    assert dict(+found) == UPWARD, "fewer: write the new number down; more: hand over what is needed instead"


def test_tidegate_itself_is_small() -> None:
    own = sorted(path.name for path in (ROOT / "tidegate").glob("*.py"))
    assert len(own) <= OWN_MODULES, f"{', '.join(own)}: one of them belongs into a room"


def test_nothing_below_the_command_line_imports_connectors() -> None:
    """Users import the one they want; the engine knows only the protocol."""
    inside = "tidegate.connectors"
    users = {
        module
        for module, path in MODULES.items()
        if not module.startswith((inside, "tidegate.cli"))
        and any(name == inside or name.startswith(inside + ".") for name in imports(path).at_run_time)
    }
    assert not users


def test_no_import_cycles() -> None:
    graph = {module: imports(path).plain & set(MODULES) for module, path in MODULES.items()}
    done: set[str] = set()

    def walk(module: str, trail: tuple[str, ...]) -> None:
        assert module not in trail, " → ".join([*trail[trail.index(module) :], module])
        if module not in done:
            for other in sorted(graph[module] - {module}):
                walk(other, (*trail, module))
            done.add(module)

    for module in graph:
        walk(module, ())


@pytest.mark.parametrize(
    ("package", "allowed"),
    [
        ("duckdb", ("tidegate.storage", "tidegate.replica")),  # the replica has a database of its own
        ("pyspark", ("tidegate.streams.spark", "tidegate.connectors")),
        ("typer", ("tidegate.cli", "tidegate.examples", "tidegate.benchmarks")),
    ],
)
def test_a_package_is_used_in_its_place_only(package: str, allowed: tuple[str, ...]) -> None:
    users = {
        module
        for module, path in MODULES.items()
        for name in imports(path).at_run_time
        if name == package or name.startswith(package + ".")
    }
    strangers = {module for module in users if not module.startswith(allowed)}
    assert not strangers, f"{package} is imported in {', '.join(sorted(strangers))}; its place is {', '.join(allowed)}"


def test_nothing_that_is_stored_could_run_when_it_is_read() -> None:
    """Reading a pickle runs what it says. It travels between our own processes, to workers and Spark, and is never stored."""
    shipping = {
        "tidegate.streams.windows.evaluate.processes",
        "tidegate.streams.windows.evaluate.tasks",
        "tidegate.streams.spark.jobs",
    }
    runs = {"pickle", "_pickle", "marshal", "cloudpickle", "dill", "shelve", "joblib"}
    users = {
        module
        for module, path in MODULES.items()
        if any(name.split(".")[0] in runs for name in imports(path).at_run_time)
    }
    assert users == shipping
    assert not [path for path in FILES if "allow_pickle=True" in path.read_text()]


@pytest.mark.parametrize("path", [p for p in FILES if p.relative_to(ROOT).parts[0] in CORE], ids=module_of)
def test_the_core_has_no_clock_and_no_dice(path: Path) -> None:
    tree = ast.parse(path.read_text())
    aliases = {
        alias.asname: alias.name
        for node in ast.walk(tree)
        if isinstance(node, ast.Import)
        for alias in node.names
        if alias.asname is not None
    }
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute):
            head, _, rest = ast.unparse(node).partition(".")
            name = f"{aliases.get(head, head)}.{rest}"
            end = ".".join(name.split(".")[-2:])
            assert end not in CLOCKS, f"{path}:{node.lineno}: {name}; time comes from the clock or the transaction"
            if name.startswith("random.") and name.count(".") == 1:
                assert name in CHANCE, f"{path}:{node.lineno}: {name}; chance comes from the transaction"
        if isinstance(node, ast.ImportFrom):
            for alias in node.names:
                name = f"{node.module}.{alias.name}"
                assert name not in CLOCKS, f"{path}:{node.lineno}: imports {name}"
                assert node.module != "random" or name in CHANCE, f"{path}:{node.lineno}: imports {name}"


def test_a_module_knows_few_others() -> None:
    known = {
        module: len({name for name in imports(path).at_run_time if name in MODULES}) for module, path in MODULES.items()
    }
    many = {module: count for module, count in known.items() if count > WIDER.get(module, FAN_OUT)}
    assert not many, "too much comes together here: give a part of it a module of its own"
    assert all(known[module] > FAN_OUT for module in WIDER), "needs no exception any more"


def test_events_can_be_interrupted() -> None:
    """``threading.Event`` hangs for good after an exception at the wrong instruction; ``mutex.Flag`` does not."""
    users = [path.relative_to(ROOT) for path in FILES if "threading.Event(" in path.read_text()]
    assert not [path for path in users if path.parts[:2] != ("tidegate", "testing")]


def test_nothing_is_called_utils() -> None:
    vague = {"utils", "util", "common", "helpers", "helper", "misc", "manager"}
    assert not {path for path in FILES if path.stem in vague}


def test_every_module_says_what_it_is_for() -> None:
    silent = [module for module, path in MODULES.items() if not ast.get_docstring(ast.parse(path.read_text()))]
    assert not silent


@pytest.mark.parametrize("folder", [*CORE, "connectors", "server"])
def test_folders_are_linked_into_the_package(folder: str) -> None:
    link = ROOT / "tidegate" / folder
    assert link.is_symlink()
    assert link.resolve() == ROOT / folder
