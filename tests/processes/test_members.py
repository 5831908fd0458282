# -*- test-case-name: tests.processes.test_members -*-
"""Real members: the group grows, shrinks, and has each of its machines replaced, while a client appends."""

from __future__ import annotations

import tempfile
import threading
from pathlib import Path

from twisted.trial.unittest import SynchronousTestCase

import dledger
from dledger.base.disk.disk import OsDisk
from dledger.base.errors import DLedgerError
from dledger.client.values import UnknownOutcome
from dledger.storage.verify import verify_directory
from protocols.wire.ledger.codes import ResponseCode
from tests.processes.children import ChildError, free_ports
from tests.processes.ledgers import assert_identical, read_records
from tests.processes.members import Group, Member, ended_well

FILES = {"mapped_file_size_for_entry_data": 1 << 16, "mapped_file_size_for_entry_index": 32 * 256}


class Writer(threading.Thread):
    """
    Appends one body after the other, and knows the first members only.

    @ivar acknowledged: index to body.
    @ivar unknown: bodies without a certain outcome.
    """

    def __init__(self, peers: str) -> None:
        super().__init__(daemon=True)
        self._peers = peers
        self._ending = threading.Event()
        self.acknowledged: dict[int, bytes] = {}
        self.unknown: set[bytes] = set()
        self.trouble = ""

    def run(self) -> None:
        """Until L{finish}."""
        with dledger.connect(self._peers, timeout=20.0) as log:
            number = 0
            while not self._ending.is_set():
                number += 1
                body = b"body %d" % number
                try:
                    self.acknowledged[log.append(body).index] = body
                except UnknownOutcome:
                    self.unknown.add(body)
                except DLedgerError as error:
                    self.trouble = str(error)
                    return

    def finish(self) -> None:
        """Stop after the present append."""
        self._ending.set()
        self.join(30.0)


class MembersCase(SynchronousTestCase):
    """A group of three, and a writer."""

    def setUp(self) -> None:
        held = tempfile.TemporaryDirectory(ignore_cleanup_errors=True)
        self.addCleanup(held.cleanup)
        self.directory = Path(held.name)
        self.options = {**FILES, "flush_disk_type": "sync"}
        self.group = Group(self.directory, options=self.options)
        self.addCleanup(self.group.kill)
        self.group.start()
        self.writer = Writer(self.group.peers_text)
        self.log = dledger.connect(self.group.peers_text, timeout=20.0)
        self.addCleanup(self.log.close)
        self.log.append(b"first")
        self.writer.start()
        self.addCleanup(self.writer.finish)

    def add(self, member_id: str) -> None:
        """A new machine, which becomes a voter."""
        group = self.group
        (port,) = free_ports(1)
        group.peers[member_id] = f"127.0.0.1:{port}"
        member = Member(
            member_id, group.peers, self.directory / member_id, options={**self.options, "join": True}
        )
        group.members[member_id] = member
        member.start()
        self.log.change_members("add", member_id, group.peers[member_id])

        self.change("promote", member_id)

    def change(self, what: str, member_id: str) -> None:
        """Ask until enough members are alive and have caught up."""

        def is_made() -> bool:
            try:
                self.log.change_members(what, member_id)
            except DLedgerError as error:
                self.assertIs(error.code, ResponseCode.FALL_BEHIND_TOO_MUCH, str(error))
                return False
            return True

        self.group.wait_until(is_made, f"to {what} {member_id}")

    def remove(self, member_id: str) -> None:
        """A machine leaves, and is switched off."""
        self.change("remove", member_id)
        member = self.group.members.pop(member_id)
        self.assertTrue(ended_well(member.stop(seconds=20.0)))
        del self.group.peers[member_id]

    def write_more(self, count: int = 20) -> None:
        """The writer goes on: it gets at least that many more acknowledgements."""
        wanted = len(self.writer.acknowledged) + count

        def is_written() -> bool:
            if self.writer.trouble:
                raise ChildError(self.writer.trouble)
            return len(self.writer.acknowledged) >= wanted

        self.group.wait_until(is_written, f"{count} more appends")

    def judge(self) -> None:
        """Every acknowledged entry is in its place, everywhere the same; nothing is there twice."""
        self.writer.finish()
        self.assertEqual(self.writer.trouble, "")
        end_index = self.group.wait_settled()
        statuses = self.group.stop()
        self.assertTrue(all(ended_well(status) for status in statuses.values()), statuses)
        paths = [member.ledger_path for member in self.group.members.values()]
        assert_identical(paths, end_index)
        for path in paths:
            self.assertEqual(verify_directory(OsDisk(), str(path)).findings, [])
        found = {record.index: record.body for record in read_records(paths[0])}
        for index, body in self.writer.acknowledged.items():
            self.assertEqual(found.get(index), body)
        mine = [body for body in found.values() if body.startswith(b"body ")]
        self.assertEqual(len(mine), len(set(mine)))
        self.assertLessEqual(set(mine) - set(self.writer.acknowledged.values()), self.writer.unknown)


class GrowTests(MembersCase):
    """3, 5, 3 members."""

    def test_three_five_three(self) -> None:
        """With five members two may be away; the leader is among those that leave."""
        self.add("n3")
        self.write_more()
        self.add("n4")
        self.write_more()
        away = [one for one in ("n1", "n2") if one != self.group.leader()]
        for member_id in away:
            self.group.members[member_id].kill()
        self.write_more()
        for member_id in away:
            self.group.members[member_id].start()
        self.remove(self.group.leader())
        self.write_more()
        self.remove(sorted(self.group.members)[0])
        self.write_more()
        answer = self.log.change_members("remove", "n9")
        self.assertEqual((answer.reason, len(answer.voters)), ("nothing to change", 3))
        self.judge()


class ReplaceTests(MembersCase):
    """Each machine is replaced by another one, and one moves."""

    def test_all_machines(self) -> None:
        """A client that knows only the first three members goes on; restarts keep the new members."""
        for old_id, new_id in (("n0", "n3"), ("n1", "n4"), ("n2", "n5")):
            self.add(new_id)
            self.remove(old_id)
            self.write_more()
        for member in self.group.members.values():
            self.assertTrue(ended_well(member.stop(seconds=20.0)))
            member.start()
            self.group.leader()
            self.write_more(5)
        self.judge()

    def test_move(self) -> None:
        """A follower gets another address."""
        moved_id = next(one for one in self.group.members if one != self.group.leader())
        (port,) = free_ports(1)
        self.log.change_members("move", moved_id, f"127.0.0.1:{port}")
        self.assertTrue(ended_well(self.group.members[moved_id].stop(seconds=20.0)))
        self.group.peers[moved_id] = f"127.0.0.1:{port}"
        member = Member(moved_id, self.group.peers, self.directory / moved_id, options=self.options)
        self.group.members[moved_id] = member
        member.start()
        self.write_more()
        self.group.wait_until(lambda: self.log.metadata().member_id != "", "a leader")
        self.judge()


