"""The engine's side of the replica process: starts it, feeds it, watches it, ends it, starts the next.

A replica that takes more memory than it may, can't stop a query it was told to stop, or does not answer, is killed; its
sessions are told why, as far as it still can. The engine is not involved: all this runs on separate threads, and the
engine only has to merge from time to time and, after a start, read the base once.
"""

from __future__ import annotations

import logging
import os
import socket
import struct
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Generator
from contextlib import closing
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from tidegate.mutex import Flag
from tidegate.replica.feed import Feed, described, view_frames
from tidegate.replica.frames import Kind, pack, receive
from tidegate.replica.limits import Limits

if TYPE_CHECKING:
    from tidegate.engine.engine import Engine

log = logging.getLogger("tidegate.replica")

LOOK_EVERY_S = 0.05
SILENCE_S = 15.0  # a replica that is silent for this long is stuck
STARTING_S = 120.0  # ... unless it is still reading its first copy
SEND_S = 30.0  # for sending only: it may take longer to start, and is silent meanwhile
TIMEVAL = struct.Struct("@ll")
FAREWELL_S = 3.0  # to tell its sessions why it ends
HURRY_S = 0.3  # ... when its memory keeps growing
LONGEST_PAUSE_S = 5.0  # between two starts, when it keeps dying
PAGE = os.sysconf("SC_PAGE_SIZE")


class Child:
    """One replica process and the threads that talk to it."""

    def __init__(
        self, engine: Engine, feed: Feed, limits: Limits, configured: dict[str, Any], inherited: list[int]
    ) -> None:
        self._engine = engine
        self._feed = feed
        self._limits = limits
        ours, theirs = socket.socketpair()
        self._socket = ours
        ours.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, TIMEVAL.pack(int(SEND_S), int(SEND_S % 1 * 1e6)))
        local, postgres = inherited[0], inherited[1] if len(inherited) > 1 else -1
        self.process = subprocess.Popen(
            [
                *(
                    sys.executable,
                    "-P",
                    "-c",
                    # what stops the engine's group, or all of its service, is for the engine: it ends the replica
                    "import signal as s, sys; s.signal(s.SIGINT, s.SIG_IGN); s.signal(s.SIGTERM, s.SIG_IGN); "
                    "from tidegate.replica.child import main; main(sys.argv[1:])",
                ),
                *(str(n) for n in (theirs.fileno(), local, postgres, limits.memory_mb, limits.connections)),
            ],
            pass_fds=[theirs.fileno(), *inherited],
            env={"PYTHONPATH": os.pathsep.join(p for p in sys.path if p), "LANG": "C.UTF-8"},
            cwd="/",
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
        )
        theirs.close()
        self.started_at = self.heard_at = time.monotonic()
        self.ready = Flag()
        self.farewell = Flag()
        self.alive: dict[str, Any] = {}
        self._wanted: deque[tuple[int, list[str]]] = deque()
        self._awoken: deque[tuple[int, int]] = deque()
        self._closing = False
        self._cut_off = False  # in the middle of a frame: nothing more can be sent
        self._farewell_s = FAREWELL_S
        self._last_words: deque[str] = deque(maxlen=20)
        self._configured = configured
        self._threads = [
            threading.Thread(target=target, name=f"tidegate-replica-{target.__name__.strip('_')}", daemon=True)
            for target in (self._send, self._listen, self._overhear)
        ]
        for thread in self._threads:
            thread.start()

    # ---- talking

    def _send(self) -> None:
        try:
            self._socket.sendall(pack(Kind.CONFIGURE, self._configured))
            while self._next():
                with closing(self._frames()) as frames:
                    for frame in frames:
                        self._socket.sendall(frame)
        except OSError as error:
            self._cut_off = True
            if not self._closing:
                log.warning("the replica no longer accepts data (%s)", error)
                self.process.kill()

    def _next(self) -> bool:
        """Wait for something to send; False when there will be nothing more."""
        with self._feed.news:
            self._feed.news.wait_for(lambda: self._closing or self._wanted or self._awoken or self._feed.has_news())
            return not self._closing

    def _frames(self) -> Generator[bytes]:
        while self._awoken:
            request, position = self._awoken.popleft()
            yield pack(Kind.FRESH, {"request": request, "position": position})
        while self._wanted:
            request, names = self._wanted.popleft()
            yield from view_frames(self._engine, names, request)
        yield from self._feed.frames()

    def _listen(self) -> None:
        try:
            while (frame := receive(self._socket)) is not None:
                self.heard_at = time.monotonic()
                if frame.kind is Kind.ALIVE:
                    self.alive = frame.facts
                elif frame.kind is Kind.READY:
                    self.ready.set()
                elif frame.kind is Kind.FAREWELL:
                    self.farewell.set()
                elif frame.kind is Kind.AWAKE:
                    threading.Thread(target=self._freshen, args=(frame.facts["request"],), daemon=True).start()
                elif frame.kind is Kind.RESTING:
                    self._feed.rest()
                elif frame.kind is Kind.WANT_VIEWS:
                    with self._feed.news:
                        self._wanted.append((frame.facts["request"], frame.facts["views"]))
                        self._feed.news.notify_all()
        except OSError:
            pass  # it is being ended, or dead: the supervisor handles that

    def _freshen(self, request: int) -> None:
        """A merge may take a while, and listening must continue meanwhile."""
        position = self._feed.hasten(self._limits.refresh_s)
        with self._feed.news:
            self._awoken.append((request, position))
            self._feed.news.notify_all()

    def _overhear(self) -> None:
        assert self.process.stderr is not None
        for line in self.process.stderr:
            self._last_words.append(line.decode(errors="replace").rstrip())

    # ---- watching and ending

    def resident_mb(self) -> float:
        """Its memory; 0 where the system does not report it."""
        try:
            with open(f"/proc/{self.process.pid}/statm", "rb") as statm:
                return int(statm.read().split()[1]) * PAGE / (1 << 20)
        except (OSError, IndexError):
            return 0.0

    def trouble(self) -> str | None:
        """Why it must end, or None."""
        limits = self._limits
        code = self.process.poll()
        if code is not None:
            words = " | ".join(self._last_words)
            return f"it ended on its own (exit code {code}){': ' + words if words else ''}"
        if (used := self.resident_mb()) > limits.memory_mb:
            self._farewell_s = HURRY_S
            return f"its queries took more memory than allowed ({used:.0f} of {limits.memory_mb} MB)"
        if (overdue := self.alive.get("overdue_s", 0.0)) > limits.grace_s:
            return f"a query kept running {overdue:.1f} s after it was told to stop"
        silence = time.monotonic() - self.heard_at
        if silence > (SILENCE_S if self.ready.is_set() else STARTING_S):
            return f"it did not answer for {silence:.0f} s"
        return None

    def end(self, reason: str) -> None:
        """Have it tell its sessions, then end it."""
        self._closing = True
        with self._feed.news:
            self._feed.news.notify_all()
        if self.process.poll() is None:
            told = threading.Thread(target=self._say_farewell, args=(reason,), daemon=True)
            told.start()
            told.join(self._farewell_s)
            self.process.kill()
        self.process.wait()
        try:
            self._socket.shutdown(socket.SHUT_RDWR)
        except OSError:
            pass
        for thread in self._threads:
            thread.join()
        self._socket.close()
        assert self.process.stderr is not None
        self.process.stderr.close()

    def _say_farewell(self, reason: str) -> None:
        sender = self._threads[0]
        sender.join(self._farewell_s / 2)  # it may be in the middle of a frame
        if sender.is_alive() or self._cut_off:
            return
        try:
            self._socket.sendall(pack(Kind.END, {"reason": reason}))
            self.farewell.wait(self._farewell_s)
        except OSError:
            pass


class Supervisor:
    """Keeps one replica running until it is stopped."""

    def __init__(
        self, engine: Engine, limits: Limits, configured: dict[str, Any], listeners: list[socket.socket]
    ) -> None:
        self._engine = engine
        self._limits = limits
        self._configured = {**described(engine), "limits": asdict(limits), **configured}
        self._listeners = listeners
        self._stopping = Flag()
        self._thread: threading.Thread | None = None
        self._changed = threading.Condition()
        self.feed = Feed(engine)
        self.child: Child | None = None
        self.starts = 0
        self.last_trouble: str | None = None

    def start(self) -> None:
        self.feed.attach()
        self._thread = threading.Thread(target=self._run, name="tidegate-replica", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        """Start, watch, end, repeat. The process is started here: it dies with the thread that started it."""
        pause_s = 0.0
        while not self._stopping.wait(pause_s):
            self.feed.start_over()
            inherited = [listener.fileno() for listener in self._listeners]
            child = Child(self._engine, self.feed, self._limits, self._configured, inherited)
            with self._changed:
                self.child = child
                self.starts += 1
                self._changed.notify_all()
            trouble = self._watch(child)
            if trouble is not None:
                log.warning("restarting the query replica: %s", trouble)
                self.last_trouble = trouble
            child.end(f"the query replica is restarted: {trouble}" if trouble else "the server is shutting down")
            lived_s = time.monotonic() - child.started_at
            pause_s = 0.0 if lived_s > 10 else min(max(pause_s * 2, 0.1), LONGEST_PAUSE_S)

    def _watch(self, child: Child) -> str | None:
        while not self._stopping.wait(LOOK_EVERY_S):
            trouble = child.trouble()
            if trouble is not None:
                return trouble
        return None

    def wait_ready(self, timeout_s: float) -> bool:
        """True when a replica is running and has its copy."""
        deadline = time.monotonic() + timeout_s
        while (left := deadline - time.monotonic()) > 0 and not self._stopping.is_set():
            child = self.child
            if child is not None and child.ready.wait(min(left, 0.1)):
                return True
            if child is None:
                time.sleep(0.01)
        return False

    def stop(self) -> None:
        self.feed.detach()
        self._stopping.set()
        if self._thread is not None:
            self._thread.join()
