"""The leaderboard ends like the plain-Python reference, whatever runs it."""

from __future__ import annotations

import csv
import gzip
import json
from pathlib import Path

import pytest
from shared_data import DATA

import tidegate
from tidegate.benchmarks.leaderboard import final_state, reference_state
from tidegate.examples.leaderboard.app import app, leaderboard
from tidegate.examples.leaderboard.reference import Contest, random_votes

VOTER = DATA / "voter"
SMALL = {"contestants": 6, "eliminate_every": 100}


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("executor", ["serial", "threads"])
def test_equals_the_reference(seed: int, executor: str) -> None:
    votes = random_votes(900, seed, contestants=6)
    contest = Contest(**SMALL).run(votes)  # type: ignore[arg-type]
    with tidegate.open(leaderboard(**SMALL), executor=executor) as engine:  # type: ignore[arg-type]
        engine.call("set_up")
        left = engine.subscribe("eliminated")
        engine.feed("votes_in", votes)
        engine.run_until_idle()
        assert final_state(engine) == reference_state(contest)
        assert [tuple(row) for batch in left for row in batch] == contest.eliminated


def test_until_one_is_left() -> None:
    votes = random_votes(3_000, 7, contestants=6)
    with tidegate.open(leaderboard(**SMALL)) as engine:  # type: ignore[arg-type]
        engine.call("set_up")
        engine.feed("votes_in", votes)
        assert len(engine.query("SELECT * FROM contestants")) == 1
        assert final_state(engine) == reference_state(Contest(**SMALL).run(votes))  # type: ignore[arg-type]


def test_closed_and_reopened_in_the_middle(tmp_path: Path) -> None:
    votes = random_votes(900, 3, contestants=6)
    for begin in range(0, 900, 300):
        with tidegate.open(leaderboard(**SMALL), tmp_path) as engine:  # type: ignore[arg-type]
            if begin == 0:
                engine.call("set_up")
            engine.feed("votes_in", votes[begin : begin + 300])
            state = final_state(engine)
    assert state == reference_state(Contest(**SMALL).run(votes))  # type: ignore[arg-type]


@pytest.mark.skipif(not VOTER.is_dir(), reason="the shared voter data is not beside this checkout")
def test_the_voter_data_gives_its_expected_counts() -> None:
    with gzip.open(VOTER / "votes_50000.csv.gz", "rt") as file:
        votes = [(int(r["vote_id"]), int(r["phone_number"]), int(r["contestant_number"])) for r in csv.DictReader(file)]
    expected = json.loads((VOTER / "expected_counts.json").read_text())
    with tidegate.open(leaderboard(contestants=6, eliminate_every=None)) as engine:
        engine.call("set_up")
        engine.feed("votes_in", votes)
        totals = {row.id: row.total for row in engine.query("SELECT id, total FROM contestants")}
        accepted = engine.query("SELECT valid_votes FROM contest").scalar()
    assert accepted == 47_911 == sum(totals.values())
    assert totals == {1: 8_155, 2: 7_442, 3: 8_475, 4: 8_369, 5: 7_066, 6: 8_404}
    assert str(accepted) in json.dumps(expected)


def test_the_default_contest_has_25_contestants() -> None:
    with tidegate.open(app) as engine:
        engine.call("set_up")
        assert engine.query("SELECT count(*) FROM contestants").scalar() == 25
