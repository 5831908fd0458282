# -*- test-case-name: tests.base.test_forks -*-
"""A client is used in the process that opened it."""

from __future__ import annotations

import os

from twisted.trial.unittest import SynchronousTestCase

from dledger.base.forks import OpenedHere
from dledger.values.errors import DLedgerError


class OpenedHereTests(SynchronousTestCase):
    """This process, and another one."""

    def test_both(self) -> None:
        """The sentence names both processes."""
        OpenedHere().check()
        other = OpenedHere(os.getpid() + 1)
        self.assertFalse(other.is_here)
        said = str(self.assertRaises(DLedgerError, other.check))
        self.assertIn(f"opened in process {os.getpid() + 1}, used in process {os.getpid()}", said)
        self.assertIn("after the fork", said)
