# -*- test-case-name: tests.raft_broker.test_service,tests.raft_broker.test_writer -*-
"""
The role of a broker whose log is a raft group: its member's::

    member follows            slave: no messages, no delayed delivery, metadata come from the master
    member leads              still a slave, until all entries are committed and dispatched
    ... and that is so        queue offsets are taken from the queues, then master

Rule 1: a broker is a master only while its member leads the term in which it became one. It ceases in the
step in which the member loses leadership: no message gets a queue offset after that.
Rule 2: changes of role are carried out one after the other, in turns of their own.

Messages are appended by a L{LogWriter} of its own: a message is one entry. The messages of one put are one
append of the member, so a batch is written as a whole, at places that are known when the member has written
it. The producer is answered when a majority has the last of them.

Rule 3: nothing that may be in the log is answered like something that is not. No answer says that a message
is stored while it may be lost (RocketMQ's codes 10, 11 and 12).

Source: DLedgerRoleChangeHandler (4.9.8, 5.3.3), DLedgerCommitLog.asyncPutMessage, asyncPutMessages (4.9.8).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from twisted.internet.defer import Deferred, succeed
from twisted.internet.interfaces import IDelayedCall
from twisted.logger import Logger
from twisted.python.failure import Failure

from dledger.node.node import Node
from dledger.node.requests.appends import AppendResult
from dledger.raft_broker.metadata_log import MetadataLog
from dledger.raft_broker.queue_ends import QueueEnds
from dledger.raft_broker.raft_log import RaftLog
from dledger.raft_broker.stamps import MessageStamps, PutPlaces, UnplacedRecord
from dledger.raft_broker.store import RaftStore
from dledger.raft_broker.topic_offers import TopicOffers
from dledger.rocketmq.broker.options.role import MASTER_ID
from dledger.rocketmq.broker.producing.puts import LogWriter, NotPut, Put
from dledger.rocketmq.broker.replication import Replication
from dledger.rocketmq.broker.surroundings import ReplicationNeeds
from dledger.rocketmq.metadata.slave_synchronize import OwnLog, SlaveSynchronize
from dledger.rocketmq.replication.put_status import PutStatus
from dledger.rocketmq.store.records.plain_records import Placed, PlainMessage
from dledger.rocketmq.store.records.records import NewMessage, size_of
from dledger.values.errors import DLedgerError, StoreError
from protocols.wire.checksums import crc32
from protocols.wire.codes import ResponseCode
from protocols.wire.rocketmq.layout import PROPERTIES_LENGTH, TOPIC_BYTES_MAX

#: Codes of appends that are certainly not in the log.
_NOT_STORED = {
    ResponseCode.NOT_LEADER: PutStatus.SERVICE_NOT_AVAILABLE,
    ResponseCode.LEADER_TRANSFERRING: PutStatus.SERVICE_NOT_AVAILABLE,
    ResponseCode.DISK_FULL: PutStatus.SERVICE_NOT_AVAILABLE,
    ResponseCode.INCONSISTENT_STATE: PutStatus.SERVICE_NOT_AVAILABLE,
    ResponseCode.LEADER_PENDING_FULL: PutStatus.OS_PAGE_CACHE_BUSY,
}


def unplaced(message: PlainMessage, now_ms: int, place: PutPlaces) -> UnplacedRecord:
    """The record of a message, without its offsets, which C{place} will receive."""
    form, queue_id, born_timestamp, properties, body, _ = message
    body_size, properties_size = len(body), len(properties)
    record = UnplacedRecord(b"".join((
        form.fixed.pack(
            form.overhead + body_size + properties_size, form.magic, crc32(body) & 0x7FFFFFFF, queue_id,
            form.flag, 0, 0, form.sys_flag, born_timestamp, *form.before, now_ms, *form.after, body_size,
        ),
        body, form.topic_part, PROPERTIES_LENGTH.pack(properties_size), properties,
    )))
    record.queue = (form.topic, queue_id) if form.is_queued else None
    record.place = place
    return record


class RaftWriter:
    """Writes the messages of a broker into the ledger of its member (L{LogWriter})."""

    log = Logger()
    always_waits = True
    topic_characters_max = TOPIC_BYTES_MAX[1]

    def __init__(
        self, node: Node, stamps: MessageStamps, *, body_bytes_max: int, message_bytes_max: int,
        before: Callable[[], None],
    ) -> None:
        """
        @param before: called before an append: its topics may have to go first.
        @param stamps: open while this broker is the master.
        @param body_bytes_max: of a record, as the ledger takes it.
        @param message_bytes_max: of the body of a message.
        """
        self._node = node
        self._stamps = stamps
        self._body_bytes_max = self.together_bytes_max = body_bytes_max
        self._message_bytes_max = message_bytes_max
        self._before = before

    def refusal(self) -> NotPut | None:
        """See L{LogWriter.refusal}."""
        if not self._stamps.is_open:
            return NotPut(PutStatus.SERVICE_NOT_AVAILABLE, "messages are put to the slave")
        return None

    def check(self, messages: Sequence[NewMessage], *, are_copies: bool = False) -> int:
        """See L{LogWriter.check}."""
        total = 0
        for message in messages:
            if len(message.body) > self._message_bytes_max and not are_copies:
                raise ValueError(f"body of {len(message.body)} bytes; max_message_size="
                                 f"{self._message_bytes_max}")
            if b"\0" in message.properties_data or "\0" in message.topic:
                raise ValueError("a zero byte in the topic or properties")
            size = size_of(message)
            if len(message.topic.encode()) > TOPIC_BYTES_MAX[1]:
                raise ValueError(f"topic of {len(message.topic.encode())} bytes; {TOPIC_BYTES_MAX[1]} are "
                                 "allowed: members of RocketMQ 4.9 cannot read a longer one")
            if size > self._body_bytes_max:
                raise ValueError(
                    f"a record of {size} bytes; an entry of the log takes {self._body_bytes_max}"
                )
            total += size
        return total

    def append(self, messages: Sequence[PlainMessage], now_ms: int, *, waits: bool) -> Put:
        """See L{LogWriter.append}. Never raises; the result reports a refusal."""
        place = PutPlaces()
        placed = Placed(place.offsets, place.queue_offsets, 0, now_ms)
        bodies = [unplaced(message, now_ms, place) for message in messages]
        self._before()
        done = self._node.append(bodies).addCallbacks(_committed, self._not_committed)
        return Put(placed, done, is_placed=False)

    def _not_committed(self, failure: Failure) -> PutStatus:
        error = failure.value
        if isinstance(error, DLedgerError):
            return _NOT_STORED.get(error.code, PutStatus.UNKNOWN_ERROR)
        self.log.failure("an append failed", failure)
        return PutStatus.UNKNOWN_ERROR


def _committed(_: AppendResult) -> PutStatus:
    return PutStatus.PUT_OK


#: The role of a leader for name servers and tools, as in RocketMQ.
LEADER_ROLE = "SYNC_MASTER"
FOLLOWER_ROLE = "SLAVE"

#: Seconds between two copies of the master's metadata: what is newer may be forgotten by the next master.
SYNCHRONIZE_S = 3.0

#: Seconds between two looks whether a new leader may become master; dispatching makes no call.
LOOK_S = 0.02


class RaftReplication(Replication):
    """
    That of the ledger of a member. The member deletes old files itself, and its pages show the raft group.

    Invariant: C{config.role} is a master's only while C{stamps} are open.

    @ivar synchronize: copies the master's metadata while this broker is a slave.
    @ivar stamps: gives messages their queue offsets; open while this broker takes them.
    """

    events = Logger()

    def __init__(
        self, store: RaftStore, node: Node, stamps: MessageStamps, needs: ReplicationNeeds, *,
        body_bytes_max: int,
    ) -> None:
        inside, around = needs.inside, needs.around
        config, metadata = inside.config, inside.metadata
        self._store = store
        self._log: RaftLog = store.log
        self._node = node
        self.stamps = stamps
        self._role = config.role
        self._config = config
        self._clock = around.reactor
        self._failed = around.failed
        self._notify = needs.events
        self._call: IDelayedCall | None = None
        self._is_running = False
        self._logged_term = -1
        self._begin_offset = self._log.begin_offset
        self._writer = RaftWriter(
            node, stamps, body_bytes_max=body_bytes_max,
            message_bytes_max=config.store.max_message_size, before=lambda: self.metadata.topics_first(),
        )
        offers = TopicOffers(
            store, metadata.topics, needs.client, wall_ms=inside.wall_ms,
            queue_nums=config.default_topic_queue_nums,
        )
        self.synchronize = SlaveSynchronize(
            metadata, needs.client, own_address=lambda: inside.own.text, clock=around.reactor,
            run_in_thread=around.run_in_thread, interval_s=SYNCHRONIZE_S, own_log=OwnLog(
                local_topics=needs.kept_topics, is_stopped=lambda: self._is_carried,
            ), topics_copied=offers.copied,
        )
        self.metadata = MetadataLog(
            metadata, node, around.reactor, wall_ms=inside.wall_ms, body_bytes_max=body_bytes_max,
            ends=QueueEnds(store.queues, lambda: stamps.queue_offsets),
        )

    # -- the member ------------------------------------------------------------------------------

    def committed(self) -> None:
        """More entries are committed. Called in the middle of a step of the member."""
        if self._log.committed(self._node.committed_index):
            self._notify.grown()
        if self._node.is_leader and self._role.is_slave:
            self._look_soon(0)

    def role_changed(self) -> None:
        """The member has another role, term or leader. Called in the middle of a step of the member."""
        self.stamps.close()
        self.metadata.is_open = False
        self._look_soon(0)

    def _look_soon(self, wait_s: float) -> None:
        if not self._is_running:
            return
        if self._call is not None and self._call.active():
            if wait_s or self._call.getTime() <= self._clock.seconds():
                return
            self._call.cancel()
        self._call = self._clock.callLater(wait_s, self._look)

    def _look(self) -> None:
        """Take the role that the member has now."""
        self._call = None
        if not self._is_running:
            return
        try:
            if not self._role.is_slave and not self.stamps.is_open:
                self._become_slave()
            if not self._node.is_leader:
                return
            self._log.committed(self._node.committed_index)
            if self._role.is_slave and self._may_be_master():
                self._become_master()
            elif self._role.is_slave:
                self._store.reput.wake()
                self._look_soon(LOOK_S)
        except (StoreError, OSError) as error:
            self.events.failure("the change of role failed", Failure())
            self._failed(f"the change of role failed: {error}")

    def _may_be_master(self) -> bool:
        is_dispatched = self._store.reput.offset >= self._log.ledger_end
        return self._store.is_ready and self._node.is_settled_leader and is_dispatched

    def _become_master(self) -> None:
        self.synchronize.stop()
        self.stamps.open(self._store.queues.next_indexes())
        self._role.become(LEADER_ROLE, MASTER_ID)
        self.events.info(
            "{name} is the master now: its member leads, and its {end} bytes are committed and dispatched",
            name=self._config.broker_name, end=self._log.record_end,
        )
        self.metadata.begin(self._log.ledger_end)
        self._notify.role_changed()

    def _become_slave(self) -> None:
        self.metadata.cease()
        self._role.become(FOLLOWER_ROLE, self._config.raft.slave_id)
        self.events.info("{name} is a slave now: its member does not lead", name=self._config.broker_name)
        self.synchronize.master_address = None
        self.synchronize.start()
        self._notify.role_changed()

    # -- Replication -----------------------------------------------------------------------------

    @property
    def following(self) -> RaftReplication:
        return self

    @property
    def writer(self) -> LogWriter:
        return self._writer

    @property
    def is_running(self) -> bool:
        return self._is_running

    @property
    def port(self) -> int:
        """See L{dledger.rocketmq.broker.replication.Replication}. RocketMQ registers it in this mode, too."""
        return self._config.ha_port

    def grown(self) -> bool:
        return False

    def start(self) -> None:
        self._is_running = True
        self._log.committed(self._node.committed_index)
        self._store.reput.wake()
        self._look_soon(0)

    def follow(self) -> None:
        """See L{dledger.rocketmq.broker.replication.Follows}: copies the master's metadata."""
        if self._role.is_slave:
            self.synchronize.start()

    def unfollow(self) -> None:
        """See L{dledger.rocketmq.broker.replication.Follows}."""
        self.synchronize.stop()

    def stop(self) -> Deferred[None]:
        self._is_running = False
        self.stamps.close()
        self.metadata.cease()
        if self._call is not None and self._call.active():
            self._call.cancel()
        self._call = None
        return succeed(None)

    def tick(self) -> None:
        """
        See L{dledger.rocketmq.broker.replication.Replication}. The member deletes files; the queues follow.
        """
        self._log.committed(self._node.committed_index)
        self.metadata.tick(self._log.begin_offset, self._log.ledger_end)
        if self._log.begin_offset != self._begin_offset:
            self._begin_offset = self._log.begin_offset
            try:
                self._store.expire_queues()
            except StoreError as error:
                self._failed(f"house-keeping: {error}")

    @property
    def _is_carried(self) -> bool:
        """Whether the master carries its metadata in the log. One of RocketMQ does not: its are copied."""
        return self._logged_term == self._node.term

    def metadata_logged(self, record: bytes, offset: int, term: int, *, is_kept: bool) -> None:
        if self.metadata.is_open or not self.metadata.apply(record, offset, is_kept=is_kept):
            return
        if not is_kept:
            self._logged_term = max(self._logged_term, term)

    def settled(self) -> Deferred[None]:
        return self.metadata.settled()

    def learned(self, master: str | None, ha_address: str | None) -> None:
        """See L{dledger.rocketmq.broker.replication.Follows}."""
        if master and self.synchronize.master_address != master:
            self.events.info("the master is at {address}", address=master)
            self.synchronize.master_address = master

    def seeks_master(self) -> bool:
        """
        See L{dledger.rocketmq.broker.replication.Follows}. The address may be that of a lost leader.
        """
        if not self._role.is_slave or self._is_carried:
            return False
        last = self.synchronize.last
        return self.synchronize.master_address is None or last is None or bool(last.failed)


