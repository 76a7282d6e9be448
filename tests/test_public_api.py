"""What users import: small, sorted, documented, and stable in its signatures."""

from __future__ import annotations

import inspect
import pickle
import subprocess
import sys

import pytest

import tidegate
from tidegate import errors


def test_the_public_names_are_few_sorted_and_there() -> None:
    assert list(tidegate.__all__) == sorted(tidegate.__all__)
    assert len(tidegate.__all__) <= 26
    for name in tidegate.__all__:
        assert hasattr(tidegate, name)


def test_every_public_name_is_documented() -> None:
    undocumented = [name for name in tidegate.__all__ if not inspect.getdoc(getattr(tidegate, name))]
    assert not undocumented
    for kind in (tidegate.App, tidegate.Engine, tidegate.Batch, tidegate.Ticket):
        for name, member in inspect.getmembers(kind):
            if not name.startswith("_") and callable(member):
                assert inspect.getdoc(member), f"{kind.__name__}.{name}"


@pytest.mark.parametrize(
    "name",
    [
        "abort",
        "count",
        "delete",
        "delete_where",
        "emit",
        "execute",
        "get",
        "insert",
        "now",
        "random",
        "scan",
        "update",
        "update_each",
        "upsert",
        "uuid",
        "window",
    ],
)
def test_what_a_procedure_uses_is_documented(name: str) -> None:
    assert inspect.getdoc(getattr(tidegate.Transaction, name))


def test_all_errors_are_in_one_tree_drawn_in_its_module() -> None:
    drawn = inspect.getdoc(errors) or ""
    found = [e for e in vars(errors).values() if inspect.isclass(e) and issubclass(e, Exception)]
    assert len(found) > 10
    for error in found:
        assert issubclass(error, errors.TidegateError)
        assert error.__name__ in drawn


def test_an_error_carries_its_facts() -> None:
    error = errors.DataError("t.n can't take 'x'", relation="t", column="n", value="x")
    assert (str(error), error.relation, error.column, error.value) == ("t.n can't take 'x'", "t", "n", "x")


@pytest.mark.parametrize("kind", [errors.TidegateError, errors.Aborted, errors.BatchError])
def test_errors_travel_between_processes(kind: type[errors.TidegateError]) -> None:
    error = kind("it happened", reason="because", stream="s")
    back = pickle.loads(pickle.dumps(error))
    assert (type(back), str(back), back.reason, back.stream) == (kind, "it happened", "because", "s")


def test_importing_is_light_and_silent() -> None:
    """Heavy and optional packages are imported where they are used; nothing is printed, no thread started."""
    code = (
        "import sys, threading, tidegate; "
        "print([m for m in ('pandas', 'polars', 'pyspark', 'typer', 'hypothesis') if m in sys.modules], "
        "threading.active_count())"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert (done.stdout.strip(), done.stderr) == ("[] 1", "")


def test_types_are_shipped() -> None:
    from importlib.resources import files

    assert (files("tidegate") / "py.typed").is_file()
