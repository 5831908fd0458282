# -*- test-case-name: tests.broker.test_browsing -*-
"""The pages of a broker show its store."""

from __future__ import annotations

from itertools import pairwise

from twisted.internet.defer import Deferred
from twisted.trial.unittest import SynchronousTestCase

from dledger.rocketmq.broker.showing import browsing
from dledger.rocketmq.broker.showing.browsing import STEPS_TURN, MessageBrowser
from dledger.rocketmq.broker.showing.shown import NotShown, ShownMessages
from dledger.rocketmq.store.index.indexing import DELAY_S
from tests.broker.asked import NOW_MS, Asked
from tests.broker.support import message


class BrowserTests(SynchronousTestCase):
    """Ten messages of one topic, one of another."""

    def setUp(self) -> None:
        self.asked = Asked()
        self.addCleanup(self.asked.close)
        self.browser = MessageBrowser(self.asked.inside)
        for number in range(10):
            self.put(b"%d" % number, KEYS=f"k{number} all", TAGS="paid", UNIQ_KEY=f"u{number}")
        self.put(b"other", topic="T2", KEYS="all")
        for _ in range(50):
            self.asked.clock.advance(DELAY_S)

    def put(self, body: bytes, topic: str = "T1", **properties: str) -> None:
        """A message, a second after the one before."""
        self.asked.append(message(body, topic=topic, properties=properties))
        self.asked.clock.advance(0.5)
        self.asked.clock.advance(0.5)

    def bodies(self, shown: ShownMessages) -> list[bytes]:
        """Of the messages."""
        return [one.body for one in shown.messages]

    def found(self, topic: str, key: str, count: int = 20) -> ShownMessages:
        """A search by key, with as many turns as it takes."""
        done = Deferred.fromCoroutine(self.browser.with_key(topic, key, count))
        for _ in range(100):
            self.asked.clock.advance(0)
        return self.successResultOf(done)

    def test_queues(self) -> None:
        """All, or those of one topic, and whether these are all."""
        queues, is_whole = self.browser.queues()
        self.assertEqual([(one.topic, one.queue_id, one.begin_offset, one.end_offset) for one in queues],
                         [("T1", 0, 0, 10), ("T2", 0, 0, 1)])
        self.assertTrue(is_whole)
        self.assertEqual([one.topic for one in self.browser.queues("T2")[0]], ["T2"])
        self.assertEqual(self.browser.queues("T3"), ((), True))
        self.patch(browsing, "QUEUES_MAX", 1)
        queues, is_whole = self.browser.queues()
        self.assertEqual((len(queues), is_whole), (1, False))

    def test_page(self) -> None:
        """Messages with everything that a person looks for."""
        shown = self.browser.page("T1", 0, 3, 2)
        self.assertEqual(self.bodies(shown), [b"3", b"4"])
        self.assertEqual((shown.first_offset, shown.next_offset), (3, 5))
        one = shown.messages[0]
        self.assertEqual((one.topic, one.queue_id, one.queue_offset), ("T1", 0, 3))
        self.assertEqual((one.unique_key, one.properties["KEYS"]), ("u3", "k3 all"))
        self.assertEqual(one.stored_ms, NOW_MS + 3000)
        self.assertEqual(self.bodies(self.browser.at(one.position)), [b"3"])
        self.assertEqual(len(one.message_id), 32)

    def test_ends(self) -> None:
        """The end of a queue is empty; after it, and before its begin, is an error that says the bounds."""
        shown = self.browser.page("T1", 0, 10, 5)
        self.assertEqual((shown.messages, shown.next_offset), ((), 10))
        for topic, queue_id, first, words in (
            ("T1", 0, 11, "after the end of the queue, 10"), ("T1", 7, 0, "it has 0"),
            ("T9", 0, 0, "no message of this topic"),
        ):
            error = self.assertRaises(NotShown, self.browser.page, topic, queue_id, first, 5)
            self.assertIn(words, str(error))
        self.assertRaises(NotShown, self.browser.offset_at, "T9", 0, 0)
        for position in (1, 1 << 60):
            self.assertIn("no message begins at", str(self.assertRaises(NotShown, self.browser.at, position)))

    def test_time(self) -> None:
        """The first message of a time."""
        self.assertEqual(self.browser.offset_at("T1", 0, NOW_MS + 3500), 4)
        self.assertEqual(self.browser.offset_at("T1", 0, 0), 0)
        self.assertEqual(self.browser.offset_at("T1", 0, NOW_MS + 99_000), 10)

    def test_key(self) -> None:
        """By a word of KEYS or by the unique key, of this topic, the oldest first."""
        self.assertEqual(self.bodies(self.found("T1", "k4")), [b"4"])
        self.assertEqual(self.bodies(self.found("T1", "u5")), [b"5"])
        self.assertEqual(self.bodies(self.found("T2", "all")), [b"other"])
        shown = self.found("T1", "all")
        self.assertEqual((self.bodies(shown), shown.is_whole), ([b"%d" % one for one in range(10)], True))
        shown = self.found("T1", "all", count=3)
        self.assertEqual((self.bodies(shown), shown.is_whole), ([b"7", b"8", b"9"], False))
        for key in ("all ", "paid", "x" * 40_000):
            self.assertEqual(self.found("T1", key), ShownMessages())

    def test_key_is_bounded(self) -> None:
        """A search takes some steps in a turn, and ends after some turns; it says so."""
        for number in range(2 * STEPS_TURN):
            self.put(b"%d" % number, KEYS="many")
        for _ in range(50):
            self.asked.clock.advance(DELAY_S)
        done = Deferred.fromCoroutine(self.browser.with_key("T1", "many", 500))
        self.assertNoResult(done)
        for _ in range(10):
            self.asked.clock.advance(0)
        shown = self.successResultOf(done)
        self.assertEqual((len(shown.messages), shown.is_whole), (2 * STEPS_TURN, True))
        self.patch(browsing, "STEPS_MAX", STEPS_TURN)
        shown = self.found("T1", "many", count=500)
        self.assertEqual((len(shown.messages), shown.is_whole), (STEPS_TURN, False))
        self.patch(browsing, "BYTES_MAX", 1000)
        shown = self.found("T1", "many", count=500)
        self.assertTrue(0 < len(shown.messages) < 20)
        self.assertFalse(shown.is_whole)

    def test_bytes_of_a_turn(self) -> None:
        """Large records with another key of the same hash end a turn, too."""
        for number in range(8):
            self.put(b"%d" % number * 300, KEYS="BB")
        self.put(b"right", KEYS="Aa")
        for _ in range(50):
            self.asked.clock.advance(DELAY_S)
        self.patch(browsing, "BYTES_MAX", 1000)
        reads: list[int] = []
        sound = self.asked.store.sound
        read = sound.at
        self.patch(sound, "at", lambda offset: reads.append(offset) or read(offset))
        waits: list[int] = []
        wait = browsing.deferLater
        self.patch(browsing, "deferLater", lambda clock, s: waits.append(len(reads)) or wait(clock, s))
        self.assertEqual(self.bodies(self.found("T1", "Aa")), [b"right"])
        self.assertEqual(len(reads), 9)
        self.assertTrue(max(after - before for before, after in pairwise(waits)) <= 4, waits)

    def test_without_an_index(self) -> None:
        """The error names the option."""
        self.asked.store.indexing = None
        done = Deferred.fromCoroutine(self.browser.with_key("T1", "k", 1))
        self.assertIn("messageIndexEnable is false", str(self.failureResultOf(done, NotShown).value))
