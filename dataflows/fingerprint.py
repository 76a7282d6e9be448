"""What an app is, so that two versions of it can be told apart: its fingerprint, and how two of them differ.

It covers everything that decides what an execution does: the code of procedures and window functions with all that they
reach (:mod:`tidegate.dataflows.reached`), tables, streams, windows, nested transactions, triggers, the order of
procedures, the recovery mode, and the version the app declares. It is the same in every process that runs the same app.

It does not cover installed packages, nor data in objects of theirs (a data frame, a model): an app where these matter
declares ``App(version=…)``, and changes it with them.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any
from weakref import WeakKeyDictionary

from tidegate.dataflows.app import App
from tidegate.dataflows.bytecode import COMPILER
from tidegate.dataflows.definitions import Procedure, Stream
from tidegate.dataflows.reached import Part, Reached, digest_of
from tidegate.storage.schema import Relation, TableSchema
from tidegate.streams.windows.declare.declared import Declared
from tidegate.streams.windows.declare.joins import JoinSpec
from tidegate.streams.windows.declare.patterns import divided

Fingerprint = dict[str, Any]
"""As JSON: ``digest`` stands for all of it; ``version``, ``python``, ``recovery``; ``tables``, ``streams``,
``groups``, ``triggers``, ``dataflows`` and, if there are any, ``views``: by name, as they are declared;
``procedures``, ``windows``: by name (a window's is ``procedure.window``), as they are declared, and the labels of
their code; ``code``: for each label a digest, and the labels that it refers to.
"""

_known: WeakKeyDictionary[App, tuple[Any, Fingerprint]] = WeakKeyDictionary()


def fingerprint(app: App) -> Fingerprint:
    """Computed once for each app, and again when more is declared: what its code changes in memory does not count."""
    declared: tuple[Mapping[str, Any], ...] = (app.procedures, app.streams, app.tables, app.nested_groups, app.views)
    state = [[(name, id(value)) for name, value in one.items()] for one in declared], len(app.triggers)
    known = _known.get(app)
    if known is None or known[0] != state:
        known = _known[app] = (state, _fingerprint(app))
    return known[1]


def _fingerprint(app: App) -> Fingerprint:
    written = [p for p in app.procedures.values() if not p.internal]
    reached = Reached([p.function for p in written])
    found: Fingerprint = {
        "version": app.version,
        "python": COMPILER,
        "recovery": app.recovery,
        "tables": {name: _table(schema) for name, schema in app.tables.items()},
        "streams": {name: _stream(stream, reached) for name, stream in app.streams.items()},
        "groups": {group.name: ", ".join(group.members) for group in app.nested_groups.values()},
        "triggers": _triggers(app),
        "dataflows": _order(app),
        "procedures": {p.name: [_procedure(p), list(reached.reach(p.function)[1])] for p in written},
        "windows": {
            f"{p.name}.{name}": _window(spec, reached, app) for p in written for name, spec in p.windows.items()
        },
    }
    if app.views:
        found["views"] = {name: view.sql for name, view in app.views.items()}
    found["code"] = {label: list(part) for label, part in reached.parts.items()}
    found = json.loads(json.dumps(found))
    found["digest"] = digest_of(json.dumps(found, sort_keys=True))
    return found


def _columns(relation: Relation) -> str:
    told = []
    for column in relation.columns:
        default = "" if column.default is None else f" DEFAULT {column.default}"
        told.append(f"{column.name} {column.type.sql}{'' if column.nullable else ' NOT NULL'}{default}")
    return ", ".join(told)


def _table(schema: TableSchema) -> str:
    told = [f"{_columns(schema)}, PRIMARY KEY ({', '.join(schema.primary_key)})"]
    told += [f"CHECK ({check.expression})" for check in schema.checks]
    for index in sorted(schema.indexes, key=lambda index: index.name):
        told.append(f"{'UNIQUE ' if index.unique else ''}INDEX {index.name} ({', '.join(index.columns)})")
    if schema.partition_by:
        told.append(f"partitions by {', '.join(schema.partition_by)}")
    if schema.expiry is not None:
        told.append(f"rows expire {schema.expiry.after} after {schema.expiry.column}")
    return ", ".join(told)


def _stream(stream: Stream, reached: Reached) -> str:
    told = [_columns(stream.relation)]
    if stream.border:
        told.append("border")
    if stream.key is not None:
        told.append(f"key {stream.key}")
    if stream.deadline_s is not None:
        told.append(f"deadline {stream.deadline_s} s with default {reached.reach(list(stream.default))[0]}")
    if stream.idle is not None:
        told.append(f"idle {stream.idle.column} {stream.idle.us} us")
    if stream.schedule is not None:
        told.append(str(stream.schedule))
    if stream.changelog_of is not None:
        told.append(f"changelog of {stream.changelog_of}")
    return ", ".join(told)


def _procedure(procedure: Procedure) -> str:
    told = (
        [f"{'either of' if procedure.either else 'inputs'} {', '.join(procedure.inputs)}"] if procedure.inputs else []
    )
    if procedure.outputs:
        told.append(f"outputs {', '.join(procedure.outputs)}")
    if procedure.timers:
        told.append(f"timers {', '.join(procedure.timers)}")
    accesses = sorted(procedure.access, key=lambda access: access.table)
    told += [f"{'writes' if access.write else 'reads'} {access}" for access in accesses]
    told.append(f"{procedure.retries} retries, then {procedure.on_failure}")
    if procedure.deadline_s is not None:
        told.append(f"deadline {procedure.deadline_s} s")
    return ", ".join(told)


def _window(spec: Declared, reached: Reached, app: App) -> list[Any]:
    text, uses = reached.reach(spec)
    return [str(spec) + divided_in(spec, app.streams), digest_of(text), list(uses)]


def divided_in(spec: Declared, streams: Mapping[str, Stream]) -> str:
    """How a window's function is divided, where its pattern decides that."""
    if isinstance(spec, JoinSpec) or spec.compute is None:
        return ""
    how = divided(spec, streams[spec.stream].relation)
    return how and f" {how}"


def _triggers(app: App) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for trigger in app.triggers:
        on = trigger.stream if trigger.window is None else ".".join(trigger.window)
        found.setdefault(str(on), []).append(trigger.statement.sql)
    return found


def _order(app: App) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for unit in app.graph().units:
        found.setdefault(unit.dataflow, []).append(unit.name)
    return found


# ---- differences


def difference(old: Mapping[str, Any], new: Mapping[str, Any]) -> list[str]:
    """What is different in ``new``, in words, one line for each thing; nothing if they are the same app."""
    if old["digest"] == new["digest"]:
        return []
    told = [
        f"{what}: was {old[name] or 'not declared'}, is {new[name] or 'not declared'}"
        for what, name in (("version", "version"), ("recovery mode", "recovery"), ("Python", "python"))
        if old[name] != new[name]
    ]
    for kind, name in (
        ("table", "tables"),
        ("stream", "streams"),
        ("nested transaction", "groups"),
        ("trigger on", "triggers"),
    ):
        told += _declared(kind, old[name], new[name])
    told += _declared("view", old.get("views", {}), new.get("views", {}))
    for kind, name in (("procedure", "procedures"), ("window", "windows")):
        told += _declared(kind, *({key: value[:-1] for key, value in one[name].items()} for one in (old, new)))
    told += _ordered(old["dataflows"], new["dataflows"])
    if old["python"] == new["python"]:
        told += _changed_code(old, new)
    return told or ["something in the app's code"]


def structural_difference(old: Mapping[str, Any], new: Mapping[str, Any]) -> list[str]:
    """The differences that count even if no procedure runs again: tables and streams, what is connected to what, in which
    order, and windows, which slide again. Procedures that clients call may be new.
    """
    told = _declared("table", old["tables"], new["tables"])
    told += _declared("stream", old["streams"], new["streams"])
    told += _declared("nested transaction", old["groups"], new["groups"])
    told += _ordered(old["dataflows"], new["dataflows"])
    if old["dataflows"] != new["dataflows"] and not told:
        told.append("a procedure of a dataflow is new or gone")
    common = {name: value[:1] for name, value in new["procedures"].items() if name in old["procedures"]}
    told += _declared("procedure", {name: value[:1] for name, value in old["procedures"].items()}, common)
    told += _declared("window", *({name: value[:-1] for name, value in one["windows"].items()} for one in (old, new)))
    told += [
        f"window {name}: its code changed"
        for name in old["windows"].keys() & new["windows"].keys()
        if reaches(old, "windows", name) != reaches(new, "windows", name)
    ]
    return told


def _declared(kind: str, old: Mapping[str, Any], new: Mapping[str, Any]) -> list[str]:
    told = [f"{kind} {name}: is gone" for name in old if name not in new]
    told += [f"{kind} {name}: is new" for name in new if name not in old]
    for name, was in old.items():
        if name in new and new[name] != was:
            before, after = _shown(kind, was), _shown(kind, new[name])
            same = f"is declared differently ({before})"  # in something that is not shown
            told.append(
                f"{kind} {name}: {same if before == after else f'was declared as ({before}), now as ({after})'}"
            )
    return told


def _shown(kind: str, declared: Any) -> str:
    if isinstance(declared, str):
        return declared
    return "; ".join(declared if kind == "trigger on" else declared[:1])


def _ordered(old: Mapping[str, list[str]], new: Mapping[str, list[str]]) -> list[str]:
    """Procedures that are in both run in another order, or are connected differently."""
    told = []
    for units in old.values():
        for now in new.values():
            before, after = [u for u in units if u in now], [u for u in now if u in units]
            if before != after:
                told.append(f"order of execution: was {', '.join(before)}, is {', '.join(after)}")
    return told


def _changed_code(old: Mapping[str, Any], new: Mapping[str, Any]) -> list[str]:
    """Parts of the code that differ, each with the procedures and windows that reach it."""
    users: dict[str, list[str]] = {}
    for kind, name in (("procedure", "procedures"), ("window", "windows")):
        for one in old[name].keys() & new[name].keys():
            was, now = (reaches(f, name, one) for f in (old, new))
            changed = [label for label in was if label in now and was[label] != now[label]]
            for label in (
                changed or [label for label in now if label not in was] or [label for label in was if label not in now]
            ):
                users.setdefault(label, []).append(f"{kind} {one}")
    return sorted(f"{', '.join(sorted(by))}: {_told(label, old, new)}" for label, by in users.items())


def _told(label: str, old: Mapping[str, Any], new: Mapping[str, Any]) -> str:
    if label not in old["code"]:
        return f"{label} is new"
    return f"{label} {'changed' if label in new['code'] else 'is gone'}"


def reaches(found: Mapping[str, Any], kind: str, name: str) -> dict[str, str]:
    """The digests of all code that a procedure (or window: ``kind``) reaches, by label."""
    reached: dict[str, str] = {}
    waiting: list[str] = list(found[kind][name][-1])
    while waiting:
        label = waiting.pop(0)
        if label not in reached:
            part: Part = found["code"][label]
            reached[label] = part[0]
            waiting += part[1]
    return reached


def told_difference(lines: Iterable[str], most: int = 8) -> str:
    """The lines as one text, the first of them when there are many."""
    told = list(lines)
    more = [f"and {len(told) - most} more"] if len(told) > most else []
    return "; ".join([*told[:most], *more])
