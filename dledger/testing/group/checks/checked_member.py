# -*- test-case-name: tests.sim.test_invariants -*-
"""
A member as the checks of a group see it; L{dledger.testing.group.members.member.SimMember} is one.
"""

from __future__ import annotations

from typing import Protocol

from dledger.core.replica import DLedgerCore
from dledger.storage.store.file_store import FileStore
from dledger.testing.world.disk import SimDisk
from dledger.values.ledger.config import DLedgerConfig


class CheckedMember(Protocol):
    """
    A member as the checks see it.

    @ivar ledger: its store; C{core}: its L{dledger.core.replica.DLedgerCore}; C{disk}: a simulated disk.
    @ivar term_path, twin_path: where its term file and its twin are.
    @ivar persisted_term, persisted_vote: term and vote that it last made durable.
    @ivar damaged: indexes of entries with a flipped bit, as far as they have not come back.
    """

    member_id: str
    config: DLedgerConfig
    core: DLedgerCore
    ledger: FileStore
    term_path: str
    twin_path: str
    persisted_term: int
    persisted_vote: str | None
    damaged: set[int]

    @property
    def disk(self) -> SimDisk:
        """The disk of its machine."""

    def is_durable(self, offset: int, size: int) -> bool:
        """Whether these bytes of the ledger are on stable storage."""
