"""Bringing a directory to the app that opens it, or saying why that is not possible."""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from tidegate.dataflows.graph import Graph
from tidegate.directory.upgrading.carrying import Carrying
from tidegate.directory.upgrading.changes import Change, Drops, Plan, Verdict
from tidegate.directory.upgrading.declared import declared_facts
from tidegate.directory.upgrading.streams import plan_streams
from tidegate.directory.upgrading.tables import plan_tables
from tidegate.directory.upgrading.windows import plan_windows
from tidegate.errors import RecoveryRefused
from tidegate.storage.migration import StoredBase

log = logging.getLogger("tidegate")


def make_plan(
    graph: Graph, meta: Mapping[str, Any], stored: StoredBase, drop: Collection[str] = (), pending: bool = False
) -> Plan:
    """What opening this directory with the app of ``graph`` does. Nothing is changed.

    ``meta``: the facts in its base. ``pending``: there are records in the log that the base does not have.
    """
    app, plan, drops = graph.app, Plan(), Drops(drop)
    if meta["app"] != app.name:
        what = f"the directory belongs to app {meta['app']!r}"
        plan.refuse("app", app.name, what, "Open it with the right app")
        return plan
    plan_tables(plan, app, meta, stored, drops)
    plan_streams(plan, graph, meta, drops)
    plan_windows(plan, graph, meta, drops)
    if not plan.refused:
        for trial in plan.trials:
            found = stored.offenders(trial)
            name = trial.reshape.schema.name
            if found is None:
                plan.add("table", name, f"{trial.told} holds for every stored row", Verdict.CARRIED)
            else:
                plan.refuse(
                    "table", name, f"{trial.told} is new, but {found}", "Change those rows with the old code first"
                )
    if pending and plan.changes:
        plan.refuse(
            "log",
            app.name,
            "it has records since the last merge, which only the code that wrote them can replay",
            "Open the directory with the old code and close it cleanly, then open it with the new code",
        )
    for name in drops.unused():
        log.warning("drop=%r: there is nothing of that name to drop", name)
    return plan


def bring_over(
    graph: Graph, path: Path, meta: Mapping[str, Any], drop: Collection[str], pending: bool
) -> tuple[Mapping[str, Any], list[Change]]:
    """Give the closed base at ``path`` the shape that the app declares; returns its facts, and what has changed.

    All of it in one transaction: after a kill the base is as before or as after. Doing it twice is safe, because the
    second time nothing is left to do.
    """
    if not meta:
        return meta, []
    with StoredBase(path) as stored:
        plan = make_plan(graph, meta, stored, drop, pending)
        if plan.refused:
            raise refusal(path, plan.refused)
        if not plan.changes:
            return meta, []
        facts = Carrying(plan, graph.app).state(meta, declared_facts(graph))
        dropped = [name for kind, name in plan.forgotten if kind == "table"]
        stored.migrate(plan.reshapes, plan.created, dropped, facts)
    for change in plan.changes:
        lost = change.verdict is Verdict.RESTARTED or (change.kind, change.name) in plan.forgotten
        level = logging.WARNING if lost else logging.INFO
        log.log(level, "%s: %s: %s", path.parent, change.verdict, change)
    return facts, plan.changes


def refusal(path: Path, refused: list[Change]) -> RecoveryRefused:
    told = str(refused[0]) if len(refused) == 1 else "".join(f"\n  {change}" for change in refused)
    return RecoveryRefused(
        f"{path.parent} does not fit the app: {told}\nNothing was changed. tidegate upgrade --check says all that an upgrade "
        f"does",
        changes=refused,
    )
