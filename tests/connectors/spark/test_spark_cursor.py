"""Which micro-batches are in: by query and number, never by number alone."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from tidegate.connectors.spark.cursor import Patience, Step, next_step
from tidegate.errors import BatchError, EngineClosed, Overloaded, ServerError


def at(query: str, batch: int) -> dict[str, Any]:
    return {"query": query, "batch": batch}


def test_the_first_and_the_next() -> None:
    assert next_step("s", None, "q", 0) == Step("s", None, at("q", 0))
    assert next_step("s", at("q", 4), "q", 5) == Step("s", at("q", 4), at("q", 5))


@pytest.mark.parametrize("batch", [0, 3, 4])
def test_what_is_in_already(batch: int) -> None:
    assert next_step("s", at("q", 4), "q", batch) is None


@pytest.mark.parametrize(("offset", "missing"), [(None, 0), (at("q", 4), 5)])
def test_an_engine_that_lacks_what_spark_has_noted_as_done(offset: Any, missing: int) -> None:
    with pytest.raises(
        BatchError, match=f"has not seen micro-batch {missing}.*older than Spark's checkpoint"
    ) as caught:
        next_step("s", offset, "q", missing + 1)
    assert caught.value.batch == missing + 1  # type: ignore[attr-defined]
    assert next_step("s", offset, "q", missing + 1, gaps=True) == Step("s", offset, at("q", missing + 1))


def test_another_query_is_refused_unless_it_is_announced() -> None:
    for offset in (at("p", 4), 17):
        with pytest.raises(BatchError, match=r"was fed by another query.*new_checkpoint=True"):
            next_step("s", offset, "q", 0)
        assert next_step("s", offset, "q", 0, new_checkpoint=True) == Step("s", offset, at("q", 0))
    with pytest.raises(BatchError):  # it did not begin here
        next_step("s", at("p", 4), "q", 1, new_checkpoint=True)


def test_an_engine_without_room_is_waited_for() -> None:
    refusals = [Overloaded("full"), ServerError("away", status=None), ServerError("busy", status=503)]

    def attempt() -> str:
        if refusals:
            raise refusals.pop()
        return "in"

    patience = Patience()
    assert patience.insist(attempt) == "in"
    assert patience.waited_s > 0


def test_errors_that_waiting_does_not_mend_are_raised() -> None:
    def attempt() -> None:
        raise ServerError("no", status=400)

    with pytest.raises(ServerError, match="no"):
        Patience().insist(attempt)


def test_waiting_ends_after_its_time_or_when_it_is_stopped() -> None:
    tries = threading.Event()

    def attempt() -> None:
        tries.set()
        raise Overloaded("full")

    with pytest.raises(Overloaded):
        Patience(timeout_s=0).insist(attempt)
    tries.clear()
    patience = Patience()
    threading.Thread(target=lambda: (tries.wait(), patience.stop())).start()
    with pytest.raises(EngineClosed, match="stopped"):
        patience.insist(attempt)
