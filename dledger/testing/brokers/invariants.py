# -*- test-case-name: tests.sim.test_ha -*-
"""
The promises of replication, checked after every event of every simulated broker.

H1. A slave's log is a prefix of the master's, from the slave's first file on. It may differ, but only for a
while, after the master came back without bytes that it had shipped (a power cut, if it ships unflushed
bytes), and after the slave itself came back from a power cut with unflushed bytes.
H2. When a put is answered C{PUT_OK}, as many slaves as it had to wait for hold its bytes, in a log that does
not begin after them; a slave with C{SYNC_FLUSH} on stable storage, and the master as well if it has that.
H3. A put that was answered C{PUT_OK} stays in the master's log, except after that power cut.
H4. Every put is answered, once, in time.
H5. A slave with C{SYNC_FLUSH} that comes back holds the bytes that it reported, up to the last record's end.
H6. After all faults every slave is connected, once, and equal to the master.
H7. A master that comes back holds its old log, except for an unflushed tail after a power cut.
H8. A slave loses no whole record that it has reported, except an unflushed one in its own power cut, or
after a hole that this power cut left; or an operator takes it away, and then it is in a directory beside the
log.

The disk of the master may be replaced by an empty or an older one, or damaged (C{master_replaced}); then H3
and H7 say nothing, and H8 is the promise.
"""

from __future__ import annotations

from collections.abc import Mapping

import attrs

from dledger.rocketmq.replication.config import ANY_SLAVE, HAConfig
from dledger.rocketmq.replication.put_status import PutStatus
from dledger.testing.brokers.member import FILE_SIZE, SimBroker
from dledger.testing.brokers.parts.slave_knowledge import SlaveKnowledge
from protocols.wire.rocketmq.layout import MAGIC_BLANK, START, START_SIZE

#: Tolerance for deadlines: their granularity, and the time of a turn.
SLACK_MS = 400


class HAInvariantError(AssertionError):
    """A promise was broken. The message begins with its number."""


def require_ha(condition: bool, number: int, sentence: str) -> None:
    """@raise HAInvariantError: C{condition} is false."""
    if not condition:
        raise HAInvariantError(f"H{number}: {sentence}")


@attrs.define(eq=False)
class _Put:
    start: int
    end: int
    needed: int
    at_ms: float
    life: int
    status: PutStatus | None = None


def needed_at_least(config: HAConfig) -> int:
    """Least number of slaves that must hold a put before it may be answered with success."""
    if not config.waits_for_slaves:
        return 0
    if config.sync_rule == ANY_SLAVE:
        return 1
    replicas = config.min_in_sync_replicas if config.enable_auto_in_sync_replicas else config.in_sync_replicas
    return replicas - 1


class HAInvariants:
    """
    @ivar history: the master's log from 0 on.
    @ivar held: what is known of each slave, by its name.
    @ivar answered: puts by status.
    @ivar mended: number of damaged records of the master that were replaced by copies of slaves.
    """

    def __init__(self, master: SimBroker, slaves: list[SimBroker]) -> None:
        self._master = master
        self._slaves = slaves
        self.held = {slave.name: SlaveKnowledge() for slave in slaves}
        self._puts: list[_Put] = []
        self._flushed_offset = 0
        self._power_lost = False
        self._was_replaced = False
        self._flips: dict[int, int] = {}
        self._copies: dict[int, bytes] = {}
        self.mended = 0
        self.history = bytearray()
        self.answered: dict[PutStatus, int] = dict.fromkeys(PutStatus, 0)

    @property
    def _may_lose(self) -> bool:
        """Whether the master may lose bytes that slaves have, in a power cut."""
        return not self._master.config.ha_transfer_flushed_only

    # -- the master -----------------------------------------------------------------------------

    def master_ends(self, *, power: bool) -> None:
        """The master's process is about to end, or has ended."""
        self._power_lost = self._power_lost or power

    def master_replaced(self, flips: Mapping[int, int]) -> None:
        """
        The master's disk was replaced while its process was down.

        @param flips: the flipped bits on the new disk, see L{flips}.
        """
        self._was_replaced = True
        self._flips = dict(flips)

    def master_flipped(self, offset: int, mask: int) -> None:
        """Bits of the byte at C{offset} were flipped on the master's disk; no slave may take that byte."""
        self._was_replaced = True
        self._flips[offset] = self._flips.get(offset, 0) ^ mask

    def offered(self, offset: int, copy: bytes) -> None:
        """A slave offers the master a copy of its damaged record; the master may take it in this life."""
        self._copies[offset] = copy

    def forget_mended(self) -> None:
        """Forget the flipped bits that a copy of a slave has replaced."""
        content = self._master.content()[1]
        for offset, copy in self._copies.items():
            if content[offset : offset + len(copy)] == copy:
                self._flips = {at: mask for at, mask in self._flips.items()
                               if not offset <= at < offset + len(copy)}

    @property
    def flips(self) -> dict[int, int]:
        """The flipped bits of the master's log, by offset."""
        return self._flips

    def _repaired(self, content: bytes) -> bytes:
        repaired = bytearray(content)
        for at, mask in self._flips.items():
            repaired[at] ^= mask
        return bytes(repaired)

    def master_event(self) -> None:
        """Called after every event of the master."""
        self._flushed_offset = self._master.log.flushed_offset

    def master_appended(self) -> None:
        """The master's log has grown."""
        log = self._master.log
        while len(self.history) < log.end_offset:
            self.history += log.read(len(self.history), 1 << 20)

    def master_started(self) -> None:
        """A process of the master has recovered the log."""
        end = self._master.log.end_offset
        self.forget_mended()
        self._copies.clear()
        # After a mark that a power cut has set back, a start ends the log at a damaged record.
        self._was_replaced = self._was_replaced or bool(self._flips)
        self._flips = {at: mask for at, mask in self._flips.items() if at < end}
        content = self._repaired(self._master.content()[1][:end])
        same = _common(content, self.history)
        lost_from = same if same < len(self.history) else len(self.history)
        if lost_from < len(self.history) or same < end:
            is_tail = lost_from >= self._last_record_end(self._flushed_offset) and self._power_lost
            is_tail = is_tail or self._was_replaced
            # Bytes after the history are of a put that was written although its call died.
            require_ha(is_tail or lost_from == len(self.history), 7,
                    f"the master came back with {end} bytes, {same} of them right; it had "
                    f"{len(self.history)}, and {self._flushed_offset} of them flushed")
        for slave in self._slaves:
            held = self.held[slave.name]
            if lost_from < len(self.history):
                held.old_session = _session_of(slave) if self._may_lose or self._was_replaced else -1
                # The end of a log that differs says nothing of what the master has sent.
                sent_to = held.best_end if held.is_divergent else max(held.best_end, held.end)
                if sent_to > lost_from:
                    require_ha(self._may_lose or self._was_replaced, 1,
                               f"{slave.name} was sent {held.best_end} bytes, and its master that ships only "
                               f"flushed bytes has kept {lost_from}")
                    held.is_divergent = True
                held.best_end = min(held.best_end, lost_from)
                held.lost_from(lost_from)
                held.promised_offset = min(held.promised_offset, lost_from)
        self.history = bytearray(content)
        self._power_lost = False
        self._flushed_offset = self._master.log.flushed_offset
        self._check_kept()
        self._was_replaced = False

    def _check_kept(self) -> None:
        """H3; forget the puts that a power cut may have taken."""
        waits_for_disk = self._master.config.waits_for_disk
        end = len(self.history)
        for put in self._puts:
            if put.status is PutStatus.PUT_OK and put.end > end:
                require_ha(self._was_replaced or not waits_for_disk, 3,
                           f"the put at {put.start}..{put.end} was answered PUT_OK, and is gone: the log "
                           f"ends at {end}")
        self._puts = [put for put in self._puts if put.end <= end]

    def _last_record_end(self, offset: int) -> int:
        ends = [put.end for put in self._puts if put.end <= offset]
        return max(ends, default=0)

    # -- puts -----------------------------------------------------------------------------------

    def put(self, start: int, end: int, now_ms: float) -> _Put:
        """The master has stored a message and now asks for its replication."""
        put = _Put(start, end, needed_at_least(self._master.config), now_ms, self._master.life)
        self._puts.append(put)
        return put

    def answer(self, put: _Put, status: PutStatus, now_ms: float) -> None:
        """A put is answered."""
        require_ha(put.status is None, 4, f"the put at {put.start} was answered twice")
        put.status = status
        self.answered[status] += 1
        config = self._master.config
        limit_ms = max(config.slave_timeout, config.sync_flush_timeout) + SLACK_MS
        require_ha(now_ms - put.at_ms <= limit_ms, 4,
                f"the put at {put.start} was answered {status.name} after {now_ms - put.at_ms:.0f} ms")
        if status is PutStatus.PUT_OK:
            self._check_held(put)

    def _check_held(self, put: _Put) -> None:
        holders = [slave.name for slave in self._slaves if self._holds(slave, put)]
        require_ha(len(holders) >= put.needed, 2,
                f"the put at {put.start}..{put.end} was answered PUT_OK; {put.needed} slaves must have it, "
                f"and {', '.join(holders) or 'none'} has")
        if self._master.config.waits_for_disk:
            _, durable = self._master.content(durable=True)
            require_ha(durable[put.start : put.end] == self.history[put.start : put.end], 2,
                    f"the put at {put.start}..{put.end} was answered PUT_OK before the master's disk had it")

    def _holds(self, slave: SimBroker, put: _Put) -> bool:
        held = self.held[slave.name]
        if held.had(put.start, put.end):
            return True
        if not slave.config.waits_for_disk:
            return held.own_begin <= put.start and put.end <= held.own_end
        begin, durable = slave.content(durable=True)
        start = put.start - begin
        return start >= 0 and durable[start : put.end - begin] == self.history[put.start : put.end]

    def overdue(self, now_ms: float, life: int) -> None:
        """H4, for puts without an answer."""
        limit_ms = max(self._master.config.slave_timeout, self._master.config.sync_flush_timeout) + SLACK_MS
        for put in self._puts:
            if put.status is None and put.life == life:
                require_ha(now_ms - put.at_ms <= limit_ms, 4,
                        f"the put at {put.start} is not answered after {now_ms - put.at_ms:.0f} ms")

    def slave_ends(self, slave: SimBroker, *, power: bool) -> None:
        """The slave's process is about to end, or has ended."""
        held = self.held[slave.name]
        held.power_lost = held.power_lost or power

    # -- slaves ---------------------------------------------------------------------------------

    def slave_replaced(self, slave: SimBroker) -> None:
        """The slave has an empty disk while its process is down; its bytes are gone with the last one."""
        self.held[slave.name].lose_disk()

    def resolving(self, slave: SimBroker) -> None:
        """An operator is about to take the slave's log away."""
        self.held[slave.name].is_resolving = True

    def _check_loss(self, slave: SimBroker, held: SlaveKnowledge, *, power_lost: bool = False) -> None:
        """H8."""
        log = slave.log
        if log.broken:
            return  # its numbers mean nothing any more; the next process reads the files
        begin, end = held.shadow_begin, log.end_offset
        was_end = begin + len(held.shadow)
        if end < was_end or log.begin_offset != begin:
            kept = _floor(held.shadow, begin, min(held.reported_offset, was_end))
            if power_lost:
                kept = min(kept, _floor(held.shadow, begin, min(held.flushed_offset, was_end)))
            if self._is_torn(held, end):
                kept = min(kept, end)
            is_lost = kept > begin and end < kept or (log.begin_offset > begin and kept > begin)
            aside = slave.contents_aside()
            is_kept = held.is_resolving and all(
                any(one.get(at) == byte for one in aside)
                for at, byte in enumerate(held.shadow[: kept - begin], begin)
                if not log.begin_offset <= at < end
            )
            require_ha(not is_lost or is_kept, 8,
                       f"{slave.name} held {begin}..{was_end} and had reported {held.reported_offset}; now "
                       f"it holds {log.begin_offset}..{end}, and nothing else has the rest")
            held.shadow_begin = log.begin_offset
            held.shadow = b""
            held.is_resolving = False
            held.reported_offset = min(held.reported_offset, end)
        if power_lost:
            held.shadow = b""
        while (at := held.shadow_begin + len(held.shadow)) < end:
            held.shadow += log.read(at, end - at)

    def _is_torn(self, held: SlaveKnowledge, end: int) -> bool:
        """Whether the slave's record at C{end} was the master's with holes, which its power cut had left."""
        if not 0 <= held.sure_end <= end or not held.shadow_begin <= end:
            return False
        theirs = self.history[end:]
        size, magic = START.unpack_from(theirs.ljust(START_SIZE, b"\0"))
        size = FILE_SIZE - end % FILE_SIZE if magic == MAGIC_BLANK else size
        ours = held.shadow[end - held.shadow_begin :][:size]
        differing = {mine for mine, other in zip(ours, theirs[:size], strict=False) if mine != other}
        return differing == {0}

    def slave_started(self, slave: SimBroker) -> None:
        """A process of the slave has recovered its log."""
        held = self.held[slave.name]
        if held.power_lost:
            flushed = _floor(held.shadow, held.shadow_begin, held.flushed_offset)
            held.sure_end = flushed if held.sure_end < 0 else min(held.sure_end, flushed)
        held.end = held.old_session = -1
        self._check_loss(slave, held, power_lost=held.power_lost)
        if held.power_lost:
            begin, content = slave.content()
            log = content[: slave.log.end_offset - begin]
            same = begin + _common(log, self.history[begin:])
            # The flushed bytes are there, up to the last whole record.
            if same < slave.log.end_offset and same >= self._last_record_end(held.flushed_offset):
                held.is_divergent = True
        held.power_lost = False
        self.slave_event(slave)
        if slave.config.waits_for_disk and not held.is_divergent:
            end = slave.log.end_offset
            promised = self._last_record_end(min(held.promised_offset, len(self.history)))
            # A log that begins after the last whole record holds none of the bytes that were reported.
            require_ha(end >= promised or promised <= held.promised_begin, 5,
                    f"{slave.name} came back with {end} bytes, and has reported {held.promised_offset}")

    def slave_event(self, slave: SimBroker) -> None:
        """Called after every event of a slave."""
        held, log = self.held[slave.name], slave.log
        end = log.end_offset
        if end != held.end:
            self._compare(slave, held, end)
        held.flushed_offset = log.flushed_offset
        reported = slave.service.slave.reported_offset if slave.service.slave is not None else -1
        self._check_loss(slave, held)
        if not held.is_divergent:
            held.sure_end = -1
        held.reported_offset = max(held.reported_offset, min(reported, end))
        if not held.is_divergent and reported > held.promised_offset:
            held.promised_offset = min(reported, held.best_end)
            held.promised_begin = log.begin_offset

    def _compare(self, slave: SimBroker, held: SlaveKnowledge, end: int) -> None:
        log = slave.log
        known = held.end if held.end <= end and not held.is_divergent else 0
        known = max(known, log.begin_offset)
        while known < end:
            piece = log.read(known, end - known)
            expected = self.history[known : known + len(piece)]
            if piece != expected:
                at = known + _common(piece, expected)
                if held.old_session == _session_of(slave) >= 0:
                    held.is_divergent = True
                require_ha(held.is_divergent, 1,
                           f"{slave.name} holds {end} bytes, and at {at} its log is not the master's, which "
                           f"has {len(self.history)}")
                held.end = end
                return
            known += len(piece)
        held.is_divergent = False
        held.end = end
        held.best_end = max(held.best_end, end)
        held.note_own(log.begin_offset, end)

    # -- the end --------------------------------------------------------------------------------

    def is_settled(self) -> bool:
        """Whether all slaves are connected and equal in length to the master."""
        sender = self._master.service.master if self._master.is_open else None
        return sender is not None and len(sender.acks) == len(self._slaves) and all(
            slave.is_open and slave.log.end_offset == len(self.history)
            and not self.held[slave.name].is_divergent
            for slave in self._slaves
        )

    def why_not_settled(self) -> str:
        """The state of all brokers, for people."""
        master = self._master
        if not master.is_open:
            return "the master is not up"
        links = len(master.service.master.acks) if master.service.master is not None else 0
        ends = [f"{slave.name} {slave.log.end_offset if slave.is_open else 'down'}"
                + (" divergent" if self.held[slave.name].is_divergent else "") for slave in self._slaves]
        return f"master {len(self.history)}, {links} connections; {'; '.join(ends)}"

    def judge(self) -> None:
        """Check H6 at the end of a run."""
        require_ha(self.is_settled(), 6, f"the faults are over, and the slaves have not caught up: "
                f"{self.why_not_settled()}")
        content = self._master.content()[1]
        require_ha(content[: len(self.history)] == self.history, 7, "the master's log is not what it was")
        for slave in self._slaves:
            begin, content = slave.content()
            require_ha(content[: len(self.history) - begin] == self.history[begin:], 1,
                    f"{slave.name} is not equal to the master")


def _floor(data: bytes, begin: int, offset: int) -> int:
    """End of the last whole record of a log that ends at or below C{offset}."""
    at = 0
    while at + START_SIZE <= min(len(data), offset - begin):
        size, magic = START.unpack_from(data, at)
        if magic == MAGIC_BLANK:
            size = FILE_SIZE - (begin + at) % FILE_SIZE
        if size <= 0 or begin + at + size > offset:
            break
        at += size
    return begin + at


def _session_of(slave: SimBroker) -> int:
    """Number of the slave's connection; -1 if it is down."""
    follower = slave.service.slave if slave.is_open else None
    return -1 if follower is None else follower.status().sessions


def _common(one: bytes | bytearray, two: bytes | bytearray) -> int:
    """Length of the common prefix."""
    size = min(len(one), len(two))
    if one[:size] == two[:size]:
        return size
    return next(at for at in range(size) if one[at] != two[at])
