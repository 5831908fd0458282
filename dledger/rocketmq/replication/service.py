# -*- test-case-name: tests.broker.ha.test_service -*-
"""
Replication as a Twisted service: one broker in one role, and the results of its puts::

    put:  refusal() -> append to the log -> submit(end) -> PutStatus

A master sends the log to every connected slave, a slave follows one master. One LoopingCall drives
deadlines, heartbeats, house-keeping and flushes of either role.

Rule: after an error that breaks the log every waiting put fails, and further puts are refused.

Source: DefaultMessageStore, CommitLog.submitFlushRequest and submitReplicaRequest (4.9.8).
"""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable

import attrs
from twisted.application.service import Service
from twisted.internet.defer import Deferred, succeed
from twisted.internet.interfaces import (
    IListeningPort,
    IReactorTime,
    IStreamClientEndpoint,
    IStreamServerEndpoint,
)
from twisted.internet.task import LoopingCall
from twisted.logger import Logger
from twisted.python.failure import Failure

from dledger.rocketmq.replication.acks import may_refuse, needed_for, refusal
from dledger.rocketmq.replication.config import HAConfig
from dledger.rocketmq.replication.group_transfer import FlushedPuts
from dledger.rocketmq.replication.master import HAMaster, RefusedSlave, SlaveStatus
from dledger.rocketmq.replication.ports import LogPort
from dledger.rocketmq.replication.put_status import PutStatus, combined, done
from dledger.rocketmq.replication.slave import FollowerStatus, HAFollower, LogRange
from dledger.rocketmq.store.records.events import BrokerEvents
from dledger.values.hosts import end_host

#: Resolution of all times here, milliseconds.
TICK_MS = 100


@attrs.frozen(kw_only=True)
class HAStatus:
    """
    Status of one broker's replication.

    @ivar broker_role: role as in L{HAConfig}.
    @ivar begin_offset, end_offset, flushed_offset: offsets of its own log, in bytes.
    @ivar slaves: slaves of a master; empty for a slave.
    @ivar in_sync_slaves: number of distinct slaves that lack less than C{ha_max_gap_not_in_sync} bytes.
    @ivar waiting_puts: number of waits of puts for slaves and for the disk.
    @ivar follower: status of a slave; None for a master.
    @ivar refused: hosts whose slaves a master has refused lately.
    """

    broker_role: str
    begin_offset: int
    end_offset: int
    flushed_offset: int
    slaves: tuple[SlaveStatus, ...]
    in_sync_slaves: int
    waiting_puts: int
    follower: FollowerStatus | None
    refused: tuple[RefusedSlave, ...] = ()


class HAService(Service):
    """
    The replication service of one broker.

    Invariant: C{master} is None for a slave, C{slave} is None for a master.

    @ivar port: the port of a listening master; else None.
    """

    log = Logger()

    def __init__(
        self,
        config: HAConfig,
        commit_log: LogPort,
        reactor: IReactorTime,
        *,
        rng: random.Random,
        failed: Callable[[str], None],
        events: BrokerEvents,
        listen: IStreamServerEndpoint | None = None,
        master_range: Callable[[], Awaitable[LogRange] | Deferred[LogRange]] | None = None,
        act: Callable[[Callable[[], None]], None] = lambda call: call(),
    ) -> None:
        """
        @param commit_log: an open and recovered log. Only this service, and the broker between C{refusal}
            and C{submit}, append to it.
        @param reactor: reactor, which should have a monotonic clock.
        @param failed: called with the reason when the log is broken or the port cannot be opened.
        @param events: hears of acknowledgements. The owner calls C{master.appended} when the log has grown.
        @param listen: endpoint for slaves; None to accept no slaves.
        @param master_range: see L{HAFollower}.
        @param act: see L{HAMaster}.
        """
        self.config = config
        self.port: IListeningPort | None = None
        self._commit_log = commit_log
        self._reactor = reactor
        self._seconds = reactor.seconds
        self._notify_failed = failed
        self._listen = listen
        self._listening: Deferred[None] = succeed(None)
        self._ticking = LoopingCall.withCount(self._tick)
        self._ticking.clock = reactor
        self._is_broken = False
        self._flushed_ms = 0
        # (A put asks for these once or twice.)
        self._may_refuse = may_refuse(config)
        self._pending_max = config.pending_max
        self._waits_for_slaves = config.waits_for_slaves
        self._waits_for_disk = config.waits_for_disk
        self.commits = FlushedPuts(
            commit_log, pending_max=config.pending_max, failed=self._broken, flushed=self._flushed
        )
        self.master: HAMaster | None = None
        self.slave: HAFollower | None = None
        if config.is_slave:
            self.slave = HAFollower(
                config, commit_log, reactor, rng=rng, failed=self._broken, master_range=master_range
            )
        else:
            self.master = HAMaster(config, commit_log, reactor, events=events, failed=self._broken, act=act)

    # -- puts -----------------------------------------------------------------------------------

    def refusal(self) -> PutStatus | None:
        """The reason why the next put must not be stored; None if it may be stored."""
        if self.master is None or self._is_broken or not self.running:
            return PutStatus.SERVICE_NOT_AVAILABLE
        if self.master.transfers.count >= self._pending_max or self.commits.count >= self._pending_max:
            return PutStatus.OS_PAGE_CACHE_BUSY
        if self._may_refuse:
            return refusal(self.config, self.master.acks, self._commit_log.end_offset)
        return None

    def waits_for_slaves(self) -> bool:
        """Whether puts wait for slaves and at least one slave is connected."""
        return self._waits_for_slaves and self.master is not None and self.master.acks.count > 0

    def submit(self, end_offset: int, *, waits: bool = True) -> Deferred[PutStatus]:
        """
        Wait until an appended message is replicated and flushed. L{HAMaster.appended} sends it to the slaves;
        this call requests the flush.

        @param end_offset: log offset after the message.
        @param waits: False if its producer does not want to wait (property C{WAIT}).
        @return: fires with the producer's result after both have ended; never fails.
        """
        master = self.master
        assert master is not None, "a slave takes no puts"
        if self._is_broken:
            return done(PutStatus.UNKNOWN_ERROR)
        if not waits:
            return done(PutStatus.PUT_OK)
        needed = needed_for(self.config, master.acks, end_offset)
        if isinstance(needed, PutStatus):
            replicated = done(needed)
        else:
            replicated = master.transfers.wait(
                end_offset, needed=needed, deadline_ms=self._now_ms() + self.config.slave_timeout
            )
        if not self._waits_for_disk:
            return replicated
        flushed = self.commits.wait(
            end_offset, deadline_ms=self._now_ms() + self.config.sync_flush_timeout
        )
        return combined(flushed, replicated)

    # -- life -----------------------------------------------------------------------------------

    def startService(self) -> None:
        """See L{IService.startService}. Errors are reported to C{failed}."""
        super().startService()
        self._ticking.start(TICK_MS / 1000, now=False).addErrback(self._tick_failed)
        if self.slave is not None:
            self.slave.start()
        elif self._listen is not None:
            assert self.master is not None
            self._listening = self._listen.listen(self.master).addCallbacks(
                self._is_listening, self._listen_failed
            )

    def follow(self, endpoint: IStreamClientEndpoint | None, master: str) -> None:
        """Set or remove a slave's master; see L{HAFollower.follow}."""
        assert self.slave is not None, "a master follows no other broker"
        self.slave.follow(endpoint, master)

    def stopService(self) -> Deferred[None]:
        """
        See L{IService.stopService}.

        @return: fires when no flush is under way; the log may then be closed.
        """
        return Deferred.fromCoroutine(self._stop())

    async def _stop(self) -> None:
        super().stopService()
        if self._ticking.running:
            self._ticking.stop()
        await self._listening
        if self.port is not None:
            stopped = self.port.stopListening()
            if stopped is not None:
                await stopped
        if self.master is not None:
            self.master.stop()
        if self.slave is not None:
            await self.slave.stop()
        self.commits.stop()
        await self._commit_log.idle()

    def _is_listening(self, port: IListeningPort) -> None:
        self.port = port
        assert self.master is not None
        end = port.getHost()
        self.log.info("{role} listens for slaves at {host}:{port}, {rule}", role=self.config.broker_role,
                      host=end_host(end), port=getattr(end, "port", ""), rule=self.master.allowed.sentence())

    def _listen_failed(self, failure: Failure) -> None:
        self._give_up(f"cannot listen for slaves: {failure.getErrorMessage()}")

    # -- time -----------------------------------------------------------------------------------

    def _tick(self, count: int) -> None:
        if count > 5:
            self.log.warn("reactor stalled for {count} ticks of {tick_ms} ms", count=count, tick_ms=TICK_MS)
        now_ms = self._now_ms()
        self.commits.expire(now_ms)
        if self.slave is not None:
            self.slave.tick(now_ms)
        if self.master is not None:
            self.master.tick(now_ms)
            if now_ms - self._flushed_ms >= self.config.ha_flush_interval and not self._is_broken:
                self._flushed_ms = now_ms
                self.commits.flush()

    def _tick_failed(self, failure: Failure) -> None:
        self.log.failure("tick of replication failed", failure)
        self._give_up(f"tick of replication failed: {failure.getErrorMessage()}")

    def _flushed(self) -> None:
        if self.master is not None and self.config.ha_transfer_flushed_only:
            self.master.appended()

    def _broken(self, failure: Failure) -> None:
        self._give_up(f"the commit log is broken: {failure.getErrorMessage()}")

    def _give_up(self, reason: str) -> None:
        if not self._is_broken:
            self._is_broken = True
            self.log.critical("{role}: {reason}", role=self.config.broker_role, reason=reason)
            if self.master is not None:
                self.master.stop()
            self._notify_failed(reason)

    def _now_ms(self) -> int:
        return int(self._seconds() * 1000 + 0.5)

    # -- status ---------------------------------------------------------------------------------

    def status(self) -> HAStatus:
        """See L{HAStatus}."""
        log, master = self._commit_log, self.master
        gap = self.config.ha_max_gap_not_in_sync
        return HAStatus(
            broker_role=self.config.broker_role, begin_offset=log.begin_offset, end_offset=log.end_offset,
            flushed_offset=log.flushed_offset, slaves=() if master is None else master.status(),
            in_sync_slaves=0 if master is None else master.acks.in_sync(log.end_offset, gap),
            waiting_puts=(0 if master is None else len(master.transfers)) + len(self.commits),
            follower=None if self.slave is None else self.slave.status(),
            refused=() if master is None else master.refused(),
        )
