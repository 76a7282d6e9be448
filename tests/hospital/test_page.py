"""The page in a real browser: accept, decline, let one lapse."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import httpx
import pytest
from chromium import NoBrowser, chromium

from tidegate.examples.mimic_alerts.backends import choose_backend
from tidegate.examples.mimic_alerts.demo import Options, events_of, open_shift
from tidegate.examples.mimic_alerts.live import LiveServer, Player
from tidegate.examples.mimic_alerts.safety import judge
from tidegate.examples.mimic_alerts.ward import Artefact, Course, Ward

pytestmark = pytest.mark.xdist_group("hospital-page")  # one ward for all of them, in this order
WAIT_MS = 180_000  # a bound for a busy machine, not an expectation


def ward_in_crisis() -> Ward:
    """Three patients whose pressure rises at once, and one whose line is clamped."""
    rising = [Course(f"story {i}", 20, 22, 10, 20) for i in range(3)]
    return Ward(4, minutes=6, courses=[*rising, Course("clamped", artefacts=(Artefact("clamped", 60, 180),))])


@pytest.fixture(scope="module")
def live() -> Iterator[LiveServer]:
    options = Options(auto_doctor=False, deadline_s=300, quiet_s=3600)
    shift = open_shift(options, ward_in_crisis(), choose_backend("local"))
    with shift.engine, LiveServer(Player(shift, speed=10)) as server:
        yield server


@pytest.fixture(scope="module")
def page(live: LiveServer) -> Iterator[Any]:
    with ExitStack() as stack:
        try:
            browser = stack.enter_context(chromium())
        except NoBrowser as reason:
            pytest.skip(str(reason))
        page = browser.new_page(viewport={"width": 1500, "height": 1100})
        page.set_default_timeout(WAIT_MS)
        wrong: list[str] = []
        page.on("pageerror", lambda error: wrong.append(str(error)))
        page.goto(f"{live.url}/")
        yield page
        assert wrong == []


def question(patient: int) -> str:
    return f".question[data-patient='{patient}']"


def test_an_alert_is_accepted_and_med_events_changes(live: LiveServer, page: Any) -> None:
    page.wait_for_selector(question(1))
    assert "nesiritide" in page.inner_text(question(1))
    assert page.locator("#events tr[data-drug='nesiritide']").count() == 0
    assert "waits for the doctor" in page.inner_text(".bed[data-patient='1']")
    assert "emergency" in page.inner_text("#waits")
    page.click(f"{question(1)} .accept")
    page.wait_for_selector("#events tr[data-drug='nesiritide'][data-patient='1']")
    page.wait_for_selector(question(1), state="detached")


def test_another_is_declined_with_the_keyboard(live: LiveServer, page: Any) -> None:
    page.wait_for_selector(question(2))
    for _ in range(4):
        if page.locator(f"{question(2)}.selected").count():
            break
        page.keyboard.press("ArrowDown")
    page.keyboard.press("d")
    page.wait_for_selector(question(2), state="detached")
    page.wait_for_selector("#news .kind-declined:has-text('not given')")
    assert page.locator("#events tr[data-patient='2']").count() == 0


def test_a_third_lapses(live: LiveServer, page: Any) -> None:
    page.wait_for_selector(question(3))
    clock = live.player.shift.clock
    clock.move_to(clock.now() + dt.timedelta(seconds=301))  # the ward's clock: everybody is late
    page.wait_for_selector("#news .kind-declined:has-text('nobody: the time to decide ran out')")
    assert page.locator(question(3)).count() == 0
    given = [(event.patient, event.drug) for event in events_of(live.player.shift.engine)]
    assert (3, "nesiritide") not in given, given


def test_a_clamped_line_is_a_technical_alarm(live: LiveServer, page: Any) -> None:
    live.player.control({"speed": 60})
    page.wait_for_selector("#news .kind-technical:has-text('clamped at 90 mmHg')")


def test_waves_trend_and_graph_are_drawn(page: Any) -> None:
    lit = """selector => { const c = document.querySelector(selector);
             return c.getContext('2d').getImageData(0, 0, c.width, c.height).data.some((v, i) => i % 4 === 3 && v > 0); }"""
    for kind in ("wave", "trend"):
        assert page.evaluate(lit, f".bed[data-patient='1'] canvas.{kind}")
    assert page.locator("#graph [data-id='procedure:administer']").count() == 1


def test_light_dark_and_pause(live: LiveServer, page: Any) -> None:
    before = page.get_attribute("html", "data-theme")
    page.keyboard.press("t")
    assert page.get_attribute("html", "data-theme") != before
    if not live.player.ended:
        page.keyboard.press(" ")
        page.wait_for_selector("#connection:has-text('paused')")
        assert live.player.paused
        page.keyboard.press(" ")
        page.wait_for_selector("#connection:not(:has-text('paused'))")
    assert "safe" in page.inner_text("#safety")


def test_the_run_was_safe(live: LiveServer) -> None:
    shift = live.player.shift
    assert judge(events_of(shift.engine), shift.seen.rows).safe


def test_requests_that_do_not_fit(live: LiveServer) -> None:
    with httpx.Client(base_url=live.url) as client:
        assert client.post("/ward/control", content=b"no").status_code == 400
        assert client.get("/ward/nothing.js").status_code == 404
        assert client.get("/ward/..%2fapp.py").status_code == 404
        assert client.post("/ward/control", json={"speed": 1e9}).json()["speed"] == live.player.speed
        assert client.get("/ward", headers={"host": "evil.example"}).status_code == 421
        assert client.get("/console").status_code == 200
