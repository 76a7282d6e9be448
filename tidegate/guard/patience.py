"""Patience with wrong tokens and passwords: guessing takes longer every time, and no one is locked out for good.

Kept by address, forgotten over time, and bounded: however many addresses guess, the memory it takes stays the same.
"""

from __future__ import annotations

import ipaddress
from collections import OrderedDict
from typing import NamedTuple

FREE = 3  # free mistakes: people mistype
FIRST_S = 0.25  # the wait after those; it doubles
LONGEST_S = 5.0
FORGIVEN_S = 30.0  # after this time one mistake is forgotten
REMEMBERED = 10_000  # addresses


class _Record(NamedTuple):
    mistakes: float
    at: float
    next_turn: float


class Patience:
    """Values in, seconds out: it neither waits nor reads a clock. ``longest_s``: what a mistake costs at most."""

    def __init__(self, longest_s: float = LONGEST_S) -> None:
        self._longest_s = longest_s
        self._records: OrderedDict[str, _Record] = OrderedDict()

    def wrong(self, address: str, now: float) -> None:
        """One more wrong attempt from this address."""
        address = _network(address)
        record = self._record(address, now)
        self._keep(address, record._replace(mistakes=record.mistakes + 1))

    def turn_s(self, address: str, now: float) -> float | None:
        """Take the address's next turn; returns in how many seconds it is. Turns do not overlap, however many attempts
        come at once; None when others are waiting and this one would have to wait more than twice ``longest_s``.
        """
        address = _network(address)
        record = self._record(address, now)
        wait_s = self._wait_s(record.mistakes)
        if not wait_s:
            return 0.0
        turn = max(record.next_turn, now) + wait_s
        if turn - now > 2 * self._longest_s:
            return None
        self._keep(address, record._replace(next_turn=turn))
        return turn - now

    def _wait_s(self, mistakes: float) -> float:
        over = mistakes - FREE
        return 0.0 if over < 0 else min(FIRST_S * 2.0 ** min(over, 10.0), self._longest_s)

    def _record(self, address: str, now: float) -> _Record:
        found = self._records.get(address)
        if found is None:
            return _Record(0.0, now, now)
        return _Record(max(0.0, found.mistakes - (now - found.at) / FORGIVEN_S), now, found.next_turn)

    def _keep(self, address: str, record: _Record) -> None:
        self._records[address] = record
        self._records.move_to_end(address)
        if len(self._records) > REMEMBERED:
            self._records.popitem(last=False)

    def __len__(self) -> int:
        return len(self._records)


def _network(address: str) -> str:
    """One household: an IPv4 address, or the /64 of an IPv6 address."""
    try:
        found = ipaddress.ip_address(address.partition("%")[0])
    except ValueError:
        return address
    if isinstance(found, ipaddress.IPv6Address):
        return (
            str(ipaddress.ip_network((found, 64), strict=False))
            if found.ipv4_mapped is None
            else str(found.ipv4_mapped)
        )
    return address
