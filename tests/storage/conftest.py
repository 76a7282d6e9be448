"""Tables for the storage tests."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from stores import Store


@pytest.fixture
def votes() -> Iterator[Store]:
    """The leaderboard's table: a key, an index, a UNIQUE column, a CHECK and defaults."""
    store = Store(
        "CREATE TABLE votes (phone BIGINT PRIMARY KEY, contestant INTEGER NOT NULL, n INTEGER DEFAULT 0, "
        "weight DOUBLE, name VARCHAR UNIQUE, at_time TIMESTAMP DEFAULT now(), "
        "CHECK (n >= 0 AND contestant < 100)); "
        "CREATE INDEX by_contestant ON votes (contestant)"
    )
    store.relation("batch", "phone BIGINT, contestant INTEGER")
    yield store
    store.close()
