# -*- test-case-name: tests.broker.ha.test_slave -*-
"""
A slave's side of replication: stays connected to its master, and stores the bytes that it sends::

    connect -> report -> frames: compare or append, report -> lost -> wait -> connect ...

The slave reports on connecting, after every read that brought bytes (with C{SYNC_FLUSH} after the flush
that made them durable), and after a heartbeat interval without a report. It gives up a master that is
silent for the house-keeping interval. Waits between attempts grow, and are short again after a session
that brought frames.

A difference that only an operator can decide stops replication: the slave stays disconnected, serves its
messages, and says why. L{HAFollower.take_master} and L{HAFollower.try_again} start it again.

L{dledger.rocketmq.replication.slave_session.SlaveSession} decides on the frames.

Source: HAService.HAClient (4.9.8), DefaultHAClient (5.3.3); differs: docs/ha.md 7.10, 7.11.
"""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable, Sequence
from typing import cast

import attrs
from twisted.internet.defer import Deferred, maybeDeferred, succeed
from twisted.internet.interfaces import IAddress, IDelayedCall, IProtocol, IReactorTime, IStreamClientEndpoint
from twisted.internet.protocol import Factory
from twisted.logger import Logger
from twisted.python.failure import Failure

from dledger.rocketmq.replication.config import HAConfig
from dledger.rocketmq.replication.ports import LogPort
from dledger.rocketmq.replication.slave_session import (
    Difference,
    Diverged,
    ReplicationStopped,
    SessionEnded,
    SlaveSession,
)
from dledger.values.errors import StoreError
from protocols.rocketmq.ha import HAClient
from protocols.wire.errors import WireError
from protocols.wire.rocketmq.ha import Piece


@attrs.frozen(kw_only=True)
class FollowerStatus:
    """
    A slave's status, for people.

    @ivar master: address of the master; empty without one.
    @ivar is_connected: whether the slave is connected.
    @ivar reported_offset: last reported offset; -1 before the first report of a connection.
    @ivar master_offset: next offset that the master sends on this connection; -1 if unknown.
    @ivar is_comparing: whether the master sends bytes that the slave holds already.
    @ivar received_bytes: log bytes received since the process started.
    @ivar sessions: number of connections made.
    @ivar truncations: number of cuts of the slave's log.
    @ivar last_reason: reason for the end of the last connection or attempt; empty before the first end.
    @ivar is_stopped: whether replication waits for an operator's decision.
    @ivar difference: what an operator can decide about now; None if all is well.
    @ivar problem: why this slave is not in order, for people; empty if it is.
    @ivar set_aside: the directory with the files that the last decision of an operator set aside; or empty.
    @ivar heard_ago_ms, reported_ago_ms: milliseconds since the last bytes from the master, and since the
        last report; -1: never.
    """

    master: str
    is_connected: bool
    reported_offset: int
    master_offset: int
    is_comparing: bool
    received_bytes: int
    sessions: int
    truncations: int
    last_reason: str
    is_stopped: bool = False
    difference: Difference | None = None
    problem: str = ""
    set_aside: str = ""
    heard_ago_ms: int = -1
    reported_ago_ms: int = -1


@attrs.frozen(kw_only=True)
class LogRange:
    """The bounds of a master's log, as it reports them; -1: not reported."""

    begin_offset: int = -1
    end_offset: int = -1


class DecisionUnderWay(Exception):
    """Another decision of an operator is being carried out, or the slave has stopped."""


class HAFollower(Factory):
    """
    The connection of a slave to its master.

    Invariant: at most one connection attempt, one connection or one wait is under way; at most one flush.
    With a C{_difference} there is none of the first three. One decision is carried out at a time.

    Implements L{protocols.rocketmq.ha.HASlaveSink}.
    """

    log = Logger()
    noisy = False

    def __init__(
        self,
        config: HAConfig,
        commit_log: LogPort,
        clock: IReactorTime,
        *,
        rng: random.Random,
        failed: Callable[[Failure], None] = lambda failure: None,
        master_range: Callable[[], Awaitable[LogRange] | Deferred[LogRange]] | None = None,
    ) -> None:
        """
        @param rng: random generator that spreads the attempts of many slaves.
        @param failed: called when the log is broken; the broker has to stop.
        @param master_range: asks the master for the bounds of its log; used with C{ha_full_history}, and
            after a session without a frame.
        """
        self._config = config
        self._commit_log = commit_log
        self._clock = clock
        self._rng = rng
        self._notify_failed = failed
        self._ask_range = cast("Callable[[], Deferred[LogRange]] | None", master_range)
        self.follower = SlaveSession(
            commit_log, reports_flushed=config.waits_for_disk, full_history=config.ha_full_history,
            verify_size=config.ha_verify_size, verify_size_at_start=config.ha_verify_size_at_start,
        )
        self._endpoint: IStreamClientEndpoint | None = None
        self._master = ""
        self._client: HAClient | None = None
        self._is_connecting = False
        self._attempt: Deferred[LogRange] | Deferred[None] = succeed(None)
        self._wait: IDelayedCall | None = None
        self._wait_ms = float(config.ha_reconnect_min)
        self._is_running = False
        self._heard_ms = self._data_ms = self._began_ms = self._reported_ms = self._flushed_ms = 0
        self._was_fruitful = True
        self._master_range = LogRange()
        self._difference: Difference | None = None
        self._behind = self._misfit = ""
        self._set_aside = ""
        self._is_deciding = self._has_stopped = False
        self._stops: list[Deferred[None]] = []
        self._reported_offset = -1
        self._is_flushing = self._is_broken = False
        self._received_bytes = 0
        self._sessions = 0
        self._last_reason = ""

    # -- life -----------------------------------------------------------------------------------

    def start(self) -> None:
        """Connect as soon as a master is known, and stay connected."""
        self._is_running = True
        self._has_stopped = False
        if self._endpoint is not None and self._difference is None:
            self._connect()

    def follow(self, endpoint: IStreamClientEndpoint | None, master: str) -> None:
        """
        Follow this master from now on, and leave the old one.

        @param endpoint: endpoint of its HA port; None for no master.
        @param master: its address, for people.
        """
        if master == self._master and endpoint is not None and self._endpoint is not None:
            return
        self._endpoint = endpoint
        self._master = master
        self._wait_ms = float(self._config.ha_reconnect_min)
        if self._wait is not None:
            self._wait.cancel()
            self._wait = None
        if self._client is not None:
            self._client.abort("there is another master now")
        elif self._is_connecting:
            self._attempt.cancel()
        elif self._is_running and endpoint is not None and self._difference is None:
            self._connect()

    def stop(self) -> Deferred[None]:
        """
        Leave the master, and take no decision of an operator any more.

        @return: fires when none is being carried out. When the log is idle, too, it may be closed.
        """
        self._is_running = False
        self._has_stopped = True
        self._leave("this slave is stopping")
        if not self._is_deciding:
            return succeed(None)
        self._stops.append(Deferred())
        return self._stops[-1]

    def _leave(self, reason: str) -> None:
        if self._wait is not None:
            self._wait.cancel()
            self._wait = None
        if self._is_connecting:
            self._attempt.cancel()
        if self._client is not None:
            self._client.abort(reason)

    @property
    def reported_offset(self) -> int:
        """Last offset reported on the current or last connection; -1 for none."""
        return self._reported_offset

    def status(self) -> FollowerStatus:
        """See L{FollowerStatus}."""
        follower, now_ms = self.follower, self._now_ms()
        return FollowerStatus(
            master=self._master, is_connected=self._client is not None,
            reported_offset=self._reported_offset, master_offset=follower.master_offset,
            is_comparing=follower.is_comparing, received_bytes=self._received_bytes,
            sessions=self._sessions, truncations=follower.truncations, last_reason=self._last_reason,
            is_stopped=self.is_stopped, difference=self.to_decide(), problem=self._problem(),
            set_aside=self._set_aside,
            heard_ago_ms=now_ms - self._heard_ms if self._sessions else -1,
            reported_ago_ms=now_ms - self._reported_ms if self._sessions else -1,
        )

    @property
    def is_stopped(self) -> bool:
        """Whether replication waits for an operator's decision."""
        return self._difference is not None

    def _problem(self) -> str:
        if self._difference is not None:
            return f"replication has stopped: {self._difference.reason}"
        if self._behind or self._client is not None:
            return self._behind
        reason = f": {self._last_reason}" if self._last_reason else ""
        return f"not connected to a master{reason}"

    # -- an operator's decisions ------------------------------------------------------------------

    def to_decide(self) -> Difference | None:
        """
        What an operator can decide about: the difference that stopped replication, or a master that says
        that its log ends before bytes that we reported. None if all is well, or if the master is silent.
        """
        follower, log = self.follower, self._commit_log
        if self._difference is not None or follower.is_empty:
            return self._difference
        if not self._behind:
            return None
        common_end = log.begin_offset
        if self._client is not None and follower.is_comparing and follower.frames:
            common_end = log.record_end_below(follower.expected_offset)
        return Difference(
            reason=self._problem(), offset=-1, common_end=common_end, our_begin=log.begin_offset,
            our_end=log.end_offset,
        )

    def try_again(self, *, why: str = "an operator has decided") -> None:
        """
        Replication has stopped: compare again; nothing is cut.

        @param why: for the log.
        @raise DecisionUnderWay: nothing has changed.
        """
        assert self._difference is not None, "replication goes on"
        self._check_not_deciding()
        self._compare_again(why)

    def _check_not_deciding(self) -> None:
        """One decision after the other: the log may not change while its files are copied, or closed."""
        if self._has_stopped:
            raise DecisionUnderWay("this slave is stopping: decide when it runs again")
        if self._is_deciding:
            raise DecisionUnderWay(
                "a decision is being carried out, the old files are being copied: wait for its end"
            )

    def _compare_again(self, why: str) -> None:
        self._difference = None
        self._wait_ms = float(self._config.ha_reconnect_min)
        self.log.warn("slave of {master} compares again: {reason}", master=self._master, reason=why)
        if self._is_running and self._endpoint is not None:
            self._connect()

    async def take_master(self) -> str:
        """
        Give up our log from C{common_end} of L{to_decide} on, and follow the master. The old files are kept
        in a directory of their own.

        @return: path of the directory.
        @raise DecisionUnderWay: nothing has changed.
        @raise DLedgerError, OSError: the log has not changed; replication stays stopped.
        @raise StoreError: the log is broken; the broker has to stop.
        """
        difference = self.to_decide()
        assert difference is not None, "there is nothing to decide"
        self._check_not_deciding()
        self._difference = difference
        self._leave("an operator decides")
        self._is_deciding = True
        try:
            return await self._give_up(difference)
        except StoreError:
            self._broken(Failure())
            raise
        finally:
            self._is_deciding = False
            stops, self._stops = self._stops, []
            for stopped in stops:
                stopped.callback(None)

    async def _give_up(self, difference: Difference) -> str:
        offset = max(difference.common_end, self._commit_log.begin_offset)
        self._set_aside = await self._commit_log.set_aside(offset)
        self.log.warn(
            "slave of {master}: an operator gave up our log from {offset} on; it ended at {end_offset}, and "
            "the files are kept in {directory}", master=self._master, offset=difference.common_end,
            end_offset=difference.our_end, directory=self._set_aside,
        )
        self.follower.begin_anew()
        self._compare_again("the files of before are set aside")
        return self._set_aside

    def _stop_replication(self, difference: Difference) -> None:
        self._difference = difference
        self.log.error(
            "slave of {master}: replication has stopped, nothing was cut: {reason}. See dledger ha-resolve",
            master=self._master, reason=difference.reason,
        )

    # -- connecting -----------------------------------------------------------------------------

    def _connect(self) -> None:
        assert self._endpoint is not None and self._client is None and not self._is_connecting
        assert self._difference is None, "only an operator starts it again"
        self._is_connecting = True
        asked: Deferred[LogRange] = succeed(LogRange())
        follower = self.follower
        if self._ask_range is not None:
            if self._config.ha_full_history and follower.is_empty:
                asked = maybeDeferred(self._ask_range)
            elif follower.is_fruitless and not follower.is_empty:
                # Its answer only explains: without it, we connect none the less.
                asked = maybeDeferred(self._ask_range).addErrback(lambda _: LogRange())
        self._attempt = asked
        asked.addCallback(self._connect_knowing).addErrback(self._not_connected)

    def _connect_knowing(self, master_range: LogRange) -> Deferred[IProtocol]:
        assert self._endpoint is not None, "an attempt is cancelled when its master is removed"
        self._master_range = master_range
        log = self._commit_log
        begin, end = master_range.begin_offset, log.end_offset
        if not self.follower.is_empty and 0 < end <= begin:  # it refuses reports of what is before its log
            why = "there is nothing to compare" if end == begin else "the bytes between them have expired"
            reason = f"the master's log begins at {begin}, ours ends at {end}: {why}"
            raise ReplicationStopped(Difference(
                reason=reason, offset=-1, common_end=log.begin_offset, our_begin=log.begin_offset,
                our_end=log.end_offset,
            ))
        self._note_master_end(master_range.end_offset)
        return self._endpoint.connect(self)

    def _note_master_end(self, master_end: int) -> None:
        """Note whether the master's log ends before bytes that we reported as held."""
        before, self._behind = self._behind, ""
        reported = min(self.follower.reported_offset, self._commit_log.end_offset)
        if 0 <= master_end < reported:
            self._behind = (
                "the master's log ends below bytes that we reported as held: it has lost them, or is another "
                "one; our bytes stay until it writes others there"
            )
            if not before:
                self.log.error(
                    "slave of {master}: {reason} (it ends at {master_end}, ours at {end_offset})",
                    master=self._master, reason=self._behind, master_end=master_end,
                    end_offset=self._commit_log.end_offset,
                )

    def _not_connected(self, failure: Failure) -> None:
        self._is_connecting = False
        if isinstance(failure.value, ReplicationStopped):
            self._stop_replication(failure.value.difference)
            return
        self._ended(f"cannot connect: {failure.getErrorMessage()}", is_news=False)

    def buildProtocol(self, address: IAddress | None) -> HAClient:
        return HAClient(self)

    def connected(self, client: HAClient) -> None:
        self._is_connecting = False
        self._client = client
        self._sessions += 1
        self._was_fruitful = True
        self._heard_ms = self._data_ms = self._began_ms = self._now_ms()
        self._reported_offset = -1
        if not self._is_running or self._is_broken:
            client.abort("this slave is stopping")
            return
        try:
            offset = self.follower.begin(self._master_range.begin_offset)
        except (OSError, StoreError):
            self._broken(Failure())
            return
        if self.follower.is_fruitless:
            self._report(offset)
            return  # the same master as before, which had nothing for us
        self.log.info(
            "connected to master {master}; our log ends at {end_offset}, we report {offset}",
            master=self._master, end_offset=self._commit_log.end_offset, offset=offset,
        )
        self._report(offset)

    def connection_lost(self, client: HAClient, reason: str) -> None:
        if client is not self._client:
            return
        self._client = None
        if self.follower.frames and self._was_fruitful:
            self._wait_ms = float(self._config.ha_reconnect_min)
        is_news = self.follower.frames
        self.follower.end()
        self._ended(f"connection lost: {reason}", is_news=is_news)

    def _ended(self, reason: str, *, is_news: bool) -> None:
        if is_news or reason != self._last_reason:
            self.log.info("master {master}: {reason}", master=self._master, reason=reason)
        self._last_reason = reason
        if not self._is_running or self._endpoint is None or self._is_broken or self._difference is not None:
            return
        wait_s = self._wait_ms * (0.75 + 0.5 * self._rng.random()) / 1000
        self._wait_ms = min(self._wait_ms * 2, self._config.ha_reconnect_max)
        self._wait = self._clock.callLater(wait_s, self._waited)

    def _waited(self) -> None:
        self._wait = None
        self._connect()

    # -- the stream -----------------------------------------------------------------------------

    def transferred(self, client: HAClient, pieces: Sequence[Piece]) -> None:
        if client is not self._client:
            return
        self._heard_ms = self._now_ms()
        size = sum(len(data) for _, data in pieces)
        if size:
            self._received_bytes += size
            self._data_ms = self._heard_ms
        try:
            self.follower.take_all(pieces)
        except Diverged as ended:
            self.log.error("slave of {master}: {reason}", master=self._master, reason=str(ended))
            client.abort(str(ended))
        except ReplicationStopped as ended:
            self._stop_replication(ended.difference)
            client.abort(str(ended))
        except (SessionEnded, WireError) as ended:
            self._misfits(client, str(ended))
        except StoreError:
            self._broken(Failure())
            return
        except OSError as error:
            # A full disk may have room again later.
            self._misfits(client, f"cannot write: {error}")
        self._report_news()
        self._flush_if_due(self._heard_ms)

    def _misfits(self, client: HAClient, reason: str) -> None:
        if reason != self._misfit:  # reported once: the next sessions may end in the same way
            self.log.error("slave of {master}: {reason}", master=self._master, reason=reason)
        self._misfit = reason
        self._was_fruitful = False
        client.abort(reason)

    def _report_news(self) -> None:
        if self._client is not None:
            offset = self.follower.reportable()
            if offset > self._reported_offset:
                self._report(offset)

    def _report(self, offset: int) -> None:
        assert self._client is not None
        self._reported_offset = offset
        self._reported_ms = self._now_ms()
        self.follower.reported(offset)
        self._client.report(offset)

    # -- time and disk --------------------------------------------------------------------------

    def tick(self, now_ms: int) -> None:
        """Run reports, house-keeping and flushes. Called several times a second."""
        self._flush_if_due(now_ms)
        client = self._client
        if client is None:
            return
        limit_ms = self._config.ha_housekeeping_interval
        if now_ms - self._heard_ms > limit_ms:
            client.abort(f"the master has been silent for {now_ms - self._heard_ms} ms")
        elif self._stalls(now_ms):
            self._misfits(client, f"the master has no bytes at {self.follower.expected_offset}, where we "
                          "compare: its log is shorter, or begins later")
        elif now_ms - self._reported_ms >= self._config.ha_send_heartbeat_interval:
            self._report(self.follower.reportable())
        self._look_for_end()

    def _look_for_end(self) -> None:
        """Heartbeats without bytes, although we compare: the master's log ends there."""
        if not self.follower.is_comparing:
            self._behind = ""
        elif self._heard_ms - self._data_ms >= self._config.ha_send_heartbeat_interval // 2:
            self._note_master_end(self.follower.expected_offset)

    def _stalls(self, now_ms: int) -> bool:
        follower = self.follower
        limit_ms = self._config.ha_housekeeping_interval
        return follower.is_comparing and not follower.frames and now_ms - self._began_ms > limit_ms

    def _flush_if_due(self, now_ms: int) -> None:
        log = self._commit_log
        if self._is_flushing or self._is_broken or log.flushed_offset >= log.end_offset:
            return
        if self._config.waits_for_disk or now_ms - self._flushed_ms >= self._config.ha_flush_interval:
            self._flushed_ms = now_ms
            self._is_flushing = True
            log.flush().addCallbacks(self._flushed, self._broken)

    def _flushed(self, _: int) -> None:
        self._is_flushing = False
        if self._config.waits_for_disk:
            self._report_news()
        if self._is_running:
            self._flush_if_due(self._now_ms())

    def _broken(self, failure: Failure) -> None:
        # Unflushed bytes may be gone from the page cache: nothing may be reported after this.
        self._is_broken = True
        if self._client is not None:
            self._client.abort(f"our log is broken: {failure.getErrorMessage()}")
        self._notify_failed(failure)

    def _now_ms(self) -> int:
        return int(self._clock.seconds() * 1000 + 0.5)
