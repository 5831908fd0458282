# -*- test-case-name: tests.hostile.test_disks -*-
"""Full disks and damaged files of running groups: reads and elections go on, nothing acknowledged is lost."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable
from pathlib import Path

import attrs
from twisted.trial.unittest import SkipTest

import dledger
from dledger.base.disk.disk import OsDisk
from dledger.base.disk.two_slots import SLOT_SIZE
from dledger.storage.start.identity import IDENTITY_NAME, IdentityFile, read_identity
from protocols.wire.codes import ResponseCode
from protocols.wire.ledger.codes import Consistency
from protocols.wire.ledger.messages import AppendRequest, AppendResponse, GetRequest, GetResponse
from tests.hostile.target import MIB, HostileCase, notify
from tests.processes.asking import NoAnswer, ask
from tests.processes.children import Child, peers_text, wait_until
from tests.processes.members import Member

#: Size of a member's disk, in MiB.
DISK_MIB = 24


class SmallDisk(Child):
    """
    A small file system at a member's ledger directory, visible to that member's processes only.

    It lives as long as this process, so it survives restarts of the member.
    """

    def __init__(self, member: Member) -> None:
        self._at = member.ledger_path
        script = f'mount -t tmpfs -o size={DISK_MIB}m tmpfs "$1" && echo mounted && exec sleep 1000'
        super().__init__(
            f"disk of {member.name}",
            ["unshare", "--mount", "--map-root-user", "sh", "-c", script, "sh", str(self._at)],
            log_path=member.directory / "disk.log", talks=True,
        )

    def mount(self, member: Member) -> None:
        """Let C{member} use it from its next start on."""
        self._at.mkdir(parents=True)
        self.start()
        if self.pipes[1].readline() != b"mounted\n":
            raise SkipTest(f"no small file system can be mounted here: {self.log_tail()}")
        member.command[:0] = [
            "nsenter", "--preserve-credentials", "-U", "-m", "-t", str(self.pid), "--",
        ]

    @property
    def path(self) -> Path:
        """The directory of the ledger, for this process."""
        return Path(f"/proc/{self.pid}/root{self._at}")

    def fill(self) -> None:
        """Use all of its space."""
        with open(self.path / "filler", "ab", buffering=0) as file:
            for size in (MIB, 4096, 1):
                try:
                    while True:
                        file.write(b"x" * size)
                except OSError:
                    pass

    def free(self) -> None:
        """Make room again."""
        (self.path / "filler").unlink()


class FullDiskTests(HostileCase):
    """A disk without a free byte."""

    options = {"flush_disk_type": "sync"}

    def prepare(self) -> None:
        """Mount the disks."""
        if shutil.which("unshare") is None or shutil.which("nsenter") is None:
            raise SkipTest("no small file system can be mounted here: unshare and nsenter are missing")
        self.disks = {}
        for peer_id, member in self.members.items():
            self.disks[peer_id] = SmallDisk(member)
            self.addCleanup(self.disks[peer_id].kill)
            self.disks[peer_id].mount(member)

    def append(self, body: bytes) -> ResponseCode:
        """The code of an append at the leader."""
        leader = self.wait_for_leader()
        answer = ask(self.peers[leader], AppendRequest(group="default", remote_id=leader, bodies=(body,)))
        assert isinstance(answer, AppendResponse)
        return answer.code

    def read(self, peer_id: str, index: int, consistency: Consistency) -> ResponseCode:
        """The code of a read at one member."""
        answer = ask(self.peers[peer_id], GetRequest(
            group="default", remote_id=peer_id, begin_index=index, consistency=consistency
        ), native=True)
        assert isinstance(answer, GetResponse)
        return answer.code

    def soon(self, code: ResponseCode, call: Callable[[], ResponseCode]) -> None:
        """Wait for this answer: leadership may move between a question and its answer."""

        def is_answered() -> bool:
            try:
                return call() is code
            except NoAnswer:
                return False

        wait_until(is_answered, seconds=60, what=f"{code.name}")

    def read_at_leader(self, index: int) -> ResponseCode:
        """The code of a linearizable read."""
        return self.read(self.wait_for_leader(), index, Consistency.LINEARIZABLE)

    def test_all_full(self) -> None:
        """Reads, elections, a restart; appends are answered 415, and go on when there is room."""
        self.calm(1.0)
        index = max(self.client.acknowledged)
        for disk in self.disks.values():
            disk.fill()
        large = b"x" * (2 * MIB)
        self.soon(ResponseCode.DISK_FULL, lambda: self.append(large))
        self.soon(ResponseCode.SUCCESS, lambda: self.read_at_leader(index))
        for peer_id in self.peers:
            self.soon(
                ResponseCode.SUCCESS, lambda peer_id=peer_id: self.read(peer_id, index, Consistency.COMMITTED)
            )
        leader = self.wait_for_leader()
        self.members[leader].kill()
        began = time.monotonic()
        wait_until(lambda: self.wait_for_leader() != leader, seconds=60, what="another leader")
        took = time.monotonic() - began
        self.soon(ResponseCode.DISK_FULL, lambda: self.append(large))
        self.members[leader].start()
        self.wait_in_step(leader, seconds=60)
        self.soon(ResponseCode.SUCCESS, lambda: self.read_at_leader(index))
        for member in self.members.values():
            member.stop()
        for member in self.members.values():
            member.start()
        self.soon(ResponseCode.DISK_FULL, lambda: self.append(large))
        self.assert_all_alive()
        for disk in self.disks.values():
            disk.free()
        began = time.monotonic()
        self.soon(ResponseCode.SUCCESS, lambda: self.append(b"small"))
        notify(f"elected on full disks in {took:.1f} s, appended {time.monotonic() - began:.1f} s after room")
        self.assert_all_alive()
        self.assert_read()

    def test_leader_alone_full(self) -> None:
        """The leader hands over to a member with room."""
        self.calm(1.0)
        leader = self.wait_for_leader()
        self.disks[leader].fill()
        began = time.monotonic()

        def is_taken() -> bool:
            try:
                return self.append(b"x" * MIB) is ResponseCode.SUCCESS and self.wait_for_leader() != leader
            except NoAnswer:
                return False

        wait_until(is_taken, seconds=60, what="an append at another leader")
        notify(f"{time.monotonic() - began:.1f} s")
        with self.client.working() as seen:
            time.sleep(1.0)
        self.assertEqual((seen.unknown, seen.failed), ([], []))
        self.disks[leader].free()
        self.wait_in_step(leader, seconds=60)
        self.assert_all_alive()
        self.assert_read()

    def assert_read(self) -> None:
        """Every acknowledged entry is read back."""
        with dledger.connect(peers_text(self.peers), timeout=20.0) as log:
            for index, body in list(self.client.acknowledged.items())[::7]:
                self.assertEqual(log.get(index).body, body)


class DamagedFileTests(HostileCase):
    """The small files of a member that is down."""

    def stopped(self) -> Member:
        """A follower, stopped."""
        self.calm(0.5)
        member = self.members[min(set(self.peers) - {self.wait_for_leader()})]
        member.stop()
        return member

    def flip(self, path: Path, bit: int) -> None:
        """Flip one bit of a file."""
        data = bytearray(path.read_bytes())
        data[bit // 8] ^= 1 << bit % 8
        path.write_bytes(data)

    def test_term_and_vote(self) -> None:
        """One flipped bit in either file heals; without both the member refuses to start and says why."""
        member = self.stopped()
        sound = (member.ledger_path / "currterm").read_bytes()
        for name, bit in (
            ("currterm", 8 * sound.index(b"voteL") + 1), ("currterm", 8 * sound.index(b"voteL") + 8 * 12 + 2),
            ("currterm", 8 * (len(sound) - 2)), ("termvote", 8 * 20), ("termvote", 8 * (SLOT_SIZE + 20)),
        ):
            self.flip(member.ledger_path / name, bit)
            member.start()
            self.wait_in_step(member.name, seconds=60)
            member.stop()
        kept = {}
        for name in ("currterm", "termvote"):
            kept[name] = (member.ledger_path / name).read_bytes()
            (member.ledger_path / name).unlink()
        said = self.refused(member)
        self.assertRegex(said, "currterm and .*termvote are missing beside a ledger")
        for name, data in kept.items():
            (member.ledger_path / name).write_bytes(data)
        (member.ledger_path / "termvote").unlink()
        member.start()
        self.wait_in_step(member.name, seconds=60)
        self.assert_nothing_lost()

    def refused(self, member: Member) -> str:
        """Start a member that must not start. @return: its log."""
        size = member.log_path.stat().st_size
        member.start()
        self.assertEqual(member.wait(seconds=60), 1, member.log_tail())
        said = member.log_path.read_text()[size:]
        self.assertNotIn("Traceback", said)
        return said

    def test_identity(self) -> None:
        """A directory starts as the member and in the group that it belongs to."""
        member = self.stopped()
        at = member.command.index("--group") + 1
        member.command[at] = "other"
        self.assertRegex(self.refused(member), "belongs to group 'default', but is opened as group 'other'")
        member.command[at] = "default"
        other = next(iter(set(self.peers) - {member.name, self.wait_for_leader()}))
        moved = self.members[other]
        moved.stop()
        shutil.copytree(member.ledger_path, moved.directory / "copy")
        moved.ledger_path.rename(moved.directory / "kept")
        (moved.directory / "copy").rename(moved.ledger_path)
        self.assertRegex(self.refused(moved), f"belongs to member '{member.name}', but is opened as member")
        shutil.rmtree(moved.ledger_path)
        (moved.directory / "kept").rename(moved.ledger_path)
        for one in (member, moved):
            one.start()
            self.wait_in_step(one.name, seconds=60)
        self.assert_nothing_lost()

    def test_another_boot(self) -> None:
        """A member that was killed and wakes under another boot is unsure until it has a leader's entries."""
        member = self.members[min(set(self.peers) - {self.wait_for_leader()})]
        with self.client.working():
            time.sleep(0.5)
            member.kill()
        path = f"{member.ledger_path}/{IDENTITY_NAME}"
        found = read_identity(OsDisk(), path)
        assert found is not None
        self.assertEqual(found[1].was_async, 1)
        IdentityFile.create(OsDisk(), path, attrs.evolve(found[1], boot_id="another")).close()
        size = member.log_path.stat().st_size
        member.start()
        self.wait_in_step(member.name, seconds=60)
        self.assertIn(" unsure ", member.log_path.read_text()[size:])

        def is_sure() -> bool:
            now = read_identity(OsDisk(), path)
            return now is not None and now[1].unsure == 0

        wait_until(is_sure, seconds=60, what="a member that is sure again")
        self.assert_nothing_lost()


class LostDirectoryTests(HostileCase):
    """Files that vanish under running members."""

    def test_removed_under_a_follower(self) -> None:
        """The group serves; the member ends, and a restart with an empty directory copies the log."""
        self.calm(0.5)
        member = self.members[min(set(self.peers) - {self.wait_for_leader()})]
        with self.client.working() as seen:
            shutil.rmtree(member.ledger_path)
            time.sleep(4.0)
        self.assertEqual((seen.unknown, seen.failed), ([], []))
        notify(f"the member {'runs' if member.is_running else 'has ended'}: {member.log_tail(3)}")
        self.assertNotIn("Traceback", member.log_path.read_text())
        member.kill()
        shutil.rmtree(member.ledger_path, ignore_errors=True)
        member.start()
        self.wait_in_step(member.name, seconds=60)
        self.assert_nothing_lost()

    def test_removed_under_the_leader(self) -> None:
        """It stops leading; nothing that a client was promised is lost."""
        self.calm(0.5)
        leader = self.wait_for_leader()
        with self.client.working():
            shutil.rmtree(self.members[leader].ledger_path)
            time.sleep(5.0)
        notify(f"the leader {'runs' if self.members[leader].is_running else 'has ended'}: "
             f"{self.members[leader].log_tail(3)}")
        self.members[leader].kill()
        shutil.rmtree(self.members[leader].ledger_path, ignore_errors=True)
        self.members[leader].start()
        self.wait_in_step(leader, seconds=60)
        self.assert_nothing_lost()


