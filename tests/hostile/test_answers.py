# -*- test-case-name: tests.hostile.test_answers -*-
"""
Answers that nobody reads: every request that a broker, a name server and a member know, 500 times on a
connection of its own, those with large answers on several. The server stays small and serves its client; no
request is an exception.

The codes are found by asking the server, so a new command is in the test without a change here.
"""

from __future__ import annotations

import contextlib
import json
import socket
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path

from twisted.trial.unittest import SynchronousTestCase

import dledger
from protocols.wire.ledger.codes import Consistency, RequestCode
from protocols.wire.ledger.java.json_bodies import encode_request
from protocols.wire.ledger.message_table import MESSAGES
from protocols.wire.ledger.messages import MetadataRequest, Request
from protocols.wire.ledger.push_layout import KINDS
from protocols.wire.remoting import RemotingCommand, encode_command
from tests.hostile.target import (
    MIB,
    ROUNDS,
    GoodClient,
    HostileCase,
    Seen,
    frames,
    highest_resident_mib,
    notify,
    resident_mib,
    send_slowly,
)
from tests.hostile.test_brokers import UPDATE_AND_CREATE_TOPIC, BrokerCase
from tests.processes.brokers import Remoting
from tests.processes.children import Child, free_ports, peers_text, wait_until
from tests.processes.members import ROOT

#: Requests of each kind.
TIMES = 500
#: Resident memory that they may cost, all kinds together, in MiB.
ALLOWED_MIB = 100.0
#: A client's p99 may double; below this it may be anything, in milliseconds: beside other work on two cores,
#: what is 40 ms on an idle machine has been 170 ms.
P99_FLOOR_MS = 250.0

NOT_SUPPORTED = 3
UNREGISTER_BROKER, WIPE_WRITE, DELETE_TOPIC, DELETE_TOPIC_IN_NAMESRV = 104, 205, 215, 216
REGISTER_BROKER, ROUTE_OF_TOPIC, ALL_TOPICS = 103, 105, 206
#: They take what others ask for.
DELETING = (UNREGISTER_BROKER, WIPE_WRITE, DELETE_TOPIC, DELETE_TOPIC_IN_NAMESRV)
#: Codes of a broker whose answers have megabytes: messages, and tables.
LARGE_CODES = (11, 12, 21, 26, 28, 33, 201, 200_050)
#: Where the codes of RocketMQ and of ours are.
SEARCHED = (*range(1100), *range(90_800, 91_000), *range(200_000, 200_200))

LARGE, GROUP = "Large", "g"


def known_codes(address: str) -> list[int]:
    """The codes that a server of commands does not answer as unknown."""
    connection = Remoting(address)
    found = []
    with contextlib.closing(connection):
        for at in range(0, len(SEARCHED), 100):
            codes = SEARCHED[at : at + 100]
            numbers = {connection.send(code, {}): code for code in codes}
            for _ in codes:
                answer = connection.next()
                if answer.code != NOT_SUPPORTED:
                    found.append(numbers[answer.opaque])
    return sorted(found)


def commands(code: int, fields: Mapping[str, str], body: bytes = b"", times: int = TIMES) -> bytes:
    """Requests in one piece."""
    return b"".join(
        encode_command(RemotingCommand(code=code, opaque=number, ext_fields=fields, body=body))
        for number in range(times)
    )


def pour(address: str, floods: Iterable[bytes]) -> list[socket.socket]:
    """Send each flood on a connection of its own, as far as the server takes it, and read nothing."""
    host, _, port = address.rpartition(":")
    held = []
    for flood in floods:
        connection = socket.create_connection((host, int(port)), timeout=10)
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        send_slowly(connection, flood, seconds=0.02)
        held.append(connection)
    return held


def stay_small(
    case: SynchronousTestCase, pid: int, working: Callable[[], contextlib.AbstractContextManager[Seen]],
    attack: Callable[[], list[socket.socket]], *, calm_s: float = 2.0, attacked_s: float = 4.0,
) -> None:
    """
    The process grows by at most L{ALLOWED_MIB}, and its client's p99 at most doubles, in the best of
    L{ROUNDS}: other programs slow this machine, too.
    """
    before = resident_mib(pid)
    reported = []
    for _ in range(ROUNDS):
        with working() as calm:
            time.sleep(calm_s)
        with working() as seen:
            held = attack()
            time.sleep(attacked_s)
        for connection in held:
            connection.close()
        case.assertEqual((seen.unknown, seen.failed), ([], []))
        reported.append(
            f"p99 {calm.quantile_ms(0.99):.0f} -> {seen.quantile_ms(0.99):.0f} ms, longest "
            f"{seen.quantile_ms(1.0):.0f} ms, {len(held)} connections, "
            f"+{highest_resident_mib(pid) - before:.0f} MiB of {before:.0f}"
        )
        notify(f"{case.id().rpartition('.')[2]}: {reported[-1]}")
        case.assertLess(highest_resident_mib(pid) - before, ALLOWED_MIB, reported)
        if seen.quantile_ms(0.99) <= max(2 * calm.quantile_ms(0.99), P99_FLOOR_MS):
            return
    case.fail(f"the client was slow: {reported}")


class BrokerAnswersTests(BrokerCase):
    """A broker with a thousand topics, and messages of 4 MB."""

    options = {"max_message_size": 4 * MIB}

    def fill(self) -> dict[str, str]:
        """@return: fields with which most requests are answered with as much as there is."""
        maker = Remoting(self.broker.address)
        with contextlib.closing(maker):
            for first in (0, 500):
                for number in range(first, first + 500):
                    maker.send(UPDATE_AND_CREATE_TOPIC, {
                        "topic": f"T{number}", "readQueueNums": "4", "writeQueueNums": "4", "perm": "6",
                    })
                self.assertEqual({maker.next().code for _ in range(500)}, {0})
            for _ in range(8):
                maker.put(LARGE, 0, b"x" * (4 * MIB - 1024), KEYS="large")
                self.assertEqual(maker.next().code, 0)
            end = int(maker.ask(30, {"topic": LARGE, "queueId": "0"}).ext_fields["offset"])
            self.assertEqual(end, 8)
        return {
            "consumerGroup": GROUP, "group": GROUP, "groupName": GROUP, "topic": LARGE, "queueId": "0",
            "queueOffset": "0", "maxMsgNums": "32", "sysFlag": "4", "commitOffset": "0", "subscription": "*",
            "suspendTimeoutMillis": "0", "subVersion": "0", "expressionType": "TAG", "offset": "0",
            "key": "large", "maxNum": "64", "beginTimestamp": "0", "endTimestamp": str(2**62),
            "timestamp": "0", "invisibleTime": "1000", "pollTime": "0", "bornTime": "0", "initMode": "0",
            "isForce": "true", "exp": "*", "expType": "TAG",
        }

    def test_every_code(self) -> None:
        """All of them beside each other, and those with large answers twelve times more."""
        fields = self.fill()
        codes = known_codes(self.broker.address)
        notify(f"{len(codes)} codes: {codes}")
        self.assertLessEqual(set(LARGE_CODES), set(codes))
        floods = [
            commands(code, {**fields, "topic": "Nothing"} if code in DELETING else fields)
            for code in [*codes, *LARGE_CODES * 12]
        ]
        stay_small(
            self, self.broker.pid, self.client.working, lambda: pour(self.broker.address, floods)
        )
        self.assert_whole()


class NameServerAnswersTests(SynchronousTestCase):
    """A name server that knows 5,000 topics."""

    def setUp(self) -> None:
        folder = tempfile.TemporaryDirectory(prefix="dledger-hostile-", ignore_cleanup_errors=True)
        self.addCleanup(folder.cleanup)
        directory = Path(folder.name)
        (port,) = free_ports(1)
        self.address = f"127.0.0.1:{port}"
        self.server = Child(
            "namesrv",
            [sys.executable, "-c", "from twisted.scripts.twistd import run; run()", "-n", "--pidfile=",
             "dledger-namesrv", "--listen", f"tcp:{port}:interface=127.0.0.1", "--kv",
             str(directory / "kv.json")],
            log_path=directory / "namesrv.log",
            environment={"PYTHONPATH": str(ROOT), "PYTHONUNBUFFERED": "1"},
        )
        self.addCleanup(self.server.kill)
        self.server.start()
        wait_until(self.register, seconds=60, what="the name server answers")
        self.client = GoodClient(self.address, directory / "client.log", module="tests.hostile.good_finder")

    def register(self) -> bool:
        """A broker with its topics; its connection stays open."""
        one = {"perm": 6, "readQueueNums": 4, "writeQueueNums": 4, "topicFilterType": "SINGLE_TAG",
               "topicSysFlag": 0, "order": False}
        table = {f"Topic-{number:06}": {**one, "topicName": f"Topic-{number:06}"} for number in range(5000)}
        body = json.dumps({"topicConfigSerializeWrapper": {
            "topicConfigTable": table, "dataVersion": {"counter": 1, "timestamp": 1},
        }, "filterServerList": []}).encode()
        try:
            broker = Remoting(self.address)
        except OSError:
            return False
        self.addCleanup(broker.close)
        answer = broker.ask(REGISTER_BROKER, {
            "brokerName": "b", "brokerAddr": "127.0.0.1:1", "clusterName": "c", "haServerAddr": "127.0.0.1:2",
            "brokerId": "0",
        }, body)
        self.assertEqual(answer.code, 0, answer.remark)
        return True

    def test_every_code(self) -> None:
        """All of them beside each other, and some twenty times."""
        codes = known_codes(self.address)
        notify(f"{len(codes)} codes: {codes}")
        self.assertLessEqual({REGISTER_BROKER, ROUTE_OF_TOPIC, 106, ALL_TOPICS}, set(codes))
        fields = {"topic": "Topic-000001", "cluster": "c", "namespace": "N", "key": "k", "value": "v"}
        floods = [
            commands(code, {"topic": "Nothing"} if code in DELETING else fields)
            for code in [*codes, *[ALL_TOPICS] * 20]
        ]
        pid = self.server.pid
        stay_small(self, pid, self.client.working, lambda: pour(self.address, floods))
        self.assertTrue(self.server.is_running, self.server.log_tail())


class MemberAnswersTests(HostileCase):
    """A group with entries of 1 MiB."""

    def requests(self, leader_id: str, first: int) -> Iterator[Request]:
        """One of each kind."""
        for kind in RequestCode:
            request_class = MESSAGES[kind][0]
            more: dict[str, object] = {}
            if kind in (RequestCode.GET, RequestCode.PULL):
                more = {"begin_index": first}
            if kind is RequestCode.PULL:
                more["max_bytes"] = 1 << 30
            yield request_class(group="default", remote_id=leader_id, **more)
        yield MESSAGES[RequestCode.GET][0](
            group="default", remote_id=leader_id, begin_index=first, consistency=Consistency.COMMITTED
        )

    def fill(self) -> int:
        """Entries of 1 MiB. @return: the index of the first one."""
        with dledger.connect(peers_text(self.peers), timeout=20.0) as log:
            return [log.append(b"x" * MIB).index for _ in range(8)][0]

    def test_every_code(self) -> None:
        """In native frames and in JSON, and codes that nobody knows; METADATA on two hundred connections."""
        first, leader = self.fill(), self.wait_for_leader()
        floods = []
        for request in self.requests(leader, first):
            floods.append(commands(int(request.kind), {}, encode_request(request)))
            if request.kind in KINDS:
                floods.append(frames(*[request] * TIMES))
        floods.append(commands(1, {}))
        floods.append(commands(int(RequestCode.METADATA), {}, b"{"))
        floods += [frames(*[MetadataRequest(group="default", remote_id=leader)] * 1000)] * 200
        stay_small(
            self, self.members[leader].pid, self.client.working, lambda: pour(self.peers[leader], floods)
        )
        self.assert_all_alive()
