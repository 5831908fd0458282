# -*- test-case-name: tests.broker.store.test_records -*-
"""Records on their hot roads are the records of the readable codec."""

from __future__ import annotations

import random

from twisted.trial.unittest import SynchronousTestCase

from dledger.rocketmq.store.records.records import (
    RecordWalk,
    blank,
    check_record,
    property_of,
    read_plain_record,
    read_record,
    size_of,
    store_timestamp_of,
)
from protocols.wire.errors import WireError
from protocols.wire.rocketmq.message import Host, decode_message, encode_message, tags_code_of
from tests.broker.support import GOLDEN, message, packed, some_message, twin_of

ROOM = 1 << 20
LEVELS = (1_000, 5_000, 10_000)


class PackTests(SynchronousTestCase):
    """What a master stores."""

    def test_a_golden_record_is_packed(self) -> None:
        """The bytes of a real broker."""
        new = message(
            born_timestamp=0x1A1FBA34B5A, born_host=Host.of("127.0.0.1", 0xCC30),
            store_host=Host.of("127.0.0.1", 0x51AF), properties_data=GOLDEN[-25:],
        )
        self.assertEqual(packed(new, queue_offset=0, offset=0, now_ms=0x1A1FBA34B91), GOLDEN)

    def test_as_the_readable_codec(self) -> None:
        """Any message, IPv6 and long topics included, has the same bytes."""
        rng = random.Random(1)
        for _ in range(300):
            new = some_message(rng)
            if rng.random() < 0.2:
                new = message(topic="L" * rng.randrange(100, 256), store_host=Host.of("::1", 1))
            queue_offset = rng.randrange(1 << 40) if new.is_queued else 0
            numbers = {"offset": rng.randrange(1 << 40), "queue_offset": queue_offset, "now_ms": 9}
            record = packed(new, **numbers)
            self.assertEqual(len(record), size_of(new))
            self.assertEqual(record, encode_message(twin_of(new, **numbers)))

    def test_impossible_records_are_refused(self) -> None:
        """What no record can hold."""
        for new, part in ((message(topic="x" * 32768), "topic of 32768 bytes"),
                          (message(topic=""), "topic of 0 bytes"),
                          (message(properties_data=bytes(32768)), "properties of 32768 bytes")):
            with self.assertRaises(ValueError) as caught:
                size_of(new)
            self.assertIn(part, str(caught.exception))

    def test_transactions_have_no_place(self) -> None:
        """Prepared and rolled back ones are not queued; committed ones are."""
        self.assertEqual([message(sys_flag=flag).is_queued for flag in (0, 0x4, 0x8, 0xC)],
                         [True, False, True, False])


class ReadTests(SynchronousTestCase):
    """The fields for the consume queues."""

    def test_a_golden_record_is_read(self) -> None:
        """A real broker's record."""
        record = read_record(GOLDEN, 0, 0, ROOM, LEVELS)
        self.assertEqual(tuple(record), (123, b"T1", 0, 0, 65, 0x1A1FBA34B91, True))
        self.assertEqual(store_timestamp_of(GOLDEN), 0x1A1FBA34B91)
        self.assertEqual(check_record(GOLDEN, 0, 0, ROOM), (123, True))

    def test_as_the_readable_codec(self) -> None:
        """Any message: the same fields."""
        rng = random.Random(2)
        for _ in range(300):
            new = some_message(rng)
            record = packed(new, queue_offset=7, offset=11, now_ms=1000)
            twin = decode_message(record)
            found = read_record(b"xx" + record, 2, 11, ROOM, LEVELS)
            code = tags_code_of(twin.tags)
            if twin.topic == "SCHEDULE_TOPIC_XXXX":
                code = 1000 + LEVELS[min(int(twin.properties["DELAY"]), 3) - 1]
            self.assertEqual(
                tuple(found),
                (len(record), twin.topic.encode(), twin.queue_id, 7 if new.is_queued else 0, code, 1000,
                 new.is_queued),
            )
            self.assertEqual(store_timestamp_of(record), 1000)

    def test_every_truncation_is_an_error(self) -> None:
        """Whole, or an error; never something else."""
        for size in range(len(GOLDEN)):
            for read in (lambda data: read_record(data, 0, 0, ROOM, LEVELS),
                         lambda data: check_record(data, 0, 0, ROOM)):
                self.assertRaises(WireError, read, GOLDEN[:size])
            self.assertIn(store_timestamp_of(GOLDEN[:size]), (0, 0x1A1FBA34B91))

    def test_any_damage_is_an_error(self) -> None:
        """A record or an error, whatever the bytes are."""
        rng = random.Random(3)
        errors = 0
        for _ in range(3000):
            data = bytearray(GOLDEN)
            for _ in range(rng.randrange(1, 4)):
                data[rng.randrange(len(data))] = rng.choice([0, 1, 0x7F, 0x80, 0xFF, rng.randrange(256)])
            try:
                record = read_record(bytes(data), 0, 0, ROOM, LEVELS)
                self.assertLessEqual(record.size, len(data))
            except WireError:
                errors += 1
        self.assertGreater(errors, 500)

    def test_the_short_road_reads_the_same(self) -> None:
        """What is read without a close look is what a close look finds; what is wrong is left to that."""
        rng = random.Random(4)
        short = 0
        for _ in range(3000):
            new = some_message(rng)
            damaged = bytearray(b"yyy" + packed(new, queue_offset=7, offset=11, now_ms=1000))
            for _ in range(rng.choice((0, 0, 1, 2))):
                at = rng.choice((rng.randrange(len(damaged)), rng.randrange(3, 95)))
                damaged[at] ^= 1 << rng.randrange(8)
            data = bytes(damaged[: rng.choice((len(damaged), rng.randrange(3, len(damaged))))])
            room = rng.choice((ROOM, len(damaged) - 3, rng.randrange(len(damaged))))
            found = read_plain_record(data, 3, room, LEVELS)
            if found is not None:
                self.assertEqual(found, tuple(read_record(data, 3, 11, room, LEVELS)))
                short += 1
        self.assertGreater(short, 300)

    def test_short_road_of_a_delayed_message(self) -> None:
        """It has its level in its properties, tags or none."""
        new = message(topic="SCHEDULE_TOPIC_XXXX", properties_data=b"DELAY\x012\x02")
        data = packed(new, queue_offset=7, offset=0, now_ms=1000)
        found = read_plain_record(data, 0, ROOM, LEVELS)
        assert found is not None
        self.assertEqual((found[1], found[4]), (b"SCHEDULE_TOPIC_XXXX", 1000 + LEVELS[1]))

    def test_a_negative_length_is_refused(self) -> None:
        """The topic's length in V1 is signed, as in Java: 200 bytes are no topic."""
        record = bytearray(packed(message(topic="t" * 100), queue_offset=0, offset=0, now_ms=1))
        at = record.index(b"t" * 100)
        record[at:at] = b"t" * 100
        record[at - 1] = 200
        record[:4] = len(record).to_bytes(4, "big")
        self.assertIsNone(read_plain_record(bytes(record), 0, ROOM, LEVELS))
        error = self.assertRaises(WireError, read_record, bytes(record), 0, 0, ROOM, LEVELS)
        self.assertIn("topicLength=-56", str(error))

    def test_checksum_and_offset_are_compared(self) -> None:
        """The body's checksum and the record's own offset are compared."""
        for at, part in ((90, "bodyCRC"), (35, "own offset is")):
            damaged = bytearray(GOLDEN)
            damaged[at] ^= 1
            with self.assertRaises(WireError) as caught:
                check_record(bytes(damaged), 0, 0, ROOM)
            self.assertIn(part, str(caught.exception))

    def test_zeroes_are_in_doubt(self) -> None:
        """A cut anywhere in the properties passes every check, but not without doubt."""
        for size in range(len(GOLDEN) - 25, len(GOLDEN)):
            torn = GOLDEN[:size].ljust(len(GOLDEN), b"\0")
            self.assertEqual(check_record(torn, 0, 0, ROOM), (123, False), size)
        for size in range(8, len(GOLDEN) - 25):
            torn = GOLDEN[:size].ljust(len(GOLDEN), b"\0")
            try:
                self.assertEqual(check_record(torn, 0, 0, ROOM)[1], False, size)
            except WireError:
                pass

    def test_properties_are_read_like_java(self) -> None:
        """As Java's map would hold it."""
        for data, expected in (
            (b"TAGS\x01A", b"A"), (b"TAGS\x01A\x02", b"A"), (b"K\x01TAGS\x02TAGS\x01B\x02", b"B"),
            (b"XTAGS\x01A\x02", None), (b"TAGS\x01\x02", None), (b"TAGS\x01A\x02TAGS\x01B\x02", b"B"),
            (b"TAGS\x01A\x01B\x02", None), (b"", None),
        ):
            self.assertEqual(property_of(data, b"TAGS\x01"), expected, data)


class WalkTests(SynchronousTestCase):
    """Where records end, however the stream is cut."""

    def stream(self) -> tuple[bytes, list[int]]:
        """Two files of 1024 bytes: records, a blank, records; and where each of them ends."""
        rng = random.Random(4)
        data, ends = b"", []
        while len(data) < 2048:
            new = message(rng.randbytes(rng.randrange(200)))
            size = size_of(new)
            room = 1024 - len(data) % 1024
            if size + 8 > room:
                data += blank(room) + rng.randbytes(room - 8)
            else:
                data += packed(new, queue_offset=0, offset=len(data), now_ms=1)
            ends.append(len(data))
        return data, ends

    def test_every_cut_finds_the_end(self) -> None:
        """In pieces of every size, the end is known after each byte."""
        data, ends = self.stream()
        for size in (*range(1, 130), 1000, 1024):
            walk = RecordWalk(1024, 0)
            at = 0
            while at < len(data):
                piece = min(size, 1024 - at % 1024)
                walk.feed(data[at : at + piece])
                at += piece
                # A blank is whole when its file ends.
                self.assertEqual(walk.end, max((end for end in ends if end <= at), default=0), (size, at))

    def test_a_copy_walks_by_itself(self) -> None:
        """A copy goes on by itself."""
        data, _ = self.stream()
        walk = RecordWalk(1024, 0)
        walk.feed(data[:10])
        twin = walk.copy()
        twin.feed(data[10:600])
        self.assertEqual(walk.end, 0)
        walk.feed(data[10:600])
        self.assertEqual(walk.end, twin.end)

    def test_damage_behind_sound_records(self) -> None:
        """All in one piece: it ends, or is refused, where it would byte by byte."""

        def outcome(pieces: list[bytes]) -> object:
            walk = RecordWalk(1024, 0)
            try:
                for piece in pieces:
                    walk.feed(piece)
            except WireError as error:
                return str(error)
            return walk.end

        rng = random.Random(5)
        stream, starts = b"", []
        while len(stream) < 850:
            new = message(bytes(rng.randrange(60)), topic="T" * rng.choice((2, 2, 130)))
            starts.append(len(stream))
            stream += packed(new, queue_offset=0, offset=len(stream), now_ms=1)
        refused = 0
        for _ in range(500):
            data = bytearray(stream)
            if rng.random() < 0.9:
                at = rng.choice(starts) + rng.choice((*range(8), *range(28, 36)))
                data[at] ^= 1 << rng.randrange(8)
            whole = bytes(data[: rng.randrange(len(data))])
            expected = outcome([whole[at : at + 1] for at in range(len(whole))])
            self.assertEqual(outcome([whole]), expected)
            refused += isinstance(expected, str)
        self.assertGreater(refused, 100)

    def test_files_of_another_size(self) -> None:
        """
        A blank of larger files would swallow the records after it, and a record of larger files has no room:
        both are refused, and the reason names the option. A torn blank is one.
        """
        data, ends = self.stream()
        first = max(end for end in ends[:-1] if end < 1024)
        walk = RecordWalk(2048, 0)
        walk.feed(data[:first])
        with self.assertRaises(WireError) as caught:
            walk.feed(data[first:])
        reason = str(caught.exception)
        self.assertIn(f"a blank of {1024 - first} bytes, where {2048 - first} are left", reason)
        self.assertIn("mapped_file_size_commit_log", reason)
        with self.assertRaises(WireError) as caught:
            RecordWalk(128, 0).feed(packed(message(bytes(90)), queue_offset=0, offset=0, now_ms=1)[:128])
        self.assertIn("in a file of 128: is mapped_file_size_commit_log", str(caught.exception))
        walk = RecordWalk(1024, 0)
        walk.feed(data[:first] + bytes(4) + data[first + 4 : 1024])
        self.assertEqual(walk.end, 1024)

    def test_what_is_no_record(self) -> None:
        """Refused as soon as its head is there."""
        sound = packed(message(), queue_offset=0, offset=0, now_ms=1)
        for at, value, part in (
            (7, 0, "magic"), (3, 5, "size=5"), (0, 0x7F, "size="), (35, 9, "own offset is 9")
        ):
            data = bytearray(sound)
            data[at] = value
            with self.assertRaises(WireError) as caught:
                RecordWalk(1024, 0).feed(bytes(data))
            self.assertIn(part, str(caught.exception))
        walk = RecordWalk(128, 0)
        walk.feed(packed(message(b""), queue_offset=0, offset=0, now_ms=1))
        with self.assertRaises(WireError) as caught:
            walk.feed(bytes(128 - walk.end))
        self.assertIn("no blank", str(caught.exception))
