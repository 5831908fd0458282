# -*- test-case-name: tests.broker.client.test_ha_status -*-
"""What brokers and name servers say of replication."""

from __future__ import annotations

from collections.abc import Awaitable

from twisted.internet.defer import Deferred, fail, succeed
from twisted.internet.error import ConnectionRefusedError
from twisted.internet.interfaces import IProtocol, IProtocolFactory, IStreamClientEndpoint
from twisted.internet.task import Clock
from twisted.trial.unittest import SynchronousTestCase
from zope.interface import implementer

from dledger.rocketmq.client.ha_status import (
    BrokerAsker,
    HAReport,
    brokers_of,
    read_cluster_info,
    read_ha_info,
    read_runtime_info,
    report_of,
    with_lack,
)
from dledger.values.errors import DLedgerError
from protocols.wire.errors import BodyError
from protocols.wire.remoting import RemotingCommand, encode_command
from tests.protocols.fakes import FakeTransport, sent_commands

#: In the shape in which 5.3.3 writes it.
JAVA_MASTER = (
    b'{"haClientRuntimeInfo":{"lastReadTimestamp":0,"lastWriteTimestamp":0,"masterFlushOffset":0,'
    b'"maxOffset":0,"transferredByteInSecond":0},'
    b'"haConnectionInfo":[{"addr":"127.0.0.1:44502","diff":20,"inSync":true,'
    b'"slaveAckOffset":980,"transferFromWhere":1000,"transferredByteInSecond":2048}],"inSyncSlaveNums":1,'
    b'"master":true,"masterCommitLogMaxOffset":1000}'
)
JAVA_SLAVE = (
    b'{"haClientRuntimeInfo":{"lastReadTimestamp":1700000000001,"lastWriteTimestamp":1700000000002,'
    b'"masterAddr":"127.0.0.1:10912","masterFlushOffset":900,"maxOffset":980,"transferredByteInSecond":10},'
    b'"haConnectionInfo":[],"inSyncSlaveNums":0,"master":false,"masterCommitLogMaxOffset":0}'
)
JAVA_CLUSTER = (
    b'{"brokerAddrTable":{"a":{"brokerAddrs":{1:"10.0.0.2:10911",0:"10.0.0.1:10911"},"brokerName":"a",'
    b'"cluster":"c"},"b":{"brokerAddrs":{0:"10.0.0.3:10911"},"brokerName":"b","cluster":"d"}},'
    b'"clusterAddrTable":{"c":["a"],"d":["b"]}}'
)
RUNTIME = b'{"table":{"brokerVersionDesc":"V4_9_7","commitLogMinOffset":"0","commitLogMaxOffset":"%d"}}'


class Brokers:
    """Answers by address and code."""

    def __init__(self, answers: dict[tuple[str, int], bytes | int | Exception]) -> None:
        self.answers = answers

    def ask(self, address: str, command: RemotingCommand) -> Deferred[RemotingCommand]:
        """A body, a code of refusal, or a failure."""
        said = self.answers.get((address, command.code), ConnectionRefusedError())
        if isinstance(said, Exception):
            return fail(said)
        if isinstance(said, int):
            return succeed(RemotingCommand(code=said, opaque=0, flag=1, remark="no"))
        return succeed(RemotingCommand(code=0, opaque=0, flag=1, body=said))


class ReadTests(SynchronousTestCase):
    """Documents."""

    def test_master(self) -> None:
        """Its end and its slaves."""
        report = read_ha_info("m:1", JAVA_MASTER)
        self.assertEqual((report.is_master, report.max_offset, report.in_sync_slaves), (True, 1000, 1))
        (slave,) = report.slaves
        self.assertEqual(
            (slave.address, slave.ack_offset, slave.lack_bytes, slave.is_in_sync, slave.bytes_per_second,
             slave.transfer_offset),
            ("127.0.0.1:44502", 980, 20, True, 2048, 1000),
        )

    def test_slave(self) -> None:
        """Its master and its own end; Java does not say whether it is connected, ours does."""
        report = read_ha_info("s:1", JAVA_SLAVE)
        self.assertEqual((report.is_master, report.master), (False, "127.0.0.1:10912"))
        self.assertEqual(report.max_offset, 980)
        self.assertEqual((report.last_read_ms, report.last_write_ms), (1700000000001, 1700000000002))
        self.assertIsNone(report.is_connected)
        ours = JAVA_SLAVE.replace(b'"masterAddr"', b'"activated":true,"masterAddr"')
        self.assertIs(read_ha_info("s:1", ours).is_connected, True)

    def test_cluster(self) -> None:
        """Every broker, masters first, although fastjson does not quote the numbers."""
        self.assertEqual(
            [(one.cluster, one.broker_name, one.broker_id, one.address)
             for one in read_cluster_info(JAVA_CLUSTER)],
            [("c", "a", 0, "10.0.0.1:10911"), ("c", "a", 1, "10.0.0.2:10911"),
             ("d", "b", 0, "10.0.0.3:10911")],
        )

    def test_nonsense(self) -> None:
        """What makes no sense is refused, whatever it is."""
        for body in (b"", b"[]", b'{"master":true,"haConnectionInfo":{}}',
                     b'{"master":true,"haConnectionInfo":[7]}', b'{"haClientRuntimeInfo":7}',
                     b'{"master":true,"masterCommitLogMaxOffset":"x"}'):
            self.assertRaises(BodyError, read_ha_info, "m:1", body)
        self.assertRaises(BodyError, read_runtime_info, "m:1", b'{"table":{"commitLogMaxOffset":"x"}}')
        for body in (b'{"brokerAddrTable":{"a":7}}', b'{"brokerAddrTable":{"a":{"brokerAddrs":{0:7}}}}',
                     b'{"brokerAddrTable":{"a":{"brokerAddrs":{"x":"y"}}}}'):
            self.assertRaises(BodyError, read_cluster_info, body)


class FetchTests(SynchronousTestCase):
    """Asking."""

    def run_of(self, story: Awaitable[object]) -> object:
        """What a story comes to."""
        return self.successResultOf(Deferred.fromCoroutine(story))  # type: ignore[arg-type]

    def test_report(self) -> None:
        """Of a broker of 5.x; the name server's facts about it stay."""
        brokers = Brokers({("m:1", 907): JAVA_MASTER})
        known = HAReport(address="m:1", cluster="c", broker_name="a", broker_id=0)
        report = self.run_of(report_of(brokers.ask, known))
        assert isinstance(report, HAReport)
        self.assertTrue(report.has_ha_status)
        self.assertEqual((report.cluster, report.broker_name, report.max_offset), ("c", "a", 1000))

    def test_broker_says_its_name(self) -> None:
        """One that no name server has named; one that does not say has a report without a name."""
        config = b"brokerName=broker-a\nbrokerClusterName=c=1\nbrokerId=1\nlistenPort=10911\n"
        for answer, named in ((config, ("c=1", "broker-a", 1)), (b"", ("", "", -1)), (b"\xff", ("", "", -1)),
                              (b"brokerId=x\n", ("", "", -1)), (16, ("", "", -1))):
            brokers = Brokers({("s:1", 907): JAVA_SLAVE, ("s:1", 26): answer})
            report = self.run_of(report_of(brokers.ask, HAReport(address="s:1")))
            assert isinstance(report, HAReport)
            self.assertEqual((report.cluster, report.broker_name, report.broker_id), named)
            self.assertEqual((report.max_offset, report.problem), (980, ""))
        brokers = Brokers({("s:1", 26): config})
        silent = self.run_of(report_of(brokers.ask, HAReport(address="s:1")))
        assert isinstance(silent, HAReport)
        self.assertNotEqual(silent.problem, "")

    def test_old_broker(self) -> None:
        """One of 4.9 says where its log ends; with the name server's facts: the bytes that a slave lacks."""
        brokers = Brokers({("m:1", 907): 3, ("m:1", 28): RUNTIME % 1000, ("s:1", 907): 3,
                           ("s:1", 28): RUNTIME % 700})
        reports = [
            self.run_of(report_of(brokers.ask, HAReport(
                address=address, cluster="c", broker_name="a", broker_id=broker_id
            )))
            for broker_id, address in enumerate(("m:1", "s:1"))
        ]
        master, slave = with_lack(reports)  # type: ignore[arg-type]
        self.assertEqual((master.is_master, master.version, master.lack_bytes), (True, "V4_9_7", -1))
        self.assertEqual((slave.is_master, slave.max_offset, slave.lack_bytes), (False, 700, 300))
        alone = self.run_of(report_of(brokers.ask, HAReport(address="m:1")))
        assert isinstance(alone, HAReport)
        self.assertIsNone(alone.is_master)

    def test_problems(self) -> None:
        """Nobody there, a refusal, nonsense: each is the broker's report."""
        brokers = Brokers({("r:1", 907): 1, ("n:1", 907): b"{", ("o:1", 907): 3, ("o:1", 28): 2})
        for address, word in (("x:1", "refused"), ("r:1", "it answers with 1: no"), ("n:1", "JSON"),
                              ("o:1", "it answers with 2")):
            report = self.run_of(report_of(brokers.ask, HAReport(address=address)))
            assert isinstance(report, HAReport)
            self.assertIn(word, report.problem)
            self.assertFalse(report.has_ha_status)

    def test_name_server(self) -> None:
        """All brokers, or those of a cluster; the error of an unknown one lists the known ones."""
        brokers = Brokers({("n:1", 106): JAVA_CLUSTER, ("e:1", 106): b"{}"})
        self.assertEqual(len(self.run_of(brokers_of(brokers.ask, "n:1"))), 3)  # type: ignore[arg-type]
        self.assertEqual(len(self.run_of(brokers_of(brokers.ask, "n:1", "d"))), 1)  # type: ignore[arg-type]
        for name_server, cluster, word in (("n:1", "z", "clusters are: c, d"), ("e:1", "", "no broker"),
                                           ("x:1", "", "refused")):
            failure = self.failureResultOf(
                Deferred.fromCoroutine(brokers_of(brokers.ask, name_server, cluster)), DLedgerError
            )
            self.assertIn(word, str(failure.value.facts["reason"]))


@implementer(IStreamClientEndpoint)
class Endpoint:
    """Connects at once, or never."""

    def __init__(self) -> None:
        self.transport = FakeTransport()
        self.is_there = True

    def connect(self, factory: IProtocolFactory) -> Deferred[IProtocol]:
        if not self.is_there:
            return Deferred()
        self.protocol = factory.buildProtocol(None)  # type: ignore[arg-type]
        assert self.protocol is not None
        self.protocol.makeConnection(self.transport)  # type: ignore[arg-type]
        return succeed(self.protocol)


class AskerTests(SynchronousTestCase):
    """One question, one connection."""

    def setUp(self) -> None:
        self.clock = Clock()
        self.endpoint = Endpoint()
        self.asker = BrokerAsker(self.clock, lambda address: self.endpoint, 5.0)

    def test_answered(self) -> None:
        """The connection ends with the answer."""
        asked = self.asker.ask("m:1", RemotingCommand(code=907, opaque=0))
        self.clock.advance(0)
        (request,) = sent_commands(self.endpoint.transport.value())
        answer = RemotingCommand(code=0, opaque=request.opaque, flag=1, body=b"{}")
        self.endpoint.protocol.dataReceived(encode_command(answer))  # type: ignore[union-attr]
        self.assertEqual(self.successResultOf(asked).body, b"{}")
        self.assertTrue(self.endpoint.transport.disconnecting)

    def test_time_out(self) -> None:
        """Neither connecting nor answering may take for ever; nothing is left."""
        for self.endpoint.is_there in (True, False):
            report = Deferred.fromCoroutine(report_of(self.asker.ask, HAReport(address="m:1")))
            self.clock.advance(4.9)
            self.assertNoResult(report)
            self.clock.advance(0.2)
            self.assertEqual(self.successResultOf(report).problem, "no answer in time")
            self.assertEqual(self.clock.getDelayedCalls(), [])
