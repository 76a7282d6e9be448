"""All topics of one engine: one for every stream that is kept or followed, and one for each follower of a changelog."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote
from zlib import crc32

from tidegate.crashpoints import crash_point
from tidegate.errors import LogDamaged
from tidegate.outside.topics.segments import Segments
from tidegate.outside.topics.topic import Follower, Topic
from tidegate.streams.batch import Batch
from tidegate.txn.entries import Work
from tidegate.txn.log.record import to_us
from tidegate.txn.positions import Position, position, sequence_of

if TYPE_CHECKING:
    from tidegate.engine.engine import Engine

log = logging.getLogger("tidegate")

LONGEST = 80  # characters of a name in that of a file
ALL = 1 << 62  # during a replay everything is on disk


class Topics:
    """See the module. Changed under the engine's lock."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self.shared: dict[str, Topic] = {}  # by stream
        self.private: dict[str, Topic] = {}  # by subscription
        self._borders: dict[str, Topic] = {}
        self._keepers: dict[str, Any] = {}  # by the id of the topic
        self._dropped: list[Topic] = []  # since the last checkpoint, which may still name them
        self._floors: dict[int, dict[str, int]] = {}  # LSN of a kept generation -> where topics ended then
        self._saving: dict[str, int] = {}
        self._again: dict[
            tuple[str, Any, int], int
        ] = {}  # what this replay has emitted: topic, key, batch-id -> offset

    def __iter__(self) -> Any:
        return iter([*self.shared.values(), *self.private.values()])

    def begin_declared(self) -> None:
        """The streams that are declared with ``keep=`` have topics, from now on or as restored."""
        for stream in self._engine.app.streams.values():
            if stream.keep is not None and stream.name not in self.shared:
                since, id = self._found(stream.name) or (self._engine.sequence, self.new_id(stream.name, None))
                self._share(stream.name, since, id).restore(None)
        for name, topic in list(self.shared.items()):
            if topic.keep is None and not topic.followers:
                log.info("stream %s is no longer kept: what its topic holds is dropped", name)
                self._drop(topic)

    def _found(self, stream: str) -> tuple[int, str] | None:
        """Since when there are files of this stream, and where: a base from before may have been fallen back to."""
        place = self._place
        if place is None or not place.exists():
            return None
        parts = [(path.name.rpartition("-"), path.name) for path in place.iterdir()]
        found = [(int(since), id) for (name, _, since), id in parts if name == _file_name(stream) and since.isdigit()]
        return max(found, default=None)

    @property
    def _place(self) -> Path | None:
        directory = self._engine.directory
        return None if directory is None else directory.path / "topics"

    # ---- beginning and ending

    def new_id(self, stream: str, subscription: str | None) -> str:
        """For a topic that begins now: the name of its directory, which a replay finds in the log."""
        id = _file_name(stream) if subscription is None else f"{_file_name(stream)}.{_file_name(subscription)}"
        id = f"{id}-{self._engine.sequence}"
        while any(topic.id == id for topic in [*self, *self._dropped]):
            id += "+"
        return id

    def follow(self, stream: str, since: int, id: str) -> Topic:
        """The topic that all followers of a stream share; one that begins holds what enters after ``since``."""
        found = self.shared.get(stream)
        if found is None:
            found = self._share(stream, since, id)
            found.restore(None)
        return found

    def _share(self, stream: str, since: int, id: str) -> Topic:
        topic = self.shared[stream] = self._topic(stream, since, id, False)
        if self._engine.app.streams[stream].border:
            self._borders[stream] = topic
        else:
            self._engine.runtime.topics.setdefault(stream, []).append(self._keeper(topic))
        return topic

    def own(self, subscription: str, stream: str, since: int, id: str) -> Topic:
        """The topic of one subscription, which appends to it itself."""
        topic = self.private[subscription] = self._topic(stream, since, id, True)
        return topic

    def _topic(self, stream: str, since: int, id: str, private: bool) -> Topic:
        declared, graph = self._engine.app.streams[stream], self._engine.graph
        table = declared.changelog_of
        keyed = (
            bool(self._engine.app.tables[table].partition_by)
            if table is not None
            else graph.keyed.get(stream) is not None
        )
        ordered = declared.border or not keyed
        columns = [f"{column.name} {column.type.sql}" for column in declared.relation.columns]
        files = None if self._place is None else Segments(self._place / id, id, columns)
        return Topic(id, declared.relation, declared.keep, since, ordered, files, private)

    def _keeper(self, topic: Topic) -> Any:
        def keep(position: Position, time_us: int, batch: Batch) -> None:
            """Called inside the commit."""
            self.append(topic, position, time_us, batch)

        self._keepers[topic.id] = keep
        return keep

    def leave(self, topic: Topic, follower: Follower, subscription: str) -> None:
        """A subscription ends; with the last of them its topic does, unless the stream is kept."""
        topic.followers.remove(follower)
        if topic.private:
            del self.private[subscription]
            self._dropped.append(topic)
        elif not topic.followers and topic.keep is None:
            self._drop(topic)

    def _drop(self, topic: Topic) -> None:
        del self.shared[topic.stream]
        self._borders.pop(topic.stream, None)
        kept = self._engine.runtime.topics
        if topic.stream in kept:
            kept[topic.stream].remove(self._keepers.pop(topic.id))
            if not kept[topic.stream]:
                del kept[topic.stream]
        self._dropped.append(topic)

    # ---- appending

    def append(self, topic: Topic, at: Position, time_us: int, batch: Batch) -> None:
        durable = self._engine.durable
        if durable is None:
            offset = topic.append(at, time_us, batch, 0, ALL)
            if offset is not None and not topic.ordered and self._place is not None:
                self._again[topic.id, batch.key, batch.id] = offset
        else:
            topic.append(at, time_us, batch, durable.writer.appended, durable.writer.synced)

    def accepted(self, work: Work) -> None:
        """Batches have entered on border streams; their record is in the log."""
        for number, batch in enumerate(work.batches, work.first):
            topic = self._borders.get(batch.relation.name)
            if topic is not None and len(batch):
                self.append(topic, position(number, 0), to_us(work.time), batch)

    def offset_of(self, topic: Topic, key: Any, batch_id: int, offset: int) -> int:
        """During a replay: where the batch is that was once at ``offset``. Without the files that it was in, a stream that
        commits its keys in any order is written in another order.
        """
        return self._again.get((topic.id, key, batch_id), offset)

    @property
    def of_borders(self) -> bool:
        return bool(self._borders)

    # ---- durability

    @property
    def ready(self) -> int:
        """How far the log is on disk."""
        durable = self._engine.durable
        return ALL if durable is None else durable.writer.synced

    def saved(self, lsn: int) -> list[dict[str, Any]]:
        """For the checkpoint at ``lsn``."""
        self._saving = {topic.id: topic.end for topic in self}
        kept = self._kept_from()
        floors = {at: ends for at, ends in self._floors.items() if at >= kept}
        if self._engine.durable is not None and self._engine.durable.generation_due:
            floors[lsn] = self._saving
        self._floors = floors
        return [
            {**topic.stands(), "floors": [[at, ends[topic.id]] for at, ends in floors.items() if topic.id in ends]}
            for topic in self
        ]

    def _kept_from(self) -> int:
        durable = self._engine.durable
        return 0 if durable is None else durable.kept_from()

    def restore(self, saved: list[dict[str, Any]]) -> None:
        for stands in saved:
            for at, end in stands["floors"]:
                self._floors.setdefault(at, {})[stands["id"]] = end
            if not stands["private"]:
                self._share(stands["stream"], stands["since"], stands["id"]).restore(stands)
        self._of_subscriptions = {stands["id"]: stands for stands in saved if stands["private"]}

    def restored(self, subscription: str, stream: str, id: str) -> Topic:
        """The topic that a restored subscription reads."""
        stands = self._of_subscriptions.get(id)
        if stands is None:
            return self.shared[stream]
        topic = self.own(subscription, stream, stands["since"], id)
        topic.restore(stands)
        return topic

    def replayed(self) -> list[str]:
        """The replay is over; returns what is to be told."""
        told = []
        self._again.clear()
        scheduler = self._engine.scheduler
        unfinished = {sequence_of(at) for at in (*scheduler.live, *scheduler.parked)}
        for topic in self:
            lost = topic.replayed(unfinished)
            if lost:
                told.append(
                    f"{lost} batches of stream {topic.stream} did not come again, and are left out of its topic"
                )
            for follower in topic.followers:
                needs = follower.needs
                if needs is not None and needs < topic.begin:
                    raise LogDamaged(
                        f"the topic of stream {topic.stream} begins at offset {topic.begin}, but a subscription has not "
                        f"acknowledged offset {needs}: files in {self._place} are missing. Restore them from a backup, then open "
                        f"again",
                        file=None,
                        offset=None,
                        lsn=needs,
                    )
        self._remove_strays()
        return told

    def _remove_strays(self) -> None:
        """Files of topics that ended before the engine stopped."""
        place = self._place
        if place is None or not place.exists():
            return
        known = {topic.id for topic in self}
        for path in place.iterdir():
            if path.is_dir() and path.name not in known:
                Segments(path, path.name, []).remove_all()

    def sync(self) -> None:
        """Return when everything appended so far is on disk: a checkpoint is about to rely on it."""
        crash_point("topic-before-sync")
        ready = self.ready
        for topic in list(self):
            if topic.files is not None:
                topic.files.sync(ready)

    def merged(self) -> None:
        """A checkpoint is on disk: what it does not name is removed, and what nobody needs."""
        now_us = to_us(self._engine.clock.now())
        expired = [(topic, topic.expired(now_us)) for topic in self]
        with self._engine.lock:
            dropped, self._dropped = self._dropped, []
            floors = self._floors.get(self._kept_from(), {})
            for topic, offset in expired:
                topic.let_go(offset, topic.end if topic.files is None else floors.get(topic.id, topic.begin))
        try:
            for topic in dropped:
                if topic.files is not None:
                    topic.files.remove_all()
            for topic, _ in expired:
                topic.remove_files()
        except OSError as error:
            log.warning("files of topics could not be removed (%s); the next merge tries again", error)

    def close(self) -> None:
        """Release the files; may be called more than once."""
        for topic in self:
            if topic.files is not None:
                topic.files.close()


def _file_name(text: str) -> str:
    """Any text as a part of a file's name, of bounded length."""
    quoted = quote(text, safe="").replace(".", "%2E")
    return quoted if len(quoted) <= LONGEST else f"{quoted[:LONGEST]}~{crc32(text.encode()):08x}"
