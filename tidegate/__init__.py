"""tidegate: a transactional stream engine.

Python stored procedures with SQL, wired into dataflows over streams and shared tables, with ACID, order and exactly-once
at the same time. Start with :class:`App` and :func:`open`.

Names are imported when they are used first: a command that is interrupted while it begins can say so in its own way
(:mod:`tidegate.__main__`).
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tidegate.config import Config
    from tidegate.connecting import connect, connect_async
    from tidegate.dataflows.app import App
    from tidegate.dataflows.definitions import committed, either, partition
    from tidegate.engine.engine import Engine, open
    from tidegate.errors import (
        Aborted,
        AccessError,
        BatchError,
        ConstraintError,
        DataError,
        DeclarationError,
        Overloaded,
        ProcedureFailed,
        StatementError,
        StillWaiting,
        TidegateError,
    )
    from tidegate.streams.batch import Batch
    from tidegate.streams.windows import window
    from tidegate.streams.windows.declare.joins import join
    from tidegate.streams.windows.patterns.declare import pattern
    from tidegate.txn.ticket import Ticket
    from tidegate.txn.transaction import Transaction

__all__ = [
    "Aborted",
    "AccessError",
    "App",
    "Batch",
    "BatchError",
    "Config",
    "ConstraintError",
    "DataError",
    "DeclarationError",
    "Engine",
    "Overloaded",
    "ProcedureFailed",
    "StatementError",
    "StillWaiting",
    "Ticket",
    "TidegateError",
    "Transaction",
    "committed",
    "connect",
    "connect_async",
    "either",
    "join",
    "open",
    "partition",
    "pattern",
    "window",
]

_HOMES = {
    "Aborted": "tidegate.errors",
    "AccessError": "tidegate.errors",
    "App": "tidegate.dataflows.app",
    "Batch": "tidegate.streams.batch",
    "BatchError": "tidegate.errors",
    "Config": "tidegate.config",
    "ConstraintError": "tidegate.errors",
    "DataError": "tidegate.errors",
    "DeclarationError": "tidegate.errors",
    "Engine": "tidegate.engine.engine",
    "Overloaded": "tidegate.errors",
    "ProcedureFailed": "tidegate.errors",
    "StatementError": "tidegate.errors",
    "StillWaiting": "tidegate.errors",
    "Ticket": "tidegate.txn.ticket",
    "TidegateError": "tidegate.errors",
    "Transaction": "tidegate.txn.transaction",
    "committed": "tidegate.dataflows.definitions",
    "connect": "tidegate.connecting",
    "connect_async": "tidegate.connecting",
    "either": "tidegate.dataflows.definitions",
    "join": "tidegate.streams.windows.declare.joins",
    "open": "tidegate.engine.engine",
    "partition": "tidegate.dataflows.definitions",
    "pattern": "tidegate.streams.windows.patterns.declare",
    "window": "tidegate.streams.windows",
}

_ROOMS = frozenset({"connectors", "errors", "testing", "windows"})  # modules for users: tidegate.errors needs no import

if not TYPE_CHECKING:  # type checkers know every name, and no other

    def __getattr__(name: str) -> Any:
        if name in _ROOMS:
            return import_module(f"tidegate.{name}")
        if name not in _HOMES:
            raise AttributeError(f"module 'tidegate' has no attribute {name!r}")
        found = globals()[name] = getattr(import_module(_HOMES[name]), name)
        return found

    def __dir__() -> list[str]:
        return sorted({*globals(), *__all__})
