# -*- test-case-name: tests.node.test_service -*-
"""The threads of a member: what may block runs in them, and nothing else does."""

from __future__ import annotations

from typing import Self

import attrs

from dledger.base.reactor import Reactor
from dledger.base.threads import DiskRunner, DiskThreads, LoneThread


class FlushThread(DiskThreads):
    """The only thread that runs fsyncs."""

    def __init__(self, reactor: Reactor) -> None:
        super().__init__(reactor, name="dledger-flush")


@attrs.frozen(kw_only=True)
class MemberThreads:
    """
    @ivar flush: runs fsyncs, one at a time.
    @ivar snapshots, calls: run the snapshots of the state machine, and its calls, one at a time.
    """

    flush: DiskRunner
    snapshots: DiskRunner
    calls: DiskRunner

    @classmethod
    def of(
        cls, reactor: Reactor, *, flush: DiskRunner | None = None, snapshots: DiskRunner | None = None,
        calls: DiskRunner | None = None,
    ) -> Self:
        """Threads of their own for those that are not given. None is started."""
        return cls(
            flush=flush or FlushThread(reactor),
            snapshots=snapshots or LoneThread(reactor, name="dledger-snapshots"),
            calls=calls or LoneThread(reactor, name="dledger-machine"),
        )

    def start_machine(self) -> None:
        """Start the threads of the state machine."""
        self.snapshots.start()
        self.calls.start()

    def stop_machine(self) -> None:
        """Stop the threads of the state machine."""
        self.snapshots.stop()
        self.calls.stop()
