# -*- test-case-name: tests.machine.test_fetching -*-
"""
Gets a snapshot from another member, piece by piece::

    ask one member: pieces in order --whole, durable, checked--> a snapshot of this member
        |  ^ no answer, damaged piece: the same piece again, a few times
        +--- refused, not sound, too often in vain: begin anew with the next member, after all of them a pause

Rule 1: one piece is under way at a time, so memory holds one. Each piece has a checksum, and the whole file
has another one.
Rule 2: the snapshot must be one of this machine, in a version that it takes. It must be made after an entry
that is not in this member's state yet, and this member's log must have the entries after it. An older
snapshot is refused before a byte of it is written.
Rule 3: the bytes are written into the file C{incoming}. Nothing else changes until the file is whole, sound
and durable, and gets its name. A crash before leaves C{incoming}, which the next start removes.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import attrs
from twisted.internet.defer import CancelledError, Deferred
from twisted.internet.task import deferLater
from twisted.logger import Logger

from dledger.machine.files.snapshots import SnapshotDirectory
from dledger.node.host import MachineHost
from dledger.node.requests.snapshots import SnapshotHandler
from dledger.storage.files.snapshot_file import SnapshotHead, SnapshotRefused
from dledger.values.errors import DLedgerError
from protocols.wire.checksums import crc32
from protocols.wire.codes import ResponseCode
from protocols.wire.ledger.machines import SnapshotRequest, SnapshotResponse

_Outcome = TypeVar("_Outcome")

#: Attempts to get one piece from a member that does not answer, or sends a damaged one. Then the next member
#: is asked.
TRIES = 5
#: Seconds before the next attempt, times the number of attempts so far.
RETRY_S = 0.5
#: Seconds before a piece is asked for again that the sender may not send yet, because its quota is used up.
THROTTLED_S = 0.2
#: Answers of this kind to the requests for one piece. Then the next member is asked.
THROTTLED_MAX = 150
#: Seconds before all members are asked again: the first pause, and the longest. Each pause is twice as long
#: as the one before.
ROUND_S, ROUND_MAX_S = 1.0, 15.0


@attrs.define
class _Incoming:
    """
    The snapshot that is being received.

    @ivar index, term: of the entry after which it was made; -1 until the first piece has reported them.
    @ivar size: its bytes; -1 until the first piece has reported them.
    @ivar offset: bytes that are in the file C{incoming}.
    """

    index: int = -1
    term: int = -1
    size: int = -1
    offset: int = 0


class SnapshotFetch:
    """
    One search for a snapshot.

    @ivar asked: why each member that was asked has not sent a snapshot.
    @ivar progress: how far the search is, as a sentence for people.
    @ivar rounds_in_vain: how many times all members were asked, and none has sent a snapshot.
    """

    log = Logger()

    def __init__(
        self, snapshots: SnapshotDirectory, source: SnapshotHandler, host: MachineHost, *, machine: str,
        machine_version: int, oldest_version: int, lowest_index: Callable[[], int],
    ) -> None:
        """
        @param oldest_version: of snapshots that the machine takes.
        @param lowest_index: returns the lowest entry after which a snapshot must be made to be of use now.
        """
        self._snapshots = snapshots
        self._source = source
        self._clock = host.clock
        self._run_in_thread = host.run_in_thread
        self._self_id = host.self_id
        self._machine = machine
        self._machine_version = machine_version
        self._oldest_version = oldest_version
        self._lowest_index = lowest_index
        self._cancel: Callable[[], None] | None = None
        self._is_stopped = False
        self.asked: dict[str, str] = {}
        self.progress = "no member was asked yet"
        self.rounds_in_vain = 0

    def stop(self) -> None:
        """End the search. L{fetch} then fails with C{CancelledError}."""
        self._is_stopped = True
        if self._cancel is not None:
            self._cancel()

    async def fetch(self) -> SnapshotHead:
        """
        Ask the members in turn, again and again, until one has sent a snapshot.

        @return: the head of the snapshot, which is sound, durable and in the directory.
        @raise CancelledError: L{stop} was called.
        """
        while True:
            for peer_id in self._source.senders():
                try:
                    return await self._from(peer_id)
                except (SnapshotRefused, OSError) as error:
                    self._refused(peer_id, str(error))
            reported = "; ".join(f"{peer_id}: {why}" for peer_id, why in sorted(self.asked.items()))
            self.progress = f"no member has sent a snapshot ({reported or 'none can be asked'})"
            await self.pause(min(ROUND_S * 2 ** min(self.rounds_in_vain, 8), ROUND_MAX_S))
            self.rounds_in_vain += 1

    def _refused(self, peer_id: str, reason: str) -> None:
        if self.asked.get(peer_id) != reason:
            self.log.warn(
                "member {self_id} gets no snapshot from {peer_id}: {reason}",
                self_id=self._self_id, peer_id=peer_id, reason=reason,
            )
        self.asked[peer_id] = reason

    async def _from(self, peer_id: str) -> SnapshotHead:
        """
        Get a whole snapshot from one member.

        @raise SnapshotRefused: the member has no snapshot that is of use, or does not send it.
        @raise OSError: the snapshot cannot be written here.
        """
        incoming, snapshots = _Incoming(), self._snapshots
        while incoming.offset != incoming.size:
            data = await self._next_piece(peer_id, incoming)
            offset, index, term = incoming.offset, incoming.index, incoming.term

            def write(data: bytes = data, offset: int = offset, index: int = index, term: int = term) -> None:
                snapshots.receive(data, offset)
                if not offset:
                    snapshots.check_incoming(index, term)

            await self._run_in_thread(write)
            incoming.offset += len(data)
            self.progress = f"{peer_id} sends a snapshot: {incoming.offset} of {incoming.size} bytes are here"
        found: list[SnapshotHead] = []
        await self._run_in_thread(lambda: found.append(snapshots.received(incoming.index, incoming.term)))
        self.log.info(
            "member {self_id} has got the snapshot after the entry {index} from {peer_id}, {size} bytes",
            self_id=self._self_id, index=incoming.index, peer_id=peer_id, size=incoming.size,
        )
        self.asked.clear()
        return found[0]

    async def _next_piece(self, peer_id: str, incoming: _Incoming) -> bytes:
        """
        Get the piece at C{incoming.offset}.

        @raise SnapshotRefused: the member refuses it, or all attempts have failed.
        """
        tries = throttled = 0
        while True:
            problem = ""
            try:
                answer: SnapshotResponse = await self._wait(self._source.ask(peer_id, SnapshotRequest(
                    machine=self._machine, machine_version=self._machine_version,
                    oldest_version=self._oldest_version, index=incoming.index,
                    index_term=incoming.term, offset=incoming.offset,
                )))
            except DLedgerError as error:
                problem = str(error)
            else:
                if answer.code is not ResponseCode.SUCCESS:
                    raise SnapshotRefused(f"{answer.code.name} {answer.reason}".strip())
                if answer.data is None:
                    throttled += 1
                    if throttled >= THROTTLED_MAX:
                        raise SnapshotRefused("it may send nothing for a while: its quota is used up")
                    await self.pause(THROTTLED_S)
                    continue
                self._check_use(answer)
                problem = _problem_of(answer, incoming)
                if not problem:
                    incoming.index = answer.index
                    incoming.term = answer.index_term
                    incoming.size = answer.size
                    return answer.data
            tries += 1
            if tries >= TRIES:
                raise SnapshotRefused(problem)
            await self.pause(RETRY_S * tries)

    def _check_use(self, answer: SnapshotResponse) -> None:
        lowest_index = self._lowest_index()
        if answer.index < lowest_index:
            raise SnapshotRefused(
                f"its snapshot is after the entry {answer.index}, here one after {lowest_index} or later "
                "is needed"
            )

    async def pause(self, seconds: float) -> None:
        """
        Wait for some seconds.

        @raise CancelledError: the search was stopped.
        """
        await self._wait(deferLater(self._clock, seconds))

    async def _wait(self, outcome: Deferred[_Outcome]) -> _Outcome:
        """@raise CancelledError: the search has been stopped."""
        self._cancel = outcome.cancel
        if self._is_stopped:
            outcome.cancel()
        try:
            result = await outcome
        finally:
            self._cancel = None
        if self._is_stopped:
            raise CancelledError
        return result


def _problem_of(answer: SnapshotResponse, incoming: _Incoming) -> str:
    """Why a piece must not be written; empty if it may."""
    data = answer.data
    assert data is not None
    if crc32(data) != answer.crc:
        return f"the piece at {answer.offset} is damaged: its checksum does not fit"
    known = (incoming.index, incoming.term, incoming.size)
    reported = (answer.index, answer.index_term, answer.size)
    if incoming.size >= 0 and reported != known:
        return f"the snapshot (index, term, size) is {reported} now, it was {known}"
    if answer.offset != incoming.offset or not data or answer.offset + len(data) > answer.size:
        return (
            f"{len(data)} bytes at {answer.offset} came, of {answer.size}, those at {incoming.offset} were "
            "asked for"
        )
    return ""
