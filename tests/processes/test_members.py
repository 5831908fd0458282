# -*- test-case-name: tests.processes.test_members -*-
"""
Real members: the group grows, shrinks, and has each of its machines replaced, while a client appends.

C{DLEDGER_MEMBER_ROUNDS} is the number of rounds with kills, C{DLEDGER_MEMBER_SEED} what is drawn in them.
"""

from __future__ import annotations

import os
import random
import tempfile
import threading
import time
from pathlib import Path

from twisted.trial.unittest import SynchronousTestCase

import dledger
from dledger.base.disk.disk import OsDisk
from dledger.client.errors import UnknownOutcome
from dledger.storage.start.verify import verify_directory
from dledger.values.errors import DLedgerError
from protocols.wire.codes import ResponseCode
from tests.processes.children import ChildError, free_ports, wait_until
from tests.processes.ledgers import assert_identical, read_records
from tests.processes.members import Group, Member, ended_well

#: Changes of members in C{make test}, each with a kill.
ROUNDS = int(os.environ.get("DLEDGER_MEMBER_ROUNDS", "8"))
SEED = int(os.environ.get("DLEDGER_MEMBER_SEED", "1"))
FILES = {"mapped_file_size_for_entry_data": 1 << 16, "mapped_file_size_for_entry_index": 32 * 256}


class Writer(threading.Thread):
    """
    Appends one body after the other, and knows the first members only.

    @ivar acknowledged: index to body.
    @ivar unknown: bodies without a certain outcome.
    @ivar reasons: when, and why it is not certain.
    """

    def __init__(self, peers: str) -> None:
        super().__init__(daemon=True)
        self._peers = peers
        self._ending = threading.Event()
        self.acknowledged: dict[int, bytes] = {}
        self.unknown: set[bytes] = set()
        self.reasons: list[str] = []
        self.trouble = ""

    def run(self) -> None:
        """Until L{finish}."""
        with dledger.connect(self._peers, timeout=90.0) as log:
            number = 0
            while not self._ending.is_set():
                number += 1
                body = b"body %d" % number
                try:
                    self.acknowledged[log.append(body).index] = body
                except UnknownOutcome as error:
                    self.unknown.add(body)
                    self.reasons.append(f"{time.strftime('%H:%M:%S')} {error}")
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
        self.log = dledger.connect(self.group.peers_text, timeout=90.0)
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
        self.assertTrue(ended_well(member.stop(seconds=120)))
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
        self.assertEqual((answer.reason, len(answer.voters)),
                         ("nothing to change: no member has the id n9", 3))
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
            self.assertTrue(ended_well(member.stop(seconds=120)))
            member.start()
            self.group.leader()
            self.write_more(5)
        self.judge()

    def test_move(self) -> None:
        """A follower gets another address."""
        moved_id = next(one for one in self.group.members if one != self.group.leader())
        (port,) = free_ports(1)
        self.log.change_members("move", moved_id, f"127.0.0.1:{port}")
        self.assertTrue(ended_well(self.group.members[moved_id].stop(seconds=120)))
        self.group.peers[moved_id] = f"127.0.0.1:{port}"
        member = Member(moved_id, self.group.peers, self.directory / moved_id, options=self.options)
        self.group.members[moved_id] = member
        member.start()
        self.write_more()
        self.group.wait_until(lambda: self.log.metadata().member_id != "", "a leader")
        self.judge()


class KillTests(MembersCase):
    """A member is killed in the middle of every change: nothing is lost, and no term has two leaders."""

    def test_rounds(self) -> None:
        """3 and 5 voters in turn, machines replaced, addresses moved; a client with the first peer list."""
        rng = random.Random(SEED)
        self.leaders: dict[int, str] = {}
        self.kills: list[str] = []
        for number in range(ROUNDS):
            size = len(self.group.members)
            what = rng.choice(("move", "replace", "grow" if size < 5 else "shrink"))
            try:
                self.play(what, number, rng)
            except Exception as error:
                raise ChildError(f"seed {SEED}, round {number}, {what}: {error}") from error
        self.writer.finish()
        self.look()
        # One append is under way when a leader goes.
        self.assertLess(len(self.writer.unknown), max(self.leaders), self.writer.reasons + self.kills)
        self.judge()

    def play(self, what: str, number: int, rng: random.Random) -> None:
        """One round."""
        group, new_id = self.group, f"m{number}"
        if what in ("replace", "grow"):
            self.prepare(new_id)
            self.killing(rng, "add", new_id, group.peers[new_id])
            self.killing(rng, "promote", new_id)
        if what in ("replace", "shrink"):
            old_id = rng.choice([one for one in sorted(group.members) if one != new_id])
            self.killing(rng, "remove", old_id)
            member = group.members.pop(old_id)
            self.assertTrue(ended_well(member.stop(seconds=30.0)))
            del group.peers[old_id]
        if what == "move":
            self.move(rng, rng.choice(sorted(group.members)))
        self.write_more()
        group.leader(seconds=60.0)
        self.look()

    def prepare(self, member_id: str) -> None:
        """A new machine, which waits to be added."""
        (port,) = free_ports(1)
        self.group.peers[member_id] = f"127.0.0.1:{port}"
        self.group.members[member_id] = Member(
            member_id, self.group.peers, self.directory / member_id, options={**self.options, "join": True}
        )
        self.group.members[member_id].start()

    def move(self, rng: random.Random, member_id: str) -> None:
        """A member listens elsewhere after its restart."""
        (port,) = free_ports(1)
        address = f"127.0.0.1:{port}"
        self.killing(rng, "move", member_id, address)
        self.assertTrue(ended_well(self.group.members[member_id].stop(seconds=30.0)))
        self.group.peers[member_id] = address
        self.group.members[member_id] = Member(
            member_id, self.group.peers, self.directory / member_id, options=self.options
        )
        self.group.members[member_id].start()
        self.group.wait_until(lambda: self.is_serving(self.group.members[member_id]),
                              f"{member_id} serves at its new address", seconds=60.0)

    def is_serving(self, member: Member) -> bool:
        """Whether it answers, and knows no reason why it should not."""
        said = member.metadata(seconds=1.0)
        return said is not None and said.health == ""

    def killing(self, rng: random.Random, change: str, member_id: str, address: str = "") -> None:
        """Make a change, while a member is killed and started again after some more appends."""
        victim_id = rng.choice(sorted(self.group.members))
        if change == "move" and len(self.group.members) < 5:
            victim_id = member_id  # it is away until it has its new address, so all others are needed
        victim = self.group.members[victim_id]
        made = threading.Thread(target=self.insist, args=(change, member_id, address), daemon=True)
        self.refusals: list[str] = []
        made.start()
        self.pass_appends(rng.randrange(30))
        self.look()
        self.kills.append(f"{time.strftime('%H:%M:%S')} {change} {member_id}, {victim_id} of {self.leaders}")
        victim.kill()
        self.pass_appends(rng.randrange(30))
        victim.start()
        self.group.wait_until(lambda: not made.is_alive(), f"{change} {member_id}; {victim_id} was killed",
                              seconds=60.0)
        self.assertNotEqual(self.refusals[-1:], ["gave up"], self.refusals[-4:])
        if victim_id != member_id or change not in ("move", "remove"):
            # (With two members away at once a leader has no majority, and more outcomes are unknown.)
            self.group.wait_until(lambda: self.is_serving(victim),
                                  f"{victim_id} serves after {change} {member_id}", seconds=60.0)

    def pass_appends(self, count: int) -> None:
        """Wait for some appends. (They are the clock: what is killed when differs from run to run.)"""
        wanted = len(self.writer.acknowledged) + count
        self.group.wait_until(
            lambda: len(self.writer.acknowledged) >= wanted or self.writer.trouble != "", f"{count} appends",
            seconds=60.0,
        )

    def insist(self, change: str, member_id: str, address: str) -> None:
        """Ask until it is made. (In a thread of its own.)"""

        def is_made() -> bool:
            try:
                self.log.change_members(change, member_id, address)
            except DLedgerError as error:
                self.refusals.append(str(error))
                return False
            return True

        try:
            wait_until(is_made, seconds=120.0, what=change, every=0.2)
        except ChildError:
            self.refusals.append("gave up")

    def look(self) -> None:
        """No term has two leaders."""
        for member_id, member in self.group.members.items():
            said = member.metadata(seconds=1.0)
            if said is not None and said.role == "leader":
                self.assertEqual(self.leaders.setdefault(said.term, member_id), member_id, said.term)
