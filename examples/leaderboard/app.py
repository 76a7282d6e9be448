"""A singing contest: votes come in, a leaderboard is kept, and the weakest contestant leaves every 1,000 votes.

    votes ──▶ vote ──▶ valid_votes ──▶ generate_leaderboard ──▶ milestones ──▶ delete_contestant ──▶ eliminated
              └────────────────────── one nested transaction per vote ──────────────────────────┘

A vote counts if its contestant is known and still in, and fewer than ten votes of its phone are stored. The
leaderboard is each contestant's total and a trending count over the last 100 valid votes. When a contestant leaves, its
votes go too: they no longer count against the phones that cast them.
"""

from __future__ import annotations

from typing import Any

import tidegate
from tidegate import App, Batch, Transaction, window

VOTES_PER_PHONE = 10
TRENDING = 100


def leaderboard(
    contestants: int = 25, eliminate_every: int | None = 1_000, votes_per_phone: int = VOTES_PER_PHONE
) -> App:
    """The app, for a contest of this size; ``eliminate_every=None``: no contestant leaves."""
    app = App("leaderboard")
    app.table("""CREATE TABLE contestants (id INTEGER PRIMARY KEY, name VARCHAR NOT NULL,
                                           total BIGINT NOT NULL DEFAULT 0, trending BIGINT NOT NULL DEFAULT 0)""")
    app.table("""CREATE TABLE votes (id BIGINT PRIMARY KEY, phone BIGINT NOT NULL, contestant INTEGER NOT NULL);
                 CREATE INDEX votes_by_contestant ON votes (contestant);
                 CREATE INDEX votes_by_phone ON votes (phone)""")
    app.table("CREATE TABLE contest (id INTEGER PRIMARY KEY, valid_votes BIGINT NOT NULL)")

    app.stream("votes_in", "id BIGINT NOT NULL, phone BIGINT NOT NULL, contestant INTEGER NOT NULL", border=True)
    app.stream("valid_votes", "id BIGINT, phone BIGINT, contestant INTEGER")
    app.stream("milestones", "valid_votes BIGINT")
    app.stream("eliminated", "contestant INTEGER, total BIGINT, valid_votes BIGINT")

    @app.procedure(writes=["contestants", "contest"])
    def set_up(txn: Transaction) -> None:
        txn.insert("contest", (1, 0))
        for number in range(1, contestants + 1):
            txn.insert("contestants", id=number, name=f"Contestant {number}")

    @app.procedure(inputs="votes_in", outputs="valid_votes", reads=["contestants"], writes=["votes"])
    def vote(txn: Transaction, votes_in: Batch) -> None:
        for cast in votes_in:
            contestant = txn.get("contestants", cast.contestant)
            if contestant is not None and txn.count("votes", phone=cast.phone) < votes_per_phone:
                txn.insert("votes", cast)
                txn.emit("valid_votes", [cast])

    @app.procedure(
        inputs="valid_votes",
        outputs="milestones",
        writes=["contestants", "contest"],
        windows={"trending": window("valid_votes", count=TRENDING, slide=1)},
    )
    def generate_leaderboard(txn: Transaction, valid_votes: Batch) -> None:
        trending = txn.window("trending")
        for cast in valid_votes:
            leader = txn.get("contestants", cast.contestant)
            txn.update("contestants", cast.contestant, total=leader.total + 1, trending=leader.trending + 1)
        for old in trending.expired:
            former = txn.get("contestants", old.contestant)
            if former is not None:
                txn.update("contestants", old.contestant, trending=former.trending - 1)
        before = txn.get("contest", 1).valid_votes
        after = before + len(valid_votes)
        txn.update("contest", 1, valid_votes=after)
        if eliminate_every is not None and after // eliminate_every > before // eliminate_every:
            txn.emit("milestones", valid_votes=after)

    @app.procedure(inputs="milestones", outputs="eliminated", writes=["contestants", "votes"])
    def delete_contestant(txn: Transaction, milestones: Batch) -> None:
        standing = txn.scan("contestants")
        if len(standing) <= 1:
            return
        weakest = min(standing, key=lambda contestant: (contestant.total, contestant.id))
        txn.delete_where("votes", contestant=weakest.id)
        txn.delete("contestants", weakest.id)
        txn.emit("eliminated", contestant=weakest.id, total=weakest.total, valid_votes=milestones[0].valid_votes)

    app.nested(vote, generate_leaderboard, delete_contestant, name="voting")
    return app


app = leaderboard()


def start(contest: App, path: str | None = None, **settings: Any) -> tidegate.Engine:
    """An engine with the contestants set up: in memory, or in the directory ``path``."""
    engine = tidegate.open(contest, path, **settings)
    if engine.sequence == 0:
        engine.call("set_up")
    return engine
