"""tidegate: a transactional stream engine.

Python stored procedures with SQL, wired into dataflows over streams and shared tables, with ACID, order and exactly-once
at the same time. Start with :class:`App` and :func:`open`.
"""

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
    "window",
]
