"""Compiled code as text: equal for equal behaviour, whatever its comments, docstrings, formatting and line numbers.

Code is compared as compiled, because that is what runs: a source file may have been edited since it was imported, or not
exist. So code compiled by different versions of Python can't be compared.
"""

from __future__ import annotations

import dis
import sys
from functools import lru_cache
from types import CodeType
from typing import Any, NamedTuple

COMPILER = sys.implementation.cache_tag or sys.version
_HAS_DOCSTRING = 0x4000000  # CO_HAS_DOCSTRING, since 3.13; before, the place is kept for one
_ALWAYS_KEPT = sys.version_info < (3, 13)
_GLOBAL = frozenset({"LOAD_GLOBAL", "LOAD_NAME", "LOAD_FROM_DICT_OR_GLOBALS"})
_INTERESTING = frozenset({*_GLOBAL, "LOAD_CONST", "IMPORT_NAME"})


class Import(NamedTuple):
    """An import statement inside a function: ``from ..name import …`` has level 2."""

    name: str
    level: int
    fromlist: tuple[str, ...]


class Names(NamedTuple):
    """What code refers to, nested functions included: global names, all names (attributes too), imports."""

    globals: tuple[str, ...]
    all: frozenset[str]
    imports: tuple[Import, ...]


@lru_cache(maxsize=8192)
def text_of_code(code: CodeType) -> str:
    """Everything in it that decides what it does."""
    consts = ", ".join(_const(value) for value in _without_docstring(code))
    return (
        f"{code.co_argcount} {code.co_posonlyargcount} {code.co_kwonlyargcount} {code.co_flags} {code.co_code.hex()} "
        f"{code.co_exceptiontable.hex()} {code.co_names} {code.co_varnames} {code.co_freevars} {code.co_cellvars} [{consts}]"
    )


def _without_docstring(code: CodeType) -> tuple[Any, ...]:
    consts = code.co_consts
    if not consts or not isinstance(consts[0], str):
        return consts
    function = bool(code.co_flags & 2) and not code.co_name.startswith("<")  # CO_NEWLOCALS: not a class body
    documented = function if _ALWAYS_KEPT else bool(code.co_flags & _HAS_DOCSTRING)
    return (None, *consts[1:]) if documented or code.co_name == "<module>" else consts


def _const(value: Any) -> str:
    if isinstance(value, CodeType):
        return f"code({text_of_code(value)})"
    if isinstance(value, frozenset):
        return f"{{{', '.join(sorted(map(_const, value)))}}}"  # its order depends on the process
    if isinstance(value, tuple):
        return f"({', '.join(map(_const, value))})"
    return repr(value)


@lru_cache(maxsize=8192)
def names_in(code: CodeType) -> Names:
    found: dict[str, None] = {}
    imports: list[Import] = []
    consts: list[Any] = []  # the last loaded
    for instruction in dis.get_instructions(code):
        if instruction.opname not in _INTERESTING:
            continue
        if instruction.opname in _GLOBAL:
            found[instruction.argval] = None
        elif instruction.opname == "LOAD_CONST":
            consts.append(instruction.argval)
        else:
            level, fromlist = consts[-2:]
            imports.append(Import(instruction.argval, level, tuple(fromlist or ())))
    every = set(code.co_names)
    for inner in code.co_consts:
        if isinstance(inner, CodeType):
            names = names_in(inner)
            found.update(dict.fromkeys(names.globals))
            every |= names.all
            imports += names.imports
    return Names(tuple(found), frozenset(every), tuple(imports))
