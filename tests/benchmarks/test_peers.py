"""The contenders of the leaderboard come to the right end, each in its own way."""

from __future__ import annotations

import shutil

import pytest
from debian import install

from tidegate import TidegateError
from tidegate.benchmarks.leaderboard import bench
from tidegate.benchmarks.peers import PEERS, chosen, compare
from tidegate.benchmarks.peers.contest import Finished, Missing, Peer
from tidegate.benchmarks.peers.postgres_server import PostgresServer
from tidegate.examples.leaderboard.reference import random_votes

VOTES = random_votes(1_200)  # enough for one contestant to leave


def check(name: str, votes: int = len(VOTES)) -> None:
    found = compare([PEERS[name]], VOTES[:votes], 1, lambda text: None)[name]
    assert found["correct"], found
    assert found["votes"] == votes


def test_sqlite() -> None:
    check("sqlite")


def test_duckdb() -> None:
    check("duckdb", 200)


def test_redis() -> None:
    missing = install("redis-server", lambda: shutil.which("redis-server"))
    if missing is not None:
        pytest.skip(missing)
    check("redis")


@pytest.mark.parametrize("name", ["postgres", "postgres_function"])
def test_postgres(name: str, postgres: PostgresServer) -> None:
    check(name)


def test_a_wrong_result_is_told() -> None:
    wrong = Peer("wrong", PEERS["sqlite"].guarantees, 100, lambda votes: Finished(1.0, {"totals": {}}))
    assert not compare([wrong], VOTES, 1, lambda text: None)["wrong"]["correct"]


def test_what_is_not_here_is_skipped_by_name() -> None:
    def run(votes: object) -> Finished:
        raise Missing("no such server: install it")

    absent = Peer("absent", PEERS["sqlite"].guarantees, 100, run)
    assert compare([absent], VOTES, 1, lambda text: None) == {"absent": {"skipped": "no such server: install it"}}


def test_names() -> None:
    assert [peer.name for peer in chosen("sqlite, redis")] == ["sqlite", "redis"]
    assert len(chosen("all")) == len(PEERS)
    with pytest.raises(TidegateError, match="there is no peer 'oracle'; the peers are sqlite"):
        chosen("oracle")


def test_the_benchmark_prints_everything_it_promises() -> None:
    facts = bench(300, 1, durable=True, variants=True, peers=chosen("sqlite"))
    assert facts["correct"]
    assert all(found["correct"] for found in facts["variants"].values())
    assert set(facts["peers"]["sqlite"]) >= {"votes_per_s", "correct", "guarantees"}
    assert facts["overhead_us_per_execution"] > 0
