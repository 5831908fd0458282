# -*- test-case-name: tests.admin.test_resource -*-
"""Pictures of nodes that are not there."""

from __future__ import annotations

from typing import Any

from twisted.internet.defer import Deferred, succeed

from dledger.admin.sites.status_document import FACTS
from dledger.base.histogram import Histogram
from dledger.core.status import MemberStatus, PeerStatus
from dledger.node.reporting.reports import SeenEvent
from dledger.node.reporting.status import (
    BATCH_BUCKETS,
    ConnectionsStatus,
    Counters,
    MachineStatus,
    NodeStatus,
    PeersStatus,
    RoleCounters,
    StoreStatus,
)
from dledger.values.errors import StoreError
from protocols.wire.codes import ResponseCode
from protocols.wire.ledger.batches import EntryBatch
from protocols.wire.ledger.entry import EntryHeader, encode_header
from protocols.wire.ledger.machines import SkipResponse
from protocols.wire.ledger.messages import LeadershipTransferResponse
from protocols.wire.ledger.own.time_entries import TimeReset


def _peer(peer_id: str, **facts: Any) -> PeerStatus:
    values: dict[str, Any] = {
        "state": "append", "match_index": 90, "write_index": 101, "inflight": 2, "last_heard_ms_ago": 50,
        "wire_version": 1,
    }
    return PeerStatus(peer_id=peer_id, **{**values, **facts})


#: A machine that is behind, and has a snapshot.
MACHINE = MachineStatus(
    name="kv", version=2, state="running", reason="", applied_index=90, lag=9, applied=80, snapshot_index=70,
    snapshot_size=1000, snapshots=3, is_writing=False, snapshot_problem="", refused=(),
)


def picture(**facts: Any) -> NodeStatus:
    """
    A healthy leader n0 of three, with the given facts changed in either layer of the picture.
    """
    member: dict[str, Any] = {
        "self_id": "n0", "group": "g", "role": "leader", "term": 7, "voted_for": "n0", "leader_id": "n0",
        "voters": ("n0", "n1", "n2"),
        "ledger_begin_index": 5, "ledger_end_index": 100, "ledger_end_term": 7, "committed_index": 99,
        "flushed_index": 98, "leader_committed_index": 99, "repair_end_index": -1, "is_diverged": False,
        "transferee_id": None, "pending_appends": 3, "pending_reads": 1,
        "peers": (_peer("n1"), _peer("n2", state="compare", match_index=-1, last_heard_ms_ago=-1)),
    }
    fsync = Histogram()
    for seconds in (0.0001, 0.002, 0.002, 9.0):
        fsync.observe(seconds)
    node: dict[str, Any] = {
        "listen": "127.0.0.1:20911", "admin": "tcp:8080", "store_path": "data/dledger-n0",
        "state": "running", "reason": "", "uptime_s": 12.5, "connections": 4, "connections_refused": 0,
        "peers_connected": {"n1": True, "n2": False},
        "peer_addresses": {"n0": "n0.test:1", "n1": "n1.test:1", "n2": "n2.test:1"},
        "requests": 10, "requests_abandoned": 0, "appends": 50, "append_bytes": 5000, "gets": 2, "pulls": 3,
        "pulled_bytes": 300, "refusals": {"NOT_LEADER": 4}, "reports": {"role-changed": 2, "repaired": 1},
        "votes": {"ACCEPT": 1}, "fsync": fsync.status(), "fsync_failures": 0, "unsynced_bytes": 77,
        "stalls": 1, "stall_s": 0.25, "wire_errors": 1, "body_errors": 2, "pull_waiters": 0,
        "leader_changes": 2, "why_state_unknown": "", "times_ahead_ms": 2500,
        "segments_deleted": 3, "begin_moved": "",
        "disk_free_bytes": 1000, "disk_total_bytes": 4000, "is_disk_full": False,
    }
    batches = Histogram(bounds=BATCH_BUCKETS)
    batches.observe(20)
    node |= {"elections": {"won": 2, "lost": 1}, "append_s": fsync.status(), "batches": batches.status(),
             "peer_lag_bytes": {"n1": 640, "n2": -1}}
    known = {name for name, _ in FACTS}
    for name in known - set(node) - {"member", "machine", "readers"}:  # counters that came later
        node[name] = 0
    for name, value in facts.items():
        (node if name in known else member)[name] = value
    return _in_parts({**node, "member": MemberStatus(**member)})


def _in_parts(facts: dict[str, Any]) -> NodeStatus:
    """The status whose document has these facts."""
    parts: dict[str, dict[str, Any]] = {}
    for name, way in FACTS:
        if name in facts:
            part, _, last = way.rpartition(".")
            parts.setdefault(part, {})[last] = facts[name]
    roles = RoleCounters(**parts["counts.roles"])
    return NodeStatus(
        counts=Counters(roles=roles, **parts["counts"]),
        connections=ConnectionsStatus(**parts["connections"]), peers=PeersStatus(**parts["peers"]),
        store=StoreStatus(**parts["store"]), **parts[""],
    )


class FakeNode:
    """A node with a picture."""

    def __init__(self, **facts: Any) -> None:
        self.picture = picture(**facts)
        self.seen: tuple[SeenEvent, ...] = ()
        self.transfer_code = ResponseCode.SUCCESS
        self.transferees: list[str] = []
        self.skip_code = ResponseCode.SUCCESS
        self.skipped: list[int] = []
        self.snapshot_problem = ""
        self.snapshots_asked = 0
        self.with_snapshot: NodeStatus | None = None
        self.stored: dict[int, bytes] = {}
        self.channels: dict[int, int] = {}
        self.reads: list[tuple[int, int]] = []
        self.has_times = False
        self.time_resets: tuple[TimeReset, ...] = ()

    def transfer(self, transferee_id: str) -> Deferred[Any]:
        """As of a L{dledger.node.node.Node}."""
        self.transferees.append(transferee_id)
        return succeed(LeadershipTransferResponse(
            group="g", remote_id="n0", term=8, leader_id="n0", code=self.transfer_code,
        ))

    def skip(self, index: int) -> Deferred[Any]:
        """As of a L{dledger.node.node.Node}."""
        self.skipped.append(index)
        is_taken = self.skip_code is ResponseCode.SUCCESS
        return succeed(SkipResponse(
            group="g", leader_id="n0", code=self.skip_code, reason="" if is_taken else "it runs",
            index=150 if is_taken else -1,
        ))

    def ask_snapshot(self) -> str:
        """As of a L{dledger.node.node.Node}."""
        self.snapshots_asked += 1
        self.picture = self.with_snapshot or self.picture
        return self.snapshot_problem

    def status(self) -> NodeStatus:
        """As L{dledger.node.node.Node.status}."""
        return self.picture

    def events(self) -> tuple[SeenEvent, ...]:
        """As of a L{dledger.node.node.Node}."""
        return self.seen

    def read_committed(self, first_index: int, *, max_bytes: int) -> EntryBatch | None:
        """As of a L{dledger.node.node.Node}: C{stored} from the first index on, unless it is damaged."""
        if self.picture.member.holes:
            raise StoreError(f"entry {first_index} is damaged")
        self.reads.append((first_index, max_bytes))
        records = []
        size = 0
        for index, body in self.stored.items():
            if index < first_index or index > self.picture.member.committed_index:
                continue
            record = encode_header(EntryHeader(
                magic=1, size=48 + len(body), index=index, term=7, pos=index * 1000, chain_crc=1, body_crc=0,
                channel=self.channels.get(index, 0), body_length=len(body),
            )) + body
            if records and size + len(record) > max_bytes:
                break
            records.append(record)
            size += len(record)
        if not records:
            return None
        return EntryBatch(first_index=first_index, count=len(records), term=7, records=b"".join(records))
