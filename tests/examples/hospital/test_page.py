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
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import httpx
import pytest
from chromium import NoBrowser, chromium
from rich.console import Console

from tidegate.errors import TidegateError
from tidegate.examples.mimic_alerts.computer import orders_for
from tidegate.examples.mimic_alerts.demo import Options
from tidegate.examples.mimic_alerts.live import LiveServer, Player, facts_of, nearly, run_live
from tidegate.examples.mimic_alerts.safety import judge
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


@contextmanager
def served(
    minutes: float = 3, deadline_s: float = DEADLINE_S, source: Ward | None = None, **how: Any
) -> Iterator[LiveServer]:
    options = Options(auto_doctor=False, deadline_s=deadline_s, quiet_s=3600, backend="local")
    source = source or ward_in_crisis(minutes)
    with (
        TemporaryDirectory(ignore_cleanup_errors=True) as folder,
        LiveServer(Player(source, orders_for(options, source, Path(folder)), speed=60, **how)) as server,
    ):
        yield server


def three_asked(state: dict[str, Any]) -> bool:
    return len(state["questions"]) >= 3


@pytest.fixture
def asking() -> Iterator[LiveServer]:
    """A ward that stands still: three doctors are asked at the same moment."""
    with served(paused=True, prelude=three_asked) as server:
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
    _, events = facts_of(server.player)
    return [(event.patient, event.drug, event.origin) for event in events]


def decided(server: LiveServer, count: int) -> dict[int, tuple[bool, str]]:
    """What became of the alerts, when ``count`` of them are over."""
    wait_until(lambda: len(facts_of(server.player)[0].of("outcomes")) >= count)
    rows = facts_of(server.player)[0].of("outcomes")
    assert len(rows) == count
    return {row.patient: (row.given, row.decided_by) for row in rows}


def still_asked(server: LiveServer) -> list[int]:
    return [question["patient"] for question in server.player.computer.ask("look")["questions"]]


def test_an_alert_is_accepted_and_med_events_changes(asking: LiveServer, visit: Any) -> None:
    page = visit(asking)
    page.wait_for_selector(question(1))
    assert "nesiritide" in page.inner_text(question(1))
    assert page.locator("#events tr[data-drug]").count() == 0
    assert "waits for you" in page.inner_text(".bed[data-patient='1']")
    assert "bed 1 is kept as it is until you decide" in page.inner_text("#waits")
    page.click(f"{question(1)} .accept")
    page.wait_for_selector("#events tr[data-drug='nesiritide'][data-patient='1']")
    page.wait_for_selector(question(1), state="detached")
    assert page.locator("#events tr[data-drug]").count() == 1
    assert decided(asking, 1) == {1: (True, HERE)}
    assert given(asking) == [(1, "nesiritide", "alert")]
    assert still_asked(asking) == [2, 3]
    assert page.locator(".question").count() == 2
    receipt = page.inner_text("#receipts li")
    assert "nesiritide 2 mcg/kg accepted and given, bed 1" in receipt
    assert "Line 1 on the chart" in receipt
    charted = facts_of(asking.player)[1][0]
    assert charted.given_at == asking.player._at  # when it was accepted, not when it was suggested
    assert f"decided {charted.given_at:%H:%M:%S} by the doctor at this page" in receipt


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
    page, computer = visit(asking), asking.player.computer
    page.click(f"{question(1)} .accept")
    page.wait_for_selector(question(1), state="detached")
    assert decided(asking, 1) == {1: (True, HERE)}
    asked_at = asking.player.latest["questions"][-1]["found_at"]
    computer.ask("wait", asked_at + dt.timedelta(seconds=DEADLINE_S - 1))
    assert still_asked(asking) == [2, 3]  # not a second too early
    computer.ask("wait", asked_at + dt.timedelta(seconds=DEADLINE_S + 20))
    page.wait_for_selector("#news li:has-text('bed 2'):has-text('nobody decided in time')")
    page.wait_for_selector("#receipts li:has-text('bed 3'):has-text('nobody decided in time')")
    page.wait_for_selector("#questions:has-text('Nothing to decide right now')")
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
    with served(deadline_s=100_000) as live:
        page = visit(live)
        page.wait_for_selector("#news .kind-technical:has-text('stuck at 90 mmHg')")
        for kind in ("wave", "trend"):
            page.wait_for_function(LIT, arg=f".bed[data-patient='1'] canvas.{kind}")
        page.click("details.graph summary")
        page.wait_for_selector("#graph [data-id='procedure:administer']")
        page.wait_for_selector(".bed[data-patient='1'] .pap.over")  # each figure by its own limit
        assert page.locator(".bed[data-patient='1'] .ecg.over").count() == 0
        assert page.inner_text("#harmed-here") == "0"
        assert given(live) == []
        seen, events = facts_of(live.player)
        assert judge(events, seen.rows).safe


def test_pause_and_the_end_of_a_shift(visit: Any) -> None:
    with served(minutes=2, deadline_s=30, paused=True) as live:
        page = visit(live)
        page.wait_for_selector("#connection:has-text('paused')")
        page.keyboard.press(" ")
        page.wait_for_selector("#connection:not(:has-text('paused'))")
        wait_until(lambda: live.player.packets > 0)
        page.keyboard.press(" ")
        page.wait_for_selector("#connection:has-text('paused')")
        assert live.player.paused
        later = visit(live)  # sees what the others see
        later.wait_for_selector("#connection:has-text('paused')")
        later.wait_for_function(LIT, arg=".bed[data-patient='1'] canvas.wave")
        assert page.is_hidden("#ending")
        page.keyboard.press(" ")
        page.wait_for_selector("#connection:has-text('the shift is over')")
        assert decided(live, 3) == dict.fromkeys((1, 2, 3), (False, LAPSED))
        summary = page.inner_text("#ending")
        assert "0 decisions (0 accepted, 0 declined), and 3 that nobody made in time. 0 doses given" in summary
        assert "Patients harmed here: 0; in the ward without guarantees: 0." in summary
        assert page.is_disabled("#pause")
        assert page.is_disabled("#plug")


def test_it_begins_with_three_sentences_and_something_happens_within_ten_seconds(visit: Any) -> None:
    source = Ward(8, 10, 2)
    with served(source=source, begun=False, prelude=nearly(source.patients)) as live:
        page = visit(live)
        assert page.locator("#intro p").count() == 3
        page.wait_for_selector("#connection:has-text('ready')")
        before = live.player._passed_s()
        page.click("#begin")
        page.wait_for_selector("#intro", state="hidden")
        page.wait_for_selector(".question")
        found_at = live.player.latest["questions"][0]["found_at"]
        assert (found_at - source.start).total_seconds() - before <= 30  # ten seconds, three times as fast


def test_the_plug_is_pulled_and_everything_comes_back(asking: LiveServer, visit: Any) -> None:
    page, player = visit(asking), asking.player
    page.click(f"{question(1)} .accept")
    page.wait_for_selector("[data-receipt]")
    before, receipts, pid = given(asking), page.inner_text("#receipts"), player.computer.pid
    page.click("#plug")
    page.wait_for_selector("#outage.dark")
    assert page.is_disabled(f"{question(2)} .accept")
    page.wait_for_selector("#outage.back")
    assert "Everything is there: 1 of 1 dose, 1 of 1 receipt, 2 of 2 open decisions." in page.inner_text("#outage")
    assert player.outages[0]["pid"] == pid != player.computer.pid
    assert (given(asking), page.inner_text("#receipts"), still_asked(asking)) == (before, receipts, [2, 3])
    page.wait_for_function("selector => !document.querySelector(selector).disabled", arg=f"{question(2)} .accept")
    page.click(f"{question(2)} .accept")
    page.wait_for_selector("#events tr[data-patient='2']")
    assert given(asking) == [(1, "nesiritide", "alert"), (2, "nesiritide", "alert")]
    faster = (
        "fetch('/ward/control', {method: 'POST', body: JSON.stringify({speed: 7})}).then((answer) => answer.json())"
    )
    assert page.evaluate(faster)["speed"] == 7  # also with an outage to tell of
    # the other ward had the same decision on its queue, and gave the dose again
    assert (page.inner_text("#harmed-here"), page.inner_text("#harmed-there")) == ("0", "1")
    assert "bed 1" in page.inner_text("#harms-there")


def test_what_is_measured_while_the_power_is_off_is_not_lost(visit: Any) -> None:
    with served(minutes=3, deadline_s=100_000) as live:
        player = live.player
        wait_until(lambda: player._passed_s() > 40)
        player.pull_plug()
        with pytest.raises(TidegateError, match="off already"):
            player.pull_plug()
        facts_of(player)  # waits for it
        assert player._power == "on"
        (outage,) = player.outages
        assert outage["held"] > 0
        wait_until(lambda: player._passed_s() >= 180)
        wait_until(lambda: len(player.computer.ask("look")["questions"]) == 3)
        vitals = facts_of(player)[0].of("vitals")
        ended = sorted(row.taken_at for row in vitals if row.patient == 1)
        assert ended == [live.player.source.start + dt.timedelta(seconds=s) for s in range(60, 181, 5)]


@pytest.mark.parametrize("give", [True, False])
def test_two_wards_side_by_side(visit: Any, give: bool) -> None:
    """Somebody at the bed gives the same drug while the doctor thinks: here it waits and is refused, there it is not."""
    course = Course("round in a crisis", 20, 22, 10, 20, visits=((75, "nesiritide", "visit"),))
    ward = Ward(2, 3, courses=[course, Course("stable", 15)])
    with served(source=ward, deadline_s=100_000) as live:
        page = visit(live)
        page.wait_for_selector("#waits:has-text('1 visit')")
        page.click(f"{question(1)} .{'accept' if give else 'decline'}")
        page.wait_for_selector("[data-receipt]")
        page.wait_for_selector("#events tr[data-patient='1']")
        wait_until(lambda: len(live.player.other.harmed()) == give)
        page.wait_for_selector(f"#harmed-there:has-text('{int(give)}')")
        assert page.inner_text("#harmed-here") == "0"
        assert len(given(live)) == 1


def test_it_is_readable_on_a_telephone(asking: LiveServer, visit: Any) -> None:
    page = visit(asking)
    page.set_viewport_size({"width": 390, "height": 844})
    page.wait_for_selector(question(1))
    assert page.evaluate("document.documentElement.scrollWidth") == 390
    box = page.locator(f"{question(1)} .accept").bounding_box()
    assert box["height"] >= 32


def test_the_lists_are_in_order_of_time_and_the_words_are_plain(visit: Any) -> None:
    with served(source=Ward(8, 5, 2), deadline_s=20) as live:
        page = visit(live)
        page.wait_for_selector("#ending:not([hidden])")
        for selector in ("#news time", "#events td:first-child"):
            times = page.locator(selector).all_inner_texts()
            assert times == sorted(times, reverse=True)
            assert len(times) > 4
        text = page.inner_text("body")
        for word in ("MedEvents", "med_events", "nested", "transaction", "batch", "emergency", "position", "partition"):
            assert word not in text, word
        trend = live.player.latest["trend"]["1" if "1" in live.player.latest["trend"] else 1]
        assert page.inner_text(".bed[data-patient='1'] .pap").startswith(f"{trend[-1][1]:.0f}")


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
    with served(source=Broken(2, 1)) as live:
        player = live.player
        assert player.speed == 60  # as fast as a page can show
        wait_until(lambda: player.ended)
        assert str(player.failed) == "the monitor was unplugged"
        assert player.control({})["failed"] == "the monitor was unplugged"
        assert player.packets == 3 * 2 * 2


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
        assert client.post("/ward/answer", json={"give": True}).status_code == 400
        late = {"stream": "decisions", "batch_id": 1, "digest": "no", "give": True}
        assert "no longer open" in client.post("/ward/answer", json=late).json()["error"]["message"]
        assert httpx.get(asking.player.controls()["console"], timeout=60).status_code == 200
