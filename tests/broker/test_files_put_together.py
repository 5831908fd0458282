# -*- test-case-name: tests.broker.test_files_put_together -*-
"""
A store whose parts are of different times, or of different brokers: what is in the log is served.

An operator puts back what is left: the log of a slave into an empty master, a backup without its queues, a
table of before. Each combination either starts, and then serves each message that no deletion in its log
covers, and no other; or it is refused with the names of the files to move away, and starts without them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import product

from twisted.internet.defer import succeed
from twisted.trial.unittest import SynchronousTestCase

from dledger.rocketmq.broker.parts import BrokerParts
from dledger.rocketmq.store.queries import get_messages
from dledger.testing.world.memory_disk import MemoryDisk
from dledger.values.errors import DirectoryError
from protocols.wire.remoting import RemotingCommand
from protocols.wire.rocketmq.message import decode_message
from tests.broker.send_support import Sending, send_of

#: The parts of a store besides its log, and the beginnings of their files' names.
PARTS: Mapping[str, tuple[str, ...]] = {
    "queues": ("consumequeue",), "index": ("index", "indexed"), "config": ("config/",),
    "marks": ("commitlogmark", "checkpoint", "abort"),
}
#: Where a part is from: nowhere, the store of before, of now, and (config alone) of an empty broker.
FROM = {name: ("", "old", "young", "empty") if name == "config" else ("", "old", "young") for name in PARTS}
#: The messages that each log has, and that no deletion in it covers.
SERVED = {
    "old": {b"t0", b"t1", b"d0", b"d1", b"e0"}, "young": {b"t0", b"t1", b"t2", b"t3", b"d2", b"d3", b"u0"},
}
FIELDS = {
    "defaultTopic": "TBW102", "readQueueNums": "4", "writeQueueNums": "4", "perm": "6",
    "topicFilterType": "SINGLE_TAG", "topicSysFlag": "0", "order": "false",
}

Files = dict[str, bytes]


def files_of(disk: MemoryDisk) -> Files:
    """All files of the store, without its lock."""
    return {name: disk.read_file(name) for name in disk.files if not name.endswith("/lock")}


def disk_of(files: Files) -> MemoryDisk:
    """A disk with these files alone."""
    disk = MemoryDisk()
    for name, data in files.items():
        disk.makedirs(name.rpartition("/")[0])
        disk.write_file(name, data)
    return disk


def saved(broker: Sending) -> None:
    """The broker stops in order."""
    broker.broker.metadata.save(lambda work: succeed(work()))
    broker.stop()


def admin(broker: Sending, code: int, topic: str) -> int:
    """An administrator's request. @return: the code of the answer."""
    client = broker.connect()
    answers = client.send(RemotingCommand(code=code, opaque=1, ext_fields={**FIELDS, "topic": topic}))
    broker.settle()
    (answer,) = answers or client.received()
    return answer.code


def send(broker: Sending, *bodies: bytes) -> None:
    """Messages of the topics that their first letters name."""
    for body in bodies:
        topic, number = chr(body[0]).upper(), body[1] - ord("0")
        broker.connect().send(send_of(body, topic=topic, queueId=number % 2, properties="KEYS\x01k\x02"))
    broker.settle()


def served(parts: BrokerParts) -> set[bytes]:
    """What consumers get of the topics in the table."""
    found = set()
    for name, topic in parts.metadata.topics.entries.items():
        for queue_id in range(topic.read_queue_nums) if len(name) == 1 else ():
            at = 0
            while True:
                got = get_messages(parts.store, name, queue_id, at, is_slave=False)
                found |= {decode_message(record).body for record in got.records}
                if got.next_offset <= at:
                    break
                at = got.next_offset
    return found


class FilesCase(SynchronousTestCase):
    """Two snapshots of a master, and the same of its slave, whose queues are its own."""

    def setUp(self) -> None:
        self.master: dict[str, Files] = {}
        self.slave: dict[str, Files] = {}
        disk = MemoryDisk()
        for name in ("old", "young"):
            broker = Sending(disk, options={"change_hosts": ("*",)})
            if name == "old":
                send(broker, b"t0", b"t1", b"d0", b"d1", b"e0")
                broker.broker.metadata.consumer_offsets.commit("G", "D", 0, 1, 1)
            else:
                send(broker, b"t2", b"t3")
                self.assertEqual([admin(broker, 215, topic) for topic in "DE"], [0, 0])
                self.assertEqual(admin(broker, 17, "D"), 0)
                send(broker, b"d2", b"d3", b"u0")
            saved(broker)
            self.master[name] = files_of(disk)
            self.slave[name] = self.copied(self.master[name])
        empty = MemoryDisk()
        saved(Sending(empty))
        self.master["empty"] = self.slave["empty"] = files_of(empty)

    def copied(self, files: Files) -> Files:
        """What a slave makes of its master's log."""
        disk = disk_of({
            name: data for name, data in files.items() if "/commitlog/" in name or "/config/" in name
        })
        slave = Sending(disk, broker_role="SLAVE")
        slave.settle()
        slave.broker.lost_topics.restore()
        saved(slave)
        return files_of(disk)


class FilesTests(FilesCase):
    """Put together."""

    def put_together(self, log: str, of: Mapping[str, str], side: Mapping[str, Files]) -> MemoryDisk:
        """A store with this log, and the parts of these snapshots."""
        chosen = {name: data for name, data in self.master[log].items() if "/commitlog/" in name}
        for part, name in of.items():
            for path, data in side[name].items() if name else ():
                if path.startswith(tuple(f"base/{begin}" for begin in PARTS[part])):
                    chosen[path] = data
        return disk_of(chosen)

    def combinations(self) -> Iterator[tuple[str, dict[str, str], bool]]:
        """All of them."""
        for log, *parts in product(("old", "young"), *FROM.values()):
            for is_slave in (False, True):
                yield log, dict(zip(PARTS, parts, strict=True)), is_slave

    def test_all(self) -> None:
        """Each message of the log is served, unless a deletion in the log covers it."""
        refused = []
        for log, of, is_slave in self.combinations():
            side = self.slave if is_slave else self.master
            case = f"log {log}, {of} of the {'slave' if is_slave else 'master'}"
            disk = self.put_together(log, of, side)
            try:
                broker = Sending(disk, options={"change_hosts": ("*",)})
            except DirectoryError as error:
                refused.append((of["queues"], of["marks"]))
                self.assertIn("move", str(error), case)
                disk = self.put_together(log, {"config": of["config"]}, side)
                broker = Sending(disk, options={"change_hosts": ("*",)})
            broker.settle()
            broker.broker.lost_topics.restore()
            self.assertEqual(served(broker.broker), SERVED[log], case)
            for topic in "TDU":  # an operator makes them once more, or changes them
                self.assertEqual(admin(broker, 17, topic), 0)
            send(broker, b"d9")
            self.assertEqual(served(broker.broker), SERVED[log] | {b"d9"}, case)
            broker.store.abandon()
        self.assertLess(len(refused), len(list(self.combinations())) // 2, refused)
