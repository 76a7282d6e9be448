"""Judging a soak: the directory it leaves behind, compared with what was acknowledged and what subscribers got."""

from __future__ import annotations

import json
import time
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import tidegate
from tidegate.engine.engine import Engine
from tidegate.offline.verify import verify
from tidegate.testing.soak_app import BURST, DEADLINE_S, LARGE, NEVER, NOBODY, REFUSED, SUBSCRIBERS, soak_app

SHOWN = 5  # of each kind of thing that is wrong
CALLS = ("call", "http call")  # sources that call: they have no position, and their money appears on no stream
Got = tuple[Any, int, list[list[Any]]]  # key, batch-id, rows


@dataclass
class Evidence:
    """What was seen from outside, in all lives."""

    acknowledged: dict[str, int] = field(default_factory=dict)  # source -> the highest number
    got: dict[str, list[Got]] = field(default_factory=lambda: defaultdict(list))  # durable subscriber -> batches


@dataclass
class Found:
    """What the directory holds, and everything wrong with it."""

    rows: int = 0
    approved: int = 0
    refused: int = 0
    expired: int = 0
    compared: dict[str, int] = field(default_factory=dict)  # rows of each table that verify compared
    wrong: list[str] = field(default_factory=list)


def judge(directory: Path, evidence: Evidence) -> Found:
    """Verify the (closed) directory, then open it once more and check every number."""
    app, found = soak_app(), Found()
    verified = verify(app, directory)
    found.compared = verified.tables
    found.wrong += [f"verify: {told}" for told in verified.differences]
    with tidegate.open(app, directory) as engine:
        found.wrong += _settled(engine)
        booked = _rows(engine, "SELECT account, source, number, amount FROM ledger")
        rejected = _rows(engine, "SELECT account, source, number, amount, who FROM rejected")
        found.rows = len(booked) + len(rejected)
        found.approved = sum(1 for row in booked if row[3] >= LARGE and row[1] not in CALLS)
        found.expired = sum(1 for row in rejected if row[4] == NOBODY)
        found.refused = len(rejected) - found.expired
        rows = [*booked, *(row[:4] for row in rejected)]
        streamed = [row for row in rows if row[1] not in CALLS]
        found.wrong += _states(engine)
        found.wrong += _numbers(rows, evidence.acknowledged, engine)
        found.wrong += _sums(engine, streamed)
        found.wrong += _handled(engine, evidence.got["remote"], streamed)
        found.wrong += _bursts(engine, evidence.got["slow"])
        found.wrong += _changes(engine, evidence.got["changes"])
    return found


def _rows(engine: Engine, sql: str) -> list[tuple[Any, ...]]:
    return [tuple(row) for row in engine.query(sql).rows]


def _settled(engine: Engine) -> list[str]:
    """Questions that were open when the engine was closed run into their deadline."""
    ends = time.monotonic() + 10 * DEADLINE_S
    while not engine.scheduler.idle:
        engine.run_until_idle()
        engine.tick()
        time.sleep(0.02)
        if time.monotonic() > ends:
            return [f"does not finish: {e} {e.reason}" for e in list(engine.scheduler.waiting())[:SHOWN]]
    return []


def _states(engine: Engine) -> list[str]:
    wrong = [f"{sql} found {row}" for sql in NEVER for row in _rows(engine, sql)[:SHOWN]]
    wrong += [f"halted: {name}" for name in engine.scheduler.halted]
    wrong += [f"a dead letter: {letter}" for letter in list(engine.journal.dead_letters)[:SHOWN]]
    undone = [abort for abort in engine.journal.aborts if REFUSED not in abort.reason]
    return wrong + [f"undone: {abort}" for abort in undone[:SHOWN]]


def _numbers(rows: Iterable[tuple[Any, ...]], acknowledged: Mapping[str, int], engine: Engine) -> list[str]:
    """The numbers of each source are 1, 2, 3, … up to at least what was acknowledged, each exactly once."""
    numbers: dict[str, list[int]] = {source: [] for source in acknowledged}
    for _, source, number, _ in rows:
        numbers.setdefault(source, []).append(number)
    wrong = []
    for source, found in numbers.items():
        last = max(found, default=0)
        missing = sorted(set(range(1, last + 1)) - set(found))
        wrong += [f"lost: {source} {number}" for number in missing[:SHOWN]]
        if len(found) != len(set(found)):
            wrong.append(f"doubled: {source} has {len(found) - len(set(found))} numbers more than once")
        if last < acknowledged.get(source, 0):
            wrong.append(f"lost: {source} was acknowledged up to {acknowledged[source]}, and ends at {last}")
        if source not in CALLS and engine.position(source) != (last or None):
            wrong.append(f"{source} is at {engine.position(source)}, and its last row is {last}")
    return wrong


def _sums(engine: Engine, streamed: list[tuple[Any, ...]]) -> list[str]:
    """The running sums equal the sums over the rows."""
    wrong = []
    expected = [(1, len(streamed), sum(row[3] for row in streamed))] if streamed else []
    if (found := _rows(engine, "SELECT id, n, amount FROM totals")) != expected:
        wrong.append(f"totals has {found}, the rows come to {expected}")
    by_account: dict[int, int] = defaultdict(int)
    for row in streamed:
        by_account[row[0]] += 1
    fired = dict(_rows(engine, "SELECT account, n FROM fired"))
    expected_fired = {account: count // BURST for account, count in by_account.items() if count >= BURST}
    if fired != expected_fired:
        wrong.append(f"windows fired {fired}, of the rows there are {expected_fired}")
    return wrong


def _kept(engine: Engine, name: str, got: list[Got]) -> dict[tuple[Any, int], list[list[Any]]]:
    """Everything a durable subscriber was given or would be given next, by address."""
    batches = {(key, number): rows for key, number, rows in got}
    for batch in engine.subscribe_durably(SUBSCRIBERS[name], name).peek():
        batches[batch.key, batch.id] = [list(row) for row in batch]
    return batches


def _handled(engine: Engine, got: list[Got], streamed: list[tuple[Any, ...]]) -> list[str]:
    kept = _kept(engine, "remote", got)
    rows = sorted(tuple(row) for batch in kept.values() for row in batch)
    missing = sorted(set(streamed) - set(rows))
    wrong = [f"the subscriber of handled never got {row}" for row in missing[:SHOWN]]
    if len(rows) > len(streamed) or set(rows) - set(streamed):
        wrong.append(f"the subscriber of handled got {len(rows)} rows in different batches, there are {len(streamed)}")
    return wrong


def _bursts(engine: Engine, got: list[Got]) -> list[str]:
    kept = _kept(engine, "slow", got)
    numbers: dict[int, list[int]] = defaultdict(list)
    for key, number in sorted(kept):
        numbers[key] += [row[1] for row in kept[key, number]]
    wrong = []
    for account, n in _rows(engine, "SELECT account, n FROM fired"):
        if numbers[account] != list(range(1, n + 1)):
            wrong.append(f"bursts of account {account}: {n}, its slow subscriber got {numbers[account]}")
    return wrong[:SHOWN]


def _changes(engine: Engine, got: list[Got]) -> list[str]:
    """Each change begins where the one before it ended, and the last is what the table holds."""
    kept = _kept(engine, "changes", got)
    now: dict[str, str | None] = {}
    wrong = []
    for address in sorted(kept):
        for row_key, before, after, _ in kept[address]:
            if now.get(row_key) != before:
                wrong.append(f"account {row_key} changes at {address} from {before}, before it was {now.get(row_key)}")
            now[row_key] = after
    held = {f"[{row[0]}]": row for row in _rows(engine, "SELECT account, balance, moves, peak FROM accounts")}
    told = {key: tuple(json.loads(after).values()) for key, after in now.items() if after is not None}
    if told != held:
        wrong.append(f"the changelog of accounts ends in {told}, the table in {held}")
    return wrong[:SHOWN]
