# -*- test-case-name: tests.broker.test_describing,tests.admin.test_broker -*-
"""The state of a broker at one moment, for its pages."""

from __future__ import annotations

from collections.abc import Mapping

import attrs


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
