# -*- test-case-name: tests.processes.test_raft_broker -*-
"""
Three brokers of ours on a raft log, and a name server, as real C{twistd} processes on loopback.

The brokers are started as an operator starts them: with a file of RocketMQ's properties. Clients find the
master as RocketMQ's clients do, at the name server.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from dledger.rocketmq.answering.java_json import read_document
from protocols.wire.codes import ResponseCode
from protocols.wire.ledger.messages import LeadershipTransferRequest, MetadataResponse
from tests.processes.asking import NoAnswer, ask, metadata_of
from tests.processes.brokers import FOUND, NO_TOPIC, NOT_FOUND, Remoting, messages_of
from tests.processes.children import Child, ChildError, free_ports, free_triple, peers_text, wait_until
from tests.processes.ledgers import LedgerFault, assert_identical
from tests.processes.members import ROOT

_TWISTD = "from twisted.scripts.twistd import run; run()"
GROUP = "broker-a"
#: Small files: that a log rolls over is part of every run.
FILE_BYTES = 1 << 18
PATIENCE_S = 60.0
#: Requests of RocketMQ.
GET_CLUSTER, RUNTIME_INFO = 106, 28


class Kept(NamedTuple):
    """A message as a broker has it: its offset in its queue and in the log, and its body."""

    queue_offset: int
    physical_offset: int
    body: bytes


class RaftMember(Child):
    """
    One broker, and the raft member in it.

    @ivar port: for clients.
    @ivar store: its directory.
    """

    def __init__(
        self, name: str, directory: Path, properties: Mapping[str, object], *, port: int,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        """@param properties: with RocketMQ's names."""
        self.port = port
        self.store = directory / name / "store"
        home = directory / name
        home.mkdir(parents=True, exist_ok=True)
        self.configuration = home / "broker.conf"
        lines = (
            f"{key}={str(value).lower() if isinstance(value, bool) else value}"
            for key, value in {**properties, "listenPort": port, "storePathRootDir": self.store}.items()
        )
        self.configuration.write_text("\n".join(lines) + "\n")
        super().__init__(
            name,
            [sys.executable, "-c", _TWISTD, "-n", "--pidfile=", "dledger-broker", "-c",
             str(self.configuration), "--listen", f"tcp:{port}:interface=127.0.0.1"],
            log_path=directory / f"{name}.log",
            environment={"PYTHONPATH": str(ROOT), "PYTHONUNBUFFERED": "1", **(environment or {})},
        )

    @property
    def ledger_path(self) -> Path:
        """The directory of the member's C{data} and C{index}."""
        return self.store / f"dledger-{self.name}"

    def connect(self, *, seconds: float = 20.0) -> Remoting:
        """@raise OSError: it does not listen."""
        return Remoting(f"127.0.0.1:{self.port}", seconds=seconds)


class RaftTrio:
    """
    The group.

    @ivar brokers: by id.
    @ivar peers: C{host:port} of the members, by id.
    @ivar name_server: its process.
    """

    def __init__(
        self, directory: Path, *, size: int = 3, options: Mapping[str, object] | None = None,
    ) -> None:
        """@param options: further properties of all brokers, with RocketMQ's names."""
        self.directory = directory
        self.peers = {f"n{number}": f"127.0.0.1:{port}" for number, port in enumerate(free_ports(size))}
        (self._name_port,) = free_ports(1)
        self.name_server_address = f"127.0.0.1:{self._name_port}"
        self.name_server = Child(
            "namesrv",
            [sys.executable, "-c", _TWISTD, "-n", "--pidfile=", "dledger-namesrv", "--listen",
             f"tcp:{self._name_port}:interface=127.0.0.1", "--kv", str(directory / "kv.json")],
            log_path=directory / "namesrv.log",
            environment={"PYTHONPATH": str(ROOT), "PYTHONUNBUFFERED": "1"},
        )
        self._options = dict(options or {})
        self.brokers = {peer_id: self.made(peer_id) for peer_id in self.peers}

    def made(
        self, peer_id: str, *, environment: Mapping[str, str] | None = None, **more: object
    ) -> RaftMember:
        """A broker for a member, not started. @param more: further properties."""
        return RaftMember(peer_id, self.directory, {
            "brokerClusterName": "tests", "brokerName": GROUP, "brokerIP1": "127.0.0.1",
            "namesrvAddr": self.name_server_address, "enableDLegerCommitLog": True, "dLegerGroup": GROUP,
            "dLegerPeers": peers_text(self.peers), "dLegerSelfId": peer_id,
            "mappedFileSizeCommitLog": FILE_BYTES, "mappedFileSizeConsumeQueue": 20 * 1000,
            "diskMaxUsedSpaceRatio": 95, "defaultTopicQueueNums": 4, **self._options, **more,
        }, port=free_triple(), environment=environment)

    def start(self) -> str:
        """
        Start all that does not run; wait until no member is unsure. @return: the master.

        The votes of unsure members count only together with those of all: without the wait, a new group
        whose first master is killed at once may have none until that one is back.
        """
        for child in (self.name_server, *self.brokers.values()):
            if not child.is_running:
                child.start()

        def all_sure() -> bool:
            said = [self.metadata(peer_id) for peer_id in self.brokers]
            return all(one is not None and "unsure" not in one.health for one in said)

        wait_until(all_sure, seconds=PATIENCE_S, what="members that are sure of their votes")
        return self.wait_master()

    def kill(self) -> None:
        """SIGKILL for every process."""
        for child in (*self.brokers.values(), self.name_server):
            child.kill()

    def stop(self) -> dict[str, int]:
        """SIGTERM for every broker. @return: their exit statuses."""
        return {peer_id: broker.stop(seconds=30) for peer_id, broker in self.brokers.items()}

    def tails(self, lines: int = 15) -> str:
        """The last lines of all logs."""
        return "\n".join(broker.log_tail(lines) for broker in self.brokers.values())

    # -- who leads -------------------------------------------------------------------------------

    def route(self) -> dict[str, str]:
        """Broker id to address, as the name server informs clients; empty if it knows none."""
        with contextlib.closing(Remoting(self.name_server_address, seconds=5.0)) as connection:
            body = read_document(connection.ask(GET_CLUSTER, {}).body)
        addresses = body["brokerAddrTable"].get(GROUP, {}).get("brokerAddrs", {})
        return {str(number): str(address) for number, address in addresses.items()}

    def master(self) -> str | None:
        """The member whose broker is registered as master."""
        with contextlib.suppress(OSError):
            address = self.route().get("0")
            for peer_id, broker in self.brokers.items():
                if address == f"127.0.0.1:{broker.port}":
                    return peer_id
        return None

    def wait_master(self, *, other_than: Sequence[str] = (), seconds: float = PATIENCE_S) -> str:
        """
        Wait for a master that takes messages. @return: its id.

        @raise ChildError: there was none in time.
        """
        found: list[str] = []

        def is_there() -> bool:
            one = self.master()
            if one is not None and one not in other_than and self.brokers[one].is_running:
                with contextlib.suppress(OSError), contextlib.closing(
                    self.brokers[one].connect(seconds=2.0)
                ) as connection:
                    said = read_document(connection.ask(RUNTIME_INFO, {}).body)["table"]
                    if said.get("brokerRole", "SYNC_MASTER") != "SLAVE":
                        found[:] = [one]
            return bool(found)

        try:
            wait_until(is_there, seconds=seconds, what="a master", every=0.02)
        except ChildError as error:
            raise ChildError(f"{error}\n{self.tails(30)}") from None
        return found[0]

    def metadata(self, peer_id: str) -> MetadataResponse | None:
        """What a member says of itself; None if it does not answer."""
        return metadata_of(peer_id, self.peers[peer_id], group=GROUP)

    def hand_over(self, leader_id: str, taker_id: str) -> bool:
        """Ask a leader to hand leadership over. @return: whether it says that it did."""
        try:
            answer = ask(self.peers[leader_id], LeadershipTransferRequest(
                group=GROUP, remote_id=leader_id, transfer_id=leader_id, transferee_id=taker_id
            ), seconds=10.0)
        except NoAnswer:
            return False
        return answer.code is ResponseCode.SUCCESS

    # -- their contents ---------------------------------------------------------------------------

    def queue_at(self, peer_id: str, topic: str, queue_id: int) -> list[Kept]:
        """
        All messages of a queue at one broker.

        @raise ChildError: a pull was answered otherwise than found or not found.
        """
        with contextlib.closing(self.brokers[peer_id].connect()) as connection:
            found: list[Kept] = []
            while True:
                answer = connection.pull(topic, queue_id, len(found))
                if answer.code in (NOT_FOUND, NO_TOPIC):
                    return found
                if answer.code != FOUND:
                    raise ChildError(
                        f"{peer_id} {topic}/{queue_id} at {len(found)}: {answer.code} {answer.remark}"
                    )
                for one in messages_of(answer):
                    if one.queue_offset != len(found):
                        raise ChildError(
                            f"{peer_id} {topic}/{queue_id}: {one.queue_offset} follows {len(found) - 1}"
                        )
                    found.append(Kept(one.queue_offset, one.physical_offset, one.body))

    def wait_same(self, topic: str, queues: int = 4) -> list[list[Kept]]:
        """
        Wait until all entries are committed, and all logs and all queues of the topic are equal and dense.
        No client may be writing.

        @return: the queues.
        @raise ChildError: they were not equal in time.
        """
        why = [""]
        found: list[list[Kept]] = []

        def same() -> bool:
            try:
                why[0] = self._difference(topic, queues, found)
            except (ChildError, LedgerFault, OSError) as error:
                why[0] = str(error)
            return not why[0]

        try:
            wait_until(same, seconds=PATIENCE_S, what="equal logs and queues", every=0.3)
        except ChildError as error:
            raise ChildError(f"{error}: {why[0]}\n{self.tails(30)}") from None
        return found

    def _difference(self, topic: str, queues: int, found: list[list[Kept]]) -> str:
        ends = set()
        for peer_id in self.brokers:
            said = self.metadata(peer_id)
            if said is None or said.committed_index != said.end_index:
                return f"{peer_id} says {said}"
            ends.add(said.end_index)
        if len(ends) != 1:
            return f"the logs end at {ends}"
        assert_identical([broker.ledger_path for broker in self.brokers.values()], ends.pop())
        per_broker = [
            [self.queue_at(peer_id, topic, number) for number in range(queues)] for peer_id in self.brokers
        ]
        if any(one != per_broker[0] for one in per_broker):
            return f"queues differ: {[[len(queue) for queue in one] for one in per_broker]}"
        found[:] = per_broker[0]
        return ""

