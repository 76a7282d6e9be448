"""Every pattern gives the same results, wherever it runs; failures; what a plan says about itself."""

from __future__ import annotations

import os
import signal
import struct
import subprocess
import sys
import threading
import types
import xml.etree.ElementTree as ET
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import plan_cases
import pytest
from plan_cases import (
    DECOMPOSED,
    FUNCTIONS,
    KINDS,
    NAMED,
    PATTERNS,
    RELATION,
    WHOLE,
    columns_of,
    extents_of,
    panes_of,
    spec_of,
)

from tidegate.errors import DeclarationError
from tidegate.streams.spark.backend import SparkBackend
from tidegate.streams.spark.session import shared_spark
from tidegate.streams.windows.declare.functions import Decomposed, Extent, Whole
from tidegate.streams.windows.declare.patterns import KeyFarm, PaneFarm, Sequential, WindowFarm, WindowMapReduce
from tidegate.streams.windows.evaluate.local import HERE, PROCESSES, THREADS, LocalBackend
from tidegate.streams.windows.evaluate.plan import Plan
from tidegate.streams.windows.evaluate.tasks import PART_ROWS


@pytest.fixture(scope="module")
def processes() -> Iterator[LocalBackend]:
    backend = LocalBackend(only=PROCESSES)
    yield backend
    backend.close()


@pytest.fixture(scope="module")
def threads() -> Iterator[LocalBackend]:
    backend = LocalBackend(only=THREADS)
    yield backend
    backend.close()


@pytest.fixture(scope="module")
def spark_tasks(spark: Any) -> SparkBackend:
    backend = SparkBackend(shared_spark(spark), LocalBackend(), only=True)
    backend.warm()
    return backend


def bits(value: Any) -> Any:
    """A value such that equal means the same bits."""
    if isinstance(value, float):
        return struct.pack("<d", value)
    return tuple(map(bits, value)) if isinstance(value, (tuple, list)) else value


def in_parts(function: Any, parts: int, extents: list[Extent]) -> list[Any]:
    """Each window in this many parts of as many rows each, worked out plainly."""
    found = []
    for extent in extents:
        bounds = [i * len(extent) // parts for i in range(parts + 1)]
        cut = [extent.columns.slice(low, high) for low, high in pairwise(bounds) if low < high]
        found.append(function.combine([function.pane(Extent(0, extent.key, 0, 0, columns)) for columns in cut]))
    return found


def results(plan: Plan, extents: list[Extent]) -> list[Any]:
    """As window states do it: pane by pane, or whole windows."""
    if not plan.by_pane:
        return plan.whole(extents)
    panes, places = panes_of(extents, plan.spec)
    kept = plan.panes(panes)
    nothing = columns_of("ann", 0)
    labels = [Extent(e.number, e.key, e.start, e.end, nothing) for e in extents]
    return plan.combine(labels, [[kept[i] for i in window] for window in places])


BACKENDS = [HERE, THREADS, PROCESSES, pytest.param("spark_tasks", marks=pytest.mark.xdist_group("spark"))]


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("kind", KINDS)
def test_every_pattern_gives_the_same(kind: str, backend: str, request: pytest.FixtureRequest) -> None:
    where = LocalBackend() if backend == HERE else request.getfixturevalue(backend)
    compared = 0
    for name, function in FUNCTIONS.items():
        extents = extents_of(spec_of(kind, function))
        alone = Plan(spec_of(kind, function, Sequential()), RELATION, LocalBackend(only=HERE))
        expected = bits(results(alone, extents))
        assert len(expected) == len(extents) >= 15
        for pattern in PATTERNS:
            spec = spec_of(kind, function, pattern)
            try:
                plan = Plan(spec, RELATION, where)
            except DeclarationError:
                continue
            wanted = expected
            if isinstance(pattern.core, WindowMapReduce):
                wanted = bits(in_parts(function, pattern.core.parts, extents))
            assert bits(results(plan, extents)) == wanted, (name, pattern)
            compared += 1
    assert compared >= 24 if kind in ("count", "hopping", "batches", "time", "landmark") else compared >= 14


def test_windows_in_panes_is_the_naive_result() -> None:
    spec = spec_of("count", DECOMPOSED, WindowFarm(2))
    extents = extents_of(spec)
    for extent, result in zip(extents, Plan(spec, RELATION).whole(extents), strict=True):
        panes = [extent["v"][i : i + 12] for i in range(0, 60, 12)]
        total = 0.0
        for values in panes:
            total += float(np.cumsum(values[~np.isnan(values)])[-1]) * 1.0000001
        assert bits(result) == bits((total, 60))


def labelled(extent: Extent) -> Any:
    return extent.key, extent.number, extent.start, extent.end, len(extent)


@pytest.mark.parametrize("kind", ["count", "hopping", "time", "landmark"])
def test_panes_have_the_same_bounds_under_every_pattern(kind: str) -> None:
    function = Decomposed(labelled, list, "panes BIGINT")
    extents = extents_of(spec_of(kind, function))
    expected = results(Plan(spec_of(kind, function), RELATION), extents)
    for pattern in (KeyFarm(2), WindowFarm(2)):
        assert results(Plan(spec_of(kind, function, pattern), RELATION), extents) == expected


def test_windows_without_panes_go_in_parts_of_a_fixed_length() -> None:
    """So that the number of workers can't change how a sum is added up."""
    function = Decomposed(len, list, "parts BIGINT[]")
    columns = columns_of("ann", 2 * PART_ROWS + 7)
    extents = [Extent(0, ("ann",), 0, 1, columns), Extent(1, ("ann",), 0, 1, columns.slice(0, 5))]
    for pattern in (Sequential(), KeyFarm(2), WindowFarm(2), WindowFarm(7)):
        plan = Plan(spec_of("session", function, pattern), RELATION)
        assert plan.whole(extents) == [[PART_ROWS, PART_ROWS, 7], [5]]


@pytest.mark.parametrize("kind", ["count", "session"])
def test_map_and_reduce_divides_a_window_whatever_its_panes_are(kind: str) -> None:
    """Also a tumbling window, whose only pane is the window."""
    function = Decomposed(len, list, "parts BIGINT[]")
    columns = columns_of("ann", 5_000)
    extents = [Extent(0, ("ann",), 0, 5_000, columns, [0]), Extent(1, ("ann",), 0, 3, columns.slice(0, 3))]
    for pattern, expected in (
        (WindowMapReduce(2), [[2_500, 2_500], [1, 2]]),
        (WindowMapReduce(2, parts=4), [[1_250] * 4, [1, 1, 1]]),
        (KeyFarm(WindowMapReduce(3), workers=2), [[1_666, 1_667, 1_667], [1, 1, 1]]),
        (WindowFarm(WindowMapReduce(2, parts=8), workers=2, active=True), [[625] * 8, [1, 1, 1]]),
    ):
        if pattern.active and kind == "session":
            continue
        plan = Plan(spec_of(kind, function, pattern), RELATION)
        assert plan.whole(extents) == expected
        assert f"each window in {plan.parts} parts of as many rows each" in plan.explain()


def test_the_parts_are_declared_and_the_workers_do_not_matter(processes: LocalBackend) -> None:
    extents = extents_of(spec_of("count", DECOMPOSED))
    expected = bits(in_parts(DECOMPOSED, 6, extents))
    for pattern in (WindowMapReduce(1, parts=6), WindowMapReduce(2, parts=6), WindowMapReduce(6)):
        for where in (LocalBackend(), LocalBackend(only=HERE), processes):
            assert bits(Plan(spec_of("count", DECOMPOSED, pattern), RELATION, where).whole(extents)) == expected
    assert bits(Plan(spec_of("count", DECOMPOSED), RELATION).whole(extents)) != expected


def test_a_farm_of_pane_farms_has_larger_panes() -> None:
    spec = spec_of("count", DECOMPOSED, WindowFarm(PaneFarm(2), workers=5))
    plan = Plan(spec, RELATION)
    assert plan.pane == 60  # of gcd(60, 5 · 24), where a pane farm has gcd(60, 24)
    told = plan.explain()
    assert "gcd(60 tuples, 5 × 24 tuples) = 60 tuples: 1 for each window, slide 2" in told
    assert "panes of its own for each of the 5 replicas" in told


def test_overlapping_windows_travel_once(processes: LocalBackend) -> None:
    from tidegate.streams.windows.evaluate.processes import lay_out

    columns = columns_of("ann", 5_000)
    extents = [Extent(i, ("ann",), i, i + 1_000, columns.slice(i, i + 1_000)) for i in range(0, 4_000, 10)]
    _, values, valid = lay_out(extents)
    assert {name: len(array) for name, (array, _) in values.items()} == {"at": 4_990, "patient": 4_990, "v": 4_990}
    assert len(valid["v"][0]) == 4_990
    spec = spec_of("session", WHOLE, WindowFarm(2))
    shuffled = [extents[i] for i in np.random.default_rng(0).permutation(len(extents))]
    gaps = [Extent(9, ("ann",), 0, 1, columns.slice(low, low + 3)) for low in (4_000, 10, 2_000, 11)]
    mixed = [*shuffled, Extent(8, ("bob",), 0, 1, columns_of("bob", 40)), *gaps]
    assert Plan(spec, RELATION, processes).whole(mixed) == [WHOLE.whole(extent) for extent in mixed]


def test_nothing_to_do() -> None:
    plan = Plan(spec_of("count", DECOMPOSED, WindowMapReduce(2)), RELATION)
    assert plan.whole([]) == plan.panes([]) == plan.combine([], []) == []


@pytest.mark.parametrize(
    ("pattern", "function", "kind", "by_pane"),
    [
        (None, DECOMPOSED, "count", True),
        (Sequential(), NAMED, "time", True),
        (Sequential(), DECOMPOSED, "session", False),
        (Sequential(), WHOLE, "count", False),
        (KeyFarm(2), DECOMPOSED, "count", False),
        (WindowFarm(2), DECOMPOSED, "landmark", False),
        (WindowMapReduce(2), DECOMPOSED, "count", False),
        (PaneFarm(2), DECOMPOSED, "batches", True),
        (KeyFarm(PaneFarm(2)), DECOMPOSED, "count", True),
        (WindowFarm(PaneFarm(2)), NAMED, "landmark", True),
    ],
)
def test_what_states_keep(pattern: Any, function: Any, kind: str, by_pane: bool) -> None:
    assert Plan(spec_of(kind, function, pattern), RELATION).by_pane is by_pane


def test_a_plan_is_checked() -> None:
    with pytest.raises(DeclarationError, match=r"PaneFarm\(workers=2\).*whole\(spread\)"):
        Plan(spec_of("count", WHOLE, PaneFarm(2)), RELATION)
    with pytest.raises(DeclarationError, match="divides by key"):
        Plan(spec_of("count", WHOLE, KeyFarm(2), by=()), RELATION, keyed=False)


# ---- who gets what


def dealt(pattern: Any, extents: list[Extent], chunks: int = 1) -> list[list[tuple[Any, int]]]:
    plan = Plan(spec_of("count", WHOLE if pattern.inner is None else DECOMPOSED, pattern), RELATION)
    tasks = plan._dealt(extents, [len(e) for e in extents], chunks)
    assert sorted(i for places, _ in tasks for i in places) == list(range(len(extents)))
    assert all(places == sorted(places) for places, _ in tasks)
    return [[(extents[i].key[0], extents[i].number) for i in places] for places, _ in tasks]


def test_a_key_has_one_worker() -> None:
    extents = extents_of(spec_of("count", WHOLE))
    for pattern, chunks in ((KeyFarm(2), 1), (KeyFarm(2), 4), (KeyFarm(3, active=True), 4)):
        tasks = dealt(pattern, extents, chunks)
        keys = [{key for key, _ in task} for task in tasks]
        assert sum(map(len, keys)) == 3


def test_active_workers_know_their_windows_in_advance() -> None:
    extents = extents_of(spec_of("count", WHOLE))
    plan = Plan(spec_of("count", WHOLE, WindowFarm(3, active=True)), RELATION)
    for some in (extents, extents[4:], extents[::2]):
        for places, worker in plan._dealt(some, [1] * len(some), 4):
            assert {some[i].number % 3 for i in places} <= {worker}


def test_blocks_of_windows_have_about_equal_weight() -> None:
    columns = columns_of("ann", 1_000)
    lengths = [900, 10, 10, 10, 10, 900, 900, 10]
    extents = [Extent(i, ("ann",), 0, 1, columns.slice(0, n)) for i, n in enumerate(lengths)]
    tasks = dealt(WindowFarm(3), extents)
    assert [sum(lengths[i] for _, i in task) for task in tasks] == [920, 920, 910]


def test_parts_of_every_window_go_to_every_worker() -> None:
    plan = Plan(spec_of("count", DECOMPOSED, WindowMapReduce(2, parts=5)), RELATION)
    extents = extents_of(plan.spec)[:3]
    shares = plan._shares(extents, [plan.work.panes(extent) for extent in extents])
    assert [places for places, _ in shares] == [[0, 1, 5, 6, 10, 11], [2, 3, 4, 7, 8, 9, 12, 13, 14]]


# ---- failures


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("pattern", [Sequential(), KeyFarm(2), WindowFarm(3), WindowFarm(2, active=True)], ids=repr)
def test_an_exception_comes_back_as_it_is(pattern: Any, backend: str, request: pytest.FixtureRequest) -> None:
    where = LocalBackend() if backend == HERE else request.getfixturevalue(backend)
    function = Whole(plan_cases.fails_on_three, "n BIGINT")
    plan = Plan(spec_of("count", function, pattern), RELATION, where)
    with pytest.raises(KeyError, match="no third") as raised:
        plan.whole(extents_of(plan.spec))
    assert raised.value.__notes__ == ["in window 3 of 'ann' [72, 132) over readings, by whole(fails_on_three)"]
    assert raised.traceback[-1].name == "fails_on_three"
    good = [e for e in extents_of(plan.spec) if e.number != 3]
    assert plan.whole(good) == [e.number for e in good]


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("pattern", [Sequential(), WindowFarm(2), WindowMapReduce(2)], ids=repr)
def test_the_first_failure_is_the_same_whatever_the_pattern(
    pattern: Any, backend: str, request: pytest.FixtureRequest
) -> None:
    where = LocalBackend() if backend == HERE else request.getfixturevalue(backend)
    spec = spec_of("count", Decomposed(plan_cases.summed, plan_cases.never_combined, "n BIGINT"), pattern)
    parts = 2 if isinstance(pattern, WindowMapReduce) else 5
    with pytest.raises(LookupError, match=f"combining {parts}") as raised:
        Plan(spec, RELATION, where).whole(extents_of(spec))
    assert "window 0 of 'ann' [0, 60)" in raised.value.__notes__[0]
    # pane 5, the sixth, is first in window 1; window 0 has been combined by then, or that would have raised
    spec = spec_of("count", Decomposed(fails_on_pane_five, len, "n BIGINT"), pattern)
    if isinstance(pattern, WindowMapReduce):
        assert Plan(spec, RELATION, where).whole(extents_of(spec))  # its parts are numbered in each window
        return
    with pytest.raises(ZeroDivisionError) as other:
        Plan(spec, RELATION, where).whole(extents_of(spec))
    assert "1 of 'ann' [24, 84)" in other.value.__notes__[0]


def fails_on_pane_five(extent: Extent) -> int:
    return 1 // (extent.number - 5)


def test_a_dead_worker_loses_nothing(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.setenv("PLAN_TEST_MAIN", str(os.getpid()))
    backend = LocalBackend(only=PROCESSES)
    try:
        plan = Plan(spec_of("count", Whole(plan_cases.dies_elsewhere, "n BIGINT"), KeyFarm(3)), RELATION, backend)
        extents = extents_of(plan.spec)
        assert plan.whole(extents) == [60] * len(extents)
        assert backend._pool.deaths == 3
        assert "a worker process died (killed by signal 9) at" in plan.explain()
        assert "evaluated in this process" in caplog.text
        assert plan.whole(extents) == [60] * len(extents)  # no more are started: it would only go on
        assert backend._pool.deaths == 3
    finally:
        backend.close()


def test_a_killed_worker_is_replaced() -> None:
    backend = LocalBackend(only=PROCESSES)
    try:
        plan = Plan(spec_of("count", Whole(plan_cases.where, "pid BIGINT"), WindowFarm(2)), RELATION, backend)
        extents = extents_of(plan.spec)
        before = set(plan.whole(extents))
        assert len(before) == 2
        assert os.getpid() not in before
        member = backend._pool.members[0]
        member.process.kill()
        member.process.wait()
        during = plan.whole(extents)
        assert os.getpid() in during  # what the dead one should have done
        after = set(plan.whole(extents))
        assert len(after) == 2
        assert os.getpid() not in after
        assert member.process.pid not in after
    finally:
        backend.close()
    assert not backend._pool.members


def test_an_interrupted_evaluation_leaves_nothing_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    begun = tmp_path / "begun"
    monkeypatch.setenv("PLAN_TEST_BEGUN", str(begun))
    backend = LocalBackend(only=PROCESSES)
    try:
        plan = Plan(spec_of("count", Whole(plan_cases.sleeps_first, "n BIGINT"), WindowFarm(2)), RELATION, backend)
        extents = extents_of(plan.spec)

        def interrupt() -> None:
            while not begun.exists():
                threading.Event().wait(0.01)
            os.kill(os.getpid(), signal.SIGINT)

        thread = threading.Thread(target=interrupt)
        thread.start()
        with pytest.raises(KeyboardInterrupt):
            plan.whole(extents)
        thread.join()
        assert plan.whole(extents) == [extent.number for extent in extents]
    finally:
        backend.close()


def test_several_threads_may_evaluate_at_once(processes: LocalBackend) -> None:
    plan = Plan(spec_of("count", DECOMPOSED, WindowFarm(2)), RELATION, processes)
    extents = extents_of(plan.spec)
    expected = plan.whole(extents)
    found: list[Any] = []
    running = [threading.Thread(target=lambda: found.append(plan.whole(extents))) for _ in range(6)]
    for thread in running:
        thread.start()
    for thread in running:
        thread.join()
    assert found == [expected] * 6


class Unsendable:
    def __reduce__(self) -> Any:
        raise TypeError("stays here")


def gives_unsendable(extent: Extent) -> Any:
    return Unsendable()


def test_what_cannot_be_sent_is_done_here(processes: LocalBackend) -> None:
    kept = Unsendable()
    spec = spec_of(
        "count", Whole(lambda extent: (len(extent), kept is not None), "n BIGINT, ok BOOLEAN"), WindowFarm(2)
    )
    plan = Plan(spec, RELATION, processes)
    assert plan.whole(extents_of(spec)) == [(60, True)] * 24
    assert "whole(<lambda>) can't be sent to another process (" in plan.explain()
    spec = spec_of("count", Whole(gives_unsendable, "n BIGINT"), WindowFarm(2))
    assert all(isinstance(r, Unsendable) for r in Plan(spec, RELATION, processes).whole(extents_of(spec)))


@pytest.mark.parametrize("kept", ["can't be packed", "can't be unpacked there"])
def test_pane_results_that_cannot_be_sent(kept: str, processes: LocalBackend, monkeypatch: pytest.MonkeyPatch) -> None:
    """They are a matter of one evaluation: what can be sent afterwards is."""
    made: Any = Unsendable()
    if kept != "can't be packed":
        module = types.ModuleType("only_in_this_process")
        exec("class Here: pass", module.__dict__)
        monkeypatch.setitem(sys.modules, module.__name__, module)
        made = module.Here()
    spec = spec_of("count", Decomposed(plan_cases.summed, counted, "pid BIGINT, n BIGINT"), PaneFarm(2))
    plan = Plan(spec, RELATION, processes)
    labels = extents_of(spec)
    assert plan.combine(labels, [[made, made]] * len(labels)) == [(os.getpid(), 2)] * len(labels)
    assert os.getpid() not in {pid for pid, _ in plan.combine(labels, [[1.0, 2.0]] * len(labels))}


def counted(panes: Any) -> tuple[int, int]:
    return os.getpid(), len(panes)


def test_functions_without_a_module_go_along(processes: LocalBackend) -> None:
    pytest.importorskip("cloudpickle")
    factor = 3
    spec = spec_of(
        "count", Whole(lambda extent: (os.getpid(), factor * len(extent)), "pid BIGINT, n BIGINT"), WindowFarm(2)
    )
    found = Plan(spec, RELATION, processes).whole(extents_of(spec))
    assert {n for _, n in found} == {180}
    assert os.getpid() not in {pid for pid, _ in found}


SCRIPT = """
import os, sys
sys.path.insert(0, {here!r})
from plan_cases import *
from tidegate.streams.windows.evaluate.local import LocalBackend
from tidegate.streams.windows.evaluate.plan import Plan
backend = LocalBackend(only="processes")
plan = Plan(spec_of("count", Whole(where, "pid BIGINT"), WindowFarm(2)), RELATION, backend)
pids = set(plan.whole(extents_of(plan.spec)))
print(*pids, flush=True)
{end}
"""


@pytest.mark.parametrize("end", ["", "os.kill(os.getpid(), 9)", "raise SystemExit"])
def test_workers_end_with_the_program(end: str, tmp_path: Path) -> None:
    """A script without ``if __name__ == "__main__"`` that never closes anything."""
    script = tmp_path / "program.py"
    script.write_text(SCRIPT.format(here=str(Path(plan_cases.__file__).parent), end=end))
    path = os.pathsep.join(sys.path)
    done = subprocess.run(
        [sys.executable, script], capture_output=True, text=True, env={**os.environ, "PYTHONPATH": path}, timeout=60
    )
    pids = [int(pid) for pid in done.stdout.split()]
    assert len(pids) == 2, done.stderr
    # stdout and stderr were read to their end, which the workers hold open too: they are gone, or about to be reaped
    for pid in pids:
        status = Path(f"/proc/{pid}/stat")
        assert not status.exists() or status.read_text().rpartition(")")[2].split()[0] in "ZX"


# ---- what it says


def test_explain() -> None:
    plan = Plan(spec_of("time", DECOMPOSED, KeyFarm(PaneFarm(workers=2), workers=2)), RELATION, LocalBackend(cores=4))
    text = plan.explain()
    assert "window    time 90 slide 30 on at by patient over readings" in text
    assert "compute   decomposed(summed, added)" in text
    assert "pattern   KeyFarm(PaneFarm(workers=2), workers=2): 2 × 2 = 4 workers\n" in text
    assert "panes     gcd(90, 30) = 30: 3 for each window, slide 1" in text
    assert "nothing evaluated" in text
    assert text.endswith(
        """\
rows of readings
   │
emitter: panes of 30, by key to any free worker
   ├─ replica 1 ┬─ worker 1  pane()
   │            └─ worker 2  pane()
   └─ replica 2 ┬─ worker 1  pane()
                └─ worker 2  pane()
   │
collector, in order; emitter: 3 panes for each window
   ├─ replica 1 ┬─ worker 1  combine()
   │            └─ worker 2  combine()
   └─ replica 2 ┬─ worker 1  combine()
                └─ worker 2  combine()
   │
collector: results in window order"""
    )


def test_explain_says_how_many_can_work_here() -> None:
    plan = Plan(spec_of("session", WHOLE, WindowFarm(8)), RELATION, LocalBackend(cores=2))
    text = plan.explain()
    assert "WindowFarm(workers=8): 8 workers, of which 2 at the same time here" in text
    assert "panes     none: rows decide where a session window begins\n" in text
    assert "   ├─ …\n   └─ worker 8  whole()" in text


@pytest.mark.parametrize("pattern", [*PATTERNS, WindowFarm(9), KeyFarm(WindowMapReduce(7), workers=7)], ids=repr)
def test_svg_is_well_formed_and_complete(pattern: Any) -> None:
    plan = Plan(spec_of("count", DECOMPOSED, pattern), RELATION)
    results(plan, extents_of(plan.spec))
    root = ET.fromstring(plan.svg())
    texts = ["".join(node.itertext()) for node in root.iter("{http://www.w3.org/2000/svg}text")]
    assert texts[0].startswith(repr(pattern))
    assert {"emitter", "collector", "readings"} <= set(texts)
    assert ("window 2" in texts) is (plan.parts is None)  # how windows lie over panes
    operations = {"pane()", "combine()"} if plan.by_pane or isinstance(pattern.core, WindowMapReduce) else {"whole()"}
    assert {text.split(" · ")[1] for text in texts[1:] if text.endswith("()")} == operations
    _, _, width, height = map(float, root.attrib["viewBox"].split())
    for box in root.iter("{http://www.w3.org/2000/svg}rect"):
        assert float(box.attrib["x"]) + float(box.attrib["width"]) <= width
        assert float(box.attrib["y"]) + float(box.attrib["height"]) <= height
        assert float(box.attrib["y"]) > 50


def test_names_are_escaped() -> None:
    from tidegate.streams.windows.evaluate.picture import Picture, Stage, as_svg

    ET.fromstring(as_svg(Picture("a < b", "x & y", "<rows>", (Stage("windows", "whole()", "<all>", 1, 2),))))
