# -*- test-case-name: tests.broker.metadata.test_slave_synchronize -*-
"""A slave's copy of its master's metadata."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from twisted.internet.defer import Deferred, fail, succeed
from twisted.internet.task import Clock
from twisted.logger import LogLevel, capturedLogs
from twisted.trial.unittest import SynchronousTestCase

from dledger.rocketmq.answering.pieces import at_once
from dledger.rocketmq.metadata.files import Metadata
from dledger.rocketmq.metadata.slave_synchronize import (
    ITEMS,
    WHOLE,
    OwnLog,
    Round,
    SlaveSynchronize,
    metadata_answer,
)
from dledger.rocketmq.metadata.tables import GroupConfig, TopicConfig
from dledger.testing.world.memory_disk import MemoryDisk
from dledger.values.errors import StoreError
from protocols.wire.remoting import RemotingCommand
from tests.broker.metadata.test_tables import (
    JAVA_43,
    JAVA_45,
    JAVA_201,
    JAVA_201_5,
    JAVA_TOPICS_4,
    JAVA_TOPICS_5,
)
from tests.broker.support import Threads, inline

Answer = Callable[[], "Deferred[RemotingCommand]"]

JAVA_4 = {21: JAVA_TOPICS_4, 43: JAVA_43, 45: JAVA_45, 201: JAVA_201}
JAVA_5 = {**JAVA_4, 21: JAVA_TOPICS_5, 201: JAVA_201_5, 402: b'{"messageRequestModeMap":{}}'}
NOT_SUPPORTED = RemotingCommand(code=3, opaque=0, flag=1, remark=" request type 402 not supported")


class Master:
    """Answers at once, with bodies by code; other codes are not supported."""

    def __init__(self, bodies: dict[int, bytes]) -> None:
        self.bodies = bodies
        self.failing: dict[int, Exception] = {}
        self.held: list[Deferred[RemotingCommand]] = []
        self.holds = False
        self.asked: list[tuple[str, int, float]] = []

    def ask(self, address: str, command: RemotingCommand, *, timeout_s: float) -> Deferred[RemotingCommand]:
        """See L{dledger.rocketmq.metadata.slave_synchronize.MasterAsker}."""
        self.asked.append((address, command.code, timeout_s))
        if self.holds:
            self.held.append(Deferred())
            return self.held[-1]
        if command.code in self.failing:
            return fail(self.failing[command.code])
        body = self.bodies.get(command.code)
        if body is None:
            return succeed(NOT_SUPPORTED)
        return succeed(RemotingCommand(code=0, opaque=0, flag=1, body=body))


class SlaveTests(SynchronousTestCase):
    """The client's side."""

    def setUp(self) -> None:
        self.clock = Clock()
        self.disk = MemoryDisk()
        self.metadata = Metadata(self.disk, "base/config", now_ms=1)
        self.master = Master(dict(JAVA_4))
        self.slave = self.slave_of(inline)

    def slave_of(
        self, run_in_thread: Callable[[Callable[[], None]], Deferred[None]], **own_log: Any
    ) -> SlaveSynchronize:
        """A slave with these threads, and a log that says so."""
        slave = SlaveSynchronize(
            self.metadata, self.master, own_address=lambda: "s:10911", clock=self.clock,
            run_in_thread=run_in_thread, own_log=OwnLog(**own_log),
        )
        slave.master_address = "m:10911"
        return slave

    def round(self) -> Round:
        """One round, ended."""
        return self.successResultOf(self.slave.synchronize())

    def test_java_master(self) -> None:
        """Of 4.9 and 5.x: everything is taken over, and is on disk; what 4.9 does not know is no failure."""
        for bodies, changed in ((JAVA_4, 4), (JAVA_5, 1)):
            self.master.bodies = dict(bodies)
            done = self.round()
            self.assertEqual((len(done.changed), dict(done.failed)), (changed, {}))
            fresh = Metadata(self.disk, "base/config", now_ms=2)
            fresh.load()
            for metadata in (self.metadata, fresh):
                self.assertEqual(list(metadata.topics.entries), ["C1"])
                self.assertEqual(list(metadata.groups.entries), ["G1"])
                self.assertEqual(metadata.consumer_offsets.query("G2", "T1", 2), 5)
                self.assertEqual(metadata.delay_offsets.get(3), 22)
        self.assertEqual(self.master.asked[:5], [("m:10911", code, 3.0) for code in ITEMS])

    def test_offsets_wait_for_the_log(self) -> None:
        """They are adopted when our log has the messages that they are about; the rest does not wait."""
        waiting: list[Deferred[None]] = []

        async def reached() -> None:
            waiting.append(Deferred())
            await waiting[-1]

        self.slave = self.slave_of(inline, reached=reached)
        round_ = self.slave.synchronize()
        self.assertNoResult(round_)
        self.assertEqual(list(self.metadata.topics.entries), ["C1"])
        self.assertIsNone(self.metadata.consumer_offsets.query("G2", "T1", 2))
        waiting[0].callback(None)
        self.assertEqual(self.metadata.consumer_offsets.query("G2", "T1", 2), 5)
        waiting[1].errback(ValueError("it does not come"))
        done = self.successResultOf(round_)
        self.assertEqual((dict(done.failed), self.metadata.delay_offsets.get(3)),
                         ({"delay offsets": "it does not come"}, 0))
        self.assertEqual(list(self.metadata.groups.entries), ["G1"])

    def test_topic_made_again(self) -> None:
        """Offsets of the later life of a topic replace those of the one before, whoever has which."""
        master, slave = Metadata(MemoryDisk(), "c", now_ms=1), self.metadata
        places = {"master": 0, "slave": 0}
        master.consumer_offsets._place_of = lambda topic: places["master"] if topic == "T" else 0
        slave.consumer_offsets._place_of = lambda topic: places["slave"] if topic == "T" else 0
        for theirs, ours, offset, found in (
            (0, 0, 50, 50), (700, 0, 20, 20), (700, 700, 21, 21), (700, 900, 22, None), (900, 900, 3, 3),
        ):
            places |= {"master": theirs, "slave": ours}
            master.consumer_offsets.commit("G", "T", 0, offset, 5)
            if theirs == ours == 0:
                master.consumer_offsets.commit("G", "T", 1, offset, 5)
            elif ours == 900:
                slave.consumer_offsets.commit("here", "T", 0, 5, 5)
            master.consumer_offsets.commit("G", "U", 0, 60 + offset, 5)
            self.master.bodies = {
                code: at_once(metadata_answer(master, code, is_whole=True)) or b"" for code in ITEMS
            }
            self.assertEqual(dict(self.round().failed), {})
            offsets = slave.consumer_offsets
            self.assertEqual((offsets.query("G", "T", 0), offsets.query("G", "U", 0)), (found, 60 + offset))
            self.assertEqual(offsets.query("G", "T", 1), offset if theirs == ours == 0 else None)
            self.assertEqual(offsets.query("here", "T", 0), 5 if ours == 900 else None)
            again = Metadata(self.disk, "base/config", now_ms=2)
            again.load()
            again.consumer_offsets._place_of = offsets._place_of
            self.assertEqual(again.consumer_offsets.query("G", "T", 0), found)

    def test_offsets_of_rocketmq(self) -> None:
        """A master of RocketMQ says nothing of lives: its offsets are those of the present one."""
        offsets = self.metadata.consumer_offsets
        offsets._place_of = lambda topic: 700
        self.master.bodies = {43: b'{"offsetTable":{"T@G":{0:9}}}'}
        self.round()
        self.assertEqual(offsets.query("G", "T", 0), 9)

    def test_stall(self) -> None:
        """Rounds that are long overdue are noticed; a round that a slow master prolongs is not."""
        self.slave.start()
        self.addCleanup(self.slave.stop)
        with capturedLogs() as events:
            self.clock.pump([3, 10, 20])
            self.assertEqual([event for event in events if "was not copied" in event["log_format"]], [])
            self.clock.advance(30)
        (stall,) = [event for event in events if "was not copied" in event["log_format"]]
        self.assertEqual((stall["log_level"], stall["seconds"]), (LogLevel.warn, 30.0))

    def test_kept_for_local_queues(self) -> None:
        """
        A master that lost its tables takes no topic or group away that local queues need; reported once.
        """
        self.slave = self.slave_of(inline, local_topics=lambda: {"Mine", "Unknown"})
        for name in ("Mine", "Other"):
            self.metadata.topics.put(TopicConfig(topic_name=name), 5)
            self.metadata.groups.put(GroupConfig(group_name=f"G{name}"), 5)
            self.metadata.consumer_offsets.commit(f"G{name}", name, 0, 7, 5)
        self.metadata.delay_offsets.put(17, 9, 5)
        with capturedLogs() as events:
            self.round()
            self.round()
        self.assertEqual(sorted(self.metadata.topics.entries), ["C1", "Mine"])
        self.assertEqual(sorted(self.metadata.groups.entries), ["G1", "GMine"])
        self.assertEqual(self.metadata.consumer_offsets.query("GMine", "Mine", 0), 7)
        self.assertEqual((self.metadata.delay_offsets.get(17), self.metadata.delay_offsets.get(3)), (9, 22))
        reported = [event["names"] for event in events if "are kept" in event["log_format"]]
        self.assertEqual(reported, ["Mine", "GMine"])

    def test_stopped(self) -> None:
        """While replication is stopped, the master may be another one: nothing is asked."""
        slave = self.slave_of(inline, is_stopped=lambda: True)
        self.successResultOf(slave.synchronize())
        self.assertEqual(self.master.asked, [])

    def test_nothing_new(self) -> None:
        """The same again: no change, no write."""
        self.round()
        before = dict(self.disk.files)
        self.assertEqual(self.round(), Round())
        self.assertEqual(self.disk.files, before)
        for path, content in before.items():
            self.assertIs(self.disk.files[path], content)

    def test_each_fails_alone(self) -> None:
        """Whatever goes wrong with one item: it stays as it was, and the others come."""
        whole = JAVA_4[43]
        for code, name in list(ITEMS.items())[:4]:
            for bad in (b"", b"{", whole[:-2], b"\xff", b'{"dataVersion":null}', b"[1]"):
                self.setUp()
                self.master.bodies[code] = bad
                done = self.round()
                self.assertEqual((list(done.failed), len(done.changed)), ([name], 3), bad)
        for error in (TimeoutError("late"), ConnectionRefusedError("no"), RuntimeError()):
            self.setUp()
            self.master.failing = {21: error, 402: error}
            done = self.round()
            self.assertEqual(sorted(done.failed), ["request modes", "topics"])
            self.assertEqual(self.metadata.topics.entries, {})
            self.assertEqual(len(done.changed), 3)

    def test_refusals(self) -> None:
        """A code other than success is a failure, 402 excepted."""
        del self.master.bodies[45]
        done = self.round()
        self.assertEqual(list(done.failed), ["delay offsets"])
        self.assertIn("answered=3", done.failed["delay offsets"])

    def test_no_master(self) -> None:
        """Nobody is asked while no master is known, or we are the master."""
        for address in (None, "s:10911"):
            self.slave.master_address = address
            self.assertEqual(self.round(), Round())
        self.assertEqual(self.master.asked, [])

    def test_schedule(self) -> None:
        """First after three seconds, then every ten; never two rounds at once."""
        self.slave.start()
        self.clock.advance(2.9)
        self.assertEqual(self.slave.rounds, 0)
        self.clock.advance(0.1)
        self.assertEqual(self.slave.rounds, 1)
        self.clock.pump([1] * 20)
        self.assertEqual(self.slave.rounds, 3)
        self.master.holds = True
        self.clock.advance(10)
        asked = len(self.master.asked)
        self.clock.pump([10] * 5)
        self.assertEqual((len(self.master.asked), self.slave.rounds), (asked, 3))
        self.master.holds = False
        self.master.held[0].errback(TimeoutError("late"))
        self.assertEqual(self.slave.rounds, 4)
        self.clock.advance(10)
        self.assertEqual(self.slave.rounds, 5)
        self.slave.stop()
        self.clock.advance(100)
        self.assertEqual((self.slave.rounds, self.clock.getDelayedCalls()), (5, []))

    def test_stopped_before_the_first(self) -> None:
        """Nothing is left behind."""
        self.slave.start()
        self.slave.stop()
        self.slave.stop()
        self.assertEqual(self.clock.getDelayedCalls(), [])

    def test_disk_fails(self) -> None:
        """The round fails, the next one writes what is still to be written."""
        threads = Threads()
        self.slave = self.slave_of(threads)
        self.slave.master_address = "m:1"
        done = self.slave.synchronize()
        self.disk.write_file("base", b"a file where a directory should be")
        threads.run()
        self.failureResultOf(done, StoreError)
        self.disk.unlink("base")
        again = self.slave.synchronize()
        threads.run()
        self.assertEqual(self.successResultOf(again), Round())
        self.assertTrue(self.disk.exists("base/config/topics.json"))

    def test_log(self) -> None:
        """A failure is reported once, and so is its end."""
        self.master.failing = {21: TimeoutError("late")}
        with capturedLogs() as events:
            self.round()
            self.round()
            self.master.failing = {}
            self.round()
            self.round()
        reported = [(event["log_level"], event["item"]) for event in events if "item" in event]
        self.assertEqual(reported, [(LogLevel.warn, "topics"), (LogLevel.info, "topics")])

    def test_log_without_a_master(self) -> None:
        """A round that asks nobody says nothing of what failed before: it is not copied again."""
        self.master.failing = {21: TimeoutError("late")}
        self.round()
        address, self.slave.master_address = self.slave.master_address, None
        with capturedLogs() as events:
            self.round()
        self.assertEqual([one for one in events if "item" in one], [])
        self.slave.master_address = address
        with capturedLogs() as events:
            self.round()
        self.assertEqual([one for one in events if "item" in one], [], "the failure is known")


class MasterTests(SynchronousTestCase):
    """The server's side."""

    def test_from_ours_to_ours(self) -> None:
        """A slave of ours ends up with the files of its master."""
        master = Metadata(MemoryDisk(), "c", now_ms=1)
        master.topics.add_system_topics(cluster="C", broker="b", now_ms=5)
        master.groups.find("G", 6)
        master.consumer_offsets.commit("G", "T", 3, 7, 8)
        master.delay_offsets.put(2, 9, 10)
        master.request_modes.adopt(b'{"messageRequestModeMap":{"T":{"G":{"mode":"POP"}}}}')
        answers = {code: at_once(metadata_answer(master, code)) for code in ITEMS}
        bodies = {code: body for code, body in answers.items() if body is not None}
        self.assertEqual(len(bodies), 5)
        metadata = Metadata(MemoryDisk(), "c", now_ms=2)
        slave = SlaveSynchronize(
            metadata, Master(bodies), own_address=lambda: "s:1", clock=Clock(), run_in_thread=inline,
            own_log=OwnLog(),
        )
        slave.master_address = "m:1"
        self.assertEqual(len(self.successResultOf(slave.synchronize()).changed), 5)
        self.assertEqual(self.successResultOf(slave.synchronize()), Round())
        for code in ITEMS:
            answer = at_once(metadata_answer(metadata, code))
            self.assertEqual(json.loads(answer or b""), json.loads(bodies[code]))
        master.topics.put(TopicConfig(topic_name="New"), 11)
        self.assertNotEqual(at_once(metadata_answer(master, 21)), bodies[21])

    def test_attributes(self) -> None:
        """A slave of ours asks for the attributes of topics; others get none, on which they would fail."""
        master = Metadata(MemoryDisk(), "c", now_ms=1)
        master.topics.put(TopicConfig(topic_name="F", rest={"attributes": {"message.type": "FIFO"}}), 2)
        self.assertNotIn(b"FIFO", at_once(metadata_answer(master, 21)) or b"")
        self.assertIn(b"FIFO", at_once(metadata_answer(master, 21, is_whole=True)) or b"")
        seen: list[dict[str, str]] = []

        class Asked(Master):
            """Remembers the fields."""

            def ask(
                self, address: str, command: RemotingCommand, *, timeout_s: float
            ) -> Deferred[RemotingCommand]:
                seen.append(dict(command.ext_fields))
                return super().ask(address, command, timeout_s=timeout_s)

        metadata = Metadata(MemoryDisk(), "c", now_ms=2)
        slave = SlaveSynchronize(metadata, Asked({}), own_address=lambda: "s:1", clock=Clock(),
                                 run_in_thread=inline, own_log=OwnLog())
        slave.master_address = "m:1"
        self.successResultOf(slave.synchronize())
        self.assertEqual(seen, [{WHOLE: "true"}, {}, {}, {}, {}])

    def test_versions(self) -> None:
        """Every answer with a table has a complete version; other codes have no answer."""
        metadata = Metadata(MemoryDisk(), "c", now_ms=1)
        metadata.consumer_offsets.load(JAVA_43)
        for code in (21, 43, 45, 201):
            self.assertIn(b'"stateVersion"', at_once(metadata_answer(metadata, code)) or b"")
        self.assertIsNone(at_once(metadata_answer(metadata, 60)))
