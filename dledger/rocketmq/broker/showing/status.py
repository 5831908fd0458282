# -*- test-case-name: tests.broker.test_describing,tests.broker.test_measuring,tests.admin.test_broker -*-
"""The state of a broker at one moment, and its further figures, for its pages."""

from __future__ import annotations

from collections.abc import Mapping

import attrs

from dledger.base.histogram import Histogram


@attrs.frozen(kw_only=True)
class SlaveLag:
    """
    One slave of a master.

    @ivar address: C{host:port} of its end of the connection.
    @ivar gap_bytes: bytes of the log that it has not reported as held.
    """

    address: str
    gap_bytes: int
    is_in_sync: bool


@attrs.frozen(kw_only=True)
class ConsumerLag:
    """
    A consumer group in one topic.

    @ivar messages: stored, and not committed as consumed.
    """

    group: str
    topic: str
    queues: int
    messages: int


@attrs.frozen(kw_only=True)
class BrokerStatus:
    """
    @ivar problem: the reason why it does not serve; empty if it serves.
    @ivar role: C{SYNC_MASTER}, C{ASYNC_MASTER} or C{SLAVE}.
    @ivar log: C{commit log}, or C{raft log}.
    @ivar begin_offset, end_offset, flushed_offset: of its log, in bytes; -1 before the store is open.
    @ivar undispatched_bytes: of messages that are in no consume queue yet.
    @ivar stored, delivered: messages that were put, and that consumers were given, since the start.
    @ivar pulls_empty: pulls that found no message.
    @ivar waiting_puts, waiting_pulls: requests that wait for slaves or the disk, and for messages.
    @ivar bad_records: damaged messages that were seen since the start.
    @ivar refusals: C{request code:code of the answer} to number of requests.
    @ivar slaves: of a master of RocketMQ's kind of replication.
    @ivar master: of a slave, its master's address; empty without one.
    @ivar replication_problem: why a slave is not in order; empty if it is.
    @ivar name_servers: their addresses.
    @ivar lags: of consumer groups, the largest first.
    @ivar are_lags_whole: whether all queues were counted.
    """

    name: str
    cluster: str
    broker_id: int
    role: str
    log: str
    address: str
    problem: str
    uptime_s: float
    connections: int
    connections_refused: int
    wire_errors: int
    begin_offset: int
    end_offset: int
    flushed_offset: int
    undispatched_bytes: int
    topics: int
    groups: int
    stored: int
    delivered: int
    pulls_empty: int
    waiting_puts: int
    waiting_pulls: int
    bad_records: int
    overtaken: int
    refusals: Mapping[str, int]
    slaves: tuple[SlaveLag, ...]
    master: str
    replication_problem: str
    name_servers: tuple[str, ...]
    lags: tuple[ConsumerLag, ...]
    are_lags_whole: bool
    tls_expires_s: float


@attrs.frozen(kw_only=True)
class TopicMeasure:
    """
    @ivar stored, kept: messages that its queues have ever had, and that are still there.
    @ivar per_second: messages a second, of about the last minute.
    """

    topic: str
    stored: int
    kept: int
    per_second: float


@attrs.frozen(kw_only=True)
class GroupMeasure:
    """
    A consumer group in one topic where it has committed.

    @ivar consumed: sum of its committed offsets.
    @ivar lag: messages stored, and not committed; C{worst_lag}: in the queue where they are most.
    @ivar per_second: messages that it was sent a second, of about the last minute.
    @ivar members: consumers of the group that are connected.
    """

    group: str
    topic: str
    consumed: int
    lag: int
    worst_lag: int
    per_second: float
    members: int
    is_broadcasting: bool


@attrs.frozen(kw_only=True)
class Waiting:
    """
    Messages that are stored, and not to be consumed yet.

    @ivar delayed: by level.
    @ivar timed: those with a time of their own. Only a master knows them.
    @ivar halves: half messages that the last round of questions has not seen end.
    @ivar popped, popped_in_order: given to consumers by POP, and not acknowledged.
    """

    delayed: Mapping[int, int]
    timed: int
    halves: int
    popped: int
    popped_in_order: int


@attrs.frozen(kw_only=True)
class BrokerMeasures:
    """
    @ivar puts: seconds from a put to the result for its producers; one observation for each read of a
        connection.
    @ivar gets: seconds of each look for messages of PULL_MESSAGE.
    @ivar topics: those with the most messages; C{groups}: those with the largest lag.
    @ivar dead_letters: messages that nobody consumes any more, by group, the largest numbers.
    @ivar cut: the number of topics, groups, dead letters and queues that are left out.
    @ivar totals: counters of messages since the start, by name.
    @ivar rates: messages or pulls a second, of about the last ten seconds, by name.
    @ivar mornings: counters by name: yesterday at midnight, today at midnight, and now.
    @ivar disk_free_bytes, disk_total_bytes: of the file system with the log; -1: not known.
    @ivar boot_ms: when it started, since 1970.
    """

    puts: Histogram
    gets: Histogram
    topics: tuple[TopicMeasure, ...]
    groups: tuple[GroupMeasure, ...]
    dead_letters: Mapping[str, int]
    cut: Mapping[str, int]
    waiting: Waiting
    totals: Mapping[str, int]
    rates: Mapping[str, float]
    mornings: Mapping[str, tuple[int, int, int]]
    disk_free_bytes: int
    disk_total_bytes: int
    role_changes: int
    boot_ms: int
