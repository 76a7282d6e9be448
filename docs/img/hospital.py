"""Makes the pictures of the hospital's page: python docs/img/hospital.py (needs playwright; Chromium is installed if missing)."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from tidegate.examples.mimic_alerts.backends import choose_backend
from tidegate.examples.mimic_alerts.demo import Options, open_shift, source_of
from tidegate.examples.mimic_alerts.live import LiveServer, Player

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parents[1] / "tests" / "support"))

from chromium import chromium  # noqa: E402

WAIT_MS = 300_000


def picture(browser: Any, url: str, scheme: str, name: str) -> None:
    page = browser.new_page(viewport={"width": 1480, "height": 900}, color_scheme=scheme)
    page.goto(f"{url}/ward")
    page.wait_for_selector("#graph svg")
    page.wait_for_timeout(9_000)  # a whole screen of waves
    page.screenshot(path=HERE / f"{name}.png")
    if scheme == "dark":
        page.locator(".graph").scroll_into_view_if_needed()
        page.locator(".graph").screenshot(path=HERE / "hospital-graph.png")
    page.close()


def main() -> None:
    where = choose_backend("local")
    options = Options(minutes=5, auto_doctor=False, deadline_s=90)
    shift = open_shift(options, source_of(options, where), where)
    with shift.engine, LiveServer(Player(shift, speed=6)) as server, chromium() as browser:
        page = browser.new_page(viewport={"width": 1480, "height": 900})
        page.set_default_timeout(WAIT_MS)
        page.goto(f"{server.url}/ward")
        page.wait_for_selector(".question")
        page.wait_for_selector("#waits p:has-text('Behind it')")
        page.wait_for_selector("#news .kind-suppressed")
        server.player.control({"speed": 1})
        picture(browser, server.url, "dark", "hospital")
        picture(browser, server.url, "light", "hospital-light")


if __name__ == "__main__":
    main()
