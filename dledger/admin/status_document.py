# -*- test-case-name: tests.admin.test_status_document -*-
"""
The names of C{/status}: the document is flat, whatever parts the status of a node has.

Programs of operators read these names. A part of the status that moves keeps its name here.
"""

from __future__ import annotations

import typing

import attrs

from dledger.node.reporting.status import NodeStatus

#: Name in the document, in its order, and the way to the value in L{NodeStatus}.
FACTS: tuple[tuple[str, str], ...] = (
    ("member", "member"),
    ("listen", "listen"),
    ("admin", "admin"),
    ("store_path", "store.path"),
    ("state", "state"),
    ("reason", "reason"),
    ("uptime_s", "uptime_s"),
    ("why_state_unknown", "why_state_unknown"),
    ("connections", "connections.incoming"),
    ("connections_refused", "connections.refused"),
    ("connections_replaced", "connections.replaced"),
    ("answers_held_bytes", "connections.answers_held_bytes"),
    ("unfinished_frame_bytes", "connections.unfinished_frame_bytes"),
    ("peers_connected", "peers.connected"),
    ("peer_addresses", "peers.addresses"),
    ("requests", "counts.requests"),
    ("requests_abandoned", "counts.requests_abandoned"),
    ("appends", "counts.appends"),
    ("append_bytes", "counts.append_bytes"),
    ("gets", "counts.gets"),
    ("pulls", "counts.pulls"),
    ("pulled_bytes", "counts.pulled_bytes"),
    ("refusals", "counts.refusals"),
    ("reports", "counts.reports"),
    ("votes", "counts.votes"),
    ("fsync", "counts.fsync"),
    ("fsync_failures", "counts.fsync_failures"),
    ("unsynced_bytes", "store.unsynced_bytes"),
    ("stalls", "counts.stalls"),
    ("stall_s", "counts.stall_s"),
    ("wire_errors", "connections.wire_errors"),
    ("body_errors", "connections.body_errors"),
    ("pull_waiters", "pull_waiters"),
    ("leader_changes", "counts.roles.leader_changes"),
    ("segments_deleted", "counts.segments_deleted"),
    ("disk_free_bytes", "store.free_bytes"),
    ("disk_total_bytes", "store.total_bytes"),
    ("is_disk_full", "store.is_full"),
    ("healthy_lag_entries", "healthy_lag_entries"),
    ("begin_moved", "store.begin_moved"),
    ("set_aside_files", "store.set_aside_files"),
    ("set_aside_bytes", "store.set_aside_bytes"),
    ("scrubbed_bytes", "counts.scrubbed_bytes"),
    ("scrub_passes", "counts.scrub_passes"),
    ("tls_expires_s", "tls_expires_s"),
    ("machine", "machine"),
    ("readers", "readers"),
    ("reader_count", "reader_count"),
    ("elections", "counts.roles.elections"),
    ("append_s", "counts.append_s"),
    ("batches", "counts.batches"),
    ("peer_lag_bytes", "peers.lag_bytes"),
)


def status_document(status: NodeStatus) -> dict[str, object]:
    """The facts of a status by their names in the document, as plain values."""
    whole = attrs.asdict(status, recurse=True)
    return {name: _value(whole, way) for name, way in FACTS}


def _value(whole: object, way: str) -> object:
    for step in way.split("."):
        assert isinstance(whole, dict)
        whole = whole[step]
    return whole


def status_kinds() -> dict[str, object]:
    """The annotation of each fact by its name in the document."""
    return {name: _kind(NodeStatus, way) for name, way in FACTS}


def _kind(kind: object, way: str) -> object:
    for step in way.split("."):
        assert isinstance(kind, type)
        kind = typing.get_type_hints(kind)[step]
    return kind
