# -*- test-case-name: tests.raft_broker.test_entry_indexing -*-
"""Keys of the messages of a ledger come into the index, with the offsets that everybody else sees."""

from __future__ import annotations

import random

from twisted.internet.task import Clock
from twisted.trial.unittest import SynchronousTestCase

from dledger.base.disk.hints import Hints
from dledger.base.disk.unreadable import FILLER
from dledger.raft_broker.entry_indexing import EntryIndexing
from dledger.rocketmq.store.index.indexing import SCARCE_S
from dledger.rocketmq.store.index.key_index import KeyIndex
from dledger.rocketmq.store.records.key_hash import hash_of_key
from protocols.wire.rocketmq.message import decode_properties
from tests.broker.store.test_indexing import entries_of, keyed
from tests.broker.support import config_of, message
from tests.raft_broker.rig import LedgerOfMessages


class EntryIndexingTests(SynchronousTestCase):
    """From a ledger into the index."""

    def setUp(self) -> None:
        self.ledger = LedgerOfMessages()
        self.addCleanup(self.ledger.store.abandon)

    def index(self, size: int) -> KeyIndex:
        """Everything that is committed."""
        log = self.ledger.log()
        self.addCleanup(log.abandon)
        config = config_of(f"base{size}", max_index_num=100)
        index = KeyIndex.open(config, Hints(self.ledger.disk), log, log_end=0, crashed=False, timestamp=0)
        made = EntryIndexing(index, log, clock=Clock())
        while index.offset < log.record_end:
            made.step(log.record_end, size)
        self.assertEqual(index.offset, self.ledger.store.end_position)
        return index

    def test_messages_of_any_kind_are_indexed(self) -> None:
        """Of any kind and size, with other entries between them, in slices of any size."""
        rng, expected = random.Random(5), []
        for number in range(150):
            if number % 10 == 3:
                self.ledger.store.append_bodies((b"", b"x" * 20, b"KEYS\x01" * 60), 1)
            one = keyed(rng)
            self.ledger.append(one)
            properties = decode_properties(one.properties_data)
            words = [word for word in properties.get("KEYS", "").split(" ") if word]
            keys = [properties["UNIQ_KEY"], *words] if "UNIQ_KEY" in properties else words
            if one.sys_flag & 0xC != 0xC:
                expected += [(hash_of_key(one.topic, key), self.ledger.place.offsets[-1]) for key in keys]
        self.assertGreater(len(expected), 80)
        for size in (1, 1000, 1_000_000):
            self.assertEqual(entries_of(self.index(size)), expected)

    def test_a_large_message_is_indexed(self) -> None:
        """A message that is larger than a slice."""
        self.ledger.append(message(b"x" * 3000, properties={"KEYS": "k"}), message(properties={"KEYS": "l"}))
        self.assertEqual(
            entries_of(self.index(1)),
            [(hash_of_key("T1", key), offset)
             for key, offset in zip("kl", self.ledger.place.offsets, strict=True)],
        )

    def test_damage_holds_the_index(self) -> None:
        """The index waits at a damaged entry until it is mended: what is before it is there at once."""
        self.ledger.append(*[message(properties={"KEYS": f"k{number}"}) for number in range(4)])
        log, clock = self.ledger.log(), Clock()
        self.addCleanup(log.abandon)
        bad = self.ledger.store.position_of(2)
        file = self.ledger.disk.open(f"base/dledger-n0/data/{0:020d}")
        sound = file.pread(60, bad)
        file.pwrite(FILLER[:60], bad)
        config = config_of("base-held")
        index = KeyIndex.open(config, Hints(self.ledger.disk), log, log_end=0, crashed=False, timestamp=0)
        made = EntryIndexing(index, log, clock=clock)
        made.start(Dispatched(log.record_end))
        clock.pump([SCARCE_S] * 5)
        self.assertEqual(index.offset, bad)
        self.assertEqual(len(entries_of(index)), 2)
        file.pwrite(sound, bad)
        clock.pump([SCARCE_S] * 2)
        self.assertEqual(index.offset, log.record_end)
        self.assertEqual(len(entries_of(index)), 4)


class Dispatched:
    """A dispatch that is done. @ivar offset: its end."""

    behind_bytes = 0

    def __init__(self, offset: int) -> None:
        self.offset = offset
