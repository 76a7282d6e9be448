"""Batches in a form that other systems understand: plain JSON values, and their stable id as text."""

from __future__ import annotations

import base64
import datetime as dt
import json
import uuid
from decimal import Decimal
from hashlib import blake2b
from typing import Any
from urllib.parse import quote

from tidegate.streams.batch import Batch

LONGEST_KEY = 150  # characters of a key in names and indexes


def plain(value: Any) -> Any:
    """A stored value as a JSON value. Decimals and times become text, bytes base64; no digit is lost.

    >>> plain((Decimal("1.50"), dt.date(2026, 1, 2), None))
    ['1.50', '2026-01-02', None]
    """
    match value:
        case Decimal() | uuid.UUID():
            return str(value)
        case dt.datetime() | dt.date() | dt.time():
            return value.isoformat()
        case dt.timedelta():
            return value // dt.timedelta(microseconds=1)
        case bytes():
            return base64.b64encode(value).decode()
        case tuple() | list():
            return [plain(item) for item in value]
        case float() if value != value or value in (float("inf"), float("-inf")):
            return str(value)  # JSON has no such numbers
    return value


def plain_rows(batch: Batch) -> list[dict[str, Any]]:
    """The rows as JSON objects, by column name."""
    names = batch.relation.column_names
    return [{name: plain(value) for name, value in zip(names, row, strict=True)} for row in batch.rows]


def key_text(batch: Batch) -> str:
    """The key as text: ``null`` without one, ``"7"`` for text, ``7`` for a number; long ones are cut."""
    text = json.dumps(plain(batch.key), ensure_ascii=False)
    return text if len(text) <= LONGEST_KEY else f"{text[:LONGEST_KEY]}~{short_digest(text)}"


def short_digest(text: str) -> str:
    return blake2b(text.encode(), digest_size=12).hexdigest()


def stable_text(batch: Batch) -> str:
    """``stream/key/batch-id``, the key percent-encoded; ``stream//batch-id`` on a stream without key."""
    key = "" if batch.key is None else quote(str(plain(batch.key)), safe="")
    return f"{batch.stream}/{key}/{batch.id}"
