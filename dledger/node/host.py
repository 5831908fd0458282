# -*- test-case-name: tests.node.test_node -*-
"""The things that a member and its state machine are given: files, clocks, threads of the process."""

from __future__ import annotations

import random
from collections.abc import Callable

import attrs
from twisted.internet.interfaces import IReactorTime

from dledger.base.disk.disk import DiskSpace
from dledger.base.threads import RunInThread
from dledger.core.driver import Terms
from dledger.core.state.recovered import RecoveredState
from dledger.storage.files.snapshot_file import no_rest
from dledger.storage.files.term_file import TermVote
from dledger.storage.store.file_store import FileStore


@attrs.frozen(kw_only=True)
class NodeFiles:
    """
    @ivar store: the ledger.
    @ivar terms: where term and vote are kept.
    @ivar vote: what was kept there when it was opened.
    """

    store: FileStore
    terms: Terms
    vote: TermVote

    @property
    def recovered(self) -> RecoveredState:
        """The state of the member when it ended."""
        store, identity = self.store, self.store.identity
        return RecoveredState(
            term=self.vote.term, voted_for=self.vote.voted_for, committed_index=store.committed_index,
            repair_end_index=store.repair_end_index, is_unsure=identity.is_unsure,
            forgot_terms=identity.forgot_terms, group_name=identity.group_name,
        )


@attrs.frozen(kw_only=True)
class MemberHost:
    """
    @ivar clock: monotonic.
    @ivar wall_clock: seconds since 1970, and the local hour.
    @ivar rng: the only source of chance of the member.
    @ivar run_in_thread: runs fsyncs, one at a time.
    @ivar disk_space: of the file system of the store; None: there is none.
    """

    clock: IReactorTime
    wall_clock: Callable[[], tuple[float, int]]
    rng: random.Random
    run_in_thread: RunInThread
    disk_space: Callable[[], DiskSpace] | None = None


@attrs.frozen(kw_only=True)
class MachineHost:
    """
    @ivar self_id: of the member.
    @ivar clock: monotonic.
    @ivar run_in_thread: runs snapshots, one at a time.
    @ivar run_machine: runs the calls of the machine, in turn; None: they run in the reactor's thread.
    @ivar rests: gives the rests of one snapshot, see L{dledger.node.threads.Rests}.
    """

    self_id: str
    clock: IReactorTime
    run_in_thread: RunInThread
    run_machine: RunInThread | None = None
    rests: Callable[[], Callable[[], int]] = lambda: no_rest
