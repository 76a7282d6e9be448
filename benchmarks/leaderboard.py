"""The S-Store leaderboard: how many votes a second, beside the same logic on bare dictionaries and on other systems."""

from __future__ import annotations

import gc
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from tidegate import App
from tidegate.benchmarks.leaderboard_sql import leaderboard_sql
from tidegate.benchmarks.peers import compare
from tidegate.benchmarks.peers.contest import Peer
from tidegate.benchmarks.setting import setting
from tidegate.dataflows.app import Recovery
from tidegate.examples.leaderboard.app import leaderboard, start
from tidegate.examples.leaderboard.reference import Contest, Vote, random_votes

Progress = Callable[[str], None]

VARIANTS: dict[str, tuple[Recovery, dict[str, Any]]] = {  # of an engine in a directory
    "group commit, weak": ("weak", {}),
    "group commit, strong": ("strong", {}),
    "group commit, effects": ("effects", {}),
    "sync always, weak": ("weak", {"sync": "always"}),
    "sync off, weak": ("weak", {"sync": "off"}),
    "group commit, weak, threads": ("weak", {"executor": "threads", "workers": 2}),
}


def bench(
    votes: int = 30_000,
    rounds: int = 5,
    seed: int = 1,
    durable: bool = False,
    variants: bool = False,
    peers: Sequence[Peer] = (),
    sql: bool = False,
    progress: Progress = lambda text: None,
) -> dict[str, Any]:
    """Medians over ``rounds`` alternating rounds. One vote is one batch and one nested transaction of up to three
    executions; ``feed`` is the bulk path, ``push`` makes a ticket for every vote and waits for none of them.

    ``durable``: the headline is an engine with a directory and group commit, everything acknowledged at the end.
    ``variants``: and other settings of such an engine. ``sql``: who leaves is taken out by one SQL UPDATE that DuckDB answers
    (:mod:`tidegate.benchmarks.leaderboard_sql`). ``peers``: and other systems on the same votes, in turn with the headline.
    """
    cast = random_votes(votes, seed)
    seconds: dict[str, list[float]] = {"dicts": [], "feed": [], "push": []}
    if durable:
        seconds |= {"durable_feed": [], "durable_push": []}
    correct = True
    contest = Contest()
    for number in range(rounds):
        progress(f"round {number + 1} of {rounds}")
        contest = Contest()
        seconds["dicts"].append(_timed(partial(contest.run, cast)))
        for name in list(seconds)[1:]:
            taken, right = _once(name, cast, contest, sql)
            seconds[name].append(taken)
            correct &= right
    executions = votes + contest.valid + contest.valid // 1_000
    per_vote = {name: statistics.median(times) / votes for name, times in seconds.items()}
    headline = "durable_feed" if durable else "feed"

    def ours() -> float:
        return votes / _once(headline, cast, contest, sql)[0]

    return {
        "votes": votes,
        "valid_votes": contest.valid,
        "executions": executions,
        "rounds": rounds,
        "durable": durable,
        "sql": sql,
        "votes_per_s": round(1 / per_vote[headline]),
        **{f"{name}_votes_per_s": round(1 / spent) for name, spent in per_vote.items()},
        "overhead_us_per_execution": round((per_vote[headline] - per_vote["dicts"]) * votes / executions * 1e6, 2),
        "correct": correct,
        **({"variants": _variants(cast, contest, rounds, progress)} if variants else {}),
        **({"peers": compare(peers, cast, rounds, progress, ours)} if peers else {}),
        **setting(),
    }


def _once(name: str, cast: list[Vote], contest: Contest, sql: bool = False) -> tuple[float, bool]:
    """The seconds that one run takes, and whether its result is right."""
    with tempfile.TemporaryDirectory(prefix="tidegate-bench-") as place:
        settings = {"path": place} if name.startswith("durable") else {}
        with start(leaderboard_sql() if sql else leaderboard(), **settings) as engine:
            taken = _timed(partial(_feed if name.endswith("feed") else _push, engine, cast))
            return taken, final_state(engine, sql) == reference_state(contest)


def _variants(cast: list[Vote], contest: Contest, rounds: int, progress: Progress) -> dict[str, dict[str, Any]]:
    found: dict[str, dict[str, Any]] = {}
    for name, (recovery, settings) in VARIANTS.items():
        progress(name)
        seconds = []
        correct = True
        for _ in range(rounds):
            with (
                tempfile.TemporaryDirectory(prefix="tidegate-bench-") as place,
                start(_recovered(leaderboard(), recovery), place, **settings) as engine,
            ):
                seconds.append(_timed(partial(_push, engine, cast)))
                correct &= final_state(engine) == reference_state(contest)
        found[name] = {"push_votes_per_s": round(len(cast) / statistics.median(seconds)), "correct": correct}
    return found


def _recovered(app: App, recovery: Recovery) -> App:
    app.recovery = recovery
    return app


def _feed(engine: Any, votes: list[Vote]) -> None:
    engine.feed("votes_in", votes)


def _push(engine: Any, votes: list[Vote]) -> None:
    tickets = [engine.push("votes_in", [vote]) for vote in votes]
    tickets[-1].result()


PHONES = "SELECT phone, count(*) AS used FROM votes GROUP BY phone ORDER BY phone"
COUNTED = "SELECT phone, used FROM phones WHERE used > 0 ORDER BY phone"  # where a table counts them


def final_state(engine: Any, counted: bool = False) -> dict[str, Any]:
    """The final state of the contest, read back with SQL."""
    rows = engine.query("SELECT id, total, trending FROM contestants ORDER BY id").rows
    phones = engine.query(COUNTED if counted else PHONES).rows
    votes = engine.query("SELECT id FROM votes ORDER BY id").rows
    return {
        "totals": {row.id: row.total for row in rows},
        "trending": {row.id: row.trending for row in rows},
        "phones": {row.phone: row.used for row in phones},
        "votes": [row.id for row in votes],
    }


def reference_state(contest: Contest) -> dict[str, Any]:
    return {
        "totals": contest.totals,
        "trending": contest.trending,
        "phones": {phone: used for phone, used in sorted(contest.phones.items()) if used > 0},
        "votes": sorted(contest.votes),
    }


def _timed(run: Callable[[], object]) -> float:
    gc.collect()
    begin = time.perf_counter()
    run()
    return time.perf_counter() - begin
