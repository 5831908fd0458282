# -*- test-case-name: tests.broker.store.test_deleted_topics -*-
"""Deletions are facts of the log: where they are, and for which messages they count."""

from __future__ import annotations

from twisted.logger import capturedLogs
from twisted.trial.unittest import SynchronousTestCase

from dledger.rocketmq.store import deleted_topics
from dledger.rocketmq.store.deleted_topics import DeletedTopics, deletion_note
from protocols.wire.rocketmq.layout import DELETED_TOPIC
from tests.broker.put_support import WALL_MS
from tests.broker.send_support import Sending
from tests.broker.support import HOST, message


class PlaceTests(SynchronousTestCase):
    """Notes in a log, read from their queue."""

    def setUp(self) -> None:
        self.broker = Sending()
        self.addCleanup(self.broker.store.abandon)
        self.store = self.broker.store
        self.deleted = DeletedTopics(self.store.queues, self.store.log, self.store.sound)

    def delete(self, topic: str) -> int:
        """@return: where the note is."""
        at = self.store.log.record_end
        self.store.log.append([[deletion_note(topic, HOST, WALL_MS)]], WALL_MS)
        self.broker.settle()
        return at

    def test_the_last_note_counts(self) -> None:
        """The last note of a topic counts; they are read when somebody asks, some at a time."""
        self.patch(deleted_topics, "READ_UNITS", 2)
        self.assertEqual(self.deleted.place_of("T"), 0)
        self.store.log.append([[message(topic="T")]], WALL_MS)
        places = [self.delete(topic) for topic in ("T", "U", "T", "Ü", "U")]
        found = [self.deleted.place_of(topic) for topic in "TUÜV"]
        self.assertEqual(found, [places[2], places[4], places[3], 0])
        again = self.delete("V")
        self.assertEqual(self.deleted.place_of("V"), again)

    def test_own_note_counts_at_once(self) -> None:
        """A note of this broker counts before it is in its queue, and a later one of the queue after it."""
        self.deleted.note("T", 77)
        self.assertEqual(self.deleted.place_of("T"), 77)
        self.store.log.append([[message()] * 2], WALL_MS)
        place = self.delete("T")
        self.assertEqual(self.deleted.place_of("T"), place)
        self.deleted.note("T", 5)
        self.assertEqual(self.deleted.place_of("T"), place)

    def test_cut_notes_count_no_more(self) -> None:
        """A log without the note has no deletion."""
        place = self.delete("T")
        self.assertEqual(self.deleted.place_of("T"), place)
        self.delete("U")
        self.store.queues.cut(place)
        self.assertEqual(self.deleted.place_of("T"), 0)
        self.deleted.note("T", 9)
        self.deleted.forget()
        self.assertEqual(self.deleted.place_of("T"), 0)

    def test_unreadable_notes_cover_nothing(self) -> None:
        """A note that is not a name covers nothing, and the log says so."""
        place = self.store.log.record_end
        self.store.log.append([[message(b"\xff", topic=DELETED_TOPIC)]], WALL_MS)
        self.broker.settle()
        with capturedLogs() as events:
            self.assertEqual(self.deleted.place_of("T"), 0)
        self.assertEqual([one["offset"] for one in events if "cannot be read" in one["log_format"]], [place])

    def test_kept_topics_have_messages(self) -> None:
        """Topics that have messages which no deletion covers."""
        for topic in "TUV":
            self.store.log.append([[message(topic=topic)]], WALL_MS)
        self.delete("T")
        self.delete("U")
        self.store.log.append([[message(topic="U", queue_id=2)]], WALL_MS)
        self.broker.settle()
        self.assertEqual(self.deleted.kept(), {"U", "V", DELETED_TOPIC})

    def test_retries_end_with_their_topic(self) -> None:
        """A retry is over if its topic was deleted since it was stored."""
        self.assertIsNone(self.deleted.retries_of("%RETRY%g"))
        for number, topic in enumerate("TUT"):
            if number == 2:
                self.delete("T")
            properties = {"RETRY_TOPIC": topic}
            self.store.log.append([[message(topic="%RETRY%g", properties=properties)]], WALL_MS)
        self.store.log.append([[message(topic="%RETRY%g")]], WALL_MS)
        self.broker.settle()
        self.assertIsNone(self.deleted.retries_of("T"))
        lives = self.deleted.retries_of("%RETRY%g")
        assert lives is not None
        queue = self.store.queues.get("%RETRY%g", 0)
        assert queue is not None
        records = [self.store.log.read(unit.offset, unit.size) for unit in queue.read(0, 9)]
        self.assertEqual([lives(record) for record in records], [False, True, True, True])
        self.assertTrue(lives(b"no record"))
