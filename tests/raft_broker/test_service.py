# -*- test-case-name: tests.raft_broker.test_service -*-
"""A whole broker on a raft log, alone in its group: how it starts, serves, changes its role, and ends."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from unittest import mock

from twisted.internet.defer import Deferred, succeed

from dledger.base.tracing.spans import write_context
from dledger.core.state import inputs as ev
from dledger.rocketmq.broker.options.config import broker_from_mapping
from dledger.rocketmq.broker.producing.puts import Put
from dledger.rocketmq.metadata.tables import TopicConfig
from dledger.rocketmq.replication.put_status import PutStatus
from dledger.rocketmq.store.records.plain_records import Placed
from dledger.testing.world.memory_disk import MemoryDisk
from dledger.values.errors import StoreError
from protocols.wire.codes import ResponseCode
from protocols.wire.remoting import RemotingCommand
from protocols.wire.rocketmq.layout import TERM_START_TOPIC
from protocols.wire.rocketmq.message import decode_message
from tests.base.reported_spans import ReportedSpans
from tests.broker.consuming.test_commits import ROAD_FIELDS, ROADS, road_of
from tests.broker.send_support import send_of
from tests.broker.sending.test_plain_sends import java, length_word
from tests.broker.support import message, plain
from tests.broker.test_service import WALL_S
from tests.protocols.fakes import plug, sent_commands
from tests.raft_broker.rig import FILE_SIZE, LedgerOfMessages, RaftCase

DELAYED = {"properties": "DELAY\x011\x02"}


class LifeTests(RaftCase):
    """From the start to the end."""

    def test_a_broker_lives_and_restarts(self) -> None:
        """It becomes master, takes messages, gives them, stops in order, and has them at the next start."""
        self.start()
        self.assertFalse(self.broker.config.role.is_slave)
        asked = self.ask(send_of(b"one", opaque=1), send_of(b"two", opaque=2))
        answers = sorted(asked, key=lambda one: one.opaque)
        self.assertEqual([(one.opaque, one.code) for one in answers], [(1, 0), (2, 0)])
        self.assertEqual([one.ext_fields["queueOffset"] for one in answers], ["0", "1"])
        self.assertIn(b"two", self.pull().body)
        self.stop()
        self.assertTrue(all(one.port.is_stopped for one in self.endpoints))
        self.assertFalse(self.disk.exists("base/abort"))
        self.assertEqual(self.reasons, [])
        self.start()
        self.assertIn(b"two", self.pull().body)
        (answer,) = self.ask(send_of(b"three"))
        self.assertEqual(answer.ext_fields["queueOffset"], "2")
        self.stop()

    def test_the_member_decides_about_the_log(self) -> None:
        """Its member decides about the log; its pages hand leadership over as the member does."""
        self.start()
        self.assertIsNone(self.service.acts)
        answer = self.successResultOf(self.raft.transfer("n9"))
        self.assertIsNot(answer.code, ResponseCode.SUCCESS)
        self.stop()

    def test_changes_reach_the_log_soon(self) -> None:
        """A change of metadata that nobody waits for is in the log within some seconds."""
        self.start()
        self.settle(3)
        before = self.node.committed_index
        self.settle(3)
        self.assertEqual(self.node.committed_index, before)
        self.broker.metadata.topics.put(TopicConfig(topic_name="later"), 1)
        self.settle(3)
        self.assertEqual(self.node.committed_index, before + 1)
        self.stop()

    def test_queues_follow_the_log(self) -> None:
        """They expire once after the begin of the log has moved, not at every tick."""
        self.start()
        calls: list[int] = []
        store = self.broker.store
        self.patch(store, "expire_queues", lambda: calls.append(store.log.begin_offset))
        self.replication.tick()
        self.assertEqual(calls, [])
        self.patch(self.replication, "_begin_offset", -1)
        self.replication.tick()
        self.replication.tick()
        self.assertEqual(calls, [store.log.begin_offset])
        self.stop()

    def test_a_raft_log_is_not_cut(self) -> None:
        """Only committed messages are dispatched: no queue of a running broker could have to follow a cut."""
        self.start()
        self.assertRaises(AssertionError, self.broker.cut, 0)
        self.stop()

    def test_entries_wait_for_their_queues(self) -> None:
        """Old entries expire when their units are on stable storage: their queues could not go on else."""
        self.disk = MemoryDisk(modified_s=0)
        self.start(fileReservedTime=1)
        self.ask(*[send_of(bytes(900), opaque=number) for number in range(20)])
        with mock.patch.object(self.broker.store, "checkpoint", return_value=succeed(None)):
            self.settle(30)
            self.assertEqual(self.raft.member.store.ledger_begin_index, 0)
        self.settle(60)
        self.assertGreater(self.raft.member.store.ledger_begin_index, 0)
        self.stop()

    def test_a_send_is_traced_to_its_consumer(self) -> None:
        """A send waits for the member's majority; its consumer is in the same trace; all spans end."""
        reported = ReportedSpans()
        self.make().trace_with(reported)
        self.raft.startService()
        self.settle(2.0)
        (answer,) = self.ask(send_of(b"one"))
        self.assertEqual(reported.shown(), ["send - PUT_OK", "store send proposed", "replicate send PUT_OK"])
        offset = int(answer.ext_fields["msgId"][16:], 16)
        self.assertEqual(reported.all[0].facts["offset"], offset)
        message = decode_message(self.pull().body)
        self.assertEqual(message.properties["traceparent"], write_context(reported.all[0].context))
        (deliver,) = reported.named("deliver")
        self.assertEqual(deliver.parent, reported.all[0].context)
        self.stop()
        self.assertEqual({one.ends for one in reported.all}, {1})

    def test_a_message_is_at_its_offset(self) -> None:
        """A message is at the offset in its producer's answer, and says so itself; its id leads to it."""
        self.start()
        (answer,) = self.ask(send_of(b"one"))
        offset = int(answer.ext_fields["msgId"][16:], 16)
        message = decode_message(self.pull().body)
        self.assertEqual((message.physical_offset, message.queue_offset, message.body), (offset, 0, b"one"))
        store = self.raft.member.store
        self.assertEqual(offset, store.position_of(store.ledger_end_index) + 48)
        (found,) = self.ask(RemotingCommand(code=33, opaque=1, ext_fields={"offset": str(offset)}))
        self.assertEqual((found.code, found.body), (0, self.pull().body))
        self.stop()

    def test_a_transaction_commits_its_message(self) -> None:
        """A half message is committed: the offsets that its producer was informed lead to it."""
        self.start()
        named = "TRAN_MSG\x01true\x02UNIQ_KEY\x01K\x02PGROUP\x01P\x02"
        (answer,) = self.ask(send_of(b"paid", properties=named, sysFlag=4))
        self.assertEqual((answer.code, answer.ext_fields["transactionId"]), (0, "K"))
        (ended,) = self.ask(RemotingCommand(code=37, opaque=1, ext_fields={
            "producerGroup": "P", "tranStateTableOffset": answer.ext_fields["queueOffset"],
            "commitLogOffset": str(int(answer.ext_fields["msgId"][16:], 16)), "commitOrRollback": "8",
        }))
        self.assertEqual(ended.code, 0, ended.remark)
        self.assertEqual(decode_message(self.pull().body).body, b"paid")
        self.stop()

    def test_answered_messages_survive_a_kill(self) -> None:
        """What was answered is there after a crash, in the ledger and in its queue, and the topic too."""
        self.start()
        for number in range(30):
            self.ask(send_of(b"%d" % number, topic="New"))
        self.broker.saver.close()
        self.broker.store.abandon()
        self.raft.member.store.abandon()
        self.start()
        self.assertIn("New", self.broker.metadata.topics.entries)
        queue = self.broker.store.queues.get("New", 0)
        assert queue is not None
        self.assertEqual(queue.next_index, 30)
        (answer,) = self.ask(send_of(b"next", topic="New"))
        self.assertEqual(answer.ext_fields["queueOffset"], "30")
        self.stop()

    def test_offsets_end_where_queues_end(self) -> None:
        """By no road an offset is beyond the end of its queue, nor in a table that was put back."""
        self.start(changeHosts="*")
        self.ask(send_of(b"one"), send_of(b"two"))
        offsets = self.broker.metadata.consumer_offsets
        self.broker.metadata.groups.find("g", 1)
        for name, (code, _) in ROADS.items():
            for offset in (3, 2):
                offsets.commit("g", "T1", 0, 1, 1)
                self.ask(road_of(name, offset))
                counts = offset == 2 and code in ROAD_FIELDS
                self.assertEqual(offsets.query("g", "T1", 0), 2 if counts else 1, f"{name}: {offset}")
        offsets.commit("g", "T1", 0, 9, 1)
        self.stop()
        self.start(changeHosts="*")
        self.settle(2)
        self.assertEqual(self.broker.metadata.consumer_offsets.query("g", "T1", 0), 2)
        self.stop()

    def test_messages_are_found_by_their_keys(self) -> None:
        """Messages are found by their keys, at the offsets that producers know, after a kill, too."""
        self.start()
        sent = []
        for number in range(70):
            (answer,) = self.ask(send_of(b"%d" % number, properties=f"KEYS\x01k{number} all\x02"))
            sent.append(int(answer.ext_fields["msgId"][16:], 16))
        for _ in range(2):
            self.settle(1.0)
            for number, offset in enumerate(sent):
                (found,) = self.ask(RemotingCommand(code=12, opaque=1, ext_fields={
                    "topic": "T1", "key": f"k{number}", "maxNum": "64", "beginTimestamp": "0",
                    "endTimestamp": str(2**62),
                }))
                self.assertEqual(found.code, 0, found.remark)
                message = decode_message(found.body)
                self.assertEqual((message.physical_offset, message.body), (offset, b"%d" % number))
            self.broker.saver.close()
            self.broker.store.abandon()
            self.raft.member.store.abandon()
            self.start()
        self.stop()

    def test_a_term_begins_with_an_unseen_record(self) -> None:
        """A term that begins over an entry of an earlier one begins with a record that is in no queue."""
        before = LedgerOfMessages(self.disk)
        before.append(message(b"one"))
        before.leave()
        self.start()
        self.assertEqual(self.reasons, [])
        (answer,) = self.ask(send_of(b"two"))
        self.assertEqual((answer.code, answer.ext_fields["queueOffset"]), (0, "1"))
        store = self.raft.member.store
        self.assertEqual(store.ledger_end_index, 6)  # between the two: tables of the new master
        record = store.read_range(1, end_index=1, max_bytes=1000).records[48:]
        found = decode_message(record)
        self.assertEqual((found.topic, found.physical_offset), (TERM_START_TOPIC, store.position_of(1) + 48))
        self.assertEqual(list(self.broker.store.queues.keys()), [("T1", 0)])
        self.assertNotIn(TERM_START_TOPIC, self.broker.metadata.topics.entries)
        self.stop()

    def test_a_deletion_is_in_the_log(self) -> None:
        """After what was written before it."""
        self.start()
        self.ask(send_of(b"old"))
        store, end = self.raft.member.store, self.raft.member.store.end_position
        self.ask(RemotingCommand(code=215, opaque=1, ext_fields={"topic": "T1"}))
        place = self.broker.store.deleted.place_of("T1")
        self.assertTrue(end <= place < store.end_position, (end, place))
        self.assertIsNone(self.broker.metadata.topics.get("T1"))
        self.broker.store.deleted.forget()
        self.assertEqual(self.broker.store.deleted.place_of("T1"), place)
        held: Deferred[PutStatus] = Deferred()
        self.patch(self.broker.pipeline, "put", lambda messages: Put(Placed([], [], 0, 0), held, False))
        self.broker.note_deletion("T2")
        self.assertEqual(self.broker.store.deleted.place_of("T2"), store.end_position)
        held.callback(PutStatus.UNKNOWN_ERROR)
        self.assertEqual([self.broker.store.deleted.place_of(topic) for topic in ("T1", "T2")], [place, 0])
        self.stop()

    def test_a_broker_needs_its_member(self) -> None:
        """A member that cannot open its ledger: the broker does not start, and the reason is reported."""
        self.make()
        self.patch(self.disk, "lock", _in_use)
        self.raft.startService()
        self.assertEqual(len(self.reasons), 1)
        self.assertIsNone(self.service.broker)
        self.successResultOf(self.raft.stopService())

    def test_a_failed_member_ends_the_process(self) -> None:
        """Its disk fails: the process ends, and no producer is informed that its message is stored."""
        self.start()

        def failing(*_: object, **__: object) -> None:
            raise StoreError("writing failed", path="base")

        self.patch(self.raft.member.store, "append_bodies", failing)
        (answer,) = self.ask(send_of(b"one"))
        self.assertIn(answer.code, (1, 14))
        self.assertEqual(len(self.reasons), 1)
        self.raft.stopService()
        self.settle(8)


def _in_use(path: str) -> None:
    raise BlockingIOError(11, "in use", path)


class RoleTests(RaftCase):
    """The member's role is the broker's."""

    def lose(self) -> None:
        """Another member asks in a later term, and the member follows it."""
        self.node.core._pass_term_gate(self.node.status().member.term + 5, "a vote")
        self.node.driver.feed(ev.Ticked())

    def test_a_broker_begins_as_a_slave(self) -> None:
        """Until its member leads and all is dispatched, a broker takes no message: 14, nothing stored."""
        self.make()
        self.raft.startService()
        self.settle(0.01)
        self.assertEqual((self.broker.config.role.name, self.broker.config.role.broker_id), ("SLAVE", 1))
        self.assertTrue(self.replication.seeks_master())
        self.replication.synchronize.master_address = "10.0.0.9:10911"
        self.assertTrue(self.replication.seeks_master())  # nothing was copied from there yet
        (answer,) = self.ask(send_of(b"early"))
        self.assertEqual(answer.code, 14)
        self.settle(2.0)
        (answer,) = self.ask(send_of(b"in time"))
        self.assertEqual((answer.code, answer.ext_fields["queueOffset"]), (0, "0"))
        self.stop()

    def test_options_are_read_by_member_and_broker(self) -> None:
        """The member takes the rules of expiry, the broker the rest."""
        self.start()
        config = broker_from_mapping({
            "store": "base", "name": "b", "enableDLegerCommitLog": True, "fileReservedTime": 5,
            "mapped_file_size_commit_log": FILE_SIZE, "dLegerPeers": "n0-10.0.0.1:20911",
            "dLegerSelfId": "n0",
        })
        taken = self.raft.reread(config, {"file_reserved_time_h": 5, "topics_max": 77, "listen_port": 7})
        self.assertEqual(taken, {"file_reserved_time_h", "topics_max"})
        self.assertEqual(self.raft.member.config.file_reserved_hours, 6)
        self.assertEqual(self.broker.config.topics_max, 77)
        self.stop()

    def test_changes_of_role_are_counted(self) -> None:
        """The changes of its role are counted; its member's status is there for the same page."""
        self.start()
        self.ask(send_of(b"one"))
        measures = self.service.measures()
        assert measures is not None
        self.assertEqual((measures.role_changes, measures.puts.count), (1, 1))
        self.assertEqual(self.raft.member_status().member.role, "leader")
        self.lose()
        self.settle(0.02)
        measures = self.service.measures()
        assert measures is not None
        self.assertEqual(measures.role_changes, 2)
        self.settle(3.0)
        self.stop()

    def test_only_a_master_ends_transactions(self) -> None:
        """A slave neither ends half messages nor asks about them; a new master asks about earlier ones."""
        self.start(transactionCheckInterval="1000", transactionTimeOut="100")
        born = str(round((WALL_S + self.clock.seconds()) * 1000))
        named = "TRAN_MSG\x01true\x02PGROUP\x01P\x02"
        (half,) = self.ask(send_of(b"half", bornTimestamp=born, properties=named))
        self.lose()
        self.settle(0.02)
        ends = {"producerGroup": "P", "commitOrRollback": "8", "tranStateTableOffset": "0",
                "commitLogOffset": str(int(half.ext_fields["msgId"][16:], 16))}
        (refused,) = self.ask(RemotingCommand(code=37, opaque=1, ext_fields=ends))
        self.assertEqual((refused.code, self.broker.checks_of_halves._call), (11, None))
        self.settle(5.0)
        queue = self.broker.store.queues.get("RMQ_SYS_TRANS_HALF_TOPIC", 0)
        assert queue is not None
        self.assertGreaterEqual(queue.next_index, 2)  # with the copy that its producer is asked about
        (answer,) = self.ask(RemotingCommand(code=37, opaque=1, ext_fields=ends))
        self.assertEqual(answer.code, 0)
        self.assertIn(b"half", self.pull().body)
        self.stop()

    def test_only_a_master_gives_pops(self) -> None:
        """A slave gives nothing by POP; a new master knows what was given, and delivers the rest again."""
        self.start()
        for body in (b"done", b"again"):
            self.ask(send_of(body))
        fields = {"topic": "T1", "consumerGroup": "G", "queueId": "0"}
        pop = RemotingCommand(code=200_050, opaque=1, ext_fields={
            **fields, "maxMsgNums": "8", "invisibleTime": "6000", "pollTime": "0", "initMode": "0",
        })
        (given,) = self.ask(pop)
        self.assertEqual((given.code, given.ext_fields["msgOffsetInfo"]), (0, "0 0 0,1"))
        receipt = f"0 {given.ext_fields['popTime']} 6000 0 0 {self.broker.config.broker_name} 0"
        ack = RemotingCommand(code=200_051, opaque=1, ext_fields={
            **fields, "extraInfo": receipt, "offset": "0",
        })
        self.lose()
        self.settle(0.02)
        self.assertEqual([self.ask(request)[0].code for request in (pop, ack)], [11, 11])
        self.assertEqual(len(self.broker.revive.table), 0)
        self.settle(3.0)
        self.assertEqual([self.ask(request)[0].code for request in (ack, pop)], [0, 210])
        self.settle(5.0)
        (given,) = self.ask(pop)
        self.assertEqual((given.code, given.ext_fields["startOffsetInfo"]), (0, "2 0 0"))
        self.assertIn(b"again", given.body)
        self.assertNotIn(b"done", given.body)
        self.stop()

    def test_a_lost_leadership_closes_the_queues(self) -> None:
        """The step in which leadership is lost closes the queues; a turn later the broker is a slave."""
        self.start()
        self.ask(send_of(b"one"))
        self.lose()
        self.assertFalse(self.replication.stamps.is_open)
        self.settle(0.02)
        self.assertTrue(self.broker.config.role.is_slave)
        (answer,) = self.ask(send_of(b"two"))
        self.assertEqual(answer.code, 14)
        self.settle(3.0)
        self.assertFalse(self.broker.config.role.is_slave)
        (answer,) = self.ask(send_of(b"three"))
        self.assertEqual((answer.code, answer.ext_fields["queueOffset"]), (0, "1"))
        self.stop()

    def test_a_message_is_not_written_in_another_term(self) -> None:
        """
        A message that was handed over in one term is not written in the next one: its place in the queue
        could be another's.
        """
        self.start()
        self.ask(send_of(b"one"))
        proposals: list[object] = []
        self.patch(self.node.handlers.appends, "_propose", proposals.append)
        put = self.broker.pipeline.put(plain([message(b"late")]))
        self.clock.advance(0)
        self.assertEqual(len(proposals), 1)
        self.lose()
        self.settle(0.5)
        self.replication.stamps.close()
        while not self.node.is_leader:
            self.clock.advance(0.02)
            self.replication.stamps.close()
        self.node.driver.feed(proposals[0])  # type: ignore[arg-type]
        self.clock.advance(0)
        status = self.successResultOf(put.done)
        self.assertEqual((status.remoting_code, put.placed.offsets), (14, []))
        self.settle(2.0)
        self.stop()

    def test_each_role_is_registered(self) -> None:
        """Every change of role is shown to the name servers at once."""
        self.start(namesrv_addr="ns:9876")
        reported: list[str] = []
        self.patch(self.broker.registrar, "role_changed",
                   lambda: reported.append(self.broker.config.role.name))
        self.lose()
        self.settle(3.0)
        self.assertEqual(reported, ["SLAVE", "SYNC_MASTER"])
        self.stop()

    def test_topics_of_queues(self) -> None:
        """A new master adds the topics that have messages, and that it has not heard of."""
        self.start()
        self.ask(send_of(b"one", topic="New"))
        self.settle(0.1)
        self.broker.metadata.topics.delete("New", 0)
        self.lose()
        self.settle(3.0)
        self.assertIn("New", self.broker.metadata.topics.entries)
        self.stop()


    def copy_of_before(self, requests: Sequence[RemotingCommand]) -> None:
        """
        Ask, and become the master again with the table of topics of before, as a slave that has not copied it
        since; the table lacks a topic of every master, too.
        """
        topics = self.broker.metadata.topics
        topics.delete("BenchmarkTest", self.broker.wall_ms())
        copied = topics.file_bytes()
        self.settle(0.5)
        self.assertEqual({answer.code for answer in self.ask(*requests)}, {0})
        self.settle(0.1)
        topics.load(copied)
        self.lose()
        self.settle(1.0)

    def test_topics_after_the_copy(self) -> None:
        """Topics that are younger than the copy of the last master's table are not lost with it."""
        self.start()
        self.copy_of_before([send_of(b"one", topic="New", queueId=1)])
        self.settle(2.0)
        self.assertIn("BenchmarkTest", self.broker.metadata.topics.entries)
        self.assertEqual(self.broker.metadata.topics.entries["New"].read_queue_nums, 8)
        self.stop()

    def test_topics_of_delayed_messages(self) -> None:
        """A topic whose only message waits is added when the message is delivered."""
        self.start(message_delay_level="3s")
        self.copy_of_before([send_of(b"later", topic="New", **DELAYED)])
        self.settle(5.0)
        self.assertIn("New", self.broker.metadata.topics.entries)
        self.assertIn(b"later", self.pull("New").body)
        self.stop()

    def test_topics_of_half_messages(self) -> None:
        """A topic whose only message is a half one is added when that is committed; not a deleted one."""
        self.start()
        born = str(round((WALL_S + self.clock.seconds() + 1.0) * 1000))
        named = "TRAN_MSG\x01true\x02PGROUP\x01P\x02"
        self.copy_of_before([send_of(b"half", topic="New", bornTimestamp=born, properties=named)])
        self.settle(2.0)
        self.assertNotIn("New", self.broker.metadata.topics.entries)
        record = decode_message(self.pull("RMQ_SYS_TRANS_HALF_TOPIC").body)
        ends = {"producerGroup": "P", "commitOrRollback": "8", "tranStateTableOffset": "0",
                "commitLogOffset": str(record.physical_offset)}
        (answer,) = self.ask(RemotingCommand(code=37, opaque=1, ext_fields=ends))
        self.assertEqual(answer.code, 0)
        self.assertIn("New", self.broker.metadata.topics.entries)
        self.assertIn(b"half", self.pull("New").body)
        self.stop()

    def assert_stays_deleted(self, *steps: Callable[[], object]) -> None:
        """A topic with a delayed message is deleted, among other steps, and does not come back with it."""
        self.start(message_delay_level="4s")
        for step in steps:
            step()
            self.settle(0.3)
        self.settle(6.0)
        self.assertEqual((self.broker.schedule.delivered, self.broker.schedule.passed_over), (0, 1))
        self.flushLoggedErrors()
        self.assertNotIn("New", self.broker.metadata.topics.entries)
        self.stop()

    def send_delayed(self) -> None:
        """A message that waits, in a topic that is new."""
        (answer,) = self.ask(send_of(b"later", topic="New", **DELAYED))
        self.assertEqual(answer.code, 0)

    def delete(self) -> None:
        """As an administrator."""
        (answer,) = self.ask(RemotingCommand(code=215, opaque=1, ext_fields={"topic": "New"}))
        self.assertEqual(answer.code, 0)

    def test_deleted_before_a_change(self) -> None:
        """A topic that another master has deleted."""
        self.assert_stays_deleted(self.send_delayed, self.delete, self.lose)

    def test_deleted_after_a_change(self) -> None:
        """A topic that a new master knew, and has deleted."""
        self.assert_stays_deleted(self.send_delayed, self.lose, lambda: self.settle(2.0), self.delete)

    def test_deleted_without_a_change(self) -> None:
        """A topic that was made and deleted by one master."""
        self.assert_stays_deleted(self.send_delayed, self.delete)

    def test_offset_after_the_end(self) -> None:
        """A master of RocketMQ may have taken an offset beyond the end: it goes back there."""
        self.start()
        self.broker.metadata.consumer_offsets.commit("g", "New", 0, 5, 1)
        self.settle(0.3)
        self.lose()
        self.settle(2.0)
        self.assertFalse(self.broker.config.role.is_slave)
        self.assertEqual(self.broker.metadata.consumer_offsets.query("g", "New", 0), 0)
        self.stop()

    def test_a_topic_made_again_goes_on(self) -> None:
        """A new topic of the same name goes on where the queues of the other members are."""
        self.start()
        self.ask(send_of(b"one", topic="New"))
        self.settle(0.1)
        (answer,) = self.ask(RemotingCommand(code=215, opaque=1, ext_fields={"topic": "New"}))
        self.assertEqual(answer.code, 0)
        (answer,) = self.ask(send_of(b"two", topic="New"))
        self.assertEqual((answer.code, answer.ext_fields["queueOffset"]), (0, "1"))
        self.stop()


class LargeTests(RaftCase):
    """A message that no entry holds."""

    def test_it_is_refused_alone(self) -> None:
        """What another producer sends in the same turn is stored."""
        self.start()
        producers = [self.broker.router.buildProtocol(None) for _ in range(2)]
        sent = [plug(one) for one in producers]
        self.settle()
        for producer in producers:
            producer.dataReceived(length_word(java(1, b"old")))
            self.settle()
        codes = set()
        for size in range(FILE_SIZE - 500, FILE_SIZE, 20):
            for transport in sent:
                transport.clear()
            producers[0].dataReceived(length_word(java(2, b"small")))
            producers[1].dataReceived(length_word(java(3, bytes(size))))
            self.settle()
            small, large = ([one.code for one in sent_commands(transport.value())] for transport in sent)
            self.assertEqual(small, [0], size)
            codes.update(large)
        self.assertEqual(codes, {0, 13})


class DelayTests(RaftCase):
    """Delayed messages, and those that consumers send back: their offsets move when they are committed."""

    def test_a_delayed_message_is_delivered_once(self) -> None:
        """Delivered once, by the master alone."""
        self.start()
        (answer,) = self.ask(send_of(b"later", **DELAYED))
        self.assertEqual(answer.code, 0)
        self.assertEqual(self.pull().code, 19)
        self.settle(1.5)
        self.assertIn(b"later", self.pull().body)
        self.assertEqual(self.broker.schedule.delivered, 1)
        self.stop()

    def test_a_refused_delivery_comes_later(self) -> None:
        """The log refuses the delivery: the offset stays, and the message comes later."""
        self.start()
        self.ask(send_of(b"later", **DELAYED))
        self.replication.stamps.close()
        self.settle(1.5)
        self.assertEqual(self.broker.metadata.delay_offsets.get(1), 0)
        queues = self.broker.store.queues
        self.replication.stamps.open(queues.next_indexes())
        self.settle(3.0)
        self.assertIn(b"later", self.pull().body)
        self.assertEqual((self.broker.metadata.delay_offsets.get(1), self.broker.schedule.delivered), (1, 1))
        self.stop()

    def test_a_message_sent_back_is_committed(self) -> None:
        """Answered when the copy is committed."""
        self.start()
        (answer,) = self.ask(send_of(b"one"))
        offset = int(answer.ext_fields["msgId"][16:], 16)
        fields = {"group": "g", "offset": str(offset), "delayLevel": "1", "originMsgId": "x"}
        (answer,) = self.ask(RemotingCommand(code=36, opaque=1, ext_fields=fields))
        self.assertEqual(answer.code, 0)
        self.settle(1.5)
        queue = self.broker.store.queues.get("%RETRY%g", 0)
        assert queue is not None
        self.assertEqual(queue.next_index, 1)
        self.stop()
