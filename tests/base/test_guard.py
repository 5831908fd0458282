# -*- test-case-name: tests.base.test_guard -*-
"""The first failure of a disk ends the use of a store."""

from __future__ import annotations

from twisted.trial.unittest import SynchronousTestCase

from dledger.base.disk.guard import DiskGuard
from dledger.values.errors import DLedgerError, StoreError
from protocols.wire.codes import ResponseCode


class GuardTests(SynchronousTestCase):
    """L{DiskGuard}."""

    def setUp(self) -> None:
        self.guard = DiskGuard("the store", path="/data")

    def test_sound(self) -> None:
        """Nothing is refused while no call has failed."""
        with self.guard.storing("writing failed"):
            pass
        self.guard.check()
        self.assertEqual(self.guard.broken, "")

    def test_failed(self) -> None:
        """An OSError becomes a StoreError with the reason and the facts; everything later is refused."""
        with self.assertRaises(StoreError) as caught, self.guard.storing("writing failed"):
            raise OSError(28, "No space left on device")
        reason = "writing failed: [Errno 28] No space left on device"
        self.assertEqual(caught.exception.facts, {"reason": reason, "path": "/data"})
        self.assertIsInstance(caught.exception.__cause__, OSError)
        for refused in (self.guard.check, self.guard.storing("reading failed").__enter__):
            error = self.assertRaises(StoreError, refused)
            self.assertEqual(error.facts["reason"], f"the store has failed before: {reason}")

    def test_other_errors(self) -> None:
        """A refusal is no failure of the disk."""
        with self.assertRaises(DLedgerError), self.guard.storing("writing failed"):
            raise DLedgerError(ResponseCode.DISK_FULL)
        self.guard.check()

    def test_first_reason_stays(self) -> None:
        """Later failures follow from the first one."""
        self.guard.fail("fsync: EIO")
        self.assertIn("fsync: EIO", str(self.guard.fail("it is closed")))
        self.assertEqual(self.guard.broken, "fsync: EIO")
