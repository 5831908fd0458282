# -*- test-case-name: tests.sim.test_lost_files -*-
"""What is lost of a broker's files beside its log while it is down: by a file system, or by an operator."""

from __future__ import annotations

import random

from dledger.testing.brokers.rig.machine import SMALL
from dledger.testing.world.host import MachineDisk

#: Of the queues, those that lose files, about; and of all files, those that become older copies.
_SHARE, _OLDER_SHARE = 0.4, 0.3
#: Of the losses, those of whole queues alone: no file that is left says that there were others.
_WHOLE_SHARE = 0.3
#: Of the parts of a store, those that are lost, and of these, those that come back from before.
_PART_SHARE, _RESTORED_SHARE = 0.6, 0.6
#: The tables without which a broker goes on.
TABLES = ("config/topics", "config/consumerOffset", "config/delayOffset")
MARKS = ("commitlogmark", "checkpoint", "dispatched", "abort")
#: Parts of a store that are made from its log, by the beginnings of their files' names.
PARTS = (("index/", "indexed"), MARKS, ("consumequeue",))
_FILE_BYTES = int(str(SMALL["mapped_file_size_consume_queue"]))


class LostFiles:
    """
    Of all machines.

    @ivar lost: number of files that were lost. @ivar older: number of those that became older copies.
    @ivar parts: number of parts of stores that were lost, or put back from before.
    @ivar tables: number of those that were tables.
    """

    def __init__(self) -> None:
        self._copies: dict[MachineDisk, dict[str, bytes]] = {}
        self._stores: dict[MachineDisk, dict[str, bytes]] = {}
        self.lost = self.older = self.parts = self.tables = 0

    @staticmethod
    def spoil(disk: MachineDisk, path: str, rng: random.Random) -> None:
        """The disk cannot read a page of a file any more. @param path: of the directories of queues."""
        files = sorted(disk.files_below(path))
        if files:
            disk.spoil(rng.choice(files), int(rng.random() * _FILE_BYTES))

    def lose(self, disk: MachineDisk, path: str, rng: random.Random) -> None:
        """
        Some queues lose all files, their first ones, or any one; some files are as they were the last time.

        @param path: of the directories of queues.
        """
        by_queue: dict[str, list[str]] = {}
        for file in sorted(disk.files_below(path)):
            by_queue.setdefault(file.rpartition("/")[0], []).append(file)
        takes_whole = rng.random() < _WHOLE_SHARE
        for files in by_queue.values():
            if rng.random() < _SHARE:
                gone = files if takes_whole else rng.choice((
                    files, files[: rng.randrange(len(files)) + 1], [rng.choice(files)],
                ))
                for file in gone:
                    disk.unlink(file)
                self.lost += len(gone)
        left = dict(disk.files_below(path))
        for file, data in () if takes_whole else self._copies.get(disk, {}).items():
            if len(left.get(file, b"")) == len(data) and rng.random() < _OLDER_SHARE:
                disk.write_file(file, data)
                self.older += 1
        self._copies[disk] = left

    def put_back(
        self, disk: MachineDisk, root: str, rng: random.Random, more: tuple[tuple[str, ...], ...] = ()
    ) -> bool:
        """
        Some parts of a store are gone as a whole, or are as they were the last time; its log is as it is now.

        @param root: the directory of the store. @param more: parts besides L{PARTS}: tables, also
            those of other parts.
        @return: whether its marks are older now, and may say more than the queues have on stable storage.
        """
        has_old_marks = False
        now = dict(disk.files_below(root))
        before = self._stores.get(disk, {})
        for names in (*PARTS, *more):
            if rng.random() >= _PART_SHARE:
                continue
            begins = tuple(f"{root}/{name}" for name in names)
            older = {file: data for file, data in before.items() if file.startswith(begins)}
            for file in [file for file in disk.files_below(root) if file.startswith(begins)]:
                disk.unlink(file)
            for file, data in older.items() if rng.random() < _RESTORED_SHARE else ():
                disk.write_file(file, data)
                has_old_marks |= names == MARKS
            self.parts += 1
            self.tables += names in more
        self._stores[disk] = now
        return has_old_marks
