"""Docstrings as Markdown: examples become code blocks, roles such as ``:class:`` become code."""

from __future__ import annotations

import re
from typing import Any

import griffe

ROLE = re.compile(r":(?:attr|class|func|meth|mod):`~?([^`]+)`")
EXAMPLE = re.compile(r"(?:^|(?<=\n))>>> .*?(?=\n\n|\Z)", re.DOTALL)


class Markdown(griffe.Extension):
    def on_object(self, *, obj: Any, **_: Any) -> None:
        if obj.docstring is not None:
            text = ROLE.sub(r"`\1`", obj.docstring.value)
            obj.docstring.value = EXAMPLE.sub(lambda example: f"```pycon\n{example[0]}\n```", text)
