# -*- test-case-name: tests.broker.store.test_body_check -*-
"""Bodies are checked in pieces of any size."""

from __future__ import annotations

import random

from twisted.trial.unittest import SynchronousTestCase

from dledger.broker.store.body_check import BodyCheck
from dledger.broker.store.records import problem_of
from dledger.testing.disk import SimDisk
from protocols.wire.errors import WireError
from tests.broker.support import LOG_SIZE, log_bytes, open_log, some_message


def log_of(seed: int) -> tuple[bytes, list[tuple[int, int]]]:
    """A master's log with messages of all kinds; and where each body is."""
    rng = random.Random(seed)
    log = open_log(SimDisk(rng))
    for _ in range(40):
        log.append([[some_message(rng)]], 1)
    data, bodies, at = log_bytes(log), [], 0
    while at < len(data):
        if data[at + 4 : at + 8] == bytes.fromhex("cbd43194"):
            at += LOG_SIZE - at % LOG_SIZE
            continue
        flags = int.from_bytes(data[at + 36 : at + 40], "big")
        body_at = at + 88 + 12 * bool(flags & 0x10) + 12 * bool(flags & 0x20)
        length = int.from_bytes(data[body_at - 4 : body_at], "big")
        bodies.append((body_at, length))
        at += int.from_bytes(data[at : at + 4], "big")
    return data, bodies


def feed(data: bytes, rng: random.Random, most: int) -> None:
    """In pieces, through copies, as a log does it."""
    walk, at = BodyCheck(LOG_SIZE, 0), 0
    while at < len(data):
        size = min(rng.randrange(1, most + 1), LOG_SIZE - at % LOG_SIZE, len(data) - at)
        walk = walk.copy()
        walk.feed(data[at : at + size])
        at += size
        assert walk.fed == at


class BodyCheckTests(SynchronousTestCase):
    """Its twin reads whole records."""

    def test_sound(self) -> None:
        """Records of all kinds, cut anywhere."""
        for seed in range(10):
            data, _ = log_of(seed)
            for most in (1, 7, 100, 1000, LOG_SIZE):
                feed(data, random.Random(seed), most)

    def test_any_flip_in_a_body(self) -> None:
        """Each is found, and the record is named."""
        for seed in range(60):
            rng = random.Random(seed)
            data, bodies = log_of(seed % 7)
            body_at, length = rng.choice([one for one in bodies if one[1]])
            damaged = bytearray(data)
            damaged[body_at + rng.randrange(length)] ^= 1 << rng.randrange(8)
            for most in (1, 50, LOG_SIZE):
                error = self.assertRaises(WireError, feed, bytes(damaged), rng, most)
                self.assertIn("bodyCRC", str(error))

    def test_any_bytes(self) -> None:
        """Damage anywhere else is a WireError, or none of its business; never another exception, no loop."""
        for seed in range(300):
            rng = random.Random(seed)
            data = bytearray(log_of(seed % 7)[0])
            data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
            try:
                feed(bytes(data), rng, rng.choice((50, LOG_SIZE)))
            except WireError:
                pass

    def test_twin(self) -> None:
        """A record that passes here passes L{problem_of}."""
        data, bodies = log_of(3)
        at = 0
        size = int.from_bytes(data[:4], "big")
        self.assertEqual(problem_of(data[at:size], 0, LOG_SIZE, LOG_SIZE), "")
        self.assertGreater(len(bodies), 10)

    def test_log_refuses(self) -> None:
        """A slave stores the records before the bad one, and nothing of it if it comes in one piece."""
        data, bodies = log_of(2)
        damaged = bytearray(data)
        damaged[next(at for at, length in bodies[2:] if length)] ^= 1
        log = open_log(SimDisk(random.Random(1)), is_slave=True)
        self.assertRaises(WireError, log.append_raw, 0, bytes(damaged[:LOG_SIZE]))
        self.assertEqual((log.end_offset, log.broken), (0, ""))
        log.append_raw(0, data[:LOG_SIZE])
        log.append_raw(LOG_SIZE, data[LOG_SIZE : LOG_SIZE + 60])
        self.assertEqual(log.cut(log.end_offset), LOG_SIZE)
        log.append_raw(LOG_SIZE, data[LOG_SIZE : LOG_SIZE + 300])
