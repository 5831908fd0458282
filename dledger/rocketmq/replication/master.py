# -*- test-case-name: tests.broker.ha.test_master,tests.broker.ha.test_slave_view -*-
"""
A master's side of replication: at most C{ha_slaves_max} slaves, each sent the log from its own offset on.

When the log has grown, L{HAMaster.appended} is called, and each slave that is not congested is sent the
bytes that it lacks, at most L{TURN_SIZE_MAX}. A slave that lacks more continues in the next turn, so that
none starves the others or the broker. A congested slave continues when its connection is drained. If puts
wait for slaves, a slave that has reported everything is sent new bytes at once; otherwise the master sends at
the end of a turn, after the producer's answer.

A connection without a report for the house-keeping interval is closed, even before its first report.

L{SlaveView} is the master's view of one slave. It only decides::

    nothing is sent -- first report --> from its offset on, in order -- refused, silent --> closed

Rule 1: nothing is sent before the first report. A report of 0 means an empty slave, which begins at a file.
Rule 2: a report may not exceed the bytes that the slave can hold: at first our end, later the bytes sent to
it. RocketMQ accepts any number, and counts it as an acknowledgement for ever.
Rule 3: a reconnecting slave may hold a tail that our log has lost in a crash. Its first report acknowledges
nothing beyond our end at our start; reports after we sent it more do.
Rule 3a: a slave that holds more than we can vouch for, and whose log does not end where a record of ours
ends, has followed another log. RocketMQ counts it once our end has passed its own.
Rule 4: a requested offset outside of the log ends the connection with a reason. RocketMQ sends heartbeats for
ever, and the slave looks healthy.

Source: HAService.java, HAConnection.java (4.9.8), DefaultHAService.java, DefaultHAConnection.java (5.3.3);
differs: docs/ha.md 7.2, 7.4.
"""

from __future__ import annotations

from collections.abc import Callable

import attrs
from twisted.internet.interfaces import IAddress, IReactorTime
from twisted.internet.protocol import Factory
from twisted.logger import Logger
from twisted.python.failure import Failure

from dledger.base.serving.folding import Folding
from dledger.rocketmq.replication.acks import Acks
from dledger.rocketmq.replication.allowed import AllowedHosts
from dledger.rocketmq.replication.config import HAConfig
from dledger.rocketmq.replication.group_transfer import GroupTransferService
from dledger.rocketmq.replication.ports import LogPort
from dledger.rocketmq.replication.tail import FIRST_REPORT_MIN
from dledger.rocketmq.store.records.events import BrokerEvents
from dledger.values.errors import StoreError
from protocols.rocketmq.ha import FRAMES_MAX, HAConnection
from protocols.wire.rocketmq.layout import HEAD, HEAD_SIZE, MAGIC_BLANK, MAGIC_V1, MAGIC_V2, START, START_SIZE

#: The first word of a slave in RocketMQ 5's controller mode, read as an offset: state 1, and two flags.
HANDSHAKES = frozenset(1 << 32 | one << 16 | two for one in (0, 1) for two in (0, 1))


def last_file_offset(log: LogPort) -> int:
    """Offset of the beginning of the file that receives the next byte."""
    return max(log.end_offset - log.end_offset % log.file_size, log.begin_offset)


def is_boundary(log: LogPort, offset: int) -> bool:
    """
    Whether a record of the log, or a file, begins at an offset, or the log ends there.

    @param offset: from the beginning of the log to its end.
    """
    if offset in (log.begin_offset, log.end_offset) or offset % log.file_size == 0:
        return True
    data = log.read(offset, HEAD_SIZE)
    if len(data) < START_SIZE:
        return False
    size, magic = START.unpack_from(data)
    if magic == MAGIC_BLANK:
        return bool(size == log.file_size - offset % log.file_size)
    return len(data) == HEAD_SIZE and magic in (MAGIC_V1, MAGIC_V2) and bool(HEAD.unpack(data)[6] == offset)


@attrs.define(kw_only=True)
class SlaveView:
    """
    State of one slave. Times are in milliseconds of one monotonic clock.

    Invariant: C{ack_offset} and C{claimed_offset} never fall, C{ack_offset <= claimed_offset}, and
    C{claimed_offset <= transfer_offset} except for an empty slave's 0.

    @ivar vouched_offset: end of our log when this process started; later puts are after it.
    @ivar request_offset: the first report; -1 before it.
    @ivar claimed_offset: the highest report; -1 before the first.
    @ivar ack_offset: the part of C{claimed_offset} that acknowledges puts.
    @ivar transfer_offset: next offset to send; -1 before the first report.
    @ivar heard_ms: time of the last report, or of the connection.
    @ivar sent_ms: time of the last send, or of the connection.
    """

    heard_ms: int
    sent_ms: int
    vouched_offset: int
    request_offset: int = -1
    claimed_offset: int = -1
    ack_offset: int = -1
    transfer_offset: int = -1

    def reported(
        self, offset: int, log: LogPort, *, now_ms: int, starts_at_first_file: bool = False
    ) -> str | None:
        """
        Take a report of the slave.

        @param offset: the first offset that it does not hold; 0 or more.
        @param starts_at_first_file: send an empty slave the whole log.
        @return: reason for a refusal; None without one.
        """
        self.heard_ms = now_ms
        if self.request_offset < 0:
            begin, end = log.begin_offset, log.end_offset
            if offset > end and offset in HANDSHAKES:
                return "it begins with the handshake of RocketMQ 5's controller mode, which we do not speak"
            if offset > end:
                return f"it reports {offset}, beyond our end at {end}: this is not the log that it followed"
            if 0 < offset < begin:
                return f"it reports {offset}, below our beginning at {begin}: empty it, or give it a copy"
            self.request_offset = offset
            if offset:
                self.transfer_offset = offset
            else:
                self.transfer_offset = begin if starts_at_first_file else last_file_offset(log)
        elif offset < self.request_offset:
            return (
                f"it reports {offset} after {self.request_offset}: it is not a slave of RocketMQ's "
                f"usual mode "
                "(the handshake of controller mode looks like this)"
            )
        elif offset > self.transfer_offset:
            return f"it reports {offset}, but was sent bytes only up to {self.transfer_offset}"
        if offset > self.claimed_offset:
            self.claimed_offset = offset
        proved = offset if offset > self.request_offset else min(offset, self.vouched_offset)
        if proved > self.ack_offset:
            self.ack_offset = proved
        return None

    @property
    def has_all(self) -> bool:
        """Whether it has reported everything that it was sent."""
        return 0 <= self.transfer_offset == self.claimed_offset

    def misplaced(self, begin_offset: int, end_offset: int) -> str | None:
        """
        The reason why its next offset can no longer be sent; None if it can.

        @param begin_offset, end_offset: of our log.
        """
        if self.transfer_offset >= 0 and not begin_offset <= self.transfer_offset <= end_offset:
            return (
                f"it needs {self.transfer_offset}, but we hold {begin_offset} to {end_offset}: "
                "it was too slow"
            )
        return None

    def sent(self, size: int, now_ms: int) -> None:
        """Note a send of C{size} bytes of the log; 0: a heartbeat."""
        self.transfer_offset += size
        self.sent_ms = now_ms

    def is_beat_due(self, now_ms: int, interval_ms: int) -> bool:
        """Whether nothing was sent for C{interval_ms}, so that a heartbeat is due."""
        return self.transfer_offset >= 0 and now_ms - self.sent_ms >= interval_ms

    def is_silent(self, now_ms: int, limit_ms: int) -> bool:
        """Whether the slave has sent no report for more than C{limit_ms}."""
        return now_ms - self.heard_ms > limit_ms


#: Maximum number of bytes read from the log, and sent, in one call.
READ_SIZE_MAX = 256 * 1024

#: Number of bytes sent to one slave before the others have their turn.
TURN_SIZE_MAX = 4 * 1024 * 1024

#: Seconds for which new bytes gather that no put waits for: a frame for each lone put would cost both brokers
#: as much as the put. (RocketMQ's master then looks for new bytes ten times a second.)
GATHER_S = 0.002

#: A refusal is shown, and not logged again, for this time, ms.
REFUSED_MS = 600_000
_REFUSED = "refused: "
#: Hosts whose refusals are remembered.
REFUSED_MAX = 256

_WITHOUT_DIGITS = str.maketrans("", "", "0123456789")


@attrs.frozen(kw_only=True)
class SlaveStatus:
    """
    Status of one slave, for people.

    @ivar address: C{host:port} of its end of the connection.
    @ivar ack_offset: highest offset that it has reported; -1 before its first report.
    @ivar transfer_offset: next offset to send; -1 before its first report.
    @ivar gap_bytes: bytes of our log after its reported offset.
    @ivar is_in_sync: whether the gap is below C{ha_max_gap_not_in_sync}.
    @ivar transferred_bytes: bytes sent on this connection.
    """

    address: str
    ack_offset: int
    transfer_offset: int
    gap_bytes: int
    is_in_sync: bool
    transferred_bytes: int


@attrs.frozen(kw_only=True)
class RefusedSlave:
    """
    A host whose last connection was refused.

    @ivar kind: the reason without numbers.
    @ivar count: number of refusals of this kind in a row.
    @ivar at_ms: time of the last one.
    """

    host: str
    reason: str
    kind: str
    count: int
    at_ms: int


@attrs.define(eq=False)
class _Link:
    connection: HAConnection
    view: SlaveView
    transferred_bytes: int = 0


class HAMaster(Factory):
    """
    Sends the log to all slaves.

    Invariant: C{_links} has every live connection, and C{acks} a mark for each of them.

    Implements L{protocols.rocketmq.ha.HAMasterSink}.

    @ivar allowed: the hosts whose slaves are accepted.
    @ivar acks: acknowledged offsets of the slaves.
    @ivar transfers: puts that wait for slaves.
    """

    log = Logger()
    noisy = False

    def __init__(
        self,
        config: HAConfig,
        commit_log: LogPort,
        clock: IReactorTime,
        *,
        events: BrokerEvents,
        failed: Callable[[Failure], None] = lambda failure: None,
        act: Callable[[Callable[[], None]], None] = lambda call: call(),
    ) -> None:
        """
        @param commit_log: an open log, without appends since it was opened.
        @param events: hears that an acknowledged offset has risen, after the waiting puts have fired.
        @param failed: called when the log cannot be read; the broker has to stop.
        @param act: runs a call, and then the output that it causes, see L{protocols.turn.Turn.act}.
        """
        self._config = config
        self._commit_log = commit_log
        self._clock = clock
        self._failed = failed
        self.acks = Acks(slaves_per_host=config.ha_slaves_per_host)
        self.transfers = GroupTransferService(self.acks, pending_max=config.pending_max)
        self._events = events
        self._vouched_offset = commit_log.end_offset
        self._links: dict[HAConnection, _Link] = {}
        self._last_serial = 0
        self.allowed = AllowedHosts(config.ha_allowed_hosts)
        self._refused: dict[str, RefusedSlave] = {}
        self._folding = Folding(clock.seconds)
        self._is_pump_asked = False
        self._is_stopped = False
        self._waits_for_slaves = config.waits_for_slaves
        self._read_size_max = min(READ_SIZE_MAX, config.ha_transfer_batch_size * FRAMES_MAX)
        self._seconds = clock.seconds
        self._act = act

    # -- connections ----------------------------------------------------------------------------

    def buildProtocol(self, address: IAddress | None) -> HAConnection | None:
        """See L{Factory.buildProtocol}. A refused connection is closed at once."""
        host = str(getattr(address, "host", address))
        refused = ""
        if self._is_stopped:
            refused = "this master is stopping"
        elif len(self._links) >= self._config.ha_slaves_max:
            refused = f"there are {len(self._links)} connections, and ha_slaves_max allows no more"
        if refused:
            self._note_refused(host, host, refused)
            return None
        self._last_serial += 1
        return HAConnection(self, serial=self._last_serial)

    def connected(self, connection: HAConnection) -> None:
        refused = self.allowed.refusal(connection.host, connection.local_host)
        if refused:
            self._refuse(connection, refused)
            return
        now_ms = self._now_ms()
        view = SlaveView(heard_ms=now_ms, sent_ms=now_ms, vouched_offset=self._vouched_offset)
        self._links[connection] = _Link(connection, view)
        self.acks.add(connection.serial, connection.host)

    def reported(self, connection: HAConnection, offset: int) -> None:
        link = self._links[connection]
        is_first = link.view.request_offset < 0
        reason = link.view.reported(
            offset, self._commit_log, now_ms=self._now_ms(),
            starts_at_first_file=self._config.ha_start_at_first_file,
        )
        if reason is not None:
            self._refuse(connection, reason)
            return
        if is_first:
            if offset:
                self._judge(connection, offset)
                self.acks.returns_at(connection.serial, offset, vouched_offset=self._vouched_offset)
            else:
                self.acks.begins_at(connection.serial, link.view.transfer_offset)
            self._notify(
                "connected", "slave {address} connected and holds the log to {ack_offset}; we send from "
                "{transfer_offset} on", connection,
                ack_offset=offset, transfer_offset=link.view.transfer_offset,
            )
        if self.acks.record(connection.serial, link.view.ack_offset, link.view.claimed_offset):
            self._act(self._acknowledged)
        if is_first:
            self._pump_soon()

    def _acknowledged(self) -> None:
        self.transfers.acked()
        self._events.acknowledged()

    def _judge(self, connection: HAConnection, offset: int) -> None:
        """Doubt a slave whose log cannot be ours."""
        # No log ends at its second byte: that is an empty slave, which asks for everything.
        known = max(self._vouched_offset, self.acks.proved(connection.serial), FIRST_REPORT_MIN)
        if offset > known and not is_boundary(self._commit_log, offset):
            self.acks.doubt(connection.serial)
            if self._folding.happened(("doubted", connection.host, "")) is not None:
                self.log.warn(
                    "slave {address} holds the log to {ack_offset}, in the middle of a record of ours: it "
                    "has followed another log, and acknowledges nothing. Empty it, or give it a copy of ours",
                    address=connection.address, ack_offset=offset,
                )

    def drained(self, connection: HAConnection) -> None:
        self._pump(self._links[connection])

    def connection_lost(self, connection: HAConnection, reason: str) -> None:
        link = self._links.pop(connection, None)
        if link is None:
            return  # it was refused before it became a slave
        self.acks.remove(connection.serial)
        if link.view.request_offset >= 0:
            self._notify(
                "disconnected", "slave {address} disconnected, it held the log to {ack_offset}: {reason}",
                connection, ack_offset=link.view.claimed_offset, reason=reason,
            )
        elif not (self._is_stopped or reason.startswith(_REFUSED)):
            self._note_refused(connection.host, connection.address, f"it ended without a report: {reason}")

    def _notify(self, event: str, text: str, connection: HAConnection, **facts: object) -> None:
        """Log an event of a slave's connection; a host that repeats it writes one line a minute."""
        repeated = self._folding.happened((event, connection.host, ""))
        if repeated is not None:
            self.log.info(text, address=connection.address, **facts, **repeated)

    def _refuse(self, connection: HAConnection, reason: str) -> None:
        self._note_refused(connection.host, connection.address, reason)
        connection.abort(_REFUSED + reason)

    def _note_refused(self, host: str, address: str, reason: str) -> None:
        """Log a refusal, once for each host and kind of reason while it repeats; count all."""
        now_ms, known = self._now_ms(), self._refused.get(host)
        kind = reason.translate(_WITHOUT_DIGITS)
        count = 1
        if known is not None and known.kind == kind and now_ms - known.at_ms <= REFUSED_MS:
            count = known.count + 1
        elif self._folding.happened(("refused", host, kind)) is not None:
            self.log.warn("slave {address} refused: {reason}", address=address, reason=reason)
        self._refused.pop(host, None)
        if len(self._refused) >= REFUSED_MAX:
            del self._refused[next(iter(self._refused))]
        self._refused[host] = RefusedSlave(host=host, reason=reason, kind=kind, count=count, at_ms=now_ms)

    def refused(self) -> tuple[RefusedSlave, ...]:
        """Slaves that were refused in the last L{REFUSED_MS}, and are not connected now."""
        now_ms, connected = self._now_ms(), {connection.host for connection in self._links}
        return tuple(one for one in self._refused.values()
                     if now_ms - one.at_ms <= REFUSED_MS and one.host not in connected)

    # -- the stream -----------------------------------------------------------------------------

    def appended(self) -> None:
        """
        Send to the slaves: the log has grown, or more of it is on stable storage. If puts wait for slaves,
        one that has reported all that it was sent is sent this at once. The others are when the turn ends,
        so that many appends share it.
        """
        if not self._waits_for_slaves:
            if self._links:
                self._pump_soon(GATHER_S)
            return
        for link in tuple(self._links.values()):
            if link.view.has_all:
                self._pump(link)
            else:
                self._pump_soon()

    def _pump_soon(self, wait_s: float = 0.0) -> None:
        if not self._is_pump_asked:
            self._is_pump_asked = True
            self._clock.callLater(wait_s, self._pump_all)

    def _pump_all(self) -> None:
        self._is_pump_asked = False
        for link in list(self._links.values()):
            self._pump(link)

    def _pump(self, link: _Link) -> None:
        connection, view, log = link.connection, link.view, self._commit_log
        if view.transfer_offset < 0 or self._is_stopped:
            return
        end_offset = log.end_offset
        misplaced = view.misplaced(log.begin_offset, end_offset)
        if misplaced is not None:
            self._refuse(connection, misplaced)
            return
        if self._config.ha_transfer_flushed_only:
            end_offset = log.flushed_offset
        left = TURN_SIZE_MAX
        while view.transfer_offset < end_offset and not (connection.is_congested or connection.is_lost):
            if left <= 0:
                self._pump_soon()
                return
            offset = view.transfer_offset
            try:
                data = log.read(offset, min(self._read_size_max, end_offset - offset))
            except (OSError, StoreError):
                self._failed(Failure())
                return
            size = len(data)
            assert size, f"no bytes at {offset}, although the log ends at {end_offset}"
            view.sent(size, self._now_ms())
            link.transferred_bytes += size
            left -= size
            connection.transfer(offset, data, batch_size=self._config.ha_transfer_batch_size)

    # -- time -----------------------------------------------------------------------------------

    def tick(self, now_ms: int) -> None:
        """Run heartbeats, house-keeping and deadlines. Called several times a second."""
        self.transfers.expire(now_ms)
        for (event, host, *_), episode in self._folding.sweep(self._clock.seconds()):
            self.log.info(
                "slaves of {host} {event} {times} times in {since_s} s", host=host, event=event,
                times=episode.times, since_s=round(episode.last_s - episode.begin_s),
            )
        for connection, link in list(self._links.items()):
            view = link.view
            if view.is_silent(now_ms, self._config.ha_housekeeping_interval):
                connection.abort(f"no report for {now_ms - view.heard_ms} ms")
                continue
            self._pump(link)
            if view.is_beat_due(now_ms, self._config.ha_send_heartbeat_interval):
                # While the transport still holds frames, a heartbeat would prove nothing.
                if not (connection.is_congested or connection.is_lost):
                    view.sent(0, now_ms)
                    connection.heartbeat(view.transfer_offset)

    def stop(self) -> None:
        """Close every connection and answer the waiting puts."""
        self._is_stopped = True
        for connection in list(self._links):
            connection.abort("this master is stopping")
        self.transfers.stop()

    def status(self) -> tuple[SlaveStatus, ...]:
        """Status of every slave, in the order of their connections."""
        end_offset = self._commit_log.end_offset
        gap_max = self._config.ha_max_gap_not_in_sync
        return tuple(
            SlaveStatus(
                address=link.connection.address, ack_offset=link.view.claimed_offset,
                transfer_offset=link.view.transfer_offset,
                gap_bytes=end_offset - max(link.view.claimed_offset, 0),
                is_in_sync=link.view.transfer_offset >= 0 and end_offset - link.view.claimed_offset < gap_max,
                transferred_bytes=link.transferred_bytes,
            )
            for link in self._links.values()
        )

    def _now_ms(self) -> int:
        return int(self._seconds() * 1000 + 0.5)
