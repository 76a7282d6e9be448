"""The leaderboard as others run it, each checked for the right final result and labelled with what it really guarantees."""

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
    """The contenders of a list such as ``sqlite,redis``; ``all`` for every one."""
    wanted = list(PEERS) if names.strip() == "all" else [name.strip() for name in names.split(",") if name.strip()]
    for name in wanted:
        if name not in PEERS:
            raise TidegateError(f"there is no peer {name!r}; the peers are {', '.join(PEERS)}, or all")
    return [PEERS[name] for name in wanted]


def compare(
    peers: Sequence[Peer], votes: list[Vote], rounds: int, progress: Callable[[str], None]
) -> dict[str, dict[str, Any]]:
    """Medians of votes a second. One that can't run here says why under ``skipped``."""
    found: dict[str, dict[str, Any]] = {}
    for peer in peers:
        mine = votes[: peer.most]
        right = right_state(mine)
        try:
            finished = []
            for number in range(rounds):
                progress(f"{peer.name}, round {number + 1} of {rounds}")
                finished.append(peer.run(mine))
        except Missing as missing:
            found[peer.name] = {"skipped": str(missing)}
            continue
        found[peer.name] = {
            "votes_per_s": round(len(mine) / statistics.median(f.seconds for f in finished)),
            "correct": all(f.state == right for f in finished),
            "votes": len(mine),
            "guarantees": asdict(peer.guarantees),
        }
    return found
