# -*- test-case-name: tests.storage.test_term_file -*-
"""Term and vote are durable when save returns, and are never read lower than they were."""

from __future__ import annotations

import errno
from collections.abc import Iterator

from twisted.trial.unittest import SynchronousTestCase

from dledger.storage.files.term_file import (
    TermFile,
    TermVote,
    decode_term,
    decode_term_twin,
    encode_term,
    seal_term,
)
from dledger.testing.world.memory_disk import MemoryDisk
from dledger.values.errors import DirectoryError, DLedgerError, StoreError
from protocols.wire.codes import ResponseCode
from tests.storage.support import BROKEN, HookedDisk

FULL = errno.ENOSPC
MEMBERS = ("n0", "n1", "n2")
ROOT = "base/dledger-n0"


class TermFileTests(SynchronousTestCase):
    """The term file of a member."""

    def setUp(self) -> None:
        self.disk = HookedDisk()
        self.terms = TermFile(self.disk, "base/dledger-n0")

    def put(self, name: str, content: bytes) -> None:
        """Place a file."""
        self.disk.makedirs("base/dledger-n0")
        self.disk.write_file(f"base/dledger-n0/{name}", content)

    def test_golden_bytes_are_written(self) -> None:
        """The bytes that Java writes, in its order; and a comment after them."""
        self.assertEqual(encode_term(1, "n2"), b"voteLeader=n2\ncurrTerm=1\n")
        self.assertEqual(encode_term(7, None), b"voteLeader=\ncurrTerm=7\n")
        self.assertEqual(seal_term(1, "n2"), b"voteLeader=n2\ncurrTerm=1\n#crc32 71ef8e5a\n")

    def test_a_vote_is_saved_and_loaded(self) -> None:
        """What was saved is loaded, by another process too."""
        self.assertEqual(self.terms.load(), TermVote(0, None))
        self.terms.save(3, "n1")
        self.assertEqual(TermFile(self.disk, "base/dledger-n0").load(), TermVote(3, "n1"))
        self.terms.save(4, None)
        self.assertEqual(self.terms.load(), TermVote(4, None))
        self.assertEqual(self.disk.count("write_file", "currterm"), 2)

    def test_forms_of_java_are_read(self) -> None:
        """Any order, comments, separators."""
        self.put("currterm", b"#Sat\ncurrTerm : 12\n\nvoteLeader n0\n")
        self.assertEqual(self.terms.load(), TermVote(12, "n0"))

    def test_makes_no_sense(self) -> None:
        """A file that cannot be read as a term is refused: a vote may be forgotten otherwise."""
        for content in (b"", b"currTerm=\n", b"currTerm=x\nvoteLeader=n1\n", b"currTerm=-1\n", b"\0" * 30):
            self.put("currterm", content)
            with self.assertRaises(DirectoryError, msg=repr(content)) as caught:
                self.terms.load()
            self.assertIn("start again", str(caught.exception))
            self.assertIsNone(decode_term(content))

    def test_what_java_left(self) -> None:
        """Java's crash between unlink and rename leaves no file: the highest of the others counts."""
        self.put("currterm.bak", encode_term(4, "n2"))
        self.assertEqual(self.terms.load(), TermVote(4, "n2"))
        self.put("currterm.tmp", encode_term(5, None))
        self.assertEqual(self.terms.load(), TermVote(5, None))
        self.put("currterm.bak", encode_term(5, "n1"))
        self.assertEqual(self.terms.load(), TermVote(5, "n1"), "of equal terms the vote is kept")
        self.put("currterm.tmp", b"curr")
        with self.assertRaises(DirectoryError, msg="a malformed file is not 'no vote'"):
            self.terms.load()
        self.put("currterm", encode_term(2, None))
        self.assertEqual(self.terms.load(), TermVote(2, None), "the file itself counts where it is there")

    def test_at_least_the_ledgers_term(self) -> None:
        """The term is not below that of the last entry; the vote of an older term does not count."""
        self.terms.save(3, "n1")
        self.assertEqual(self.terms.load(ledger_end_term=3), TermVote(3, "n1"))
        self.assertEqual(self.terms.load(ledger_end_term=5), TermVote(5, None))

    def test_failures_stop_the_member(self) -> None:
        """What cannot be written or read stops the member."""
        self.terms.save(3, "n1")
        self.disk.failures = {("write_file", "currterm"): BROKEN}
        with self.assertRaises(StoreError):
            self.terms.save(4, "n2")
        self.disk.failures = {("read_file", "currterm"): BROKEN}
        with self.assertRaises(StoreError):
            self.terms.load()

    def test_a_full_disk_keeps_the_vote(self) -> None:
        """Without room for currterm a vote is durable in the twin; currterm follows when there is room."""
        self.terms.save(3, "n1")
        self.disk.failures = {("write_file", "currterm"): FULL}
        self.terms.save(4, "n2")
        self.assertTrue(self.terms.is_behind)
        self.assertEqual(TermFile(self.disk, "base/dledger-n0").load(), TermVote(4, "n2"))
        self.terms.check_point()
        self.assertEqual(decode_term(self.disk.read_file("base/dledger-n0/currterm")), TermVote(3, "n1"))
        self.disk.failures = {}
        self.terms.check_point()
        self.assertFalse(self.terms.is_behind)
        self.assertEqual(decode_term(self.disk.read_file("base/dledger-n0/currterm")), TermVote(4, "n2"))

    def test_no_room_in_place(self) -> None:
        """A vote without room for the twin is refused; what was durable stays, and a later save succeeds."""
        self.terms.save(3, "n1")
        for where in (("pwrite", "termvote"), ("datasync", "termvote")):
            self.disk.failures = {where: FULL}
            for _ in range(3):
                error = self.assertRaises(DLedgerError, self.terms.save, 4, "n2")
                self.assertNotIsInstance(error, StoreError)
                self.assertIs(error.code, ResponseCode.DISK_FULL)
            found = TermFile(self.disk, "base/dledger-n0").load()
            self.assertIn(found, (TermVote(3, "n1"), TermVote(4, "n2")))
        self.disk.failures = {}
        self.terms.save(5, "n0")
        self.assertEqual(TermFile(self.disk, "base/dledger-n0").load(), TermVote(5, "n0"))

    def test_start_without_room_in_place(self) -> None:
        """A start goes on with the terms of the twin, and not with a missing one."""
        self.terms.save(3, "n1")
        self.disk.failures = {("write_file", ""): FULL, ("pwrite", ""): FULL}
        again = TermFile(self.disk, "base/dledger-n0")
        self.assertEqual(again.take_up(ledger_end_term=3, has_ledger=True), TermVote(3, "n1"))
        self.assertRaises(DLedgerError, again.save, 4, "n0")
        self.assertRaises(
            StoreError, TermFile(self.disk, "base/dledger-n0").take_up, ledger_end_term=9, has_ledger=True
        )

    def test_start_without_room(self) -> None:
        """A member starts on a full disk: its files are written in place."""
        self.terms.save(3, "n1")
        self.disk.failures = {("write_file", ""): FULL}
        again = TermFile(self.disk, "base/dledger-n0")
        self.assertEqual(again.take_up(ledger_end_term=3, has_ledger=True), TermVote(3, "n1"))
        again.save(4, "n0")
        self.assertEqual(TermFile(self.disk, "base/dledger-n0").load(), TermVote(4, "n0"))

    def test_name_of_the_twin_is_durable(self) -> None:
        """A twin that a killed process made has its name on the disk before a save into it ends."""
        disk = HookedDisk()
        TermFile(disk, "d", member_ids=MEMBERS).save(3, "n1")
        disk.failures = {("write_file", "currterm"): FULL}
        disk.calls.clear()
        TermFile(disk, "d", member_ids=MEMBERS).save(4, "n2")
        self.assertIn(("sync_directory", "d"), disk.calls)

    def test_what_a_killed_predecessor_left_is_made_durable(self) -> None:
        """A term that was renamed into place but never fsynced is written again before it is used."""
        self.terms.save(3, "n1")
        before = self.disk.count("write_file", "currterm")
        self.assertEqual(self.terms.take_up(ledger_end_term=-1), TermVote(3, "n1"))
        self.assertEqual(self.disk.count("write_file", "currterm"), before + 1)


def flips(data: bytes) -> Iterator[bytes]:
    """The data with each of its bits flipped, one at a time."""
    for bit in range(8 * len(data)):
        flipped = bytearray(data)
        flipped[bit // 8] ^= 1 << bit % 8
        yield bytes(flipped)


class DamageTests(SynchronousTestCase):
    """Damaged, missing or contradicting files: the vote is known, or the member does not start."""

    def setUp(self) -> None:
        self.disk = MemoryDisk()
        self.put(5, "n1")
        self.java, self.twin = (self.disk.read_file(f"{ROOT}/{name}") for name in ("currterm", "termvote"))

    def put(self, term: int, voted_for: str | None) -> None:
        """What a member saves."""
        terms = TermFile(self.disk, ROOT)
        terms.save(term, voted_for)
        terms.close()

    def found(self, java: bytes | None, twin: bytes | None, *, has_ledger: bool = True) -> TermVote | None:
        """What a start believes of these files; None: it refuses."""
        disk = MemoryDisk()
        for name, content in (("currterm", java), ("termvote", twin)):
            if content is not None:
                disk.write_file(f"{ROOT}/{name}", content)
        try:
            return TermFile(disk, ROOT, member_ids=MEMBERS).load(has_ledger=has_ledger)
        except DirectoryError as error:
            self.assertIn("start again", str(error))
            return None

    def test_every_flip_of_both(self) -> None:
        """Any bit of currterm with any bit of the twin: the vote, or a refusal."""
        self.assertEqual(len(self.java) * 8, (25 + 16) * 8)
        javas = {decode_term(data, MEMBERS): data for data in (self.java, *flips(self.java))}
        twins = {decode_term_twin(data): data for data in (self.twin, *flips(self.twin))}
        self.assertEqual(set(twins), {TermVote(5, "n1")}, "one flip leaves the copy in the other slot")
        for java in javas.values():
            for twin in twins.values():
                found = self.found(java, twin)
                self.assertEqual(found, TermVote(5, "n1"), java)

    def test_every_flip_alone(self) -> None:
        """Without the twin a flip is refused, or is in the seal."""
        self.assertLessEqual({self.found(data, None) for data in flips(self.java)}, {None, TermVote(5, "n1")})

    def test_every_flip_of_java(self) -> None:
        """What Java wrote has no seal: no flip forgets a vote, or lowers the term."""
        for data in flips(encode_term(5, "n1")):
            found = self.found(data, self.twin)
            self.assertTrue(found is None or found.term > 5 or found == TermVote(5, "n1"), (data, found))

    def test_the_seal_vouches_for_its_lines(self) -> None:
        """It vouches for its lines, also without a twin, and beyond it; lines that follow it are not ours."""
        self.assertEqual(self.found(seal_term(9, "n2"), self.twin), TermVote(9, "n2"))
        self.assertEqual(self.found(seal_term(9, None), None), TermVote(9, None))
        self.assertIsNone(self.found(seal_term(9, None).replace(b"9", b"8", 1), None))
        self.assertEqual(self.found(seal_term(9, None).replace(b"9", b"8", 1), self.twin), TermVote(5, "n1"))
        self.assertIsNone(self.found(seal_term(9, None) + b"#\n", None))

    def test_java_worked_here_since(self) -> None:
        """The later term counts; of one term the vote counts."""
        self.assertEqual(self.found(encode_term(9, "n2"), self.twin), TermVote(9, "n2"))
        self.assertEqual(self.found(encode_term(9, None), self.twin), TermVote(9, None))
        self.assertEqual(self.found(encode_term(4, "n2"), self.twin), TermVote(5, "n1"))
        self.assertEqual(self.found(encode_term(5, None), self.twin), TermVote(5, "n1"))
        self.assertIsNone(self.found(encode_term(5, "n2"), self.twin), "two votes in one term")

    def test_one_is_unsound(self) -> None:
        """The sound one counts; two unsound ones are refused."""
        self.assertEqual(self.found(b"curr", self.twin), TermVote(5, "n1"))
        self.assertEqual(self.found(self.java, bytes(1024)), TermVote(5, "n1"))
        self.assertIsNone(self.found(b"curr", bytes(1024)))
        self.assertIsNone(self.found(None, bytes(1024)))
        self.assertIsNone(self.found(b"curr", None))

    def test_malformed_files_are_refused(self) -> None:
        """Other keys, keys twice, and votes for strangers are malformed."""
        for content in (b"votgLeader=n1\ncurrTerm=5\n", b"currTerm=5\n", b"voteLeader=n1\n",
                        self.java + b"currTerm=6\n", self.java + b"x=1\n", b"voteLeader=n9\ncurrTerm=5\n"):
            self.assertIsNone(self.found(content, None), content)
        self.assertEqual(self.found(encode_term(5, None), None), TermVote(5, None))
        name = "n\N{LATIN SMALL LETTER E WITH ACUTE}"
        self.assertEqual(decode_term(encode_term(5, name), (name,)), TermVote(5, name))

    def test_vote_for_a_former_member(self) -> None:
        """A member that left the group since: the twin confirms its vote."""
        self.put(6, "gone")
        java, twin = (self.disk.read_file(f"{ROOT}/{name}") for name in ("currterm", "termvote"))
        self.assertEqual(self.found(java, twin), TermVote(6, "gone"))
        self.assertIsNone(self.found(java, None))

    def test_no_file_beside_a_ledger(self) -> None:
        """Term and vote were recorded once: without both files the member does not start."""
        self.assertIsNone(self.found(None, None))
        self.assertEqual(self.found(None, None, has_ledger=False), TermVote())
        self.assertEqual(self.found(None, self.twin), TermVote(5, "n1"))

    def test_a_start_writes_both_files(self) -> None:
        """A start writes both files again, and makes an unsound twin anew."""
        self.disk.write_file(f"{ROOT}/termvote", bytes(1024))
        terms = TermFile(self.disk, ROOT, member_ids=MEMBERS)
        self.assertEqual(terms.take_up(ledger_end_term=5, has_ledger=True), TermVote(5, "n1"))
        self.assertEqual(len(terms.warnings), 1)
        self.assertEqual(decode_term_twin(self.disk.read_file(f"{ROOT}/termvote")), TermVote(5, "n1"))
        self.disk.write_file(f"{ROOT}/currterm", b"curr")
        self.assertEqual(terms.take_up(ledger_end_term=5, has_ledger=True), TermVote(5, "n1"))
        self.assertEqual(self.disk.read_file(f"{ROOT}/currterm"), self.java)

    def test_new_member_has_a_twin(self) -> None:
        """A member without a vote has the file from its first start on."""
        disk = MemoryDisk()
        TermFile(disk, ROOT).take_up(ledger_end_term=-1)
        self.assertEqual(decode_term_twin(disk.read_file(f"{ROOT}/termvote")), TermVote(0, None))
        self.assertFalse(disk.exists(f"{ROOT}/currterm"))
