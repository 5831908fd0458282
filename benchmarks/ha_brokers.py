# -*- test-case-name: tests.interop.test_ha_benchmark -*-
"""
Masters and slaves as processes, RocketMQ's and ours, with the settings that an operator would leave
unchanged.

There is no name server: slaves and producers are given the address of the master. The first message makes
the topic.

Rule: a pair that is not being measured is paused by signal, as in L{benchmarks.groups}; after a long pause it
gets time to connect again.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import time
from collections.abc import Collection, Mapping
from pathlib import Path

from benchmarks.load import LoadError, Sample
from dledger.rocketmq.answering.java_json import read_document
from tests.interop.ha import RUNTIME_INFO, BrokerError, ask
from tests.interop.rocketmq import class_path, write_properties
from tests.processes.children import Child, ChildError, TalkingChild, free_triple, wait_until
from tests.processes.members import ROOT

JAVA, OURS = "java", "ours"
KINDS = (JAVA, OURS)
VERSION = "4.9.8"
ASYNC_MASTER, SYNC_MASTER, SLAVE = "ASYNC_MASTER", "SYNC_MASTER", "SLAVE"
TOPIC, QUEUES = "messages", 4

#: After this many seconds a process is stuck rather than slow.
PATIENCE_S = 120.0
#: Processes that use less than this share of a processor, for these seconds, do nothing else.
_RESTS_S, _RESTS_SHARE = 1.0, 0.1

_OPENED = (
    *(f"--add-opens=java.base/{package}=ALL-UNNAMED"
      for package in ("java.nio", "jdk.internal.ref", "sun.nio.ch", "java.lang", "java.util")),
    "--add-exports=java.base/sun.nio.ch=ALL-UNNAMED",
)

#: 4.9 does not start without it, and a producer without it logs a line for every step.
_LOGBACK = """<configuration>
  <appender name="out" class="ch.qos.logback.core.ConsoleAppender">
    <encoder><pattern>%d{HH:mm:ss.SSS} %-5level %logger{20} %msg%n</pattern></encoder>
  </appender>
  <root level="WARN"><appender-ref ref="out"/></root>
</configuration>
"""
_TWISTD = "from twisted.scripts.twistd import run; run()"


def _java(home: Path, heap: str, *words: str) -> list[str]:
    """A JVM with all compilers, started as bin/runbroker.sh does, except for the size of its heap."""
    return ["java", *_OPENED, f"-Xms{heap}", f"-Xmx{heap}", "-XX:+UseG1GC", f"-Duser.home={home}",
            "-Drocketmq.client.logUseSlf4j=true", "-Drocketmq.broker.diskSpaceWarningLevelRatio=0.99",
            "-cp", class_path(VERSION, "rocketmq49"), *words]


class Broker(Child):
    """
    The common part of both kinds.

    @ivar port: it listens here; replication listens on the next port.
    @ivar store: its root directory.
    """

    def __init__(self, name: str, command: list[str], home: Path, port: int, environment: Mapping[str, str]):
        super().__init__(name, command, log_path=home / f"{name}.log", environment=environment)
        self.port = port
        self.store = home / "store"

    @property
    def address(self) -> str:
        """The address of its requests."""
        return f"127.0.0.1:{self.port}"

    @property
    def ha_address(self) -> str:
        """The address for its slaves."""
        return f"127.0.0.1:{self.port + 1}"

    def state(self, name: str) -> int:
        """
        One number of its runtime information (GET_BROKER_RUNTIME_INFO).

        @raise BrokerError: it does not answer, or refuses.
        """
        answer = ask(self.address, RUNTIME_INFO)
        if answer.code:
            raise BrokerError(f"{self.name} does not report its state: {answer.code} {answer.remark}")
        return int(read_document(answer.body)["table"][name])

    def end_offset(self) -> int:
        """
        The end of its commit log.

        @raise BrokerError: it does not answer, or refuses.
        """
        return self.state("commitLogMaxOffset")

    def wait_started(self) -> None:
        """@raise ChildError: it ended, or does not answer in time."""

        def answers() -> bool:
            if not self.is_running:
                raise ChildError(f"{self.name} ended at its start\n{self.log_tail(30)}")
            try:
                self.end_offset()
            except BrokerError:
                return False
            return True

        wait_until(answers, seconds=PATIENCE_S, what=f"{self.name} answers", every=0.1)

    def wipe(self) -> None:
        """Remove its store; it must not run."""
        assert not self.is_running
        shutil.rmtree(self.store, ignore_errors=True)


def java_broker(name: str, home: Path, role: str, *, master: str = "", name_server: str = "") -> Broker:
    """
    A broker of Java's, not started.

    @param master: for a slave, C{host:port} of its master's HA port.
    @param name_server: where it registers; empty: nowhere.
    """
    port = free_triple()
    values: dict[str, object] = {
        "brokerName": "bench", "brokerRole": role, "brokerId": int(role == SLAVE), "listenPort": port,
        "haListenPort": port + 1, "brokerIP1": "127.0.0.1", "brokerIP2": "127.0.0.1",
        "storePathRootDir": home / "store", "storePathCommitLog": home / "store" / "commitlog",
        "defaultTopicQueueNums": QUEUES, "diskMaxUsedSpaceRatio": 95,
        # A busy machine is not an overloaded broker.
        "brokerFastFailureEnable": False, "osPageCacheBusyTimeOutMills": 60000,
    }
    if master:
        values["haMasterAddress"] = master
    if name_server:
        values["namesrvAddr"] = name_server
    configuration = home / "broker.conf"
    write_properties(configuration, values)
    (home / "conf").mkdir(exist_ok=True)
    (home / "conf" / "logback_broker.xml").write_text(_LOGBACK)
    command = _java(home, "1g", "org.apache.rocketmq.broker.BrokerStartup", "-c", str(configuration))
    return Broker(name, command, home, port, {"ROCKETMQ_HOME": str(home)})


def our_broker(name: str, home: Path, role: str, *, master: str = "", name_server: str = "") -> Broker:
    """A broker of ours, as L{java_broker}."""
    port = free_triple()
    command = [
        sys.executable, "-c", _TWISTD, "-n", "--pidfile=", "dledger-broker", "--name", "bench",
        "--role", role.lower().replace("_", "-"), "--broker-id", str(int(role == SLAVE)),
        "--listen", str(port), "--ha-listen", str(port + 1), "--store", str(home / "store"),
        "--set", f"defaultTopicQueueNums={QUEUES}", "--set", "diskMaxUsedSpaceRatio=95",
    ]
    if master:
        command += ["--ha-master", master]
    if name_server:
        command += ["--namesrv", name_server]
    return Broker(name, command, home, port, {"PYTHONPATH": str(ROOT), "PYTHONUNBUFFERED": "1"})


def make_broker(
    kind: str, name: str, home: Path, role: str, *, master: str = "", name_server: str = ""
) -> Broker:
    """A broker of one of L{KINDS}."""
    make = java_broker if kind == JAVA else our_broker
    return make(name, home, role, master=master, name_server=name_server)


class Pair:
    """
    A master and one slave of the same kind.

    @ivar role: of the master.
    """

    def __init__(self, directory: Path, kind: str, role: str) -> None:
        self.kind = kind
        self.role = role
        home = directory / f"{kind}-{role.lower()}"
        self.master = make_broker(kind, f"{kind} {role}", home / "master", role)
        self.slave = make_broker(
            kind, f"{kind} slave of {role}", home / "slave", SLAVE, master=self.master.ha_address
        )

    @property
    def children(self) -> tuple[Broker, Broker]:
        """The master and the slave."""
        return self.master, self.slave

    def pause(self) -> None:
        """Stop both; they use no processor time."""
        for child in self.children:
            child.pause()

    def resume(self) -> None:
        """Continue both. After a long pause call L{settle}, too."""
        for child in self.children:
            child.resume()

    def settle(self, load: Load) -> None:
        """
        Send until a message has reached the slave.

        @param load: a generator that both kinds understand.
        @raise ChildError: no message reaches the slave in time.
        """

        def follows() -> bool:
            try:
                load.run(self.master.address, body_bytes=100, window=1, warm_up_s=0.0, seconds=0.2)
                time.sleep(0.2)
                return self.slave.end_offset() == self.master.end_offset()
            except (BrokerError, LoadError):
                return False

        wait_until(follows, seconds=PATIENCE_S, what=f"{self.slave.name} follows", every=0.3)

    def cpu_seconds(self) -> float:
        """Processor time of both so far."""
        return sum(child.cpu_seconds() for child in self.children)

    def kill(self) -> None:
        """End both."""
        for child in self.children:
            child.kill()


def wait_for_rest(children: Collection[Child], name: str) -> None:
    """
    Wait until processes need little of a processor for a second. A broker that has just started or taken
    messages still puts keys into its index, and looks for damage in its last files.

    @param name: of them, for people.
    @raise ChildError: they still work after L{PATIENCE_S}.
    """
    def rest() -> bool:
        before_s = sum(child.cpu_seconds() for child in children)
        time.sleep(_RESTS_S)
        return sum(child.cpu_seconds() for child in children) - before_s < _RESTS_SHARE * _RESTS_S

    wait_until(rest, seconds=PATIENCE_S, what=f"{name} does nothing", every=0.2)


def start_pairs(pairs: Collection[Pair]) -> None:
    """Start all masters, wait until they answer, then start all slaves."""
    for brokers in ([pair.master for pair in pairs], [pair.slave for pair in pairs]):
        for broker in brokers:
            broker.start()
        for broker in brokers:
            broker.wait_started()


class Load:
    """A generator of messages."""

    def run(
        self, address: str, *, body_bytes: int, window: int, warm_up_s: float, seconds: float
    ) -> Sample:
        """
        Keep C{window} messages unanswered.

        @raise LoadError: the run could not be finished.
        """
        raise NotImplementedError


class JavaLoad(Load):
    """Java's producer, C{Load.java}: one process for all runs, because its JIT needs to warm up."""

    def __init__(self, directory: Path) -> None:
        logging = directory / "logback_producer.xml"
        logging.write_text(_LOGBACK)
        command = _java(directory, "512m", f"-Dlogback.configurationFile={logging}", "Load")
        self._child = TalkingChild("java producer", command, log_path=directory / "producer.log")

    @property
    def child(self) -> Child:
        """Its process."""
        return self._child

    def start(self) -> None:
        """Start the producer."""
        self._child.start()
        self._child.wait_started(seconds=PATIENCE_S)

    def run(
        self, address: str, *, body_bytes: int, window: int, warm_up_s: float, seconds: float
    ) -> Sample:
        cpu_s = self._child.cpu_seconds()
        words = f"{body_bytes} {window} {round(warm_up_s * 1000)} {round(seconds * 1000)}"
        try:
            said = self._child.ask(
                f"load {address} {TOPIC} {QUEUES} {words}", seconds=warm_up_s + seconds + 60
            )
        except ChildError as error:
            raise LoadError(str(error)) from error
        used_s = self._child.cpu_seconds() - cpu_s
        return parse_sample(said, seconds=seconds, client_cpu_share=used_s / (warm_up_s + seconds))


    def drain(self, name_server: str, group: str, count: int) -> float:
        """
        Have a push consumer of a new group read the topic from its beginning.

        @return: messages per second, from the first to number C{count}.
        @raise LoadError: it did not get them in time.
        """
        try:
            said = self._child.ask(f"drain {name_server} {TOPIC} {group} {count}", seconds=PATIENCE_S)
            got, seconds = int(said.split(" ")[0]), float(said.split(" ")[1])
        except (ChildError, ValueError, IndexError) as error:
            raise LoadError(f"the consumer: {error}") from error
        if got < count:
            raise LoadError(f"the consumer got {got} of {count} messages")
        return got / seconds


def parse_sample(line: str, *, seconds: float, client_cpu_share: float = 0.0) -> Sample:
    """
    Parse the answer of C{Load.java}.

    @raise LoadError: it has another form.
    """
    words = line.split(" ", 4)
    try:
        count, refused = int(words[0]), int(words[3])
        p50_ms, p99_ms = float(words[1]), float(words[2])
        reason = words[4]
    except (ValueError, IndexError):
        raise LoadError(f"the producer said {line!r}") from None
    return Sample(
        throughput_per_s=count / seconds, p50_ms=p50_ms, p99_ms=p99_ms, acknowledged=count, refused=refused,
        reason=reason, client_cpu_share=client_cpu_share,
    )


class OurLoad(Load):
    """Our producer and its native frames, L{benchmarks.ha_load}: one process for each run."""

    def run(
        self, address: str, *, body_bytes: int, window: int, warm_up_s: float, seconds: float
    ) -> Sample:
        command = [
            sys.executable, "-m", "benchmarks.ha_load", "--address", address, "--topic", TOPIC,
            "--queues", str(QUEUES), "--window", str(window), "--body-bytes", str(body_bytes),
            "--warm-up", str(warm_up_s), "--seconds", str(seconds),
        ]
        try:
            done = subprocess.run(
                command, cwd=ROOT, stdin=subprocess.DEVNULL, capture_output=True, text=True,
                timeout=warm_up_s + seconds + 30,
            )
        except subprocess.TimeoutExpired:
            raise LoadError(f"our producer for {address} hung") from None
        if done.returncode:
            raise LoadError(f"our producer for {address} failed:\n{done.stderr[-1500:]}")
        return Sample(**json.loads(done.stdout.splitlines()[-1]))
