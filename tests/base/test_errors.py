# -*- test-case-name: tests.base.test_errors -*-
"""The expected failure: a code, facts, and a sentence made of them."""

from __future__ import annotations

from twisted.trial.unittest import SynchronousTestCase

from dledger.values.errors import DirectoryError, DLedgerError, StoreError
from protocols.wire.codes import ResponseCode


class DLedgerErrorTests(SynchronousTestCase):
    """A refusal."""

    def test_code_and_facts(self) -> None:
        """Both can be read without taking the sentence apart."""
        error = DLedgerError(ResponseCode.NOT_LEADER, leader_id="n1")
        self.assertIs(error.code, ResponseCode.NOT_LEADER)
        self.assertEqual(error.facts, {"leader_id": "n1"})

    def test_sentence(self) -> None:
        """Name and number of the code, the cause unless a reason is given, the facts in the order given."""
        error = DLedgerError(ResponseCode.INDEX_OUT_OF_RANGE, index=7, end_index=3, hint="a b")
        cause = "nothing committed at that index (yet)"
        self.assertEqual(str(error), f"INDEX_OUT_OF_RANGE (410): {cause}, index=7, end_index=3, hint='a b'")
        error = DLedgerError(ResponseCode.INDEX_OUT_OF_RANGE, reason="nothing yet")
        self.assertEqual(str(error), "INDEX_OUT_OF_RANGE (410): reason='nothing yet'")

    def test_sentence_without_facts(self) -> None:
        """No dangling colon."""
        error = DLedgerError(ResponseCode.TIMEOUT)
        self.assertEqual(str(error), "TIMEOUT (300): a client's own deadline passed")


class StoreErrorTests(SynchronousTestCase):
    """What ends a member."""

    def test_is_a_disk_error(self) -> None:
        """A caller that wants a code gets DISK_ERROR; the reason comes first among the facts."""
        error = StoreError("fdatasync failed", path="data/0", errno=5)
        self.assertIs(error.code, ResponseCode.DISK_ERROR)
        self.assertEqual(str(error), "DISK_ERROR (414): reason='fdatasync failed', path='data/0', errno=5")
        self.assertIsInstance(error, DLedgerError)

    def test_directory_error_is_a_sentence(self) -> None:
        """An operator reads what was found and what to do, and no code."""
        error = DirectoryError("data/x is not a segment; move it away", path="data/x")
        self.assertEqual(str(error), "data/x is not a segment; move it away")
        self.assertIsInstance(error, StoreError)
