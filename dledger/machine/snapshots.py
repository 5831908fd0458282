# -*- test-case-name: tests.machine.test_snapshots -*-
"""
The directory of a machine's snapshots, C{machine} beside the log: C{snapshot-<index>-<term>}.

Rule 1: a file gets its name when all of it is on stable storage; what a crash leaves has another name, and is
removed at the next start.
Rule 2: the last L{KEPT} snapshots that were written or found sound are kept, older ones are removed once a
newer one is durable. A snapshot that was refused is never removed: it may be the only copy of something.

All calls but C{heads} block on the disk: they belong into a thread.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Iterator

from dledger.base.disk.disk import Disk
from dledger.machine.snapshot_file import (
    SnapshotHead,
    SnapshotRefused,
    check_snapshot,
    read_pieces,
    write_snapshot,
)

#: Snapshots that are kept.
KEPT = 2
_NAME = re.compile(r"snapshot-(\d{1,19})-(\d{1,19})")
_UNFINISHED = "unfinished"


class SnapshotDirectory:
    """
    Invariant: C{heads} are those of durable, sound snapshots of this machine, oldest first, at most L{KEPT}
    behind a write.

    @ivar refused: sentences about the files that cannot be used.
    """

    def __init__(self, disk: Disk, path: str, *, machine: str, machine_version: int) -> None:
        self._disk = disk
        self.path = path
        self._machine = machine
        self._machine_version = machine_version
        self.heads: list[SnapshotHead] = []
        self.refused: list[str] = []

    def _path_of(self, head: SnapshotHead) -> str:
        return os.path.join(self.path, f"snapshot-{head.index}-{head.term}")

    def look(self) -> None:
        """Find the sound snapshots; remove what an interrupted write left. @raise OSError: of the disk."""
        self.heads, self.refused = [], []
        self._disk.makedirs(self.path)
        unfinished = os.path.join(self.path, _UNFINISHED)
        if self._disk.exists(unfinished):
            self._disk.unlink(unfinished)
        found = [
            (int(match[1]), int(match[2]), name)
            for name in self._disk.listdir(self.path) if (match := _NAME.fullmatch(name)) is not None
        ]
        for index, term, name in sorted(found):
            try:
                self.heads.append(self._checked(os.path.join(self.path, name), index, term))
            except SnapshotRefused as refused:
                self.refused.append(str(refused))

    def _checked(self, path: str, index: int, term: int) -> SnapshotHead:
        head = check_snapshot(self._disk, path)
        if (head.index, head.term) != (index, term):
            raise SnapshotRefused(f"{path} is of the entry {head.index} of term {head.term}: it was renamed")
        if head.machine != self._machine:
            raise SnapshotRefused(
                f"{path} is of the machine {head.machine!r}, this member runs {self._machine!r}"
            )
        if head.machine_version != self._machine_version:
            raise SnapshotRefused(
                f"{path} has the version {head.machine_version} of {self._machine!r}, this member runs the "
                f"version {self._machine_version}"
            )
        return head

    def refuse(self, head: SnapshotHead, reason: str) -> None:
        """A sound snapshot cannot be used after all."""
        self.heads.remove(head)
        self.refused.append(f"{self._path_of(head)}: {reason}")

    def read(self, head: SnapshotHead) -> Iterator[bytes]:
        """The pieces of a snapshot; see L{read_pieces}."""
        return read_pieces(self._disk, self._path_of(head))

    def write(
        self, *, index: int, term: int, chain_crc: int, chunks: Iterable[bytes], problem: Callable[[], str]
    ) -> int:
        """
        Write a snapshot, make it durable, and remove older ones.

        @param problem: see L{write_snapshot}.
        @return: bytes of the file.
        @raise SnapshotRefused: it was given up. @raise OSError: of the disk. The older ones are all there.
        """
        disk = self._disk
        head = SnapshotHead(
            index=index, term=term, chain_crc=chain_crc, machine=self._machine,
            machine_version=self._machine_version,
        )
        path, unfinished = self._path_of(head), os.path.join(self.path, _UNFINISHED)
        disk.makedirs(self.path)
        if disk.exists(unfinished):
            disk.unlink(unfinished)
        try:
            size = write_snapshot(disk, unfinished, head, chunks, problem)
        except Exception:
            if disk.exists(unfinished):
                disk.unlink(unfinished)
            raise
        if disk.exists(path):  # it was refused, or this would not be written
            disk.rename(path, self._free_name(path))
        disk.rename(unfinished, path)
        self.heads = [*(one for one in self.heads if one.index < index), head]
        while len(self.heads) > KEPT:
            disk.unlink(self._path_of(self.heads[0]))
            del self.heads[0]
        return size

    def _free_name(self, path: str) -> str:
        number = 1
        while self._disk.exists(f"{path}.refused-{number}"):
            number += 1
        return f"{path}.refused-{number}"
