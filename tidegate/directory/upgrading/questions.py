"""Open questions, in the app that opens the directory: they go on with what they showed, or are refused."""

from __future__ import annotations

from typing import Any

import msgspec

from tidegate.dataflows.app import App
from tidegate.directory.upgrading.changes import Plan
from tidegate.txn.log.record import Asked


def under_new_names(plan: Plan, app: App, saved: Any) -> Asked:
    """A stored question, with the names that streams, tables and procedures have now; its rows are as they were."""
    record: Asked = msgspec.convert(saved, Asked)
    procedures = {old: new for (kind, new), old in app.renamed.items() if kind == "procedure"}

    def name_of(procedure: str) -> str:
        return procedure if procedure in app.procedures else procedures.get(procedure, procedure)

    return msgspec.structs.replace(
        record,
        stream=plan.streams.get(record.stream, record.stream),
        procedure=name_of(record.procedure),
        front=[name_of(procedure) for procedure in record.front],
        writes=_renamed(record.writes, plan.tables),
        emitted=_renamed(record.emitted, plan.streams),
    )


def _renamed(named: dict[str, Any] | None, names: dict[str, str]) -> dict[str, Any] | None:
    return None if named is None else {names.get(name, name): rows for name, rows in named.items()}
