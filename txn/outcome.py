"""How an attempt to run an execution ended.

==========================  =======================================================================
:data:`COMMITTED`           all members ran: it may commit
:class:`Waits`              the next member needs a batch that has not been pushed yet
:data:`PAUSED`              only one member was to run, and more remain (a test driver asked for it)
``Aborted``                 it aborted itself, a row was refused, or it ran past its deadline
``ProcedureFailed``         a procedure raised something else and its retries are used up
==========================  =======================================================================
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Final, Literal

from tidegate.errors import Aborted, ProcedureFailed


class _Went(Enum):
    COMMITTED = "committed"
    PAUSED = "paused"


COMMITTED: Final = _Went.COMMITTED
PAUSED: Final = _Went.PAUSED


@dataclass(frozen=True, slots=True)
class Waits:
    """It continues when a batch arrives on ``stream``."""

    stream: str

    def __str__(self) -> str:
        return f"waits for {self.stream}"


Advanced = Literal[_Went.COMMITTED, _Went.PAUSED] | Waits
Undone = Aborted | ProcedureFailed
Outcome = Advanced | Undone
