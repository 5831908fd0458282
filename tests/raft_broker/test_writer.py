# -*- test-case-name: tests.raft_broker.test_writer -*-
"""Every outcome of an append has a result for the producer, and none of them says more than is known."""

from __future__ import annotations

from collections.abc import Sequence

from twisted.internet.defer import Deferred
from twisted.trial.unittest import SynchronousTestCase

from dledger.node.requests.appends import AppendResult
from dledger.raft_broker.replication import RaftWriter
from dledger.raft_broker.stamps import MessageStamps
from dledger.rocketmq.replication.put_status import PutStatus
from dledger.rocketmq.store.records.records import NewMessage
from dledger.values.errors import DLedgerError
from protocols.wire.codes import ResponseCode
from tests.broker.support import message, plain


class Node:
    """Remembers appends."""

    def __init__(self) -> None:
        self.appended: list[tuple[Sequence[bytes], Deferred[AppendResult]]] = []

    def append(self, bodies: Sequence[bytes]) -> Deferred[AppendResult]:
        """See L{AppendsEntries}."""
        done: Deferred[AppendResult] = Deferred()
        self.appended.append((bodies, done))
        return done


class WriterTests(SynchronousTestCase):
    """A writer over a node that the test answers for."""

    def setUp(self) -> None:
        self.node = Node()
        self.stamps = MessageStamps()
        self.stamps.open({})
        self.writer = RaftWriter(
            self.node, self.stamps, body_bytes_max=1000, message_bytes_max=800, before=lambda: None
        )

    def outcome(self, error: Exception | None) -> PutStatus:
        """Of an append that ends so."""
        put = self.writer.append(plain([message()]), 7, waits=True)
        self.assertFalse(put.is_placed)
        self.assertEqual((put.placed.offsets, put.placed.store_timestamp), ([], 7))
        _, done = self.node.appended[-1]
        if error is None:
            done.callback(AppendResult(index=0, count=1, term=1, pos=0))
        else:
            done.errback(error)
        return self.successResultOf(put.done)

    def test_each_outcome_has_its_code(self) -> None:
        """Committed; certainly not stored; unknown. Never a code that says that a message is stored."""
        self.assertIs(self.outcome(None), PutStatus.PUT_OK)
        for code, expected in (
            (ResponseCode.NOT_LEADER, 14), (ResponseCode.LEADER_TRANSFERRING, 14),
            (ResponseCode.DISK_FULL, 14), (ResponseCode.INCONSISTENT_STATE, 14),
            (ResponseCode.LEADER_PENDING_FULL, 2),
            (ResponseCode.TERM_CHANGED, 1), (ResponseCode.WAIT_QUORUM_ACK_TIMEOUT, 1),
            (ResponseCode.INTERNAL_ERROR, 1),
        ):
            status = self.outcome(DLedgerError(code))
            self.assertEqual((status.remoting_code, status.is_stored), (expected, False), code)
        self.assertIs(self.outcome(RuntimeError("a bug")), PutStatus.UNKNOWN_ERROR)
        self.assertEqual(len(self.flushLoggedErrors(RuntimeError)), 1)

    def test_messages_of_a_put_share_an_append(self) -> None:
        """The messages of a put are one append."""
        self.writer.append(plain([message(b"a"), message(b"b")]), 7, waits=False)
        ((bodies, _),) = self.node.appended
        self.assertEqual(len(bodies), 2)

    def test_only_a_master_takes_messages(self) -> None:
        """Only a master takes messages."""
        self.assertIsNone(self.writer.refusal())
        self.stamps.close()
        refused = self.writer.refusal()
        assert refused is not None
        self.assertEqual(refused.status.remoting_code, 14)

    def check(self, new: NewMessage) -> str:
        """Why it is refused."""
        try:
            self.writer.check([message(), new])
        except ValueError as error:
            return str(error)
        return ""

    def test_messages_are_checked_before_the_put(self) -> None:
        """Bodies, records, topics and zero bytes; the text says what is allowed."""
        self.assertEqual(self.check(message(bytes(800))), "")
        self.assertIn("max_message_size=800", self.check(message(bytes(801))))
        long = message(bytes(800), properties={"a": "b" * 200})
        self.assertIn("an entry of the log takes 1000", self.check(long))
        self.assertEqual(self.check(message(topic="t" * 127)), "")
        self.assertIn("127 are allowed", self.check(message(topic="t" * 128)))
        self.assertIn("zero byte", self.check(message(topic="a\0b")))
