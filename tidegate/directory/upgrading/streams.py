"""Streams that are declared differently than when something of theirs was stored: batch-ids, subscriptions, waiting work."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import msgspec

from tidegate.dataflows.app import App
from tidegate.dataflows.graph import Graph, Unit
from tidegate.directory.upgrading.changes import Drops, Plan, Verdict, bound, drop_or_refuse, same_keys
from tidegate.directory.upgrading.declared import stream_facts
from tidegate.directory.upgrading.questions import under_new_names
from tidegate.txn.log.record import Asked
from tidegate.txn.shown import misfit
from tidegate.txn.timers import TIMER_STREAM

FINISH = "Open the directory with the old code, let it finish, close it"


def plan_streams(plan: Plan, graph: Graph, meta: Mapping[str, Any], drops: Drops) -> None:
    app, stored = graph.app, meta["declared"]["streams"]
    renamed = {name: old for (kind, name), old in app.renamed.items() if kind == "stream"}
    plan.streams = bound(stored, app.streams, renamed)
    plan.units = _units(app, meta)
    held = _Held(meta)
    for name, facts in stored.items():
        new = plan.streams.get(name)
        if new is None:
            _vanished(plan, name, held, drops)
            continue
        if new != name:
            plan.add("stream", new, f"it was called {name}", Verdict.CARRIED)
        now = stream_facts(app.streams[new], graph)
        _batch_ids(plan, name, facts, now, held, drops)
        if held.timers(name) and not now["border"]:
            what = f"it is fed by a procedure from now on, and {held.timers(name):,} timers would enter there"
            plan.refuse(
                "stream", new, what, f"{FINISH}, or let it cancel them; or declare the stream under another name"
            )
        if facts["columns"] != now["columns"]:
            _columns(plan, app, name, new, facts["columns"], held, drops)
        if not same_keys(facts, now):
            _key(plan, new, now, held.batches(name))
    for name in app.streams:
        if name not in plan.streams.values():
            plan.add("stream", name, "it is new", Verdict.ADDED)
    _unfinished(plan, graph, meta["unfinished"])


def _units(app: App, meta: Mapping[str, Any]) -> dict[str, str]:
    """What procedures and nested transactions with unfinished work are called now."""
    renamed = {name: old for (kind, name), old in app.renamed.items() if kind == "procedure"}
    for (kind, name), old in app.renamed.items():
        if kind == "table":
            renamed[f"tidegate_snapshot_{name}"] = f"tidegate_snapshot_{old}"
        elif kind == "nested transaction":
            renamed[name] = old
    for group in app.nested_groups.values():  # one that has no name of its own is called after its members
        label = "+".join(renamed.get(member, member) for member in group.members)
        if group.name == "+".join(group.members) and label != group.name:
            renamed.setdefault(group.name, label)
    declared = {*app.procedures, *app.nested_groups}
    waiting = meta["unfinished"]
    stored = {e["unit"] for e in waiting["executions"]} | {c["procedure"] for c in waiting["calls"]}
    return bound(stored | {partial[0] for partial in waiting["partial"]}, declared, renamed)


class _Held:
    """What is stored of each stream besides its declaration."""

    def __init__(self, meta: Mapping[str, Any]) -> None:
        self._meta = meta
        self._waiting: dict[str, int] = {}
        for stream in _waiting_batches(meta["unfinished"]):
            self._waiting[stream] = self._waiting.get(stream, 0) + 1

    def ids(self, stream: str) -> int:
        """How many batch-ids it remembers having accepted."""
        return sum(
            max(len(digests), last is not None) for _, last, digests, *_ in self._meta["borders"].get(stream, ())
        )

    def subscriptions(self, stream: str) -> dict[str, int]:
        """Who follows it, each with the number of batches that wait."""
        return {name: waiting for name, followed, waiting, *_ in self._meta["subscriptions"] if followed == stream}

    def kept(self, stream: str) -> int:
        """How many batches its topic holds for their own sake, besides what waits for subscriptions."""
        found = [topic for topic in self._meta["topics"] if topic["stream"] == stream and topic["kept"]]
        return sum(int(topic["place"][0]) - int(topic["oldest"]) for topic in found)

    def batches(self, stream: str) -> int:
        """How many of its batches wait for something: timers for their time."""
        return self._waiting.get(stream, 0) + sum(self.subscriptions(stream).values()) + self.timers(stream)

    def timers(self, stream: str) -> int:
        """How many timers are to enter it."""
        return sum(timer[TIMER_STREAM] == stream for timer in self._meta.get("timers", {}).get("pending", ()))

    def in_windows(self, stream: str) -> int:
        """How many windows hold rows of it."""
        declared = self._meta["declared"]["windows"]
        return sum(stream in declared[f"{p}.{name}"]["streams"] for p, name, *_ in self._meta["windows"])


def _waiting_batches(unfinished: Mapping[str, Any]) -> Iterator[str]:
    for execution in unfinished["executions"]:
        yield from (stream for stream, batch in execution["inputs"].items() if batch is not None)
        for stream, parts in execution.get("parts", {}).items():
            yield from (stream for _, part in parts if part not in (None, "coming"))
        for question in execution["shown"]:
            yield from msgspec.convert(question, Asked).emitted or ()
    for *_, inputs, named in unfinished["partial"]:
        yield from (stream for stream, batch in inputs.items() if batch is not None)
        yield from (batch[0] for batch in named)
    for batches in unfinished["early"]:
        yield from (batch[0] for batch in batches)


def _vanished(plan: Plan, name: str, held: _Held, drops: Drops) -> None:
    ids, followers, timers = held.ids(name), held.subscriptions(name), held.timers(name)
    if timers:
        what = f"the app no longer declares it; {timers:,} timers that are to enter it would never come"
        drop_or_refuse(plan, drops, "stream", name, what, "Say renamed_from= where it is now")
    elif ids:
        what = (
            f"the app no longer declares it; {ids:,} batch-ids that it has accepted would be forgotten, and a batch that is "
            f"sent again would count twice"
        )
        drop_or_refuse(plan, drops, "stream", name, what, "Say renamed_from= where it is now")
    for follower, waiting in followers.items():
        what = f"it follows stream {name}, which the app no longer declares; {waiting:,} batches wait for it"
        drop_or_refuse(plan, drops, "subscription", follower, what, "Say renamed_from= where the stream is now")
    if kept := held.kept(name):
        what = f"the app no longer declares the stream; {kept:,} batches that its topic holds would be gone"
        drop_or_refuse(plan, drops, "topic", name, what, "Say renamed_from= where it is now")
    if not (ids or followers or timers or kept):
        plan.add("stream", name, "the app no longer declares it; nothing of it is stored", Verdict.DROPPED)


def _batch_ids(
    plan: Plan, name: str, facts: Mapping[str, Any], now: Mapping[str, Any], held: _Held, drops: Drops
) -> None:
    """Batch-ids ascend for each key of a border stream: with another key they mean nothing."""
    ids = held.ids(name)
    if not ids or (now["border"] and same_keys(facts, now)):
        return
    was, by = (f"{one['key']} {one['keyed']}" if one["key"] else "nothing" for one in (facts, now))
    told = f"keyed by {by} from now on, not by {was}" if now["border"] else "fed by a procedure from now on"
    what = f"it is {told}; {ids:,} batch-ids that it has accepted would be forgotten"
    drop_or_refuse(plan, drops, "stream", name, what, "Declare it under another name")


def _columns(plan: Plan, app: App, name: str, new: str, stored: list[list[Any]], held: _Held, drops: Drops) -> None:
    relation = app.streams[new].relation
    columns = relation.columns
    waiting = held.batches(name)
    declared = [[c.name, c.type.sql] for c in columns]
    relaxed = all(c.nullable or not was[2] for c, was in zip(columns, stored, strict=False))
    if declared[: len(stored)] != [was[:2] for was in stored] or not relaxed:
        what = f"it was declared as ({_told(stored)}), but now as ({_told([[*c] for c in declared])})"
        if waiting:
            what += f", and {waiting:,} of its batches wait"
            remedy = f"{FINISH}; or declare the stream under another name. Columns may be added at the end"
            plan.refuse("stream", new, what, remedy)
        else:
            plan.add("stream", new, f"{what}; none of its batches waits", Verdict.CARRIED)
            plan.reformed.add(new)
            if held.kept(name) and app.streams[new].keep is not None:
                lost = f"the {held.kept(name):,} batches that it keeps have other columns than its stream from now on"
                drop_or_refuse(plan, drops, "topic", name, lost, "Declare the stream under another name")
            else:
                plan.forgotten.add(("topic", name))
        return
    added = plan.widened[new] = []
    for column in columns[len(stored) :]:
        full, fill = f"{new}.{column.name}", relation.fills.get(column.name)
        if fill is None and not column.nullable and (waiting or held.in_windows(name)):
            what = "it is new and NOT NULL without a DEFAULT, so batches that wait, or rows in windows, have no value for it"
            plan.refuse("column", full, what, f"Give it a DEFAULT, or let it be NULL; or: {FINISH}")
        added.append((column, fill))
        told = f"it is new, {'NULL' if fill is None else repr(fill)} in batches and windows from before"
        plan.add("column", full, told, Verdict.ADDED if fill is None else Verdict.FILLED)


def _told(columns: list[list[Any]]) -> str:
    return ", ".join(f"{name} {kind}" for name, kind, *_ in columns)


def _key(plan: Plan, new: str, now: Mapping[str, Any], waiting: int) -> None:
    if waiting:
        what = f"its batches are keyed differently from now on, and {waiting:,} of them wait"
        plan.refuse("stream", new, what, f"{FINISH}; or declare the stream under another name")
    elif not now["border"]:
        plan.add("stream", new, "its batches are keyed differently from now on", Verdict.CARRIED)


def _unfinished_execution(
    plan: Plan, app: App, units: Mapping[str, Unit], e: Mapping[str, Any], all_of_them: Sequence[Mapping[str, Any]]
) -> None:
    unit = units.get(plan.units.get(e["unit"], e["unit"]))
    inputs = {plan.streams.get(stream, stream) for stream in (*e["inputs"], *e.get("parts", ()))}
    if unit is None or not inputs <= {*unit.inputs, *unit.awaited}:
        what = f"it still waits with batch {e['batch_id']}, but the app no longer has it on {', '.join(sorted(inputs))}"
        plan.refuse("unit", e["unit"], what, f"{FINISH}, then change it; if it was renamed, say renamed_from=")
    elif e.get("room") != (unit.room if unit.divided else None):
        what = f"it still waits with batch {e['batch_id']}, but its dataflow no longer has the same streams with their own key"
        plan.refuse("unit", e["unit"], what, f"{FINISH}, then change it")
    elif {plan.tables.get(table, table) for table in e["partitions"]} != {named.table for named in unit.named}:
        what = f"it still waits with batch {e['batch_id']}, but now its rows name partitions of other tables"
        plan.refuse("unit", e["unit"], what, f"{FINISH}, then change it")
    elif in_vain := [s for s in e["missing"] if not _comes(plan, app, units, unit, s, e, all_of_them)]:
        what = f"it still waits for batch {e['batch_id']} on stream {in_vain[0]}, but in the app no unfinished work leads there"
        plan.refuse("unit", e["unit"], what, f"{FINISH}, then change it; if the stream was renamed, say renamed_from=")
    else:
        _questions(plan, app, unit, e)


def _halts(plan: Plan, units: Mapping[str, Unit], saved: Mapping[str, Any]) -> None:
    """What is parked behind a halt must still be behind it, or nothing would ever resume it."""
    halts: dict[int, tuple[str, str]] = {}
    for e in saved["executions"]:
        unit = units.get(plan.units.get(e["unit"], e["unit"]))
        if unit is not None:
            halts[e["position"]] = unit.dataflow, repr(e["key"]) if unit.halts_by_key and "parts" not in e else ""
    fronts = [halts[at] for at, _ in saved["halted"] if at in halts]
    stray = [halts[at] for at in saved["parked"] if at in halts and halts[at] not in fronts]
    for dataflow, _ in stray[:1] or [halt for halt in fronts if fronts.count(halt) > 1][:1]:
        what = "a dataflow is halted that no longer has the same procedures or keys, so that what waits behind it would be lost"
        remedy = "Open the directory with the old code, resume or skip what is halted, close it, then change it"
        plan.refuse("dataflow", dataflow, what, remedy)


def _comes(
    plan: Plan,
    app: App,
    units: Mapping[str, Unit],
    unit: Unit,
    missing: str,
    e: Mapping[str, Any],
    all_of_them: Sequence[Mapping[str, Any]],
) -> bool:
    """Will what it waits for come: from outside, or from what is unfinished in front of it?"""
    stream = plan.streams.get(missing, missing)
    if stream not in unit.inputs:
        return stream in unit.awaited
    if app.streams[stream].border:
        return True
    emitting = {name for name, one in units.items() if stream in one.outputs}
    in_front = [other for other in all_of_them if plan.units.get(other["unit"], other["unit"]) in emitting]
    if unit.numbered_by is not None:
        return any(other["entry"] == e["entry"] for other in in_front)
    return any((other["batch_id"], other["key"]) == (e["batch_id"], e["key"]) for other in in_front)


def _unfinished(plan: Plan, graph: Graph, saved: Mapping[str, Any]) -> None:
    """What was accepted and has not ended goes on where it was."""
    for old, new in plan.units.items():
        if new != old:
            plan.add("unit", new, f"it was called {old}; its unfinished work goes on", Verdict.CARRIED)
    units = {unit.name: unit for unit in graph.units}
    for e in saved["executions"]:
        _unfinished_execution(plan, graph.app, units, e, saved["executions"])
    _halts(plan, units, saved)
    for c in saved["calls"]:
        if plan.units.get(c["procedure"], c["procedure"]) not in graph.oltp:
            what = "a call of it still waits, but the app no longer has this procedure"
            plan.refuse("procedure", c["procedure"], what, f"{FINISH}; if it was renamed, say renamed_from=")
    for name, *_ in saved["partial"]:
        if plan.units.get(name, name) not in units:
            what = "it has a batch on one of its inputs and waits for the others, but the app no longer has it"
            plan.refuse("unit", name, what, f"{FINISH}; if it was renamed, say renamed_from=")
    for batches in saved["early"]:
        for stream, batch_id, *_ in batches:
            if stream not in plan.streams:
                what = f"batch {batch_id} came early and waits, but the app no longer declares the stream"
                plan.refuse("stream", stream, what, FINISH)


def _questions(plan: Plan, app: App, unit: Unit, execution: Mapping[str, Any]) -> None:
    """Open questions continue from what they showed."""
    for question in execution["shown"]:
        record = under_new_names(plan, app, question)
        timed = {one[1] for one in record.timers or () if not isinstance(one, str)}
        for name in sorted(name for name in timed if not _is_border(app, plan.streams.get(name))):
            what = f"it waits with batch {execution['batch_id']}, and has set timers for {name}, which is no border stream now"
            plan.refuse("unit", unit.name, what, f"{FINISH}, then change it; if it was renamed, say renamed_from=")
        why = None if record.writes is None else misfit(record, unit)
        if why is not None:
            what = f"it waits with batch {execution['batch_id']} for an answer on {record.stream}, but {why}"
            plan.refuse("unit", unit.name, what, f"{FINISH}, then change it; if it was renamed, say renamed_from=")


def _is_border(app: App, stream: str | None) -> bool:
    return stream is not None and app.streams[stream].border
