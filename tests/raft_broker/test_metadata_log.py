# -*- test-case-name: tests.raft_broker.test_metadata_log -*-
"""What a master acknowledged, the next one knows: changes of metadata go through the log."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from twisted.internet.defer import Deferred
from twisted.internet.task import Clock
from twisted.trial.unittest import SynchronousTestCase

from dledger.base.disk.hints import Hints
from dledger.node.requests.appends import AppendResult
from dledger.raft_broker.metadata_log import PIECE_ENTRIES, MetadataLog
from dledger.raft_broker.queue_ends import QueueEnds
from dledger.raft_broker.stamps import MessageStamps, UnplacedRecord, unseen_record
from dledger.rocketmq.metadata.files import Metadata
from dledger.rocketmq.metadata.order_info import OrderInfo
from dledger.rocketmq.metadata.tables import GroupConfig, TopicConfig
from dledger.rocketmq.store.queues.consume_queues import ConsumeQueues
from dledger.testing.world.memory_disk import MemoryDisk
from dledger.values.errors import DLedgerError
from protocols.wire.codes import ResponseCode
from protocols.wire.rocketmq.layout import METADATA_TOPIC
from protocols.wire.rocketmq.message import decode_message
from tests.broker.support import config_of

NOW_MS = 1_700_000_000_000


class _Member:
    """Takes appends; the test commits them."""

    def __init__(self) -> None:
        self.appends: list[tuple[bytes, Deferred[AppendResult]]] = []
        self.records: list[bytes] = []
        stamps = MessageStamps()
        stamps.open({})
        self.stamp = stamps.begin()

    def append(self, bodies: Sequence[bytes]) -> Deferred[AppendResult]:
        """See L{AppendsEntries}."""
        done: Deferred[AppendResult] = Deferred()
        (body,) = bodies
        assert isinstance(body, UnplacedRecord)
        self.appends.append((self.stamp(body, 0), done))
        return done

    def commit(self, error: DLedgerError | None = None) -> None:
        """The oldest append ends."""
        record, done = self.appends.pop(0)
        if error is None:
            self.records.append(record)
            done.callback(AppendResult(index=0, count=1, term=1, pos=0))
        else:
            done.errback(error)


class MetadataLogTests(SynchronousTestCase):
    """A master, and a slave that applies its records."""

    def setUp(self) -> None:
        self.member, self.clock = _Member(), Clock()
        self.master, self.slave = self.metadata(), self.metadata()
        self.log = self.log_of(self.master)
        self.reader = self.log_of(self.slave)

    def metadata(self) -> Metadata:
        """Empty tables."""
        return Metadata(MemoryDisk(), "config", now_ms=NOW_MS)

    def log_of(self, metadata: Metadata, **options: Any) -> MetadataLog:
        """Over the member of the test."""
        queues = ConsumeQueues(config_of(), Hints(MemoryDisk()))
        self.addCleanup(queues.close)
        ends = QueueEnds(queues, dict)
        values = {"wall_ms": lambda: NOW_MS, "body_bytes_max": 1 << 20, "ends": ends, **options}
        return MetadataLog(metadata, self.member, self.clock, **values)

    def commit_all(self) -> None:
        """Everything that is written, also what follows."""
        for _ in range(100):
            while self.member.appends:
                self.member.commit()
            self.clock.advance(0.01)

    def test_a_next_master_knows_orderly_groups(self) -> None:
        """A next master knows what groups hold that pop in order."""
        self.log.begin(0)
        place, info = ("t", "g", 1), OrderInfo(pop_ms=5, invisible_ms=6, offsets=(7, 8), last_ms=5)
        self.master.order_info.put(place, info)
        self.log.tick(0, 0)
        self.commit_all()
        self.replay()
        self.assertEqual(self.slave.order_info.get(place), info)

    def test_a_next_master_knows_popping_groups(self) -> None:
        """A next master knows which groups pop."""
        self.log.begin(0)
        for topic in ("t", "u"):
            self.master.request_modes.put(topic, "g", {"mode": "POP"})
        self.log.tick(0, 0)
        self.master.request_modes.delete_topic("u")
        self.log.tick(0, 0)
        self.commit_all()
        self.replay()
        self.assertEqual(self.slave.request_modes.get("t", "g"), {"mode": "POP"})
        self.assertEqual(self.slave.request_modes.names(), ["t"])

    def replay(self, metadata: Metadata | None = None) -> None:
        """The slave reads the log so far."""
        reader = self.reader if metadata is None else self.log_of(metadata)
        for at, record in enumerate(self.member.records):
            self.assertTrue(reader.apply(record, at))

    def change(self) -> None:
        """Something in each table."""
        self.master.topics.put(TopicConfig(topic_name="t", read_queue_nums=3, rest={"x": {"y": 1}}), NOW_MS)
        self.master.groups.put(GroupConfig(group_name="g", retry_max_times=5), NOW_MS)
        self.master.consumer_offsets.commit("g", "t", 2, 17, NOW_MS)
        self.master.consumer_offsets.commit("g", "t", 0, 4, NOW_MS)
        self.master.delay_offsets.put(3, 99, NOW_MS)

    def assert_equal(self) -> None:
        """Both have the same tables."""
        for ours, theirs in zip(self.master.tables, self.slave.tables, strict=True):
            self.assertEqual(ours.file_bytes(), theirs.file_bytes())

    def test_a_change_is_settled_when_committed(self) -> None:
        """A change is settled when it is committed, and then every slave that reads the log has it."""
        self.log.begin(0)
        self.change()
        settled = self.log.settled()
        self.assertNoResult(settled)
        self.assertEqual(len(self.member.appends), 5)  # one of the topics that it had when it began
        self.commit_all()
        self.successResultOf(settled)
        self.successResultOf(self.log.settled())
        self.assertEqual(self.member.appends, [])
        self.replay()
        self.assert_equal()
        self.assertTrue(self.slave.topics.is_dirty and self.slave.consumer_offsets.is_dirty)

    def test_deletions_are_in_the_log_too(self) -> None:
        """Deletions are carried, too; read again from the beginning the log ends the same."""
        self.log.begin(0)
        self.change()
        self.successResultOf(self.settle())
        self.master.topics.delete("t", NOW_MS + 1)
        self.master.groups.delete("g", NOW_MS + 1)
        self.master.consumer_offsets.delete_topic("t", NOW_MS + 1)
        self.successResultOf(self.settle())
        self.replay()
        self.replay()
        self.assertEqual(self.slave.topics.entries, {})
        self.assertEqual(self.slave.groups.entries, {})
        self.assertIsNone(self.slave.consumer_offsets.query("g", "t", 2))
        self.assert_equal()

    def settle(self) -> Deferred[None]:
        """All changes until now, committed."""
        settled = self.log.settled()
        self.commit_all()
        return settled

    def test_everything_at_first(self) -> None:
        """A new master writes its tables, piece by piece: a slave that reads from there lacks nothing."""
        for number in range(PIECE_ENTRIES + 10):
            self.master.topics.put(TopicConfig(topic_name=f"t{number}"), NOW_MS)
        self.change()
        self.log.begin(0)
        self.assertEqual(len({id(done) for _, done in self.member.appends}), len(self.member.appends))
        before = len(self.member.appends)
        self.clock.advance(10)
        self.assertEqual(len(self.member.appends), before)  # the next piece waits for this one
        self.commit_all()
        self.replay()
        self.assertEqual(self.slave.topics.entries, self.master.topics.entries)
        self.assertEqual(self.slave.delay_offsets.get(3), 99)

    def test_log_begins_later(self) -> None:
        """The log has lost its beginning: everything is written again."""
        self.change()
        self.log.begin(1000)
        self.commit_all()
        self.member.records.clear()
        self.log.tick(1000, 5000)
        self.commit_all()
        self.assertEqual(self.member.records, [])
        self.log.tick(1001, 5000)
        self.commit_all()
        count = len(self.member.records)
        self.log.tick(4000, 9000)  # what was written last is still there
        self.commit_all()
        self.assertEqual(len(self.member.records), count)
        self.replay()
        self.assertIn("t", self.slave.topics.entries)

    def test_a_topic_comes_before_its_message(self) -> None:
        """A topic that a message creates is in the log before the message; other changes wait for a tick."""
        self.log.begin(0)
        self.commit_all()
        self.member.records.clear()
        self.log.topics_first()
        self.assertEqual(self.member.appends, [])
        self.change()
        self.log.topics_first()
        self.commit_all()
        self.replay()
        self.assertIn("t", self.slave.topics.entries)
        self.assertEqual(self.slave.groups.entries, {})
        self.log.tick(0, 0)
        self.commit_all()
        self.replay()
        self.assert_equal()

    def test_a_failed_append_is_written_again(self) -> None:
        """An append that failed settles nothing, and is written again by the next tick."""
        self.log.begin(0)
        self.commit_all()
        self.change()
        settled = self.log.settled()
        self.member.commit(DLedgerError(ResponseCode.LEADER_PENDING_FULL))
        self.commit_all()
        error = self.failureResultOf(settled, DLedgerError).value
        self.assertIs(error.code, ResponseCode.UNKNOWN)
        self.replay()
        self.assertEqual(self.slave.topics.entries, {})
        self.log.tick(0, 0)
        self.commit_all()
        self.replay()
        self.assert_equal()
        self.successResultOf(self.log.settled())

    def test_what_was_never_committed_goes(self) -> None:
        """A former master drops topics and groups of which a next one knows nothing, wherever they are."""
        names = [f"t{number:04}" for number in range(2 * PIECE_ENTRIES + 3)]
        for name in names:
            for metadata in (self.master, self.slave):
                metadata.topics.put(TopicConfig(topic_name=name), NOW_MS)
        own = ["a", "t0001b", f"{names[PIECE_ENTRIES - 1]}b", f"{names[-1]}b", "TBW102"]
        for name in own:
            self.slave.topics.put(TopicConfig(topic_name=name), NOW_MS)
            self.slave.groups.put(GroupConfig(group_name=name), NOW_MS)
        self.log.begin(0)
        new = f"{names[0]}c"
        self.master.topics.put(TopicConfig(topic_name=new), NOW_MS)
        self.log.tick(0, 0)  # before its range
        self.commit_all()
        self.replay()
        self.assertEqual(sorted(self.slave.topics.entries), sorted([*names, new, "TBW102"]))
        self.assertEqual(list(self.slave.groups.entries), ["TBW102"])

    def test_deletion_of_what_others_have(self) -> None:
        """A master that has no such topic settles its deletion when its ranges are committed."""
        self.slave.topics.put(TopicConfig(topic_name="t"), NOW_MS)
        self.log.begin(0)
        self.assertFalse(self.master.topics.delete("t", NOW_MS))
        settled = self.log.settled()
        self.assertNoResult(settled)
        self.member.commit()
        self.assertNoResult(settled)
        self.commit_all()
        self.successResultOf(settled)
        self.replay()
        self.assertEqual(self.slave.topics.entries, {})

    def test_range_that_failed_is_repeated(self) -> None:
        """A range that could not be appended is written again by the next tick; nothing is settled before."""
        self.slave.groups.put(GroupConfig(group_name="g"), NOW_MS)
        self.log.begin(0)
        self.member.commit(DLedgerError(ResponseCode.LEADER_PENDING_FULL))
        self.commit_all()
        self.assertFalse(self.log.is_whole)
        settled = self.log.settled()
        self.assertNoResult(settled)
        self.log.tick(0, 0)
        self.commit_all()
        self.assertTrue(self.log.is_whole)
        self.successResultOf(settled)
        self.replay()
        self.assertEqual(self.slave.groups.entries, {})

    def test_a_lost_role_settles_nothing(self) -> None:
        """What was not committed when the role was lost is not settled; a slave settles nothing."""
        self.log.begin(0)
        self.change()
        settled = self.log.settled()
        self.log.cease()
        while self.member.appends:
            self.member.commit(DLedgerError(ResponseCode.TERM_CHANGED))
        self.failureResultOf(settled, DLedgerError)
        self.failureResultOf(self.log.settled(), DLedgerError)
        self.log.tick(0, 0)
        self.log.topics_first()
        self.assertEqual(self.member.appends, [])

    def test_a_slave_takes_lower_offsets(self) -> None:
        """Once it is no master, a lower offset of the next master counts: somebody has reset it."""
        self.change()
        self.log.begin(0)
        self.commit_all()
        self.log.cease()
        self.slave.consumer_offsets.commit("g", "t", 2, 1, NOW_MS)
        other = self.log_of(self.slave)
        other.begin(0)
        self.member.records.clear()
        self.commit_all()
        for record in self.member.records:
            self.log.apply(record, 0)
        self.assertEqual(self.master.consumer_offsets.query("g", "t", 2), 1)

    def test_records_fit_into_the_ledger(self) -> None:
        """Records are not longer than the ledger takes."""
        self.log = self.log_of(self.master, body_bytes_max=1000)
        for number in range(20):
            self.master.topics.put(TopicConfig(topic_name=f"t{number}"), NOW_MS)
        self.log.begin(0)
        self.commit_all()
        self.assertGreater(len(self.member.records), 4)
        self.assertLessEqual(max(map(len, self.member.records)), 1000)
        self.replay()
        self.assertEqual(len(self.slave.topics.entries), 20)

    def test_a_record_is_filled_to_the_byte(self) -> None:
        """Records have as many entries as fit, commas counted; with a byte less there is one more."""
        table = self.master.consumer_offsets
        for number in range(200):
            table.commit("g", f"topic-{number:03}", 0, 5, NOW_MS)
        texts = [f"{json.dumps(key)}:{json.dumps(table.logged(key), separators=(',', ':'))}"
                 for key in table.names()]
        entries = len(",".join(texts[:100]))
        for less, count in ((0, 2), (1, 3)):
            log = self.log_of(self.master, body_bytes_max=entries + 1600 - less)
            log.begin(0)
            for _ in range(2):
                self.member.commit()  # the topics, and the groups
                self.clock.advance(0)
            log.cease()
            self.assertEqual(len(self.member.appends), count)
            self.commit_all()
        self.assertLess(max(map(len, self.member.records)), entries + 1600)

    def test_a_record_is_sound_for_rocketmq(self) -> None:
        """RocketMQ finds a sound record: of its type, at its place, with a checksum of its body."""
        self.change()
        self.log.begin(0)
        found = decode_message(self.member.appends[0][0], physical_offset=48)
        self.assertEqual((found.topic, found.sys_flag, found.store_timestamp), (METADATA_TOPIC, 0xC, NOW_MS))

    def test_kept_metadata_are_read_for_queues_alone(self) -> None:
        """Tables that were saved are not made older; queues that are built again need their ends."""
        body = (b'{"format":1,"tables":{"topics":{"dataVersion":{"counter":1,"timestamp":1},"entries":'
                b'{"a":{"topicName":"a"}}},"queueEnds":{"dataVersion":null,"entries":{"a@1":4}}}}')
        queues = ConsumeQueues(config_of(), Hints(MemoryDisk()))
        self.addCleanup(queues.close)
        reader = self.log_of(self.slave, ends=QueueEnds(queues, dict))
        self.assertTrue(reader.apply(unseen_record(METADATA_TOPIC, body), 5, is_kept=True))
        self.assertNotIn("a", self.slave.topics.entries)
        self.assertEqual(queues.bounds("a", 1), (4, 4))
        self.assertTrue(reader.apply(unseen_record(METADATA_TOPIC, body), 5))
        self.assertIn("a", self.slave.topics.entries)

    def test_malformed_records_change_nothing(self) -> None:
        """Whatever such a record has in it: it changes nothing, and ends nothing."""
        good = b'{"dataVersion":{"counter":1,"timestamp":1},"entries":'
        for body in (
            b"", b"[]", b"{", b"\xff", b'{"format":2,"tables":{}}', b'{"format":1}',
            b'{"format":1,"tables":[]}',
            b'{"format":1,"tables":{"other":{}}}', b'{"format":1,"tables":{"topics":{"entries":{}}}}',
            b'{"format":1,"tables":{"topics":' + good + b'{"a":{"topicName":"b"}}}}}',
            b'{"format":1,"tables":{"topics":' + good + b'{"a":{"topicName":"a","perm":"x"}}}}}',
            b'{"format":1,"tables":{"consumerOffsets":' + good + b'{"a@b":{"-1":0}}}}}',
            b'{"format":1,"tables":{"consumerOffsets":' + good + b'{"a@b":7}}}}',
            b'{"format":1,"tables":{"topics":' + good + b'{},"after":1,"upto":null}}}',
            b'{"format":1,"tables":{"topics":' + good + b'{},"after":"","upto":1}}}',
            b'{"format":1,"tables":{"delayOffsets":' + good + b'{"x":7}}}}',
            b'{"format":1,"tables":{"delayOffsets":' + good + b'{"1":"x"}}}}',
        ):
            self.assertFalse(self.reader.apply(unseen_record(METADATA_TOPIC, body), 5), body)
        self.assertFalse(self.reader.apply(b"\0" * 200, 5))
        self.assertEqual(self.reader.passed_over, 18)
        self.assert_equal()
