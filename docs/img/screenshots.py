"""Makes the pictures of console and terminal in the docs: python docs/img/screenshots.py [FOLDER]

Chromium is installed where it is missing, as by the tests.
"""

from __future__ import annotations

import io
import json
import random
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

from rich.console import Console

import tidegate
from tidegate.cli.status_tables import status_tables

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parents[1] / "tests" / "support"))
from chromium import chromium  # noqa: E402

SHOTS = (  # name, key of the tab, colours
    ("console", "1", "light"),
    ("console-sql", "2", "light"),
    ("console-decisions", "4", "dark"),
    ("console-locks", "5", "light"),
)
SHOP = """
from tidegate import App, partition, window

app = App("shop")
app.table("CREATE TABLE stock (item VARCHAR PRIMARY KEY, pieces BIGINT NOT NULL CHECK (pieces >= 0))")
app.table("CREATE TABLE refunds (customer INTEGER, number INTEGER, PRIMARY KEY (customer, number))", partition_by="customer")
app.stream("orders", "item VARCHAR NOT NULL, pieces INTEGER NOT NULL", border=True)
app.stream("shipments", "item VARCHAR, pieces INTEGER")
app.stream("trends", "item VARCHAR, pieces BIGINT")
app.stream("complaints", "customer INTEGER NOT NULL, text VARCHAR", border=True, key="customer")
app.stream("proposals", "customer INTEGER, number INTEGER, text VARCHAR")
app.stream("decisions", "customer INTEGER NOT NULL, refund BOOLEAN NOT NULL, note VARCHAR", border=True, key="customer",
           deadline_s=3600, default={"refund": False})

@app.procedure(writes=["stock"])
def deliver(txn, item, pieces):
    before = txn.get("stock", item)
    txn.upsert("stock", (item, pieces + (0 if before is None else before.pieces)))

@app.procedure(inputs="orders", outputs="shipments", writes=["stock"])
def ship(txn, orders):
    for order in orders:
        before = txn.get("stock", order.item)
        txn.upsert("stock", (order.item, (0 if before is None else before.pieces) - order.pieces))
        txn.emit("shipments", [order])

@app.procedure(inputs="shipments", outputs="trends", windows={"recent": window("shipments", count=50, slide=1)})
def trend(txn, shipments):
    for shipment in shipments:
        txn.emit("trends", item=shipment.item, pieces=sum(row.pieces for row in txn.window("recent").rows))

@app.procedure(inputs="complaints", outputs="proposals", reads=[partition("refunds")])
def propose(txn, complaints):
    txn.emit("proposals", customer=txn.key, number=len(txn.scan("refunds")) + 1, text=complaints[0].text)

@app.procedure(inputs=["proposals", "decisions"], writes=[partition("refunds")])
def settle(txn, proposals, decisions):
    if decisions[0].refund:
        txn.insert("refunds", (txn.key, proposals[0].number))

app.nested(propose, settle, name="refund")

app.stream("reviews", "item VARCHAR, stars VARCHAR", border=True)

@app.procedure(inputs="reviews", on_failure="dead_letter")
def rate(txn, reviews):
    for review in reviews:
        int(review.stars)
"""


def main() -> None:
    target = Path(sys.argv[1]) if len(sys.argv) > 1 else HERE
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "shop.py").write_text(SHOP)
        command = [sys.executable, "-c", "from tidegate.cli.main import main; main()", "serve", f"{folder}/shop.py:app"]
        server = subprocess.Popen(
            [*command, "--data", f"{folder}/data", "--port", "0", "--json"], stdout=subprocess.PIPE, text=True
        )
        try:
            assert server.stdout is not None
            take(json.loads(server.stdout.readline())["url"], target, folder)
        finally:
            server.terminate()
            server.wait()


def take(url: str, target: Path, folder: str) -> None:
    """All pictures, while orders come in. ``folder`` is where the app happens to be, which is nobody's business."""
    done = threading.Event()

    def orders() -> None:
        chance = random.Random(1)
        with tidegate.connect(url) as shop:
            while not done.wait(0.01):
                shop.push("orders", [(chance.choice(["tea", "coffee", "cocoa"]), chance.randrange(1, 5))])

    with tidegate.connect(url) as shop, chromium() as browser:
        prepare(shop)
        traffic = threading.Thread(target=orders)
        traffic.start()
        try:
            before, looked_at = shop.status(), time.monotonic()
            page = browser.new_page(viewport={"width": 1240, "height": 780}, device_scale_factor=2)
            page.goto(url)
            page.wait_for_selector("#graph g.busy")
            page.wait_for_timeout(25_000)  # so that there are lines of rates to look at
            for name, key, scheme in SHOTS:
                page.emulate_media(color_scheme=scheme)
                shoot(page, key, target / f"{name}.png")
            console = Console(width=110, record=True, file=io.StringIO())
            now = json.loads(json.dumps(shop.status()).replace(f"{folder}/", ""))
            console.print(status_tables(now, before, time.monotonic() - looked_at))
            console.save_svg(str(target / "status.svg"), title="tidegate status")
        finally:
            done.set()
            traffic.join()


def prepare(shop: Any) -> None:
    """Something on every page: stock, questions, an abort, a batch that waits its turn, a dead letter."""
    for item in ("tea", "coffee", "cocoa"):
        shop.call("deliver", item, 1_000_000)
    shop.push("orders", [("saffron", 3)])
    shop.push("reviews", [("tea", "five stars")])
    for customer, text in ((7, "the tea was cold"), (12, "one cup is missing"), (7, "and late")):
        shop.push("complaints", [(customer, text)])


def shoot(page: Any, key: str, path: Path) -> None:
    page.evaluate("document.activeElement.blur()")
    page.keyboard.press(key)
    page.evaluate("document.activeElement.blur()")
    if key == "2":
        page.fill("#query", "SELECT item, pieces, 1000000 - pieces AS sold\nFROM stock ORDER BY sold DESC")
        page.click("#run")
        page.wait_for_selector("#result td")
    page.wait_for_timeout(1_500)
    page.screenshot(path=str(path))


if __name__ == "__main__":
    main()
