# -*- test-case-name: tests.interop.test_ha_ours_follows,tests.interop.test_ha_ours_leads -*-
"""
What happens to a master and its slave, one of them Java's and the other ours: one story, the same for all
pairings.

The parts share the processes, and their order saves waiting: a slave of 5.x asks for metadata when it has run
for a minute, and meanwhile its master is killed.
"""

from __future__ import annotations

import json
import os
import random
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from twisted.trial.unittest import SkipTest, SynchronousTestCase

from protocols.wire.rocketmq.message import Message, plain_body
from tests.interop.ha import (
    Broker,
    BrokerError,
    Pair,
    Sent,
    ask_tables,
    check_stored,
    differing,
    ends_of,
    log_bytes,
    pause,
    pull_all,
    put,
    read_tables,
)
from tests.interop.java import JavaMissing
from tests.interop.rocketmq import PATIENCE, body_of, class_path, java_command
from tests.processes.children import ChildError, wait_until
from tests.processes.members import ROOT

TOPIC = "numbers"
#: Statuses of messages that are stored.
STORED = ("SEND_OK", "FLUSH_SLAVE_TIMEOUT", "SLAVE_NOT_AVAILABLE")

_SLAVE_ROW = re.compile(r"[0-9]+(\.[0-9]+){3}:[0-9]+ ")

#: Messages that each reader of a directory appends.
MORE = 40


def outcomes(path: Path) -> list[Sent]:
    """What the producer was told of the messages of a load; a line that is being written is left out."""
    if not path.exists():
        return []
    return [Sent.of(line) for line in path.read_text().split("\n")[:-1]]


def admin(pair: Pair, *words: str) -> str:
    """
    Standard output of RocketMQ's own command line.

    @raise BrokerError: it did not end in time.
    """
    command = java_command(
        pair.version, pair.directory, "128m", "org.apache.rocketmq.tools.command.MQAdminStartup", *words
    )
    try:
        done = subprocess.run(command, capture_output=True, timeout=PATIENCE, stdin=subprocess.DEVNULL)
    except subprocess.TimeoutExpired:
        raise BrokerError(f"mqadmin {' '.join(words)} did not end") from None
    return done.stdout.decode()


def ha_lines(text: str) -> list[str]:
    """What mqadmin says of replication: without its log, and without the speed, which is of the moment."""
    lines = [line for line in text.splitlines() if line.startswith("#") or _SLAVE_ROW.match(line)]
    return [line if line.startswith("#") else " ".join(line.split()[:3] + line.split()[4:]) for line in lines]


class Story(SynchronousTestCase):
    """See the module. What is in the story is for those who play it."""

    #: C{java} or C{ours}.
    master = slave = ""
    #: How often each side is killed under load; twenty times in the four stories.
    kills = {"master": 3, "slave": 2}

    def begin(self, version: str) -> None:
        """A name server, the master, its slave that has the whole log from now on, a producer."""
        try:
            class_path(version)
        except JavaMissing as missing:
            raise SkipTest(str(missing)) from None
        held = tempfile.TemporaryDirectory(ignore_cleanup_errors=True)
        self.addCleanup(held.cleanup)
        self.rng = random.Random(f"{self.master}{version}")
        pair = self.pair = Pair(Path(held.name), version, master=self.master, slave=self.slave)
        self.addCleanup(pair.kill)
        self.is_5 = version.startswith("5")
        pair.master.become("ASYNC_MASTER")
        pair.slave.become("SLAVE")
        pair.name_server.start()
        pair.name_server.wait_started()
        for child in (pair.client, pair.master):
            child.start()
        pair.master.wait_started()
        pair.wait_registered(pair.master)
        pair.slave.start()
        pair.slave.wait_started()
        pair.client.wait_started(seconds=PATIENCE)
        self.assertEqual(pair.send(TOPIC, 1), ["SEND_OK"])
        self.check_equal()

    # -- what must hold --------------------------------------------------------------------------

    def check_equal(self) -> int:
        """Both logs are the same bytes, from their first to their last. @return: where they end."""
        begin, end = self.pair.wait_equal()
        self.assertEqual(begin, 0)
        ours, theirs = (log_bytes(one.store, begin, end) for one in (self.pair.slave, self.pair.master))
        if ours != theirs:
            at = next(at for at, (one, other) in enumerate(zip(ours, theirs, strict=True)) if one != other)
            self.fail(f"the logs differ at {at} of {end}: {theirs[at:at + 40]!r} and {ours[at:at + 40]!r}")
        return end

    def check_holds(self, broker: Broker, sent: Sequence[Sent]) -> None:
        """Its files have these messages, as they were sent and where the producer was told that they are."""
        wrong = [found for one in sent if (found := check_stored(broker.store, one, TOPIC))]
        self.assertEqual(wrong[:5], [], f"{len(wrong)} of {len(sent)} at {broker.name}")

    def acknowledged(self) -> list[Sent]:
        """All messages that were answered SEND_OK, but those that came late on purpose."""
        return [one for one in self.pair.sent.values() if one.status == "SEND_OK" and one.number != self.late]

    # -- the parts -------------------------------------------------------------------------------

    def replicate_asynchronously(self) -> None:
        """Some files full of messages, one of them late; a consumer has them from the master."""
        pair = self.pair
        self.assertEqual(set(pair.send(TOPIC, 300, window=64)), {"SEND_OK"})
        self.assertEqual(pair.send_batch(TOPIC, 10), ["SEND_OK"] * 10)
        self.late = pair.next_number
        self.assertEqual(pair.send(TOPIC, 1, level=1), ["SEND_OK"])
        pair.client.consume(TOPIC, "early")
        count = len(pair.sent)
        self.assertEqual(pair.client.received("early", count), (count, 0, 0))
        self.assertGreater(self.check_equal(), 3 << 16)
        self.check_holds(pair.slave, self.acknowledged())

    def replicate_synchronously(self) -> None:
        """The master waits for its slave now: there, stopped, there again."""
        pair = self.pair
        pair.master.stop(seconds=PATIENCE)
        rule = {"inSyncReplicas": 2} if self.is_5 else {}
        if self.master == "ours" and self.is_5:
            rule = {**rule, "syncRule": "in_sync_replicas"}
        pair.master.become("SYNC_MASTER", **rule)
        pair.master.start()
        pair.master.wait_started()
        pair.wait_registered(pair.master)
        pair.wait(lambda: pair.send(TOPIC, 1) == ["SEND_OK"], "the slave has found its master again")
        # On a busy machine three seconds may pass once; then once more.
        pair.wait(self.send_and_look, "a hundred messages that the slave has in time")
        pause(pair.slave)
        self.assertEqual(pair.send(TOPIC, 2, window=2), ["FLUSH_SLAVE_TIMEOUT"] * 2)
        pair.slave.resume()
        pair.wait(lambda: pair.send(TOPIC, 1) == ["SEND_OK"], "the slave goes on")
        self.check_equal()

    def send_and_look(self) -> bool:
        """What was acknowledged the slave has at that moment. @return: whether everything was."""
        pair = self.pair
        before = pair.next_number
        said = pair.send(TOPIC, 100, window=16)
        self.check_holds(pair.slave, [one for one in self.acknowledged() if one.number >= before])
        self.assertLessEqual(set(said), {"SEND_OK", "FLUSH_SLAVE_TIMEOUT"})
        return set(said) == {"SEND_OK"}

    def lose_master(self) -> None:
        """SIGKILL of the master under load: what was acknowledged is at the slave, who goes on after it."""
        self.lose(self.pair.master, self.kills["master"])

    def lose_slave(self) -> None:
        """SIGKILL of the slave under load; then of an idle pair: messages are answered without it."""
        pair = self.pair
        self.lose(pair.slave, self.kills["slave"])
        pair.slave.kill()
        wanted = "FLUSH_SLAVE_TIMEOUT" if self.is_5 else "SLAVE_NOT_AVAILABLE"
        pair.wait(lambda: pair.send(TOPIC, 1) == [wanted], f"{wanted} without a slave")
        pair.slave.start()
        pair.slave.wait_started()
        self.check_equal()

    def lose(self, victim: Broker, times: int) -> None:
        """See L{lose_master}, L{lose_slave}."""
        pair = self.pair
        path = pair.directory / f"outcomes-{pair.next_number}"
        pair.client.load(TOPIC, pair.next_number, path)
        for _ in range(times):
            self.wait_acknowledged(path)
            time.sleep(self.rng.uniform(0, 0.5))
            victim.kill()
            if victim is pair.master:
                time.sleep(0.3)  # what is on its way to the producer arrives
                told = [one for one in outcomes(path) if one.status == "SEND_OK"]
                self.check_holds(pair.slave, told)
            victim.start()
            victim.wait_started()
        self.wait_acknowledged(path)
        last = pair.client.quiet()
        told = outcomes(path)
        self.assertEqual(len(told), last - pair.next_number)
        pair.sent |= {one.number: one for one in told}
        self.check_equal()
        for broker in (pair.master, pair.slave):
            self.check_holds(broker, [one for one in told if one.status in STORED])

    def wait_acknowledged(self, path: Path) -> None:
        """Wait until the load goes well: the slave follows, and the producer has found the master."""

        def count() -> int:
            return sum(one.status == "SEND_OK" for one in outcomes(path))

        before = count()
        self.pair.wait(lambda: count() >= before + 20, "messages are acknowledged")

    def compare_metadata(self) -> None:
        """What the slave has in its files is what the master says."""
        stored = sum(one.status in STORED for one in self.pair.sent.values())
        wrong: list[object] = []

        def same() -> bool:
            told, kept = ask_tables(self.pair.master.address), read_tables(self.pair.slave.store)
            wrong[:] = differing(told, kept)
            offsets = told["consumerOffset"]
            assert isinstance(offsets, dict)
            if sum(offsets.get(f"{TOPIC}@early", {}).values()) < stored:
                wrong.append(f"of {stored} messages not all are consumed: {offsets}")
            return not wrong

        try:
            wait_until(same, seconds=PATIENCE, what="equal metadata", every=0.5)
        except (ChildError, BrokerError) as error:
            self.fail(f"{error}: {wrong}\n{self.pair.tails()}")
        kept = read_tables(self.pair.slave.store)
        self.assertIn(TOPIC, kept["topics"])
        self.assertIn("early", kept["subscriptionGroup"])
        self.assertEqual(kept["delayOffset"], {"1": 1})

    def consume_from_slave(self) -> None:
        """With the master stopped a consumer has every message once, from the slave; another, of one tag."""
        pair = self.pair
        self.everything = self.check_equal()
        messages = pull_all(pair.master.address, TOPIC)
        self.count = len(messages)
        self.assertGreaterEqual(self.count, sum(one.status in STORED for one in pair.sent.values()))
        pair.wait(lambda: len(pull_all(pair.slave.address, TOPIC)) == self.count, "all messages in queues")
        pair.master.stop(seconds=PATIENCE)
        even = sum(message.tags == "even" for message in messages)
        for group, tag, count in (("late", "*", self.count), ("late-even", "even", even)):
            pair.client.consume(TOPIC, group, tag)
            self.assertEqual(pair.client.received(group, count), (count, 0, 0))

    # -- directories -----------------------------------------------------------------------------

    def exchange_directories(self) -> None:
        """
        Both stores, closed in good order, are opened by the other kind, which appends and is killed; then by
        their own kind.
        """
        pair = self.pair
        pair.client.kill()
        if pair.slave.stop(seconds=PATIENCE) not in (0, -signal.SIGTERM, 128 + signal.SIGTERM):
            self.fail(f"the slave did not end well\n{pair.slave.log_tail()}")
        told = [one for one in pair.sent.values() if one.status in STORED and one.number != self.late]
        held = {store: list(told) for store in (pair.master.store, pair.slave.store)}
        ends = dict.fromkeys(held, self.everything)
        for turn, kinds in enumerate(((self.slave, self.master), (self.master, self.slave))):
            readers = [
                pair.broker(kind, f"{kind}-reads-{turn}{at}", store=store, broker=f"broker-{turn}{at}")
                for at, (kind, store) in enumerate(zip(kinds, held, strict=True))
            ]
            for reader in readers:
                self.addCleanup(reader.kill)
                reader.start()
            for reader in readers:
                reader.wait_started()
                self.check_reader(reader, ends[reader.store], held[reader.store])
                first = pair.next_number + turn * MORE
                held[reader.store] += [put(reader.address, TOPIC, first + at) for at in range(MORE)]
                ends[reader.store] = ends_of(reader.address)[1]
            for reader in readers:
                reader.kill()
            self.count += MORE

    def check_reader(self, reader: Broker, end: int, held: Sequence[Sent]) -> None:
        """It has the whole log, and every message is in its queue."""
        seen: list[tuple[int, int]] = []
        # Java's broker fails at this question in its first second.
        self.pair.wait(lambda: seen.append(ends_of(reader.address)) or True, f"{reader.name} tells its state")
        self.assertEqual(seen, [(0, end)], reader.name)
        found: list[Message] = []

        def all_there() -> bool:
            found[:] = pull_all(reader.address, TOPIC)
            return len(found) >= self.count

        self.pair.wait(all_there, f"{self.count} messages in queues of {reader.name}")
        self.assertEqual(len(found), self.count, reader.name)
        by_offset = {message.physical_offset: message for message in found}
        for one in held:
            message = by_offset[one.offset]
            self.assertEqual(
                (message.queue_id, message.queue_offset, message.properties["number"]),
                (one.queue_id, one.queue_offset, str(one.number)), reader.name,
            )
        for message in found:
            number = int(message.properties["number"])
            self.assertEqual(plain_body(message), body_of(number), (reader.name, number))

    # -- commands --------------------------------------------------------------------------------

    def command(self, *words: str) -> str:
        """Standard output of a C{dledger} command."""
        done = subprocess.run(
            [sys.executable, "-c", "from dledger.commands.main import main; main()", *words],
            capture_output=True, timeout=PATIENCE, stdin=subprocess.DEVNULL,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
        )
        self.assertEqual(done.returncode, 0, done.stderr.decode(errors="replace")[-800:])
        return done.stdout.decode()

    def check_ha_status(self) -> None:
        """C{dledger ha-status} tells what mqadmin tells; of a master of 4.9, where its log ends."""
        pair = self.pair
        end = self.check_equal()
        if not self.is_5:
            ours = self.command("ha-status", "--broker", pair.master.address)
            self.assertIn(f"CommitLogMaxOffset\t{end}", ours)
            return
        theirs = admin(pair, "haStatus", "-n", pair.name_server_address, "-b", pair.master.address)
        ours = self.command("ha-status", "--broker", pair.master.address)
        self.assertEqual(ha_lines(ours), ha_lines(theirs))
        self.assertIn(f"#MasterCommitLogMaxOffset\t{end}", ha_lines(theirs))
        self.assertIn("#SlaveNum\t1", ha_lines(theirs))
        (report,) = json.loads(self.command("ha-status", "--broker", pair.master.address, "--json"))
        (slave,) = report["slaves"]
        self.assertEqual((report["max_offset"], slave["ack_offset"]), (end, end))

    def check_tail(self) -> None:
        """C{dledger tail --format rocketmq} shows every message that our slave has."""
        slave = self.pair.slave
        lines = self.command(
            "tail", "--format", "rocketmq", "--broker", slave.address, "--json"
        ).splitlines()
        found = [json.loads(line) for line in lines]
        shown = {one["message_id"]: one for one in found if one.get("topic") == TOPIC}
        for sent in self.acknowledged():
            document = shown[sent.message_id]
            self.assertEqual((document["queue_id"], document["queue_offset"], document["body"]),
                             (sent.queue_id, sent.queue_offset, body_of(sent.number).decode()))  # fmt: skip

    def parts(self) -> list[Callable[[], None]]:
        """In the order that waits least."""
        found = [
            self.replicate_asynchronously, self.replicate_synchronously, self.check_ha_status,
            self.lose_master, self.compare_metadata, self.lose_slave,
        ]
        if self.slave == "ours":
            found.append(self.check_tail)
        return [*found, self.consume_from_slave, self.exchange_directories]

    def play(self, version: str) -> None:
        """Everything."""
        self.begin(version)
        for part in self.parts():
            part()
