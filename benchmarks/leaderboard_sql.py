"""The leaderboard as it is often written: a table counts each phone's votes, and who leaves is taken out by one UPDATE.

What that UPDATE reads has nearly all changed since the last merge: every vote is a new row, and changes its phone's row.
"""

from __future__ import annotations

from tidegate import App, Batch, Transaction, window
from tidegate.examples.leaderboard.app import TRENDING, VOTES_PER_PHONE

GIVE_BACK = """
UPDATE phones SET used = used - (SELECT count(*) FROM votes WHERE votes.phone = phones.phone AND contestant = $1)
WHERE phone IN (SELECT phone FROM votes WHERE contestant = $1)
"""


def leaderboard_sql(contestants: int = 25, eliminate_every: int = 1_000) -> App:
    """The app; its rules and its final state are those of ``tidegate.examples.leaderboard``."""
    app = App("leaderboard_sql")
    app.table("""CREATE TABLE contestants (id INTEGER PRIMARY KEY, total BIGINT NOT NULL DEFAULT 0,
                                           trending BIGINT NOT NULL DEFAULT 0)""")
    app.table("""CREATE TABLE votes (id BIGINT PRIMARY KEY, phone BIGINT NOT NULL, contestant INTEGER NOT NULL);
                 CREATE INDEX votes_by_contestant ON votes (contestant)""")
    app.table("CREATE TABLE phones (phone BIGINT PRIMARY KEY, used BIGINT NOT NULL)")
    app.table("CREATE TABLE contest (id INTEGER PRIMARY KEY, valid_votes BIGINT NOT NULL)")

    app.stream("votes_in", "id BIGINT NOT NULL, phone BIGINT NOT NULL, contestant INTEGER NOT NULL", border=True)
    app.stream("valid_votes", "id BIGINT, phone BIGINT, contestant INTEGER")
    app.stream("milestones", "valid_votes BIGINT")

    @app.procedure(writes=["contestants", "contest"])
    def set_up(txn: Transaction) -> None:
        txn.insert("contest", (1, 0))
        for number in range(1, contestants + 1):
            txn.insert("contestants", id=number)

    @app.procedure(inputs="votes_in", outputs="valid_votes", reads=["contestants"], writes=["votes", "phones"])
    def vote(txn: Transaction, votes_in: Batch) -> None:
        for cast in votes_in:
            phone = txn.get("phones", cast.phone)
            used = phone.used if phone is not None else 0
            if used < VOTES_PER_PHONE and txn.get("contestants", cast.contestant) is not None:
                txn.upsert("phones", (cast.phone, used + 1))
                txn.insert("votes", cast)
                txn.emit("valid_votes", [cast])

    @app.procedure(
        inputs="valid_votes",
        outputs="milestones",
        writes=["contestants", "contest"],
        windows={"trending": window("valid_votes", count=TRENDING, slide=1)},
    )
    def generate_leaderboard(txn: Transaction, valid_votes: Batch) -> None:
        for cast in valid_votes:
            leader = txn.get("contestants", cast.contestant)
            txn.update("contestants", cast.contestant, total=leader.total + 1, trending=leader.trending + 1)
        for old in txn.window("trending").expired:
            former = txn.get("contestants", old.contestant)
            if former is not None:
                txn.update("contestants", old.contestant, trending=former.trending - 1)
        before = txn.get("contest", 1).valid_votes
        after = before + len(valid_votes)
        txn.update("contest", 1, valid_votes=after)
        if after // eliminate_every > before // eliminate_every:
            txn.emit("milestones", valid_votes=after)

    ranking = app.sql("SELECT id, total FROM contestants ORDER BY total, id")
    give_back = app.sql(GIVE_BACK)

    @app.procedure(inputs="milestones", writes=["contestants", "votes", "phones"])
    def delete_contestant(txn: Transaction, milestones: Batch) -> None:
        standing = txn.execute(ranking)
        if len(standing) <= 1:
            return
        weakest = standing[0].id
        txn.execute(give_back, weakest)
        txn.execute("DELETE FROM votes WHERE contestant = $1", weakest)
        txn.execute("DELETE FROM contestants WHERE id = $1", weakest)

    app.nested(vote, generate_leaderboard, delete_contestant, name="voting")
    return app
