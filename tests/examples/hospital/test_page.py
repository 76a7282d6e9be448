"""The page in a real browser: accept, decline, let them lapse.

Every test has a ward of its own. Where somebody decides, it was played up to the questions beforehand and then stands still: the
ward's clock, and with it every deadline, moves only when the test moves it, however long the browser takes.
"""

from __future__ import annotations

import datetime as dt
import itertools
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import httpx
import pytest
from chromium import NoBrowser, chromium
from rich.console import Console

from tidegate.errors import TidegateError
from tidegate.examples.mimic_alerts.backends import choose_backend
from tidegate.examples.mimic_alerts.demo import Options, events_of, open_shift
from tidegate.examples.mimic_alerts.live import LiveServer, Player, run_live
from tidegate.examples.mimic_alerts.safety import judge
from tidegate.examples.mimic_alerts.shift import Shift
from tidegate.examples.mimic_alerts.ward import Artefact, Course, Ward

pytestmark = pytest.mark.xdist_group("hospital-page")  # one browser for all of them
WAIT_MS = 180_000  # a bound for a busy machine, not an expectation
DEADLINE_S = 300
LAPSED = "nobody: the time to decide ran out"
HERE = "the doctor at this page"
LIT = """selector => { const c = document.querySelector(selector); return c && c.width > 0 &&
         c.getContext('2d').getImageData(0, 0, c.width, c.height).data.some((v, i) => i % 4 === 3 && v > 0); }"""


def ward_in_crisis(minutes: float = 3) -> Ward:
    """Three patients whose pressure rises at once, and one whose line is clamped."""
    rising = [Course(f"story {i}", 20, 22, 10, 20) for i in range(3)]
    return Ward(4, minutes, courses=[*rising, Course("clamped", artefacts=(Artefact("clamped", 60, 180),))])


def open_ward(minutes: float = 3, deadline_s: float = DEADLINE_S) -> Shift:
    options = Options(auto_doctor=False, deadline_s=deadline_s, quiet_s=3600)
    return open_shift(options, ward_in_crisis(minutes), choose_backend("local"))


@contextmanager
def served(shift: Shift, **how: Any) -> Iterator[LiveServer]:
    with shift.engine, LiveServer(Player(shift, speed=60, **how)) as server:
        yield server


@pytest.fixture
def asking() -> Iterator[LiveServer]:
    """A ward that stands still: three doctors are asked at the same moment."""
    shift = open_ward()
    steps = shift.source.steps()
    while len(shift.engine.questions()) < 3:
        shift.step(next(steps))
    with served(shift, paused=True) as server:
        yield server


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with ExitStack() as stack:
        try:
            yield stack.enter_context(chromium())
        except NoBrowser as reason:
            pytest.skip(str(reason))


@pytest.fixture
def visit(browser: Any) -> Iterator[Callable[[LiveServer], Any]]:
    """Opens the page of a server; at the end nothing may have gone wrong in it."""
    wrong: list[str] = []
    with ExitStack() as stack:

        def go(server: LiveServer) -> Any:
            context = browser.new_context(viewport={"width": 1500, "height": 1100}, color_scheme="light")
            stack.callback(context.close)
            page = context.new_page()
            page.set_default_timeout(WAIT_MS)
            page.on("pageerror", lambda error: wrong.append(str(error)))
            page.goto(f"{server.url}/")
            return page

        yield go
    assert wrong == []


def wait_until(holds: Callable[[], bool]) -> None:
    deadline = time.monotonic() + WAIT_MS / 1000
    while not holds() and time.monotonic() < deadline:
        time.sleep(0.02)
    assert holds()


def question(patient: int) -> str:
    return f".question[data-patient='{patient}']"


def given(server: LiveServer) -> list[tuple[int, str, str]]:
    return [(event.patient, event.drug, event.origin) for event in events_of(server.player.shift.engine)]


def decided(server: LiveServer, count: int) -> dict[int, tuple[bool, str]]:
    """What became of the alerts, when ``count`` of them are over; the player's thread collects them."""
    seen = server.player.shift.seen
    wait_until(lambda: len(seen.of("outcomes")) >= count)
    assert len(seen.of("outcomes")) == count
    return {row.patient: (row.given, row.decided_by) for row in seen.of("outcomes")}


def still_asked(server: LiveServer) -> list[int]:
    return [question.key for question in server.player.shift.engine.questions()]


def test_an_alert_is_accepted_and_med_events_changes(asking: LiveServer, visit: Any) -> None:
    page = visit(asking)
    page.wait_for_selector(question(1))
    assert "nesiritide" in page.inner_text(question(1))
    assert page.locator("#events tr[data-drug]").count() == 0
    assert "waits for the doctor" in page.inner_text(".bed[data-patient='1']")
    assert "emergency" in page.inner_text("#waits")
    page.click(f"{question(1)} .accept")
    page.wait_for_selector("#events tr[data-drug='nesiritide'][data-patient='1']")
    page.wait_for_selector(question(1), state="detached")
    assert page.locator("#events tr[data-drug]").count() == 1
    assert decided(asking, 1) == {1: (True, HERE)}
    assert given(asking) == [(1, "nesiritide", "alert")]
    assert still_asked(asking) == [2, 3]
    assert page.locator(".question").count() == 2


def test_another_is_declined_with_the_keyboard(asking: LiveServer, visit: Any) -> None:
    page = visit(asking)
    page.wait_for_selector(f"{question(1)}.selected")
    page.wait_for_selector(question(2))
    page.keyboard.press("ArrowDown")
    page.wait_for_selector(f"{question(2)}.selected")
    page.keyboard.press("d")
    page.wait_for_selector(question(2), state="detached")
    page.wait_for_selector("#news .kind-declined:has-text('not given')")
    assert decided(asking, 1) == {2: (False, HERE)}
    assert given(asking) == []
    assert still_asked(asking) == [1, 3]


def test_what_nobody_decides_lapses(asking: LiveServer, visit: Any) -> None:
    page, shift = visit(asking), asking.player.shift
    page.click(f"{question(1)} .accept")
    page.wait_for_selector(question(1), state="detached")
    assert decided(asking, 1) == {1: (True, HERE)}
    asked_at = shift.clock.now()
    shift.clock.move_to(asked_at + dt.timedelta(seconds=DEADLINE_S - 1))
    shift.engine.tick()
    assert still_asked(asking) == [2, 3]  # not a second too early
    shift.clock.move_to(asked_at + dt.timedelta(seconds=DEADLINE_S + 1))
    page.wait_for_selector(f"#news li:has-text('bed 2'):has-text('{LAPSED}')")
    page.wait_for_selector(f"#news li:has-text('bed 3'):has-text('{LAPSED}')")
    page.wait_for_selector("#questions:has-text('No decision is pending')")
    assert page.locator(".question").count() == 0
    assert decided(asking, 3) == {1: (True, HERE), 2: (False, LAPSED), 3: (False, LAPSED)}
    assert given(asking) == [(1, "nesiritide", "alert")]
    assert page.locator("#events tr[data-drug]").count() == 1


def test_a_click_is_not_lost_when_a_state_arrives_in_the_middle_of_it(asking: LiveServer, visit: Any) -> None:
    page = visit(asking)
    page.wait_for_selector(question(3))
    page.hover(f"{question(3)} .accept")  # not the selected one
    page.mouse.down()
    news = "() => { window.fed = 0; new EventSource('/ward/events').addEventListener('state', () => window.fed++); }"
    page.evaluate(news)
    page.wait_for_function("() => window.fed >= 4")  # the first is old
    page.mouse.up()
    page.wait_for_selector(question(3), state="detached")
    assert decided(asking, 1) == {3: (True, HERE)}
    assert given(asking) == [(3, "nesiritide", "alert")]


def test_a_ward_that_plays(visit: Any) -> None:
    """Waves, trend, graph and a technical alarm; questions wait for as long as it takes."""
    with served(open_ward(deadline_s=100_000)) as live:
        page = visit(live)
        page.wait_for_selector("#news .kind-technical:has-text('clamped at 90 mmHg')")
        for kind in ("wave", "trend"):
            page.wait_for_function(LIT, arg=f".bed[data-patient='1'] canvas.{kind}")
        page.wait_for_selector("#graph [data-id='procedure:administer']")
        assert page.inner_text("#safety").startswith("safe:")
        assert given(live) == []
        assert judge(events_of(live.player.shift.engine), live.player.shift.seen.rows).safe


def test_pause_and_the_end_of_a_shift(visit: Any) -> None:
    shift = open_ward(minutes=2, deadline_s=30)
    with served(shift, paused=True) as live:
        page = visit(live)
        page.wait_for_selector("#connection:has-text('paused')")
        page.keyboard.press(" ")
        page.wait_for_selector("#connection:not(:has-text('paused'))")
        wait_until(lambda: shift.seen.packets > 0)
        page.keyboard.press(" ")
        page.wait_for_selector("#connection:has-text('paused')")
        assert live.player.paused
        later = visit(live)  # sees what the others see
        later.wait_for_selector("#connection:has-text('paused')")
        later.wait_for_function(LIT, arg=".bed[data-patient='1'] canvas.wave")
        page.keyboard.press(" ")
        page.wait_for_selector("#connection:has-text('the shift is over')")
        assert decided(live, 3) == dict.fromkeys((1, 2, 3), (False, LAPSED))
        assert page.inner_text("#safety").startswith("safe:")
        assert page.is_disabled("#pause")


def test_light_and_dark(asking: LiveServer, visit: Any) -> None:
    page = visit(asking)
    page.wait_for_selector(question(1))
    assert page.get_attribute("html", "data-theme") == "light"
    page.keyboard.press("t")
    assert page.get_attribute("html", "data-theme") == "dark"


class Broken(Ward):
    def steps(self) -> Iterator[Any]:
        yield from itertools.islice(super().steps(), 3)
        raise RuntimeError("the monitor was unplugged")


def test_a_shift_that_breaks_says_so() -> None:
    options = Options(auto_doctor=False)
    shift = open_shift(options, Broken(2, 1), choose_backend("local"))
    with shift.engine:
        player = Player(shift, speed=0)
        assert player.speed == 60  # as fast as a page can show
        player.start()
        wait_until(lambda: player.ended)
        player.stop()
        assert str(player.failed) == "the monitor was unplugged"
        assert player.control({})["failed"] == "the monitor was unplugged"
        assert player.shift.seen.packets == 3 * 2 * 2


def test_the_page_is_for_this_machine_only() -> None:
    with pytest.raises(TidegateError, match="lets other machines connect"):
        run_live(Options(backend="local"), Console(quiet=True), "0.0.0.0", 0, browser=False)


def test_requests_that_do_not_fit(asking: LiveServer) -> None:
    with httpx.Client(base_url=asking.url, timeout=60) as client:
        assert client.post("/ward/control", content=b"no").status_code == 400
        assert client.get("/ward/nothing.js").status_code == 404
        assert client.get("/ward/..%2fapp.py").status_code == 404
        assert client.post("/ward/control", json={"speed": 1e9}).json()["speed"] == 60
        assert client.get("/ward", headers={"host": "evil.example"}).status_code == 421
        assert client.get("/console").status_code == 200
