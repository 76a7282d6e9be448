"""The page: a thread plays the shift, and every browser gets it as Server-Sent Events.

The engine is in a process of its own (:mod:`computer`), which the page can kill and which has the ordinary server with its
console. This process has the monitors, the page under ``/ward``, and the other ward (:mod:`unguarded`).
"""

from __future__ import annotations

import asyncio
import base64
import datetime as dt
import json
import logging
import os
import sys
import tempfile
import threading
import time
import webbrowser
from collections import deque
from collections.abc import AsyncIterator, Callable
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import uvicorn
from rich.console import Console
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import FileResponse, JSONResponse, RedirectResponse, Response, StreamingResponse
from starlette.routing import Route

from tidegate.dataflows.drawing import describe_graph, svg
from tidegate.dataflows.graph import Graph
from tidegate.errors import TidegateError
from tidegate.examples.mimic_alerts import report
from tidegate.examples.mimic_alerts.app import hospital
from tidegate.examples.mimic_alerts.backends import choose_backend
from tidegate.examples.mimic_alerts.computer import START_S, Computer, Orders, orders_for
from tidegate.examples.mimic_alerts.demo import Options, source_of
from tidegate.examples.mimic_alerts.safety import judge
from tidegate.examples.mimic_alerts.shift import Seen
from tidegate.examples.mimic_alerts.source import Patient, Source, Step
from tidegate.examples.mimic_alerts.unguarded import Unguarded
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
OFF_S = 2.5  # how long the power stays off
PRELUDE_STEPS = 200
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
    """Plays a shift in its own thread, at a variable speed: the monitors, the ward's computer, and the other ward.

    ``begun`` False: it waits for somebody to begin. ``prelude``: before the page is shown it plays as fast as it can until
    this holds for a state, so that there is something to see.
    """

    def __init__(
        self,
        source: Source,
        orders: Orders,
        speed: float,
        paused: bool = False,
        begun: bool = True,
        prelude: Callable[[dict[str, Any]], bool] | None = None,
    ) -> None:
        self.source = source
        self.computer = Computer(orders)
        self.other = Unguarded(source, orders.deadline_s, orders.quiet_s)
        self.speed = max(SLOWEST, speed) if speed else FASTEST
        self.paused = paused
        self.begun = begun
        self.ended = False
        self.failed: Exception | None = None
        self.hub = Hub()
        self.latest: dict[str, Any] = {}
        self.outages: list[dict[str, Any]] = []
        self.packets = 0
        self._deadline_s = orders.deadline_s
        self._prelude = prelude
        self._at = source.start
        self._power = "on"
        self.powered = threading.Event()
        self.powered.set()
        self._responded = 0  # doses that patients have responded to
        self._told: set[str] = set()  # receipts that the other ward has been told
        self._told_at = 0.0
        self._turn = threading.RLock()  # one step, or one restart, at a time
        self._telling = threading.Lock()  # the last event is the newest
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="hospital", daemon=True)

    def start(self) -> None:
        """Returns when there is something to see."""
        self._steps = self.source.steps()
        self.computer.boot(self._at)
        while self._prelude is not None and (step := next(self._steps, None)) is not None:
            self._step(step)
            if step.number % 5 == 0 and (self._prelude(self._look()) or step.number >= PRELUDE_STEPS):
                break
        self._tell()
        self._thread.start()

    def stop(self) -> None:
        self._stop.set()
        if self._thread.is_alive():
            self._thread.join(10)
        with self._turn:
            self.computer.close()

    @property
    def stopping(self) -> bool:
        return self._stop.is_set()

    def ward(self) -> dict[str, Any]:
        """What does not change: who lies where."""
        return {
            "name": self.source.name,
            "patients": [patient._asdict() for patient in self.source.patients],
            "deadline_s": self._deadline_s,
        }

    # ---- what people do

    def control(self, wanted: dict[str, Any]) -> dict[str, Any]:
        """Begin, pause, resume, change the speed; returns the current values."""
        for name in ("paused", "begun"):
            if isinstance(wanted.get(name), bool):
                setattr(self, name, wanted[name])
        if isinstance(wanted.get("speed"), (int, float)) and SLOWEST <= wanted["speed"] <= FASTEST:
            self.speed = float(wanted["speed"])
        self._put()
        return self.controls()

    def controls(self) -> dict[str, Any]:
        failed = None if self.failed is None else str(self.failed) or type(self.failed).__name__
        back = self.computer.back
        return {
            "paused": self.paused,
            "begun": self.begun,
            "speed": self.speed,
            "ended": self.ended,
            "failed": failed,
            "power": self._power,
            "pid": self.computer.pid,
            "console": None if back is None else back.console,
            "outages": self.outages,
            "packets": self.packets,
            "other": {"harmed": [harm._asdict() for harm in self.other.harmed()], "doses": self.other.doses},
        }

    def answer(self, wanted: dict[str, Any]) -> None:
        """A decision; returns when it is on disk."""
        what = [wanted[name] for name in ("stream", "batch_id", "digest", "give")]
        self.computer.ask("answer", *what, "the doctor at this page")

    def pull_plug(self) -> dict[str, Any]:
        """Kill the ward's computer, and cut the power of the other ward; both come back in a moment."""
        with self._turn:
            if self._power != "on" or self.ended:
                raise TidegateError("the computer is off already")
            self._tell()
            self._power = "off"
            self.powered.clear()
            before = self.latest
            outage = {"at": self._at, "pid": self.computer.kill(), "doses": before["event_count"]}
            self.outages.append(outage)
            self.other.plug()
        self._put()
        threading.Thread(target=self._restart, args=(outage, before), name="power", daemon=True).start()
        return outage

    def _restart(self, outage: dict[str, Any], before: dict[str, Any]) -> None:
        """What the viewer saw before is compared with what is there afterwards."""
        try:
            self._stop.wait(OFF_S)
            self._power = "starting"
            self._put()
            back = self.computer.boot(self._at)
            after = self.computer.ask("look")
            with self._turn:
                held = sum(step.number > back.confirmed for step in self.computer.kept)
                self.computer.catch_up()
                outage.update(compare(before, after), new_pid=back.pid, took_s=back.took_s, held=held)
                outage.update(records=sum(back.replayed.values()), repeated=self.computer.repeated)
                self._power = "on"
                self.powered.set()
        except Exception as error:
            self.failed = error
        if not self._stop.is_set() and self.failed is None:
            self._tell()

    # ---- the thread that plays

    def _run(self) -> None:
        try:
            for step in self._steps:
                began = time.monotonic()
                if self._waited():
                    return
                self._step(step)
                if time.monotonic() - self._told_at > STATE_S:
                    self._tell()
                seconds = len(step.pap or step.ecg) / max(len(self.source.patients), 1)
                self._stop.wait(max(0.0, seconds / self.speed - (time.monotonic() - began)))
            self._wind_down()
            self._tell()
        except Exception as error:
            log.debug("the shift ended with an error", exc_info=True)
            self.failed = error
        self.ended = True
        self._put()

    def _step(self, step: Step) -> None:
        with self._turn:
            self._at = step.at
            self.packets += len(step.pap) + len(step.ecg)
            self.computer.kept.append(step)
            if self._power == "on":
                self.computer.ask("step", step)
                given = self.computer.ask("given")
                for patient, drug, at in given[self._responded :]:
                    self.source.administered(patient, drug, at)
                self._responded = max(self._responded, len(given))
            self.other.step(step)
        self.hub.put("wave", self._wave(step))

    def _waited(self) -> bool:
        """Wait while paused; True when the shift is over."""
        while (self.paused or not self.begun) and not self._stop.wait(0.05):
            if time.monotonic() - self._told_at > STATE_S:
                self._tell()
        return self._stop.is_set()

    def _wind_down(self) -> None:
        """No more waves; questions that are still open stay until they are answered or lapse."""
        while not self._stop.wait(1 / self.speed):
            if self._waited():
                return
            with self._turn:
                self._at += dt.timedelta(seconds=1)
                if self._power == "on" and not self.computer.ask("wait", self._at):
                    return
            self._tell()

    def _look(self) -> dict[str, Any]:
        """What the computer knows; the other ward hears of the decisions."""
        found: dict[str, Any] = self.computer.ask("look")
        for one in reversed(found["receipts"]):
            if one["receipt"] not in self._told:
                self._told.add(one["receipt"])
                decided_at = None if one["kind"] == "lapsed" else one["decided_at"]
                self.other.decided(one["patient"], one["plain_sign"], one["kind"] == "given", one["by"], decided_at)
        return found

    def _tell(self) -> None:
        with self._turn:
            if self._power == "on":
                self.latest = self._look()
        self._put()
        self._told_at = time.monotonic()

    def _put(self) -> None:
        with self._turn:
            controls = self.controls()
        with self._telling:
            self.hub.put("state", {**self.latest, **controls, "at": self._at, "passed_s": self._passed_s()})

    def _passed_s(self) -> float:
        return (self._at - self.source.start).total_seconds()

    def _wave(self, step: Step) -> dict[str, Any]:
        """The packets of a step: 16 bits a sample, base64."""
        found: dict[str, dict[int, str]] = {"pap": {}, "ecg": {}}
        for name, rows in (("pap", step.pap), ("ecg", step.ecg)):
            waves: dict[int, bytes] = {}
            for patient, _, packet in rows:
                waves[patient] = waves.get(patient, b"") + packet
            for patient, wave in waves.items():
                found[name][patient] = base64.b64encode(wave).decode()
        return {"t": (step.at - self.source.start).total_seconds(), "speed": self.speed, **found}


def compare(before: dict[str, Any], after: dict[str, Any]) -> dict[str, Any]:
    """What was there before the power cut, and how much of it is there afterwards. A question may have been settled."""
    doses = [{tuple(one) for one in state["charted"]} for state in (before, after)]
    receipts = [{one["receipt"] for one in state["receipts"]} for state in (before, after)]
    asked = [
        {(one["patient"], one["batch_id"], one["digest"]) for one in state["questions"]} for state in (before, after)
    ]
    settled = {(one["patient"], int(one["receipt"].split("-")[1])) for one in after["receipts"]}
    back = [one for one in asked[0] if one in asked[1] or one[:2] in settled]
    return {
        "doses_back": len(doses[0] & doses[1]),
        "doses": len(doses[0]),
        "receipts_back": len(receipts[0] & receipts[1]),
        "receipts": len(receipts[0]),
        "questions_back": len(back),
        "questions": len(asked[0]),
    }


def nearly(patients: list[Patient]) -> Callable[[dict[str, Any]], bool]:
    """Is a question open, or does a pressure come near its limit?"""
    limits = {patient.patient: patient.pap_limit for patient in patients}

    def near(state: dict[str, Any]) -> bool:
        last = {patient: points[-1][1] for patient, points in state["trend"].items() if points}
        return bool(state["questions"]) or any(mean and mean > 0.92 * limits[patient] for patient, mean in last.items())

    return near


def _told(facts: dict[str, Any]) -> Response:
    return Response(json.dumps(facts, default=str), media_type="application/json")  # times as text


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
            yield f"event: ward\ndata: {json.dumps(player.ward())}\n\n"
            latest = {**player.latest, **player.controls()}
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
        return _told(await asyncio.to_thread(player.control, wanted))

    async def answer(request: Request) -> Response:
        try:
            wanted = await request.json()
            await asyncio.to_thread(player.answer, wanted)
        except (ValueError, KeyError, TypeError):
            return JSONResponse({"error": {"message": "send stream, batch_id, digest and give"}}, 400)
        except TidegateError as error:
            return JSONResponse({"error": {"message": str(error)}}, 409)
        return JSONResponse({"accepted": True})

    async def plug(_: Request) -> Response:
        try:
            return _told(await asyncio.to_thread(player.pull_plug))
        except TidegateError as error:
            return JSONResponse({"error": {"message": str(error)}}, 409)

    async def graph(_: Request) -> Response:
        return Response(svg(describe_graph(Graph(hospital()))), media_type="image/svg+xml")

    return Starlette(
        routes=[
            Route("/", lambda _: RedirectResponse("/ward")),
            Route("/ward", page),
            Route("/ward/answer", answer, methods=["POST"]),
            Route("/ward/plug", plug, methods=["POST"]),
            Route("/ward/graph.svg", graph),
            Route("/ward/events", events),
            Route("/ward/control", control, methods=["POST"]),
            Route("/ward/{file}", page),
        ]
    )


class LiveServer:
    """The page of a player, in a thread: for the demonstration and for tests."""

    def __init__(self, player: Player, host: str = "127.0.0.1", port: int = 0) -> None:
        settings = Settings(host=host, port=port)
        check_exposed(settings, Tokens())
        self._socket = listen(settings)
        self.url = f"http://{host}:{self._socket.getsockname()[1]}"
        self.player = player
        application = Gate(make_page(player), settings, Tokens(), Metrics(), lambda: None, None)
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
        self._server.should_exit = True
        self._thread.join(10)
        self._socket.close()


def run_live(options: Options, console: Console, host: str, port: int | None, browser: bool) -> dict[str, Any]:
    """Play with a page until Ctrl-C, then report the outcome."""
    where = choose_backend(options.backend)
    source = source_of(options, where)
    began = time.perf_counter()
    with tempfile.TemporaryDirectory(prefix="tidegate-ward-", ignore_cleanup_errors=True) as folder:
        orders = orders_for(options, source, Path(folder))
        prelude = None if options.data is not None else nearly(source.patients)
        player = Player(source, orders, options.speed, begun=options.auto_doctor, prelude=prelude)
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
            seen, events = facts_of(player)
    verdict = judge(events, seen.rows)
    report.show(console, source.patients, seen, verdict, took_s)
    if player.failed is not None:
        raise TidegateError(f"the shift stopped early: {player.failed}") from player.failed
    return report.facts(seen, verdict, took_s)


def facts_of(player: Player) -> tuple[Seen, list[Any]]:
    """Everything that the ward's computer has emitted and charted; waits until it is on."""
    player.powered.wait(START_S)
    with player._turn:
        charted, emitted = player.computer.ask("facts")
    rows = {name: [(k, b, SimpleNamespace(**row)) for k, b, row in found] for name, found in emitted.items()}
    return Seen(rows=rows, packets=player.packets), [SimpleNamespace(**row) for row in charted]


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
