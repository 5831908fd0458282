# -*- test-case-name: tests.broker.ha.test_acks -*-
"""
Acknowledged offsets of the slaves, and their meaning for a put.

Rule 1: only live connections count. RocketMQ remembers the highest offset that any client ever sent, so
one stray client satisfies every later put.
Rule 2: if a put needs one slave, any connection counts. If it needs several, they must be distinct slaves:
of each address the newest C{slaves_per_host} connections count.
Rule 3: bytes that a slave held before this master started acknowledge no later put: see
L{dledger.rocketmq.replication.master.SlaveView}.
Rule 4: a slave whose log begins after a waiting put does not acknowledge that put. RocketMQ takes its
offset as an acknowledgement of everything below. A slave that returns with more than this master held at its
start, and than that host proved to hold since, counts as one that begins there: it may have followed another
log, which this master has lost.

Rule 5: a slave that must hold another log (L{dledger.rocketmq.replication.master}, rule 3a) acknowledges
nothing.

This module only decides. It knows nothing of time, connections or Deferreds.

Source: HAService.isSlaveOK, CommitLog.calcNeedAckNums, GroupTransferService (4.9.8, 5.3.3).
"""

from __future__ import annotations

import attrs

from dledger.rocketmq.replication.config import ANY_SLAVE, SYNC_MASTER, HAConfig
from dledger.rocketmq.replication.put_status import PutStatus
from dledger.values.quorum import held_by


@attrs.define
class _Slave:
    host: str
    ack_offset: int = -1
    claimed_offset: int = -1
    is_doubted: bool = False


class Acks:
    """
    The marks of all slaves.

    Invariant: each live connection has one mark, -1 before its first report; it never falls.
    C{_young} maps the host of each slave whose log begins above 0 to that offset, while a put may wait below.
    C{_proved} maps each host to the highest offset that it proved to hold since this master started.
    C{_held} caches results of L{held} until the next change: puts ask far more often than slaves report.

    @ivar count: number of live connections, with or without a report.
    @ivar has_young: whether L{settle} has work to do.
    @ivar claimed: the highest offset that any slave claims; 0 without slaves, -1 before the first report.
    """

    def __init__(self, *, slaves_per_host: int = 1) -> None:
        self._slaves_per_host = slaves_per_host
        self._by_serial: dict[int, _Slave] = {}
        self._young: dict[str, int] = {}
        self._held: dict[int, int] = {}
        self._proved: dict[str, int] = {}
        self.claimed = self.count = 0
        self.has_young = False

    def _changed(self) -> None:
        self._held.clear()
        claims = [slave.claimed_offset for slave in self._by_serial.values()]
        self.claimed = max(claims, default=0)
        self.count = len(claims)
        self.has_young = bool(self._young)

    def begins_at(self, serial: int, offset: int) -> None:
        """Note that an empty slave is sent the log from C{offset} on: it acknowledges no put below."""
        if offset:
            self._young[self._by_serial[serial].host] = offset
            self._changed()

    def returns_at(self, serial: int, offset: int, *, vouched_offset: int) -> None:
        """
        Note the first report of a slave that is not empty.

        @param vouched_offset: end of our log when this process started.
        """
        if offset > max(vouched_offset, self.proved(serial)):
            self.begins_at(serial, offset)

    def proved(self, serial: int) -> int:
        """The highest offset that the host of a slave has proved to hold since this master started."""
        return self._proved.get(self._by_serial[serial].host, 0)

    def doubt(self, serial: int) -> None:
        """A slave holds another log."""
        self._by_serial[serial].is_doubted = True
        self._changed()

    def settle(self, lowest: int) -> None:
        """Count slaves that begin below C{lowest} in full: no put waits for an offset below it."""
        self._young = {host: offset for host, offset in self._young.items() if offset >= lowest}
        self._changed()

    def __len__(self) -> int:
        """The same as C{count}, which costs less."""
        return self.count

    def add(self, serial: int, host: str) -> None:
        """Add a new connection. @param serial: its number, which rises with each connection."""
        self._by_serial[serial] = _Slave(host)
        self._changed()

    def remove(self, serial: int) -> None:
        """Remove an ended connection."""
        self._by_serial.pop(serial, None)
        self._changed()

    def record(self, serial: int, ack_offset: int, claimed_offset: int = -1) -> bool:
        """
        Record a slave's report.

        @param ack_offset: offset that the slave has proved to hold; it acknowledges puts.
        @param claimed_offset: offset that the slave claims, if higher; it decides whether it is in sync.
        @return: whether its mark rose; the mark never falls.
        """
        slave = self._by_serial[serial]
        claimed_offset = max(claimed_offset, ack_offset)
        if claimed_offset > slave.claimed_offset:
            slave.claimed_offset = claimed_offset
            if claimed_offset > self.claimed:
                self.claimed = claimed_offset
        rose = ack_offset > slave.ack_offset
        if rose:
            slave.ack_offset = ack_offset
            if slave.host not in self._young and not slave.is_doubted:
                self._proved[slave.host] = max(self._proved.get(slave.host, 0), ack_offset)
        self._held.clear()
        return rose

    def _counts_for_nothing(self, slave: _Slave) -> bool:
        return slave.is_doubted or slave.host in self._young

    def _distinct(self, *, claimed: bool = False) -> list[_Slave]:
        counted: dict[str, int] = {}
        found = []
        for _, slave in sorted(self._by_serial.items(), reverse=True):
            if slave.claimed_offset < 0:
                continue  # a connection without a report, such as a port probe, is not a slave
            if not claimed and self._counts_for_nothing(slave):
                continue
            count = counted.get(slave.host, 0)
            if count < self._slaves_per_host:
                counted[slave.host] = count + 1
                found.append(slave)
        return found

    def marks(self) -> list[int]:
        """The mark of each distinct slave."""
        return [slave.ack_offset for slave in self._distinct()]

    def held(self, needed: int) -> int:
        """The highest offset that C{needed} slaves have reached; -1 if there are fewer slaves."""
        found = self._held.get(needed)
        if found is None:
            found = self._held[needed] = self._count_held(needed)
        return found

    def _count_held(self, needed: int) -> int:
        if needed == 1:
            best = -1
            for slave in self._by_serial.values():
                if slave.ack_offset > best and not self._counts_for_nothing(slave):
                    best = slave.ack_offset
            return best
        marks = self.marks()
        return held_by(marks, needed) if len(marks) >= needed else -1

    def in_sync(self, end_offset: int, gap: int) -> int:
        """Number of distinct slaves that lack less than C{gap} bytes."""
        return sum(end_offset - slave.claimed_offset < gap for slave in self._distinct(claimed=True))


def may_refuse(config: HAConfig) -> bool:
    """Whether there can be a L{refusal}: so it need not be asked about each put."""
    return config.waits_for_slaves and config.sync_rule != ANY_SLAVE and config.min_in_sync_replicas > 1


def refusal(config: HAConfig, acks: Acks, end_offset: int) -> PutStatus | None:
    """The reason why a put must not be stored for lack of slaves; None if it may be stored."""
    if not may_refuse(config):
        return None
    if 1 + acks.in_sync(end_offset, config.ha_max_gap_not_in_sync) < config.min_in_sync_replicas:
        return PutStatus.IN_SYNC_REPLICAS_NOT_ENOUGH
    return None


def needed_for(config: HAConfig, acks: Acks, end_offset: int) -> int | PutStatus:
    """
    The number of slaves that a put has to wait for, or its immediate result.

    @param end_offset: log offset after the put's message.
    """
    if config.broker_role != SYNC_MASTER:
        return PutStatus.PUT_OK
    gap = config.ha_max_gap_not_in_sync
    if config.sync_rule == ANY_SLAVE:
        # A put also waits for a slave without a report yet, as in RocketMQ.
        claimed = acks.claimed if acks.claimed > 0 else 0
        is_usable = acks.count > 0 and end_offset - claimed < gap
        return 1 if is_usable else PutStatus.SLAVE_NOT_AVAILABLE
    replicas = config.in_sync_replicas
    if config.enable_auto_in_sync_replicas:
        replicas = max(min(replicas, 1 + acks.in_sync(end_offset, gap)), config.min_in_sync_replicas)
    return replicas - 1 if replicas > 1 else PutStatus.PUT_OK
