# -*- test-case-name: tests.storage.test_term_file -*-
"""Term and vote are durable when save returns, and are never read lower than they were."""

from __future__ import annotations

from twisted.trial.unittest import SynchronousTestCase

from dledger.base.errors import DirectoryError, StoreError
from dledger.storage.term_file import TermFile, TermVote, decode_term, encode_term
from tests.storage.support import BROKEN, HookedDisk


class TermFileTests(SynchronousTestCase):
    """The term file of a member."""

    def setUp(self) -> None:
        self.disk = HookedDisk()
        self.terms = TermFile(self.disk, "base/dledger-n0")

    def put(self, name: str, content: bytes) -> None:
        """Place a file."""
        self.disk.makedirs("base/dledger-n0")
        self.disk.write_file(f"base/dledger-n0/{name}", content)

    def test_golden(self) -> None:
        """The bytes that Java writes, in its order."""
        self.assertEqual(encode_term(1, "n2"), b"voteLeader=n2\ncurrTerm=1\n")
        self.assertEqual(encode_term(7, None), b"voteLeader=\ncurrTerm=7\n")

    def test_round_trip(self) -> None:
        """What was saved is loaded, by another process too."""
        self.assertEqual(self.terms.load(), TermVote(0, None))
        self.terms.save(3, "n1")
        self.assertEqual(TermFile(self.disk, "base/dledger-n0").load(), TermVote(3, "n1"))
        self.terms.save(4, None)
        self.assertEqual(self.terms.load(), TermVote(4, None))
        self.assertEqual(self.disk.count("write_file", "currterm"), 2)

    def test_java_forms(self) -> None:
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
        self.assertEqual(self.terms.load(), TermVote(5, "n1"))
        self.put("currterm", encode_term(2, None))
        self.assertEqual(self.terms.load(), TermVote(2, None), "the file itself counts where it is there")

    def test_at_least_the_ledgers_term(self) -> None:
        """The term is not below that of the last entry; the vote of an older term does not count."""
        self.terms.save(3, "n1")
        self.assertEqual(self.terms.load(ledger_end_term=3), TermVote(3, "n1"))
        self.assertEqual(self.terms.load(ledger_end_term=5), TermVote(5, None))

    def test_failures(self) -> None:
        """What cannot be written or read stops the member."""
        self.terms.save(3, "n1")
        self.disk.failures = {("write_file", "currterm"): BROKEN}
        with self.assertRaises(StoreError):
            self.terms.save(4, "n2")
        self.disk.failures = {("read_file", "currterm"): BROKEN}
        with self.assertRaises(StoreError):
            self.terms.load()

    def test_what_a_killed_predecessor_left_is_made_durable(self) -> None:
        """A term that was renamed into place but never fsynced is written again before it is used."""
        self.terms.save(3, "n1")
        before = self.disk.count("write_file", "currterm")
        self.assertEqual(self.terms.take_up(ledger_end_term=-1), TermVote(3, "n1"))
        self.assertEqual(self.disk.count("write_file", "currterm"), before + 1)
