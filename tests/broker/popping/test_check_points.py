# -*- test-case-name: tests.broker.popping.test_check_points -*-
"""Check points, acks and receipts, as RocketMQ writes and reads them."""

from __future__ import annotations

import json

from twisted.trial.unittest import SynchronousTestCase

from dledger.rocketmq.broker.consuming.popping.check_points import (
    Ack,
    CheckPoint,
    PopKey,
    Receipt,
    ack_message,
    check_point_message,
    normal_topic,
    offsets_info,
    pop_retry_topic,
    popped_places,
    read_revive,
    receipt_text,
)
from dledger.rocketmq.store.records.records import NewMessage
from protocols.wire.errors import BodyError
from protocols.wire.rocketmq.message import Host, Message, make_message

HOST = Host(b"\x0a\0\0\1", 10911)
KEY = PopKey("T1", "G", 3, 40, 1_700_000_000_000, "b")
POINT = CheckPoint(KEY, 60_000, (40, 41, 45))


def stored(message: NewMessage) -> Message:
    """As the log would have it."""
    return make_message(message.topic, message.body, properties_data=message.properties_data)


def read(tag: str, document: object) -> object:
    """A message of the revive topic with this body."""
    return read_revive(make_message("R", json.dumps(document).encode(), properties={"TAGS": tag}), "own")


class PlaceTests(SynchronousTestCase):
    """The topics of retries."""

    def test_a_name_leads_to_its_groups_and_topics(self) -> None:
        """Every group and topic that the name may join; none for a name of something else."""
        groups, topics = {"G", "G_T"}, {"T_T1", "T1"}
        for name, expected in (
            ("%RETRY%G_T1", [("G", "T1")]), ("%RETRY%G+T1", [("G", "T1")]),
            ("%RETRY%G_T_T1", [("G", "T_T1"), ("G_T", "T1")]), ("%RETRY%G", []), ("%RETRY%H_T1", []),
            ("%RETRY%G_T2", []),
        ):
            self.assertEqual(list(popped_places(name, groups=groups, topics=topics)), expected, name)


class CheckPointTests(SynchronousTestCase):
    """Messages of the revive topic."""

    def test_a_check_point_is_written_and_read(self) -> None:
        """The fields of PopCheckPoint, and back."""
        message = check_point_message("R", POINT, HOST, 5)
        self.assertEqual(json.loads(message.body), {
            "bm": 0, "bn": "b", "c": "G", "d": [0, 1, 5], "it": 60000, "n": 3, "pt": 1700000000000, "q": 3,
            "ro": 0, "so": 40, "t": "T1",
        })
        self.assertEqual(stored(message).properties, {"TAGS": "ck", "TIMER_DELIVER_MS": "5", "WAIT": "true"})
        self.assertEqual(read_revive(stored(message), ""), POINT)
        self.assertEqual(POINT.due_ms, 1_700_000_060_000)

    def test_acks_are_written_and_read(self) -> None:
        """Of one message, and of several."""
        for offsets, tag in (((41,), "ack"), ((40, 45), "bAck")):
            message = ack_message("R", Ack(KEY, offsets), HOST, 5, queue_id=2)
            self.assertEqual((stored(message).tags, message.queue_id), (tag, 2))
            self.assertEqual(read_revive(stored(message), ""), Ack(KEY, offsets))

    def test_forms_of_java_are_read(self) -> None:
        """Old check points without distances, bits of what is done, and no name of the broker."""
        key = PopKey("T", "G", 0, 7, 1, "own")
        old = {"so": 7, "pt": 1, "it": 2, "bm": 2, "n": 3, "q": 0, "t": "T", "c": "G"}
        self.assertEqual(read("ck", old), CheckPoint(key, 2, (7, 9)))
        self.assertEqual(read("ck", {**old, "bm": 1, "d": [0, 4]}), CheckPoint(key, 2, (11,)))
        self.assertIsNone(read("else", old))

    def test_malformed_records_are_refused(self) -> None:
        """They raise the error that they are given."""
        for tag, document in (
            ("ck", {}), ("ck", {"t": "T", "c": "G"}), ("ack", {"t": 1, "c": "G"}), ("ck", []),
            ("bAck", {"so": 7, "pt": 1, "q": 0, "t": "T", "c": "G", "aol": 5}),
            ("ck", {"pad": "x" * 70_000}),
        ):
            self.assertRaises(BodyError, read, tag, document)

    def test_topics_have_the_names_of_rocketmq(self) -> None:
        """The names of RocketMQ."""
        self.assertEqual(pop_retry_topic("T1", "G"), "%RETRY%G+T1")
        self.assertEqual(pop_retry_topic("T1", "G", version=1), "%RETRY%G_T1")
        for name in ("%RETRY%G_T1", "%RETRY%G+T1", "T1"):
            self.assertEqual(normal_topic(name, "G"), "T1")
        self.assertEqual(normal_topic("%RETRY%G", "G"), "%RETRY%G")

    def test_receipts_are_read_with_additions(self) -> None:
        """What a client shows, also with the words that client and proxy add."""
        self.assertEqual(receipt_text(POINT, 41), "40 1700000000000 60000 0 0 b 3 41")
        wanted = Receipt(40, 1_700_000_000_000, 60_000, 0, "b", 3)
        for more in ("", " 41", " 41 4096"):
            self.assertEqual(Receipt.read(f"40 1700000000000 60000 0 0 b 3{more}"), wanted)
        self.assertEqual(Receipt.read("40 1700000000000 60000 0 2 b 3"), wanted._replace(kind=2))
        for wrong in ("", "1 2", "1 2 3 4 5 b x", "-1 2 3 4 0 b 3", "1 " * 600):
            self.assertRaises(ValueError, Receipt.read, wrong)

    def test_offsets_name_queues_and_retries(self) -> None:
        """Two queues, one of retries."""
        retry = CheckPoint(KEY._replace(topic="%RETRY%G_T1", queue_id=0), 1, (40,))
        self.assertEqual(offsets_info([POINT, retry]), ("0 3 40;1 0 40", "0 3 40,41,45;1 0 40"))
