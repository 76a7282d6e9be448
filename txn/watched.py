"""The transaction of a procedure with a deadline."""

from __future__ import annotations

from types import FunctionType
from typing import Any

from tidegate.storage.view import View
from tidegate.txn.transaction import Transaction
from tidegate.txn.watchdog import Watch, engine_code


class WatchedTransaction(Transaction):
    """A transaction that knows when its procedure is in one of its methods: see :mod:`tidegate.txn.watchdog`.

    ``watch``: None while nobody watches, as in a replay.
    """

    __slots__ = ("watch",)

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.watch: Watch | None = None


for _name, _method in {**vars(View), **vars(Transaction)}.items():
    if isinstance(_method, FunctionType) and not _name.startswith("_"):
        setattr(WatchedTransaction, _name, engine_code(_method))
