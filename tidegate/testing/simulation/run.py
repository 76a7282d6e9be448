"""Running simulations: a seed is an app, its inputs and the interleavings to try."""

from __future__ import annotations

import concurrent.futures
import logging
import multiprocessing
import os
import random
import tempfile
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import cache, partial
from typing import Any

from tidegate import mutex
from tidegate.engine.engine import Engine
from tidegate.errors import DeclarationError
from tidegate.testing.driver import Call, Finish, Input, Push
from tidegate.testing.order import Mode, OrderViolation, Report, Setting, run_once, shrink, still_fails
from tidegate.testing.simulation.ahead import with_look_ahead
from tidegate.testing.simulation.apps import build, random_app
from tidegate.testing.simulation.eithers import with_eithers
from tidegate.testing.simulation.partitions import with_partitions
from tidegate.testing.simulation.patterns import with_patterns
from tidegate.testing.simulation.rekeying import with_rekeying
from tidegate.testing.simulation.specs import KEYS, AppSpec, FlowSpec, Simulated
from tidegate.testing.simulation.timers import with_timers
from tidegate.testing.simulation.times import in_time, with_edges, with_time
from tidegate.testing.simulation.work import with_j
from tidegate.testing.simulation.world import SIDES, World
from tidegate.txn.locks import LowWaterMarks, TwoPhaseLocks, locking_with

THREADS_EVERY = 5  # seeds between two runs with real threads
SERIAL_EVERY = 4
REOPEN_EVERY = 100  # … and between two on disk, closed and reopened during the run
ASKED_REOPEN_EVERY = 20  # the same, where people are asked
COMPARE_BASE_EVERY = 8
TINY_EVERY = 5  # seeds between two in which most rows are cold
BYSTANDERS_EVERY = 3  # of the runs in which the engine has threads or runs on its own
TORN = "SELECT * FROM {} AS l FULL JOIN {} AS r USING (id) WHERE l.v IS DISTINCT FROM r.v".format(*SIDES)
CHUNK = 50
SHRINK_S = 20.0


@dataclass(frozen=True)
class Case:
    """Everything a seed stands for."""

    seed: int
    spec: AppSpec
    inputs: tuple[Input, ...]
    broken: frozenset[tuple[str, Any]]
    config: dict[str, Any]
    merges: float
    two_phase: bool = False


@dataclass(frozen=True)
class Failure:
    """A seed whose run differed from serial execution, with the smallest history found."""

    seed: int
    executor: str
    text: str


@dataclass
class Summary:
    """The results of a number of seeds."""

    seeds: int = 0
    runs: int = 0
    executions: int = 0
    merges: int = 0
    most_open: int = 0
    seconds: float = 0.0
    failures: list[Failure] = field(default_factory=list)

    def add(self, other: Summary) -> None:
        self.seeds += other.seeds
        self.runs += other.runs
        self.executions += other.executions
        self.merges += other.merges
        self.most_open = max(self.most_open, other.most_open)
        self.failures += other.failures


@cache
def world() -> World:
    """This process's."""
    logging.getLogger("tidegate").setLevel(logging.CRITICAL)
    mutex.watch()
    return World()


def make_case(seed: int) -> Case:
    rng = random.Random(seed)
    spec = with_eithers(seed, random_app(rng, world()), world())
    spec = with_partitions(seed, spec, world())
    spec = with_time(seed, spec, world())
    spec = with_patterns(seed, spec, world())
    spec = with_rekeying(seed, spec, world())
    spec, ahead = with_look_ahead(seed, spec, world())
    spec = with_edges(seed, spec, world())
    spec = with_timers(seed, spec)
    inputs = random_inputs(rng, spec, seed)
    if any(flow.timed for flow in spec.flows) and seed % 2 and not build(spec, world()).app.graph().times.left_out:
        inputs = (*inputs, Finish())
    broken = {
        (procedure.name, rng.randint(1, 8))
        for procedure in spec.procedures()
        if procedure.on_failure == "halt" and any(op.kind == "break" for op in procedure.ops)
    }
    config: dict[str, Any] = {"merge_rows": rng.choice([100_000, 100_000, 100_000, 10])}
    config |= ahead
    if rng.random() < 0.2:
        config["cached_rows"] = rng.choice([1, 3])
    two_phase = rng.random() < 0.15
    merges = rng.choice([0.0, 0.0, 0.0, 0.01, 0.03])
    if seed % TINY_EVERY == 3 % TINY_EVERY:
        config, merges = with_little_memory(seed, config)
    return Case(seed, spec, inputs, frozenset(broken), config, merges, two_phase)


def with_little_memory(seed: int, config: dict[str, Any]) -> tuple[dict[str, Any], float]:
    """Most rows are cold: they are merged often, and hardly any stays in memory."""
    rng = random.Random(f"memory {seed}")
    return {**config, "cached_rows": rng.choice([1, 2, 4]), "merge_rows": rng.choice([2, 5])}, rng.choice([0.05, 0.2])


def random_inputs(rng: random.Random, spec: AppSpec, seed: int = 0) -> tuple[Input, ...]:
    """Calls, and pushes with ascending batch-ids on every border stream (the same on all of one dataflow)."""
    graph = build(spec, world()).app.graph()
    queues: list[list[Input]] = [
        in_time(seed, flow, border, graph, _flow_inputs(rng, flow, border))
        for flow in spec.flows
        for border in (() if flow.late else flow.borders)
    ]
    if spec.calls:
        calls = [
            Call(rng.choice(spec.calls).name, with_j(rng.randrange(KEYS), rng.randrange(1000)))
            for _ in range(rng.randint(2, 7))
        ]
        queues.append(list(calls))
    mixed: list[Input] = []
    while queues := [queue for queue in queues if queue]:
        mixed.append(rng.choice(queues).pop(0))
    for flow in spec.flows:
        if flow.awaited is not None:
            mixed += _decisions(rng, flow, mixed)
    return tuple(mixed)


def _flow_inputs(rng: random.Random, flow: FlowSpec, border: str) -> list[Input]:
    numbered = len(flow.borders) > 1 or flow.awaited is not None or rng.random() < 0.7
    found: list[Input] = []
    step = rng.choice([1, 1, 2])
    for number in range(1, rng.randint(3, 8)):
        if len(flow.borders) > 1 and rng.random() < 0.1:
            continue
        rows = tuple(with_j(rng.randrange(KEYS), rng.randrange(1000)) for _ in range(rng.choice([1, 1, 2, 3])))
        push = Push(border, rows, number * step if numbered else None)
        found.append(push)
        if numbered and rng.random() < 0.05:
            found.append(push)
    return found


def _decisions(rng: random.Random, flow: FlowSpec, inputs: Sequence[Input]) -> list[Input]:
    assert flow.awaited is not None
    asked = dict.fromkeys(
        (item.batch_id, row[0] if flow.keyed else None)
        for item in inputs
        if isinstance(item, Push) and item.stream in flow.borders
        for row in item.rows
    )
    if any(procedure.either for procedure in flow.procedures):  # it may ask under the number of its execution
        asked = dict.fromkeys((number, key) for number in range(1, 40) for _, key in asked)
    if flow.rekeyed:  # under any key
        keys = range(KEYS) if flow.keyed or flow.answers_by_key else [None]
        asked = dict.fromkeys((number, key) for number in range(1, 40) for key in keys)
    return [
        Push(flow.awaited, (with_j(rng.randrange(KEYS) if key is None else key, rng.randrange(100)),), batch_id)
        for batch_id, key in sorted(asked, key=lambda question: question[0] or 0)
        if rng.random() < 0.7
    ]


def run_case(case: Case, executor: Mode, inputs: Sequence[Input] | None = None, seed: int | None = None) -> Report:
    """One interleaving of a case; raises OrderViolation."""
    simulated: Simulated = build(case.spec, world())
    simulated.broken.clear()
    simulated.broken.update(case.broken)
    config = {**case.config, "workers": 2 + case.seed % 3} if executor == "threads" else case.config
    setting = Setting(
        executor=executor,
        config=config,
        merges=case.merges,
        compare_base=case.seed % COMPARE_BASE_EVERY == 0,
        never=None if executor == "manual" or case.seed % BYSTANDERS_EVERY else (TORN,),
        repair=simulated.repair,
        open_engine=world().engine,
        open_database=world().database,
    )
    inputs, seed = case.inputs if inputs is None else inputs, case.seed if seed is None else seed
    locks = locking_with(TwoPhaseLocks if case.two_phase else LowWaterMarks)
    often = any(flow.awaited is not None for flow in case.spec.flows) or case.config.get("cached_rows", 10) < 10
    every = ASKED_REOPEN_EVERY if often else REOPEN_EVERY
    if executor != "manual" or case.seed % every:
        with locks:
            return run_once(simulated.app, inputs, seed, setting)
    with locks, tempfile.TemporaryDirectory(prefix="tidegate-sim-") as directory:
        setting.open_engine = lambda app, config, clock: Engine(app, directory, config, clock)
        setting.reopen = _reopen
        return run_once(simulated.app, inputs, seed, setting)


def _reopen(engine: Engine) -> Engine:
    assert engine.directory is not None
    engine.close()
    return Engine(engine.app, engine.directory.path, engine.config, engine.clock)


def modes(seed: int, threads: bool) -> list[Mode]:
    found: list[Mode] = ["manual"]
    if seed % SERIAL_EVERY == 0:
        found.append("serial")
    if threads or seed % THREADS_EVERY == 0:
        found.append("threads")
    return found


def simulate_seed(seed: int, threads: bool = False, tries: int = 30) -> Summary:
    """One app in its interleavings; ``threads``: with real threads too (otherwise some seeds only)."""
    case = make_case(seed)
    summary = Summary(seeds=1)
    for executor in modes(seed, threads):
        try:
            report = run_case(case, executor)
        except OrderViolation as violation:
            summary.failures.append(explain(case, executor, violation, tries))
        else:
            summary.runs += 1
            summary.executions += report.entries
            summary.merges += report.merges
            summary.most_open = max(summary.most_open, report.most_open)
    return summary


def explain(case: Case, executor: Mode, violation: OrderViolation, tries: int) -> Failure:
    """The smallest app and history found that still show the violation."""
    if tries:
        violation = shrink(violation, partial(run_case, case, executor), tries, SHRINK_S)
        case, violation = _simpler_app(case, executor, violation, tries)
    settings = f"{case.config}, merges {case.merges}" + (", two-phase locking" if case.two_phase else "")
    return Failure(case.seed, executor, f"{case.spec}\n\nsettings: {settings}\n\n{violation}")


def _simpler_app(case: Case, executor: Mode, violation: OrderViolation, tries: int) -> tuple[Case, OrderViolation]:
    """Leave out operations for as long as the violation shows."""
    give_up = time.monotonic() + SHRINK_S
    again = True
    while again and time.monotonic() < give_up:
        again = False
        for spec in _without_one_operation(case.spec):
            simpler, inputs = replace(case, spec=spec), violation.inputs
            run = partial(run_case, simpler, executor, inputs)
            try:
                smaller = still_fails(violation, run, tries)
            except DeclarationError:
                continue
            if smaller is not None:
                case, violation, again = simpler, smaller, True
                break
    return case, violation


def _without_one_operation(spec: AppSpec) -> Iterable[AppSpec]:
    for f, flow in enumerate(spec.flows):
        for p, procedure in enumerate(flow.procedures):
            for o in range(len(procedure.ops)):
                fewer = replace(procedure, ops=procedure.ops[:o] + procedure.ops[o + 1 :])
                changed = replace(flow, procedures=(*flow.procedures[:p], fewer, *flow.procedures[p + 1 :]))
                yield replace(spec, flows=(*spec.flows[:f], changed, *spec.flows[f + 1 :]))
    for c, call in enumerate(spec.calls):
        for o in range(len(call.ops)):
            fewer = replace(call, ops=call.ops[:o] + call.ops[o + 1 :])
            yield replace(spec, calls=(*spec.calls[:c], fewer, *spec.calls[c + 1 :]))


def simulate(
    seeds: Iterable[int],
    progress: Callable[[Summary], None] | None = None,
    *,
    threads: bool = False,
    tries: int = 30,
) -> Summary:
    """Run every seed in this process; ``progress`` is called with the sum so far."""
    total = Summary()
    started = time.perf_counter()
    for seed in seeds:
        total.add(simulate_seed(seed, threads, tries))
        total.seconds = time.perf_counter() - started
        if progress is not None:
            progress(total)
    return total


def _chunk(seeds: Sequence[int], threads: bool) -> Summary:
    return simulate(seeds, threads=threads)


def simulate_parallel(
    seeds: Iterable[int],
    progress: Callable[[Summary], None] | None = None,
    *,
    threads: bool = False,
    processes: int | None = None,
) -> Summary:
    """The same on several processes."""
    total = Summary()
    started = time.perf_counter()
    numbers = list(seeds)
    chunks = [numbers[i : i + CHUNK] for i in range(0, len(numbers), CHUNK)]
    workers = processes or max(os.cpu_count() or 1, 1)
    context = multiprocessing.get_context("spawn")
    with concurrent.futures.ProcessPoolExecutor(workers, mp_context=context) as pool:
        for done in concurrent.futures.as_completed([pool.submit(_chunk, chunk, threads) for chunk in chunks]):
            total.add(done.result())
            total.seconds = time.perf_counter() - started
            if progress is not None:
                progress(total)
    return total
