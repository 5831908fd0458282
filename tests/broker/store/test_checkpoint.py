# -*- test-case-name: tests.broker.store.test_checkpoint -*-
"""The two small files of RocketMQ's that say how the last run ended."""

from __future__ import annotations

import random

from twisted.trial.unittest import SynchronousTestCase

from dledger.rocketmq.store.records.checkpoint import (
    AbortFile,
    Checkpoint,
    decode_checkpoint,
    encode_checkpoint,
)
from dledger.testing.world.disk import SimDisk
from dledger.testing.world.memory_disk import MemoryDisk

#: The first words of a file that a 4.9.7 broker wrote; zeroes follow up to 4096 bytes.
JAVA = (1795265122382).to_bytes(8, "big") * 2 + bytes(4096 - 16)


class CheckpointTests(SynchronousTestCase):
    """4096 bytes, five numbers."""

    def test_bytes_are_those_of_java(self) -> None:
        """Read and written as Java does."""
        checkpoint = Checkpoint(physic_msg_timestamp=1795265122382, logics_msg_timestamp=1795265122382)
        self.assertEqual(decode_checkpoint(JAVA), checkpoint)
        self.assertEqual(encode_checkpoint(checkpoint), JAVA)

    def test_all_numbers_are_kept(self) -> None:
        """In the order of the declaration."""
        checkpoint = Checkpoint(physic_msg_timestamp=1, logics_msg_timestamp=2, index_msg_timestamp=3,
                                master_flushed_offset=4, confirm_phy_offset=5)
        data = encode_checkpoint(checkpoint)
        self.assertEqual(data[:40], b"".join(number.to_bytes(8, "big") for number in (1, 2, 3, 4, 5)))
        self.assertEqual((len(data), decode_checkpoint(data)), (4096, checkpoint))

    def test_a_truncated_file_says_nothing(self) -> None:
        """A file that is too short says nothing; one that is long enough says all."""
        for size in range(40):
            self.assertEqual(decode_checkpoint(JAVA[:size]), Checkpoint())
        self.assertEqual(decode_checkpoint(JAVA[:40]), decode_checkpoint(JAVA))

    def test_the_safe_timestamp_is_earlier(self) -> None:
        """Three seconds before the older of the two, never below 0."""
        both = Checkpoint(physic_msg_timestamp=10_000, logics_msg_timestamp=9_000)
        self.assertEqual(both.safe_timestamp, 6_000)
        self.assertEqual(Checkpoint(physic_msg_timestamp=10_000).safe_timestamp, 0)


class AbortFileTests(SynchronousTestCase):
    """There while a store is open."""

    def test_the_abort_file_lives_with_the_store(self) -> None:
        """Put once, found, removed; both are harmless when done again."""
        disk = MemoryDisk()
        disk.makedirs("base")
        abort = AbortFile(disk, "base")
        self.assertFalse(abort.is_there)
        abort.put("17")
        abort.put("18")
        self.assertEqual(disk.read_file("base/abort"), b"17")
        abort.remove()
        abort.remove()
        self.assertFalse(disk.exists("base/abort"))

    def test_a_checkpoint_survives_a_loss_of_power(self) -> None:
        """A loss of power changes nothing."""
        disk = SimDisk(random.Random(1))
        disk.makedirs("base")
        AbortFile(disk, "base").put("17")
        disk.lose_power()
        self.assertTrue(AbortFile(disk, "base").is_there)
        AbortFile(disk, "base").remove()
        disk.lose_power()
        self.assertFalse(AbortFile(disk, "base").is_there)
