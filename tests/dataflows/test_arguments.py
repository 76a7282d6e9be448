"""Arguments of calls, as JSON and as text, read by annotations."""

from __future__ import annotations

import datetime as dt
import uuid
from decimal import Decimal
from typing import Any

import pytest

from tidegate.dataflows.arguments import Arguments
from tidegate.errors import DataError


def pay(
    txn: Any,
    account: str,
    amount: Decimal,
    due: dt.date | None = None,
    at: dt.datetime | None = None,
    parts: list[Decimal] | None = None,
    reference: uuid.UUID | None = None,
    times: int = 1,
    anything=None,
) -> None: ...


READ = Arguments("pay", pay).read
NAME = "12345678-1234-5678-1234-567812345678"


def test_json_values_become_what_the_annotations_say() -> None:
    named = {"at": "2026-01-31T14:05:00", "parts": ["4.50", 5], "reference": NAME, "anything": {"a": 1}}
    assert READ(["a", 9.5, "2026-01-31"], named) == (
        ["a", Decimal("9.5"), dt.date(2026, 1, 31)],
        {
            "at": dt.datetime(2026, 1, 31, 14, 5),
            "parts": [Decimal("4.50"), Decimal(5)],
            "reference": uuid.UUID(NAME),
            "anything": {"a": 1},
        },
    )
    assert READ(["a", "9.50", None], {"times": "9007199254740993"}) == (
        ["a", Decimal("9.50"), None],
        {"times": 9007199254740993},
    )


def test_times_may_be_written_as_in_sql() -> None:
    at = dt.datetime(2026, 1, 31, 14, 5)
    for text in ("2026-01-31 14:05:00", "2026-01-31 14:05", "2026-01-31T14:05"):
        assert READ([], {"at": text}) == ([], {"at": at})
    assert READ([], {"at": "2026-01-31"}, text=True) == ([], {"at": dt.datetime(2026, 1, 31)})
    with pytest.raises(DataError, match="at takes a time such as 2026-01-31T14:05:00 or null, got 'noon'"):
        READ([], {"at": "noon"})


def test_texts_are_read_by_annotations_and_otherwise_as_json_or_text() -> None:
    assert READ(["0123", "9.10"], {"due": "2026-01-31", "anything": "[1]"}, text=True) == (
        ["0123", Decimal("9.10")],
        {"due": dt.date(2026, 1, 31), "anything": [1]},
    )
    assert READ(["a", "1"], {"due": "null", "anything": "tea", "parts": "[1.10]"}, text=True) == (
        ["a", Decimal(1)],
        {"due": None, "anything": "tea", "parts": [Decimal("1.10")]},
    )


def test_a_list_of_texts_is_typed_as_json() -> None:
    def call(txn: Any, names: list[str], note: str | list[str] = "") -> None: ...

    assert Arguments("call", call).read(['["a", "1"]', "[x]"], {}, text=True) == ([["a", "1"], "[x]"], {})


@pytest.mark.parametrize(
    ("named", "told"),
    [
        ({"amount": "much"}, "pay: amount takes a decimal number, got 'much'"),
        ({"amount": "NaN"}, "amount takes a decimal number, got 'NaN'"),
        ({"amount": True}, "amount takes a decimal number"),
        ({"due": "31.1."}, "due takes a date such as 2026-01-31 or null, got '31.1.'"),
        ({"parts": [1, "x"]}, "parts takes a list of values, each a decimal number or null"),
        ({"reference": "x"}, "reference takes a UUID or null"),
        ({"times": 1.5}, "times takes a whole number, got 1.5"),
        ({"account": 7}, "account takes text, got 7"),
    ],
)
def test_a_wrong_argument_is_named(named: dict[str, Any], told: str) -> None:
    with pytest.raises(DataError, match="takes") as refused:
        READ([], named)
    assert told in str(refused.value)


def test_what_has_no_form_in_json_is_left_alone() -> None:
    def odd(txn: Any, thing: object, *more: int, **rest: "Unknown") -> None: ...  # type: ignore[name-defined]  # noqa: F821, UP037

    assert Arguments("odd", odd).read([1, 2, "3"], {"x": 4}) == ([1, 2, "3"], {"x": 4})
