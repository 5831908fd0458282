# -*- test-case-name: tests.interop.test_query_by_key -*-
"""
Messages by their keys: C{mqadmin} asks our broker; Java's broker answers from files of ours, and ours from
files of Java's.
"""

from __future__ import annotations

from tests.interop.ha import Broker, JavaBroker, OurBroker
from tests.interop.name_servers import mqadmin
from tests.interop.raft_brokers import OURS, RaftBrokers
from tests.interop.rocketmq import PATIENCE, TOPIC, Messages, Sent
from tests.interop.test_name_server import NameServerCase
from tests.processes.brokers import Remoting, messages_of
from tests.processes.children import free_triple, wait_until

COUNT = 60
#: So small that the messages need several files: each has three keys.
SHAPE = {"maxHashSlotNum": 100, "maxIndexNum": 250}
QUERY_MESSAGE = 12
#: Messages in one answer, at most: of both brokers.
MOST = 64


class QueryCase(NameServerCase):
    """
    Messages that brokers must find.

    @ivar sent: the answers to the producer.
    """

    sent: list[Sent]

    def find(self, address: str, *, may_repeat: bool = False) -> None:
        """
        Wait until a broker finds every message by each of its keys.

        @param may_repeat: after a crash Java indexes some messages again, and finds them twice.
        """
        if not self.sent:
            return
        asking = Remoting(address)
        self.addCleanup(asking.close)

        def hits(key: str, **more: str) -> list[tuple[str, int]]:
            answer = asking.ask(QUERY_MESSAGE, {
                "topic": TOPIC, "key": key, "maxNum": str(MOST), "beginTimestamp": "0",
                "endTimestamp": str(2**63 - 1), **more,
            })
            self.assertEqual(answer.code, 0 if answer.body else 22, answer.remark)
            self.assertIn("indexLastUpdatePhyoffset", answer.ext_fields)
            found = messages_of(answer)
            for one in found:
                keys = [str(one.unique_key)] if more else one.properties["KEYS"].split(" ")
                self.assertIn(key, keys)
            return [(str(one.unique_key), one.physical_offset) for one in found]

        def query(key: str, **more: str) -> list[tuple[str, int]]:
            return sorted(set(hits(key, **more)))

        def missing() -> list[int]:
            found = []
            for one in self.sent:
                # (A producer whose answer comes late sends again: then its message is at two places.)
                place = (one.unique_key, int(one.message_id[16:], 16))
                by_unique_key = query(one.unique_key, _UNIQUE_KEY_QUERY="true")
                if place not in query(f"k{one.number}") or place not in by_unique_key:
                    found.append(one.number)
            return found

        wait_until(lambda: not missing(), seconds=PATIENCE, every=0.5, notify=lambda: f"missing: {missing()}",
                   what=f"{address} finds all of {len(self.sent)} messages")
        of_all = hits("all")
        self.assertGreaterEqual(len(of_all), min(len(self.sent), MOST))
        if not may_repeat or len(of_all) < MOST:
            self.assertGreaterEqual(len(set(of_all)), min(len(self.sent), MOST))
        self.assertEqual(query("nothing"), [])


class QueryByKeyTests(QueryCase):
    """One directory, which our broker and Java's have in turn."""

    def play(self, version: str) -> None:
        """The story of one version."""
        self.version, self.home = version, self.directory(version)
        self.server = self.ours(self.home, version)
        port = free_triple()
        store = self.home / "store"
        ours = OurBroker("ours", self.home, port=port, name_server=self.server.address, store=store)
        java = JavaBroker("java", self.home / "java", version, port=port, name_server=self.server.address,
                          store=store)
        ours.become("ASYNC_MASTER", **SHAPE)
        java.become("ASYNC_MASTER", **SHAPE)
        for broker in (ours, java):
            self.addCleanup(broker.kill)
        self.sent: list[Sent] = []
        self.take_turn(ours, has_admin=True)
        ours.stop(seconds=PATIENCE)
        self.take_turn(java)
        java.stop(seconds=PATIENCE)
        self.take_turn(ours)
        ours.kill()
        self.take_turn(java)
        java.kill()
        self.take_turn(ours)
        names = sorted(path.name for path in (store / "index").iterdir())
        self.assertGreater(len(names), 2)
        self.assertEqual({len(name) for name in names}, {17})

    def take_turn(self, broker: Broker, *, has_admin: bool = False) -> None:
        """A broker starts, takes messages, and finds all by their keys."""
        broker.start()
        broker.wait_started()
        self.find(broker.address, may_repeat=isinstance(broker, JavaBroker))
        messages = Messages(self.server.address, self.home, self.version)
        self.addCleanup(messages.kill)
        messages.start()
        messages.wait_started(seconds=PATIENCE)
        self.sent += messages.produce(len(self.sent), COUNT)
        messages.stop(seconds=PATIENCE)
        self.find(broker.address, may_repeat=isinstance(broker, JavaBroker))
        if has_admin:
            self.administrate()

    def administrate(self) -> None:
        """The commands of C{mqadmin}."""
        directory = self.home / "tools"
        (directory / "conf").mkdir(parents=True)

        def admin(*words: str) -> str:
            return mqadmin(self.version, directory, self.server.address, *words)

        one, other = self.sent[7], self.sent[8]
        offset = int(one.message_id[16:], 16)
        said = admin("queryMsgByKey", "-t", TOPIC, "-k", f"k{one.number}")
        self.assertTrue(one.unique_key in said, said[-1000:])
        self.assertFalse(other.unique_key in said, said[-1000:])
        by_id = ["queryMsgById", "-i", one.message_id]
        if self.version.startswith("5"):
            by_id += ["-t", TOPIC]
        for words in (["queryMsgByUniqueKey", "-t", TOPIC, "-i", one.unique_key], by_id):
            said = admin(*words)
            self.assertRegex(said[-1000:], rf"CommitLog Offset: +{offset}\n")
            self.assertTrue(f"KEYS=k{one.number} all" in said, said[-1000:])

    def test_4_9(self) -> None:
        """Programs of 4.9."""
        self.play("4.9.8")

    def test_5_3(self) -> None:
        """Programs of 5.3."""
        self.play("5.3.3")


class RaftTests(QueryCase):
    """A group of RocketMQ's brokers and ours; then two directories change to the other kind."""

    def test_group(self) -> None:
        """Each broker finds every message, at the same place, while it leads or follows."""
        directory = self.directory("4.9.8")
        group = RaftBrokers(directory, [OURS, "4.9.8", OURS], client="4.9.8", options=SHAPE)
        self.addCleanup(group.kill)
        group.start()
        wait_until(lambda: len(group.route()) == 3, seconds=PATIENCE, what="all are registered", every=0.5)
        self.judge(group)
        for peer_id, kind in (("n1", OURS), ("n2", "4.9.8")):
            group.brokers[peer_id].stop(seconds=PATIENCE)
            group.kinds[peer_id] = kind
            group.brokers[peer_id] = group.made(peer_id, kind)
            group.brokers[peer_id].start()
            group.brokers[peer_id].wait_started()
            group.wait_master()
            self.judge(group)

    def judge(self, group: RaftBrokers) -> None:
        """Send; ask every broker."""
        group.send(COUNT)
        group.check()
        self.sent = list(group.sent.values())
        for port in group.ports.values():
            self.find(f"127.0.0.1:{port}")
