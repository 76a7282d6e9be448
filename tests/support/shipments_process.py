"""Shipments in a process that is killed: python shipments_process.py DIRECTORY [ID SECONDS]. Nothing comes in but that one
booking; each alert is printed when its subscriber has it.
"""

from __future__ import annotations

import datetime as dt
import sys
import time

import tidegate
from tidegate.examples.shipments.app import app


def main(directory: str, *booking: str) -> None:
    with tidegate.open(app, directory) as engine:
        alerts = engine.subscribe_durably("alerts", "desk")
        engine.start()
        if booking:
            due = dt.datetime.now(dt.UTC).replace(tzinfo=None) + dt.timedelta(seconds=float(booking[1]))
            engine.push("booked", [(int(booking[0]), due)], 1).result()
        print("ready", flush=True)
        while True:
            batch = alerts.get()
            if batch is None:
                time.sleep(0.01)
                continue
            for row in batch:
                print("alert", row.id, (row.raised - row.due).total_seconds(), flush=True)
            alerts.acknowledge(batch)


if __name__ == "__main__":
    main(*sys.argv[1:])
