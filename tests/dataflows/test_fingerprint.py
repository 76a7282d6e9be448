"""The fingerprint of an app: every change of what it does is seen and named, nothing else is."""

from __future__ import annotations

import copy
import functools
import json
import operator
import os
import subprocess
import sys
from array import array
from collections import ChainMap
from collections.abc import Callable, Iterator
from pathlib import Path
from types import CodeType, SimpleNamespace
from typing import Any

import pytest

from tidegate import App
from tidegate.dataflows.fingerprint import Fingerprint, difference, fingerprint
from tidegate.errors import DeclarationError
from tidegate.loading import load_app

WARD = '''
"""A ward."""
import functools
import logging
import math
import sys
import threading
from dataclasses import dataclass
from decimal import Decimal

import units
from doses import dose as prescribed
from tidegate import App, window
from tidegate.windows import decomposed, whole

LIMIT = 5
NAMES = {"a": [1, 2], "b": {"x", "y", "z"}}
STEP = Decimal("0.5")
UNUSED = 1
lock = threading.Lock()
log = logging.getLogger(__name__)
state = sys.stderr

app = App("ward", recovery="weak")
app.table("""CREATE TABLE given (id BIGINT PRIMARY KEY, mg DOUBLE NOT NULL CHECK (mg < 100), day DATE);
CREATE INDEX by_day ON given (day)""")
app.stream("asks", "id BIGINT, mg DOUBLE", border=True)
app.stream("asked", "id BIGINT, mg DOUBLE")
app.stream("answers", "yes BOOLEAN", border=True, deadline_s=60.0, default={"yes": False})
statement = app.sql("SELECT count(*) FROM given")


@dataclass
class Rule:
    most: float = 10.0

    def applies(self, mg):
        return mg < self.most


RULE = Rule()


def rounded(mg, digits=1):
    return round(mg, digits)


def traced(function):
    level = 3

    @functools.wraps(function)
    def call(*arguments):
        log.debug("level %s", level)
        return function(*arguments)

    return call


def slope(extent):
    return math.fsum(extent["mg"]) / LIMIT


def last(extent):
    return extent["mg"][-1]


def latest(panes):
    return panes[-1]


@app.procedure(inputs="asks", outputs="asked", windows={"slopes": window("asks", count=4, compute=whole(slope, "s DOUBLE"))})
@traced
def propose(txn, asks):
    """Proposes a dose."""
    with lock:
        state.flush()
        for ask in asks:
            # not more than allowed
            txn.emit("asked", (ask.id, min(rounded(prescribed(ask.mg)), LIMIT)))


@app.procedure(inputs=["asked", "answers"], writes=["given"])
def give(txn, asked, answers):
    import lately

    if RULE.applies(asked[0].mg) and asked[0].mg in {1.0, 2.0, 3.0} | set(NAMES):
        txn.insert("given", (asked[0].id, units.to_mg(asked[0].mg) + lately.more(), None))


@app.procedure(reads=["given"], windows={})
def count(txn):
    return txn.execute(statement).scalar()


@app.procedure(inputs="asks", windows={"lasts": window("asks", count=4, slide=2, compute=decomposed(last, latest, "mg DOUBLE"))})
def watch(txn, asks):
    pass


app.nested("propose", "give", name="dosing")
app.trigger("asked", "INSERT INTO given SELECT id + 1000, mg, NULL FROM asked")
'''
UNITS = """
FACTOR = 1000


def to_mg(g):
    return g * FACTOR


def to_kg(g):
    return g / FACTOR
"""
FILES = {
    "ward.py": WARD,
    "units.py": UNITS,
    "doses.py": "from math import ceil\n\n\ndef dose(mg):\n    return ceil(mg) * factor()\n\n\ndef factor():\n    return 2\n",
    "lately.py": "'Late.'\n\nimport deeper\n\n\ndef more():\n    return deeper.VALUE\n",
    "deeper.py": "VALUE = 1\n",
}


@pytest.fixture
def ward(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., App]]:
    """Loads the app as a new process would, with changes: ``ward(file, before, after)``."""
    names = [name.removesuffix(".py") for name in FILES]
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    folders = iter(range(100))

    def load(file: str = "ward.py", before: str = "", after: str = "") -> App:
        for name in names:
            sys.modules.pop(name, None)
        folder = tmp_path / str(next(folders))
        folder.mkdir()
        for name, text in FILES.items():
            assert name != file or before in text
            (folder / name).write_text(text.replace(before, after) if name == file and before else text)
        return load_app(str(folder / "ward.py"))

    yield load
    for name in names:
        sys.modules.pop(name, None)


def changes(ward: Callable[..., App], file: str, before: str, after: str) -> list[str]:
    old = fingerprint(ward())
    return difference(old, fingerprint(ward(file, before, after)))


@pytest.mark.parametrize(
    ("file", "before", "after", "told"),
    [
        ("ward.py", "min(rounded", "max(rounded", ["procedure propose: function propose() in ward.py changed"]),
        ("ward.py", "LIMIT = 5", "LIMIT = 500", ["procedure propose, window propose.slopes: constant LIMIT in ward.py changed"]),
        ("ward.py", "round(mg, digits)", "round(mg + 1, digits)", ["procedure propose: function rounded() in ward.py changed"]),
        ("ward.py", "digits=1", "digits=2", ["procedure propose: function rounded() in ward.py changed"]),
        ("ward.py", "level = 3", "level = 4", ["procedure propose: variable level around call() in ward.py changed"]),
        ("ward.py", '"z"}', '"zz"}', ["procedure give: constant NAMES in ward.py changed"]),
        ("ward.py", "{1.0, 2.0, 3.0}", "{1.0, 2.0, 4.0}", ["procedure give: function give() in ward.py changed"]),
        ("ward.py", "mg < self.most", "mg <= self.most", ["procedure give: function Rule.applies() in ward.py changed"]),
        ("ward.py", "RULE = Rule()", "RULE = Rule(3.0)", ["procedure give: constant RULE in ward.py changed"]),
        ("ward.py", "count(*)", "sum(id)", ["procedure count: constant statement in ward.py changed"]),
        ("ward.py", "/ LIMIT", "* LIMIT", ["window propose.slopes: function slope() in ward.py changed"]),
        ("ward.py", "panes[-1]", "panes[0]", ["window watch.lasts: function latest() in ward.py changed"]),
        ("units.py", "g * FACTOR", "g * FACTOR * 2", ["procedure give: function to_mg() in units.py changed"]),
        ("units.py", "FACTOR = 1000", "FACTOR = 10", ["procedure give: constant FACTOR in units.py changed"]),
        ("doses.py", "return 2", "return 3", ["procedure propose: function factor() in doses.py changed"]),
        ("doses.py", "import ceil", "import floor as ceil", ["procedure propose: function dose() in doses.py changed"]),
        ("lately.py", "deeper.VALUE", "deeper.VALUE + 1", ["procedure give: module lately.py changed"]),
        ("deeper.py", "VALUE = 1", "VALUE = 2", ["procedure give: module deeper.py changed"]),
        ("ward.py", "SELECT id + 1000", "SELECT id + 2000", ["trigger on asked: was declared as"]),
        ("ward.py", "mg < 100", "mg < 1000", ["table given: was declared as"]),
        ("ward.py", "by_day ON given (day)", "by_day ON given (day, id)", ["table given: was declared as"]),
        ("ward.py", '{"yes": False}', '{"yes": True}', ["stream answers: was declared as"]),
        ("ward.py", "deadline_s=60.0", "deadline_s=6.0", ["stream answers: was declared as"]),
        ("ward.py", 'name="dosing"', 'name="asking"', ["nested transaction dosing: is gone", "nested transaction asking"]),
        ("ward.py", "count=4, slide=2", "count=4, slide=1", ["window watch.lasts: was declared as (count 4 slide 2), now as"]),
        ("ward.py", '"mg DOUBLE")', '"mg BIGINT")', ["window watch.lasts: is declared differently (count 4 slide 2)"]),
        ("ward.py", '"weak"', '"strong"', ["recovery mode: was weak, is strong"]),
        ("ward.py", '"weak")', '"weak", version="2")', ["version: was not declared, is 2"]),
        ("ward.py", "reads=[\"given\"]", "writes=[\"given\"]", ["procedure count: was declared as (reads 'given', "]),
        ("ward.py", "def watch", "def look", ["procedure watch: is gone", "procedure look: is new", "window ", "window "]),
    ],
)  # fmt: skip
def test_every_change_is_named(ward: Callable[..., App], file: str, before: str, after: str, told: list[str]) -> None:
    found = changes(ward, file, before, after)
    assert len(found) == len(told), found
    assert all(line.startswith(start) for line, start in zip(found, told, strict=True)), found


@pytest.mark.parametrize(
    ("file", "before", "after"),
    [
        ("ward.py", "not more than allowed", "at most what is allowed"),
        ("ward.py", "Proposes a dose.", "Says what to give."),
        ("ward.py", "(asked[0].id, units", "(\n            asked[0].id,\n            units"),
        ("ward.py", "UNUSED = 1", "UNUSED = 2"),
        ("units.py", "g / FACTOR", "g / FACTOR / 2"),
        ("ward.py", "compute=whole(", "backend='local', compute=whole("),
        ("lately.py", "Late.", "Very late."),
    ],
)
def test_what_changes_nothing_is_not_seen(ward: Callable[..., App], file: str, before: str, after: str) -> None:
    assert changes(ward, file, before, after) == []


def in_a_process(folder: Path, seed: str, *how: str) -> Fingerprint:
    for name, text in FILES.items():
        (folder / name).write_text(text)
    told = "import json; from tidegate.dataflows.fingerprint import fingerprint; print(json.dumps(fingerprint(app)))"
    if how:
        command = [sys.executable, "-c", f"from tidegate.loading import load_app; app = load_app('ward:app'); {told}"]
    else:
        (folder / "ward.py").write_text(f"{WARD}\n{told}\n")
        command = [sys.executable, "ward.py"]
    environment = {**os.environ, "PYTHONHASHSEED": seed}
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=True)
    found: Fingerprint = json.loads(done.stdout)
    return found


def test_it_is_the_same_in_every_process(tmp_path: Path) -> None:
    """Whatever the order of sets, wherever the app lies, and however it is started."""
    found: list[Any] = []
    for seed, how in (("1", ("loaded",)), ("2", ("loaded",)), ("3", ())):
        (tmp_path / seed).mkdir()
        found.append(in_a_process(tmp_path / seed, seed, *how))
    assert difference(found[0], found[1]) == []
    assert difference(found[0], found[2]) == []
    assert found[0] == found[1] == found[2]


def test_what_the_code_keeps_in_memory_does_not_count() -> None:
    calls: list[int] = []
    app = App("counting")

    @app.procedure()
    def call(txn: Any) -> None:
        calls.append(1)

    before = fingerprint(app)
    calls.append(1)
    assert fingerprint(app) is before

    @app.procedure()
    def other(txn: Any) -> None:
        pass

    assert difference(before, fingerprint(app))[0] == "procedure other: is new"


def test_objects_that_differ_from_run_to_run_are_told_by_their_type() -> None:
    """An address in a text, an open socket, a cycle: none of them may end the reading, or show in it."""

    def make() -> App:
        app = App("odd")
        ring: list[Any] = [1]
        ring.append(ring)
        things = {"object": object(), "ring": ring, "generator": (n for n in range(3)), "bound": ring.append}

        @app.procedure()
        def use(txn: Any) -> int:
            return len(things)

        return app

    one, other = make(), make()
    assert difference(fingerprint(one), fingerprint(other)) == []


def using(value: Any) -> Fingerprint:
    app = App("odd")

    @app.procedure()
    def use(txn: Any) -> Any:
        return value

    return fingerprint(app)


class Bed:
    def __init__(self, mg: int = 1) -> None:
        self.near: list[Bed] = []
        self.mg = mg


@functools.singledispatch
def converted(value: object) -> object:
    return value


@converted.register
def _(value: int) -> object:
    return value + 1


@pytest.mark.parametrize(
    ("value", "other"),
    [
        (operator.attrgetter("mg"), operator.attrgetter("g")),
        (operator.itemgetter(0), operator.itemgetter(-1)),
        (operator.methodcaller("dose", mg=1), operator.methodcaller("dose", mg=2)),
        (range(3), range(4)),
        (slice(1), slice(2)),
        (bytearray(b"a"), bytearray(b"b")),
        (array("d", [1.0]), array("d", [2.0])),
        (ChainMap({"mg": 1}), ChainMap({"mg": 2})),
        (SimpleNamespace(mg=1), SimpleNamespace(mg=2)),
        (compile("mg + 1", "<rule>", "eval"), compile("mg + 2", "<rule>", "eval")),
        (converted.dispatch(object), converted.dispatch(int)),
    ],
    ids=lambda value: type(value).__name__,
)
def test_values_of_the_standard_library_are_told_by_what_is_in_them(value: Any, other: Any) -> None:
    assert difference(using(value), using(copy.deepcopy(value) if not isinstance(value, CodeType) else value)) == []
    assert len(difference(using(value), using(other))) == 1


def test_objects_that_refer_to_one_another_in_every_way_are_read_once() -> None:
    def beds(last: int) -> list[Bed]:
        every = [Bed() for _ in range(60)]
        for bed in every:
            bed.near = every
        every[-1].mg = last
        return every

    def corridor(last: int) -> Bed:
        first = bed = Bed()
        for _ in range(2000):
            bed.near.append(Bed())
            bed = bed.near[0]
        bed.mg = last
        return first

    assert difference(using(beds(5)), using(beds(5))) == difference(using(corridor(5)), using(corridor(5))) == []
    assert difference(using(beds(5)), using(beds(500)))
    assert difference(using(corridor(5)), using(corridor(500)))


def test_functions_that_call_one_another_a_thousand_deep_are_read() -> None:
    def calling(mg: int) -> Any:
        def last() -> int:
            return mg

        function = last
        for _ in range(1000):
            function = next_of(function)
        return function

    def next_of(function: Any) -> Any:
        return lambda: function()

    assert difference(using(calling(5)), using(calling(5))) == []
    assert difference(using(calling(5)), using(calling(500)))


def test_a_function_that_dispatches_is_told_by_what_it_dispatches_to() -> None:
    found = using(converted)["code"]
    assert [label for label in found if label.startswith("function _()")]


def test_names_that_are_looked_up_when_it_runs_may_be_any(ward: Callable[..., App]) -> None:
    """``getattr(units, name)``: everything in the module counts."""
    called = "getattr(units, 'to_' + 'mg')"
    before = fingerprint(ward("ward.py", "units.to_mg", called))
    FILES["units.py"] = UNITS.replace("/ FACTOR", "// FACTOR")
    try:
        after = fingerprint(ward("ward.py", "units.to_mg", called))
    finally:
        FILES["units.py"] = UNITS
    assert difference(before, after) == ["procedure give: module units.py changed"]


def test_a_version_is_text() -> None:
    assert App("app", version="1.4").version == "1.4"
    with pytest.raises(DeclarationError, match=r"version is text such as '1\.4', got 2"):
        App("app", version=2)  # type: ignore[arg-type]
