"""The code that an app runs, and all that it reaches: functions, classes, constants, variables of closures, modules.

Only the app's own code is looked into: not the standard library, not installed packages, not tidegate itself. (A package
that declares procedures is the app's own, installed or not.) Of these only the names that are used are known.

Values are told by content. An object of another library that is not plain data (a lock, an open file, a logger, a data
frame) is told by its type and the app's functions that it holds: what is in it may differ from run to run.
"""

from __future__ import annotations

import functools
import hashlib
import importlib.util
import operator
import sys
import sysconfig
from array import array
from collections import ChainMap, UserDict, UserList, deque
from collections.abc import Callable, Iterable, Mapping
from enum import Enum
from pathlib import Path
from types import (
    BuiltinFunctionType,
    CodeType,
    FunctionType,
    GetSetDescriptorType,
    MappingProxyType,
    MemberDescriptorType,
    MethodType,
    ModuleType,
    SimpleNamespace,
)
from typing import Any

from tidegate.dataflows.bytecode import Import, names_in, text_of_code
from tidegate.storage.schema import Column
from tidegate.storage.sql.statements import Statement

PLAIN = frozenset({int, float, complex, str, bytes, bool, type(None), type(...), type(NotImplemented)})
DATA_MODULES = frozenset({"datetime", "decimal", "fractions", "uuid", "pathlib", "ipaddress", "zoneinfo", "re"})
DECLARED = "tidegate.streams.windows."  # what windows are declared with
HOW = frozenset({"pattern", "backend", "max_delay_us"})  # of a window: how it is evaluated, not what it gives
CLASS_FACTS = frozenset({"__slots__", "__match_args__", "__struct_fields__", "__struct_defaults__", "__attrs_attrs__"})
IGNORED = frozenset(
    {"_abc_impl", "__doc__", "__module__", "__qualname__", "__weakref__", "__dict__", "__annotations__"}
)
BY_NAME = frozenset({"getattr", "vars", "__dict__"})  # with these, code may use any name of a module
INSTALLED = ("site-packages", "dist-packages")
STANDARD = tuple({sysconfig.get_paths()["stdlib"], sysconfig.get_paths()["platstdlib"]})
DEPTH = 3  # how deep in objects of other libraries the app's functions are looked for
WIDTH = 100  # how many things in each are looked at
NESTED = 40  # values in one another, after which an object of the app becomes a part of its own

Part = tuple[str, tuple[str, ...]]  # a digest, and the labels of the parts it refers to


def digest_of(text: str) -> str:
    return hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=8).hexdigest()


class _Open:
    """A part while it is read."""

    def __init__(self) -> None:
        self.told: list[str] = []
        self.uses: dict[str, None] = {}
        self.objects: dict[int, int] = {}  # of the app's classes, and their number in here: each is read once


class Reached:
    """``parts``: what was reached so far, by labels that people understand, such as ``function dose() in ward.py``.

    ``roots``: the functions that an app declares. Their modules and packages are the app's own.
    """

    def __init__(self, roots: Iterable[Callable[..., Any]]) -> None:
        self.parts: dict[str, Part] = {}
        self._label_of: dict[Any, str] = {}
        self._kept: list[Any] = []  # alive, so that no id is used twice
        self._within: set[int] = set()  # values that are being read
        self._waiting: deque[tuple[str, Callable[[_Open], None]]] = deque()  # parts without a digest yet
        modules = {str(getattr(root, "__module__", None)) for root in roots}
        self._modules = frozenset(modules)
        self._packages = frozenset(name.partition(".")[0] for name in modules) - {"tidegate"}
        self._own: dict[str, bool] = {}

    # ---- parts

    def reach(self, value: Any) -> tuple[str, tuple[str, ...]]:
        """``value`` as text, and the labels of the parts that the text refers to."""
        part = _Open()
        told = self._text(value, part)
        while self._waiting:
            label, fill = self._waiting.popleft()
            new = _Open()
            fill(new)
            self.parts[label] = (digest_of("\n".join(new.told)), tuple(new.uses))
        return told, tuple(part.uses)

    def _part(self, identity: Any, label: str, fill: Callable[[_Open], None], part: _Open) -> str:
        """The label of a part of its own, which ``part`` refers to."""
        known = self._label_of.get(identity)
        if known is None:
            known, number = label, 1
            while known in self.parts:
                number += 1
                known = f"{label} ({number})"
            self._label_of[identity] = known
            self.parts[known] = ("", ())
            self._waiting.append((known, fill))
        part.uses[known] = None
        return f"<{known}>"

    def _function(self, function: FunctionType, part: _Open) -> str:
        if not self._is_own(function.__module__):
            if id(function) not in self._within:  # its own variables may hold it
                self._within.add(id(function))
                self._add_cells(function, part)
                self._within.discard(id(function))
            return _outside(function)

        def fill(new: _Open) -> None:
            new.told.append(text_of_code(function.__code__))
            new.told.append(self._text([function.__defaults__, function.__kwdefaults__, vars(function)], new))
            self._add_names(function.__code__, function.__globals__, _place(function), new)
            self._add_cells(function, new)

        self._kept.append(function)
        return self._part(id(function), f"function {_short(function)}() in {_place(function)}", fill, part)

    def _add_names(self, code: CodeType, scope: Mapping[str, Any], place: str, part: _Open) -> None:
        names = names_in(code)
        for name in names.globals:
            if name in scope and not (name.startswith("__") and name.endswith("__")):
                part.told.append(f"{name} = {self._named(name, scope[name], place, names.all, part)}")
        for imported in names.imports:
            part.told.append(self._import(imported, str(scope.get("__package__") or ""), part))

    def _named(self, name: str, value: Any, place: str, used: frozenset[str], part: _Open) -> str:
        """What a global name stands for. A constant is a part of its own, so that it can be named when it changes."""
        if isinstance(value, ModuleType):
            return self._module(value, used, part)
        if isinstance(value, (FunctionType, BuiltinFunctionType, type)):
            return self._text(value, part)
        return self._part(
            ("constant", place, name),
            f"constant {name} in {place}",
            lambda new: new.told.append(self._text(value, new)),
            part,
        )

    def _add_cells(self, function: FunctionType, part: _Open) -> None:
        names = function.__code__.co_freevars
        for name, cell in zip(names, function.__closure__ or (), strict=True):
            try:
                value = cell.cell_contents
            except ValueError:
                value = None  # assigned later
            if isinstance(value, (FunctionType, type)):
                part.told.append(f"{name} = {self._text(value, part)}")
            elif isinstance(value, ModuleType):
                part.told.append(f"{name} = {self._module(value, names_in(function.__code__).all, part)}")
            else:
                self._cell(name, cell, value, function, part)

    def _cell(self, name: str, cell: Any, value: Any, function: FunctionType, part: _Open) -> None:
        self._kept.append(cell)
        label = f"variable {name} around {_short(function)}() in {_place(function)}"
        told = self._part(id(cell), label, lambda new: new.told.append(self._text(value, new)), part)
        part.told.append(f"{name} = {told}")

    def _class(self, kind: type, part: _Open) -> str:
        if not self._is_own(kind.__module__):
            return _outside(kind)

        def fill(new: _Open) -> None:
            new.told.append(self._text([kind.__bases__, type(kind)], new))
            for name, value in sorted(vars(kind).items()):
                code = isinstance(value, (FunctionType, staticmethod, classmethod, property))
                if name in IGNORED or (name.startswith("__") and not code and name not in CLASS_FACTS):
                    continue
                new.told.append(f"{name} = {self._text(value, new)}")

        self._kept.append(kind)
        return self._part(id(kind), f"class {_short(kind)} in {_place(kind)}", fill, part)

    # ---- modules

    def _module(self, module: ModuleType, used: frozenset[str], part: _Open) -> str:
        """Of a module the names are taken that the code may use; all of it if none can be found, or if any may be used."""
        if not self._is_own(module.__name__):
            return f"module {module.__name__.partition('.')[0]}"
        place = _place_of_module(module.__name__, getattr(module, "__file__", None))
        names = sorted(name for name in vars(module) if name in used and not name.startswith("__"))
        whole = [] if names and not used & BY_NAME else [self._whole_module(module.__name__, part)]
        told = whole + [f"{name} = {self._named(name, getattr(module, name), place, used, part)}" for name in names]
        return f"module {place} ({', '.join(told)})"

    def _import(self, imported: Import, package: str, part: _Open) -> str:
        name = imported.name
        if imported.level:
            try:
                name = importlib.util.resolve_name("." * imported.level + name, package)
            except ImportError:
                return f"import {imported}"
        told = [self._whole_module(name, part)]
        told += [self._whole_module(f"{name}.{sub}", part) for sub in imported.fromlist if self._is_module(name, sub)]
        return f"import {', '.join(told)}"

    def _is_module(self, package: str, name: str) -> bool:
        return self._is_own(package) and _spec(f"{package}.{name}") is not None

    def _whole_module(self, name: str, part: _Open) -> str:
        """All of a module, as it is compiled: it need not have been imported yet."""
        if not self._is_own(name):
            return f"module {name.partition('.')[0]}"
        spec = _spec(name)
        code = None
        if spec is not None and hasattr(spec.loader, "get_code"):
            code = spec.loader.get_code(name)
        place = _place_of_module(name, None if spec is None else spec.origin)

        def fill(new: _Open) -> None:
            if code is not None:
                new.told.append(text_of_code(code))
                package = name if spec is not None and spec.submodule_search_locations else name.rpartition(".")[0]
                for imported in names_in(code).imports:
                    new.told.append(self._import(imported, package, new))

        return self._part(("module", name), f"module {place}", fill, part)

    def _is_own(self, name: str | None) -> bool:
        """Does the module belong to the app?"""
        name = str(name)
        known = self._own.get(name)
        if known is None:
            known = self._own[name] = name in self._modules or self._is_own_by_place(name)
        return known

    def _is_own_by_place(self, name: str) -> bool:
        top = name.partition(".")[0]
        if top in self._packages or top == "tidegate":
            return top != "tidegate"
        if name in sys.builtin_module_names:
            return False
        module = sys.modules.get(name) or sys.modules.get(top)
        file = getattr(module, "__file__", None)
        if module is None and (spec := _spec(top)) is not None:
            file = spec.origin if spec.has_location else "frozen"
        if file is None:
            return top not in sys.stdlib_module_names
        installed = any(part in INSTALLED for part in Path(file).parts)
        return file != "frozen" and not installed and not file.startswith(STANDARD)

    # ---- values

    def _text(self, value: Any, part: _Open) -> str:
        kind = type(value)
        if kind in PLAIN:
            return repr(value)
        if isinstance(value, FunctionType):
            return self._function(value, part)
        if isinstance(value, type):
            return self._class(value, part)
        if id(value) in self._within:
            return "itself"
        self._within.add(id(value))
        try:
            return self._object(value, kind, part)
        finally:
            self._within.discard(id(value))

    def _object(self, value: Any, kind: type, part: _Open) -> str:
        if isinstance(value, (tuple, list, deque, set, frozenset, dict, MappingProxyType)):
            return self._container(value, kind, part)
        if (inner := _inside(value)) is not None:
            return f"{_name_of(kind)}({', '.join(self._text(one, part) for one in inner)})"
        if isinstance(value, ModuleType):
            return self._whole_module(value.__name__, part)
        if isinstance(value, CodeType):
            return text_of_code(value)
        if isinstance(value, Enum):
            return f"{self._text(kind, part)}.{value.name} {self._text(value.value, part)}"
        if kind.__module__ in DATA_MODULES:
            return f"{_name_of(kind)} {value!r}"
        if kind.__module__ == "numpy":
            return _array(value)
        if kind.__module__.partition(".")[0] == "sqlalchemy" and hasattr(value, "compile"):
            return _sql(value)
        if kind.__module__.startswith(DECLARED) or self._is_own(kind.__module__):
            return self._instance(value, kind, part)
        return f"{_name_of(kind)} with {self._functions_in(value, DEPTH, part)}"

    def _container(self, value: Any, kind: type, part: _Open) -> str:
        name = kind.__name__ if kind.__module__ == "builtins" else self._text(kind, part)
        if isinstance(value, (dict, MappingProxyType)):
            pairs = (f"{self._text(key, part)}: {self._text(one, part)}" for key, one in value.items())
            return f"{name}{{{', '.join(pairs)}}} {self._text(getattr(value, 'default_factory', None), part)}"
        plain = set(map(type, value)) <= PLAIN  # there may be many
        texts = list(map(repr, value)) if plain else [self._text(one, part) for one in value]
        return f"{name}[{', '.join(sorted(texts) if isinstance(value, (set, frozenset)) else texts)}]"

    def _instance(self, value: Any, kind: type, part: _Open) -> str:
        """Objects may refer to one another in any way: each is read once, and none is too deep."""
        told = self._text(kind, part)
        number = part.objects.setdefault(id(value), len(part.objects))
        if number < len(part.objects) - 1:
            return f"{told} number {number}"
        self._kept.append(value)
        if len(self._within) <= NESTED:
            return f"{told} {self._state(value, part)}"
        label = f"object of {_short(kind)} in {_place(kind)}"
        return self._part(("object", id(value)), label, lambda new: new.told.append(self._state(value, new)), part)

    def _state(self, value: Any, part: _Open) -> str:
        """The attributes of an object."""
        state = dict(getattr(value, "__dict__", None) or {})
        for kind in type(value).__mro__:
            slots = kind.__dict__.get("__slots__", ())
            for slot in (slots,) if isinstance(slots, str) else slots:
                if not slot.startswith("__") and hasattr(value, slot):
                    state[slot] = getattr(value, slot)
        declared = type(value).__module__.startswith(DECLARED)
        return self._text({k: v for k, v in sorted(state.items()) if not (declared and k in HOW)}, part)

    def _functions_in(self, value: Any, depth: int, part: _Open) -> str:
        """The app's functions and classes that an object of another library holds."""
        if not depth or type(value).__module__.partition(".")[0] in ("tidegate", "logging"):
            return ""
        held = getattr(value, "__dict__", None)
        found = []
        for name, one in [*held.items()][:WIDTH] if isinstance(held, dict) else ():
            if isinstance(one, (FunctionType, type)):
                if self._is_own(one.__module__):
                    found.append(f"{name} = {self._text(one, part)}")
            elif type(one) not in PLAIN and id(one) not in self._within:
                self._within.add(id(one))
                if inner := self._functions_in(one, depth - 1, part):
                    found.append(f"{name} = ({inner})")
                self._within.discard(id(one))
        return ", ".join(sorted(found))


def _inside(value: Any) -> list[Any] | None:
    """What a wrapper wraps; None when it is none."""
    match value:
        case functools.partial():
            return [value.func, value.args, value.keywords]
        case MethodType():
            return [value.__func__, value.__self__]
        case BuiltinFunctionType():
            owner = value.__self__
            return [_outside(value), *([] if owner is None or isinstance(owner, ModuleType) else [owner])]
        case property():
            return [value.fget, value.fset, value.fdel]
        case staticmethod() | classmethod():
            return [value.__func__]
        case functools.cached_property():
            return [value.func]
        case GetSetDescriptorType() | MemberDescriptorType():
            return []
    wrapped = getattr(value, "__wrapped__", None) if callable(value) else None
    return _data(value) if wrapped is None else [wrapped]


def _data(value: Any) -> list[Any] | None:
    """What is in plain data; None when it is none."""
    match value:
        case Statement():
            return [value.sql]
        case Column():
            return [value.name, value.type.sql, value.nullable, value.default]
        case range() | slice() | bytearray() | operator.attrgetter() | operator.itemgetter() | operator.methodcaller():
            return list(value.__reduce__())
        case SimpleNamespace() | ChainMap() | UserDict() | UserList():
            return [vars(value)]
        case array():
            return [value.typecode, value.tolist()]
    return None


def _array(value: Any) -> str:
    if not hasattr(value, "dtype"):
        return _name_of(type(value))
    data = repr(value.tolist()) if value.dtype.hasobject else digest_of(value.tobytes().hex())
    return f"array {value.dtype.str} {value.shape} {data}"


def _sql(value: Any) -> str:
    try:
        compiled = value.compile()
        return f"{compiled} {sorted(map(repr, (compiled.params or {}).items()))}"
    except Exception:  # not a statement after all: a type, an engine
        return _name_of(type(value))


def _outside(value: Any) -> str:
    return f"{str(value.__module__).partition('.')[0]}:{value.__qualname__}"


def _name_of(kind: type) -> str:
    return f"{kind.__module__.partition('.')[0]}:{kind.__qualname__}"


def _short(named: Any) -> str:
    code = getattr(named, "__code__", named)  # a decorator may have given it the name of what it wraps
    name = code.co_qualname if isinstance(code, CodeType) else named.__qualname__
    return str(name.rpartition("<locals>.")[2])


def _place(named: Any) -> str:
    """The file of a function or class, by its name alone: where it is installed does not matter."""
    module = sys.modules.get(str(named.__module__))
    code = getattr(named, "__code__", None)
    file = getattr(module, "__file__", None) if module is not None else getattr(code, "co_filename", None)
    return _place_of_module(str(named.__module__), file)


def _place_of_module(name: str, file: str | None) -> str:
    if not file or file.startswith("<") or not file.endswith(".py"):
        return name
    path = Path(file)
    return f"{path.parent.name}/{path.name}" if path.name == "__init__.py" else path.name


def _spec(name: str) -> Any:
    try:
        return importlib.util.find_spec(name)
    except (ImportError, ValueError, AttributeError):
        return None
