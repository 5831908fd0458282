# -*- test-case-name: tests.sim.test_chunks -*-
"""
Checks the chunks that simulated members push: rules beside the numbered invariants, which hold for the
entries of a chunk as for all others.

A leader pushes a chunk only of entries that it knows to be committed, and never one with a configuration
entry. A follower refuses none unless something rots in this run: a leader that reports stale checksums
repairs itself, but has work that it should not have.
"""

from __future__ import annotations

import attrs

from dledger.testing.group.checks.checked_member import CheckedMember
from dledger.testing.group.checks.invariants import GroupInvariants
from dledger.testing.group.checks.require import require
from protocols.wire.codes import ResponseCode
from protocols.wire.ledger.batches import EntryChunk
from protocols.wire.ledger.entry import iterate_records
from protocols.wire.ledger.messages import PushEntryRequest, Request, Response
from protocols.wire.ledger.own.own_entries import CONFIGURATION_CHANNEL


@attrs.define
class ChunkRules:
    """
    @ivar sent, taken, refused: numbers of chunks so far.
    @ivar is_rotten: something was damaged in this run.
    """

    sent: int = 0
    taken: int = 0
    refused: int = 0
    is_rotten: bool = False

    def asks(self, member: CheckedMember, request: Request) -> None:
        """A member sends a request."""
        if not isinstance(request, PushEntryRequest) or not isinstance(request.entries, EntryChunk):
            return
        self.sent += 1
        chunk = request.entries
        reported = f"{member.member_id} pushes the chunk of {chunk.first_index} to {chunk.last_index}"
        committed_index = member.core.committed_index
        require(chunk.last_index <= min(committed_index, request.commit_index), 4,
                f"{reported}, and has committed {committed_index}")
        if not self.is_rotten:
            channels = {header.channel for header, _ in iterate_records(chunk)}
            require(CONFIGURATION_CHANNEL not in channels, 9, f"{reported}, which has a configuration entry")

    def answers(
        self, member: CheckedMember, request: Request, response: Response, invariants: GroupInvariants
    ) -> None:
        """A member answers a request."""
        if not isinstance(request, PushEntryRequest) or not isinstance(request.entries, EntryChunk):
            return
        if response.code is ResponseCode.SUCCESS:
            self.taken += 1
        elif response.code is ResponseCode.UNSUPPORTED:
            self.refused += 1
            require(self.is_rotten or not invariants.is_wire_sound, 3,
                    f"{member.member_id} refuses the sound chunk of {request.entries.first_index} to "
                    f"{request.entries.last_index}")
