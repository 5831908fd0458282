# -*- test-case-name: tests.node.test_status -*-
"""
The status of a running node, and its counters.

Counters only rise; a reader computes rates from differences. L{NodeStatus} is a snapshot.
"""

from __future__ import annotations

from collections.abc import Mapping
from copy import deepcopy
from typing import Self

import attrs

from dledger.base.histogram import Histogram
from dledger.core.status import MemberStatus
from dledger.storage.store.file_store import FileStore
from dledger.values.errors import DLedgerError
from protocols.wire.ledger.readers import ReaderInfo

#: Upper bounds of the buckets for the number of entries that are proposed at once.
BATCH_BUCKETS = (1.0, 4.0, 16.0, 64.0, 256.0, 1024.0, 4096.0, 16384.0)


@attrs.define
class RoleCounters:
    """
    The counts of role changes since the node started.

    @ivar leader_changes: how often this member learned of a leader other than the last one.
    @ivar elections: result to number of candidacies of this member: C{won}, C{lost} to another member, or
        C{undecided}, no majority in time.
    """

    leader_changes: int = 0
    elections: dict[str, int] = attrs.Factory(dict)
    _role: object = None
    _leader_id: object = None

    def note(self, role: object, leader_id: object) -> None:
        """Count a change of the role, the term or the leader."""
        if leader_id is not None and leader_id != self._leader_id:
            self._leader_id = leader_id
            self.leader_changes += 1
        if self._role == "candidate":
            count(self.elections, {"leader": "won", "follower": "lost"}.get(str(role), "undecided"))
        self._role = role


@attrs.define
class Counters:
    """
    The counts of a node since it started. Each has one line here, by which it is also in C{/status}.

    @ivar client_requests: those of C{requests} that came from connections of clients.
    @ivar appends, append_bytes: committed entries, and bytes of their bodies, of this node's callers.
    @ivar refusals: response code name to number of answers with it, except successes.
    @ivar reports: event name of the core to number of reports.
    @ivar votes: vote result name to number of this member's answers with it.
    @ivar fsync: durations of successful fsyncs, seconds.
    @ivar append_s: seconds from a proposal to the commit of its entries; one observation for each proposal.
    @ivar batches: number of entries that were proposed at once.
    @ivar scrubbed_bytes, scrub_passes: bytes of closed segments that were checked again, and passes over all.
    @ivar stalls, stall_s: ticks that the reactor missed, and their total duration in seconds.
    """

    requests: int = 0
    client_requests: int = 0
    appends: int = 0
    append_bytes: int = 0
    gets: int = 0
    pulls: int = 0
    pulled_bytes: int = 0
    fsync_failures: int = 0
    stalls: int = 0
    stall_s: float = 0.0
    scrubbed_bytes: int = 0
    scrub_passes: int = 0
    requests_abandoned: int = 0
    segments_deleted: int = 0
    refusals: dict[str, int] = attrs.Factory(dict)
    reports: dict[str, int] = attrs.Factory(dict)
    votes: dict[str, int] = attrs.Factory(dict)
    fsync: Histogram = attrs.Factory(Histogram)
    append_s: Histogram = attrs.Factory(Histogram)
    batches: Histogram = attrs.Factory(lambda: Histogram(bounds=BATCH_BUCKETS))
    roles: RoleCounters = attrs.Factory(RoleCounters)

    def stalled(self, ticks: int, tick_ms: int) -> float:
        """Count ticks that the reactor has missed. @return: seconds that they make."""
        stall_s = ticks * tick_ms / 1000
        self.stalls += ticks
        self.stall_s += stall_s
        return stall_s

    def status(self) -> Self:
        """A copy, which goes on counting nothing."""
        return deepcopy(self)


def count(table: dict[str, int], name: str, by: int = 1) -> None:
    """Add C{by} to the counter C{name}."""
    table[name] = table.get(name, 0) + by


@attrs.frozen(kw_only=True)
class MachineStatus:
    """
    The status of the state machine of a member. Indexes are inclusive, -1 for none.

    @ivar name, version: of the machine.
    @ivar state: C{starting} (it takes up a snapshot), C{running}, C{installing} (it waits for a snapshot of
        another member), C{failed} or C{stopped}.
    @ivar reason: why it failed; empty if it has not.
    @ivar applied_index: last entry in its state.
    @ivar lag: committed entries that are not in its state.
    @ivar applied: entries that it was given since the start.
    @ivar snapshot_index: last entry in its newest snapshot.
    @ivar snapshot_size: bytes of that one; -1 if it was not written since the start.
    @ivar snapshots: number of snapshots written since the start.
    @ivar is_writing: whether a snapshot is being written.
    @ivar snapshot_problem: why the last snapshot could not be written; empty if it was.
    @ivar refused: sentences about snapshots that were not used.
    @ivar installing: how far a snapshot of another member has come; empty if none is waited for.
    @ivar rounds_in_vain: how many times all other members were asked for one, and none has sent it.
    @ivar busy_with, busy_s: the call that lasts for a second or more, with its entry, and how long it has.
    @ivar in_doubt: why its state may be wrong; empty if not.
    @ivar differs: what other members run instead of this machine; empty if nothing else.
    @ivar failed_index: the entry at which it failed; -1: it did not, or not at an entry.
    @ivar log_kept: why the log after the snapshots stays although C{machine_keep_entries} lets it go.
    """

    name: str
    version: int
    state: str
    reason: str
    applied_index: int
    lag: int
    applied: int
    snapshot_index: int
    snapshot_size: int
    snapshots: int
    is_writing: bool
    snapshot_problem: str
    refused: tuple[str, ...]
    installing: str = ""
    rounds_in_vain: int = 0
    failed_index: int = -1
    differs: str = ""
    in_doubt: str = ""
    busy_with: str = ""
    busy_s: float = 0.0
    log_kept: str = ""


@attrs.frozen(kw_only=True)
class ConnectionsStatus:
    """
    The connections of a node, from peers and clients. Defaults: it does not listen yet.

    @ivar incoming: number of those that are open.
    @ivar refused: connections refused at the bound.
    @ivar replaced: connections ended for newer ones.
    @ivar answers_held_bytes: bytes of answers to GET and PULL that were made and not read yet.
    @ivar unfinished_frame_bytes: bytes of frames whose end has not come.
    @ivar wire_errors: connections aborted because the peer broke the format, to peers, too.
    @ivar body_errors: requests refused because of a malformed body.
    """

    incoming: int = 0
    refused: int = 0
    replaced: int = 0
    answers_held_bytes: int = 0
    unfinished_frame_bytes: int = 0
    wire_errors: int = 0
    body_errors: int = 0


@attrs.frozen(kw_only=True)
class PeersStatus:
    """
    @ivar connected: peer id to whether this member has a connection to it.
    @ivar addresses: member id to C{host:port}, this member included.
    @ivar lag_bytes: of a leader, peer id to bytes of records that the peer lacks; -1 if not known.
    """

    connected: Mapping[str, bool]
    addresses: Mapping[str, str]
    lag_bytes: Mapping[str, int]


@attrs.frozen(kw_only=True)
class StoreStatus:
    """
    @ivar path: directory of the files; empty for a memory store.
    @ivar unsynced_bytes: bytes written but not known to be on stable storage.
    @ivar free_bytes, total_bytes: bytes of the store's file system; -1 if not known.
    @ivar is_full: whether appends are refused because the disk is full.
    @ivar set_aside_files, set_aside_bytes: files of cut data that were kept beside the ledger.
    @ivar begin_moved: which segment retention deleted last, and why; empty if none since the start.
    """

    path: str
    unsynced_bytes: int
    free_bytes: int = -1
    total_bytes: int = -1
    is_full: bool = False
    set_aside_files: int = 0
    set_aside_bytes: int = 0
    begin_moved: str = ""


@attrs.frozen(kw_only=True)
class NodeStatus:
    """
    The status of one node at one moment.

    @ivar member: the core's status.
    @ivar listen: its listening address, for people; empty before it listens.
    @ivar admin: listening address of its HTTP administration; empty without one.
    @ivar state: C{starting}, C{running}, C{stopping}, C{stopped} or C{failed}.
    @ivar reason: why it stopped or failed.
    @ivar uptime_s: seconds since it started.
    @ivar pull_waiters: PULLs and local callers that wait for entries.
    @ivar healthy_lag_entries: the option of that name.
    @ivar tls_expires_s: end of the TLS certificate, seconds since 1970; -1 without TLS.
    @ivar machine: of its state machine; None without one.
    @ivar readers: the named readers that it knows, or those of them that are furthest behind.
    @ivar reader_count: number of those that it knows.
    @ivar times_ahead_ms: of a leader: how far the last time of the log is ahead of the clocks of a majority;
        -1: not known.
    @ivar why_state_unknown: why it does not know the state of the group, and how far it is with getting it;
        empty if it knows it.
    """

    member: MemberStatus
    listen: str
    admin: str
    state: str
    reason: str
    uptime_s: float
    counts: Counters
    connections: ConnectionsStatus
    peers: PeersStatus
    store: StoreStatus
    pull_waiters: int
    healthy_lag_entries: int = 0
    tls_expires_s: float = -1.0
    machine: MachineStatus | None = None
    readers: tuple[ReaderInfo, ...] = ()
    reader_count: int = 0
    why_state_unknown: str = ""
    times_ahead_ms: int = -1


def bytes_behind(ledger: FileStore, index: int, *, unknown: int = 0) -> int:
    """Bytes of the records that it has after C{index}; C{unknown} if they cannot be known."""
    try:
        if index >= ledger.ledger_end_index:
            return 0
        return ledger.end_position - ledger.position_of(max(index + 1, ledger.ledger_begin_index, 0))
    except DLedgerError:
        return unknown
