"""Redis: the whole vote as a Lua script, sent in pipelines of 100, every write on disk before it is answered."""

from __future__ import annotations

import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tidegate.benchmarks.peers.contest import (
    CONTESTANTS,
    EVERY,
    Finished,
    Guarantees,
    Missing,
    Peer,
    State,
    state_of,
    timed,
)
from tidegate.examples.leaderboard.app import TRENDING, VOTES_PER_PHONE
from tidegate.examples.leaderboard.reference import Vote

PIPELINE = 100

SCRIPT = f"""
local id, phone, contestant = ARGV[1], ARGV[2], ARGV[3]
if redis.call('HEXISTS', 'totals', contestant) == 0 then return 0 end
local used = tonumber(redis.call('HGET', 'phones', phone) or '0')
if used >= {VOTES_PER_PHONE} then return 0 end
redis.call('HINCRBY', 'phones', phone, 1)
redis.call('HSET', 'votes', id, phone)
redis.call('SADD', 'votes_of:' .. contestant, id)
redis.call('HINCRBY', 'totals', contestant, 1)
redis.call('HINCRBY', 'trending', contestant, 1)
if redis.call('RPUSH', 'recent', contestant) > {TRENDING} then
  local former = redis.call('LPOP', 'recent')
  if redis.call('HEXISTS', 'trending', former) == 1 then redis.call('HINCRBY', 'trending', former, -1) end
end
local valid = redis.call('INCR', 'valid')
if valid % {EVERY} ~= 0 or redis.call('HLEN', 'totals') <= 1 then return valid end
local weakest, least
local totals = redis.call('HGETALL', 'totals')
for i = 1, #totals, 2 do
  local who, total = tonumber(totals[i]), tonumber(totals[i + 1])
  if not least or total < least or (total == least and who < weakest) then weakest, least = who, total end
end
for _, lost in ipairs(redis.call('SMEMBERS', 'votes_of:' .. weakest)) do
  redis.call('HINCRBY', 'phones', redis.call('HGET', 'votes', lost), -1)
  redis.call('HDEL', 'votes', lost)
end
redis.call('DEL', 'votes_of:' .. weakest)
redis.call('HDEL', 'totals', weakest)
redis.call('HDEL', 'trending', weakest)
return valid
"""


@contextmanager
def server() -> Iterator[Any]:
    """A private Redis server on a socket, with ``appendonly`` and ``appendfsync always``; a client of it."""
    try:
        import redis
    except ImportError as error:
        raise Missing("the Python package redis is not installed: pip install 'tidegate[bench]'") from error
    program = shutil.which("redis-server")
    if program is None:
        raise Missing("there is no redis-server on the path: apt-get install redis-server")
    with tempfile.TemporaryDirectory(prefix="tidegate-redis-", dir="/tmp") as place:
        socket = Path(place) / "redis.sock"
        command = [program, "--port", "0", "--unixsocket", str(socket), "--dir", place, "--save", ""]
        command += ["--appendonly", "yes", "--appendfsync", "always"]
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        try:
            for _ in range(200):
                if socket.exists():
                    break
                time.sleep(0.05)
            with redis.Redis(unix_socket_path=str(socket)) as client:
                yield client
        finally:
            process.terminate()
            process.wait(10)


def _run(votes: list[Vote]) -> Finished:
    with server() as client:
        for number in range(1, CONTESTANTS + 1):
            client.hset("totals", number, 0)
            client.hset("trending", number, 0)
        digest = client.script_load(SCRIPT)

        def run() -> None:
            for begin in range(0, len(votes), PIPELINE):
                with client.pipeline(transaction=False) as pipeline:
                    for vote in votes[begin : begin + PIPELINE]:
                        pipeline.evalsha(digest, 0, *vote)
                    pipeline.execute()

        return Finished(timed(run), _state(client))


def _state(client: Any) -> State:
    hashes = {name: client.hgetall(name) for name in ("totals", "trending", "phones", "votes")}
    return state_of(hashes["totals"].items(), hashes["trending"].items(), hashes["phones"].items(), hashes["votes"])


PEERS = (
    Peer(
        "redis",
        Guarantees(
            "each vote, as a script; no rollback on error",
            "as long as one client sends",
            "no: a pipeline repeated after a lost answer counts twice",
            "each answer (appendfsync always)",
        ),
        30_000,
        _run,
    ),
)
