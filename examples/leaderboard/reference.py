"""The same contest on bare dictionaries: the right answer, and the cost of the logic alone."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from random import Random

from tidegate.examples.leaderboard.app import TRENDING, VOTES_PER_PHONE

Vote = tuple[int, int, int]  # id, phone, contestant


class Contest:
    """Plain-Python contest: no transactions, no order but the caller's, no durability."""

    def __init__(self, contestants: int = 25, eliminate_every: int | None = 1_000) -> None:
        self.totals = dict.fromkeys(range(1, contestants + 1), 0)
        self.trending = dict.fromkeys(range(1, contestants + 1), 0)
        self.phones: dict[int, int] = {}
        self.votes: dict[int, Vote] = {}
        self.by_contestant: dict[int, dict[int, None]] = {}
        self.recent: deque[int] = deque()
        self.eliminated: list[tuple[int, int, int]] = []
        self.valid = 0
        self.eliminate_every = eliminate_every

    def vote(self, cast: Vote) -> None:
        number, phone, contestant = cast
        used = self.phones.get(phone, 0)
        if contestant not in self.totals or used >= VOTES_PER_PHONE:
            return
        self.phones[phone] = used + 1
        self.votes[number] = cast
        self.by_contestant.setdefault(contestant, {})[number] = None
        self.totals[contestant] += 1
        self.trending[contestant] += 1
        self.recent.append(contestant)
        if len(self.recent) > TRENDING:
            former = self.recent.popleft()
            if former in self.trending:
                self.trending[former] -= 1
        self.valid += 1
        if self.eliminate_every is not None and self.valid % self.eliminate_every == 0:
            self.eliminate()

    def eliminate(self) -> None:
        if len(self.totals) <= 1:
            return
        weakest = min(self.totals, key=lambda contestant: (self.totals[contestant], contestant))
        for number in self.by_contestant.pop(weakest, {}):
            self.phones[self.votes.pop(number)[1]] -= 1
        self.eliminated.append((weakest, self.totals.pop(weakest), self.valid))
        del self.trending[weakest]

    def run(self, votes: Iterable[Vote]) -> Contest:
        for cast in votes:
            self.vote(cast)
        return self


def random_votes(count: int, seed: int = 1, contestants: int = 25) -> list[Vote]:
    """A seeded stream of votes: favourites, unknown contestants, phones that call too often."""
    rng = Random(seed)
    busy = [5_550_000_000 + i for i in range(max(count // 500, 1))]
    votes = []
    for number in range(1, count + 1):
        phone = rng.choice(busy) if rng.random() < 0.05 else rng.randrange(2_000_000_000, 9_000_000_000)
        favourite = int(rng.triangular(1, contestants + 1, contestants / 3))
        contestant = 999 if rng.random() < 0.01 else min(favourite, contestants)
        votes.append((number, phone, contestant))
    return votes
