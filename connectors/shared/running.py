"""Running the connectors of a file, against a directory or a server, until they are finished or told to stop."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tidegate.connectors.http.listening import BoundedServer, Door, Handler
from tidegate.connectors.shared.remote_delivery import RemoteDelivery
from tidegate.connectors.shared.toml_file import Connector, Setup
from tidegate.dataflows.app import App
from tidegate.errors import NotAllowed, TidegateError, text_of
from tidegate.loading import load_app
from tidegate.outside.delivery import Delivery, qualified
from tidegate.outside.destinations import destination_of
from tidegate.outside.ingestion import Ingestion, ingest

if TYPE_CHECKING:
    from tidegate.client import Client
    from tidegate.engine.engine import Engine

log = logging.getLogger("tidegate")

CHECK_S = 3.0  # for a server to answer during a check
METRICS_CONNECTIONS = 10
DRAIN_S = 60.0  # for a sink to deliver what waits, at the end


@contextmanager
def running(setup: Setup, token: str | None = None) -> Iterator[Running]:
    """Runs everything in the file; closes it at the end."""
    import tidegate

    with ExitStack() as stack:
        if setup.url is not None:
            target: Any = stack.enter_context(tidegate.connect(setup.url, setup.token or token))
        else:
            target = stack.enter_context(tidegate.open(load_app(str(setup.app)), setup.directory))
        yield stack.enter_context(Running(target, setup))


class Running:
    """The ingestions and deliveries of a file."""

    def __init__(self, target: Engine | Client, setup: Setup) -> None:
        self.ingestions: list[Ingestion] = []
        self.deliveries: list[Delivery] = []
        self._target = target
        borders = _borders(target)
        try:
            for connector in setup.sinks:
                _check_stream(connector, borders, border=False)
            for connector in setup.sources:
                _check_stream(connector, borders, border=True)
            for connector in setup.sinks:  # sinks first: they begin with what is emitted from now on
                self.deliveries.append(self._deliver(connector))
            for connector in setup.sources:
                self.ingestions.append(self._ingest(connector))
        except BaseException:
            self._close()
            raise

    def _deliver(self, connector: Connector) -> Delivery:
        from tidegate.engine.engine import Engine

        try:
            if isinstance(self._target, Engine):
                return self._target.deliver(
                    connector.stream, connector.made, connector.name, background=True, **connector.options
                )
            return RemoteDelivery(self._target, connector)
        except TidegateError as error:
            raise TidegateError(f"{connector.key} ({connector.name}): {error}") from error

    def _ingest(self, connector: Connector) -> Ingestion:
        from tidegate.engine.engine import Engine

        begin: Callable[..., Ingestion] = (
            self._target.ingest if isinstance(self._target, Engine) else partial(ingest, self._target)
        )
        try:
            return begin(connector.stream, connector.made, connector.name, background=True, **connector.options)
        except TidegateError as error:
            raise TidegateError(f"{connector.key} ({connector.name}): {error}") from error

    @property
    def at_work(self) -> bool:
        """Is there a source that may deliver more?"""
        return any(ingestion.at_work for ingestion in self.ingestions)

    @property
    def stopped(self) -> list[Ingestion | Delivery]:
        """Those that gave up."""
        everything: list[Ingestion | Delivery] = [*self.ingestions, *self.deliveries]
        return [one for one in everything if one.state == "stopped"]

    def drain(self, timeout_s: float = DRAIN_S) -> bool:
        """Wait until everything from the sources is processed and delivered; False when ``timeout_s`` is too short."""
        from tidegate.engine.engine import Engine

        if isinstance(self._target, Engine):
            self._target.run_until_idle()
        return all(delivery.drain(timeout_s) for delivery in self.deliveries)

    def facts(self) -> list[dict[str, Any]]:
        """What each is doing."""
        told: list[dict[str, Any]] = [
            {
                "source": i.name,
                "stream": i.stream,
                "state": i.state,
                "rows": i.rows,
                "rejected": i.rejected,
                "lag": i.lag,
                "error": None if i.error is None else text_of(i.error),
            }
            for i in self.ingestions
        ]
        return told + [
            {
                "sink": d.name,
                "stream": d.stream,
                "state": d.state,
                "batches": d.delivered,
                "waiting": len(d),
                "refused": d.refused,
                "error": None if d.error is None else text_of(d.error),
            }
            for d in self.deliveries
        ]

    def _close(self) -> None:
        for ingestion in self.ingestions:
            ingestion.close()
        for delivery in self.deliveries:
            if isinstance(delivery, RemoteDelivery):  # an engine closes its own
                delivery.close()

    def __enter__(self) -> Running:
        return self

    def __exit__(self, *_: object) -> None:
        self._close()


@contextmanager
def metrics(at_work: Running, port: int) -> Iterator[int]:
    """Answer ``GET /metrics`` on loopback while inside; gives the port."""

    class Metrics(Handler):
        door = Door("127.0.0.1", None)

        def do_GET(self) -> None:
            try:
                self.door.check(self.headers.get_all)
            except NotAllowed as error:
                self.say(error.status or 403, {"error": str(error)})
                return
            known = self.path == "/metrics"
            text = metrics_text(at_work.facts()) if known else "GET /metrics\n"
            self.say_text(200 if known else 404, text, "text/plain; version=0.0.4")

    try:
        server = BoundedServer(("127.0.0.1", port), Metrics, METRICS_CONNECTIONS)
    except OSError as error:
        raise TidegateError(f"can't serve metrics on port {port}: {error.strerror}") from None
    thread = threading.Thread(target=server.serve_forever, args=(0.05,), name="tidegate-metrics", daemon=True)
    thread.start()
    try:
        yield server.server_port
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def metrics_text(facts: list[dict[str, Any]]) -> str:
    """The facts in the text format of Prometheus, under the names that a server uses.

    >>> print(metrics_text([{"source": "in", "state": "open", "rows": 3, "rejected": 0, "lag": None}]), end="")
    tidegate_source_up{source="in"} 1
    tidegate_source_rows_total{source="in"} 3
    tidegate_source_rejected_total{source="in"} 0
    """
    lines = []
    for one in facts:
        kind = "source" if "source" in one else "sink"
        name = str(one[kind]).replace("\\", "\\\\").replace('"', '\\"')
        values = {"up": int(one["state"] in ("open", "finished"))}
        if kind == "source":
            values |= {"rows_total": one["rows"], "rejected_total": one["rejected"], "lag": one["lag"]}
        else:
            values |= {"batches_total": one["batches"], "waiting": one["waiting"], "refused_total": one["refused"]}
        lines += [f'tidegate_{kind}_{what}{{{kind}="{name}"}} {v}\n' for what, v in values.items() if v is not None]
    return "".join(lines)


def check(setup: Setup, token: str | None = None) -> list[dict[str, Any]]:
    """Check everything once: does it fit together? Takes, sends, creates and moves nothing."""
    import tidegate

    with ExitStack() as stack:
        if setup.url is not None:
            target: Any = stack.enter_context(tidegate.connect(setup.url, setup.token or token, retry_s=CHECK_S))
            app = target.app()["name"]
        else:
            there = Path(str(setup.directory)).exists()  # if it does not exist, it is not created, either
            target = stack.enter_context(tidegate.open(load_app(str(setup.app)), setup.directory if there else None))
            app = target.app.name
        borders = _borders(target)
        sinks = [_check_sink(connector, target, app, borders) for connector in setup.sinks]
        return sinks + [_check_source(connector, target, borders) for connector in setup.sources]


def _borders(target: Any) -> dict[str, bool]:
    """All streams, and whether they are border streams."""
    if isinstance(target.app, App):
        return {name: stream.border for name, stream in target.app.streams.items()}
    return {stream["name"]: bool(stream["border"]) for stream in target.app()["streams"]}


def _check_sink(connector: Connector, target: Any, app: str, borders: dict[str, bool]) -> dict[str, Any]:
    _check_stream(connector, borders, border=False)
    remote = not isinstance(target.app, App)
    relation = (target.schemas().wires[connector.stream] if remote else target.app.streams[connector.stream]).relation
    try:
        found = connector.made.check(qualified(app, connector.name), relation)
    except TidegateError as error:
        raise TidegateError(f"{connector.key} ({connector.name}): {error}") from error
    finally:
        connector.made.close()
    return {"sink": connector.name, "stream": connector.stream, "fits": found}


def _check_source(connector: Connector, target: Any, borders: dict[str, bool]) -> dict[str, Any]:
    _check_stream(connector, borders, border=True)
    place = destination_of(target)
    try:
        offset = place.offset(connector.name)
        found, lag = connector.made.check(connector.name, place.relation(connector.stream), offset)
    except TidegateError as error:
        raise TidegateError(f"{connector.key} ({connector.name}): {error}") from error
    finally:
        connector.made.close()
    return {"source": connector.name, "stream": connector.stream, "fits": found, "lag": lag}


def _check_stream(connector: Connector, borders: dict[str, bool], border: bool) -> None:
    if borders.get(connector.stream) is not border:
        there = ", ".join(name for name, is_border in borders.items() if is_border is border)
        kind = "border" if border else "output"
        raise TidegateError(f"{connector.key}.stream = {connector.stream!r}: no {kind} stream; there are {there}")
