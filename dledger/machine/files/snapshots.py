# -*- test-case-name: tests.machine.test_snapshots -*-
"""
The directory of a machine's snapshots, C{machine} beside the log: C{snapshot-<index>-<term>}.

Rule 1: a file gets its name when all of it is on stable storage, and the log up to its last entry as well;
what a crash leaves has another name, and is removed at the next start.
Rule 2: the last L{KEPT} snapshots that were written or found sound are kept, and those that are being sent;
older ones are removed once a newer one is durable. A snapshot that was refused is never removed: it may be
the only copy of something. Only what another member has sent may go at once.
Rule 3: a snapshot that another member sends is C{incoming} until it is whole, durable and checked.
Rule 4: a member that orders all machines to skip an entry may have the last state that was made without it.
It notes the entry first, in the name of an empty file, C{skipping-<index>-<term of the order>}. The newest
snapshot before a noted entry is kept, until the order is obeyed or can no longer come.

All calls but C{heads} block on the disk: they belong into a thread.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Collection, Iterable, Iterator
from typing import NamedTuple

from dledger.base.disk.disk import Disk
from dledger.storage.files.snapshot_file import (
    SnapshotHead,
    SnapshotRefused,
    check_snapshot,
    no_rest,
    read_pieces,
    read_snapshot_head,
    write_snapshot,
)

#: Snapshots that are kept.
KEPT = 2
_NAME = re.compile(r"snapshot-(\d{1,19})-(\d{1,19})")
_NOTE = re.compile(r"skipping-(\d{1,19})-(\d{1,19})")
_UNFINISHED = "unfinished"
_INCOMING = "incoming"

#: Most sentences about refused snapshots.
REFUSED_MAX = 64


class UnnamedSnapshot(NamedTuple):
    """A durable snapshot without its name. @ivar size: bytes of its file."""

    head: SnapshotHead
    size: int


class SnapshotDirectory:
    """
    Invariant: C{heads} are those of durable, sound snapshots of this machine, oldest first, at most L{KEPT}
    after a write, those that are held, and those of rule 4.

    @ivar refused: sentences about the files that cannot be used.
    @ivar held: indexes of snapshots that are not to be removed now.
    @ivar skipping: the noted entries of rule 4, by index, with the terms of the orders.
    @ivar passed: those of them whose notes the next write removes.
    @ivar proven_index: C{heads[0].index} if there are at least L{KEPT} snapshots and the oldest one was read
        as a whole when there were; else -1.
    """

    def __init__(
        self, disk: Disk, path: str, *, machine: str, machine_version: int, oldest_version: int | None = None,
        proves_oldest: bool = False, rests: Callable[[], Callable[[], int]] = lambda: no_rest,
    ) -> None:
        """
        @param oldest_version: of snapshots that the machine takes; None: only its own.
        @param proves_oldest: keep C{proven_index}; else it is of L{look} until the next write, then -1.
        @param rests: gives C{rest} of L{write_snapshot} to a new one.
        """
        self._disk = disk
        self.path = path
        self.machine = machine
        self.machine_version = machine_version
        self.oldest_version = machine_version if oldest_version is None else oldest_version
        self._proves_oldest = proves_oldest
        self._rests = rests
        self.heads: list[SnapshotHead] = []
        self.refused: list[str] = []
        self.held: frozenset[int] = frozenset()
        self.skipping: dict[int, int] = {}
        self.passed: frozenset[int] = frozenset()
        self.proven_index = -1

    def _path_of(self, head: SnapshotHead) -> str:
        return os.path.join(self.path, f"snapshot-{head.index}-{head.term}")

    def look(self) -> None:
        """Find the sound snapshots; remove what an interrupted write left. @raise OSError: of the disk."""
        self.heads = []
        self.refused = []
        self._disk.makedirs(self.path)
        for name in (_UNFINISHED, _INCOMING):
            self._remove(os.path.join(self.path, name))
        names = self._disk.listdir(self.path)
        noted = [match for match in map(_NOTE.fullmatch, names) if match is not None]
        self.skipping = {int(match[1]): int(match[2]) for match in noted}
        found = [
            (int(match[1]), int(match[2]), name)
            for name in names if (match := _NAME.fullmatch(name)) is not None
        ]
        for index, term, name in sorted(found):
            try:
                self.heads.append(self._checked(os.path.join(self.path, name), index, term))
            except SnapshotRefused as refused:
                self.refused.append(str(refused))
        self.proven_index = self._provable_index()

    def _provable_index(self) -> int:
        return self.heads[0].index if len(self.heads) >= KEPT and self.needed_index >= 0 else -1

    @property
    def needed_index(self) -> int:
        """The log after this entry is needed: that of the oldest snapshot; -1: all of it."""
        if not self.heads or min(self.skipping, default=self.heads[0].index + 1) <= self.heads[0].index:
            return -1
        return self.heads[0].index

    def _remove(self, path: str) -> None:
        if self._disk.exists(path):
            self._disk.unlink(path)

    def _checked(self, path: str, index: int, term: int) -> SnapshotHead:
        return self._of_this_machine(check_snapshot(self._disk, path), path, index, term)

    def _of_this_machine(self, head: SnapshotHead, path: str, index: int, term: int) -> SnapshotHead:
        """@raise SnapshotRefused: it is of another entry, machine or version."""
        if (head.index, head.term) != (index, term):
            raise SnapshotRefused(f"{path} is of the entry {head.index} of term {head.term}: it was renamed")
        if head.machine != self.machine:
            raise SnapshotRefused(
                f"{path} is of the machine {head.machine!r}, this member runs {self.machine!r}"
            )
        if not self.oldest_version <= head.machine_version <= self.machine_version:
            raise SnapshotRefused(
                f"{path} has the version {head.machine_version} of {self.machine!r}, this member runs the "
                f"version {self.machine_version}, which takes those from {self.oldest_version} on"
            )
        return head

    def refuse(self, head: SnapshotHead, reason: str) -> None:
        """A sound snapshot cannot be used after all."""
        self.heads.remove(head)
        self.proven_index = -1
        sentence = f"{self._path_of(head)}: {reason}"
        if sentence not in self.refused and len(self.refused) < REFUSED_MAX:
            self.refused.append(sentence)

    def refuse_from(self, index: int, reason: str) -> None:
        """Those after C{index} and later entries cannot be used after all."""
        for head in [one for one in self.heads if one.index >= index]:
            self.refuse(head, reason)

    def note_skip(self, index: int, term: int) -> None:
        """Rule 4, before the order is written. @raise OSError: of the disk."""
        self._disk.makedirs(self.path)
        self._disk.write_file(os.path.join(self.path, f"skipping-{index}-{term}"), b"")
        self.skipping = {**self.skipping, index: term}

    def pass_skips(self, left_out: Collection[int], term: int) -> None:
        """
        The state has an entry of C{term}, and was made without C{left_out}: no order for these entries, or of
        an earlier term, is to come. The next write removes their notes.
        """
        if self.skipping:
            self.passed = frozenset(
                index for index, noted in self.skipping.items() if index in left_out or noted < term
            )

    def _forget_skips(self) -> None:
        """Remove the notes of entries that are passed."""
        for index in self.passed & self.skipping.keys():
            self._remove(os.path.join(self.path, f"skipping-{index}-{self.skipping[index]}"))
            self.skipping = {at: term for at, term in self.skipping.items() if at != index}
        self.passed = frozenset()

    # -- from and to other members -----------------------------------------------------------

    def piece(self, head: SnapshotHead, offset: int, max_bytes: int) -> tuple[int, bytes]:
        """@return: bytes of the whole file, and those of a piece of it. @raise OSError: of the disk."""
        file = self._disk.open(self._path_of(head))
        try:
            return file.size(), file.pread(max_bytes, offset)
        finally:
            file.close()

    def receive(self, data: bytes, offset: int) -> None:
        """Write a piece that another member has sent; at 0 a new file begins. @raise OSError: of the disk."""
        path = os.path.join(self.path, _INCOMING)
        if not offset:
            self._remove(path)
        file = self._disk.open(path, create=not offset)
        try:
            file.pwrite(data, offset)
        finally:
            file.close()

    def check_incoming(self, index: int, term: int) -> None:
        """Look at the header of what is received. @raise SnapshotRefused: it is not for this machine."""
        path = os.path.join(self.path, _INCOMING)
        self._of_this_machine(read_snapshot_head(self._disk, path), path, index, term)

    def received(self, index: int, term: int) -> SnapshotHead:
        """
        All pieces are there: check the whole, make it durable, give it its name.

        @raise SnapshotRefused: it is not sound; it is gone then. @raise OSError: of the disk.
        """
        disk, incoming = self._disk, os.path.join(self.path, _INCOMING)
        file = disk.open(incoming)
        try:
            file.datasync()
        finally:
            file.close()
        try:
            head = self._checked(incoming, index, term)
        except SnapshotRefused:
            disk.unlink(incoming)
            raise
        path = self._path_of(head)
        self._make_way(path)
        disk.rename(incoming, path)
        self.heads = [*(one for one in self.heads if one.index < index), head]
        return head

    def discard(self, head: SnapshotHead) -> None:
        """Remove a snapshot that another member sent, and that was refused: the other one still has it."""
        assert head not in self.heads
        self._remove(self._path_of(head))

    # -- own ones ------------------------------------------------------------------------------

    def read(self, head: SnapshotHead) -> Iterator[bytes]:
        """The pieces of a snapshot; see L{read_pieces}."""
        return read_pieces(self._disk, self._path_of(head))

    def write(
        self, *, index: int, term: int, chain_crc: int, chunks: Iterable[bytes], problem: Callable[[], str]
    ) -> UnnamedSnapshot:
        """
        Write a snapshot and make it durable. It has no name yet, and counts for nothing before L{name}.

        @param problem: see L{write_snapshot}.
        @raise SnapshotRefused: it was given up. @raise OSError: of the disk.
        """
        disk = self._disk
        head = SnapshotHead(
            index=index, term=term, chain_crc=chain_crc, machine=self.machine,
            machine_version=self.machine_version,
        )
        unfinished = os.path.join(self.path, _UNFINISHED)
        disk.makedirs(self.path)
        if disk.exists(unfinished):
            disk.unlink(unfinished)
        try:
            size = write_snapshot(disk, unfinished, head, chunks, problem, self._rests())
            return UnnamedSnapshot(head, size)
        except Exception:
            if disk.exists(unfinished):
                disk.unlink(unfinished)
            raise

    def name(self, written: UnnamedSnapshot) -> None:
        """
        The log up to the last entry of a snapshot is on stable storage, too: give it its name, and remove
        older ones.

        @raise OSError: of the disk. The older ones are all there.
        """
        disk, head = self._disk, written.head
        path = self._path_of(head)
        self._make_way(path)
        disk.rename(os.path.join(self.path, _UNFINISHED), path)
        self.heads = [*(one for one in self.heads if one.index < head.index), head]
        self._forget_skips()
        before = {max((one.index for one in self.heads if one.index < index), default=-1)
                  for index in self.skipping}
        for old in self.heads[:-KEPT]:
            if old.index not in self.held and old.index not in before:
                disk.unlink(self._path_of(old))
                self.heads.remove(old)
        self._prove_oldest()

    def _prove_oldest(self) -> None:
        """Read the oldest snapshot again: the log after it may go, so it must be sound on this disk now."""
        self.proven_index = -1
        if self._proves_oldest and self._provable_index() >= 0:
            oldest = self.heads[0]
            try:
                self._checked(self._path_of(oldest), oldest.index, oldest.term)
            except SnapshotRefused as refused:
                self.refuse(oldest, str(refused))
            else:
                self.proven_index = oldest.index

    def _make_way(self, path: str) -> None:
        """A file of this name was refused, or the name would not be needed: it gets another one."""
        disk, number = self._disk, 1
        if disk.exists(path):
            while disk.exists(f"{path}.refused-{number}"):
                number += 1
            disk.rename(path, f"{path}.refused-{number}")
