# -*- test-case-name: tests.interop.test_weak_files -*-
"""
The known weaknesses of Java DLedger that need files, restarts or a full disk, side by side with ours.

The rules are those of L{tests.interop.test_weaknesses}.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import re
import shutil
import struct
import subprocess
import tempfile
import time
from pathlib import Path

from twisted.trial.unittest import SkipTest

from protocols.wire.codes import ResponseCode
from protocols.wire.ledger.codes import PushType, VoteResult
from protocols.wire.ledger.entry import bodies_of
from protocols.wire.ledger.messages import AppendRequest, HeartBeatRequest
from tests.interop.played import GROUP, JAVA, SELF, SideBySide, Stage, entries

_IN_DELETE, _IN_MOVED_TO, _IN_NONBLOCK = 0x200, 0x80, 0o4000
_EVENT = struct.Struct("iIII")


class Watch:
    """The events of the names in a directory, as the kernel reports them (inotify)."""

    def __init__(self, directory: Path) -> None:
        """Begin to watch."""
        libc = ctypes.CDLL(None, use_errno=True)
        self._descriptor = libc.inotify_init1(_IN_NONBLOCK)
        mask = ctypes.c_uint32(_IN_DELETE | _IN_MOVED_TO)
        if self._descriptor < 0 or libc.inotify_add_watch(self._descriptor, os.fsencode(directory), mask) < 0:
            raise SkipTest(f"inotify: {os.strerror(ctypes.get_errno())}")

    def seen(self, name: str) -> list[str]:
        """The events of one name, in order: C{deleted}, C{replaced}; ends the watch."""
        data = os.read(self._descriptor, 1 << 16)
        os.close(self._descriptor)
        happened, at = [], 0
        while at < len(data):
            _watch, mask, _cookie, length = _EVENT.unpack_from(data, at)
            at += _EVENT.size
            if data[at : at + length].rstrip(b"\0") == name.encode():
                happened.append("deleted" if mask & _IN_DELETE else "replaced")
            at += length
        return happened


def dirty_kib(path: Path) -> int:
    """KiB of a file that are in memory and not yet on the disk, as the kernel counts."""
    with open(path, "rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as mapped:
        assert mapped[0] is not None
        maps = Path("/proc/self/smaps").read_text()
        own = maps[maps.index(str(path)) :]
        return sum(int(found) for found in re.findall(r"_Dirty:\s+(\d+) kB", own)[:2])


def notifies_dirty(directory: Path) -> bool:
    """Whether the kernel counts that on this file system (not on one in memory)."""
    path = directory / "probe"
    with open(path, "wb", buffering=0) as file:
        file.write(bytes(4096))
        before = dirty_kib(path)
        os.fsync(file.fileno())
    return before > 0 and dirty_kib(path) == 0


def on_small_disk(stage: Stage, mebibytes: int) -> None:
    """From its next start on, the member's directory is a file system of that size, visible to it alone."""
    script = f'mount -t tmpfs -o size={mebibytes}m tmpfs "$1" && shift && exec "$@"'
    command = ["unshare", "--mount", "--map-root-user", "sh", "-c", script, "sh", str(stage.directory)]
    stage.member.command[:0] = command


class RestartTests(SideBySide):
    """The member is stopped, or killed, and started again."""

    def test_w04_vote_is_forgotten(self) -> None:
        """W4: the process ends while it replaces the file with its vote; then another candidate asks."""

        def play(stage: Stage) -> tuple[list[str], VoteResult]:
            stage.cast.answer = stage.cast.silent
            self.assertIs(stage.vote("n0", 8), VoteResult.ACCEPT)
            watch = Watch(stage.ledger_path)
            self.assertIs(stage.vote("n0", 9), VoteResult.ACCEPT)
            happened = watch.seen("currterm")
            stage.member.kill()
            # The state between the two events, if there are two: the new file still has its first name.
            (stage.ledger_path / "currterm").rename(stage.ledger_path / "currterm.tmp")
            stage.start()
            stage.wait_started()
            return happened, stage.vote("n2", 9)

        java, ours = self.play(play)
        self.assertEqual(set(java[0]), {"deleted", "replaced"})
        self.assertIs(java[1], VoteResult.ACCEPT)
        self.assertEqual(set(ours[0]), {"replaced"})
        self.assertIsNot(ours[1], VoteResult.ACCEPT)

    def test_w05_truncated_tail(self) -> None:
        """W5: a follower is truncated to its second entry of four, and restarted after a clean stop."""

        def play(stage: Stage) -> tuple[int, int]:
            stage.cast.answer = stage.cast.silent
            batches = entries((1, 1, 5, 5))
            stage.follow("n0", 5)
            stage.fill(batches, term=5)
            stage.follow("n2", 9)
            answer = stage.push(PushType.TRUNCATE, batches[1], leader_id="n2", term=9)
            self.assertIs(answer.code, ResponseCode.SUCCESS)
            before = stage.end_index()
            stage.restart()
            return before, stage.end_index()

        self.assertEqual(self.play(play), ((1, 3), (1, 1)))

    def test_w07_term_is_led_twice(self) -> None:
        """W7: a leader is killed and started again."""

        def play(stage: Stage) -> set[int]:
            def terms() -> set[int]:
                return {request.term for request in stage.cast.seen(HeartBeatRequest)}

            stage.wait_leads()
            stage.wait(terms, "a heartbeat")
            stage.member.kill()
            before = terms()
            stage.cast.asked.clear()
            stage.start()
            stage.wait_started()
            stage.wait(terms, "a heartbeat after the restart")
            return before & terms()

        java, ours = self.play(play)
        self.assertEqual((len(java), len(ours)), (1, 0))

    def test_w11_flipped_bit(self) -> None:
        """W11: a bit of an acknowledged entry flips on the disk of a stopped leader."""
        body = b"what was acknowledged" * 5

        def play(stage: Stage) -> bytes | None:
            stage.wait_leads()
            answer = stage.append(body)
            assert answer is not None and answer.code is ResponseCode.SUCCESS
            stage.member.stop()
            path = stage.ledger_path / "data" / f"{0:020}"
            data = bytearray(path.read_bytes())
            data[data.index(body) + 3] ^= 1
            path.write_bytes(data)
            stage.start()
            stage.wait_started()
            stage.holds(lambda: stage.role() != "leader", java=40, ours=5)
            shown = stage.get(answer.index)
            return None if shown is None or shown.entries is None else bodies_of(shown.entries)[0]

        java, ours = self.play(play)
        self.assertEqual(java, body[:3] + bytes([body[3] ^ 1]) + body[4:])
        self.assertIsNone(ours)

    def test_w21_oversized_entry(self) -> None:
        """W21: an entry as long as a data file, between acknowledged ones."""
        size = 20480

        def play(stage: Stage) -> tuple[ResponseCode, bool]:
            stage.wait_leads()
            self.assertEqual(stage.append(b"before").code, ResponseCode.SUCCESS)  # type: ignore[union-attr]
            large = stage.append(b"x" * (size - 48))
            behind = stage.append(b"behind")
            assert large is not None and behind is not None and behind.code is ResponseCode.SUCCESS, (
                f"{stage.kind}: {large}, {behind}"
            )
            stage.restart()
            stage.wait_leads()
            return large.code, stage.end_index() >= behind.index

        java, ours = self.play(
            play, java={"mappedFileSizeForEntryData": size}, ours={"mapped_file_size_for_entry_data": size},
            alone=True,
        )
        self.assertEqual(java, (ResponseCode.DISK_ERROR, False))
        self.assertEqual(ours, (ResponseCode.UNEXPECTED_ARGUMENT, True))


class DiskTests(SideBySide):
    """The content of the disk, and its time."""

    def test_w06_acknowledged_before_the_disk_has_it(self) -> None:
        """W6: the part of the file that is not on the disk yet when the append is acknowledged."""
        with tempfile.TemporaryDirectory() as name:
            if not notifies_dirty(Path(name)):
                raise SkipTest("this file system does not show what is not written yet")

        def play(stage: Stage) -> bool:
            stage.wait_leads()
            dirty = []
            for number in range(5):
                answer = stage.append(b"%d" % number)
                dirty.append(dirty_kib(stage.ledger_path / "data" / f"{0:020}"))
                assert answer is not None and answer.code is ResponseCode.SUCCESS
            return all(dirty) if stage.kind == JAVA else any(dirty)

        # In Java no answer waits for the flush, so a late flush does not change the answer.
        java, ours = self.play(play, java={"flushFileInterval": 60_000}, ours={"flush_disk_type": "sync"})
        self.assertEqual((java, ours), (True, False))

    def test_w16_full_disk(self) -> None:
        """W16: a disk of 6 MiB, and two appends that together need more."""
        probe = ["unshare", "--mount", "--map-root-user", "mount", "-t", "tmpfs", "tmpfs", "/mnt"]
        if shutil.which("unshare") is None or subprocess.run(probe, capture_output=True).returncode:
            raise SkipTest("no small file system can be mounted here")
        large = 1 << 24

        def play(stage: Stage) -> list[tuple[bool, bool]]:
            on_small_disk(stage, 6)
            stage.start()
            stage.wait_started()
            stage.wait_leads()
            outcomes = []
            for letter in (b"a", b"b"):
                end_index = stage.end_index()
                answer = stage.append(letter * ((7 << 20) // 2))
                is_refused = answer is not None and answer.code is ResponseCode.DISK_FULL
                shown = None if is_refused else stage.get(end_index + 1)
                outcomes.append((is_refused, shown is not None and shown.entries is not None))
            return outcomes

        java, ours = self.play(
            play, java={"mappedFileSizeForEntryData": large}, ours={"mapped_file_size_for_entry_data": large},
            alone=True, start=False,
        )
        # The fault surfaces in different places: the second append is acknowledged, or answered without a
        # body; it is never refused, and never readable.
        self.assertEqual(java, [(False, True), (False, False)])
        self.assertEqual(ours, [(False, True), (True, False)], "room for one, and the other is refused")

    def test_w18_uncommitted_files_expire(self) -> None:
        """W18: files full of uncommitted entries become old."""
        size = 4096

        def play(stage: Stage) -> bool:
            stage.follow("n0", 5)
            stage.fill(entries((5,) * 40, size=500, file_bytes=size), term=5)
            old = time.time() - 5 * 3600

            def is_whole() -> bool:
                for path in (stage.ledger_path / "data").iterdir():
                    os.utime(path, (old, old))
                return stage.begin_index() == 0

            return stage.holds(is_whole, java=30, ours=4)

        always = ";".join(f"{hour:02}" for hour in range(24))
        java, ours = self.play(
            play,
            java={"mappedFileSizeForEntryData": size, "fileReservedHours": 1, "deleteWhen": always},
            ours={"mapped_file_size_for_entry_data": size, "file_reserved_hours": 1, "delete_when": always},
        )
        self.assertEqual((java, ours), (False, True))

    def test_w22_memory_store(self) -> None:
        """W22: a leader with a memory store, whose followers accept no entries."""

        def play(stage: Stage) -> int:
            stage.cast.answer = stage.cast.elects_only
            stage.wait_leads()
            with stage.asker() as asker:
                asker.send(AppendRequest(group=GROUP, remote_id=SELF, bodies=(b"of nobody else",)))
                stage.wait(lambda: stage.end_index() >= 0, "the entry")
                stage.holds(lambda: stage.committed_index() < 0, java=20, ours=1)
                return stage.committed_index()

        java, ours = self.play(play, java={"storeType": "MEMORY"})
        self.assertEqual((java, ours), (0, -1))
