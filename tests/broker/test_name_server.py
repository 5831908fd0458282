# -*- test-case-name: tests.broker.test_name_server -*-
"""Name servers hear of us at the start, regularly, and when something has changed."""

from __future__ import annotations

import json
from typing import Any
from zlib import crc32

import attrs
from twisted.internet.defer import Deferred
from twisted.internet.task import Clock
from twisted.logger import LogLevel, capturedLogs
from twisted.trial.unittest import SynchronousTestCase

from dledger.rocketmq.broker.name_server import BrokerIdentity, NameServerRegistrar
from dledger.rocketmq.broker.replication import Follows
from dledger.rocketmq.metadata.tables import TopicConfig, Topics
from protocols.rocketmq.commands import NotAsked
from protocols.wire.remoting import RemotingCommand

OK = RemotingCommand(code=0, opaque=0, flag=1)
REFUSED = RemotingCommand(code=1, opaque=0, flag=1, remark="register broker failed")
IDENTITY = BrokerIdentity(
    cluster_name="c", broker_name="a", broker_id=0, broker_addr="10.0.0.1:10911",
    ha_server_addr="10.0.0.2:10912",
)


class Servers:
    """
    Name servers whose answers are given by hand; those in C{lost} have no connection.

    Implements L{dledger.rocketmq.broker.name_server.NameServerAsker}.
    """

    def __init__(self) -> None:
        self.asked: list[tuple[str, RemotingCommand, Deferred[RemotingCommand]]] = []
        self.lost: set[str] = set()

    def ask(self, address: str, command: RemotingCommand, *, timeout_s: float) -> Deferred[RemotingCommand]:
        done: Deferred[RemotingCommand] = Deferred()
        self.asked.append((address, command, done))
        return done

    def is_connected(self, address: str) -> bool:
        return address not in self.lost

    def take(self) -> list[tuple[str, RemotingCommand, Deferred[RemotingCommand]]]:
        """What was asked since the last call."""
        asked, self.asked = self.asked, []
        return asked

    def answer(self, answer: RemotingCommand | Exception = OK) -> list[str]:
        """Answer everything. @return: who was asked."""
        asked = self.take()
        for _, _, done in asked:
            if isinstance(answer, Exception):
                done.errback(answer)
            else:
                done.callback(answer)
        return [address for address, _, _ in asked]


class Learning(Follows):
    """Remembers the addresses that it learns."""

    def __init__(self) -> None:
        self.found: list[tuple[str | None, str | None]] = []

    def learned(self, master: str | None, ha_address: str | None) -> None:
        """Remember."""
        self.found.append((master, ha_address))

    def seeks_master(self) -> bool:
        """It waits for none."""
        return False


class RegistrarTests(SynchronousTestCase):
    """One broker, two name servers."""

    def setUp(self) -> None:
        self.clock = Clock()
        self.servers = Servers()
        self.topics = Topics(1)
        self.topics.add_system_topics(cluster="c", broker="a", now_ms=1)
        self.following = Learning()
        self.learned = self.following.found
        self.registrar = NameServerRegistrar(
            ["n1:9876", "n2:9876"], self.servers, lambda: IDENTITY, self.topics, clock=self.clock,
            following=self.following,
        )
        self.registrar.start()

    def test_stall(self) -> None:
        """A reactor that is busy for seconds is noticed; ordinary ticks are not."""
        with capturedLogs() as events:
            self.wait(5)
            self.assertEqual([event for event in events if "stalled" in event["log_format"]], [])
            self.clock.advance(10)
        (stall,) = [event for event in events if "stalled" in event["log_format"]]
        self.assertEqual((stall["log_level"], stall["seconds"]), (LogLevel.warn, 10.0))

    def test_old_role_after_a_stall(self) -> None:
        """After a stall the role may be another's: nothing is reported before the next tick."""
        self.servers.answer()
        self.clock.advance(45)
        self.assertEqual(self.servers.asked, [])
        self.clock.advance(1)
        self.assertEqual(self.servers.answer(), ["n1:9876", "n2:9876"])

    def wait(self, seconds: float) -> None:
        """Let the registrar look once a second."""
        self.clock.pump([0.5] * int(seconds * 2))

    def body(self) -> tuple[RemotingCommand, dict[str, Any]]:
        """The first registration that is under way, and its table of topics."""
        command = self.servers.asked[0][1]
        return command, json.loads(command.body)["topicConfigSerializeWrapper"]["topicConfigTable"]

    def test_what_is_said(self) -> None:
        """Who we are, a checksum that Java computes in the same way, and every topic."""
        command, table = self.body()
        self.assertEqual(command.code, 103)
        self.assertEqual(dict(command.ext_fields), {
            "brokerName": "a", "brokerAddr": "10.0.0.1:10911", "clusterName": "c", "brokerId": "0",
            "haServerAddr": "10.0.0.2:10912", "compressed": "false",
            "bodyCrc32": str(crc32(command.body) & 0x7FFFFFFF),
        })
        self.assertEqual(set(table), set(self.topics.entries))
        self.assertEqual(table["TBW102"]["perm"], 7)

    def test_permission(self) -> None:
        """No topic has more than the broker has; our own table stays."""
        other = attrs.evolve(IDENTITY, permission=4)
        self.servers.answer()
        NameServerRegistrar(["n3:9876"], self.servers, lambda: other, self.topics, clock=self.clock).start()
        perms = {topic["perm"] for topic in self.body()[1].values()}
        self.assertEqual(perms, {4})
        self.assertEqual(self.topics.entries["TBW102"].perm, 7)

    def test_regularly(self) -> None:
        """Every name server at once, then after thirty seconds, then again."""
        self.assertEqual(self.servers.answer(), ["n1:9876", "n2:9876"])
        self.wait(29)
        self.assertEqual(self.servers.asked, [])
        self.wait(1)
        self.assertEqual(self.servers.answer(), ["n1:9876", "n2:9876"])

    def test_interval_is_bounded(self) -> None:
        """RocketMQ's limits hold for us, too: an interval of an hour would be forgotten after 120 s."""
        self.servers.answer()
        other = NameServerRegistrar(
            ["n3:9876"], self.servers, lambda: IDENTITY, self.topics, clock=self.clock, interval_s=3600
        )
        other.start()
        self.servers.answer()
        self.wait(60)
        self.assertIn("n3:9876", self.servers.answer())

    def test_new_topic(self) -> None:
        """A topic that was added is known at the next tick, or at once if somebody waits for it."""
        self.servers.answer()
        self.topics.put(TopicConfig(topic_name="t"), 2)
        self.wait(1)
        self.assertIn("t", self.body()[1])
        self.servers.answer()
        self.topics.put(TopicConfig(topic_name="u"), 3)
        self.registrar.topics_changed()
        self.assertIn("u", self.body()[1])

    def test_change_while_under_way(self) -> None:
        """What changes while a registration is under way makes another one follow."""
        self.topics.put(TopicConfig(topic_name="t"), 2)
        self.registrar.topics_changed()
        self.assertNotIn("t", self.body()[1])
        self.assertEqual(len(self.servers.asked), 2)
        self.servers.answer()
        self.wait(1)
        self.assertIn("t", self.body()[1])

    def test_role_while_under_way(self) -> None:
        """
        A new role is reported at once, also while a registration with the old one is under way, or failed.
        """
        old = self.servers.take()
        self.registrar.role_changed()
        self.assertEqual([address for address, _, _ in self.servers.asked], ["n1:9876", "n2:9876"])
        self.assertEqual(self.registrar.problems, {})
        for _, _, done in old:
            self.assertTrue(done.called, "cancelled")
        self.servers.answer(NotAsked("lost"))
        self.registrar.role_changed()
        self.assertEqual(self.servers.answer(), ["n1:9876", "n2:9876"])

    def test_unsettled_after_a_change(self) -> None:
        """
        The last master may report name servers of its role after us, and then that it is a slave: they would
        know no master. So a new role is reported again for a while.
        """
        self.servers.answer()
        self.registrar.role_changed()
        self.assertEqual(len(self.servers.answer()), 2)
        reported = []
        for second in range(30):
            self.wait(1)
            reported += [second for _ in self.servers.answer()]
        self.assertEqual(reported, sorted([*range(1, 20, 2)] * 2))

    def test_lost_connection(self) -> None:
        """
        A name server has forgotten us when the connection is lost: it gets another registration at once.
        """
        self.servers.answer()
        self.servers.lost = {"n2:9876"}
        self.wait(1)
        self.assertEqual(self.servers.answer(), ["n2:9876"])

    def test_absent(self) -> None:
        """It is asked with growing pauses; its absence is logged once, and so is its return."""
        with capturedLogs() as events:
            at = []
            for second in range(40):
                if self.servers.answer(NotAsked("away")):
                    at.append(second)
                self.wait(1)
            self.assertEqual(at, [0, 1, 3, 7, 15, 31])
            self.assertEqual(set(self.registrar.problems.values()), {"away"})
            self.wait(30)
            self.servers.answer()
        self.assertEqual(self.registrar.problems, {})
        ours = [event for event in events if "name server" in str(event["log_format"])]
        self.assertEqual(
            [event["log_level"] for event in ours], [LogLevel.warn] * 2 + [LogLevel.info] * 2
        )

    def test_refused(self) -> None:
        """An answer that is an error counts as none; the reason is kept."""
        self.servers.answer(REFUSED)
        self.assertIn("register broker failed", self.registrar.problems["n1:9876"])

    def test_one_topic(self) -> None:
        """A name server of 5.x refuses a newcomer with one topic: it has company, or is not named."""
        for name, expected in (("t", {"t", "SELF_TEST_TOPIC"}), ("SELF_TEST_TOPIC", set())):
            self.servers.answer()
            for other in list(self.topics.entries):
                self.topics.delete(other, 2)
            self.topics.put(TopicConfig(topic_name=name), 3)
            self.registrar.topics_changed()
            self.assertEqual(set(self.body()[1]), expected)

    def test_slave_learns_its_master(self) -> None:
        """Every new pair of addresses once, whichever name server says it; nothing when none is known."""
        self.servers.answer(OK)
        self.assertEqual(self.learned, [])
        for master, count in (("10.0.0.9:10911", 1), ("10.0.0.9:10911", 1), ("10.0.0.8:10911", 2)):
            self.wait(30)
            self.servers.answer(RemotingCommand(code=0, opaque=0, flag=1, ext_fields={
                "masterAddr": master, "haServerAddr": "10.0.0.9:10912"
            }))
            self.assertEqual(len(self.learned), count)
        self.assertEqual(self.learned[-1], ("10.0.0.8:10911", "10.0.0.9:10912"))

    def test_overtaken(self) -> None:
        """Another one had our name and id: counted, and logged when it is another one."""
        self.servers.answer(OK)
        for other, logged in (("10.0.0.7:1", 1), ("10.0.0.7:1", 0), ("", 0), ("10.0.0.7:1", 1)):
            self.wait(30)
            asked = self.servers.take()
            with capturedLogs() as events:
                asked[0][2].callback(RemotingCommand(code=0, opaque=0, flag=1, ext_fields={
                    "otherBrokerAddr": other
                } if other else {}))
            asked[1][2].callback(OK)
            reported = [event for event in events if "had our place" in event["log_format"]]
            self.assertEqual([event["other"] for event in reported], [other] * logged)
        self.assertEqual(self.registrar.overtaken, 3)
        self.registrar.role_changed()
        self.servers.answer(RemotingCommand(code=0, opaque=0, flag=1, ext_fields={"otherBrokerAddr": "x:1"}))
        self.assertEqual(self.registrar.overtaken, 3, "the master before this one")

    def test_stop_while_registering(self) -> None:
        """A registration that is under way may have arrived: it is taken back, too."""
        self.servers.answer()
        self.topics.put(TopicConfig(topic_name="t"), 2)
        self.wait(1)
        self.assertEqual(len(self.servers.take()), 2)
        stopped = self.registrar.stop()
        self.assertEqual([command.code for _, command, _ in self.servers.asked], [104, 104])
        self.servers.answer()
        self.successResultOf(stopped)

    def test_stop(self) -> None:
        """
        Name servers that know us are informed that we go; one that does not answer keeps nobody waiting for
        longer.
        """
        first, second = self.servers.take()
        first[2].callback(OK)
        second[2].addErrback(lambda _: None)
        self.servers.lost = {"n2:9876"}
        stopped = self.registrar.stop()
        ((address, command, done),) = self.servers.take()
        self.assertEqual((address, command.code, command.ext_fields["brokerId"]), ("n1:9876", 104, "0"))
        self.assertNotIn("haServerAddr", command.ext_fields)
        self.assertNoResult(stopped)
        done.errback(TimeoutError("late"))
        self.successResultOf(stopped)
        self.topics.put(TopicConfig(topic_name="t"), 2)
        self.registrar.topics_changed()
        self.assertEqual((self.servers.asked, self.clock.getDelayedCalls()), ([], []))
