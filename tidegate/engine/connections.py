"""Sources and deliveries that the app declares: kept from the declaration on, started together."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from tidegate.outside.delivery import Delivery
from tidegate.outside.ingestion import Ingestion

if TYPE_CHECKING:
    from tidegate.engine.engine import Engine


class Started(NamedTuple):
    """What an engine has started: see :meth:`Engine.start`."""

    ingestions: list[Ingestion]
    deliveries: list[Delivery]


def keep_for_deliveries(engine: Engine) -> None:
    """From now on batches are kept for every declared delivery, whether or not it has been started."""
    for declared in engine.app.deliveries.values():
        if declared.name not in engine.outbox.subscriptions:
            options = {
                name: declared.options[name] for name in ("snapshot", "start", "on_lag") if name in declared.options
            }
            engine.outbox.subscribe(declared.name, declared.stream, **options)


def start_declared(engine: Engine) -> Started:
    """See :meth:`Engine.start`. Deliveries first: what the sources bring in can be delivered at once."""
    deliveries = [
        engine.outbox.deliveries[declared.name]
        if declared.name in engine.outbox.deliveries
        else engine.deliver(
            declared.stream, declared.make(), declared.name, background=True, patient=True, **declared.options
        )
        for declared in engine.app.deliveries.values()
    ]
    ingestions = []
    for declared in engine.app.sources.values():
        known = engine.ingestions.get(declared.name)
        if known is None or not known.at_work:
            known = engine.ingest(declared.stream, declared.make(), declared.name, background=True, **declared.options)
        ingestions.append(known)
    return Started(ingestions, deliveries)
