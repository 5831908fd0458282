# -*- test-case-name: tests.raft_broker.test_stamps -*-
"""Messages get the offsets of their entries, and queue offsets in the order of the entries, once."""

from __future__ import annotations

from twisted.trial.unittest import SynchronousTestCase

from dledger.raft_broker.stamps import MessageStamps, term_start_record, unseen_record
from dledger.rocketmq.store.records.records import read_record
from dledger.values.errors import DLedgerError
from protocols.wire.codes import ResponseCode
from protocols.wire.rocketmq.layout import SysFlag
from protocols.wire.rocketmq.message import Message, decode_message
from tests.broker.support import message, packed
from tests.raft_broker.rig import FILE_SIZE, LedgerOfMessages


class StampTests(SynchronousTestCase):
    """In a ledger."""

    def setUp(self) -> None:
        self.ledger = LedgerOfMessages()
        self.addCleanup(self.ledger.store.abandon)

    def stored(self, index: int) -> bytes:
        """The record of an entry."""
        return self.ledger.store.read_range(index, end_index=index, max_bytes=10_000).records[48:]

    def message(self, index: int) -> Message:
        """Decoded."""
        return decode_message(self.stored(index))

    def test_as_a_commit_log(self) -> None:
        """Byte for byte the record that a commit log would have there."""
        new = message(b"hello", topic="T2", queue_id=3)
        self.ledger.append(new)
        self.assertEqual(self.stored(0), packed(new, queue_offset=0, offset=48, now_ms=7))

    def test_each_queue_counts_for_itself(self) -> None:
        """Each queue counts for itself, over writes and the ends of files; what is in no queue has 0."""
        for number in range(12):
            self.ledger.append(message(bytes(500), queue_id=number % 2), message(bytes(500), sys_flag=0xC))
        place = self.ledger.place
        for index, offset in enumerate(place.offsets):
            found = self.message(index)
            expected = (offset, place.queue_offsets[index])
            self.assertEqual((found.physical_offset, found.queue_offset), expected)
            self.assertEqual(offset, self.ledger.store.position_of(index) + 48)
        self.assertEqual(place.queue_offsets[::2], [number // 2 for number in range(12)])
        self.assertEqual(set(place.queue_offsets[1::2]), {0})
        self.assertGreater(place.offsets[-1], FILE_SIZE)
        self.assertEqual(self.ledger.stamps.queue_offsets, {("T1", 0): 6, ("T1", 1): 6})

    def test_a_refused_write_gives_offsets_back(self) -> None:
        """A write that is refused takes no queue offset, and places nothing."""
        self.ledger.append(message())
        self.assertRaises(DLedgerError, self.ledger.append, message(), message(bytes(FILE_SIZE)))
        self.assertEqual(self.ledger.place.queue_offsets, [0])
        self.ledger.append(message())
        self.assertEqual(self.ledger.place.queue_offsets, [0, 1])

    def test_only_a_master_writes_messages(self) -> None:
        """Who is not the master writes no message; the write is refused as a whole."""
        self.ledger.stamps.close()
        error = self.assertRaises(DLedgerError, self.ledger.append, message())
        self.assertIs(error.code, ResponseCode.INCONSISTENT_STATE)
        self.assertEqual(self.ledger.store.ledger_end_index, -1)
        self.ledger.stamps.open({("T1", 0): 5})
        self.ledger.append(message())
        self.assertEqual(self.ledger.place.queue_offsets, [5])

    def test_opening_counts_from_the_queues(self) -> None:
        """The queues of the store count, not what was given out before."""
        self.ledger.append(message(), message())
        self.ledger.stamps.open({("T1", 0): 1})
        self.ledger.append(message())
        self.assertEqual(self.ledger.place.queue_offsets, [0, 1, 1])

    def test_a_record_without_a_queue_is_placed(self) -> None:
        """A record that is in no queue, placed like any other; also while messages are refused."""
        self.ledger.stamps.close()
        self.ledger.store.append_bodies((self.ledger.stamps.term_start_body,), 1)
        self.assertEqual(self.message(0).physical_offset, 48)
        self.assertFalse(read_record(self.stored(0), 0, 48, FILE_SIZE, ()).is_queued)
        self.assertEqual(len(term_start_record()), len(self.stored(0)))

    def test_an_unseen_record_has_plain_fields(self) -> None:
        """Its fields are 0, but those that hide it, its time and its body's checksum."""
        found = decode_message(unseen_record("T", b"body", 7))
        self.assertEqual((found.topic, found.body, found.store_timestamp, found.sys_flag),
                         ("T", b"body", 7, int(SysFlag.ROLLBACK)))
        for name in ("queue_id", "flag", "queue_offset", "physical_offset", "born_timestamp",
                     "reconsume_times", "prepared_transaction_offset"):
            self.assertEqual(getattr(found, name), 0, name)
        for host in (found.born_host, found.store_host):
            self.assertEqual(str(host), "0.0.0.0:0")

    def test_foreign_bodies_stay_unchanged(self) -> None:
        """Other bodies stay as they are."""
        self.ledger.store.append_bodies((b"x" * 100,), 1)
        self.assertEqual(self.stored(0), b"x" * 100)
        self.assertIsNone(MessageStamps().begin()(b"", 3) or None)
