"""What a forked child inherits and must not use: engines, their files and their connections.

A forked child has a copy of the parent's memory and shares its files and sockets, but has none of its threads. There an
engine would write into the parent's log at an offset that the parent has passed, DuckDB would checkpoint into the
parent's base, and locks that other threads held would never be released. So whatever owns such resources registers here
(:func:`own`). In a child any use of it raises WrongProcess, before a lock is taken. It is never destroyed either, not
even when the child's interpreter ends: a destructor would reach the parent's files.

Calls do not check the process id, so this costs nothing: the fork itself replaces what a call reaches.
"""

from __future__ import annotations

import ctypes
import os
import weakref
from typing import Any

from tidegate.errors import WrongProcess

_owned: weakref.WeakSet[Any] = weakref.WeakSet()
_owner = os.getpid()  # the process that made what is registered
_parent = 0  # the process that this one was forked from, and that made what it inherited
_directories: set[str] = set()  # open in the parent when this process was forked


def own(thing: Any) -> None:
    """``thing`` belongs to this process alone. In a child, its ``left_behind()`` is called first, if it has one."""
    _owned.add(thing)


def hand_down(directory: str) -> None:
    """In a child: the parent had this directory open."""
    _directories.add(directory)


def check_directory(directory: str) -> None:
    """Raise when this process can't open the directory, because it inherited the parent's open DuckDB."""
    if directory in _directories:
        raise WrongProcess(
            f"{directory} was open in process {_parent} when it forked this one (process {os.getpid()}), so DuckDB "
            f"here would keep using the state it inherited instead of reading the file. Open it in a fresh process:  "
            f'multiprocessing.get_context("spawn"), or subprocess',
            path=directory,
        )


def _use(thing: Any, name: str) -> Any:
    if name.startswith("__"):
        return object.__getattribute__(thing, name)
    raise _refusal(thing)


def _refusal(thing: Any) -> WrongProcess:
    kind = type(thing).__name__
    return WrongProcess(
        f"this {kind} belongs to process {_parent}, and this is process {os.getpid()}, forked from it: two processes can't write "
        f"to one log or share one connection. Let the parent do the work (or a server: tidegate serve), open what the child "
        f'needs in the child, or start a fresh process: multiprocessing.get_context("spawn")',
        kind=kind,
        process=_parent,
    )


def _enter(thing: Any) -> Any:
    raise _refusal(thing)


def _leave(thing: Any, *_: object) -> None:
    """Leaving a ``with`` block does nothing: the parent closes it."""


def _shown(thing: Any) -> str:
    return f"<{type(thing).__name__} of process {_parent}, which forked this one>"


def _inherited(kind: type) -> type:
    """What an object of this kind becomes in a child."""
    changed = {"__getattribute__": _use, "__enter__": _enter, "__exit__": _leave, "__repr__": _shown}
    return type(kind.__name__, (kind,), {"__slots__": (), **changed})


def _disown() -> None:
    """This process has just been forked: everything registered belongs to the parent."""
    global _owner, _parent
    _parent, _owner = _owner, os.getpid()
    for thing in list(_owned):
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(thing))  # forever: its destructors are never called
        if hasattr(thing, "left_behind"):
            thing.left_behind()
        thing.__class__ = _inherited(type(thing))
    _owned.clear()


os.register_at_fork(after_in_child=_disown)
