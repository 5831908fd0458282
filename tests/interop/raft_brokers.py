# -*- test-case-name: tests.interop.test_raft_broker -*-
"""
Groups of brokers in DLedger mode: Java's of any version and ours, one beside the other.

Every broker is started with the same properties, ours too: C{twistd dledger-broker -c} reads the file that
Java's C{BrokerStartup} reads. The name server is ours.
"""

from __future__ import annotations

import contextlib
import re
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from protocols.wire.ledger.messages import LeadershipTransferRequest, MetadataResponse
from tests.interop.name_servers import Asking, OurNameServer
from tests.interop.rocketmq import (
    COMMIT_LOG_FILE_BYTES,
    PATIENCE,
    TOPIC,
    Messages,
    Sent,
    Server,
    StartedChild,
    member_says,
    write_properties,
)
from tests.processes.asking import NoAnswer, ask
from tests.processes.brokers import FOUND, NO_TOPIC, Remoting, messages_of
from tests.processes.children import ChildError, free_ports, free_triple, peers_text, wait_until
from tests.processes.ledgers import LedgerFault, assert_identical, read_records
from tests.processes.members import ROOT

_TWISTD = "from twisted.scripts.twistd import run; run()"
GROUP = "broker-a"
OURS = "ours"
#: Bytes of one unit of a consume queue.
UNIT = 20


class RaftBroker(StartedChild):
    """Our broker on a raft log, with a file of properties as Java's."""

    def __init__(self, name: str, properties: Mapping[str, object], home: Path) -> None:
        configuration = home / f"{name}.conf"
        write_properties(configuration, properties)
        port = properties["listenPort"]
        super().__init__(
            name,
            [sys.executable, "-c", _TWISTD, "-n", "--pidfile=", "dledger-broker", "-c", str(configuration),
             "--listen", f"tcp:{port}:interface=127.0.0.1"],
            log_path=home / f"{name}.log", environment={"PYTHONPATH": str(ROOT), "PYTHONUNBUFFERED": "1"},
        )
        self._lives = 0

    def start(self) -> None:
        """Start it without waiting."""
        self._lives = self._boots() + 1
        super().start()

    def _boots(self) -> int:
        if not self.log_path.exists():
            return 0
        return len(re.findall(r" listens at .* on ports ", self.log_path.read_text(errors="replace")))

    def wait_started(self) -> None:

        def is_up() -> bool:
            if not self.is_running:
                raise ChildError(f"{self.name} ended at its start\n{self.log_tail(30)}")
            return self._boots() >= self._lives

        wait_until(is_up, seconds=PATIENCE, what=f"{self.name} runs", every=0.1, notify=self.log_tail)


class RaftBrokers:
    """
    A group, its name server, and Java's producer and consumer.

    @ivar kinds: id of each member to L{OURS} or a version of RocketMQ.
    @ivar ports: id to the broker's port for clients.
    @ivar peers: id to C{host:port} of the member.
    @ivar sent: the answers to the producer, by number.
    """

    def __init__(
        self, directory: Path, kinds: Sequence[str], *, client: str,
        options: Mapping[str, object] | None = None,
    ) -> None:
        """
        @param client: version of the producer and the consumer.
        @param options: further properties of all brokers.
        """
        self.directory = directory
        self.kinds = {f"n{number}": kind for number, kind in enumerate(kinds)}
        self.peers = {
            peer_id: f"127.0.0.1:{port}"
            for peer_id, port in zip(self.kinds, free_ports(len(kinds)), strict=True)
        }
        self.name_server = OurNameServer(directory)
        self._options = dict(options or {})
        self.ports = {peer_id: free_triple() for peer_id in self.kinds}
        self.brokers: dict[str, StartedChild] = {
            peer_id: self.made(peer_id, kind) for peer_id, kind in self.kinds.items()
        }
        self.messages = Messages(self.name_server.address, directory, client)
        self.sent: dict[int, Sent] = {}

    def made(self, peer_id: str, kind: str) -> StartedChild:
        """A broker for the directory of a member, not started."""
        home = self.directory / peer_id
        properties = {
            "brokerClusterName": "tests", "brokerName": GROUP, "listenPort": self.ports[peer_id],
            "brokerIP1": "127.0.0.1", "namesrvAddr": self.name_server.address,
            "storePathRootDir": home / "store", "storePathCommitLog": home / "store" / "commitlog",
            "enableDLegerCommitLog": True, "dLegerGroup": GROUP, "dLegerPeers": peers_text(self.peers),
            "dLegerSelfId": peer_id, "mappedFileSizeCommitLog": COMMIT_LOG_FILE_BYTES,
            "mappedFileSizeConsumeQueue": 20 * 1000, "maxHashSlotNum": 1000, "maxIndexNum": 4000,
            "diskMaxUsedSpaceRatio": 95, "timerWheelEnable": False, "defaultTopicQueueNums": 4,
            "sendMessageThreadPoolNums": 4, "pullMessageThreadPoolNums": 4,
            # A busy machine is not an overloaded broker.
            "brokerFastFailureEnable": False, "osPageCacheBusyTimeOutMills": 60000,
            # Else 5.3 loses units of queues after a crash.
            # Without the second it answers no pull while it follows.
            **({"recheckReputOffsetFromCq": True, "slaveReadEnable": True} if kind[0] == "5" else {}),
            **self._options,
        }
        if kind == OURS:
            return RaftBroker(f"broker-{peer_id}", properties, home)
        return Server(f"broker-{peer_id}", "broker.BrokerStartup", properties, home, kind)

    def start(self) -> None:
        """Start name server, brokers, producer; wait until they run."""
        self.name_server.start()
        self.name_server.wait_started()
        for broker in self.brokers.values():
            broker.start()
        for broker in self.brokers.values():
            broker.wait_started()
        self.wait_master()
        self.messages.start()
        self.messages.wait_started(seconds=PATIENCE)

    def kill(self) -> None:
        """End every process."""
        for child in (self.messages, *self.brokers.values(), self.name_server):
            child.kill()

    def tails(self) -> str:
        """How processes ended that do not run, and the last lines of all logs."""
        children = (self.name_server, *self.brokers.values())
        ended = {child.name: child.exit_status for child in children if child.exit_status is not None}
        return "\n".join([f"ended, with exit status: {ended}", *(child.log_tail() for child in children)])

    # -- questions -------------------------------------------------------------------------------

    def route(self) -> dict[str, str]:
        """
        Broker id to address, as the name server informs clients of the group; empty before there is one.
        """
        asking = Asking(self.name_server.port)
        try:
            body = asking.ask(106).body
        finally:
            asking.close()
        assert isinstance(body, tuple)
        found = body[1]["brokerAddrTable"].get(GROUP, {})
        return {str(number): str(address) for number, address in found.get("brokerAddrs", {}).items()}

    def master(self) -> str | None:
        """The member whose broker is registered as master."""
        address = self.route().get("0")
        for peer_id, port in self.ports.items():
            if address == f"127.0.0.1:{port}":
                return peer_id
        return None

    def wait_master(self, *, other_than: str | None = None) -> str:
        """Wait for a running master. @return: its id."""
        found: list[str] = []

        def is_there() -> bool:
            one = self.master()
            if one is not None and one != other_than and self.brokers[one].is_running:
                found[:] = [one]
            return bool(found)

        try:
            wait_until(is_there, seconds=PATIENCE, what="a master", every=0.05)
        except ChildError as error:
            raise ChildError(f"{error}\nroute: {self.route()}\n{self.tails()}") from None
        return found[0]

    def metadata(self, peer_id: str) -> MetadataResponse | None:
        """What a member says of itself; None if it does not answer."""
        return member_says(self.peers[peer_id], peer_id)

    def ledger_path(self, peer_id: str) -> Path:
        """The directory of a member's C{data} and C{index}."""
        return self.directory / peer_id / "store" / f"dledger-{peer_id}"

    # -- changes --------------------------------------------------------------------------------

    def back(self, peer_id: str) -> None:
        """Start a broker again."""
        self.brokers[peer_id].start()
        self.brokers[peer_id].wait_started()

    def leader_of(self, kind: str) -> str:
        """The master; one of this kind, by a hand-over if need be."""
        leader_id = self.wait_master()
        if self.kinds[leader_id] != kind:
            takers = [peer_id for peer_id, one in self.kinds.items() if one == kind]
            self.lead(takers[0])
            leader_id = takers[0]
        return leader_id

    def lead(self, taker_id: str) -> None:
        """Have a member take the leadership by LEADERSHIP_TRANSFER, and become master."""

        def leads() -> bool:
            leader_id = self.master()
            if leader_id == taker_id:
                return True
            if leader_id is None:
                return False
            # A leader of RocketMQ wants the term, and names it to nobody: it is that of the newest entry.
            self.send(1)
            leader_id = self.master() or leader_id
            term = max(record.term for record in read_records(self.ledger_path(leader_id)))
            with contextlib.suppress(NoAnswer):
                ask(self.peers[leader_id], LeadershipTransferRequest(
                    group=GROUP, remote_id=leader_id, transfer_id=leader_id, transferee_id=taker_id,
                    term=term,
                ), seconds=10.0)
            return self.settles(taker_id, 10.0)

        try:
            wait_until(leads, seconds=PATIENCE, what=f"{taker_id} leads", every=0.5)
        except ChildError as error:
            raise ChildError(f"{error}\n{self.tails()}") from None

    def settles(self, taker_id: str, seconds: float) -> bool:
        """Wait a while until a member is registered as master. @return: whether it is."""
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            if self.master() == taker_id:
                return True
            time.sleep(0.1)
        return False

    # -- messages --------------------------------------------------------------------------------

    def send(self, count: int) -> None:
        """Send C{count} more messages; all must be acknowledged."""
        try:
            produced = self.messages.produce(len(self.sent), count)
        except ChildError as error:
            raise ChildError(f"{error}\nroute: {self.route()}\n{self.tails()}") from None
        for sent in produced:
            self.sent[sent.number] = sent

    def queue_of(self, peer_id: str, queue_id: int, topic: str = TOPIC) -> list[tuple[int, int, str]]:
        """Queue offset, offset in the log and unique key of all messages of a queue at one broker."""
        connection = Remoting(f"127.0.0.1:{self.ports[peer_id]}")
        found: list[tuple[int, int, str]] = []
        offset = 0
        try:
            while True:
                answer = connection.pull(topic, queue_id, offset)
                if answer.code == NO_TOPIC:
                    return found
                if answer.code != FOUND:
                    return found
                for message in messages_of(answer):
                    key = message.properties.get("UNIQ_KEY", "")
                    found.append((message.queue_offset, message.physical_offset, key))
                offset = int(answer.ext_fields["nextBeginOffset"])
        finally:
            connection.close()

    def check(self, topics: Sequence[str] = (TOPIC,)) -> None:
        """
        Wait until all running members have equal logs and equal, dense queues of these topics, which have
        every acknowledged message at the place in its producer's answer.
        """
        why: list[str] = []

        def equal() -> bool:
            problem = self._difference(topics)
            why[:] = [problem]
            return not problem

        try:
            wait_until(equal, seconds=PATIENCE, what="equal logs and queues", every=0.5)
        except ChildError as error:
            raise ChildError(f"{error}: {why}\n{self.tails()}") from None

    def _difference(self, topics: Sequence[str]) -> str:
        running = [peer_id for peer_id, broker in self.brokers.items() if broker.is_running]
        ours = [peer_id for peer_id in running if self.kinds[peer_id] == OURS]
        if ours:
            said = self.metadata(ours[0])
            if said is None or said.committed_index < said.end_index:
                return f"{ours[0]} says {said}"
            try:
                assert_identical([self.ledger_path(peer_id) for peer_id in running], said.end_index)
            except LedgerFault as fault:
                return str(fault)
        queues: dict[str, dict[tuple[str, int], list[tuple[int, int, str]]]] = {}
        for peer_id in running:
            try:
                queues[peer_id] = {
                    (topic, number): self.queue_of(peer_id, number, topic)
                    for topic in topics for number in range(4)
                }
            except OSError as error:
                return f"{peer_id}: {error}"
        first, *others = running
        for peer_id in others:
            if queues[peer_id] != queues[first]:
                sizes = {one: [len(queue) for queue in queues[one].values()] for one in running}
                return f"queues of {peer_id} and {first} differ: {sizes}"
        for name, queue in queues[first].items():
            places = [place for place, _, _ in queue]
            if places != list(range(len(places))):
                return f"queue {name} is not dense: {places[:50]}"
        for sent in self.sent.values():
            queue = queues[first][TOPIC, sent.queue_id]
            if sent.queue_offset >= len(queue):
                return f"message {sent.number} at {sent.queue_id}/{sent.queue_offset} is not there"
            if queue[sent.queue_offset][2] != sent.unique_key:
                return f"message {sent.number}: another one is at {sent.queue_id}/{sent.queue_offset}"
        return ""
