"""The thread between commits and subscribers: what happens when it can't keep up."""

from __future__ import annotations

import asyncio
import threading

import pytest
from shop import app

import tidegate
from tidegate.errors import CursorGone, Overloaded
from tidegate.server import feeds as module
from tidegate.server.feeds import Feeds


def test_a_stream_that_is_too_fast_leaves_a_gap_that_no_cursor_crosses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "QUEUED", 5)

    async def work() -> None:
        with tidegate.open(app) as engine:
            feeds = Feeds(engine)
            tail = await feeds.tail("shipments", None, 100, 1 << 20)
            before = feeds.cursor("shipments")
            held = threading.Event()
            feeds.call(lambda: held.wait(60) and None)  # the thread is busy
            for _ in range(20):
                engine.push("orders", [("tea", 0)])  # and nobody waits for it
            held.set()
            got = len(await tail.take(5))
            while tail.lost is None or len(tail):
                got += len(await tail.take(1))
            assert 0 < got <= 6
            with pytest.raises(Overloaded, match="faster than the server"):
                await tail.take(5)
            with pytest.raises(CursorGone):
                await feeds.tail("shipments", before, 100, 1 << 20)
            feeds.leave(tail)
            fresh = await feeds.tail("shipments", None, 100, 1 << 20)
            engine.push("orders", [("tea", 0)])
            (event,) = await fresh.take(5)
            resumed = await feeds.tail("shipments", event.cursor, 100, 1 << 20)
            engine.push("orders", [("coffee", 0)])
            (following,) = await resumed.take(5)
            assert b"coffee" in following.data
            await feeds.close()

    asyncio.run(work())


def test_a_stream_nobody_follows_is_let_go_after_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "LINGER_S", 0.01)

    async def work() -> None:
        with tidegate.open(app) as engine:
            feeds = Feeds(engine)
            listening = len(engine.runtime.listeners["shipments"])
            tail = await feeds.tail("shipments", None, 100, 1 << 20)
            assert len(engine.runtime.listeners["shipments"]) == listening + 1
            feeds.leave(tail)
            while len(engine.runtime.listeners["shipments"]) > listening:
                await asyncio.sleep(0.01)
            assert not feeds.feeds
            await feeds.close()

    asyncio.run(work())
