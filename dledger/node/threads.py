# -*- test-case-name: tests.node.test_service -*-
"""The threads of a member: what may block runs in them, and nothing else does."""

from __future__ import annotations

import time
from typing import Self

import attrs

from dledger.base.reactor import Reactor
from dledger.base.threads import DiskRunner, DiskThreads, LoneThread
from dledger.storage.files.snapshot_file import STEP_BYTES


class FlushThread(DiskThreads):
    """The only thread that runs fsyncs."""

    def __init__(self, reactor: Reactor) -> None:
        super().__init__(reactor, name="dledger-flush")


#: A rest is this many times as long as the step before it.
REST_FACTOR = 3.0
#: Seconds of one rest, and of all rests of one snapshot, at most: on a slow disk it must end all the same.
REST_S, RESTS_S = 0.2, 120.0
#: Bytes of a step when those are used up.
HURRIED_BYTES = 8 * 1024 * 1024


@attrs.define
class Rests:
    """Called after each step of a snapshot: leaves the disk and the processor to appends for a while."""

    _left_s: float = RESTS_S
    _began_s: float = attrs.Factory(lambda: time.perf_counter())

    def __call__(self) -> int:
        """Rest. @return: bytes of the next step."""
        rest_s = min(self._left_s, REST_S, REST_FACTOR * (time.perf_counter() - self._began_s))
        self._left_s -= rest_s
        time.sleep(rest_s)
        self._began_s = time.perf_counter()
        return STEP_BYTES if self._left_s > 0 else HURRIED_BYTES


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
