"""Worker processes: how they are started, what is sent, and how a dead one is handled.

They are fresh interpreters that read tasks from a socket: never forks of a process with threads, no need for ``if
__name__ == "__main__"``, and they end when the socket closes, however this process ends. They keep its environment, so
that libraries use as many threads for sums, and so give the same bits.
"""

from __future__ import annotations

import logging
import os
import pickle
import signal
import socket
import struct
import subprocess
import sys
import threading
import weakref
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from typing import Any

import numpy as np

from tidegate.forking import own
from tidegate.streams.windows.declare.functions import Extent
from tidegate.streams.windows.evaluate.tasks import Operation, Task, Work
from tidegate.streams.windows.state.columns import Array, Columns

log = logging.getLogger("tidegate.windows")

DEATHS = 3  # after this many dead workers no more are started


@dataclass(frozen=True)
class Reply:
    """What a worker did of a task. ``raised``: why it stopped; ``refused``: why it could not load the function."""

    results: list[Any]
    raised: str | None = None
    refused: str | None = None


class Member:
    """A worker process, and the work it already knows. It has one task at a time, so sending never blocks."""

    def __init__(self) -> None:
        ours, theirs = socket.socketpair()
        path = os.pathsep.join(entry or os.getcwd() for entry in sys.path)
        # numpy's temporaries stay in the heap instead of being mapped each time
        heap = {"MALLOC_MMAP_THRESHOLD_": str(2**30), "MALLOC_TRIM_THRESHOLD_": str(2**30)}
        code = f"from {__name__} import serve; serve({theirs.fileno()})"
        self.process = subprocess.Popen(
            [sys.executable, "-c", code],
            stdin=subprocess.DEVNULL,
            pass_fds=[theirs.fileno()],
            env={**os.environ, "PYTHONPATH": path, **heap},
        )
        theirs.close()
        self.connection = Connection(ours.detach())
        self.ready = False
        self.told: set[int] = set()

    def give(self, task: Task, number: int) -> None:
        items = task.items if task.operation == "combine" else lay_out(task.items)
        message = packed(items)
        if number not in self.told:
            self.connection.send_bytes(packed(("work", number, task.work.packed)))
            self.told.add(number)
        self.connection.send_bytes(packed(("task", number, task.operation)))
        self.connection.send_bytes(message)

    def end(self, kill: bool = False) -> int | None:
        """Close the socket, which ends the process, or kill it."""
        self.connection.close()
        if kill:
            self.process.kill()
        try:
            return self.process.wait(2)
        except subprocess.TimeoutExpired:
            self.process.kill()
            return self.process.wait()


class Pool:
    """The worker processes: started when first needed, one evaluation at a time."""

    def __init__(self, notes: list[str]) -> None:
        self.notes = notes
        self.members: list[Member] = []
        self.deaths = 0
        self._numbers: weakref.WeakKeyDictionary[Work, int] = weakref.WeakKeyDictionary()
        self._next = 0
        self._lock = threading.RLock()
        self._at_exit = weakref.finalize(self, _end_all, self.members)
        own(self)

    @property
    def ready(self) -> int:
        return sum(member.ready for member in self.members)

    def start(self, workers: int) -> None:
        with self._lock:
            while len(self.members) < workers and self.deaths < DEATHS:
                self.members.append(Member())

    def greet(self, wait_s: float | None) -> None:
        """Register workers that have started; with None wait for all of them."""
        if not self._lock.acquire(blocking=wait_s is None):
            return  # they are working, so they have started
        try:
            while new := {m.connection: m for m in self.members if not m.ready}:
                heard = wait(list(new), wait_s)
                for member in [new[connection] for connection in new if connection in heard]:
                    try:
                        member.connection.recv_bytes()
                        member.ready = True
                    except (EOFError, OSError):
                        self._lost(member, "while starting")
                if not heard:
                    return
        finally:
            self._lock.release()

    def run(self, tasks: Sequence[Task], workers: int, patient: bool = False) -> list[Reply]:
        """Replies in the order of the tasks; an empty one for what no worker did.

        ``patient``: wait for all workers to start, instead of using those that have.
        """
        with self._lock:
            self.start(workers)
            self.greet(wait_s=None if patient or not self.ready else 0)
            members = [member for member in self.members if member.ready][:workers]
            replies = [Reply([]) for _ in tasks]
            queues: list[deque[int]] = [deque() for _ in members]
            common: deque[int] = deque()
            for i, task in enumerate(tasks):
                if task.worker is None or not members:
                    common.append(i)
                else:
                    queues[task.worker % len(members)].append(i)
            busy: dict[Connection, tuple[int, int]] = {}
            try:
                for place in range(len(members)):
                    self._give_next(members, place, tasks, queues, common, busy)
                while busy:
                    heard = wait(list(busy))
                    for place, i in [busy.pop(connection) for connection in list(busy) if connection in heard]:
                        try:
                            message = members[place].connection.recv_bytes()
                        except (EOFError, OSError):
                            self._lost(members[place], f"at {_told(tasks[i])}")
                            continue
                        replies[i] = _read(message)
                        self._give_next(members, place, tasks, queues, common, busy)
            except BaseException:  # interrupted: late answers would be taken for those of the next evaluation
                for place, _ in busy.values():
                    self.members.remove(members[place])
                    members[place].end(kill=True)
                raise
            return replies

    def _give_next(
        self,
        members: Sequence[Member],
        place: int,
        tasks: Sequence[Task],
        queues: list[deque[int]],
        common: deque[int],
        busy: dict[Connection, tuple[int, int]],
    ) -> None:
        while queue := queues[place] or common:
            i = queue.popleft()
            connection = members[place].connection
            busy[connection] = place, i
            try:
                members[place].give(tasks[i], self._number(tasks[i].work))
                return
            except OSError:
                del busy[connection]
                self._lost(members[place], f"before {_told(tasks[i])}")
                return
            except Exception as error:
                del busy[connection]
                log.info("%s can't be sent to a worker process: %s", _told(tasks[i]), error)

    def _number(self, work: Work) -> int:
        if work not in self._numbers:
            self._numbers[work] = self._next
            self._next += 1
        return self._numbers[work]

    def _lost(self, member: Member, when: str) -> None:
        self.deaths += 1
        self.members.remove(member)
        code = member.end(kill=True)
        end = f"killed by signal {-code}" if code and code < 0 else f"exit code {code}"
        text = f"a worker process died ({end}) {when}; what it had was evaluated in this process"
        self.notes.append(text)
        log.warning("%s", text)

    def close(self) -> None:
        with self._lock:
            _end_all(self.members)

    def left_behind(self) -> None:
        """In a forked child: the workers belong to the parent, and do not end with us."""
        self._at_exit.detach()


def _told(task: Task) -> str:
    return f"{len(task.items):,} items of {task.work.function!r}"


def _read(message: bytes) -> Reply:
    try:
        reply: Reply = unpacked(message)
    except Exception as error:
        return Reply([], raised=f"its result can't be read: {error}")
    return reply


def _end_all(members: list[Member]) -> None:
    for member in members:
        member.connection.close()
    while members:
        member = members.pop()
        member.end(kill=not member.ready)


# ---- what is sent


def packed(message: Any) -> bytes:
    """Lengths, the pickle, then the arrays it refers to, each at a multiple of 64 bytes."""
    buffers: list[pickle.PickleBuffer] = []
    head = pickle.dumps(message, protocol=5, buffer_callback=buffers.append)
    raws = [memoryview(head), *(buffer.raw() for buffer in buffers)]
    lengths = struct.pack(f"<{len(raws) + 1}Q", len(raws), *(raw.nbytes for raw in raws))
    parts: list[Any] = []
    for part in (lengths, *raws):
        parts += (part, bytes(-len(part) % 64))
    return b"".join(parts)


def unpacked(message: bytes) -> Any:
    view = memoryview(message)
    (count,) = struct.unpack_from("<Q", view)
    lengths = struct.unpack_from(f"<{count}Q", view, 8)
    place, parts = _up(8 * (count + 1)), []
    for length in lengths:
        parts.append(view[place : place + length])
        place += _up(length)
    return pickle.loads(parts[0], buffers=parts[1:])


def _up(length: int) -> int:
    return -(-length // 64) * 64


def lay_out(extents: Sequence[Extent]) -> tuple[Any, ...]:
    """Extents for another process. Rows that several of them share, as overlapping windows do, are sent once."""
    labels = [(e.number, e.key, e.start, e.end, e.cuts, len(e)) for e in extents]
    values = {name: _joined([e.columns.values[name] for e in extents]) for name in extents[0].columns.values}
    valid = {name: _joined([e.columns.valid[name] for e in extents]) for name in extents[0].columns.valid}
    return labels, values, valid


def _joined(arrays: Sequence[Array | None]) -> tuple[Array | None, list[tuple[int, int] | None]]:
    """One array, and where in it each of ``arrays`` is. Those that overlap in memory overlap in it."""
    given = [(a.__array_interface__["data"][0], i, a) for i, a in enumerate(arrays) if a is not None]
    places: list[tuple[int, int] | None] = [None] * len(arrays)
    pieces: list[Array] = []
    length = end = 0
    for at, i, array in sorted(given, key=lambda one: one[:2]):
        shared = 0
        if pieces and at < end and array.flags.c_contiguous and not (end - at) % array.itemsize:
            shared = (end - at) // array.itemsize  # this many elements of it were just laid out
        places[i] = length - shared, length - shared + len(array)
        if shared < len(array):
            pieces.append(array[shared:])
            length += len(array) - shared
            end = at + array.nbytes if array.flags.c_contiguous else 0
    return (np.concatenate(pieces) if pieces else (given[0][2] if given else None)), places


def laid_out(work: Work, layout: tuple[Any, ...]) -> Iterator[Extent]:
    labels, values, valid = layout
    for i, (number, key, start, end, cuts, length) in enumerate(labels):
        columns = Columns(work.relation, length, _at(values, i), _at(valid, i))
        yield Extent(number, key, start, end, columns.protected(), cuts)


def _at(joined: Mapping[str, Any], i: int) -> dict[str, Any]:
    return {
        name: None if (place := places[i]) is None else array[slice(*place)] for name, (array, places) in joined.items()
    }


# ---- a worker process, from inside


def serve(descriptor: int) -> None:
    """Carry out tasks from a socket until it closes."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the process that started it decides when it ends
    works: dict[int, bytes | Work] = {}
    with Connection(descriptor) as connection:
        try:
            connection.send_bytes(b"ready")
            while True:
                what, number, told = unpacked(connection.recv_bytes())
                if what == "work":
                    works[number] = told
                    continue
                reply = _answer(works, number, told, connection.recv_bytes())
                try:
                    message = packed(reply)
                except Exception as error:
                    message = packed(Reply([], raised=f"its result can't be sent: {error}"))
                connection.send_bytes(message)
        except (EOFError, OSError):
            pass  # the other side is gone: nothing more to do
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)  # immediately, without tearing down all loaded modules


def _answer(works: dict[int, bytes | Work], number: int, operation: Operation, message: bytes) -> Reply:
    try:
        work = works[number]
        if isinstance(work, bytes):
            works[number] = work = Work.unpacked(work)
    except Exception as error:
        return Reply([], refused=f"{type(error).__name__}: {error}")
    results: list[Any] = []
    try:
        items = unpacked(message)
        for item in items if operation == "combine" else laid_out(work, items):
            results.append(work.do(operation, item))  # noqa: PERF401 - what was done before it raised counts
    except BaseException as error:
        return Reply(results, raised=f"{type(error).__name__}: {error}")
    return Reply(results)
