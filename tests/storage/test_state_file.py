# -*- test-case-name: tests.storage.test_state_file -*-
"""The file of the group's state: whatever is damaged or torn, a start finds the newer or the older state."""

from __future__ import annotations

from twisted.trial.unittest import SynchronousTestCase

from dledger.storage.files.state_file import (
    NO_STATE,
    StateFile,
    StatePlace,
    decode_state,
    encode_state,
)
from dledger.testing.world.memory_disk import MemoryDisk
from dledger.values.ledger.group_state import GroupState, NotedTime, Producer
from dledger.values.ledger.reader_table import KnownReader
from protocols.wire.errors import WireError
from protocols.wire.ledger.readers import ReaderState
from tests.storage.support import HookedDisk

PLACE = StatePlace(41, 3, 2048, -5)


def state_of(index: int, producers: int = 2) -> GroupState:
    """A state with something of everything."""
    state = GroupState()
    state.index, state.age_ms, state.clock_ms, state.has_forgotten = index, 5, 7, True
    state.time, state.hidden = NotedTime(4, 2, 1_700_000_000_000), 3
    state.hidden_runs.extend([1, 4, 9])
    state.hidden_counts.extend([0, 1, 2])
    found = [Producer(f"p{number}", number + 1, 1).wrote(10 * number, 3, 2) for number in range(producers)]
    state.restored(found, [KnownReader(9, ReaderState("r", 4, 7), 2)])
    return state


class BytesTests(SynchronousTestCase):
    """A state as bytes."""

    def test_all_comes_back(self) -> None:
        """Every field; and bytes after the end do not count."""
        data = encode_state(state_of(41), PLACE, 8)
        stored = decode_state(data + b"junk")
        self.assertEqual((stored.generation, stored.place), (8, PLACE))
        self.assertEqual(encode_state(stored.state, PLACE, 8), data)
        self.assertEqual(stored.state.producers, state_of(41).producers)
        self.assertEqual(stored.state.producer_bytes, state_of(41).producer_bytes)

    def test_every_cut_and_flip_is_refused(self) -> None:
        """No byte may be another one, and none may be missing."""
        data = encode_state(state_of(41), PLACE)
        for at in range(len(data)):
            wrong = bytearray(data)
            wrong[at] ^= 1 << at % 8
            self.assertRaises(WireError, decode_state, bytes(wrong))
            self.assertRaises(WireError, decode_state, data[:at])

    def test_a_later_version_says_so(self) -> None:
        """Its number is checked by itself, and the sentence says what to do."""
        data = bytearray(encode_state(state_of(41), PLACE))
        data[7] = 2
        self.assertIn("upgrade", str(self.assertRaises(WireError, decode_state, bytes(data))))


class FileTests(SynchronousTestCase):
    """Two slots, written in turn."""

    def setUp(self) -> None:
        self.disk = MemoryDisk()
        self.file = StateFile(self.disk, "s")

    def write(self, index: int, producers: int = 2) -> None:
        """A state up to this entry."""
        self.file.write(state_of(index, producers).capture(), StatePlace(index, 3, 100 * index, 1))

    def found(self) -> list[int]:
        """The entries of the states that a start finds, the newest first."""
        return [one.place.entry_index for one in StateFile(self.disk, "s").read()]

    def test_no_file_is_no_state(self) -> None:
        """Absent, empty, or of something else."""
        self.assertEqual((self.found(), self.file.older_index), ([], NO_STATE))
        for data in (b"", b"x" * 1000):
            self.disk.write_file("s", data)
            self.assertEqual(self.found(), [])

    def test_the_last_two_are_there(self) -> None:
        """And L{StateFile.older_index} is that of the older one; a new file has one state twice."""
        self.write(1)
        self.assertEqual((self.found(), self.file.older_index), ([1, 1], 1))
        for index in (5, 9, 12):
            self.write(index)
        self.assertEqual((self.found(), self.file.older_index), ([12, 9], 9))

    def test_a_longer_state_gets_a_longer_file(self) -> None:
        """Both states are the new one then."""
        self.write(1)
        self.write(2, producers=3000)
        self.assertEqual((self.found(), self.file.older_index), ([2, 2], 2))

    def test_a_damaged_slot_costs_one_state(self) -> None:
        """The other one counts, and the next write goes on in the damaged one."""
        for index in (1, 5):
            self.write(index)
        sound = self.disk.read_file("s")
        for at in (3, len(sound) // 2 + 3):
            wrong = bytearray(sound)
            wrong[at] ^= 1
            self.disk.write_file("s", bytes(wrong))
            (left,) = self.found()
            file = StateFile(self.disk, "s")
            file.read()
            self.assertEqual(file.older_index, NO_STATE)
            file.write(state_of(7).capture(), StatePlace(7, 3, 700, 1))
            self.assertEqual((self.found(), file.older_index), ([7, left], left))

    def test_a_void_state_goes_first(self) -> None:
        """However new it is; until then a start may find none."""
        for index in (5, 9):
            self.write(index)
        (newest, _) = self.file.read()
        self.file.void(newest.generation)
        self.assertEqual(self.file.older_index, NO_STATE)
        self.write(7)
        self.assertEqual((self.found(), self.file.older_index), ([7, 5], 5))

    def test_a_write_that_fails_costs_the_older_state(self) -> None:
        """At each call of the disk: the newer one is there, and the file says that the other may not be."""
        for fails_at in range(1, 9):
            disk = HookedDisk()
            file = StateFile(disk, "s")
            for index in (1, 5, 9):
                file.write(state_of(index).capture(), StatePlace(index, 3, 100 * index, 1))
            disk.fails_at = len(disk.calls) + fails_at - 1
            try:
                file.write(state_of(12).capture(), StatePlace(12, 3, 1200, 1))
            except OSError:
                self.assertEqual(file.older_index, NO_STATE)
                newest = 9
            else:
                newest = 12
            disk.fails_at = -1
            found = [one.place.entry_index for one in StateFile(disk, "s").read()]
            self.assertIn(newest, found, fails_at)
            if newest == 12:
                return
        self.fail("it never ends")
