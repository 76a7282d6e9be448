"""A contender: it runs the leaderboard's votes in its own way, and its final state is compared with the reference."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from tidegate.examples.leaderboard.app import TRENDING, VOTES_PER_PHONE
from tidegate.examples.leaderboard.reference import Contest, Vote

CONTESTANTS = 25
EVERY = 1_000  # valid votes, then the weakest contestant leaves

State = dict[str, dict[int, int] | list[int]]
Query = Callable[..., Sequence[Sequence[Any]]]  # (sql, *parameters) -> rows


class Missing(Exception):
    """Why a contender can't run here, and how to get it."""


@dataclass(frozen=True)
class Guarantees:
    """What it really guarantees as configured here."""

    atomic: str
    order: str
    exactly_once: str
    durable: str


@dataclass(frozen=True)
class Finished:
    """How long the votes took, and the final state."""

    seconds: float
    state: State


@dataclass(frozen=True)
class Peer:
    """One contender. ``most``: the most votes it gets, because all of them would take too long."""

    name: str
    guarantees: Guarantees
    most: int
    run: Callable[[list[Vote]], Finished]


def timed(run: Callable[[], object]) -> float:
    begin = time.perf_counter()
    run()
    return time.perf_counter() - begin


def state_of(
    totals: Iterable[Sequence[int]],
    trending: Iterable[Sequence[int]],
    phones: Iterable[Sequence[int]],
    votes: Iterable[int],
) -> State:
    """The final state of a contest, in one form for all contenders. Phones whose votes are all gone do not matter."""
    return {
        "totals": {int(contestant): int(n) for contestant, n in totals},
        "trending": {int(contestant): int(n) for contestant, n in trending},
        "phones": {int(phone): int(used) for phone, used in phones if int(used) > 0},
        "votes": sorted(map(int, votes)),
    }


def right_state(votes: list[Vote]) -> State:
    contest = Contest().run(votes)
    return state_of(contest.totals.items(), contest.trending.items(), contest.phones.items(), contest.votes)


TABLES = (
    "CREATE TABLE contestants (id INTEGER PRIMARY KEY, total BIGINT NOT NULL, trending BIGINT NOT NULL)",
    "CREATE TABLE votes (id BIGINT PRIMARY KEY, phone BIGINT NOT NULL, contestant INTEGER NOT NULL)",
    "CREATE INDEX votes_by_contestant ON votes (contestant)",
    "CREATE INDEX votes_by_phone ON votes (phone)",
    "CREATE TABLE recent (number BIGINT PRIMARY KEY, contestant INTEGER NOT NULL)",
    "CREATE TABLE contest (id INTEGER PRIMARY KEY, valid BIGINT NOT NULL)",
    "INSERT INTO contest VALUES (1, 0)",
    *(f"INSERT INTO contestants VALUES ({number}, 0, 0)" for number in range(1, CONTESTANTS + 1)),
)


def cast_vote(query: Query, vote: Vote) -> None:
    """One vote, as an application writes it against a SQL database: the caller wraps it in a transaction."""
    number, phone, contestant = vote
    if not query("SELECT total FROM contestants WHERE id = ?", contestant):
        return
    if query("SELECT count(*) FROM votes WHERE phone = ?", phone)[0][0] >= VOTES_PER_PHONE:
        return
    query("INSERT INTO votes VALUES (?, ?, ?)", number, phone, contestant)
    query("UPDATE contest SET valid = valid + 1 WHERE id = 1")
    valid = query("SELECT valid FROM contest WHERE id = 1")[0][0]
    query("INSERT INTO recent VALUES (?, ?)", valid, contestant)
    query("UPDATE contestants SET total = total + 1, trending = trending + 1 WHERE id = ?", contestant)
    former = query("SELECT contestant FROM recent WHERE number = ?", valid - TRENDING)
    if former:
        query("UPDATE contestants SET trending = trending - 1 WHERE id = ?", former[0][0])
        query("DELETE FROM recent WHERE number = ?", valid - TRENDING)
    if valid % EVERY == 0:
        _eliminate(query)


def _eliminate(query: Query) -> None:
    standing = query("SELECT id FROM contestants ORDER BY total, id")
    if len(standing) <= 1:
        return
    weakest = standing[0][0]
    query("DELETE FROM votes WHERE contestant = ?", weakest)
    query("DELETE FROM contestants WHERE id = ?", weakest)


def sql_state(query: Query) -> State:
    return state_of(
        query("SELECT id, total FROM contestants"),
        query("SELECT id, trending FROM contestants"),
        query("SELECT phone, count(*) FROM votes GROUP BY phone"),
        [number for (number,) in query("SELECT id FROM votes")],
    )
