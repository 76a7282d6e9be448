"""Tickets: done once, told once, in whatever thread."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from typing import Any

import pytest

from tidegate import Aborted, App, Engine, ProcedureFailed, StillWaiting, Ticket
from tidegate.txn.teller import Teller


def no_wait(ticket: Ticket, timeout_s: float | None) -> None:
    raise StillWaiting("not yet", ticket=ticket, reason=None)


def test_callbacks_are_called_once_before_or_after() -> None:
    teller = Teller(no_wait)
    ticket = Ticket(teller)
    told: list[str] = []
    ticket.add_done_callback(lambda _: told.append("early"))
    ticket.arrive()
    ticket.add_done_callback(lambda _: told.append("late"))
    teller.close()
    assert told == ["early", "late"]


def test_result_waits_then_gives_value_or_error() -> None:
    ticket = Ticket(Teller(no_wait))
    with pytest.raises(StillWaiting):
        ticket.result()
    ticket.value = 5
    ticket.arrive()
    assert ticket.result() == 5
    ticket.error = Aborted("undone", reason="because")
    with pytest.raises(Aborted):
        ticket.result()


def test_a_stopped_ticket_raises_and_can_go_on() -> None:
    ticket = Ticket(Teller(no_wait))
    event = ticket.event()
    ticket.stop(ProcedureFailed("it raised"))
    assert event.is_set()
    with pytest.raises(ProcedureFailed):
        ticket.result()
    ticket.resume()
    assert not event.is_set()
    ticket.arrive()
    assert ticket.result() is None


@pytest.mark.parametrize("state", ["waiting", "done", "failed", "duplicate"])
def test_repr_says_how_it_stands(state: str) -> None:
    ticket = Ticket(Teller(no_wait))
    ticket.duplicate = state == "duplicate"
    ticket.error = Aborted("x", reason="x") if state == "failed" else None
    if state != "waiting":
        ticket.arrive()
    assert repr(ticket) == f"<Ticket {state}>"


def test_finishing_while_others_start_to_wait_loses_nobody() -> None:
    for _ in range(200):
        teller = Teller(no_wait)
        ticket = Ticket(teller)
        told: list[int] = []
        start = threading.Barrier(3)

        def register(number: int, start: Any = start, ticket: Ticket = ticket, told: list[int] = told) -> None:
            start.wait()
            ticket.add_done_callback(lambda _: told.append(number))
            assert ticket.event().wait(60)

        threads = [threading.Thread(target=register, args=(i,)) for i in range(2)]
        for thread in threads:
            thread.start()
        start.wait()
        ticket.arrive()
        for thread in threads:
            thread.join(5)
        teller.close()
        assert sorted(told) == [0, 1]


def calculator() -> App:
    app = App()

    @app.procedure()
    def double(txn: Any, n: int) -> int:
        if n < 0:
            txn.abort("negative")
        return 2 * n

    return app


@pytest.mark.parametrize("executor", ["serial", "threads"])
def test_awaiting_in_asyncio(executor: str, open_engine: Callable[..., Engine]) -> None:
    engine = open_engine(calculator(), executor=executor)

    async def use() -> list[int]:
        return await asyncio.gather(*(wait(engine.submit("double", n)) for n in range(20)))

    async def wait(ticket: Ticket) -> int:
        return await ticket  # type: ignore[no-any-return]

    assert asyncio.run(use()) == [2 * n for n in range(20)]

    async def fail() -> None:
        await engine.submit("double", -1)

    with pytest.raises(Aborted, match=r"double aborted at position .*: negative"):
        asyncio.run(fail())
