"""Prometheus metrics: read from the engine on request, so that nothing is counted twice."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

BUCKETS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 10, 30)


class Metrics:
    """What a server counts itself, and access to what the engine counts."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self._requests = Histogram(
            "tidegate_request_seconds",
            "Time until the answer to a request was sent; for subscriptions, how long they lasted.",
            ["route", "method", "status"],
            buckets=BUCKETS,
            registry=self.registry,
        )
        self.dropped = Counter(
            "tidegate_subscribers_dropped", "Subscribers dropped because they did not read.", registry=self.registry
        )
        self._children: dict[tuple[str, str, int], Any] = {}

    def request(self, route: str, method: str, status: int, seconds: float) -> None:
        found = self._children.get((route, method, status))
        if found is None:
            found = self._children[route, method, status] = self._requests.labels(route, method, str(status))
        found.observe(seconds)

    def watch(self, look: Callable[[], dict[str, Any]]) -> None:
        """Collect the engine's numbers too."""
        self.registry.register(_Engine(look))

    def text(self) -> bytes:
        """All metrics, in the text format of Prometheus."""
        return bytes(generate_latest(self.registry))


class _Engine(Collector):
    """The engine's own numbers, read at the moment of asking."""

    def __init__(self, look: Callable[[], dict[str, Any]]) -> None:
        self._look = look

    def describe(self) -> Iterable[Metric]:
        return ()  # registering must not collect yet

    def collect(self) -> Iterable[Metric]:
        facts = self._look()
        yield _counter("batches_accepted", "Border batches accepted over HTTP.", facts["pushed"], "stream")
        yield _counter("batches_emitted", "Batches committed to interior streams.", facts["emitted"], "stream")
        yield _counter("executions_committed", "Executions that committed.", facts["commits"], "unit")
        yield _counter("executions_aborted", "Executions that were undone.", facts["aborts"], "procedure")
        yield _counter("dead_letters", "Batches and calls set aside as dead letters.", facts["dead_letters"])
        yield _counter("overloaded", "Requests refused because the queues were full.", facts["overloaded"])
        yield _counter("merges", "Merges into the base.", facts["merges"])
        yield _counter("merge_rows", "Rows folded into the base.", facts["merge_rows"])
        yield _counter("merge_seconds", "Seconds spent merging.", facts["merge_seconds"])
        yield _gauge(
            "last_merge_age_seconds",
            "Seconds since the last merge, or since the engine was opened.",
            facts["last_merge_age_s"],
        )
        yield _gauge("merge_tries", "Merges that failed since the last one that succeeded.", facts["merge_tries"])
        yield _gauge("rows_set_aside", "Rows that the base refused.", facts["rows_set_aside"])
        if facts["log"] is not None:
            yield _counter("log_bytes", "End of the command log, in bytes from its beginning.", facts["log"]["end"])
            yield _counter("log_syncs", "Syncs of the log since the server started.", facts["log"]["syncs"])
            unsynced = facts["log"]["unsynced"]
            yield _gauge("log_unsynced_bytes", "Bytes of the log that are not on disk yet.", unsynced)
            yield _gauge(
                "log_taking",
                "1 when the log accepts new records, 0 when it failed or is full.",
                int(facts["log"]["taking"]),
            )
        yield _gauge("sequence", "The last sequence number that was assigned.", facts["sequence"])
        yield _gauge("unfinished_executions", "Executions accepted and not finished.", facts["unfinished"])
        yield _gauge("capacity", "Unfinished executions beyond which work is refused.", facts["capacity"])
        yield _gauge("requests_waiting", "Requests waiting for the engine.", facts["requests_waiting"])
        yield _gauge("unmerged_rows", "Changed rows that the base does not have yet.", facts["unmerged_rows"])
        memory = facts["memory"]
        yield _gauge("table_bytes", "Bytes of memory that rows of tables take, estimated.", memory["tables"])
        yield _gauge("table_rows", "Rows of tables in memory.", memory["rows"])
        yield _gauge(
            "cold_bytes", "Bytes of the copy by key of tables that do not fit in memory.", memory["cold_bytes"]
        )
        yield _gauge("cold_reads", "Rows that were read because they were not in memory.", memory["cold_reads"])
        yield _gauge("dataflows_halted", "Dataflows halted at a batch.", len(facts["halted"]))
        yield _gauge("fan_out_queued", "Committed batches not yet delivered to subscribers.", facts["fan_out_queued"])
        sources = facts["sources"]
        lags = {name: one["lag"] for name, one in sources.items() if one["lag"] is not None}
        yield _counter("source_rows", "Rows taken from a source.", {n: s["rows"] for n, s in sources.items()}, "source")
        rejected = {name: one["rejected"] for name, one in sources.items()}
        yield _counter("source_rejected", "Records of a source that were rejected.", rejected, "source")
        yield _gauge("source_lag", "Records (for files: bytes) waiting in a source.", lags, "source")
        replica = facts["replica"]
        if replica is not None:
            yield _gauge("replica_ready", "1 when the query replica answers.", int(replica["ready"]))
            yield _gauge(
                "replica_behind", "Merged sequence numbers that the query replica does not show yet.", replica["behind"]
            )
            yield _counter("replica_restarts", "Times the query replica was restarted.", replica["restarts"])
        tails = facts["subscribers"]
        yield _gauge(
            "subscribers",
            "Connections that follow a stream.",
            {name: one["subscribers"] for name, one in tails.items()},
            "stream",
        )
        yield _gauge(
            "subscriber_buffered",
            "Batches waiting for the slowest subscriber of a stream.",
            {name: one["buffered"] for name, one in tails.items()},
            "stream",
        )
        if "questions" in facts:  # not while a long procedure holds the engine's lock
            yield _gauge(
                "oldest_unfinished_seconds", "Age of the oldest unfinished execution.", facts["oldest_unfinished_s"]
            )
            yield _gauge("questions_waiting", "Questions waiting for a decision.", len(facts["questions"]))
            named = {one["name"]: one["waiting"] for one in facts["subscriptions"]}
            yield _gauge("subscription_waiting", "Batches a named subscriber has not acknowledged.", named, "name")
            queued = {one["stream"]: one["queued"] for one in facts["streams"]}
            yield _gauge("stream_queued", "Unfinished executions that read a stream.", queued, "stream")


def _counter(name: str, text: str, value: float | dict[str, float], label: str | None = None) -> Metric:
    return _filled(CounterMetricFamily(f"tidegate_{name}", text, labels=[label] if label else None), value)


def _gauge(name: str, text: str, value: float | dict[str, float], label: str | None = None) -> Metric:
    return _filled(GaugeMetricFamily(f"tidegate_{name}", text, labels=[label] if label else None), value)


def _filled(family: Any, value: float | dict[str, float]) -> Metric:
    for labels, number in (([k], v) for k, v in value.items()) if isinstance(value, dict) else [([], value)]:
        family.add_metric(labels, number)
    return family  # type: ignore[no-any-return]
