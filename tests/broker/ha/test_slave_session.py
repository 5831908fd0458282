# -*- test-case-name: tests.broker.ha.test_slave_session -*-
"""What a slave makes of frames: it follows, compares, cuts, and refuses."""

from __future__ import annotations

import contextlib
import random
from typing import Any
from unittest import mock

from twisted.trial.unittest import SynchronousTestCase

from dledger.rocketmq.replication.slave_session import (
    Difference,
    Diverged,
    ReplicationStopped,
    SessionEnded,
    SlaveSession,
)
from protocols.wire.errors import WireError
from protocols.wire.rocketmq.layout import MAGIC_BLANK
from tests.broker.ha.fakes import FILE_SIZE, MemoryLog, record, stream

FRAME = 600


def serve(follower: SlaveSession, master: MemoryLog, *, start: int | None = None, frame: int = FRAME) -> int:
    """
    A session with a master that sends everything it has.

    @param start: where it begins; by default where it was asked to.
    @return: the first report.
    """
    first = follower.begin()
    offset = first if start is None else start
    try:
        while offset < master.end_offset:
            data = master.read(offset, frame)
            follower.take(offset, memoryview(data))
            offset += len(data)
        follower.take(offset, memoryview(b""))
    finally:
        follower.end()
    return first


class FollowTests(SynchronousTestCase):
    """An undisturbed slave."""

    def setUp(self) -> None:
        self.master = MemoryLog(stream(3 * FILE_SIZE))
        self.log = MemoryLog()

    def follower(self, **options: Any) -> SlaveSession:
        """Of C{self.log}."""
        return SlaveSession(self.log, verify_size=200, **options)

    def test_from_the_beginning(self) -> None:
        """Byte for byte, whatever the frames."""
        for frame in (1, 7, 100, 4096):
            self.log = MemoryLog()
            self.assertEqual(serve(self.follower(), self.master, frame=frame), 0)
            self.assertEqual(self.log.data, self.master.data)

    def test_from_the_last_file(self) -> None:
        """An empty log begins where the master begins."""
        serve(self.follower(), self.master, start=2 * FILE_SIZE)
        self.assertEqual(self.log.begin_offset, 2 * FILE_SIZE)
        self.assertEqual(self.log.data, self.master.data[2 * FILE_SIZE :])

    def test_not_a_file(self) -> None:
        """An empty log cannot begin within a file."""
        self.assertRaises(SessionEnded, serve, self.follower(), self.master, start=100)
        self.assertEqual(self.log.data, b"")

    def test_a_gap_ends_the_session(self) -> None:
        """A frame that does not continue the last one ends the session; nothing of it is written."""
        for offset in (999, 1001, 0):
            log = MemoryLog(self.master.data[:1000])
            follower = SlaveSession(log, verify_size=10)
            start = follower.begin()
            follower.take(start, memoryview(self.master.data[start:1000]))
            error = self.assertRaises(SessionEnded, follower.take, offset, memoryview(b"abc"))
            self.assertIn(f"begins at {offset}, but 1000 is next", str(error))
            self.assertEqual(log.end_offset, 1000)

    def test_heartbeat_is_checked(self) -> None:
        """A heartbeat that expects another offset shows that we are not in step."""
        follower = self.follower()
        follower.begin()
        follower.take(0, memoryview(self.master.data[:50]))
        follower.take(50, memoryview(b""))
        self.assertRaises(SessionEnded, follower.take, 49, memoryview(b""))

    def test_other_file_size(self) -> None:
        """A frame that crosses the end of our file says that the sizes differ."""
        follower = self.follower()
        follower.begin()
        follower.take(0, memoryview(self.master.data[:4000]))
        error = self.assertRaises(SessionEnded, follower.take, 4000, memoryview(bytes(97)))
        self.assertIn("crosses the end of a file of 4096 bytes", str(error))
        self.assertEqual(self.log.end_offset, 4000)

    def test_reports_name_the_first_missing_byte(self) -> None:
        """What is equal to the master's log, the first byte that we do not have."""
        follower = self.follower()
        self.assertEqual(follower.begin(), 0)
        self.assertEqual(follower.reportable(), 0)
        follower.take(0, memoryview(self.master.data[:50]))
        self.assertEqual(follower.reportable(), 50)

    def test_reports_name_flushed_bytes_only(self) -> None:
        """With SYNC_FLUSH only what is on stable storage, at the start of a session, too."""
        follower = self.follower(reports_flushed=True)
        follower.begin()
        follower.take(0, memoryview(self.master.data[:3000]))
        self.assertEqual(follower.reportable(), 0)
        self.log.flushed_offset = 1500
        self.assertEqual(follower.reportable(), 1500)
        follower.end()
        self.assertLessEqual(follower.begin(), 1500 - 200)

    def test_a_full_disk_does_not_count_bytes(self) -> None:
        """What could not be written is not counted; the next session goes on from there."""
        follower = self.follower()
        follower.begin()
        follower.take(0, memoryview(self.master.data[:50]))
        self.log.fails = OSError(28, "No space left on device")
        self.assertRaises(OSError, follower.take, 50, memoryview(self.master.data[50:60]))
        self.assertEqual(follower.reportable(), 50)
        follower.end()
        serve(follower, self.master)
        self.assertEqual(self.log.data, self.master.data)


class CountingLog(MemoryLog):
    """Counts what is appended in one call; bytes with 0xEE in them are no records."""

    def __init__(self, data: bytes = b"") -> None:
        super().__init__(data)
        self.appends: list[int] = []

    def append_raw(self, offset: int, data: bytes | memoryview) -> None:
        """Count."""
        if 0xEE in bytes(data):
            raise WireError("0xEE")
        super().append_raw(offset, data)
        self.appends.append(len(data))


class ManyTests(SynchronousTestCase):
    """All frames of one read."""

    def setUp(self) -> None:
        self.data = bytes(random.Random(1).choices(range(200), k=3 * FILE_SIZE))

    def outcome(
        self, pieces: list[tuple[int, memoryview]], *, held: int = 0, start: int = 0, together: bool = True
    ) -> tuple[CountingLog, tuple[object, ...]]:
        """The fate of a slave that holds C{held} bytes, and compares from C{start} on."""
        log = CountingLog(self.data[:held])
        follower = SlaveSession(log)
        follower.begin()
        follower.expected_offset = start
        said = ""
        try:
            if together:
                follower.take_all(pieces)
            else:
                for piece in pieces:
                    follower.take(*piece)
        except (SessionEnded, WireError) as error:
            said = str(error)
        return log, (said, bytes(log.data), log.cuts, follower.expected_offset, follower.master_offset,
                     follower.frames, follower.reportable())

    def test_as_one_by_one(self) -> None:
        """Whatever comes, and wherever it goes wrong: the same is kept, reported and complained of."""
        seen = set()
        for seed in range(400):
            rng = random.Random(seed)
            data = bytearray(self.data)
            held = rng.choice((0, 50, 1000, FILE_SIZE, FILE_SIZE + 100))
            start = offset = max(held - rng.choice((0, 0, 900)), 0)
            if rng.random() < 0.4:
                data[rng.choice((start + 30, rng.randrange(len(data))))] = rng.choice((0xEE, 0xDD))
            pieces = []
            while offset < len(data) and len(pieces) < 40:
                size = min(rng.choice((0, 1, 100, 500, 700)), FILE_SIZE - offset % FILE_SIZE)
                size += rng.random() < 0.02
                jump = rng.choice((-1, 1)) if rng.random() < 0.02 else 0
                pieces.append((offset + jump, memoryview(bytes(data[offset : offset + size]))))
                offset += size
            _, single = self.outcome(pieces, held=held, start=start, together=False)
            log, joined = self.outcome(pieces, held=held, start=start)
            self.assertEqual(joined, single, f"seed {seed}")
            seen.add(str(single[0])[:11])
        self.assertEqual(seen, {"", "0xEE", "a frame beg", "a frame of ", "our log dif"})

    def test_frames_of_a_read_share_a_write(self) -> None:
        """Frames that go after the end are written together, up to the end of a file."""
        pieces = [(at, memoryview(self.data[at : at + 512])) for at in range(0, 2 * FILE_SIZE, 512)]
        log, _ = self.outcome(pieces)
        self.assertEqual(log.appends, [512, FILE_SIZE - 512, FILE_SIZE])
        self.assertEqual(log.data, self.data[: 2 * FILE_SIZE])


class HistoryTests(SynchronousTestCase):
    """An empty slave that wants the whole log."""

    def setUp(self) -> None:
        self.log = MemoryLog()
        self.follower = SlaveSession(self.log, full_history=True)

    def test_one_file_is_the_whole_history(self) -> None:
        """The master begins with its last file, which is the first one."""
        master = MemoryLog(stream(1000))
        serve(self.follower, master)
        self.assertEqual(self.log.data, master.data)

    def test_several_files_need_the_first(self) -> None:
        """The last file is refused; 1 is served from there, and the byte before it is known."""
        master = MemoryLog(stream(3 * FILE_SIZE))
        error = self.assertRaises(SessionEnded, serve, self.follower, master, start=2 * FILE_SIZE)
        self.assertIn("ha_full_history is on", str(error))
        self.assertEqual(self.log.data, b"")
        self.assertEqual(serve(self.follower, master), 1)
        self.assertEqual(self.log.data, master.data)

    def test_heartbeat_at_the_last_file(self) -> None:
        """An idle master reports with a heartbeat where it begins."""
        self.follower.begin()
        self.assertRaises(SessionEnded, self.follower.take, FILE_SIZE, memoryview(b""))
        self.follower.end()
        self.assertEqual(self.follower.begin(), 1)

    def test_master_comes_back_empty(self) -> None:
        """An offset that one master asked for is forgotten when a session with it brings nothing."""
        self.follower.begin()
        self.assertRaises(SessionEnded, self.follower.take, FILE_SIZE, memoryview(b""))
        self.follower.end()
        self.assertEqual(self.follower.begin(), 1)
        self.follower.end()  # an empty master refuses 1
        self.assertEqual(serve(self.follower, MemoryLog()), 0)

    def test_a_known_begin_is_asked_for(self) -> None:
        """A master that has deleted files is asked for its first one."""
        master = MemoryLog(stream(2 * FILE_SIZE, start=FILE_SIZE), begin=FILE_SIZE)
        self.assertEqual(self.follower.begin(FILE_SIZE), FILE_SIZE)
        self.follower.take(FILE_SIZE, memoryview(master.read(FILE_SIZE, 100)))
        self.assertEqual((self.log.begin_offset, self.log.end_offset), (FILE_SIZE, FILE_SIZE + 100))


class CompareTests(SynchronousTestCase):
    """What is held already is compared; where it differs, it is kept until an operator decides."""

    def setUp(self) -> None:
        self.master = MemoryLog(stream(3 * FILE_SIZE))

    def test_equal_bytes_are_not_appended(self) -> None:
        """Only what is new is appended, also where a frame holds both."""
        log = MemoryLog(self.master.data[:5000])
        follower = SlaveSession(log, verify_size=500)
        start = serve(follower, self.master, frame=499)
        self.assertLessEqual(start, 4500)
        self.assertGreater(start, 4500 - 200)
        self.assertEqual(log.data, self.master.data)
        self.assertEqual(follower.truncations, 0)

    def test_a_first_session_compares_more(self) -> None:
        """After a start more is compared, until that has gone well."""
        log = MemoryLog(self.master.data[:5000])
        follower = SlaveSession(log, verify_size=500, verify_size_at_start=3000)
        starts = []
        for _ in range(2):
            starts.append(follower.begin())
            follower.end()
        starts += [serve(follower, self.master), follower.begin()]
        self.assertLessEqual(max(starts[:3]), 2000)
        self.assertGreater(starts[3], log.end_offset - 700)

    def test_reports_while_comparing(self) -> None:
        """Only what was compared."""
        follower = SlaveSession(MemoryLog(self.master.data[:5000]), verify_size=500)
        start = follower.begin()
        follower.take(start, memoryview(self.master.read(start, 100)))
        self.assertTrue(follower.is_comparing)
        self.assertEqual(follower.reportable(), start + 100)

    def settle(self, log: MemoryLog, sessions: int = 20, verify_size: int = 300) -> SlaveSession:
        """Session after session, until one goes well; an operator takes the master's log each time."""
        follower = SlaveSession(log, verify_size=verify_size)
        for _ in range(sessions):
            before = bytes(log.data)
            try:
                serve(follower, self.master)
            except ReplicationStopped as stopped:
                self.assertEqual(log.data, before)
                log.set_aside(stopped.difference.common_end)
                follower.begin_anew()
                continue
            except SessionEnded:
                self.assertEqual(log.data, before)
                continue
            return follower
        raise AssertionError("it never ends")

    def test_zeroes_at_the_end(self) -> None:
        """Another last record: it is fetched again, and nothing else."""
        last = len(self.master.data[:5000])
        log = MemoryLog(self.master.data[:last])
        end = log.cut(last)
        damaged = bytearray(self.master.data[:end])
        damaged[-3:] = b"\0\0\0"
        log = MemoryLog(damaged)
        follower = self.settle(log)
        self.assertEqual(log.data, self.master.data)
        self.assertEqual((follower.truncations, len(log.cuts), log.asides), (0, 1, [bytes(damaged)]))
        self.assertLess(end - log.cuts[0], 200)

    def test_another_tail_is_cut(self) -> None:
        """The master came back shorter, and has gone on otherwise: up to the last common record."""
        for common in (100, 3000, 5000, 9000):
            log = MemoryLog(self.master.data)
            common = MemoryLog(self.master.data).cut(common)
            old = MemoryLog(self.master.data[:common] + stream(4000, at=77, start=common))
            old.cut(11_000)
            log = MemoryLog(old.data)
            self.settle(log)
            self.assertEqual(log.data, self.master.data, common)
            self.assertEqual(min(log.cuts), common)

    def test_nothing_in_common(self) -> None:
        """Another log altogether: the operator gives up everything."""
        log = MemoryLog(stream(3000, at=99))
        self.settle(log)
        self.assertEqual(log.data, self.master.data)

    def test_a_difference_widens_the_comparison(self) -> None:
        """A comparison that begins with a difference proves nothing of what is below: the next goes lower."""
        log = MemoryLog(self.master.data[:2000] + stream(2000, at=77, start=2000))
        follower = SlaveSession(log, verify_size=100)
        first = follower.begin()
        self.assertRaises(SessionEnded, follower.take, first, memoryview(self.master.read(first, 200)))
        follower.end()
        end = log.end_offset
        self.assertEqual(log.cuts, [])
        self.assertLessEqual(follower.begin(), max(end - 1600, 1))

    def test_longer_than_the_master(self) -> None:
        """Bytes that the master lacks are neither cut nor reported, until it writes something else there."""
        log = MemoryLog(self.master.data + record(self.master.end_offset, at=5))
        follower = SlaveSession(log, verify_size=500)
        serve(follower, self.master)
        self.assertGreater(log.end_offset, self.master.end_offset)
        start = follower.begin()
        follower.take(start, memoryview(self.master.read(start, FILE_SIZE)))
        self.assertEqual(follower.reportable(), self.master.end_offset)
        at = self.master.end_offset
        self.master.put(record(at, at=6))
        stopped = self.assertRaises(
            ReplicationStopped, follower.take, at, memoryview(self.master.read(at, FILE_SIZE))
        )
        self.assertGreater(log.end_offset, at)
        self.assertEqual(stopped.difference.common_end, at)

    def test_fruitless_sessions_try_other_places(self) -> None:
        """Where the master sends nothing at all, other places are tried: the last file, and lower."""
        log = MemoryLog(self.master.data[:9000])
        follower = SlaveSession(log, verify_size=1000)
        starts = []
        for _ in range(7):
            starts.append(follower.begin())
            follower.end()
        self.assertLess(starts[0], 2 * FILE_SIZE)
        self.assertEqual(starts[:3], [starts[0]] * 3)
        self.assertEqual(starts[3:], [2 * FILE_SIZE, 1, 2 * FILE_SIZE, 1])
        serve(follower, self.master)
        self.assertEqual(log.data, self.master.data)
        follower.begin()
        follower.end()

    def test_heartbeats_alone_are_fruitless(self) -> None:
        """A master that has nothing there sends heartbeats, for ever."""
        follower = SlaveSession(MemoryLog(self.master.data[:5000]), verify_size=500)
        start = follower.begin()
        follower.take(start, memoryview(b""))
        self.assertFalse(follower.frames)
        follower.take(start, memoryview(self.master.read(start, 1)))
        self.assertTrue(follower.frames)


class DifferenceTests(SynchronousTestCase):
    """Whose record is sound, and what was ever reported, decide about a difference."""

    def setUp(self) -> None:
        self.data = stream(3000)
        ends = MemoryLog(self.data)
        self.end = ends.record_end_below(2000)
        self.record = ends.record_end_below(1000)

    def stop(self, ours: bytes, theirs: bytes, *, frame: int = FRAME) -> Difference:
        """Replication that stops; our log stays as it is."""
        log = MemoryLog(ours)
        follower = SlaveSession(log)
        error = self.assertRaises(ReplicationStopped, serve, follower, MemoryLog(theirs), frame=frame)
        self.assertEqual((log.data, log.cuts, follower.truncations), (ours, [], 0))
        found: Difference = error.difference
        return found

    def flipped(self, at: int) -> bytes:
        """The log with one other bit."""
        data = bytearray(self.data)
        data[at] ^= 1
        return bytes(data)

    def test_master_has_rot(self) -> None:
        """A flipped byte in the master's body: said so, and nothing is cut, in frames of any size."""
        body = self.data.index(b"hello", self.record)
        for frame in (1, 50, FRAME):
            found = self.stop(self.data, self.flipped(body), frame=frame)
            self.assertEqual((found.offset, found.common_end), (body, self.record))
            self.assertEqual(found.our_problem, "")
            self.assertIn("bodyCRC", found.master_problem)
            self.assertIn("repair the master", found.reason)

    def test_we_have_rot(self) -> None:
        """Our own flipped byte is distinguished, and stays, too."""
        body = self.data.index(b"hello", self.record)
        found = self.stop(self.flipped(body), self.data)
        self.assertIn("bodyCRC", found.our_problem)
        self.assertEqual(found.master_problem, "")

    def test_a_broken_session_leaves_nothing(self) -> None:
        """A session that ends within a record that differs leaves nothing to the next one."""
        body = self.data.index(b"hello", self.record)
        follower = SlaveSession(MemoryLog(self.data))
        start = follower.begin()
        follower.take(start, memoryview(self.flipped(body))[start : body + 2])
        follower.end()
        record = MemoryLog(self.data).record_end_below(500)
        body = self.data.index(b"hello", record)
        error = self.assertRaises(ReplicationStopped, serve, follower, MemoryLog(self.flipped(body)))
        found: Difference = error.difference
        self.assertEqual((found.offset, found.common_end, found.our_problem), (body, record, ""))
        self.assertIn("bodyCRC", found.master_problem)

    def test_rot_in_the_head(self) -> None:
        """A damaged length or magic of the master is not a record either."""
        for at in (1, 3, 5):
            found = self.stop(self.data, self.flipped(self.record + at))
            self.assertEqual((found.our_problem, found.master_problem != ""), ("", True), at)

    def test_a_larger_size_is_damage(self) -> None:
        """A record of the master that is larger only by its size is damage, without a wait for the rest."""
        last = MemoryLog(self.data).record_end_below(len(self.data) - 1)
        for frame in (1, 50, FRAME):
            found = self.stop(self.data, self.flipped(last + 2), frame=frame)
            self.assertEqual((found.our_problem, found.common_end), ("", last))
            self.assertIn("all else is that of a sound record", found.master_problem)

    def test_outside_of_the_checksum(self) -> None:
        """No checksum covers a topic: both are sound, and it is not for us to decide."""
        found = self.stop(self.data, self.flipped(self.data.index(b"T1", self.record)))
        self.assertEqual((found.our_problem, found.master_problem), ("", ""))

    def test_only_unreported_bytes_are_cut(self) -> None:
        """Bytes that nobody was informed about are cut; a record that was reported is not."""
        other = self.data[: self.end] + stream(1000, at=7, start=self.end)
        for reported, is_cut in ((self.end, True), (self.end + 5, True), (len(self.data), False)):
            log = MemoryLog(self.data)
            follower = SlaveSession(log)
            follower.reported_offset = reported
            self.assertRaises(
                Diverged if is_cut else ReplicationStopped, serve, follower, MemoryLog(other)
            )
            self.assertEqual(log.end_offset, self.end if is_cut else len(self.data), reported)

    def test_never_reported_but_sound(self) -> None:
        """Bytes that were never reported stay, too, if the master's record is not sound."""
        body = self.data.index(b"hello", self.record)
        log = MemoryLog(self.data)
        follower = SlaveSession(log)
        follower.reported_offset = 0
        self.assertRaises(ReplicationStopped, serve, follower, MemoryLog(self.flipped(body)))
        self.assertEqual(log.data, self.data)

    def test_damage_hides_records(self) -> None:
        """After a damaged record of ours no end of a record is known: what was reported there stays."""
        ours = bytearray(self.data)
        ours[self.record + 1] ^= 1  # its length
        log = MemoryLog(bytes(ours))
        follower = SlaveSession(log)
        follower.reported_offset = self.end
        self.assertRaises(ReplicationStopped, serve, follower, MemoryLog(self.data))
        self.assertEqual(log.data, ours)

    def torn(self, at: int, size: int) -> MemoryLog:
        """Our log after a power cut that lost these bytes; all from C{self.record} on was not flushed."""
        data = bytearray(self.data)
        data[at : at + size] = bytes(size)
        log = MemoryLog(bytes(data))
        log.doubtful = range(self.record, len(data))
        return log

    def test_hole_of_our_power_cut(self) -> None:
        """A record with zeroes that the master's lacks is cut and fetched again, without an operator."""
        for at in range(self.record, self.record + 95):
            for frame in (20, FRAME):
                log = self.torn(at, 9)
                if sum(byte.bit_count() for byte in self.data[at : at + 9]) < 2:
                    continue  # it cannot be distinguished from a flipped bit of the master's
                follower, sessions = SlaveSession(log), 0
                while log.data != self.data:
                    sessions += 1
                    self.assertLess(sessions, 4)
                    with contextlib.suppress(Diverged):
                        serve(follower, MemoryLog(self.data), frame=frame)

    def test_hole_of_a_blank(self) -> None:
        """The same for the size of a blank at the end of a file."""
        data = stream(FILE_SIZE) + stream(300, start=FILE_SIZE)
        at = data.index(MAGIC_BLANK.to_bytes(4, "big", signed=True)) - 4
        log = MemoryLog(data[:at] + bytes(4) + data[at + 4 :])
        log.doubtful = range(at, len(data))
        follower = SlaveSession(log)
        self.assertRaises(Diverged, serve, follower, MemoryLog(data), frame=50)
        self.assertEqual(log.end_offset, at)

    def test_blank_that_the_master_dropped(self) -> None:
        """RocketMQ drops a blank at its end when it recovers: a message is there, and ours gives way."""
        data = stream(FILE_SIZE, body=b"long" * 100)
        at = data.index(MAGIC_BLANK.to_bytes(4, "big", signed=True)) - 4
        master = MemoryLog(data[:at] + record(at, body=b"short"))
        for ours in (data, data[: at + 8]):
            log = MemoryLog(ours)
            follower = SlaveSession(log)
            follower.reported_offset = len(ours)
            self.assertRaises(Diverged, serve, follower, master, frame=50)
            self.assertEqual(log.end_offset, at)
            serve(follower, master)
            self.assertEqual(log.data, master.data)
        # With a message after it, a blank is no longer at the end, and nothing is cut.
        log = MemoryLog(data + stream(300, start=FILE_SIZE))
        self.assertRaises(ReplicationStopped, serve, SlaveSession(log), master)
        self.assertEqual(log.cuts, [])

    def test_flipped_bit_of_the_master(self) -> None:
        """A bit of the master's that no checksum covers, where ours is zero: nothing is cut."""
        queue_id = self.record + 15
        self.assertEqual(self.data[queue_id], 0)
        log = self.torn(queue_id, 1)
        self.assertRaises(ReplicationStopped, serve, SlaveSession(log), MemoryLog(self.flipped(queue_id)))
        self.assertEqual(log.data, self.data)

    def test_not_of_our_power_cut(self) -> None:
        """Flushed bytes, other bytes than zeroes, a master's rot, and a long tail need an operator."""
        body = self.data.index(b"hello", self.record)
        flushed = self.torn(body, 3)
        flushed.doubtful = range(self.record + 1, len(self.data))
        since = self.torn(body, 3)
        since.doubtful = range(self.record, body)
        other = self.torn(body, 3)
        other.data[body + 4] ^= 1
        for log in (flushed, since, other):
            was = bytes(log.data)
            self.assertRaises(ReplicationStopped, serve, SlaveSession(log), MemoryLog(self.data))
            self.assertEqual(log.data, was)
        rotten = MemoryLog(self.flipped(body))
        self.assertRaises(ReplicationStopped, serve, SlaveSession(self.torn(body + 1, 3)), rotten)
        limit = "dledger.rocketmq.replication.slave_session.TORN_CUT_MAX"
        with mock.patch(limit, len(self.data) - self.record - 1):
            log = self.torn(body, 3)
            self.assertRaises(ReplicationStopped, serve, SlaveSession(log), MemoryLog(self.data))
            self.assertEqual(log.cuts, [])

    def test_reports_nothing_behind_it(self) -> None:
        """While the master's record is incomplete, nothing from the difference on is reported."""
        follower = SlaveSession(MemoryLog(self.data))
        start = follower.begin()
        other = self.flipped(self.data.index(b"hello", self.record))
        at = self.record + 95
        follower.take(start, memoryview(other[start:at]))
        self.assertLess(follower.reportable(), at)
        self.assertGreaterEqual(follower.reportable(), self.record)
