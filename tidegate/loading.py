"""Finding an app by name: ``package.module:app``, ``path/to/file.py:app`` or, declared in SQL alone, ``path/to/file.sql``."""

from __future__ import annotations

import importlib
import importlib.util
import re
import sys
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any

from tidegate.dataflows.app import App
from tidegate.dataflows.sql.declaring import declare
from tidegate.errors import TidegateError


def load_app(where: str) -> App:
    """The app at ``where``; a part after ``:`` names it (default: ``app``). A function without parameters is called."""
    if where.endswith(".sql"):
        return _load_sql(Path(where))
    place, _, name = where.partition(":")
    module = _load_file(Path(place)) if place.endswith(".py") else _load_module(place)
    found = getattr(module, name or "app", None)
    if callable(found) and not isinstance(found, App):
        with _told(where):
            found = found()
    if not isinstance(found, App):
        apps = [key for key, value in vars(module).items() if isinstance(value, App)]
        hint = f"it has {', '.join(apps)}" if apps else "it has no App"
        raise TidegateError(f"{place} has no app called {name or 'app'!r}; {hint}. Write {place}:NAME", where=where)
    return found


def _load_sql(path: Path) -> App:
    """The app that a text of SQL statements declares; it is called like the file."""
    if not path.is_file():
        raise TidegateError(
            f"there is no file {path}; give the path of a file with CREATE STREAM statements", path=path
        )
    name = re.sub(r"\W", "_", path.stem)
    app = App(name if name.isidentifier() and not name.lower().startswith("tidegate") else f"app_{name}")
    declare(app, path.read_text(encoding="utf-8"), str(path))
    return app


def _load_file(path: Path) -> ModuleType:
    if not path.is_file():
        raise TidegateError(
            f"there is no file {path}; give the app as path/to/file.py:app or package.module:app", path=path
        )
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[path.stem] = module
    sys.path.insert(0, str(path.resolve().parent))
    with _told(str(path)):
        spec.loader.exec_module(module)
    return module


def _load_module(name: str) -> ModuleType:
    sys.path.insert(0, str(Path.cwd()))
    try:
        with _told(name):
            return importlib.import_module(name)
    except ModuleNotFoundError as error:
        raise TidegateError(
            f"can't import {name!r}: {error}; give the app as package.module:app or file.py:app"
        ) from None


@contextmanager
def _told(place: str) -> Iterator[None]:
    """An app that does not import is the user's to fix: one line that says where, without our frames."""
    try:
        yield
    except TidegateError as error:
        raise type(error)(f"{place}: {error} ({_line(error)})", **_facts(error)) from None
    except SyntaxError as error:
        raise TidegateError(
            f"{place} is not valid Python: {error.msg} (line {error.lineno} of {error.filename})"
        ) from None
    except Exception as error:
        if isinstance(error, ModuleNotFoundError) and f"{place}.".startswith(f"{error.name}."):
            raise
        raise TidegateError(f"{place} can't be imported: {type(error).__name__}: {error} ({_line(error)})") from None


def _facts(error: TidegateError) -> dict[str, Any]:
    return {name: value for name, value in vars(error).items() if name != "message"}


def _line(error: Exception) -> str:
    """The user's line that raised it."""
    steps = list(traceback.walk_tb(error.__traceback__))
    theirs = [(frame, line) for frame, line in steps if not _ours(frame.f_globals.get("__name__", ""))]
    frame, line = (theirs or steps)[-1]
    return f"line {line} of {frame.f_code.co_filename}"


def _ours(module: str) -> bool:
    return module.startswith(("tidegate.", "importlib")) and not module.startswith("tidegate.examples.")
