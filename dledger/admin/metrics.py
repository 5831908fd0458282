# -*- test-case-name: tests.admin.test_metrics -*-
"""
A node's metrics for Prometheus, read on request from one frozen status; this module keeps no state.

Names: one prefix, base units, C{_total} for counters. Every series carries C{group} and C{self_id}, and
C{remote_id} if it is about another member. Only those of the process, C{process_*}, carry no labels: several
members may share one.
"""

from __future__ import annotations

import platform
from collections.abc import Callable, Iterator, Mapping

from prometheus_client import CollectorRegistry, ProcessCollector, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

import dledger
from dledger.base.histogram import Histogram
from dledger.node.reporting.health import health_problem
from dledger.node.reporting.status import MachineStatus, NodeStatus

_PREFIX = "dledger_"
PEER_STATES = ("compare", "truncate", "append", "unknown")

_Number = Callable[[NodeStatus], float]
#: Returns the status of a member.
MemberStatusSource = Callable[[], NodeStatus]


def _damaged_entries(status: NodeStatus) -> float:
    return sum(hole.count for hole in status.member.holes)


#: Name, help, and the function that reads the number.
GAUGES: tuple[tuple[str, str, _Number], ...] = (
    ("has_leader", "1 if this member knows a leader.", lambda s: s.member.leader_id is not None),
    ("is_leader", "1 if this member leads.", lambda s: s.member.role == "leader"),
    ("is_diverged", "1 while it refuses what its leader pushes.", lambda s: s.member.is_diverged),
    ("is_repairing", "1 while entries lost to damage are missing.", lambda s: s.member.is_repairing),
    ("is_healthy", "1 while this member serves.", lambda s: health_problem(s) is None),
    ("is_unsure", "1 while entries that it acknowledged may be missing.", lambda s: s.member.is_unsure),
    ("commit_lag_entries", "Entries whose commit only the leader knows.", lambda s: s.member.commit_lag),
    ("damaged_entries", "Damaged entries between sound ones, not fetched from a peer yet.", _damaged_entries),
    ("is_disk_full", "1 while appends are refused as the disk is full.", lambda s: s.store.is_full),
    ("is_group_state_unknown", "1 while it knows neither producers nor readers.",
     lambda s: bool(s.why_state_unknown)),
    ("times_ahead_seconds", "Of a leader: times of entries ahead of the clocks of a majority; else -1.",
     lambda s: s.times_ahead_ms / 1000 if s.times_ahead_ms >= 0 else -1),
    ("term", "Raft term.", lambda s: s.member.term),
    ("begin_index", "First index present; -1 when empty.", lambda s: s.member.ledger_begin_index),
    ("end_index", "Last index present; -1 when empty.", lambda s: s.member.ledger_end_index),
    ("committed_index", "Last index known to be committed.", lambda s: s.member.committed_index),
    ("applied_index", "Last index that readers can see.", lambda s: s.member.committed_index),
    ("flushed_index", "Last index on stable storage.", lambda s: s.member.flushed_index),
    ("pending_appends", "Appends without an outcome.", lambda s: s.member.pending_appends),
    ("pending_reads", "Reads that wait for the read index.", lambda s: s.member.pending_reads),
    ("pull_waiters", "Long polls that wait for entries.", lambda s: s.pull_waiters),
    ("connections", "Incoming connections.", lambda s: s.connections.incoming),
    ("answers_held_bytes", "Bytes of answers that are not read yet.",
     lambda s: s.connections.answers_held_bytes),
    ("unfinished_frame_bytes", "Bytes of unfinished frames.", lambda s: s.connections.unfinished_frame_bytes),
    ("unsynced_bytes", "Written bytes not known to be on stable storage.", lambda s: s.store.unsynced_bytes),
    ("disk_free_bytes", "Free bytes of the store's file system.", lambda s: s.store.free_bytes),
    ("disk_total_bytes", "Size of the store's file system.", lambda s: s.store.total_bytes),
    ("set_aside_files", "Files of cut data kept beside the ledger.", lambda s: s.store.set_aside_files),
    ("set_aside_bytes", "Bytes of cut data kept beside the ledger.", lambda s: s.store.set_aside_bytes),
    ("tls_certificate_end_seconds", "End of the TLS certificate since 1970; -1 without.",
     lambda s: s.tls_expires_s),
    ("uptime_seconds", "Seconds since the node started.", lambda s: s.uptime_s),
)


def _events(*names: str) -> _Number:
    return lambda status: sum(status.counts.reports.get(name, 0) for name in names)


COUNTERS: tuple[tuple[str, str, _Number], ...] = (
    ("leader_changes_total", "Changes of the leader seen here.", lambda s: s.counts.roles.leader_changes),
    ("appends_total", "Entries committed for callers of this member.", lambda s: s.counts.appends),
    ("append_bytes_total", "Bytes of bodies of these entries.", lambda s: s.counts.append_bytes),
    ("gets_total", "GET requests answered with an entry.", lambda s: s.counts.gets),
    ("pulls_total", "PULL requests answered.", lambda s: s.counts.pulls),
    ("pulled_bytes_total", "Bytes of records sent for PULL.", lambda s: s.counts.pulled_bytes),
    ("requests_total", "Requests received.", lambda s: s.counts.requests),
    ("requests_abandoned_total", "Requests dropped with their connection.",
     lambda s: s.counts.requests_abandoned),
    ("fsync_failures_total", "Failed fsyncs; the member stops at the first.",
     lambda s: s.counts.fsync_failures),
    ("repairs_total", "Finished repairs of a damaged log.", _events("repaired", "entries-mended")),
    ("push_retries_total", "Times that a peer was asked again what it holds.", _events("push-set-back")),
    ("truncations_total", "Truncations of the log by a leader.", _events("truncating")),
    ("retention_deleted_segments_total", "Segments deleted by age or size.",
     lambda s: s.counts.segments_deleted),
    ("wire_errors_total", "Connections ended because of malformed bytes.",
     lambda s: s.connections.wire_errors),
    ("body_errors_total", "Requests refused because of their body.", lambda s: s.connections.body_errors),
    ("connections_refused_total", "Connections refused.", lambda s: s.connections.refused),
    ("connections_replaced_total", "Connections ended for newer ones.", lambda s: s.connections.replaced),
    ("scrubbed_bytes_total", "Bytes of closed segments that were checked again.",
     lambda s: s.counts.scrubbed_bytes),
    ("scrub_passes_total", "Passes of that check over all closed segments.", lambda s: s.counts.scrub_passes),
    ("reactor_stalls_total", "Ticks that the reactor missed.", lambda s: s.counts.stalls),
    ("reactor_stall_seconds_total", "Total time of reactor stalls.", lambda s: s.counts.stall_s),
)

#: Name, help, name of the label, and the function that reads the table of numbers.
TABLES: tuple[tuple[str, str, str, Callable[[NodeStatus], Mapping[str, int]]], ...] = (
    ("refusals_total", "Requests answered with this code.", "code", lambda s: s.counts.refusals),
    ("events_total", "Events that the core reported.", "event", lambda s: s.counts.reports),
    ("votes_total", "Vote requests answered with this result.", "result", lambda s: s.counts.votes),
    ("elections_total", "Candidacies of this member by their result.", "result",
     lambda s: s.counts.roles.elections),
)


#: Name, help, and the function that reads the numbers.
HISTOGRAMS: tuple[tuple[str, str, Callable[[NodeStatus], Histogram]], ...] = (
    ("fsync_duration_seconds", "Successful fsyncs.", lambda s: s.counts.fsync),
    ("append_duration_seconds", "From a proposal of appends to its commit.", lambda s: s.counts.append_s),
    ("append_batch_entries", "Entries proposed at once.", lambda s: s.counts.batches),
)


class NodeCollector(Collector):
    """
    Makes the metrics of one node.

    @param status: returns the node's current status.
    """

    def __init__(self, status: MemberStatusSource) -> None:
        self._status = status

    def collect(self) -> Iterator[Metric]:
        """Every metric family, from one status."""
        status = self._status()
        names = ("group", "self_id")
        who = (status.member.group, status.member.self_id)
        for name, text, number in GAUGES:
            gauge = GaugeMetricFamily(_PREFIX + name, text, labels=names)
            gauge.add_metric(who, float(number(status)))
            yield gauge
        for name, text, number in COUNTERS:
            counter = CounterMetricFamily(_PREFIX + name, text, labels=names)
            counter.add_metric(who, float(number(status)))
            yield counter
        for name, text, label, table in TABLES:
            counter = CounterMetricFamily(_PREFIX + name, text, labels=(*names, label))
            for value, number_of in sorted(table(status).items()):
                counter.add_metric((*who, value), float(number_of))
            yield counter
        yield _info_gauge("build_info", "1.", names, who)
        for name, text, histogram in HISTOGRAMS:
            yield histogram_family(_PREFIX + name, text, names, who, histogram(status))
        yield from _peers(status, names, who)
        yield from _readers(status, (*names, "reader"), who)
        if status.machine is not None:
            yield from _machine(status.machine, (*names, "machine"), (*who, status.machine.name))


def _info_gauge(name: str, text: str, names: tuple[str, ...], who: tuple[str, ...]) -> Metric:
    family = GaugeMetricFamily(_PREFIX + name, text, labels=(*names, "version", "python"))
    family.add_metric((*who, dledger.__version__, platform.python_version()), 1.0)
    return family


def histogram_family(
    name: str, text: str, names: tuple[str, ...], who: tuple[str, ...], status: Histogram
) -> Metric:
    """
    A histogram with one row.

    @param names, who: its labels.
    """
    family = HistogramMetricFamily(name, text, labels=names)
    buckets: list[tuple[str, float]] = []
    total = 0
    for bound, count in zip((*status.bounds, float("inf")), status.counts, strict=True):
        total += count
        buckets.append(("+Inf" if bound == float("inf") else repr(bound), float(total)))
    family.add_metric(who, buckets, status.total)
    return family


def _peers(status: NodeStatus, names: tuple[str, ...], who: tuple[str, ...]) -> Iterator[Metric]:
    labels = (*names, "remote_id")

    def gauge(name: str, text: str, *more: str) -> GaugeMetricFamily:
        return GaugeMetricFamily(_PREFIX + name, text, labels=(*labels, *more))

    connected = gauge("peer_connected", "1 if there is a connection to the peer.")
    for peer_id, is_connected in sorted(status.peers.connected.items()):
        connected.add_metric((*who, peer_id), float(is_connected))
    yield connected
    if status.member.role != "leader":
        return
    match = gauge("peer_match_index", "Highest index that the peer is known to hold.")
    lag = gauge("peer_lag_entries", "Entries that the peer is behind.")
    lag_bytes = gauge("peer_lag_bytes", "Bytes of records that the peer is behind; -1 if not known.")
    inflight = gauge("peer_inflight_pushes", "Pushes without an answer.")
    heard = gauge("peer_last_heard_seconds", "Seconds since the peer was last heard; -1 for never.")
    state = gauge("peer_state", "1 for the state that the peer is in.", "state")
    for peer in status.member.peers:
        labelled = (*who, peer.peer_id)
        match.add_metric(labelled, peer.match_index)
        lag.add_metric(labelled, status.member.ledger_end_index - peer.match_index)
        lag_bytes.add_metric(labelled, status.peers.lag_bytes.get(peer.peer_id, -1))
        inflight.add_metric(labelled, peer.inflight)
        heard.add_metric(
            labelled, peer.last_heard_ms_ago / 1000 if peer.last_heard_ms_ago >= 0 else -1
        )
        for name in PEER_STATES:
            state.add_metric((*labelled, name), float(peer.state == name))
    yield from (match, lag, lag_bytes, inflight, heard, state)


def _readers(status: NodeStatus, names: tuple[str, ...], who: tuple[str, ...]) -> Iterator[Metric]:
    def gauge(name: str, text: str) -> GaugeMetricFamily:
        return GaugeMetricFamily(_PREFIX + name, text, labels=names)

    lag = gauge("reader_lag_entries", "Entries that the reader has not done.")
    lag_bytes = gauge("reader_lag_bytes", "Bytes of the entries that the reader has not done.")
    following = gauge("reader_next_index", "Next entry of the reader.")
    leases = gauge("reader_leases", "Processes that read under its name.")
    for one in status.readers:
        lag.add_metric((*who, one.name), one.lag)
        lag_bytes.add_metric((*who, one.name), one.lag_bytes)
        following.add_metric((*who, one.name), one.next_index)
        leases.add_metric((*who, one.name), len(one.holders))
    count = GaugeMetricFamily(_PREFIX + "readers", "Named readers of the group.", labels=names[:-1])
    count.add_metric(who, status.reader_count)
    yield from (lag, lag_bytes, following, leases, count)


#: Name, help, and the function that reads the number, of a state machine.
MACHINE_GAUGES: tuple[tuple[str, str, Callable[[MachineStatus], float]], ...] = (
    ("machine_is_running", "1 while the state machine applies entries.", lambda m: m.state == "running"),
    ("machine_applied_index", "Last entry in the state.", lambda m: m.applied_index),
    ("machine_lag_entries", "Committed entries that are not in the state.", lambda m: m.lag),
    ("machine_busy_seconds", "How long the present call of the state machine lasts; 0 below 1.",
     lambda m: m.busy_s),
    ("machine_snapshot_index", "Last entry in the newest snapshot.", lambda m: m.snapshot_index),
    ("machine_snapshot_failed", "1 if the last snapshot could not be written.",
     lambda m: bool(m.snapshot_problem)),
)
MACHINE_COUNTERS: tuple[tuple[str, str, Callable[[MachineStatus], float]], ...] = (
    ("machine_applied_total", "Entries that the state machine was given.", lambda m: m.applied),
    ("machine_snapshots_total", "Snapshots that were written.", lambda m: m.snapshots),
)


def _machine(status: MachineStatus, names: tuple[str, ...], who: tuple[str, ...]) -> Iterator[Metric]:
    for name, text, number in MACHINE_GAUGES:
        gauge = GaugeMetricFamily(_PREFIX + name, text, labels=names)
        gauge.add_metric(who, float(number(status)))
        yield gauge
    for name, text, number in MACHINE_COUNTERS:
        counter = CounterMetricFamily(_PREFIX + name, text, labels=names)
        counter.add_metric(who, float(number(status)))
        yield counter


def make_registry(status: MemberStatusSource) -> CollectorRegistry:
    """A registry for this node only: one process may run several nodes."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(NodeCollector(status))
    ProcessCollector(registry=registry)
    return registry


def exposition(registry: CollectorRegistry) -> bytes:
    """The metrics in Prometheus's text format."""
    return generate_latest(registry)
