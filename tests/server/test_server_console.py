"""The console page, in a real browser: what people do with it, by mouse and by keyboard, in light and dark."""

from __future__ import annotations

import datetime as dt
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from chromium import NoBrowser, chromium
from server_process import Server
from test_server_security import FILE, TOKENS


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with ExitStack() as stack:
        try:
            found = stack.enter_context(chromium())
        except NoBrowser as error:
            pytest.skip(str(error))
        yield found


def _unexpected(told: Any) -> bool:
    """The browser itself notes refused requests, such as SQL with a mistake in it."""
    return told.type == "error" and "status of 422" not in told.text


@pytest.fixture
def page(browser: Any, shared: Server) -> Iterator[Any]:
    """A page on the console; anything that goes wrong in it fails the test."""
    found = browser.new_page(viewport={"width": 1300, "height": 900})
    problems: list[str] = []
    found.on("pageerror", lambda error: problems.append(str(error)))
    found.on("console", lambda told: problems.append(told.text) if _unexpected(told) else None)
    found.on("request", lambda sent: problems.append(sent.url) if not sent.url.startswith(shared.url) else None)
    found.goto(shared.url)
    found.wait_for_selector("#graph svg")
    yield found
    found.close()
    assert not problems


def test_the_graph_is_live(page: Any, shared: Server) -> None:
    assert page.title() == "shop · tidegate"
    page.wait_for_selector("#health >> text=running")
    orders = '#graph g[data-id="stream:orders"]'
    with shared.client() as client:
        for _ in range(200):
            client.push("orders", [("tea", 0)])
            if page.query_selector(f"{orders}.busy"):
                break
        else:
            raise AssertionError("no rate was shown while batches came")
        client.push("alerts", [(1,)])
        page.wait_for_selector('#graph g[data-id="stream:alerts"].pressed')
    page.wait_for_selector("#figures .spark polyline", state="attached")
    page.wait_for_selector("#windows td >> text=trend.recent")


def test_sql_by_keyboard(page: Any) -> None:
    page.keyboard.press("/")
    page.keyboard.type("SELECT n, n * 2 AS twice FROM range(50) t(n) WHERE n = 21")
    page.keyboard.press("Control+Enter")
    page.wait_for_selector("#result td >> text=42")
    assert "1 row," in page.inner_text("#ran")
    page.fill("#query", "SELECT '<img src=x onerror=alert(1)>' AS sly")
    page.click("#run")
    page.wait_for_selector("#result td >> text=<img")
    assert page.query_selector("#result img") is None
    page.fill("#query", "SELECT * FROM nowhere")
    page.click("#run")
    page.wait_for_selector("#result .error >> text=nowhere")
    page.click("#plain-views button >> text=scarce")
    page.wait_for_selector("#ran >> text=0 rows")
    assert page.input_value("#query") == "SELECT * FROM scarce LIMIT 100"
    page.click("#views button >> text=tidegate.streams")
    page.wait_for_selector("#result td >> text=shipments")


def test_what_time_will_bring(browser: Any, tmp_path: Path) -> None:
    """The timers of another app."""
    server = Server(tmp_path / "server.log", app="tidegate.examples.shipments.app")
    try:
        with server.client() as client:
            client.push("booked", [(7, dt.datetime(2199, 1, 1))])
        page = browser.new_page()
        page.goto(f"{server.url}/#streams")
        page.wait_for_selector("#due td >> text=unclaimed")
        told = page.inner_text("#due tbody tr")
        page.close()
    finally:
        server.stop()
    assert "2199" in told
    assert "book" in told


def test_a_decision_is_answered(page: Any, shared: Server) -> None:
    with shared.client() as client:
        alert = client.push("alerts", [(77,)])
        page.keyboard.press("4")
        card = page.locator(".question", has_text="patient 77")
        card.wait_for()
        assert "proposals" in card.inner_text()
        assert card.locator("select").input_value() == ""  # nothing is chosen for whoever decides
        card.locator("button.primary").press("Enter")
        assert not alert.done
        card.locator("select").select_option("true")
        card.locator("button.primary").press("Enter")
        card.wait_for(state="detached")
        assert alert.result(60) is None
        receipt = page.inner_text("#receipt")
        assert "patient 77: " in receipt
        assert "true" in receipt
        page.reload()  # what was answered is known to the server, not to this page only
        page.keyboard.press("4")
        history = page.locator("#answers tr", has_text="77")
        history.wait_for()
        assert "committed" in history.inner_text()


def test_a_question_is_asked_anew(page: Any, shared: Server) -> None:
    with shared.client() as client:
        alert = client.push("alerts", [(78,)])
        (question,) = (q for q in client.questions() if q.key == 78)
        page.keyboard.press("4")
        card = page.locator(".question", has_text="patient 78")
        card.wait_for()
        assert question.digest[:12] in card.inner_text()
        card.locator("button.anew").click()
        card.locator("select").select_option("false")
        card.locator("button.primary").press("Enter")
        card.wait_for(state="detached")
        assert alert.result(60) is None


def test_a_decision_reaches_the_patient_it_was_made_for(page: Any, shared: Server) -> None:
    """Two patients whose numbers are the same double; a browser would take one for the other."""
    other, meant = 2**53, 2**53 + 1
    with shared.client() as client:
        alerts = {patient: client.push("alerts", [(patient,)]) for patient in (other, meant)}
        page.keyboard.press("4")
        card = page.locator(".question", has_text=f"patient {meant}")
        card.wait_for()
        assert str(meant) in card.locator("table").inner_text()
        card.locator("select").select_option("true")
        card.locator("button.primary").press("Enter")
        card.wait_for(state="detached")
        assert alerts[meant].result(60) is None
        assert not alerts[other].done
        assert page.locator(".question", has_text=f"patient {other}").count() == 1
        (question,) = (q for q in client.questions() if q.key == other)
        client.answer(question, give=False)
        assert alerts[other].result(60) is None
        for patient in (other, meant):
            client.push("alerts", [(patient,)])
        doses = {q.key: q.batches["proposals"][0].number - 1 for q in client.questions()}
        assert (doses[other], doses[meant]) == (0, 1)


def test_a_stream_is_tailed_and_paused(page: Any, shared: Server) -> None:
    page.keyboard.press("3")
    page.wait_for_selector("#tail-state >> text=following")
    with shared.client() as client:
        deadline = time.monotonic() + 60
        while not client.status()["subscribers"].get("shipments", {}).get("subscribers"):
            assert time.monotonic() < deadline
            time.sleep(0.05)
        client.push("orders", [("earl grey", 0)])
        page.wait_for_selector("#tail li >> text=earl grey")
        page.click("#pause")
        client.push("orders", [("oolong", 0)])
        page.click("#pause")
        page.wait_for_selector("#tail li >> text=oolong")
    page.keyboard.press("1")
    assert page.is_visible("#graph")


def test_trouble_and_locks_say_why(page: Any, shared: Server) -> None:
    with shared.client() as client:
        client.push("bad", [(3,)])
        client.push("orders", [("nothing", 5)])
        client.push("alerts", [(5,)])
        client.push("alerts", [(5,)])
    page.keyboard.press("6")
    page.wait_for_selector("#dead td >> text=spoilt")
    page.wait_for_selector("#aborts td >> text=pieces >= 0")
    page.keyboard.press("5")
    page.wait_for_selector("#waits .chain >> text=waits for its turn")
    assert page.inner_text("#waits .chain").endswith("decisions")  # ... behind someone who waits for a person
    page.wait_for_selector("#marks td >> text=doses[5]")


def test_tabs_work_with_arrows_and_every_control_has_a_name(page: Any) -> None:
    page.focus("#tab-flow")
    page.keyboard.press("ArrowRight")
    assert page.evaluate("document.activeElement.id") == "tab-sql"
    assert page.get_attribute("#tab-sql", "aria-selected") == "true"
    nameless = page.evaluate(
        "[...document.querySelectorAll('button, input, select, textarea')].filter(e => "
        "!(e.textContent.trim() || e.getAttribute('aria-label') || e.labels?.length)).length"
    )
    assert nameless == 0


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_text_stands_out_from_its_ground(browser: Any, shared: Server, scheme: str) -> None:
    page = browser.new_page(color_scheme=scheme)
    page.goto(shared.url)
    for shown in ("#graph svg", "h2", "dd", ".legend", "#units"):
        page.wait_for_selector(shown, state="attached")
    contrast = page.evaluate("""() => {
        const light = (c) => { const [r, g, b] = c.match(/[\\d.]+/g).slice(0, 3).map((v) => { v /= 255;
            return v <= 0.03928 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4; }); return 0.2126 * r + 0.7152 * g + 0.0722 * b; };
        const ratio = (a, b) => (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
        const ground = light(getComputedStyle(document.querySelector(".card")).backgroundColor);
        const ink = (s) => light(getComputedStyle(document.querySelector(s)).color);
        return ["h2", "dd", ".legend", "#units"].map((s) => ratio(ink(s), ground));
    }""")
    assert min(contrast) > 4.5
    page.close()


def test_a_token_is_asked_for_and_kept_for_the_session(browser: Any, start: Any) -> None:
    server = start(tokens=FILE)
    page = browser.new_page()
    page.goto(server.url)
    page.wait_for_selector("dialog[open]")
    assert "requires a token" in page.inner_text("#why")
    page.keyboard.type("wrong")
    page.keyboard.press("Enter")
    page.wait_for_selector("#why >> text=not known")
    page.wait_for_selector("dialog[open]")
    page.fill("#token", TOKENS["query"])
    page.keyboard.press("Enter")
    page.wait_for_selector("#graph svg")
    page.reload()
    page.wait_for_selector("#graph svg")
    page.close()


def test_it_is_readable_on_a_telephone(page: Any) -> None:
    page.set_viewport_size({"width": 390, "height": 844})
    for key in "123456":
        page.keyboard.press(key)
        assert page.evaluate("document.documentElement.scrollWidth") <= 390, key
