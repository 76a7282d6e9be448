"""JSON on input: text that Python, DuckDB and the readers of the log all understand the same way."""

from __future__ import annotations

import json
import re
from typing import Any

from tidegate.storage.mismatch import wrong_type
from tidegate.storage.unicode import HALF, is_unicode

DEPTH = 128  # levels of lists and objects; many readers go no deeper

_MARKS = re.compile(r'"(?:[^"\\]++|\\.)*+"?|[][{}]', re.DOTALL)  # possessive: no backtracking on any text
_PAIR = re.compile(r"\\u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}")
_HALF = re.compile(r"\\u[dD][89a-fA-F]")


def checked_json(value: Any) -> str:
    """The text to store for JSON text, a dict or a list; ValueError says what is wrong with it.

    >>> checked_json({"a": [1, None]})
    '{"a":[1,null]}'
    """
    given = isinstance(value, str)
    if not given and not isinstance(value, (dict, list)):
        raise wrong_type("JSON text, a dict or a list", value, "json.dumps(value)")
    text = str.__str__(value) if given else _written(value)
    _check_depth(text)  # first: text that is too deep can't be parsed either
    if given:
        _check_syntax(text)
    if not is_unicode(text) or ("\\u" in text and _half_escaped(text)):
        raise ValueError(HALF)
    return text


def _written(value: Any) -> str:
    try:
        return json.dumps(value, separators=(",", ":"), allow_nan=False)
    except RecursionError:
        raise ValueError(_too_deep()) from None


def _check_syntax(text: str) -> None:
    try:
        json.loads(text, parse_constant=_no_constant)
    except ValueError as error:
        raise ValueError(f"is not valid JSON: {error}") from None


def _no_constant(name: str) -> None:
    raise ValueError(f"{name} is not a JSON number")


def _check_depth(text: str) -> None:
    if text.count("[") + text.count("{") <= DEPTH:
        return
    depth = 0
    for found in _MARKS.finditer(text):
        mark = found[0]
        if mark in "[{":
            depth += 1
            if depth > DEPTH:
                raise ValueError(_too_deep())
        elif mark in "]}":
            depth -= 1


def _too_deep() -> str:
    return f"is nested more than {DEPTH} levels deep"


def _half_escaped(text: str) -> bool:
    """Is there an escaped half of a surrogate pair? ``\\\\ud800`` is a backslash and five letters."""
    return _HALF.search(_PAIR.sub(" ", text.replace("\\\\", " "))) is not None
