"""A shop with a replica, shared by the tests of one file: starting one takes a second."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from shops import Shop, opened

from tidegate.replica import Limits


@pytest.fixture(scope="module")
def shop() -> Iterator[Shop]:
    yield from opened(Limits(timeout_s=20, refresh_s=0.05))
