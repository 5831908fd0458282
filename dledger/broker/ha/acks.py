# -*- test-case-name: tests.broker.ha.test_acks -*-
"""
How much of the log each slave has said to hold, and what that makes of a put.

Rule 1: only living connections count. RocketMQ remembers the highest number that anybody ever sent, so
one stray client satisfies every later put.
Rule 2: where one slave is enough any connection will do. Where several are needed they must be several
slaves: of each address the newest connections count, as many as C{slaves_per_host}.
Rule 3: what a slave holds since before this master began answers for no put that came later: see
L{dledger.broker.ha.slave_view.SlaveView}.
Rule 4: nor does a slave that began behind them answer for puts that were waiting then. RocketMQ takes its
offset for everything below.

Decides, knows nothing of time, connections or Deferreds.

Source: HAService.isSlaveOK, CommitLog.calcNeedAckNums, GroupTransferService (4.9.8, 5.3.3).
"""

from __future__ import annotations

import attrs

from dledger.base.quorum import held_by
from dledger.broker.ha.config import ANY_SLAVE, HAConfig
from dledger.broker.ha.put_status import PutStatus


@attrs.define
class _Slave:
    host: str
    ack_offset: int = -1
    claimed_offset: int = -1


class Acks:
    """
    Invariant: there is one mark for each living connection, -1 before its first report; it never falls.
    C{_young} has the hosts of slaves whose logs begin above 0, and where, while a put may wait below that.
    C{_held} has answers of L{held} and C{_claimed} that of L{claimed} since something changed last: puts ask
    far more often than slaves report.
    """

    def __init__(self, *, slaves_per_host: int = 1) -> None:
        self._slaves_per_host = slaves_per_host
        self._by_serial: dict[int, _Slave] = {}
        self._young: dict[str, int] = {}
        self._held: dict[int, int] = {}
        self._claimed = 0

    def _changed(self) -> None:
        self._held.clear()
        claims = [slave.claimed_offset for slave in self._by_serial.values()]
        self._claimed = max(claims, default=0)

    @property
    def has_young(self) -> bool:
        """Whether L{settle} has something to look for."""
        return bool(self._young)

    def begins_at(self, serial: int, offset: int) -> None:
        """A slave was empty, and is sent the log from C{offset} on: it does not answer for puts below."""
        if offset:
            self._young[self._by_serial[serial].host] = offset
            self._changed()

    def settle(self, lowest: int) -> None:
        """No put waits for an offset below C{lowest}: slaves that begin below it count in full."""
        self._young = {host: offset for host, offset in self._young.items() if offset >= lowest}
        self._changed()

    def __len__(self) -> int:
        """Living connections, whether they have reported or not."""
        return len(self._by_serial)

    def add(self, serial: int, host: str) -> None:
        """A connection was made. @param serial: rises with each."""
        self._by_serial[serial] = _Slave(host)
        self._changed()

    def remove(self, serial: int) -> None:
        """It has ended."""
        self._by_serial.pop(serial, None)
        self._changed()

    def record(self, serial: int, ack_offset: int, claimed_offset: int = -1) -> bool:
        """
        @param ack_offset: what it has proved to hold: it answers for puts.
        @param claimed_offset: what it says that it holds, if that is more: it tells who is in sync.
        @return: whether its mark rose; it never falls.
        """
        slave = self._by_serial[serial]
        slave.claimed_offset = max(slave.claimed_offset, claimed_offset, ack_offset)
        rose = ack_offset > slave.ack_offset
        slave.ack_offset = max(slave.ack_offset, ack_offset)
        self._changed()
        return rose

    def _distinct(self, *, claimed: bool = False) -> list[_Slave]:
        counted: dict[str, int] = {}
        found = []
        for _, slave in sorted(self._by_serial.items(), reverse=True):
            if slave.claimed_offset < 0:
                continue  # a port that was probed is no slave
            if slave.host in self._young and not claimed:
                continue
            count = counted.get(slave.host, 0)
            if count < self._slaves_per_host:
                counted[slave.host] = count + 1
                found.append(slave)
        return found

    def marks(self) -> list[int]:
        """One mark for each distinct slave."""
        return [slave.ack_offset for slave in self._distinct()]

    def held(self, needed: int) -> int:
        """The highest offset that C{needed} slaves have reached; -1 while there are fewer."""
        found = self._held.get(needed)
        if found is None:
            found = self._held[needed] = self._count_held(needed)
        return found

    def _count_held(self, needed: int) -> int:
        if needed == 1:
            slaves = self._by_serial.values()
            return max((slave.ack_offset for slave in slaves if slave.host not in self._young), default=-1)
        marks = self.marks()
        return held_by(marks, needed) if len(marks) >= needed else -1

    def in_sync(self, end_offset: int, gap: int) -> int:
        """Distinct slaves that lack less than C{gap} bytes."""
        return sum(end_offset - slave.claimed_offset < gap for slave in self._distinct(claimed=True))

    @property
    def claimed(self) -> int:
        """The highest offset that some slave says it holds; 0 if none has said anything."""
        return self._claimed


def refusal(config: HAConfig, acks: Acks, end_offset: int) -> PutStatus | None:
    """Why a put must not even be stored, as far as slaves are concerned; None if it may."""
    if not config.waits_for_slaves or config.sync_rule == ANY_SLAVE or config.min_in_sync_replicas == 1:
        return None
    if 1 + acks.in_sync(end_offset, config.ha_max_gap_not_in_sync) < config.min_in_sync_replicas:
        return PutStatus.IN_SYNC_REPLICAS_NOT_ENOUGH
    return None


def needed_for(config: HAConfig, acks: Acks, end_offset: int) -> int | PutStatus:
    """
    How many slaves a put has to wait for, or what it is told at once.

    @param end_offset: where it ends in the log.
    """
    if not config.waits_for_slaves:
        return PutStatus.PUT_OK
    gap = config.ha_max_gap_not_in_sync
    if config.sync_rule == ANY_SLAVE:
        # A slave that has not reported yet is waited for, as RocketMQ does.
        is_usable = len(acks) > 0 and end_offset - max(acks.claimed, 0) < gap
        return 1 if is_usable else PutStatus.SLAVE_NOT_AVAILABLE
    replicas = config.in_sync_replicas
    if config.enable_auto_in_sync_replicas:
        replicas = max(min(replicas, 1 + acks.in_sync(end_offset, gap)), config.min_in_sync_replicas)
    return replicas - 1 if replicas > 1 else PutStatus.PUT_OK
