# -*- test-case-name: tests.interop.test_rocketmq -*-
"""
RocketMQ in DLedger mode: a name server, two brokers, Java's producer and consumer, and a member of ours.

The programs are started as an operator starts them: C{BrokerStartup} and C{NamesrvStartup} with a file of
properties. The jars come from Maven Central, as in L{tests.interop.java}.

Source of the names of properties: BrokerConfig, MessageStoreConfig, NettyServerConfig, NamesrvConfig.
"""

from __future__ import annotations

import base64
import contextlib
import os
import re
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from itertools import islice
from pathlib import Path

import attrs

from protocols.wire.ledger.messages import MetadataRequest, MetadataResponse
from tests.interop import jvms
from tests.interop.java import (
    NO_VERIFYING,
    SOURCES,
    class_path_of,
    jars_of_pom,
    remove_queues,
    remove_unmade_files,
)
from tests.processes.asking import NoAnswer, ask
from tests.processes.children import (
    Child,
    ChildError,
    TalkingChild,
    free_ports,
    free_triple,
    peers_text,
    wait_until,
)
from tests.processes.ledgers import LedgerFault, Record, assert_identical, read_records
from tests.processes.members import ROOT, Member

#: 4.9.8 has neither broker nor name server nor filter on Maven Central. The commit log in DLedger mode is
#: part of the store, which is there; so are the wire and the client.
_NOT_PUBLISHED = {"4.9.8": "4.9.7"}

GROUP = "broker-a"
TOPIC = "numbers"
OURS = "n2"
COMMIT_LOG_FILE_BYTES = 1 << 16

_ADD_OPENS = (
    *(f"--add-opens=java.base/{package}=ALL-UNNAMED"
      for package in ("java.nio", "jdk.internal.ref", "sun.nio.ch", "java.lang", "java.util")),
    "--add-exports=java.base/sun.nio.ch=ALL-UNNAMED",
)

#: Seconds after which a process is stuck rather than slow: a broker that starts in 5 s on an idle machine
#: was seen to take more than 60 s on a busy one.
PATIENCE = 180

#: In the list of threads that a JVM writes.
_END_OF_THREADS = "JNI global refs"

#: 4.9 does not start without these; 5.x has its own in the jar.
_LOGBACK = """<configuration>
  <appender name="out" class="ch.qos.logback.core.ConsoleAppender">
    <encoder><pattern>%d{HH:mm:ss.SSS} %-5level %logger{20} %msg%n</pattern></encoder>
  </appender>
  <root level="INFO"><appender-ref ref="out"/></root>
</configuration>
"""


def _dependency(artifact: str, version: str) -> str:
    return (f"<dependency><groupId>org.apache.rocketmq</groupId><artifactId>rocketmq-{artifact}</artifactId>"
            f"<version>{version}</version></dependency>")


def _pom(version: str) -> str:
    servers = _NOT_PUBLISHED.get(version, version)
    managed = ("store", "client", "remoting", "common", "acl", "srvutil", "tools", "logging")
    management = "".join(_dependency(name, version) for name in managed if servers != version)
    return f"""<project xmlns="http://maven.apache.org/POM/4.0.0">
  <modelVersion>4.0.0</modelVersion>
  <groupId>dledger.tests</groupId><artifactId>rocketmq-peer</artifactId><version>1</version>
  <packaging>pom</packaging>
  <dependencyManagement><dependencies>{management}</dependencies></dependencyManagement>
  <dependencies>
    {_dependency("broker", servers)}{_dependency("namesrv", servers)}{_dependency("client", version)}
  </dependencies>
</project>
"""


def class_path(version: str, folder: str = "rocketmq") -> str:
    """
    The class path of brokers, name server, client, and of our classes in a folder.

    @raise JavaMissing: no JDK, no Maven, or Maven could not fetch the jars.
    """
    return class_path_of(_pom(version), SOURCES / folder)


def jars_of(version: str) -> str:
    """The part of L{class_path} that is not ours."""
    return jars_of_pom(_pom(version))


@attrs.frozen(kw_only=True)
class Sent:
    """
    The answer that the producer got for a stored message.

    @ivar message_id: the broker's name for it.
    @ivar unique_key: the producer's name for it.
    """

    number: int
    queue_id: int
    queue_offset: int
    message_id: str
    unique_key: str


def body_of(number: int) -> bytes:
    """The body that C{Messages.java} sends with this number."""
    return f"message {number} \u00fcber\n{'0123456789' * (400 if number % 7 == 0 else 4)}".encode()


def write_properties(path: Path, values: Mapping[str, object]) -> None:
    """Write a file of properties as Java reads it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    lines = [
        f"{name}={str(value).lower() if isinstance(value, bool) else value}" for name, value in values.items()
    ]
    path.write_text("\n".join(lines) + "\n")


def java_command(
    version: str, home: Path, heap: str, *words: str, folder: str = "rocketmq", tls_mode: str = "disabled"
) -> list[str]:
    """
    A JVM with the class path of a version; C{home} holds the logs of its clients.

    @param tls_mode: of a server, which makes its own certificate.
    """
    shared = jvms.options(jars_of(version))
    return java_of(class_path(version, folder), home, heap, *words, tls_mode=tls_mode, options=shared)


def java_of(
    path: str, home: Path, heap: str, *words: str, tls_mode: str = "disabled", options: Sequence[str] = ()
) -> list[str]:
    """A JVM with this class path and further options, see L{java_command}."""
    return ["java", *_ADD_OPENS, *NO_VERIFYING, *options, "-Xms32m", f"-Xmx{heap}", "-XX:+UseSerialGC",
            "-XX:TieredStopAtLevel=1",
            f"-Duser.home={home}",
            # Each server would spend seconds at its start on a certificate that is not used.
            f"-Dtls.server.mode={tls_mode}",
            # As bin/runbroker.sh does; the second is the share of the disk at which the broker stops writing.
            "-Drocketmq.client.logUseSlf4j=true", "-Drocketmq.broker.diskSpaceWarningLevelRatio=0.99",
            "-cp", path, *words]


class StartedChild(Child):
    """A process that says when it runs."""

    def wait_started(self) -> None:
        """@raise ChildError: it ended, or did not run in time."""
        raise NotImplementedError

    def stuck(self) -> str:
        """The last lines of its log, and where the main thread of its JVM is."""
        before = self.log_tail()
        self.send(signal.SIGQUIT)  # a JVM writes its threads
        with contextlib.suppress(ChildError):
            wait_until(lambda: _END_OF_THREADS in self.log_tail(400), seconds=10, what="threads", every=0.1)
        _, _, threads = self.log_tail(2000).partition('"main"')
        return "\n".join([before, *threads.splitlines()[:30]])


class Server(StartedChild):
    """A name server or a broker. It logs one line in each life when it runs."""

    def __init__(
        self, name: str, main: str, properties: Mapping[str, object], home: Path, version: str, *,
        tls_mode: str = "disabled",
    ) -> None:
        self._configuration = home / f"{name}.conf"
        self._version = version
        self._properties: dict[str, object] = {}
        self.configure(properties)
        (home / "conf").mkdir(exist_ok=True)
        for part in ("broker", "namesrv"):
            (home / "conf" / f"logback_{part}.xml").write_text(_LOGBACK)
        super().__init__(
            name,
            java_command(
                version, home, "256m", f"org.apache.rocketmq.{main}", "-c", str(self._configuration),
                tls_mode=tls_mode,
            ),
            log_path=home / f"{name}.log", environment={"ROCKETMQ_HOME": str(home)},
        )
        self._lives = 0

    def configure(self, properties: Mapping[str, object]) -> None:
        """Change properties, from the next start on; the others stay."""
        self._properties.update(properties)
        write_properties(self._configuration, self._properties)

    def start(self) -> None:
        """Start it without waiting, see L{wait_started}, L{remove_unmade_files} and L{remove_queues}."""
        self._lives = self._boots() + 1
        if store := self._properties.get("storePathRootDir"):
            remove_unmade_files(Path(str(store)))
            if self._version[0] == "5" and self._properties.get("enableDLegerCommitLog"):
                remove_queues(Path(str(store)))
        super().start()

    def _boots(self) -> int:
        if not self.log_path.exists():
            return 0
        return len(re.findall("boot success", self.log_path.read_text(errors="replace")))

    def wait_started(self, *, seconds: float = PATIENCE) -> None:

        def is_up() -> bool:
            if not self.is_running:
                raise ChildError(f"{self.name} ended at its start\n{self.log_tail(30)}")
            return self._boots() >= self._lives

        wait_until(is_up, seconds=seconds, what=f"{self.name} runs", every=0.1, notify=self.stuck)


class Messages(TalkingChild):
    """Java's producer and consumer."""

    def __init__(self, name_server: str, directory: Path, version: str) -> None:
        command = java_command(version, directory, "192m", "Messages", name_server, TOPIC)
        super().__init__("messages", command, log_path=directory / "messages.log")

    def produce(self, first: int, count: int, *, seconds: int = PATIENCE) -> list[Sent]:
        """
        Send messages C{first} and following, each until a broker has acknowledged it.

        @raise ChildError: some are not acknowledged in time.
        """
        said = self.ask(f"send {first} {count} {seconds}", seconds=seconds + 15)
        word, *rest = said.split(" ")
        if word != "sent" or len(rest) != count:
            raise ChildError(f"the producer: {said[:400]}\n{self.log_tail()}")
        sent = []
        for part in rest:
            number, queue_id, queue_offset, message_id, unique_key = part.split("/")
            sent.append(Sent(number=int(number), queue_id=int(queue_id), queue_offset=int(queue_offset),
                             message_id=message_id, unique_key=unique_key))
        return sent

    def received(self, count: int, *, seconds: int = PATIENCE) -> tuple[int, int]:
        """
        Wait until the consumer has seen C{count} different messages; the first call starts it.

        @return: number of messages seen, and of those with a wrong body.
        """
        seen, wrong = self.ask(f"received {count} {seconds}", seconds=seconds + 30).split(" ")
        return int(seen), int(wrong)


class Codec(TalkingChild):
    """
    Java's own decoder of messages (C{Codec}); of 5.x also its encoder (C{Encoder}), expressions (C{Filter}).
    """

    def __init__(self, main: str, directory: Path, version: str) -> None:
        folder = {"Codec": "rocketmq", "Encoder": "rocketmq5", "Filter": "rocketmq5"}[main]
        command = java_command(version, directory, "64m", main, folder=folder)
        super().__init__(main, command, log_path=directory / f"{main}.log")

    def said_of(self, *words: str | bytes) -> str:
        """Its answer to a line of words; words of bytes are sent in Base64."""
        line = " ".join(
            base64.b64encode(word).decode() if isinstance(word, bytes) else word for word in words
        )
        return self.ask(line, seconds=PATIENCE)


def member_says(address: str, peer_id: str) -> MetadataResponse | None:
    """The group, as the member of a broker reports it; None if it does not answer."""
    try:
        answer = ask(address, MetadataRequest(group=GROUP, remote_id=peer_id), seconds=2.0)
    except NoAnswer:
        return None
    assert isinstance(answer, MetadataResponse)
    return answer


class BrokerGroup:
    """
    Brokers n0 and n1, and our n2 as the third vote.

    @ivar peers: C{host:port} of the DLedger members.
    @ivar sent: the answers to the producer, by number.
    """

    def __init__(
        self, directory: Path, version: str, *, broker: Mapping[str, object] | None = None,
        name_server: StartedChild | None = None, name_port: int = 0,
    ) -> None:
        """
        @param broker: further properties of both brokers.
        @param name_server: with the port on which it listens; None: Java's.
        """
        self.directory = directory
        self._more = dict(broker or {})
        self.peers = {f"n{number}": f"127.0.0.1:{port}" for number, port in enumerate(free_ports(3))}
        if name_server is None:
            (name_port,) = free_ports(1)
            name_server = Server("namesrv", "namesrv.NamesrvStartup", {"listenPort": name_port},
                                 directory / "namesrv", version)
        self.name_server_address = f"127.0.0.1:{name_port}"
        self.name_server = name_server
        self.brokers = {peer_id: self._broker(peer_id, version) for peer_id in ("n0", "n1")}
        self.ours = Member(OURS, self.peers, directory / OURS, group=GROUP, options={
            "never_lead": True, "mapped_file_size_for_entry_data": COMMIT_LOG_FILE_BYTES,
        })
        self.messages = Messages(self.name_server_address, directory, version)
        self.sent: dict[int, Sent] = {}

    def _broker(self, peer_id: str, version: str) -> Server:
        home = self.directory / peer_id
        return Server(f"broker-{peer_id}", "broker.BrokerStartup", {
            "brokerClusterName": "tests", "brokerName": GROUP, "listenPort": free_triple(),
            "brokerIP1": "127.0.0.1", "namesrvAddr": self.name_server_address,
            "storePathRootDir": home / "store", "storePathCommitLog": home / "store" / "commitlog",
            "enableDLegerCommitLog": True, "dLegerGroup": GROUP, "dLegerPeers": peers_text(self.peers),
            "dLegerSelfId": peer_id, "mappedFileSizeCommitLog": COMMIT_LOG_FILE_BYTES,
            "mappedFileSizeConsumeQueue": 20 * 1000, "maxHashSlotNum": 1000, "maxIndexNum": 4000,
            "diskMaxUsedSpaceRatio": 95, "timerWheelEnable": False, "defaultTopicQueueNums": 4,
            "sendMessageThreadPoolNums": 4, "pullMessageThreadPoolNums": 4,
            # A busy machine is not an overloaded broker.
            "brokerFastFailureEnable": False, "osPageCacheBusyTimeOutMills": 60000,
            **self._more,
        }, home, version)

    def ledger_path(self, peer_id: str) -> Path:
        """The directory of a member's C{data} and C{index}."""
        if peer_id == OURS:
            return self.ours.ledger_path
        return self.directory / peer_id / "store" / f"dledger-{peer_id}"

    def start(self) -> None:
        """Start everything except the producer, and wait until it runs."""
        self.name_server.start()
        self.ours.start()
        self.name_server.wait_started()
        for broker in self.brokers.values():
            broker.start()
        for broker in self.brokers.values():
            broker.wait_started()

    def stop(self) -> None:
        """Stop brokers and member cleanly: the leading broker after the other one."""
        self.messages.stop(seconds=PATIENCE)
        leader_id = self.leader()
        for _, broker in sorted(self.brokers.items(), key=lambda item: item[0] == leader_id):
            broker.stop(seconds=PATIENCE)
        self.ours.stop(seconds=PATIENCE)
        self.name_server.stop(seconds=PATIENCE)

    def kill(self) -> None:
        """End every process."""
        for child in (self.messages, self.ours, *self.brokers.values(), self.name_server):
            child.kill()

    def running(self) -> list[str]:
        """Ids of the members that run."""
        members: dict[str, Child] = {**self.brokers, OURS: self.ours}
        return [peer_id for peer_id, member in members.items() if member.is_running]

    def leader(self, *, seconds: float = PATIENCE) -> str:
        """The leader, as named by every running member, itself included."""
        found: list[str] = []

        def agreed() -> bool:
            named = [self._leader_of(peer_id) for peer_id in self.running()]
            if len(set(named)) == 1 and named[0] in self.running():
                found.append(str(named[0]))
            return bool(found)

        try:
            wait_until(agreed, seconds=seconds, what="one leader of brokers and member", every=0.1)
        except ChildError as error:
            raise ChildError(f"{error}\n{self.tails()}") from None
        return found[0]

    def _leader_of(self, peer_id: str) -> str | None:
        said = member_says(self.peers[peer_id], peer_id)
        return None if said is None else said.leader_id

    def send(self, count: int) -> None:
        """Send C{count} more messages; all must be acknowledged."""
        try:
            produced = self.messages.produce(len(self.sent), count)
        except ChildError as error:
            said = {peer_id: self._leader_of(peer_id) for peer_id in self.running()}
            raise ChildError(f"{error}\nleaders as named: {said}, ours: {self.ours.metadata()}\n"
                             f"{self.tails()}") from None
        for sent in produced:
            self.sent[sent.number] = sent

    def tails(self) -> str:
        """How processes ended that do not run, and the last lines of all logs."""
        children = (self.name_server, *self.brokers.values(), self.ours)
        ended = {child.name: child.exit_status for child in children if child.exit_status is not None}
        return "\n".join([f"ended, with exit status: {ended}", *(child.log_tail() for child in children)])

    def check(self) -> int:
        """
        Wait until all members hold the same bytes, in data and in index, and at least one entry per message.

        @return: the last index.
        """
        compared: list[int] = []
        why: list[str] = []

        def equal() -> bool:
            said = self.ours.metadata()
            if said is None or said.end_index + 1 < len(self.sent) or said.committed_index < said.end_index:
                why[:] = [f"ours says {said}"]
                return False
            paths = [self.ledger_path(peer_id) for peer_id in self.peers]
            try:
                assert_identical(paths, said.end_index)
            except LedgerFault as fault:
                why[:] = [str(fault)]
                return False
            compared.append(said.end_index)
            return True

        try:
            wait_until(equal, seconds=PATIENCE, what="members that hold the same", every=0.3)
        except ChildError as error:
            raise ChildError(f"{error}: {why}\n{self.tails()}") from None
        return compared[-1]

    def records(self, end_index: int) -> list[Record]:
        """The records of our member, from the first up to this index."""
        return list(islice(read_records(self.ours.ledger_path), end_index + 1))

    def command(self, *words: str) -> str:
        """
        Run a C{dledger} command about this group. @return: its standard output.

        @raise ChildError: its exit status is not 0.
        """
        command = [sys.executable, "-c", "from dledger.cli.main import main; main()", "--group", GROUP,
                   "--peers", peers_text(self.peers), *words]
        done = subprocess.run(command, capture_output=True, timeout=PATIENCE, stdin=subprocess.DEVNULL,
                              env={**os.environ, "PYTHONPATH": str(ROOT)})
        if done.returncode:
            raise ChildError(f"dledger {' '.join(words)}: {done.stderr.decode(errors='replace')[-800:]}")
        return done.stdout.decode()
