# -*- test-case-name: tests.interop.test_ha_consumers -*-
"""Java's consumers, of every kind, at a broker of ours."""

from __future__ import annotations

import os
import subprocess
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

from twisted.trial.unittest import SkipTest, SynchronousTestCase

from tests.interop.ha import OurBroker
from tests.interop.java import JavaMissing
from tests.interop.rocketmq import PATIENCE, Server, class_path, java_command
from tests.processes.children import TalkingChild, free_ports, free_triple, wait_until
from tests.slowness import patient

#: The broker's default for a new topic.
QUEUES = 4


class Given(NamedTuple):
    """A message as a consumer received it."""

    body: str
    tags: str
    times: int
    topic: str
    queue: int
    age_ms: int


class Consumers(TalkingChild):
    """C{Consumers.java}."""

    def __init__(self, name_server: str, directory: Path, version: str) -> None:
        command = java_command(version, directory, "192m", "Consumers", name_server)
        super().__init__("consumers", command, log_path=directory / "consumers.log")

    def reported(self, line: str, seconds: int = PATIENCE) -> str:
        """Its answer, which must not be a failure."""
        said = self.ask(line, seconds=seconds)
        assert not said.startswith("failed"), f"{line}: {said}\n{self.log_tail()}"
        return said

    def pulled(self, line: str, seconds: int = PATIENCE) -> list[str]:
        """The answer to C{line}, when the name server reports the queues of its new topic."""
        said: list[str] = []

        def is_known() -> bool:
            said[:] = [self.ask(line, seconds=seconds)]
            return "Can not find Message Queue" not in said[0]

        wait_until(is_known, seconds=seconds, what=f"the queues for {line}", every=0.5)
        assert not said[0].startswith("failed"), f"{line}: {said[0]}\n{self.log_tail()}"
        return said[0].split(" ")

    def produce(self, topic: str, *bodies: str, tag: str = "A", level: int = 0, queue: int = -1) -> list[str]:
        """@return: the offsetMsgId of each."""
        return self.reported(f"send {topic} {tag} {level} {queue} {' '.join(bodies)}").split(" ")[1:]

    def push(self, name: str, topic: str, *, group: str = "", way: str = "ok", tags: str = "*") -> str:
        """Start a push consumer. @return: its answer."""
        return self.reported(f"push {name} {group or name} {topic} {way} {tags}")

    def seen(self, name: str, count: int, *, seconds: int = PATIENCE) -> list[Given]:
        """Its messages since the last call, when there are C{count} of them, or the time is over."""
        found = []
        for word in filter(None, self.reported(f"seen {name} {count} {seconds}", PATIENCE + 30).split(" ")):
            body, tags, times, topic, queue, age = word.split("/")
            found.append(Given(body, tags, int(times), topic, int(queue), int(age)))
        return found


class Requests(TalkingChild):
    """C{Requests.java}."""

    def __init__(self, name_server: str, directory: Path, version: str) -> None:
        command = java_command(version, directory, "192m", "Requests", name_server)
        super().__init__("requests", command, log_path=directory / "requests.log")


class Administrator:
    """C{mqadmin}."""

    def __init__(self, name_server: str, directory: Path, version: str) -> None:
        self._name_server, self._directory, self._version = name_server, directory, version
        (directory / "conf").mkdir()
        (directory / "conf" / "logback_tools.xml").write_text("<configuration/>")  # 4.9 needs it

    def __call__(self, command: str, *words: str) -> list[list[str]]:
        """Run a command. @return: its output, as words."""
        line = java_command(
            self._version, self._directory, "128m", "org.apache.rocketmq.tools.command.MQAdminStartup",
            command, "-n", self._name_server, *words,
        )
        environment = {**os.environ, "ROCKETMQ_HOME": str(self._directory)}
        done = subprocess.run(
            line, capture_output=True, timeout=PATIENCE, stdin=subprocess.DEVNULL, env=environment
        )
        return [one.split() for one in done.stdout.decode().splitlines()]


class ConsumerTests(SynchronousTestCase):
    """One name server, one master of ours."""

    def begin(self, version: str) -> None:
        """Start all processes and make the topics."""
        try:
            class_path(version)
        except JavaMissing as missing:
            raise SkipTest(str(missing)) from None
        held = tempfile.TemporaryDirectory(ignore_cleanup_errors=True)
        self.addCleanup(held.cleanup)
        directory = Path(held.name)
        (name_port,) = free_ports(1)
        name_server = Server(
            "namesrv", "namesrv.NamesrvStartup", {"listenPort": name_port}, directory / "namesrv", version
        )
        address = f"127.0.0.1:{name_port}"
        broker = OurBroker("ours", directory / "ours", port=free_triple(), name_server=address)
        self.place = address, directory, version
        self.java = Consumers(address, directory, version)
        self.admin, self.address = Administrator(address, directory, version), broker.address
        for child in (name_server, broker, self.java):
            self.addCleanup(child.kill)
            child.start()
            child.wait_started(seconds=PATIENCE)
        deadline = time.monotonic() + patient(PATIENCE)
        while self.java.ask("send first A 0 -1 x", seconds=PATIENCE).startswith("failed"):
            self.assertLess(time.monotonic(), deadline, "the broker is not known")
            time.sleep(0.2)
        for topic in ("tagged", "later", "ordered", "delayed"):
            self.java.produce(topic, "first", tag="first")

    def check_tags(self) -> None:
        """A consumer gets only its tags; two of a group share the queues, one alone gets all of them."""
        java = self.java
        java.push("one", "tagged", group="tagged", tags="A || B")
        for tag in "ABC":
            java.produce("tagged", *[f"{tag}{number}" for number in range(4)], tag=tag)
        bodies = sorted(given.body for given in java.seen("one", 8))
        self.assertEqual(bodies, [f"{tag}{number}" for tag in "AB" for number in range(4)])
        java.push("two", "tagged", group="tagged", tags="A || B")
        sent, shares = 0, (0, 0)
        for _attempt in range(30):  # until the two know each other
            java.produce("tagged", *[f"s{sent}-{queue}" for queue in range(QUEUES)])
            sent += 1
            shares = (len(java.seen("one", 2, seconds=5)), len(java.seen("two", 2, seconds=5)))
            if shares == (2, 2):
                break
        self.assertEqual(shares, (2, 2))
        java.reported("stop two")
        java.seen("one", 100, seconds=1)
        for _attempt in range(30):
            java.produce("tagged", *[f"t{sent}-{queue}" for queue in range(QUEUES)])
            sent += 1
            if len(java.seen("one", QUEUES, seconds=5)) >= QUEUES:
                break
        else:
            self.fail("one consumer has not taken over all queues")
        java.reported("stop one")

    def check_delays(self) -> None:
        """Delayed messages do not come before their time."""
        java = self.java
        java.push("delayed", "delayed")
        java.produce("delayed", "a", "b", level=1)
        java.produce("delayed", "c", level=2)
        given = {one.body: one for one in java.seen("delayed", 4)}
        self.assertEqual(set(given), {"first", "a", "b", "c"})
        for body, least_ms in (("a", 1_000), ("b", 1_000), ("c", 5_000)):
            self.assertGreaterEqual(given[body].age_ms, least_ms - 10)
        java.reported("stop delayed")

    def check_retries(self) -> None:
        """A message that a consumer fails on comes twice more, each time later; then it is dead."""
        java = self.java
        java.push("later", "later", way="later")
        given = java.seen("later", 3)
        self.assertEqual([(one.body, one.times) for one in given], [("first", times) for times in range(3)])
        self.assertEqual([one.topic for one in given], ["later"] * 3)
        java.push("dead", "%DLQ%later")
        (dead,) = java.seen("dead", 1)
        self.assertEqual((dead.body, dead.times), ("first", 3))
        for name in ("later", "dead"):
            java.reported(f"stop {name}")

    def check_order(self) -> None:
        """A locked queue is consumed in the order in which it was written."""
        java = self.java
        for queue in range(2):
            java.produce("ordered", *[f"{queue}-{number:02}" for number in range(30)], queue=queue)
        java.push("ordered", "ordered", way="ordered")
        given = java.seen("ordered", 61)
        for queue in range(2):
            bodies = [one.body for one in given if one.queue == queue and one.body != "first"]
            self.assertEqual(bodies, [f"{queue}-{number:02}" for number in range(30)])
        java.reported("stop ordered")

    def check_pulls(self) -> None:
        """Pulls from the beginning and from a time on; stored offsets; one message by its id."""
        java = self.java
        java.produce("pulled", "early")
        time.sleep(0.05)
        since = int(time.time() * 1000)
        (name, *_) = java.produce("pulled", *[f"p{number}" for number in range(6)])
        everything = ["early", *[f"p{number}" for number in range(6)]]
        self.assertEqual(java.pulled("lite pulled 0 7"), ["7", *everything])
        self.assertEqual(java.pulled(f"lite pulled {since} 6"), ["7", *everything[1:]])
        self.assertEqual(java.reported(f"view pulled {name}"), "p0")

    def check_expressions(self) -> None:
        """A consumer gets the messages that match an expression; one that is none is refused at its start."""
        java = self.java
        for tag in ("A", "B"):
            java.produce("filtered", f"{tag}0", f"{tag}1", tag=tag)
        java.push("sql", "filtered", tags="TAGS = 'B' AND 2 > 1")
        self.assertEqual({one.body for one in java.seen("sql", 2)}, {"B0", "B1"})
        java.reported("stop sql")
        self.assertIn("at character 7", java.push("wrong", "filtered", tags="TAGS >"))

    def check_requests(self) -> None:
        """
        A producer asks, a consumer replies; the first may come before the route of the topic is known. Only
        with 4.9: the client of 5.3.3 mostly gives up at once, and so it does with a broker of its own.
        """
        self.java.produce("asked", "known")
        requests = Requests(*self.place)
        self.addCleanup(requests.kill)
        requests.start()
        requests.wait_started(seconds=PATIENCE)
        said: list[str] = []

        def is_answered() -> bool:
            said[:] = [requests.ask("request asked hello", seconds=PATIENCE)]
            return said == ["re: hello"]

        wait_until(is_answered, seconds=PATIENCE, what=f"a reply: {said}", every=0.2)
        for number in range(20):
            self.assertEqual(requests.ask(f"request asked {number}", seconds=PATIENCE), f"re: {number}")

    def check_administration(self) -> None:
        """A topic is made; the ends of its queues; a group is reset to the beginning."""
        java, admin = self.java, self.admin
        admin("updateTopic", "-b", self.address, "-t", "made", "-r", "3", "-w", "3")
        for queue in range(3):
            java.produce("made", *[f"{queue}{number}" for number in range(queue + 1)], queue=queue)
        java.push("again", "made")
        self.assertEqual(len(java.seen("again", 6)), 6)
        java.reported("stop again")
        ends = sorted(row[1:4] for row in admin("topicStatus", "-t", "made") if row[:1] == ["broker-a"])
        self.assertEqual(ends, [["0", "0", "1"], ["1", "0", "2"], ["2", "0", "3"]])
        progress = admin("consumerProgress", "-g", "again")
        self.assertEqual([row[-1] for row in progress if row[-3:-1] == ["Diff", "Total:"]], ["0"], progress)
        admin("resetOffsetByTime", "-g", "again", "-t", "made", "-s", "1000")
        java.push("again", "made")
        self.assertEqual(len(java.seen("again", 6)), 6)

    def consume(self, version: str) -> None:
        """All checks one after the other, since starting the processes takes longest."""
        self.begin(version)
        self.check_tags()
        self.check_delays()
        self.check_retries()
        self.check_order()
        self.check_pulls()
        self.check_expressions()
        if self.place[2].startswith("4."):
            self.check_requests()
        self.check_administration()

    def test_4_9_8(self) -> None:
        """The last of the releases before 5."""
        self.consume("4.9.8")

    def test_5_3_3(self) -> None:
        """The present release."""
        self.consume("5.3.3")
