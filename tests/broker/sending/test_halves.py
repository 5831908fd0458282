# -*- test-case-name: tests.broker.sending.test_halves -*-
"""The messages of a transaction; whole transactions are played in L{tests.broker.transactions}."""

from __future__ import annotations

import attrs
from twisted.trial.unittest import SynchronousTestCase

from dledger.rocketmq.broker.producing.halves import (
    HALF_TOPIC,
    committed_message,
    ended_offsets,
    half_message,
    op_message,
    real_place,
)
from protocols.wire.rocketmq.message import Host, Message, encode_properties
from tests.broker.support import message

_HOST = Host.of("10.0.0.9", 10911)


def half_of(**properties: str) -> Message:
    """A stored half message."""
    named = {name: value for name, value in properties.items() if value}
    return Message(topic=HALF_TOPIC, body=b"x", properties_data=encode_properties(named))


class HalfTests(SynchronousTestCase):
    """Made, read, and refused."""

    def test_half(self) -> None:
        """Its key is the id of the transaction; the bits of a transaction go, others stay."""
        given = message(b"x", topic="t", queue_id=3, sys_flag=5, properties={"UNIQ_KEY": "k"})
        half, key = half_message(given)
        self.assertEqual((half.topic, half.queue_id, half.sys_flag, key), (HALF_TOPIC, 0, 1, "k"))
        _, none = half_message(message(b"x", topic="t", properties={}))
        self.assertEqual(none, "")

    def test_real_place(self) -> None:
        """No message leaves for a topic of the broker's own, or for no queue."""
        self.assertEqual(real_place(half_of(REAL_TOPIC="t", REAL_QID="3")), ("t", 3))
        for topic, queue in (("", "0"), (HALF_TOPIC, "0"), ("a/b", "0"), ("t", ""), ("t", "-1"), ("t", "x"),
                             ("t", "9" * 30), ("t", "0" * 11 + "9" * 30), ("t", "\u0663")):
            half = half_of(REAL_TOPIC=topic, REAL_QID=queue)
            self.assertRaises(ValueError, real_place, half)
            self.assertRaises(ValueError, committed_message, half, _HOST)

    def test_op_messages(self) -> None:
        """What this broker writes, and what 4.9, 5.x and anybody write."""
        op = op_message(17, _HOST, 1, end=8)
        self.assertEqual(op.body, b"17")
        read = half_of()
        for body, expected in ((b"17", [17]), (b"1,2,30,", [1, 2, 30]), (b"", []), (b"x,1,-2", [1]),
                               (b"9" * 40, []), (b"1," * 1_000_000, [])):
            self.assertEqual(ended_offsets(attrs.evolve(read, body=body)), expected)
