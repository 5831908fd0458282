# -*- test-case-name: tests.raft_broker.test_files_put_together -*-
"""
A broker on a raft log whose parts are of different times, or of different members: what is in the log is
served.

See L{tests.broker.test_files_put_together}, which does the same with plain logs.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import product

from dledger.rocketmq.metadata.offsets import ConsumerOffsets
from protocols.wire.remoting import RemotingCommand
from tests.broker.send_support import send_of
from tests.broker.test_files_put_together import FIELDS, SERVED, Files, disk_of, files_of, served
from tests.raft_broker.rig import RaftCase

#: The parts of a directory besides the ledger, and the beginnings of their files' names.
PARTS: Mapping[str, tuple[str, ...]] = {
    "queues": ("consumequeue",), "index": ("index", "indexed"), "config": ("config/",),
    "marks": ("dispatched", "checkpoint", "abort"),
}
#: Where a part is from: nowhere, the broker of before, of now, and (config alone) an empty broker.
FROM = {name: ("", "old", "young", "empty") if name == "config" else ("", "old", "young") for name in PARTS}
_OTHERS = {"dLegerPeers": "n0-10.0.0.1:20911;n1-10.0.0.2:20911;n2-10.0.0.3:20911"}


class RaftFilesTests(RaftCase):
    """Two snapshots of a member, and those of another one, whose queues are its own."""

    def setUp(self) -> None:
        super().setUp()
        self.one: dict[str, Files] = {}
        self.other: dict[str, Files] = {}
        for name in ("empty", "old", "young"):
            self.start(changeHosts="*")
            if name == "old":
                self.send(b"t0", b"t1", b"d0", b"d1", b"e0")
                self.broker.metadata.consumer_offsets.commit("G", "D", 0, 1, 1)
            elif name == "young":
                self.send(b"t2", b"t3")
                self.assertEqual([self.admin(215, topic) for topic in "DE"], [0, 0])
                self.assertEqual(self.admin(17, "D"), 0)
                self.send(b"d2", b"d3", b"u0")
            self.stop()
            self.one[name] = self.snapshot()
        for name, files in self.one.items():
            self.disk = disk_of({path: data for path, data in files.items() if "/dledger" in path})
            self.start()
            self.stop()
            self.other[name] = self.snapshot()

    def snapshot(self) -> Files:
        """All files, without the lock, and without the index of the ledger, which is large and made again."""
        for name in [name for name in self.disk.files if "/dledger-n0/index/" in name]:
            self.disk.unlink(name)
        return files_of(self.disk)

    def admin(self, code: int, topic: str) -> int:
        """An administrator's request. @return: the code of the answer."""
        (answer,) = self.ask(RemotingCommand(code=code, opaque=1, ext_fields={**FIELDS, "topic": topic}))
        return answer.code

    def send(self, *bodies: bytes) -> None:
        """Messages of the topics that their first letters name."""
        for body in bodies:
            topic, number = chr(body[0]).upper(), body[1] - ord("0")
            (answer,) = self.ask(
                send_of(body, topic=topic, queueId=number % 2, properties="KEYS\x01k\x02")
            )
            self.assertEqual(answer.code, 0)

    def put_together(self, log: str, of: Mapping[str, str], side: Mapping[str, Files]) -> None:
        """A directory with this ledger, and the parts of these snapshots."""
        chosen = {name: data for name, data in self.one[log].items() if "/dledger" in name} if log else {}
        for part, name in of.items():
            for path, data in side[name].items() if name else ():
                if path.startswith(tuple(f"base/{begin}" for begin in PARTS[part])):
                    chosen[path] = data
        self.disk = disk_of(chosen)

    def combinations(self) -> Iterator[tuple[str, dict[str, str], bool]]:
        """All of them."""
        for log, *parts in product(("old", "young", ""), *FROM.values()):
            for is_other in (False, True):
                yield log, dict(zip(PARTS, parts, strict=True)), is_other

    def test_all(self) -> None:
        """Each message of the log is served, unless a deletion in the log covers it; none is refused."""
        for log, of, is_other in self.combinations():
            case = f"log {log}, {of} of {'another' if is_other else 'the same'} member"
            wanted = SERVED.get(log, set())
            self.put_together(log, of, self.other if is_other else self.one)
            self.start(changeHosts="*")
            self.assertEqual(self.reasons, [], case)
            self.assertEqual(served(self.broker), wanted, case)
            for topic in "TDU":  # an operator makes them once more, or changes them
                self.assertEqual(self.admin(17, topic), 0, case)
            self.send(b"d9")
            self.assertEqual(served(self.broker), wanted | {b"d9"}, case)
            self.broker.saver.close()
            self.broker.store.abandon()
            self.raft.member.store.abandon()


class LostTablesTests(RaftCase):
    """Tables that are gone, older, or from C{.bak}, while the mark of the queues stays: the log has them."""

    def setUp(self) -> None:
        super().setUp()
        self.start(changeHosts="*")
        for number, (topic, offset) in enumerate((("T", 1), ("U", 1), ("T", 2))):
            self.assertEqual(self.ask(send_of(b"%d" % number, topic=topic))[0].code, 0)
            self.commit(topic, offset)
            if not number:
                self.settle(6.0)  # all tables are saved
                self.older = self.config_files()
        self.settle(6.0)
        self.before = self.tables()
        self.stop()

    def commit(self, topic: str, offset: int) -> None:
        """A consumer's."""
        self.broker.metadata.consumer_offsets.commit("G", topic, 0, offset, 1)
        self.broker.metadata.groups.find(f"G{offset}", 1)

    def config_files(self) -> Files:
        """Those of the tables, with the mark."""
        return {path: data for path, data in files_of(self.disk).items() if "/config/" in path}

    def tables(self) -> dict[str, object]:
        """Topics, groups and offsets."""
        metadata = self.broker.metadata
        return {
            "topics": dict(metadata.topics.entries), "groups": dict(metadata.groups.entries),
            "offsets": sorted(metadata.consumer_offsets.rows()),
        }

    def start_again(self, change: Mapping[str, bytes | None]) -> int:
        """
        Files are other ones (None: gone) when the broker starts; it has the same tables again.

        @return: the number of records that were dispatched once more.
        """
        for path, data in change.items():
            if self.disk.exists(path):
                self.disk.unlink(path)
            if data is not None:
                self.disk.write_file(path, data)
        self.start(changeHosts="*")
        self.assertEqual(self.reasons, [])
        self.assertEqual(self.tables(), self.before, list(change))
        count = self.broker.store.dispatcher.dispatched
        self.assertEqual(len(served(self.broker)), 3)
        self.stop()
        return count

    def test_lost_or_older(self) -> None:
        """Each table alone, and all of them, with their copies, and with the mark."""
        names = ("topics.json", "subscriptionGroup.json", "consumerOffset.json", "applied", "")
        least = self.start_again({})
        for name in names:
            for restored in (False, True):
                gone = [path for path in self.config_files() if path.startswith(f"base/config/{name}")]
                count = self.start_again({path: self.older.get(path) if restored else None for path in gone})
                self.assertGreater(count, least, (name, restored))

    def test_copy(self) -> None:
        """A table is read from C{.bak}, because it is damaged or gone."""
        for path in ("base/config/topics.json", "base/config/consumerOffset.json"):
            for data in (b"{", None):
                self.start_again({path: data, path + ".bak": self.older[path]})

    def test_offsets_of_an_earlier_life(self) -> None:
        """The log is read again with all deletions known: what is before one is of an earlier life."""
        self.start(changeHosts="*")
        (answer,) = self.ask(RemotingCommand(code=215, opaque=1, ext_fields={**FIELDS, "topic": "T"}))
        self.assertEqual(answer.code, 0)
        for _ in range(2):
            self.assertEqual(self.ask(send_of(b"3", topic="T"))[0].code, 0)
        reads: list[int | None] = []
        apply = ConsumerOffsets.apply

        def applied(table: ConsumerOffsets, changes: dict[str, object], version: object) -> None:
            apply(table, changes, version)
            reads.append(table.query("G", "T", 0))

        self.stop()
        self.disk.unlink("base/config/consumerOffset.json")
        self.patch(ConsumerOffsets, "apply", applied)
        self.start(changeHosts="*")
        self.assertGreater(len(reads), 2)
        self.assertEqual(set(reads), {None})
        self.assertIsNone(self.broker.metadata.consumer_offsets.query("G", "T", 0))
        self.assertEqual(self.broker.metadata.consumer_offsets.query("G", "U", 0), 1)
        self.stop()
