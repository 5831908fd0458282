# -*- test-case-name: tests.interop.test_ha_ours_follows,tests.interop.test_ha_ours_leads -*-
"""
A master and a slave of RocketMQ's kind, each either Java's or ours; one name server, Java's producer and
consumer.

Both are started as an operator starts them, and judged from outside: by their answers on the listen port, and
by their files. Files are small, so that logs have many.

Source of the names of properties: BrokerConfig, MessageStoreConfig (4.9.8, 5.3.3).
"""

from __future__ import annotations

import socket
import sys
import time
from collections.abc import Mapping
from pathlib import Path

import attrs

from dledger.rocketmq.answering.java_json import read_document
from protocols.wire.framing import FrameBuffer
from protocols.wire.remoting import RemotingCommand, decode_command, encode_command
from protocols.wire.rocketmq.message import Message, decode_message, decode_start, plain_body
from tests.interop.rocketmq import PATIENCE, Server, body_of, java_command
from tests.processes.children import Child, ChildError, TalkingChild, free_ports, free_triple, wait_until
from tests.processes.members import ROOT
from tests.slowness import patient

FILE_SIZE = 1 << 16
BROKER = "broker-a"
CLUSTER = "tests"
QUEUES = 4

#: Codes of the requests sent here.
PULL_MESSAGE, TOPICS, RUNTIME_INFO, CONSUMER_OFFSETS, DELAY_OFFSETS, GROUPS = 11, 21, 28, 43, 45, 201
CLUSTER_INFO, SEND_MESSAGE_V2 = 106, 310

_FOUND, _NOT_FOUND = 0, 19
_HAS_SUBSCRIPTION = 4


class BrokerError(Exception):
    """A broker did not answer, or answered wrongly."""


def ask(
    address: str, code: int, fields: Mapping[str, str] | None = None, body: bytes = b"", *,
    seconds: float = 10.0,
) -> RemotingCommand:
    """
    Send one request over its own connection.

    @raise BrokerError: the connection is refused, or there is no answer in time.
    """
    host, _, port = address.rpartition(":")
    command = RemotingCommand(code=code, opaque=1, version=409, ext_fields=fields or {}, body=body)
    frames = FrameBuffer()
    seconds = patient(seconds)
    deadline = time.monotonic() + seconds
    try:
        with socket.create_connection((host, int(port)), timeout=seconds) as connection:
            connection.sendall(encode_command(command))
            while True:
                connection.settimeout(max(deadline - time.monotonic(), 0.001))
                data = connection.recv(1 << 18)
                if not data:
                    raise BrokerError(f"{address} closed the connection instead of answering request {code}")
                for _form, frame in frames.feed(data):
                    return decode_command(frame)
    except OSError as error:
        raise BrokerError(f"{address}, request {code}: {error}") from error


def ends_of(address: str) -> tuple[int, int]:
    """
    The begin and end of a broker's commit log, by its own word.

    @raise BrokerError: it does not answer, or refuses.
    """
    answer = ask(address, RUNTIME_INFO)
    if answer.code:
        raise BrokerError(f"{address} does not report its state: {answer.code} {answer.remark}")
    table = read_document(answer.body)["table"]
    return int(table["commitLogMinOffset"]), int(table["commitLogMaxOffset"])


def pull(address: str, topic: str, queue_id: int) -> list[Message]:
    """
    All messages of one queue, by PULL_MESSAGE.

    @raise BrokerError: an answer is neither messages nor the end of the queue.
    """
    found: list[Message] = []
    offset = 0
    while True:
        answer = ask(address, PULL_MESSAGE, {
            "consumerGroup": "pullers", "topic": topic, "queueId": str(queue_id), "queueOffset": str(offset),
            "maxMsgNums": "32", "sysFlag": str(_HAS_SUBSCRIPTION), "commitOffset": "0",
            "suspendTimeoutMillis": "0", "subscription": "*", "subVersion": "0", "expressionType": "TAG",
        })
        if answer.code == _NOT_FOUND:
            return found
        if answer.code != _FOUND:
            raise BrokerError(f"{address}, {topic}/{queue_id} from {offset}: {answer.code} {answer.remark}")
        found += records_of(answer.body)
        offset = int(answer.ext_fields["nextBeginOffset"])


def pull_all(address: str, topic: str) -> list[Message]:
    """All messages of a topic."""
    return [message for queue_id in range(QUEUES) for message in pull(address, topic, queue_id)]


def put(address: str, topic: str, number: int) -> Sent:
    """
    Send one message, by SEND_MESSAGE_V2.

    @raise BrokerError: it was not stored, or a replica or the disk was late.
    """
    answer = ask(address, SEND_MESSAGE_V2, {
        "a": "putters", "b": topic, "c": "TBW102", "d": str(QUEUES), "e": str(number % QUEUES), "f": "0",
        "g": str(int(time.time() * 1000)), "h": "0", "i": f"number\1{number}\2", "j": "0", "k": "false",
        "l": "16", "m": "false",
    }, body_of(number))
    if answer.code:
        raise BrokerError(f"{address}, message {number}: {answer.code} {answer.remark}")
    fields = answer.ext_fields
    return Sent(number=number, status="SEND_OK", queue_id=int(fields["queueId"]),
                queue_offset=int(fields["queueOffset"]), message_id=fields["msgId"])


def records_of(data: bytes) -> list[Message]:
    """The messages in C{data}, one after the other."""
    found = []
    at = 0
    while at < len(data):
        size = decode_start(data, at).size
        found.append(decode_message(data[at : at + size]))
        at += size
    return found


def log_bytes(store: Path, begin: int, end: int) -> bytes:
    """
    The bytes of a commit log's files from C{begin} to before C{end}.

    @raise BrokerError: a file is missing, or has another length.
    """
    parts = []
    for start in range(begin - begin % FILE_SIZE, end, FILE_SIZE):
        path = store / "commitlog" / f"{start:020}"
        if not path.exists() or path.stat().st_size != FILE_SIZE:
            raise BrokerError(f"{path} is not a file of {FILE_SIZE} bytes")
        parts.append(path.read_bytes())
    first = begin % FILE_SIZE
    return b"".join(parts)[first : first + end - begin]


@attrs.frozen(kw_only=True)
class Sent:
    """
    The answer that the producer got for a message.

    @ivar status: Java's C{SendStatus}, or C{FAILED:} and the reason.
    @ivar message_id: of the store: its host, then the offset of the record in the commit log.
    """

    number: int
    status: str
    queue_id: int
    queue_offset: int
    message_id: str

    @classmethod
    def of(cls, word: str) -> Sent:
        """Parse the form of C{HaClient.java}."""
        number, status, queue_id, queue_offset, message_id = word.split("/")
        return cls(number=int(number), status=status, queue_id=int(queue_id),
                   queue_offset=int(queue_offset), message_id=message_id)

    @property
    def offset(self) -> int:
        """The offset of its record."""
        return int(self.message_id[16:], 16)


def check_stored(store: Path, sent: Sent, topic: str) -> str:
    """@return: the fault of an acknowledged message's record; empty if the record is right."""
    try:
        head = log_bytes(store, sent.offset, sent.offset + 8)
        size = decode_start(head).size
        message = decode_message(log_bytes(store, sent.offset, sent.offset + size))
    except Exception as error:
        return f"{sent}: {error}"
    found = (message.topic, message.queue_id, message.queue_offset, message.physical_offset)
    if found != (topic, sent.queue_id, sent.queue_offset, sent.offset):
        return f"{sent}: found {found}"
    return "" if plain_body(message) == body_of(sent.number) else f"{sent}: another body"


class Client(TalkingChild):
    """C{HaClient.java}: a producer that reports its answers, and consumers."""

    def __init__(
        self, name_server: str, directory: Path, version: str, *, keys: tuple[str, str] | None = None,
        tls: bool = False,
    ) -> None:
        """
        @param keys: access key and secret of an account of the broker.
        @param tls: connect by TLS, and believe any certificate: the default of RocketMQ's clients.
        """
        java, *words = java_command(version, directory, "192m", "HaClient", name_server)
        if keys is not None:
            words = [f"-Daccess.key={keys[0]}", f"-Dsecret.key={keys[1]}", *words]
        if tls:
            words = ["-Dtls.enable=true", *words]
        super().__init__("client", [java, *words], log_path=directory / "client.log")

    def produce(self, topic: str, first: int, count: int, *, window: int = 1, level: int = 0) -> list[Sent]:
        """Send C{count} messages, each once."""
        return self._sent(f"send {topic} {first} {count} {window} {level}", count)

    def produce_batch(self, topic: str, first: int, count: int) -> list[Sent]:
        """Send C{count} messages as one batch."""
        return self._sent(f"batch {topic} {first} {count}", count)

    def _sent(self, words: str, count: int) -> list[Sent]:
        said = self.ask(words, seconds=PATIENCE)
        word, *rest = said.split(" ")
        if word != "sent" or len(rest) != count:
            raise ChildError(f"the producer: {said[:400]}\n{self.log_tail()}")
        return [Sent.of(one) for one in rest]

    def load(self, topic: str, first: int, path: Path, *, window: int = 8) -> None:
        """Send until L{quiet}; each answered message is a line of the file."""
        self.ask(f"load {topic} {first} {window} {path}")

    def quiet(self) -> int:
        """Stop the load. @return: the next number."""
        return int(self.ask("quiet", seconds=PATIENCE).split(" ")[1])

    def consume(self, topic: str, group: str, tag: str = "*") -> None:
        """Start a consumer, from the first message on."""
        self.ask(f"consume {topic} {group} {tag}", seconds=PATIENCE)

    def received(self, group: str, count: int, *, seconds: int = PATIENCE) -> tuple[int, int, int]:
        """
        Wait until a group has received C{count} different messages.

        @return: the number of different messages, of those with a wrong body, and of repeated ones.
        """
        said = self.ask(f"received {group} {count} {seconds}", seconds=seconds + 30)
        seen, wrong, again = map(int, said.split(" "))
        return seen, wrong, again


class Broker(Child):
    """
    The common part of both kinds.

    @ivar store: its root directory.
    @ivar port: it listens here; replication listens on the next port.
    """

    store: Path
    port: int

    @property
    def address(self) -> str:
        """The address of its requests."""
        return f"127.0.0.1:{self.port}"

    def wait_started(self, *, seconds: float = PATIENCE) -> None:
        """@raise ChildError: it ended, or does not answer in time."""
        raise NotImplementedError

    def become(self, role: str, **more: object) -> None:
        """Change the role, and settings by Java's names, from the next start on."""
        raise NotImplementedError


class JavaBroker(Broker, Server):
    """A broker of Java's."""

    def __init__(
        self, name: str, home: Path, version: str, *, port: int, name_server: str, store: Path | None = None,
        broker: str = BROKER,
    ) -> None:
        self.port = port
        self.store = store or home / "store"
        Server.__init__(self, name, "broker.BrokerStartup", {
            "brokerClusterName": CLUSTER, "brokerName": broker, "listenPort": port, "haListenPort": port + 1,
            "brokerIP1": "127.0.0.1", "brokerIP2": "127.0.0.1", "namesrvAddr": name_server,
            "storePathRootDir": self.store, "storePathCommitLog": self.store / "commitlog",
            "mappedFileSizeCommitLog": FILE_SIZE, "mappedFileSizeConsumeQueue": 20 * 1000,
            "maxHashSlotNum": 1000, "maxIndexNum": 4000, "diskMaxUsedSpaceRatio": 95,
            "timerWheelEnable": False, "defaultTopicQueueNums": QUEUES, "slaveReadEnable": True,
            "registerNameServerPeriod": 10000, "haSendHeartbeatInterval": 1000,
            "sendMessageThreadPoolNums": 4, "pullMessageThreadPoolNums": 4,
            # A busy machine is not an overloaded broker.
            "brokerFastFailureEnable": False, "osPageCacheBusyTimeOutMills": 60000,
        }, home, version)

    def wait_started(self, *, seconds: float = PATIENCE) -> None:
        Server.wait_started(self, seconds=seconds)

    def become(self, role: str, **more: object) -> None:
        self.configure({"brokerRole": role, "brokerId": 1 if role == "SLAVE" else 0, **more})


class OurBroker(Broker):
    """A broker of ours: C{twistd -n dledger-broker}."""

    def __init__(
        self, name: str, home: Path, *, port: int, name_server: str, store: Path | None = None,
        broker: str = BROKER,
    ) -> None:
        self.port = port
        self.store = store or home / "store"
        self._fixed: dict[str, object] = {
            "mappedFileSizeCommitLog": FILE_SIZE, "mappedFileSizeConsumeQueue": 20 * 1000,
            "defaultTopicQueueNums": QUEUES, "registerNameServerPeriod": 10000, "haFullHistory": True,
            "brokerIP1": "127.0.0.1", "enablePropertyFilter": True,
            "maxHashSlotNum": 1000, "maxIndexNum": 4000,  # as Java's above
        }
        self._name_server, self._broker = name_server, broker
        super().__init__(name, self._words("ASYNC_MASTER", {}), log_path=home / f"{name}.log",
                         environment={"PYTHONPATH": str(ROOT), "PYTHONUNBUFFERED": "1"})

    def _words(self, role: str, more: Mapping[str, object]) -> list[str]:
        words = [
            sys.executable, "-c", "from twisted.scripts.twistd import run; run()", "-n", "--pidfile=",
            "dledger-broker", "--role", role.lower().replace("_", "-"), "--listen", str(self.port),
            "--ha-listen", str(self.port + 1), "--namesrv", self._name_server, "--store", str(self.store),
            "--name", self._broker, "--cluster", CLUSTER, "--broker-id", "1" if role == "SLAVE" else "0",
        ]
        for name, value in {**self._fixed, **more}.items():
            words += ["--set", f"{name}={str(value).lower() if isinstance(value, bool) else value}"]
        return words

    def become(self, role: str, **more: object) -> None:
        self.command = self._words(role, more)

    def wait_started(self, *, seconds: float = PATIENCE) -> None:

        def answers() -> bool:
            if not self.is_running:
                raise ChildError(f"{self.name} ended at its start\n{self.log_tail(30)}")
            try:
                ends_of(self.address)
            except BrokerError:
                return False
            return True

        wait_until(answers, seconds=seconds, what=f"{self.name} runs", every=0.1, notify=self.log_tail)


def pause(child: Child) -> None:
    """SIGSTOP, and wait until all its threads have stopped."""
    child.pause()

    def is_stopped() -> bool:
        states = [path.read_text().rpartition(")")[2].split()[0]
                  for path in Path(f"/proc/{child.pid}/task").glob("*/stat")]
        return set(states) == {"T"}

    wait_until(is_stopped, seconds=PATIENCE, what=f"{child.name} has stopped")


def read_tables(store: Path) -> dict[str, object]:
    """The metadata in a store's files, the part that both kinds have: by the name of the table."""
    found: dict[str, object] = {}
    for name in ("topics", "consumerOffset", "delayOffset", "subscriptionGroup"):
        path = store / "config" / f"{name}.json"
        try:
            found[name] = _essence(read_document(path.read_bytes()))
        except OSError as error:
            found[name] = str(error)
    return found


def ask_tables(address: str) -> dict[str, object]:
    """The same metadata, as a broker reports it to its slaves."""
    found: dict[str, object] = {}
    for name, code in (("topics", TOPICS), ("consumerOffset", CONSUMER_OFFSETS),
                       ("delayOffset", DELAY_OFFSETS), ("subscriptionGroup", GROUPS)):
        answer = ask(address, code)
        if answer.code:
            raise BrokerError(f"{address}, request {code}: {answer.code} {answer.remark}")
        found[name] = _essence(read_document(answer.body))
    return found


_NOT_COPIED = ("attributes", "topicLives")


def _essence(document: Mapping[str, object]) -> object:
    for key in ("topicConfigTable", "subscriptionGroupTable"):
        table = document.get(key)
        if isinstance(table, dict):
            # Attributes are not replicated, and RocketMQ drops a field of ours: see docs/ha.md.
            return {name: {field: value for field, value in entry.items() if field not in _NOT_COPIED}
                    for name, entry in table.items()}
    return document.get("offsetTable")


def differing(reported: Mapping[str, object], kept: Mapping[str, object]) -> list[tuple[str, object, object]]:
    """
    The differences between a master's tables and its slave's: table, the master's value, the slave's.

    A slave of 5.x writes the defaults of fields that a master does not mention.
    """
    return [(name, reported[name], _as_reported(reported[name], kept[name])) for name in reported
            if reported[name] != _as_reported(reported[name], kept[name])]


def _as_reported(reported: object, kept: object) -> object:
    if not (isinstance(reported, dict) and isinstance(kept, dict)):
        return kept
    return {
        name: {field: value for field, value in entry.items() if field in reported[name]}
        if isinstance(entry, dict) and isinstance(reported.get(name),
                                                  dict) and "groupName" in entry else entry
        for name, entry in kept.items()
    }


class Pair:
    """
    A master and its slave.

    @ivar sent: the answers to the producer, by number.
    """

    def __init__(self, directory: Path, version: str, *, master: str, slave: str) -> None:
        """@param master, slave: C{java} or C{ours}."""
        self.directory = directory
        self.version = version
        (name_port,) = free_ports(1)
        self.name_server_address = f"127.0.0.1:{name_port}"
        self.name_server = Server(
            "namesrv", "namesrv.NamesrvStartup", {"listenPort": name_port}, directory / "namesrv", version
        )
        self.client = Client(self.name_server_address, directory, version)
        self.master = self.broker(master, f"{master}-master")
        self.slave = self.broker(slave, f"{slave}-slave")
        self.sent: dict[int, Sent] = {}

    def broker(
        self, kind: str, name: str, *, store: Path | None = None, broker: str = BROKER
    ) -> JavaBroker | OurBroker:
        """
        Another broker.

        @param store: its directory, if not its own.
        @param broker: its name for the name server.
        """
        port, home = free_triple(), self.directory / name
        if kind == "java":
            return JavaBroker(
                name, home, self.version, port=port, name_server=self.name_server_address, store=store,
                broker=broker,
            )
        return OurBroker(
            name, home, port=port, name_server=self.name_server_address, store=store, broker=broker
        )

    @property
    def next_number(self) -> int:
        """Number of the next message."""
        return max(self.sent, default=-1) + 1

    def kill(self) -> None:
        """End every process."""
        for child in (self.client, self.slave, self.master, self.name_server):
            child.kill()

    def send(self, topic: str, count: int, *, window: int = 1, level: int = 0) -> list[str]:
        """Send C{count} messages. @return: the status of each."""
        found = self.client.produce(topic, self.next_number, count, window=window, level=level)
        self.sent |= {one.number: one for one in found}
        return [one.status for one in found]

    def send_batch(self, topic: str, count: int) -> list[str]:
        """Send C{count} messages as one batch. @return: the status of each."""
        found = self.client.produce_batch(topic, self.next_number, count)
        self.sent |= {one.number: one for one in found}
        return [one.status for one in found]

    def tails(self) -> str:
        """The last lines of all logs."""
        return "\n".join(
            child.log_tail() for child in (self.name_server, self.master, self.slave, self.client)
        )

    def wait(self, condition: object, what: str, *, seconds: float = PATIENCE) -> None:
        """
        Wait until C{condition()} is true; while a broker does not answer, it counts as false.

        @raise ChildError: it was not true in time; has the last lines of all logs.
        """
        why: list[str] = []

        def holds() -> bool:
            try:
                return bool(condition())  # type: ignore[operator]
            except BrokerError as error:
                why[:] = [str(error)]
                return False

        try:
            wait_until(holds, seconds=seconds, what=what, every=0.1)
        except ChildError as error:
            raise ChildError(f"{error} {why}\n{self.tails()}") from None

    def wait_registered(self, broker: Broker) -> None:
        """Wait until the name server knows the broker, so that producers and its slave find it."""

        def known() -> bool:
            table = read_document(ask(self.name_server_address, CLUSTER_INFO).body)["brokerAddrTable"]
            return broker.address in table.get(BROKER, {}).get("brokerAddrs", {}).values()

        self.wait(known, f"the name server knows {broker.name}")

    def wait_equal(self) -> tuple[int, int]:
        """
        Wait until the slave's log ends where the master's does. No client may be sending.

        @return: the begin of the part that both have, and its end.
        """
        found: list[tuple[int, int]] = []

        def equal() -> bool:
            found[:] = [ends_of(self.master.address), ends_of(self.slave.address)]
            return found[0][1] == found[1][1]

        self.wait(equal, f"equal ends of both logs; seen: {found}")
        return max(begin for begin, _ in found), found[0][1]
