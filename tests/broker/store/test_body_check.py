# -*- test-case-name: tests.broker.store.test_body_check -*-
"""Bodies are checked in pieces of any size."""

from __future__ import annotations

import random
from contextlib import nullcontext
from unittest import mock

from twisted.trial.unittest import SynchronousTestCase

from dledger.rocketmq.store.records import body_check
from dledger.rocketmq.store.records.body_check import (
    RUN_MIN,
    BodyCheck,
    are_bodies_right,
    equal_records,
    is_usual_and_sound,
    sound_run,
)
from dledger.rocketmq.store.records.records import problem_of
from dledger.testing.world.disk import SimDisk
from protocols.wire.errors import WireError
from protocols.wire.rocketmq.layout import MAGIC_BLANK, START, START_SIZE
from tests.broker.support import LOG_SIZE, config_of, log_bytes, message, open_log, some_message

BIG = 1 << 20


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


class UsualRecordTests(SynchronousTestCase):
    """L{is_usual_and_sound} never takes what the long way refuses, and takes the most frequent records."""

    def test_no_damaged_record_is_taken(self) -> None:
        """Any byte of its head, body or lengths that has changed, any other size or place."""
        taken, rng = 0, random.Random(5)
        for seed in range(4):
            data, _ = log_of(seed)
            at = 0
            while at < len(data) and data[at + 4 : at + 8] != bytes.fromhex("cbd43194"):
                size = int.from_bytes(data[at : at + 4], "big")
                record = data[at : at + size]
                at += size
                if not is_usual_and_sound(record, at - size):
                    continue
                taken += 1
                self.assertEqual(problem_of(record, at - size, LOG_SIZE, LOG_SIZE), "")
                self.assertFalse(is_usual_and_sound(record, at))
                self.assertFalse(is_usual_and_sound(record[:-1], at - size))
                self.assertFalse(is_usual_and_sound(record[:20], at - size))
                body = int.from_bytes(record[84:88], "big")
                properties = 89 + body + record[88 + body]
                crc = range(8, 12) if body else ()
                head_or_body = rng.choice([*range(8), *crc, *range(28, 36), *range(84, 88 + body)])
                for place in (head_or_body, 88 + body, properties, properties + 1):
                    hurt = bytearray(record)
                    hurt[place] ^= 1 << rng.randrange(8)
                    if place != 8 or hurt[8] & 0x7F != record[8] & 0x7F:
                        self.assertFalse(is_usual_and_sound(bytes(hurt), at - size), place)
        self.assertGreater(taken, 10)


class SoundRunTests(SynchronousTestCase):
    """L{sound_run} takes at once what L{is_usual_and_sound} takes one by one, and nothing else."""

    def setUp(self) -> None:
        log = open_log(SimDisk(random.Random(1)), config=config_of(mapped_file_size_commit_log=BIG))
        rng = random.Random(2)
        log.append([[message(rng.randbytes(20), queue_id=at % 4) for at in range(RUN_MIN + 5)]], 1)
        self.data = log_bytes(log)
        self.size = len(self.data) // (RUN_MIN + 5)

    def test_run(self) -> None:
        """All of them; from a later one on; too few; at another place."""
        self.assertEqual(sound_run(self.data, 0), (RUN_MIN + 5, self.size))
        self.assertEqual(sound_run(self.data[self.size :], self.size), (RUN_MIN + 4, self.size))
        self.assertEqual(sound_run(self.data[: self.size * RUN_MIN - 1], 0), (0, 0))
        self.assertEqual(sound_run(self.data, 8), (0, 0))

    def test_damaged(self) -> None:
        """Any byte of any record whose change makes it unsound."""
        rng, noticed = random.Random(3), 0
        for number in (0, 1, 17, RUN_MIN + 4):
            at = number * self.size
            for place in range(self.size):
                hurt = bytearray(self.data)
                hurt[at + place] ^= 1 << rng.randrange(7)
                if not is_usual_and_sound(bytes(hurt[at : at + self.size]), at):
                    noticed += 1
                    count, _ = sound_run(bytes(hurt), 0)
                    self.assertTrue(number >= count, (number, place))
        self.assertGreater(noticed, 4 * 40)


class BodyCheckTests(SynchronousTestCase):
    """Its twin reads whole records."""

    def test_sound_records_pass(self) -> None:
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

    def test_any_damage_is_a_wire_error(self) -> None:
        """Damage anywhere else is a WireError, or none of its business; never another exception, no loop."""
        for seed in range(300):
            rng = random.Random(seed)
            data = bytearray(log_of(seed % 7)[0])
            data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
            try:
                feed(bytes(data), rng, rng.choice((50, LOG_SIZE)))
            except WireError:
                pass

    def test_a_record_that_passes_is_sound(self) -> None:
        """A record that passes here passes L{problem_of}."""
        data, bodies = log_of(3)
        at = 0
        size = int.from_bytes(data[:4], "big")
        self.assertEqual(problem_of(data[at:size], 0, LOG_SIZE, LOG_SIZE), "")
        self.assertGreater(len(bodies), 10)
        blank = START.pack(START_SIZE, MAGIC_BLANK)
        self.assertEqual(problem_of(blank, LOG_SIZE - START_SIZE, START_SIZE, LOG_SIZE), "")
        for end in (0, START_SIZE - 1, START_SIZE, size - 1):
            self.assertIsNone(problem_of(data[:end], 0, LOG_SIZE, LOG_SIZE), end)

    def test_a_slave_refuses_a_bad_record(self) -> None:
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


def equal_log(count: int, body: int, *, others: int = 0) -> bytes:
    """Records of one size, then some of all kinds."""
    rng = random.Random(body)
    log = open_log(SimDisk(rng), config=config_of(mapped_file_size_commit_log=BIG))
    for number in range(count):
        log.append([[message(rng.randbytes(body), properties={"KEYS": f"{number:04d}"})]], 1)
    for _ in range(others):
        log.append([[some_message(rng)]], 1)
    return log_bytes(log)


def outcome(data: bytes, *, is_slow: bool) -> str:
    """What a check of all these bytes finds; empty: all is well."""
    walk = BodyCheck(BIG, 0)
    with mock.patch.object(body_check, "equal_records", lambda *_: (0, 0)) if is_slow else nullcontext():
        try:
            walk.feed(data)
        except WireError as error:
            return str(error)
    return f"fed {walk.fed}, {walk._end}, {walk._left}, {walk._head!r}"


class EqualRecordsTests(SynchronousTestCase):
    """Many records of one size are checked together, with the result of the check one by one."""

    def assertAlike(self, data: bytes, what: object = "") -> None:
        """Both roads."""
        self.assertEqual(outcome(data, is_slow=False), outcome(data, is_slow=True), what)

    def test_equal_records_pass(self) -> None:
        """Few and many, with others after them, cut anywhere near the end."""
        for count in (1, RUN_MIN - 1, RUN_MIN, 3 * RUN_MIN + 1):
            for body in (0, 1, 100):
                for others in (0, 5):
                    data = equal_log(count, body, others=others)
                    for cut in (0, 1, 50, 90, 100, 150, 300):
                        self.assertAlike(data[: len(data) - cut], (count, body, cut))

    def test_every_damaged_byte(self) -> None:
        """Of one record in the middle, and of the first."""
        data = equal_log(RUN_MIN + 4, 30)
        size = int.from_bytes(data[:4], "big")
        for at in (*range(size), *range(9 * size, 10 * size)):
            for bit in (0, 7):
                damaged = bytearray(data)
                damaged[at] ^= 1 << bit
                self.assertAlike(bytes(damaged), (at, bit))

    def test_the_fast_road_is_taken(self) -> None:
        """The fast road is."""
        data = memoryview(equal_log(4 * RUN_MIN, 100))
        count, size = equal_records(data, 0)
        self.assertEqual((count, count * size), (4 * RUN_MIN, len(data)))
        self.assertTrue(are_bodies_right(data, 0, count, size))
        self.assertEqual(equal_records(data[: RUN_MIN * size - 1], 0), (0, 0))
        self.assertEqual(equal_records(memoryview(bytes(9000)), 0), (0, 0))
