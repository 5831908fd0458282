# -*- test-case-name: tests.interop.test_name_server -*-
"""
Our name server beside Java's: the same answers to the same requests; Java's brokers, clients and C{mqadmin},
and our brokers, at ours.
"""

from __future__ import annotations

import signal
import tempfile
from collections.abc import Callable
from pathlib import Path

from twisted.trial.unittest import SkipTest, SynchronousTestCase

from tests.interop.java import JavaMissing
from tests.interop.name_servers import VERSIONS, Asking, JavaNameServer, OurNameServer, Said, mqadmin, play
from tests.interop.rocketmq import PATIENCE, TOPIC, BrokerGroup, Messages, Server, class_path
from tests.processes.brokers import Broker
from tests.processes.children import ChildError, free_triple, wait_until

CLUSTER = "tests"


class NameServerCase(SynchronousTestCase):
    """Processes that end with the test."""

    def directory(self, version: str) -> Path:
        """A directory for one test. @raise SkipTest: there is no Java."""
        try:
            class_path(version)
        except JavaMissing as missing:
            raise SkipTest(str(missing)) from None
        held = tempfile.TemporaryDirectory(ignore_cleanup_errors=True)
        self.addCleanup(held.cleanup)
        return Path(held.name)

    def ours(self, directory: Path, version: str) -> OurNameServer:
        """A running name server that answers as a version of Java."""
        server = OurNameServer(directory, "--set", f"answersAs={VERSIONS[version]}")
        self.addCleanup(server.kill)
        server.start()
        server.wait_started()
        return server


class SameAnswersTests(NameServerCase):
    """Every answer is that of Java's name server, in code, remark, fields, and the bytes of its body."""

    def compare(self, version: str) -> None:
        """One version."""
        directory = self.directory(version)
        java = JavaNameServer(directory / "java", version)
        self.addCleanup(java.kill)
        java.start()
        ours = self.ours(directory, version)
        java.wait_started()
        theirs, mine = play(java.port, version), play(ours.port, version)
        self.assertEqual([label for label, _ in theirs], [label for label, _ in mine])
        for (label, expected), (_, said) in zip(theirs, mine, strict=True):
            self.assertEqual(said, expected, f"{version}: {label}")
        self.assertGreaterEqual(len(mine), 80)

    def test_4_9(self) -> None:
        """The name server of 4.9."""
        self.compare("4.9.8")

    def test_5_3(self) -> None:
        """The name server of 5.3."""
        self.compare("5.3.3")


class ClusterTests(NameServerCase):
    """Brokers of Java and ours register with our name server; Java's clients and C{mqadmin} work with it."""

    def java_broker(self, directory: Path, name_server: str, version: str) -> Server:
        """A started broker of Java's, alone under its name."""
        port = free_triple()
        home = directory / "java-broker"
        broker = Server("java-broker", "broker.BrokerStartup", {
            "brokerClusterName": CLUSTER, "brokerName": "java", "listenPort": port, "brokerIP1": "127.0.0.1",
            "namesrvAddr": name_server, "storePathRootDir": home / "store",
            "storePathCommitLog": home / "store" / "commitlog", "mappedFileSizeCommitLog": 1 << 16,
            "mappedFileSizeConsumeQueue": 20 * 1000, "maxHashSlotNum": 1000, "maxIndexNum": 4000,
            "diskMaxUsedSpaceRatio": 95, "timerWheelEnable": False, "brokerFastFailureEnable": False,
            "osPageCacheBusyTimeOutMills": 60000,
        }, home, version)
        self.addCleanup(broker.kill)
        broker.start()
        return broker

    def our_broker(self, directory: Path, name_server: str) -> Broker:
        """A started broker of ours."""
        broker = Broker("ours", directory, role="async-master", port=free_triple(), extra=(
            "--namesrv", name_server, "--cluster", CLUSTER,
        ))
        self.addCleanup(broker.kill)
        broker.start()
        return broker

    def play(self, version: str) -> None:
        """The story of one version."""
        directory = self.directory(version)
        server = self.ours(directory, version)
        java = self.java_broker(directory, server.address, version)
        ours = self.our_broker(directory, server.address)

        def admin(*words: str) -> str:
            return mqadmin(version, directory / "java-broker", server.address, *words)

        asking = Asking(server.port)
        self.addCleanup(asking.close)

        def brokers() -> object:
            document = asking.ask(106).body
            return document[1]["brokerAddrTable"] if isinstance(document, tuple) else None

        wait_until(lambda: set(brokers()) == {"java", "b"}, seconds=PATIENCE,  # type: ignore[call-overload]
                   what="both brokers are registered", every=0.1)
        messages = Messages(server.address, directory, version)
        self.addCleanup(messages.kill)
        messages.start()
        messages.wait_started(seconds=PATIENCE)
        self.assertEqual(len(messages.produce(0, 40)), 40)
        self.assertEqual(messages.received(40), (40, 0))
        self.assertRegex(admin("clusterList"), r"tests +(b|java) ")
        self.assertIn(ours.address, admin("clusterList"))
        self.assertIn(TOPIC, admin("topicList"))
        self.assertIn('"brokerName":', admin("topicRoute", "-t", TOPIC).replace(" ", ""))
        self.administrate(admin, asking)
        self.change_options(admin, asking, ours.address)
        # A broker that stops is gone at once; one that is killed, when its connection ends.
        java.stop(seconds=PATIENCE)
        wait_until(lambda: set(brokers()) == {"b"}, seconds=PATIENCE,  # type: ignore[call-overload]
                   what="Java's broker is forgotten", every=0.1)
        ours.kill()
        wait_until(lambda: brokers() == {}, seconds=PATIENCE, what="ours is forgotten", every=0.1)
        # The KV configuration is in the file of the next life.
        asking.ask(100, {"namespace": "N", "key": "stays", "value": "1"})
        self.assertIn(server.stop(seconds=PATIENCE), (0, -signal.SIGTERM))
        self.assertIn("name server stopped", server.log_tail())
        server.start()
        server.wait_started()
        again = Asking(server.port)
        self.addCleanup(again.close)
        self.assertEqual(again.ask(101, {"namespace": "N", "key": "stays"}).fields, {"value": "1"})

    def administrate(self, admin: Callable[..., str], asking: Asking) -> None:
        """Commands of C{mqadmin} that change the name server, and their effects."""
        admin("updateKvConfig", "-s", "N", "-k", "k", "-v", "value")
        self.assertEqual(asking.ask(101, {"namespace": "N", "key": "k"}).fields, {"value": "value"})
        admin("deleteKvConfig", "-s", "N", "-k", "k")
        self.assertEqual(asking.ask(101, {"namespace": "N", "key": "k"}).code, 22)
        admin("updateNamesrvConfig", "-k", "orderMessageEnable", "-v", "true")
        self.assertRegex(admin("getNamesrvConfig"), r"orderMessageEnable\s*=\s*true")

        def perms() -> str:
            return str(asking.ask(105, {"topic": "b"}).body)

        self.assertIn("'perm': 7", perms())
        self.assertIn("wipe write perm", admin("wipeWritePerm", "-b", "b"))
        self.assertIn("'perm': 5", perms())
        self.assertIn("add write perm", admin("addWritePerm", "-b", "b"))
        self.assertIn("'perm': 6", perms())

    def change_options(self, admin: Callable[..., str], asking: Asking, broker: str) -> None:
        """C{mqadmin} changes options of our broker, which runs; one that must not change stays."""
        admin("updateBrokerConfig", "-b", broker, "-k", "fileReservedTime", "-v", "24")
        admin("updateBrokerConfig", "-b", broker, "-k", "brokerPermission", "-v", "4")
        said = admin("getBrokerConfig", "-b", broker)
        self.assertRegex(said, r"fileReservedTime\s*=\s*24\s")
        wait_until(lambda: "'perm': 4" in str(asking.ask(105, {"topic": "b"}).body), seconds=PATIENCE,
                   what="the route says that messages are refused", every=0.1)
        with self.assertRaises(ChildError) as caught:
            admin("updateBrokerConfig", "-b", broker, "-k", "listenPort", "-v", "1")
        self.assertIn("counts from the start on", str(caught.exception))

    def test_4_9(self) -> None:
        """Programs of 4.9."""
        self.play("4.9.8")

    def test_5_3(self) -> None:
        """Programs of 5.3."""
        self.play("5.3.3")


class GroupTests(NameServerCase):
    """Java's brokers in DLedger mode register with ours: each change of roles with another id."""

    def play(self, version: str) -> None:
        """A leader is killed, and producer and consumer find the next one through our name server."""
        directory = self.directory(version)
        server = self.ours(directory, version)
        group = BrokerGroup(directory, version, broker={"recheckReputOffsetFromCq": True},
                            name_server=server, name_port=server.port)
        self.addCleanup(group.kill)
        server.kill()  # the group starts it
        group.start()
        group.messages.start()
        group.messages.wait_started(seconds=PATIENCE)
        group.send(40)
        self.assertEqual(group.messages.received(40), (40, 0))

        def ids() -> list[str]:
            body = self.route(server.port).body
            assert isinstance(body, tuple)
            return sorted(body[1]["brokerDatas"][0]["brokerAddrs"])

        wait_until(lambda: len(ids()) == 2 and "0" in ids(), seconds=PATIENCE, what="a master and a slave",
                   every=0.2)
        self.wait_replaceable(group)
        group.brokers[group.leader()].kill()
        try:
            group.send(40)
        except ChildError as error:
            raise ChildError(f"{error}\nroute: {self.route(server.port)}") from None
        self.assertEqual(group.messages.received(80)[0], 80)
        self.assertEqual(ids(), ["0"])

    def route(self, port: int) -> Said:
        """The answer of the name server, over a connection that was not idle for minutes."""
        asking = Asking(port)
        try:
            return asking.ask(105, {"topic": TOPIC})
        finally:
            asking.close()

    def wait_replaceable(self, group: BrokerGroup) -> None:
        """
        Wait until the other broker can take over: it has all entries, our member is sure of its vote, and the
        topic, which brokers copy every ten seconds outside the log, has arrived.
        """
        group.check()
        (survivor,) = set(group.brokers) - {group.leader()}
        topics = group.directory / survivor / "store" / "config" / "topics.json"

        def is_replaceable() -> bool:
            if not all(broker.is_running for broker in group.brokers.values()):
                raise ChildError("a broker ended, and this test did not end it")
            said = group.ours.metadata()
            return (said is not None and "unsure" not in said.health
                    and topics.exists() and f'"{TOPIC}"' in topics.read_text(errors="replace"))

        what = f"the topic at {survivor}, and a sure {group.ours.self_id}"
        try:
            wait_until(is_replaceable, seconds=PATIENCE, what=what, every=0.2)
        except ChildError as error:
            raise ChildError(f"{error}\n{group.tails()}") from None

    def test_4_9(self) -> None:
        """Brokers of 4.9."""
        self.play("4.9.8")

    def test_5_3(self) -> None:
        """Brokers of 5.3."""
        self.play("5.3.3")
