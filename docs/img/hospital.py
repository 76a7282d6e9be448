"""Makes the pictures of the hospital's page: python docs/img/hospital.py (needs playwright; Chromium is installed if missing)."""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path
from typing import Any

from tidegate.examples.mimic_alerts.backends import choose_backend
from tidegate.examples.mimic_alerts.computer import orders_for
from tidegate.examples.mimic_alerts.demo import Options, source_of
from tidegate.examples.mimic_alerts.live import LiveServer, Player

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parents[1] / "tests" / "support"))

from chromium import chromium  # noqa: E402

WAIT_MS = 300_000


def visit(browser: Any, url: str, scheme: str, width: int = 1480, height: int = 900) -> Any:
    page = browser.new_page(viewport={"width": width, "height": height}, color_scheme=scheme)
    page.set_default_timeout(WAIT_MS)
    page.goto(f"{url}/ward")
    return page


def main() -> None:
    options = Options(minutes=8, auto_doctor=False, deadline_s=90, backend="local")
    source = source_of(options, choose_backend("local"))
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        player = Player(source, orders_for(options, source, Path(folder)), speed=6)
        with LiveServer(player) as server, chromium() as browser:
            page = visit(browser, server.url, "light")
            page.wait_for_selector(".question")
            page.click(".question .accept")
            page.wait_for_selector("[data-receipt]")
            page.click("#plug")
            page.wait_for_selector("#outage.dark")
            page.wait_for_timeout(1000)
            page.screenshot(path=HERE / "hospital-plug.png")
            page.wait_for_selector("#outage.back")
            page.wait_for_selector("#waits:has-text('1 visit')")
            player.control({"speed": 1})
            dark, phone = visit(browser, server.url, "dark"), visit(browser, server.url, "light", 390, 844)
            page.wait_for_timeout(9_000)  # a whole screen of waves
            dark.screenshot(path=HERE / "hospital.png")
            page.screenshot(path=HERE / "hospital-light.png")
            phone.screenshot(path=HERE / "hospital-phone.png")
            dark.click("details.graph summary")
            dark.wait_for_selector("#graph svg")
            dark.wait_for_timeout(2_000)
            dark.locator("#graph").scroll_into_view_if_needed()
            dark.locator("#graph").screenshot(path=HERE / "hospital-graph.png")
            player.control({"speed": 60})
            page.wait_for_selector("#ending:not([hidden])")
            page.evaluate("scrollTo(0, 0)")
            page.screenshot(path=HERE / "hospital-ending.png", clip={"x": 0, "y": 0, "width": 1480, "height": 480})


if __name__ == "__main__":
    main()
