"""The examples in docstrings run. (Those of the README and docs/ run in test_docs.)"""

from __future__ import annotations

import doctest
import importlib
import pkgutil

import pytest

import tidegate

SKIPPED = ("tidegate.examples", "tidegate.benchmarks", "tidegate.server")
NAMES = [
    module.name
    for module in pkgutil.walk_packages(tidegate.__path__, "tidegate.", onerror=lambda name: None)
    if not module.name.startswith(SKIPPED)
]
FINDER = doctest.DocTestFinder(exclude_empty=True)


def examples() -> list[doctest.DocTest]:
    found = []
    for name in ("tidegate", *NAMES):
        module = importlib.import_module(name)
        found += [test for test in FINDER.find(module, name) if test.examples]
    return found


EXAMPLES = examples()


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda example: example.name)
def test_docstring_example(example: doctest.DocTest) -> None:
    told: list[str] = []
    result = doctest.DocTestRunner(optionflags=doctest.ELLIPSIS).run(example, out=told.append)
    assert result.failed == 0, "".join(told)


def test_what_users_start_with_has_an_example() -> None:
    names = {example.name for example in EXAMPLES}
    assert {
        "tidegate.dataflows.app.App",
        "tidegate.engine.engine.open",
        "tidegate.streams.windows.declare.kinds.window",
    } <= names
