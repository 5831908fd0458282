# -*- test-case-name: tests.interop.test_ha_ours_follows,tests.interop.test_ha_ours_leads -*-
"""
The story of a master and its slave, one of them Java's and the other ours, the same for all pairings.

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
from typing import ClassVar

from twisted.trial.unittest import SkipTest, SynchronousTestCase

from protocols.wire.errors import BodyError
from protocols.wire.rocketmq.message import Message, plain_body
from tests.interop.ha import (
    FILE_SIZE,
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

#: Number of messages that each reader of a directory appends.
MORE = 40


def outcomes(path: Path) -> list[Sent]:
    """The answers of a load, from whole lines of its file."""
    if not path.exists():
        return []
    return [Sent.of(line) for line in path.read_text().split("\n")[:-1]]


def admin(pair: Pair, *words: str) -> str:
    """
    Run RocketMQ's own command line. @return: its standard output.

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
    """The lines of mqadmin on replication, without its log lines and the speed, which changes."""
    lines = [line for line in text.splitlines() if line.startswith("#") or _SLAVE_ROW.match(line)]
    return [line if line.startswith("#") else " ".join(line.split()[:3] + line.split()[4:]) for line in lines]


def leave_unmade_file(store: Path) -> None:
    """The next file of a commit log, empty, as a broker leaves it that is killed while it makes it."""
    last = max(path.name for path in (store / "commitlog").iterdir() if path.name.isdecimal())
    (store / "commitlog" / f"{int(last) + FILE_SIZE:020d}").touch()


class Story(SynchronousTestCase):
    """See the module. Subclasses play the story."""

    #: C{java} or C{ours}.
    master = slave = ""
    #: Number of kills of each side under load; twenty in the four stories.
    kills: ClassVar[dict[str, int]] = {"master": 3, "slave": 2}

    def begin(self, version: str) -> None:
        """Start a name server, the master, its slave with the whole log, and a producer."""
        self.start_all(version)
        self.assertEqual(self.pair.send(TOPIC, 1), ["SEND_OK"])
        self.check_equal()

    def start_all(self, version: str) -> None:
        """The slave may not have connected yet."""
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

    # -- what must hold --------------------------------------------------------------------------

    def check_equal(self) -> int:
        """Both logs have the same bytes, from first to last. @return: their end."""
        begin, end = self.pair.wait_equal()
        self.assertEqual(begin, 0)
        ours, theirs = (log_bytes(one.store, begin, end) for one in (self.pair.slave, self.pair.master))
        if ours != theirs:
            at = next(at for at, (one, other) in enumerate(zip(ours, theirs, strict=True)) if one != other)
            self.fail(f"the logs differ at {at} of {end}: {theirs[at:at + 40]!r} and {ours[at:at + 40]!r}")
        return end

    def check_holds(self, broker: Broker, sent: Sequence[Sent]) -> None:
        """The broker's files have these messages, as they were sent and at the places in the answers."""
        wrong = [found for one in sent if (found := check_stored(broker.store, one, TOPIC))]
        self.assertEqual(wrong[:5], [], f"{len(wrong)} of {len(sent)} at {broker.name}")

    def acknowledged(self) -> list[Sent]:
        """All messages that were answered SEND_OK, except the delayed one."""
        return [one for one in self.pair.sent.values() if one.status == "SEND_OK" and one.number != self.late]

    # -- the parts -------------------------------------------------------------------------------

    def replicate_asynchronously(self) -> None:
        """Several files full of messages, one of them delayed; a consumer gets them from the master."""
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
        """The master now waits for its slave, which is running, stopped, and running again."""
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
        # On a busy machine the limit of three seconds may pass; then the sending is repeated.
        pair.wait(self.send_and_look, "a hundred messages that the slave has in time")
        pause(pair.slave)
        self.assertEqual(pair.send(TOPIC, 2, window=2), ["FLUSH_SLAVE_TIMEOUT"] * 2)
        pair.slave.resume()
        pair.wait(lambda: pair.send(TOPIC, 1) == ["SEND_OK"], "the slave goes on")
        self.check_equal()

    def send_and_look(self) -> bool:
        """The slave has every acknowledged message at that moment. @return: whether all were acknowledged."""
        pair = self.pair
        before = pair.next_number
        said = pair.send(TOPIC, 100, window=16)
        self.check_holds(pair.slave, [one for one in self.acknowledged() if one.number >= before])
        self.assertLessEqual(set(said), {"SEND_OK", "FLUSH_SLAVE_TIMEOUT"})
        return set(said) == {"SEND_OK"}

    def lose_master(self) -> None:
        """SIGKILL of the master under load: the slave has all acknowledged messages, and continues."""
        self.lose(self.pair.master, self.kills["master"])

    def lose_slave(self) -> None:
        """SIGKILL of the slave under load; then of an idle slave: messages are answered without it."""
        pair = self.pair
        self.lose(pair.slave, self.kills["slave"])
        pair.slave.kill()
        wanted = "FLUSH_SLAVE_TIMEOUT" if self.is_5 else "SLAVE_NOT_AVAILABLE"
        pair.wait(lambda: pair.send(TOPIC, 1) == [wanted], f"{wanted} without a slave")
        pair.slave.start()
        pair.slave.wait_started()
        self.check_equal()

    def lose(self, victim: Broker, times: int) -> None:
        """Kill C{victim} under load, C{times} times; see L{lose_master}, L{lose_slave}."""
        pair = self.pair
        path = pair.directory / f"outcomes-{pair.next_number}"
        pair.client.load(TOPIC, pair.next_number, path)
        for number in range(times):
            self.wait_acknowledged(path)
            time.sleep(self.rng.uniform(0, 0.5))
            victim.kill()
            if number == 0:
                leave_unmade_file(victim.store)
            if victim is pair.master:
                time.sleep(0.3)  # answers on their way to the producer arrive
                reported = [one for one in outcomes(path) if one.status == "SEND_OK"]
                self.check_holds(pair.slave, reported)
            victim.start()
            victim.wait_started()
        self.wait_acknowledged(path)
        last = pair.client.quiet()
        reported = outcomes(path)
        self.assertEqual(len(reported), last - pair.next_number)
        pair.sent |= {one.number: one for one in reported}
        self.check_equal()
        for broker in (pair.master, pair.slave):
            self.check_holds(broker, [one for one in reported if one.status in STORED])

    def wait_acknowledged(self, path: Path) -> None:
        """Wait for acknowledgements: the slave follows, and the producer has found the master."""

        def count() -> int:
            return sum(one.status == "SEND_OK" for one in outcomes(path))

        before = count()
        self.pair.wait(lambda: count() >= before + 20, "messages are acknowledged")

    def compare_metadata(self) -> None:
        """The slave's files have the metadata that its master shows."""
        stored = sum(one.status in STORED for one in self.pair.sent.values())
        wrong: list[object] = []

        def same() -> bool:
            reported = ask_tables(self.pair.master.address)
            try:
                kept = read_tables(self.pair.slave.store)
            except BodyError as error:  # RocketMQ writes its files in place
                wrong[:] = [str(error)]
                return False
            wrong[:] = differing(reported, kept)
            offsets = reported["consumerOffset"]
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
        """With the master stopped, one consumer gets every message from the slave; another those of a tag."""
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
        Both stores, closed cleanly, are opened by the other kind, which appends and is killed; then by their
        own kind.
        """
        pair = self.pair
        pair.client.kill()
        if pair.slave.stop(seconds=PATIENCE) not in (0, -signal.SIGTERM, 128 + signal.SIGTERM):
            self.fail(f"the slave did not end well\n{pair.slave.log_tail()}")
        reported = [one for one in pair.sent.values() if one.status in STORED and one.number != self.late]
        held = {store: list(reported) for store in (pair.master.store, pair.slave.store)}
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
        """The reader has the whole log, and every message in its queue."""
        seen: list[tuple[int, int]] = []
        # Java's broker fails on this request in its first second.
        self.pair.wait(lambda: seen.append(ends_of(reader.address)) or True, f"the state of {reader.name}")
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
            [sys.executable, "-c", "from dledger.cli.main import main; main()", *words],
            capture_output=True, timeout=PATIENCE, stdin=subprocess.DEVNULL,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
        )
        self.assertEqual(done.returncode, 0, done.stderr.decode(errors="replace")[-800:])
        return done.stdout.decode()

    def check_ha_status(self) -> None:
        """C{dledger ha-status} agrees with mqadmin; for a master of 4.9 it reports the end of its log."""
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
        """C{dledger tail --format rocketmq} shows every message of our slave."""
        slave = self.pair.slave
        lines = self.command(
            "tail", "--format", "rocketmq", "--broker", slave.address, "--json"
        ).splitlines()
        found = [json.loads(line) for line in lines]
        shown = {one["message_id"]: one for one in found if one.get("topic") == TOPIC}
        for sent in self.acknowledged():
            document = shown[sent.message_id]
            self.assertEqual((document["queue_id"], document["queue_offset"], document["body"]),
                             (sent.queue_id, sent.queue_offset, body_of(sent.number).decode()))

    def parts(self) -> list[Callable[[], None]]:
        """The parts, in the order with the least waiting."""
        found = [
            self.replicate_asynchronously, self.replicate_synchronously, self.check_ha_status,
            self.lose_master, self.compare_metadata, self.lose_slave,
        ]
        if self.slave == "ours":
            found.append(self.check_tail)
        return [*found, self.consume_from_slave, self.exchange_directories]

    def play(self, version: str) -> None:
        """Play all parts."""
        self.begin(version)
        for part in self.parts():
            part()
