# -*- test-case-name: tests.machine.test_fetching -*-
"""
Pieces of this member's snapshots for other members.

Rule: a snapshot of which a piece was asked for is held for a while: it is not removed for newer ones, and the
log after it stays. So a member that was sent all pieces can go on from there.
"""

from __future__ import annotations

from collections.abc import Callable

import attrs

from dledger.machine.files.snapshots import SnapshotDirectory
from dledger.storage.files.snapshot_file import SnapshotHead
from dledger.values.errors import DLedgerError
from protocols.wire.codes import ResponseCode
from protocols.wire.ledger.machines import SnapshotRequest

#: Seconds for which a snapshot is held after a piece of it was asked for.
HELD_S = 60.0


@attrs.frozen(kw_only=True)
class SnapshotPiece:
    """
    A piece of the file of a snapshot.

    @ivar size: bytes of the whole file.
    @ivar offset: where the piece begins.
    """

    index: int
    term: int
    size: int
    offset: int
    data: bytes


class SnapshotOffers:
    """The snapshots of a directory, as others may have them."""

    def __init__(self, snapshots: SnapshotDirectory, seconds: Callable[[], float]) -> None:
        self._snapshots = snapshots
        self._seconds = seconds
        self._asked_s: dict[int, float] = {}

    def held(self) -> frozenset[int]:
        """Indexes of the snapshots that are held now."""
        since_s = self._seconds() - HELD_S
        self._asked_s = {index: asked_s for index, asked_s in self._asked_s.items() if asked_s > since_s}
        return frozenset(self._asked_s)

    def piece_for(self, request: SnapshotRequest, max_bytes: int) -> SnapshotPiece:
        """
        See L{dledger.node.requests.machine_requests.HostedMachine.piece_for}.

        @raise DLedgerError: UNSUPPORTED, it is for another machine; INDEX_OUT_OF_RANGE, there is none yet;
            INDEX_LESS_THAN_LOCAL_BEGIN, there is none with this last entry any more; UNEXPECTED_ARGUMENT, it
            has no such piece; DISK_ERROR.
        """
        snapshots = self._snapshots
        if request.machine != snapshots.machine:
            raise DLedgerError(ResponseCode.UNSUPPORTED, reason=(
                f"this member runs the machine {snapshots.machine!r}, the asker {request.machine!r}"
            ))
        head = self._head_for(request)
        oldest = request.machine_version if request.oldest_version < 0 else request.oldest_version
        if not oldest <= head.machine_version <= request.machine_version:
            raise DLedgerError(ResponseCode.UNSUPPORTED, reason=(
                f"its snapshot has the version {head.machine_version} of {request.machine!r}, the asker "
                f"takes {oldest} to {request.machine_version}"
            ))
        self._asked_s[head.index] = self._seconds()
        try:
            size, data = snapshots.piece(head, max(request.offset, 0), max_bytes)
        except OSError as error:
            raise DLedgerError(ResponseCode.DISK_ERROR, reason=str(error)) from error
        if not 0 <= request.offset < size:
            raise DLedgerError(ResponseCode.UNEXPECTED_ARGUMENT, reason=(
                f"the snapshot has {size} bytes, none at {request.offset}"
            ))
        return SnapshotPiece(
            index=head.index, term=head.term, size=size, offset=request.offset, data=data
        )

    def _head_for(self, request: SnapshotRequest) -> SnapshotHead:
        heads = list(self._snapshots.heads)
        if request.index < 0 and heads:
            return heads[-1]
        if request.index < 0:
            raise DLedgerError(ResponseCode.INDEX_OUT_OF_RANGE, reason="this member has no snapshot yet")
        for head in heads:
            if (head.index, head.term) == (request.index, request.index_term):
                return head
        raise DLedgerError(ResponseCode.INDEX_LESS_THAN_LOCAL_BEGIN, reason=(
            f"this member has no snapshot after the entry {request.index} of term {request.index_term} "
            "any more"
        ))
