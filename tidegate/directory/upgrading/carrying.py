"""The stored state, as the app that opens it would have stored it."""

from __future__ import annotations

import base64
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import msgspec

from tidegate.dataflows.app import App
from tidegate.directory.upgrading.changes import Plan
from tidegate.directory.upgrading.questions import under_new_names
from tidegate.storage.codec import from_json, to_json
from tidegate.storage.migration import Reshape
from tidegate.streams.windows.state.join_state import widened_join
from tidegate.streams.windows.state.saving import widened


class Carrying:
    """Follows a plan in which nothing is refused."""

    def __init__(self, plan: Plan, app: App) -> None:
        self._plan = plan
        self._app = app
        self._reshapes = {reshape.stored: reshape for reshape in plan.reshapes}
        self._fills = {
            stream: [to_json(value) for _, value in added] for stream, added in plan.widened.items() if added
        }

    def state(self, meta: Mapping[str, Any], declared: Mapping[str, Any]) -> dict[str, Any]:
        """Everything but the tables; ``declared``: what the app declares now."""
        streams = self._plan.streams
        emitted = meta.get("emitted")
        if emitted is not None:
            kept = {streams[name]: marks for name, marks in emitted["streams"].items() if name in streams}
            emitted = {**emitted, "streams": kept}
        return {
            **meta,
            "declared": declared,
            "offsets": self._offsets(meta["offsets"]),
            "topics": list(self._topics(meta["topics"])),
            "subscriptions": list(self._subscriptions(meta, declared)),
            "emitted": emitted,
            "borders": {
                streams[name]: sequences
                for name, sequences in meta["borders"].items()
                if name in streams and ("stream", name) not in self._plan.forgotten
            },
            "timers": self._timers(meta.get("timers", {"pending": (), "reached": {}})),
            "finished": [
                streams[name]
                for name in meta.get("finished", ())
                if name in streams and ("stream", name) not in self._plan.forgotten
            ],
            "marks": list(self._marks(meta.get("marks", ()))),
            "windows": list(self._windows(meta["windows"], declared["windows"])),
            "dead_letters": [
                {**letter, "stream": streams.get(letter["stream"], letter["stream"])} for letter in meta["dead_letters"]
            ],
            "set_aside": [
                [self._plan.tables[table], self._row(table, row), *rest]
                for table, row, *rest in meta.get("set_aside", ())
                if table in self._plan.tables
            ],
            "versions": {
                self._plan.tables[table]: [
                    [key, [[at, None if row is None else self._row(table, row)] for at, row in versions], trimmed]
                    for key, versions, trimmed in chains
                ]
                for table, chains in meta["versions"].items()
                if table in self._plan.tables
            },
            "unfinished": self._unfinished(meta["unfinished"]),
        }

    def _row(self, table: str, row: Any) -> Any:
        reshape: Reshape | None = self._reshapes.get(table)
        return row if reshape is None else to_json(reshape.row(from_json(row)))

    def _offsets(self, offsets: Mapping[str, Any]) -> dict[str, Any]:
        """A source without a name of its own is called after its stream."""
        found = {}
        for source, offset in offsets.items():
            kind, slash, stream = source.rpartition("/")
            found[source] = offset  # perhaps the name was chosen, and stays
            found.setdefault(f"{kind}{slash}{self._plan.streams.get(stream, stream)}", offset)
        return found

    def _subscriptions(self, meta: Mapping[str, Any], declared: Mapping[str, Any]) -> Iterable[list[Any]]:
        for name, stream, waiting, begun, told, *rest in meta["subscriptions"]:
            if ("subscription", name) in self._plan.forgotten:
                continue
            new = self._plan.streams[stream]
            same = (meta["declared"]["streams"][stream]["key"] is None) == (declared["streams"][new]["key"] is None)
            yield [name, new, waiting, begun, told if same else None, *rest]

    def _topics(self, topics: Iterable[Mapping[str, Any]]) -> Iterable[dict[str, Any]]:
        """Their batches stay as they were written: what they lack is filled in when they are read."""
        for topic in topics:
            stream, end = topic["stream"], topic["place"][0]
            if stream not in self._plan.streams:
                continue
            begins_anew = {"place": [end, -1, 0, 0], "oldest": end} if ("topic", stream) in self._plan.forgotten else {}
            yield {**topic, "stream": self._plan.streams[stream], **begins_anew}

    def _rows(self, stream: str, rows: Iterable[Sequence[Any]]) -> list[Any]:
        fills = self._fills.get(stream, ())
        return [[*row, *fills] for row in rows] if fills else list(rows)

    def _windows(self, windows: Iterable[Any], declared: Mapping[str, Any]) -> Iterable[list[Any]]:
        for procedure, name, key, stands, saved in windows:
            new = self._plan.windows.get(f"{procedure}.{name}")
            if new is None:
                continue  # dropped
            if new in self._plan.restarted:
                saved = None
            elif saved is not None:
                saved = self._widened(saved, declared[new]["streams"])
            now, _, window = new.rpartition(".")
            yield [now, window, key, stands, saved]

    def _widened(self, saved: str, streams: Sequence[str]) -> str:
        added = [self._plan.widened.get(stream, []) for stream in streams]
        if not any(added):
            return saved
        state = base64.b64decode(saved)
        return base64.b64encode(widened(state, added[0]) if len(added) == 1 else widened_join(state, added)).decode()

    def _timers(self, saved: Mapping[str, Any]) -> dict[str, Any]:
        """Timers go to their stream as it is called now; those of a stream that was dropped are gone."""
        streams = self._plan.streams
        return {
            "pending": [
                [*of, streams[stream], procedure, *self._rows(streams[stream], [row])]
                for *of, stream, procedure, row in saved["pending"]
                if stream in streams
            ],
            "reached": {streams[name]: us for name, us in saved["reached"].items() if name in streams},
            "silences": {streams[name]: us for name, us in saved.get("silences", {}).items() if name in streams},
        }

    def _marks(self, marks: Iterable[Any]) -> Iterable[list[Any]]:
        """Watermarks that procedures have heard; one with another name hears its next ones."""
        for procedure, key, heard in marks:
            if procedure in self._app.procedures:
                yield [procedure, key, {self._plan.streams.get(stream, stream): mark for stream, mark in heard.items()}]

    # ---- unfinished work

    def _unfinished(self, saved: Mapping[str, Any]) -> dict[str, Any]:
        units, streams = self._plan.units, self._plan.streams
        executions = [
            {
                **e,
                "unit": units[e["unit"]],
                "inputs": self._inputs(e["inputs"]),
                **({"parts": self._parts(e["parts"])} if "parts" in e else {}),
                "missing": [streams.get(stream, stream) for stream in e["missing"]],
                "partitions": {self._plan.tables[table]: values for table, values in e["partitions"].items()},
                "shown": [self._question(question) for question in e["shown"]],
            }
            for e in saved["executions"]
        ]
        return {
            **saved,
            "executions": executions,
            "calls": [{**c, "procedure": units[c["procedure"]]} for c in saved["calls"]],
            "partial": [
                [
                    units[unit],
                    key,
                    batch_id,
                    [streams.get(stream, stream) for stream in arrived],
                    self._inputs(inputs),
                    [self._batch(batch) for batch in named],
                ]
                for unit, key, batch_id, arrived, inputs, named in saved["partial"]
            ],
            "early": [[self._batch(batch) for batch in batches] for batches in saved["early"]],
        }

    def _question(self, saved: Any) -> Any:
        """What an open question has done so far; the digest of what it showed stays."""
        record = under_new_names(self._plan, self._app, saved)
        if record.writes is None or record.emitted is None:
            return msgspec.to_builtins(record)
        stored = {new: old for old, new in self._plan.tables.items()}
        writes = {
            table: [[self._row(stored[table], row) for row in rows], deleted]
            for table, (rows, deleted) in record.writes.items()
        }
        emitted = {stream: self._rows(stream, rows) for stream, rows in record.emitted.items()}
        timers = record.timers and [one if isinstance(one, str) else self._timer(*one) for one in record.timers]
        return msgspec.to_builtins(msgspec.structs.replace(record, writes=writes, emitted=emitted, timers=timers))

    def _timer(self, due_us: int, stream: str, procedure: str, row: Any) -> list[Any]:
        """A timer that a transaction has set which waits for its answer."""
        new = self._plan.streams[stream]
        return [due_us, new, procedure, *self._rows(new, [row])]

    def _inputs(self, inputs: Mapping[str, Any]) -> dict[str, Any]:
        return {self._plan.streams.get(stream, stream): self._batch(batch) for stream, batch in inputs.items()}

    def _parts(self, parts: Mapping[str, Any]) -> dict[str, Any]:
        """What is known of the keys of an execution that is still to be divided."""
        return {
            self._plan.streams.get(stream, stream): [
                [key, part if part == "coming" else self._batch(part)] for key, part in by_key
            ]
            for stream, by_key in parts.items()
        }

    def _batch(self, batch: Any) -> Any:
        if batch is None:
            return None
        stream, batch_id, key, rows, *watermark = batch
        new = self._plan.streams[stream]
        return [new, batch_id, key, self._rows(new, rows), *watermark]
