"""Delivery from a served engine: sends the batches of a named subscription to a sink."""

from __future__ import annotations

import time
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from tidegate.connectors.shared.toml_file import Connector
from tidegate.errors import ServerError
from tidegate.outside.delivery import Delivery, qualified
from tidegate.streams.batch import Batch

if TYPE_CHECKING:
    from tidegate.client import Client
    from tidegate.client.following import RemoteDurableSubscription

LOOK_S = 0.2


class RemoteWaiting:
    """What waits at a server for one name, as a delivery sees it.

    When the server is away for longer than the client retries, the subscription is started again: it then delivers
    everything that was not acknowledged, including what was already handed out, with the same ids.
    """

    def __init__(self, client: Client, stream: str, name: str) -> None:
        self.name = name
        self.stream = stream
        self._client = client
        self._next: list[Batch] = []  # received, and not handed out
        self._handed_out: dict[tuple[object, int], Batch] = {}
        self._subscription: RemoteDurableSubscription | None = client.subscribe_durably(stream, name)

    def __len__(self) -> int:
        """As far as we know; the server may have more."""
        return len(self._next) + len(self._handed_out) + len(self._subscription or ())

    def wait(self) -> None:
        """Waits for a moment: if there is nothing after that, the server is up and has nothing."""
        if not self._next and (batch := self._get(LOOK_S)) is not None:
            self._next.append(batch)

    def take(self, limit: int) -> list[Batch]:
        while len(self._next) < limit and (batch := self._get(0.0)) is not None:
            self._next.append(batch)
        batches, self._next = self._next[:limit], self._next[limit:]
        self._handed_out |= {(batch.key, batch.id): batch for batch in batches}
        return batches

    def put_back(self, batches: Iterable[Batch]) -> None:
        """Unless a new subscription delivers them anyway."""
        self._next[:0] = [batch for batch in batches if self._handed_out.pop((batch.key, batch.id), None) is not None]

    def ack(self, batches: Iterable[Batch]) -> None:
        self._deal_with(list(batches))

    def refuse(self, batch: Batch, reason: str) -> None:
        self._deal_with([batch], reason)

    def _deal_with(self, batches: list[Batch], refused: str | None = None) -> None:
        try:
            self._subscribed().ack(batches, refused=refused)
        except ServerError:
            self._lose()
            raise
        for batch in batches:
            self._handed_out.pop((batch.key, batch.id), None)

    def _get(self, timeout_s: float) -> Batch | None:
        try:
            return self._subscribed().get(timeout_s)
        except ServerError:
            self._lose()
            raise

    def _subscribed(self) -> RemoteDurableSubscription:
        if self._subscription is None:
            self._subscription = self._client.subscribe_durably(self.stream, self.name)
        return self._subscription

    def _lose(self) -> None:
        lost, self._subscription = self._subscription, None
        self._next.clear()
        self._handed_out.clear()
        if lost is not None:
            lost.close()

    def interrupt(self) -> None:
        pass  # wait() is short

    def close(self) -> None:
        if self._subscription is not None:
            self._subscription.close()


class RemoteDelivery(Delivery):
    """The delivery of one stream of a served engine to one sink, in the background."""

    def __init__(self, client: Client, connector: Connector) -> None:
        self._client = client
        try:
            relation = client.schemas().wires[connector.stream].relation
            connector.made.open(qualified(client.app()["name"], connector.name), relation)
            self._waiting = RemoteWaiting(client, connector.stream, connector.name)
        except BaseException:
            connector.made.close()
            raise
        super().__init__(self._waiting, connector.made, **connector.options)
        self.start()

    def drain(self, timeout_s: float | None = None) -> bool:
        """Wait until the server has run what it can and keeps nothing for us; False when ``timeout_s`` was not enough."""
        until = None if timeout_s is None else time.monotonic() + timeout_s
        while not _drained(self._client.status(), self.name):
            if not self.at_work or (until is not None and time.monotonic() > until):
                return False
            time.sleep(LOOK_S)
        return True

    def close(self) -> None:
        super().close()
        self._waiting.close()


def _drained(status: dict[str, Any], name: str) -> bool:
    """What waits for a person, or for a halted dataflow, may wait forever. A server under load reports only counts."""
    running = status["unfinished"] and not status["halted"] and not status.get("questions")
    kept = next((one["waiting"] for one in status.get("subscriptions", ()) if one["name"] == name), None)
    return not running and kept == 0
