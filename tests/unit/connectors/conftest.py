"""An app whose one stream has a column of every type, and batches of it."""

from __future__ import annotations

from typing import Any

import pytest
from every_type import COLUMNS

from tidegate import App, Batch


@pytest.fixture
def types() -> App:
    """incoming → pass_on → everything, with every type; keyed by n."""
    app = App("types")
    app.stream("incoming", COLUMNS, border=True, key="n")
    app.stream("everything", COLUMNS)

    @app.procedure(inputs="incoming", outputs="everything")
    def pass_on(txn: Any, incoming: Batch) -> None:
        txn.emit("everything", incoming)

    return app


@pytest.fixture
def words() -> App:
    """incoming → pass_on → words: one text column, no key."""
    app = App("words")
    app.stream("incoming", "word VARCHAR", border=True)
    app.stream("words", "word VARCHAR")

    @app.procedure(inputs="incoming", outputs="words")
    def pass_on(txn: Any, incoming: Batch) -> None:
        txn.emit("words", incoming)

    return app
