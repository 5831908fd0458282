# -*- test-case-name: tests.namesrv.test_commands -*-
"""
Requests and answers of a name server, byte by byte where Java's were measured (name servers 4.9.7 and 5.3.3).
"""

from __future__ import annotations

from zlib import crc32

from twisted.internet.defer import Deferred

from dledger.rocketmq.answering.java_json import DataVersion
from dledger.rocketmq.namesrv import commands, routes
from dledger.rocketmq.namesrv.registrations import BrokerTopics, TopicQueues
from dledger.rocketmq.namesrv.routes import EXPIRY_S
from protocols.wire.remoting import FLAG_ONEWAY
from tests.namesrv.support import NameServerCase, header_of, registration_document
from tests.protocols.fakes import sent_commands, unplug

SAME = b'{"counter":1,"timestamp":111}'


def topics(*names: str, counter: int = 1) -> bytes:
    """A registration."""
    return registration_document(BrokerTopics(
        version=DataVersion(timestamp=111, counter=counter, state_version=None),
        topics=dict.fromkeys(names, TopicQueues(read_queue_nums=4, write_queue_nums=4)),
    ))


class RouteTests(NameServerCase):
    """Answers of 5.3 for brokers and clients."""

    def setUp(self) -> None:
        super().setUp()
        self.assertEqual(self.ask(103, header_of(), topics("A", "B")).code, 0)
        self.ask(103, header_of(address="127.0.0.1:2", broker_id=2), topics("A", "B"))

    def test_route(self) -> None:
        """Integer keys are quoted from version 401 on, or if the client says so."""
        route = (
            b'{"brokerDatas":[{"brokerAddrs":{0:"127.0.0.1:1",2:"127.0.0.1:2"},"brokerName":"bk",'
            b'"cluster":"C","enableActingMaster":false}],"filterServerTable":{},'
            b'"queueDatas":[{"brokerName":"bk","perm":6,'
            b'"readQueueNums":4,"topicSysFlag":0,"writeQueueNums":4}]}'
        )
        strict = route.replace(b"{0:", b'{"0":').replace(b",2:", b',"2":')
        for version in (0, 399, 400):
            self.assertEqual(self.ask(105, {"topic": "A"}, version=version).body, route)
        for version in (401, 409, 479):
            self.assertEqual(self.ask(105, {"topic": "A"}, version=version).body, strict)
        fields = {"topic": "A", "acceptStandardJsonOnly": "true"}
        self.assertEqual(self.ask(105, fields, version=0).body, strict)

    def test_no_route(self) -> None:
        """Code 17, with Java's sentence; a long name is cut."""
        answer = self.ask(105, {"topic": "T"})
        self.assertEqual((answer.code, answer.remark), (17, (
            "No topic route info in name server for the topic: T\n"
            "See https://rocketmq.apache.org/docs/bestPractice/06FAQ for further details."
        )))
        self.assertIn("topic: null\n", str(self.ask(105).remark))
        self.assertLess(len(str(self.ask(105, {"topic": "x" * 100_000}).remark)), 1200)
        self.assertEqual(self.side.refusals.counts, {})

    def test_cluster(self) -> None:
        """Integer keys are never quoted."""
        self.assertEqual(self.ask(106, version=479).body, (
            b'{"brokerAddrTable":{"bk":{"brokerAddrs":{0:"127.0.0.1:1",2:"127.0.0.1:2"},"brokerName":"bk",'
            b'"cluster":"C","enableActingMaster":false}},"clusterAddrTable":{"C":["bk"]}}'
        ))

    def test_slave_is_reported(self) -> None:
        """A slave learns its master; a one-way registration is not answered."""
        fields = self.ask(103, header_of(address="127.0.0.1:2", broker_id=2), topics("A", "B")).ext_fields
        self.assertEqual(fields, {"haServerAddr": "127.0.0.1:9", "masterAddr": "127.0.0.1:1"})
        more = topics("A", "B", "N", counter=2)
        self.assertEqual(self.asked(103, header_of(), more, flag=FLAG_ONEWAY), [])
        self.assertEqual(self.ask(105, {"topic": "N"}).code, 0)

    def test_registration_refused(self) -> None:
        """A checksum, a body, a field."""
        fields = {**header_of(), "bodyCrc32": "5"}
        body = topics("A", "B")
        self.assertEqual(self.ask(103, fields, body).remark, "crc32 not match")
        fields["bodyCrc32"] = str(crc32(body) & 0x7FFFFFFF)
        self.assertEqual(self.ask(103, fields, body).code, 0)
        self.assertIn("Failed to decode RegisterBrokerBody", str(self.ask(103, header_of(), b'{"a').remark))
        answer = self.ask(103, {"brokerName": "x"}, body)
        self.assertEqual(answer.remark, "the custom field <clusterName> is null")
        self.assertIn("brokerId", str(self.ask(103, {**header_of(), "brokerId": "x"}, body).remark))
        self.assertIn("1 to 255", str(self.ask(103, header_of(name="x" * 256), body).remark))
        one = self.ask(103, header_of(name="new", address="n:1"), topics("ONE"))
        self.assertEqual((one.code, one.remark), (1, "register broker failed"))

    def test_versions(self) -> None:
        """QUERY_DATA_VERSION."""
        fields = header_of()
        answer = self.ask(322, fields, SAME)
        self.assertEqual(answer.ext_fields, {"changed": "false"})
        self.assertEqual(answer.body, b'{"counter":1,"stateVersion":0,"timestamp":111}')
        self.assertEqual(self.ask(322, fields).ext_fields, {"changed": "true"})
        unknown = self.ask(322, header_of(address="u:1"), SAME)
        self.assertEqual((unknown.ext_fields, unknown.body), ({"changed": "true"}, b""))

    def test_lists(self) -> None:
        """Topics, system topics, members of a group."""
        self.assertEqual(self.ask(206).body, b'{"topicList":["A","B"]}')
        self.assertEqual(self.ask(224, {"cluster": "C"}).body, b'{"topicList":["A","B"]}')
        self.assertEqual(self.ask(224, {"cluster": "zz"}).body, b'{"topicList":[]}')
        self.assertEqual(self.ask(304).body, b'{"brokerAddr":"127.0.0.1:1","topicList":["C","bk"]}')
        answer = self.ask(901, {"clusterName": "C", "brokerName": "bk"})
        self.assertEqual((answer.remark, answer.body), ("not set any response code", (
            b'{"brokerMemberGroup":{"brokerAddrs":{0:"127.0.0.1:1",2:"127.0.0.1:2"},"brokerName":"bk",'
            b'"cluster":"C"}}'
        )))

    def test_permissions(self) -> None:
        """mqadmin wipeWritePerm and addWritePerm."""
        self.assertEqual(self.ask(205, {"brokerName": "bk"}).ext_fields, {"wipeTopicCount": "2"})
        self.assertIn(b'"perm":4', self.ask(105, {"topic": "A"}).body)
        self.assertEqual(self.ask(327, {"brokerName": "bk"}).ext_fields, {"addTopicCount": "2"})
        self.assertIn(b'"perm":6', self.ask(105, {"topic": "A"}).body)

    def test_unknown_code(self) -> None:
        """Code 3, with Java's leading blank; those of the controller, too."""
        for code in (9999, 1001):
            answer = self.ask(code)
            self.assertEqual((answer.code, answer.remark), (3, f" request type {code} not supported"))

    def test_connection_ends(self) -> None:
        """Its brokers are forgotten at once."""
        other = self.connect()
        self.ask(103, header_of(name="x", address="x:1"), topics("X", "Y"), over=other)
        self.assertEqual(self.ask(105, {"topic": "X"}).code, 0)
        unplug(other[0])
        self.assertEqual(self.ask(105, {"topic": "X"}).code, 17)
        self.assertEqual(self.commands.brokers_lost, 1)

    def test_many_topics_of_a_connection_that_ends(self) -> None:
        """They go in pieces, all of them, and others stay."""
        self.patch(routes, "DROPPED_AT_ONCE", 2)
        other = self.connect()
        names = [f"X{number}" for number in range(7)]
        self.ask(103, header_of(name="x", address="x:1"), topics(*names), over=other)
        unplug(other[0])
        self.assertLess(0, len(self.routes.topics) - 2)
        self.clock.pump([0] * 3)
        self.assertEqual((set(self.routes.topics), self.routes.is_dropping), ({"A", "B"}, False))

    def test_expiry(self) -> None:
        """A silent broker is forgotten, and its connection ends; a heartbeat keeps it."""
        self.clock.advance(EXPIRY_S - 1)
        self.ask(904, header_of())
        self.clock.advance(2)
        self.commands.expire()
        self.assertEqual(set(self.routes.live), set())  # both came over one connection
        self.assertTrue(self.connection.is_lost)
        self.assertEqual(self.commands.brokers_expired, 1)

    def test_own_time(self) -> None:
        """5.x brokers name the time for which they live."""
        fields = {**header_of(name="q", address="q:1"), "heartbeatTimeoutMillis": "3000"}
        other = self.connect()
        self.ask(103, fields, topics("A", "B"), over=other)
        self.clock.advance(3.5)
        self.commands.expire()
        self.assertNotIn("q", self.routes.groups)
        self.assertIn("bk", self.routes.groups)

    def test_unregister(self) -> None:
        """UNREGISTER_BROKER."""
        self.ask(104, header_of())
        self.assertEqual(self.routes.groups["bk"].addresses, {2: "127.0.0.1:2"})

    def test_large_answers(self) -> None:
        """One that does not fit a frame is refused."""
        self.patch(commands, "ANSWER_BODY_MAX", 30)
        self.assertIn("30 fit a frame", str(self.ask(106).remark))
        self.assertEqual(self.ask(206).code, 0)

    def test_topics(self) -> None:
        """REGISTER_TOPIC_IN_NAMESRV and DELETE_TOPIC_IN_NAMESRV."""
        queues = b'{"queueDatas":[{"brokerName":"bk","perm":6,"readQueueNums":4,"writeQueueNums":4}]}'
        self.assertEqual(self.ask(217, {"topic": "S"}, queues).code, 0)
        self.assertEqual(self.ask(105, {"topic": "S"}).code, 0)
        self.assertEqual(self.ask(217, {}, queues).code, 1)
        self.assertEqual(self.ask(217, {"topic": "S"}, b"[").code, 1)
        self.assertEqual(self.ask(216, {"topic": "S"}).code, 0)
        self.assertEqual(self.ask(105, {"topic": "S"}).code, 17)


class FewTopicsTests(NameServerCase):
    """A name server for two topics."""

    options = {"topicsMax": "2"}  # noqa: RUF012

    def test_too_many(self) -> None:
        """More topics than the table may have are refused unread, with the name of the bound."""
        answer = self.ask(103, header_of(), topics("A", "B", "C"))
        self.assertEqual((answer.code, answer.remark), (
            1, "Failed to decode RegisterBrokerBody: it has 3 topics; topics_max=2",
        ))
        self.assertEqual(self.routes.live, {})
        self.assertEqual(self.ask(103, header_of(), topics("A", "B")).code, 0)


class DeletedTopicTests(NameServerCase):
    """A topic that was deleted at its broker."""

    def after_its_deletion(self) -> int:
        """The code of the answer to a client that asks for its route."""
        for number, names in enumerate((("A", "B", "C"), ("A", "B"))):
            self.assertEqual(self.ask(103, header_of(), topics(*names, counter=number)).code, 0)
        self.assertEqual(self.ask(105, {"topic": "A"}).code, 0)
        return self.ask(105, {"topic": "C"}).code

    def test_default(self) -> None:
        """The route stays, as with Java."""
        self.assertEqual(self.after_its_deletion(), 0)

    def test_option(self) -> None:
        """It leaves the routes."""
        self.options = {"deleteTopicWithBrokerRegistration": "true"}
        self.make()
        self.assertEqual(self.after_its_deletion(), 17)


class OldTests(NameServerCase):
    """Answers of 4.9."""

    options = {"answersAs": "4.9"}  # noqa: RUF012

    def test_answers(self) -> None:
        """No fields of 5.x, the old address of the page, the old sentence, no codes of 5.x."""
        self.assertEqual(self.ask(103, header_of(), topics("A")).code, 0)
        self.assertEqual(self.ask(105, {"topic": "A"}).body, (
            b'{"brokerDatas":[{"brokerAddrs":{"0":"127.0.0.1:1"},"brokerName":"bk","cluster":"C"}],'
            b'"filterServerTable":{},"queueDatas":[{"brokerName":"bk","perm":6,"readQueueNums":4,'
            b'"topicSysFlag":0,"writeQueueNums":4}]}'
        ))
        self.assertIn("http://rocketmq.apache.org/docs/faq/ for", str(self.ask(105, {"topic": "T"}).remark))
        self.assertEqual(self.ask(322, header_of(), SAME).body, SAME)
        self.assertEqual(self.ask(318, {}, b"kvConfigPath=x").remark, "Can not update config path")
        self.assertEqual([self.ask(code).code for code in (217, 901, 904)], [3, 3, 3])


class OptionTests(NameServerCase):
    """KV configuration, options of a running server."""

    def test_values(self) -> None:
        """PUT, GET, DELETE, and the list of a namespace; the file has them in the next life."""
        self.assertEqual(self.ask(100, {"namespace": "N"}).remark, "namespace or key is null")
        self.assertEqual(self.ask(100, {"namespace": "N", "key": "K", "value": "Vü"}).code, 0)
        self.make()
        self.assertEqual(self.ask(101, {"namespace": "N", "key": "K"}).ext_fields, {"value": "Vü"})
        self.assertEqual(self.ask(219, {"namespace": "N"}).body, '{"table":{"K":"Vü"}}'.encode())
        self.assertEqual(self.ask(102, {"namespace": "N", "key": "K"}).code, 0)
        self.assertEqual(self.ask(102, {"namespace": "N", "key": "K"}).code, 0)
        answer = self.ask(101, {"namespace": "N", "key": "K"})
        self.assertEqual((answer.code, answer.remark), (22, "No config item, Namespace: N Key: K"))
        self.assertEqual(self.ask(219, {"namespace": "N"}).body, b'{"table":{}}')
        self.assertEqual(self.ask(219, {"namespace": "Q"}).remark, "No config item, Namespace: Q")

    def test_order(self) -> None:
        """Ordered topics: shown to brokers when they register, and in routes if the option is on."""
        self.ask(100, {"namespace": "ORDER_TOPIC_CONFIG", "key": "A", "value": "bk:4"})
        self.assertEqual(self.ask(103, header_of(), topics("A", "B")).body, b'{"table":{"A":"bk:4"}}')
        self.assertNotIn(b"orderTopicConf", self.ask(105, {"topic": "A"}).body)
        self.ask(318, {}, b"orderMessageEnable=true\nreturnOrderTopicConfigToBroker=false\n")
        self.assertIn(b'},"orderTopicConf":"bk:4","queueDatas"', self.ask(105, {"topic": "A"}).body)
        self.assertEqual(self.ask(103, header_of(), topics("A", "B")).body, b"")

    def test_one_way_holds_nothing(self) -> None:
        """What is not sent takes nothing of the budget; what cannot be answered yet changes nothing."""
        self.ask(100, {"namespace": "ORDER_TOPIC_CONFIG", "key": "A", "value": "bk:4"})
        self.asked(103, header_of(), topics("A", "B"), flag=FLAG_ONEWAY)
        self.assertEqual((self.connection.account.held_bytes, len(self.routes.live)), (0, 1))
        self.connection.account.hold(1 << 30)
        self.assertEqual(self.asked(103, header_of(name="x", address="x:1"), topics("A", "B")), [])
        self.assertEqual(len(self.routes.live), 1)
        self.side.sweep(1.0)
        self.clock.advance(0)
        self.assertEqual(len(self.routes.live), 2)

    def test_update(self) -> None:
        """Some options change; every other request says why not, and changes nothing."""
        self.assertEqual(self.ask(318, {}, b"# x\n\nenableAllTopicList=false\nlistenPort=9876\n").code, 0)
        self.assertEqual((self.ask(206).code, self.ask(206).remark), (1, "disable"))
        self.assertIn(b"\nenableAllTopicList=false\n", self.ask(319).body)
        for body, reason in (
            (b"listenPort=1", "holds from the start on"), (b"supportActingMaster=true", "only false is"),
            (b"orderMessageEnabel=true", "order_message_enable"),
            (b"orderMessageEnable=maybe", "true or false"),
            (b"scanNotActiveBrokerInterval=1", "500"), (b"orderMessageEnable", "string2Properties error"),
            (b"\xff=1", "string2Properties error"), (b"enableTopicList=false\nx=1", "unknown option"),
            (b"a=" + b"x" * 70_000, "at most 65536"),
        ):
            answer = self.ask(318, {}, body)
            self.assertEqual(answer.code, 1)
            self.assertIn(reason, str(answer.remark))
        answer = self.ask(318, {}, b"kvConfigPath=x")
        self.assertEqual((answer.code, answer.remark), (16, "Can not update config in black list."))
        self.assertTrue(self.changeable.config.enable_topic_list)
        self.assertEqual(self.ask(318, {}, b"serverWorkerThreads=8\nsupportActingMaster=false").code, 0)

    def test_answered_when_written(self) -> None:
        """A change is answered after the write, and refused if that failed."""
        written: list[Deferred[None]] = []

        def later(call: object) -> Deferred[None]:
            written.append(Deferred())
            return written[-1]

        self.values._run_in_thread = later
        put = {"namespace": "N", "key": "K", "value": "V"}
        self.assertEqual(self.asked(100, put), [])
        written.pop().errback(OSError(28, "No space left on device"))
        self.clock.advance(0)
        (answer,) = sent_commands(self.transport.value())
        self.assertEqual((answer.code, "No space left on device" in str(answer.remark)), (1, True))
        self.assertEqual(self.ask(101, put).code, 22)
