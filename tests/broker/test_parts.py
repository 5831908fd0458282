# -*- test-case-name: tests.broker.test_parts -*-
"""Every part has its place in a broker, and hears of events in the order that is written down."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from twisted.trial.unittest import SynchronousTestCase

from dledger.rocketmq.broker.parts import BrokerParts
from dledger.rocketmq.broker.replication import HAReplication, StoreSide
from dledger.rocketmq.store.records.events import BrokerEvents
from protocols.wire.remoting import RemotingCommand, encode_command
from tests import broker_events
from tests.broker.put_support import Writing
from tests.broker.send_support import send_of
from tests.broker.support import message, plain
from tests.broker.test_service import ServiceCase
from tests.protocols.fakes import plug, sent_commands
from tests.walks import Calls, problem_of

#: By what RocketMQ calls them; see docs/ha.md.
CODES = {
    10, 310, 320, 36, 11, 361, 14, 15, 29, 30, 31, 32, 33, 34, 35, 38, 46, 41, 42, 17, 215, 200, 207, 26, 28,
    907, 222, 202, 203, 208, 300, 351, 352, 21, 43, 45, 201, 402,
}


class EventTests(SynchronousTestCase):
    """The listeners of each event, in their order."""

    def setUp(self) -> None:
        self.writing = Writing(broker_role="SYNC_MASTER")
        self.addCleanup(self.writing.stop)
        self.broker = self.writing.broker
        self.heard: list[str] = []

    def hear(self, part: Any, name: str) -> None:
        """Remember calls, and let them through."""
        call = getattr(part, name)

        def heard(*arguments: Any, **named: Any) -> Any:
            self.heard.append(f"{type(part).__name__}.{name}")
            return call(*arguments, **named)

        self.patch(part, name, heard)

    def hear_grown(self) -> None:
        """Of new bytes."""
        for part, name in ((self.writing.ha.master, "appended"), (self.broker.reads, "grown"),
                           (self.broker.store.reput, "wake")):
            self.hear(part, name)

    def test_grown(self) -> None:
        """Slaves, readers, dispatch; each once for an append, however many messages it has."""
        self.hear_grown()
        order = ["HAMaster.appended", "LogReads.grown", "ReputMessageService.wake"]
        self.broker.pipeline.put(plain([message()], [message(), message()]))
        self.assertEqual(self.heard, order)
        self.broker.store.log.append([[message()]], 5)
        self.assertEqual(self.heard, 2 * order)

    def test_cut(self) -> None:
        """Queues and dispatch follow the log."""
        self.broker.store.log.append([[message()], [message()]], 5)
        self.writing.settle()
        self.hear(self.broker.store, "log_was_cut")
        self.broker.store.log.cut(self.broker.store.log.end_offset - 1)
        self.assertEqual(self.heard, ["CommitLogStore.log_was_cut"])
        self.assertEqual([len(units) for units in self.writing.units().values()], [1])

    def test_arrived(self) -> None:
        """Requests that wait, then the messages that the broker itself delivers."""
        for part in (self.broker.timers, self.broker.schedule, self.broker.pops, self.broker.pulls):
            self.hear(part, "arrived")
        self.broker.store.log.append([[message()]], 5)
        self.writing.settle()
        self.assertEqual(self.heard, [
            "PullCommands.arrived", "PopCommands.arrived", "ScheduleMessageService.arrived",
            "TimerService.arrived",
        ])

    def test_dispatched_at_once_for_waiting_consumers(self) -> None:
        """What is stored waits for more of its kind, unless a consumer waits for messages."""
        for table in (None, self.broker.pulls.held, self.broker.pops.polls):
            if table is not None:
                table.by_key[("T1", 0)] = {}  # type: ignore[index]
            self.broker.store.log.append([[message()]], 5)
            self.writing.clock.advance(0)
            self.assertEqual(self.broker.store.reput.behind_bytes > 0, table is None)
            if table is not None:
                table.by_key.clear()
            self.writing.settle()

    def test_dispatched_before_a_request(self) -> None:
        """A client that asks finds what was stored before, although no consumer waited for it."""
        connection = self.broker.router.buildProtocol(None)
        assert connection is not None
        plug(connection)
        self.broker.store.log.append([[message()]], 5)
        self.writing.clock.advance(0)
        self.assertGreater(self.broker.store.reput.behind_bytes, 0)
        connection.dataReceived(encode_command(RemotingCommand(code=30, opaque=1, ext_fields={
            "topic": "T1", "queueId": "0",
        })))
        self.writing.clock.advance(0)
        self.assertEqual(self.broker.store.reput.behind_bytes, 0)
        connection.abort("done")

    def test_acknowledged(self) -> None:
        """The dispatch gives way to slaves, until the put that waited for them has its answer."""
        slave = self.writing.slave()
        put = self.broker.pipeline.put(plain([message()]))
        put.done.addCallback(lambda _: self.heard.append("answer"))
        self.hear(self.broker.store.reput, "release")
        self.assertGreater(self.broker.store.reput.behind_bytes, 0)
        self.writing.report(slave)
        self.assertEqual(self.heard, ["answer", "ReputMessageService.release"])
        self.writing.settle()
        self.assertEqual(self.broker.store.reput.behind_bytes, 0)

    def test_topics_changed(self) -> None:
        """Name servers; the file is written once a second, however many topics are made."""
        self.hear(self.broker.saver, "save")
        self.hear(self.broker.registrar, "topics_changed")
        for name in ("new", "newer"):
            self.broker.checks.writable(name)
        self.assertEqual(self.heard, ["NameServerRegistrar.topics_changed"] * 2)
        self.broker.tick()
        self.assertEqual(self.heard[2:], ["MetadataSaver.save"])

    def test_unheard(self) -> None:
        """No event of the interface is without listeners in a broker."""
        names = {name for name in vars(BrokerEvents) if not name.startswith("_")}
        self.assertEqual(names, {"grown", "cut", "arrived", "acknowledged", "role_changed", "topics_changed",
                                 "metadata_logged"})
        self.assertEqual(names & vars(BrokerParts).keys(), names)


class EventTableTests(SynchronousTestCase):
    """The table of docs/put-path.md, which is made of the source."""

    def test_current(self) -> None:
        """C{python -m tests.broker_events --write} would change nothing."""
        text = broker_events.PAGE.read_text(encoding="utf-8")
        self.assertEqual(broker_events.page(text), text, "python -m tests.broker_events --write")

    def test_complete(self) -> None:
        """Each event is sent and heard; what senders call as a callable counts."""
        for event in broker_events.EVENTS:
            self.assertTrue(broker_events.senders(event) and broker_events.listeners(event), event)
        by_callable = "dledger.rocketmq.broker.lost_topics.LostTopics.found"
        self.assertIn(by_callable, broker_events.senders("topics_changed"))

    def test_run(self) -> None:
        """In a broker the listeners are called in the order of the table."""
        writing = Writing(broker_role="SYNC_MASTER")
        self.addCleanup(writing.stop)
        broker = writing.broker
        emit: dict[str, Callable[[], None]] = {
            "grown": broker.grown, "arrived": lambda: broker.arrived(set()),
            "acknowledged": broker.acknowledged, "role_changed": broker.role_changed,
            "topics_changed": broker.topics_changed,
            "cut": lambda: broker.cut(broker.store.log.end_offset),
            "metadata_logged": lambda: broker.metadata_logged(b"", 0, 0, is_kept=False),
        }
        self.assertEqual(set(emit), set(broker_events.EVENTS))
        for event, call in emit.items():
            names = [name.replace(f".{StoreSide.__name__}.", f".{HAReplication.__name__}.")
                     for name in broker_events.listeners(event)]
            with Calls() as calls:
                call()
            self.assertEqual(problem_of(names, calls.codes), "", event)

    def test_marks(self) -> None:
        """A page without them is an error."""
        self.assertRaises(ValueError, broker_events.page, "no marks")


class AssemblyTests(ServiceCase):
    """A whole master."""

    def test_codes(self) -> None:
        """Everything that is said to be answered is."""
        self.start()
        self.assertEqual(CODES - set(self.broker.router.codes), set())
        self.stop()

    def test_administration(self) -> None:
        """A send is counted, replication is informed, and a new topic is on disk with the answer."""
        self.start()
        self.ask(send_of(), send_of())
        made, runtime, ha = self.ask(
            RemotingCommand(code=17, opaque=1, ext_fields={
                "topic": "new", "defaultTopic": "TBW102", "readQueueNums": "4", "writeQueueNums": "4",
                "perm": "6", "topicFilterType": "SINGLE_TAG",
            }),
            RemotingCommand(code=28, opaque=2), RemotingCommand(code=907, opaque=3),
        )
        self.assertEqual([made.code, runtime.code, ha.code], [0, 0, 0])
        self.assertIn(b'"new"', self.disk.read_file("base/config/topics.json"))
        self.assertEqual(json.loads(runtime.body)["table"]["msgPutTotalTodayNow"], "2")
        self.assertIs(json.loads(ha.body)["master"], True)
        self.stop()

    def test_delayed(self) -> None:
        """A master delivers, and says so; a slave never does."""
        self.start()
        self.ask(send_of(properties="DELAY\x011\x02"))
        self.settle(0.7)
        self.assertEqual(self.pull().code, 19)
        self.settle(0.3)
        self.assertEqual(self.pull().code, 0)
        self.assertEqual(self.broker.metadata.delay_offsets.get(1), 1)
        self.stop()
        self.assertIn(b"1:1", self.disk.read_file("base/config/delayOffset.json"))

    def test_held_pull(self) -> None:
        """A pull that waits is answered by the next message, and by the end of the broker."""
        self.start()
        self.ask(send_of())
        transport = self.connect()
        for opaque, queue_id, offset in ((1, 0, 1), (2, 1, 0)):
            self.connection.dataReceived(encode_command(RemotingCommand(code=11, opaque=opaque, ext_fields={
                "consumerGroup": "g", "topic": "T1", "queueId": str(queue_id),
                "queueOffset": str(offset), "maxMsgNums": "32", "sysFlag": "6", "commitOffset": "0",
                "suspendTimeoutMillis": "15000", "subVersion": "0",
            })))
        self.settle()
        self.assertEqual(transport.value(), b"")
        held = self.connection
        self.ask(send_of())
        self.connection = held
        self.settle()
        self.assertEqual([(one.opaque, one.code) for one in sent_commands(transport.value())], [(1, 0)])
        transport.clear()
        self.stop()
        self.assertEqual([(one.opaque, one.code) for one in sent_commands(transport.value())], [(2, 19)])
