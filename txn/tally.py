"""What became of the batches of one feed: counted where executions are undone, so that one that commits costs nothing."""

from __future__ import annotations

from collections import Counter

from tidegate.errors import text_of

REASONS = 3  # how many different reasons are kept


class Tally:
    """Counts what was undone among the sequence numbers it was told of.

    ``begin`` and ``end`` enclose the numbers that a step gives out; what is undone in between is counted, too.
    """

    def __init__(self) -> None:
        self.aborted: set[int] = set()  # sequence numbers
        self.failed: set[int] = set()
        self.reasons: Counter[str] = Counter()
        self._ranges: list[tuple[int, int]] = []
        self._open: int | None = None

    def begin(self, first: int) -> None:
        self._open = first

    def end(self, last: int) -> None:
        first, self._open = self._open, None
        assert first is not None
        if self._ranges and self._ranges[-1][1] == first - 1:
            first = self._ranges.pop()[0]
        self._ranges.append((first, last))

    def __contains__(self, sequence: int) -> bool:
        if self._open is not None and sequence >= self._open:
            return True
        return any(first <= sequence <= last for first, last in self._ranges)

    def undone(self, sequence: int, procedure: str, reason: object, failed: bool) -> None:
        """An execution was undone: it aborted, or it failed and its batch became a dead letter."""
        if sequence in self:
            (self.failed if failed else self.aborted).add(sequence)
            told = f"{procedure}: {text_of(reason)}"
            if told in self.reasons or len(self.reasons) < REASONS:
                self.reasons[told] += 1
