# -*- test-case-name: tests.base.test_reader_table -*-
"""The readers of a group, and their room."""

from __future__ import annotations

import random

from twisted.trial.unittest import SynchronousTestCase

from dledger.values.ledger import reader_table
from dledger.values.ledger.reader_table import KnownReader, ReaderTable, Room, reader_bytes
from protocols.wire.ledger.readers import ReaderPart, ReaderState


def reader(
    name: str, next_index: int = 0, parts: int = 0, owner: str = "", gone: bool = False
) -> ReaderState:
    """The state of a reader."""
    given = tuple(ReaderPart(next_index + at, next_index + at + 1, at, 1000, "p") for at in range(parts))
    return ReaderState(name, -1, next_index + parts, given, gone, owner)


class RoomTests(SynchronousTestCase):
    """Bounds in bytes."""

    def setUp(self) -> None:
        self.table, self.index = ReaderTable(), 0
        self.patch(reader_table, "ALL_BYTES_MAX", 6 * reader_bytes(reader("r", owner="o")))
        self.patch(reader_table, "SHARE_BYTES_MAX", 4 * reader_bytes(reader("r", owner="o")))
        self.patch(reader_table, "FORGOTTEN_BYTES_MAX", 2 * reader_bytes(reader("r", owner="o")))

    def put(self, *states: ReaderState) -> None:
        """One after the other, if there is room."""
        for state in states:
            self.assertIs(self.table.room_for(state), Room.FREE, state)
            self.index += 1
            self.table.put(KnownReader(self.index, state, 0))

    def test_all_readers(self) -> None:
        """New ones, and further parts, find no room in a full table; a first part and less do."""
        self.put(*(reader(name, owner="o") for name in "abc"), *(reader(name, owner="x") for name in "def"))
        self.assertIs(self.table.room_for(reader("g", owner="y")), Room.ALL_TAKEN)
        self.assertIs(self.table.room_for(reader("a", owner="o", parts=2)), Room.ALL_TAKEN)
        self.put(reader("a", owner="o", parts=1), reader("b", owner="o", gone=True), reader("g", owner="y"))
        self.assertIs(self.table.room_for(reader("b", owner="o")), Room.ALL_TAKEN)
        self.put(reader("c", owner="o", gone=True), reader("d", owner="x", gone=True))
        self.assertNotIn("b", self.table)
        self.put(reader("c", owner="o"), reader("h", owner="y"))
        self.assertIs(self.table.room_for(reader("d", owner="x")), Room.ALL_TAKEN)

    def test_a_share(self) -> None:
        """One owner has its share; a reader that another one begins again is that one's."""
        self.put(*(reader(name, owner="o") for name in "abcd"))
        self.assertIs(self.table.room_for(reader("e", owner="o")), Room.SHARE_TAKEN)
        self.assertIs(self.table.room_for(reader("a", owner="o", parts=2)), Room.SHARE_TAKEN)
        self.put(reader("e", owner="x"), reader("e", owner="x", gone=True))
        self.assertIs(self.table.room_for(reader("e", owner="o")), Room.SHARE_TAKEN)
        self.put(reader("a", owner="o", gone=True), reader("f", owner="o"))
        self.assertIs(self.table.room_for(reader("a", owner="o")), Room.SHARE_TAKEN)
        self.put(reader("a", owner="x"))

    def test_the_room_of_a_real_table(self) -> None:
        """Ten thousand of the longest names fit, and half of them are one owner's."""
        self.patch(reader_table, "ALL_BYTES_MAX", 16 * 1024 * 1024)
        longest = reader_bytes(reader("n" * 64, owner="o" * 64, parts=1))
        self.assertGreaterEqual(reader_table.ALL_BYTES_MAX // longest, 20_000)


class TwinTests(SynchronousTestCase):
    """A table says what a plain dictionary says."""

    def test_histories(self) -> None:
        """Random ones."""
        self.patch(reader_table, "FORGOTTEN_BYTES_MAX", 3 * reader_bytes(reader("0")))
        for seed in range(30):
            rng, table, twin = random.Random(seed), ReaderTable(), dict[str, KnownReader]()
            for index in range(60):
                state = reader(str(rng.randrange(9)), rng.randrange(5), rng.randrange(3), rng.choice("ab"),
                               rng.random() < 0.3)
                if state.is_forgotten:
                    state = state._replace(parts=())
                known = KnownReader(index, state, 0)
                table.put(known)
                twin.pop(state.name, None)
                twin[state.name] = known
                gone = [name for name, one in twin.items() if one.state.is_forgotten]
                while sum(reader_bytes(twin[name].state) for name in gone) > reader_table.FORGOTTEN_BYTES_MAX:
                    del twin[gone.pop(0)]
                self._compare(table if rng.random() < 0.5 else table.copy(), twin)

    def _compare(self, table: ReaderTable, twin: dict[str, KnownReader]) -> None:
        self.assertEqual(list(table.items()), list(twin.items()))
        live = {name: one for name, one in sorted(twin.items()) if not one.state.is_forgotten}
        behind = sorted(live.values(), key=lambda one: (one.state.next_index, one.state.name))
        self.assertEqual(table.furthest_behind(3), behind[:3])
        self.assertEqual(table.needed_index, behind[0].state.next_index if behind else None)
        for after in ("", "3", "35", "9"):
            found = [one for name, one in live.items() if name > after]
            self.assertEqual((table.after(after, 2), table.count_after(after)), (found[:2], len(found)))
        self.assertEqual(table.count, len(live))
        held: dict[str, int] = {}
        for one in live.values():
            held[one.state.owner] = held.get(one.state.owner, 0) + reader_bytes(one.state)
        self.assertEqual((table._held, table._bytes), (held, sum(held.values())))
