# -*- test-case-name: tests.namesrv.test_routes -*-
"""The tables of a name server: how brokers come, change and go, and the bounds."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import product
from typing import Any

import attrs
from twisted.trial.unittest import SynchronousTestCase

from dledger.rocketmq.answering.java_json import DataVersion
from dledger.rocketmq.answering.pieces import Pieces, at_once
from dledger.rocketmq.answering.refusals import Refused
from dledger.rocketmq.namesrv.registrations import BrokerTopics, TopicQueues
from dledger.rocketmq.namesrv.routes import DROPPED_AT_ONCE, MasterAddresses, Registering, RouteLimits
from tests.namesrv.support import WholeRoutes


def header(**changes: Any) -> Registering:
    """The master of bk."""
    return attrs.evolve(
        Registering(cluster="C", name="bk", broker_id=0, address="m:1", ha_address="m:2"), **changes
    )


def body(*names: str, counter: int = 1, state: int = 0, perm: int = 6) -> BrokerTopics:
    """Topics of one version."""
    return BrokerTopics(
        version=DataVersion(timestamp=1, counter=counter, state_version=state),
        topics=dict.fromkeys(names, TopicQueues(perm=perm)),
    )


class RouteCase(SynchronousTestCase):
    """Tables by the rules of 5.x, and of 4.9."""

    def setUp(self) -> None:
        self.table = WholeRoutes(RouteLimits(), is_5=True)
        self.old = WholeRoutes(RouteLimits(), is_5=False)

    def check(self, table: WholeRoutes) -> None:
        """The tables agree with each other."""
        names = {name for group in table.groups.values() for name in [group.name] if group.addresses}
        self.assertEqual(names, set(table.groups))
        for group in table.groups.values():
            self.assertEqual(group.ids, {address: number for number, address in group.addresses.items()})
            holding = {cluster for cluster, held in table.clusters.items() if group.name in held}
            self.assertEqual(group.clusters, holding)
        pairs = {(topic, broker) for topic, brokers in table.topics.items() for broker in brokers}
        self.assertEqual(table.routes, len(pairs))
        of = table._topics_of
        self.assertEqual(pairs, {(topic, name) for name, topics in of.items() for topic in topics})
        self.assertEqual(table.topic_bytes, sum(len(name.encode()) for name in table.topics))
        self.assertEqual(table._pairs, sum(map(len, table.clusters.values())))
        self.assertEqual(set().union(*table.clusters.values()), set(table.groups))
        held = {key for keys in table._keys_of.values() for key in keys}
        self.assertEqual(held, set(table.live))


class RegistrationTests(RouteCase):
    """What a registration changes."""

    def test_slave_learns_master(self) -> None:
        """A slave gets both addresses of its master, a master none."""
        self.assertEqual(self.table.register(header(), body("A", "B"), 1, 0.0), MasterAddresses())
        reported = self.table.register(header(broker_id=1, address="s:1"), body("A", "B"), 2, 0.0)
        self.assertEqual(reported, MasterAddresses(address="m:1", ha_address="m:2"))
        self.check(self.table)

    def test_only_the_masters_topics(self) -> None:
        """Topics of a slave count only in 5.x, without a master, if it sends enableActingMaster."""
        slave = header(broker_id=3, address="s:1")
        self.table.register(slave, body("A", "B"), 1, 0.0)
        self.assertIsNone(self.table.route("A"))
        self.table.register(attrs.evolve(slave, acting=False), body("A", "B"), 1, 0.0)
        self.assertIsNotNone(self.table.route("A"))
        self.table.register(attrs.evolve(slave, acting=True), body("A", "B", counter=2), 1, 0.0)
        route = self.table.route("A")
        assert route is not None
        self.assertEqual(route.queues["bk"].perm, 4)
        self.old.register(attrs.evolve(slave, acting=False), body("A", "B"), 1, 0.0)
        self.assertIsNone(self.old.route("A"))

    def test_same_version(self) -> None:
        """4.9 ignores topics of a version that it knows; 5.x adds those that the routes lack."""
        for table, expected in ((self.table, True), (self.old, False)):
            table.register(header(), body("A", "B"), 1, 0.0)
            table.register(header(), body("A", "B", "X", perm=4), 1, 1.0)
            self.assertEqual("X" in table.topics, expected)
            self.assertEqual(table.topics["A"]["bk"].perm, 6)
            table.register(header(), body("A", "B", counter=2, perm=4), 1, 2.0)
            self.assertEqual(table.topics["A"]["bk"].perm, 4)
            self.check(table)

    @staticmethod
    def topics_of(table: WholeRoutes) -> set[str]:
        """Those of bk."""
        return {topic for topic, brokers in table.topics.items() if "bk" in brokers}

    def test_deleted_at_its_broker(self) -> None:
        """What a master has no more leaves its routes, if that is wanted; a slave says nothing of that."""
        slave = header(broker_id=1, address="s:1")
        for deletes in (False, True):
            for table in (self.table, self.old):
                table.register(header(), body("A", "B", "X", counter=2 + deletes), 1, 0.0)
                table.register(header(name="other", address="o:1"), body("A", "X"), 2, 0.0)
                table.register(slave, body("A", "C"), 3, 1.0, drops=deletes)
                table.register(header(), body("X", counter=4 + deletes), 1, 1.0, drops=deletes)  # a report
                self.assertEqual(self.topics_of(table), {"A", "B", "X"})
                table.register(header(), body("A", "B", counter=6 + deletes), 1, 2.0, drops=deletes)
                self.assertEqual(self.topics_of(table), {"A", "B"} if deletes else {"A", "B", "X"})
                self.assertEqual(set(table.topics["X"]), {"other"} if deletes else {"bk", "other"})
                self.check(table)

    def test_one_topic(self) -> None:
        """5.x refuses a first registration with one topic, and keeps nothing of it."""
        self.assertRaises(Refused, self.table.register, header(), body("A"), 1, 0.0)
        self.assertEqual((self.table.groups, self.table.live, self.table.clusters), ({}, {}, {}))
        self.old.register(header(), body("A"), 1, 0.0)
        self.assertIn("A", self.old.topics)

    def test_slave_becomes_master(self) -> None:
        """An address has one id; the one that lost its id to another address lives, without a name."""
        for table in (self.table, self.old):
            table.register(header(), body("A", "B"), 1, 0.0)
            table.register(header(broker_id=1, address="s:1"), body("A", "B"), 2, 0.0)
            table.register(header(address="s:1"), body("A", "B", counter=5), 2, 1.0)
            self.assertEqual(table.groups["bk"].addresses, {0: "s:1"})
            self.assertEqual(table.channel_lost(1), [("C", "m:1")])
            self.assertEqual(table.groups["bk"].addresses, {0: "s:1"})
            self.check(table)

    def test_roles_of_a_raft_member(self) -> None:
        """A broker in DLedger mode begins with id -1, and changes it with each role."""
        for table in (self.table, self.old):
            for counter, number in enumerate((-1, 1, 0, 2, 0)):
                table.register(header(broker_id=number), body("A", "B", counter=counter), 1, 0.0)
                self.assertEqual(table.groups["bk"].addresses, {number: "m:1"})
                self.check(table)

    def test_higher_state(self) -> None:
        """5.x: an id is not taken from an address with a higher version of the controller's state."""
        self.table.register(header(), body("A", "B", state=2), 1, 0.0)
        self.table.register(header(address="x:1"), body("A", "B", state=1), 2, 0.0)
        self.assertEqual(self.table.groups["bk"].addresses, {0: "m:1"})
        self.assertEqual(set(self.table.live), {("C", "m:1")})

    def test_versions(self) -> None:
        """A broker that asks lives; in 4.9 only if its version is known."""
        for table, expected in ((self.table, 5.0), (self.old, 0.0)):
            self.assertEqual(table.compare("C", "m:1", DataVersion(), 0.0), (True, None))
            table.register(header(), body("A", "B"), 1, 0.0)
            other = DataVersion(timestamp=1, counter=7)
            self.assertEqual(table.compare("C", "m:1", other, 5.0), (True, body().version))
            self.assertEqual(table.live["C", "m:1"].heard_s, expected)
            self.assertEqual(table.compare("C", "m:1", body().version, 6.0)[0], False)
            self.assertEqual(table.live["C", "m:1"].heard_s, 6.0)


class EndTests(RouteCase):
    """How brokers are forgotten."""

    def test_channel(self) -> None:
        """All brokers of a connection go with it; the last address takes name, cluster and topics along."""
        self.table.register(header(), body("A", "B"), 1, 0.0)
        self.table.register(header(broker_id=1, address="s:1"), body("A", "B"), 2, 0.0)
        self.assertEqual(self.table.channel_lost(1), [("C", "m:1")])
        self.assertEqual(self.table.groups["bk"].addresses, {1: "s:1"})
        self.assertIn("A", self.table.topics)
        self.table.channel_lost(2)
        self.assertEqual((self.table.topics, self.table.groups, self.table.clusters), ({}, {}, {}))
        self.check(self.table)

    def test_newer_channel(self) -> None:
        """The end of an old connection is nothing to a broker that has registered over another one."""
        self.table.register(header(), body("A", "B"), 1, 0.0)
        self.table.register(header(), body("A", "B"), 2, 0.0)
        self.assertEqual(self.table.channel_lost(1), [])
        self.assertIn("bk", self.table.groups)

    def test_expiry(self) -> None:
        """A broker lives for its timeout; a heartbeat renews it."""
        self.table.register(header(), body("A", "B"), 1, 0.0)
        self.assertEqual(self.table.expired(120.0), [])
        self.assertEqual(self.table.expired(120.1), [(("C", "m:1"), 1)])
        self.table.heartbeat("C", "m:1", 100.0)
        self.assertEqual(self.table.expired(120.1), [])

    def test_unregister(self) -> None:
        """An address goes; another one that has its id by now stays, also in 4.9 (Java's 4.9 drops it)."""
        for table in (self.table, self.old):
            table.register(header(), body("A", "B"), 1, 0.0)
            table.register(header(address="n:1"), body("A", "B"), 2, 0.0)
            table.unregister("C", "m:1", "bk")
            self.assertEqual(table.groups["bk"].addresses, {0: "n:1"})
            table.unregister("C", "n:1", "bk")
            self.assertEqual(table.groups, {})
            self.check(table)

    def test_two_names(self) -> None:
        """An address that registers under two names leaves both."""
        self.table.register(header(), body("A", "B"), 1, 0.0)
        self.table.register(header(name="other"), body("A", "B"), 1, 0.0)
        self.table.channel_lost(1)
        self.assertEqual(self.table.groups, {})
        self.check(self.table)


class ChangeOfMasterTests(RouteCase):
    """
    The master m:1 of a raft group is lost; s:1, a slave with id 2, becomes master, and registers so first
    one-way, then again. Also: m:1 comes back as slave 1 over another connection. Whatever the order in which
    the name server hears of it, s:1 is the master in the end.
    """

    def events(self, table: WholeRoutes, counter: int) -> dict[str, Callable[[], object]]:
        """What happens, by name. @param counter: version of the topics of s:1, in each role."""
        def survivor(number: int, now_s: float) -> Callable[[], object]:
            asked = header(address="s:1", broker_id=number)
            return lambda: table.register(asked, body("A", "B", counter=counter), "of s", now_s)

        def expire() -> None:
            for key, _channel in table.expired(125.0):
                table.forget(key)

        return {
            "slave": survivor(2, 10.0), "master": survivor(0, 20.0), "again": survivor(0, 50.0),
            "end": lambda: table.channel_lost("of m"), "expiry": expire,
            "unregistered": lambda: table.unregister("C", "m:1", "bk"),
            "back": lambda: table.register(
                header(broker_id=1), body("A", "B", counter=7), "of m, later", 60.0
            ),
        }

    def play(self, *, is_5: bool, order: Sequence[str], counter: int, was_slave: bool) -> None:
        """One order of events, each of them once."""
        table = WholeRoutes(RouteLimits(), is_5=is_5)
        table.register(header(), body("A", "B"), "of m", 0.0)
        events = self.events(table, counter)
        if was_slave:
            events["slave"]()
        for name in order:
            events[name]()
            self.check(table)
        expected = {0: "s:1", 1: "m:1"} if "back" in order else {0: "s:1"}
        said = f"5.x={is_5}, counter={counter}, was_slave={was_slave}: {order}"
        self.assertEqual(table.groups["bk"].addresses, expected, said)
        self.assertEqual(set(table.topics), {"A", "B"}, said)
        route = table.route("A")
        assert route is not None
        self.assertEqual((route.queues["bk"].perm, len(route.groups)), (6, 1), said)
        self.assertEqual(set(table.live), {("C", address) for address in expected.values()}, said)

    def test_every_order(self) -> None:
        """Connection, expiry and new roles in every order that keeps what one broker says in its order."""
        count = 0
        for ends in (("end",), ("expiry",), ("end", "expiry"), ("unregistered", "end")):
            for own in (("master",), ("master", "again"), ("slave", "master", "again")):
                for back in ((), ("back",)):
                    for order in orders(own, ends, back):
                        if "back" in order and "unregistered" in order and (
                            order.index("back") < order.index("unregistered")
                        ):
                            continue  # m:1 says that it goes, then that it is back
                        for is_5, counter, was_slave in product((False, True), (1, 4), (False, True)):
                            self.play(is_5=is_5, order=order, counter=counter, was_slave=was_slave)
                            count += 1
        self.assertGreater(count, 500)


def orders(*stories: Sequence[str]) -> Iterator[tuple[str, ...]]:
    """All ways to put stories together, each in its own order."""
    left = [story for story in stories if story]
    if not left:
        yield ()
    for number, story in enumerate(left):
        for rest in orders(*left[:number], story[1:], *left[number + 1 :]):
            yield (story[0], *rest)


class TopicTests(RouteCase):
    """Permissions, deletion, single topics."""

    def setUp(self) -> None:
        super().setUp()
        self.table.register(header(), body("A", "B"), 1, 0.0)
        self.table.register(header(name="b2", cluster="D", address="d:1"), body("A", "X"), 2, 0.0)

    def test_permissions(self) -> None:
        """All topics of one broker, and of no other."""
        self.table.register(header(), BrokerTopics(version=DataVersion(counter=9), topics={
            "B": TopicQueues(read_queue_nums=3),
        }), 1, 0.0)
        self.assertEqual(at_once(self.table.set_writable("bk", False)), 2)
        wiped = self.table.topics["B"]["bk"]
        self.assertEqual((wiped.perm, wiped.read_queue_nums), (4, 3))
        self.assertEqual((self.table.topics["A"]["bk"].perm, self.table.topics["A"]["b2"].perm), (4, 6))
        self.assertEqual(at_once(self.table.set_writable("bk", True)), 2)
        self.assertEqual(self.table.topics["A"]["bk"].perm, 6)
        self.assertEqual(at_once(self.table.set_writable("zz", True)), 0)

    def test_delete(self) -> None:
        """Everywhere, or in one cluster."""
        self.table.delete_topic("A", "zz")
        self.table.delete_topic("A", "D")
        self.assertEqual(set(self.table.topics["A"]), {"bk"})
        self.table.delete_topic("A", None)
        self.assertNotIn("A", self.table.topics)
        self.table.delete_topic("A", None)
        self.check(self.table)

    def test_put(self) -> None:
        """One topic, at brokers that are known."""
        self.table.put_topic("S", {"bk": TopicQueues(), "zz": TopicQueues()})
        self.assertNotIn("S", self.table.topics)
        self.table.put_topic("S", {"bk": TopicQueues()})
        self.table.put_topic("S", {"b2": TopicQueues(), "zz": TopicQueues()})
        self.assertEqual(set(self.table.topics["S"]), {"bk", "b2"})
        self.check(self.table)

    def test_lists(self) -> None:
        """By cluster, and by flag."""
        self.assertEqual(at_once(self.table.topics_of_cluster("D")), {"A", "X"})
        self.table.put_topic("U", {"bk": TopicQueues(sys_flag=3)})
        self.table.put_topic("V", {"bk": TopicQueues(sys_flag=2)})
        self.assertEqual(set(at_once(self.table.topics_by_flag(wanted=2))), {"U", "V"})
        self.assertEqual(set(at_once(self.table.topics_by_flag(wanted=2, unwanted=1))), {"V"})


class LimitTests(SynchronousTestCase):
    """Every table has a bound; a registration beyond it changes nothing."""

    def table(self, **limits: int) -> WholeRoutes:
        """One broker with two topics of one byte."""
        table = WholeRoutes(RouteLimits(**limits), is_5=True)
        table.register(header(), body("A", "B"), 1, 0.0)
        return table

    def refused(self, table: WholeRoutes, asked: Registering, topics: BrokerTopics) -> str:
        """The reason."""
        before = (dict(table.topics), dict(table.groups), dict(table.live), {**table.clusters})
        error = self.assertRaises(Refused, table.register, asked, topics, 2, 0.0)
        self.assertEqual((table.topics, table.groups, table.live, table.clusters), before)
        return str(error.remark)

    def test_brokers(self) -> None:
        """Addresses, names, and clusters of one name."""
        table = self.table(brokers_max=1)
        self.assertIn("brokers_max=1", self.refused(table, header(address="x:1"), body("A", "B")))
        self.assertIn("brokers_max=1", self.refused(table, header(name="other"), body("A", "B")))
        self.assertIn("brokers_max=1", self.refused(table, header(cluster="other"), body("A", "B")))
        table.register(header(), body("A", "B", counter=2), 2, 0.0)

    def test_topics(self) -> None:
        """Topics, pairs, and the bytes of names."""
        more = body("A", "B", "X", counter=2)
        self.assertIn("topics_max=2", self.refused(self.table(topics_max=2), header(), more))
        other = header(name="other", address="o:1")
        self.assertIn("routes_max=3", self.refused(self.table(routes_max=3), other, body("A", "B")))
        long = body("A", "x" * 9, counter=2)
        self.assertIn("topic_bytes_max=10", self.refused(self.table(topic_bytes_max=10), header(), long))
        table = self.table(topics_max=2)
        self.assertRaises(Refused, table.put_topic, "X", {"bk": TopicQueues()})
        table.register(header(), body("A", "B", counter=3), 2, 0.0)


class PiecesTests(SynchronousTestCase):
    """Brokers with many topics are registered and forgotten in pieces, between other requests."""

    def setUp(self) -> None:
        self.table = WholeRoutes(RouteLimits(topics_max=5000), is_5=True)
        self.names = [f"T{number}" for number in range(3 * DROPPED_AT_ONCE)]

    def begin(self, *names: str, counter: int = 1) -> Pieces[MasterAddresses]:
        """A registration, up to its first topics."""
        pieces = self.table.registering(header(), body(*names, counter=counter), 1, 0.0)
        while not self.table.routes:
            next(pieces)
        return pieces

    def version(self) -> int:
        """Of the broker."""
        return self.table.live["C", "m:1"].version.counter

    def test_registered(self) -> None:
        """Topics come in pieces, and the version last: until then the broker is asked to register again."""
        pieces = self.begin(*self.names)
        self.assertLess(len(self.table.topics), len(self.names))
        self.assertEqual(self.version(), 0)
        at_once(pieces)
        self.assertEqual((len(self.table.topics), self.version()), (len(self.names), 1))

    def test_bounds_hold(self) -> None:
        """Topics that are still coming count."""
        pieces = self.begin(*self.names)
        other = header(name="other", address="o:1")
        more = [f"X{number}" for number in range(5000 - len(self.names) + 1)]
        error = self.assertRaises(Refused, self.table.register, other, body(*more), 2, 0.0)
        self.assertIn("5001 topics", error.remark)
        at_once(pieces)
        self.table.register(other, body(*more[1:]), 2, 0.0)
        self.assertEqual(len(self.table.topics), 5000)

    def test_registers_again(self) -> None:
        """The later registration counts: the rest of the earlier one is dropped."""
        pieces = self.begin(*self.names)
        self.table.register(header(), body("T0", "T2999", perm=4, counter=2), 1, 0.0)
        at_once(pieces)
        self.assertEqual(self.version(), 2)
        self.assertEqual(self.table.topics["T2999"]["bk"].perm, 4)

    def test_closed(self) -> None:
        """A registration whose connection ends leaves nothing that counts."""
        self.begin(*self.names).close()
        self.table.channel_lost(1)
        self.drop()
        self.table.register(header(), body(*(f"X{number}" for number in range(5000))), 2, 0.0)
        self.assertEqual(len(self.table.topics), 5000)

    def drop(self) -> None:
        """Take out all pairs of brokers that were forgotten."""
        while self.table.is_dropping:
            self.table.drop_some()

    def test_forgotten(self) -> None:
        """No route shows its topics from then on; their pairs go in pieces."""
        self.table.register(header(), body(*self.names), 1, 0.0)
        self.table.register(header(name="other", address="o:1"), body("T0", "T1"), 2, 0.0)
        self.table.channel_lost(1)
        self.assertEqual(self.table.routes, 2)
        self.assertIsNone(self.table.route("T5"))
        found = self.table.route("T0")
        assert found is not None
        self.assertEqual(list(found.queues), ["other"])
        self.table.drop_some()
        self.assertGreater(len(self.table.topics), DROPPED_AT_ONCE)
        self.drop()
        self.assertEqual((set(self.table.topics), self.table.topic_bytes), ({"T0", "T1"}, 4))

    def test_comes_back(self) -> None:
        """A broker that registers again while its old topics go has those that it says, and no other."""
        self.table.register(header(), body(*self.names), 1, 0.0)
        for counter in (2, 3):
            self.table.channel_lost(1)
            self.table.register(header(), body("T0", "T7", perm=4, counter=counter), 1, 0.0)
            self.table.drop_some()
        self.assertIsNone(self.table.route("T2000"))
        self.assertEqual(self.table.routes, 2)
        self.table.delete_topic("T2000", None)
        self.drop()
        self.assertEqual({name: list(pairs) for name, pairs in self.table.topics.items()},
                         {"T0": ["bk"], "T7": ["bk"]})
        self.assertEqual(self.table.topics["T0"]["bk"].perm, 4)
