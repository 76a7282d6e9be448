"""Replication slots and publications of a PostgreSQL server that tests share, removed whoever left them."""

from __future__ import annotations

import time

import sqlalchemy as sa

SLOTS = "FROM pg_replication_slots"


def drop_slots(database: sa.Engine) -> None:
    """Drop all of them, and the publications they read. The server may not have noticed yet that a process that read from one
    was killed.
    """
    with database.begin() as connection:
        for name in connection.execute(sa.text("SELECT pubname FROM pg_publication")).scalars().all():
            connection.execute(sa.text(f'DROP PUBLICATION "{name}"'))
    until = time.monotonic() + 60
    while True:
        with database.begin() as connection:
            connection.execute(sa.text(f"SELECT pg_terminate_backend(active_pid) {SLOTS} WHERE active"))
        try:
            with database.begin() as connection:
                connection.execute(sa.text(f"SELECT pg_drop_replication_slot(slot_name) {SLOTS}"))
                return
        except sa.exc.DBAPIError:
            assert time.monotonic() < until, "a replication slot stays in use"
            time.sleep(0.05)
