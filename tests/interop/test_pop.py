# -*- test-case-name: tests.interop.test_pop -*-
"""
RocketMQ's client of 5.x, which speaks gRPC with RocketMQ's proxy, which pops from a broker of ours: send,
receive, acknowledge, change of the invisible time, a kill between pop and ack; and a broker of Java's on the
same directory, which delivers again the messages that ours has given.
"""

from __future__ import annotations

import json
import tempfile
import time
from pathlib import Path

from twisted.trial.unittest import SkipTest, SynchronousTestCase

from tests.interop.ha import CLUSTER, Broker, JavaBroker, OurBroker
from tests.interop.java import JavaMissing
from tests.interop.name_servers import Asking, OurNameServer
from tests.interop.proxies import GrpcClient, Proxy, client_class_path, proxy_class_path
from tests.interop.rocketmq import PATIENCE, class_path
from tests.processes.children import ChildError, free_triple, wait_until

_TOPIC = {
    "topic": "paid", "defaultTopic": "TBW102", "readQueueNums": "4", "writeQueueNums": "4", "perm": "6",
    "topicFilterType": "SINGLE_TAG", "topicSysFlag": "0", "order": "false",
}


class PopTests(SynchronousTestCase):
    """One name server, one proxy, one broker at a time on one store, one client."""

    def setUp(self) -> None:
        try:
            proxy_class_path()
            client_class_path()
            class_path("5.3.3")
        except JavaMissing as missing:
            raise SkipTest(str(missing)) from None
        held = tempfile.TemporaryDirectory(ignore_cleanup_errors=True)
        self.addCleanup(held.cleanup)
        self.directory = Path(held.name)
        self.names = OurNameServer(self.directory)
        self.addCleanup(self.names.kill)
        self.names.start()
        self.names.wait_started()
        self.port = free_triple()
        self.run_broker(self.ours())
        self.topic()
        proxy = Proxy(self.directory / "proxy", name_server=self.names.address, cluster=CLUSTER)
        self.addCleanup(proxy.kill)
        proxy.start()
        proxy.wait_started()
        self.client = GrpcClient(proxy.address, self.directory / "client")
        self.addCleanup(self.client.kill)
        self.client.start()
        self.client.wait_started(seconds=PATIENCE)

    def ours(self) -> OurBroker:
        """On the store of the test."""
        return OurBroker("ours", self.directory / "ours", port=self.port, name_server=self.names.address,
                         store=self.directory / "store")

    def run_broker(self, broker: Broker, **options: object) -> None:
        """Start it, as a master."""
        self.broker = broker
        self.addCleanup(broker.kill)
        broker.become("ASYNC_MASTER", **options)
        broker.start()
        broker.wait_started(seconds=PATIENCE)

    def topic(self) -> None:
        """Made by an operator: a proxy makes none."""
        asking = Asking(self.port)
        self.assertEqual(asking.ask(17, _TOPIC).code, 0)
        asking.close()

    def receive(self, *bodies: str, seconds: int, group: str = "readers") -> dict[str, int]:
        """
        Receive until all of these are there.

        @return: the last number of the delivery of each message.
        """
        seen: dict[str, int] = {}

        def are_there() -> bool:
            try:
                seen.update(self.client.receive(group, "paid", seconds=seconds))
            except ChildError as error:  # the proxy finds a broker that has started again after a while
                seen.pop(str(error), None)
            return set(bodies) <= set(seen)

        wait_until(are_there, seconds=PATIENCE, what=f"{bodies}", every=0.2)
        return seen

    def test_story(self) -> None:
        """The whole story with brokers of ours."""
        client = self.client
        client.produce("paid", "a", "b", "c", "d")
        begun = time.monotonic()
        self.assertEqual(self.receive("a", "b", "c", "d", seconds=12), {"a": 1, "b": 1, "c": 1, "d": 1})
        client.acknowledge("a")
        client.change("b", 40)
        self.assertEqual(client.receive("readers", "paid", seconds=12), {})
        # A broker that is killed between pop and ack knows what was given, and to whom.
        client.acknowledge("c")
        self.broker.kill()
        self.run_broker(self.ours())
        self.assertEqual(self.receive("d", seconds=30), {"d": 2})
        self.assertGreater(time.monotonic() - begun, 11.0)
        client.acknowledge("d")
        self.assertEqual(self.receive("b", seconds=30), {"b": 2})
        self.assertGreater(time.monotonic() - begun, 39.0)
        client.acknowledge("b")
        self.assertEqual(client.receive("readers", "paid", seconds=5), {})
        self.assertEqual(len(client.receive("others", "paid", seconds=60, count=2)), 2)

    def test_in_order(self) -> None:
        """
        A FIFO topic: the next messages come when those before are acknowledged, the same ones when their time
        is over, also after a kill of the broker.
        """
        asking = Asking(self.port)
        fields = {**_TOPIC, "topic": "steps", "attributes": "+message.type=FIFO"}
        self.assertEqual(asking.ask(17, fields).code, 0)
        group = {
            "groupName": "fifo", "consumeEnable": True, "consumeMessageOrderly": True, "retryMaxTimes": 3,
            "retryQueueNums": 1, "brokerId": 0, "whichBrokerWhenConsumeSlowly": 1,
        }
        self.assertEqual(asking.ask(200, {}, json.dumps(group).encode()).code, 0)
        asking.close()
        client = self.client
        client.produce_in_order("steps", "m", "a", "b", "c", "d", "e")

        def receive(*bodies: str, count: int, seconds: int = 30) -> dict[str, int]:
            found: dict[str, int] = {}

            def are_there() -> bool:
                try:
                    found.update(client.receive("fifo", "steps", seconds=seconds, count=count))
                except ChildError as error:  # the proxy finds a broker that has started again after a while
                    found.pop(str(error), None)
                return bool(found)

            wait_until(are_there, seconds=PATIENCE, what=f"{bodies}", every=0.2)
            self.assertEqual(tuple(found), bodies)
            return found

        receive("a", "b", count=2, seconds=60)
        self.assertEqual(client.receive("fifo", "steps", seconds=30), {})
        client.acknowledge("a")
        self.assertEqual(client.receive("fifo", "steps", seconds=30), {})
        client.acknowledge("b")
        self.assertEqual(receive("c", "d", count=2, seconds=60), {"c": 1, "d": 1})
        client.change("c", 10)
        client.change("d", 10)
        self.assertEqual(receive("c", "d", count=2), {"c": 2, "d": 2})
        client.acknowledge("c", "d")
        self.assertEqual(receive("e", count=2, seconds=10), {"e": 1})
        kept = self.directory / "store" / "config" / "consumerOrderInfo.json"
        wait_until(lambda: '"o":[4]' in kept.read_text(), seconds=PATIENCE, what=str(kept), every=0.2)
        self.broker.kill()
        self.run_broker(self.ours())
        self.assertEqual(receive("e", count=2), {"e": 2})
        client.acknowledge("e")
        self.assertEqual(client.receive("fifo", "steps", seconds=30), {})

    def test_transactions(self) -> None:
        """A topic of that type takes transactions, and only those; the ends count."""
        asking = Asking(self.port)
        fields = {**_TOPIC, "topic": "deals", "attributes": "+message.type=TRANSACTION"}
        self.assertEqual(asking.ask(17, fields).code, 0)
        asking.close()
        self.client.transact("deals", "commit", "a", "b")
        self.client.transact("deals", "rollback", "c")
        self.client.transact("deals", "commit", "d")
        seen: dict[str, int] = {}

        def are_there() -> bool:
            seen.update(self.client.receive("readers", "deals", seconds=60))
            return {"a", "b", "d"} <= set(seen)

        wait_until(are_there, seconds=PATIENCE, what="what was committed", every=0.2)
        self.assertEqual(self.client.receive("readers", "deals", seconds=60), {})
        self.assertEqual(set(seen), {"a", "b", "d"})

    def test_times(self) -> None:
        """A topic for messages with a time of their own: not before, also after a kill of the broker."""
        asking = Asking(self.port)
        fields = {**_TOPIC, "topic": "alarms", "attributes": "+message.type=DELAY"}
        self.assertEqual(asking.ask(17, fields).code, 0)
        asking.close()
        begun = time.monotonic()
        self.client.produce_later("alarms", 20, "late")
        self.client.produce_later("alarms", 3, "soon")
        self.broker.kill()
        self.run_broker(self.ours())
        seen: dict[str, float] = {}

        def are_there() -> bool:
            try:
                for body in self.client.receive("readers", "alarms", seconds=60):
                    seen.setdefault(body, time.monotonic() - begun)
            except ChildError as error:  # the proxy finds a broker that has started again after a while
                seen.pop(str(error), None)
            return {"soon", "late"} <= set(seen)

        wait_until(are_there, seconds=PATIENCE, what="both messages", every=0.2)
        self.assertGreater(seen["soon"], 2.9)
        self.assertGreater(seen["late"], 19.9)
        self.assertLess(seen["soon"], seen["late"])

    def test_java_finishes(self) -> None:
        """A Java broker delivers the rest of the messages that ours has given."""
        client = self.client
        client.produce("paid", "a", "b", "c")
        self.receive("a", "b", "c", seconds=12)
        client.acknowledge("a")
        self.broker.stop(seconds=PATIENCE)
        self.run_broker(
            JavaBroker("java", self.directory / "java", "5.3.3", port=self.port,
                       name_server=self.names.address, store=self.directory / "store"),
            timerWheelEnable=True,
        )
        self.assertEqual(self.receive("b", "c", seconds=30), {"b": 2, "c": 2})
        client.acknowledge("b", "c")
