# -*- test-case-name: tests.machine.test_runner -*-
"""
Writes the snapshots of one member: when one is due, and when it gets its name.

Rule 1: a snapshot gets its name when the log up to its last entry is on stable storage, and only if nothing
has happened to the state meanwhile.
Rule 2: one that cannot be written is tried again after as many entries.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from hashlib import sha256
from itertools import chain

import attrs
from twisted.internet.defer import CancelledError
from twisted.logger import Logger
from twisted.python.failure import Failure

from dledger.machine.calls import MachineCalls
from dledger.machine.files.snapshots import SnapshotDirectory, UnnamedSnapshot
from dledger.machine.guarded import GuardedMachine, sentence_of
from dledger.machine.skips import Skips
from dledger.node.host import MachineHost
from dledger.node.node import Node
from dledger.storage.files.snapshot_file import SnapshotRefused
from protocols.wire.ledger.entry import EntryHeader

#: Seconds in which a snapshot must be written.
SNAPSHOT_S = 600.0
#: Seconds between two looks whether the log is on stable storage up to the last entry of a snapshot.
FLUSH_LOOK_S = 0.05


@attrs.frozen(kw_only=True)
class SnapshotsDue:
    """When a snapshot is due: after this number of entries, or of bytes of bodies; 0: not by these."""

    entries: int = 0
    of_bytes: int = 0


class SnapshotWriter:
    """
    @ivar written: number of snapshots since the start. @ivar size: bytes of the last one; -1: none.
    @ivar problem: why the last one could not be written; empty if it was.
    """

    log = Logger()

    def __init__(
        self, snapshots: SnapshotDirectory, entries: Node, host: MachineHost, due: SnapshotsDue,
        *, why_not: Callable[[], str], pause: Callable[[float], Awaitable[None]],
    ) -> None:
        """
        @param why_not: why none may be finished now; empty if one may.
        @param pause: waits for some seconds.
        """
        self._snapshots = snapshots
        self._entries = entries
        self._clock = host.clock
        self._run_in_thread = host.run_in_thread
        self._self_id = host.self_id
        self._due_entries = due.entries
        self._due_bytes = due.of_bytes
        self._why_not = why_not
        self._pause = pause
        self._since_entries = self._since_bytes = 0
        self._last_index = -1
        self.written = 0
        self.size = -1
        self.problem = ""
        self._is_wanted = self._is_asked = False

    def ask(self, applied_index: int) -> str:
        """
        An operator wants one.

        @param applied_index: last entry in the state.
        @return: why there will be none; empty: one is due.
        """
        if applied_index < 0:
            return "the state machine has no entries yet"
        if any(head.index == applied_index for head in self._snapshots.heads):
            return f"there is a snapshot of the state after the entry {applied_index}"
        self._is_asked = True
        return ""

    def note(self, last_index: int, batch: Sequence[tuple[EntryHeader, bytes]], skips: Skips) -> None:
        """More entries are in the state. After an order a snapshot is wanted, wherever others are due."""
        self._last_index = last_index
        self._since_entries += len(batch)
        self._since_bytes += sum(len(body) for _, body in batch)
        self._is_wanted |= skips.has_passed()
        if batch:
            self._snapshots.pass_skips(skips.left_out, batch[-1][0].term)

    def entries_left(self, applied_index: int) -> int:
        """A batch must not have more entries than these, so that it ends where a snapshot is due."""
        due = self._due_entries
        return due - (applied_index + 1) % due if due > 0 else 1 << 62

    def begin_again(self) -> None:
        """One is taken now, or the state is another one: count anew."""
        self._since_entries = self._since_bytes = 0
        self._is_wanted = self._is_asked = False

    @property
    def is_due(self) -> bool:
        """
        Whether one is to be taken: by entries after the same ones at each member, so that all can be
        compared; where neither number is given, only when an operator asks.
        """
        is_place = self._due_entries > 0 and not (self._last_index + 1) % self._due_entries
        is_by_count = (is_place and self._since_entries > 0) or 0 < self._due_bytes <= self._since_bytes
        is_wanted = self._is_asked or (self._is_wanted and bool(self._due_entries or self._due_bytes))
        return is_by_count or is_wanted

    async def write(self, last: EntryHeader, chunks: Callable[[], Awaitable[Iterable[bytes]]]) -> None:
        """Write one after an entry. @param chunks: gives the pieces of its file."""
        deadline_s = self._clock.seconds() + SNAPSHOT_S
        written: list[UnnamedSnapshot] = []

        def problem() -> str:
            is_late = self._clock.seconds() > deadline_s
            return self._why_not() or (f"it takes more than {SNAPSHOT_S:g} s" if is_late else "")

        def write() -> None:
            written.append(self._snapshots.write(
                index=last.index, term=last.term, chain_crc=last.chain_crc, chunks=pieces, problem=problem
            ))

        try:
            pieces = await chunks()
            await self._run_in_thread(write)
            while not (reason := problem()) and self._entries.members.flushed_index < last.index:
                await self._pause(FLUSH_LOOK_S)
            if reason:
                raise SnapshotRefused(f"it gets no name: {reason}")
            await self._run_in_thread(lambda: self._snapshots.name(written[0]))
        except (SnapshotRefused, OSError, CancelledError) as error:  # (no bug: given up, or the disk is full)
            reason = str(error) if isinstance(error, SnapshotRefused) else sentence_of(error)
            if isinstance(error, CancelledError):
                reason = "the member stops"
            self.problem = f"after the entry {last.index}: {reason}"
            self.log.warn(
                "the snapshot of {machine} at member {self_id} after the entry {index} was not written: "
                "{reason}",
                machine=self._snapshots.machine, self_id=self._self_id, index=last.index, reason=reason,
            )
            return
        except Exception as error:
            self.problem = f"after the entry {last.index}: {sentence_of(error)}"
            self.log.failure(
                "the snapshot of {machine} at member {self_id} after the entry {index} was not written",
                Failure(error), machine=self._snapshots.machine, self_id=self._self_id, index=last.index,
            )
            return
        self.written += 1
        self.size = written[0].size
        self.problem = ""


async def pieces_of(
    machine: GuardedMachine, calls: MachineCalls, first: bytes, digests: list[bytes]
) -> Iterator[bytes]:
    """
    The first piece, and the present state of a machine. (No entries are given to it before it has been asked:
    its calls are in turn.) With the last piece its digest is in C{digests}.
    """
    digest, view = await calls.call("snapshot()", lambda: (machine.digest(), machine.snapshot()))
    if digest is None:
        return chain((first,), hashed(view, digests))
    digests.append(digest)
    return chain((first,), view)


def hashed(pieces: Iterable[bytes], digests: list[bytes]) -> Iterator[bytes]:
    """The same pieces; after the last one their hash is in C{digests}."""
    total = sha256()
    for piece in pieces:
        if isinstance(piece, bytes):
            total.update(piece)
        yield piece
    digests.append(total.digest())
