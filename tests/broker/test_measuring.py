# -*- test-case-name: tests.broker.test_measuring -*-
"""The further figures of a broker, for its metrics."""

from __future__ import annotations

from dledger.rocketmq.broker import measuring
from dledger.rocketmq.broker.showing.status import BrokerMeasures
from dledger.rocketmq.metadata.order_info import OrderInfo
from protocols.wire.remoting import RemotingCommand
from tests.broker.send_support import send_of
from tests.broker.test_service import WALL_S, ServiceCase

HALF = "TRAN_MSG\x01true\x02PGROUP\x01P\x02"


class MeasureTests(ServiceCase):
    """Of a broker that runs."""

    def measures(self) -> BrokerMeasures:
        """The present ones."""
        found = self.service.measures()
        assert found is not None
        return found

    def test_life(self) -> None:
        """There are none before the store is open, nor after it was closed."""
        service = self.make()
        self.assertIsNone(service.measures())
        service.startService()
        self.settle()
        self.assertEqual(self.measures().puts.count, 0)
        self.stop()
        self.assertIsNone(service.measures())

    def test_roads(self) -> None:
        """Each put is timed once, however many messages it has; each look for messages, too."""
        self.start()
        self.ask(send_of(b"one", opaque=1), send_of(b"two", opaque=2))
        self.ask(send_of(b"three"))
        self.pull()
        measures = self.measures()
        self.assertEqual((measures.puts.count, measures.gets.count), (2, 1))
        (topic,) = [one for one in measures.topics if one.topic == "T1"]
        self.assertEqual((topic.stored, topic.kept), (3, 3))
        self.settle(12)
        self.assertEqual(self.measures().mornings["put"], (0, 0, 3))
        self.stop()

    def test_waiting(self) -> None:
        """Delayed messages by level, half messages, and what POP has given, are no messages yet."""
        self.start()
        self.ask(
            send_of(b"soon", opaque=1, properties="DELAY\x013\x02"),
            send_of(b"later", opaque=2, properties="DELAY\x013\x02"),
            send_of(b"half", opaque=3, properties=HALF), send_of(b"popped", opaque=4),
        )
        (given,) = self.ask(RemotingCommand(code=200_050, opaque=1, ext_fields={
            "topic": "T1", "consumerGroup": "G", "queueId": "0", "maxMsgNums": "8", "invisibleTime": "60000",
            "pollTime": "0", "initMode": "0",
        }))
        self.assertEqual(given.code, 0)
        self.settle(0.5)
        waiting = self.measures().waiting
        self.assertEqual(waiting.delayed[3], 2)
        self.assertEqual(sum(waiting.delayed.values()), 2)
        self.assertEqual((waiting.halves, waiting.popped, waiting.popped_in_order), (1, 1, 0))
        self.settle(11)
        self.assertEqual(self.measures().waiting.delayed[3], 0)
        self.assertEqual(self.measures().totals["delayed_delivered"], 2)
        self.broker.metadata.order_info.put(("T1", "G", 0), OrderInfo(
            pop_ms=1, invisible_ms=1, offsets=(1, 2, 3), attempt="", tries={}, last_ms=1, done=frozenset({2}),
        ))
        self.assertEqual(self.measures().waiting.popped_in_order, 2)
        self.stop()

    def test_groups(self) -> None:
        """The lag of each, the largest first, and that of its worst queue; more are cut, and counted."""
        self.start()
        self.ask(*(send_of(b"x", opaque=n, queueId=n % 2) for n in range(1, 6)))
        offsets, now_ms = self.broker.metadata.consumer_offsets, int(WALL_S * 1000)
        for queue_id, offset in ((0, 1), (1, 0)):
            offsets.commit("slow", "T1", queue_id, offset, now_ms)
            offsets.commit("quick", "T1", queue_id, 2, now_ms)
        slow, quick = self.measures().groups
        self.assertEqual((slow.group, slow.lag, slow.worst_lag, slow.consumed), ("slow", 4, 3, 1))
        self.assertEqual((quick.group, quick.lag, quick.worst_lag), ("quick", 1, 1))
        self.assertEqual((slow.members, slow.is_broadcasting), (0, False))
        self.patch(measuring, "MEASURED_MAX", 1)
        cut = self.measures()
        self.assertEqual([one.group for one in cut.groups], ["slow"])
        self.assertEqual(cut.cut["groups"], 1)
        self.patch(measuring, "MEASURED_MAX", 500)
        self.patch(measuring, "QUEUES_MAX", 1)
        self.assertEqual((len(self.measures().groups), self.measures().cut["groups"]), (1, 1))
        self.stop()

    def test_topics_cut(self) -> None:
        """Those with the most messages are shown; the others are counted."""
        self.start()
        self.ask(*(send_of(b"x", opaque=n, topic=topic) for n, topic in enumerate(("Aa", "Bb", "Bb"), 1)))
        self.patch(measuring, "MEASURED_MAX", 1)
        measures = self.measures()
        self.assertEqual(([one.topic for one in measures.topics], measures.cut["topics"]), (["Bb"], 1))
        self.stop()

    def test_dead_letters(self) -> None:
        """Messages that consumers gave up, by group."""
        self.start()
        (sent,) = self.ask(send_of(b"bad"))
        self.ask(RemotingCommand(code=36, opaque=2, version=409, ext_fields={
            "group": "G", "offset": str(int(sent.ext_fields["msgId"][16:], 16)), "delayLevel": "-1",
        }))
        self.assertEqual(self.measures().dead_letters, {"G": 1})
        self.stop()
