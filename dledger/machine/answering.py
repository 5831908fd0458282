# -*- test-case-name: tests.machine.test_runner,tests.machine.test_requests -*-
"""
The state machine of a member as others see it: its answers to requests, its snapshots, its status. Nothing
here changes its state: that is L{dledger.machine.runner}.
"""

from __future__ import annotations

from functools import partial

from twisted.internet.defer import Deferred, fail, succeed

from dledger.machine.calls import MachineCalls
from dledger.machine.failed_entry import FailedEntry
from dledger.machine.files.fetching import SnapshotFetch
from dledger.machine.files.offering import SnapshotOffers, SnapshotPiece
from dledger.machine.files.snapshots import SnapshotDirectory
from dledger.machine.guarded import GuardedMachine
from dledger.machine.kept_results import KeptResults
from dledger.machine.state_machine import RefusedAnswer
from dledger.machine.waiting import MachineWaits, unknown
from dledger.machine.writing import SnapshotWriter
from dledger.node.host import MachineHost
from dledger.node.node import Node
from dledger.node.reporting.status import MachineStatus
from dledger.values.errors import DLedgerError
from protocols.wire.codes import ResponseCode
from protocols.wire.ledger.machines import ReportedMachine, SnapshotRequest


class AnsweringMachine:
    """
    See L{dledger.node.requests.machine_requests.HostedMachine}.
    L{MachineRunner<dledger.machine.runner.MachineRunner>} sets what is declared here.

    Implements L{dledger.node.requests.machine_requests.HostedMachine}.

    @ivar state, reason: as of L{MachineStatus}.
    @ivar applied_index: last entry in the state.
    @ivar machine: the present one. C{calls}: makes the calls of it, and measures them.
    @ivar in_doubt: why its state may be wrong; empty if it is not. Then no snapshot is finished or sent.
    @ivar digests: index to the digest of the state after it, of the last snapshots.
    @ivar is_applying: whether it works on a batch: its state is ahead of C{applied_index}.
    """

    state: str
    reason: str
    applied_index: int
    _applied: int
    _failed_at: FailedEntry
    _waits_for: str
    machine: GuardedMachine
    is_applying: bool
    in_doubt: str
    digests: dict[int, str]
    _kept: KeptResults
    _entries: Node
    _host: MachineHost
    _snapshots: SnapshotDirectory | None
    _offers: SnapshotOffers | None
    _writer: SnapshotWriter | None
    _fetch: SnapshotFetch | None
    _waits: MachineWaits
    calls: MachineCalls
    _in_thread: Deferred[None] | None

    @property
    def failed_index(self) -> int:
        """The entry at which it has failed, so that an order to skip it is waited for; -1: it has not."""
        return self._failed_at.index if self.state == "failed" else -1

    async def note_skip(self, index: int, term: int) -> None:
        """Keep a state without an entry that is about to be skipped. @raise OSError: that cannot be noted."""
        if self._snapshots is not None:
            await self._host.run_in_thread(partial(self._snapshots.note_skip, index, term))

    @property
    def needed_index(self) -> int:
        """
        See L{dledger.node.requests.machine_requests.HostedMachine.needed_index}: that of the oldest snapshot.
        """
        if self._snapshots is None or self._waits_for:
            return -1  # (With a snapshot that is ahead of the log, all of it may be needed.)
        # (With the last entry itself, so that the snapshot can be compared with the log.)
        return max(self._snapshots.needed_index - 1, -1)

    @property
    def gives_snapshots(self) -> bool:
        return self._snapshots is not None

    @property
    def proven_index(self) -> int:
        return -1 if self._snapshots is None else self._snapshots.proven_index

    def ask_snapshot(self) -> str:
        if self.state != "running" or self.in_doubt:
            return self.in_doubt or f"the state machine is {self.state}"
        if self._writer is None or self._in_thread is not None:
            return "a snapshot is being written" if self._writer else "this member keeps no snapshots"
        problem = self._writer.ask(self.applied_index)
        if not (problem or self.is_applying):  # else it is taken after the batch
            self._take_snapshot_if_due()
        return problem

    def _take_snapshot_if_due(self) -> None:
        raise NotImplementedError

    def piece_for(self, request: SnapshotRequest, max_bytes: int) -> SnapshotPiece:
        if self.in_doubt:
            raise DLedgerError(ResponseCode.UNSUPPORTED, reason=self.in_doubt)
        if self._offers is None:
            raise DLedgerError(ResponseCode.UNSUPPORTED, reason="this member keeps no snapshots")
        return self._offers.piece_for(request, max_bytes)

    @property
    def refusal(self) -> DLedgerError | None:
        if self.state == "running":
            return None
        if self.state in ("starting", "installing"):
            reason = self._waits_for or "the state machine takes up its snapshot"
            if self.state == "installing":
                reason = "the state machine waits for a snapshot of another member"
            return DLedgerError(ResponseCode.LEADER_NOT_READY, reason=reason)
        return DLedgerError(
            ResponseCode.MACHINE_STOPPED, reason=f"the state machine has {self.state}: {self.reason}"
        )

    def result_of(self, index: int) -> Deferred[bytes]:
        """@return: the result of an entry; fails with a code that means "unknown", if it is not kept."""
        if self.state != "running":
            return fail(unknown(f"the state machine has {self.state}"))
        return self._waits.result_of(index, self.applied_index)

    def kept_result(self, index: int) -> bytes | None:
        """The result of a numbered command whose entry is in the state; None: it is not kept."""
        return self._kept.find(index)

    def when_applied(self, index: int) -> Deferred[int]:
        """@return: fires with the applied index, which is at least C{index}."""
        refusal = self.refusal
        if refusal is not None:
            return fail(refusal)
        if index <= self.applied_index:
            return succeed(self.applied_index)
        return self._waits.when_applied(index)

    def query(self, request: bytes) -> Deferred[bytes]:
        """Ask the machine. @return: fires with its answer; fails with L{DLedgerError}: it has none."""
        machine = self.machine
        return self.calls.call("query()", lambda: machine.query(request))

    def is_refusal(self, result: bytes) -> bool:
        """Whether a result is the reason of a refusal."""
        return isinstance(result, RefusedAnswer)

    def reported(self) -> ReportedMachine:
        """What other members learn about it."""
        machine = self.machine
        return ReportedMachine(
            name=machine.name, version=machine.version, state=self.state, applied_index=self.applied_index,
            failed_index=self.failed_index, newest_only=machine.newest_only, digests=dict(self.digests),
        )

    def status(self) -> MachineStatus:
        """The current status."""
        heads, writer = [] if self._snapshots is None else self._snapshots.heads, self._writer
        return MachineStatus(
            name=self.machine.name, version=self.machine.version, state=self.state, reason=self.reason,
            applied_index=self.applied_index, failed_index=self.failed_index,
            lag=max(0, self._entries.committed_index - self.applied_index), applied=self._applied,
            snapshot_index=heads[-1].index if heads else -1,
            snapshot_size=-1 if writer is None else writer.size,
            snapshots=0 if writer is None else writer.written,
            is_writing=self._in_thread is not None and self.state == "running",
            in_doubt=self.in_doubt, busy_with=self.calls.busy_with, busy_s=self.calls.busy_s,
            snapshot_problem="" if writer is None else writer.problem,
            installing=self._waits_for if self._fetch is None else self._fetch.progress,
            rounds_in_vain=0 if self._fetch is None else self._fetch.rounds_in_vain,
            refused=() if self._snapshots is None else tuple(self._snapshots.refused),
        )
