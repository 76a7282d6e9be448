"""The page: a thread plays the shift, and every browser gets it as Server-Sent Events.

The ordinary server (:mod:`tidegate.server`) runs on the same engine and takes the doctor's answers, gives the picture of the
dataflow, and has its console at ``/``. This file adds ``/ward``: the page, its feed, and the buttons for pause and speed.
"""

from __future__ import annotations

import asyncio
import base64
import datetime as dt
import json
import logging
import os
import sys
import threading
import time
import webbrowser
from collections import deque
from collections.abc import AsyncIterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import uvicorn
from rich.console import Console
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import FileResponse, JSONResponse, RedirectResponse, Response, StreamingResponse
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from tidegate.errors import TidegateError
from tidegate.examples.mimic_alerts import report
from tidegate.examples.mimic_alerts.backends import choose_backend
from tidegate.examples.mimic_alerts.demo import Options, events_of, open_shift, source_of
from tidegate.examples.mimic_alerts.safety import judge
from tidegate.examples.mimic_alerts.shift import Shift
from tidegate.examples.mimic_alerts.source import Step
from tidegate.examples.mimic_alerts.view import State
from tidegate.server.app import make_app
from tidegate.server.gate import Gate
from tidegate.server.metrics import Metrics
from tidegate.server.serve import check_exposed, listen
from tidegate.server.settings import Settings
from tidegate.server.tokens import Tokens

PAGE = Path(__file__).with_name("page")
POLICY = "default-src 'self'; style-src 'self' 'unsafe-inline'; img-src 'self' data:; frame-ancestors 'none'"
USUAL_PORT = 8090
KEPT = 400  # events a browser may be behind; it then jumps to the newest
SCREEN = 10  # waves that fill a screen
STATE_S = 0.25  # how often the lists beside the waves are refreshed
SLOWEST, FASTEST = 0.1, 60.0  # ward seconds per second
log = logging.getLogger("tidegate.hospital")


class Hub:
    """The newest events, numbered. One thread writes, event loops read."""

    def __init__(self) -> None:
        self._events: deque[tuple[int, str]] = deque(maxlen=KEPT)
        self._waves: deque[str] = deque(maxlen=SCREEN)
        self._number = 0

    def put(self, kind: str, value: Any) -> None:
        text = f"event: {kind}\ndata: {json.dumps(value, default=str)}\n\n"
        if kind == "wave":
            self._waves.append(text)
        self._events.append((self._number + 1, text))
        self._number += 1

    def screen(self) -> tuple[int, list[str]]:
        """For a browser that connects later: the number of the newest event, and the waves that are on the screen."""
        return self._number, list(self._waves)

    def after(self, number: int) -> list[tuple[int, str]]:
        return [event for event in tuple(self._events) if event[0] > number]


class Player:
    """Plays a shift in its own thread, at a variable speed."""

    def __init__(self, shift: Shift, speed: float, paused: bool = False) -> None:
        self.shift = shift
        self.speed = max(SLOWEST, speed) if speed else FASTEST
        self.paused = paused
        self.ended = False
        self.failed: Exception | None = None
        self.hub = Hub()
        self.state = State(shift)
        self._told_at = 0.0
        self._telling = threading.Lock()  # the last event is the newest
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="hospital", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._stop.set()
        self._thread.join(10)

    @property
    def stopping(self) -> bool:
        return self._stop.is_set()

    def control(self, wanted: dict[str, Any]) -> dict[str, Any]:
        """Pause, resume, change the speed; returns the current values."""
        if isinstance(wanted.get("paused"), bool):
            self.paused = wanted["paused"]
        if isinstance(wanted.get("speed"), (int, float)) and SLOWEST <= wanted["speed"] <= FASTEST:
            self.speed = float(wanted["speed"])
        with self._telling:
            self.hub.put("state", {**self.state.latest, **self.controls()})
        return self.controls()

    def controls(self) -> dict[str, Any]:
        failed = None if self.failed is None else str(self.failed) or type(self.failed).__name__
        return {"paused": self.paused, "speed": self.speed, "ended": self.ended, "failed": failed}

    def _run(self) -> None:
        try:
            for step in self.shift.source.steps():
                began = time.monotonic()
                if self._waited():
                    return
                self.shift.step(step)
                self.hub.put("wave", self._wave(step))
                if time.monotonic() - self._told_at > STATE_S:
                    self._tell()
                seconds = len(step.pap or step.ecg) / max(len(self.shift.source.patients), 1)
                self._stop.wait(max(0.0, seconds / self.speed - (time.monotonic() - began)))
            self._wind_down()
            self._tell()
        except Exception as error:
            log.debug("the shift ended with an error", exc_info=True)
            self.failed = error
        self.ended = True
        with self._telling:
            self.hub.put("state", {**self.state.latest, **self.controls()})

    def _waited(self) -> bool:
        """Wait while paused; True when the shift is over."""
        while self.paused and not self._stop.wait(0.05):
            if time.monotonic() - self._told_at > STATE_S:
                self._tell()
        return self._stop.is_set()

    def _wind_down(self) -> None:
        """No more waves; questions that are still open stay until they are answered or lapse."""
        while self.shift.engine.scheduler.live and not self._stop.wait(1 / self.speed):
            if self._waited():
                return
            self.shift.clock.move_to(self.shift.clock.now() + dt.timedelta(seconds=1))
            self.shift.decide()
            self.shift.engine.tick()
            self._tell()

    def _tell(self) -> None:
        """In the thread that plays: what the patients respond to must not change while their waves are made."""
        with self._telling:
            found = self.state.look()
            self.hub.put("state", {**found, **self.controls()})
        self._told_at = time.monotonic()

    def _wave(self, step: Step) -> dict[str, Any]:
        """The packets of a step: 16 bits a sample, base64."""
        found: dict[str, dict[int, str]] = {"pap": {}, "ecg": {}}
        for name, rows in (("pap", step.pap), ("ecg", step.ecg)):
            waves: dict[int, bytes] = {}
            for patient, _, packet in rows:
                waves[patient] = waves.get(patient, b"") + packet
            for patient, wave in waves.items():
                found[name][patient] = base64.b64encode(wave).decode()
        return {"t": (step.at - self.shift.source.start).total_seconds(), "speed": self.speed, **found}


def make_page(player: Player) -> Starlette:
    """Routes under /ward."""

    async def page(request: Request) -> Response:
        name = request.path_params.get("file", "index.html")
        path = PAGE / name
        if path.parent != PAGE or not path.is_file():
            return Response(f"there is no {name}", 404)
        return FileResponse(path, headers={"content-security-policy": POLICY, "cache-control": "no-cache"})

    async def events(_: Request) -> Response:
        async def stream() -> AsyncIterator[str]:
            seen, waves = player.hub.screen()
            yield f"event: ward\ndata: {json.dumps(player.state.ward())}\n\n"
            latest = {**player.state.latest, **player.controls()}
            yield f"event: state\ndata: {json.dumps(latest, default=str)}\n\n"
            for text in waves:
                yield text
            while not player.stopping:
                for number, text in player.hub.after(seen):
                    seen = number
                    yield text
                await asyncio.sleep(0.05)

        return StreamingResponse(stream(), media_type="text/event-stream", headers={"cache-control": "no-store"})

    async def control(request: Request) -> Response:
        try:
            wanted = await request.json()
        except ValueError:
            wanted = None
        if not isinstance(wanted, dict):
            return JSONResponse({"error": {"message": 'send {"paused": true} or {"speed": 3}'}}, 400)
        return JSONResponse(await asyncio.to_thread(player.control, wanted))

    return Starlette(
        routes=[
            Route("/ward", page),
            Route("/ward/events", events),
            Route("/ward/control", control, methods=["POST"]),
            Route("/ward/{file}", page),
        ]
    )


def make_live(player: Player, settings: Settings) -> tuple[ASGIApp, Gate]:
    """The server's application with the page beside it; both behind the server's gate."""
    tokens = Tokens()
    server = make_app(player.shift.engine, settings, tokens)
    page = Gate(make_page(player), settings, tokens, Metrics(), lambda: None, None)
    home = RedirectResponse("/ward")

    async def application(scope: Scope, receive: Receive, send: Send) -> None:
        path = scope.get("path", "")
        if scope["type"] == "http" and path == "/":
            await home(scope, receive, send)
        elif scope["type"] == "http" and (path == "/ward" or path.startswith("/ward/")):
            await page(scope, receive, send)
        else:
            if path == "/console":
                scope = {**scope, "path": "/", "raw_path": b"/"}
            await server(scope, receive, send)

    return application, server


class LiveServer:
    """The page of a player, in a thread: for the demonstration and for tests."""

    def __init__(self, player: Player, host: str = "127.0.0.1", port: int = 0) -> None:
        settings = Settings(host=host, port=port)
        check_exposed(settings, Tokens())
        self._socket = listen(settings)
        self.url = f"http://{host}:{self._socket.getsockname()[1]}"
        self.player = player
        application, self._gate = make_live(player, settings)
        config = uvicorn.Config(
            application,
            loop="uvloop" if find_spec("uvloop") else "asyncio",
            lifespan="on",
            access_log=False,
            log_config=None,
            server_header=False,
            timeout_graceful_shutdown=1,
        )
        self._server = uvicorn.Server(config)
        self._thread = threading.Thread(
            target=self._server.run, args=([self._socket],), name="hospital-page", daemon=True
        )

    def __enter__(self) -> LiveServer:
        self._thread.start()
        while not self._server.started and self._thread.is_alive():
            time.sleep(0.01)
        self.player.start()
        return self

    def __exit__(self, *error: object) -> None:
        self.player.stop()
        self._gate.let_go()
        self._server.should_exit = True
        self._thread.join(10)
        self._socket.close()


def run_live(options: Options, console: Console, host: str, port: int | None, browser: bool) -> dict[str, Any]:
    """Play with a page until Ctrl-C, then report the outcome."""
    where = choose_backend(options.backend)
    source = source_of(options, where)
    shift = open_shift(options, source, where)
    began = time.perf_counter()
    with shift.engine:
        player = Player(shift, options.speed)
        with _serve(player, host, port) as server:
            console.print(
                f"[bold]Hospital[/]: {source.name}, {len(source.patients)} patients. {where.told}.", highlight=False
            )
            console.print(f"Open [bold]{server.url}/ward[/] and decide. Ctrl-C ends it.", highlight=False)
            if browser:
                _open_browser(f"{server.url}/ward")
            try:
                _wait(player, console)
            except KeyboardInterrupt:
                pass
        took_s = time.perf_counter() - began
        shift.collect()
        verdict = judge(events_of(shift.engine), shift.seen.rows)
    report.show(console, source.patients, shift.seen, verdict, took_s)
    if player.failed is not None:
        raise TidegateError(f"the shift stopped early: {player.failed}") from player.failed
    return report.facts(shift.seen, verdict, took_s)


def _wait(player: Player, console: Console) -> None:
    """For Ctrl-C, or an error; says when the shift is over."""
    told = False
    while player.failed is None:
        if player.ended and not told:
            told = True
            console.print("The shift is over. The page stays until Ctrl-C.", highlight=False)
        time.sleep(0.2)


def _serve(player: Player, host: str, port: int | None) -> LiveServer:
    """At the port asked for; without one at the usual port, or any when that is taken."""
    if not Settings(host=host).loopback:
        raise TidegateError(
            f"--host {host} lets other machines connect, and anyone who sees this page may decide; listen on "
            "127.0.0.1, and reach it from elsewhere through a tunnel such as ssh -L "
            f"{port or USUAL_PORT}:127.0.0.1:{port or USUAL_PORT}"
        )
    if port is not None:
        return LiveServer(player, host, port)
    try:
        return LiveServer(player, host, USUAL_PORT)
    except TidegateError:
        return LiveServer(player, host, 0)


def _open_browser(url: str) -> None:
    """Open a browser, if there is one and a display to show it."""
    if os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY") or sys.platform == "darwin":
        try:
            webbrowser.open(url)
        except webbrowser.Error:
            pass
