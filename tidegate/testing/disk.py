"""A disk that loses power, fills up or fails at any operation, from a seed.

Implements the log's :class:`~tidegate.txn.log.files.Files`. What was synced is kept. Of what was not, any sector may be
kept, be missing (zeros), or be torn at any byte, later ones while earlier ones are gone; a file that was being created
may be missing.
"""

from __future__ import annotations

import errno
import random

SECTOR = 64  # small, so that even a small log has many


class PowerLoss(BaseException):
    """The power is gone. Nothing after it reaches the disk."""


class SimulatedFiles:
    """A directory of files in memory.

    ``lose_power_at``: the operation (write, sync, create, truncate, remove) in the middle of which power is
    lost. ``fail_sync_at``: the sync that fails, for good. ``capacity``: bytes before the disk is full.

    >>> files = SimulatedFiles(seed=1)
    >>> file = files.create("a.log")
    >>> file.write(b"k", at=0)
    1
    >>> file.sync()
    >>> _ = file.write(b"not synced", at=1)
    >>> files.after_power_loss().read("a.log")[:1]
    b'k'
    """

    def __init__(
        self,
        seed: int,
        *,
        lose_power_at: int | None = None,
        fail_sync_at: int | None = None,
        capacity: int | None = None,
    ) -> None:
        self.chance = random.Random(seed)
        self.lose_power_at = lose_power_at
        self.fail_sync_at = fail_sync_at
        self.capacity = capacity
        self.power_is_lost = False
        self.operations = 0
        self.syncs = 0
        self.files: dict[str, SimulatedFile] = {}

    # ---- Files

    def names(self) -> list[str]:
        return sorted(self.files)

    def read(self, name: str) -> bytes:
        return bytes(self.files[name].data)

    def create(self, name: str) -> SimulatedFile:
        if name in self.files:
            raise FileExistsError(errno.EEXIST, "exists", name)
        lost = self.operation()
        if not lost or self.chance.random() < 0.5:
            self.files[name] = SimulatedFile(self)
        self.lose(lost)
        return self.files[name]

    def truncate(self, name: str, size: int) -> None:
        lost = self.operation()
        if not lost or self.chance.random() < 0.5:
            file = self.files[name]
            del file.data[size:]
            file.synced = min(file.synced, size) if lost else size
        self.lose(lost)

    def sync(self, name: str) -> None:
        self.files[name].sync()

    def remove(self, name: str) -> None:
        lost = self.operation()
        if not lost or self.chance.random() < 0.5:
            del self.files[name]
        self.lose(lost)

    # ---- faults

    def operation(self) -> bool:
        """One more operation; is it the one during which power is lost? After that nothing reaches the disk."""
        self.operations += 1
        if self.lose_power_at is None or self.operations <= self.lose_power_at:
            return False
        if self.power_is_lost:
            raise PowerLoss
        self.power_is_lost = True
        return True

    def lose(self, lost: bool) -> None:
        if lost:
            raise PowerLoss

    @property
    def used(self) -> int:
        return sum(len(file.data) for file in self.files.values())

    def after_power_loss(self) -> SimulatedFiles:
        """What a machine finds after the restart."""
        found = SimulatedFiles(self.chance.randrange(1 << 30))
        for name, file in self.files.items():
            found.files[name] = survivor = SimulatedFile(found)
            survivor.data = file.survivor(self.chance)
            survivor.synced = len(survivor.data)
        return found


class SimulatedFile:
    """A file that grows at its end."""

    def __init__(self, files: SimulatedFiles) -> None:
        self._files = files
        self.data = bytearray()
        self.synced = 0

    def write(self, data: bytes | memoryview, at: int) -> int:
        assert at <= len(self.data), "a hole in the file"
        files = self._files
        lost = files.operation()
        room = len(data) if files.capacity is None else files.capacity - files.used + len(self.data) - at
        if room <= 0:
            raise OSError(errno.ENOSPC, "no space left on the simulated disk")
        count = min(len(data), room)
        if count > 1 and files.chance.random() < 0.2:
            count = files.chance.randrange(1, count)  # a short write
        self.data[at : at + count] = data[:count]
        files.lose(lost)
        return count

    def write_synced(self, data: bytes | memoryview, at: int) -> int:
        count = self.write(data, at)
        self.sync()
        return count

    def sync(self) -> None:
        files = self._files
        lost = files.operation()
        files.syncs += 1
        if files.fail_sync_at is not None and files.syncs >= files.fail_sync_at:
            raise OSError(errno.EIO, "the simulated disk failed")
        if not lost:
            self.synced = len(self.data)
        files.lose(lost)

    def check_place(self) -> None:
        """A simulated file is never moved."""

    def close(self) -> None:
        pass

    def survivor(self, chance: random.Random) -> bytearray:
        """What is left of this file after power was lost."""
        size = chance.randint(self.synced, len(self.data))
        found = bytearray(self.data[:size])
        for start in range(self.synced, size, SECTOR):
            end = min(start + SECTOR - start % SECTOR, size)
            match chance.randrange(3):
                case 0:
                    found[start:end] = bytes(end - start)
                case 1:
                    torn = chance.randint(start, end)
                    found[torn:end] = bytes(end - torn)
        return found
