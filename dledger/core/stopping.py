# -*- test-case-name: tests.core.test_replica -*-
"""
The end of a member: orderly, after a hand-over and the outcomes of appends, or at once when the store fails.

After C{stop} only L{fx.StopMember} is left to do; then the core takes no inputs.
"""

from __future__ import annotations

from collections.abc import Mapping

import attrs

from dledger.core.election.changes import MembershipChanges
from dledger.core.election.transfer import LeadershipTransfer
from dledger.core.replication.appends import PendingAppends
from dledger.core.replication.dispatcher import EntryDispatcher
from dledger.core.replication.handler import EntryHandler
from dledger.core.replication.reads import LinearizableReads
from dledger.core.state import effects as fx
from dledger.core.state.member_state import MemberState
from protocols.wire.codes import ResponseCode


@attrs.define
class Stopping:
    """
    @ivar is_requested: the member was asked to stop.
    @ivar is_stopped: it has stopped.
    """

    member: MemberState
    appends: PendingAppends
    changes: MembershipChanges
    reads: LinearizableReads
    transfer: LeadershipTransfer
    handler: EntryHandler
    is_requested: bool = False
    is_stopped: bool = False
    _deadline_ms: int = -1

    def request(self, dispatchers: Mapping[str, EntryDispatcher]) -> None:
        """Stop as soon as nothing is waited for. @param dispatchers: of the leader."""
        if self.is_requested:
            return
        self.is_requested = True
        # (Later than that of the transfer.)
        config = self.member.config
        wait = 2 * config.leadership_transfer_wait_timeout + config.tick_ms
        self._deadline_ms = self.member.out.now_ms + wait
        if self.member.is_leader:
            self.transfer.offer(dispatchers)
        else:
            self.transfer.fail_all()
        self.if_ready()

    def if_ready(self) -> None:
        """Stop, if that was asked for and nothing is waited for: a hand-over, outcomes of appends."""
        if self.is_requested and not self.is_stopped:
            is_busy = self.transfer.is_giving or self.appends.undecided
            if not is_busy or self.member.out.now_ms >= self._deadline_ms:
                self.stop("asked to stop", clean=True)

    def stop(self, reason: str, *, clean: bool) -> None:
        """Stop now. @param clean: no: the store cannot be used any more."""
        self.is_stopped = True
        self.member.out.forget_write()
        self.changes.fail_all()
        self.appends.fail_all(ResponseCode.TERM_CHANGED)
        self.reads.fail_all(ResponseCode.NOT_LEADER)
        if clean:
            self.transfer.fail_all()
            self.handler.reset()
        self.member.out.emit(fx.StopMember(reason=reason, clean=clean))
