"""The leaderboard on other systems, each checked for the right result and labelled with what it really guarantees."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from dataclasses import asdict
from typing import Any

from tidegate.benchmarks.peers import embedded, postgres, processors, redis
from tidegate.benchmarks.peers.contest import Missing, Peer, right_state
from tidegate.errors import TidegateError
from tidegate.examples.leaderboard.reference import Vote

PEERS: dict[str, Peer] = {peer.name: peer for room in (embedded, redis, postgres, processors) for peer in room.PEERS}


def chosen(names: str) -> list[Peer]:
    """The contenders in a list such as ``sqlite,redis``; ``all`` for every one."""
    wanted = list(PEERS) if names.strip() == "all" else [name.strip() for name in names.split(",") if name.strip()]
    for name in wanted:
        if name not in PEERS:
            raise TidegateError(f"there is no peer {name!r}; the peers are {', '.join(PEERS)}, or all")
    return [PEERS[name] for name in wanted]


def compare(
    peers: Sequence[Peer],
    votes: list[Vote],
    rounds: int,
    progress: Callable[[str], None],
    ours: Callable[[], float] | None = None,
) -> dict[str, dict[str, Any]]:
    """Medians of votes a second. One that can't run here says why under ``skipped``.

    ``ours()``: our own votes a second, measured right before each round of a peer, because the machine's speed may change from
    one minute to the next. ``times``: the median of how many times as fast we were.
    """
    found: dict[str, dict[str, Any]] = {}
    for peer in peers:
        mine = votes[: peer.most]
        right = right_state(mine)
        rates, beside = [], []
        correct = True
        try:
            for number in range(rounds):
                progress(f"{peer.name}, round {number + 1} of {rounds}")
                beside.append(ours() if ours is not None else 0.0)
                finished = peer.run(mine)
                rates.append(len(mine) / finished.seconds)
                correct &= finished.state == right
        except Missing as missing:
            found[peer.name] = {"skipped": str(missing)}
            continue
        found[peer.name] = {
            "votes_per_s": round(statistics.median(rates)),
            **({} if ours is None else _times(beside, rates)),
            "correct": correct,
            "votes": len(mine),
            "guarantees": asdict(peer.guarantees),
        }
    return found


def _times(ours: list[float], theirs: list[float]) -> dict[str, Any]:
    return {
        "times": round(statistics.median(a / b for a, b in zip(ours, theirs, strict=True)), 2),
        "tidegate_beside_votes_per_s": round(statistics.median(ours)),
    }
