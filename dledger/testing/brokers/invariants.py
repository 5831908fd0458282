# -*- test-case-name: tests.sim.test_replicated_logs -*-
"""
The promises of replication, checked after every event of every simulated broker while one is the master.

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

import math
from collections.abc import Mapping

import attrs

from dledger.rocketmq.broker.replication import HAReplication
from dledger.rocketmq.replication.config import ANY_SLAVE, HAConfig
from dledger.rocketmq.replication.put_status import PutStatus
from dledger.rocketmq.replication.service import HAService
from dledger.rocketmq.store.log.commit_log import CommitLog
from dledger.rocketmq.store.records.set_aside import directories
from dledger.testing.brokers.rig.machine import BrokerMachine
from dledger.testing.world.host import MachineDisk
from protocols.wire.rocketmq.layout import MAGIC_BLANK, START, START_SIZE

LOG_PATH = "/store/commitlog"
#: Tolerance for deadlines: their granularity, and the time of a turn.
SLACK_MS = 400


class HAInvariantError(AssertionError):
    """A promise was broken. The message begins with its number."""


def require_ha(condition: bool, number: int, sentence: str) -> None:
    """@raise HAInvariantError: C{condition} is false."""
    if not condition:
        raise HAInvariantError(f"H{number}: {sentence}")


@attrs.define(eq=False)
class WatchedPut:
    """A put at the master. @ivar boot: number of the process; -1: nobody waits for an answer."""

    start: int
    end: int
    needed: int
    at_ms: float
    boot: int
    status: PutStatus | None = None


@attrs.define(eq=False)
class SlaveKnowledge:
    """
    What the checks of replication know of one slave.

    @ivar end: its log was compared up to here; -1: not yet since its process started.
    @ivar best_end: highest end that it reached in the master's present log.
    @ivar own_begin, own_end: what its present log has had of that; C{earlier}: what its logs of before had.
    @ivar promised_offset: the highest correct report.
    @ivar promised_begin: the beginning of its log at that report.
    @ivar flushed_offset: of its log, as last seen.
    @ivar power_lost: its unflushed bytes may be lost or damaged.
    @ivar old_session: the connection that may still carry bytes that its master has lost; -1: none.
    @ivar is_divergent: its log may differ: see H1.
    @ivar shadow: the content of its log, from C{shadow_begin} on, as last seen.
    @ivar reported_offset: the highest report of any of its processes, below the end of its log.
    @ivar is_resolving: an operator takes its log away at present.
    @ivar sure_end: before a power cut it had flushed its log up to here, and since then the log was not equal
        to the master's; -1: there was none, or it was.
    """

    end: int = -1
    best_end: int = 0
    own_begin: int = 0
    own_end: int = 0
    earlier: list[tuple[int, int]] = attrs.Factory(list)
    flushed_offset: int = 0
    power_lost: bool = False
    old_session: int = -1
    promised_offset: int = 0
    promised_begin: int = 0
    is_divergent: bool = False
    shadow: bytes = b""
    shadow_begin: int = 0
    reported_offset: int = 0
    is_resolving: bool = False
    sure_end: int = -1

    def note_own(self, begin: int, end: int) -> None:
        """Its log, from C{begin} on, was the master's up to C{end}."""
        if begin != self.own_begin:
            self._another_log()
            self.own_begin = begin
        self.own_end = max(self.own_end, end)

    def _another_log(self) -> None:
        """Its log begins anew. A report of before may still be under way."""
        self.earlier.append((self.own_begin, self.own_end))
        self.own_end = 0

    def lose_disk(self) -> None:
        """It has an empty disk; its log, which it has reported, is gone with the last one."""
        self._another_log()
        self.end = self.old_session = self.sure_end = -1
        self.promised_offset = self.promised_begin = self.flushed_offset = self.reported_offset = 0
        self.best_end = 0
        self.shadow = b""
        self.shadow_begin = 0
        self.power_lost = self.is_divergent = self.is_resolving = False

    def lost_from(self, offset: int) -> None:
        """The master has lost its log from here on."""
        self.own_end = min(self.own_end, offset)
        self.earlier = [(begin, min(end, offset)) for begin, end in self.earlier]

    def had(self, start: int, end: int) -> bool:
        """Whether a log of before had these bytes."""
        return any(begin <= start and end <= its_end for begin, its_end in self.earlier)


def needed_at_least(config: HAConfig) -> int:
    """Least number of slaves that must hold a put before it may be answered with success."""
    if not config.waits_for_slaves:
        return 0
    if config.sync_rule == ANY_SLAVE:
        return 1
    replicas = config.min_in_sync_replicas if config.enable_auto_in_sync_replicas else config.in_sync_replicas
    return replicas - 1


def content_of(disk: MachineDisk, start: int = 0, end: int = 1 << 63, *, durable: bool = False
               ) -> tuple[int, bytes]:
    """
    Where the files of a log begin, and all their bytes, as they are read or as they would survive.

    @param start, end: leave out files that are before or after this range.
    """
    names = [name for name in disk.listdir(LOG_PATH) if name.isdecimal()] if disk.exists(LOG_PATH) else []
    ends = map(int, (*names[1:], str(1 << 63)))
    names = [name for name, its_end in zip(names, ends, strict=False) if its_end > start and int(name) < end]
    begin, found = int(names[0]) if names else 0, bytearray()
    for name in names:
        path = f"{LOG_PATH}/{name}"
        data = (disk.durable_content(path) or b"") if durable else disk.cached_content(path)
        found = found.ljust(int(name) - begin, b"\0") + data
    return begin, bytes(found)


def _has(disk: MachineDisk, start: int, data: bytes | bytearray) -> bool:
    """Whether these bytes of a log would survive."""
    begin, content = content_of(disk, start, start + len(data), durable=True)
    return begin <= start and content[start - begin :][: len(data)] == data


def _contents_aside(disk: MachineDisk) -> list[dict[int, int]]:
    """The bytes by offset that were set aside, for each directory; two may have the same offsets."""
    found: list[dict[int, int]] = []
    for directory in directories(disk, LOG_PATH):
        found.append({})
        for name in disk.listdir(directory):
            found[-1].update(enumerate(disk.cached_content(f"{directory}/{name}"), int(name)))
    return found


def log_of(machine: BrokerMachine) -> CommitLog:
    """Of its running process."""
    assert machine.parts is not None
    log = machine.parts.store.log
    assert isinstance(log, CommitLog)
    return log


def _service_of(machine: BrokerMachine) -> HAService:
    """The replication of its running process."""
    assert machine.parts is not None
    assert isinstance(machine.parts.replication, HAReplication)
    return machine.parts.replication.ha


class HAInvariants:
    """
    @ivar history: the master's log from 0 on.
    @ivar held: what is known of each slave, by its name.
    @ivar answered: puts by status.
    @ivar mended: number of damaged records of the master that were replaced by copies of slaves.
    """

    def __init__(
        self, master: BrokerMachine, slaves: list[BrokerMachine], configs: Mapping[str, HAConfig], *,
        are_equal: bool = True,
    ) -> None:
        """
        @param configs: of all of them, by their names.
        @param are_equal: no slave has bytes yet that the master has not.
        """
        self._master = master
        self._slaves = slaves
        self._configs = configs
        self._config = configs[master.name]
        self.held = {slave.name: SlaveKnowledge(is_divergent=not are_equal) for slave in slaves}
        self._puts: list[WatchedPut] = []
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
        return not self._config.ha_transfer_flushed_only

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
        content = content_of(self._master.disk)[1]
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
        self.master_appended()
        self._flushed_offset = log_of(self._master).flushed_offset

    def master_appended(self) -> None:
        """The master's log has grown."""
        log = log_of(self._master)
        while len(self.history) < log.end_offset:
            self.history += log.read(len(self.history), 1 << 20)

    def master_started(self) -> None:
        """A process of the master has recovered the log."""
        end = log_of(self._master).end_offset
        self.forget_mended()
        self._copies.clear()
        # After a mark that a power cut has set back, a start ends the log at a damaged record.
        self._was_replaced = self._was_replaced or bool(self._flips)
        self._flips = {at: mask for at, mask in self._flips.items() if at < end}
        content = self._repaired(content_of(self._master.disk)[1][:end])
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
        self._flushed_offset = log_of(self._master).flushed_offset
        self._check_kept()
        self._was_replaced = False

    def _check_kept(self) -> None:
        """H3; forget the puts that a power cut may have taken."""
        waits_for_disk = self._config.waits_for_disk
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

    def put(self, start: int, end: int, now_ms: float, *, waits: bool = True) -> WatchedPut:
        """The master has stored messages and now asks for their replication; or nobody waits for it."""
        needed, boot = needed_at_least(self._config), self._master.boots if waits else -1
        put = WatchedPut(start, end, needed, now_ms, boot)
        self._puts.append(put)
        return put

    def answer(self, put: WatchedPut, status: PutStatus, now_ms: float) -> None:
        """A put is answered."""
        require_ha(put.status is None, 4, f"the put at {put.start} was answered twice")
        put.status = status
        self.answered[status] += 1
        config = self._config
        limit_ms = max(config.slave_timeout, config.sync_flush_timeout) + SLACK_MS
        require_ha(now_ms - put.at_ms <= limit_ms, 4,
                f"the put at {put.start} was answered {status.name} after {now_ms - put.at_ms:.0f} ms")
        if status is PutStatus.PUT_OK:
            self._check_held(put)

    def _check_held(self, put: WatchedPut) -> None:
        holders = [slave.name for slave in self._slaves if self._holds(slave, put)]
        require_ha(len(holders) >= put.needed, 2,
                f"the put at {put.start}..{put.end} was answered PUT_OK; {put.needed} slaves must have it, "
                f"and {', '.join(holders) or 'none'} has")
        if self._config.waits_for_disk:
            require_ha(_has(self._master.disk, put.start, self.history[put.start : put.end]), 2,
                    f"the put at {put.start}..{put.end} was answered PUT_OK before the master's disk had it")

    def _holds(self, slave: BrokerMachine, put: WatchedPut) -> bool:
        held = self.held[slave.name]
        if held.had(put.start, put.end):
            return True
        if not self._configs[slave.name].waits_for_disk:
            return held.own_begin <= put.start and put.end <= held.own_end
        return _has(slave.disk, put.start, self.history[put.start : put.end])

    def excuse(self) -> None:
        """The master is frozen for a time: puts that wait now may be answered at any later time."""
        for put in self._puts:
            put.at_ms = math.inf

    def overdue(self, now_ms: float) -> None:
        """H4, for puts of the running master without an answer."""
        limit_ms = max(self._config.slave_timeout, self._config.sync_flush_timeout) + SLACK_MS
        for put in self._puts:
            if put.status is None and put.boot == self._master.boots and self._master.parts is not None:
                require_ha(now_ms - put.at_ms <= limit_ms, 4,
                        f"the put at {put.start} is not answered after {now_ms - put.at_ms:.0f} ms")

    def slave_ends(self, slave: BrokerMachine, *, power: bool) -> None:
        """The slave's process is about to end, or has ended."""
        held = self.held[slave.name]
        held.power_lost = held.power_lost or power

    # -- slaves ---------------------------------------------------------------------------------

    def slave_replaced(self, slave: BrokerMachine) -> None:
        """The slave has an empty disk while its process is down; its bytes are gone with the last one."""
        self.held[slave.name].lose_disk()

    def resolving(self, slave: BrokerMachine) -> None:
        """An operator is about to take the slave's log away."""
        self.held[slave.name].is_resolving = True

    def _check_loss(self, slave: BrokerMachine, held: SlaveKnowledge, *, power_lost: bool = False) -> None:
        """H8."""
        log = log_of(slave)
        if log.broken:
            return  # its numbers mean nothing any more; the next process reads the files
        begin, end = held.shadow_begin, log.end_offset
        was_end = begin + len(held.shadow)
        if end < was_end or log.begin_offset != begin:
            kept = _floor(held.shadow, begin, min(held.reported_offset, was_end), log.file_size)
            if power_lost:
                flushed = min(held.flushed_offset, was_end)
                kept = min(kept, _floor(held.shadow, begin, flushed, log.file_size))
            if self._is_torn(slave, held, end) or self._is_blank(held, end, kept, log.file_size):
                kept = min(kept, end)
            is_lost = kept > begin and end < kept or (log.begin_offset > begin and kept > begin)
            aside = _contents_aside(slave.disk)
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

    @staticmethod
    def _is_blank(held: SlaveKnowledge, end: int, kept: int, file_size: int) -> bool:
        """Whether only a blank lay between C{end} and C{kept}: the rest of a file, without any message."""
        if not held.shadow_begin <= end < kept <= end - end % file_size + file_size:
            return False
        _, magic = START.unpack_from(bytes(held.shadow[end - held.shadow_begin :]).ljust(START_SIZE, b"\0"))
        return bool(magic == MAGIC_BLANK)

    def _is_torn(self, slave: BrokerMachine, held: SlaveKnowledge, end: int) -> bool:
        """Whether the slave's record at C{end} was the master's with holes, which its power cut had left."""
        if not 0 <= held.sure_end <= end or not held.shadow_begin <= end:
            return False
        theirs = self.history[end:]
        size, magic = START.unpack_from(theirs.ljust(START_SIZE, b"\0"))
        file_size = log_of(slave).file_size
        size = file_size - end % file_size if magic == MAGIC_BLANK else size
        ours = held.shadow[end - held.shadow_begin :][:size]
        differing = {mine for mine, other in zip(ours, theirs[:size], strict=False) if mine != other}
        return differing == {0}

    def slave_started(self, slave: BrokerMachine) -> None:
        """A process of the slave has recovered its log."""
        held = self.held[slave.name]
        if held.power_lost:
            flushed = _floor(
                held.shadow, held.shadow_begin, held.flushed_offset, log_of(slave).file_size
            )
            held.sure_end = flushed if held.sure_end < 0 else min(held.sure_end, flushed)
        held.end = held.old_session = -1
        self._check_loss(slave, held, power_lost=held.power_lost)
        if held.power_lost:
            begin, content = content_of(slave.disk)
            log = content[: log_of(slave).end_offset - begin]
            same = begin + _common(log, self.history[begin:])
            # The flushed bytes are there, up to the last whole record.
            if same < log_of(slave).end_offset and same >= self._last_record_end(held.flushed_offset):
                held.is_divergent = True
        held.power_lost = False
        self.slave_event(slave)
        if self._configs[slave.name].waits_for_disk and not held.is_divergent:
            end = log_of(slave).end_offset
            promised = self._last_record_end(min(held.promised_offset, len(self.history)))
            # A log that begins after the last whole record holds none of the bytes that were reported.
            require_ha(end >= promised or promised <= held.promised_begin, 5,
                    f"{slave.name} came back with {end} bytes, and has reported {held.promised_offset}")

    def slave_event(self, slave: BrokerMachine) -> None:
        """Called after every event of a slave."""
        held, log = self.held[slave.name], log_of(slave)
        end = log.end_offset
        if end != held.end:
            self._compare(slave, held, end)
        held.flushed_offset = log.flushed_offset
        follower = _service_of(slave).slave
        reported = follower.reported_offset if follower is not None else -1
        self._check_loss(slave, held)
        if not held.is_divergent:
            held.sure_end = -1
        held.reported_offset = max(held.reported_offset, min(reported, end))
        if not held.is_divergent and reported > held.promised_offset:
            held.promised_offset = min(reported, held.best_end)
            held.promised_begin = log.begin_offset

    def _compare(self, slave: BrokerMachine, held: SlaveKnowledge, end: int) -> None:
        log = log_of(slave)
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
        master = self._master
        sender = _service_of(master).master if master.parts is not None else None
        return sender is not None and len(sender.acks) == len(self._slaves) and all(
            slave.parts is not None and log_of(slave).end_offset == len(self.history)
            and not self.held[slave.name].is_divergent
            for slave in self._slaves
        )

    def why_not_settled(self) -> str:
        """The state of all brokers, for people."""
        master = self._master
        if master.parts is None:
            return "the master is not up"
        sender = _service_of(master).master
        links = len(sender.acks) if sender is not None else 0
        ends = [f"{slave.name} {log_of(slave).end_offset if slave.parts is not None else 'down'}"
                + (" divergent" if self.held[slave.name].is_divergent else "") for slave in self._slaves]
        return f"master {len(self.history)}, {links} connections; {'; '.join(ends)}"

    def judge(self) -> None:
        """Check H6 at the end of a run."""
        require_ha(self.is_settled(), 6, f"the faults are over, and the slaves have not caught up: "
                f"{self.why_not_settled()}")
        content = content_of(self._master.disk)[1]
        require_ha(content[: len(self.history)] == self.history, 7, "the master's log is not what it was")
        for slave in self._slaves:
            begin, content = content_of(slave.disk)
            require_ha(content[: len(self.history) - begin] == self.history[begin:], 1,
                    f"{slave.name} is not equal to the master")


def _floor(data: bytes, begin: int, offset: int, file_size: int) -> int:
    """End of the last whole record of a log that ends at or below C{offset}."""
    at = 0
    while at + START_SIZE <= min(len(data), offset - begin):
        size, magic = START.unpack_from(data, at)
        if magic == MAGIC_BLANK:
            size = file_size - (begin + at) % file_size
        if size <= 0 or begin + at + size > offset:
            break
        at += size
    return begin + at


def _session_of(slave: BrokerMachine) -> int:
    """Number of the slave's connection; -1 if it is down."""
    follower = _service_of(slave).slave if slave.parts is not None else None
    return -1 if follower is None else follower.status().sessions


def _common(one: bytes | bytearray, two: bytes | bytearray) -> int:
    """Length of the common prefix."""
    size = min(len(one), len(two))
    if one[:size] == two[:size]:
        return size
    return next(at for at in range(size) if one[at] != two[at])
